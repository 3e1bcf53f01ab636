"""How sure a fit is: a bootstrap of whole trunks, whose runs share most of their training."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hub.base.errors import InputError, unknown
from hub.base.inputs import reads
from hub.base.progress import progress_line
from hub.base.tables import ResultTable, Table
from scaling_law.fitting.problem import Problem
from scaling_law.formulas.law import check_count, percentile_interval
from scaling_law.law import Law
from scaling_law.runs.table import Runs
from scaling_law.size.arrays import FloatArray


@dataclass(frozen=True, repr=False)
class Bootstrap(ResultTable):
    """The fitted law with the coefficients of refitted resamples as its draws.

    `converged` [n_draws] marks refits that met the tolerance; `log_residuals` are those of the full fit, of
    `n_fitted` coefficients (under a prior, those that the runs determine).
    """

    law: Law
    converged: NDArray[np.bool_]
    n_clusters: int
    log_residuals: FloatArray
    seed: int
    n_fitted: float
    trunk_source: str = "given"

    @property
    def draws(self) -> FloatArray:
        """[n_draws, n_coefficients], in the order of the law's coefficients."""
        assert self.law.draws is not None  # set by `bootstrap`
        return self.law.draws

    @reads
    def interval(self, coefficient: str, level: float = 0.95) -> tuple[float, float]:
        """Percentile interval of a coefficient; ValueError for an unknown one, or a `level` not between 0 and 1."""
        if coefficient not in (names := self.law.coefficient_names()):
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
        """(low, high) of the loss, of the shape the arguments broadcast to.

        "confidence" covers the law's own value, "prediction" one new run, whose scatter is drawn from the residuals of
        the fit, enlarged for the coefficients fitted.
        """
        if kind not in ("confidence", "prediction"):
            raise InputError(f"kind={kind!r} must be 'confidence' or 'prediction'")
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
        header = ("", "value", "2.5 %", "97.5 %")
        cells = [[row["coefficient"], *map(_format_end, list(row.values())[1:])] for row in self.to_rows()]
        return Table(header, cells, title=title)

    def __repr__(self) -> str:
        return f"Bootstrap({len(self.draws)} draws of {self.n_clusters} trunks, {self.converged.mean():.0%} converged)"


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

    Under a prior, each refit has a mean of its own, drawn from it: what the runs leave open stays as open as it was.
    ValueError for fewer than two trunks or two resamples.
    """
    check_count("n_resamples", n_resamples, 2)
    fitted, objective = runs.subset(problem.used), copy.copy(problem.objective)
    held = {*problem.settings.fixed, *problem.settings.tied}
    n_fitted = float(sum(name not in held for name in law.coefficients))
    penalty, refits = objective.penalty, []
    if penalty is not None:
        rows, objective.penalty = objective.prior_rows(theta), None
        curvature = objective.evaluate(theta[None]).curvature[0]
        moving = np.flatnonzero(~np.isin(objective.names, [*objective.tied]))
        curvature, precision = (part[np.ix_(moving, moving)] for part in (curvature, rows.T @ rows))
        n_fitted = float(np.trace(np.linalg.solve(curvature + precision, curvature)))
        penalty = penalty.sample(theta @ objective.to_natural.T, n_resamples, seed)
    problem = replace(problem, objective=objective)
    rng = np.random.default_rng(seed)
    with progress_line("bootstrap", n_resamples, "resamples", progress) as advance:
        for first in range(0, n_resamples, problem.batch):
            part = slice(first, min(first + problem.batch, n_resamples))
            weight = np.zeros((part.stop - first, len(runs)))
            weight[:, problem.used] = cluster_counts(fitted, len(weight), rng) * objective.weight[problem.used]
            objective.penalty = None if penalty is None else penalty.select(part)
            start = np.tile(theta, (len(weight), 1))
            refits.append(problem.solve(start, weight, max_iterations=200, tolerance=1e-9))
            advance(len(weight), f"objective {np.median(refits[-1].cost):.4g}")
    draws = objective.coefficients(np.concatenate([part.theta for part in refits]))
    converged = np.concatenate([part.converged for part in refits])
    log_residuals = objective.residuals(theta[None])[0][problem.measured]
    return Bootstrap(
        law.replace(draws=draws), converged, fitted.n_trunks, log_residuals, seed, n_fitted, fitted.trunk_source
    )


def cluster_counts(runs: Runs, n_resamples: int, seed: int | np.random.Generator) -> FloatArray:
    """How often each run occurs in each resample, [n_resamples, n]; a generator goes on where it was."""
    clusters, index = np.unique(runs.trunk, return_inverse=True)
    if len(clusters) < 2:
        raise InputError(f"{len(clusters)} trunk: at least two independent trunks are needed to resample them")
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, len(clusters), size=(n_resamples, len(clusters)))
    counts = np.zeros((n_resamples, len(clusters)))
    np.add.at(counts, (np.arange(n_resamples)[:, None], drawn), 1.0)
    return counts[:, index]


def _format_end(value: float) -> str:
    """Format a coefficient or an end of its interval; an infinite end is open."""
    return f"{value:.5g}" if np.isfinite(value) else "open"
