"""What a law is made of: coefficients under a form, the conditions of their fit, and the loss that follows.

N is the active parameters with embedding and head, D the training tokens; losses are nats per token. The laws that
users hold are of `scaling_law.law`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hub.base.errors import InputError, unknown
from hub.base.inputs import LARGEST, numbers_of, shortened
from hub.base.tables import Summarised, Table, literal
from hub.base.units import parse_count, parse_experts
from scaling_law.formulas.conditions import GUARD, Conditions, RangeCheck
from scaling_law.formulas.terms import Form
from scaling_law.size.architecture import EXPERT_VARIABLES, PARTS, VOCAB_SIZE, is_size
from scaling_law.size.arrays import FloatArray
from scaling_law.size.recipe import PAPER

SMALLEST = 1.0 / LARGEST
FormulaT = TypeVar("FormulaT", bound="Formula")
Values: TypeAlias = ArrayLike | None  # of a variable


@dataclass(frozen=True, repr=False)
class Formula(Summarised):
    """What all laws share; a kind of law adds `name`, `formula` and `form`, from which its values follow.

    `conditions` describe the fit. `draws` are coefficients of refits, [n_draws, n_coefficients] in the order of
    `coefficient_names()`. The variables of `form`, such as N, D and E, broadcast in every method; without E models
    are dense.
    """

    name: ClassVar[str] = ""
    formula: ClassVar[str] = ""
    form: ClassVar[Form] = Form(())

    conditions: Conditions | None = field(default=None, kw_only=True, compare=False)
    draws: FloatArray | None = field(default=None, kw_only=True, compare=False)

    def __post_init__(self) -> None:
        for name, value in self.coefficients.items():
            is_number = isinstance(value, (int, float, np.number)) and not isinstance(
                value, (bool, np.complexfloating)
            )
            if not is_number or not abs(value) <= float(np.finfo(float).max):
                raise InputError(f"{name}={shortened(value)} must be a finite number")
            least = "not be negative" if name in self.form.constants else "be positive"
            if name in self.form.positive and (value < 0 or (value == 0 and least == "be positive")):
                raise InputError(f"{name}={value!r} must {least}")
            object.__setattr__(self, name, float(value))
        for transform in self.form.transforms:
            transform.refuse_disorder(self.coefficients)
        self._check_experts_and_draws()

    def _check_experts_and_draws(self) -> None:
        if (experts := getattr(self, "experts", None)) is not None:  # of a law that holds for one E
            object.__setattr__(self, "experts", one_positive("experts", experts, 1.0))
        if self.draws is not None:
            draws, columns = numbers_of("draws", self.draws).copy(), len(self.coefficient_names())
            if draws.ndim != 2 or draws.shape[1] != columns:
                raise InputError(f"draws have shape {draws.shape}; [n, {columns}] is needed")
            draws.setflags(write=False)
            object.__setattr__(self, "draws", draws)

    @classmethod
    def coefficient_names(cls) -> tuple[str, ...]:
        """Names in the order of the formula and of `draws`."""
        return tuple(f.name for f in fields(cls) if f.name not in ("conditions", "draws", "experts"))

    @property
    def coefficients(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in self.coefficient_names()}

    @property
    def variables(self) -> tuple[str, ...]:
        """What the loss depends on: names of columns of runs."""
        return self.form.variables

    @property
    def vocab_size(self) -> int:
        """The vocabulary of this law's runs; GPT-2's 50,257 if unknown."""
        return (self.conditions and self.conditions.vocab_size) or VOCAB_SIZE

    def loss(self, n_active: Values = None, tokens: Values = None, experts: Values = None, **variables: Values) -> Any:
        """Predicted loss in nats per token; `variables` are the law's others, by name.

        Text such as "1B" is read. ValueError for missing or unknown variables, shapes that do not broadcast, values
        ≤ 0 or not finite, and E < 1. Never refused, however far the question extrapolates: see `warnings` and
        `beyond_guard`.
        """
        return self.evaluate(tuple(self.coefficients.values()), self._inputs(n_active, tokens, experts, **variables))

    def loss_draws(
        self, n_active: Values = None, tokens: Values = None, experts: Values = None, **variables: Values
    ) -> FloatArray:
        """Losses under each of the law's draws, of shape [n_draws, ...]. ValueError if the law has none."""
        if self.draws is None:
            raise InputError("this law has no draws: fit it and call result.bootstrap(...)")
        inputs = self._inputs(n_active, tokens, experts, **variables)
        shape = np.broadcast_shapes(*(values.shape for values in inputs.values()))
        columns = self.draws.T.reshape(len(self.coefficients), -1, *([1] * len(shape)))
        return np.asarray(self.evaluate(columns, inputs))

    @classmethod
    def evaluate(cls, coefficients: Any, inputs: Mapping[str, FloatArray]) -> Any:
        """The loss for coefficients in the order of `coefficient_names()`; all broadcast, nothing is checked."""
        return cls.form.evaluate(dict(zip(cls.coefficient_names(), coefficients, strict=True)), inputs)

    @classmethod
    def _inputs(cls, n_active: Any, tokens: Any, experts: Any, **variables: Any) -> dict[str, FloatArray]:
        """Checked arrays of all variables that are not None; E = 1 where it is."""
        inputs = {"n_active": n_active, "tokens": tokens, "experts": 1.0 if experts is None else experts, **variables}
        arrays = {name: numbers(name, values) for name, values in inputs.items() if values is not None}
        names = ", ".join(cls.form.variables)
        if missing := [name for name in cls.form.variables if name not in arrays]:
            raise InputError(f"{missing[0]}=None must be given: {cls.__name__} depends on {names}")
        for name in variables.keys() - {*cls.form.variables}:
            raise InputError(unknown(f"variable of the {cls.name} law ", name, cls.form.variables))
        for name, values in arrays.items():
            least = 1.0 if name == "experts" else 0.0
            share = name in cls.form.reads and not is_size(name)  # its logarithm is not taken: it may be 0
            most = 1.0 if name in PARTS else LARGEST
            if (wrong := values[~((values >= least) & ((values > 0) | share) & (values <= most))]).size:
                low = "at least 1" if least else "at least 0" if share else "positive"
                high = "at most 1" if name in PARTS else within(wrong.flat[0])
                raise InputError(f"{name}={wrong.flat[0]:g} must be {low} and {high}")
        check_shapes(arrays)
        return arrays

    def default_experts(self) -> Any:
        """The E of a question that names none: the paper's within the range guard, or 1 for a law of dense models."""
        if not {*self.variables} & EXPERT_VARIABLES:
            return (1.0,)
        limits = self.conditions.fitted_limits() if self.conditions else {}
        least, most = limits.get("density", (1.0 / PAPER.experts[-1], 1.0))
        low, high = limits.get("E", (1.0 / most, 1.0 / least))
        if low == high:
            return (low,)
        return tuple(float(e) for e in PAPER.experts if low / GUARD["E"] <= e <= high * GUARD["E"])

    def warnings(
        self, n_active: Values = None, tokens: Values = None, experts: Values = None, **variables: Values
    ) -> list[str]:
        """How far these models lie outside the runs, or what ranges are unknown, a sentence each; [] inside."""
        return [*self.check(n_active, tokens, experts, **variables).warnings]

    def beyond_guard(
        self, n_active: Values = None, tokens: Values = None, experts: Values = None, **variables: Values
    ) -> NDArray[np.bool_]:
        """True where a model lies too far from the runs to act on the answer (`conditions.GUARD`)."""
        return self.check(n_active, tokens, experts, **variables).beyond

    def check(
        self, n_active: Values = None, tokens: Values = None, experts: Values = None, **variables: Values
    ) -> RangeCheck:
        """What an answer about these models is worth. E left out means dense models, or the law's own.

        For a law without E, an answer about another E than its own is not trusted.
        """
        inputs = {"n_active": n_active, "tokens": tokens, "experts": experts, **variables}
        at: dict[str, Any] = {name: None if v is None else numbers(name, v) for name, v in inputs.items()}
        needs = self.variables
        if experts is None:
            at["experts"] = 1.0 if "experts" in self.form.variables else None
        elif not {*needs} & EXPERT_VARIABLES and np.any(at["experts"] != np.ravel(self.default_experts())[0]):
            needs = (*needs, "experts")
        return RangeCheck(self.conditions, needs, at)

    def replace(self: FormulaT, **changes: Any) -> FormulaT:
        """A copy with some fields changed; new coefficients drop the draws unless `draws` are given.

        ValueError for a field that the law lacks, and for values that a law refuses.
        """
        names = sorted((f.name for f in fields(self)), key=("conditions", "draws").__contains__)
        for name in changes:
            if name not in names:
                raise InputError(unknown(f"field of {type(self).__name__} ", name, names))
        kept = ("conditions", "draws", "experts")
        same = all(getattr(self, name) == value for name, value in changes.items() if name not in kept)
        return replace(self, **{"draws": self.draws if same else None, **changes})

    def summary(self) -> Table:
        """The coefficients, with 95 % intervals where the law has draws; rich and notebooks show it."""
        rows = [[name, f"{value:.5g}"] for name, value in self.coefficients.items()]
        header = ["coefficient", "value"]
        if self.draws is not None:
            header += ["2.5 %", "97.5 %"]
            ends = zip(*percentile_interval(self.draws), strict=True)
            rows = [[*row, f"{low:.5g}", f"{high:.5g}"] for row, (low, high) in zip(rows, ends, strict=True)]
        conditions = self.conditions
        notes, omitted = ([conditions.provenance], conditions.omitted) if conditions else ([], ())
        return Table(header, rows, title=self.formula, notes=notes, warnings=omitted)

    def __repr__(self) -> str:
        body = ", ".join(f"{name}={value:.6g}" for name, value in self.coefficients.items())
        notes, fit = [], self.conditions
        if fit is not None:
            notes.append(f"{fit.provenance}, {fit.n_runs} runs" if fit.n_runs else fit.provenance)
        if self.draws is not None:
            notes.append(f"{len(self.draws)} draws")
        return f"{type(self).__name__}({body})" + (f"  # {'; '.join(notes)}" if notes else "")


def numbers(name: str, values: Any) -> FloatArray:
    """Convert numbers, or text such as "1B" and, for experts, "1,2,4-8", to an array.

    ValueError names the field and the value.
    """
    if isinstance(values, str):
        read = [float(e) for e in parse_experts(values)] if name == "experts" else [parse_count(values, name)]
        return np.array(read if len(read) > 1 else read[0])
    if isinstance(values, (list, tuple)):
        values = [parse_count(value, name) if isinstance(value, str) else value for value in values]
    try:
        return np.asarray(values, float)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{name}={literal(values)} must be numbers, or text such as '1B'") from None


def check_shapes(arrays: Mapping[str, FloatArray]) -> None:
    """InputError, naming the arrays, unless they broadcast."""
    try:
        np.broadcast_shapes(*(values.shape for values in arrays.values()))
    except ValueError:
        shapes = ", ".join(f"{name} of {list(values.shape)}" for name, values in arrays.items() if values.ndim)
        raise InputError(f"{shapes}: arrays must have one shape, or shapes that broadcast") from None


def positive(name: str, value: ArrayLike, least: float = 0.0) -> FloatArray:
    """An array of positive finite numbers, `least` and more; text such as "1e22" or "100B" is read.

    ValueError for anything else.
    """
    array = numbers(name, value)
    if (wrong := array[~((array >= max(least, SMALLEST)) & (array <= LARGEST))]).size:
        low = f"at least {least:g}" if least else "positive"
        raise InputError(f"{name}={wrong.flat[0]:g} must be {low} and {within(wrong.flat[0])}")
    return array


def one_positive(name: str, value: Any, least: float = 0.0) -> float:
    """Read one number as `positive` reads many."""
    array = positive(name, value, least)
    if array.ndim:
        raise InputError(f"{name}={literal(value)} must be one number")
    return float(array)


def within(value: float) -> str:
    """What a number must be that is no size of anything: finite, or within the numbers whose products are finite."""
    return "finite" if value <= 0 or not np.isfinite(value) else f"from {SMALLEST:g} to {LARGEST:g}"


def percentile_interval(draws: FloatArray, level: float = 0.95) -> tuple[Any, Any]:
    """The (low, high) between which `level` of the draws lie, over the first axis."""
    check_level(level)
    low, high = np.quantile(draws, [0.5 - level / 2, 0.5 + level / 2], axis=0)
    return (float(low), float(high)) if np.ndim(low) == 0 else (low, high)


def check_level(level: Any) -> None:
    if not (isinstance(level, (int, float)) and 0 < level < 1):
        raise InputError(f"level={level!r} must be above 0 and below 1")


def check_count(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise InputError(f"{name}={value!r} must be an integer of at least {least}")


class ChinchillaForm(Formula):
    """A law that is m N^μ + n D^ν + c for each E, and so has optima."""

    def chinchilla_coefficients(self, experts: ArrayLike) -> tuple[Any, Any, Any, Any]:
        """(m, μ, n, ν) for each E of `experts`, as arrays of its shape. ValueError for an E outside the law."""
        return self.chinchilla_of(tuple(self.coefficients.values()), positive("experts", experts, 1.0))

    @classmethod
    def chinchilla_of(cls, coefficients: Any, experts: ArrayLike) -> tuple[Any, Any, Any, Any]:
        """(m, μ, n, ν) of coefficients in the order of `coefficient_names()`, such as draws, at E; they broadcast."""
        raise NotImplementedError
