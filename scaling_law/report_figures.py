"""The figures of a report; see `scaling_law.report`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np

from scaling_law.figures import colour_of, new_figure, predicted_against_observed, save
from scaling_law.isoflop import isoflop_profiles
from scaling_law.results import Results
from scaling_law.units import format_count


def draw(results: Results, folder: Path, prefix: str, names: Collection[str] | None = None) -> list[Path]:
    """Write the figures that the results allow as `<prefix>-<name>.png`: all, or those in `names`."""
    absent = {"learning-rates"} if results.rates is None else set()
    absent |= {"matched"} if results.matched is None else set()
    wanted = [name for name in FIGURES if name not in absent and (names is None or name in names)]
    return [FIGURES[name](results, folder / f"{prefix}-{name}.png") for name in wanted]


def fit_quality(results: Results, path: Path) -> Path:
    """Predicted against observed loss of the runs of the fit."""
    return predicted_against_observed(results.fitted, path)


def _log_axis(ax: Any, label: str) -> None:
    """A logarithmic x axis over few decades: numbers at a few multiples of the powers of ten, which do not collide."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

    ax.set(xscale="log", xlabel=label)
    low, high = ax.get_xlim()
    digits = (1, 2, 3, 5, 7) if high / low < 6 else (1, 2, 5) if high / low < 60 else (1,)
    powers = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    ticks = [digit * 10.0**power for power in powers for digit in digits]
    ax.xaxis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: format_count(x) if x >= 1 else f"{x:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())


def loss_by_size(results: Results, path: Path) -> Path:
    """Loss against tokens, a panel for each size: runs as points, the joint law as lines, coloured by E."""
    runs = results.runs
    sizes = np.unique(runs.n_active)
    figure, axes = new_figure(3.0 * len(sizes), 3.4, columns=len(sizes), squeeze=False, sharey=True)
    for ax, n in zip(axes[0], sizes, strict=True):
        for e in results.experts:
            own = (runs.n_active == n) & (runs.experts == e)
            if not own.any():
                continue
            colour, label = colour_of(e, results.experts), f"E = {e:g}"
            span = np.geomspace(runs.tokens[own].min(), runs.tokens[own].max(), 60)
            ax.plot(span, results.law.loss(n, span, e), color=colour, linewidth=1.0)
            ax.plot(runs.tokens[own], runs.loss[own], "o", color=colour, markersize=4, label=label)
        _log_axis(ax, "training tokens D")
        ax.set_title(f"N_act = {format_count(n)}")
    axes[0][0].set_ylabel("held-out loss (nats per token)")
    axes[0][-1].legend(frameon=False, fontsize=8)
    return save(figure, path)


def isoflop_of_runs(results: Results, path: Path) -> Path:
    """Loss against N_act at fixed budgets: points between the runs, without the law, and the law as lines."""
    budgets = results.budgets
    figure, axes = new_figure(3.4 * len(budgets), 3.6, columns=len(budgets), squeeze=False)
    for ax, flops in zip(axes[0], budgets, strict=True):
        for profile in isoflop_profiles(results.runs, flops):
            e, colour = profile.experts, colour_of(profile.experts, results.experts)
            ax.plot(profile.n_active, profile.loss, "o", color=colour, markersize=5, label=f"E = {e:g}")
            span = np.geomspace(profile.n_active.min() / 1.3, profile.n_active.max() * 1.3, 80)
            ax.plot(span, results.law.loss(span, flops / (6 * span), e), color=colour, linewidth=1.0)
        _log_axis(ax, "active parameters N_act")
        ax.set_title(f"{flops:.0e} FLOPs".replace("e+", "e"))
    axes[0][0].set_ylabel("held-out loss (nats per token)")
    axes[0][-1].legend(frameon=False, fontsize=8)
    return save(figure, path)


def held_out_runs(results: Results, path: Path) -> Path:
    """Predicted against observed loss of the runs that each fit has not seen (filled) and has seen (pale)."""
    count = len(results.held_out)
    figure, axes = new_figure(3.4 * count, 3.7, columns=count, squeeze=False)
    for ax, compared in zip(axes[0], results.held_out, strict=True):
        parts = compared.split
        for runs, alpha in ((parts.train, 0.2), (parts.validation, 1.0)):
            predicted = runs.loss + compared.joint.errors_on(runs)
            colours = [colour_of(e, results.experts) for e in runs.experts]
            ax.scatter(runs.loss, predicted, s=16, c=colours, alpha=alpha, linewidths=0)
        ends = [parts.train.loss.min(), parts.train.loss.max(), parts.validation.loss.min()]
        ax.plot([min(ends), max(ends)], [min(ends), max(ends)], color="0.4", linewidth=0.9, zorder=0)
        ax.set(xlabel="observed loss (nats per token)")
        ax.set_title(f"without {parts.by}", fontsize=8)
    axes[0][0].set_ylabel("predicted loss")
    return save(figure, path)


def learning_rate_grid(results: Results, path: Path) -> Path:
    """Loss against peak learning rate for each model, the rate of the law of all models as a dashed line."""
    grid = results.rates
    assert grid is not None
    law = grid.fit()
    widths = sorted({model.architecture.d_model for model in grid.models})
    among = sorted({model.architecture.experts for model in grid.models})
    figure, axes = new_figure(3.0 * len(widths), 3.4, columns=len(widths), squeeze=False, sharey=True)
    for ax, width in zip(axes[0], widths, strict=True):
        for model in (m for m in grid.models if m.architecture.d_model == width):
            colour = colour_of(model.architecture.experts, among)
            label = f"E = {model.architecture.experts}"
            ax.plot(model.learning_rates, model.losses, "o-", color=colour, markersize=4, linewidth=0.9, label=label)
            ax.axvline(law.learning_rate(model.architecture), color=colour, linestyle="--", linewidth=0.9)
        _log_axis(ax, "peak learning rate")
        ax.set_title(f"d_model {width}")
        ax.legend(frameon=False, fontsize=8)
    axes[0][0].set_ylabel("held-out loss (nats per token)")
    return save(figure, path)


def matched_losses(results: Results, path: Path) -> Path:
    """The matched experiment: predicted losses with their 95 % intervals, and measured ones."""
    assert results.matched is not None
    plan, losses = results.matched
    figure, ax = new_figure(6.4, 3.8)
    among = sorted({model.architecture.experts for model in plan.models})
    for i, (model, seen) in enumerate(zip(plan.models, losses, strict=True)):
        colour = colour_of(model.architecture.experts, among)
        interval = [[model.loss - model.low], [model.high - model.loss]]
        ax.errorbar(i - 0.12, model.loss, yerr=interval, fmt="s", mfc="white", color=colour, capsize=3)
        ax.plot([i + 0.12] * len(seen), seen, "o", color=colour)
    names = [f"E = {m.architecture.experts}\n{m.role if m.architecture.experts > 1 else 'dense'}" for m in plan.models]
    ax.set_xticks(range(len(names)), names, fontsize=8)
    ax.set(ylabel="held-out loss (nats per token)")
    ax.set_title("□ predicted before training (95 %)   ● measured", fontsize=9)
    return save(figure, path)


FIGURES: dict[str, Callable[[Results, Path], Path]] = {
    "fit": fit_quality,
    "losses": loss_by_size,
    "isoflop": isoflop_of_runs,
    "held-out": held_out_runs,
    "learning-rates": learning_rate_grid,
    "matched": matched_losses,
}
