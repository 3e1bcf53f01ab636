"""The objective of a fit, for many parameter vectors at once: Huber of ln L through logsumexp, summed over runs.

Ludziejewski et al. 2025, Appendix "Fit Details", after Hoffmann et al. 2022; for the joint law

    ln L̂ = logsumexp( ln a + α x + δ e + γ x e,   ln b + β y + ω e + ζ y e,   ln c )      x = ln N, y = ln D, e = ln Ê
    Q(θ) = Σ_runs w ρ(ln L̂ − ln L) + penalty          ρ = Huber with threshold δ (0.01)

and so for every form of terms. Centring x, y and e takes the near-collinearity out of (ln a, α), (δ, γ), …. Parameters
of a transform are the logarithms of their distances: u = ln(E_start − 1) and v = ln(E_max − E_start) keep
1 < E_start < E_max; where E_max is fixed or bounded, v = ln(E_max − 1).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from hub.base.types import Fields, Strings
from scaling_law.fitting.penalty import Penalty, local_matrix, natural_of, values_of
from scaling_law.formulas.repeated import Repetition
from scaling_law.formulas.terms import Features, Form, Term, Transform, total
from scaling_law.law import LAWS, Law
from scaling_law.size.arrays import BoolArray, Columns, FloatArray, IntArray

Limits = Mapping[str, tuple[float, float]]
# Logarithms of variables [n], and of transforms [S, n].
Logs = Mapping[str, FloatArray]
# The feature of a scale, which is 1.
SCALE: Features = ((1.0, ()),)
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


class Prediction(NamedTuple):
    """ln L̂ − ln L at natural coordinates [S, p], and what it follows from.

    `logs` are of variables [n] and transforms [S, n], `slopes` are ∂ ln transform / ∂ natural coordinate by parameter,
    `shares` are the share of each term in the loss, the derivative of ln L̂ by its exponent, [S, n].
    """

    natural: FloatArray
    logs: Logs
    slopes: Logs
    shares: list[FloatArray]
    residual: FloatArray


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

    @property
    def limited(self) -> set[str]:
        """The coefficients that are fixed or bounded."""
        return {*self.fixed, *self.bounds}

    def fitted(self, names: Iterable[str]) -> list[str]:
        """Return the coefficients that a fit moves: neither fixed nor tied to another."""
        return [name for name in names if name not in self.fixed and name not in self.tied]

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


@dataclass(eq=False)
class Objective:
    """Q(θ) for one set of runs. θ is the terms' coefficients, the outer exponent, then the transforms' parameters.

    `columns` are the law's variables, "loss" and "weight", each [n]. `to_natural` [p, p] takes θ, whose features are
    centred, to the natural coordinates of `penalty`. Terms with a fixed or bounded coefficient are not centred, and
    parameters of transforms that are keep their distance from a fixed floor.

    With `held_theta` [1, p], all θ share its parameters of transforms, and a few matrix products serve all of them.

    Coefficients that are tied to others do not move by themselves: gradients, Jacobians and curvatures are along
    `carry` [p, p], which takes any θ to one that keeps the ties, and are zero for theirs.
    """

    settings: FitSettings
    columns: Columns
    to_natural: FloatArray
    penalty: Penalty | None = None
    misfit: Misfit | None = None
    repetition: Repetition | None = None
    held_theta: Any = None

    @classmethod
    def of(cls, settings: FitSettings, columns: Columns) -> Objective:
        """Make the objective of these runs, with features centred at their means."""
        objective = cls(settings, columns, np.eye(len(LAWS[settings.law].form.coefficients)))
        weights = objective.weight / objective.weight.sum()
        means = {name: float(weights @ column) for name, column in objective.reference_logs().items()}
        matrix = local_matrix(objective.form, means, settings.limited)
        return replace(objective, to_natural=np.asarray(np.linalg.inv(matrix)))

    @property
    def law(self) -> type[Law]:
        return LAWS[self.settings.law]

    @property
    def form(self) -> Form:
        return self.law.form

    @property
    def names(self) -> Strings:
        return self.form.coefficients

    @property
    def size(self) -> int:
        return len(self.names)

    @property
    def first_transform(self) -> int:
        """The index in θ of the first parameter of a transform."""
        return self.size - len(self.form.parameters)

    @property
    def weight(self) -> FloatArray:
        return self.columns["weight"]

    @cached_property
    def target(self) -> FloatArray:
        """The ln L of the runs [n]."""
        return np.log(self.columns["loss"])

    @cached_property
    def logs(self) -> Logs:
        """The logarithms of the variables [n]."""
        return {name: np.log(self.columns[name]) for name in self.form.variables}

    @cached_property
    def terms(self) -> list[tuple[Term, IntArray]]:
        """The terms, the constant last, with the indices of their coefficients in θ."""
        terms = sorted(self.form.terms, key=lambda term: not term.slopes)
        return [(term, np.array([self.names.index(name) for name in term.coefficients])) for term in terms]

    @property
    def n_powers(self) -> int:
        """The number of terms before the constant."""
        return len(self.form.terms) - len(self.form.constants)

    @cached_property
    def follows(self) -> dict[str, str]:
        """The parameter of a transform from which the distance of another is measured."""
        limited = self.settings.limited
        return {p.name: p.above for p in self.form.parameters if p.above and p.name not in limited}

    @cached_property
    def carry(self) -> FloatArray:
        """The matrix from θ to the θ whose tied coefficients equal those that they follow."""
        tied = self.settings.tied
        follow = np.array([self.names.index(name) for name in tied], int)
        lead = np.array([self.names.index(name) for name in tied.values()], int)
        carry = np.eye(self.size)
        difference = self.to_natural[follow] - self.to_natural[lead]
        carry[follow] = 0.0
        carry[follow] = -np.linalg.solve(difference[:, follow], difference @ carry)
        return carry

    @cached_property
    def basis(self) -> FloatArray:
        """The matrix from θ to natural coordinates that keep the ties."""
        return self.to_natural @ self.carry

    @property
    def distances(self) -> dict[str, str]:
        """The distance in words whose logarithm is fitted for each parameter of a transform."""
        return {p.name: f"{p.name} − {self.follows.get(p.name, f'{p.floor:g}')}" for p in self.form.parameters}

    def of_rows(self, rows: IntArray) -> Objective:
        """Sum over these runs alone; θ keeps its meaning."""
        # The misfit is of all runs.
        return replace(self, columns={name: column[rows] for name, column in self.columns.items()}, misfit=None)

    def reference_logs(self) -> dict[str, FloatArray]:
        """Return all logarithms [n], of transforms at their first start."""
        logs = dict(self.logs)
        for transform in self.form.transforms:
            logs[transform.name] = transform.log(*self._inputs_of(transform), *transform.starts[0])
        return logs

    def _inputs_of(self, transform: Transform) -> list[FloatArray]:
        return [self.columns[name] for name in transform.variables]

    def from_natural(self, natural: FloatArray) -> FloatArray:
        """Return θ of natural coordinates, both [..., p]."""
        return np.asarray(np.linalg.solve(self.to_natural, natural.T).T)

    def from_coefficients(self, values: Mapping[str, Any]) -> FloatArray:
        """Return θ of coefficients given as scalars or arrays [S]; shape [p] or [S, p]."""
        return self.from_natural(natural_of(self.form, values, self.follows))

    def coefficients(self, theta: FloatArray) -> FloatArray:
        """Return coefficients in the law's order, of θ's shape."""
        return self.coefficients_of(theta @ self.basis.T)

    def coefficients_of(self, natural: FloatArray) -> FloatArray:
        """Return coefficients in the law's order, of natural coordinates [..., p]."""
        values = values_of(self.form, natural, self.follows)
        for name, value in self.settings.fixed.items():
            values[name] = np.full(natural.shape[:-1], value)
        for name, leader in self.settings.tied.items():
            values[name] = values[leader]
        return np.stack([values[name] for name in self.law.coefficient_names()], axis=-1)

    def make_law(self, theta: FloatArray) -> Law:
        """Make the law of θ [p]."""
        return self.law(*self.coefficients(theta), repetition=self.repetition)

    def residuals(self, theta: FloatArray) -> FloatArray:
        """Compute ln L̂ − ln L, [S, n], for θ [S, p]."""
        return self.absorb(self._predict(theta @ self.basis.T).residual)

    def linearise_at(self, theta: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Compute ln L̂ − ln L, [n], and its derivatives ∂ ln L̂ / ∂θ, [n, p], for one θ [p]."""
        prediction = self._predict((self.basis @ theta)[None])
        jacobian = self.absorb(self._jacobian(prediction))[:, 0]
        return self.absorb(prediction.residual)[0], jacobian.T @ self.carry

    def absorb(self, values: FloatArray) -> FloatArray:
        """Take what the misfit explains from values of the runs, [..., n]."""
        if self.misfit is None:
            return values
        return values - values @ self.misfit.measure.T @ self.misfit.shape.T

    def influence(self, residual: FloatArray, weight: FloatArray | None = None) -> FloatArray:
        """Return weights of the least squares that stands for the Huber loss at these residuals."""
        weight = self.weight if weight is None else weight
        delta = self.settings.huber_delta
        return np.asarray(weight * np.minimum(1.0, delta / np.maximum(np.abs(residual), 1e-300)))

    def cost_of_runs(self, residual: FloatArray, weight: FloatArray | None = None) -> FloatArray:
        """Sum the Huber losses of residuals [S, n], without the penalty, [S]."""
        weight = self.weight if weight is None else weight
        size = np.abs(residual)
        inner = np.minimum(size, self.settings.huber_delta)
        return np.asarray(np.sum(weight * inner * (size - 0.5 * inner), axis=1))

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
        natural = self.basis @ theta
        root = np.sqrt(self.penalty.variance) * self.penalty.root(natural).T
        return np.asarray(root @ self.penalty.coordinates.jacobian(natural) @ self.basis)

    def evaluate(
        self,
        theta: FloatArray,
        weight: FloatArray | None = None,
    ) -> Evaluation:
        """Compute Q, gradient and Gauss-Newton matrix at θ [S, p]; weights [n] or [S, n] replace those of the runs."""
        natural = theta @ self.basis.T
        prediction = self._predict(natural) if self.held_theta is None else self._predict_held(theta @ self.carry.T)
        residual = self.absorb(prediction.residual)
        cost = self.cost_of_runs(residual, weight)
        influence = self.influence(residual, weight)
        if self.held_theta is None:
            # The parameters stand first: [p, S, n], then [S, p, n].
            jacobian = self.absorb(self._jacobian(prediction)).swapaxes(0, 1)
            weighted = jacobian * influence[:, None, :]
            gradient = np.matmul(weighted, residual[..., None])[..., 0]
            curvature = np.matmul(weighted, jacobian.swapaxes(1, 2))
        else:
            gradient, curvature = self._moments(prediction, influence)
        if self.penalty is not None:
            prior_cost, prior_gradient, prior_curvature = self.penalty.evaluate(natural)
            cost = cost + prior_cost
            gradient = gradient + prior_gradient @ self.to_natural
            curvature = curvature + self.to_natural.T @ prior_curvature @ self.to_natural
        return Evaluation(cost, gradient @ self.carry, self.carry.T @ curvature @ self.carry)

    def _logs_at(self, natural: FloatArray) -> Logs:
        """Return the logarithms of the variables, [n] or [S, n], which may depend on the coefficients."""
        return self.logs

    @cached_property
    def _held_designs(self) -> list[tuple[IntArray, FloatArray, Any]]:
        """The indices of each term's coefficients in θ, its features along these [n, k], and its exponent without."""
        logs, _ = self._transforms(self.held_theta @ self.basis.T)
        designs = []
        for term, indices in self.terms:
            features = [total(features, logs) for features in (SCALE, *term.features.values())]
            # The target gives columns of constants their length.
            design = np.stack(np.broadcast_arrays(*features, self.target[None])[:-1], axis=-1)[0]
            designs.append((indices, design @ self.to_natural[np.ix_(indices, indices)], total(term.offset, logs)))
        return designs

    def _predict_held(self, theta: FloatArray) -> Prediction:
        """Predict at θ [S, p] with the transforms held, by a matrix product for each term."""
        exponents = [theta[:, indices] @ design.T + offset for indices, design, offset in self._held_designs]
        log_loss, shares = _log_sum(exponents)
        return Prediction(theta, {}, {}, shares, log_loss - self.target)

    def _predict(self, natural: FloatArray) -> Prediction:
        """Predict ln L̂ − ln L at natural coordinates [S, p], with what its derivatives need."""
        logs, slopes = self._transforms(natural)
        values = self._values_of(natural)
        exponents = [values[term.scale] + term.exponent(values, logs) for term, _ in self.terms]
        if not self.form.outer:
            log_loss, shares = _log_sum(exponents)
            return Prediction(natural, logs, slopes, shares, log_loss - self.target)

        # The sum of the powers has an exponent of its own; the constant, if any, is the last term.
        outer = np.exp(natural[:, self.names.index(self.form.outer), None])
        log_sum, power_shares = _log_sum(exponents[: self.n_powers])
        log_loss, (sum_share, *constant_shares) = _log_sum([outer * log_sum, *exponents[self.n_powers :]])
        shares = [sum_share * outer * share for share in power_shares]
        return Prediction(natural, logs, slopes, [*shares, *constant_shares], log_loss - self.target)

    def _values_of(self, natural: FloatArray) -> dict[str, FloatArray]:
        """Return the natural coordinates by name, each [S, 1]."""
        return dict(zip(self.names, natural.T[..., None], strict=True))

    def _transforms(self, natural: FloatArray) -> tuple[Logs, Logs]:
        """Return all logarithms, and ∂ ln transform / ∂ its parameters in natural coordinates, each [S, n]."""
        if not self.form.transforms:
            return self._logs_at(natural), {}
        values = {name: column[:, None] for name, column in values_of(self.form, natural, self.follows).items()}
        logs = dict(self._logs_at(natural))
        slopes = {}
        for transform in self.form.transforms:
            names = [p.name for p in transform.parameters]
            log, *gradient = transform.gradient(*self._inputs_of(transform), *(values[name] for name in names))
            logs[transform.name] = log
            slope_by = dict(zip(names, gradient, strict=True))
            for name in names:
                # A parameter takes along those whose distance is measured from it.
                followers = [follower for follower, leader in self.follows.items() if leader == name]
                distance = np.exp(natural[:, self.names.index(name), None])
                slopes[name] = distance * sum((slope_by[follower] for follower in followers), start=slope_by[name])
        return logs, slopes

    def _jacobian(self, prediction: Prediction) -> FloatArray:
        """Return ∂ ln L̂ / ∂θ before ties, [p, S, n]: sums over runs would cancel in natural coordinates."""
        shares = prediction.shares
        residual = prediction.residual
        jacobian = np.zeros((self.size, *residual.shape))
        for (term, indices), share in zip(self.terms, shares, strict=True):
            for i, features in zip(indices, (SCALE, *term.features.values()), strict=True):
                jacobian[i] += share * total(features, prediction.logs)
        if self.form.outer:
            # The share of L̂ that has the exponent.
            powered = np.maximum(1.0 - sum(shares[self.n_powers :], start=0.0), 1e-300)
            log_powered = residual + self.target + np.log(powered)
            jacobian[self.names.index(self.form.outer)] = powered * log_powered
        for transform in self.form.transforms:
            slope = self._slope_by(transform.name, prediction)
            for p in transform.parameters:
                jacobian[self.names.index(p.name)] = slope * prediction.slopes[p.name]
        return np.tensordot(self.to_natural.T, jacobian, axes=1)

    def _slope_by(self, name: str, prediction: Prediction) -> FloatArray:
        """Return ∂ ln L̂ / ∂ the logarithm of a variable or transform, [S, n]."""
        values = self._values_of(prediction.natural)
        slope = np.zeros_like(prediction.residual)
        for (term, _), share in zip(self.terms, prediction.shares, strict=True):
            slope += share * term.power(name, values, prediction.logs)
        return slope

    def _moments(self, prediction: Prediction, influence: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Compute gradient [S, p] and Gauss-Newton matrix [S, p, p] along θ with the transforms held.

        `influence` are the weights of the least squares, [S, n].
        """
        count = len(influence)
        gradient = np.zeros((count, self.size))
        curvature = np.zeros((count, self.size, self.size))
        for i, (rows, design, _) in enumerate(self._held_designs):
            weighted = influence * prediction.shares[i]
            gradient[:, rows] += (weighted * prediction.residual) @ design
            for j, (other_rows, other_design, _) in enumerate(self._held_designs[i:], start=i):
                products = design[:, :, None] * other_design[:, None, :]
                block = np.tensordot(weighted * prediction.shares[j], products, axes=1)
                curvature[:, rows[:, None], other_rows] += block
                if j > i:
                    curvature[:, other_rows[:, None], rows] += block.swapaxes(1, 2)
        return gradient, curvature


def _log_sum(exponents: Sequence[FloatArray]) -> tuple[FloatArray, list[FloatArray]]:
    """Return ln Σ exp(exponent), and the share of each."""
    top = exponents[0]
    for exponent in exponents[1:]:
        top = np.maximum(top, exponent)
    sizes = [np.exp(exponent - top) for exponent in exponents]
    size_sum = sum(sizes[1:], start=sizes[0])
    return top + np.log(size_sum), [size / size_sum for size in sizes]
