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
from itertools import combinations_with_replacement
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hub.base.errors import InputError
from hub.base.inputs import reads, shortened, whole
from hub.base.tables import Table
from hub.base.units import format_count
from scaling_law.formulas.law import percentile_interval
from scaling_law.formulas.learning_rate import COEFFICIENTS, PHANTOM_POSITIONS, READINGS, LearningRateLaw, Reading
from scaling_law.runs.recipes import check_mix
from scaling_law.runs.rows import RunsError
from scaling_law.runs.table import Runs
from scaling_law.runs.tuning import SAME, loss_between, models_of
from scaling_law.size.architecture import non_embedding_parameters
from scaling_law.size.arrays import FloatArray

Extra = Literal["tokens", "batch"]
EXTRAS: tuple[Extra, ...] = ("tokens", "batch")
# The column of a mapped table, and that of run records.
RATE_COLUMNS = ("learning_rate", "schedule_peak_learning_rate")
# Iterations of the robust weights.
_STEPS = 30
# Least share of the largest eigenvalue of sums of squares of unit columns.
_SINGULAR = 1e-10


@dataclass(frozen=True)
class SettingsGrid:
    """Runs [n] over learning rates and, where it varies for a model, batches.

    `model` [n] counts models from 0; at another D it is another model. `size`, `experts` and `tokens` [models] are N
    as a reading counts it, E and D; `batch` is in tokens, None if no model has runs of several.
    """

    size: FloatArray
    experts: FloatArray
    tokens: FloatArray
    model: NDArray[np.intp]
    ln_rate: FloatArray
    batch: FloatArray | None
    loss: FloatArray

    @classmethod
    def of(cls, tables: Sequence[Runs], reading: Reading = "code") -> SettingsGrid:
        """The grids of tables that share a loss; RunsError for a missing or non-positive setting, and without runs."""
        if not sum(map(len, tables)):
            raise RunsError("no runs to fit a learning-rate law to")
        groups, start = list[NDArray[np.intp]](), 0
        for runs in tables:
            groups += [group + start for group in models_of(runs, ("batch_tokens", *RATE_COLUMNS))]
            start += len(runs)
        joined = {name: np.concatenate([runs[name] for runs in tables]) for name in ("experts", "tokens", "loss")}
        first = np.array([group[0] for group in groups])
        model = np.empty(start, np.intp)
        for label, group in enumerate(groups):
            model[group] = label
        has_batch = all("batch_tokens" in runs for runs in tables)
        rates = [rate_column(runs) for runs in tables]
        batch = np.concatenate([runs.positive("batch_tokens") for runs in tables]) if has_batch else None
        if batch is not None and max(batch[group].max() / batch[group].min() for group in groups) <= 1 + SAME:
            batch = None
        return cls(
            size=np.concatenate([counted_sizes(runs, reading) for runs in tables])[first],
            experts=joined["experts"][first],
            tokens=np.array([joined["tokens"][group].mean() for group in groups]),
            model=model,
            ln_rate=np.log(np.concatenate([runs.positive(rate) for runs, rate in zip(tables, rates, strict=True)])),
            batch=batch,
            loss=joined["loss"],
        )

    def __len__(self) -> int:
        return len(self.size)

    @cached_property
    def best(self) -> NDArray[np.intp]:
        """The run of least loss of each model [models]."""
        order = np.lexsort((self.loss, self.model))
        return order[np.searchsorted(self.model[order], np.arange(len(self)))]

    def near_best(self, within: float) -> NDArray[np.bool_]:
        """Mark the runs [n] whose loss is `within` nats of the best of their model, and the best three of each."""
        near = self.loss <= self.loss[self.best][self.model] + within
        order = np.lexsort((self.loss, self.model))
        starts = np.searchsorted(self.model[order], np.arange(len(self)))
        rank = np.empty(len(self.loss), np.intp)
        rank[order] = np.arange(len(order)) - starts[self.model[order]]
        return near | (rank < 3)

    def regret(self, law: LearningRateLaw, model: int) -> float:
        """The loss at the law's rate above that of the model's best run, at the batch of that run; nats.

        Linear in ln LR between the runs of that batch; NaN outside of them.
        """
        at = self.best[model]
        near = self.model == model
        batch = None
        if self.batch is not None:
            batch = self.batch[at]
            near &= np.isclose(self.batch, batch, rtol=SAME)
        rate = np.log(law.at(self.size[model], self.experts[model], self.tokens[model], batch))
        order = np.flatnonzero(near)[np.argsort(self.ln_rate[near])]
        return loss_between(rate, self.ln_rate[order], self.loss[order]) - float(self.loss[at])

    def best_rates(self, within: float = 0.03) -> BestRates:
        """The best rate at each batch whose best run is `within` nats of its model's, from runs `within` of that run.

        Their losses are parabolas in ln LR of one curvature. A batch with one such run, or whose minimum lies outside
        of its runs, is left out. RunsError where no curvature is determined.
        """
        batch = np.zeros(len(self.loss)) if self.batch is None else np.round(np.log(self.batch) / SAME)
        places, label = np.unique(np.stack([self.model, batch]), axis=1, return_inverse=True)
        least = np.full(places.shape[1], np.inf)
        np.minimum.at(least, label, self.loss)
        model = places[0].astype(np.intp)
        tuned = least <= self.loss[self.best[model]] + within
        near = np.flatnonzero(tuned[label] & (self.loss <= least[label] + within))
        of, x, size = label[near], self.ln_rate[near], len(least)
        runs = np.bincount(of, minlength=size)
        centre = np.bincount(of, x, size) / np.maximum(runs, 1)
        x = x - centre[of]
        one = np.eye(size)[of]
        design = np.column_stack([x**2 / 2, one, one * x[:, None]])
        solution, _, rank, _ = np.linalg.lstsq(design, self.loss[near], rcond=None)
        curvature, freedom = float(solution[0]), len(near) - rank
        if freedom < 1 or curvature <= 0:
            raise RunsError("no minimum of the loss over learning rates; more rates or a larger `within` may have one")
        noise = float(np.linalg.norm(self.loss[near] - design @ solution)) / math.sqrt(freedom)
        best = centre - solution[1 + size :] / curvature
        ends = np.array([[f(self.ln_rate[label == i]) for f in (np.min, np.max)] for i in range(size)]).T
        kept = (runs > 1) & (ends[0] <= best) & (best <= ends[1])
        error = noise / (curvature * np.sqrt(np.bincount(of, x**2, size)[kept]))
        return BestRates(model[kept], places[1][kept] * SAME, best[kept], error, curvature, noise)


class BestRates(NamedTuple):
    """Best rates [n] of a grid: ln LR of `model` at ln `batch` (tokens), with its standard error.

    `curvature` is that of the loss in ln LR, `noise` the scatter of losses about the parabolas, nats.
    """

    model: NDArray[np.intp]
    batch: FloatArray
    ln_rate: FloatArray
    error: FloatArray
    curvature: float
    noise: float


class LearningRateFit(NamedTuple):
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
    draws: Mapping[str, FloatArray]
    rmse: float
    runs: int
    models: Sequence[Mapping[str, float]] = ()

    def intervals(self, level: float = 0.95) -> dict[str, tuple[float, float]]:
        """95 % intervals of the `coefficients`, by the bootstrap over models."""
        return {name: percentile_interval(values, level) for name, values in self.draws.items()}

    def to_dict(self) -> dict[str, Any]:
        values: dict[str, Any] = {"law": asdict(self.law), "coefficients": dict(self.coefficients)}
        regrets = [None if np.isnan(value) else value for value in self.regrets.tolist()]
        values |= {"intervals": self.intervals(), "curvature": self.curvature.tolist(), "regrets": regrets}
        return values | {"rmse": self.rmse, "runs": self.runs, "models": [dict(model) for model in self.models]}

    def table(self) -> Table:
        """Coefficients with their 95 % intervals, and what the law costs."""
        intervals = {name: "{:.4g}…{:.4g}".format(*ends) for name, ends in self.intervals().items()}
        rows = [(name, f"{value:.4g}", intervals.get(name, "")) for name, value in self.coefficients.items()]
        regrets = self.regrets[~np.isnan(self.regrets)]
        if regrets.size:
            worst = f"at most {regrets.max():.4f} ({regrets.size} of {len(self.regrets)} models)"
            rows.append(("expected to cost", f"{self.law.regret:.4f} nats", worst))
        return Table(("coefficient", "value", "95 % interval"), rows, title=self.law.source)

    def models_table(self) -> Table:
        """Lay out each model's best rate beside the law's, and what the law costs when it has not seen the model."""
        rows = []
        for model, regret in zip(self.models, self.regrets, strict=True):
            sizes = format_count(model["counted_parameters"]), f"{model['experts']:g}", format_count(model["tokens"])
            best, law = f"{model['best_learning_rate']:.3g}", f"{model['law_learning_rate']:.3g}"
            cost = "outside its runs" if np.isnan(regret) else f"{regret:+.4f}"
            rows.append((*sizes, best, law, cost))
        return Table(("N", "E", "D", "best of the grid", "law", "loss it costs"), rows)


def _read_tables(name: str, value: Any) -> list[Runs]:
    """Read one table or a list of them. InputError for anything else."""
    tables = [value] if isinstance(value, Runs) else value
    if not isinstance(tables, (list, tuple)) or not all(isinstance(table, Runs) for table in tables):
        raise InputError(f"{name}={shortened(value)} must be Runs, or a list of several")
    return list(tables)


@reads(runs=_read_tables, draws=whole(), seed=whole())
def fit_learning_rate(
    runs: Runs | Sequence[Runs],
    extras: Collection[Extra] = EXTRAS,
    *,
    reading: Reading = "code",
    within: float = 0.03,
    huber_delta: float = 0.005,
    draws: int = 1000,
    seed: int = 0,
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
    _check(extras, reading, within, huber_delta)
    tables = _read_tables("runs", runs)
    for table in tables:
        check_mix(table.recipe, (), mix, table.source)
    grid = SettingsGrid.of(tables, reading)
    if "batch" in extras and grid.batch is None:
        raise RunsError("batch: no model has runs of several batch_tokens; fit the law without it")
    near = grid.near_best(within)
    names = ", ".join(dict.fromkeys(table.source for table in tables))
    source = f"{near.sum()} of {len(grid.loss)} runs, within {within:g} nats of the best of their model and D"
    source += f" ({len(grid)} of these), {names if len(names) <= 120 else 'several tables'}"
    if reading == "code" and not all("d_model" in table for table in tables):
        source += ", N as given"
    metadata = {"reading": reading, "source": source} | _conditions(tables, grid, near, extras)
    surface = _Surface(grid, near, extras, huber_delta)

    def law(solution: FloatArray, **more: Any) -> LearningRateLaw:
        coefficients = {name: value for name, value in surface.coefficients(solution).items() if "." not in name}
        return LearningRateLaw(**{"slope_e": 0.0} | coefficients | metadata | more)

    solution = surface.solve(np.ones(len(grid)))
    if solution is None:
        raise RunsError(f"{source}: no minimum of the loss; more settings or a larger `within` may determine one")
    without = (surface.solve(1 - one) for one in np.eye(len(grid)))
    regrets = np.array([np.nan if left is None else grid.regret(law(left), i) for i, left in enumerate(without)])
    squares = regrets[~np.isnan(regrets)] ** 2
    drawn = _bootstrap(surface, solution, draws, seed)
    covariance = np.cov([drawn.get(name, 0 * drawn["intercept"]) for name in COEFFICIENTS]).tolist() if drawn else None
    return LearningRateFit(
        law=law(solution, regret=math.sqrt(squares.mean()) if squares.size else None, covariance=covariance),
        coefficients=surface.coefficients(solution),
        regrets=regrets,
        curvature=surface.curvature(solution),
        draws=drawn,
        rmse=surface.rmse,
        runs=int(near.sum()),
        models=_models(grid, law(solution)),
    )


def _models(grid: SettingsGrid, law: LearningRateLaw) -> list[dict[str, float]]:
    """List the models with the rate of their best run and the law's, at the batch of that run."""
    batch = None if grid.batch is None else grid.batch[grid.best]
    columns = {
        "counted_parameters": grid.size,
        "experts": grid.experts,
        "tokens": grid.tokens,
        "best_learning_rate": np.exp(grid.ln_rate[grid.best]),
        "law_learning_rate": law.at(grid.size, grid.experts, grid.tokens, batch),
    }
    return [{name: float(values[i]) for name, values in columns.items()} for i in range(len(grid))]


class _Surface:
    """The paraboloids of all models as one linear least-squares problem, kept as the sums [models] of their runs."""

    def __init__(self, grid: SettingsGrid, near: NDArray[np.bool_], extras: Collection[Extra], delta: float) -> None:
        self.at_batch = "batch" in extras
        features = {"slope_n": grid.size, "slope_e": grid.experts}
        features |= {"slope_d": grid.tokens} if "tokens" in extras else {}
        logarithms = {name: np.log(values) for name, values in features.items()}
        logarithms = {name: x for name, x in logarithms.items() if name != "slope_e" or np.ptp(x) > 0}
        self.names = ("intercept", *logarithms)
        x = np.stack(list(logarithms.values()), axis=1)
        self.means = x.mean(axis=0)
        design = np.column_stack([np.ones(len(x)), x - self.means])
        if np.linalg.matrix_rank(design) < design.shape[1]:
            what = ", ".join({"slope_n": "N", "slope_e": "E", "slope_d": "D"}[name] for name in logarithms)
            raise RunsError(f"{len(grid)} models with too few distinct {what} to determine the learning-rate law")
        settings = np.stack([grid.ln_rate, *([] if grid.batch is None else [np.log(grid.batch)])], axis=1)[near]
        self.centre = settings.mean(axis=0)
        u, model = settings - self.centre, grid.model[near]
        self.pairs = list(combinations_with_replacement(range(u.shape[1]), 2))
        quadratic = [u[:, i] * u[:, j] / (2 if i == j else 1) for i, j in self.pairs]
        linear = [-u[:, [i]] * design[model] for i in range(u.shape[1])]
        columns = np.column_stack([*quadratic, *linear])
        lengths = np.sqrt((columns**2).sum(axis=0))
        self.scale = np.where(lengths > 0, lengths, 1.0)
        loss = grid.loss[near] - grid.loss[grid.best][model]
        self._fit(columns / self.scale, loss, model, len(grid), delta)

    def _fit(self, columns: FloatArray, loss: FloatArray, model: NDArray[np.intp], models: int, delta: float) -> None:
        """Huber's weights by iteration, then the sums of each model under these weights."""
        values, weights = np.column_stack([columns, loss]), np.ones(len(loss))
        for _ in range(_STEPS):
            centred, root = _centred(values, weights, model), np.sqrt(weights)
            solution = np.linalg.lstsq(centred[:, :-1] * root[:, None], centred[:, -1] * root, rcond=None)[0]
            residuals = centred[:, -1] - centred[:, :-1] @ solution
            weights = delta / np.maximum(np.abs(residuals), delta)
        self.rmse = float(np.sqrt(np.mean(residuals**2)))
        centred = _centred(values, weights, model)
        rows = [np.flatnonzero(model == label) for label in range(models)]
        self.sums = np.stack([(centred[at].T * weights[at]) @ centred[at] for at in rows])

    def solve(self, weights: FloatArray) -> FloatArray | None:
        """The coefficients with these weights of the models; None unless they determine a minimum."""
        total = np.tensordot(weights, self.sums, axes=1)
        squares, products = total[:-1, :-1], total[:-1, -1]
        eigenvalues = np.linalg.eigvalsh(squares)
        if eigenvalues[0] <= _SINGULAR * eigenvalues[-1]:
            return None
        solution = np.asarray(np.linalg.solve(squares, products) / self.scale)
        return solution if np.linalg.eigvalsh(self.curvature(solution))[0] > 0 else None

    def curvature(self, solution: FloatArray) -> FloatArray:
        """H, nats."""
        h = np.empty((len(self.centre), len(self.centre)))
        for (i, j), value in zip(self.pairs, solution, strict=False):
            h[i, j] = h[j, i] = value
        return h

    def coefficients(self, solution: FloatArray) -> dict[str, float]:
        """Coefficients of the law, and as best_batch.* those of the logarithm of the best batch."""
        h, pull = self.curvature(solution), solution[len(self.pairs) :].reshape(len(self.centre), -1)  # H u*
        optimum = np.linalg.solve(h, pull)
        if not self.at_batch:
            named = self._named(optimum[0], self.centre[0])
        else:
            slope = -h[0, 1] / h[0, 0]
            named = self._named(pull[0] / h[0, 0], self.centre[0] - slope * self.centre[1]) | {"slope_batch": slope}
        if len(optimum) == 2:
            batch = self._named(optimum[1], self.centre[1])
            named |= {f"best_batch.{name}": value for name, value in batch.items()}
        return {name: float(value) for name, value in named.items()}

    def _named(self, centred: FloatArray, offset: float) -> dict[str, float]:
        """Coefficients of the logarithms themselves, from those of their differences from the means."""
        return dict(zip(self.names, [centred[0] - centred[1:] @ self.means + offset, *centred[1:]], strict=True))


def _centred(values: FloatArray, weights: FloatArray, model: NDArray[np.intp]) -> FloatArray:
    """Values [n, k] less the weighted mean of their model, which leaves out its constant."""
    sums = np.stack([np.bincount(model, weights * column) for column in values.T], axis=1)
    return np.asarray(values - (sums / np.bincount(model, weights)[:, None])[model])


def _bootstrap(surface: _Surface, solution: FloatArray, draws: int, seed: int) -> dict[str, FloatArray]:
    """Return coefficients [draws] on resampled models; none where too few resamples determine a law."""
    if not draws:
        return {}
    rng, models = np.random.default_rng(seed), len(surface.sums)
    weights = rng.multinomial(models, np.full(models, 1 / models), size=draws)
    solved = [one for counts in weights if (one := surface.solve(counts.astype(float))) is not None]
    if len(solved) < 0.9 * draws:
        return {}
    refits = [surface.coefficients(one) for one in solved]
    # the usual correction for few clusters: resamples of m models scatter too little about a fit of k coefficients
    stretch = math.sqrt(models / max(1, models - len(surface.names)))
    whole = surface.coefficients(solution)
    return {
        name: value + stretch * (np.array([refit[name] for refit in refits]) - value) for name, value in whole.items()
    }


def rate_column(runs: Runs) -> str:
    """Return the name of the column of learning rates."""
    return next((name for name in RATE_COLUMNS if name in runs), RATE_COLUMNS[0])


def _check(extras: Collection[str], reading: str, within: float, huber_delta: float) -> None:
    if bad := [extra for extra in extras if extra not in EXTRAS]:
        raise InputError(f"extras={bad[0]!r} must be among {', '.join(EXTRAS)}")
    if reading not in READINGS:
        raise InputError(f"reading={reading!r} must be 'code' or 'paper'")
    for name, value in (("within", within), ("huber_delta", huber_delta)):
        if not 0 < value < float("inf"):
            raise InputError(f"{name}={value!r} must be positive and finite")


def _conditions(
    tables: Sequence[Runs], grid: SettingsGrid, near: NDArray[np.bool_], extras: Collection[Extra]
) -> dict[str, Any]:
    """The ranges of the law, and the vocabulary if all tables have the same."""
    spans = {"n_range": grid.size, "experts_range": grid.experts, "tokens_range": grid.tokens}
    if "batch" in extras and grid.batch is not None:
        spans["batch_range"] = grid.batch[near]
    ranges: dict[str, Any] = {name: (float(values.min()), float(values.max())) for name, values in spans.items()}
    vocabularies = {runs.vocab_size for runs in tables}
    return ranges | ({"vocab_size": vocabularies.pop()} if len(vocabularies) == 1 and None not in vocabularies else {})


def counted_sizes(runs: Runs, reading: Reading) -> FloatArray:
    """Return N [n] as a reading counts it; without d_model, "code" takes n_active as given, at most 1 % less.

    RunsError where neither the runs nor their shapes say what "paper" counts.
    """
    if reading == "code":
        return runs.n_active + PHANTOM_POSITIONS * runs["d_model"] if "d_model" in runs else runs.n_active
    if "n_active_non_embedding" in runs:
        return runs["n_active_non_embedding"]
    if "d_model" in runs and "n_blocks" in runs:
        return np.asarray(non_embedding_parameters(runs["d_model"], runs["n_blocks"]))
    needed = "n_active_non_embedding, or d_model and n_blocks, are needed"
    raise RunsError(f"{runs.source}: {needed}: reading 'paper' counts N without embeddings")
