"""The learning-rate law from a whole grid of learning rates and batches: all runs near the best, not the best alone.

The loss of one model at one number of tokens is a paraboloid in x = ln LR and b = ln B (B: tokens of a batch)

    L = L_model + ½ (u − u*)ᵀ H (u − u*),     u = (x, b),     u* linear in ln N, ln E, ln D

with one curvature H for all models and the law as its centre. Multiplied out, L is linear in H, in H u* and in one
constant for each model, so that least squares finds them in one step, and the sums of each model give the fit without
it and the fits of the bootstrap. At a given batch the best rate is x* − (H_xb / H_xx) (b − b*), linear in b too.
Only runs within `within` nats of their model's best count, and its best three, since far from it the loss is no
parabola; Huber's weights bound those that remain. Without a batch that varies, u = x.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from hub.base.errors import InputError, shorten
from hub.base.fields import Positive, Whole, reads
from hub.base.tables import Summarised, Table, Tables
from hub.base.types import Fields
from hub.base.units import format_count
from scaling_law.answer.answer import rows_of
from scaling_law.formulas.law import percentile_interval
from scaling_law.rates.law import COEFFICIENTS, PHANTOM_POSITIONS, LearningRateLaw, Reading
from scaling_law.runs.rows import RunsError
from scaling_law.runs.settings import SAME, check_mix
from scaling_law.runs.table import Runs
from scaling_law.runs.tuning import models_of
from scaling_law.size.architecture import total_parameters
from scaling_law.size.arrays import BoolArray, Columns, FloatArray, IntArray, Interval

Extra = Literal["tokens", "batch"]
Mask = BoolArray
Rows = IntArray
EXTRAS: tuple[Extra, ...] = ("tokens", "batch")
# The column of a mapped table, and that of run records.
RATE_COLUMNS = ("learning_rate", "schedule_peak_learning_rate")
# Iterations of the robust weights.
_STEPS = 30
# Least share of the largest eigenvalue of sums of squares of unit columns.
_SINGULAR = 1e-10
_SYMBOLS = {"slope_n": "N", "slope_e": "E", "slope_d": "D"}


@dataclass(frozen=True)
class SettingsGrid:
    """Runs [n] over learning rates and, where it varies for a model, batches.

    `model` [n] counts models from 0; at another D it is another model. `size`, `experts` and `tokens` [models] are N
    as a reading counts it, E and D; `batch` is in tokens, None if no model has runs of several.
    """

    size: FloatArray
    experts: FloatArray
    tokens: FloatArray
    model: Rows
    ln_rate: FloatArray
    batch: FloatArray | None
    loss: FloatArray

    @classmethod
    def of(cls, tables: Sequence[Runs], reading: Reading = "code") -> SettingsGrid:
        """Join the grids of tables that share a loss.

        RunsError for a missing or non-positive setting, and without runs.
        """
        if not sum(map(len, tables)):
            raise RunsError("no runs to fit a learning-rate law to")
        groups = _group_rows(tables)
        first_rows = np.array([group[0] for group in groups])
        experts, tokens, loss = (_concatenate(tables, name) for name in ("experts", "tokens", "loss"))
        model = np.empty(len(loss), np.intp)
        for index, rows in enumerate(groups):
            model[rows] = index
        batch = _read_batches(tables, groups)
        sizes = np.concatenate([counted_sizes(runs, reading) for runs in tables])
        rates = np.concatenate([runs.positive(rate_column(runs)) for runs in tables])
        return cls(
            size=sizes[first_rows],
            experts=experts[first_rows],
            tokens=np.array([tokens[rows].mean() for rows in groups]),
            model=model,
            ln_rate=np.log(rates),
            batch=batch,
            loss=loss,
        )

    def __len__(self) -> int:
        return len(self.size)

    @cached_property
    def rank(self) -> Rows:
        """The place of each run [n] among those of its model, from 0 for that of least loss."""
        order = np.lexsort((self.loss, self.model))
        place = np.argsort(order)
        return place - np.searchsorted(self.model[order], self.model)

    @cached_property
    def best(self) -> Rows:
        """The run of least loss of each model [models]."""
        rows = np.flatnonzero(self.rank == 0)
        return rows[np.argsort(self.model[rows])]

    def regret(self, law: LearningRateLaw, model: int) -> float:
        """Compute the loss at the law's rate above that of the model's best run, at the batch of that run; nats.

        Linear in ln LR between the runs of that batch; NaN outside of them.
        """
        best_run = self.best[model]
        is_comparable = self.model == model
        batch = None
        if self.batch is not None:
            batch = self.batch[best_run]
            is_comparable &= np.isclose(self.batch, batch, rtol=SAME)
        ln_rate = np.log(law.at(self.size[model], self.experts[model], self.tokens[model], batch))
        order = np.flatnonzero(is_comparable)[np.argsort(self.ln_rate[is_comparable])]
        loss = np.interp(ln_rate, self.ln_rate[order], self.loss[order], left=np.nan, right=np.nan)
        return float(loss - self.loss[best_run])


def _group_rows(tables: Sequence[Runs]) -> list[Rows]:
    """Return the rows of each model in the tables laid end to end."""
    groups: list[Rows] = []
    start = 0
    for runs in tables:
        for rows in models_of(runs, ("batch_tokens", *RATE_COLUMNS)):
            groups.append(rows + start)
        start += len(runs)
    return groups


def _concatenate(tables: Sequence[Runs], name: str) -> FloatArray:
    return np.concatenate([runs[name] for runs in tables])


def _read_batches(tables: Sequence[Runs], groups: Sequence[Rows]) -> FloatArray | None:
    """Return the batch of each run in tokens [n]; None unless some model has runs of several."""
    if not all("batch_tokens" in runs for runs in tables):
        return None
    batch = np.concatenate([runs.positive("batch_tokens") for runs in tables])
    largest_ratio = max(batch[rows].max() / batch[rows].min() for rows in groups)
    return None if largest_ratio <= 1 + SAME else batch


@dataclass(frozen=True, repr=False)
class LearningRateFit(Summarised):
    """A law fitted to a grid, and how well it is determined.

    `coefficients` are those of the law and, as best_batch.slope_n and so on, of the logarithm of the best batch in
    tokens where the grid has several; `draws` has theirs under a bootstrap over models. `regrets` [models], nats, are
    what the law costs each model when it is fitted without that model (NaN: the rate lies outside of its runs, or no
    law is determined); `law.regret` is their root mean square. `curvature` is that of the loss in ln LR and ln B,
    nats; `rmse` that of the paraboloids over the `runs` runs they were fitted to, nats. `models` has the counted
    parameters, experts and tokens of each model, with its best rate and the law's.
    """

    law: LearningRateLaw
    coefficients: Mapping[str, float]
    regrets: FloatArray
    curvature: FloatArray
    draws: Columns
    rmse: float
    runs: int
    models: Sequence[Fields] = ()

    def intervals(self, level: float = 0.95) -> dict[str, Interval]:
        """Return 95 % intervals of the `coefficients`, by the bootstrap over models."""
        return {name: percentile_interval(values, level) for name, values in self.draws.items()}

    def to_dict(self) -> Fields:
        return {
            "law": asdict(self.law),
            "coefficients": dict(self.coefficients),
            "intervals": self.intervals(),
            "curvature": self.curvature.tolist(),
            "regrets": [None if np.isnan(value) else value for value in self.regrets.tolist()],
            "rmse": self.rmse,
            "runs": self.runs,
            "models": [dict(model) for model in self.models],
        }

    def _headline(self) -> str:
        """Say the law and what it was fitted to."""
        return f"{self.law.formula}, {self.runs} runs of {len(self.models)} models"

    def summary(self) -> Tables:
        """Show the rates of the models beside the law's, and the coefficients with what the law costs."""
        models = []
        for model, regret in zip(self.models, self.regrets.tolist(), strict=True):
            row = (
                format_count(model["counted_parameters"]),
                f"{model['experts']:g}",
                format_count(model["tokens"]),
                f"{model['best_learning_rate']:.3g}",
                f"{model['law_learning_rate']:.3g}",
                "outside its runs" if math.isnan(regret) else f"{regret:+.4f}",
            )
            models.append(row)
        intervals = self.intervals()
        rows = []
        for name, value in self.coefficients.items():
            interval = "{:.4g}…{:.4g}".format(*intervals[name]) if name in intervals else ""
            rows.append((name, f"{value:.4g}", interval))
        regrets = self.regrets[~np.isnan(self.regrets)]
        if regrets.size:
            largest = f"at most {regrets.max():.4f} ({regrets.size} of {len(self.regrets)} models)"
            rows.append(("expected to cost", f"{self.law.regret:.4f} nats", largest))
        header = ("N", "E", "D", "best of the grid", "law", "loss it costs")
        coefficients = Table(("coefficient", "value", "95 % interval"), rows, title=self.law.source)
        return Tables((Table(header, models), coefficients))


@reads
def fit_learning_rate(
    runs: Runs | Sequence[Runs],
    extras: Collection[Extra] = EXTRAS,
    *,
    reading: Reading = "code",
    within: Positive = 0.03,
    huber_delta: Positive = 0.005,
    draws: Whole = 1000,
    seed: Whole = 0,
    mix: str | Collection[str] = (),
) -> LearningRateFit:
    """Fit a learning-rate law to all runs of a grid of learning rates, and of batches where they vary.

    Args:
        runs: tables with the columns `learning_rate` (or a run record's peak) and, if it was varied, `batch_tokens`.
        extras: what the law has besides N and (where several occur) E: "tokens", "batch". Without "batch" the rate is
            that of the best batch.
        reading: how N is counted: "code" needs the column d_model, "paper" needs n_active_non_embedding.
        within: runs that are further above their model's best loss are left out, nats; but never its best three.
        huber_delta: residuals beyond it weigh less, nats.
        draws: resamples of models (at one D each) for the intervals; 0 for none.
        mix: columns of the recipe in which the runs of a table may differ, as in `fit`.

    There are no intervals where fewer than nine in ten resamples determine a law, as with three models.

    RunsError where the runs determine no law: too few models, batches that never vary, no minimum, or several recipes.
    """
    for extra in extras:
        if extra not in EXTRAS:
            raise InputError(f"extras={extra!r} must be among {', '.join(EXTRAS)}")
    tables = [runs] if isinstance(runs, Runs) else list(runs)
    if not all(isinstance(table, Runs) for table in tables):
        raise InputError(f"runs={shorten(runs)} must be Runs, or a list of several")
    for table in tables:
        check_mix(table.recipe, (), mix, table.source)
    grid = SettingsGrid.of(tables, reading)
    if "batch" in extras and grid.batch is None:
        raise RunsError("batch: no model has runs of several batch_tokens; fit the law without it")
    is_near = grid.loss <= grid.loss[grid.best][grid.model] + within
    near = is_near | (grid.rank < 3)
    source = _describe_source(tables, grid, near, reading, within)
    metadata = {"reading": reading, "source": source, **_find_ranges(tables, grid, near, extras)}
    surface = _Surface(grid, near, extras, huber_delta)
    solution = surface.solve(np.ones(len(grid)))
    if solution is None:
        raise RunsError(f"{source}: no minimum of the loss; more settings or a larger `within` may determine one")
    regrets = _leave_out_models(grid, surface, metadata)
    squares = regrets[~np.isnan(regrets)] ** 2
    draws_by_name = _bootstrap(surface, solution, draws, seed)
    metadata["regret"] = math.sqrt(squares.mean()) if squares.size else None
    metadata["covariance"] = _covariance(draws_by_name)
    law = _make_law(surface, solution, metadata)
    return LearningRateFit(
        law=law,
        coefficients=surface.coefficients(solution),
        regrets=regrets,
        curvature=surface.curvature(solution),
        draws=draws_by_name,
        rmse=surface.rmse,
        runs=int(near.sum()),
        models=_list_models(grid, law),
    )


def _describe_source(
    tables: Sequence[Runs],
    grid: SettingsGrid,
    near: Mask,
    reading: Reading,
    within: float,
) -> str:
    """Say which runs, of which tables, the law is fitted to."""
    names = ", ".join(dict.fromkeys(table.source for table in tables))
    if len(names) > 120:
        names = "several tables"
    source = f"{near.sum()} of {len(grid.loss)} runs, within {within:g} nats of the best of their model and D"
    source += f" ({len(grid)} of these), {names}"
    if reading == "code" and not all("d_model" in table for table in tables):
        source += ", N as given"
    return source


def _make_law(
    surface: _Surface,
    solution: FloatArray,
    metadata: Mapping[str, Any],
) -> LearningRateLaw:
    fields: Fields = {"slope_e": 0.0}
    for name, value in surface.coefficients(solution).items():
        if "." not in name:
            fields[name] = value
    return LearningRateLaw(**fields, **metadata)


def _leave_out_models(
    grid: SettingsGrid,
    surface: _Surface,
    metadata: Mapping[str, Any],
) -> FloatArray:
    """Return the regret of each model under the law fitted without it, [models]; NaN where none is determined."""
    regrets = np.full(len(grid), np.nan)
    for model, indicator in enumerate(np.eye(len(grid))):
        solution = surface.solve(1 - indicator)
        if solution is not None:
            regrets[model] = grid.regret(_make_law(surface, solution, metadata), model)
    return regrets


def _covariance(draws: Columns) -> list[list[float]] | None:
    """Return the covariance of the law's coefficients, which is 0 for those that it lacks; None without draws."""
    if not draws:
        return None
    zeros = 0 * draws["intercept"]
    return np.cov([draws.get(name, zeros) for name in COEFFICIENTS]).tolist()


def _list_models(grid: SettingsGrid, law: LearningRateLaw) -> list[Fields]:
    """List the models with the rate of their best run and the law's, at the batch of that run."""
    batch = None if grid.batch is None else grid.batch[grid.best]
    columns = {
        "counted_parameters": grid.size,
        "experts": grid.experts,
        "tokens": grid.tokens,
        "best_learning_rate": np.exp(grid.ln_rate[grid.best]),
        "law_learning_rate": law.at(grid.size, grid.experts, grid.tokens, batch),
    }
    return rows_of(columns)


class _Surface:
    """The paraboloids of all models as one linear least-squares problem, without the constants of the models."""

    def __init__(
        self,
        grid: SettingsGrid,
        near: Mask,
        extras: Collection[Extra],
        delta: float,
    ) -> None:
        self.at_batch = "batch" in extras
        features = _log_features(grid, extras)
        self.names = ("intercept", *features)
        x = np.stack(list(features.values()), axis=1)
        self.means = x.mean(axis=0)
        design = np.column_stack([np.ones(len(x)), x - self.means])
        if np.linalg.matrix_rank(design) < design.shape[1]:
            symbols = ", ".join(_SYMBOLS[name] for name in features)
            raise RunsError(f"{len(grid)} models with too few distinct {symbols} to determine the learning-rate law")

        settings = [grid.ln_rate]
        if grid.batch is not None:
            settings.append(np.log(grid.batch))
        u = np.stack(settings, axis=1)[near]
        self.centre = u.mean(axis=0)
        u = u - self.centre
        model = grid.model[near]

        # The columns of H, then those of H u*, each scaled to length 1.
        self.pairs = np.triu_indices(u.shape[1])
        first, second = self.pairs
        squares = u[:, first] * u[:, second] / np.where(first == second, 2.0, 1.0)
        pulls = -u[:, :, None] * design[model][:, None, :]
        matrix = np.column_stack([squares, pulls.reshape(len(u), -1)])
        lengths = np.sqrt((matrix**2).sum(axis=0))
        self.scale = np.where(lengths > 0, lengths, 1.0)
        loss_above_best = grid.loss[near] - grid.loss[grid.best][model]
        self.model = model
        self._fit(np.column_stack([matrix / self.scale, loss_above_best]), delta)

    def _fit(self, values: FloatArray, delta: float) -> None:
        """Find Huber's weights by iteration; the last of the values' columns is the loss."""
        self.weights = np.ones(len(values))
        for _ in range(_STEPS):
            centred = _subtract_means(values, self.weights, self.model)
            root = np.sqrt(self.weights)
            solution = np.linalg.lstsq(centred[:, :-1] * root[:, None], centred[:, -1] * root, rcond=None)[0]
            residuals = centred[:, -1] - centred[:, :-1] @ solution
            self.weights = delta / np.maximum(np.abs(residuals), delta)
        self.rmse = float(np.sqrt(np.mean(residuals**2)))
        self.values = _subtract_means(values, self.weights, self.model)

    def solve(self, weights: FloatArray) -> FloatArray | None:
        """Return the coefficients with these weights of the models; None unless they determine a minimum."""
        of_runs = self.weights * weights[self.model]
        total = (self.values.T * of_runs) @ self.values
        squares = total[:-1, :-1]
        eigenvalues = np.linalg.eigvalsh(squares)
        if eigenvalues[0] <= _SINGULAR * eigenvalues[-1]:
            return None
        solution = np.asarray(np.linalg.solve(squares, total[:-1, -1]) / self.scale)
        return solution if np.linalg.eigvalsh(self.curvature(solution))[0] > 0 else None

    def curvature(self, solution: FloatArray) -> FloatArray:
        """Return H, nats."""
        first, second = self.pairs
        h = np.empty((len(self.centre), len(self.centre)))
        h[first, second] = solution[: len(first)]
        h[second, first] = h[first, second]
        return h

    def coefficients(self, solution: FloatArray) -> dict[str, float]:
        """Return the coefficients of the law, and as best_batch.* those of the logarithm of the best batch."""
        h = self.curvature(solution)
        # This is H u*.
        pull = solution[len(self.pairs[0]) :].reshape(len(self.centre), -1)
        optimum = np.linalg.solve(h, pull)
        if self.at_batch:
            slope = -h[0, 1] / h[0, 0]
            coefficients = self._uncentre(pull[0] / h[0, 0], self.centre[0] - slope * self.centre[1])
            coefficients["slope_batch"] = slope
        else:
            coefficients = self._uncentre(optimum[0], self.centre[0])
        if len(optimum) == 2:
            for name, value in self._uncentre(optimum[1], self.centre[1]).items():
                coefficients[f"best_batch.{name}"] = value
        return {name: float(value) for name, value in coefficients.items()}

    def _uncentre(self, centred: FloatArray, offset: float) -> dict[str, float]:
        """Return coefficients of the logarithms themselves, from those of their differences from the means."""
        intercept = centred[0] - centred[1:] @ self.means + offset
        return dict(zip(self.names, [intercept, *centred[1:]], strict=True))


def _log_features(grid: SettingsGrid, extras: Collection[Extra]) -> dict[str, FloatArray]:
    """Return the logarithms [models] that the law's slopes multiply; that of E only where E varies."""
    features = {"slope_n": np.log(grid.size)}
    log_experts = np.log(grid.experts)
    if np.ptp(log_experts) > 0:
        features["slope_e"] = log_experts
    if "tokens" in extras:
        features["slope_d"] = np.log(grid.tokens)
    return features


def _subtract_means(
    values: FloatArray,
    weights: FloatArray,
    model: Rows,
) -> FloatArray:
    """Subtract the weighted mean of their model from values [n, k], which leaves out its constant."""
    sums = np.stack([np.bincount(model, weights * column) for column in values.T], axis=1)
    means = sums / np.bincount(model, weights)[:, None]
    return np.asarray(values - means[model])


def _bootstrap(
    surface: _Surface,
    solution: FloatArray,
    draws: int,
    seed: int,
) -> dict[str, FloatArray]:
    """Return coefficients [draws] on resampled models; none where too few resamples determine a law."""
    if not draws:
        return {}
    n_models = int(surface.model.max()) + 1
    rng = np.random.default_rng(seed)
    resamples = rng.multinomial(n_models, np.full(n_models, 1 / n_models), size=draws)
    solutions = [surface.solve(counts.astype(float)) for counts in resamples]
    refits = [surface.coefficients(resampled) for resampled in solutions if resampled is not None]
    if len(refits) < 0.9 * draws:
        return {}
    # The usual correction for few clusters: resamples of m models scatter too little about a fit of k coefficients.
    stretch = math.sqrt(n_models / max(1, n_models - len(surface.names)))
    scattered = {}
    for name, value in surface.coefficients(solution).items():
        refitted = np.array([refit[name] for refit in refits])
        scattered[name] = value + stretch * (refitted - value)
    return scattered


def rate_column(runs: Runs) -> str:
    """Return the name of the column of learning rates."""
    return next((name for name in RATE_COLUMNS if name in runs), RATE_COLUMNS[0])


def _find_ranges(
    tables: Sequence[Runs],
    grid: SettingsGrid,
    near: Mask,
    extras: Collection[Extra],
) -> Fields:
    """Return the ranges of the law, and the vocabulary if all tables have the same."""
    columns = {"n_range": grid.size, "experts_range": grid.experts, "tokens_range": grid.tokens}
    if "batch" in extras and grid.batch is not None:
        columns["batch_range"] = grid.batch[near]
    ranges: Fields = {name: (float(values.min()), float(values.max())) for name, values in columns.items()}
    vocabularies = {runs.vocab_size for runs in tables}
    if len(vocabularies) == 1 and None not in vocabularies:
        ranges["vocab_size"] = vocabularies.pop()
    return ranges


def counted_sizes(runs: Runs, reading: Reading) -> FloatArray:
    """Return N [n] as a reading counts it; without d_model, "code" takes n_active as given, at most 1 % less.

    RunsError where neither the runs nor their shapes say what "paper" counts.
    """
    if reading == "code":
        return runs.n_active + PHANTOM_POSITIONS * runs["d_model"] if "d_model" in runs else runs.n_active
    if "n_active_non_embedding" in runs:
        return runs["n_active_non_embedding"]
    if "d_model" in runs and "n_blocks" in runs:
        return np.asarray(total_parameters(runs["d_model"], 1, runs["n_blocks"], 0))
    missing = "n_active_non_embedding, or d_model and n_blocks, are needed"
    raise RunsError(f"{runs.source}: {missing}: reading 'paper' counts N without embeddings")
