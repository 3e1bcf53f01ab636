"""A batched Levenberg-Marquardt method for robust nonlinear least squares in a box, from many starts at once.

Each start has its own damping (Nielsen's rule) and leaves the batch when it stops. The objective supplies the
Gauss-Newton matrix of the Huber-reweighted residuals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaling_law.fitting.objective import Evaluation
from scaling_law.size.arrays import FloatArray

ROUNDING = 1e-12  # relative changes of a sum over runs that mean nothing
PATIENCE = 2  # steps


@dataclass(frozen=True)
class Solutions:
    """Where S starts ended: θ [S, p], Q [S], and whether each met the tolerance."""

    theta: FloatArray
    cost: FloatArray
    converged: NDArray[np.bool_]

    @classmethod
    def sorted(cls, *parts: Solutions) -> Solutions:
        """All of `parts`, lowest objective first; the order is stable."""
        columns = {name: np.concatenate([vars(part)[name] for part in parts]) for name in vars(parts[0])}
        order = np.argsort(columns["cost"], kind="stable")
        return cls(**{name: column[order] for name, column in columns.items()})


def minimise(
    evaluate: Callable[[FloatArray, NDArray[np.int64]], Evaluation],
    theta: FloatArray,
    lower: FloatArray,
    upper: FloatArray,
    *,
    max_iterations: int,
    tolerance: float,
    floor: float,
) -> Solutions:
    """Minimise from each row of θ [S, p] inside lower ≤ θ ≤ upper, [p]; equal bounds fix a parameter.

    `evaluate(θ, rows)` takes θ [k, p] of the starts `rows`. A start has converged once its promised decrease stays
    below `tolerance`·(Q + floor) for `PATIENCE` steps with little damping, once Q is below `floor`, or once no step of
    any length decreases Q.
    """
    theta = np.clip(theta, lower, upper)
    count, active = len(theta), np.arange(len(theta))
    result = Solutions(theta.copy(), np.full(count, np.inf), np.zeros(count, bool))
    damping, growth, calm = np.full(count, 1e-1), np.full(count, 2.0), np.zeros(count, int)
    now = _State(theta.copy(), *evaluate(theta, active), damping, growth, calm)
    for iteration in range(1, max_iterations + 1):
        step = now.step(lower, upper)
        bend = np.einsum("si,sij,sj->s", step, now.curvature, step)
        # The decrease that the quadratic model predicts.
        promised = np.maximum(-np.einsum("si,si->s", now.gradient, step) - 0.5 * bend, 0.0)
        trial_theta = now.theta + step
        trial = evaluate(trial_theta, active)
        gain = now.cost - trial.cost
        accepted = np.isfinite(trial.cost) & (gain >= -ROUNDING * (now.cost + floor))
        small = promised <= tolerance * (now.cost + floor)
        calm = small & (now.damping < 1e-2)
        now.calm = np.where(calm, now.calm + 1, 0)
        stuck = ~accepted & (calm | (now.damping > 1e12))
        stuck |= (now.damping > 1e12) & (gain <= ROUNDING * (now.cost + floor))  # accepted, but of no gain
        now.accept(accepted, trial_theta, trial, np.clip(gain, -promised, 2 * promised) / np.maximum(promised, 1e-300))
        done = (now.calm >= PATIENCE) | stuck | (now.cost < floor)
        result.converged[active] = done
        done |= iteration == max_iterations
        if done.any():
            finished = active[done]
            result.theta[finished], result.cost[finished] = now.theta[done], now.cost[done]
            active, now = active[~done], now.take(~done)
            if not len(active):
                break
    return result


@dataclass
class _State:
    """The starts still running."""

    theta: FloatArray
    cost: FloatArray
    gradient: FloatArray
    curvature: FloatArray
    damping: FloatArray
    growth: FloatArray
    calm: NDArray[np.int64]

    def step(self, lower: FloatArray, upper: FloatArray) -> FloatArray:
        """(H + damping·diag H) step = −gradient over the parameters that may move, inside the box."""
        held = ((self.theta <= lower) & (self.gradient > 0)) | ((self.theta >= upper) & (self.gradient < 0))
        held |= lower == upper
        low, high = lower - self.theta, upper - self.theta
        step = np.zeros_like(self.theta)
        rows = np.arange(len(step))
        # A cut step need not descend: what would leave goes to its bound, and the rest is solved again.
        for _ in range(4):
            part = self.take(rows) if len(rows) < len(step) else self
            free = part._solve(held[rows], step[rows])
            outside = ~held[rows] & ((free < low[rows]) | (free > high[rows]))
            step[rows] = np.where(held[rows], step[rows], np.clip(free, low[rows], high[rows]))
            held[rows] |= outside
            rows = rows[outside.any(axis=1)]
            if not len(rows):
                break
        return step

    def _solve(self, held: NDArray[np.bool_], steps: FloatArray) -> FloatArray:
        """The damped step of the parameters not `held`, where those held take `steps`."""
        moves = ~held
        curvature = self.curvature * moves[:, :, None] * moves[:, None, :]
        diagonal = np.einsum("sii->si", curvature)
        scale = np.maximum(diagonal, 1e-12 * diagonal.max(axis=1, keepdims=True) + 1e-300)
        np.einsum("sii->si", curvature)[...] += np.where(held, 1.0, self.damping[:, None] * scale + 1e-15 * scale)
        push = np.matmul(self.curvature, np.where(held, steps, 0.0)[..., None])[..., 0]
        gradient = np.where(held, 0.0, self.gradient + push)
        # Scaling by the diagonal keeps the systems far from singular whatever the units.
        root = 1.0 / np.sqrt(np.einsum("sii->si", curvature))
        scaled = curvature * root[:, :, None] * root[:, None, :]
        return np.asarray(np.linalg.solve(scaled, -(gradient * root)[..., None])[..., 0] * root)

    def accept(self, accepted: NDArray[np.bool_], theta: FloatArray, at: Evaluation, ratio: FloatArray) -> None:
        self.theta[accepted], self.cost[accepted] = theta[accepted], at.cost[accepted]
        self.gradient[accepted], self.curvature[accepted] = at.gradient[accepted], at.curvature[accepted]
        shrink = np.maximum(1.0 / 10.0, 1.0 - (2.0 * np.clip(ratio, 0.0, 1.5) - 1.0) ** 3)
        self.damping = np.where(accepted, np.maximum(self.damping * shrink, 1e-15), self.damping * self.growth)
        self.growth = np.where(accepted, 2.0, self.growth * 2.0)

    def take(self, kept: NDArray[Any]) -> _State:
        return _State(**{name: part[kept] for name, part in vars(self).items()})
