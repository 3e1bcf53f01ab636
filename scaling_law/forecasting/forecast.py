"""The loss of runs not yet trained, from all laws that the runs support: `forecast(runs, at=…)`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import norm

from hub.base import strict_json
from hub.base.commands import version
from hub.base.errors import InputError, given, unknown
from hub.base.fields import UNREAD, Whole, reads
from hub.base.notices import Notice
from hub.base.tables import Table, Tables
from hub.base.types import Fields
from hub.base.units import format_count
from scaling_law.answer.answer import Answer, columns_of, span
from scaling_law.answer.columns import tabulate
from scaling_law.figures import drawing
from scaling_law.fitting.diagnostics import UNIQUE
from scaling_law.fitting.fitting import fit, say_far_away
from scaling_law.fitting.holdout import count_sizes, distances
from scaling_law.fitting.prior import Prior, read_prior
from scaling_law.fitting.repetition import REPEATED, count_worth, with_unique_tokens
from scaling_law.forecasting.counting import (
    BODY,
    WITH,
    WITHOUT,
    count_points,
    count_without,
    mix_counts,
    weigh_counts,
    with_both_counts,
)
from scaling_law.forecasting.forecasters import EQUAL_RATIOS, columns_of_laws, forecasters, match_experts
from scaling_law.forecasting.repetition import fit_worth, say_repetition
from scaling_law.forecasting.stack import Defaults, Evidence, gather, read_defaults, stack
from scaling_law.formulas.accuracy import accuracy_cells, describe_accuracies, parse_tasks, predict_accuracies
from scaling_law.formulas.conditions import RangeCheck
from scaling_law.formulas.law import check_level, check_shapes, numbers, positive
from scaling_law.runs.loading import load_runs
from scaling_law.runs.recipes import check_mix, names_mixed
from scaling_law.runs.table import Runs
from scaling_law.runs.thinning import rows_of_curves, sample_of, with_few_checkpoints
from scaling_law.size.arrays import Columns, FloatArray, IntArray, first_largest

# The file of a forecast.
FORMAT = "forecast"
VERSION = 2
MODEL = ("n_active", "tokens", "experts")
# Standard deviations of ln loss and ln D between the prior's corpora and tokenizers and another.
UNITS = (0.1, 0.15)
# Beyond this ln loss from the prior's, its unit is freed by this standard deviation.
OTHER_UNIT = 0.35
FREE_UNIT = 1.0
# Error of ln L at an E that no run has: 0.03 to 0.04 nats (docs/studies/evidence.md).
EXPERTS_ERROR = 0.015
# Laws are fitted to at most this many runs, at many cuts and on a hundred resamples.
MOST = 2000
# From this share of the variance on, an interval is said to be the constant's.
MOSTLY = 0.5
# Runs of one E among which those far from the law of the others are looked for.
LEAST_CHECKED = 8
MOST_CHECKED = 200
# Steps of a fan, from the largest run to a point.
STEPS = np.linspace(0.0, 1.0, 9)


@dataclass(frozen=True, eq=False, repr=False)
class Forecast(Answer):
    """The loss at each point, with the interval that holds a new run with probability `level`.

    A row's `share_of_constant` is the part of the variance of ln L that would go if the constant c, the loss at
    infinite N and D, were known. `laws` has a row for each law, with a value for each point: its forecasts, weights,
    and RMSE at the cuts within the runs (NaN without one). `left_out` says why others say nothing. `fans` [points,
    steps] are FLOPs, ln L and its spread on the way from the largest run. `blended`: the runs differ too much in other
    settings for one forecast. Where the runs know N with and without embeddings, laws are fitted to either, and
    `n_counts` has the weights of those "with embeddings" and "without embeddings".
    """

    laws: tuple[Fields, ...]
    left_out: Mapping[str, str]
    level: float
    runs: Runs
    fans: tuple[FloatArray, FloatArray, FloatArray]
    blended: bool = False
    n_counts: Mapping[str, float] = field(default_factory=dict)

    @property
    def trusted(self) -> bool:
        """True if the models lie within the range guard of runs that one law describes."""
        return not self.blended and super().trusted

    @property
    def verdict(self) -> str:
        row = self.rows[0]
        n_active = format_count(row["n_active"])
        tokens = format_count(row["tokens"])
        verdict = f"E = {row['experts']:.5g}, {n_active} active parameters, {tokens} tokens: "
        verdict += f"loss {row['loss']:.3f} ({self.level:.0%}: {row['low']:.3f} to {row['high']:.3f})"
        if len(self.rows) > 1:
            verdict += f"; {len(self.rows) - 1} more"
        return verdict if self.trusted else f"{verdict}; not trusted"

    def facts(self) -> Fields:
        return {
            "level": self.level,
            "runs": len(self.runs),
            "laws": list(self.laws),
            "left_out": dict(self.left_out),
            "n_counts": dict(self.n_counts),
        }

    def summary(self) -> Tables:
        return Tables((self._points_table(), self._laws_table()))

    def _points_table(self) -> Table:
        """Lay out the forecast of each point."""
        rows = []
        for row in self.rows:
            cells = {name: value for name, value in row.items() if name != "accuracy"}
            cells.update(accuracy_cells(row.get("accuracy")))
            rows.append(cells)
        notes = [
            f"intervals of {self.level:.0%}; × largest run: how far a model lies beyond the runs",
            "share of c: the part of the variance that would go if the constant c were known",
        ]
        return tabulate(rows, title=self.verdict, keys=("N_act", "tokens", "E"), notes=notes)

    def _laws_table(self) -> Table:
        """Lay out the laws, the heaviest first, with the reasons why others say nothing."""
        rows = []
        for law in sorted(self.laws, key=lambda law: -float(np.mean(law["weights"]))):
            weights = span(law["weights"], "{:.2f}".format)
            rows.append((law["law"], weights, _format_span(law["losses"]), _format_span(law["backtests"])))
        notes = []
        for name, reason in self.left_out.items():
            reason = reason.removeprefix(f"{self.runs.source}: ")
            notes.append(f"left out: {name}: {reason.partition(';')[0]}")
        header = ("law", "weight", "loss", "RMSE within the runs")
        return Table(header, rows, notes=notes, warnings=self.warnings)

    def save(self, path: str | Path) -> Path:
        """Write the forecast, with its date, to a JSON file that does not exist: a forecast is not changed."""
        file = Path(path)
        if file.exists():
            raise InputError(f"{file}: the file exists; a forecast is not changed")
        fields: Fields = {
            "made": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "library": f"joint-moe-scaling-laws {version()}",
            "level": self.level,
            "runs": len(self.runs),
            "source": self.runs.source,
            "loss_name": self.runs.loss_name,
            "rows": self.to_rows(),
            "warnings": list(self.warnings),
        }
        return strict_json.write(file, FORMAT, VERSION, fields)

    def figure(self, ax: Any = None) -> Any:
        """Draw a fan chart: the runs, and from the largest of them to each point the forecast with two intervals."""
        ax = drawing.axes_or_new(ax)
        for e in np.unique(self.runs.experts):
            runs = self.runs.subset(self.runs.experts == e)
            ax.plot(runs.flops, runs.loss, ".", color=drawing.colour_of(e), label=drawing.label_of(e), alpha=0.6)
        for row, flops, log_loss, spread in zip(self.rows, *self.fans, strict=True):
            colour = drawing.colour_of(row["experts"])
            for level in (0.5, self.level):
                low, high = interval(log_loss, spread, level)
                ax.fill_between(flops, low, high, color=colour, alpha=0.18, linewidth=0)
            ax.plot(flops, np.exp(log_loss), color=colour)
            ax.plot(row["flops"], row["loss"], "D", color=colour)
        drawing.log_axis(ax, drawing.FLOPS)
        ax.set_ylabel(drawing.LOSS)
        ax.set_title(f"intervals of 50 % and {self.level:.0%}", fontsize="medium")
        drawing.legend(ax)
        return ax


@reads
def forecast(
    runs: Any,
    at: Any,
    *,
    prior: Annotated[Prior | Literal["public"] | None, UNREAD] = "public",
    kinds: str | Collection[str] | None = None,
    level: float = 0.9,
    seed: Whole = 0,
    mix: str | Collection[str] = (),
    accuracy: str | Sequence[str] = (),
    unique_tokens: str | ArrayLike | None = None,
) -> Forecast:
    """Forecast the loss of runs not yet trained, from all laws that `runs` support.

    Args:
        runs: a Runs, or anything `load_runs` reads.
        at: the models: a mapping such as {"n_active": "2B", "tokens": "8T", "experts": 256}, whose values broadcast,
            a list of such, a DataFrame or a Runs. `experts` may be left out where the runs share one E. Where the runs
            count N without embeddings, too, so may a model: `n_active_non_embedding`. Else its share is as theirs.
        prior: "public" (laws like those of other labs are among the candidates), what `scaling_law.prior` returns, or
            None for laws of these runs alone.
        kinds: the laws that compete: "chinchilla", "interaction", "ladder", "published", the interaction law under the
            prior as "prior", "prior by compute" (runs weigh by their compute) or "prior of the constant" (the prior
            says nothing of the rest), or another registered kind; None for these and the kinds that have E, and for
            the published law only where the runs have several E or there is no prior.
        level: of the intervals.
        seed: of the bootstrap behind them.
        mix: as in `fit`.
        accuracy: tasks whose accuracy to expect at each loss, as of `Law.optimal`.
        unique_tokens: of the runs, as in `fit`: repeated tokens count as what they are worth. Models in `at` have
            `unique_tokens` of their own; without, all their tokens are unique.

    Each law is fitted below several cuts within the runs, judged above them, and weighed by that (see
    `forecasting.stack`). ValueError for models that cannot be and for runs that no law can forecast from; RunsError
    for an unreadable table and for runs of several recipes.
    """
    check_level(level)
    tasks = parse_tasks(accuracy)
    table = read_table(runs)
    check_mix(table.recipe, (), mix, table.source, (*table.columns, *table.texts))
    counts_repetition = unique_tokens is not None
    if counts_repetition:
        table = with_unique_tokens(table, unique_tokens)
    doubts, blended = table.doubts({*REPEATED, *names_mixed(mix)})
    points = points_of(at, table)
    table = with_both_counts(table)
    if BODY in table:
        points = count_points(points, table)
    prior_in_units, defaults, notes = update_prior(prior, table)

    # Each point is the last step of its fan.
    steps = _concatenate([_steps_to(table, points.take(np.array([i]))) for i in range(len(points))])
    effective_runs = table
    effective_steps = steps
    if counts_repetition:
        result = fit_worth(table, prior_in_units)
        effective_runs = count_worth(result.law, table)
        effective_steps = count_worth(result.law, steps)
        notes = (*notes, f"the laws count {result.law.repetition}", *result.status.repetition)
    else:
        notes = (*notes, *say_repetition(table))
    prediction = _predict_stack(effective_runs, effective_steps, prior_in_units, kinds, seed, defaults)
    fan_shape = (len(points), len(STEPS))
    flops = steps.flops.reshape(fan_shape)
    log_loss = prediction.log_loss.reshape(fan_shape)
    spread = prediction.spread.reshape(fan_shape)

    if tasks and notes:
        raise InputError(f"accuracy: {notes[0]}")
    columns = {name: getattr(points, name) for name in (*MODEL, "flops")}
    if counts_repetition and UNIQUE in points:
        columns[UNIQUE] = points[UNIQUE]
    columns["loss"] = np.exp(log_loss[:, -1])
    columns["low"], columns["high"] = interval(log_loss[:, -1], spread[:, -1], level)
    columns["times_beyond"] = np.exp(distances(table, points).max(axis=0))
    columns["share_of_constant"] = prediction.share_of_constant.reshape(fan_shape)[:, -1]
    rows = _make_rows(columns)
    if tasks:
        for row in rows:
            row["accuracy"] = predict_accuracies(tasks, row["loss"], (row["low"], row["high"]), level)
    laws = _list_laws(prediction)
    was_tested = not np.isnan([law["backtests"] for law in laws]).all()
    models = {name: getattr(points, name) for name in MODEL}
    return Forecast(
        columns=columns_of(rows),
        laws=tuple(laws),
        left_out=prediction.left_out,
        level=level,
        runs=table,
        fans=(flops, log_loss, spread),
        blended=blended,
        n_counts=prediction.n_counts,
        check=RangeCheck(table.conditions(table.source), MODEL, models),
        notes=(
            *([table.thinned] if table.thinned else []),
            *doubts,
            *_name_far_runs(table),
            *notes,
            *describe_accuracies(tasks, columns["loss"]),
            *_blind_spots(table, points, was_tested),
            *_say_constant(rows),
            *_say_counts(prediction.n_counts),
        ),
    )


def _make_rows(columns: Columns) -> list[Fields]:
    """Return a row of numbers for each point, of columns [n]."""
    rows: list[Fields] = []
    for values in zip(*columns.values(), strict=True):
        rows.append(dict(zip(columns, map(float, values), strict=True)))
    return rows


def _list_laws(prediction: _StackPrediction) -> list[Fields]:
    """Return a row for each law, with its forecasts, weights and RMSE at each point."""
    rows = []
    for name, values in prediction.laws.items():
        losses, weights, backtests = values[:, len(STEPS) - 1 :: len(STEPS)].tolist()
        rows.append({"law": name, "losses": losses, "weights": weights, "backtests": backtests})
    return rows


def read_table(runs: Any) -> Runs:
    """Read the runs to forecast from; of large tables, a few checkpoints of each run and at most about `MOST` runs."""
    table = runs if isinstance(runs, Runs) else load_runs(runs)
    return sample_of(with_few_checkpoints(table, rows_of_curves(table)), MOST)


@dataclass(frozen=True)
class _StackPrediction:
    """ln L of the stack, its spread and the constant's share of that at points [n], and what laws say there [3, n].

    `left_out` says why others say nothing; `n_counts` are those of `Forecast`.
    """

    log_loss: FloatArray
    spread: FloatArray
    share_of_constant: FloatArray
    laws: dict[str, FloatArray]
    left_out: dict[str, str]
    n_counts: Mapping[str, float]


def _predict_stack(
    runs: Runs,
    steps: Runs,
    prior: Prior | None,
    kinds: Collection[str] | None,
    seed: int,
    defaults: Defaults,
) -> _StackPrediction:
    """Fit the laws, and predict the steps of fans from all of them together."""
    plain_runs = runs.without_settings(columns_of_laws() | {BODY})
    n_steps = len(steps)
    groups = []
    for e in np.unique(steps.experts):
        indices = np.flatnonzero(steps.experts == e)
        groups.append(_gather_group(plain_runs, steps.take(indices), indices, prior, kinds, seed))
    prediction = _StackPrediction(
        log_loss=np.zeros(n_steps),
        spread=np.zeros(n_steps),
        share_of_constant=np.zeros(n_steps),
        laws={},
        left_out={},
        n_counts=weigh_counts([group.evidence for group in groups]),
    )
    for group in groups:
        _predict_group(group, prediction, defaults)
    return prediction


@dataclass(frozen=True)
class _Group:
    """The steps of one E, by their `indices`, with the `evidence` for them by count of N, and why laws are silent."""

    indices: IntArray
    evidence: Mapping[str, Evidence]
    silent: Mapping[str, str]
    has_matching: bool


def _gather_group(
    runs: Runs,
    steps: Runs,
    indices: IntArray,
    prior: Prior | None,
    kinds: Collection[str] | None,
    seed: int,
) -> _Group:
    """Fit the laws for steps of one E, with N counted either way where the runs know both."""
    e = float(steps.experts[0])
    is_matching = match_experts(runs, e)
    has_matching = bool(is_matching.any())
    tested: Any = is_matching if has_matching else True
    laws = forecasters(runs, e, prior, kinds, seed)
    evidence = {WITH: gather(runs, steps, laws, tested)}
    silent = {name: law.silent for name, law in laws.items()}
    if BODY in runs:
        evidence[WITHOUT] = gather(runs, steps, count_without(laws), tested)
        # As `mix_counts` names them.
        silent.update({f"{name} {WITHOUT}": law.silent for name, law in laws.items()})
    return _Group(indices, evidence, silent, has_matching)


def _predict_group(group: _Group, prediction: _StackPrediction, defaults: Defaults) -> None:
    """Predict the steps of one E, and fill their places."""
    weights = prediction.n_counts or {WITH: 1.0}
    answers = {count: stack(group.evidence[count], defaults) for count in weights}
    answer = mix_counts(answers, weights)
    indices = group.indices
    experts_error = 0.0 if group.has_matching else EXPERTS_ERROR
    spread = np.hypot(answer.spread, experts_error)
    prediction.log_loss[indices] = answer.log_loss
    prediction.spread[indices] = spread
    prediction.share_of_constant[indices] = answer.share_of_constant * (answer.spread / spread) ** 2
    prediction.left_out.update(group.evidence[WITH].left_out)
    n_steps = len(prediction.log_loss)
    is_last = indices % len(STEPS) == len(STEPS) - 1
    for name, values in answer.laws.items():
        if np.isnan(values[0, is_last]).all():
            prediction.left_out[name] = group.silent[name]
            continue
        if name not in prediction.laws:
            # Losses, weights and RMSE at the points of an E for which the law says nothing.
            prediction.laws[name] = np.repeat([[np.nan], [0.0], [np.nan]], n_steps, axis=1)
        prediction.laws[name][:, indices] = values


def interval(
    log_loss: Any,
    spread: Any,
    level: float,
) -> tuple[Any, Any]:
    """Return the interval of the loss around ln L with this spread."""
    half_width = norm.ppf(0.5 + level / 2) * np.asarray(spread)
    return np.exp(log_loss - half_width), np.exp(log_loss + half_width)


def _format_span(values: Sequence[float]) -> str:
    finite = [value for value in values if np.isfinite(value)]
    return span(finite, "{:.4f}".format) if finite else ""


# ------------------------------------------------------------------ what is asked


def points_of(at: Any, runs: Runs) -> Runs:
    """Return the models that are asked, as runs whose loss is NaN.

    ValueError for unknown names and impossible values.
    """
    # A DataFrame has this method, too.
    if hasattr(at, "to_dict") and not isinstance(at, Mapping):
        at = at.to_dict("records")
    is_list = isinstance(at, Sequence) and not isinstance(at, str)
    if (is_list or isinstance(at, Runs)) and not len(at):
        raise InputError("at: no model to forecast")
    if isinstance(at, Runs):
        return at
    return _concatenate([_points(model, runs) for model in (at if is_list else [at])])


def _points(at: Any, runs: Runs) -> Runs:
    if not isinstance(at, Mapping):
        raise InputError(f"at={at!r} must map n_active, tokens and experts to numbers, or be a list of such")
    median_experts = float(np.exp(np.median(np.log(runs.experts))))
    if "experts" not in at and not match_experts(runs, median_experts).all():
        choices = ", ".join(f"{e:g}" for e in np.unique(runs.experts))
        raise InputError(given("experts"), f" must be given: the runs have {choices}")
    values = {"experts": median_experts, **at}
    missing = [name for name in MODEL if name not in values]
    if missing:
        raise InputError(f"{missing[0]} must be given: a model is n_active, tokens and experts")

    arrays = {name: numbers(name, value) for name, value in values.items()}
    if UNIQUE in runs:
        # Without, all tokens of a model are unique.
        arrays = {UNIQUE: arrays["tokens"], **arrays}
    known_names = (*MODEL, *runs.columns)
    for name, column in arrays.items():
        if name not in known_names:
            raise InputError(unknown("at: ", name, known_names))
        smallest = 1.0 if name == "experts" else 0.0
        positive(name, column, smallest)
        if not column.size:
            raise InputError(f"{name}={values[name]!r} must be one number or a list of them")
    check_shapes(arrays)
    columns = np.broadcast_arrays(*map(np.atleast_1d, arrays.values()))
    return table_of(dict(zip(arrays, columns, strict=True)))


def table_of(columns: Columns) -> Runs:
    """Make runs without losses of these columns."""
    count = len(columns["tokens"])
    n_active, tokens, experts = (columns[name] for name in MODEL)
    return Runs(
        n_active,
        tokens,
        experts,
        loss=np.full(count, np.nan),
        trunk=np.arange(count),
        run_id=tuple(f"point {i + 1}" for i in range(count)),
        columns={name: values for name, values in columns.items() if name not in MODEL},
    )


def _concatenate(tables: Sequence[Runs]) -> Runs:
    """Join tables, with the columns that all have."""
    columns = {}
    for name in (*MODEL, *tables[0].columns):
        if all(name in table for table in tables):
            columns[name] = np.concatenate([table[name] for table in tables])
    return table_of(columns)


def _steps_to(runs: Runs, point: Runs) -> Runs:
    """Return models from the largest run, of the point's E where there is one, to a point."""
    is_matching = match_experts(runs, float(point.experts[0]))
    candidates = runs.subset(is_matching) if is_matching.any() else runs
    largest = int(first_largest(candidates.flops))
    columns = {name: np.full(len(STEPS), point[name][0]) for name in (*MODEL, *point.columns)}
    moving = ["n_active", "tokens"]
    for name in (UNIQUE, BODY):
        if name in candidates and name in columns:
            moving.append(name)
    for name in moving:
        columns[name] = candidates[name][largest] ** (1 - STEPS) * columns[name] ** STEPS
        columns[name][-1] = point[name][0]
    return table_of(columns)


# ------------------------------------------------------------------ what the runs cannot tell


def update_prior(prior: Any, runs: Runs) -> tuple[Prior | None, Defaults, tuple[str, ...]]:
    """Return the prior for another corpus, the defaults of the stack, and warnings.

    Where the losses cannot be in the prior's unit, its scale is free.
    """
    defaults = read_defaults()
    if prior is None:
        return None, defaults, ()
    law_prior = read_prior(prior)
    prior_loss = law_prior.law.loss(runs.n_active, runs.tokens)
    log_ratio = float(np.median(np.log(runs.loss / prior_loss)))
    if abs(log_ratio) < OTHER_UNIT:
        return law_prior.in_units(*UNITS), defaults, ()
    ratio = f"×{np.exp(log_ratio):.2g} those of other labs' laws at these sizes"
    note = f"the losses ({runs.loss_name}) are {ratio}: the prior's scale is left free"
    return law_prior.in_units(FREE_UNIT, UNITS[1]), defaults, (note,)


def _name_far_runs(runs: Runs) -> Iterator[str]:
    """Name the runs that lie far from a law of the others of their E, where there are enough to tell."""
    for e in np.unique(runs.experts):
        group = runs.subset(runs.experts == e).without_settings(())
        if not LEAST_CHECKED <= len(group) <= MOST_CHECKED:
            continue
        # Runs that determine no law say nothing of each other.
        with suppress(ValueError):
            names = fit(group, "chinchilla").status.suspicious
            if names:
                text = say_far_away(names)
                yield Notice(f"{text} of E = {e:.5g}: check their losses, sizes and tokens", text)


def _say_constant(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Say that the constant is most of what is not known, where it is."""
    shares = [row["share_of_constant"] for row in rows]
    if max(shares) > MOSTLY:
        part = span([share for share in shares if share > MOSTLY], "{:.0%}".format)
        unknown_part = f"{part} of the variance of ln L"
        yield f"{unknown_part} is that of the constant c, the loss at infinite N and D: only larger runs tell it"


def _say_counts(n_counts: Mapping[str, float]) -> Iterator[str]:
    """Say how much weight laws have whose N is not that of `n_active`, where it is most."""
    weight = n_counts.get(WITHOUT, 0.0)
    if weight > MOSTLY:
        yield f"laws of N without embeddings have {weight:.0%} of the weight: they forecast better within the runs"


def _blind_spots(
    runs: Runs,
    points: Runs,
    was_tested: bool,
) -> Iterator[str]:
    """Say what these runs cannot tell about these points, a sentence each; `was_tested`: laws were, at a cut."""
    log_ratios = np.log(runs.tokens / runs.n_active)
    if len(runs) == 1:
        yield "one run tells the level of the loss but no slope: slopes are those of other labs"
    elif count_sizes(runs) == 1:
        yield "all runs have one size: how the loss falls with N is that of other labs"
    elif np.ptp(np.log(runs.tokens)) < EQUAL_RATIOS:
        yield "all runs have one D: how the loss falls with D is that of other labs"
    elif np.ptp(log_ratios) < EQUAL_RATIOS:
        yield f"all runs have {np.exp(log_ratios.mean()):.3g} tokens per parameter: they cannot tell N from D"
    missing = [f"{e:g}" for e in np.unique(points.experts) if not match_experts(runs, e).any()]
    if missing:
        yield f"no run has E = {', '.join(missing)}: what these experts gain is that of the published joint law"
    experts = np.unique(runs.experts)
    if len(experts) > 1 and all(count_sizes(runs.subset(match_experts(runs, e))) == 1 for e in experts):
        yield "each E has one size: the runs cannot tell E from N"
    if not was_tested:
        yield "too few runs or sizes below any cut in compute to test laws on: other labs' sets alone weigh them"
