"""What a law is made of: coefficients under a form, the conditions of their fit, and the loss that follows.

N is the active parameters with embedding and head, D the training tokens; losses are nats per token. The laws that
users hold are of `scaling_law.law`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hub.base.errors import InputError, given, unknown
from hub.base.inputs import LARGEST, numbers_of, shortened
from hub.base.tables import Summarised, Table, literal
from hub.base.units import parse_count, parse_experts, parse_flops, parse_hours, parse_parameters, parse_tokens
from scaling_law.formulas.conditions import ROUNDING, Conditions, RangeCheck
from scaling_law.formulas.repeated import Models, Repetition, saturate, size_called_for
from scaling_law.formulas.terms import Form
from scaling_law.size.architecture import EXPERT_VARIABLES, PARTS, VOCAB_SIZE, is_parameters, is_size
from scaling_law.size.arrays import FloatArray
from scaling_law.size.recipe import PAPER

SMALLEST = 1.0 / LARGEST
FormulaT = TypeVar("FormulaT", bound="Formula")
BESIDE = ("conditions", "draws", "repetition", "experts")  # fields of a law that are no coefficients
# Values of a variable.
Values: TypeAlias = ArrayLike | None


@dataclass(frozen=True, repr=False)
class Formula(Summarised):
    """What all laws share; a kind of law adds `name`, `formula` and `form`, from which its values follow.

    `conditions` describe the fit. `draws` are coefficients of refits, [n_draws, n_coefficients] in the order of
    `coefficient_names()`. `repetition` has what repeated tokens are worth, None the published values. The variables
    of `form`, such as N, D and E, broadcast in every method; without E models are dense.
    """

    name: ClassVar[str] = ""
    formula: ClassVar[str] = ""
    form: ClassVar[Form] = Form(())

    conditions: Conditions | None = field(default=None, kw_only=True, compare=False)
    draws: FloatArray | None = field(default=None, kw_only=True, compare=False)
    repetition: Repetition | None = field(default=None, kw_only=True)

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
        # The law holds for one E.
        if (experts := getattr(self, "experts", None)) is not None:
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
        return tuple(f.name for f in fields(cls) if f.name not in BESIDE)

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

    def loss(
        self,
        n_active: Values = None,
        tokens: Values = None,
        experts: Values = None,
        *,
        unique_tokens: Values = None,
        **variables: Values,
    ) -> Any:
        """Predicted loss in nats per token; `variables` are the law's others, by name.

        More than `unique_tokens` are repetitions: these and excess parameters count for less (`effective`).
        Text such as "1B" is read. ValueError for missing or unknown variables, shapes that do not broadcast, values
        ≤ 0 or not finite, and E < 1. Never refused, however far the question extrapolates: see `warnings` and
        `beyond_guard`.
        """
        inputs = self._inputs(n_active, tokens, experts, **variables)
        return self._loss_of(tuple(self.coefficients.values()), inputs, unique_tokens)

    def loss_draws(
        self,
        n_active: Values = None,
        tokens: Values = None,
        experts: Values = None,
        *,
        unique_tokens: Values = None,
        **variables: Values,
    ) -> FloatArray:
        """Losses under each of the law's draws, of shape [n_draws, ...]. ValueError if the law has none."""
        inputs = self._inputs(n_active, tokens, experts, **variables)
        unique = np.array(1.0) if unique_tokens is None else numbers("unique_tokens", unique_tokens)
        shape = np.broadcast_shapes(unique.shape, *(values.shape for values in inputs.values()))
        return np.asarray(self._loss_of(self.columns_of_draws(len(shape)), inputs, unique_tokens))

    def columns_of_draws(self, dimensions: int) -> FloatArray:
        """The draws' coefficients, [n_coefficients, n_draws, 1, …], to go with arrays of so many dimensions."""
        if self.draws is None:
            raise InputError("this law has no draws: fit it and call result.bootstrap(...)")
        return np.asarray(self.draws.T.reshape(len(self.coefficients), -1, *([1] * dimensions)))

    def _loss_of(self, coefficients: Any, inputs: Mapping[str, FloatArray], unique_tokens: Values) -> Any:
        if unique_tokens is None:
            return self.evaluate(coefficients, inputs)
        if "tokens" not in inputs:
            raise InputError(f"unique_tokens={unique_tokens!r} goes with tokens, which were not given")
        unique = positive("unique_tokens", unique_tokens)
        check_shapes({**inputs, "unique_tokens": unique})
        return self.evaluate(coefficients, self.effective(coefficients, inputs, unique))

    def effective(
        self,
        coefficients: Any,
        variables: Mapping[str, Any],
        unique_tokens: Any,
        models: Models | None = None,
    ) -> dict[str, Any]:
        """Replace D by D' and N by N', what they are worth where tokens repeat; broadcasts, NaN for no tokens.

        Every size of a model shrinks as its N does. N stays where the law has no compute optimum. `models`: those
        among which it is one, by the ln of a size; None: models of other sizes in the same proportions.
        """
        repetition = self.repetition or Repetition()
        tokens = np.asarray(variables["tokens"], float)
        tokens = np.where(tokens > 0, tokens, np.nan)
        unique = np.minimum(tokens, unique_tokens)
        called_for = self.size_called_for(coefficients, variables, unique, models)
        sizes = [name for name in variables if is_parameters(name)]
        share: Any = 1.0
        if sizes:
            size = np.asarray(variables[sizes[0]], float)
            share = saturate(size, np.fmin(size, called_for), repetition.parameters) / size
        worth = {name: variables[name] * share for name in sizes}
        return {**variables, **worth, "tokens": saturate(tokens, unique, repetition.tokens)}

    def size_called_for(
        self, coefficients: Any, variables: Mapping[str, Any], tokens: FloatArray, models: Models | None = None
    ) -> FloatArray:
        """The first size among `variables` of the model for which `tokens` are compute-optimal, NaN for none."""
        sizes = [name for name in variables if is_parameters(name)]
        if not sizes or "tokens" not in self.form.variables:
            return np.full(np.shape(tokens), np.nan)

        def in_proportion(x: FloatArray) -> dict[str, Any]:
            return {name: value * np.exp(x) if name in sizes else value for name, value in variables.items()}

        shape = np.broadcast_shapes(*(np.shape(value) for value in (*variables.values(), *coefficients, tokens)))
        return size_called_for(
            lambda model: self.evaluate(coefficients, model),
            models or in_proportion,
            sizes[0],
            np.broadcast_to(tokens, shape),
        )

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
            raise InputError(given(missing[0], None), f" must be given: {cls.__name__} depends on {names}")
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
        """Return the E of a question that names none: doublings within the E of the runs, 1 for a law of dense models.

        The paper's where the E of the runs are unknown; both ends of a range that holds no power of two.
        """
        if not {*self.variables} & EXPERT_VARIABLES:
            return (1.0,)
        limits = self.conditions.fitted_limits() if self.conditions else {}
        least, most = limits.get("density", (1.0 / PAPER.experts[-1], 1.0))
        low, high = limits.get("E", (1.0 / most, 1.0 / least))
        first, last = math.ceil(math.log2(low) - ROUNDING), math.floor(math.log2(high) + ROUNDING)
        return tuple(2.0**k for k in range(first, last + 1)) or tuple(dict.fromkeys((low, high)))

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

        For a law without E, an answer about another E than its own is not trusted. With `unique_tokens`, epochs are
        held against those of the runs.
        """
        inputs = {"n_active": n_active, "tokens": tokens, "experts": experts, **variables}
        at: dict[str, Any] = {name: None if v is None else numbers(name, v) for name, v in inputs.items()}
        unique = at.pop("unique_tokens", None)
        if unique is not None and at["tokens"] is not None:
            at["epochs"] = np.maximum(at["tokens"] / unique, 1.0)
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
        names = sorted((f.name for f in fields(self)), key=BESIDE[:3].__contains__)
        for name in changes:
            if name not in names:
                raise InputError(unknown(f"field of {type(self).__name__} ", name, names))
        same = all(getattr(self, name) == value for name, value in changes.items() if name not in BESIDE)
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
        repeats = [str(self.repetition)] if self.repetition else []
        if conditions is None:
            return Table(header, rows, title=self.formula, notes=repeats)
        of_runs = (*conditions.doubts, *conditions.omitted)
        return Table(header, rows, title=self.formula, notes=[conditions.provenance, *repeats], warnings=of_runs)

    def __repr__(self) -> str:
        body = ", ".join(f"{name}={value:.6g}" for name, value in self.coefficients.items())
        notes, fit = [], self.conditions
        if fit is not None:
            notes.append(f"{fit.provenance}, {fit.n_runs} runs" if fit.n_runs else fit.provenance)
        if self.draws is not None:
            notes.append(f"{len(self.draws)} draws")
        if self.repetition is not None:
            notes.append(str(self.repetition))
        return f"{type(self).__name__}({body})" + (f"  # {'; '.join(notes)}" if notes else "")


def numbers(name: str, values: Any) -> FloatArray:
    """Convert numbers, or text such as "1B" and, for experts, "1,2,4-8", to an array.

    ValueError names the field and the value.
    """
    if isinstance(values, str):
        read = [float(e) for e in parse_experts(values)] if name == "experts" else [_reader(name)(values, name)]
        return np.array(read if len(read) > 1 else read[0])
    if isinstance(values, (list, tuple)):
        values = [_reader(name)(value, name) if isinstance(value, str) else value for value in values]
    try:
        return np.asarray(values, float)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{name}={literal(values)} must be numbers, or text such as '1B'") from None


def _reader(name: str) -> Callable[[str, str], float]:
    """What reads a text of this variable, by its unit."""
    if name in ("flops", "hours"):
        return parse_flops if name == "flops" else parse_hours
    if name == "tokens":
        return parse_tokens
    return parse_parameters if name.startswith(("n_active", "n_total")) else parse_count


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
    if value <= 0 or SMALLEST <= value <= LARGEST or not np.isfinite(value):
        return "finite"
    return f"from {SMALLEST:g} to {LARGEST:g}"


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


def has_optimum(coefficients: tuple[Any, Any, Any, Any]) -> NDArray[np.bool_]:
    """Whether the loss falls with both N and D, for each E of the coefficients (m, μ, n, ν)."""
    m, mu, n, nu = (np.asarray(c) for c in coefficients)
    return np.asarray((mu < 0) & (nu < 0) & (m > 0) & (n > 0))


class ChinchillaForm(Formula):
    """A law that is m N^μ + n D^ν + c for each E, and so has optima."""

    def size_called_for(
        self, coefficients: Any, variables: Mapping[str, Any], tokens: FloatArray, models: Models | None = None
    ) -> FloatArray:
        m, mu, n, nu = self.chinchilla_of(coefficients, variables.get("experts", np.array(1.0)))
        # Coefficients may have no optimum.
        with np.errstate(all="ignore"):
            log_size = (np.log(nu * n / (mu * m)) + nu * np.log(tokens)) / mu
            return np.where(has_optimum((m, mu, n, nu)), np.exp(log_size), np.nan)

    def chinchilla_coefficients(self, experts: ArrayLike) -> tuple[Any, Any, Any, Any]:
        """(m, μ, n, ν) for each E of `experts`, as arrays of its shape. ValueError for an E outside the law."""
        return self.chinchilla_of(tuple(self.coefficients.values()), positive("experts", experts, 1.0))

    @classmethod
    def chinchilla_of(cls, coefficients: Any, experts: ArrayLike) -> tuple[Any, Any, Any, Any]:
        """(m, μ, n, ν) of coefficients in the order of `coefficient_names()`, such as draws, at E; they broadcast."""
        raise NotImplementedError
