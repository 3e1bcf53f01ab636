"""Peak learning rate as a function of model size and number of experts, and of tokens and batch where a law has them.

    LR = exp(intercept + slope_n ln N + slope_e ln E)          Ludziejewski et al. 2025, Eq. "lr_scaling"
         · D^slope_d B^slope_batch                             of a law fitted to runs of several D and batches

Reading "paper": N is the active non-embedding parameters, as the text says. Reading "code": the code of the paper's
runs counted attention, active feed-forward, embedding, head and a 512 × d positional table that the models do not
have; only this agrees with the rates of their grid.

`public_learning_rates.json` holds the law of all readable grids, N without embeddings: "public" for a lab that has
none, and "public:LAB" calibrated to the recipe of a lab. `python -m studies learning_rates` derives it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from hub.base import strict_json
from hub.base.errors import InputError, given, unknown
from hub.base.fields import Field, Parser, parse_numbers, reads
from hub.base.notices import Notice, about
from hub.base.paths import local_path
from hub.base.types import Strings
from scaling_law.answer.answer import Listed, span
from scaling_law.formulas.conditions import Conditions, RangeCheck, rate_guard_of
from scaling_law.formulas.law import Values, check_level, positive
from scaling_law.rates.batch import usual_batch
from scaling_law.size.architecture import VOCAB_SIZE, Architecture
from scaling_law.size.arrays import Interval
from scaling_law.size.recipe import PAPER, ROWS
from scaling_law.size.widths import Sized

Reading = Literal["code", "paper"]
READINGS = ("code", "paper")
COEFFICIENTS = ("intercept", "slope_n", "slope_e", "slope_d", "slope_batch")
FORMAT = "learning_rate_law"
VERSION = 5
PUBLIC = "public"
PUBLIC_FILE = Path(__file__).with_name("public_learning_rates.json")
# Calibrated to the paper, whose recipe `train.py` runs.
DEFAULT_LAW = f"{PUBLIC}:ludziejewski"
INSTEAD = "name another learning-rate law or give the rate"
# Greatest bound of the best rate over the least, up to which an interval is an answer.
WIDEST = 30.0
# A number of tokens, or None where it is not known.
Count: TypeAlias = float | None
# Rows of the positional table that the code of the paper's runs counted.
PHANTOM_POSITIONS = 512


def parse_range(bounds: Any, field: str) -> Interval:
    """Read the least and the greatest value among the runs behind a law."""
    numbers = parse_numbers(bounds, field)
    if numbers.shape != (2,) or not 0 < numbers[0] <= numbers[1] < math.inf:
        raise InputError(f"{field}={bounds!r} must be two positive numbers, the lower first")
    return float(numbers[0]), float(numbers[1])


def parse_covariance(rows: Any, field: str) -> tuple[tuple[float, ...], ...]:
    """Read the covariance of all coefficients."""
    matrix = parse_numbers(rows, field)
    size = len(COEFFICIENTS)
    if matrix.shape != (size, size) or not np.isfinite(matrix).all():
        raise InputError(f"{field}={rows!r} must be five rows of five finite numbers")
    return tuple(map(tuple, matrix.tolist()))


Range = Annotated[Interval | None, Parser(parse_range)]


@reads
@dataclass(frozen=True, repr=False)
class LearningRateLaw(Listed):
    """Peak LR = exp(intercept + slope_n ln N + slope_e ln E) D^slope_d B^slope_batch, with N counted by `reading`.

    D are the tokens of the run, B the tokens of a batch; a slope of 0 leaves them out. `rmse` is the error of ln LR.
    `n_range` (N so counted), `experts_range`, `tokens_range` (D), `batch_range` (B) and `vocab_size` describe the runs
    behind it; unknown ranges are None, and an unknown vocabulary is GPT-2's. `regret` is the loss in nats that a rate
    of this law is expected to cost compared with the best of a grid (None: unknown). `covariance` [5, 5] is the
    covariance of intercept and slopes in the order of the formula, with the scatter between labs if the law covers
    several (None: unknown).
    """

    intercept: float
    slope_n: float
    slope_e: float
    reading: Reading = "code"
    source: str = ""
    rmse: float | None = None
    n_range: Range = None
    experts_range: Range = None
    vocab_size: Annotated[int, Field(ge=1)] = VOCAB_SIZE
    slope_d: float = 0.0
    slope_batch: float = 0.0
    tokens_range: Range = None
    batch_range: Range = None
    regret: float | None = None
    covariance: Annotated[tuple[tuple[float, ...], ...] | None, Parser(parse_covariance)] = None

    @classmethod
    @cache
    def published(cls, reading: str = "code") -> LearningRateLaw:
        """Return the paper's law with the ranges of its runs: 'code' in full precision, 'paper' as its text prints it.

        'public' is the law of all readable grids for another lab, 'public:stepfun' that calibrated to one lab.
        """
        if reading.partition(":")[0] == PUBLIC:
            public = strict_json.read(PUBLIC_FILE, "learning_rate_laws", 1)["laws"]
            if reading not in public:
                raise InputError(unknown("learning-rate law ", reading, public))
            return cls(**public[reading])
        source = "text" if reading == "paper" else "code of the runs"
        coefficients = PAPER.learning_rate.get(reading, (0.0, 0.0, 0.0))
        # The constructor refuses an unknown reading.
        unchecked_reading: Any = reading
        law = cls(*coefficients, unchecked_reading, f"Ludziejewski et al. 2025, {source}")
        sizes = [float(law.counted(row.architecture)) for row in ROWS]
        experts = [float(row.experts) for row in ROWS]
        return replace(
            law,
            n_range=(min(sizes), max(sizes)),
            experts_range=(min(experts), max(experts)),
        )

    @classmethod
    def named(cls, name: str | Path) -> LearningRateLaw:
        """Return the published law of this name (see `published`), else the law of a file."""
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
        values = {name: value for name, value in data.items() if name not in ("format", "version")}
        try:
            return cls(**values)
        except TypeError as error:
            names = ", ".join(field.name for field in fields(cls))
            raise InputError(f"{path}: {error}; the fields are {names}") from None
        except ValueError as error:
            raise InputError(f"{path}: {error}") from None

    def counted(self, model: Sized) -> Any:
        """Count N as this reading does, of an architecture or of models of usual shape (`Widths`)."""
        if self.reading == "paper":
            return model.n_active_non_embedding
        return model.n_active + PHANTOM_POSITIONS * model.d_model

    def _headline(self) -> str:
        return f"{self.formula}, {self.source}" if self.source else self.formula

    @property
    def formula(self) -> str:
        """The law with its coefficients, variables of slope 0 left out."""
        terms = [f"{self.intercept:.6g}", f"{self.slope_n:+.6g} ln N", f"{self.slope_e:+.6g} ln E"]
        if self.slope_d:
            terms.append(f"{self.slope_d:+.6g} ln D")
        if self.slope_batch:
            terms.append(f"{self.slope_batch:+.6g} ln B")
        return f"exp({' '.join(terms)})"

    def at(
        self,
        counted_parameters: ArrayLike,
        experts: ArrayLike,
        tokens: Values = None,
        batch_tokens: Values = None,
    ) -> Any:
        """Compute the peak LR for N as this reading counts it, D and the tokens of a batch (broadcasts).

        ValueError names a variable of this law that is missing, and one that is not positive and finite.
        """
        size = positive("counted_parameters", counted_parameters)
        e = positive("experts", experts)
        exponent: Any = self.intercept + self.slope_n * np.log(size) + self.slope_e * np.log(e)
        if self.slope_d:
            exponent = exponent + self.slope_d * self._log_of("tokens", tokens, "the run")
        if self.slope_batch:
            exponent = exponent + self.slope_batch * self._log_of("batch_tokens", batch_tokens, "a batch")
        return np.exp(exponent)

    def _log_of(self, name: str, tokens: Values, owner: str) -> Any:
        if tokens is None:
            requirement = f" must be given, the tokens of {owner}, on which the rates of this law depend"
            raise InputError(given(name, None), requirement)
        return np.log(positive(name, tokens))

    def interval_at(
        self,
        counted_parameters: float,
        experts: float,
        tokens: Count = None,
        batch_tokens: Count = None,
        level: float = 0.95,
    ) -> Interval | None:
        """Return the bounds of the best rate with this probability; None without covariance. Errors as `at`."""
        rate = float(self.at(counted_parameters, experts, tokens, batch_tokens))
        check_level(level)
        if self.covariance is None:
            return None
        variables = np.log([math.e, counted_parameters, experts, tokens or 1.0, batch_tokens or 1.0])
        variance = variables @ np.array(self.covariance) @ variables + (self.rmse or 0.0) ** 2
        spread = math.sqrt(max(float(variance), 0.0))
        factor = math.exp(NormalDist().inv_cdf(0.5 + level / 2) * spread)
        return rate / factor, rate * factor

    def peak(
        self,
        counted_parameters: float,
        experts: float,
        tokens: Count = None,
        batch_tokens: Count = None,
    ) -> PeakRate:
        """Return the rate here, or why there is none: too far outside the runs of the law, or not known well enough.

        Errors as `at`.
        """
        inputs = (counted_parameters, experts, tokens, batch_tokens)
        rate = float(self.at(*inputs))
        interval = self.interval_at(*inputs)
        check = self._check(*inputs)
        low, high = interval or (rate, rate)
        refusal = ""
        if check.beyond:
            reason = check.distrust or "; ".join(check.warnings)
            refusal = f"too far outside the runs of its law ({reason}); {INSTEAD}"
        elif high > WIDEST * low:
            refusal = (
                f"the law knows the best rate only between {low:.2g} and {high:.2g}, a factor of {high / low:,.0f}; "
                f"two or more small models of yours, each at five rates a factor of two apart, settle it: "
                f"`scaling-law learning-rate RUNS` fits them, or {INSTEAD}"
            )
        return PeakRate(
            learning_rate=None if refusal else rate,
            interval=None if refusal else interval,
            law=self,
            batch_tokens=round(batch_tokens) if self.slope_batch and batch_tokens is not None else None,
            check=check,
            refusal=refusal,
        )

    def of(self, architecture: Architecture, tokens: Count = None, batch_tokens: Count = None) -> PeakRate:
        """Return the rate of an architecture, or why there is none; a law that has the batch knows the usual one."""
        return self.peak(*self._inputs(architecture, tokens, batch_tokens))

    def learning_rate(self, architecture: Architecture, tokens: Count = None, batch_tokens: Count = None) -> float:
        """Compute the peak LR. Never refused: `of` says how far it extrapolates; errors as `at`.

        Without `batch_tokens` a law that has the batch takes that of `law.optimal` (`rates.batch.usual_batch`).
        """
        return float(self.at(*self._inputs(architecture, tokens, batch_tokens)))

    def _inputs(self, architecture: Architecture, tokens: Count, batch: Count) -> tuple[float, float, Count, Count]:
        """Return N as counted, E, D and the batch: that which is given, or of a law that has it the usual one."""
        if batch is None and tokens is not None and self.slope_batch:
            batch, _ = usual_batch(architecture.n_active, float(positive("tokens", tokens)))
        return float(self.counted(architecture)), architecture.experts_equivalent, tokens, batch

    def _check(
        self,
        counted_parameters: float,
        experts: float,
        tokens: Count,
        batch_tokens: Count,
    ) -> RangeCheck:
        """Check how far N, E, and the D and B that the rate of a run depends on lie outside the runs of this law.

        `beyond`, and not trusted, where it is too far to train at this rate (`conditions.RATE_GUARD`).
        """
        ranges = {"N": self.n_range, "E": self.experts_range, "D": self.tokens_range, "batch": self.batch_range}
        inputs = {"N": counted_parameters, "experts": experts, "tokens": tokens, "batch": batch_tokens}
        slopes = {"tokens": self.slope_d, "batch": self.slope_batch}
        needs = ("N", "experts", *(name for name, slope in slopes.items() if slope))
        conditions = Conditions(self.source, variables={name: bounds for name, bounds in ranges.items() if bounds})
        return RangeCheck(conditions, needs, inputs, rate_guard_of, trusts_guard=True)


class PeakRate(NamedTuple):
    """The peak LR of a run by a law and the bounds of the best rate with 95 % probability, None where it has none.

    `refusal` then says why. `batch_tokens` is the batch that the rate is for, None for a law without the batch;
    `check` says how far the run lies outside the runs of the law.
    """

    learning_rate: float | None
    interval: Interval | None
    law: LearningRateLaw
    batch_tokens: int | None
    check: RangeCheck
    refusal: str

    @property
    def warnings(self) -> Strings:
        """The reason why there is no rate, or how far it extrapolates; nothing of variables that were left out."""
        if self.refusal:
            return (Notice(f"no learning rate: {self.refusal}", "no learning rate"),)
        return tuple(about("learning rate", text, "learning rate extrapolates") for text in self.check.warnings)


def source_of_rate(law: str, batches: Iterable[float | None]) -> str:
    """Name the law of a rate, and the batch or batches for which it holds."""
    tokens = sorted({batch for batch in batches if batch is not None})
    if not tokens:
        return f"{law}; a law without the batch"
    return f"{law}; for batches of {span(tokens, '{:,.0f}'.format)} tokens"
