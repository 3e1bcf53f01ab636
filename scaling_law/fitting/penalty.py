"""What a prior adds to the objective: minus its log density at each θ, times the variance of the runs' noise.

The prior is Student's t (a Gaussian at infinite degrees of freedom) of coordinates x in which the coefficients of laws
are near normal: the logarithm of each term at a reference (1B parameters, 20B tokens, one expert), of the exponents of
sizes there, and of constants; what a design does to a term there, interactions, and the logarithms of distances of a
transform's parameters. For Chinchilla's law

    x = (ln m N₀^μ, ln n D₀^ν, ln −μ, ln −ν, ln c)

The natural coordinates are the coefficients, those that are positive or a transform's as logarithms. A matrix takes
them to x but for the logarithms of exponents, so the prior is close to one quadratic term.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaling_law.formulas.terms import (
    BY_DESIGN,
    CONSTANT,
    INTERACTION,
    OUTER,
    SIZE,
    SLOPE,
    TRANSFORM,
    Form,
    derivative,
    total,
)
from scaling_law.size.architecture import is_size
from scaling_law.size.arrays import FloatArray

LOG_SIZE, LOG_TOKENS = float(np.log(1e9)), float(np.log(2e10))  # the reference: 1B parameters, 20B tokens
ROLES = (SIZE, SLOPE, CONSTANT, BY_DESIGN, INTERACTION, OUTER, TRANSFORM)  # the order of coordinates
FLATTEST = 1e-3  # exponents: below, and for those of the other sign, the logarithm goes on as its tangent


@dataclass(frozen=True)
class Coordinates:
    """The coordinates x [k] of a form of law, in the order of `names`.

    `matrix` [k, k] takes natural coordinates to x before its logarithms, of exponents times `sign` [k] (0 for what is
    no exponent); `by_tokens` is its derivative by ln D of the reference.
    """

    names: tuple[str, ...]
    matrix: FloatArray
    by_tokens: FloatArray
    sign: FloatArray

    @classmethod
    def of(cls, form: Form, values: Mapping[str, float] | None = None) -> Coordinates:
        """The coordinates of laws near the one of these coefficients, which give the signs of exponents.

        Without `values`: falling with sizes, and transforms as at their first start.
        """
        names = tuple(sorted(form.coefficients, key=lambda name: ROLES.index(form.roles[name])))
        order = [form.coefficients.index(name) for name in names]
        at, ahead = (_reference(form, values, LOG_TOKENS + step) for step in (0.0, 1.0))
        matrix = local_matrix(form, at)[order]
        slopes = np.array([form.roles[name] == SLOPE for name in names])
        away = -np.ones(len(names)) if values is None else np.sign(matrix @ natural_of(form, values))
        by_tokens = local_matrix(form, ahead)[order] - matrix
        return cls(names, matrix, by_tokens, np.where(slopes, np.where(away > 0, 1.0, -1.0), 0.0))

    def of_natural(self, natural: FloatArray) -> FloatArray:
        """x of natural coordinates, both [..., k]."""
        y = natural @ self.matrix.T
        size = y * self.sign
        tangent = np.log(FLATTEST) + (size - FLATTEST) / FLATTEST
        logs = np.where(size > FLATTEST, np.log(np.maximum(size, FLATTEST)), tangent)
        return np.where(self.sign == 0, y, logs)

    def natural(self, x: FloatArray) -> FloatArray:
        """Natural coordinates of x, both [..., k]."""
        low = np.log(FLATTEST)
        size = np.where(x > low, np.exp(np.where(self.sign == 0, 0.0, x)), FLATTEST * (1.0 + x - low))
        y = np.where(self.sign == 0, x, self.sign * size)
        return np.asarray(np.linalg.solve(self.matrix, y[..., None])[..., 0])

    def jacobian(self, natural: FloatArray) -> FloatArray:
        """∂x / ∂ natural coordinates, [..., k, k], at [..., k]."""
        return self._stretch(natural)[..., None] * self.matrix

    def shift_by_tokens(self, natural: FloatArray) -> FloatArray:
        """∂x / ∂ ln D of the reference [k]: how x moves with the unit of D."""
        return self._stretch(natural) * (self.by_tokens @ natural)

    def _stretch(self, natural: FloatArray) -> FloatArray:
        """∂x / ∂ (what the logarithms are taken of)."""
        size = np.maximum((natural @ self.matrix.T) * self.sign, FLATTEST)
        return np.where(self.sign == 0, 1.0, self.sign / size)


def _reference(form: Form, values: Mapping[str, float] | None, log_tokens: float) -> dict[str, float]:
    """ln of every variable and transform of the reference."""
    logs = {name: LOG_SIZE if is_size(name) else 0.0 for name in form.variables} | {"tokens": log_tokens}
    for transform in form.transforms:
        parameters = [values[p.name] for p in transform.parameters] if values else transform.starts[0]
        logs[transform.name] = float(transform.log(*(np.exp(logs[v]) for v in transform.variables), *parameters))
    return logs


def local_matrix(form: Form, logs: Mapping[str, float], as_is: Collection[str] = ()) -> FloatArray:
    """What coefficients are where variables and transforms have these logarithms, by natural coordinates, [k, k].

    For a scale that is ln of its term; for one that multiplies a single logarithm, what the term's exponent gains per
    unit of it. Interactions, coefficients of several features or terms, and those of terms with a fixed exponent or a
    coefficient of `as_is` are what they are.
    """
    place, matrix = {name: i for i, name in enumerate(form.coefficients)}, np.eye(len(form.coefficients))
    uses = Counter(name for term in form.terms for features in term.features.items() for name in features[:1])
    for term in form.terms:
        if term.offset or {*term.coefficients} & {*as_is}:
            continue
        for other, features in term.features.items():
            matrix[place[term.scale], place[other]] = total(features, logs)
        for name, ((sign, factors), *more) in term.features.items():
            if uses[name] > 1 or more or len(factors) > 1:
                continue
            for other, features in term.features.items():
                matrix[place[name], place[other]] = sign * total(derivative(features, factors[0]), logs)
    return matrix


def natural_of(form: Form, values: Mapping[str, Any], above: Mapping[str, str] | None = None) -> FloatArray:
    """Natural coordinates [..., k] of coefficients, given as scalars or arrays.

    The distance of a transform's parameter is that from the one that `above` names, else from its floor.
    """
    natural = {k: np.log(values[k]) if k in form.positive else np.asarray(values[k], float) for k in form.coefficients}
    for p in form.parameters:
        base = _base(form, above).get(p.name)
        natural[p.name] = np.log(np.maximum(natural[p.name] - (p.floor if base is None else values[base]), 1e-300))
    return np.stack(np.broadcast_arrays(*natural.values()), axis=-1)


def values_of(form: Form, natural: FloatArray, above: Mapping[str, str] | None = None) -> dict[str, FloatArray]:
    """The coefficients of natural coordinates [..., k]."""
    columns = dict(zip(form.coefficients, np.moveaxis(natural, -1, 0), strict=True))
    values = {name: np.exp(column) if name in form.positive else column for name, column in columns.items()}
    for p in form.parameters:
        base = _base(form, above).get(p.name)
        values[p.name] = (p.floor if base is None else values[base]) + np.exp(columns[p.name])
    return values


def _base(form: Form, above: Mapping[str, str] | None) -> Mapping[str, str]:
    return {p.name: p.above for p in form.parameters if p.above} if above is None else above


@dataclass(frozen=True)
class Penalty:
    """Priors [S] of mean [S, k], precision [S, k, k] and degrees of freedom [S]; S = 1 serves every θ.

    `variance` [S] is that of ln L of one run, which weighs the prior against the sum of squares over runs.
    """

    mean: FloatArray
    precision: FloatArray
    dof: FloatArray
    variance: FloatArray
    coordinates: Coordinates

    def take(self, rows: NDArray[np.int64] | slice) -> Penalty:
        """The priors of these rows of θ."""
        if len(self.mean) == 1:
            return self
        return replace(self, **{name: getattr(self, name)[rows] for name in ("mean", "precision", "dof", "variance")})

    def root(self, natural: FloatArray) -> FloatArray:
        """L of the precision L Lᵀ by which laws lie about the first mean, [k, k], for one at natural coordinates [k].

        In the middle, Student's t is more peaked than the covariance of what it describes, which counts there; in its
        tails it is wider.
        """
        away = self.coordinates.of_natural(natural) - self.mean[0]
        pull = self.pull_of(away @ self.precision[0] @ away)[0]
        return np.asarray(np.linalg.cholesky(self.precision[0] * min(pull, 1.0)))

    def drawn(self, natural: FloatArray, count: int, seed: int) -> Penalty:
        """The one prior at `count` means, which scatter as it does for a law at natural coordinates [k]."""
        root = np.linalg.inv(self.root(natural))
        scatter = np.random.default_rng(seed).standard_normal((count, len(natural))) @ root
        alike = ("precision", "dof", "variance")
        repeated: dict[str, Any] = {name: np.repeat(getattr(self, name), count, axis=0) for name in alike}
        return replace(self, mean=self.mean + scatter, **repeated)

    def evaluate(self, natural: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Cost [S], gradient [S, k] and Gauss-Newton matrix [S, k, k] at natural coordinates [S, k]."""
        jacobian = self.coordinates.jacobian(natural)
        away = self.coordinates.of_natural(natural) - self.mean
        pull = np.matmul(self.precision, away[..., None])[..., 0]
        square = np.sum(away * pull, axis=1)
        heavy = np.isfinite(self.dof)
        dof = np.where(heavy, self.dof, 1.0)
        cost = np.where(heavy, (dof + natural.shape[1]) * np.log1p(square / dof), square)
        weight = self.variance * self.pull_of(square)
        gradient = np.matmul(jacobian.swapaxes(1, 2), pull[..., None])[..., 0]
        curvature = jacobian.swapaxes(1, 2) @ self.precision @ jacobian
        return 0.5 * self.variance * cost, weight[:, None] * gradient, weight[:, None, None] * curvature

    def pull_of(self, square: FloatArray) -> FloatArray:
        """The part of the precision that still pulls a law at these squared distances [S]: less under heavy tails."""
        size, dof = self.mean.shape[1], np.where(np.isfinite(self.dof), self.dof, 1.0)
        return np.where(np.isfinite(self.dof), (dof + size) / (dof + square), 1.0)
