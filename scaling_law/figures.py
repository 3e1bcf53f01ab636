"""The figures of a fit and of a law, as PNG or SVG (by the file's suffix).

After Ludziejewski et al. 2025: isoFLOP profiles (Fig. 2a), loss under a memory limit with shaded optimal regions
(Fig. 1a, Fig. 3), quality of a fit (Fig. 5). matplotlib is imported when a figure is drawn, and without a display.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scaling_law.architecture import active_parameters, affordable_tokens, total_parameters
from scaling_law.laws import JointLaw
from scaling_law.optimum import Constraints, optimal_widths
from scaling_law.units import format_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from scaling_law.fit_result import FitResult

EXPERTS = (1, 2, 4, 8, 16, 32)
SUFFIXES = (".png", ".svg", ".pdf")


def new_figure(
    width: float = 6.4, height: float = 4.4, columns: int = 1, rows: int = 1, **options: Any
) -> tuple[Figure, Any]:
    """A figure and its axes without any global state of pyplot."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, **options)
    for ax in np.atleast_1d(axes).flat:
        ax.grid(True, alpha=0.25, linewidth=0.6)
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save(figure: Figure, path: str | Path) -> Path:
    """Write the figure; ValueError for a suffix other than .png, .svg, .pdf."""
    target = Path(path)
    if target.suffix.lower() not in SUFFIXES:
        raise ValueError(f"path={str(path)!r}: the suffix must be one of {', '.join(SUFFIXES)}")
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, metadata={"Date": None} if target.suffix.lower() == ".svg" else None)
    return target


def colour_of(experts: float, among: ArrayLike = EXPERTS) -> Any:
    """One colour for each E, the same in all figures: near-black for dense, then blue (few experts) to red (many)."""
    from matplotlib import colormaps

    if experts <= 1:
        return (0.12, 0.12, 0.12, 1.0)
    position = (np.log2(experts) - 1.0) / max(np.log2(np.max(among)) - 1.0, 1.0)
    return colormaps["turbo"](0.1 + 0.78 * min(max(position, 0.0), 1.0))


def predicted_against_observed(result: FitResult, path: str | Path) -> Path:
    """Predicted against observed loss for every run, coloured by E, with the residuals below."""
    figure, (top, bottom) = new_figure(5.6, 6.4, rows=2, sharex=True, height_ratios=[3, 1])
    observed, residuals = result.runs.loss, result.residuals
    values = np.unique(result.runs.experts)
    for e in values:
        mask = result.runs.experts == e
        style = {"s": 18, "color": colour_of(e, values), "edgecolors": "white", "linewidths": 0.3}
        top.scatter(observed[mask], (observed + residuals)[mask], label=f"E = {e:g}", **style)
        bottom.scatter(observed[mask], residuals[mask], **style)
    ends = np.array(
        [min(observed.min(), (observed + residuals).min()), max(observed.max(), (observed + residuals).max())]
    )
    ends += np.array([-0.03, 0.03]) * max(np.ptp(ends), 1e-3)
    top.plot(ends, ends, color="0.4", linewidth=0.9, zorder=0)
    bottom.axhline(0.0, color="0.4", linewidth=0.9, zorder=0)
    limit = 1.15 * max(float(np.abs(residuals).max()), 1e-6)
    bottom.set(xlabel="observed loss (nats per token)", ylabel="error", ylim=(-limit, limit), xlim=ends)
    top.set(ylabel="predicted loss (nats per token)", title=f"{len(observed)} runs, RMSE {result.rmse:.4f} nats")
    top.legend(frameon=False)
    return save(figure, path)


def isoflop(
    law: JointLaw,
    path: str | Path,
    flops: ArrayLike = (1e19, 1e20, 1e21, 1e22),
    experts: Sequence[float] = (1, 4, 16),
) -> Path:
    """Loss against tokens along budgets, compute-optimal points marked (Fig. 2a); one panel for each budget."""
    budgets = np.atleast_1d(np.asarray(flops, float))
    figure, axes = new_figure(2.9 * len(budgets), 3.4, columns=len(budgets), squeeze=False)
    for ax, budget in zip(axes[0], budgets, strict=True):
        best = law.compute_optimal(budget, experts, force=True)
        span = np.geomspace(best.tokens.min() / 12, best.tokens.max() * 12, 300)
        for i, e in enumerate(experts):
            colour = colour_of(e, (*EXPERTS, *experts))
            ax.plot(span, law.loss(budget / 6 / span, span, e), color=colour, label=f"E = {e:g}")
            ax.plot(best.tokens[i], best.loss[i], "o", color=colour, markersize=5, markeredgecolor="white")
        low, high = float(best.loss.min()), float(best.loss.max())
        ax.set(xscale="log", xlabel="training tokens D", title=f"{budget:.0e} FLOPs".replace("e+", "e"))
        ax.set_ylim(low - 0.25 * (high - low) - 0.005, high + 2.0 * (high - low) + 0.05)
    axes[0][0].set_ylabel("loss (nats per token)")
    axes[0][0].legend(frameon=False)
    return save(figure, path)


def memory_optimal(
    law: JointLaw,
    path: str | Path,
    flops: float = 1e22,
    experts: Sequence[float] = EXPERTS,
    kv_cache_tokens: float = 0.0,
    inference_tokens: float = 0.0,
) -> Path:
    """Loss under a memory limit, a curve for each E up to its compute optimum, shaded where each E is best."""
    figure, ax = new_figure(7.0, 4.6)
    draw_memory_optimal(ax, law, flops, experts, kv_cache_tokens, inference_tokens)
    ax.legend(frameon=False)
    return save(figure, path)


def draw_memory_optimal(
    ax: Axes, law: JointLaw, flops: float, experts: Sequence[float], kv_cache_tokens: float, inference_tokens: float
) -> NDArray[np.float64]:
    """Draw one panel of `memory_optimal`; returns the boundaries between the shaded regions, in elements."""
    memory, losses = memory_curves(law, flops, experts, kv_cache_tokens, inference_tokens)
    best = np.argmin(losses, axis=1)
    edges = np.flatnonzero(np.diff(best)) + 1
    for first, last in zip([0, *edges], [*edges, len(best)], strict=True):
        colour = colour_of(experts[best[first]], experts)
        right = memory[min(last, len(memory) - 1)]
        ax.axvspan(memory[first], right, color=colour, alpha=0.14, linewidth=0)
    for i, e in enumerate(experts):
        shown = np.isfinite(losses[:, i])
        # a curve ends where the compute optimum fits: larger models would be worse
        end = int(np.argmin(np.where(shown, losses[:, i], np.inf)))
        colour = colour_of(e, experts)
        ax.plot(memory[: end + 1], losses[: end + 1, i], color=colour, label=f"E = {e:g}" if e > 1 else "dense")
        ax.plot(memory[end], losses[end, i], "o", color=colour, markersize=4)
    reached = losses[np.arange(len(best)), best]
    ax.set(xscale="log", xlim=(memory[0], memory[-1]), ylim=(reached.min() - 0.01, reached[0] + 0.02))
    ax.set(xlabel="memory limit (elements)", ylabel="loss (nats per token)")
    what = "parameters" + (f" + KV cache of {kv_cache_tokens:,.0f} tokens" if kv_cache_tokens else "")
    note = f", inference on {format_count(inference_tokens)} tokens" if inference_tokens else ""
    ax.set_title(f"{flops:.0e} FLOPs{note}\n{what}".replace("e+", "e"), fontsize=10)
    return memory[edges]


def memory_curves(
    law: JointLaw,
    flops: float,
    experts: Sequence[float],
    kv_cache_tokens: float = 0.0,
    inference_tokens: float = 0.0,
    points: int = 800,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Memory limits [points] in elements, and the loss [points, E] of the best model within each limit.

    From the smallest limit inside the range guard for the dense model to past the last compute optimum.
    """
    columns = np.asarray(experts, float)
    free = optimal_widths(law, flops, columns, Constraints(inference_tokens=inference_tokens))
    largest = float(total_parameters(free.d_model, columns).max()) * 1.3
    smallest = float(total_parameters(free.d_model, columns).min()) / 12
    memory = np.geomspace(smallest, largest, points)
    elements: dict[str, Any] = {"kv_cache_tokens": kv_cache_tokens, "bytes_per_parameter": 1.0, "bytes_per_kv": 1.0}
    limits = np.array([Constraints(max_memory_bytes=float(m), **elements).width_limit(columns) for m in memory])
    n_active = active_parameters(np.minimum(free.d_model, limits))
    tokens = affordable_tokens(flops, n_active, inference_tokens)
    losses = law.loss(n_active, tokens, columns)
    if law.conditions is not None:
        losses = np.where(law.conditions.beyond_guard(n_active, tokens), np.inf, losses)
    kept = np.isfinite(losses).any(axis=1)
    return memory[kept], losses[kept]
