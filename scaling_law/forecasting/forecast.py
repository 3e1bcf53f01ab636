"""The loss of runs not yet trained, from all laws that the runs support: `forecast(runs, at=…)`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from rich.console import Group
from scipy.stats import norm

from hub.base.errors import InputError, unknown
from hub.base.inputs import as_it_is, reads, whole
from hub.base.tables import Table
from hub.base.units import format_count
from scaling_law.figures import drawing
from scaling_law.fitting.holdout import count_sizes
from scaling_law.fitting.prior import Prior, read_prior
from scaling_law.fitting.repetition import REPEATED, UNIQUE, with_unique_tokens
from scaling_law.forecasting.forecasters import EQUAL_RATIOS, VARIABLES, forecasters, have
from scaling_law.forecasting.repetition import count_worth, fit_worth, say_repetition
from scaling_law.forecasting.stack import Defaults, distances, gather, read_defaults, stack
from scaling_law.formulas.accuracy import accuracy_cells, describe_accuracies, parse_tasks, predict_accuracies
from scaling_law.formulas.answers import Answer, span
from scaling_law.formulas.conditions import RangeCheck
from scaling_law.formulas.law import check_level, check_shapes, numbers, positive
from scaling_law.runs.loading import load_runs
from scaling_law.runs.recipes import check_mix, names_mixed
from scaling_law.runs.table import Runs
from scaling_law.runs.thinning import rows_of_curves, sample_of, with_few_checkpoints
from scaling_law.size.arrays import FloatArray

MODEL = ("n_active", "tokens", "experts")
UNITS = (0.1, 0.15)  # standard deviations of ln loss and ln D between the prior's corpora and tokenizers and another
OTHER_UNIT, FREE_UNIT = 0.35, 1.0  # ln loss from the prior's beyond which its unit is freed, and how far
# Error of ln L at an E that no run has: 0.03 to 0.04 nats (docs/studies/evidence.md).
EXPERTS_ERROR = 0.015
MOST = 2000  # runs that laws are fitted to, at many cuts and on a hundred resamples
# Steps of a fan, from the largest run to a point.
STEPS = np.linspace(0.0, 1.0, 9)


@dataclass(frozen=True, eq=False, repr=False)
class Forecast(Answer):
    """The loss at each point, with the interval that holds a new run with probability `level`.

    `laws` has a row for each law, with a value for each point: its forecasts, weights, and RMSE at the cuts within
    the runs (NaN without one). `left_out` says why others say nothing. `fans` [points, steps] are FLOPs, ln L and its
    spread on the way from the largest run. `blended`: the runs differ too much in other settings for one forecast.
    """

    rows: tuple[dict[str, Any], ...]
    laws: tuple[dict[str, Any], ...]
    left_out: Mapping[str, str]
    level: float
    runs: Runs
    fans: tuple[FloatArray, FloatArray, FloatArray]
    blended: bool = False

    @property
    def trusted(self) -> bool:
        """Whether the models lie within the range guard of runs that one law describes."""
        return not self.blended and super().trusted

    @property
    def verdict(self) -> str:
        row = self.rows[0]
        size = f"{format_count(row['n_active'])} active parameters, {format_count(row['tokens'])} tokens"
        loss = f"loss {row['loss']:.3f} ({self.level:.0%}: {row['low']:.3f} to {row['high']:.3f})"
        more = f"; {len(self.rows) - 1} more" if len(self.rows) > 1 else ""
        return f"E = {row['experts']:g}, {size}: {loss}{more}{'' if self.trusted else '; not trusted'}"

    def facts(self) -> dict[str, Any]:
        return {"level": self.level, "runs": len(self.runs), "laws": list(self.laws), "left_out": dict(self.left_out)}

    def summary(self) -> Group:  # type: ignore[override]
        points = Table.of(
            [
                {name: value for name, value in row.items() if name != "accuracy"}
                | {"times_beyond": f"×{row['times_beyond']:.3g}"}
                | accuracy_cells(row.get("accuracy"))
                for row in self.rows
            ],
            title=self.verdict,
            keys=("N_act", "tokens", "E"),
            notes=[f"intervals of {self.level:.0%}; times_beyond: how far beyond the largest run"],
        )
        laws = sorted(self.laws, key=lambda law: -float(np.mean(law["weights"])))
        cells = [
            (law["law"], span(law["weights"], "{:.2f}".format), *(_span(law[key]) for key in ("losses", "backtests")))
            for law in laws
        ]
        reasons = {name: why.removeprefix(f"{self.runs.source}: ") for name, why in self.left_out.items()}
        notes = [f"left out: {name}: {why.partition(';')[0]}" for name, why in reasons.items()]
        header = ("law", "weight", "loss", "RMSE within the runs")
        return Group(points, Table(header, cells, notes=notes, warnings=self.warnings))

    def figure(self, ax: Any = None) -> Any:
        """A fan chart: the runs, and from the largest of them to each point the forecast with two intervals."""
        ax = drawing.axes_or_new(ax)
        for e in np.unique(self.runs.experts):
            part = self.runs.subset(self.runs.experts == e)
            ax.plot(part.flops, part.loss, ".", color=drawing.colour_of(e), label=drawing.label_of(e), alpha=0.6)
        for row, flops, log_loss, spread in zip(self.rows, *self.fans, strict=True):
            colour = drawing.colour_of(row["experts"])
            for level in (0.5, self.level):
                ax.fill_between(flops, *interval(log_loss, spread, level), color=colour, alpha=0.18, linewidth=0)
            ax.plot(flops, np.exp(log_loss), color=colour)
            ax.plot(row["flops"], row["loss"], "D", color=colour)
        drawing.log_axis(ax, drawing.FLOPS)
        ax.set_ylabel(drawing.LOSS)
        ax.set_title(f"intervals of 50 % and {self.level:.0%}", fontsize="medium")
        drawing.legend(ax)
        return ax


@reads(seed=whole(), prior=as_it_is)
def forecast(
    runs: Any,
    at: Any,
    *,
    prior: Prior | Literal["public"] | None = "public",
    kinds: str | Collection[str] | None = None,
    level: float = 0.9,
    seed: int = 0,
    mix: str | Collection[str] = (),
    accuracy: str | Sequence[str] = (),
    unique_tokens: str | ArrayLike | None = None,
    epochs: str | ArrayLike | None = None,
) -> Forecast:
    """Forecast the loss of runs not yet trained, from all laws that `runs` support.

    Args:
        runs: a Runs, or anything `load_runs` reads.
        at: the models: a mapping such as {"n_active": "2B", "tokens": "8T", "experts": 256}, whose values broadcast,
            a list of such, a DataFrame or a Runs. `experts` may be left out where the runs share one E.
        prior: "public" (laws like those of other labs are among the candidates), what `scaling_law.prior` returns, or
            None for laws of these runs alone.
        kinds: the laws that compete: "chinchilla", "interaction", "ladder", "published", "prior", "prior by compute",
            "interaction prior", "interaction prior by compute", or another registered kind; None for these and the
            kinds that have E.
        level: of the intervals.
        seed: of the bootstrap behind them.
        mix: as in `fit`.
        accuracy: tasks whose accuracy to expect at each loss, as of `Law.optimal`.
        unique_tokens, epochs: of the runs, as in `fit`: repeated tokens count as what they are worth. Models in `at`
            have `unique_tokens` or `epochs` of their own; without, all their tokens are unique.

    Each law is fitted below several cuts within the runs, judged above them, and weighed by that (see
    `forecasting.stack`). ValueError for models that cannot be and for runs that no law can forecast from; RunsError
    for an unreadable table and for runs of several recipes.
    """
    check_level(level)
    tasks = parse_tasks(accuracy)
    table = read_table(runs)
    check_mix(table.recipe, (), mix, table.source, (*table.columns, *table.texts))
    if counted := not (unique_tokens is None and epochs is None):
        table = with_unique_tokens(table, unique_tokens, epochs)
    doubts, blended = table.doubts({*REPEATED, *names_mixed(mix)})
    points = points_of(at, table)
    in_units, defaults, notes = learnt(prior, table)
    steps = _joined([_way(table, points.take(np.array([i]))) for i in range(len(points))])
    worth = table, steps
    if counted:
        of_worth = fit_worth(table, in_units)
        worth = count_worth(of_worth.law, table), count_worth(of_worth.law, steps)
        notes = (*notes, f"the laws count {of_worth.law.repetition}", *of_worth.status.repetition)
    else:
        notes = (*notes, *say_repetition(table))
    log_loss, spread, laws, left_out = _stacked(*worth, in_units, kinds, seed, defaults)
    flops, log_loss, spread = (values.reshape(len(points), -1) for values in (steps.flops, log_loss, spread))
    low, high = interval(log_loss[:, -1], spread[:, -1], level)
    columns = {name: getattr(points, name) for name in (*MODEL, "flops")}
    columns |= {UNIQUE: points[UNIQUE]} if counted and UNIQUE in points else {}
    columns |= {"loss": np.exp(log_loss[:, -1]), "low": low, "high": high}
    columns["times_beyond"] = np.exp(distances(table, points).max(axis=0))
    rows: list[dict[str, Any]] = [
        dict(zip(columns, map(float, row), strict=True)) for row in zip(*columns.values(), strict=True)
    ]
    if tasks and notes:
        raise InputError(f"accuracy: {notes[0]}")
    for row in rows if tasks else ():
        row["accuracy"] = predict_accuracies(tasks, row["loss"], (row["low"], row["high"]), level)
    at_points = {name: of_law[:, len(STEPS) - 1 :: len(STEPS)].tolist() for name, of_law in laws.items()}
    return Forecast(
        tuple(rows),
        tuple({"law": name, "losses": t[0], "weights": t[1], "backtests": t[2]} for name, t in at_points.items()),
        left_out,
        level,
        table,
        (flops, log_loss, spread),
        blended,
        check=RangeCheck(table.conditions(table.source), MODEL, {name: getattr(points, name) for name in MODEL}),
        notes=(
            *filter(None, [table.thinned]),
            *doubts,
            *notes,
            *describe_accuracies(tasks, columns["loss"]),
            *_blind_spots(table, points, at_points),
        ),
    )


def read_table(runs: Any) -> Runs:
    """Read the runs to forecast from; of large tables, a few checkpoints of each run and at most about `MOST` runs."""
    table = runs if isinstance(runs, Runs) else load_runs(runs)
    return sample_of(with_few_checkpoints(table, rows_of_curves(table)), MOST)


def _stacked(
    runs: Runs, points: Runs, prior: Prior | None, kinds: Collection[str] | None, seed: int, defaults: Defaults
) -> tuple[FloatArray, FloatArray, dict[str, FloatArray], dict[str, str]]:
    """ln L and its spread on the ways to the points [n], what laws say there [3, n], and why others say nothing."""
    log_loss, spread = np.zeros((2, len(points)))
    laws, left_out = dict[str, FloatArray](), dict[str, str]()
    plain, asked = runs.without_settings(VARIABLES), np.arange(len(points)) % len(STEPS) == len(STEPS) - 1
    for e in np.unique(points.experts):
        here, matching = np.flatnonzero(points.experts == e), have(runs, float(e))
        candidates = forecasters(plain, float(e), prior, kinds, seed)
        evidence = gather(plain, points.take(here), candidates, matching if matching.any() else True)
        answer = stack(evidence, defaults)
        log_loss[here] = answer.log_loss
        spread[here] = np.hypot(answer.spread, 0.0 if matching.any() else EXPERTS_ERROR)
        left_out |= evidence.left_out
        for name, of_law in answer.laws.items():
            if np.isnan(of_law[0, asked[here]]).all():
                left_out[name] = candidates[name].silent
                continue
            empty = np.array([np.nan, 0.0, np.nan])[:, None].repeat(len(points), axis=1)
            laws.setdefault(name, empty)[:, here] = of_law
    return log_loss, spread, laws, left_out


def interval(log_loss: Any, spread: Any, level: float) -> tuple[Any, Any]:
    """The interval of the loss around ln L with this spread."""
    reach = norm.ppf(0.5 + level / 2) * np.asarray(spread)
    return np.exp(log_loss - reach), np.exp(log_loss + reach)


def _span(values: Sequence[float]) -> str:
    finite = [value for value in values if np.isfinite(value)]
    return span(finite, "{:.4f}".format) if finite else ""


# ------------------------------------------------------------------ what is asked


def points_of(at: Any, runs: Runs) -> Runs:
    """The models that are asked, as runs whose loss is NaN. ValueError for unknown names and impossible values."""
    if hasattr(at, "to_dict") and not isinstance(at, Mapping):  # a DataFrame
        at = at.to_dict("records")
    several = isinstance(at, Sequence) and not isinstance(at, str)
    if (several or isinstance(at, Runs)) and not len(at):
        raise InputError("at: no model to forecast")
    if isinstance(at, Runs):
        return at
    return _joined([_points(one, runs) for one in (at if several else [at])])


def _points(at: Any, runs: Runs) -> Runs:
    if not isinstance(at, Mapping):
        raise InputError(f"at={at!r} must map n_active, tokens and experts to numbers, or be a list of such")
    usual = float(np.exp(np.median(np.log(runs.experts))))
    if "experts" not in at and not have(runs, usual).all():
        raise InputError(
            f"experts must be given: the runs have {', '.join(f'{e:g}' for e in np.unique(runs.experts))}"
        )
    values = {"experts": usual, **at}
    if missing := [name for name in MODEL if name not in values]:
        raise InputError(f"{missing[0]} must be given: a model is n_active, tokens and experts")
    arrays = {name: numbers(name, value) for name, value in values.items()}
    if UNIQUE in runs:
        arrays = _with_unique(arrays)
    for name, column in arrays.items():
        if name not in (*MODEL, *runs.columns):
            raise InputError(unknown("at: ", name, (*MODEL, *runs.columns)))
        positive(name, column, 1.0 if name == "experts" else 0.0)
        if not column.size:
            raise InputError(f"{name}={values[name]!r} must be one number or a list of them")
    check_shapes(arrays)
    return table_of(dict(zip(arrays, np.broadcast_arrays(*map(np.atleast_1d, arrays.values())), strict=True)))


def _with_unique(model: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """The model with its unique tokens: as given, by its epochs, or all of them."""
    if UNIQUE in model and "epochs" in model:
        raise InputError("unique_tokens, epochs: give one of them for a model, the other follows")
    epochs = positive("epochs", model.get("epochs", 1.0))
    rest = {name: values for name, values in model.items() if name != "epochs"}
    return {UNIQUE: model["tokens"] / epochs, **rest}


def table_of(columns: Mapping[str, FloatArray]) -> Runs:
    count = len(columns["tokens"])
    names = tuple(f"point {i + 1}" for i in range(count))
    others = {name: values for name, values in columns.items() if name not in MODEL}
    n, d, e = (columns[name] for name in MODEL)
    return Runs(n, d, e, np.full(count, np.nan), np.arange(count), names, columns=others)


def _joined(tables: Sequence[Runs]) -> Runs:
    """All of them, with the columns that all have."""
    shared = [name for name in (*MODEL, *tables[0].columns) if all(name in table for table in tables)]
    return table_of({name: np.concatenate([table[name] for table in tables]) for name in shared})


def _way(runs: Runs, point: Runs) -> Runs:
    """Models from the largest run, of the point's E where there is one, to a point."""
    matching = have(runs, float(point.experts[0]))
    same = runs.subset(matching) if matching.any() else runs
    top = int(np.argmax(same.flops))
    columns = {name: np.full(len(STEPS), point[name][0]) for name in (*MODEL, *point.columns)}
    for name in ("n_active", "tokens", *([UNIQUE] if UNIQUE in same and UNIQUE in columns else [])):
        columns[name] = same[name][top] ** (1 - STEPS) * columns[name] ** STEPS
        columns[name][-1] = point[name][0]
    return table_of(columns)


# ------------------------------------------------------------------ what the runs cannot tell


def learnt(prior: Any, runs: Runs) -> tuple[Prior | None, Defaults, tuple[str, ...]]:
    """The prior for another corpus, what the stack is given, and warnings.

    Where the losses cannot be in the prior's unit, its scale is free and the stack given less.
    """
    defaults = read_defaults()
    if prior is None:
        return None, defaults, ()
    candidate = read_prior(prior)
    off = float(np.median(np.log(runs.loss / candidate.law.loss(runs.n_active, runs.tokens))))
    if abs(off) < OTHER_UNIT:
        return candidate.in_units(*UNITS), defaults, ()
    what = f"the losses ({runs.loss_name}) are ×{np.exp(off):.2g} those of other labs' laws at these sizes"
    note = f"{what}: the prior's scale is left free"
    return candidate.in_units(FREE_UNIT, UNITS[1]), replace(defaults, cuts=1.0), (note,)


def _blind_spots(runs: Runs, points: Runs, laws: Mapping[str, Sequence[Sequence[float]]]) -> Iterator[str]:
    """What these runs cannot tell about these points, a sentence each."""
    ratios = np.log(runs.tokens / runs.n_active)
    if len(runs) == 1:
        yield "one run tells the level of the loss but no slope: slopes are those of other labs"
    elif count_sizes(runs) == 1:
        yield "all runs have one size: how the loss falls with N is that of other labs"
    elif np.ptp(np.log(runs.tokens)) < EQUAL_RATIOS:
        yield "all runs have one D: how the loss falls with D is that of other labs"
    elif np.ptp(ratios) < EQUAL_RATIOS:
        yield f"all runs have {np.exp(ratios.mean()):.3g} tokens per parameter: they cannot tell N from D"
    several = np.unique(runs.experts)
    if missing := [e for e in np.unique(points.experts).tolist() if not have(runs, e).any()]:
        names = ", ".join(f"{e:g}" for e in missing)
        yield f"no run has E = {names}: what these experts gain is that of the published joint law"
    if len(several) > 1 and all(count_sizes(runs.subset(have(runs, e))) == 1 for e in several):
        yield "each E has one size: the runs cannot tell E from N"
    if np.isnan([backtests for _, _, backtests in laws.values()]).all():
        yield "too few runs or sizes below any cut in compute to test laws on: other labs' sets alone weigh them"
