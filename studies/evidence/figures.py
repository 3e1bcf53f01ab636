"""Figures of docs/studies/evidence.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaling_law.figures import drawing
from scaling_law.figures.drawing import colour_of
from studies.evidence.forecasts import Forecast, Question
from studies.evidence.measures import Gains

_EXPERTS = (2, 4, 8, 16, 32, 64, 128, 256, 512)


def gains_of_experts(tables: Sequence[Gains], axes: Any = None) -> NDArray[Any]:
    """Measured against predicted gain over the model of fewest experts, a panel for each table, coloured by E."""
    axes = drawing.panels_or_new(axes, len(tables), 2.6 * len(tables), 3.5)
    for ax, table in zip(axes, tables, strict=True):
        low = 1.06 * min(table.measured.min(), table.predicted.min(), table.predicted_with.min())
        ax.plot([low, 0], [low, 0], color="0.4", linewidth=0.9, zorder=0)
        colours = [colour_of(e) for e in table.experts]
        ax.scatter(table.predicted_with, table.measured, s=14, facecolors="none", edgecolors=colours, linewidths=0.6)
        ax.scatter(table.predicted, table.measured, s=18, c=colours, linewidths=0)
        ax.set(xlabel="predicted (nats)", xlim=(low, 0), ylim=(low, 0), box_aspect=1)
        ax.set_title(table.source, fontsize=9)
    axes[0].set_ylabel("measured gain (nats)")
    for e in _EXPERTS:
        axes[0].plot([], [], "o", color=colour_of(e), markersize=4, label=drawing.label_of(e))
    axes[0].plot([], [], "o", color="0.4", markersize=4, markerfacecolor="none", label="N with embeddings")
    drawing.shared_legend(axes[0])
    return axes


def held_out_runs(asked: Sequence[tuple[Question, Forecast]], axes: Any = None) -> NDArray[Any]:
    """Forecast against measured loss of the held-out runs, a panel for each question, coloured by E."""
    axes = drawing.panels_or_new(axes, len(asked), 2.6 * len(asked), 3.3)
    for ax, (question, forecast) in zip(axes, asked, strict=True):
        measured, predicted = question.test.loss, question.test.loss + forecast.errors
        ax.scatter(measured, predicted, s=20, c=[colour_of(e) for e in question.test.experts], linewidths=0)
        both = np.concatenate([measured, predicted])
        ends = [both.min() - 0.03, both.max() + 0.03]
        ax.plot(ends, ends, color="0.4", linewidth=0.9, zorder=0)
        ax.set(xlabel="measured (nats)", xlim=ends, ylim=ends, box_aspect=1)
        ax.set_title(f"{question.source}:\n{question.held_out}", fontsize=9)
    axes[0].set_ylabel("forecast (nats)")
    return axes


def laws_side_by_side(
    asked: Sequence[Question],
    laws: Mapping[str, str],
    forecast: Callable[[str, str], Forecast | None],
    axes: Any = None,
) -> NDArray[Any]:
    """RMSE of each law with its 95 % interval, a panel for each question, against one scale."""
    from matplotlib.ticker import FuncFormatter

    axes = drawing.panels_or_new(axes, len(asked), 2.4 + 2.0 * len(asked), 0.6 + 0.3 * len(laws), sharey=True)
    for ax, question in zip(axes, asked, strict=True):
        for row, law in enumerate(laws):
            if (found := forecast(question.name, law)) is not None:
                colour = "#D55E00" if law.startswith("ludziejewski") else "0.35"
                ax.plot(found.interval, [row, row], color=colour, linewidth=1.4)
                ax.plot(found.rmse, row, "o", color=colour, markersize=5)
        ax.set(xscale="log", xlabel="RMSE (nats)", xlim=(0.004, 1.0))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        ax.set_title(f"{question.source}:\n{question.held_out}", fontsize=8)
    axes[0].set_yticks(range(len(laws)), list(laws.values()), fontsize=8)
    axes[0].set_ylim(len(laws) - 0.5, -0.5)
    return axes
