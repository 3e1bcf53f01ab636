"""The form of a law, from which its values, its fit and its starts follow: a sum of terms, under an outer exponent.

    L = (Σ term)^outer + constant          term = scale · exp( Σ coefficient · feature )

A feature is a product of logarithms of variables, which are columns of the runs, and of transforms: functions of
variables with coefficients of their own. The transform of the joint law is Ê, which grows from Ê(1) = E_start and
saturates at E_max (Ludziejewski et al. 2025, Eq. 3, after Clark et al. 2022):

    1/Ê = 1 / (E − 1 + (1/E_start − 1/E_max)⁻¹) + 1/E_max
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hub.base.errors import InputError
from scaling_law.size.architecture import is_size

Factors = tuple[str, ...]  # the variables and transforms whose logarithms a feature multiplies
Features = Sequence[tuple[Any, Factors]]  # a sum of them, each with its factor
# What a coefficient is to its law; SLOPE is that of a size or of tokens, BY_DESIGN of anything else
CONSTANT, SIZE, SLOPE, BY_DESIGN, INTERACTION = "constant", "size", "slope", "by_design", "interaction"
TRANSFORM, OUTER = "transform", "outer"


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
        """The features of each coefficient but the scale, with their signs."""
        features: dict[str, tuple[tuple[float, Factors], ...]] = {}
        for feature, coefficient in self.slopes.items():
            if isinstance(coefficient, str):
                name, sign = coefficient.removeprefix("-"), -1.0 if coefficient.startswith("-") else 1.0
                features[name] = (*features.get(name, ()), (sign, factors_of(feature)))
        return features

    @cached_property
    def offset(self) -> tuple[tuple[float, Factors], ...]:
        """The features whose coefficient is a number."""
        pairs = ((value, factors_of(feature)) for feature, value in self.slopes.items())
        return tuple((float(value), factors) for value, factors in pairs if not isinstance(value, str))

    @property
    def coefficients(self) -> tuple[str, ...]:
        return (self.scale, *self.features)

    @cached_property
    def factors(self) -> Factors:
        """The variables and transforms that occur."""
        return tuple(dict.fromkeys(name for feature in self.slopes for name in factors_of(feature)))

    def exponent(self, values: Mapping[str, Any], logs: Mapping[str, Any]) -> Any:
        """Σ coefficient · feature."""
        products = [(sign * values[c], f) for c, pairs in self.features.items() for sign, f in pairs]
        return total((*products, *self.offset), logs)


def factors_of(feature: str) -> Factors:
    return tuple(sorted(name.strip() for name in feature.split("*")))


@dataclass(frozen=True)
class Parameter:
    """A coefficient of a transform, above `floor` and above the parameter `above`, if any.

    It is fitted as the logarithm of its distance, which `box` bounds; where it is itself bounded or fixed, the
    distance is that from `floor`.
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
    variables: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    log: Callable[..., Any]
    gradient: Callable[..., tuple[Any, ...]]
    starts: tuple[tuple[float, ...], ...]

    def refuse_disorder(self, values: Mapping[str, float]) -> None:
        """Raise ValueError for parameters below their lower bounds."""
        for p in self.parameters:
            below = [p.floor, *([values[p.above]] if p.above else [])]
            if values[p.name] <= max(below):
                stated = ", ".join(f"{q.name}={values[q.name]!r}" for q in self.parameters)
                order = " < ".join([format(p.floor, "g"), *([p.above] if p.above else []), p.name])
                raise InputError(f"{stated}: needs {order}")


@dataclass(frozen=True)
class Form:
    """The terms of a law, the transforms they name, and the coefficient that is the outer exponent (positive), if any.

    The outer exponent is that of the sum of all terms but the constant.
    A law that is not a sum of terms has none, defines `evaluate`, and names the variables it `reads`; it cannot be
    fitted. ValueError for an invalid form: a scale twice, two constants, a transform that no term uses.
    """

    terms: tuple[Term, ...]
    transforms: tuple[Transform, ...] = ()
    outer: str | None = None
    reads: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        scales = [term.scale for term in self.terms]
        others = [name for term in self.terms for name in term.features]
        names = [*(p.name for p in self.parameters), *self._outer]
        if len({*scales, *names}) < len(scales) + len(names) or {*scales, *names} & {*others}:
            raise InputError(f"terms: scale names {scales} must be unique among the coefficients")
        if sum(not term.slopes for term in self.terms) > 1:
            raise InputError(f"terms: one constant at most, not {[t.scale for t in self.terms if not t.slopes]}")
        used = {name for term in self.terms for name in term.factors}
        if idle := [t.name for t in self.transforms if t.name not in used]:
            raise InputError(f"transforms: no term uses {', '.join(idle)}")

    @property
    def _outer(self) -> tuple[str, ...]:
        return (self.outer,) if self.outer else ()

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters of all transforms."""
        return tuple(p for transform in self.transforms for p in transform.parameters)

    @cached_property
    def coefficients(self) -> tuple[str, ...]:
        """The names of all coefficients: those of the terms, the outer exponent, those of the transforms."""
        names = dict.fromkeys(name for term in self.terms for name in term.coefficients)
        return (*names, *self._outer, *(p.name for p in self.parameters))

    @cached_property
    def roles(self) -> dict[str, str]:
        """Coefficient → what it is; one that features share is what it is in the first."""
        roles = dict.fromkeys((p.name for p in self.parameters), TRANSFORM) | dict.fromkeys(self._outer, OUTER)
        for term in self.terms:
            roles[term.scale] = SIZE if term.slopes else CONSTANT
            for name, ((_, factors), *_) in term.features.items():
                kind = INTERACTION if len(factors) > 1 else SLOPE if is_size(factors[0]) else BY_DESIGN
                roles.setdefault(name, kind)
        return roles

    @cached_property
    def positive(self) -> frozenset[str]:
        """The coefficients that are fitted as their logarithms: the scales and the outer exponent."""
        return frozenset(name for name, role in self.roles.items() if role in (SIZE, CONSTANT, OUTER))

    @cached_property
    def constants(self) -> tuple[str, ...]:
        """Scales that are the loss of infinite size and data."""
        return tuple(term.scale for term in self.terms if not term.slopes)

    @cached_property
    def variables(self) -> tuple[str, ...]:
        """The columns of the runs that the law reads, through terms and transforms."""
        inputs = {transform.name: transform.variables for transform in self.transforms}
        names = (name for term in self.terms for factor in term.factors for name in inputs.get(factor, (factor,)))
        return tuple(dict.fromkeys((*names, *self.reads)))

    def logs(self, values: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
        """ln of every variable and transform that a term names, at `inputs` and the coefficients `values`."""
        transforms = {transform.name: transform for transform in self.transforms}
        logs: dict[str, Any] = {}
        for name in dict.fromkeys(name for term in self.terms for name in term.factors):
            if (transform := transforms.get(name)) is None:
                logs[name] = np.log(inputs[name])
            else:
                parameters = (values[p.name] for p in transform.parameters)
                logs[name] = transform.log(*(inputs[v] for v in transform.variables), *parameters)
        return logs

    def evaluate(self, values: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
        """The loss; coefficients and inputs broadcast, and nothing is checked."""
        logs = self.logs(values, inputs)
        powers = [values[term.scale] * np.exp(term.exponent(values, logs)) for term in self.terms if term.slopes]
        loss: Any = sum(powers, start=0.0)
        loss = loss ** values[self.outer] if self.outer else loss
        return sum((values[name] for name in self.constants), start=loss)


def total(features: Features, logs: Mapping[str, Any]) -> Any:
    """Σ factor · Π logarithms."""
    return sum((factor * prod(logs[name] for name in names) for factor, names in features), start=0.0)


def derivative(features: Features, name: str) -> list[tuple[Any, Factors]]:
    """The features of the derivative by one logarithm."""
    at = [(factor * names.count(name), names, names.index(name)) for factor, names in features if name in names]
    return [(factor, names[:i] + names[i + 1 :]) for factor, names, i in at]


def expert_transform(experts: ArrayLike, e_start: ArrayLike, e_max: ArrayLike) -> Any:
    """Ê, broadcasting over its arguments. Needs E ≥ 1 and 1 < e_start < e_max (not checked here)."""
    inner, top = _inner(experts, e_start, e_max), np.asarray(e_max, float)
    return inner * top / (inner + top)


def _log_expert_transform_gradient(experts: ArrayLike, e_start: ArrayLike, e_max: ArrayLike) -> tuple[Any, Any, Any]:
    """ln Ê and its derivatives by E_start and E_max (each broadcast)."""
    start, top = np.asarray(e_start, float), np.asarray(e_max, float)
    inner, offset = _inner(experts, start, top), start * top / (top - start)
    by_inner = 1.0 / inner - 1.0 / (inner + top)  # d ln Ê / d inner
    # offset = s t / (t − s): its derivatives are (offset/s)² and −(offset/t)²
    by_start = by_inner * (offset / start) ** 2
    by_max = -by_inner * (offset / top) ** 2 + 1.0 / top - 1.0 / (inner + top)
    return np.log(inner) + np.log(top) - np.log(inner + top), by_start, by_max


def _inner(experts: ArrayLike, e_start: ArrayLike, e_max: ArrayLike) -> Any:
    """E − 1 + (1/E_start − 1/E_max)⁻¹."""
    start, top = np.asarray(e_start, float), np.asarray(e_max, float)
    return np.asarray(experts, float) - 1.0 + start * top / (top - start)


E_HAT = Transform(
    "e_hat",
    ("experts",),
    (
        Parameter("e_start", floor=1.0, box=(0.01, 100.0)),
        Parameter("e_max", floor=1.0, box=(1.0, 1e5), above="e_start"),
    ),
    lambda *at: np.log(expert_transform(*at)),
    _log_expert_transform_gradient,
    starts=((2.0, 256.0), (1.1, 12.0), (1.1, 1e4), (5.0, 40.0), (5.0, 1e4)),  # the first is the paper's
)
