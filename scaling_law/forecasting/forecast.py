"""The loss of runs not yet trained, by one law under a prior from other labs: `forecast(runs, at=…)`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import norm

from hub.base import strict_json
from hub.base.commands import version
from hub.base.errors import InputError, given, unknown
from hub.base.fields import UNREAD, reads
from hub.base.notices import Notice
from hub.base.types import Fields
from hub.base.units import format_count
from scaling_law.answer.answer import Answer, span
from scaling_law.answer.columns import COLUMNS
from scaling_law.figures import drawing
from scaling_law.fitting.diagnostics import UNIQUE, find_outliers
from scaling_law.fitting.fitting import FitResult, fit, say_far_away
from scaling_law.fitting.posterior import DEPENDENCE, MISFIT, Posterior, posterior
from scaling_law.fitting.prior import Prior, read_prior, vague
from scaling_law.fitting.repetition import REPEATED, count_worth, with_unique_tokens
from scaling_law.formulas.accuracy import accuracy_cells, describe_accuracies, parse_tasks, predict_accuracies
from scaling_law.formulas.conditions import RangeCheck
from scaling_law.formulas.law import check_shapes, positive
from scaling_law.law import JointLaw, Law, choose_kind
from scaling_law.planning.question import Level
from scaling_law.runs.loading import load_runs
from scaling_law.runs.settings import check_mix
from scaling_law.runs.table import Runs
from scaling_law.runs.thinning import sample_of, with_few_checkpoints
from scaling_law.size.arrays import BoolArray, Columns, FloatArray, first_largest

# The file of a forecast.
FORMAT = "forecast"
VERSION = 2
MODEL = ("n_active", "tokens", "experts")
# Directions in which a point may lie furthest beyond the runs.
DIRECTIONS = ("flops", "n_active", "tokens")
# Draws of the posterior.
DRAWS = 200
# Laws are fitted to at most about this many runs.
MOST = 2000
# From this share of the spread on, an interval is said to be the constant's.
MOSTLY = 0.5
# Runs whose ln D/N differs less are of one ratio.
EQUAL_RATIOS = float(np.log(1.25))
# E closer than this in ln E are one: shared experts and dense blocks blur what is counted.
SAME_EXPERTS = 0.1
# Quantiles one standard deviation from the median of a normal distribution, and its quartiles.
ONE_SIGMA = (0.158655, 0.841345)
QUARTILES = (0.25, 0.75)
# Runs of a table in which those far from the law of the others are looked for.
LEAST_CHECKED = 8
MOST_CHECKED = 200
# Steps of a fan, from the largest run to a point.
STEPS = np.linspace(0.0, 1.0, 9)


@dataclass(frozen=True, eq=False, repr=False)
class Forecast(Answer):
    """The loss at each point, with the interval that holds a new run with probability `level`.

    `kind` is that of the law behind it. A row's `share_of_constant` is how far the forecast moves between the
    quartiles of the constant c, the loss at infinite N and D, over the distance of its own quartiles.
    `fans` [points, steps] are FLOPs, ln L and its spread on the way from the largest run. `blended`: the runs differ
    too much in other settings for one forecast.
    """

    _question = MODEL
    _first = ("loss", "low", "high", "flops", "times_beyond")

    kind: str
    level: float
    runs: Runs
    fans: tuple[FloatArray, FloatArray, FloatArray]
    blended: bool = False

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
            "kind": self.kind,
        }

    def _cells(self) -> list[Fields]:
        cells = []
        for row in self.rows:
            values = {name: value for name, value in row.items() if name != "accuracy"}
            cells.append({**values, **accuracy_cells(row.get("accuracy"))})
        return cells

    def _footnotes(self) -> list[str]:
        share = COLUMNS["share_of_constant"]
        return [
            f"intervals of {self.level:.0%}; × largest run: how far a model lies beyond the runs",
            f"{self.kind} law of {len(self.runs)} runs with a misfit, under a prior",
            f"{share.label}: {share.meaning}",
        ]

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
    kind: str | None = None,
    level: Level = 0.9,
    mix: str | Sequence[str] = (),
    accuracy: str | Sequence[str] = (),
    unique_tokens: str | ArrayLike | None = None,
) -> Forecast:
    """Forecast the loss of runs not yet trained, by one law under a prior, with what laws miss.

    Args:
        runs: a Runs, or anything `load_runs` reads.
        at: the models: a mapping such as {"n_active": "2B", "tokens": "8T", "experts": 256}, whose values broadcast,
            a list of such, a DataFrame or a Runs. `experts` may be left out where the runs share one E.
        prior: "public" (a law like those of other labs), what `scaling_law.prior` returns, or None for a prior that is
            weaker than any population.
        kind: the kind of law; None for "interaction" where runs and models share one E, else "joint".
        level: of the intervals.
        mix: as in `fit`.
        accuracy: tasks whose accuracy to expect at each loss, as of `Law.optimal`.
        unique_tokens: of the runs, as in `fit`: repeated tokens count as what they are worth. Models in `at` have
            `unique_tokens` of their own; without, all their tokens are unique.

    `fitting.posterior` says what laws miss, and how sure they are. ValueError for models that cannot be, and for a
    kind that the prior does not serve; RunsError for an unreadable table and for runs of several recipes.
    """
    tasks = parse_tasks(accuracy)
    table = runs if isinstance(runs, Runs) else load_runs(runs)
    # Of large tables, a few checkpoints of each run and at most about `MOST` runs.
    table = sample_of(with_few_checkpoints(table)[0], MOST)
    agreed = check_mix(table.recipe, (), mix, table.source, (*table.columns, *table.texts))
    counts_repetition = unique_tokens is not None
    if counts_repetition:
        table = with_unique_tokens(table, unique_tokens)
    doubts, blended = table.doubts({*REPEATED, *agreed})
    points = points_of(at, table)
    law_prior, notes = (vague(), ()) if prior is None else read_prior(prior, table)

    # Each point is the last step of its fan.
    steps = _concatenate([_steps_to(table, points.take(np.array([i]))) for i in range(len(points))])
    fitted_runs = table
    fitted_steps = steps
    if counts_repetition:
        worth = fit_worth(table, law_prior)
        fitted_runs = count_worth(worth.law, table)
        fitted_steps = count_worth(worth.law, steps)
        notes = (*notes, f"the law counts {worth.law.repetition}", *worth.status.repetition)
    else:
        notes = (*notes, *_say_repetition(table))
    kind = choose_kind(kind or _usual_kind(fitted_runs, fitted_steps)).name
    fitted_law = posterior(fitted_runs, law_prior, kind, misfit=MISFIT, dependence=DEPENDENCE)
    prediction = _predict(fitted_law, fitted_steps)
    shape = (len(points), len(STEPS))
    flops, log_loss, spread, share = (values.reshape(shape) for values in (steps.flops, *prediction))

    if tasks and notes:
        raise InputError(f"accuracy: {notes[0]}")
    columns: Fields = {name: getattr(points, name) for name in (*MODEL, "flops")}
    if counts_repetition and UNIQUE in points:
        columns[UNIQUE] = points[UNIQUE]
    columns["loss"] = np.exp(log_loss[:, -1])
    columns["low"], columns["high"] = interval(log_loss[:, -1], spread[:, -1], level)
    columns["times_beyond"] = np.exp(distances(table, points).max(axis=0))
    columns["share_of_constant"] = share[:, -1]
    if tasks:
        forecasts = zip(columns["loss"], columns["low"], columns["high"], strict=True)
        columns["accuracy"] = [predict_accuracies(tasks, loss, (low, high), level) for loss, low, high in forecasts]
        notes = describe_accuracies(tasks, columns["loss"])
    models = {name: getattr(points, name) for name in MODEL}
    return Forecast(
        columns=columns,
        kind=kind,
        level=level,
        runs=table,
        fans=(flops, log_loss, spread),
        blended=blended,
        check=RangeCheck(table.conditions(table.source), MODEL, models),
        notes=(
            *([table.thinned] if table.thinned else []),
            *doubts,
            *_name_far_runs(fitted_law, table),
            *notes,
            *_blind_spots(table, points),
            *_say_constant(share[:, -1]),
        ),
    )


def distances(runs: Runs, points: Runs) -> FloatArray:
    """Return ln of how far each point lies beyond the largest run, in each of `DIRECTIONS`, [3, n]."""
    rows = [np.log(getattr(points, name)) - np.log(getattr(runs, name).max()) for name in DIRECTIONS]
    return np.stack(rows)


def match_experts(runs: Runs, experts: float) -> BoolArray:
    """Mark the runs that have this E, or one so close that laws need not tell them apart."""
    return np.asarray(np.abs(np.log(runs.experts / experts)) < SAME_EXPERTS)


def _usual_kind(runs: Runs, points: Runs) -> str:
    """Return the kind of law for these runs and models."""
    e = float(np.exp(np.median(np.log(runs.experts))))
    has_one_e = match_experts(runs, e).all() and match_experts(points, e).all()
    return "interaction" if has_one_e else "joint"


class _Prediction(NamedTuple):
    """ln L at points [n], the spread of a run there, and the share of the constant in it."""

    log_loss: FloatArray
    spread: FloatArray
    share_of_constant: FloatArray


def _predict(fitted_law: Posterior, points: Runs) -> _Prediction:
    """Predict points by a law with its misfit. In the constant c the forecast is the line of the draws in ln c."""
    draws, thetas = fitted_law.forecast(points, DRAWS)
    low, log_loss, high = np.quantile(draws, (ONE_SIGMA[0], 0.5, ONE_SIGMA[1]), axis=0)
    spread = np.hypot(0.5 * (high - low), fitted_law.noise)
    objective = fitted_law.problem.objective
    if not objective.form.constants:
        return _Prediction(log_loss, spread, np.zeros(len(points)))
    place = objective.names.index(objective.form.constants[0])
    log_constants = np.log(objective.coefficients(thetas)[:, place])
    centred = log_constants - log_constants.mean()
    slopes = centred @ (draws - draws.mean(axis=0)) / max(float(centred @ centred), 1e-300)
    distances_by_constant = np.abs(slopes) * np.ptp(np.quantile(log_constants, QUARTILES))
    share = np.minimum(distances_by_constant / (spread * np.ptp(norm.ppf(QUARTILES))), 1.0)
    return _Prediction(log_loss, spread, share)


def interval(
    log_loss: Any,
    spread: Any,
    level: float,
) -> tuple[Any, Any]:
    """Return the interval of the loss around ln L with this spread."""
    half_width = norm.ppf(0.5 + level / 2) * np.asarray(spread)
    return np.exp(log_loss - half_width), np.exp(log_loss + half_width)


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

    known_names = (*MODEL, *runs.columns)
    arrays = {}
    for name, value in values.items():
        if name not in known_names:
            raise InputError(unknown("at: ", name, known_names))
        arrays[name] = positive(name, value, 1.0 if name == "experts" else 0.0)
        if not arrays[name].size:
            raise InputError(f"{name}={value!r} must be one number or a list of them")
    if UNIQUE in runs:
        # Without, all tokens of a model are unique.
        arrays.setdefault(UNIQUE, arrays["tokens"])
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
    if UNIQUE in candidates and UNIQUE in columns:
        moving.append(UNIQUE)
    for name in moving:
        columns[name] = candidates[name][largest] ** (1 - STEPS) * columns[name] ** STEPS
        columns[name][-1] = point[name][0]
    return table_of(columns)


# ------------------------------------------------------------------ repeated tokens

# One law, Chinchilla's with Muennighoff's terms on all runs, says what tokens and sizes are worth; then any law
# forecasts from that.


def _dense(runs: Runs) -> Runs:
    """Make dense runs of these, of any recipe, by the published gain of experts."""
    law = JointLaw.published()
    loss = law.loss(runs.n_active, runs.tokens, runs.experts)
    gain = loss / law.loss(runs.n_active, runs.tokens, 1.0)
    return replace(runs, experts=np.ones(len(runs)), loss=runs.loss / gain, recipe={})


def fit_worth(runs: Runs, prior: Prior | None) -> FitResult[Law]:
    """Fit the law that says what repeated tokens and excess parameters of these runs are worth."""
    return fit(_dense(runs), "chinchilla", unique_tokens=UNIQUE, prior=prior)


def _say_repetition(runs: Runs) -> tuple[str, ...]:
    """Say, with what to type, that the runs repeat tokens and their losses depend on it."""
    if not {*REPEATED} & {*runs.columns}:
        return ()
    try:
        result = fit(_dense(runs), "chinchilla")
    except ValueError:
        return ()
    return tuple(text for text in result.status.omitted if UNIQUE in text)


# ------------------------------------------------------------------ what the runs cannot tell


def _name_far_runs(fitted_law: Posterior, runs: Runs) -> Iterator[str]:
    """Name the runs that lie far from the law of the others, where there are enough to tell."""
    if not LEAST_CHECKED <= len(runs) <= MOST_CHECKED:
        return
    outliers = find_outliers(fitted_law.problem, fitted_law.theta)
    if outliers.suspicious.any():
        rows = np.flatnonzero(outliers.suspicious)
        text = say_far_away([runs.run_id[row] for row in rows])
        yield Notice(f"{text}: check their losses, sizes and tokens", text)


def _say_constant(shares: FloatArray) -> Iterator[str]:
    """Say that the constant is most of what is not known, where it is."""
    large_shares = shares[shares > MOSTLY]
    if large_shares.size:
        part = span(large_shares, "{:.0%}".format)
        yield f"{part} of the spread is that of the constant c, the loss at infinite N and D: only larger runs tell it"


def _blind_spots(runs: Runs, points: Runs) -> Iterator[str]:
    """Say what these runs cannot tell about these points, a sentence each."""
    log_ratios = np.log(runs.tokens / runs.n_active)
    if len(runs) == 1:
        yield "one run tells the level of the loss but no slope: slopes are those of other labs"
    elif runs.n_sizes == 1:
        yield "all runs have one size: how the loss falls with N is that of other labs"
    elif np.ptp(np.log(runs.tokens)) < EQUAL_RATIOS:
        yield "all runs have one D: how the loss falls with D is that of other labs"
    elif np.ptp(log_ratios) < EQUAL_RATIOS:
        yield f"all runs have {np.exp(log_ratios.mean()):.3g} tokens per parameter: they cannot tell N from D"
    missing = [f"{e:g}" for e in np.unique(points.experts) if not match_experts(runs, e).any()]
    if missing:
        yield f"no run has E = {', '.join(missing)}: what these experts gain is that of the prior"
    experts = np.unique(runs.experts)
    if len(experts) > 1 and all(runs.subset(match_experts(runs, e)).n_sizes == 1 for e in experts):
        yield "each E has one size: the runs cannot tell E from N"
