"""Means over seeds, how far seeds scatter, and the tokens from which on experts win, measured.

The loss of a cell, a size, E and D, is the mean over its seeds. Seeds of one D scatter alike: their variance is pooled
over sizes and E, and the standard error of a cell is that deviation over √seeds.

Experts are compared with dense models of the same seeds. Their gap is taken to fall with D, as in the joint law: the
decreasing curve nearest to the means, weighted by their precision (isotonic regression), crosses zero once, between
two D on a straight line in ln D. Intervals come from draws of the means, with the covariance of the pairs' scatter
between the D of a trunk, pooled over sizes and E.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from scaling_law import Runs
from scaling_law.planning import overtaking
from studies.common import FloatArray

DRAWS, SEED = 1000, 0
LEVEL = (0.025, 0.975)


@dataclass(frozen=True)
class Scatter:
    """Standard deviation of the loss among seeds at each D, [k], nats per byte, with its degrees of freedom [k]."""

    tokens: FloatArray
    deviation: FloatArray
    freedom: FloatArray

    def at(self, tokens: FloatArray) -> FloatArray:
        """Of the nearest D at which seeds were repeated; NaN if none was."""
        known = self.freedom > 0
        if not known.any():
            return np.full(np.shape(tokens), np.nan)
        distance = np.abs(np.log(np.asarray(tokens)[..., None] / self.tokens[known]))
        return self.deviation[known][distance.argmin(axis=-1)]

    @property
    def pooled(self) -> float:
        """Over all D."""
        total = float(self.freedom.sum())
        return float(np.sqrt(np.nansum(self.deviation**2 * self.freedom) / total)) if total else float("nan")


def cells_of(runs: Runs) -> tuple[FloatArray, NDArray[np.intp]]:
    """The distinct (N_act, E, D) [3, cells], ascending, and the cell of each run [n]."""
    cells, cell = np.unique(np.stack([runs.n_active, runs.experts, runs.tokens]), axis=1, return_inverse=True)
    return cells, cell.ravel()


def scatter_of(runs: Runs) -> Scatter:
    """Among runs that differ in their seed only, by D."""
    _, cell = cells_of(runs)
    means = np.bincount(cell, runs.loss) / np.bincount(cell)
    squares = (runs.loss - means[cell]) ** 2
    tokens, at = np.unique(runs.tokens, return_inverse=True)
    counts = np.array([np.sum(at == k) - len(np.unique(cell[at == k])) for k in range(len(tokens))], float)
    sums = np.bincount(at, squares)
    deviation = np.sqrt(np.divide(sums, counts, out=np.full(len(tokens), np.nan), where=counts > 0))
    return Scatter(tokens, deviation, counts)


def cell_means(runs: Runs, scatter: Scatter | None = None) -> Runs:
    """One run for each cell: the mean over its seeds, with columns `d_model`, `seeds` and `standard_error`, in nats.

    `precision`, the weight in a fit of ln L, is (loss / standard error)² (1 where no seed was repeated).
    """
    cells, cell = cells_of(runs)
    seeds = np.bincount(cell)
    loss, width = (np.bincount(cell, values) / seeds for values in (runs.loss, runs["d_model"]))
    n, e, d = cells
    error = (scatter or scatter_of(runs)).at(d) / np.sqrt(seeds)
    columns = {"d_model": width, "seeds": seeds, "standard_error": error, "precision": _precision(loss, error)}
    return Runs.from_columns(n, d, e, loss, "run", source=runs.source, columns=columns)


def with_precision(runs: Runs) -> Runs:
    """The single runs, with the column `precision` of a run of their D."""
    precision = _precision(runs.loss, scatter_of(runs).at(runs.tokens))
    return replace(runs, columns={**runs.columns, "precision": precision})


def _precision(loss: FloatArray, error: FloatArray) -> FloatArray:
    """Of mean 1; equal where no seed was repeated."""
    weight = (loss / error) ** 2 if np.isfinite(error).all() and (error > 0).all() else np.ones(len(loss))
    return np.asarray(weight / weight.mean())


# ------------------------------------------------------------------ experts against dense models


@dataclass(frozen=True)
class Gap:
    """Losses with E experts minus those of dense models of the same size and seeds at each D [k], nats per byte.

    `pairs` [k] are the seeds that both have, `error` [k] the standard errors of the means (NaN) and `drawn` [draws, k]
    draws of them (None) where seeds were repeated.
    """

    d_model: int
    n_active: float
    experts: int
    tokens: FloatArray
    pairs: FloatArray
    mean: FloatArray
    error: FloatArray
    drawn: FloatArray | None

    @cached_property
    def crossing(self) -> tuple[float, float, float]:
        """The D from which on experts are ahead, with its 95 % interval (NaN: no seed was repeated).

        0 where they are ahead at every D measured, infinite where they are behind at the last.
        """
        logs = np.log(self.tokens)
        value = float(overtaking(logs, self._falling(self.mean)))
        if self.drawn is None:
            return value, np.nan, np.nan
        drawn = overtaking(logs, np.array([self._falling(mean) for mean in self.drawn]))
        low, high = np.quantile(drawn, LEVEL, method="nearest")
        return value, float(low), float(high)

    def _falling(self, mean: FloatArray) -> FloatArray:
        from scipy.optimize import isotonic_regression

        weights = self.pairs if self.drawn is None else self.error**-2
        return np.asarray(isotonic_regression(mean, weights=weights, increasing=False).x)

    @property
    def bracketed(self) -> bool:
        """Whether dense models are ahead at the shortest D and experts at the longest."""
        return 0 < self.crossing[0] < np.inf


@dataclass(frozen=True)
class _Pairs:
    """Differences [seeds, k] of one size and E to the dense model, NaN where one of the two is missing."""

    d_model: int
    n_active: float
    experts: int
    differences: FloatArray

    @property
    def there(self) -> NDArray[np.bool_]:
        return np.isfinite(self.differences)


def gaps_of(runs: Runs) -> list[Gap]:
    """Of every size and E > 1 that shares seeds with the dense models, by ascending E and size."""
    tokens = np.unique(runs.tokens)
    every = [
        pairs
        for e in np.unique(runs.experts[runs.experts > 1])
        for n in np.unique(runs.n_active)
        if (pairs := _pairs(runs.subset(runs.n_active == n), e, tokens)).there.any()
    ]
    covariance = _covariance([pairs.differences for pairs in every], tokens)
    return [_gap(pairs, tokens, covariance) for pairs in every]


def _pairs(size: Runs, experts: float, tokens: FloatArray) -> _Pairs:
    seeds = np.unique(size["seed"])
    dense, routed = (np.full((len(seeds), len(tokens)), np.nan) for _ in range(2))
    for grid, e in ((dense, 1.0), (routed, experts)):
        own = size.subset(size.experts == e)
        grid[np.searchsorted(seeds, own["seed"]), np.searchsorted(tokens, own.tokens)] = own.loss
    return _Pairs(int(size["d_model"][0]), float(size.n_active[0]), int(experts), routed - dense)


def _covariance(every: Sequence[FloatArray], tokens: FloatArray) -> FloatArray | None:
    """Of a single pair between its D, [k, k], pooled over sizes and E; None where no pair was repeated.

    A D at which none was takes the scatter of the nearest D that has some.
    """
    products, count = np.zeros((2, len(tokens), len(tokens)))
    for differences in every:
        n = np.isfinite(differences).sum(axis=0)
        known = np.isfinite(differences) & (n > 1)
        mean = np.where(known, differences, 0.0).sum(axis=0) / np.maximum(n, 1)
        deviations = np.where(known, differences - mean, 0.0) * np.sqrt(n / np.maximum(n - 1, 1))
        products += deviations.T @ deviations
        count += known.T.astype(float) @ known
    repeated = np.flatnonzero(np.diag(count))
    if not len(repeated):
        return None
    pooled = np.divide(products, count, out=np.zeros_like(count), where=count > 0)
    nearest = repeated[np.abs(np.log(tokens[:, None] / tokens[repeated])).argmin(axis=1)]
    return np.asarray(pooled[np.ix_(nearest, nearest)])


def _gap(pairs: _Pairs, tokens: FloatArray, covariance: FloatArray | None) -> Gap:
    """The covariance of two means is that of a pair times the seeds that both have, over the seeds of each."""
    there = pairs.there
    n, measured = there.sum(axis=0), there.any(axis=0)
    mean = np.nanmean(pairs.differences[:, measured], axis=0)
    error, drawn = np.full(len(mean), np.nan), None
    if covariance is not None:
        shared = there.T.astype(float) @ there / np.maximum(np.outer(n, n), 1)
        of_means = (shared * covariance)[np.ix_(measured, measured)]
        error = np.sqrt(np.diag(of_means))
        rng = np.random.default_rng(SEED)
        drawn = rng.multivariate_normal(mean, of_means, size=DRAWS, check_valid="ignore", method="eigh")
    own = n[measured].astype(float)
    return Gap(pairs.d_model, pairs.n_active, pairs.experts, tokens[measured], own, mean, error, drawn)
