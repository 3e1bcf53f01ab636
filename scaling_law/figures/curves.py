"""The numbers behind the figures of a law: drawn by matplotlib in `law_figures`, by Plotly in `interactive`.

The optima are those of `planning.optimum`, for laws of any form; models follow the d / 64 rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from hub.base.types import Fields
from scaling_law.formulas import Formula
from scaling_law.formulas.law import percentile_interval, positive
from scaling_law.planning.budget import Budget
from scaling_law.planning.limits import Limits
from scaling_law.planning.optimal_table import OptimalTable, find_ties, share_wins
from scaling_law.planning.optimum import (
    ROUNDING,
    BestModels,
    choose_width,
    drawn_losses,
    models_at_budget,
    optimal_widths,
    parse_experts,
)
from scaling_law.planning.question import LimitFields, ModelFields
from scaling_law.planning.trusted import budgets_trusted, spend_enough, trusted_widths
from scaling_law.size.arrays import BoolArray, FloatArray, IntArray, Interval, Intervals, Variables

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Memory limits among whose models a map looks for the best, down to this share of the least that it shows.
RUNGS = 1000
LEAST_MEMORY = 1e-3
# Memory limits at which the edge of the trusted region is computed.
EDGE_POINTS = 200
# A curve along a budget has widths up to so many times above and below the best.
WIDTHS = 4.0
# A curve along tokens has so many times fewer and more than its table.
TOKENS = 20.0


@dataclass(frozen=True, eq=False)
class Curve:
    """Predicted losses of models with `experts` experts along the `x` of a figure; arrays [points], nats per token.

    `inside`: within the fitted range, nowhere if unknown. `trusted`: no further outside than backtests support.
    `interval`: 95 % of the draws, None without. `mark` is the number of the point that the figure marks: the optimum,
    or the model of a table.
    """

    experts: float
    x: FloatArray
    loss: FloatArray
    inside: BoolArray
    trusted: BoolArray
    interval: Intervals | None
    d_model: FloatArray
    n_active: FloatArray
    n_total: FloatArray
    tokens: FloatArray
    mark: int

    @property
    def marked(self) -> Interval:
        """The x and the loss of the marked point."""
        return float(self.x[self.mark]), float(self.loss[self.mark])


@dataclass(frozen=True)
class Region:
    """The points of a figure where `experts` is best; `points` ends with the first point of the next region."""

    experts: float
    points: slice


@dataclass(frozen=True)
class Boundary:
    """The memory limit from which `larger` experts beat `smaller`: `interval` is that of 95 % of the draws."""

    smaller: float
    larger: float
    interval: Interval


@dataclass(frozen=True, eq=False)
class MemoryCurves:
    """The best loss of each E under each memory limit, and the regions where each E is best.

    `memory` [points] are limits: bytes, or parameters where the limits count a byte for each; `loss` is that of the
    best model under each. Answers are trusted from the limit `edge` on, None where it is not in the figure. From
    `boundaries` on more experts have the lowest loss, trusted or not; there is one for each pair of E, the last, and
    none for a law without draws.
    """

    memory: FloatArray
    curves: tuple[Curve, ...]
    regions: tuple[Region, ...]
    loss: FloatArray
    boundaries: tuple[Boundary, ...]
    edge: float | None = None


@dataclass(frozen=True, eq=False)
class BestExperts:
    """The E of lowest loss over budgets `flops` [columns] and memory limits `memory` [rows], bytes; NaN for none.

    `tied`: the loss of another E is equal within its error, as in `OptimalTable.comparison`. `inside`: the best model
    lies within the law's fitted range. `trusted`: it lies no further outside than backtests support. All are
    [rows, columns], as are `experts` and `loss` (nats per token). `edge` has budgets and memory limits along the edge
    of the trusted region, NaN between its two sides and without one.
    """

    flops: FloatArray
    memory: FloatArray
    experts: FloatArray
    loss: FloatArray
    tied: BoolArray
    inside: BoolArray
    trusted: BoolArray
    edge: Intervals


def interval_of(draws: FloatArray) -> Intervals | None:
    """Return 95 % intervals of `draws` [draws, points], from draws without NaN; None for fewer than two of them."""
    finite = draws[np.isfinite(draws).all(axis=1)]
    return percentile_interval(finite) if len(finite) > 1 else None


def loss_curve(
    law: Formula, x: FloatArray, variables: Variables, limits: Limits, mark: int, band: bool = True
) -> Curve:
    """Compute the curve of models of one E along `x`; `variables` are N_act, D, E and the law's others, [points].

    `band`: with the interval of the law's draws, if it has any. `limits` may have unique tokens, which repeat.
    """
    experts = float(variables["experts"][0])
    interval = None
    if band and law.draws is not None:
        draws = limits.loss(law, law.columns_of_draws(1), variables)
        interval = interval_of(limits.drawn_losses(law, draws, variables))
    d_model = np.asarray(limits.ladder.width_of_active(variables["n_active"]))
    check = limits.check(law, variables)
    return Curve(
        experts=experts,
        x=x,
        loss=limits.loss(law, law.columns, variables),
        inside=check.inside,
        trusted=check.trusted,
        interval=interval,
        d_model=d_model,
        n_active=variables["n_active"],
        n_total=np.asarray(limits.widths(d_model, experts).n_total),
        tokens=variables["tokens"],
        mark=mark,
    )


def memory_curves(
    law: Formula,
    budget: Budget,
    experts: Sequence[float] | None = None,
    points: int = 300,
    *,
    prefers_trusted: bool = False,
    **costs: Unpack[ModelFields],
) -> MemoryCurves:
    """Compute the loss against a memory limit, a curve for each E up to the optimum of the budget.

    The limit counts parameters and elements of the KV cache unless `costs`, as of `law.optimal`, give these more
    bytes. Limits go from the smallest inside the dense model's range guard to past the last optimum. An E without an
    optimum has no curve; ValueError if all are without. Regions are those of the lowest loss; if `prefers_trusted`,
    models and regions are those of `OptimalTable`.
    """
    fields: Fields = {"bytes_per_parameter": 1.0, "bytes_per_kv": 1.0, **costs}
    limits = Limits.of(law, **fields)
    e = np.atleast_1d(parse_experts(law, experts, limits))
    optimum = optimal_widths(law, budget, e, limits)
    sizes = limits.memory_bytes(optimum.d_model, e)[optimum.exists]
    memory = np.geomspace(sizes.min() / 12, sizes.max() * 1.3, points)
    models, is_compared = _best_within(law, budget, e, limits, memory, prefers_trusted)
    is_beyond = law.check(**models.variables).beyond
    # A law of small runs has no model inside the range guard: then all are shown.
    is_shown = np.isfinite(models.loss) & (~is_beyond | is_beyond.all())
    has_model = is_shown.any(axis=1)
    memory = memory[has_model]
    is_shown = is_shown[has_model]
    models = models.take(lambda values: values[has_model])
    loss = np.where(is_shown, models.loss, np.inf)
    best = np.argmin(np.where(is_compared[has_model], loss, np.inf), axis=1)
    curves = []
    for column in range(len(e)):
        # A curve ends at its optimum.
        last = int(np.argmin(loss[:, column]))
        visible = np.flatnonzero(is_shown[: last + 1, column])
        if visible.size:
            variables = {name: values[visible, column] for name, values in models.variables.items()}
            curves.append(loss_curve(law, memory[visible], variables, limits, len(visible) - 1, band=False))
    draws = _draw_losses(law, budget, limits, models, is_shown)
    return MemoryCurves(
        memory=memory,
        curves=tuple(curves),
        regions=tuple(Region(float(e[column]), segment) for segment, column in split_where_changes(best)),
        loss=loss[np.arange(len(best)), best],
        boundaries=() if draws is None else _boundaries(e, memory, loss, draws),
        edge=_find_edge(memory, budgets_trusted(law, budget, e, limits, memory)[1]),
    )


def _find_edge(memory: FloatArray, largest: FloatArray) -> float | None:
    """Find the memory limit from which a budget is no more than the largest trusted one, given as shares of it.

    None if that is outside of the limits, or no smaller one holds a trusted model of any budget.
    """
    has_models = np.isfinite(largest)
    shares = largest[has_models]
    if not shares.size or shares[0] >= 1 or shares[-1] < 1:
        return None
    # Between two limits, so that the edge does not jump with the budget.
    return float(np.exp(np.interp(0.0, np.log(shares), np.log(memory[has_models]))))


def _best_within(
    law: Formula, budget: Budget, experts: FloatArray, limits: Limits, memory: FloatArray, prefers_trusted: bool
) -> tuple[BestModels, BoolArray]:
    """Find the best model of each E within each of the ascending memory limits, [limits, ..., E] for several budgets.

    Also returns which of them are compared: if preferred the trusted ones, else all. The loss is infinite for an E
    without an optimum.
    """
    optimum = optimal_widths(law, budget, experts, limits)
    largest = limits.width_of_memory(memory.reshape(-1, *[1] * optimum.exists.ndim), experts)
    find = models_at_budget(law, law.columns, experts, budget, limits)
    models = _take_best_so_far(choose_width(find, np.minimum(optimum.d_model, largest)[None], optimum.exists))
    is_compared = np.full(models.loss.shape, True)
    check = limits.check(law, models.variables)
    if prefers_trusted and not check.unknown:
        # The largest trusted model may be smaller than its limit.
        _, largest_trusted = trusted_widths(law, experts, limits)
        d_model = np.broadcast_to(np.minimum(largest, largest_trusted), models.loss.shape)
        find = models_at_budget(law, law.columns, experts, budget, limits, trusted=True)
        trusted = choose_width(find, d_model[None], optimum.exists & (largest >= limits.ladder.smallest))
        trusted = _take_best_so_far(trusted).replaced(models.fits & check.trusted, models)
        has_answer = spend_enough(budget, limits, trusted)
        is_compared = trusted.fits | ~has_answer
        models = models.replaced(has_answer & trusted.fits, trusted)
    return models, is_compared


def _take_best_so_far(models: BestModels) -> BestModels:
    """Return for each limit, the rows, the best of its models and of those of lower limits.

    In hours a smaller model can have the lower loss: layouts change with the size.
    """
    rows = np.arange(len(models.loss)).reshape(-1, *[1] * (models.loss.ndim - 1))
    is_lowest = models.loss == np.minimum.accumulate(models.loss)
    best = np.maximum.accumulate(np.where(is_lowest, rows, 0))
    return models.take(lambda values: np.take_along_axis(values, best, axis=0))


def _draw_losses(
    law: Formula, budget: Budget, limits: Limits, models: BestModels, is_shown: BoolArray
) -> FloatArray | None:
    """Compute losses under each draw, [n_draws, ...], infinite where a model is not shown; None without draws."""
    # The law may refuse models that are not shown: they take the values of one that is.
    first = np.argmax(is_shown)
    places = np.where(is_shown.ravel(), np.arange(is_shown.size), first)
    models = models.take(lambda values: values.ravel()[places])
    draws = drawn_losses(law, budget, models, limits)
    if draws is None:
        return None
    return np.where(is_shown, draws.reshape(-1, *is_shown.shape), np.inf)


def _boundaries(experts: FloatArray, memory: FloatArray, loss: FloatArray, draws: FloatArray) -> tuple[Boundary, ...]:
    """Find the 95 % interval of the limit from which more experts beat fewer, where the law's best E changes.

    Losses are [points, E] and [n_draws, points, E]. Each draw judges the same models, so that errors which both E
    share cancel. A limit outside of the figure is moved to its edge.
    """
    boundaries = {}
    for (_, first), (_, second) in pairwise(split_where_changes(np.argmin(loss, axis=1))):
        if experts[first] > experts[second]:
            continue
        points = np.flatnonzero(np.isfinite(loss[:, [first, second]]).all(axis=1))
        if not points.size:
            continue
        is_behind = draws[:, points, second] >= draws[:, points, first]
        # The point after the last one at which more experts are behind.
        n_ahead = np.where(is_behind.any(axis=1), np.argmax(is_behind[:, ::-1], axis=1), len(points))
        crossings = memory[points[np.minimum(len(points) - n_ahead, len(points) - 1)]]
        pair = (float(experts[first]), float(experts[second]))
        boundaries[pair] = Boundary(*pair, percentile_interval(crossings))
    return tuple(boundaries.values())


def split_where_changes(numbers: IntArray) -> list[tuple[slice, int]]:
    """Split `numbers` [points] into runs of equal numbers: the slice of each, with the first point of the next."""
    edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1), len(numbers)]
    return [(slice(int(first), int(last) + 1), int(numbers[first])) for first, last in pairwise(edges)]


def budget_curves(
    law: Formula,
    budget: Budget,
    experts: Sequence[float] | None = None,
    *,
    points: int = 120,
    **costs: Unpack[LimitFields],
) -> tuple[Curve, ...]:
    """Compute the loss against tokens along a budget for each E that has an optimum, which is marked.

    A curve has the widths about its optimum that the GPUs and the limits allow; `costs` are limits as of
    `law.optimal`. ValueError if no E has an optimum within them.
    """
    limits = Limits.of(law, **costs)
    e = np.atleast_1d(parse_experts(law, experts, limits))
    optima = optimal_widths(law, budget, e, limits)
    has_model = optima.exists & optima.fits
    steps = np.geomspace(WIDTHS, 1.0 / WIDTHS, 2 * (points // 2) + 1)
    curves = []
    for n_experts, width in zip(e[has_model].tolist(), optima.d_model[has_model].tolist(), strict=True):
        widths = width * steps
        variables = budget.models(law, widths, n_experts, limits)
        is_trained = variables["tokens"] > 0
        is_trained &= widths <= limits.width_limit(n_experts) * (1 + ROUNDING)
        models = {name: values[is_trained] for name, values in variables.items()}
        # The optimum is in the middle of all widths.
        mark = int(is_trained[: points // 2].sum())
        curves.append(loss_curve(law, models["tokens"], models, limits, mark))
    return tuple(curves)


def token_curves(law: Formula, table: OptimalTable, points: int = 120) -> tuple[Curve, ...]:
    """Compute the loss against training tokens for the model of each row of `table`, whose own tokens are marked."""
    row_tokens = [row.tokens for row in table]
    token_range = np.geomspace(min(row_tokens) / TOKENS, max(row_tokens) * TOKENS, points)
    curves = []
    for row in table:
        tokens = np.sort(np.append(token_range, row.tokens))
        variables = table.limits.models(law, row.d_model, row.experts, tokens)
        mark = int(np.searchsorted(tokens, row.tokens))
        curves.append(loss_curve(law, tokens, variables, table.limits, mark))
    return tuple(curves)


def shown_losses(curves: Sequence[Curve]) -> Interval:
    """Return the bounds of the losses that a figure of curves shows: around their marks, more above than below.

    The intervals of the marks are in sight as far as they do not double the height.
    """
    losses = [curve.marked[1] for curve in curves]
    low = min(losses)
    high = max(losses)
    height = high - low
    lowest = low - 0.25 * height - 0.005
    highest = high + 2.0 * height + 0.05
    for curve in curves:
        if curve.interval is not None:
            lowest = min(lowest, float(curve.interval[0][curve.mark]) - 0.002)
    return max(lowest, low - (highest - low)), highest


def shown_tokens(curves: Sequence[Curve], losses: Interval) -> Interval:
    """Return the bounds of the tokens at which curves have losses that a figure shows."""
    low, high = losses
    tokens = np.concatenate([curve.x[(low <= curve.loss) & (curve.loss <= high)] for curve in curves])
    return float(tokens.min()), float(tokens.max())


def best_experts(
    law: Formula,
    flops: ArrayLike,
    memory: ArrayLike,
    experts: Sequence[float] | None = None,
    **costs: Unpack[ModelFields],
) -> BestExperts:
    """Find the best E for each budget [columns] and memory limit in bytes [rows]; `costs` as of `law.optimal`.

    Compared are the models of `OptimalTable`: trusted ones, or those within the law's range guard. ValueError where no
    E has an optimum.
    """
    budgets = np.atleast_1d(positive("flops", flops))
    memory_limits = np.atleast_1d(positive("memory", memory))
    limits = Limits.of(law, **costs)
    e = np.atleast_1d(parse_experts(law, experts, limits))
    budget = Budget.each(budgets[:, None])
    # Between the limits are more, and the memory of the smallest trusted models.
    rungs = np.geomspace(LEAST_MEMORY * memory_limits.min(), memory_limits.max(), RUNGS)
    least = limits.memory_bytes(trusted_widths(law, e, limits)[0], e) * (1 + ROUNDING)
    ladder = np.unique(np.concatenate([memory_limits, rungs, least[np.isfinite(least)]]))
    models, is_compared = _best_within(law, budget, e, limits, ladder, prefers_trusted=True)
    rows = np.searchsorted(ladder, memory_limits)
    models = models.take(lambda values: values[rows])
    check = limits.check(law, models.variables)
    fits = limits.memory_bytes(limits.ladder.smallest, e) <= memory_limits[:, None, None] * (1 + ROUNDING)
    is_compared = is_compared[rows] & np.isfinite(models.loss) & fits & ~check.beyond
    loss = np.where(is_compared, models.loss, np.inf)
    best = np.argmin(loss, axis=-1)[..., None]
    lowest = np.take_along_axis(loss, best, -1)
    has_answer = np.isfinite(lowest[..., 0])
    draws = _draw_losses(law, budget, limits, models, is_compared)
    shares = None if draws is None else share_wins(draws)
    # Some budgets have no E with a model.
    with np.errstate(invalid="ignore"):
        ties = find_ties(loss - lowest, shares, law.conditions.rmse if law.conditions else None) & is_compared
    return BestExperts(
        flops=budgets,
        memory=memory_limits,
        experts=np.where(has_answer, e[best[..., 0]], np.nan),
        loss=np.where(has_answer, lowest[..., 0], np.nan),
        tied=ties.sum(axis=-1) > 1,
        inside=np.take_along_axis(is_compared & check.inside, best, -1)[..., 0],
        trusted=np.take_along_axis(is_compared & check.trusted, best, -1)[..., 0],
        edge=_draw_edge(law, e, limits, np.geomspace(memory_limits[0], memory_limits[-1], EDGE_POINTS)),
    )


def _draw_edge(law: Formula, experts: FloatArray, limits: Limits, memory: FloatArray) -> Intervals:
    """Return the budgets and memory limits along both sides of the trusted region."""
    low, high = budgets_trusted(law, Budget.of(1.0), experts, limits, memory)
    return np.concatenate([low, [np.nan], high]), np.concatenate([memory, [np.nan], memory])
