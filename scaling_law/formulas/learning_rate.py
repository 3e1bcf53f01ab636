"""Peak learning rate as a function of model size and number of experts, and of tokens and batch where a law has them.

    LR = exp(intercept + slope_n ln N + slope_e ln E)          Ludziejewski et al. 2025, Eq. "lr_scaling"
         · D^slope_d B^slope_batch                             of a law fitted to runs of several D and batches

Reading "paper": N is the active non-embedding parameters, as the text says. Reading "code", the default: the code of
the paper's runs counted attention, active feed-forward, embedding, head and a 512 × d positional table that the models
do not have; only this agrees with the rates of their grid.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from hub.base import strict_json
from hub.base.errors import InputError, unknown
from scaling_law.formulas.conditions import Conditions, RangeCheck
from scaling_law.formulas.law import positive
from scaling_law.size.architecture import VOCAB_SIZE, Architecture, active_parameters, non_embedding_parameters
from scaling_law.size.recipe import PAPER, ROWS

Reading = Literal["code", "paper"]
READINGS = ("code", "paper")
FORMAT, VERSION = "learning_rate_law", 4
SINCE = {"n_range": 2, "experts_range": 2, "vocab_size": 3}  # the version of a file from which on it has a field
SINCE |= dict.fromkeys(("slope_d", "slope_batch", "tokens_range", "batch_range", "regret"), 4)
PHANTOM_POSITIONS = 512  # rows of the positional table that the code counted


@dataclass(frozen=True)
class LearningRateLaw:
    """Peak LR = exp(intercept + slope_n ln N + slope_e ln E) D^slope_d B^slope_batch, N counted as `reading` says.

    D are the tokens of the run, B those of a batch; a slope of 0 leaves them out. `rmse` is that of ln LR. `n_range`
    (N so counted), `experts_range`, `tokens_range` (D), `batch_range` (B) and `vocab_size` are those of the runs
    behind it; if unknown, the ranges are None and the vocabulary GPT-2's. `regret` is the loss in nats that a rate of
    this law is expected to cost beside the best of a grid (None: unknown).
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

    def __post_init__(self) -> None:
        for names, fits, wanted in _FIELDS:
            for name in names.split():
                if not fits(value := getattr(self, name)):
                    raise InputError(f"{name}={value!r} must be {wanted}")
                if isinstance(value, (tuple, list)):
                    object.__setattr__(self, name, tuple(map(float, value)))

    @classmethod
    @lru_cache(maxsize=4)
    def published(cls, reading: Reading = "code") -> LearningRateLaw:
        """The paper's law, with the ranges of its runs: 'code' in full precision, 'paper' as the text prints it."""
        source = "text" if reading == "paper" else "code of the runs"
        coefficients = PAPER.learning_rate.get(reading, (0.0, 0.0, 0.0))  # the law refuses an unknown reading
        law = cls(*coefficients, reading, f"Ludziejewski et al. 2025, {source}")
        counted = [law.counted(row.architecture) for row in ROWS]
        experts = [float(row.experts) for row in ROWS]
        return replace(law, n_range=(min(counted), max(counted)), experts_range=(min(experts), max(experts)))

    @classmethod
    def named(cls, name: str | Path) -> LearningRateLaw:
        """The published law for "code" and "paper", else that of a file."""
        if str(name) in READINGS:
            return cls.published(str(name))
        if not Path(name).exists():
            raise InputError(f"{unknown('learning-rate law ', str(name), READINGS)}, or the file of a law")
        return cls.load(name)

    def save(self, path: str | Path) -> Path:
        """Write the law as JSON, atomically; `train.py --optimizer.learning_rate_law PATH` takes it."""
        return strict_json.write(path, FORMAT, VERSION, asdict(self))

    @classmethod
    def load(cls, path: str | Path) -> LearningRateLaw:
        """Read what `save` wrote. ValueError names the file and the field."""
        data = strict_json.read(path, FORMAT, VERSION)
        names = [name for name in cls.__dataclass_fields__ if SINCE.get(name, 1) <= data["version"]]
        if sorted(data) != sorted(["format", "version", *names]):
            wanted = f"format, version, {', '.join(names)}"
            raise InputError(f"{path}: the fields must be exactly {wanted}; got {', '.join(data)}")
        try:
            return cls(**{name: data[name] for name in names})
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
        self,
        counted_parameters: ArrayLike,
        experts: ArrayLike,
        tokens: ArrayLike | None = None,
        batch_tokens: ArrayLike | None = None,
    ) -> Any:
        """Peak LR for N as this reading counts it, D and the tokens of a batch (broadcasts).

        ValueError names a variable of this law that is missing.
        """
        exponent: Any = self.intercept + self.slope_n * np.log(counted_parameters) + self.slope_e * np.log(experts)
        for name, of, slope, values in (
            ("tokens", "the run", self.slope_d, tokens),
            ("batch_tokens", "a batch", self.slope_batch, batch_tokens),
        ):
            if slope and values is None:
                raise InputError(f"{name}=None must be given, the tokens of {of}: this law is {self.formula}")
            if slope and values is not None:
                exponent = exponent + slope * np.log(positive(name, values))
        return np.exp(exponent)

    def counted(self, architecture: Architecture) -> float:
        """N as this reading counts it."""
        if self.reading == "paper":
            return float(architecture.n_active_non_embedding)
        return float(architecture.n_active + PHANTOM_POSITIONS * architecture.d_model)

    def learning_rate(
        self, architecture: Architecture, tokens: float | None = None, batch_tokens: float | None = None
    ) -> float:
        """Peak LR. Never refused: `warnings` and `beyond_guard` say how far it extrapolates; errors as `at`."""
        return float(self.at(self.counted(architecture), architecture.experts_equivalent, tokens, batch_tokens))

    def warnings(
        self, architecture: Architecture, tokens: float | None = None, batch_tokens: float | None = None
    ) -> list[str]:
        """How far a run lies outside the runs of this law; [] inside. Variables left out are not checked."""
        return self.warnings_at(self.counted(architecture), architecture.experts_equivalent, tokens, batch_tokens)

    def warnings_at(
        self,
        counted_parameters: float,
        experts: float,
        tokens: float | None = None,
        batch_tokens: float | None = None,
    ) -> list[str]:
        """Warnings for N as this reading counts it."""
        sentences = self.check_at(counted_parameters, experts, tokens, batch_tokens).warnings
        return [f"learning rate: {text}" for text in sentences]

    def check(
        self, architecture: Architecture, tokens: float | None = None, batch_tokens: float | None = None
    ) -> RangeCheck:
        """What the rate of a run is worth: trusted where N, E, and the D and B that it depends on are in range."""
        return self.check_at(self.counted(architecture), architecture.experts_equivalent, tokens, batch_tokens)

    def beyond_guard(
        self, architecture: Architecture, tokens: float | None = None, batch_tokens: float | None = None
    ) -> bool:
        """Whether N, E, D or B lie too far outside to train at this rate (`conditions.GUARD`); False if unknown."""
        return bool(self.check(architecture, tokens, batch_tokens).beyond)

    def check_at(
        self, counted_parameters: float, experts: float, tokens: float | None, batch_tokens: float | None
    ) -> RangeCheck:
        """Range check for N as this reading counts it."""
        ranges = {"N": self.n_range, "E": self.experts_range, "D": self.tokens_range, "batch": self.batch_range}
        conditions = Conditions(self.source, variables={name: ends for name, ends in ranges.items() if ends})
        needs = ("N", "experts", *("tokens",) * (self.slope_d != 0), *("batch",) * (self.slope_batch != 0))
        at = {"N": counted_parameters, "experts": experts, "tokens": tokens, "batch": batch_tokens}
        return RangeCheck(conditions, needs, at)


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_range(ends: Any) -> bool:
    pair = isinstance(ends, (tuple, list)) and len(ends) == 2 and all(map(_is_finite, ends))
    return ends is None or (pair and 0 < ends[0] <= ends[1])


_FIELDS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (  # which, whether a value fits, and what it must be
    ("reading", READINGS.__contains__, "'code' or 'paper'"),
    ("intercept slope_n slope_e slope_d slope_batch", _is_finite, "a finite number"),
    ("vocab_size", lambda size: type(size) is int and size >= 1, "an integer of at least 1"),
    ("regret", lambda nats: nats is None or _is_finite(nats), "a finite number of nats, or None"),
    ("n_range experts_range tokens_range batch_range", _is_range, "two positive numbers, the lower first"),
)
