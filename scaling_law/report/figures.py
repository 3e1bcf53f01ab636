"""The figures of a report; see `scaling_law.report.page`. Each draws on the axes given, or on a new figure."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hub.plain.units import format_count, format_flops
from scaling_law.figures.drawing import (
    ACTIVE,
    INTERVAL,
    LOSS,
    OUTSIDE,
    TOKENS,
    axes_or_new,
    colour_of,
    draw_loss,
    label_of,
    log_axis,
    panels_or_new,
    save,
    shared_legend,
)
from scaling_law.figures.law_figures import predicted_against_observed
from scaling_law.report.results import Results, isoflop_profiles
from scaling_law.size.architecture import affordable_tokens

HIDDEN = {"_" + OUTSIDE, "_" + INTERVAL}  # labels of artists that the legend explains in a note
HELD_OUT = f"held-out {LOSS}"


def draw(results: Results, folder: Path, prefix: str, names: Collection[str] | None = None) -> list[Path]:
    """Write the figures that the results allow as `<prefix>-<name>.png`: all, or those in `names`."""
    absent = {"learning-rates"} if results.rates is None else set()
    absent |= {"matched"} if results.matched is None else set()
    wanted = [name for name in FIGURES if name not in absent and (names is None or name in names)]
    return [save(FIGURES[name](results), folder / f"{prefix}-{name}.png") for name in wanted]


def loss_by_size(results: Results, axes: Any = None) -> NDArray[Any]:
    """Loss against tokens, a panel for each size: runs as points, the joint law as lines, coloured by E."""
    runs = results.runs
    sizes = np.unique(runs.n_active)
    axes = panels_or_new(axes, len(sizes), 3.0 * len(sizes), 3.8, sharey=True)
    for ax, n in zip(axes, sizes, strict=True):
        for e in np.unique(runs.experts[runs.n_active == n]):
            own = (runs.n_active == n) & (runs.experts == e)
            span = np.geomspace(runs.tokens[own].min(), runs.tokens[own].max(), 60)
            draw_loss(ax, results.law, span, n, span, e, linewidth=1.0)
            ax.plot(runs.tokens[own], runs.loss[own], "o", color=colour_of(e), markersize=4)
        log_axis(ax, TOKENS)
        ax.set_title(f"N_act = {format_count(n)}")
    return _labelled(axes, HELD_OUT, results.experts, {"runs": {"marker": "o", "linestyle": "", "color": "0.4"}})


def isoflop_of_runs(results: Results, axes: Any = None) -> NDArray[Any]:
    """Loss against N_act at fixed budgets: points between the runs, without the law, and the law as lines."""
    budgets = results.budgets
    axes = panels_or_new(axes, len(budgets), 3.4 * len(budgets), 4.0)
    for ax, flops in zip(axes, budgets, strict=True):
        for profile in isoflop_profiles(results.runs, flops):
            ax.plot(profile.n_active, profile.loss, "o", color=colour_of(profile.experts), markersize=5)
            span = np.geomspace(profile.n_active.min() / 1.3, profile.n_active.max() * 1.3, 80)
            draw_loss(ax, results.law, span, span, affordable_tokens(flops, span), profile.experts, linewidth=1.0)
        log_axis(ax, ACTIVE)
        ax.set_title(f"{format_flops(flops)} FLOPs")
    points = {"interpolated between runs": {"marker": "o", "linestyle": "", "color": "0.4"}}
    return _labelled(axes, HELD_OUT, results.experts, points)


def _labelled(
    axes: NDArray[Any], label: str, experts: Collection[float], styles: dict[str, dict[str, Any]], **own: Any
) -> NDArray[Any]:
    """A label of the left axis and one legend for all panels: every E (drawn in the style `own`), and what `styles`
    mean; bands and dashed lines of any panel are explained, too."""
    ax = axes[0]
    ax.set_ylabel(label)
    seen = set(ax.get_legend_handles_labels()[1])
    for e in experts:
        if label_of(e) not in seen:
            ax.plot([], [], color=colour_of(e), label=label_of(e), **own)
    for text, style in styles.items():
        ax.plot([], [], label=text, **{"markersize": 4, "linewidth": 0.9, **style})
    for hidden in {artist.get_label() for other in axes[1:] for artist in other.get_children()} & HIDDEN:
        ax.plot([], [], label=hidden)
    shared_legend(ax)
    return axes


def held_out_runs(results: Results, axes: Any = None) -> NDArray[Any]:
    """Predicted against observed loss of the runs that each fit has not seen (filled) and has seen (pale)."""
    axes = panels_or_new(axes, len(results.held_out), 3.4 * len(results.held_out), 4.1)
    for ax, compared in zip(axes, results.held_out, strict=True):
        parts = compared.split
        for runs, alpha in ((parts.train, 0.2), (parts.validation, 1.0)):
            predicted = runs.loss + compared.joint.errors_on(runs)
            ax.scatter(runs.loss, predicted, s=16, c=[colour_of(e) for e in runs.experts], alpha=alpha, linewidths=0)
        ends = [min(parts.train.loss.min(), parts.validation.loss.min()), parts.train.loss.max()]
        ends[1] = max(ends[1], parts.validation.loss.max())
        ax.plot(ends, ends, color="0.4", linewidth=0.9, zorder=0)
        ax.set(xlabel=f"observed {LOSS}")
        ax.set_title(f"without {parts.by}", fontsize=8)
    dot: dict[str, Any] = {"marker": "o", "linestyle": "", "color": "0.3"}
    styles = {"fitted": dot | {"alpha": 0.2, "markeredgewidth": 0}, "held out": dot | {"markeredgewidth": 0}}
    return _labelled(axes, f"predicted {LOSS}", results.experts, styles, marker="o", linestyle="", markersize=4)


def learning_rate_grid(results: Results, axes: Any = None) -> NDArray[Any]:
    """Loss against peak learning rate for each model, the rate of the law of all models as a dashed line."""
    grid = results.rates
    assert grid is not None
    law, style = grid.fit(), {"marker": "o", "markersize": 4, "linewidth": 0.9}
    widths = sorted({model.architecture.d_model for model in grid.models})
    axes = panels_or_new(axes, len(widths), 3.0 * len(widths), 3.8, sharey=True)
    for ax, width in zip(axes, widths, strict=True):
        for model in (m for m in grid.models if m.architecture.d_model == width):
            colour = colour_of(model.architecture.experts)
            ax.plot(model.learning_rates, model.losses, color=colour, **style)
            ax.axvline(law.learning_rate(model.architecture), color=colour, linestyle="--", linewidth=0.9)
        log_axis(ax, "peak learning rate")
        ax.set_title(f"d_model {width}")
    experts = sorted({model.architecture.experts for model in grid.models})
    return _labelled(axes, HELD_OUT, experts, {"rate of the fitted law": {"linestyle": "--", "color": "0.4"}}, **style)


def matched_losses(results: Results, ax: Any = None) -> Any:
    """The matched experiment: predicted losses with their 95 % intervals, and measured ones."""
    assert results.matched is not None
    plan, losses = results.matched
    ax = axes_or_new(ax, 6.4, 4.0)
    for i, (model, seen) in enumerate(zip(plan.models, losses, strict=True)):
        colour = colour_of(model.architecture.experts)
        interval = [[model.loss - model.low], [model.high - model.loss]]
        ax.errorbar(i - 0.12, model.loss, yerr=interval, fmt="s", mfc="white", color=colour, capsize=3)
        ax.plot([i + 0.12] * len(seen), seen, "o", color=colour)
    names = [f"E = {m.architecture.experts}\n{m.role}" if m.architecture.experts > 1 else "dense" for m in plan.models]
    ax.set_xticks(range(len(names)), names, fontsize=8)
    ax.set(ylabel=HELD_OUT, xlim=(-0.6, len(names) - 0.4))
    handle = ax.errorbar([], [], yerr=[], fmt="s", mfc="white", color="0.4", capsize=3)
    handle.set_label(f"predicted before training, {INTERVAL}")
    ax.plot([], [], "o", color="0.4", label="measured")
    shared_legend(ax, "outside upper center")
    return ax


FIGURES: dict[str, Callable[[Results], Any]] = {
    "fit": lambda results: predicted_against_observed(results.fitted),
    "losses": loss_by_size,
    "isoflop": isoflop_of_runs,
    "held-out": held_out_runs,
    "learning-rates": learning_rate_grid,
    "matched": matched_losses,
}
