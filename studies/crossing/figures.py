"""Figures of docs/studies/crossing.md."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hub.base.units import format_count
from scaling_law.figures import drawing
from scaling_law.figures.drawing import colour_of, label_of
from studies.crossing.cells import Gap
from studies.crossing.laws import FITTED, MAIN, PUBLISHED, Results

BITS = 1.0 / np.log(2.0)  # bits of a nat
COLOURS = {PUBLISHED: "#D55E00", FITTED: "0.1"}
DODGE = 1.07  # between the error bars of two E


def where_experts_pay(results: Results, experts: tuple[int, ...] = (MAIN, 2), axes: Any = None) -> NDArray[Any]:
    """N_act against D, a panel for each E: who wins at each cell measured, the crossings measured, and laws' lines."""
    axes = drawing.panels_or_new(axes, len(experts), 1.8 + 4.4 * len(experts), 4.8, sharey=True)
    for ax, e in zip(axes, experts, strict=True):
        _plane(ax, results, results.of(e), e)
        ax.set_title(f"E = {e:g} against dense", fontsize=10)
    axes[0].set_ylabel("training bytes D")
    drawing.shared_legend(axes[0])
    return axes


def _plane(ax: Any, results: Results, gaps: list[Gap], e: int) -> None:
    counted = results.sweep.counted.tokens
    low, high = counted.min() / 2, counted.max() * 2
    for gap in gaps:
        for ahead, colour in ((gap.mean < 0, colour_of(8)), (gap.mean >= 0, "0.6")):
            n = np.full(int(ahead.sum()), gap.n_active)
            ax.plot(n, gap.tokens[ahead], "s", color=colour, alpha=0.4, markersize=8, markeredgewidth=0)
        _crossing(ax, gap, low, high)
    sizes = np.unique(results.sweep.runs.n_active)
    along = np.geomspace(sizes.min() / 1.4, sizes.max() * 1.4, 60)
    for name, law in results.laws.items():
        predicted = results.asked(law, along, e)
        tokens = np.where((predicted > 0) & np.isfinite(predicted), predicted, np.nan)
        inside = law.check(along, tokens, float(e)).inside
        drawing.draw_curve(ax, along, tokens, inside, e, color=COLOURS[name], label=name)
    ax.plot([], [], "s", color=colour_of(8), alpha=0.4, markersize=8, label="experts ahead")
    ax.plot([], [], "s", color="0.6", alpha=0.4, markersize=8, label="dense ahead")
    ax.errorbar([], [], yerr=[], fmt="o", color="k", markersize=6, capsize=3, label="crossing measured, 95 %")
    ax.plot([], [], "^", color="k", markersize=6, label="above the D measured")
    ax.set(xlim=(along[0], along[-1]), ylim=(low, high))
    drawing.log_axis(ax, drawing.ACTIVE)
    drawing.log_axis(ax, "", "y")


def _crossing(ax: Any, gap: Gap, low: float, high: float) -> None:
    """A point with its interval; an arrow's head where it lies below or above the D measured."""
    ends = [end for end in gap.interval if not np.isnan(end)]
    ax.plot([gap.n_active] * len(ends), np.clip(ends, low, high), color="k", linewidth=1.2)
    marker = "o" if gap.bracketed else "v" if gap.crossing == 0 else "^"
    ax.plot(gap.n_active, np.clip(gap.crossing, *gap.between), marker, color="k", markersize=6, zorder=3)


def gaps_by_size(results: Results, widths: tuple[int, ...] = (32, 64), axes: Any = None) -> NDArray[Any]:
    """Loss against dense models by D, a panel for each size, coloured by E, with standard errors side by side."""
    axes = drawing.panels_or_new(axes, len(widths), 1.0 + 4.4 * len(widths), 4.4, sharey=True)
    for ax, width in zip(axes, widths, strict=True):
        gaps = [gap for gap in results.gaps if gap.d_model == width]
        ax.axhline(0.0, color="0.4", linewidth=0.9)
        for k, gap in enumerate(gaps):
            at = gap.tokens * DODGE ** (k - (len(gaps) - 1) / 2)
            style = {"color": colour_of(gap.experts), "markersize": 4, "linewidth": 1.0, "capsize": 2}
            ax.errorbar(at, BITS * gap.mean, BITS * gap.error, fmt="o-", label=label_of(gap.experts), **style)
        drawing.log_axis(ax, "training bytes D")
        ax.set_title(f"d_model {width}, N_act = {format_count(gaps[0].n_active)}", fontsize=9)
    axes[0].set_ylabel("loss − dense (bits per byte)")
    drawing.shared_legend(axes[0])
    return axes
