"""The figure of docs/studies/granularity.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from scaling_law import published
from scaling_law.figures import drawing
from studies.granularity.contenders import ALL, DENSE, EIGHTHS, TOKENS
from studies.granularity.measures import Measures
from studies.granularity.prediction import Prediction

PERCENT, MOST = 100.0, 15.0  # percent that are drawn; a law that says more is named in the corner
COLOURS = {
    **{"clark_sbase": "#0072B2", "clark_rl": "#D55E00", "clark_hash": "#009E73", "krajewski": "#CC79A7"},
    **{"krajewski_e16": "#E69F00", "abnar": "#56B4E9", "ludziejewski": "#882255", "hunyuan": "#777777"},
}


def differences(measures: Measures, predictions: Sequence[Prediction], axes: Any = None) -> Any:
    """What dense models lose and what finest experts gain by D: measured with standard errors, and as laws say."""
    axes = drawing.panels_or_new(axes, 2, 9.6, 4.6, sharey=True)
    for ax, name in zip(axes, (DENSE, EIGHTHS), strict=True):
        ax.axhline(0.0, color="0.4", linewidth=0.9)
        beyond = [text for law in COLOURS if (text := _law(ax, law, name, predictions))]
        ax.text(0.97, 0.97, "\n".join(beyond), transform=ax.transAxes, ha="right", va="top", fontsize=8, color="0.3")
        mean, error, _ = PERCENT * measures.differences[name]
        ax.errorbar(TOKENS, mean, error, fmt="o", color="k", markersize=5, capsize=3, zorder=3, label="measured")
        ax.set_title(f"{name}, against {ALL[name].against}", fontsize=10)
        ax.set(xlim=(TOKENS[0] / 1.3, TOKENS[-1] * 1.3), ylim=(-MOST, MOST))
        drawing.log_axis(ax, "training bytes D")
    axes[0].set_ylabel("loss, relative (%)")
    for law, colour in COLOURS.items():
        axes[0].plot([], [], color=colour, label=law)
    drawing.shared_legend(axes[0])
    return axes


def _law(ax: Any, law: str, contender: str, predictions: Sequence[Prediction]) -> str:
    """Draw what a law says with its interval; in words where that is beyond the axis, "" otherwise."""
    said = [p for p in predictions if (p.law, p.contender) == (law, contender) and p.ratio is not None]
    if not said:
        return ""
    ratio, low, high = np.array([(p.ratio, p.low or p.ratio, p.high or p.ratio) for p in said], float).T
    tokens, values = np.array([p.tokens for p in said]), PERCENT * (ratio - 1.0)
    if abs(values[-1]) > MOST:
        return f"{law}: {values[-1]:+.0f} %"
    variables = ALL[contender].architecture.variables()
    model = {name: variables[name] for name in published(law).variables if name != "tokens"}
    inside = published(law).check(**model, tokens=tokens).inside
    drawing.draw_curve(ax, tokens, values, inside, 1, color=COLOURS[law], label="_")
    ax.fill_between(tokens, PERCENT * (low - 1.0), PERCENT * (high - 1.0), color=COLOURS[law], alpha=0.15, linewidth=0)
    return ""
