"""The objective of a fit, for many parameter vectors at once: Huber of ln L through logsumexp, summed over runs.

Ludziejewski et al. 2025, Appendix "Fit Details", after Hoffmann et al. 2022; for the joint law

    ln L̂ = logsumexp( ln a + α x + δ e + γ x e,   ln b + β y + ω e + ζ y e,   ln c )      x = ln N, y = ln D, e = ln Ê
    Q(θ) = Σ_runs w ρ(ln L̂ − ln L) + l2/2 |θ|² + penalty          ρ = Huber with threshold δ (0.01)

and so for every form of terms. Centring x, y and e takes the near-collinearity out of (ln a, α), (δ, γ), …. Parameters
of a transform are the logarithms of their distances: u = ln(E_start − 1) and v = ln(E_max − E_start) keep
1 < E_start < E_max; where E_max is fixed or bounded, v = ln(E_max − 1).

A one-sided run is an upper bound: an untuned run's loss is at least that of the tuned one, so ρ = 0 where ln L̂ < ln L.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaling_law.fitting.penalty import Penalty, local_matrix, natural_of, values_of
from scaling_law.formulas.terms import Features, Form, derivative, total
from scaling_law.law import LAWS, Law
from scaling_law.size.arrays import FloatArray

Mask = NDArray[np.bool_]
Limits = Mapping[str, tuple[float, float]]
# Logarithms of variables [n], and of transforms [S, n].
Logs = Mapping[str, FloatArray]


class Evaluation(NamedTuple):
    """Q, gradient and Gauss-Newton matrix of the Huber-reweighted least squares at S parameter vectors."""

    cost: FloatArray  # [S]
    gradient: FloatArray  # [S, p]
    curvature: FloatArray  # [S, p, p]


class Columns(NamedTuple):
    """A term against the runs: where its parameters are in θ, the features that its coefficients multiply, and the
    matrix from the parameters to the coefficients.
    """

    at: Any  # a slice where the parameters stand together, else indices
    # The feature of the scale is 1 and stands first.
    features: tuple[Features, ...]
    offset: Features
    back: FloatArray

    @property
    def centred(self) -> bool:
        return bool(np.any(self.back != np.eye(len(self.back))))


@dataclass(frozen=True)
class FitSettings:
    """Settings of a fit besides the runs."""

    law: str
    huber_delta: float
    l2: float
    weights: str
    fixed: Mapping[str, float]
    bounds: Limits
    starts: str
    outliers: str = "keep"
    one_sided: int = 0
    prior: str = ""
    tied: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        settings: dict[str, Any] = {"loss": "huber", "delta": self.huber_delta, "on": "ln L", "aggregation": "sum"}
        settings |= {name: getattr(self, name) for name in ("weights", "l2", "fixed", "starts", "outliers")}
        settings["bounds"] = {k: [end if np.isfinite(end) else None for end in v] for k, v in self.bounds.items()}
        settings |= {"tied": self.tied} if self.tied else {}
        settings |= {"one_sided": self.one_sided} if self.one_sided else {}
        settings |= {"prior": self.prior} if self.prior else {}
        return settings


class Objective:
    """Q(θ) for one set of runs. θ is the terms' coefficients, the outer exponent, then the transforms' parameters.

    `columns` are the law's variables, "loss" and "weight", each [n]. `l2` acts in uncentred coordinates, as in the
    paper. Terms with a fixed or bounded coefficient are not centred, and parameters of transforms that are keep their
    distance from a fixed floor. `one_sided` [n] are the runs that bound the law from above.

    Coefficients that are `tied` to others do not move by themselves: gradients, Jacobians and curvatures are along
    `carry` [p, p], which takes any θ to one that keeps the ties, and are zero for theirs.
    """

    def __init__(self, settings: FitSettings, columns: Mapping[str, FloatArray], one_sided: Mask) -> None:
        self.law, self.fixed, limited = settings.law, settings.fixed, {*settings.fixed, *settings.bounds}
        self.huber_delta, self.l2, self.one_sided = settings.huber_delta, settings.l2, one_sided
        self.form: Form = LAWS[self.law].form
        self.names, self.positive, self.constants = self.form.coefficients, self.form.positive, self.form.constants
        self.target, self.weight = np.log(columns["loss"]), columns["weight"]
        self.logs = {name: np.log(columns[name]) for name in self.form.variables}
        # A transform is computed once for each distinct value of its variables.
        self.grids = []
        for transform in self.form.transforms:
            stacked = np.stack([columns[name] for name in transform.variables])
            distinct, index = np.unique(stacked, axis=1, return_inverse=True)
            self.grids.append((distinct, index.ravel()))
        self.n_transform = len(self.form.parameters)
        self.first_transform = self.size - self.n_transform
        self.outer = self.names.index(self.form.outer) if self.form.outer else None
        self.follows = {p.name: p.above for p in self.form.parameters if p.above and p.name not in limited}
        self.terms, self.to_natural = self._centred(limited)
        self.tied = settings.tied
        self.carry = self._carry()
        self.penalty: Penalty | None = None
        self._last: tuple[bytes, tuple[Logs, list[FloatArray], list[FloatArray]]] | None = None

    @property
    def size(self) -> int:
        return len(self.names)

    @property
    def distances(self) -> dict[str, str]:
        """What is fitted as its logarithm for each parameter of a transform, in words."""
        return {p.name: f"{p.name} − {self.follows.get(p.name, f'{p.floor:g}')}" for p in self.form.parameters}

    def of_rows(self, rows: NDArray[np.intp]) -> Objective:
        """Sum over these runs alone; θ keeps its meaning."""
        part = copy.copy(self)
        part.target = self.target[rows]
        part.weight = self.weight[rows]
        part.one_sided = self.one_sided[rows]
        part.logs = {name: column[rows] for name, column in self.logs.items()}
        part.grids = [(distinct, index[rows]) for distinct, index in self.grids]
        part._last = None
        return part

    def reference_logs(self) -> dict[str, FloatArray]:
        """All logarithms [n], of transforms at their first start."""
        logs = dict(self.logs)
        for transform, (distinct, index) in zip(self.form.transforms, self.grids, strict=True):
            logs[transform.name] = transform.log(*distinct, *transform.starts[0])[index]
        return logs

    def _centred(self, limited: Collection[str]) -> tuple[list[Columns], FloatArray]:
        """The terms, and the matrix from θ to the uncentred coefficients."""
        weights = self.weight / self.weight.sum()
        means = {name: float(weights @ column) for name, column in self.reference_logs().items()}
        matrix = np.asarray(np.linalg.inv(local_matrix(self.form, means, limited)))
        terms = []
        for term in self.form.terms:
            rows = np.array([self.names.index(name) for name in term.coefficients])
            together = np.array_equal(rows, np.arange(rows[0], rows[0] + len(rows)))
            at = slice(rows[0], rows[0] + len(rows)) if together else rows
            features = (((1.0, ()),), *term.features.values())
            terms.append(Columns(at, features, term.offset, matrix[np.ix_(rows, rows)]))
        return terms, matrix

    def _carry(self) -> FloatArray:
        """The matrix from θ to the θ whose tied coefficients equal those that they follow."""
        follow = np.array([self.names.index(name) for name in self.tied], int)
        lead = np.array([self.names.index(name) for name in self.tied.values()], int)
        carry = np.eye(self.size)
        apart = self.to_natural[follow] - self.to_natural[lead]
        carry[follow] = 0.0
        carry[follow] = -np.linalg.solve(apart[:, follow], apart @ carry)
        return carry

    def from_coefficients(self, values: Mapping[str, Any]) -> FloatArray:
        """θ of coefficients given as scalars or arrays [S]; shape [p] or [S, p]."""
        return np.asarray(np.linalg.solve(self.to_natural, natural_of(self.form, values, self.follows).T).T)

    def coefficients(self, theta: FloatArray) -> FloatArray:
        """Coefficients in the law's order, of θ's shape."""
        values = values_of(self.form, theta @ self.to_natural.T, self.follows)
        values |= {name: np.full(theta.shape[:-1], value) for name, value in self.fixed.items()}
        values |= {name: values[leader] for name, leader in self.tied.items()}
        return np.stack([values[name] for name in LAWS[self.law].coefficient_names()], axis=-1)

    def make_law(self, theta: FloatArray) -> Law:
        """The law of θ [p]."""
        return LAWS[self.law](**dict(zip(LAWS[self.law].coefficient_names(), self.coefficients(theta), strict=True)))

    def residuals(self, theta: FloatArray) -> FloatArray:
        """ln L̂ − ln L, [S, n], for θ [S, p]."""
        logs, _, designs = self._features(theta)
        return self._prediction(theta, logs, designs)[0]

    def linearised(self, theta: FloatArray) -> tuple[FloatArray, FloatArray]:
        """ln L̂ − ln L, [S, n], and its derivatives ∂ ln L̂ / ∂θ, [S, n, p]."""
        logs, slopes, designs = self._features(theta)
        residual, shares = self._prediction(theta, logs, designs)
        jacobian = self._jacobian(theta, logs, designs, slopes, residual, shares)
        return residual, jacobian @ self.carry if self.tied else jacobian

    def idle(self, residual: FloatArray) -> Mask:
        """One-sided runs that the law lies below, which cost nothing; of the residuals' shape."""
        return self.one_sided & (residual < 0)

    def influence(self, residual: FloatArray) -> FloatArray:
        """Weights of the least squares that stands for the Huber loss at these residuals."""
        weight = np.where(self.idle(residual), 0.0, self.weight)
        return np.asarray(weight * np.minimum(1.0, self.huber_delta / np.maximum(np.abs(residual), 1e-300)))

    def prior_rows(self, theta: FloatArray) -> FloatArray:
        """What the penalty is worth at θ [p] as rows of a Jacobian of runs of weight 1, [k, p]; none without one."""
        if self.penalty is None:
            return np.zeros((0, self.size))
        natural = self.to_natural @ theta
        slopes = self.penalty.coordinates.jacobian(natural) @ self.to_natural
        return np.asarray(np.sqrt(self.penalty.variance[0]) * self.penalty.root(natural).T @ slopes @ self.carry)

    def evaluate(
        self,
        theta: FloatArray,
        weight: FloatArray | None = None,
        *,
        hold_transform: bool = False,
        rows: NDArray[np.int64] | None = None,
    ) -> Evaluation:
        """Q, gradient and Gauss-Newton matrix at θ [S, p], with weights [n] or [S, n] (default: the runs' own).

        `rows` [S] says which of the `penalty`'s priors each θ has, where these differ.

        Where all θ share the transforms' parameters, `hold_transform` fixes them, and a few matrix products serve all.
        """
        weight = self.weight if weight is None else weight
        theta = theta @ self.carry.T if self.tied else theta
        logs, slopes, designs = self._features(theta[:1] if hold_transform else theta)
        residual, shares = self._prediction(theta, logs, designs)
        size = np.abs(residual)
        if self.one_sided.any():
            size[self.idle(residual)] = 0.0
        inner = np.minimum(size, self.huber_delta)
        cost = np.sum(weight * inner * (size - 0.5 * inner), axis=1)
        influence = weight * inner / np.maximum(size, 1e-300)
        if hold_transform and self.outer is None:
            gradient, curvature = self._moments(designs, residual, shares, influence)
        else:
            jacobian = self._jacobian(theta, logs, designs, slopes, residual, shares)
            weighted = jacobian * influence[..., None]
            gradient = np.matmul(weighted.swapaxes(1, 2), residual[..., None])[..., 0]
            curvature = np.matmul(jacobian.swapaxes(1, 2), weighted)
        if self.l2:
            natural = theta @ self.to_natural.T
            cost = cost + 0.5 * self.l2 * np.sum(natural**2, axis=1)
            gradient = gradient + self.l2 * natural @ self.to_natural
            curvature = curvature + self.l2 * self.to_natural.T @ self.to_natural
        if self.penalty is not None:
            penalty = self.penalty if rows is None else self.penalty.take(rows)
            by_prior, slope, bend = penalty.evaluate(theta @ self.to_natural.T)
            cost = cost + by_prior
            gradient = gradient + slope @ self.to_natural
            curvature = curvature + self.to_natural.T @ bend @ self.to_natural
        if self.tied:
            gradient = gradient @ self.carry
            curvature = self.carry.T @ curvature @ self.carry
        return Evaluation(cost, gradient, curvature)

    def _features(self, theta: FloatArray) -> tuple[Logs, list[FloatArray], list[FloatArray]]:
        """All logarithms, ∂ ln transform / ∂θ, and each term's columns, [n, k] if all θ share them, else [S, n, k].

        The last are kept, as held transforms repeat.
        """
        key = theta[:, self.first_transform :].tobytes()
        if self._last is None or self._last[0] != key:
            logs, slopes = self._transforms(theta)
            designs = []
            for term in self.terms:
                columns = [total(features, logs) for features in term.features]
                stacked = np.stack(np.broadcast_arrays(*columns, self.target)[:-1], axis=-1) @ term.back
                designs.append(stacked[0] if stacked.ndim == 3 and len(stacked) == 1 else stacked)
            self._last = key, (logs, slopes, designs)
        return self._last[1]

    def _transforms(self, theta: FloatArray) -> tuple[Logs, list[FloatArray]]:
        """All logarithms (of transforms [S, n]; S = 1 where θ shares them), and ∂ ln transform / ∂θ, each [S, n]."""
        if not self.n_transform:
            return self.logs, []
        values = {name: column[:, None] for name, column in values_of(self.form, theta, self.follows).items()}
        logs, slopes = dict(self.logs), []
        for transform, (distinct, index) in zip(self.form.transforms, self.grids, strict=True):
            parameters = [values[p.name] for p in transform.parameters]
            logs[transform.name], *partial = (part[:, index] for part in transform.gradient(*distinct, *parameters))
            by = dict(zip((p.name for p in transform.parameters), partial, strict=True))
            for p in transform.parameters:
                moved = by[p.name] + sum(by[q] for q, above in self.follows.items() if above == p.name)
                base = values[self.follows[p.name]] if p.name in self.follows else p.floor
                slopes.append(moved * (values[p.name] - base))
        return logs, slopes

    def _prediction(
        self, theta: FloatArray, logs: Logs, designs: list[FloatArray]
    ) -> tuple[FloatArray, list[FloatArray]]:
        """Residuals [S, n], and the derivative of ln L̂ by each term's exponent [S, n]: its share of the loss."""
        exponents = []
        for term, design in zip(self.terms, designs, strict=True):
            values = theta[:, term.at]
            exponent = values @ design.T if design.ndim == 2 else np.matmul(design, values[..., None])[..., 0]
            exponents.append(exponent + total(term.offset, logs) if term.offset else exponent)
        if self.outer is None:
            log_loss, shares = _log_sum(exponents)
            return log_loss - self.target, shares
        outer = np.exp(theta[:, self.outer, None])
        outside = [i for i, term in enumerate(self.form.terms) if not term.slopes]
        inside = [i for i in range(len(exponents)) if i not in outside]
        log_sum, parts = _log_sum([exponents[i] for i in inside])
        log_loss, (powered, *constants) = _log_sum([outer * log_sum, *(exponents[i] for i in outside)])
        shares = [powered * outer * part for part in parts]
        for i, share in zip(outside, constants, strict=True):
            shares.insert(i, share)
        return log_loss - self.target, shares

    def _jacobian(
        self,
        theta: FloatArray,
        logs: Logs,
        designs: list[FloatArray],
        slopes: list[FloatArray],
        residual: FloatArray,
        shares: list[FloatArray],
    ) -> FloatArray:
        jacobian = np.zeros((*residual.shape, self.size))
        for term, design, share in zip(self.terms, designs, shares, strict=True):
            jacobian[..., term.at] += share[..., None] * design
        if self.outer is not None:
            constants = [share for share, term in zip(shares, self.form.terms, strict=True) if not term.slopes]
            powered = np.maximum(1.0 - sum(constants, start=0.0), 1e-300)  # the part of L̂ that has the exponent
            jacobian[..., self.outer] = powered * (residual + self.target + np.log(powered))
        last, natural = self.first_transform, theta @ self.to_natural.T
        for transform in self.form.transforms:
            by_log = np.zeros_like(residual)  # ∂ ln L̂ / ∂ ln transform
            for term, share in zip(self.terms, shares, strict=True):
                by_log += share * self._exponent_slope(term, natural[:, term.at], transform.name, logs)
            for _ in transform.parameters:
                jacobian[..., last] = by_log * slopes[last - self.first_transform]
                last += 1
        return jacobian

    def _exponent_slope(self, term: Columns, coefficients: FloatArray, name: str, logs: Logs) -> Any:
        """∂ exponent / ∂ ln `name`, [S, n] or [S, 1]."""
        slope: Any = 0.0
        for i, features in enumerate((*term.features, term.offset)):
            if rest := derivative(features, name):
                parameter = coefficients[:, i, None] if i < len(term.features) else 1.0
                slope = slope + parameter * total(rest, logs)
        return slope

    def _moments(
        self, designs: list[FloatArray], residual: FloatArray, shares: list[FloatArray], influence: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        count = len(residual)
        gradient, curvature = np.zeros((count, self.size)), np.zeros((count, self.size, self.size))
        weighted = [influence * share for share in shares]
        rows = [np.arange(self.size)[term.at] for term in self.terms]
        for i, left in enumerate(designs):
            gradient[:, self.terms[i].at] += (weighted[i] * residual) @ left
            for j, right in enumerate(designs[i:], start=i):
                products = (left[:, :, None] * right[:, None, :]).reshape(len(left), -1)
                block = ((weighted[i] * shares[j]) @ products).reshape(count, left.shape[1], right.shape[1])
                curvature[:, rows[i][:, None], rows[j]] += block
                if j > i:
                    curvature[:, rows[j][:, None], rows[i]] += block.swapaxes(1, 2)
        return gradient, curvature


def _log_sum(exponents: Sequence[FloatArray]) -> tuple[FloatArray, list[FloatArray]]:
    """ln Σ exp(exponent), and the share of each."""
    top = exponents[0]
    for other in exponents[1:]:
        top = np.maximum(top, other)
    sizes = [np.exp(exponent - top) for exponent in exponents]
    whole = sum(sizes[1:], start=sizes[0])
    return top + np.log(whole), [size / whole for size in sizes]
