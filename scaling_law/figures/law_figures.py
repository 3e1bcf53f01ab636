"""The figures of a fit and of a law, after Ludziejewski et al. 2025; each draws on given or new axes and returns them.

`drawing.save(memory_optimal(law), "figure.png")` writes a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hub.plain.units import format_count, format_flops
from scaling_law.figures import drawing
from scaling_law.figures.drawing import LOSS, colour_of
from scaling_law.formulas import JointLaw
from scaling_law.planning.optimum import Constraints, has_optimum, no_optimum, optimal_widths
from scaling_law.size.architecture import active_parameters, affordable_tokens, total_parameters
from scaling_law.size.recipe import PAPER

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FloatArray = NDArray[np.float64]


def predicted_against_observed(result: Any, axes: Any = None) -> NDArray[Any]:
    """Predicted against observed loss of every run, coloured by E, and the residuals below: two axes that share x.

    `result` is a FitResult, or anything else with `runs`, `residuals` and `rmse`.
    """
    if axes is None:
        axes = drawing.new_figure(5.6, 6.4, rows=2, sharex=True, height_ratios=[3, 1])[1]
    top, bottom = axes
    observed, residuals = result.runs.loss, result.residuals
    for e in np.unique(result.runs.experts):
        mask = result.runs.experts == e
        style = {"s": 18, "color": colour_of(e), "edgecolors": "white", "linewidths": 0.3}
        top.scatter(observed[mask], (observed + residuals)[mask], label=drawing.label_of(e), **style)
        bottom.scatter(observed[mask], residuals[mask], **style)
    both = np.concatenate([observed, observed + residuals])
    ends = np.array([both.min(), both.max()]) + np.array([-0.03, 0.03]) * max(np.ptp(both), 1e-3)
    top.plot(ends, ends, color="0.4", linewidth=0.9, zorder=0)
    bottom.axhline(0.0, color="0.4", linewidth=0.9, zorder=0)
    limit = 1.15 * max(float(np.abs(residuals).max()), 1e-6)
    bottom.set(xlabel=f"observed {LOSS}", ylabel="error (nats)", ylim=(-limit, limit), xlim=ends)
    top.set(ylabel=f"predicted {LOSS}", title=f"{len(observed)} runs, RMSE {result.rmse:.4f} nats")
    drawing.legend(top)
    return np.array([top, bottom])


def near_the_runs(law: JointLaw, n_active: ArrayLike, tokens: ArrayLike, experts: ArrayLike) -> NDArray[np.bool_]:
    """Which models a figure shows: those inside the range guard, or all where none is (a law of small runs)."""
    inside = ~law.beyond_guard(n_active, tokens, experts)
    return inside if inside.any() else ~inside


def isoflop(
    law: JointLaw, flops: ArrayLike = (1e19, 1e20, 1e21, 1e22), experts: Sequence[float] = (1, 4, 16), axes: Any = None
) -> NDArray[Any]:
    """Loss against tokens along budgets, compute-optimal points marked (Fig. 2a); one panel for each budget.

    An E for which the law has no optimum is left out; ValueError if it has one for none.
    """
    exists = has_optimum(law.chinchilla_coefficients(experts))
    if not exists.any():
        raise ValueError(no_optimum(law, experts))
    experts = [e for e, drawn in zip(experts, exists, strict=True) if drawn]
    budgets = np.atleast_1d(np.asarray(flops, float))
    axes = drawing.panels_or_new(axes, len(budgets), 3.1 * len(budgets), 4.0)
    for ax, budget in zip(axes, budgets, strict=True):
        best = law.compute_optimal(budget, experts, force=True)
        span = np.geomspace(best.tokens.min() / 12, best.tokens.max() * 12, 200)
        for i, e in enumerate(experts):
            drawing.draw_loss(ax, law, span, affordable_tokens(budget, span), span, e)
            ax.plot(best.tokens[i], best.loss[i], "o", color=colour_of(e), markersize=5, markeredgecolor="white")
        low, high = float(best.loss.min()), float(best.loss.max())
        ax.set(title=f"{format_flops(budget)} FLOPs", xlim=(span[0], span[-1]))
        ax.set_ylim(low - 0.25 * (high - low) - 0.005, high + 2.0 * (high - low) + 0.05)
        drawing.log_axis(ax, drawing.TOKENS)
    axes[0].set_ylabel(LOSS)
    drawing.shared_legend(axes[0])
    return axes


def memory_optimal(
    law: JointLaw,
    flops: float = 1e22,
    experts: Sequence[float] = PAPER.experts,
    kv_cache_tokens: float = 0.0,
    inference_tokens: float = 0.0,
    ax: Axes | None = None,
) -> Axes:
    """Loss under a memory limit, a curve for each E up to its compute optimum, shaded where each E is best."""
    ax = drawing.axes_or_new(ax, 7.0, 4.6)
    draw_memory_optimal(ax, law, flops, experts, kv_cache_tokens, inference_tokens)
    drawing.legend(ax, fontsize=9)
    return ax


def draw_memory_optimal(
    ax: Axes, law: JointLaw, flops: float, experts: Sequence[float], kv_cache_tokens: float, inference_tokens: float
) -> None:
    """Draw one panel of `memory_optimal`."""
    within = models_within_memory(law, flops, experts, kv_cache_tokens, inference_tokens)
    memory, losses = within.memory, within.loss
    best = np.argmin(losses, axis=1)
    regions = shade_best(ax, memory, best, experts)
    for i, e in enumerate(experts):
        if not np.isfinite(losses[:, i]).any():
            continue  # no optimum, or all of it beyond the range guard
        # a curve ends where the compute optimum fits: larger models would be worse
        end = int(np.argmin(losses[:, i])) + 1
        inside = drawing.in_fitted_range(law, within.n_active[:end, i], within.tokens[:end, i], e)
        seen = np.where(np.isfinite(losses[:end, i]), losses[:end, i], np.nan)
        drawing.draw_curve(ax, memory[:end], seen, inside, e)
        ax.plot(memory[end - 1], losses[end - 1, i], "o", color=colour_of(e), markersize=4)
    if law.draws is not None:
        for part, i in regions:  # the interval of the best
            drawn = law.loss_draws(within.n_active[part, i], within.tokens[part, i], experts[i])
            drawing.draw_band(ax, memory[part], drawn, experts[i], alpha=0.25)
        for k, ((_, left), (_, right)) in enumerate(pairwise(regions)):  # a bar for each boundary
            ends, height = boundary_interval(law, within, experts, left, right), 0.03 + 0.03 * (k % 2)
            (bar,) = ax.plot(ends, [height, height], "|-", color=drawing.DARK, transform=ax.get_xaxis_transform())
            bar.set(markersize=5, linewidth=1.2, label="_" + drawing.BOUNDARY)
    reached = losses[np.arange(len(best)), best]
    ax.set(xlim=(memory[0], memory[-1]), ylim=(reached.min() - 0.03, reached[0] + 0.02), ylabel=LOSS)
    drawing.log_axis(ax, "memory limit (parameters)")
    cache = f", KV cache of {kv_cache_tokens:,.0f} tokens" if kv_cache_tokens else ""
    served = f", inference on {format_count(inference_tokens)} tokens" if inference_tokens else ""
    ax.set_title(f"{format_flops(flops)} FLOPs{served}{cache}", fontsize=10 if not (cache and served) else 8.5)


def shade_best(
    ax: Axes, x: FloatArray, best: NDArray[np.int64], experts: Sequence[float], alpha: float = 0.12
) -> list[tuple[slice, int]]:
    """Shade where each E is best, `best` [k] along `x` being its number in `experts`.

    Returns (part of x, number of the E) for each region; a part ends at the first point of the next.
    """
    edges = [0, *(np.flatnonzero(np.diff(best)) + 1), len(best)]
    regions = [(slice(first, last + 1), int(best[first])) for first, last in pairwise(edges)]
    for part, i in regions:
        ax.axvspan(x[part][0], x[part][-1], color=colour_of(experts[i]), alpha=alpha, linewidth=0)
    return regions


def boundary_interval(
    law: JointLaw, within: WithinMemory, experts: Sequence[float], left: int, right: int
) -> tuple[float, float]:
    """95 % interval of the memory limit from which the E numbered `right` beats the one numbered `left`.

    Each draw judges the same models, those that are best under the law itself, so that errors which both E share
    cancel. A boundary outside the limits shown counts as lying at their end.
    """
    shown = np.isfinite(within.loss[:, [left, right]]).all(axis=1)
    memory = within.memory[shown]
    of_left, of_right = (
        law.loss_draws(within.n_active[shown, i], within.tokens[shown, i], experts[i]) for i in (left, right)
    )
    wins = of_right < of_left
    first = np.where(wins.any(axis=1), wins.argmax(axis=1), len(memory) - 1)
    low, high = np.quantile(memory[first], [0.025, 0.975])
    return float(low), float(high)


@dataclass(frozen=True)
class WithinMemory:
    """The best model of each E within each memory limit, counted in parameters (KV cache elements count as such).

    `memory` [points]; `n_active`, `tokens`, `loss` [points, E], the loss infinite beyond the law's range guard.
    """

    memory: FloatArray
    n_active: FloatArray
    tokens: FloatArray
    loss: FloatArray


def models_within_memory(
    law: JointLaw,
    flops: float,
    experts: Sequence[float],
    kv_cache_tokens: float = 0.0,
    inference_tokens: float = 0.0,
    points: int = 300,
) -> WithinMemory:
    """From the smallest limit inside the dense model's range guard to past the last compute optimum.

    The loss of an E without an optimum is infinite; ValueError if all are without.
    """
    columns = np.asarray(experts, float)
    free = optimal_widths(law, flops, columns, Constraints.of(law, inference_tokens=inference_tokens))
    sizes = np.asarray(total_parameters(free.d_model, columns, vocab_size=law.vocab_size), float)[free.exists]
    memory = np.geomspace(sizes.min() / 12, sizes.max() * 1.3, points)
    limited = partial(Constraints.of, law, kv_cache_tokens=kv_cache_tokens, bytes_per_parameter=1, bytes_per_kv=1)
    limits = np.array([limited(max_memory_bytes=float(limit)).width_limit(columns) for limit in memory])
    n_active = active_parameters(np.minimum(free.d_model, limits), vocab_size=law.vocab_size)
    tokens = affordable_tokens(flops, n_active, inference_tokens)
    losses = law.loss(n_active, tokens, columns)
    losses = np.where(near_the_runs(law, n_active, tokens, columns) & free.exists, losses, np.inf)
    kept = np.isfinite(losses).any(axis=1)
    return WithinMemory(memory[kept], n_active[kept], tokens[kept], losses[kept])
