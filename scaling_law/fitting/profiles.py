"""Profile intervals of coefficients: the likelihood-ratio interval of the Huber objective as a quasi-likelihood.

An interval ends where Q, refitted, has risen by s²/2 · χ²₁, with s² the residual variance of ln L. It assumes no
quadratic shape and is open where the data set no limit, but treats runs of one trunk as independent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np

from hub.base.errors import InputError, unknown
from hub.base.inputs import reads
from hub.base.tables import ResultTable, Table
from scaling_law.fitting.fitting import FitResult
from scaling_law.fitting.problem import floors_of, make_problem
from scaling_law.fitting.repetition import UNIQUE, repeated
from scaling_law.fitting.uncertainty import intervals_table
from scaling_law.formulas.law import check_level


@dataclass(frozen=True)
class ProfileInterval(ResultTable):
    """An end without a limit is infinite, or 0 or 1 at the end of the coefficient's range."""

    coefficient: str
    low: float
    high: float
    level: float
    value: float | None = None

    def to_rows(self) -> list[dict[str, Any]]:
        return [asdict(self)]

    def summary(self) -> Table:
        return profile_table([self], self.level)


def profile_table(intervals: Sequence[ProfileInterval], level: float) -> Table:
    return intervals_table([vars(p) for p in intervals], ("low", "high"), f"Profile intervals, {level:.3g}")


@reads
def profile_interval(result: FitResult, coefficient: str, level: float = 0.95) -> ProfileInterval:
    """The interval of one coefficient, in the law's own units; ValueError for one that was not fitted."""
    from scipy.special import ndtri

    if coefficient not in result.fitted:
        raise InputError(unknown("coefficient=", coefficient, result.fitted))
    check_level(level)
    objective = result.problem.objective
    log_residuals = objective.residuals(result.theta[None])[0]
    influence = objective.influence(log_residuals)
    spare = max(int(np.sum(influence > 0)) - len(result.fitted), 1)
    variance = float(influence @ log_residuals**2) / spare
    limit = result.objective + 0.5 * variance * float(ndtri(0.5 + level / 2)) ** 2
    low, high = (_end(result, coefficient, side, limit) for side in (-1.0, 1.0))
    return ProfileInterval(coefficient, low, high, level, result.law.coefficients[coefficient])


def refit_with(
    result: FitResult, coefficient: str, value: float, near: Mapping[str, float]
) -> tuple[float, Mapping[str, float]]:
    """Objective and coefficients of a refit from `near` with one coefficient fixed; infinite where impossible."""
    settings, used = result.problem.settings, result.used
    start = {**near, coefficient: value}
    for p in result.law.form.parameters:
        if p.above and p.name == coefficient and start[p.above] >= value:
            start[p.above] = p.floor + 0.5 * (value - p.floor)
    fixed: dict[str, float | str] = {**settings.fixed, **settings.tied, coefficient: value}
    weight = result.problem.objective.weight[used]
    runs, options = result.runs.subset(used), (settings.law, settings.huber_delta, weight, settings.l2)
    one_sided = result.problem.objective.one_sided[used]
    try:
        problem = make_problem(runs, *options, fixed, settings.bounds, "scaled", one_sided)
        if result.repetition is not None:
            problem = repeated(problem, runs[UNIQUE], result.repetition.value)
        problem.objective.penalty = result.problem.objective.penalty
        theta = problem.objective.from_coefficients(start)
    except ValueError:
        return float("inf"), near
    theta = np.clip(np.nan_to_num(theta), problem.lower, problem.upper)
    solutions = problem.solve(theta[None], max_iterations=1000, tolerance=1e-10)
    return float(solutions.cost[0]), problem.objective.make_law(solutions.theta[0]).coefficients


def _end(result: FitResult, coefficient: str, side: float, limit: float) -> float:
    """Where the profile crosses the limit on one side: growing steps, then a root between the last two."""
    from scipy.optimize import brentq

    near = result.law.coefficients
    best = near[coefficient]
    floors = floors_of(result.law.form)
    logarithmic, floor = coefficient in floors, floors.get(coefficient, 0.0)

    def at(distance: float) -> float:
        return floor + (best - floor) * float(np.exp(side * distance)) if logarithmic else best + side * distance

    @cache
    def excess(distance: float) -> float:
        nonlocal near
        if distance == 0.0:
            return min(result.objective - limit, 0.0)
        objective, coefficients = refit_with(result, coefficient, at(distance), near)
        near = coefficients if objective <= limit else near
        return min(objective - limit, limit + 1e-300)  # finite, for the root search

    error = result.status.standard_errors.get(coefficient, np.inf)
    inside, outside = 0.0, 0.5 * (float(np.clip(error, 1e-6, 1.0)) if np.isfinite(error) else 0.1)
    for _ in range(24):
        if excess(outside) > 0:
            return at(float(brentq(excess, inside, outside, xtol=1e-6 * outside)))
        inside, outside = outside, 1.6 * outside
        if logarithmic and outside > 14.0:
            return floor if side < 0 else float("inf")
    return side * float("inf")
