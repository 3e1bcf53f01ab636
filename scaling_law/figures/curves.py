"""The numbers behind the figures of a law: drawn by matplotlib in `law_figures`, by Plotly in `interactive`.

The optima are those of `planning.optimum`, for laws of any form; models follow the d / 64 rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike

from hub.base.types import Fields
from scaling_law.formulas import Formula
from scaling_law.formulas.law import FormulaT, positive
from scaling_law.planning.budget import Budget
from scaling_law.planning.limits import Limits
from scaling_law.planning.optimal_table import OptimalTable, find_ties, share_wins
from scaling_law.planning.optimum import ROUNDING, drawn_losses, optimal_widths, parse_experts
from scaling_law.planning.question import LimitFields, ModelFields
from scaling_law.planning.trusted import BestModels, prefer_trusted, trusted_models, trusted_widths
from scaling_law.size.architecture import inference_flops, total_parameters, training_flops, width_of_active
from scaling_law.size.arrays import BoolArray, Columns, FloatArray, IntArray, Interval, Intervals, Variables

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Widths among which a map looks for the best trusted model of each E.
RUNGS = 1000
# The quantiles that bound 95 %.
LEVEL = (0.025, 0.975)


@dataclass(frozen=True, eq=False)
class Curve:
    """Predicted losses of models with `experts` experts along the `x` of a figure; arrays [points], nats per token.

    `inside`: within the fitted range, nowhere if unknown. `trusted`: no further outside than backtests support.
    `interval`: 95 % of the draws, None without. `mark` is the number of the point that the figure marks, such as the
    optimum.
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
    mark: int | None = None


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

    `memory` [points] are limits: bytes, or parameters where the limits count a byte for each; `loss` and `interval`
    are of the best model under each. From `boundaries` on more experts have the lowest loss, trusted or not; there is
    one for each pair of E, the last, and none for a law without draws.
    """

    memory: FloatArray
    curves: tuple[Curve, ...]
    regions: tuple[Region, ...]
    loss: FloatArray
    interval: Intervals | None
    boundaries: tuple[Boundary, ...]


@dataclass(frozen=True, eq=False)
class BestExperts:
    """The E of lowest loss over budgets `flops` [columns] and memory limits `memory` [rows], bytes; NaN for none.

    `tied`: the loss of another E is equal within its error, as in `OptimalTable.comparison`. `inside`: the best model
    lies within the law's fitted range. `trusted`: it lies no further outside than backtests support. All are
    [rows, columns], as are `experts` and `loss` (nats per token).
    """

    flops: FloatArray
    memory: FloatArray
    experts: FloatArray
    loss: FloatArray
    tied: BoolArray
    inside: BoolArray
    trusted: BoolArray


def interval_of(draws: FloatArray) -> Intervals | None:
    """Return 95 % intervals of `draws` [draws, points], from draws without NaN; None for fewer than two of them."""
    finite = draws[np.isfinite(draws).all(axis=1)]
    if len(finite) < 2:
        return None
    low, high = np.quantile(finite, LEVEL, axis=0)
    return low, high


def near_the_runs(law: Formula, **variables: Any) -> BoolArray:
    """Return which models a figure shows: those inside the range guard, or all where none is (a law of small runs)."""
    inside = ~law.beyond_guard(**variables)
    return inside if inside.any() else ~inside


def thin_draws(law: FormulaT, n_draws: int) -> FormulaT:
    """Keep every k-th draw of the law, at most `n_draws`, for the intervals of figures that are drawn often."""
    if law.draws is None or len(law.draws) <= n_draws:
        return law
    step = -(-len(law.draws) // n_draws)
    return law.replace(draws=law.draws[::step])


def loss_curve(
    law: Formula,
    x: ArrayLike,
    variables: Variables,
    experts: float,
    mark: int | None = None,
    band: bool = True,
    limits: Limits | None = None,
) -> Curve:
    """Compute the curve of models along `x`; `variables` are N_act, D, and the law's others, by name; they broadcast.

    `band`: with the interval of the law's draws, if it has any. `limits` may have unique tokens, which repeat.
    """
    inputs = {"x": x, **variables, "experts": experts}
    arrays = np.broadcast_arrays(*(np.asarray(values, float) for values in inputs.values()))
    columns = dict(zip(inputs, arrays, strict=True))
    along = columns.pop("x")
    limits = limits or Limits.of(law)
    loss = law.loss(**columns)
    if limits.unique_tokens:
        loss = limits.loss(law, law.columns, columns)
    interval = None
    if band and law.draws is not None:
        draws = limits.loss(law, law.columns_of_draws(loss.ndim), columns)
        interval = interval_of(law.add_extrapolation(draws, columns, loss.ndim))
    d_model = np.asarray(width_of_active(columns["n_active"], law.vocab_size))
    check = law.check(**columns, unique_tokens=limits.unique_tokens)
    return Curve(
        experts=experts,
        x=along,
        loss=np.asarray(loss),
        inside=check.inside,
        trusted=check.trusted,
        interval=interval,
        d_model=d_model,
        n_active=columns["n_active"],
        n_total=np.asarray(total_parameters(d_model, experts, vocab_size=law.vocab_size)),
        tokens=columns["tokens"],
        mark=mark,
    )


@dataclass(frozen=True, eq=False)
class _MemoryModels:
    """The models of each E under each memory limit, and their losses, [points, E]; `memory` is [points].

    The loss is infinite for an E without an optimum, and beyond the range guard of the law. `is_compared`: the best
    model is chosen among these.
    """

    law: Formula
    budget: Budget
    limits: Limits
    memory: FloatArray
    d_model: FloatArray
    variables: Fields
    loss: FloatArray
    is_compared: BoolArray

    def draws(self, index: Any) -> FloatArray | None:
        """Compute the losses of the models at an index of [points, E] under each draw, [n_draws, n]."""
        models = {name: values[index] for name, values in self.variables.items()}
        return drawn_losses(self.law, self.budget, models, self.d_model[index], self.limits)

    def curve(self, column: int, experts: float) -> Curve | None:
        """Return the curve of one E up to its optimum; None without an optimum inside the range guard."""
        visible = np.isfinite(self.loss[:, column])
        if not visible.any():
            return None
        optimum = int(np.argmin(self.loss[:, column]))
        visible[optimum + 1 :] = False
        models = {name: values[visible, column] for name, values in self.variables.items()}
        return loss_curve(
            self.law,
            self.memory[visible],
            models,
            experts,
            mark=int(visible.sum()) - 1,
            band=False,
            limits=self.limits,
        )

    def boundary(self, first: int, second: int, start: int) -> Interval:
        """Return the 95 % interval of the limit from which the E in column `second` beats the E in column `first`.

        Each draw judges the same models, so that errors which both E share cancel. Of several such limits of a
        draw it is the next to that of the law itself, the point `start`. A limit outside of the figure is moved to its
        edge.
        """
        points = np.flatnonzero(np.isfinite(self.loss[:, [first, second]]).all(axis=1))
        if not len(points):
            return float(self.memory[start]), float(self.memory[start])
        wins = cast(Any, self.draws((points, second))) < self.draws((points, first))
        position = min(int(np.searchsorted(points, start)), len(points) - 1)
        crossings = [points[_next_crossing(draw, position)] for draw in wins]
        low, high = np.quantile(self.memory[crossings], LEVEL)
        return float(low), float(high)


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
    e = np.atleast_1d(parse_experts(law, experts))
    models = _models_by_memory(law, budget, e, points, prefers_trusted, costs)
    curves = []
    for column, n_experts in enumerate(e.tolist()):
        curve = models.curve(column, n_experts)
        if curve is not None:
            curves.append(curve)
    lowest = np.argmin(models.loss, axis=1)
    best = np.argmin(np.where(models.is_compared, models.loss, np.inf), axis=1)
    index = (np.arange(len(best)), best)
    draws = models.draws(index)
    boundaries = {}
    if law.draws is not None:
        for (_, first), (segment, second) in pairwise(split_where_changes(lowest)):
            if e[first] < e[second]:
                interval = models.boundary(first, second, segment.start)
                boundaries[first, second] = Boundary(float(e[first]), float(e[second]), interval)
    return MemoryCurves(
        memory=models.memory,
        curves=tuple(curves),
        regions=tuple(Region(float(e[column]), segment) for segment, column in split_where_changes(best)),
        loss=models.loss[index],
        interval=None if draws is None else interval_of(draws),
        boundaries=tuple(boundaries.values()),
    )


def _models_by_memory(
    law: Formula, budget: Budget, experts: FloatArray, points: int, prefers_trusted: bool, costs: ModelFields
) -> _MemoryModels:
    """Find the best model of each E under each of so many memory limits, the best trusted one if preferred."""
    fields: Fields = {"bytes_per_parameter": 1.0, "bytes_per_kv": 1.0, **costs}
    limits = Limits.of(law, **fields)
    optimum = optimal_widths(law, budget, experts, limits)
    sizes = limits.memory_bytes(optimum.d_model, experts)[optimum.exists]
    memory = np.geomspace(sizes.min() / 12, sizes.max() * 1.3, points)
    largest_width = limits.width_of_memory(memory[:, None], experts)
    d_model = np.minimum(optimum.d_model, largest_width)
    variables = budget.models(law, d_model, experts, limits)
    loss = limits.loss(law, law.columns, variables)
    is_shown = near_the_runs(law, **variables) & optimum.exists
    loss = np.where(is_shown, loss, np.inf)
    models = _take_best_so_far(BestModels(d_model, loss, variables))
    is_compared = np.full(loss.shape, True)
    if prefers_trusted and not law.check(**variables).unknown:
        _, tokens, trusted_loss = trusted_models(law, experts, budget, limits)(largest_width)
        variables = limits.models(law, largest_width, experts, tokens)
        has_model = np.isfinite(trusted_loss) & optimum.exists
        trusted = BestModels(largest_width, np.where(has_model, trusted_loss, np.inf), variables)
        models, is_compared = prefer_trusted(law, budget, limits, models, _take_best_so_far(trusted))
    has_model = np.isfinite(models.loss).any(axis=1)
    return _MemoryModels(
        law=law,
        budget=budget,
        limits=limits,
        memory=memory[has_model],
        d_model=models.d_model[has_model],
        variables={name: values[has_model] for name, values in models.variables.items()},
        loss=models.loss[has_model],
        is_compared=is_compared[has_model],
    )


def _take_best_so_far(models: BestModels) -> BestModels:
    """Return for each limit, the rows, the best of its models and of those of lower limits.

    In hours a smaller model can have the lower loss: layouts change with the size.
    """
    best = _running_argmin(models.loss)
    return models.take(lambda values: np.take_along_axis(values, best, axis=0))


def _next_crossing(wins: BoolArray, position: int) -> int:
    """Return the first of the wins [points] that reach to `position`, or the next win after it, or the end."""
    if wins[position]:
        lost = np.flatnonzero(~wins[:position])
        return int(lost[-1]) + 1 if len(lost) else 0
    won = np.flatnonzero(wins[position:])
    return position + int(won[0]) if len(won) else len(wins) - 1


def _running_argmin(values: FloatArray) -> IntArray:
    """Return the number of the least value so far in each column, [rows, columns]."""
    rows = np.arange(len(values))[:, None]
    is_new = values < np.vstack([np.full_like(values[:1], np.inf), np.minimum.accumulate(values)[:-1]])
    return np.maximum.accumulate(np.where(is_new, rows, 0))


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

    Curves of equal FLOPs share their tokens; curves of equal hours span the widths about their optimum. `costs` are
    limits as of `law.optimal`: a curve has the models that they allow, and the best of these is marked. ValueError if
    no E has an optimum within them.
    """
    e = np.atleast_1d(parse_experts(law, experts))
    limits = Limits.of(law, **costs)
    optima = optimal_widths(law, budget, e, limits)
    has_model = optima.exists & optima.fits
    e = e[has_model]
    widths = optima.d_model[has_model]
    best_tokens = budget.models(law, widths, e, limits)["tokens"]
    token_range = _around(best_tokens, 12, points)
    curves = []
    for n_experts, width, optimum in zip(e.tolist(), widths, best_tokens, strict=True):
        if budget.flops is None:
            variables, mark = _models_of_equal_hours(law, budget, n_experts, width, limits, points)
        else:
            tokens = np.sort(np.append(token_range, optimum))
            flops_per_parameter = training_flops(1.0, tokens) + inference_flops(1.0, limits.inference_tokens)
            d_model = width_of_active(budget.flops / flops_per_parameter, law.vocab_size)
            is_allowed = d_model <= limits.width_limit(n_experts) * (1 + ROUNDING)
            tokens = tokens[is_allowed]
            d_model = d_model[is_allowed]
            variables = budget.models(law, d_model, n_experts, limits)
            variables["tokens"] = tokens
            mark = int(np.searchsorted(tokens, optimum))
        curves.append(loss_curve(law, variables["tokens"], variables, n_experts, mark))
    return tuple(curves)


def _models_of_equal_hours(
    law: Formula, budget: Budget, experts: float, width: float, limits: Limits, points: int
) -> tuple[Fields, int]:
    """Return the models of widths about the optimal `width`, and the number of the optimum among them."""
    widths = width * np.geomspace(3.0, 1.0 / 3.0, 2 * (points // 2) + 1)
    variables = budget.models(law, widths, experts, limits)
    # The other models do not fit the memory of the GPUs, or the limits.
    is_trained = variables["tokens"] > 0
    is_trained &= widths <= limits.width_limit(experts) * (1 + ROUNDING)
    mark = int(is_trained[: points // 2].sum())
    return {name: values[is_trained] for name, values in variables.items()}, mark


def _around(tokens: Any, factor: float, points: int) -> FloatArray:
    """Return so many numbers from a `factor` below the fewest tokens to a `factor` above the most."""
    return np.geomspace(np.min(tokens) / factor, np.max(tokens) * factor, points)


def token_curves(law: Formula, table: OptimalTable, points: int = 120) -> tuple[Curve, ...]:
    """Compute the loss against training tokens for the model of each row of `table`, whose own tokens are marked."""
    token_range = _around([row.tokens for row in table], 20, points)
    curves = []
    for row in table:
        tokens = np.sort(np.append(token_range, row.tokens))
        variables = Budget(table.flops).models(law, row.d_model, row.experts, table.limits)
        variables["tokens"] = tokens
        mark = int(np.searchsorted(tokens, row.tokens))
        curves.append(loss_curve(law, tokens, variables, row.experts, mark, limits=table.limits))
    return tuple(curves)


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
    e = np.atleast_1d(parse_experts(law, experts))
    budgets_of_columns = Budget.each(budgets[:, None])
    find_trusted_models = _trusted_ladder(law, budgets_of_columns, e, Limits.of(law, **costs))
    rows = []
    for memory_limit in memory_limits.tolist():
        limits = Limits.of(law, memory=memory_limit, **costs)
        trusted_models = None if find_trusted_models is None else find_trusted_models(limits)
        rows.append(_best_of_budgets(law, budgets_of_columns, e, limits, trusted_models))
    return BestExperts(budgets, memory_limits, *map(np.stack, zip(*rows, strict=True)))


def _best_of_budgets(
    law: Formula, budgets: Budget, experts: FloatArray, limits: Limits, trusted_models: BestModels | None
) -> tuple[FloatArray, FloatArray, BoolArray, BoolArray, BoolArray]:
    """Find the best E for each budget within the limits: E, loss, whether it ties, is inside, is trusted."""
    optimum = optimal_widths(law, budgets, experts, limits)
    variables = budgets.models(law, optimum.d_model, experts, limits)
    variables = {name: np.where(optimum.fits, values, np.nan) for name, values in variables.items()}
    models = BestModels(optimum.d_model, optimum.loss, variables)
    is_compared = np.full(optimum.loss.shape, True)
    if trusted_models is not None:
        models, is_compared = prefer_trusted(law, budgets, limits, models, trusted_models)
    check = law.check(**models.variables)
    with np.errstate(invalid="ignore"):
        is_compared = is_compared & np.isfinite(models.loss) & ~check.beyond
        is_trusted = is_compared & check.trusted
    loss = np.where(is_compared, models.loss, np.inf)
    best = np.argmin(loss, axis=-1)[..., None]

    def of_best(values: Any) -> Any:
        return np.take_along_axis(values, best, -1)[..., 0]

    has_answer = np.isfinite(of_best(loss))
    is_tied = _tied_with_best(law, models.variables, loss, best, is_compared)
    return (
        np.where(has_answer, experts[best[..., 0]], np.nan),
        np.where(has_answer, of_best(loss), np.nan),
        has_answer & (is_tied.sum(axis=-1) > 1),
        has_answer & of_best(check.inside),
        has_answer & of_best(is_trusted),
    )


def _trusted_ladder(
    law: Formula, budgets: Budget, experts: FloatArray, limits: Limits
) -> Callable[[Limits], BestModels] | None:
    """Make a function of the limits: the best trusted models [flops, E] among `RUNGS` widths of each E.

    None for a law without ranges.
    """
    least, largest = trusted_widths(law, experts, limits)
    if not np.isfinite(largest).all():
        return None
    # These arrays are [widths, flops, E].
    widths = np.geomspace(least, np.maximum(largest, least), RUNGS)[:, None]
    _, tokens, loss = trusted_models(law, experts, budgets, limits)(widths)
    variables = limits.models(law, widths, experts, tokens)
    loss = np.where(np.isfinite(loss), loss, np.inf)
    d_model = np.broadcast_to(widths, loss.shape)

    def find(limits: Limits) -> BestModels:
        allowed = np.where(widths <= limits.width_limit(experts) * (1 + ROUNDING), loss, np.inf)
        best = np.argmin(allowed, axis=0)[None]
        return BestModels(d_model, allowed, variables).take(lambda values: np.take_along_axis(values, best, 0)[0])

    return find


def _tied_with_best(
    law: Formula,
    variables: Columns,
    loss: FloatArray,
    best: IntArray,
    is_compared: BoolArray,
) -> BoolArray:
    """Return which E tie with the best of their budget and limit, as in `OptimalTable.comparison`."""
    # Some budgets have no E with a model.
    with np.errstate(invalid="ignore"):
        distance = loss - np.take_along_axis(loss, best, -1)
    shares = None
    if law.draws is not None:
        # Models that are not compared take the values of one that is, as the law may refuse theirs.
        inputs = {}
        for name, values in variables.items():
            replacement = values[is_compared][0] if is_compared.any() else 1.0
            inputs[name] = np.where(is_compared, values, replacement)
        # These losses are [draws, columns, E].
        shares = share_wins(np.where(is_compared, law.loss_draws(**inputs), np.inf))
    rmse = law.conditions.rmse if law.conditions else None
    return np.asarray(find_ties(distance, shares, rmse) & is_compared)
