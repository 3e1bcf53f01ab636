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
from scaling_law.size import draw_normal
from studies.common import LEVEL, FloatArray, Value, pooled_covariance

DRAWS = 4000
# Laws are asked, and crossings counted, up to this many times beyond the D measured.
BEYOND = 4.0
# A model of the sweep: its d_model and E.
Model = tuple[int, int]


@dataclass(frozen=True)
class Cells:
    """Losses of each size and E by seed and D, [seeds, k], NaN where there is no run; nats per byte."""

    tokens: FloatArray
    losses: dict[Model, FloatArray]
    n_active: dict[int, float]

    @classmethod
    def of(cls, runs: Runs) -> Cells:
        """Arrange the losses of runs by model, seed and D."""
        tokens = np.unique(runs.tokens)
        seeds = np.unique(runs["seed"])
        losses: dict[Model, FloatArray] = {}
        columns = (runs["d_model"], runs.experts, runs.tokens, runs["seed"], runs.loss)
        for d_model, experts, run_tokens, seed, loss in zip(*columns, strict=True):
            model = (int(d_model), int(experts))
            grid = losses.setdefault(model, np.full((len(seeds), len(tokens)), np.nan))
            grid[np.searchsorted(seeds, seed), np.searchsorted(tokens, run_tokens)] = loss
        widths = runs["d_model"].astype(int).tolist()
        sizes = dict(zip(widths, runs.n_active.tolist(), strict=True))
        return cls(tokens, losses, sizes)

    @cached_property
    def scatter(self) -> dict[bool, tuple[FloatArray, FloatArray]]:
        """The covariance [k, k] of a run and its degrees of freedom [k], dense (False) and with experts (True).

        A kind without repeated seeds takes those of all runs.
        """
        pooled_over_kinds = pooled_covariance([*self.losses.values()])
        scatter = {}
        for has_experts in (False, True):
            groups = [losses for (_, experts), losses in self.losses.items() if (experts > 1) == has_experts]
            covariance, freedom = pooled_covariance(groups) if groups else pooled_over_kinds
            scatter[has_experts] = (covariance, freedom) if freedom.any() else pooled_over_kinds
        return scatter

    def means(self, model: Model) -> FloatArray:
        """Return the mean loss over the seeds [k], NaN where there is none."""
        losses = self.losses[model]
        n_seeds = np.isfinite(losses).sum(axis=0)
        no_mean = np.full(len(n_seeds), np.nan)
        return np.divide(np.nansum(losses, axis=0), n_seeds, out=no_mean, where=n_seeds > 0)

    def mean_at(self, model: Model, tokens: float) -> float:
        """Return the mean loss over the seeds at one D, NaN where no run is."""
        column = self.tokens == tokens
        if model not in self.losses or not column.any():
            return float("nan")
        return float(self.means(model)[column][0])

    def covariance(self, model: Model) -> FloatArray:
        """Return the covariance of the means, [k, k].

        It is that of one run, times the number of seeds that two D share, over the numbers of seeds of each.
        """
        is_run = np.isfinite(self.losses[model])
        n_seeds = np.maximum(is_run.sum(axis=0), 1)
        shared_seeds = is_run.T.astype(float) @ is_run
        covariance_of_run, _ = self.scatter[model[1] > 1]
        return np.asarray(covariance_of_run * shared_seeds / np.outer(n_seeds, n_seeds))

    def draw_means(self, model: Model) -> FloatArray:
        """Draw the means, [draws, k]; the dense models' draws are the same for every E compared with them."""
        return draw_normal(np.nan_to_num(self.means(model)), self.covariance(model), DRAWS, seed=model)

    def table(self) -> Runs:
        """Return one run for each cell, with `d_model`, `seeds`, `standard_error` and `precision`, its fit weight."""
        rows = []
        for d_model, experts in sorted(self.losses):
            model = (d_model, experts)
            seeds = np.isfinite(self.losses[model]).sum(axis=0)
            errors = np.sqrt(np.diag(self.covariance(model)))
            for tokens, mean, n_seeds, error in zip(self.tokens, self.means(model), seeds, errors, strict=True):
                if n_seeds:
                    rows.append((self.n_active[d_model], tokens, experts, mean, d_model, n_seeds, error))
        n_active, all_tokens, all_experts, loss, width, count, standard_error = np.array(rows, float).T
        columns = {
            "d_model": width,
            "seeds": count,
            "standard_error": standard_error,
            "precision": _precision(loss, standard_error),
        }
        return Runs.from_columns(n_active, all_tokens, all_experts, loss, "run", columns=columns)


def with_precision(runs: Runs) -> Runs:
    """Add to single runs the `precision` of a run of their kind and D."""
    cells = Cells.of(runs)
    deviations = {kind: np.sqrt(np.diag(covariance)) for kind, (covariance, _) in cells.scatter.items()}
    columns = np.searchsorted(cells.tokens, runs.tokens)
    error = np.where(runs.experts > 1, deviations[True][columns], deviations[False][columns])
    return replace(runs, columns={**runs.columns, "precision": _precision(runs.loss, error)})


def _precision(loss: FloatArray, error: FloatArray) -> FloatArray:
    """Return the weight in a fit of ln L, of mean 1; equal where no seed was repeated."""
    weight = np.ones(len(loss))
    if np.isfinite(error).all() and (error > 0).all():
        weight = (loss / error) ** 2
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
    def drawn_crossings(self) -> FloatArray:
        """The crossing of each draw."""
        falling = np.array([self._falling(mean) for mean in self.draws])
        return find_crossing(np.log(self.tokens), falling)

    @cached_property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval; NaN where no seed was repeated."""
        if np.isnan(self.error).any():
            return np.nan, np.nan
        low, high = np.quantile(self.drawn_crossings, LEVEL, method="nearest")
        return float(low), float(high)

    @property
    def bracketed(self) -> bool:
        """True if dense models are ahead at the shortest D and experts at the longest."""
        return 0 < self.crossing < np.inf

    @property
    def between(self) -> tuple[float, float]:
        """The shortest and the longest D measured."""
        return float(self.tokens[0]), float(self.tokens[-1])

    def clip(self, crossing: FloatArray | float) -> FloatArray:
        """Count crossings beyond the D measured as `BEYOND` times beyond the nearest."""
        return np.clip(crossing, self.tokens[0] / BEYOND, self.tokens[-1] * BEYOND)

    def _falling(self, mean: FloatArray) -> FloatArray:
        """Fit the decreasing curve nearest to the means."""
        weights = self.seeds.min(axis=1) if np.isnan(self.error).any() else self.error**-2
        return np.asarray(isotonic_regression(mean, weights=weights, increasing=False).x)


def gaps_of(runs: Runs) -> list[Gap]:
    """Return the gaps of every size and E > 1 that shares a D with the dense models, by ascending E and size."""
    cells = Cells.of(runs)
    models = sorted((e, d) for d, e in cells.losses if e > 1 and (d, 1) in cells.losses)
    gaps = [_gap(cells, d_model, experts) for experts, d_model in models]
    return [gap for gap in gaps if len(gap.tokens)]


def _gap(cells: Cells, d_model: int, experts: int) -> Gap:
    """Compare the models of one size and E with the dense ones at the D that both have."""
    model = (d_model, experts)
    dense = (d_model, 1)
    seeds_of_each = [np.isfinite(cells.losses[pair_model]).sum(axis=0) for pair_model in (model, dense)]
    seeds = np.stack(seeds_of_each, axis=1)
    is_shared = seeds.min(axis=1) > 0
    difference = cells.means(model) - cells.means(dense)
    variance = np.diag(cells.covariance(model)) + np.diag(cells.covariance(dense))
    error = np.sqrt(variance)[is_shared]
    draws = np.full((1, is_shared.sum()), np.nan)
    if is_shared.any() and np.isfinite(error).all():
        draws = (cells.draw_means(model) - cells.draw_means(dense))[:, is_shared]
    return Gap(
        d_model,
        cells.n_active[d_model],
        experts,
        cells.tokens[is_shared],
        seeds[is_shared].astype(float),
        difference[is_shared],
        error,
        draws,
    )


def ratio_of(pairs: Iterable[tuple[Gap, Gap]]) -> tuple[Value, FloatArray]:
    """Return the geometric mean over pairs of the crossing of one over that of the other, and its draws."""
    drawn_logs = []
    logs = []
    for first, second in pairs:
        drawn_ratio = first.clip(first.drawn_crossings) / second.clip(second.drawn_crossings)
        drawn_logs.append(np.log(drawn_ratio))
        logs.append(np.log(first.clip(first.crossing) / second.clip(second.crossing)))
    draws = np.mean(drawn_logs, axis=0)
    low, high = np.quantile(draws, LEVEL)
    value = (float(np.exp(np.mean(logs))), float(np.exp(low)), float(np.exp(high)))
    return value, np.exp(draws)
