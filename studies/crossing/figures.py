"""Figures of docs/studies/crossing.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hub.plain.units import format_count
from scaling_law.figures import drawing
from scaling_law.figures.drawing import colour_of, label_of
from studies.crossing.gaps import Gap
from studies.crossing.laws import CALIBRATED, FITTED, PUBLISHED, Results

BITS = 1.0 / np.log(2.0)  # bits of a nat
STYLES = {PUBLISHED: ("#D55E00", "-"), CALIBRATED: ("0.45", (0, (4, 2))), FITTED: ("0.1", "-")}


def where_experts_pay(results: Results, experts: Sequence[int], axes: Any = None) -> NDArray[Any]:
    """N_act against D, a panel for each E: who wins at each cell measured, the crossings measured, and laws' lines."""
    axes = drawing.panels_or_new(axes, len(experts), 1.8 + 4.4 * len(experts), 4.8, sharey=True)
    for ax, e in zip(axes, experts, strict=True):
        _plane(ax, results, [gap for gap in results.gaps if gap.experts == e], e)
        ax.set_title(f"E = {e:g} against dense", fontsize=10)
    axes[0].set_ylabel(drawing.TOKENS)
    drawing.shared_legend(axes[0])
    return axes


def _plane(ax: Any, results: Results, gaps: Sequence[Gap], e: int) -> None:
    counted = results.sweep.counted.tokens
    low, high = counted.min(), counted.max()
    for gap in gaps:
        ahead = gap.mean < 0
        n = np.full(len(ahead), gap.n_active)
        ax.plot(n[ahead], gap.tokens[ahead], "s", color=colour_of(8), alpha=0.45, markersize=8, markeredgewidth=0)
        ax.plot(n[~ahead], gap.tokens[~ahead], "s", color=colour_of(1), alpha=0.3, markersize=8, markeredgewidth=0)
        if len(gap.tokens) > 1:  # one D brackets nothing
            _crossing(ax, gap, low / 2, high * 2)
    sizes = np.unique(results.sweep.runs.n_active)
    span = np.geomspace(sizes.min() / 1.4, sizes.max() * 1.4, 60)
    for name, law in results.laws.items():
        colour, style = STYLES[name]
        tokens = np.where((found := results.asked(law, span, e)) > 0, found, np.nan)
        ax.plot(span, tokens, color=colour, linestyle=style, linewidth=1.6, label=name)
    ax.plot([], [], "s", color=colour_of(8), alpha=0.45, markersize=8, label="experts ahead")
    ax.plot([], [], "s", color=colour_of(1), alpha=0.3, markersize=8, label="dense ahead")
    ax.errorbar([], [], yerr=[], fmt="o", color="k", markersize=6, capsize=3, label="crossing measured, 95 %")
    words = {"fontsize": 12, "fontweight": "bold", "transform": ax.transAxes}
    ax.text(0.03, 0.95, "experts pay", color=colour_of(8), va="top", **words)
    ax.text(0.97, 0.04, "dense models are better", color=colour_of(1), ha="right", **words)
    ax.set(xlim=(span[0], span[-1]), ylim=(low / 2.2, high * 2.2))
    drawing.log_axis(ax, drawing.ACTIVE)
    drawing.log_axis(ax, "", "y")


def _crossing(ax: Any, gap: Gap, low: float, high: float) -> None:
    """A point with its interval; an arrow's head where it lies below or above the D measured."""
    value, *ends = gap.crossing
    known = [end for end in ends if not np.isnan(end)]
    ax.plot([gap.n_active] * len(known), np.clip(known, low, high), color="k", linewidth=1.2)
    marker = "o" if gap.bracketed else "v" if value == 0 else "^"
    ax.plot(gap.n_active, np.clip(value, low, high), marker, color="k", markersize=6, zorder=3)


def gaps_by_size(results: Results, axes: Any = None) -> NDArray[Any]:
    """Loss against dense models by D, a panel for each size, coloured by E, with standard errors."""
    widths = sorted({gap.d_model for gap in results.gaps})
    axes = drawing.panels_or_new(axes, len(widths), 2.6 * len(widths), 3.6, sharey=True)
    for ax, width in zip(axes, widths, strict=True):
        own = [gap for gap in results.gaps if gap.d_model == width]
        ax.axhline(0.0, color="0.4", linewidth=0.9)
        for gap in own:
            style = {"color": colour_of(gap.experts), "markersize": 4, "linewidth": 1.0, "capsize": 2}
            error = None if gap.drawn is None else BITS * gap.error
            ax.errorbar(gap.tokens, BITS * gap.mean, yerr=error, fmt="o-", label=label_of(gap.experts), **style)
        drawing.log_axis(ax, drawing.TOKENS)
        ax.set_title(f"d_model {width}, N_act = {format_count(own[0].n_active)}", fontsize=9)
    axes[0].set_ylabel("loss − dense (bits per byte)")
    drawing.shared_legend(axes[0])
    return axes


def losses_by_size(results: Results, axes: Any = None) -> NDArray[Any]:
    """Mean loss of each cell by D, a panel for each size, coloured by E, with the fitted law as lines."""
    cells = results.cells
    sizes = np.unique(cells.n_active)
    axes = drawing.panels_or_new(axes, len(sizes), 2.6 * len(sizes), 3.6, sharey=True)
    for ax, n in zip(axes, sizes, strict=True):
        for e in np.unique(cells.experts[cells.n_active == n]).tolist():
            own = cells.subset((cells.n_active == n) & (cells.experts == e))
            error = np.nan_to_num(own["standard_error"])
            ax.errorbar(
                *(own.tokens, BITS * own.loss, BITS * error),
                fmt="o", color=colour_of(e), markersize=4, capsize=2, label=label_of(e),
            )  # fmt: skip
            if results.fitted:
                span = np.geomspace(own.tokens.min(), own.tokens.max(), 40)
                ax.plot(span, BITS * results.fitted.law.loss(n, span, e), color=colour_of(e), linewidth=0.9)
        drawing.log_axis(ax, drawing.TOKENS)
        ax.set_title(f"N_act = {format_count(n)}", fontsize=9)
    axes[0].set_ylabel("held-out loss (bits per byte)")
    drawing.shared_legend(axes[0])
    return axes
