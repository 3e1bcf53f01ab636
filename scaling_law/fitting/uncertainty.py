"""The uncertainty of a fit: a bootstrap of whole trunks, whose runs share most of their training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from hub.base.errors import InputError, unknown
from hub.base.fields import reads
from hub.base.progress import progress_line
from scaling_law.answer.answer import ResultTable
from scaling_law.fitting.posterior import draw_posterior
from scaling_law.fitting.problem import Problem
from scaling_law.fitting.solver import Solutions
from scaling_law.formulas.conditions import POSTERIOR
from scaling_law.formulas.law import percentile_interval
from scaling_law.law import Law
from scaling_law.runs.table import Runs
from scaling_law.size.arrays import BoolArray, FloatArray, Interval


@dataclass(frozen=True, repr=False)
class Bootstrap(ResultTable):
    """The fitted law with the coefficients of refitted resamples as its draws.

    `converged` [n_draws] marks refits that met the tolerance; `log_residuals` are those of the full fit, of
    `n_fitted` coefficients (under a prior, those that the runs determine).
    """

    law: Law
    converged: BoolArray
    n_clusters: int
    log_residuals: FloatArray
    seed: int
    n_fitted: float
    trunk_source: str = "given"

    @property
    def draws(self) -> FloatArray:
        """Coefficients [n_draws, n_coefficients], in the order of the law's."""
        # They are set by `bootstrap`.
        assert self.law.draws is not None
        return self.law.draws

    @reads
    def interval(self, coefficient: str, level: float = 0.95) -> Interval:
        """Return the percentile interval of a coefficient.

        ValueError for an unknown one, or a `level` not between 0 and 1.
        """
        names = self.law.coefficient_names()
        if coefficient not in names:
            raise InputError(unknown("coefficient=", coefficient, names))
        return percentile_interval(self.draws[:, names.index(coefficient)], level)

    @reads
    def prediction_interval(
        self,
        n_active: ArrayLike,
        tokens: ArrayLike,
        experts: ArrayLike,
        level: float = 0.95,
        kind: Literal["confidence", "prediction"] = "confidence",
    ) -> tuple[Any, Any]:
        """Return (low, high) of the loss, of the shape the arguments broadcast to.

        "confidence" covers the law's own value, outside its ranges with the error of extrapolation; "prediction" one
        new run, whose scatter is drawn from the residuals of the fit, enlarged for the coefficients fitted.
        """
        losses = self.law.loss_draws(n_active, tokens, experts)
        if kind == "prediction":
            n = len(self.log_residuals)
            enlarged = self.log_residuals * np.sqrt(n / max(n - self.n_fitted, 1))
            scatter = np.random.default_rng(self.seed).choice(enlarged, size=losses.shape)
            losses *= np.exp(scatter)
        return percentile_interval(losses, level)

    def to_rows(self, level: float = 0.95) -> list[dict[str, Any]]:
        """Return one row per coefficient, with its value and its interval."""
        rows = []
        for name, value in self.law.coefficients.items():
            low, high = self.interval(name, level)
            rows.append({"coefficient": name, "value": value, "low": low, "high": high})
        return rows

    def _headline(self) -> str:
        trunks = f"{self.n_clusters} trunks ({self.trunk_source})"
        return f"Bootstrap of {trunks}, {len(self.draws)} draws ({self.converged.mean():.0%} converged)"

    def _cells(self) -> list[dict[str, str]]:
        labels = {"coefficient": "", "value": "value", "low": "2.5 %", "high": "97.5 %"}
        cells = []
        for row in self.to_rows():
            cells.append({label: _format_limit(row[name]) for name, label in labels.items()})
        return cells


def bootstrap(
    law: Law,
    problem: Problem,
    theta: FloatArray,
    runs: Runs,
    n_resamples: int = 1000,
    seed: int = 0,
    progress: bool = False,
) -> Bootstrap:
    """Resample the trunks of the runs fitted with replacement, and refit from the optimum θ; deterministic for a seed.

    Under a prior, the draws are those of the posterior. ValueError for fewer than two trunks or two resamples.
    """
    objective = problem.objective
    fitted_runs = runs.subset(problem.used)
    if objective.penalty is None:
        refits = _refit_resamples(problem, theta, fitted_runs, n_resamples, seed, progress)
        thetas = refits.theta
        converged = refits.converged
    else:
        thetas = draw_posterior(problem, theta, n_resamples, seed)
        converged = np.full(n_resamples, True)
        if law.conditions is not None:
            law = law.replace(conditions=replace(law.conditions, draws=POSTERIOR))
    return Bootstrap(
        law=law.replace(draws=objective.coefficients(thetas)),
        converged=converged,
        n_clusters=fitted_runs.n_trunks,
        log_residuals=objective.residuals(theta[None])[0][problem.used],
        seed=seed,
        n_fitted=_count_determined(law, problem, theta),
        trunk_source=fitted_runs.trunk_source,
    )


def _refit_resamples(
    problem: Problem,
    theta: FloatArray,
    fitted_runs: Runs,
    n_resamples: int,
    seed: int,
    progress: bool,
) -> Solutions:
    """Refit to resampled trunks, n_resamples times."""
    rng = np.random.default_rng(seed)
    refits = []
    with progress_line("bootstrap", n_resamples, "resamples", progress) as advance:
        for first in range(0, n_resamples, problem.batch):
            size = min(problem.batch, n_resamples - first)
            weight = np.zeros((size, len(problem.used)))
            counts = cluster_counts(fitted_runs, size, rng)
            weight[:, problem.used] = counts * problem.objective.weight[problem.used]
            solutions = problem.solve(np.tile(theta, (size, 1)), weight, max_iterations=200, tolerance=1e-9)
            refits.append(solutions)
            advance(size, f"objective {np.median(solutions.cost):.4g}")
    return Solutions.joined(refits)


def _count_determined(
    law: Law,
    problem: Problem,
    theta: FloatArray,
) -> float:
    """Count the coefficients fitted; under a prior, the effective number of those that the runs determine."""
    objective = problem.objective
    if objective.penalty is None:
        return float(len(problem.settings.fitted(law.coefficients)))
    rows = objective.prior_rows(theta)
    without_prior = replace(objective, penalty=None)
    is_moving = np.flatnonzero(~np.isin(objective.names, [*objective.settings.tied]))
    block = np.ix_(is_moving, is_moving)
    curvature = without_prior.evaluate(theta[None]).curvature[0][block]
    precision = (rows.T @ rows)[block]
    return float(np.trace(np.linalg.solve(curvature + precision, curvature)))


def cluster_counts(
    runs: Runs,
    n_resamples: int,
    seed: int | np.random.Generator,
) -> FloatArray:
    """Count how often each run occurs in each resample, [n_resamples, n]; a generator goes on where it was."""
    clusters, index = np.unique(runs.trunk, return_inverse=True)
    n_clusters = len(clusters)
    if n_clusters < 2:
        raise InputError(f"{n_clusters} trunk: at least two independent trunks are needed to resample them")
    rng = np.random.default_rng(seed)
    resamples = rng.integers(0, n_clusters, size=(n_resamples, n_clusters))
    counts = np.zeros((n_resamples, n_clusters))
    np.add.at(counts, (np.arange(n_resamples)[:, None], resamples), 1.0)
    return counts[:, index]


def _format_limit(value: Any) -> str:
    """Format a coefficient or a limit of its interval; an infinite limit is open."""
    if isinstance(value, str):
        return value
    return f"{value:.5g}" if np.isfinite(value) else "open"
