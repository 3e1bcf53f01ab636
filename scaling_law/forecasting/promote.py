"""Does a small win survive scale? `promote(baseline, variant)`: promote, drop, or two more runs decide.

Runs of the baseline and the variant are matched into cells of equal N and D, or else of equal compute. The gap of a
cell, ln(L_baseline / L_variant), is corrected for what the variant costs more, by the slope of the baseline's loss;
`forecasting.trends` says how gaps go on beyond the largest cell. Over the slope, a gap is ln of the effective
speed-up: how many times the compute the baseline needs for the variant's loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from hub.base.errors import InputError, given
from hub.base.inputs import reads
from hub.base.tables import Table, Tables
from hub.base.units import format_count, format_flops
from scaling_law.figures import drawing
from scaling_law.forecasting.trends import POWER, Cells, Gaps, TrendPrior, fit_slopes, predict_gaps, read_trend_prior
from scaling_law.formulas.answers import Answer
from scaling_law.formulas.law import check_level, numbers
from scaling_law.runs.loading import load_runs
from scaling_law.runs.table import Runs
from scaling_law.size.arrays import FloatArray

Cost = Literal["flops", "hours", "inference"]
Decision = Literal["promote", "drop", "undecided"]
# FLOPs, and the mean gap with both ends of its interval.
Fan = tuple[FloatArray, FloatArray, FloatArray, FloatArray]
# A verdict needs this probability at `DECIDED_AT` times the compute.
DECIDED = 0.75
DECIDED_AT = 10.0
# Runs of a cell differ by less in ln D, and in ln N; compute in ln C.
SAME_TOKENS = 0.05
SAME_SIZE = 0.25
SAME_BUDGET = 0.05
# Repeated runs of one side.
REPEATED = 0.01
# Settings are the same, and so are their ratios at all sizes, within this much of the logarithm.
SAME_SETTING = 0.1
# Compute of another cell over that of the largest.
NEXT = (1.0, 3.0, 10.0, 30.0)
DRAWS = 4000
# The row of the least compute beyond the largest cell, after those of N and D.
BEYOND = 3
# Times the compute of the largest cell that may be asked.
FURTHEST = 1e6
RATE_COLUMNS = (
    "learning_rate",
    "peak_learning_rate",
    "lr",
)
BATCH_COLUMNS = (
    "batch",
    "batch_size",
    "global_batch_size",
    "bs",
    "batch_tokens",
)
SPEED_COLUMNS = (
    "tokens_per_second",
    "tokens_per_s",
    "throughput",
)
SETTINGS = {
    "rate": RATE_COLUMNS,
    "batch": BATCH_COLUMNS,
    "speed": SPEED_COLUMNS,
}
COSTS = {
    "flops": "equal FLOPs",
    "hours": "equal hours",
    "inference": "equal inference cost",
}


@dataclass(frozen=True, eq=False, repr=False)
class Promotion(Answer):
    """The standing of a variant against a baseline, at the largest size run and beyond.

    `rows` has the largest size run, ten times its N, its D and its compute, and what else was asked:

        at                      which of these
        n_active, tokens, flops its size
        gap                     ln(L_baseline / L_variant) at equal cost: above 0 the variant is ahead
        gap_low, gap_high       the interval that holds `level`
        speedup                 how many times the compute the baseline needs for the variant's loss
        speedup_low, _high      its interval
        ahead                   the probability that the gap is above 0

    `cells` are the sizes at which both were run, with the runs of both sides and the variant's cost over the
    baseline's. `decision` is "promote", "drop" or "undecided". `next_runs` is the cheapest size at which a run of
    either side would more likely than not decide, with the probability that it `decides`; None where it is decided,
    or where no size up to thirty times the largest would. `fan` is what `figure` draws.
    """

    rows: tuple[dict[str, Any], ...]
    cells: tuple[dict[str, Any], ...]
    decision: Decision
    next_runs: dict[str, float] | None
    at_equal: Cost
    level: float
    fan: Fan

    @property
    def best(self) -> dict[str, Any]:
        """The row that decides."""
        return next(row for row in self.rows if row["at"] == _times("C", DECIDED_AT))

    @property
    def verdict(self) -> str:
        run = self.rows[0]
        chances = [f"{row['ahead']:.2f} at {row['at']}" for row in self.rows[BEYOND:]]
        facts = f"P(ahead) {', '.join(chances)}; "
        facts += f"speed-up {run['speedup']:.2f} ({run['speedup_low']:.2f} to {run['speedup_high']:.2f})"
        if self.decision != "undecided":
            return f"{self.decision}: {facts}"
        if self.next_runs is None:
            return f"undecided, two more runs hardly decide: {facts}"
        return f"two more runs decide ({format_flops(self.next_runs['flops'])} FLOPs each): {facts}"

    def facts(self) -> dict[str, Any]:
        return {
            "decision": self.decision,
            "at_equal": self.at_equal,
            "level": self.level,
            "cells": list(self.cells),
            "next_runs": self.next_runs,
        }

    def summary(self) -> Tables:  # type: ignore[override]
        columns = ("at", "n_active", "tokens", "gap", "interval", "speed-up", "interval ", "ahead")
        rows = []
        for row in self.rows:
            gap = f"{row['gap']:+.4f}"
            gap_interval = f"{row['gap_low']:+.4f} to {row['gap_high']:+.4f}"
            speedup_interval = f"{row['speedup_low']:.2f} to {row['speedup_high']:.2f}"
            speedup = f"{row['speedup']:.2f}"
            ahead = f"{row['ahead']:.2f}"
            n_active = format_count(row["n_active"])
            tokens = format_count(row["tokens"])
            rows.append((row["at"], n_active, tokens, gap, gap_interval, speedup, speedup_interval, ahead))
        notes = [
            f"gap: ln(L_baseline / L_variant) at {COSTS[self.at_equal]}; intervals of {self.level:.0%}",
            "speed-up: times the compute that the baseline needs for the variant's loss; ahead: probability",
        ]
        if self.next_runs:
            text = "two more runs: both at N = {n_active:.3g}, D = {tokens:.3g} decide with probability {decides:.2f}"
            notes.append(text.format(**self.next_runs))
        points = Table(columns, rows, title=self.verdict, notes=notes)
        cells = Table.of(self.cells, title="Sizes at which both were run", warnings=self.warnings)
        return Tables([points, cells])

    def figure(self, ax: Any = None) -> Any:
        """Draw the gap of each cell, and how it goes on with compute."""
        ax = drawing.axes_or_new(ax)
        flops, mean, low, high = self.fan
        ax.axhline(0.0, color="0.5", linewidth=0.8)
        ax.fill_between(flops, low, high, alpha=0.2, linewidth=0, label=f"{self.level:.0%}")
        ax.plot(flops, mean)
        cell_flops = [cell["flops"] for cell in self.cells]
        cell_gaps = [cell["gap"] for cell in self.cells]
        ax.plot(cell_flops, cell_gaps, "ko", label="both run")
        drawing.log_axis(ax, drawing.FLOPS)
        ax.set_ylabel(f"ln(L baseline / L variant) at {COSTS[self.at_equal]}")
        drawing.legend(ax)
        return ax


def _times(
    symbol: str,
    factor: float,
) -> str:
    return f"{factor:g} × {symbol}"


# ------------------------------------------------------------------ cells


class _Side(NamedTuple):
    """The distinct models of one side: means over its repeated runs of ln N, ln D, ln L, and further columns."""

    sizes: FloatArray
    log_loss: FloatArray
    n_runs: NDArray[np.int64]
    squares: float
    columns: dict[str, FloatArray]
    mixed: tuple[str, ...]


def _summarise_side(
    runs: Runs,
    names: Sequence[str],
) -> _Side:
    """Average the repeated runs of each model; `names` are columns whose logarithm is averaged, too."""
    sizes = np.log(np.column_stack([runs.n_active, runs.tokens]))
    log_loss = np.log(runs.loss)
    _, group = np.unique(np.round(sizes / REPEATED), axis=0, return_inverse=True)
    count = np.bincount(group)

    def mean(values: FloatArray) -> FloatArray:
        return np.asarray(np.bincount(group, values) / count)

    loss_means = mean(log_loss)
    columns = {}
    mixed = []
    for name in names:
        values = np.log(runs.positive(name))
        columns[name] = mean(values)
        if name not in SPEED_COLUMNS and np.any(np.abs(values - columns[name][group]) > SAME_SETTING):
            mixed.append(name)
    squares = float(np.sum((log_loss - loss_means[group]) ** 2))
    size_means = np.column_stack([mean(sizes[:, 0]), mean(sizes[:, 1])])
    return _Side(size_means, loss_means, count, squares, columns, tuple(mixed))


def _match(
    baseline: _Side,
    variant: _Side,
) -> list[tuple[int, int]]:
    """Pair the models of two sides by N and D; where none match, the best of equal budgets."""
    apart = np.abs(baseline.sizes[:, None] - variant.sizes)
    distance = np.where((apart[..., 0] < SAME_SIZE) & (apart[..., 1] < SAME_TOKENS), apart.sum(axis=2), np.inf)
    matches = _nearest(distance)
    if matches:
        return matches
    compute = [side.sizes.sum(axis=1) for side in (baseline, variant)]
    frontiers = [_frontier(flops, side.log_loss) for flops, side in zip(compute, (baseline, variant), strict=True)]
    distance = np.abs(compute[0][frontiers[0]][:, None] - compute[1][frontiers[1]])
    distance = np.where(distance < SAME_BUDGET, distance, np.inf)
    matches = []
    for i, j in _nearest(distance):
        matches.append((int(frontiers[0][i]), int(frontiers[1][j])))
    return matches


def _nearest(distance: FloatArray) -> list[tuple[int, int]]:
    """Pair rows and columns that are each other's nearest."""
    matches = []
    for i, row in enumerate(distance):
        j = int(np.argmin(row))
        if np.isfinite(row[j]) and int(np.argmin(distance[:, j])) == i:
            matches.append((i, j))
    return matches


def _frontier(
    log_flops: FloatArray,
    log_loss: FloatArray,
) -> NDArray[np.int64]:
    """Return the places of the best runs of each budget."""
    places = []
    for i, budget in enumerate(log_flops):
        is_same = np.abs(log_flops - budget) < SAME_BUDGET
        if log_loss[i] <= log_loss[is_same].min():
            places.append(i)
    return np.array(places)


def _common_column(
    baseline: Runs,
    variant: Runs,
    names: Sequence[str],
) -> list[str]:
    """Return the first of these columns that both tables have for all runs, in a list; else an empty one."""
    for name in names:
        if all(name in runs and bool(np.all(runs.column(name) > 0)) for runs in (baseline, variant)):
            return [name]
    return []


class _Pair(NamedTuple):
    """Matched cells in the order of compute, the largest last, with gaps at equal cost.

    `slopes` [n, 2] are those of the baseline's −ln L in ln N and ln D at each cell, `slope_covariance` [2, 2] that at
    the largest.
    """

    sizes: FloatArray
    gaps: FloatArray
    counts: NDArray[np.int64]
    cost_ratio: FloatArray
    slopes: FloatArray
    slope_covariance: FloatArray
    cells: Cells
    mixed: tuple[str, ...]


def _pair(
    baseline: Runs,
    variant: Runs,
    at_equal: Cost,
    prior: TrendPrior,
) -> _Pair:
    """Match the runs of both sides, and correct the gaps for costs."""
    settings = {name: _common_column(baseline, variant, columns) for name, columns in SETTINGS.items()}
    if at_equal == "hours" and not settings["speed"]:
        raise InputError(f"at_equal='hours' needs a column of measured speed in both tables: {SPEED_COLUMNS[0]}")
    names = [name for columns in settings.values() for name in columns]
    sides = [_summarise_side(runs, names) for runs in (baseline, variant)]
    matches = _match(*sides)
    if not matches:
        text = "no run of the variant has a run of the baseline of equal N and D, or of equal compute"
        raise InputError(f"{baseline.source}, {variant.source}: {text}")
    order = np.array(sorted(matches, key=lambda match: sides[0].sizes[match[0]].sum()))
    base, challenger = (_take(side, order[:, column]) for column, side in enumerate(sides))
    largest = base.sizes[-1]
    slope, slope_covariance = fit_slopes(prior, sides[0].sizes - largest, sides[0].log_loss)
    slopes = slope * np.exp(-POWER * (base.sizes - largest))
    ratio = _cost_ratio(at_equal, base, challenger, settings["speed"])
    # At equal inference cost the baseline would be as much larger, on the same tokens.
    per_cost = slopes[:, 0] if at_equal == "inference" else slopes.mean(axis=1)
    gaps = base.log_loss - challenger.log_loss - per_cost * ratio
    freedom = int(sum(side.n_runs.sum() - len(side.n_runs) for side in sides))
    squares = sum(side.squares for side in sides)
    log_ratios = {}
    for name in ("rate", "batch"):
        log_ratios[name] = 0.0
        for column in settings[name]:
            ratio_of_setting = challenger.columns[column] - base.columns[column]
            # A ratio that changes with size was tuned at each size.
            if np.ptp(ratio_of_setting) < SAME_SETTING:
                log_ratios[name] = float(ratio_of_setting.mean())
    cells = Cells(
        sizes=base.sizes - largest,
        gaps=gaps,
        runs=2.0 / (1.0 / base.n_runs + 1.0 / challenger.n_runs),
        rate=log_ratios["rate"],
        batch=log_ratios["batch"],
        seed_variance=2.0 * squares / freedom if freedom else 0.0,
        seed_freedom=freedom,
    )
    counts = base.n_runs + challenger.n_runs
    mixed = tuple(dict.fromkeys((*sides[0].mixed, *sides[1].mixed)))
    return _Pair(base.sizes, gaps, counts, ratio, slopes, slope_covariance, cells, mixed)


def _take(
    side: _Side,
    places: NDArray[np.int64],
) -> _Side:
    """Return the models of a side at these places."""
    columns = {name: values[places] for name, values in side.columns.items()}
    return _Side(side.sizes[places], side.log_loss[places], side.n_runs[places], side.squares, columns, side.mixed)


def _cost_ratio(
    at_equal: Cost,
    base: _Side,
    challenger: _Side,
    speed: Sequence[str],
) -> FloatArray:
    """Return ln of the variant's cost over the baseline's in each cell."""
    if at_equal == "inference":
        return np.asarray(challenger.sizes[:, 0] - base.sizes[:, 0])
    if at_equal == "flops":
        return np.asarray((challenger.sizes - base.sizes).sum(axis=1))
    slower = base.columns[speed[0]] - challenger.columns[speed[0]]
    return np.asarray(challenger.sizes[:, 1] - base.sizes[:, 1] + slower)


# ------------------------------------------------------------------ the answer


@reads
def promote(
    baseline: Any,
    variant: Any,
    loss: str | None = None,
    *,
    at_equal: Cost = "flops",
    beyond: Any = (10.0, 100.0),
    level: float = 0.9,
    prior: TrendPrior | None = None,
) -> Promotion:
    """Say whether a variant that wins at the sizes run is ahead at more compute.

    Args:
        baseline: runs at one or more sizes N and token counts D, with seeds; a Runs, or what `load_runs` reads.
        variant: runs of the variant at the same sizes; else of the same budgets, where the best of each is compared.
        loss: the column of both, in nats per token or per byte.
        at_equal: what is equal: training FLOPs (6 N D), "hours", from the columns `tokens_per_second`, or "inference",
            FLOPs per generated token (2 N).
        beyond: times the compute of the largest cell, at its tokens per parameter.
        level: of the intervals.
        prior: how gaps go on; None: learnt from the pairs of docs/studies/promote.md.

    The variant is promoted where it is ahead at ten times the compute with a probability of at least 0.75, and
    dropped where that is at most 0.25. Repeated runs of a size are averaged, and their scatter says how much noise
    there is. Where both tables have a learning rate or a batch, and one side's is a fixed multiple of the other's at
    all sizes, what is known of their optima moves the trend.

        >>> promote("base.csv", "variant.csv", at_equal="hours").decision  # doctest: +SKIP
        'promote'

    InputError where no runs match, for columns that are not there, and for `beyond` not above 1. Source: the model of
    trends and its errors are in docs/studies/promote.md.
    """
    check_level(level)
    if at_equal not in COSTS:
        raise InputError(given("at_equal", at_equal), f" must be one of {', '.join(COSTS)}")
    factors = np.unique(np.append(np.atleast_1d(numbers("beyond", beyond)), DECIDED_AT))
    if not np.all((factors > 1.0) & (factors <= FURTHEST)):
        raise InputError(given("beyond", beyond), f" must be above 1 and at most {FURTHEST:g}")
    prior = prior or read_trend_prior()
    baseline = baseline if isinstance(baseline, Runs) else load_runs(baseline, loss)
    variant = variant if isinstance(variant, Runs) else load_runs(variant, loss)
    if loss is not None:
        baseline = replace(baseline, loss=baseline.positive(loss))
        variant = replace(variant, loss=variant.positive(loss))
    pair = _pair(baseline, variant, at_equal, prior)
    labels, points = _points(factors)
    gaps = predict_gaps(prior, pair.cells, points)
    rows = _rows(pair, labels, points, gaps, level)
    decision, next_runs = _decide(prior, pair)
    return Promotion(
        rows=rows,
        cells=_cell_rows(pair),
        decision=decision,
        next_runs=next_runs,
        at_equal=at_equal,
        level=level,
        fan=_fan(prior, pair, float(factors[-1]), level),
        check=None,
        notes=_notes(pair),
    )


def _points(factors: FloatArray) -> tuple[list[str], FloatArray]:
    """Return the names of the sizes that are asked, and their ln N and ln D from the largest cell on, [m, 2]."""
    labels = ["the largest run", _times("N", DECIDED_AT), _times("D", DECIDED_AT)]
    points = [(0.0, 0.0), (np.log(DECIDED_AT), 0.0), (0.0, np.log(DECIDED_AT))]
    for factor in factors:
        labels.append(_times("C", factor))
        points.append((np.log(factor) / 2, np.log(factor) / 2))
    return labels, np.array(points)


def _rows(
    pair: _Pair,
    labels: Sequence[str],
    points: FloatArray,
    gaps: Gaps,
    level: float,
) -> tuple[dict[str, Any], ...]:
    """Lay out gap, speed-up and probability at each size."""
    draws = gaps.draw(DRAWS)
    slopes = _draw_slopes(pair)
    ratio = pair.cost_ratio[-1]
    # An error of the slope is one of what the variant's cost is worth.
    draws = draws - (slopes - slopes.mean()) * ratio
    quantiles = _quantiles(level)
    ahead = np.where(ratio == 0.0, gaps.probability(), np.mean(draws > 0, axis=0))
    rows = []
    for i, label in enumerate(labels):
        point_slopes = slopes * np.exp(-POWER * points[i].mean())
        log_speedup = _log_speedup(draws[:, [i]], point_slopes)
        low, high = np.quantile(draws[:, i], quantiles)
        speedup_low, speedup_high = np.quantile(log_speedup, quantiles)
        row: dict[str, Any] = {"at": label}
        row.update(_describe_size(pair.sizes[-1] + points[i]))
        row["gap"] = float(gaps.mean[i])
        row["gap_low"] = float(low)
        row["gap_high"] = float(high)
        row["speedup"] = _exp(np.median(log_speedup))
        row["speedup_low"] = _exp(speedup_low)
        row["speedup_high"] = _exp(speedup_high)
        row["ahead"] = float(ahead[i])
        rows.append(row)
    return tuple(rows)


def _describe_size(size: FloatArray) -> dict[str, float]:
    """Return N, D and FLOPs of ln N and ln D."""
    n_active, tokens = np.exp(size)
    return {
        "n_active": float(n_active),
        "tokens": float(tokens),
        "flops": float(6 * n_active * tokens),
    }


def _exp(value: Any) -> float:
    """Return a finite exponential."""
    return float(np.exp(np.clip(value, -50.0, 50.0)))


def _log_speedup(gap: Any, slope: Any) -> Any:
    """Return ln of the factor of compute that is worth a gap, where ln L falls with ln C by a slope that flattens.

    N and D grow as √C, so ln L falls by 2 slope / POWER at most, and a gap above that has no factor.
    """
    share = np.minimum(gap * POWER / (2.0 * slope), 1.0 - 1e-9)
    return -2.0 / POWER * np.log1p(-share)


def _quantiles(level: float) -> list[float]:
    """Return the quantiles between which an interval holds `level`."""
    return [(1.0 - level) / 2, (1.0 + level) / 2]


def _draw_slopes(pair: _Pair) -> FloatArray:
    """Draw the fall of the baseline's ln L with ln C at the largest cell, [draws, 1]; it falls at least a little."""
    mean = pair.slopes[-1].mean()
    deviation = np.sqrt(pair.slope_covariance.sum()) / 2
    normal = np.random.default_rng(1).standard_normal((DRAWS, 1))
    return np.asarray(np.maximum(mean + deviation * normal, mean / 5))


def _decide(
    prior: TrendPrior,
    pair: _Pair,
) -> tuple[Decision, dict[str, float] | None]:
    """Decide at `DECIDED_AT` times the compute, or find the cheapest cell that would more likely than not."""
    target = np.full(2, np.log(DECIDED_AT) / 2)
    candidates = np.column_stack([np.log(NEXT) / 2] * 2)
    gaps = predict_gaps(prior, pair.cells, np.vstack([target, candidates]))
    probability = gaps.probability()[0]
    if probability >= DECIDED:
        return "promote", None
    if probability <= 1.0 - DECIDED:
        return "drop", None
    for i, candidate in enumerate(candidates, start=1):
        decides = _chance_to_decide(gaps, i)
        if decides > 0.5:
            cell = _describe_size(pair.sizes[-1] + candidate)
            cell["decides"] = decides
            return "undecided", cell
    return "undecided", None


def _chance_to_decide(
    gaps: Gaps,
    candidate: int,
) -> float:
    """Return the probability that a cell of two single runs at a point decides at point 0."""
    variance = gaps.covariances[:, 0, 0]
    candidate_variance = gaps.covariances[:, candidate, candidate] + gaps.noises
    explained = gaps.covariances[:, 0, candidate] ** 2 / candidate_variance
    remaining = np.sqrt(np.maximum(variance - explained, 1e-18))
    margin = ndtri(DECIDED) * remaining
    shift = np.sqrt(explained) + 1e-12
    mean = gaps.means[:, 0]
    chances = ndtr((mean - margin) / shift) + ndtr((-mean - margin) / shift)
    return float(gaps.weights @ chances)


def _fan(prior: TrendPrior, pair: _Pair, furthest: float, level: float) -> Fan:
    """Return FLOPs, mean gap and interval from the smallest cell's compute to the furthest point."""
    start = pair.cells.sizes.sum(axis=1).min()
    steps = np.linspace(start, np.log(furthest), 41)
    gaps = predict_gaps(prior, pair.cells, np.column_stack([steps / 2, steps / 2]))
    low, high = np.quantile(gaps.draw(DRAWS), _quantiles(level), axis=0)
    flops = 6.0 * np.exp(pair.sizes[-1].sum() + steps)
    return flops, gaps.mean, low, high


def _cell_rows(pair: _Pair) -> tuple[dict[str, Any], ...]:
    """Lay out the cells."""
    rows = []
    for i, size in enumerate(pair.sizes):
        row: dict[str, Any] = {}
        row.update(_describe_size(size))
        row["runs"] = int(pair.counts[i])
        row["cost ratio"] = _exp(pair.cost_ratio[i])
        row["gap"] = float(pair.gaps[i])
        row["speedup"] = _exp(_log_speedup(pair.gaps[i], pair.slopes[i].mean()))
        rows.append(row)
    return tuple(rows)


def _notes(pair: _Pair) -> tuple[str, ...]:
    """Say what the runs cannot show."""
    notes = []
    spans = np.ptp(pair.sizes, axis=0)
    for name, span in zip(("N", "D"), spans, strict=True):
        if span < SAME_TOKENS:
            notes.append(f"all runs have one {name}: the trend with {name} is that of public pairs")
    for name in pair.mixed:
        notes.append(
            f"runs of one size differ in {name} and were averaged: keep the best ones (best_of) or one setting"
        )
    if not pair.cells.seed_freedom:
        notes.append("no size was run twice: the noise of seeds is that of public pairs")
    return tuple(notes)
