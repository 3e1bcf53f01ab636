"""The objective of a fit, for many parameter vectors at once: Huber of ln L through logsumexp, summed over runs.

Ludziejewski et al. 2025, Appendix "Fit Details", after Hoffmann et al. 2022; for the joint law

    ln L̂ = logsumexp( ln a + α x + δ e + γ x e,   ln b + β y + ω e + ζ y e,   ln c )      x = ln N, y = ln D, e = ln Ê
    Q(θ) = Σ_runs w ρ(ln L̂ − ln L) + penalty          ρ = Huber with threshold δ (0.01)

and so for every form of terms. Centring x, y and e takes the near-collinearity out of (ln a, α), (δ, γ), …. Parameters
of a transform are the logarithms of their distances: u = ln(E_start − 1) and v = ln(E_max − E_start) keep
1 < E_start < E_max; where E_max is fixed or bounded, v = ln(E_max − 1).
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from hub.base.types import Fields
from scaling_law.fitting.penalty import Penalty, local_matrix, natural_of, values_of
from scaling_law.formulas.repeated import Repetition
from scaling_law.formulas.terms import Features, Form, derivative, total
from scaling_law.law import LAWS, Law
from scaling_law.size.arrays import BoolArray, FloatArray, IntArray

Limits = Mapping[str, tuple[float, float]]
# Logarithms of variables [n], and of transforms [S, n].
Logs = Mapping[str, FloatArray]
Slopes = list[FloatArray]
Designs = list[FloatArray]
# Relative ridge for directions that a penalty leaves free.
FREE = 1e-10


class Evaluation(NamedTuple):
    """Q [S], gradient [S, p] and Gauss-Newton matrix [S, p, p] of the Huber-reweighted least squares."""

    cost: FloatArray
    gradient: FloatArray
    curvature: FloatArray


class Misfit(NamedTuple):
    """Functions of the runs [n] that they share besides a law: residuals r become r − shape (measure r).

    `shape` is [n, k] and `measure` [k, n]; residuals of a law plus normal slopes times functions of the runs are then
    independent.
    """

    shape: FloatArray
    measure: FloatArray

    @classmethod
    def of(cls, functions: FloatArray, weight: FloatArray) -> Misfit:
        """Return that of functions [n, k], times the deviation of their slopes over that of a run's ln L."""
        root = np.sqrt(weight)[:, None]
        basis, sizes, _ = np.linalg.svd(functions * root, full_matrices=False)
        shares = 1.0 - 1.0 / np.sqrt(1.0 + sizes**2)
        return cls(basis / np.where(root > 0, root, 1.0), (shares * basis * root).T)


class Columns(NamedTuple):
    """A term against the runs: where its parameters are in θ, and the features that its coefficients multiply.

    `indices` are a slice where the parameters stand together. The feature of the scale is 1 and stands first in
    `features`; `offset` has no coefficient. `to_natural` is the matrix from the parameters to the coefficients.
    """

    indices: Any
    features: tuple[Features, ...]
    offset: Features
    to_natural: FloatArray

    @property
    def centred(self) -> bool:
        return bool(np.any(self.to_natural != np.eye(len(self.to_natural))))


@dataclass(frozen=True)
class FitSettings:
    """Settings of a fit besides the runs."""

    law: str
    huber_delta: float
    weights: str
    fixed: Mapping[str, float]
    bounds: Limits
    starts: str
    outliers: str = "keep"
    prior: str = ""
    tied: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> Fields:
        """Return the settings for a record; an open end of a bound is None."""
        bounds = {}
        for name, limits in self.bounds.items():
            bounds[name] = [limit if np.isfinite(limit) else None for limit in limits]
        settings: Fields = {
            "loss": "huber",
            "delta": self.huber_delta,
            "on": "ln L",
            "aggregation": "sum",
            "weights": self.weights,
            "fixed": self.fixed,
            "starts": self.starts,
            "outliers": self.outliers,
            "bounds": bounds,
        }
        for name in ("tied", "prior"):
            value = getattr(self, name)
            if value:
                settings[name] = value
        return settings


class Objective:
    """Q(θ) for one set of runs. θ is the terms' coefficients, the outer exponent, then the transforms' parameters.

    `columns` are the law's variables, "loss" and "weight", each [n]. Terms with a fixed or bounded coefficient are not
    centred, and parameters of transforms that are keep their distance from a fixed floor.

    Coefficients that are `tied` to others do not move by themselves: gradients, Jacobians and curvatures are along
    `carry` [p, p], which takes any θ to one that keeps the ties, and are zero for theirs.
    """

    def __init__(
        self,
        settings: FitSettings,
        columns: Mapping[str, FloatArray],
    ) -> None:
        self.law = settings.law
        self.fixed = settings.fixed
        self.tied = settings.tied
        self.huber_delta = settings.huber_delta

        self.form: Form = LAWS[self.law].form
        self.names = self.form.coefficients
        self.positive = self.form.positive
        self.constants = self.form.constants
        self.outer = self.names.index(self.form.outer) if self.form.outer else None
        self.n_transform = len(self.form.parameters)
        self.first_transform = self.size - self.n_transform
        limited = {*settings.fixed, *settings.bounds}
        self.follows = {p.name: p.above for p in self.form.parameters if p.above and p.name not in limited}

        self.target = np.log(columns["loss"])
        self.weight = columns["weight"]
        self.logs = {name: np.log(columns[name]) for name in self.form.variables}
        self.inputs = [tuple(columns[name] for name in transform.variables) for transform in self.form.transforms]

        self.terms, self.to_natural = self._centre_terms(limited)
        self.carry = self._carry_ties()
        self.penalty: Penalty | None = None
        self.misfit: Misfit | None = None
        self.repetition: Repetition | None = None
        self._last: tuple[bytes, tuple[Logs, Slopes, Designs]] | None = None

    @property
    def size(self) -> int:
        return len(self.names)

    @property
    def distances(self) -> dict[str, str]:
        """The distance in words whose logarithm is fitted for each parameter of a transform."""
        return {p.name: f"{p.name} − {self.follows.get(p.name, f'{p.floor:g}')}" for p in self.form.parameters}

    def of_rows(self, rows: IntArray) -> Objective:
        """Sum over these runs alone; θ keeps its meaning."""
        objective = copy.copy(self)
        objective.target = self.target[rows]
        objective.weight = self.weight[rows]
        objective.logs = {name: column[rows] for name, column in self.logs.items()}
        objective._last = None
        # It is of all runs.
        objective.misfit = None
        objective.inputs = [tuple(column[rows] for column in columns) for columns in self.inputs]
        return objective

    def reference_logs(self) -> dict[str, FloatArray]:
        """Return all logarithms [n], of transforms at their first start."""
        logs = dict(self.logs)
        for transform, inputs in zip(self.form.transforms, self.inputs, strict=True):
            logs[transform.name] = transform.log(*inputs, *transform.starts[0])
        return logs

    def _centre_terms(self, limited: Collection[str]) -> tuple[list[Columns], FloatArray]:
        """Return the terms, and the matrix from θ to the uncentred coefficients."""
        weights = self.weight / self.weight.sum()
        means = {name: float(weights @ column) for name, column in self.reference_logs().items()}
        to_natural = np.asarray(np.linalg.inv(local_matrix(self.form, means, limited)))
        terms = []
        for term in self.form.terms:
            rows = np.array([self.names.index(name) for name in term.coefficients])
            span = slice(rows[0], rows[0] + len(rows))
            is_together = np.array_equal(rows, np.arange(span.start, span.stop))
            columns = Columns(
                indices=span if is_together else rows,
                features=(((1.0, ()),), *term.features.values()),
                offset=term.offset,
                to_natural=to_natural[np.ix_(rows, rows)],
            )
            terms.append(columns)
        return terms, to_natural

    def _carry_ties(self) -> FloatArray:
        """Return the matrix from θ to the θ whose tied coefficients equal those that they follow."""
        follow = np.array([self.names.index(name) for name in self.tied], int)
        lead = np.array([self.names.index(name) for name in self.tied.values()], int)
        carry = np.eye(self.size)
        difference = self.to_natural[follow] - self.to_natural[lead]
        carry[follow] = 0.0
        carry[follow] = -np.linalg.solve(difference[:, follow], difference @ carry)
        return carry

    def from_coefficients(self, values: Mapping[str, Any]) -> FloatArray:
        """Return θ of coefficients given as scalars or arrays [S]; shape [p] or [S, p]."""
        natural = natural_of(self.form, values, self.follows)
        return np.asarray(np.linalg.solve(self.to_natural, natural.T).T)

    def coefficients(self, theta: FloatArray) -> FloatArray:
        """Return coefficients in the law's order, of θ's shape."""
        values = values_of(self.form, theta @ self.to_natural.T, self.follows)
        for name, value in self.fixed.items():
            values[name] = np.full(theta.shape[:-1], value)
        for name, leader in self.tied.items():
            values[name] = values[leader]
        return np.stack([values[name] for name in LAWS[self.law].coefficient_names()], axis=-1)

    def make_law(self, theta: FloatArray) -> Law:
        """Make the law of θ [p]."""
        law = LAWS[self.law]
        values = dict(zip(law.coefficient_names(), self.coefficients(theta), strict=True))
        return law(**values, repetition=self.repetition)

    def residuals(self, theta: FloatArray) -> FloatArray:
        """Compute ln L̂ − ln L, [S, n], for θ [S, p]."""
        logs, _, designs = self._features(theta)
        return self.absorb(self._predict(theta, logs, designs)[0])

    def linearise(self, theta: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Compute ln L̂ − ln L, [S, n], and its derivatives ∂ ln L̂ / ∂θ, [S, n, p]."""
        logs, slopes, designs = self._features(theta)
        residual, shares = self._predict(theta, logs, designs)
        jacobian = self._jacobian(theta, logs, designs, slopes, residual, shares)
        jacobian = jacobian @ self.carry if self.tied else jacobian
        return self.absorb(residual), self.absorb(jacobian)

    def absorb(self, values: FloatArray) -> FloatArray:
        """Take what the misfit explains from values of the runs, [S, n] or [S, n, p]."""
        if self.misfit is None:
            return values
        rows = values[..., None] if values.ndim == 2 else values
        absorbed = rows - self.misfit.shape @ (self.misfit.measure @ rows)
        return absorbed.reshape(values.shape)

    def linearise_at(self, theta: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Compute ln L̂ − ln L, [n], and its derivatives ∂ ln L̂ / ∂θ, [n, p], for one θ [p]."""
        residual, jacobian = self.linearise(theta[None])
        return residual[0], jacobian[0]

    def influence(self, residual: FloatArray) -> FloatArray:
        """Return weights of the least squares that stands for the Huber loss at these residuals."""
        return np.asarray(self.weight * np.minimum(1.0, self.huber_delta / np.maximum(np.abs(residual), 1e-300)))

    def cost_of_runs(self, theta: FloatArray) -> FloatArray:
        """Sum the Huber losses of the runs at θ [S, p], without the penalty, [S]."""
        return self._huber(self.residuals(theta), self.weight)[0]

    def covariance(self, theta: FloatArray, is_open: BoolArray) -> FloatArray:
        """Return the covariance of the parameters that are open at the posterior mode θ [p] (Laplace)."""
        # There is a posterior under a penalty alone.
        assert self.penalty is not None
        residual, jacobian = self.linearise_at(theta)
        root = np.sqrt(self.influence(residual) / self.penalty.dependence)
        rows = np.vstack([jacobian * root[:, None], self.prior_rows(theta)])[:, is_open]
        return np.asarray(np.linalg.inv(rows.T @ rows) * self.penalty.variance)

    def prior_covariance(self, theta: FloatArray, is_open: BoolArray) -> FloatArray:
        """Return the covariance of the parameters that are open under the penalty alone, as curved at θ [p]."""
        assert self.penalty is not None
        rows = self.prior_rows(theta)[:, is_open]
        precision = rows.T @ rows
        ridge = FREE * np.diag(np.diag(precision) + FREE)
        return np.asarray(np.linalg.inv(precision + ridge) * self.penalty.variance)

    def prior_rows(self, theta: FloatArray) -> FloatArray:
        """Return the penalty at θ [p] as rows of a Jacobian of runs of weight 1, [k, p]; none without one."""
        if self.penalty is None:
            return np.zeros((0, self.size))
        natural = self.to_natural @ theta
        slopes = self.penalty.coordinates.jacobian(natural) @ self.to_natural
        root = np.sqrt(self.penalty.variance) * self.penalty.root(natural).T
        return np.asarray(root @ slopes @ self.carry)

    def evaluate(
        self,
        theta: FloatArray,
        weight: FloatArray | None = None,
        *,
        hold_transform: bool = False,
    ) -> Evaluation:
        """Compute Q, gradient and Gauss-Newton matrix at θ [S, p].

        Args:
            weight: weights [n] or [S, n] of the runs; None for their own.
            hold_transform: fix the transforms' parameters, which all θ share; a few matrix products then serve all.
        """
        weight = self.weight if weight is None else weight
        theta = theta @ self.carry.T if self.tied else theta
        natural = theta @ self.to_natural.T
        logs, slopes, designs = self._features(theta[:1] if hold_transform else theta)
        residual, shares = self._predict(theta, logs, designs)
        if hold_transform and self.outer is None and self.misfit is None:
            cost, influence = self._huber(residual, weight)
            gradient, curvature = self._moments(designs, residual, shares, influence)
        else:
            jacobian = self.absorb(self._jacobian(theta, logs, designs, slopes, residual, shares))
            residual = self.absorb(residual)
            cost, influence = self._huber(residual, weight)
            weighted = jacobian * influence[..., None]
            gradient = np.matmul(weighted.swapaxes(1, 2), residual[..., None])[..., 0]
            curvature = np.matmul(jacobian.swapaxes(1, 2), weighted)

        if self.penalty is not None:
            prior_cost, prior_gradient, prior_curvature = self.penalty.evaluate(natural)
            cost = cost + prior_cost
            gradient = gradient + prior_gradient @ self.to_natural
            curvature = curvature + self.to_natural.T @ prior_curvature @ self.to_natural
        if self.tied:
            gradient = gradient @ self.carry
            curvature = self.carry.T @ curvature @ self.carry
        return Evaluation(cost, gradient, curvature)

    def _huber(self, residual: FloatArray, weight: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Sum the Huber losses of the residuals [S, n] over runs, [S], and return the influence of each run [S, n]."""
        size = np.abs(residual)
        inner = np.minimum(size, self.huber_delta)
        cost = np.sum(weight * inner * (size - 0.5 * inner), axis=1)
        return cost, weight * inner / np.maximum(size, 1e-300)

    def _features(self, theta: FloatArray) -> tuple[Logs, Slopes, Designs]:
        """Return all logarithms, ∂ ln transform / ∂θ, and each term's columns.

        The columns are [n, k] if all θ share them, else [S, n, k]. The last answer is stored, since transforms that
        are held repeat.
        """
        key = theta[:, self.first_transform :].tobytes()
        if self._last is None or self._last[0] != key:
            logs, slopes = self._transforms(theta)
            designs = []
            for term in self.terms:
                columns = [total(features, logs) for features in term.features]
                # The target gives columns of constants their length.
                broadcast = np.broadcast_arrays(*columns, self.target)[:-1]
                design = np.stack(broadcast, axis=-1) @ term.to_natural
                is_shared = design.ndim == 3 and len(design) == 1
                designs.append(design[0] if is_shared else design)
            self._last = key, (logs, slopes, designs)
        return self._last[1]

    def _transforms(self, theta: FloatArray) -> tuple[Logs, Slopes]:
        """Return all logarithms, and ∂ ln transform / ∂θ, each [S, n].

        Logarithms of transforms are [S, n], with S = 1 where θ shares them.
        """
        if not self.n_transform:
            return self.logs, []
        values = {name: column[:, None] for name, column in values_of(self.form, theta, self.follows).items()}
        logs = dict(self.logs)
        slopes = []
        for transform, inputs in zip(self.form.transforms, self.inputs, strict=True):
            parameters = [values[p.name] for p in transform.parameters]
            log, *gradient = transform.gradient(*inputs, *parameters)
            logs[transform.name] = log
            slope_by = dict(zip((p.name for p in transform.parameters), gradient, strict=True))
            for p in transform.parameters:
                slope = slope_by[p.name]
                # A parameter takes along those whose distance is measured from it.
                for follower, leader in self.follows.items():
                    if leader == p.name:
                        slope = slope + slope_by[follower]
                floor = values[self.follows[p.name]] if p.name in self.follows else p.floor
                slopes.append(slope * (values[p.name] - floor))
        return logs, slopes

    def _predict(
        self,
        theta: FloatArray,
        logs: Logs,
        designs: Designs,
    ) -> tuple[FloatArray, list[FloatArray]]:
        """Return residuals [S, n], and each term's share of the loss [S, n].

        The share is the derivative of ln L̂ by the term's exponent.
        """
        exponents = []
        for term, design in zip(self.terms, designs, strict=True):
            values = theta[:, term.indices]
            exponent = values @ design.T if design.ndim == 2 else np.matmul(design, values[..., None])[..., 0]
            if term.offset:
                exponent = exponent + total(term.offset, logs)
            exponents.append(exponent)
        if self.outer is None:
            log_loss, shares = _log_sum(exponents)
            return log_loss - self.target, shares

        # The sum of the powers has an exponent of its own.
        outer = np.exp(theta[:, self.outer, None])
        is_constant = [not term.slopes for term in self.form.terms]
        powers = [exponents[i] for i, constant in enumerate(is_constant) if not constant]
        constants = [exponents[i] for i, constant in enumerate(is_constant) if constant]
        log_sum, power_shares = _log_sum(powers)
        log_loss, (sum_share, *constant_shares) = _log_sum([outer * log_sum, *constants])

        power_shares = [sum_share * outer * share for share in power_shares]
        shares = []
        for constant in is_constant:
            shares.append(constant_shares.pop(0) if constant else power_shares.pop(0))
        return log_loss - self.target, shares

    def _jacobian(
        self,
        theta: FloatArray,
        logs: Logs,
        designs: Designs,
        slopes: Slopes,
        residual: FloatArray,
        shares: list[FloatArray],
    ) -> FloatArray:
        """Return ∂ ln L̂ / ∂θ, [S, n, p].

        Args:
            theta: parameters [S, p].
            logs: logarithms of variables [n] and transforms [S, n].
            designs: the columns of each term, [n, k] or [S, n, k].
            slopes: ∂ ln transform / ∂θ for each parameter of a transform, [S, n].
            residual: ln L̂ − ln L, [S, n].
            shares: each term's share of the loss, [S, n].
        """
        jacobian = np.zeros((*residual.shape, self.size))
        for term, design, share in zip(self.terms, designs, shares, strict=True):
            jacobian[..., term.indices] += share[..., None] * design
        if self.outer is not None:
            constants = [share for share, term in zip(shares, self.form.terms, strict=True) if not term.slopes]
            # The share of L̂ that has the exponent.
            powered = np.maximum(1.0 - sum(constants, start=0.0), 1e-300)
            jacobian[..., self.outer] = powered * (residual + self.target + np.log(powered))

        natural = theta @ self.to_natural.T
        column = self.first_transform
        for transform in self.form.transforms:
            # This is ∂ ln L̂ / ∂ ln transform.
            slope = np.zeros_like(residual)
            for term, share in zip(self.terms, shares, strict=True):
                slope += share * self._exponent_slope(term, natural[:, term.indices], transform.name, logs)
            for _ in transform.parameters:
                jacobian[..., column] = slope * slopes[column - self.first_transform]
                column += 1
        return jacobian

    def _exponent_slope(
        self,
        term: Columns,
        coefficients: FloatArray,
        name: str,
        logs: Logs,
    ) -> Any:
        """Return ∂ exponent / ∂ ln `name`, [S, n] or [S, 1]."""
        slope: Any = 0.0
        for i, features in enumerate((*term.features, term.offset)):
            factors = derivative(features, name)
            if factors:
                coefficient = coefficients[:, i, None] if i < len(term.features) else 1.0
                slope = slope + coefficient * total(factors, logs)
        return slope

    def _moments(
        self,
        designs: Designs,
        residual: FloatArray,
        shares: list[FloatArray],
        influence: FloatArray,
    ) -> tuple[FloatArray, FloatArray]:
        """Compute gradient [S, p] and Gauss-Newton matrix [S, p, p] from columns that all θ share.

        Args:
            designs: the columns of each term [n, k].
            residual: ln L̂ − ln L, [S, n].
            shares: each term's share of the loss, [S, n].
            influence: weights of the least squares, [S, n].
        """
        count = len(residual)
        gradient = np.zeros((count, self.size))
        curvature = np.zeros((count, self.size, self.size))
        weighted = [influence * share for share in shares]

        indices = [np.arange(self.size)[term.indices] for term in self.terms]
        for i, design in enumerate(designs):
            gradient[:, self.terms[i].indices] += (weighted[i] * residual) @ design
            rows = indices[i]
            for j, other_design in enumerate(designs[i:], start=i):
                columns = indices[j]
                products = design[:, :, None] * other_design[:, None, :]
                sums = (weighted[i] * shares[j]) @ products.reshape(len(design), -1)
                block = sums.reshape(count, len(rows), len(columns))
                curvature[:, rows[:, None], columns] += block
                if j > i:
                    curvature[:, columns[:, None], rows] += block.swapaxes(1, 2)
        return gradient, curvature


def _log_sum(exponents: Sequence[FloatArray]) -> tuple[FloatArray, list[FloatArray]]:
    """Return ln Σ exp(exponent), and the share of each."""
    top = exponents[0]
    for exponent in exponents[1:]:
        top = np.maximum(top, exponent)
    sizes = [np.exp(exponent - top) for exponent in exponents]
    size_sum = sum(sizes[1:], start=sizes[0])
    return top + np.log(size_sum), [size / size_sum for size in sizes]
