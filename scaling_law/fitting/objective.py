"""The objective of a fit, for many parameter vectors at once: Huber of ln L through logsumexp, summed over runs.

Ludziejewski et al. 2025, Appendix "Fit Details", after Hoffmann et al. 2022:

    ln L̂ = logsumexp( ln a + α x + δ e + γ x e,   ln b + β y + ω e + ζ y e,   ln c )      x = ln N, y = ln D, e = ln Ê
    Q(θ) = Σ_runs w ρ(ln L̂ − ln L) + l2/2 |θ|²          ρ = Huber with threshold δ (0.01)

Centring x, y and e takes the near-collinearity out of (ln a, α), (δ, γ), …. The parameters u = ln(E_start − 1) and
v = ln(E_max − E_start) keep 1 < E_start < E_max; where E_max is bounded, v = ln(E_max − 1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaling_law.laws import LAWS, Law
from scaling_law.laws.terms import coefficients_of, has_transform, log_expert_transform_gradient, positive_coefficients

FloatArray = NDArray[np.float64]


class Evaluation(NamedTuple):
    """Q, gradient and Gauss-Newton matrix of the Huber-reweighted least squares at S parameter vectors."""

    cost: FloatArray  # [S]
    gradient: FloatArray  # [S, p]
    curvature: FloatArray  # [S, p, p]


class Objective:
    """Q(θ) for one set of runs. θ concatenates the terms' parameters, then (u, v) where the law has Ê.

    `columns` are "n_active", "tokens", "experts", "loss" and "weight", each [n]; `l2` acts in uncentred coordinates,
    as in the paper. `centred` names the first coefficients of the terms to centre. A fixed `e_max` leaves v idle; with
    `e_max_alone`, v is ln(E_max − 1).
    """

    def __init__(
        self,
        law: str,
        columns: Mapping[str, FloatArray],
        huber_delta: float,
        l2: float,
        centred: Sequence[str],
        e_max: float | None = None,
        e_max_alone: bool = False,
    ) -> None:
        self.e_max, self.e_max_alone = e_max, e_max_alone
        self.law, self.terms, self.huber_delta, self.l2 = law, LAWS[law].terms, huber_delta, l2
        self.names = coefficients_of(self.terms)
        self.positive = positive_coefficients(self.terms)
        self.constants = [term.coefficients[0] for term in self.terms if term.variable is None]
        self.target, self.weight = np.log(columns["loss"]), columns["weight"]
        self.expert_values, self.expert_index = np.unique(columns["experts"], return_inverse=True)
        self.has_transform = has_transform(self.terms)
        ends = np.cumsum([0, *(len(term.coefficients) for term in self.terms)]).tolist()
        self.slices = [slice(*pair) for pair in pairwise(ends)]
        weights = self.weight / self.weight.sum()
        reference = log_expert_transform_gradient(columns["experts"], 2.0, 256.0)[0]
        self.centre_x, self.centre_e, self.x = [], [], []
        for term in self.terms:
            is_centred = term.coefficients[0] in centred
            x = np.log(columns[term.variable]) if term.variable else np.zeros_like(self.target)
            self.centre_x.append(float(weights @ x) if is_centred else 0.0)
            self.centre_e.append(float(weights @ reference) if is_centred and term.experts else 0.0)
            self.x.append(x - self.centre_x[-1])

    @property
    def size(self) -> int:
        return len(self.names)

    def from_coefficients(self, values: Mapping[str, Any]) -> FloatArray:
        """θ of coefficients given as scalars or arrays [S]; shape [p] or [S, p]."""
        natural = {k: np.log(v) if k in self.positive else np.asarray(v, float) for k, v in values.items()}
        columns = []
        for term, cx, ce in zip(self.terms, self.centre_x, self.centre_e, strict=True):
            columns += shift([natural[name] for name in term.coefficients], cx, ce)
        if self.has_transform:
            start, top = natural["e_start"], natural["e_max"]
            above = top - (1.0 if self.e_max_alone else start)
            columns += [np.log(start - 1.0), np.log(np.maximum(above, 1e-300))]
        return np.stack(np.broadcast_arrays(*columns), axis=-1)

    def coefficients(self, theta: FloatArray) -> FloatArray:
        """Coefficients in the law's order, of θ's shape."""
        found: dict[str, FloatArray] = {}
        for term, part, cx, ce in zip(self.terms, self.slices, self.centre_x, self.centre_e, strict=True):
            values = shift([theta[..., j] for j in range(part.start, part.stop)], -cx, -ce)
            found |= dict(zip(term.coefficients, values, strict=True))
        if self.has_transform:
            found["e_start"], found["e_max"] = self._transform(theta)
        order = LAWS[self.law].coefficient_names()
        return np.stack([np.exp(found[k]) if k in self.positive else found[k] for k in order], axis=-1)

    def make_law(self, theta: FloatArray) -> Law:
        """The law of θ [p]."""
        return LAWS[self.law](**dict(zip(LAWS[self.law].coefficient_names(), self.coefficients(theta), strict=True)))

    def natural_jacobian(self) -> FloatArray:
        """∂(uncentred parameters)/∂θ, [p, p], of a map that is linear without a constant; identity for u and v."""
        matrix = np.eye(self.size)
        for part, cx, ce in zip(self.slices, self.centre_x, self.centre_e, strict=True):
            matrix[part, part] = shift(list(np.eye(part.stop - part.start)), -cx, -ce)
        return matrix

    def _transform(self, theta: FloatArray) -> tuple[FloatArray, FloatArray]:
        start = 1.0 + np.exp(theta[..., -2])
        if self.e_max is not None:
            return start, np.full_like(start, self.e_max)
        return start, (1.0 if self.e_max_alone else start) + np.exp(theta[..., -1])

    def residuals(self, theta: FloatArray) -> FloatArray:
        """ln L̂ − ln L, [S, n], for θ [S, p]."""
        return self._log_prediction(theta, self._designs(self._log_experts(theta)))[0]

    def linearised(self, theta: FloatArray) -> tuple[FloatArray, FloatArray]:
        """ln L̂ − ln L, [S, n], and its derivatives ∂ ln L̂ / ∂θ, [S, n, p]."""
        e = self._log_experts(theta)
        designs = self._designs(e)
        residual, shares = self._log_prediction(theta, designs)
        return residual, self._jacobian(theta, designs, e, shares)

    def influence(self, residual: FloatArray) -> FloatArray:
        """Weights of the least squares that stands for the Huber loss at these residuals."""
        return np.asarray(self.weight * np.minimum(1.0, self.huber_delta / np.maximum(np.abs(residual), 1e-300)))

    def evaluate(
        self, theta: FloatArray, weight: FloatArray | None = None, *, hold_transform: bool = False
    ) -> Evaluation:
        """Q, gradient and Gauss-Newton matrix at θ [S, p], with weights [n] or [S, n] (default: the runs' own).

        Where all θ share (u, v), `hold_transform` fixes them, and a few matrix products serve all θ.
        """
        weight = self.weight if weight is None else weight
        e = self._log_experts(theta[:1] if hold_transform else theta)
        designs = self._designs(e)
        residual, shares = self._log_prediction(theta, designs)
        size = np.abs(residual)
        inner = np.minimum(size, self.huber_delta)
        cost = np.sum(weight * inner * (size - 0.5 * inner), axis=1)
        influence = weight * inner / np.maximum(size, 1e-300)
        if hold_transform:
            gradient, curvature = self._moments(designs, residual, shares, influence)
        else:
            jacobian = self._jacobian(theta, designs, e, shares)
            weighted = jacobian * influence[..., None]
            gradient = np.matmul(weighted.swapaxes(1, 2), residual[..., None])[..., 0]
            curvature = np.matmul(jacobian.swapaxes(1, 2), weighted)
        if self.l2:
            to_natural = self.natural_jacobian()
            natural = theta @ to_natural.T
            cost = cost + 0.5 * self.l2 * np.sum(natural**2, axis=1)
            gradient = gradient + self.l2 * natural @ to_natural
            curvature = curvature + self.l2 * to_natural.T @ to_natural
        return Evaluation(cost, gradient, curvature)

    def _log_experts(self, theta: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray] | None:
        """ln Ê and its derivatives by u and v, each [S, n] (S = 1 where θ shares them); None for laws without Ê."""
        if not self.has_transform:
            return None
        start, top = (column[:, None] for column in self._transform(theta))
        e, by_start, by_max = log_expert_transform_gradient(self.expert_values, start, top)
        follows = self.e_max is None and not self.e_max_alone  # E_max moves with E_start
        by_u = (by_start + by_max * follows) * (start - 1.0)
        by_v = by_max * (top - (start if follows else 1.0)) * (self.e_max is None)
        return e[:, self.expert_index], by_u[:, self.expert_index], by_v[:, self.expert_index]

    def _designs(self, e: Any) -> list[FloatArray]:
        """For each term, the columns of its parameters: [n, k] if all θ share them, else [S, n, k]."""
        designs = []
        for term, x, ce in zip(self.terms, self.x, self.centre_e, strict=True):
            one = np.ones_like(x)
            if not term.experts:
                designs.append(np.stack([one, x] if term.variable else [one], axis=-1))
                continue
            centred = e[0] - ce
            stacked = np.stack(np.broadcast_arrays(one, x, centred, x * centred), axis=-1)
            designs.append(stacked[0] if len(stacked) == 1 else stacked)
        return designs

    def _log_prediction(self, theta: FloatArray, designs: list[FloatArray]) -> tuple[FloatArray, list[FloatArray]]:
        """Residuals [S, n] and each term's share of the loss [S, n]."""
        logs = []
        for part, design in zip(self.slices, designs, strict=True):
            own = theta[:, part]
            logs.append(own @ design.T if design.ndim == 2 else np.matmul(design, own[..., None])[..., 0])
        top, total = logs[0].copy(), np.zeros_like(logs[0])
        for log in logs[1:]:
            np.maximum(top, log, out=top)
        for log in logs:  # in place: these arrays are most of a fit's work
            log -= top
            total += np.exp(log, out=log)
        for share in logs:
            share /= total
        top += np.log(total, out=total)
        top -= self.target
        return top, logs

    def _jacobian(self, theta: FloatArray, designs: list[FloatArray], e: Any, shares: list[FloatArray]) -> FloatArray:
        columns = [share[..., None] * design for share, design in zip(shares, designs, strict=True)]
        if e is not None:
            by_e = np.zeros_like(shares[0])
            for term, part, x, share in zip(self.terms, self.slices, self.x, shares, strict=True):
                if term.experts:
                    delta, gamma = theta[:, part.start + 2, None], theta[:, part.start + 3, None]
                    by_e += share * (delta + gamma * x)
            columns += [(by_e * e[1])[..., None], (by_e * e[2])[..., None]]
        return np.concatenate(columns, axis=-1)

    def _moments(
        self, designs: list[FloatArray], residual: FloatArray, shares: list[FloatArray], influence: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        count = len(residual)
        gradient, curvature = np.zeros((count, self.size)), np.zeros((count, self.size, self.size))
        weighted = [influence * share for share in shares]
        for i, left in enumerate(designs):
            gradient[:, self.slices[i]] = (weighted[i] * residual) @ left
            for j, right in enumerate(designs[i:], start=i):
                products = (left[:, :, None] * right[:, None, :]).reshape(len(left), -1)
                block = ((weighted[i] * shares[j]) @ products).reshape(count, left.shape[1], right.shape[1])
                curvature[:, self.slices[i], self.slices[j]] = block
                if j > i:
                    curvature[:, self.slices[j], self.slices[i]] = block.swapaxes(1, 2)
        return gradient, curvature


def shift(values: list[Any], centre_x: float, centre_e: float) -> list[Any]:
    """Parameters of 1, x, e, x·e rewritten for x − centre_x and e − centre_e in their place."""
    if len(values) == 4:
        one, x, e, xe = values
        return [one + x * centre_x + e * centre_e + xe * centre_x * centre_e, x + xe * centre_e, e + xe * centre_x, xe]
    return [values[0] + values[1] * centre_x, values[1]] if len(values) == 2 else list(values)
