"""The cluster bootstrap of a fit, and its intervals for coefficients and losses.

Runs that branch off one trunk share most of their training, so whole trunks are drawn with replacement. All resamples
are refitted in batches from the optimum of the full fit. The draws are stored with the law (`law.draws`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hub.plain.tables import ResultTable, Table
from scaling_law.fitting.solver import shown
from scaling_law.laws import Law

if TYPE_CHECKING:
    from scaling_law.fitting.fit_result import FitResult
    from scaling_law.runs.table import Runs

FloatArray = NDArray[np.float64]
CHUNK = 128  # resamples per batch


@dataclass(frozen=True, repr=False)
class Bootstrap(ResultTable):
    """Coefficients of refitted resamples.

    `law` is the fitted law with its draws; `converged` [n_draws] marks the refits that met the tolerance; `n_clusters`
    trunks were resampled, identified by `trunk_source`; `log_residuals` are those of the full fit at its runs.
    """

    law: Law
    converged: NDArray[np.bool_]
    n_clusters: int
    log_residuals: FloatArray
    seed: int
    trunk_source: str = "given"

    @property
    def draws(self) -> FloatArray:
        """[n_draws, n_coefficients], in the order of the law's coefficients."""
        assert self.law.draws is not None  # set by `bootstrap`
        return self.law.draws

    def interval(self, coefficient: str, level: float = 0.95) -> tuple[float, float]:
        """Percentile interval of a coefficient. ValueError for a name the law does not have."""
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

        "confidence" is for the law's own value; "prediction" for the loss of one new run, with its scatter: residuals
        of the fit, enlarged for the coefficients that were fitted, are drawn and added on the log scale.
        """
        losses = self.law.loss_draws(n_active, tokens, experts)
        if kind == "prediction":
            n, p = len(self.log_residuals), losses.shape[0]
            enlarge = np.sqrt(n / max(n - len(self.law.coefficients), 1))
            noise = np.random.default_rng(self.seed).choice(self.log_residuals * enlarge, size=losses.shape)
            losses = losses * np.exp(noise) if p else losses
        elif kind != "confidence":
            raise ValueError(f"kind={kind!r} must be 'confidence' or 'prediction'")
        return percentile_interval(losses, level)

    def to_rows(self, level: float = 0.95) -> list[dict[str, Any]]:
        """One row per coefficient: value and the ends of its percentile interval."""
        names = ("coefficient", "value", "low", "high")
        rows = [(name, value, *self.interval(name, level)) for name, value in self.law.coefficients.items()]
        return [dict(zip(names, row, strict=True)) for row in rows]

    def summary(self) -> Table:
        trunks = f"{self.n_clusters} trunks ({self.trunk_source})"
        title = f"Bootstrap of {trunks}, {len(self.draws)} draws ({self.converged.mean():.0%} converged)"
        rows = [[f"{v:.5g}" if isinstance(v, float) else v for v in row.values()] for row in self.to_rows()]
        return Table(("", "value", "2.5 %", "97.5 %"), rows, title=title)

    def __repr__(self) -> str:
        return f"Bootstrap({len(self.draws)} draws of {self.n_clusters} trunks, {self.converged.mean():.0%} converged)"


def bootstrap(result: FitResult, n_resamples: int = 1000, seed: int = 0, progress: bool = False) -> Bootstrap:
    """Resample the trunks of the runs fitted (`result.used`) with replacement, and refit each from the optimum.

    Deterministic for a seed. ValueError for fewer than two trunks or fewer than two resamples.
    """
    problem, used = result.problem, result.used
    fitted = result.runs.subset(used)
    counts = np.zeros((n_resamples, len(used)))
    counts[:, used] = cluster_counts(fitted, n_resamples, seed)
    thetas, converged = [], []
    for first in shown(range(0, n_resamples, CHUNK), "bootstrap", progress):
        weight = counts[first : first + CHUNK] * problem.objective.weight
        start = np.tile(result.theta, (len(weight), 1))
        found = problem.solve(start, weight, max_iterations=200, tolerance=1e-9)
        thetas.append(found.theta)
        converged.append(found.converged)
    draws = problem.objective.coefficients(np.concatenate(thetas))
    log_residuals = problem.objective.residuals(result.theta[None])[0][used]
    law = result.law.replace(draws=draws)
    return Bootstrap(law, np.concatenate(converged), fitted.n_trunks, log_residuals, seed, fitted.trunk_source)


def cluster_counts(runs: Runs, n_resamples: int, seed: int) -> FloatArray:
    """How often each run occurs in each resample, [n_resamples, n]: equal for all runs of a trunk."""
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


def percentile_interval(draws: FloatArray, level: float = 0.95) -> tuple[Any, Any]:
    """The (low, high) between which `level` of the draws lie, over the first axis; two numbers for one column."""
    if not 0 < level < 1:
        raise ValueError(f"level={level!r} must be above 0 and below 1")
    low, high = np.quantile(draws, [0.5 - level / 2, 0.5 + level / 2], axis=0)
    return (float(low), float(high)) if np.ndim(low) == 0 else (low, high)
