"""The term that a prior adds to the objective: minus its log density at each θ, times the variance of the runs' noise.

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
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from hub.base.types import Fields
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

# The reference is a model of 1B parameters on 20B tokens.
PARAMETERS = 1e9
LOG_TOKENS = float(np.log(2e10))
# Coordinates stand in this order.
ROLES = (SIZE, SLOPE, CONSTANT, BY_DESIGN, INTERACTION, OUTER, TRANSFORM)
# Below this exponent, and for those of the other sign, the logarithm goes on as its tangent.
FLATTEST = 1e-3


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
        """Make the coordinates of laws near the one of these coefficients, which give the signs of exponents.

        Without `values`, laws fall with sizes; the form then has no transforms.
        """
        names = tuple(sorted(form.coefficients, key=lambda name: ROLES.index(form.roles[name])))
        order = [form.coefficients.index(name) for name in names]
        reference = {name: PARAMETERS if is_size(name) else 1.0 for name in form.variables}
        logs = {**form.logs(values or {}, reference), "tokens": LOG_TOKENS}
        matrix = local_matrix(form, logs)[order]
        matrix_ahead = local_matrix(form, {**logs, "tokens": LOG_TOKENS + 1.0})[order]

        is_exponent = np.array([form.roles[name] == SLOPE for name in names])
        is_positive = np.zeros(len(names), bool)
        if values is not None:
            is_positive = matrix @ natural_of(form, values) > 0
        sign = np.where(is_positive, 1.0, -1.0)
        return cls(
            names=names,
            matrix=matrix,
            by_tokens=matrix_ahead - matrix,
            sign=np.where(is_exponent, sign, 0.0),
        )

    def of_natural(self, natural: FloatArray) -> FloatArray:
        """Return x of natural coordinates, both [..., k]."""
        y = natural @ self.matrix.T
        size = y * self.sign
        tangent = np.log(FLATTEST) + (size - FLATTEST) / FLATTEST
        logs = np.where(size > FLATTEST, np.log(np.maximum(size, FLATTEST)), tangent)
        return np.where(self.sign == 0, y, logs)

    def natural(self, x: FloatArray) -> FloatArray:
        """Return natural coordinates of x, both [..., k]."""
        low = np.log(FLATTEST)
        size = np.where(x > low, np.exp(np.where(self.sign == 0, 0.0, x)), FLATTEST * (1.0 + x - low))
        y = np.where(self.sign == 0, x, self.sign * size)
        return np.asarray(np.linalg.solve(self.matrix, y[..., None])[..., 0])

    def jacobian(self, natural: FloatArray) -> FloatArray:
        """Return ∂x / ∂ natural coordinates, [..., k, k], at [..., k]."""
        return self._log_slopes(natural)[..., None] * self.matrix

    def shift_by_tokens(self, natural: FloatArray) -> FloatArray:
        """Return ∂x / ∂ ln D of the reference [k]: how x moves with the unit of D."""
        return self._log_slopes(natural) * (self.by_tokens @ natural)

    def _log_slopes(self, natural: FloatArray) -> FloatArray:
        """Return the derivatives of the logarithms in x by their arguments, [..., k]; 1 where x has none."""
        size = np.maximum((natural @ self.matrix.T) * self.sign, FLATTEST)
        return np.where(self.sign == 0, 1.0, self.sign / size)


def local_matrix(
    form: Form,
    logs: Mapping[str, float],
    unchanged: Collection[str] = (),
) -> FloatArray:
    """Return local coordinates as a matrix [k, k] on natural ones, where variables and transforms have these `logs`.

    The local coordinate of a scale is ln of its term; of a coefficient that multiplies a single logarithm, what the
    term's exponent gains per unit of it. Interactions, coefficients of several features or terms, and those of terms
    with a fixed exponent or a coefficient that stays `unchanged` are their own.
    """
    index = {name: i for i, name in enumerate(form.coefficients)}
    matrix = np.eye(len(form.coefficients))
    n_terms = Counter(chain.from_iterable(term.features for term in form.terms))
    for term in form.terms:
        if term.offset or {*term.coefficients} & {*unchanged}:
            continue
        for column, features in term.features.items():
            matrix[index[term.scale], index[column]] = total(features, logs)
        for name, ((sign, factors), *further_features) in term.features.items():
            if n_terms[name] > 1 or further_features or len(factors) > 1:
                continue
            for column, features in term.features.items():
                matrix[index[name], index[column]] = sign * total(derivative(features, factors[0]), logs)
    return matrix


def natural_of(
    form: Form,
    values: Mapping[str, Any],
    above: Mapping[str, str] | None = None,
) -> FloatArray:
    """Return natural coordinates [..., k] of coefficients, given as scalars or arrays.

    The distance of a transform's parameter is that from the one that `above` names, else from its floor.
    """
    natural: Fields = {}
    for name in form.coefficients:
        natural[name] = np.log(values[name]) if name in form.positive else np.asarray(values[name], float)
    for p in form.parameters:
        leader = p.above if above is None else above.get(p.name)
        floor = values[leader] if leader else p.floor
        natural[p.name] = np.log(np.maximum(natural[p.name] - floor, 1e-300))
    return np.stack(np.broadcast_arrays(*natural.values()), axis=-1)


def values_of(
    form: Form,
    natural: FloatArray,
    above: Mapping[str, str] | None = None,
) -> dict[str, FloatArray]:
    """Return the coefficients of natural coordinates [..., k], whose distances are those of `natural_of`."""
    columns = dict(zip(form.coefficients, np.moveaxis(natural, -1, 0), strict=True))
    values = {name: np.exp(column) if name in form.positive else column for name, column in columns.items()}
    for p in form.parameters:
        leader = p.above if above is None else above.get(p.name)
        floor = values[leader] if leader else p.floor
        values[p.name] = floor + np.exp(columns[p.name])
    return values


@dataclass(frozen=True)
class Penalty:
    """A prior of mean [k], precision [k, k] and degrees of freedom.

    `variance` is that of ln L of one run, which weighs the prior against the sum of squares over runs. In the spread
    of a posterior, so many runs as `dependence` are worth one.
    """

    mean: FloatArray
    precision: FloatArray
    dof: float
    variance: float
    dependence: float
    coordinates: Coordinates

    def root(self, natural: FloatArray) -> FloatArray:
        """Return L of the precision L Lᵀ by which laws lie about the mean, [k, k].

        In the middle, Student's t is more peaked than the covariance of what it describes, which counts there; in its
        tails, as at distant natural coordinates [k], it is wider.
        """
        distance = self.coordinates.of_natural(natural) - self.mean
        pull = self.pull_of(distance @ self.precision @ distance)
        return np.asarray(np.linalg.cholesky(self.precision * np.minimum(pull, 1.0)))

    def evaluate(self, natural: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Compute cost [S], gradient [S, k] and Gauss-Newton matrix [S, k, k] at natural coordinates [S, k]."""
        distance = self.coordinates.of_natural(natural) - self.mean
        pull = distance @ self.precision
        square = np.sum(distance * pull, axis=1)
        cost = square
        if np.isfinite(self.dof):
            cost = (self.dof + len(self.mean)) * np.log1p(square / self.dof)

        jacobian = self.coordinates.jacobian(natural)
        transposed = jacobian.swapaxes(1, 2)
        gradient = np.matmul(transposed, pull[..., None])[..., 0]
        curvature = transposed @ self.precision @ jacobian
        weight = self.variance * self.pull_of(square)
        return (
            0.5 * self.variance * cost,
            weight[:, None] * gradient,
            weight[:, None, None] * curvature,
        )

    def pull_of(self, square: FloatArray) -> FloatArray:
        """Return the share of the precision that still pulls a law at these squared distances [S].

        It is less than 1 far out, under heavy tails.
        """
        if not np.isfinite(self.dof):
            return np.ones_like(square)
        return (self.dof + len(self.mean)) / (self.dof + square)
