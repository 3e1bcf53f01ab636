"""Means over seeds, how far seeds scatter, and the tokens from which on experts win, measured.

Losses of models with experts scatter more than those of dense ones, so their covariance between the D of a trunk is
pooled by kind, over sizes and E. It gives the standard error of each cell (a size, E and D) and draws of its mean.

All seeds of a cell count, whether or not the other kind has them: pairs of one seed scatter as unequal seeds do. The
gap of an E to the dense models is taken to fall with D, as in the joint law: the decreasing curve nearest to the
means, weighted by their precision (isotonic regression), crosses zero once, between two D on a straight line in ln D.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.optimize import isotonic_regression

from scaling_law import Runs
from scaling_law.planning import find_crossing
from studies.common import LEVEL, FloatArray, Value, pooled_covariance

DRAWS = 4000
BEYOND = 4.0  # laws are asked, and crossings counted, this many times beyond the D measured
Model = tuple[int, int]  # d_model, E


@dataclass(frozen=True)
class Cells:
    """Losses of each size and E by seed and D, [seeds, k], NaN where there is no run; nats per byte."""

    tokens: FloatArray
    losses: dict[Model, FloatArray]
    n_active: dict[int, float]

    @classmethod
    def of(cls, runs: Runs) -> Cells:
        tokens, seeds = np.unique(runs.tokens), np.unique(runs["seed"])
        losses: dict[Model, FloatArray] = {}
        for d, e, t, seed, loss in zip(
            runs["d_model"], runs.experts, runs.tokens, runs["seed"], runs.loss, strict=True
        ):
            grid = losses.setdefault((int(d), int(e)), np.full((len(seeds), len(tokens)), np.nan))
            grid[np.searchsorted(seeds, seed), np.searchsorted(tokens, t)] = loss
        sizes = dict(zip(runs["d_model"].astype(int).tolist(), runs.n_active.tolist(), strict=True))
        return cls(tokens, losses, sizes)

    @cached_property
    def scatter(self) -> dict[bool, tuple[FloatArray, FloatArray]]:
        """(covariance [k, k], degrees of freedom [k]) of a run, dense (False) and with experts (True).

        A kind without repeated seeds takes those of all runs.
        """
        kinds = {kind: [v for (_, e), v in self.losses.items() if (e > 1) == kind] for kind in (False, True)}
        every = pooled_covariance([*self.losses.values()])
        pooled = {kind: pooled_covariance(v) if v else every for kind, v in kinds.items()}
        return {kind: p if p[1].any() else every for kind, p in pooled.items()}

    def means(self, model: Model) -> FloatArray:
        """Mean loss over the seeds [k], NaN where there is none."""
        losses = self.losses[model]
        n = np.isfinite(losses).sum(axis=0)
        return np.divide(np.nansum(losses, axis=0), n, out=np.full(len(n), np.nan), where=n > 0)

    def mean_at(self, model: Model, tokens: float) -> float:
        """Mean loss over the seeds at one D, NaN where no run is."""
        at = self.tokens == tokens
        return float(self.means(model)[at][0]) if model in self.losses and at.any() else float("nan")

    def covariance(self, model: Model) -> FloatArray:
        """Covariance of the means, [k, k]: one run's times the seeds that two D share, over the seeds of each."""
        run = np.isfinite(self.losses[model])
        n = np.maximum(run.sum(axis=0), 1)
        return np.asarray(self.scatter[model[1] > 1][0] * (run.T.astype(float) @ run) / np.outer(n, n))

    def drawn(self, model: Model) -> FloatArray:
        """Draws of the means, [draws, k]; of the dense models the same ones for every E that is compared with them."""
        means, rng = np.nan_to_num(self.means(model)), np.random.default_rng(model)
        return rng.multivariate_normal(means, self.covariance(model), DRAWS, check_valid="ignore", method="eigh")

    def table(self) -> Runs:
        """One run for each cell, with `d_model`, `seeds`, `standard_error` and `precision`, its weight in a fit."""
        rows = []
        for d, e in sorted(self.losses):
            seeds = np.isfinite(self.losses[d, e]).sum(axis=0)
            errors = np.sqrt(np.diag(self.covariance((d, e))))
            for t, mean, n, error in zip(self.tokens, self.means((d, e)), seeds, errors, strict=True):
                if n:
                    rows.append((self.n_active[d], t, e, mean, d, n, error))
        n_active, tokens, experts, loss, d_model, count, error = np.array(rows, float).T
        columns = {"d_model": d_model, "seeds": count, "standard_error": error, "precision": _precision(loss, error)}
        return Runs.from_columns(n_active, tokens, experts, loss, "run", columns=columns)


def with_precision(runs: Runs) -> Runs:
    """The single runs, with the `precision` of a run of their kind and D."""
    cells = Cells.of(runs)
    deviation = {kind: np.sqrt(np.diag(covariance)) for kind, (covariance, _) in cells.scatter.items()}
    at = np.searchsorted(cells.tokens, runs.tokens)
    error = np.where(runs.experts > 1, deviation[True][at], deviation[False][at])
    return replace(runs, columns={**runs.columns, "precision": _precision(runs.loss, error)})


def _precision(loss: FloatArray, error: FloatArray) -> FloatArray:
    """The weight in a fit of ln L, of mean 1; equal where no seed was repeated."""
    weight = (loss / error) ** 2 if np.isfinite(error).all() and (error > 0).all() else np.ones(len(loss))
    return np.asarray(weight / weight.mean())


@dataclass(frozen=True)
class Gap:
    """Losses with E experts minus those of dense models of the same size at each D [k], nats per byte.

    `seeds` [k, 2] are those of the two, `error` [k] the standard errors and `draws` [draws, k] draws of the means, NaN
    where no seed was repeated.
    """

    d_model: int
    n_active: float
    experts: int
    tokens: FloatArray
    seeds: FloatArray
    mean: FloatArray
    error: FloatArray
    draws: FloatArray

    @cached_property
    def crossing(self) -> float:
        """The D from which on experts are ahead: 0 if at every D measured, infinite if not at the last."""
        return float(find_crossing(np.log(self.tokens), self._falling(self.mean)))

    @cached_property
    def drawn(self) -> FloatArray:
        """The crossing of each draw."""
        return find_crossing(np.log(self.tokens), np.array([self._falling(mean) for mean in self.draws]))

    @cached_property
    def interval(self) -> tuple[float, float]:
        """95 % interval; NaN where no seed was repeated."""
        if np.isnan(self.error).any():
            return np.nan, np.nan
        low, high = np.quantile(self.drawn, LEVEL, method="nearest")
        return float(low), float(high)

    @property
    def bracketed(self) -> bool:
        """Whether dense models are ahead at the shortest D and experts at the longest."""
        return 0 < self.crossing < np.inf

    @property
    def between(self) -> tuple[float, float]:
        """The shortest and the longest D measured."""
        return float(self.tokens[0]), float(self.tokens[-1])

    def counted(self, crossing: FloatArray | float) -> FloatArray:
        """Crossings beyond the D measured count as `BEYOND` times beyond the nearest."""
        return np.clip(crossing, self.tokens[0] / BEYOND, self.tokens[-1] * BEYOND)

    def _falling(self, mean: FloatArray) -> FloatArray:
        weights = self.seeds.min(axis=1) if np.isnan(self.error).any() else self.error**-2
        return np.asarray(isotonic_regression(mean, weights=weights, increasing=False).x)


def gaps_of(runs: Runs) -> list[Gap]:
    """Gaps of every size and E > 1 that shares a D with the dense models, by ascending E and size."""
    cells = Cells.of(runs)
    models = sorted((e, d) for d, e in cells.losses if e > 1 and (d, 1) in cells.losses)
    return [gap for e, d in models if len((gap := _gap(cells, d, e)).tokens)]


def _gap(cells: Cells, d: int, e: int) -> Gap:
    pair = (d, e), (d, 1)
    seeds = np.stack([np.isfinite(cells.losses[model]).sum(axis=0) for model in pair], axis=1)
    both = seeds.min(axis=1) > 0
    (mean, dense), (one, two) = map(cells.means, pair), map(cells.covariance, pair)
    error = np.sqrt(np.diag(one) + np.diag(two))[both]
    draws = np.full((1, both.sum()), np.nan)
    if both.any() and np.isfinite(error).all():
        draws = (cells.drawn(pair[0]) - cells.drawn(pair[1]))[:, both]
    gap = (mean - dense)[both]
    return Gap(d, cells.n_active[d], e, cells.tokens[both], seeds[both].astype(float), gap, error, draws)


def ratio_of(pairs: Iterable[tuple[Gap, Gap]]) -> tuple[Value, FloatArray]:
    """The geometric mean over pairs of the crossing of one over that of the other, and its draws."""
    pairs = [*pairs]
    logs = np.mean([np.log(a.counted(a.drawn) / b.counted(b.drawn)) for a, b in pairs], axis=0)
    value = np.mean([np.log(a.counted(a.crossing) / b.counted(b.crossing)) for a, b in pairs])
    low, high = np.quantile(logs, LEVEL)
    return (float(np.exp(value)), float(np.exp(low)), float(np.exp(high))), np.exp(logs)
