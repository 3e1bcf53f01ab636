"""The figures of a fit and of a law, after Ludziejewski et al. 2025; each draws on given or new axes and returns them.

`drawing.save(memory_optimal(law), "figure.png")` writes a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hub.base.fields import reads
from hub.base.types import Fields
from hub.base.units import format_count, format_flops
from scaling_law.figures import drawing
from scaling_law.figures.curves import budget_curves, memory_curves, shown_losses, shown_tokens
from scaling_law.figures.drawing import LOSS, colour_of
from scaling_law.formulas import Formula
from scaling_law.planning.budget import Budget
from scaling_law.size.recipe import PAPER

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def predicted_against_observed(result: Any, axes: Any = None) -> NDArray[Any]:
    """Draw predicted against observed loss of every run, coloured by E, with the residuals below.

    Return the two axes, which share x. `result` is a FitResult, or anything else with `runs`, `residuals` and `rmse`.
    """
    if axes is None:
        _, axes = drawing.new_figure(5.6, 6.4, rows=2, sharex=True, height_ratios=[3, 1])
    top, bottom = axes
    observed = result.runs.loss
    predicted = observed + result.residuals
    for experts in np.unique(result.runs.experts):
        mask = result.runs.experts == experts
        style = {"s": 18, "color": colour_of(experts), "edgecolors": "white", "linewidths": 0.3}
        top.scatter(observed[mask], predicted[mask], label=drawing.label_of(experts), **style)
        bottom.scatter(observed[mask], result.residuals[mask], **style)
    lowest = observed.min()
    top.axline((lowest, lowest), slope=1, color="0.4", linewidth=0.9, zorder=0)
    bottom.axhline(0.0, color="0.4", linewidth=0.9, zorder=0)
    bottom.set(xlabel=f"observed {LOSS}", ylabel="error (nats)")
    top.set(ylabel=f"predicted {LOSS}", title=f"{len(observed)} runs, RMSE {result.rmse:.4f} nats")
    drawing.legend(top)
    return axes if isinstance(axes, drawing.Panels) else np.array([top, bottom])


def isoflop(
    law: Formula,
    flops: ArrayLike = (1e19, 1e20, 1e21, 1e22),
    experts: Sequence[float] = (1, 4, 16),
    axes: Any = None,
) -> NDArray[Any]:
    """Draw the loss against tokens along budgets, with compute-optimal points (Fig. 2a); one panel for each budget.

    An E without an optimum is left out; ValueError if no E has one.
    """
    budgets = np.atleast_1d(np.asarray(flops, float))
    by_budget = [budget_curves(law, Budget.of(budget), experts, points=200) for budget in budgets.tolist()]
    axes = drawing.panels_or_new(axes, len(budgets), 3.1 * len(budgets), 4.0)
    for ax, budget, curves in zip(axes, budgets, by_budget, strict=True):
        for curve in curves:
            drawing.draw(ax, curve)
        losses = shown_losses(curves)
        ax.set(
            title=f"{format_flops(budget)} FLOPs",
            xlim=shown_tokens(curves, losses),
            ylim=losses,
        )
        drawing.log_axis(ax, drawing.TOKENS)
    axes[0].set_ylabel(LOSS)
    drawing.shared_legend(axes[0])
    return axes


@reads
def memory_optimal(
    law: Formula,
    flops: float = 1e22,
    experts: Sequence[float] = PAPER.experts,
    kv_tokens: float = 0.0,
    inference_tokens: float = 0.0,
    ax: Any = None,
) -> Axes:
    """Draw the loss under a memory limit, a curve for each E up to its optimum, shaded where each E is best."""
    ax = drawing.axes_or_new(ax, 7.0, 4.6)
    budget = Budget.of(flops)
    serving: dict[str, Any] = {"kv_tokens": kv_tokens, "inference_tokens": inference_tokens}
    by_memory = memory_curves(law, budget, experts, **serving)
    for region in by_memory.regions:
        first, *_, last = by_memory.memory[region.points]
        ax.axvspan(
            first,
            last,
            color=colour_of(region.experts),
            alpha=0.12,
            linewidth=0,
        )
    for curve in by_memory.curves:
        drawing.draw(ax, curve)
    if by_memory.edge is not None:
        ax.axvline(by_memory.edge, color=drawing.DARK, linestyle="-.", linewidth=1.0, label=drawing.EDGE)
    bars: Fields = {
        "color": drawing.DARK,
        "markersize": 5,
        "linewidth": 1.2,
        "label": "_" + drawing.BOUNDARY,
    }
    for number, boundary in enumerate(by_memory.boundaries):
        # Bars alternate between two heights, so that neighbours do not touch.
        height = 0.03 + 0.03 * (number % 2)
        ax.plot(
            boundary.interval,
            [height, height],
            "|-",
            transform=ax.get_xaxis_transform(),
            **bars,
        )
    ax.set(
        xlim=by_memory.memory[[0, -1]],
        ylim=(by_memory.loss.min() - 0.03, by_memory.loss[0] + 0.02),
        ylabel=LOSS,
    )
    drawing.log_axis(ax, "memory limit (parameters)")
    title = str(budget)
    if inference_tokens:
        title += f", inference on {format_count(inference_tokens)} tokens"
    if kv_tokens:
        title += f", KV cache of {kv_tokens:,.0f} tokens"
    ax.set_title(title, fontsize=8.5 if kv_tokens and inference_tokens else 10)
    drawing.legend(ax, fontsize=9)
    return ax
