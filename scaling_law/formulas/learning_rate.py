"""Peak learning rate as a function of model size and number of experts, and of tokens and batch where a law has them.

    LR = exp(intercept + slope_n ln N + slope_e ln E)          Ludziejewski et al. 2025, Eq. "lr_scaling"
         · D^slope_d B^slope_batch                             of a law fitted to runs of several D and batches

Reading "paper": N is the active non-embedding parameters, as the text says. Reading "code": the code of the paper's
runs counted attention, active feed-forward, embedding, head and a 512 × d positional table that the models do not
have; only this agrees with the rates of their grid.

`public_learning_rates.json` holds the law of all readable grids, N without embeddings: "public" for a lab that has
none, and "public:LAB" at the level of a lab. `python -m studies learning_rates` derives it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import MISSING, asdict, dataclass, replace
from functools import cache
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from hub.base import strict_json
from hub.base.errors import InputError, given, unknown
from hub.base.paths import local_path
from scaling_law.formulas.answers import span
from scaling_law.formulas.conditions import Conditions, RangeCheck, rate_guard_of, rate_support_of
from scaling_law.formulas.law import Values, check_level, positive
from scaling_law.size.architecture import VOCAB_SIZE, Architecture, active_parameters, non_embedding_parameters
from scaling_law.size.recipe import PAPER, ROWS

Reading = Literal["code", "paper"]
READINGS = ("code", "paper")
COEFFICIENTS = ("intercept", "slope_n", "slope_e", "slope_d", "slope_batch")
FORMAT, VERSION = "learning_rate_law", 5
PUBLIC, PUBLIC_FILE = "public", Path(__file__).with_name("public_learning_rates.json")
# The level of the paper, whose recipe `train.py` runs.
DEFAULT_LAW = f"{PUBLIC}:ludziejewski"
INSTEAD = "name another law (learning_rate_law, --learning-rate-law) or give the rate"
# A number of tokens, or None where it is not told.
Count: TypeAlias = float | None
PHANTOM_POSITIONS = 512  # rows of the positional table that the code counted


@dataclass(frozen=True)
class LearningRateLaw:
    """Peak LR = exp(intercept + slope_n ln N + slope_e ln E) D^slope_d B^slope_batch, N counted as `reading` says.

    D are the tokens of the run, B those of a batch; a slope of 0 leaves them out. `rmse` is that of ln LR. `n_range`
    (N so counted), `experts_range`, `tokens_range` (D), `batch_range` (B) and `vocab_size` are those of the runs
    behind it; if unknown, the ranges are None and the vocabulary GPT-2's. `regret` is the loss in nats that a rate of
    this law is expected to cost beside the best of a grid (None: unknown). `covariance` [5, 5] is that of intercept
    and slopes in the order of the formula, between labs too where the law is of several (None: unknown).
    """

    intercept: float
    slope_n: float
    slope_e: float
    reading: Reading = "code"
    source: str = ""
    rmse: float | None = None
    n_range: tuple[float, float] | None = None
    experts_range: tuple[float, float] | None = None
    vocab_size: int = VOCAB_SIZE
    slope_d: float = 0.0
    slope_batch: float = 0.0
    tokens_range: tuple[float, float] | None = None
    batch_range: tuple[float, float] | None = None
    regret: float | None = None
    covariance: tuple[tuple[float, ...], ...] | None = None

    def __post_init__(self) -> None:
        for names, fits, wanted in _FIELDS:
            for name in names.split():
                if not fits(value := getattr(self, name)):
                    raise InputError(f"{name}={value!r} must be {wanted}")
                if isinstance(value, (tuple, list)):
                    object.__setattr__(self, name, _frozen(value))

    @classmethod
    @cache
    def published(cls, reading: str = "code") -> LearningRateLaw:
        """The paper's law, with the ranges of its runs: 'code' in full precision, 'paper' as the text prints it.

        'public' is that of all readable grids for another lab, 'public:stepfun' at the level of one of them.
        """
        if reading.partition(":")[0] == PUBLIC:
            public = strict_json.read(PUBLIC_FILE, "learning_rate_laws", 1)["laws"]
            if reading not in public:
                raise InputError(unknown("learning-rate law ", reading, public))
            return cls(**public[reading])
        counts: Any = reading  # an unknown one is refused by the law
        source = "text" if reading == "paper" else "code of the runs"
        coefficients = PAPER.learning_rate.get(reading, (0.0, 0.0, 0.0))
        law = cls(*coefficients, counts, f"Ludziejewski et al. 2025, {source}")
        counted = [law.counted(row.architecture) for row in ROWS]
        experts = [float(row.experts) for row in ROWS]
        return replace(law, n_range=(min(counted), max(counted)), experts_range=(min(experts), max(experts)))

    @classmethod
    def named(cls, name: str | Path) -> LearningRateLaw:
        """The published law of this name (see `published`), else that of a file."""
        if local_path(name).exists() and str(name) not in READINGS:
            return cls.load(name)
        if str(name).partition(":")[0] not in (*READINGS, PUBLIC):
            raise InputError(f"{unknown('learning-rate law ', str(name), (*READINGS, PUBLIC))}, or the file of a law")
        return cls.published(str(name))

    def save(self, path: str | Path) -> Path:
        """Write the law as JSON, atomically; `train.py --optimizer.learning_rate_law PATH` takes it."""
        return strict_json.write(path, FORMAT, VERSION, asdict(self))

    @classmethod
    def load(cls, path: str | Path) -> LearningRateLaw:
        """Read what `save` wrote; older files lack some fields. ValueError names the file and the field."""
        data = strict_json.read(path, FORMAT, VERSION)
        fields = {name: value for name, value in data.items() if name not in ("format", "version")}
        needed = {name for name, one in cls.__dataclass_fields__.items() if one.default is MISSING}
        if not needed <= {*fields} <= {*cls.__dataclass_fields__}:
            wanted = f"{', '.join(sorted(needed))} must be there, of {', '.join(cls.__dataclass_fields__)}"
            raise InputError(f"{path}: the fields {wanted}; got {', '.join(fields)}")
        try:
            return cls(**fields)
        except ValueError as error:
            raise InputError(f"{path}: {error}") from None

    def counted_parameters(
        self, d_model: ArrayLike, n_blocks: ArrayLike | None = None, vocab_size: float | None = None
    ) -> Any:
        """N as this reading counts it (broadcasts); vocab_size None: the law's own."""
        if self.reading == "paper":
            return non_embedding_parameters(d_model, n_blocks)
        vocabulary = self.vocab_size if vocab_size is None else vocab_size
        return active_parameters(d_model, n_blocks, vocabulary) + PHANTOM_POSITIONS * np.asarray(d_model, float)

    @property
    def formula(self) -> str:
        """The law with its coefficients, variables of slope 0 left out."""
        slopes = {"ln N": self.slope_n, "ln E": self.slope_e, "ln D": self.slope_d, "ln B": self.slope_batch}
        terms = [f"{slope:+.6g} {x}" for x, slope in slopes.items() if slope or x in ("ln N", "ln E")]
        return f"exp({' '.join([f'{self.intercept:.6g}', *terms])})"

    def at(
        self, counted_parameters: ArrayLike, experts: ArrayLike, tokens: Values = None, batch_tokens: Values = None
    ) -> Any:
        """Peak LR for N as this reading counts it, D and the tokens of a batch (broadcasts).

        ValueError names a variable of this law that is missing, and one that is not positive and finite.
        """
        size, e = positive("counted_parameters", counted_parameters), positive("experts", experts)
        exponent: Any = self.intercept + self.slope_n * np.log(size) + self.slope_e * np.log(e)
        for name, of, slope, values in (
            ("tokens", "the run", self.slope_d, tokens),
            ("batch_tokens", "a batch", self.slope_batch, batch_tokens),
        ):
            if slope and values is None:
                said = f" must be given, the tokens of {of}: this law is {self.formula}"
                raise InputError(given(name, None), said)
            if slope and values is not None:
                exponent = exponent + slope * np.log(positive(name, values))
        return np.exp(exponent)

    def interval_at(
        self,
        counted_parameters: float,
        experts: float,
        tokens: Count = None,
        batch_tokens: Count = None,
        level: float = 0.95,
    ) -> tuple[float, float] | None:
        """Where the best rate lies with this probability; None for a law without covariance. Errors as `at`."""
        rate = float(self.at(counted_parameters, experts, tokens, batch_tokens))
        check_level(level)
        if self.covariance is None:
            return None
        variables = np.log([math.e, counted_parameters, experts, tokens or 1.0, batch_tokens or 1.0])
        variance = variables @ np.array(self.covariance) @ variables + (self.rmse or 0.0) ** 2
        factor = math.exp(NormalDist().inv_cdf(0.5 + level / 2) * math.sqrt(max(float(variance), 0.0)))
        return rate / factor, rate * factor

    def counted(self, architecture: Architecture) -> float:
        """N as this reading counts it."""
        if self.reading == "paper":
            return float(architecture.n_active_non_embedding)
        return float(architecture.n_active + PHANTOM_POSITIONS * architecture.d_model)

    def learning_rate(self, architecture: Architecture, tokens: Count = None, batch_tokens: Count = None) -> float:
        """Peak LR. Never refused: `warnings` and `check` say how far it extrapolates; errors as `at`."""
        return float(self.at(self.counted(architecture), architecture.experts_equivalent, tokens, batch_tokens))

    def warnings(self, architecture: Architecture, tokens: Count = None, batch_tokens: Count = None) -> list[str]:
        """How far a run lies outside the runs of this law; [] inside. Variables left out are not checked."""
        return in_words(self.check(architecture, tokens, batch_tokens))

    def check(self, architecture: Architecture, tokens: Count = None, batch_tokens: Count = None) -> RangeCheck:
        """Check how far N, E, and the D and B that the rate of a run depends on lie outside the runs of this law.

        `beyond`, and not trusted, where it is too far to train at this rate (`conditions.RATE_GUARD`).
        """
        return self.check_at(self.counted(architecture), architecture.experts_equivalent, tokens, batch_tokens)

    def check_at(
        self, counted_parameters: float, experts: float, tokens: Count = None, batch_tokens: Count = None
    ) -> RangeCheck:
        """`check` for N as this reading counts it."""
        ranges = {"N": self.n_range, "E": self.experts_range, "D": self.tokens_range, "batch": self.batch_range}
        conditions = Conditions(self.source, variables={name: ends for name, ends in ranges.items() if ends})
        needs = ("N", "experts", *("tokens",) * (self.slope_d != 0), *("batch",) * (self.slope_batch != 0))
        at = {"N": counted_parameters, "experts": experts, "tokens": tokens, "batch": batch_tokens}
        return RangeCheck(conditions, needs, at, rate_guard_of, rate_support_of)


def describe_distance(check: RangeCheck) -> str:
    """Say how far a rate lies beyond the guard of its law."""
    return f"too far outside the runs of its law ({check.distrust or '; '.join(check.warnings)})"


def in_words(check: RangeCheck) -> list[str]:
    """Return the warnings about a rate, or why there is none."""
    if check.beyond:
        return [f"no learning rate: {describe_distance(check)}; {INSTEAD}"]
    return [f"learning rate: {text}" for text in check.warnings]


class PeakRate(NamedTuple):
    """The peak LR of a run by a law, where the best rate lies with 95 % probability, and what to know of it.

    `learning_rate` is None where the run is too far from those of the law. `batch_tokens` is the batch that the rate
    is for, None for a law without the batch.
    """

    learning_rate: float | None
    interval: tuple[float, float] | None
    law: LearningRateLaw
    batch_tokens: int | None
    warnings: tuple[str, ...]


def peak_rate(
    law: LearningRateLaw | None, d_model: float, experts: float, tokens: float, batch_tokens: float, vocab_size: float
) -> PeakRate:
    """Return the rate of a model of usual shape by this law; None stands for `DEFAULT_LAW`."""
    law = law or LearningRateLaw.published(DEFAULT_LAW)
    at = float(law.counted_parameters(d_model, vocab_size=vocab_size)), experts, tokens, batch_tokens
    check = law.check_at(*at)
    batch = round(batch_tokens) if law.slope_batch else None
    warnings = tuple(in_words(check))
    if check.beyond:
        return PeakRate(None, None, law, batch, warnings)
    return PeakRate(float(law.at(*at)), law.interval_at(*at), law, batch, warnings)


def source_of_rate(law: str, batches: Iterable[float | None]) -> str:
    """Name the law of a rate and the batch, or batches, that it is for."""
    tokens = sorted({batch for batch in batches if batch is not None})
    if not tokens:
        return f"{law}; a law without the batch"
    return f"{law}; for batches of {span(tokens, '{:,.0f}'.format)} tokens"


def _frozen(value: Any) -> Any:
    """Lists in lists of numbers as tuples of floats."""
    return tuple(map(_frozen, value)) if isinstance(value, (tuple, list)) else float(value)


def _is_covariance(rows: Any) -> bool:
    shape = rows is None or (len(rows) == 5 and all(isinstance(row, (tuple, list)) and len(row) == 5 for row in rows))
    return shape and all(_is_finite(x) for row in rows or () for x in row)


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_range(ends: Any) -> bool:
    pair = isinstance(ends, (tuple, list)) and len(ends) == 2 and all(map(_is_finite, ends))
    return ends is None or (pair and 0 < ends[0] <= ends[1])


# Names of fields, a check of their values, and what these must be.
_FIELDS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("reading", READINGS.__contains__, "'code' or 'paper'"),
    (" ".join(COEFFICIENTS), _is_finite, "a finite number"),
    ("vocab_size", lambda size: type(size) is int and size >= 1, "an integer of at least 1"),
    ("regret", lambda nats: nats is None or _is_finite(nats), "a finite number of nats, or None"),
    ("n_range experts_range tokens_range batch_range", _is_range, "two positive numbers, the lower first"),
    ("covariance", _is_covariance, "five rows of five finite numbers, or None"),
)
