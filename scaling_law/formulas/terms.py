"""The form of a law, from which its values, its fit and its starts follow: a sum of terms, under an outer exponent.

    L = (Σ term)^outer + constant          term = scale · exp( Σ coefficient · feature )

A feature is a product of logarithms of variables, which are columns of the runs, and of transforms: functions of
variables with coefficients of their own. The transform of the joint law is Ê, which grows from Ê(1) = E_start and
saturates at E_max (Ludziejewski et al. 2025, Eq. 3, after Clark et al. 2022):

    1/Ê = 1 / (E − 1 + (1/E_start − 1/E_max)⁻¹) + 1/E_max
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hub.base.errors import InputError, shorten, unknown
from hub.base.types import Fields, Strings
from scaling_law.size.architecture import is_size
from scaling_law.size.arrays import Variables

# The variables and transforms whose logarithms a feature multiplies.
Factors = Strings
# A sum of features, each with its factor.
Features = Sequence[tuple[Any, Factors]]

# Roles of a coefficient in its law. SLOPE belongs to a size or to tokens, BY_DESIGN to any other variable.
CONSTANT = "constant"
SIZE = "size"
SLOPE = "slope"
BY_DESIGN = "by_design"
INTERACTION = "interaction"
TRANSFORM = "transform"
OUTER = "outer"

# The variables of a law that is Chinchilla's for each E.
SIZES = ("n_active", "tokens")
# Names of coefficients in files.
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
# What the form of a file may have.
EXAMPLE = '{"a": {"n_active": "-alpha"}}'
FIELDS = ("terms", "transforms", "outer", "coefficients")


@dataclass(frozen=True)
class Term:
    """scale · exp(Σ coefficient · feature), a constant without `slopes`.

    `slopes` maps a feature ("n_active", or a product such as "n_active*e_hat") to its coefficient: "alpha", "-alpha"
    with the sign turned, or a number. Terms, and features of one term, may share coefficients, but not the scale,
    which is positive and fitted as its logarithm. Term("b", {"tokens": "-beta"}) is b D^−β.
    """

    scale: str
    slopes: Mapping[str, str | float] = field(default_factory=dict)

    @cached_property
    def features(self) -> dict[str, tuple[tuple[float, Factors], ...]]:
        """The features of each coefficient except the scale, with their signs."""
        features: dict[str, tuple[tuple[float, Factors], ...]] = {}
        for feature, coefficient in self.slopes.items():
            if isinstance(coefficient, str):
                name = coefficient.removeprefix("-")
                sign = 1.0 if name == coefficient else -1.0
                features[name] = (*features.get(name, ()), (sign, factors_of(feature)))
        return features

    @cached_property
    def offset(self) -> tuple[tuple[float, Factors], ...]:
        """The features whose coefficient is a number."""
        numbers = [(feature, value) for feature, value in self.slopes.items() if not isinstance(value, str)]
        return tuple((float(value), factors_of(feature)) for feature, value in numbers)

    @property
    def coefficients(self) -> Strings:
        """The names of its coefficients, the scale first."""
        return (self.scale, *self.features)

    @cached_property
    def factors(self) -> Factors:
        """The variables and transforms that occur."""
        names = chain.from_iterable(map(factors_of, self.slopes))
        return tuple(dict.fromkeys(names))

    def exponent(self, values: Mapping[str, Any], logs: Mapping[str, Any]) -> Any:
        """Compute Σ coefficient · feature."""
        return total(self._products(values), logs)

    def power(self, name: str, values: Mapping[str, Any], logs: Mapping[str, Any]) -> Any:
        """Compute the exponent of one variable in the term, which is linear in the logarithm of this variable."""
        return total(derivative(self._products(values), name), logs)

    def _products(self, values: Mapping[str, Any]) -> Features:
        products = []
        for name, features in self.features.items():
            for sign, factors in features:
                products.append((sign * values[name], factors))
        return (*products, *self.offset)


def factors_of(feature: str) -> Factors:
    """Split a feature such as "n_active*e_hat" into its factors, sorted."""
    return tuple(sorted(name.strip() for name in feature.split("*")))


@dataclass(frozen=True)
class Parameter:
    """A coefficient of a transform, above `floor` and above the parameter `above`, if any.

    It is fitted as the logarithm of its distance from these, which `box` bounds; if the parameter itself is bounded or
    fixed, of its distance from `floor`.
    """

    name: str
    floor: float
    box: tuple[float, float]
    above: str | None = None


@dataclass(frozen=True)
class Transform:
    """A positive function of variables, with parameters of its own.

    `log(*variables, *parameters)` is its logarithm, `gradient` the same with the derivatives by each parameter; both
    broadcast. A fit starts from each of `starts`; at the first, which is also the paper's, features are centred.
    """

    name: str
    variables: Strings
    parameters: tuple[Parameter, ...]
    log: Callable[..., Any]
    gradient: Callable[..., tuple[Any, ...]]
    starts: tuple[tuple[float, ...], ...]

    def refuse_disorder(self, values: Mapping[str, float]) -> None:
        """Raise ValueError for parameters below their lower bounds."""
        for parameter in self.parameters:
            bound = parameter.floor
            if parameter.above:
                bound = max(bound, values[parameter.above])
            if values[parameter.name] <= bound:
                raise InputError(f"{parameter.name}={values[parameter.name]!r} must be above {bound:g}")


@dataclass(frozen=True)
class Form:
    """The terms of a law, the transforms they name, and the coefficient that is the outer exponent (positive), if any.

    The outer exponent applies to the sum of all terms except the constant. A law that is not a sum of terms has no
    terms, defines `evaluate`, and names the variables it `reads`; it cannot be fitted. ValueError for an invalid form:
    a scale twice, two constants, a transform that no term uses.
    """

    terms: tuple[Term, ...]
    transforms: tuple[Transform, ...] = ()
    outer: str | None = None
    reads: Strings = ()

    def __post_init__(self) -> None:
        scales = [term.scale for term in self.terms]
        slopes = set(chain.from_iterable(term.features for term in self.terms))
        unique_names = [*scales, *(p.name for p in self.parameters)]
        if self.outer:
            unique_names.append(self.outer)
        if len({*unique_names}) < len(unique_names) or slopes.intersection(unique_names):
            raise InputError(f"terms: scale names {scales} must be unique among the coefficients")
        if len(self.constants) > 1:
            raise InputError(f"terms: one constant at most, not {[*self.constants]}")
        unused = [transform.name for transform in self.transforms if transform.name not in self._factors]
        if unused:
            raise InputError(f"transforms: no term uses {', '.join(unused)}")

    @classmethod
    def from_dict(cls, data: Any) -> Form:
        """Read what `to_dict` made, or a person wrote. It is data: nothing is executed. ValueError names the field."""
        terms = data.get("terms") if isinstance(data, dict) else None
        if not isinstance(terms, dict):
            raise InputError(f"form={shorten(data)} must have terms, such as {EXAMPLE}")
        for name in data.keys() - {*FIELDS}:
            raise InputError(unknown("form: field ", name, FIELDS))
        for name in ("transforms", "coefficients"):
            if not isinstance(data.get(name, []), list):
                raise InputError(f"form: {name}={shorten(data[name])} must be a list of names")
        transforms = [str(name) for name in data.get("transforms", ())]
        for name in {*transforms} - {*TRANSFORMS}:
            advice = "; one of your own needs a module of Python (docs/adding_a_law.md)"
            raise InputError(unknown("form: transform ", name, TRANSFORMS), advice)
        form = cls(
            terms=tuple(_read_term(scale, slopes) for scale, slopes in terms.items()),
            transforms=tuple(TRANSFORMS[name] for name in transforms),
            outer=data.get("outer") and str(data["outer"]),
        )
        for name in form.coefficients:
            if not NAME.fullmatch(name) or keyword.iskeyword(name):
                raise InputError(f"form: coefficient {name!r} must be a name of letters, digits and _, as in Python")
        return form

    def to_dict(self) -> Fields:
        """Return plain JSON values that `from_dict` reads."""
        data = {
            "terms": {term.scale: dict(term.slopes) for term in self.terms},
            "transforms": [transform.name for transform in self.transforms],
            "outer": self.outer,
        }
        return {name: value for name, value in data.items() if value}

    @property
    def is_data(self) -> bool:
        """True if a file can hold the form: it has terms, and no transform but those that files can name."""
        return bool(self.terms) and {*self.transforms} <= {*TRANSFORMS.values()}

    @cached_property
    def _factors(self) -> Factors:
        """The variables and transforms that occur in any term."""
        names = chain.from_iterable(term.factors for term in self.terms)
        return tuple(dict.fromkeys(names))

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters of all transforms."""
        return tuple(chain.from_iterable(transform.parameters for transform in self.transforms))

    @cached_property
    def coefficients(self) -> Strings:
        """The names of all coefficients: those of the terms, the outer exponent, those of the transforms."""
        names = dict.fromkeys(chain.from_iterable(term.coefficients for term in self.terms))
        if self.outer:
            names[self.outer] = None
        return (*names, *(p.name for p in self.parameters))

    @cached_property
    def roles(self) -> dict[str, str]:
        """The role of each coefficient; a coefficient that features share has its role in the first of them."""
        roles = dict.fromkeys((p.name for p in self.parameters), TRANSFORM)
        if self.outer:
            roles[self.outer] = OUTER
        for term in self.terms:
            roles[term.scale] = SIZE if term.slopes else CONSTANT
            for name, features in term.features.items():
                _, factors = features[0]
                role = SLOPE if is_size(factors[0]) else BY_DESIGN
                roles.setdefault(name, INTERACTION if len(factors) > 1 else role)
        return roles

    @cached_property
    def positive(self) -> frozenset[str]:
        """The coefficients that are fitted as their logarithms: the scales and the outer exponent."""
        return frozenset(name for name, role in self.roles.items() if role in (SIZE, CONSTANT, OUTER))

    @cached_property
    def constants(self) -> Strings:
        """Scales that are the loss of infinite size and data."""
        return tuple(term.scale for term in self.terms if not term.slopes)

    @cached_property
    def is_chinchilla(self) -> bool:
        """True if the law is m N^μ + n D^ν + c for each E, which has a compute optimum in closed form."""
        terms_of_sizes = [term for term in self.terms if {*SIZES} & {*term.factors}]
        sizes = []
        for term in terms_of_sizes:
            sizes += [name for name in SIZES if name in term.factors]
            for feature in term.slopes:
                factors = factors_of(feature)
                # The square of a logarithm is no power.
                if factors.count("n_active") + factors.count("tokens") > 1:
                    return False
        has_each_once = len(terms_of_sizes) == 2 and sorted(sizes) == [*SIZES]
        return has_each_once and not self.outer and {*self.variables} <= {*SIZES, "experts"}

    def to_chinchilla(self, values: Mapping[str, Any], experts: ArrayLike) -> tuple[Any, Any, Any, Any]:
        """Return (m, μ, n, ν) at E, of a law that `is_chinchilla`; coefficients and E broadcast."""
        # At sizes of 1 a term is its scale times what E does to it.
        logs = self.logs(values, {"n_active": 1.0, "tokens": 1.0, "experts": experts})
        coefficients = []
        for name in SIZES:
            term = next(term for term in self.terms if name in term.factors)
            scale = values[term.scale] * np.exp(term.exponent(values, logs))
            coefficients += [scale, term.power(name, values, logs)]
        m, mu, n, nu, _ = np.broadcast_arrays(*coefficients, experts)
        return m, mu, n, nu

    @cached_property
    def variables(self) -> Strings:
        """The columns of the runs that the law reads, through terms and transforms."""
        inputs = {transform.name: transform.variables for transform in self.transforms}
        names = chain.from_iterable(inputs.get(factor, (factor,)) for factor in self._factors)
        return tuple(dict.fromkeys((*names, *self.reads)))

    def logs(self, values: Mapping[str, Any], inputs: Variables) -> Fields:
        """Compute ln of every variable and transform that a term names, at `inputs` and the coefficients `values`."""
        transforms = {transform.name: transform for transform in self.transforms}
        logs: Fields = {}
        for name in self._factors:
            if name in transforms:
                transform = transforms[name]
                parameters = [values[parameter.name] for parameter in transform.parameters]
                logs[name] = transform.log(*(inputs[variable] for variable in transform.variables), *parameters)
            else:
                logs[name] = np.log(inputs[name])
        return logs

    def evaluate(self, values: Mapping[str, Any], inputs: Variables) -> Any:
        """Compute the loss; coefficients and inputs broadcast, and nothing is checked."""
        logs = self.logs(values, inputs)
        loss: Any = 0.0
        for term in self.terms:
            if term.slopes:
                loss = loss + values[term.scale] * np.exp(term.exponent(values, logs))
        if self.outer:
            loss = loss ** values[self.outer]
        for name in self.constants:
            loss = loss + values[name]
        return loss


def _read_term(scale: str, slopes: Any) -> Term:
    """Read the term of a file: features, each with the name of its coefficient or a number. ValueError names it."""
    if not isinstance(slopes, dict):
        raise InputError(f"form: term {scale!r} is {shorten(slopes)}; it must be such as {EXAMPLE}")
    for feature, value in slopes.items():
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not (isinstance(value, str) or is_number) or not all(factors_of(feature)):
            rule = "must be the name of a coefficient, with - for a falling power, or a number"
            raise InputError(f"form: term {scale!r}, {feature!r}: {shorten(value)} {rule}")
    return Term(scale, slopes)


def total(features: Features, logs: Mapping[str, Any]) -> Any:
    """Compute Σ factor · Π logarithms."""
    products = (factor * prod(map(logs.__getitem__, names)) for factor, names in features)
    return sum(products, start=0.0)


def derivative(features: Features, name: str) -> list[tuple[Any, Factors]]:
    """Differentiate a sum of features by one logarithm, and return the features of the derivative."""
    derivatives = []
    for factor, names in features:
        if name in names:
            i = names.index(name)
            derivatives.append((factor * names.count(name), names[:i] + names[i + 1 :]))
    return derivatives


def expert_transform(experts: ArrayLike, e_start: ArrayLike, e_max: ArrayLike) -> Any:
    """Compute Ê; the arguments broadcast. Needs E ≥ 1 and 1 < e_start < e_max (not checked here)."""
    inner = _inner(experts, e_start, e_max)
    top = np.asarray(e_max, float)
    return inner * top / (inner + top)


def _log_expert_transform_gradient(experts: ArrayLike, e_start: ArrayLike, e_max: ArrayLike) -> tuple[Any, Any, Any]:
    """Compute ln Ê and its derivatives by E_start and E_max (each broadcasts)."""
    start = np.asarray(e_start, float)
    top = np.asarray(e_max, float)
    inner = _inner(experts, start, top)
    offset = start * top / (top - start)
    # This is d ln Ê / d inner, and the derivatives of the offset s t / (t − s) are (offset/s)² and −(offset/t)².
    by_inner = 1.0 / inner - 1.0 / (inner + top)
    by_start = by_inner * (offset / start) ** 2
    by_max = -by_inner * (offset / top) ** 2 + 1.0 / top - 1.0 / (inner + top)
    log_transform = np.log(inner) + np.log(top) - np.log(inner + top)
    return log_transform, by_start, by_max


def _inner(experts: ArrayLike, e_start: ArrayLike, e_max: ArrayLike) -> Any:
    """Compute E − 1 + (1/E_start − 1/E_max)⁻¹."""
    start = np.asarray(e_start, float)
    top = np.asarray(e_max, float)
    return np.asarray(experts, float) - 1.0 + start * top / (top - start)


E_HAT = Transform(
    name="e_hat",
    variables=("experts",),
    parameters=(
        Parameter("e_start", floor=1.0, box=(0.01, 100.0)),
        Parameter("e_max", floor=1.0, box=(1.0, 1e5), above="e_start"),
    ),
    log=lambda *inputs: np.log(expert_transform(*inputs)),
    gradient=_log_expert_transform_gradient,
    # The first start is the paper's.
    starts=((2.0, 256.0), (1.1, 12.0), (1.1, 1e4), (5.0, 40.0), (5.0, 1e4)),
)
# The transforms that files can name.
TRANSFORMS = {E_HAT.name: E_HAT}
