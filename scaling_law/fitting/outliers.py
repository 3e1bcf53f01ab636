"""Outliers: runs far from the law of the others, found by a trimmed fit and a robust scale.

The Huber loss bounds the pull of one bad run, but a tenth of the runs moves the law. So the law is refitted to the
`CORE` of runs nearest to it until these stay the same (the concentration steps of least trimmed squares: Rousseeuw and
Van Driessen 2006, "Computing LTS regression for large data sets"), and then to all runs that agree with that fit. A
run's deviation is measured from the fit without it, in robust standard deviations of such a prediction: high leverage
neither hides a bad run nor condemns a distant one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scaling_law.fitting.problem import Problem

FloatArray = NDArray[np.float64]
Mask = NDArray[np.bool_]

CORE = 0.7  # the part of the runs that the trimmed fit rests on
HALVES = 16  # random halves of the runs that the trimmed fit also starts from
MOST = 0.3  # if a larger part of the runs is suspicious, the law or the table is wrong
TAIL = 1e-6  # two-sided probability, in Student's t, beyond which a run is suspicious
SMALLEST = 0.01  # deviations of ln L below this are never suspicious


@dataclass(frozen=True)
class Outliers:
    """Which runs [n] are suspicious and how far off [n] they lie: ln L of the run minus that of the fit without it.

    `theta` [p] is the fit to the other runs. `too_many` says that more than `MOST` of the runs used are suspicious.
    """

    suspicious: Mask
    deviation: FloatArray
    theta: FloatArray
    too_many: bool


def find_outliers(problem: Problem, theta: FloatArray) -> Outliers:
    """The suspicious runs among those of positive weight, from the fit θ [p] to all of them."""
    weight, loss = problem.objective.weight, problem.columns["loss"]
    used = problem.used
    residual = -problem.objective.residuals(theta[None])[0]
    if np.all(np.abs(residual[used]) <= SMALLEST):
        return Outliers(np.zeros_like(used), residual, theta, False)
    problem = problem.with_constant_below(float(np.quantile(loss[used], MOST)))  # a bad run must not limit it
    kept, theta = _core(problem, theta, weight)
    for _ in range(20):
        deviation, limit = _judge(problem, theta, kept)
        agree = used & (np.abs(deviation) <= limit)
        if np.array_equal(agree, kept):
            break
        kept, theta = agree, _refit(problem, theta[None], (weight * agree)[None])[0]
    suspicious = used & ~kept
    return Outliers(suspicious, deviation, theta, bool(suspicious.sum() > MOST * used.sum()))


def _core(problem: Problem, theta: FloatArray, weight: FloatArray) -> tuple[Mask, FloatArray]:
    """The core of runs with the best trimmed fit, and that fit: the best of several concentrations.

    One starts from θ, the others from fits to fixed random halves of the runs, of which some are free of the bad runs
    that may have pulled θ.
    """
    used, free = weight > 0, int(np.sum(problem.lower < problem.upper))
    count = int(used.sum())
    size = min(count, max(int(np.ceil(CORE * count)), (count + free + 1) // 2))
    rng = np.random.default_rng(0)
    rows = np.flatnonzero(used)
    halves = np.zeros((HALVES, len(used)))
    for half in halves:
        half[rng.permutation(rows)[: max(count // 2, min(count, free + 1))]] = 1.0
    start = np.tile(theta, (HALVES, 1))
    points = np.concatenate([theta[None], _refit(problem, start, weight * halves, 1e-4)])
    kept, _ = _nearest(problem, points, used, size)
    for steps in (2, 30):  # all for two steps; then the best few until nothing changes
        for _ in range(steps):
            points = _refit(problem, points, weight * kept, 1e-5)
            before, (kept, distance) = kept, _nearest(problem, points, used, size)
            if np.array_equal(before, kept):
                break
        best = np.argsort(distance, kind="stable")[:4]
        points, kept, distance = points[best], kept[best], distance[best]
    return kept[0], points[0]


def _nearest(problem: Problem, points: FloatArray, used: Mask, size: int) -> tuple[NDArray[np.bool_], FloatArray]:
    """For each θ [S, p]: the `size` used runs nearest to it, [S, n], and the sum of their squared distances, [S]."""
    distance = np.where(used, np.abs(problem.objective.residuals(points)), np.inf)
    order = np.argsort(distance, axis=1, kind="stable")[:, :size]
    kept = np.zeros(distance.shape, bool)
    np.put_along_axis(kept, order, True, axis=1)
    return kept, np.sum(np.take_along_axis(distance, order, axis=1) ** 2, axis=1)


def _judge(problem: Problem, theta: FloatArray, kept: Mask) -> tuple[FloatArray, FloatArray]:
    """Deviation of ln L of every run from the fit without it [n], and how large it may be [n]."""
    from scipy.special import stdtrit

    free = problem.free(theta)
    residual, jacobian = (part[0] for part in problem.objective.linearised(theta[None]))
    residual, jacobian = -residual, jacobian[:, free]
    scale = np.linalg.norm(jacobian[kept], axis=0)
    jacobian = jacobian / np.where(scale > 0, scale, 1.0)
    _, singular, rotation = np.linalg.svd(jacobian[kept], full_matrices=True)
    singular = np.concatenate([singular, np.zeros(jacobian.shape[1] - len(singular))])
    leverage = np.sum((jacobian @ rotation.T / np.maximum(singular, 1e-7 * max(singular[0], 1e-300))) ** 2, axis=1)
    alone = np.where(kept, np.maximum(1.0 - leverage, 1e-12), 1.0)  # a run of leverage 1 is its own prediction
    spare = int(kept.sum()) - int(free.sum())
    if spare < 1:
        return residual, np.full(len(residual), np.inf)
    judged = kept & (leverage < 0.9)
    sigma = 1.4826 * float(np.median(np.abs(residual[judged]) / np.sqrt(alone[judged]))) if judged.any() else np.inf
    deviation = residual / alone
    spread = sigma * np.where(kept, 1.0 / np.sqrt(alone), np.sqrt(1.0 + leverage))
    limit = np.maximum(-float(stdtrit(spare, TAIL / 2)) * spread, SMALLEST)
    return deviation, limit


def _refit(problem: Problem, theta: FloatArray, weight: FloatArray, tolerance: float = 1e-8) -> FloatArray:
    """Fits from θ [S, p] with weights [S, n]; flat directions need not be followed to their end to see a bad run."""
    return problem.solve(theta, weight, max_iterations=100 if tolerance < 1e-6 else 30, tolerance=tolerance).theta
