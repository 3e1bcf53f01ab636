"""Figures of docs/studies/evidence.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaling_law import HeldOut
from scaling_law.figures import drawing
from scaling_law.figures.drawing import colour_of
from studies.evidence.forecasts import JOINT, MEAN, REFIT, WITH
from studies.evidence.measures import Gains

EXPERTS = (2, 4, 8, 16, 32, 64, 128, 256, 512)
MARKS = {  # law → its name, colour and marker
    JOINT: ("the law, one constant refitted (95 %)", "#D55E00", "o"),
    WITH: ("the same, N with embeddings", "#D55E00", "x"),
    REFIT: ("fresh fit of all coefficients", "#0072B2", "s"),
    MEAN: ("mean of the fitted runs", "0.6", "d"),
}


def gains_of_experts(tables: Sequence[Gains], axes: Any = None) -> NDArray[Any]:
    """Measured against predicted gain over the model of fewest experts, a panel for each table, coloured by E."""
    axes = drawing.panels_or_new(axes, len(tables), 2.6 * len(tables), 3.5)
    for ax, table in zip(axes, tables, strict=True):
        low = 1.06 * min(table.measured.min(), table.predicted.min(), table.predicted_with.min())
        ax.plot([low, 0], [low, 0], color="0.4", linewidth=0.9, zorder=0)
        colours = [colour_of(e) for e in table.experts]
        ax.scatter(table.predicted_with, table.measured, s=18, c=colours, linewidths=0)
        ax.scatter(table.predicted, table.measured, s=14, facecolors="none", edgecolors=colours, linewidths=0.6)
        ax.set(xlabel="predicted (nats)", xlim=(low, 0), ylim=(low, 0), box_aspect=1)
        ax.locator_params(nbins=4)
        ax.set_title(table.source, fontsize=9)
    axes[0].set_ylabel("measured gain (nats)")
    for e in EXPERTS:
        axes[0].plot([], [], "o", color=colour_of(e), markersize=4, label=drawing.label_of(e))
    axes[0].plot([], [], "o", color="0.4", markersize=4, markerfacecolor="none", label="N without embeddings")
    drawing.shared_legend(axes[0])
    return axes


def held_out_runs(asked: Sequence[str], forecast: Callable[[str, str], HeldOut | None], ax: Any = None) -> Any:
    """RMSE of the law moved by one constant beside its alternatives, a row for each question."""
    from matplotlib.ticker import FuncFormatter

    ax = drawing.axes_or_new(ax, 8.6, 1.6 + 0.3 * len(asked))
    for law, (label, colour, marker) in MARKS.items():
        drawn = [(row, f) for row, name in enumerate(asked) if (f := forecast(name, law)) is not None]
        rows, rmse = [row for row, _ in drawn], np.array([f.rmse for _, f in drawn])
        ax.plot(rmse, rows, marker, color=colour, markersize=6, label=label, zorder=3 if law == JOINT else 2)
        if law == JOINT:
            ax.hlines(rows, *zip(*(f.interval for _, f in drawn), strict=True), color=colour, linewidth=1.4)
    ax.set(xscale="log", xlabel="RMSE on the held-out runs (nats)", ylim=(len(asked) - 0.5, -0.5))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    ax.set_yticks(range(len(asked)), list(asked), fontsize=8)
    drawing.shared_legend(ax)
    return ax
