"""Answers: what those of every law share, and published laws that answer only a question of their own.

The answers of such laws are bare arrays, which carry no warning: beyond the range guard they are refused, and
`warnings` says how far inside of it a question extrapolates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from hub.base.errors import InputError
from hub.base.tables import ResultTable, Table, as_text
from scaling_law.formulas.conditions import Conditions, RangeCheck, rate_guard_of, rate_support_of
from scaling_law.formulas.law import positive


@dataclass(frozen=True)
class Answer(ResultTable):
    """What every answer has: `rows`, the `best` of them, a `verdict`, and what it is worth.

    `check` is that of all models of the answer (`law.check`), None where no law of the loss was asked, or several
    were, each by itself. `notes` are warnings of the question itself.
    """

    check: RangeCheck | None = field(kw_only=True, repr=False, compare=False)
    notes: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def verdict(self) -> str:
        """The answer in a sentence: the first line of what is shown."""
        raise NotImplementedError

    @property
    def best(self) -> Any:
        """The row that answers best; None where rows are not compared."""
        return None

    @property
    def trusted(self) -> bool:
        """Whether all that was compared lies as far inside as backtests support (`RangeCheck.trusted`)."""
        return self.check is None or bool(np.all(self.check.trusted))

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was noticed, and how far the answer extrapolates."""
        return (*self.notes, *(self.check.warnings if self.check else ()))

    def facts(self) -> dict[str, Any]:
        """What the answer says beside its rows, as plain JSON values."""
        return plain_fields(self, "rows", "check", "notes")

    def to_rows(self) -> list[dict[str, Any]]:
        return [plain(row) for row in self.rows]  # type: ignore[attr-defined]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: what was asked, verdict, rows, best, trusted, warnings."""
        best = self.best.to_dict() if hasattr(self.best, "to_dict") else self.best
        answer = {"verdict": self.verdict, "rows": self.to_rows(), "best": best, "trusted": self.trusted}
        return self.facts() | answer | {"warnings": list(self.warnings)}

    def __str__(self) -> str:
        return as_text(self)


@dataclass(frozen=True)
class ArrayAnswer(Answer):
    """An answer whose `rows` are plain values: often arrays that broadcast, the questions one by one."""

    @property
    def rows(self) -> tuple[dict[str, Any], ...]:
        return tuple(self.to_rows())

    def facts(self) -> dict[str, Any]:
        return {}  # its rows say it all

    def _columns(self) -> dict[str, Any]:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, (np.ndarray, float))}

    def to_rows(self) -> list[dict[str, Any]]:
        """One dict of plain values for each question, in the order of the arrays."""
        return ResultTable.to_rows(self)

    def summary(self) -> Table:
        return replace(super().summary(), title=self.verdict)


def plain(value: Any) -> Any:
    """A value as JSON has it: what has `to_dict` by that, other dataclasses by their fields, keys as text."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if is_dataclass(value):
        return plain_fields(value)
    if isinstance(value, Mapping):
        return {name if isinstance(name, str) else f"{name:g}": plain(inner) for name, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, (tuple, list)) else value


def plain_fields(value: Any, *without: str) -> dict[str, Any]:
    """The fields of a dataclass as JSON has them, but for those named."""
    return {f.name: plain(getattr(value, f.name)) for f in fields(value) if f.name not in without}


def span(values: Any, form: Callable[[float], str]) -> str:
    """One value, or the lowest and the highest of several, in words."""
    low, high = float(np.min(values)), float(np.max(values))
    return form(low) if low == high else f"{form(low)} to {form(high)}"


@dataclass(frozen=True)
class PowerLaw:
    """floor + scale · Π x^exponent over the named variables x."""

    scale: float
    exponents: Mapping[str, float]
    floor: float = 0.0

    @classmethod
    def of(cls, scale: float, floor: float = 0.0, unit: float = 1.0, **exponents: float) -> PowerLaw:
        """A power law of variables that are counted in a `unit`."""
        return cls(scale / unit ** sum(exponents.values()), exponents, floor)

    def __call__(self, **variables: ArrayLike) -> Any:
        """Its value; `variables` broadcast, and others than its own are ignored."""
        product: Any = self.scale
        for name, exponent in self.exponents.items():
            product = product * np.asarray(variables[name], float) ** exponent
        return self.floor + product


@dataclass(frozen=True)
class OwnQuestion:
    """What these laws share: `answers` says what they can be asked; `conditions` are those of a Law."""

    answers: ClassVar[str] = ""
    method: ClassVar[str] = ""

    conditions: Conditions | None = field(default=None, kw_only=True, compare=False, repr=False)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise an AttributeError that says what to ask instead of a method of a `Law`."""
            instead = f"it gives no loss, only {self.answers}: ask {self.method}()"
            raise AttributeError(f"{type(self).__name__} has no {name!r}: {instead}")

    @property
    def variables(self) -> tuple[str, ...]:
        """What the answer depends on."""
        return ("flops",)

    def warnings(self, **variables: Any) -> list[str]:
        """How far a question lies outside the runs of the law, or what ranges are unknown, a sentence each."""
        return [*self.check(**variables).warnings]

    def check(self, **variables: Any) -> RangeCheck:
        return RangeCheck(self.conditions, self.variables, variables)

    def _checked(self, force: bool, **variables: ArrayLike) -> dict[str, Any]:
        """Arrays of the law's variables. ValueError unless complete, positive, finite and (but for `force`) near."""
        if {*variables} != {*self.variables}:
            names = ", ".join(variables) or "nothing"
            raise InputError(f"{type(self).__name__} depends on {', '.join(self.variables)}, not on {names}")
        arrays = {name: positive(name, values) for name, values in variables.items()}
        self.check(**arrays).refuse(force)
        return arrays


@dataclass(frozen=True)
class Allocation(OwnQuestion):
    """The compute optimum of a budget of C FLOPs; `size_name` says how the size is counted."""

    answers: ClassVar[str] = "optimum"
    method: ClassVar[str] = "optimum"

    size_name: str
    size: PowerLaw
    tokens: PowerLaw
    loss: PowerLaw | None = None

    @classmethod
    def along_6nd(cls, size_name: str, size: PowerLaw) -> Allocation:
        """Spend C on D = C / (6 N) tokens."""
        (exponent,) = size.exponents.values()
        return cls(size_name, size, PowerLaw(1.0 / (6.0 * size.scale), {"flops": 1.0 - exponent}))

    def optimum(self, flops: ArrayLike, *, force: bool = False) -> dict[str, Any]:
        """The size (under `size_name`), `tokens`, and `loss` where the paper gives it; broadcasts.

        ValueError for FLOPs that are not positive and finite; ExtrapolationError beyond the guard, unless `force`.
        """
        budget = self._checked(force, flops=flops)
        laws = {self.size_name: self.size, "tokens": self.tokens, **({"loss": self.loss} if self.loss else {})}
        return {name: law(**budget) for name, law in laws.items()}


@dataclass(frozen=True)
class TrainingRates(OwnQuestion):
    """Peak learning rate and batch size in tokens."""

    answers: ClassVar[str] = "learning rate, batch"
    method: ClassVar[str] = "rates"

    learning_rate: PowerLaw
    batch_tokens: PowerLaw

    @property
    def variables(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*self.learning_rate.exponents, *self.batch_tokens.exponents]))

    def check(self, **variables: Any) -> RangeCheck:
        return RangeCheck(self.conditions, self.variables, variables, rate_guard_of, rate_support_of)

    def rates(self, *, force: bool = False, **variables: ArrayLike) -> dict[str, Any]:
        """`learning_rate` and `batch_tokens` for the law's `variables`; broadcasts.

        ValueError for missing and unknown variables and values that are not positive and finite; ExtrapolationError
        beyond the range guard, unless `force`.
        """
        arrays = self._checked(force, **variables)
        return {"learning_rate": self.learning_rate(**arrays), "batch_tokens": self.batch_tokens(**arrays)}


@dataclass(frozen=True)
class EfficiencyLeverage(OwnQuestion):
    """EL = Â^(α + γ (log₂ G)² + β log₂ G) with α = a + d log₁₀ C    (Tian et al. 2025, arXiv 2507.17702, Eq. 13)

    1/Â = 1/(A + (1/A_start − 1/A_max)⁻¹) + 1/A_max. The bases of the logarithms are inferred: the paper states none,
    and only these give both EL > 7 at A = 3.1 %, G = 12, C = 1e22 and a best G of about 12, as it prints.
    """

    answers: ClassVar[str] = "leverage"
    method: ClassVar[str] = "leverage"

    a: float
    d: float
    gamma: float
    beta: float
    a_start: float
    a_max: float

    @property
    def variables(self) -> tuple[str, ...]:
        return ("activation_ratio", "granularity", "flops")

    def leverage(
        self, activation_ratio: ArrayLike, granularity: ArrayLike, flops: ArrayLike, *, force: bool = False
    ) -> Any:
        """Compute of a dense model over that of the MoE of equal loss; broadcasts.

        Args:
            activation_ratio: A, the active part of routed and shared experts, above 0 and at most 1.
            granularity: G = 2 d_model / d_expert, half of Krajewski et al.'s where d_ff = 4 d_model.
            flops: C, non-embedding FLOPs of training.

        ValueError for values out of range; ExtrapolationError beyond the range guard, unless `force`.
        """
        arrays = self._checked(force, activation_ratio=activation_ratio, granularity=granularity, flops=flops)
        ratio, g, c = arrays.values()
        if (wrong := ratio[ratio > 1]).size:
            raise InputError(f"activation_ratio={wrong.flat[0]:g} must be at most 1")
        inner = ratio + 1.0 / (1.0 / self.a_start - 1.0 / self.a_max)
        log_a = -np.log(1.0 / inner + 1.0 / self.a_max)
        log_g = np.log2(g)
        return np.exp(log_a * (self.a + self.d * np.log10(c) + self.gamma * log_g**2 + self.beta * log_g))
