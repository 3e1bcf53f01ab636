"""How sure a fit is: a bootstrap of whole trunks, whose runs share most of their training, and profile intervals.

A profile interval is the likelihood-ratio interval of the Huber objective as a quasi-likelihood: it ends where Q,
refitted, has risen by s²/2 · χ²₁, with s² the residual variance of ln L. It assumes no quadratic shape and is open
where the data set no limit, but treats runs of one trunk as independent.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hub.plain.progress import progress_line
from hub.plain.tables import ResultTable, Table
from scaling_law.fitting.objective import Objective
from scaling_law.fitting.problem import floors_of, make_problem
from scaling_law.formulas import Law
from scaling_law.formulas.law import check_level, percentile_interval

if TYPE_CHECKING:
    from scaling_law.fitting.fitting import FitResult
    from scaling_law.runs.table import Runs

FloatArray = NDArray[np.float64]
CHUNK = 128  # resamples per batch


@dataclass(frozen=True, repr=False)
class Bootstrap(ResultTable):
    """The fitted law with the coefficients of refitted resamples as its draws.

    `converged` [n_draws] marks refits that met the tolerance; `log_residuals` are those of the full fit, of
    `n_fitted` coefficients.
    """

    law: Law
    converged: NDArray[np.bool_]
    n_clusters: int
    log_residuals: FloatArray
    seed: int
    n_fitted: int
    trunk_source: str = "given"

    @property
    def draws(self) -> FloatArray:
        """[n_draws, n_coefficients], in the order of the law's coefficients."""
        assert self.law.draws is not None  # set by `bootstrap`
        return self.law.draws

    def interval(self, coefficient: str, level: float = 0.95) -> tuple[float, float]:
        """Percentile interval of a coefficient; ValueError for an unknown one, or a `level` not between 0 and 1."""
        names = self.law.coefficient_names()
        if coefficient not in names:
            raise ValueError(f"coefficient={coefficient!r} must be one of {list(names)}")
        return percentile_interval(self.draws[:, names.index(coefficient)], level)

    def prediction_interval(
        self,
        n_active: ArrayLike,
        tokens: ArrayLike,
        experts: ArrayLike,
        level: float = 0.95,
        kind: Literal["confidence", "prediction"] = "confidence",
    ) -> tuple[Any, Any]:
        """(low, high) of the loss, of the shape the arguments broadcast to.

        "confidence" covers the law's own value, "prediction" one new run, whose scatter is drawn from the residuals of
        the fit, enlarged for the coefficients fitted.
        """
        if kind not in ("confidence", "prediction"):
            raise ValueError(f"kind={kind!r} must be 'confidence' or 'prediction'")
        losses = self.law.loss_draws(n_active, tokens, experts)
        if kind == "prediction":
            n = len(self.log_residuals)
            enlarge = np.sqrt(n / max(n - self.n_fitted, 1))
            losses *= np.exp(np.random.default_rng(self.seed).choice(self.log_residuals * enlarge, size=losses.shape))
        return percentile_interval(losses, level)

    def to_rows(self, level: float = 0.95) -> list[dict[str, Any]]:
        names = ("coefficient", "value", "low", "high")
        rows = [(name, value, *self.interval(name, level)) for name, value in self.law.coefficients.items()]
        return [dict(zip(names, row, strict=True)) for row in rows]

    def summary(self) -> Table:
        trunks = f"{self.n_clusters} trunks ({self.trunk_source})"
        title = f"Bootstrap of {trunks}, {len(self.draws)} draws ({self.converged.mean():.0%} converged)"
        return _intervals(self.to_rows(), ("2.5 %", "97.5 %"), title)

    def __repr__(self) -> str:
        return f"Bootstrap({len(self.draws)} draws of {self.n_clusters} trunks, {self.converged.mean():.0%} converged)"


def bootstrap(
    result: FitResult,
    n_resamples: int = 1000,
    seed: int = 0,
    progress: bool = False,
    held: FloatArray | None = None,
) -> Bootstrap:
    """Resample the trunks of the runs fitted with replacement, and refit from the optimum; deterministic for a seed.

    `held` are draws [n, n_coefficients] of another fit: each refit takes the fixed coefficients from one of them.
    ValueError for fewer than two trunks or two resamples.
    """
    problem, used = result.problem, result.used
    fitted = result.runs.subset(used)
    counts = np.zeros((n_resamples, len(used)))
    counts[:, used] = cluster_counts(fitted, n_resamples, seed)
    start, hold = np.tile(result.theta, (n_resamples, 1)), problem.lower == problem.upper
    objective = copy.copy(problem.objective)
    if held is not None:
        objective.fixed = {}
        start = _with_drawn(result, objective, held[np.random.default_rng(seed).integers(len(held), size=n_resamples)])
    refits = []
    with progress_line("bootstrap", n_resamples, "resamples", progress) as advance:
        for first in range(0, n_resamples, CHUNK):
            part = slice(first, first + CHUNK)
            weight = counts[part] * objective.weight
            refits.append(problem.solve(start[part], weight, hold=hold, max_iterations=200, tolerance=1e-9))
            advance(len(weight), f"objective {np.median(refits[-1].cost):.4g}")
    draws = objective.coefficients(np.concatenate([part.theta for part in refits]))
    converged = np.concatenate([part.converged for part in refits])
    log_residuals = objective.residuals(result.theta[None])[0][result.measured]
    law, n_fitted = result.law.replace(draws=draws), len(result.fitted)
    return Bootstrap(law, converged, fitted.n_trunks, log_residuals, seed, n_fitted, fitted.trunk_source)


def _with_drawn(result: FitResult, objective: Objective, drawn: FloatArray) -> FloatArray:
    """θ [S, p] of the fit with its fixed coefficients replaced by those of the draws [S, n_coefficients]."""
    values: dict[str, Any] = dict(result.law.coefficients)
    columns = dict(zip(values, drawn.T, strict=True))
    return objective.from_coefficients(values | {name: columns[name] for name in result.problem.settings.fixed})


def cluster_counts(runs: Runs, n_resamples: int, seed: int) -> FloatArray:
    """How often each run occurs in each resample, [n_resamples, n]."""
    clusters, index = np.unique(runs.trunk, return_inverse=True)
    if len(clusters) < 2:
        raise ValueError(f"{len(clusters)} trunk: at least two independent trunks are needed to resample them")
    if n_resamples < 2:
        raise ValueError(f"n_resamples={n_resamples!r} must be at least 2")
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, len(clusters), size=(n_resamples, len(clusters)))
    counts = np.zeros((n_resamples, len(clusters)))
    np.add.at(counts, (np.arange(n_resamples)[:, None], drawn), 1.0)
    return counts[:, index]


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
    return _intervals([vars(p) for p in intervals], ("low", "high"), f"Profile intervals, {level:.3g}")


def _intervals(rows: Sequence[Mapping[str, Any]], ends: tuple[str, str], title: str) -> Table:
    def shown(value: float | None) -> str:
        return "" if value is None else f"{value:.5g}" if np.isfinite(value) else "open"

    cells = [[row["coefficient"], *(shown(row[name]) for name in ("value", "low", "high"))] for row in rows]
    return Table(("", "value", *ends), cells, title=title)


def profile_interval(result: FitResult, coefficient: str, level: float = 0.95) -> ProfileInterval:
    """The interval of one coefficient, in the law's own units; ValueError for one that was not fitted."""
    from scipy.special import ndtri

    if coefficient not in result.fitted:
        raise ValueError(f"coefficient={coefficient!r} must be one of {result.fitted}")
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
    fixed, weight = {**settings.fixed, coefficient: value}, result.problem.objective.weight[used]
    runs, options = result.runs.subset(used), (settings.law, settings.huber_delta, weight, settings.l2)
    one_sided = result.problem.objective.one_sided[used]
    try:
        problem = make_problem(runs, *options, fixed, settings.bounds, "scaled", one_sided)
        theta = problem.objective.from_coefficients(start)
    except ValueError:
        return float("inf"), near
    theta = np.clip(np.nan_to_num(theta), problem.lower, problem.upper)
    found = problem.solve(theta[None], max_iterations=1000, tolerance=1e-10)
    return float(found.cost[0]), problem.objective.make_law(found.theta[0]).coefficients


def _end(result: FitResult, coefficient: str, side: float, limit: float) -> float:
    """Where the profile crosses the limit on one side: growing steps, then a root between the last two.

    Each refit starts from the last one below the limit.
    """
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
