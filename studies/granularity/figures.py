"""The figure of docs/studies/granularity.md."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from scaling_law.figures import drawing
from studies.granularity.contenders import CONTENDERS, TOKENS
from studies.granularity.measures import Measures
from studies.granularity.prediction import Prediction

COLUMNS, PERCENT = 3, 100.0
MOST = 15.0  # percent that are drawn; a law that says more is named in the corner
COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#882255",
    "#777777",
)  # of laws, by their order


def differences(measures: Measures, predictions: Sequence[Prediction]) -> Any:
    """A panel for each comparison: measured with standard errors, and what laws say, by D."""
    rows = -(-len(CONTENDERS) // COLUMNS)
    figure, axes = drawing.new_figure(10, 3.1 * rows + 0.5, COLUMNS, rows, sharex=True, sharey=True)
    laws = dict.fromkeys(said.law for said in predictions if said.ratio is not None)
    colours = dict(zip(laws, itertools.cycle(COLOURS), strict=False))
    found = {difference.contender.name: difference for difference in measures.differences}
    for ax, contender in zip(axes.flat, CONTENDERS, strict=False):
        ax.axhline(0.0, color="0.4", linewidth=0.9)
        own = [said for said in predictions if said.contender == contender.name and said.ratio is not None]
        _laws(ax, own, colours)
        if (difference := found.get(contender.name)) is not None:
            ax.errorbar(
                *(difference.tokens, PERCENT * difference.mean, PERCENT * difference.error),
                fmt="o", color="k", markersize=5, capsize=3, zorder=3,
            )  # fmt: skip
        ax.set_title(f"{contender.name}\nagainst {contender.against}", fontsize=9)
        ax.set(xlim=(TOKENS[0] / 1.3, TOKENS[-1] * 1.3), ylim=(-MOST, MOST))
        drawing.log_axis(ax, "")
    for ax in axes[-1]:
        drawing.log_axis(ax, drawing.TOKENS)
    for ax in axes[:, 0]:
        ax.set_ylabel("loss, relative (%)")
    for law, colour in colours.items():
        axes.flat[0].plot([], [], color=colour, label=law)
    axes.flat[0].errorbar([], [], yerr=[], fmt="o", color="k", markersize=5, capsize=3, label="measured")
    drawing.shared_legend(axes.flat[0])
    return figure


def _laws(ax: Any, predictions: Sequence[Prediction], colours: dict[str, str]) -> None:
    beyond = []
    for law, colour in colours.items():
        own = [said for said in predictions if said.law == law]
        values = [PERCENT * (said.ratio - 1.0) for said in own if said.ratio is not None]
        if values and abs(values[-1]) > MOST:
            beyond.append(f"{law}: {values[-1]:+.0f} %")
        elif values:
            ax.plot([said.tokens for said in own], values, color=colour, linewidth=1.4)
        if own and own[0].low is not None:
            low, high = ([PERCENT * (end - 1.0) for end in ends if end is not None] for ends in _ends(own))
            ax.fill_between([said.tokens for said in own], low, high, color=colour, alpha=0.15, linewidth=0)
    if beyond:
        ax.text(0.97, 0.95, "\n".join(beyond), transform=ax.transAxes, ha="right", va="top", fontsize=8, color="0.3")


def _ends(predictions: Sequence[Prediction]) -> tuple[list[float | None], list[float | None]]:
    return [said.low for said in predictions], [said.high for said in predictions]
