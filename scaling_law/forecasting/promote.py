"""Does a small win survive scale? `promote(baseline, variant)`: promote, drop, or two more runs decide.

Runs of the baseline and the variant are matched into cells of equal N and D, or else of equal compute. The gap of a
cell, ln(L_baseline / L_variant), is corrected for what the variant costs more, by the slope of the baseline's loss;
`forecasting.trends` says how gaps go on beyond the largest cell. Over the slope, a gap is ln of the effective
speed-up: how many times the compute the baseline needs for the variant's loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from hub.base.errors import InputError, given
from hub.base.fields import field, reads
from hub.base.tables import Tables
from hub.base.types import Fields, Strings
from hub.base.units import format_flops
from scaling_law.answer.answer import Answer, rows_of
from scaling_law.answer.columns import tabulate
from scaling_law.figures import drawing
from scaling_law.forecasting.normals import Mixture
from scaling_law.forecasting.trends import (
    POWER,
    RATE_BY_BATCH,
    Cells,
    TrendPrior,
    fit_slopes,
    noise_variances,
    predict_gaps,
    read_trend_prior,
)
from scaling_law.formulas.law import numbers, percentile_interval
from scaling_law.planning.question import Level
from scaling_law.runs.loading import load_runs
from scaling_law.runs.table import Runs
from scaling_law.runs.trunks import BATCHES, LEARNING_RATES
from scaling_law.size.arrays import FloatArray, IntArray, first_smallest

Cost = Literal["flops", "hours", "inference"]
Decision = Literal["promote", "drop", "undecided"]
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
# The place of the loss after those of N and D.
LOSS = 2
# Columns and cells that a summary shows.
SUMMARY = ("at", "n_active", "tokens", "gap", "gap_interval", "speedup", "speedup_interval", "ahead")
SHOWN = 12
# Times the compute of the largest cell that may be asked.
FURTHEST = 1e6
SPEED_COLUMNS = (
    "tokens_per_second",
    "tokens_per_s",
    "throughput",
)
SETTINGS = {
    "rate": LEARNING_RATES,
    "batch": (*BATCHES, "batch_tokens"),
    "speed": SPEED_COLUMNS,
}
COST = "What is equal: training FLOPs, hours by the runs' tokens_per_second, or FLOPs per generated token."
COSTS = {
    "flops": "equal FLOPs",
    "hours": "equal hours",
    "inference": "equal inference cost",
}


@dataclass(frozen=True, repr=False)
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
    or where no size up to thirty times the largest would.
    """

    cells: tuple[Fields, ...]
    decision: Decision
    next_runs: dict[str, float] | None
    at_equal: Cost
    level: float

    @property
    def best(self) -> Fields:
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
            return f"undecided, and two more runs at up to {NEXT[-1]:g} × C would hardly decide: {facts}"
        return f"two more runs decide ({format_flops(self.next_runs['flops'])} FLOPs each): {facts}"

    # A narrow terminal gets the table in pieces, with nothing cut.
    _first: ClassVar[Strings] = ()

    def _cells(self) -> list[Fields]:
        cells = []
        for row in self.rows:
            values = dict(row)
            for name in ("gap", "speedup"):
                values[f"{name}_interval"] = (row[f"{name}_low"], row[f"{name}_high"])
            cells.append({name: values[name] for name in SUMMARY})
        return cells

    def _footnotes(self) -> list[str]:
        notes = [
            f"gap: ln(L_baseline / L_variant) at {COSTS[self.at_equal]}; intervals of {self.level:.0%}",
            "speed-up: times the compute that the baseline needs for the variant's loss; ahead: probability",
        ]
        if self.next_runs:
            text = "two more runs: both at N = {n_active:.3g}, D = {tokens:.3g} decide with probability {decides:.2f}"
            notes.append(text.format(**self.next_runs))
        return notes

    def summary(self) -> Tables:
        title = "Sizes at which both were run"
        if len(self.cells) > SHOWN:
            title = f"The largest {SHOWN} of {len(self.cells)} sizes at which both were run"
        return Tables([super().summary(), tabulate(self.cells[-SHOWN:], title=title)])

    def figure(self, ax: Any = None) -> Any:
        """Draw the gap of each cell, and how it goes on with compute."""
        ax = drawing.axes_or_new(ax)
        points = [self.rows[0], *self.rows[BEYOND:]]
        flops, mean, low, high = ([row[name] for row in points] for name in ("flops", "gap", "gap_low", "gap_high"))
        ax.axhline(0.0, color="0.5", linewidth=0.8)
        ax.fill_between(flops, low, high, alpha=0.2, linewidth=0, label=f"{self.level:.0%}")
        ax.plot(flops, mean)
        ax.plot([cell["flops"] for cell in self.cells], [cell["gap"] for cell in self.cells], "ko", label="both run")
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
    """The distinct models of one side, averaged over repeated runs: ln of N, D, L and further columns [models, k].

    `scatter` [runs, k] is how far each run lies from its model's mean.
    """

    means: FloatArray
    n_runs: IntArray
    scatter: FloatArray


def _summarise_side(
    runs: Runs,
    names: Sequence[str],
) -> _Side:
    """Average the repeated runs of each model; `names` are further columns."""
    columns = [runs.n_active, runs.tokens, runs.loss]
    columns += [runs.positive(name) for name in names]
    values = np.log(np.column_stack(columns))
    _, model = np.unique(np.round(values[:, :LOSS] / REPEATED), axis=0, return_inverse=True)
    n_runs = np.bincount(model)
    sums = np.zeros((len(n_runs), values.shape[1]))
    np.add.at(sums, model, values)
    means = sums / n_runs[:, None]
    return _Side(means, n_runs, values - means[model])


def _match(
    baseline: FloatArray,
    variant: FloatArray,
) -> IntArray:
    """Pair the models of two sides by N and D, [pairs, 2]; where none match, the best of equal budgets."""
    apart = baseline[:, None, :LOSS] - variant[:, :LOSS]
    matches = _nearest(apart / (SAME_SIZE, SAME_TOKENS))
    if len(matches):
        return matches
    frontiers = [_frontier(models) for models in (baseline, variant)]
    budgets = [models[best, :LOSS].sum(axis=1) for models, best in zip((baseline, variant), frontiers, strict=True)]
    apart = budgets[0][:, None] - budgets[1]
    matches = _nearest(apart[..., None] / SAME_BUDGET)
    return np.column_stack([frontiers[0][matches[:, 0]], frontiers[1][matches[:, 1]]])


def _nearest(apart: FloatArray) -> IntArray:
    """Pair rows and columns that are each other's nearest and in all respects less than 1 apart, [pairs, 2]."""
    apart = np.abs(apart)
    distance = np.where((apart < 1.0).all(axis=-1), apart.sum(axis=-1), np.inf)
    rows = np.arange(len(distance))
    nearest = first_smallest(distance.T)
    is_mutual = first_smallest(distance)[nearest] == rows
    is_mutual &= np.isfinite(distance[rows, nearest])
    return np.column_stack([rows, nearest])[is_mutual]


def _frontier(models: FloatArray) -> IntArray:
    """Return the places of the best models of each budget."""
    budgets = models[:, :LOSS].sum(axis=1)
    is_same = np.abs(budgets[:, None] - budgets) < SAME_BUDGET
    best_losses = np.where(is_same, models[:, LOSS], np.inf).min(axis=1)
    return np.flatnonzero(models[:, LOSS] <= best_losses)


class _Pair(NamedTuple):
    """Matched cells in the order of compute, the largest last, with gaps at equal cost.

    `sizes` [n, 2] are ln N and ln D of the baseline, `slopes` [n, 2] those of its −ln L at each cell, and
    `slope_deviation` is the standard deviation of their mean at the largest.
    """

    sizes: FloatArray
    counts: IntArray
    cost_ratio: FloatArray
    slopes: FloatArray
    slope_deviation: float
    cells: Cells
    notes: tuple[str, ...]


def _pair(
    baseline: Runs,
    variant: Runs,
    at_equal: Cost,
    prior: TrendPrior,
) -> _Pair:
    """Match the runs of both sides, and correct the gaps for costs."""
    columns = {}
    for setting, names in SETTINGS.items():
        column = _common_column(baseline, variant, names)
        if column:
            columns[setting] = column
    if at_equal == "hours" and "speed" not in columns:
        raise InputError(f"at_equal='hours' needs a column of measured speed in both tables: {SPEED_COLUMNS[0]}")
    sides = [_summarise_side(runs, [*columns.values()]) for runs in (baseline, variant)]
    matches = _match(sides[0].means, sides[1].means)
    if not len(matches):
        text = "no run of the variant has a run of the baseline of equal N and D, or of equal compute"
        raise InputError(f"{baseline.source}, {variant.source}: {text}")
    order = np.argsort(sides[0].means[matches[:, 0], :LOSS].sum(axis=1), kind="stable")
    places = matches[order].T
    base, challenger = (side.means[place] for side, place in zip(sides, places, strict=True))
    base_runs, variant_runs = (side.n_runs[place] for side, place in zip(sides, places, strict=True))
    sizes = base[:, :LOSS]
    difference = challenger - base
    settings = dict(zip(columns, difference.T[LOSS + 1 :], strict=True))
    all_sizes = sides[0].means[:, :LOSS] - sizes[-1]
    slope, slope_covariance = fit_slopes(prior, all_sizes, sides[0].means[:, LOSS])
    slopes = slope * np.exp(-POWER * (sizes - sizes[-1]))
    # At equal inference cost the baseline would be as much larger, on the same tokens.
    per_cost = slopes[:, 0] if at_equal == "inference" else slopes.mean(axis=1)
    cost_ratio = _cost_ratio(at_equal, difference, settings)
    freedom = sum(len(side.scatter) - len(side.means) for side in sides)
    squares = sum(float(np.sum(side.scatter[:, LOSS] ** 2)) for side in sides)
    cells = Cells(
        sizes=sizes - sizes[-1],
        gaps=-difference[:, LOSS] - per_cost * cost_ratio,
        runs=2.0 / (1.0 / base_runs + 1.0 / variant_runs),
        excess_rate=_constant(settings.get("rate")) - RATE_BY_BATCH * _constant(settings.get("batch")),
        seed_variance=2.0 * squares / freedom if freedom else 0.0,
        seed_freedom=freedom,
    )
    return _Pair(
        sizes=sizes,
        counts=base_runs + variant_runs,
        cost_ratio=cost_ratio,
        slopes=slopes,
        slope_deviation=float(np.sqrt(slope_covariance.sum()) / 2),
        cells=cells,
        notes=tuple(_notes(baseline, variant, sides, columns, difference, cells)),
    )


def _common_column(
    baseline: Runs,
    variant: Runs,
    names: Sequence[str],
) -> str:
    """Return the first of these columns that both tables have for all runs; else nothing."""
    for name in names:
        if all(name in runs and bool(np.all(runs.column(name) > 0)) for runs in (baseline, variant)):
            return name
    return ""


def _constant(log_ratio: FloatArray | None) -> float:
    """Return ln of a setting's ratio; 0 where it is unknown, or changes with size and so was tuned at each."""
    if log_ratio is None or np.ptp(log_ratio) >= SAME_SETTING:
        return 0.0
    return float(log_ratio.mean())


def _cost_ratio(
    at_equal: Cost,
    difference: FloatArray,
    settings: dict[str, FloatArray],
) -> FloatArray:
    """Return ln of the variant's cost over the baseline's in each cell, from the `difference` of the two sides."""
    if at_equal == "inference":
        return difference[:, 0]
    if at_equal == "flops":
        return np.asarray(difference[:, :LOSS].sum(axis=1))
    return difference[:, 1] - settings["speed"]


def _notes(
    baseline: Runs,
    variant: Runs,
    sides: Sequence[_Side],
    columns: dict[str, str],
    difference: FloatArray,
    cells: Cells,
) -> Iterator[str]:
    """Say what the runs cannot show, and what is odd about them."""
    if baseline.loss_name != variant.loss_name:
        yield f"the baseline's loss is {baseline.loss_name}, the variant's {variant.loss_name}: are they one measure?"
    if not np.any(cells.gaps):
        yield "all losses of the two sides are equal: are they the same runs?"
    is_by_budget = bool(np.any(np.abs(difference[:, :LOSS]) >= (SAME_SIZE, SAME_TOKENS)))
    if is_by_budget:
        yield "no sizes match: the best runs of equal budgets are compared"
    for name, side in zip(("baseline", "variant"), sides, strict=True):
        n_unmatched = len(side.means) - len(cells.gaps)
        if n_unmatched and not is_by_budget:
            verb = "has" if n_unmatched == 1 else "have"
            yield f"{n_unmatched} of the {len(side.means)} sizes of the {name} {verb} no partner"
    for name, span in zip(("N", "D"), np.ptp(cells.sizes, axis=0), strict=True):
        if span < SAME_TOKENS:
            yield f"all runs have one {name}: the trend with {name} is that of public pairs"
    for place, (setting, name) in enumerate(columns.items(), start=LOSS + 1):
        is_mixed = any(np.any(np.abs(side.scatter[:, place]) > SAME_SETTING) for side in sides)
        if is_mixed and setting != "speed":
            yield f"runs of one size differ in {name} and were averaged: keep the best ones (best_of) or one setting"
    if not cells.seed_freedom:
        yield "no size was run twice: the noise of seeds is that of public pairs"


# ------------------------------------------------------------------ the answer


@reads
def promote(
    baseline: Any,
    variant: Any,
    loss: str | None = None,
    *,
    at_equal: Annotated[Cost, field(COST)] = "flops",
    beyond: Any = (10.0, 100.0),
    level: Level = 0.9,
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
    place = labels.index(_times("C", DECIDED_AT))
    decision, next_runs = _decide(pair, points, gaps, noise_variances(prior), place, len(labels))
    cells = {
        **_describe_sizes(pair.sizes),
        "runs": pair.counts,
        "cost ratio": _exp(pair.cost_ratio),
        "gap": pair.cells.gaps,
        "speedup": _exp(_log_speedup(pair.cells.gaps, pair.slopes.mean(axis=1))),
    }
    return Promotion(
        columns=_columns(pair, labels, points[: len(labels)], gaps, level),
        cells=tuple(rows_of(cells)),
        decision=decision,
        next_runs=next_runs,
        at_equal=at_equal,
        level=level,
        check=None,
        notes=pair.notes,
    )


def _points(factors: FloatArray) -> tuple[list[str], FloatArray]:
    """Return the names of the sizes that are asked, and their ln N and ln D from the largest cell on, [m, 2].

    The points after them, without a name, are those where further runs might decide.
    """
    labels = ["the largest run", _times("N", DECIDED_AT), _times("D", DECIDED_AT)]
    points = [(0.0, 0.0), (np.log(DECIDED_AT), 0.0), (0.0, np.log(DECIDED_AT))]
    labels += [_times("C", factor) for factor in factors]
    for factor in (*factors, *NEXT):
        points.append((np.log(factor) / 2, np.log(factor) / 2))
    return labels, np.array(points)


def _columns(
    pair: _Pair,
    labels: Sequence[str],
    points: FloatArray,
    gaps: Mixture,
    level: float,
) -> Fields:
    """Return gap, speed-up and probability at each of n labelled points, [n, 2]."""
    count = len(labels)
    ratio = pair.cost_ratio[-1]
    slope = pair.slopes[-1].mean()
    normal = np.random.default_rng(1).standard_normal((DRAWS, 1))
    # The baseline's loss falls at least a little.
    slopes = np.maximum(slope + pair.slope_deviation * normal, slope / 5)
    # An error of the slope is one of what the variant's cost is worth.
    draws = gaps.draw(DRAWS)[:, :count] - (slopes - slopes.mean()) * ratio
    log_speedups = _log_speedup(draws, slopes * np.exp(-POWER * points.mean(axis=1)))
    gap_low, gap_high = percentile_interval(draws, level)
    speedup_low, speedup_high = _exp(percentile_interval(log_speedups, level))
    return {
        "at": labels,
        **_describe_sizes(pair.sizes[-1] + points),
        "gap": gaps.mean[:count],
        "gap_low": gap_low,
        "gap_high": gap_high,
        "speedup": _exp(np.median(log_speedups, axis=0)),
        "speedup_low": speedup_low,
        "speedup_high": speedup_high,
        "ahead": np.mean(draws > 0, axis=0) if ratio else gaps.probability()[:count],
    }


def _describe_sizes(sizes: FloatArray) -> dict[str, FloatArray]:
    """Return N, D and FLOPs of ln N and ln D, [n, 2]."""
    n_active, tokens = np.exp(sizes).T
    return {
        "n_active": n_active,
        "tokens": tokens,
        "flops": 6 * n_active * tokens,
    }


def _exp(values: Any) -> FloatArray:
    """Return finite exponentials."""
    return np.asarray(np.exp(np.clip(values, -50.0, 50.0)))


def _log_speedup(gap: Any, slope: Any) -> FloatArray:
    """Return ln of the factor of compute that is worth a gap, where ln L falls with ln C by a slope that flattens.

    N and D grow as √C, so ln L falls by 2 slope / POWER at most, and a gap above that has no factor.
    """
    share = np.minimum(gap * POWER / (2.0 * slope), 1.0 - 1e-9)
    return np.asarray(-2.0 / POWER * np.log1p(-share))


def _decide(
    pair: _Pair,
    points: FloatArray,
    gaps: Mixture,
    noises: FloatArray,
    place: int,
    n_labels: int,
) -> tuple[Decision, dict[str, float] | None]:
    """Decide at a place among the points, or find the cheapest cell after the labels that would probably do so."""
    probability = gaps.probability()[place]
    if probability >= DECIDED:
        return "promote", None
    if probability <= 1.0 - DECIDED:
        return "drop", None
    for candidate in range(n_labels, len(points)):
        decides = _chance_to_decide(gaps, noises, place, candidate)
        if decides > 0.5:
            (size,) = rows_of(_describe_sizes(pair.sizes[-1] + points[candidate]))
            return "undecided", {**size, "decides": decides}
    return "undecided", None


def _chance_to_decide(
    gaps: Mixture,
    noises: FloatArray,
    place: int,
    candidate: int,
) -> float:
    """Return the probability that a cell of two single runs at one point decides at another."""
    variance = gaps.covariances[:, place, place]
    candidate_variance = gaps.covariances[:, candidate, candidate] + noises
    explained = gaps.covariances[:, place, candidate] ** 2 / candidate_variance
    remaining = np.sqrt(np.maximum(variance - explained, 1e-18))
    margin = ndtri(DECIDED) * remaining
    shift = np.sqrt(explained) + 1e-12
    mean = gaps.means[:, place]
    chances = ndtr((mean - margin) / shift) + ndtr((-mean - margin) / shift)
    return float(gaps.weights @ chances)
