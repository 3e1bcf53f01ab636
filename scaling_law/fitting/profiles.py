"""Profile intervals: how far a coefficient can move while the others are refitted.

For each trial value the coefficient is fixed and all others are refitted, from the nearest optimum. The interval ends
where the objective has risen by s²/2 times the χ² quantile of one degree of freedom, s² being the residual variance of
ln L: the likelihood-ratio interval of the Huber objective read as a quasi-likelihood. Unlike standard errors it does
not assume a quadratic shape, and it is open (infinite) where the data set no limit; unlike the bootstrap it treats
runs of one trunk as independent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from hub.plain.tables import ResultTable, Table
from scaling_law.fitting.problem import make_problem
from scaling_law.laws.terms import TRANSFORM

if TYPE_CHECKING:
    from scaling_law.fitting.fit_result import FitResult


@dataclass(frozen=True)
class ProfileInterval(ResultTable):
    """(low, high) of a coefficient at `level`; an end without a limit is infinite (0 or 1 at the end of its range)."""

    coefficient: str
    low: float
    high: float
    level: float
    value: float | None = None

    def to_rows(self) -> list[dict[str, Any]]:
        return [asdict(self)]

    def summary(self) -> Table:
        return Profiles((self,)).summary()


@dataclass(frozen=True)
class Profiles(ResultTable):
    """Profile intervals of several coefficients of one fit."""

    intervals: tuple[ProfileInterval, ...]

    def to_rows(self) -> list[dict[str, Any]]:
        """One row per coefficient; an end without a limit is infinite."""
        return [asdict(interval) for interval in self.intervals]

    def summary(self) -> Table:
        def shown(end: float | None) -> str:
            return "" if end is None else f"{end:.5g}" if np.isfinite(end) else "open"

        level = self.intervals[0].level if self.intervals else 0.95
        rows = [(p.coefficient, shown(p.value), shown(p.low), shown(p.high)) for p in self.intervals]
        return Table(("", "value", "low", "high"), rows, title=f"Profile intervals, {level:.3g}")


def profile(result: FitResult, coefficients: Sequence[str] | None = None, level: float = 0.95) -> Profiles:
    """The profile intervals of several coefficients, by default of all that were fitted; as `profile_interval`."""
    fixed = result.problem.settings.fixed
    names = [name for name in result.law.coefficients if name not in fixed] if coefficients is None else coefficients
    return Profiles(tuple(profile_interval(result, name, level) for name in names))


def profile_interval(result: FitResult, coefficient: str, level: float = 0.95) -> ProfileInterval:
    """The interval of one coefficient of a fit, in the law's own units.

    ValueError for a coefficient that the law does not have or that was fixed, and for a level outside (0, 1).
    """
    settings, coefficients = result.problem.settings, result.law.coefficients
    if coefficient not in coefficients or coefficient in settings.fixed:
        free = [name for name in coefficients if name not in settings.fixed]
        raise ValueError(f"coefficient={coefficient!r} must be one of {free}")
    if not 0 < level < 1:
        raise ValueError(f"level={level!r} must be above 0 and below 1")
    spare = max(int(result.used.sum()) - len(coefficients) + len(settings.fixed), 1)
    objective = result.problem.objective
    log_residuals = objective.residuals(result.theta[None])[0]
    variance = float(objective.influence(log_residuals) @ log_residuals**2) / spare
    limit = result.objective + 0.5 * variance * NormalDist().inv_cdf(0.5 + level / 2) ** 2
    low, high = (_end(result, coefficient, side, limit) for side in (-1.0, 1.0))
    return ProfileInterval(coefficient, low, high, level, coefficients[coefficient])


def refit_with(
    result: FitResult, coefficient: str, value: float, near: Mapping[str, float]
) -> tuple[float, Mapping[str, float]]:
    """The objective and the coefficients of a refit with one coefficient fixed, from the coefficients `near`.

    The objective is infinite where the coefficient cannot have this value.
    """
    settings, used = result.problem.settings, result.used
    start = {**near, coefficient: value}
    if coefficient == "e_max" and start["e_start"] >= value:
        start["e_start"] = 1.0 + 0.5 * (value - 1.0)
    fixed, weight = {**settings.fixed, coefficient: value}, result.problem.objective.weight[used]
    runs, options = result.runs.subset(used), (settings.law, settings.huber_delta, weight, settings.l2)
    try:
        problem = make_problem(runs, *options, fixed, settings.bounds, "scaled")
        theta = problem.objective.from_coefficients(start)
    except ValueError:
        return float("inf"), near
    theta = np.clip(np.nan_to_num(theta), problem.lower, problem.upper)
    found = problem.solve(theta[None], max_iterations=1000, tolerance=1e-10)
    return float(found.cost[0]), problem.objective.make_law(found.theta[0]).coefficients


def _end(result: FitResult, coefficient: str, side: float, limit: float) -> float:
    """Where the profile crosses the limit on one side: steps that grow until it has, then a root between the last two.

    Each refit starts from the last one below the limit.
    """
    from scipy.optimize import brentq

    near = result.law.coefficients
    best = near[coefficient]
    logarithmic = coefficient in result.problem.objective.positive or coefficient in TRANSFORM
    floor = 1.0 if coefficient in TRANSFORM else 0.0

    def at(distance: float) -> float:
        return floor + (best - floor) * float(np.exp(side * distance)) if logarithmic else best + side * distance

    known = {0.0: min(result.objective - limit, 0.0)}

    def excess(distance: float) -> float:
        nonlocal near
        if distance not in known:
            objective, coefficients = refit_with(result, coefficient, at(distance), near)
            near = coefficients if objective <= limit else near
            known[distance] = min(objective - limit, limit + 1e-300)  # finite, for the root search
        return known[distance]

    error = result.status.standard_errors.get(coefficient, np.inf)
    inside, outside = 0.0, 0.5 * (float(np.clip(error, 1e-6, 1.0)) if np.isfinite(error) else 0.1)
    for _ in range(24):
        if excess(outside) > 0:
            return at(float(brentq(excess, inside, outside, xtol=1e-6 * outside)))
        inside, outside = outside, 1.6 * outside
        if logarithmic and outside > 14.0:
            return floor if side < 0 else float("inf")
    return side * float("inf")
