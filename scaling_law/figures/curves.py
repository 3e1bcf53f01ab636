"""What the figures of a law show, as numbers: drawn by matplotlib in `law_figures`, by Plotly in `interactive`.

Laws of any form are asked through `planning.optimum`; models follow the d / 64 rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scaling_law.formulas import Formula
from scaling_law.formulas.law import FormulaT, positive
from scaling_law.planning.budget import Budget
from scaling_law.planning.limits import Limits
from scaling_law.planning.optimal_table import OptimalTable, find_ties
from scaling_law.planning.optimum import drawn_losses, optimal_widths, parse_experts
from scaling_law.planning.question import ModelFields
from scaling_law.size.architecture import inference_flops, total_parameters, training_flops, width_of_active
from scaling_law.size.arrays import FloatArray

if TYPE_CHECKING:
    from typing_extensions import Unpack

Interval = tuple[FloatArray, FloatArray]
LEVEL = (0.025, 0.975)  # the ends of 95 %


@dataclass(frozen=True, eq=False)
class Curve:
    """Predicted losses of models with `experts` experts along the `x` of a figure; arrays [points], nats per token.

    `inside`: within the fitted range, nowhere if unknown. `interval`: 95 % of the draws, None without. `mark` is the
    number of the point that the figure marks, such as the optimum.
    """

    experts: float
    x: FloatArray
    loss: FloatArray
    inside: NDArray[np.bool_]
    interval: Interval | None
    d_model: FloatArray
    n_active: FloatArray
    n_total: FloatArray
    tokens: FloatArray
    mark: int | None = None


@dataclass(frozen=True)
class Region:
    """The points of a figure between which `experts` is best; `part` ends at the first point of the next region."""

    experts: float
    part: slice


@dataclass(frozen=True, eq=False)
class MemoryCurves:
    """The best loss of each E under each memory limit, and where which E wins.

    `memory` [points] are limits: bytes, or parameters where the limits count a byte for each; `loss` and `interval`
    are of the best model under each. `boundaries` are 95 % intervals of where one region ends and the next begins,
    empty for a law without draws.
    """

    memory: FloatArray
    curves: tuple[Curve, ...]
    regions: tuple[Region, ...]
    loss: FloatArray
    interval: Interval | None
    boundaries: tuple[tuple[float, float], ...]


@dataclass(frozen=True, eq=False)
class BestExperts:
    """The E of lowest loss over budgets `flops` [columns] and memory limits `memory` [rows], bytes; NaN for none.

    `tied`: another E cannot be told from it, as in `OptimalTable.comparison`. `inside`: the best model lies within the
    law's fitted range. Both [rows, columns], as are `experts` and `loss` (nats per token).
    """

    flops: FloatArray
    memory: FloatArray
    experts: FloatArray
    loss: FloatArray
    tied: NDArray[np.bool_]
    inside: NDArray[np.bool_]


def interval_of(draws: FloatArray) -> Interval | None:
    """95 % of `draws` [draws, points]; draws with a NaN are left out, None for less than two others."""
    finite = draws[np.isfinite(draws).all(axis=1)]
    return tuple(np.quantile(finite, LEVEL, axis=0)) if len(finite) > 1 else None


def near_the_runs(law: Formula, **at: Any) -> NDArray[np.bool_]:
    """Which models a figure shows: those inside the range guard, or all where none is (a law of small runs)."""
    inside = ~law.beyond_guard(**at)
    return inside if inside.any() else ~inside


def thinned(law: FormulaT, draws: int) -> FormulaT:
    """The law with every k-th of its draws, `draws` at most: intervals of figures that are drawn often."""
    if law.draws is None or len(law.draws) <= draws:
        return law
    return law.replace(draws=law.draws[:: -(-len(law.draws) // draws)])


def loss_curve(
    law: Formula,
    x: ArrayLike,
    at: Mapping[str, Any],
    experts: float,
    mark: int | None = None,
    band: bool = True,
    limits: Limits | None = None,
) -> Curve:
    """The curve of the models `at` (N_act, D, and the law's other variables, by name) along `x`; they broadcast.

    `band`: with the interval of the law's draws, if it has any. `limits` may have unique tokens, which repeat.
    """
    columns = {"x": x, **at, "experts": experts}
    values = dict(zip(columns, np.broadcast_arrays(*(np.asarray(v, float) for v in columns.values())), strict=True))
    along, n, d = values.pop("x"), values["n_active"], values["tokens"]
    width = np.asarray(width_of_active(n, law.vocab_size))
    total = np.asarray(total_parameters(width, experts, vocab_size=law.vocab_size))
    loss, within = law.loss(**values), limits or Limits.of(law)
    if within.unique_tokens:
        loss = within.loss(law, tuple(law.coefficients.values()), values)
    drawn = within.loss(law, law.columns_of_draws(loss.ndim), values) if band and law.draws is not None else None
    interval = None if drawn is None else interval_of(drawn)
    inside = law.check(**values, unique_tokens=within.unique_tokens).inside
    return Curve(experts, along, np.asarray(loss), inside, interval, width, n, total, d, mark)


def memory_curves(
    law: Formula,
    budget: Budget,
    experts: Sequence[float] | None = None,
    points: int = 300,
    **costs: Unpack[ModelFields],
) -> MemoryCurves:
    """Loss against a memory limit, a curve for each E up to the optimum of the budget: larger models would be worse.

    The limit counts parameters and elements of the KV cache unless `costs`, as of `law.optimal`, give these more
    bytes. Limits go from the smallest inside the dense model's range guard to past the last optimum. An E without an
    optimum has no curve; ValueError if all are without.
    """
    e, counted = np.atleast_1d(parse_experts(law, experts)), {"bytes_per_parameter": 1.0, "bytes_per_kv": 1.0, **costs}
    limits = Limits.of(law, **counted)  # type: ignore[arg-type]
    free = optimal_widths(law, budget, e, limits)
    sizes = limits.memory_bytes(free.d_model, e)[free.exists]
    memory = np.geomspace(sizes.min() / 12, sizes.max() * 1.3, points)
    widths = np.minimum(free.d_model, limits.width_of_memory(memory[:, None], e))
    at = budget.models(law, widths, e, limits)  # [points, E]
    loss = limits.loss(law, tuple(law.coefficients.values()), at)
    loss = np.where(near_the_runs(law, **at) & free.exists, loss, np.inf)
    kept = np.isfinite(loss).any(axis=1)
    memory, widths, loss = memory[kept], widths[kept], loss[kept]
    at = {name: values[kept] for name, values in at.items()}

    def drawn(chosen: Any) -> FloatArray | None:
        """The losses of the models at this index of [points, E] under each draw, [n_draws, n]."""
        models = {name: values[chosen] for name, values in at.items()}
        return drawn_losses(law, budget, models, widths[chosen], limits)

    def boundary(left: int, right: int) -> tuple[float, float]:
        """95 % of the limits from which the E numbered `right` beats `left`, at an end of those shown if outside.

        Each draw judges the same models, so that errors which both E share cancel.
        """
        finite = np.isfinite(loss[:, [left, right]]).all(axis=1)
        wins = cast(Any, drawn((finite, right))) < drawn((finite, left))
        first = np.where(wins.any(axis=1), wins.argmax(axis=1), finite.sum() - 1)
        low, high = np.quantile(memory[finite][first], LEVEL)
        return float(low), float(high)

    parts = parts_of(best := np.argmin(loss, axis=1))
    curves = []
    for i, n_experts in enumerate(e.tolist()):
        visible = np.isfinite(loss[:, i])
        # Without a visible point there is no optimum, or all of it is beyond the range guard.
        if visible.any():
            visible[int(np.argmin(loss[:, i])) + 1 :] = False
            models = {name: values[visible, i] for name, values in at.items()}
            curves.append(loss_curve(law, memory[visible], models, n_experts, int(visible.sum()) - 1, False, limits))
    regions = tuple(Region(float(e[i]), part) for part, i in parts)
    pairs = pairwise(i for _, i in parts) if law.draws is not None else ()
    index = np.arange(len(best)), best
    interval = None if (draws := drawn(index)) is None else interval_of(draws)
    return MemoryCurves(
        memory, tuple(curves), regions, loss[index], interval, tuple(boundary(*pair) for pair in pairs)
    )


def parts_of(best: NDArray[np.int64]) -> list[tuple[slice, int]]:
    """(part, number) for each run of equal numbers in `best` [points]; a part ends at the first point of the next."""
    edges = [0, *(np.flatnonzero(np.diff(best)) + 1), len(best)]
    return [(slice(int(first), int(last) + 1), int(best[first])) for first, last in pairwise(edges)]


def budget_curves(
    law: Formula,
    budget: Budget,
    experts: Sequence[float] | None = None,
    *,
    inference_tokens: float = 0.0,
    points: int = 120,
) -> tuple[Curve, ...]:
    """Loss against tokens along a budget for each E that has an optimum, which is marked. ValueError if none has.

    Curves of equal FLOPs have the tokens in common, those of equal hours the widths about their optimum.
    """
    e, limits = np.atleast_1d(parse_experts(law, experts)), Limits.of(law, inference_tokens=inference_tokens)
    optima = optimal_widths(law, budget, e, limits)
    e, free = e[optima.exists], optima.free[optima.exists]
    best = budget.models(law, free, e, limits)["tokens"]
    span = np.geomspace(best.min() / 12, best.max() * 12, points)
    curves = []
    for n_experts, width, mark in zip(e.tolist(), free, best, strict=True):
        if budget.flops is None:
            widths = width * np.geomspace(3.0, 1.0 / 3.0, 2 * (points // 2) + 1)
            at = budget.models(law, widths, n_experts, limits)
            trained = at["tokens"] > 0  # others do not fit the memory of the GPUs
            at, marked = {name: v[trained] for name, v in at.items()}, int(trained[: points // 2].sum())
        else:
            tokens = np.sort(np.append(span, mark))
            n_active = budget.flops / (training_flops(1.0, tokens) + inference_flops(1.0, inference_tokens))
            widths = width_of_active(n_active, law.vocab_size)
            at = budget.models(law, widths, n_experts, limits) | {"tokens": tokens}
            marked = int(np.searchsorted(tokens, mark))
        curves.append(loss_curve(law, at["tokens"], at, n_experts, marked))
    return tuple(curves)


def token_curves(law: Formula, table: OptimalTable, points: int = 120) -> tuple[Curve, ...]:
    """Loss against training tokens for the model of each row of `table`, whose own tokens are marked."""
    row_tokens = [row.tokens for row in table]
    span = np.geomspace(min(row_tokens) / 20, max(row_tokens) * 20, points)
    curves = []
    for row in table:
        tokens = np.sort(np.append(span, row.tokens))
        at = Budget(table.flops).models(law, row.d_model, row.experts, table.limits) | {"tokens": tokens}
        curves.append(
            loss_curve(law, tokens, at, row.experts, int(np.searchsorted(tokens, row.tokens)), True, table.limits)
        )
    return tuple(curves)


def best_experts(
    law: Formula,
    flops: ArrayLike,
    memory: ArrayLike,
    experts: Sequence[float] | None = None,
    **costs: Unpack[ModelFields],
) -> BestExperts:
    """Which E is best for each budget [columns] and memory limit in bytes [rows]; `costs` as of `law.optimal`.

    Compared are trusted models, as in `OptimalTable`; where none is, those within the law's range guard. ValueError
    where no E has an optimum.
    """
    budgets, bytes_ = (np.atleast_1d(positive(name, v)) for name, v in (("flops", flops), ("memory", memory)))
    e = np.atleast_1d(parse_experts(law, experts))
    grid = Budget.each(budgets[:, None])
    optima, near = [], []
    for limit in bytes_.tolist():
        within = Limits.of(law, memory=limit, **costs)
        optimum = optimal_widths(law, grid, e, within)
        optima.append(optimum)
        at = grid.models(law, optimum.d_model, e, within)
        near.append({name: np.where(optimum.fits, values, np.nan) for name, values in at.items()})
    at = {name: np.stack([values[name] for values in near]) for name in near[0]}  # [rows, columns, E]
    loss = np.stack([optimum.loss for optimum in optima])
    check = law.check(**at)
    with np.errstate(invalid="ignore"):
        is_near = np.isfinite(loss) & ~check.beyond
        is_trusted = is_near & check.trusted
    compared = np.where(is_trusted.any(axis=-1, keepdims=True), is_trusted, is_near)
    loss = np.where(compared, loss, np.inf)
    best = np.argmin(loss, axis=-1)[..., None]

    def of_best(values: Any) -> Any:
        return np.take_along_axis(values, best, -1)[..., 0]

    # Some budgets have no E with a model.
    with np.errstate(invalid="ignore"):
        ahead, drawn_ahead = loss - np.take_along_axis(loss, best, -1), None
    answered = np.isfinite(of_best(loss))
    # What is not compared is asked with the values of a model that is.
    if law.draws is not None:
        filled = {name: np.where(compared, v, v[compared][0] if compared.any() else 1.0) for name, v in at.items()}
        drawn = law.loss_draws(**filled)  # [draws, rows, columns, E]
        drawn_ahead = drawn - np.take_along_axis(drawn, best[None], -1)
    tied = find_ties(ahead, drawn_ahead, law.conditions.rmse if law.conditions else None) & compared
    return BestExperts(
        budgets,
        bytes_,
        np.where(answered, of_best(np.broadcast_to(e, loss.shape)), np.nan),
        np.where(answered, of_best(loss), np.nan),
        # The same rule as in `OptimalTable.comparison`.
        answered & (tied.sum(axis=-1) > 1),
        answered & of_best(check.inside),
    )
