"""A batched Levenberg-Marquardt method for robust nonlinear least squares in a box, from many starts at once.

Each start has its own damping (Nielsen's rule) and leaves the batch when it stops. The objective supplies the
Gauss-Newton matrix of the Huber-reweighted residuals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaling_law.fitting.objective import Evaluation
from scaling_law.size.arrays import BoolArray, FloatArray, IntArray

# Relative changes of a sum over runs that mean nothing.
ROUNDING = 1e-12
# A start has converged after this many steps of little promise.
PATIENCE = 2
# Damping beyond which no step of any length decreases the objective, and below which a step is nearly Gauss-Newton's.
MOST_DAMPING = 1e12
LITTLE_DAMPING = 1e-2


@dataclass(frozen=True)
class Solutions:
    """The ends of S starts: θ [S, p], Q [S], and a mark of those that met the tolerance [S]."""

    theta: FloatArray
    cost: FloatArray
    converged: BoolArray

    @classmethod
    def joined(cls, solutions: Sequence[Solutions]) -> Solutions:
        """Join solutions in their order."""
        return cls(
            theta=np.concatenate([solution.theta for solution in solutions]),
            cost=np.concatenate([solution.cost for solution in solutions]),
            converged=np.concatenate([solution.converged for solution in solutions]),
        )

    @classmethod
    def sorted(cls, *solutions: Solutions) -> Solutions:
        """Join solutions, lowest objective first.

        Of equal ones, as where the runs leave a direction open, the last start's is first on every processor.
        """
        all_ends = cls.joined(solutions)
        order = np.argsort(all_ends.cost, kind="stable")
        ascending = all_ends.cost[order]
        is_higher = np.diff(ascending, prepend=ascending[:1]) > ROUNDING * ascending
        order = order[np.lexsort((-order, np.cumsum(is_higher)))]
        return cls(all_ends.theta[order], all_ends.cost[order], all_ends.converged[order])


def minimise(
    evaluate: Callable[[FloatArray, IntArray], Evaluation],
    theta: FloatArray,
    lower: FloatArray,
    upper: FloatArray,
    *,
    max_iterations: int,
    tolerance: float,
    floor: float,
) -> Solutions:
    """Minimise from many starts at once, inside a box.

    A start has converged once its promised decrease stays below `tolerance`·(Q + floor) for `PATIENCE` steps with
    little damping, once Q is below `floor`, or once no step of any length decreases Q.

    Args:
        evaluate: called as evaluate(θ, rows) with θ [k, p] of the starts `rows`.
        theta: the starts [S, p].
        lower: the lower end of the box [p]; where it equals the upper one, the parameter is fixed.
        upper: the upper end of the box [p].
        max_iterations: steps of each start, at most.
        tolerance: relative decrease that is not worth a step.
        floor: objective below which nothing is left to decrease.
    """
    theta = np.clip(theta, lower, upper)
    count = len(theta)
    result = Solutions(
        theta=theta.copy(),
        cost=np.full(count, np.inf),
        converged=np.zeros(count, bool),
    )
    active = np.arange(count)
    state = _State(
        theta.copy(),
        *evaluate(theta, active),
        damping=np.full(count, 1e-1),
        growth=np.full(count, 2.0),
        calm_steps=np.zeros(count, int),
    )
    for iteration in range(1, max_iterations + 1):
        step = state.step(lower, upper)
        promised = state.promise(step)
        trial_theta = state.theta + step
        trial = evaluate(trial_theta, active)

        gain = state.cost - trial.cost
        scale = state.cost + floor
        is_accepted = np.isfinite(trial.cost) & (gain >= -ROUNDING * scale)
        is_calm = (promised <= tolerance * scale) & (state.damping < LITTLE_DAMPING)
        is_damped = state.damping > MOST_DAMPING
        # A start is stuck with a step that is accepted, too, if that gains nothing.
        is_stuck = (~is_accepted & (is_calm | is_damped)) | (is_damped & (gain <= ROUNDING * scale))
        state.calm_steps = np.where(is_calm, state.calm_steps + 1, 0)
        ratio = np.clip(gain, -promised, 2 * promised) / np.maximum(promised, 1e-300)
        state.accept(is_accepted, trial_theta, trial, ratio)

        is_done = (state.calm_steps >= PATIENCE) | is_stuck | (state.cost < floor)
        result.converged[active] = is_done
        if iteration == max_iterations:
            is_done[:] = True
        if is_done.any():
            finished = active[is_done]
            result.theta[finished] = state.theta[is_done]
            result.cost[finished] = state.cost[is_done]
            active = active[~is_done]
            state = state.select(~is_done)
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
    calm_steps: IntArray

    def step(self, lower: FloatArray, upper: FloatArray) -> FloatArray:
        """Solve (H + damping·diag H) step = −gradient over the parameters that may move, inside the box."""
        is_low = (self.theta <= lower) & (self.gradient > 0)
        is_high = (self.theta >= upper) & (self.gradient < 0)
        is_held = is_low | is_high | (lower == upper)
        low = lower - self.theta
        high = upper - self.theta

        step = np.zeros_like(self.theta)
        # A cut step need not descend: what would leave goes to its bound, and the rest is solved again.
        for _ in range(4):
            free_step = self._solve(is_held, step)
            is_outside = ~is_held & ((free_step < low) | (free_step > high))
            step = np.where(is_held, step, np.clip(free_step, low, high))
            is_held |= is_outside
            if not is_outside.any():
                break
        return step

    def _solve(self, is_held: BoolArray, steps: FloatArray) -> FloatArray:
        """Return the damped step of the parameters that move, [S, p].

        Args:
            is_held: the parameters that do not move, [S, p].
            steps: the steps that those take, [S, p].
        """
        moves = ~is_held
        curvature = self.curvature * moves[:, :, None] * moves[:, None, :]
        diagonal = np.einsum("sii->si", curvature)
        smallest = 1e-12 * diagonal.max(axis=1, keepdims=True) + 1e-300
        scale = np.maximum(diagonal, smallest)
        damping = self.damping[:, None] * scale + 1e-15 * scale
        # The diagonal is a view into the curvature.
        diagonal[...] += np.where(is_held, 1.0, damping)

        held_steps = np.where(is_held, steps, 0.0)
        push = np.matmul(self.curvature, held_steps[..., None])[..., 0]
        gradient = np.where(is_held, 0.0, self.gradient + push)

        # Scaling by the diagonal keeps the systems far from singular whatever the units.
        root = 1.0 / np.sqrt(diagonal)
        scaled = curvature * root[:, :, None] * root[:, None, :]
        solution = np.linalg.solve(scaled, -(gradient * root)[..., None])[..., 0]
        return np.asarray(solution * root)

    def promise(self, step: FloatArray) -> FloatArray:
        """Return the decrease that the quadratic model predicts, [S]."""
        bend = np.einsum("si,sij,sj->s", step, self.curvature, step)
        return np.maximum(-np.einsum("si,si->s", self.gradient, step) - 0.5 * bend, 0.0)

    def accept(
        self,
        is_accepted: BoolArray,
        theta: FloatArray,
        evaluation: Evaluation,
        ratio: FloatArray,
    ) -> None:
        """Move the starts whose trial is accepted, and adapt the damping.

        Args:
            is_accepted: the starts that move, [S].
            theta: where they move, [S, p].
            evaluation: the objective there.
            ratio: the gain over the promised one, [S].
        """
        values = (self.theta, self.cost, self.gradient, self.curvature)
        for value, trial_value in zip(values, (theta, *evaluation), strict=True):
            value[is_accepted] = trial_value[is_accepted]
        shrink = np.maximum(1.0 / 10.0, 1.0 - (2.0 * np.clip(ratio, 0.0, 1.5) - 1.0) ** 3)
        shrunk = np.maximum(self.damping * shrink, 1e-15)
        self.damping = np.where(is_accepted, shrunk, self.damping * self.growth)
        self.growth = np.where(is_accepted, 2.0, self.growth * 2.0)

    def select(self, rows: NDArray[Any]) -> _State:
        """Return the starts of these rows."""
        return _State(**{name: column[rows] for name, column in vars(self).items()})
