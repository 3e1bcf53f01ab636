"""A law: coefficients under a form, the conditions of their fit, and the loss that follows.

N is the active parameters with embedding and head, D the training tokens; losses are nats per token. The laws that
users hold are of `scaling_law.law`.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from hub.base.errors import InputError, given, literal, shorten, unknown
from hub.base.fields import LARGEST, parse_numbers
from hub.base.tables import Summarised, Table
from hub.base.types import Fields, Strings
from hub.base.units import parse_count, parse_experts, parse_flops, parse_hours, parse_parameters, parse_tokens
from scaling_law.formulas.conditions import ROUNDING, Conditions, RangeCheck
from scaling_law.formulas.extrapolation import log_errors
from scaling_law.formulas.files import FORMAT, VERSION
from scaling_law.formulas.repeated import Models, Repetition, saturate, size_called_for
from scaling_law.formulas.terms import Form
from scaling_law.size.architecture import EXPERT_VARIABLES, PARTS, VOCAB_SIZE, is_parameters, is_size
from scaling_law.size.arrays import BoolArray, Columns, FloatArray, Intervals, Variables
from scaling_law.size.recipe import PAPER

SMALLEST = 1.0 / LARGEST
FormulaT = TypeVar("FormulaT", bound="Formula")
# Fields of a law that are not coefficients: those of every law, and the E of a law that holds for one.
COMMON_FIELDS = ("conditions", "draws", "repetition")
OTHER_FIELDS = (*COMMON_FIELDS, "experts")
# Values of a variable.
Values: TypeAlias = ArrayLike | None
# Parsers of texts by their units; others are counts, or parameters.
_PARSERS = {
    "flops": parse_flops,
    "hours": parse_hours,
    "tokens": parse_tokens,
}


@dataclass(frozen=True, repr=False)
class Formula(Summarised):
    """The base of all laws; a kind of law adds `name`, `formula` and `form`, from which its values follow.

    `conditions` describe the fit. `draws` are coefficients of refits, [n_draws, n_coefficients] in the order of
    `coefficient_names()`. `repetition` is the worth of repeated tokens (None: the published values). The variables of
    `form`, such as N, D and E, broadcast in every method; without E models are dense.
    """

    name: ClassVar[str] = ""
    formula: ClassVar[str] = ""
    form: ClassVar[Form] = Form(())
    # Whether every installation of this package has the form of this name.
    is_packaged: ClassVar[bool] = False

    conditions: Conditions | None = field(default=None, kw_only=True, compare=False)
    draws: FloatArray | None = field(default=None, kw_only=True, compare=False)
    repetition: Repetition | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        for name, value in self.coefficients.items():
            self._check_coefficient(name, value)
            object.__setattr__(self, name, float(value))
        for transform in self.form.transforms:
            transform.refuse_disorder(self.coefficients)
        self._check_experts_and_draws()

    def _check_coefficient(self, name: str, value: Any) -> None:
        is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, (bool, np.complexfloating))
        if not is_number or not abs(value) <= float(np.finfo(float).max):
            raise InputError(f"{name}={shorten(value)} must be a finite number")
        if name in self.form.positive and value <= 0 and not (value == 0 and name in self.form.constants):
            verdict = "must not be negative" if name in self.form.constants else "must be positive"
            raise InputError(f"{name}={value!r} {verdict}")

    def _check_experts_and_draws(self) -> None:
        # A law that holds for one E has it as a field.
        experts = getattr(self, "experts", None)
        if experts is not None:
            object.__setattr__(self, "experts", one_positive("experts", experts, 1.0))
        if self.draws is not None:
            draws = parse_numbers(self.draws, "draws").copy()
            columns = len(self.coefficient_names())
            if draws.ndim != 2 or draws.shape[1] != columns:
                raise InputError(f"draws have shape {draws.shape}; [n, {columns}] is needed")
            draws.setflags(write=False)
            object.__setattr__(self, "draws", draws)

    @classmethod
    def coefficient_names(cls) -> Strings:
        """Return the names of the coefficients in the order of the formula and of `draws`."""
        return tuple(f.name for f in fields(cls) if f.name not in OTHER_FIELDS)

    @property
    def coefficients(self) -> dict[str, float]:
        """The coefficients by name, in the order of `coefficient_names()`."""
        return {name: getattr(self, name) for name in self.coefficient_names()}

    @property
    def columns(self) -> tuple[float, ...]:
        """The coefficients, as `evaluate` takes them."""
        return tuple(self.coefficients.values())

    @property
    def variables(self) -> Strings:
        """The variables that the loss depends on, by the names of columns of runs."""
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
        """Predict the loss in nats per token; `variables` are the law's other variables, by name.

        More than `unique_tokens` are repetitions: these and excess parameters count for less (`effective`).
        Text such as "1B" is read. ValueError for missing or unknown variables, shapes that do not broadcast, values
        ≤ 0 or not finite, and E < 1. Never refused, however far the question extrapolates: see `warnings` and `check`.
        """
        inputs = self._inputs(n_active, tokens, experts, **variables)
        return self._loss_of(self.columns, inputs, unique_tokens)

    def loss_draws(
        self,
        n_active: Values = None,
        tokens: Values = None,
        experts: Values = None,
        *,
        unique_tokens: Values = None,
        **variables: Values,
    ) -> FloatArray:
        """Predict losses under each of the law's draws, [n_draws, ...]. ValueError if the law has none.

        Outside the fitted ranges they have the error of extrapolation; a law without `conditions` has none.
        """
        inputs = self._inputs(n_active, tokens, experts, **variables)
        unique = 0.0 if unique_tokens is None else numbers("unique_tokens", unique_tokens)
        dimensions = np.broadcast(*inputs.values(), unique).ndim
        losses = np.asarray(self._loss_of(self.columns_of_draws(dimensions), inputs, unique_tokens))
        return self.add_extrapolation(losses, inputs, dimensions)

    def add_extrapolation(self, losses: FloatArray, variables: Variables, dimensions: int) -> FloatArray:
        """Add the error of extrapolation to losses under draws, [n_draws, ...], of models of so many dimensions.

        `variables` are those of `check`.
        """
        errors = log_errors(self.check(**variables), len(losses), dimensions)
        return losses * np.exp(errors) if np.any(errors) else losses

    def columns_of_draws(self, dimensions: int) -> FloatArray:
        """Return the draws' coefficients, [n_coefficients, n_draws, 1, …], for arrays of so many dimensions."""
        if self.draws is None:
            raise InputError("this law has no draws: bootstrap its fit")
        ones = [1] * dimensions
        return np.asarray(self.draws.T.reshape(len(self.coefficients), -1, *ones))

    def _loss_of(self, coefficients: Any, inputs: Columns, unique_tokens: Values) -> Any:
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
        variables: Variables,
        unique_tokens: Any,
        models: Models | None = None,
    ) -> Fields:
        """Replace D and N by D' and N', their worth where tokens repeat; broadcasts, NaN for no tokens.

        Every size of a model shrinks as its N does. N stays where the law has no compute optimum. `models` returns the
        models among which the optimum is searched, by the ln of a size; None: models of the same proportions.
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
        smaller = {name: variables[name] * share for name in sizes}
        return {**variables, **smaller, "tokens": saturate(tokens, unique, repetition.tokens)}

    def size_called_for(
        self,
        coefficients: Any,
        variables: Variables,
        tokens: FloatArray,
        models: Models | None = None,
    ) -> FloatArray:
        """Find the model for which `tokens` are compute-optimal: its first size among `variables`, NaN for none."""
        if self.form.is_chinchilla:
            m, mu, n, nu = self.chinchilla_of(coefficients, variables.get("experts", np.array(1.0)))
            # Coefficients may have no optimum.
            with np.errstate(all="ignore"):
                log_size = (np.log(nu * n / (mu * m)) + nu * np.log(tokens)) / mu
                return np.where(has_optimum((m, mu, n, nu)), np.exp(log_size), np.nan)
        sizes = [name for name in variables if is_parameters(name)]
        if not sizes or "tokens" not in self.form.variables:
            return np.full(np.shape(tokens), np.nan)

        def in_proportion(x: FloatArray) -> Fields:
            scaled_sizes = {name: variables[name] * np.exp(x) for name in sizes}
            return {**variables, **scaled_sizes}

        shapes = map(np.shape, (*variables.values(), *coefficients, tokens))
        return size_called_for(
            lambda model: self.evaluate(coefficients, model),
            models or in_proportion,
            sizes[0],
            np.broadcast_to(tokens, np.broadcast_shapes(*shapes)),
        )

    @classmethod
    def evaluate(cls, coefficients: Any, inputs: Columns) -> Any:
        """Compute the loss without checks; coefficients in the order of `coefficient_names()` and inputs broadcast."""
        values = dict(zip(cls.coefficient_names(), coefficients, strict=True))
        return cls.form.evaluate(values, inputs)

    def chinchilla_coefficients(self, experts: ArrayLike) -> tuple[Any, Any, Any, Any]:
        """Return (m, μ, n, ν) for each E of `experts`, as arrays of its shape, of a law that `is_chinchilla`.

        ValueError for an E outside the law.
        """
        return self.chinchilla_of(self.columns, positive("experts", experts, 1.0))

    @classmethod
    def chinchilla_of(cls, coefficients: Any, experts: ArrayLike) -> tuple[Any, Any, Any, Any]:
        """Return (m, μ, n, ν) at E of coefficients in the order of `coefficient_names()`, or draws; they broadcast."""
        values = dict(zip(cls.coefficient_names(), coefficients, strict=True))
        return cls.form.to_chinchilla(values, experts)

    @classmethod
    def _inputs(
        cls,
        n_active: Any,
        tokens: Any,
        experts: Any,
        **variables: Any,
    ) -> dict[str, FloatArray]:
        """Check all variables that are not None, and return them as arrays; E = 1 where it is None."""
        inputs = {
            "n_active": n_active,
            "tokens": tokens,
            "experts": 1.0 if experts is None else experts,
            **variables,
        }
        arrays = {name: numbers(name, values) for name, values in inputs.items() if values is not None}
        for name in cls.form.variables:
            if name not in arrays:
                names = ", ".join(cls.form.variables)
                variable = given(name, None, None if name in inputs else f"--variable {name}=…")
                raise InputError(variable, f" must be given: {cls.__name__} depends on {names}")
        for name in variables.keys() - {*cls.form.variables}:
            raise InputError(unknown(f"variable of the {cls.name} law ", name, cls.form.variables))
        for name, array in arrays.items():
            # A variable of which the law takes no logarithm may be 0.
            least = 0.0 if name in cls.form.reads and not is_size(name) else SMALLEST
            check_bounds(name, array, 1.0 if name == "experts" else least, 1.0 if name in PARTS else LARGEST)
        check_shapes(arrays)
        return arrays

    def default_experts(self) -> Any:
        """Return the E of a question that names none: doublings within the E of the runs, 1 for a law of dense models.

        The runs of a prior count, too. If the E are unknown, they are the paper's. A range without a power of two
        gives both its bounds.
        """
        if not {*self.variables} & EXPERT_VARIABLES:
            return (1.0,)
        limits = self.conditions.known_limits() if self.conditions else {}
        least, most = limits.get("density", (1.0 / PAPER.experts[-1], 1.0))
        low, high = limits.get("E", (1.0 / most, 1.0 / least))
        doublings = 2.0 ** np.arange(64.0)
        is_inside = (doublings >= low * (1 - ROUNDING)) & (doublings <= high * (1 + ROUNDING))
        return tuple(doublings[is_inside].tolist()) or tuple(dict.fromkeys((low, high)))

    def warnings(self, *sizes: Values, **variables: Values) -> list[str]:
        """Say how far these models (as of `check`) lie outside the runs, a sentence each; [] inside."""
        return [*self.check(*sizes, **variables).warnings]

    def check(
        self,
        n_active: Values = None,
        tokens: Values = None,
        experts: Values = None,
        **variables: Values,
    ) -> RangeCheck:
        """Check how far these models lie from the runs. E left out means dense models, or the law's own E.

        For a law without E, an answer about another E than its own is not trusted. With `unique_tokens`, epochs are
        compared with those of the runs.
        """
        inputs: Fields = {}
        for name, values in {"n_active": n_active, "tokens": tokens, "experts": experts, **variables}.items():
            inputs[name] = None if values is None else numbers(name, values)
        unique = inputs.pop("unique_tokens", None)
        if unique is not None and inputs["tokens"] is not None:
            inputs["epochs"] = np.maximum(inputs["tokens"] / unique, 1.0)
        needs = self.variables
        if experts is None:
            inputs["experts"] = self._experts_left_out()
        elif not {*needs} & EXPERT_VARIABLES:
            own_experts = np.ravel(self.default_experts())[0]
            if np.any(inputs["experts"] != own_experts):
                needs = (*needs, "experts")
        return RangeCheck(self.conditions or Conditions("unknown"), needs, inputs)

    def _experts_left_out(self) -> float | None:
        """Return the E of a check that names none."""
        return 1.0 if "experts" in self.form.variables else None

    def to_dict(self) -> Fields:
        """Return JSON values of a file from which `Law.from_pretrained` makes an equal law (floats keep every bit)."""
        form = None
        if self.form.is_data and not self.is_packaged:
            form = {**self.form.to_dict(), "coefficients": [*self.coefficient_names()]}
        data = {
            "format": FORMAT,
            "version": VERSION,
            "law": self.name,
            "formula": self.formula,
            "form": form,
            "coefficients": self.coefficients,
            "experts": getattr(self, "experts", None),
            "repetition": self.repetition and asdict(self.repetition),
            "conditions": self.conditions and self.conditions.to_dict(),
            "draws": None if self.draws is None else self.draws.tolist(),
        }
        return {name: value for name, value in data.items() if value is not None}

    def replace(self: FormulaT, **changes: Any) -> FormulaT:
        """Copy the law with some fields changed; new coefficients drop the draws unless `draws` are given.

        ValueError for a field that the law lacks, and for values that a law refuses.
        """
        # An error names the coefficients first.
        names = sorted((f.name for f in fields(self)), key=COMMON_FIELDS.__contains__)
        for name in changes:
            if name not in names:
                raise InputError(unknown(f"field of {type(self).__name__} ", name, names))
        if any(getattr(self, name) != value for name, value in changes.items() if name not in OTHER_FIELDS):
            changes.setdefault("draws", None)
        return replace(self, **changes)

    def summary(self) -> Table:
        """Show the coefficients, with 95 % intervals where the law has draws, as rich and notebooks do."""
        header = ["coefficient", "value"]
        rows = [[name, f"{value:.5g}"] for name, value in self.coefficients.items()]
        if self.draws is not None:
            header += ["2.5 %", "97.5 %"]
            lows, highs = percentile_interval(self.draws)
            for row, low, high in zip(rows, lows, highs, strict=True):
                row += [f"{low:.5g}", f"{high:.5g}"]
        conditions = self.conditions or Conditions("")
        notes = [note for note in (conditions.provenance, self.repetition and str(self.repetition)) if note]
        warnings = (*conditions.doubts, *conditions.omitted)
        return Table(header, rows, title=self.formula, notes=notes, warnings=warnings)

    def __repr__(self) -> str:
        coefficients = ", ".join(f"{name}={value:.6g}" for name, value in self.coefficients.items())
        text = f"{type(self).__name__}({coefficients})"
        conditions = self.conditions._headline() if self.conditions else ""
        draws = "" if self.draws is None else f"{len(self.draws)} draws"
        notes = [note for note in (conditions, draws, self.repetition and str(self.repetition)) if note]
        return f"{text}  # {'; '.join(notes)}" if notes else text


def numbers(name: str, values: Any) -> FloatArray:
    """Convert numbers, or text such as "1B" and, for experts, "1,2,4-8", to an array.

    ValueError names the field and the value.
    """
    parse = _PARSERS.get(name, parse_count)
    if name.startswith(("n_active", "n_total")):
        parse = parse_parameters
    if isinstance(values, str) and name == "experts":
        return np.squeeze(np.array(parse_experts(values), float))
    if isinstance(values, str):
        return np.array(parse(values, name))
    if isinstance(values, (list, tuple)):
        values = [parse(value, name) if isinstance(value, str) else value for value in values]
    try:
        return np.asarray(values, float)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{name}={literal(values)} must be numbers, or text such as '1B'") from None


def check_shapes(arrays: Columns) -> None:
    """Raise InputError, naming the arrays, unless they broadcast."""
    try:
        np.broadcast_shapes(*(values.shape for values in arrays.values()))
    except ValueError:
        shapes = ", ".join(f"{name} of {list(values.shape)}" for name, values in arrays.items() if values.ndim)
        raise InputError(f"{shapes}: arrays must have one shape, or shapes that broadcast") from None


def positive(name: str, value: ArrayLike, least: float = 0.0) -> FloatArray:
    """Read positive finite numbers, at least `least`, as an array; text such as "1e22" or "100B" is read.

    ValueError for anything else.
    """
    return check_bounds(name, numbers(name, value), max(least, SMALLEST))


def check_bounds(name: str, array: FloatArray, least: float, most: float = LARGEST) -> FloatArray:
    """Return the array; InputError, with its first value beyond these bounds, if there is one."""
    invalid = array[~((array >= least) & (array <= most))]
    if not invalid.size:
        return array
    value = invalid.flat[0]
    low = "positive" if least == SMALLEST else f"at least {least:g}"
    high = "finite" if most == LARGEST else f"at most {most:g}"
    # The products of several numbers must be finite, too.
    if most == LARGEST and value > 0 and np.isfinite(value) and not SMALLEST <= value <= LARGEST:
        high = f"from {SMALLEST:g} to {LARGEST:g}"
    raise InputError(f"{name}={value:g} must be {low} and {high}")


def one_positive(name: str, value: Any, least: float = 0.0) -> float:
    """Read one number as `positive` reads many."""
    array = positive(name, value, least)
    if array.ndim:
        raise InputError(f"{name}={literal(value)} must be one number")
    return float(array)


def percentile_interval(draws: FloatArray, level: float = 0.95) -> Intervals:
    """Return the (low, high) between which `level` of the draws lie, over the first axis."""
    check_level(level)
    ordered = np.sort(draws, axis=0)
    low, high = (_quantile(ordered, 0.5 + side * level / 2) for side in (-1, 1))
    if np.ndim(low) == 0:
        return float(low), float(high)
    return low, high


def _quantile(ordered: FloatArray, share: float) -> FloatArray:
    """Return the quantile of sorted values over the first axis; `np.quantile` would import numpy.ma."""
    place = share * (len(ordered) - 1)
    before = ordered[math.floor(place)]
    step = ordered[math.ceil(place)] - before
    # A NaN is the last.
    return np.where(np.isnan(ordered[-1]), np.nan, before + place % 1 * step)


def check_level(level: Any) -> None:
    """Raise InputError unless the level is a share above 0 and below 1."""
    if not (isinstance(level, (int, float)) and 0 < level < 1):
        raise InputError(f"level={level!r} must be above 0 and below 1")


def has_optimum(coefficients: tuple[Any, Any, Any, Any]) -> BoolArray:
    """Return whether the loss falls with both N and D, for each E of the coefficients (m, μ, n, ν)."""
    m, mu, n, nu = map(np.asarray, coefficients)
    falls_with_size = (mu < 0) & (m > 0)
    falls_with_tokens = (nu < 0) & (n > 0)
    return np.asarray(falls_with_size & falls_with_tokens)
