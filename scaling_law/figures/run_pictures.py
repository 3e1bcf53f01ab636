"""The pictures of a run's card, drawn from its step logs; the same logs give the same bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from hub.record.run_record import RunRecord
from scaling_law.figures import drawing

CURVE = "training_curve.png"
LOAD = "expert_load.png"
CAPTIONS = {
    CURVE: "Training loss against tokens: the trunk up to the branch point, and the decay",
    LOAD: "Tokens routed to each expert in each layer at the end of training, relative to an even load",
}
# Points of a curve; a longer log is averaged over equal shares of its steps.
_POINTS = 300
_COLOURS = {"trunk": "#4c78a8", "decay": "#e45756"}


def run_pictures(record: RunRecord, trunk_log: Path, branch_log: Path) -> dict[str, bytes]:
    """Draw PNGs by file name, without those for which the logs have nothing (one expert, no lines)."""
    branch_point = record.tokens if record.branch_point_tokens is None else record.branch_point_tokens
    trunk = _lines(trunk_log, branch_point)
    branch = _lines(branch_log, record.tokens)
    pictures = {}
    curves = {"trunk": _curve(trunk), "decay": _curve(branch)}
    if any(len(tokens) for tokens, _ in curves.values()):
        pictures[CURVE] = drawing.png(training_curve(curves, record))
    # An intermediate model lies on the trunk.
    last_lines = branch or trunk[-max(1, len(trunk) // 10) :]
    loads = [line["tokens_per_expert"] for line in last_lines if line.get("tokens_per_expert")]
    if record.experts > 1 and loads:
        total_load = np.sum(loads, axis=0, dtype=float)
        pictures[LOAD] = drawing.png(expert_load(total_load))
    return pictures


def _lines(log: Path, last_tokens: float) -> list[dict]:
    """Read the lines of a log up to so many tokens."""
    lines = []
    texts = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    for text in texts:
        # A line is cut short when a process was killed.
        with suppress(ValueError):
            line = json.loads(text)
            if line["tokens"] <= last_tokens:
                lines.append(line)
    return lines


def _curve(lines: list[dict]) -> tuple[np.ndarray, np.ndarray]:
    """Return (tokens, loss), each [points], without the steps whose loss was not finite."""
    points = [(line["tokens"], line["loss"]) for line in lines if line.get("loss") is not None]
    pieces = np.array_split(np.array(points, float), min(_POINTS, len(points))) if points else []
    tokens, loss = np.array([piece.mean(axis=0) for piece in pieces]).reshape(-1, 2).T
    return tokens, loss


def training_curve(curves: Mapping[str, tuple[np.ndarray, np.ndarray]], record: RunRecord) -> Any:
    """Draw the training loss against tokens, and return the axes; `curves`: (tokens, loss) of "trunk" and "decay"."""
    ax = drawing.axes_or_new(None, 6.4, 3.8, dpi=100)
    for name, (tokens, loss) in curves.items():
        # A line needs two points: a curve of one or two gets markers.
        marker = "." if len(tokens) < 3 else ""
        ax.plot(
            tokens,
            loss,
            color=_COLOURS[name],
            label=name,
            linewidth=1.2,
            marker=marker,
        )
    losses = np.concatenate([loss for _, loss in curves.values()])
    low = losses.min()
    high = np.quantile(losses, 0.98)
    if record.eval_loss is not None:
        label = f"held out: {record.eval_loss:.4f}"
        ax.plot(record.tokens, record.eval_loss, "k*", markersize=9, label=label)
        low = min(low, record.eval_loss)
        high = max(high, record.eval_loss)
    ax.set(ylabel=drawing.LOSS)
    drawing.log_axis(ax, drawing.TOKENS)
    height = max(high - low, 1e-3)
    ax.set_ylim(low - 0.04 * height, high + 0.1 * height)
    drawing.legend(ax)
    return ax


def expert_load(routed: np.ndarray) -> Any:
    """Draw the load of each expert in each layer, and return the axes; `routed` [layers, experts]: before dropping."""
    from matplotlib.ticker import MaxNLocator

    layers, experts = routed.shape
    even_load = np.maximum(routed.mean(axis=1, keepdims=True), 1.0)
    load = routed / even_load
    width = min(2.6 + 0.22 * max(experts, 8), 11.0)
    height = min(1.4 + 0.18 * max(layers, 4), 9.0)
    ax = drawing.axes_or_new(None, width, height, dpi=100)
    ax.grid(False)
    image = ax.imshow(
        load,
        cmap="viridis",
        vmin=0.0,
        vmax=max(2.0, float(load.max())),
        aspect="auto",
    )
    ax.set(xlabel="expert", ylabel="layer")
    # Show at least one whole number.
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    ax.figure.colorbar(image, ax=ax, label="load / even load")
    return ax
