"""The paper's figures from any joint law (Ludziejewski et al. 2025), beside the plain ones of `scaling_law.figures`.

`draw_all` writes every figure that follows from a law; those that need measured losses (quality of the fit, loss
curves for one E) are drawn from a fit, since the paper's losses were not published.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scaling_law.architecture import Architecture, active_parameters, width_of_total
from scaling_law.figures import EXPERTS, colour_of, draw_memory_optimal, isoflop, memory_optimal, new_figure, save
from scaling_law.inverse import compute_matched, flop_savings
from scaling_law.laws import JointLaw
from scaling_law.learning_rate import LearningRateLaw
from scaling_law.optimum import Constraints, optimal_widths
from scaling_law.units import format_count

if TYPE_CHECKING:
    from scaling_law.fit_result import FitResult

SCENARIOS: tuple[tuple[str, dict[str, float]], ...] = (
    ("model size", {}),
    ("with KV cache of 32k tokens", {"kv_cache_tokens": 32_768}),
    ("with inference on 100B tokens", {"inference_tokens": 1e11}),
)


def draw_all(law: JointLaw, folder: str | Path, suffix: str = "png") -> list[Path]:
    """Every figure of the paper that follows from a law, into `folder`; returns the files."""
    folder = Path(folder)
    return [
        memory_optimal(law, folder / f"fig1a_memory_optimal.{suffix}"),
        family(law, folder / f"fig1b_family_1b.{suffix}"),
        isoflop(law, folder / f"fig2a_isoflop.{suffix}"),
        savings(law, folder / f"fig2b_flop_savings.{suffix}"),
        memory_scenarios(law, folder / f"fig3_memory_optimal_5e22.{suffix}"),
        best_by_budget(law, folder / f"fig4_optimal_experts.{suffix}"),
        matched(law, folder / f"figA_matched_models.{suffix}"),
        learning_rates(folder / f"figB_learning_rate.{suffix}"),
    ]


def savings(law: JointLaw, path: str | Path, experts: Sequence[int] = EXPERTS[1:]) -> Path:
    """FLOPs saved by compute-optimal MoE models against dense ones of the same loss (Fig. 2b)."""
    figure, ax = new_figure()
    flops = np.geomspace(1e18, 1e24, 60)
    saved = 100 * flop_savings(law, flops, list(experts), force=True)
    for i, e in enumerate(experts):
        ax.plot(flops, saved[:, i], color=colour_of(e), label=f"E = {e}")
    ax.set(xscale="log", xlabel="training budget of the dense model (FLOPs)", ylabel="FLOPs saved (%)", ylim=(0, None))
    ax.legend(frameon=False, ncols=2, loc="upper left")
    return save(figure, path)


def memory_scenarios(law: JointLaw, path: str | Path, flops: float = 5e22, kv_tokens: float = 8192) -> Path:
    """Loss under a memory limit at 5e22 FLOPs: parameters, with KV cache, with inference as well (Fig. 3)."""
    figure, axes = new_figure(13.5, 4.4, columns=3, sharey=True)
    for ax, (cache, served) in zip(axes, ((0.0, 0.0), (kv_tokens, 0.0), (kv_tokens, 1e11)), strict=True):
        draw_memory_optimal(ax, law, flops, EXPERTS, cache, served)
    for ax in axes[1:]:
        ax.set_ylabel("")
    axes[0].legend(frameon=False, loc="lower left", ncols=2)
    return save(figure, path)


def family(law: JointLaw, path: str | Path) -> Path:
    """Predicted loss of the 1.1B family (same total parameters, E = 1, 2, 4) against training FLOPs (Fig. 1b)."""
    figure, ax = new_figure()
    flops = np.geomspace(5e18, 1e21, 200)
    for e, width in ((1, 1664), (2, 1408), (4, 1152)):
        n = Architecture(width, e).n_active
        label = f"E = {e}, d = {width}, {format_count(n)} active"
        ax.plot(flops, law.loss(n, flops / 6 / n, e), color=colour_of(e), label=label)
        optimum = _budget_of_optimum(law, n, e)
        if flops[0] <= optimum <= flops[-1]:
            ax.plot(optimum, law.loss(n, optimum / 6 / n, e), "o", color=colour_of(e), markersize=5)
    ax.set(xscale="log", xlabel="training FLOPs", ylabel="predicted loss (nats per token)")
    ax.set_title("1.1B total parameters; ● compute-optimal for this size")
    ax.legend(frameon=False)
    return save(figure, path)


def _budget_of_optimum(law: JointLaw, n_active: float, experts: float) -> float:
    """The budget whose compute-optimal model has n_active: N_opt grows as a power of the budget."""
    at = law.compute_optimal([1e20, 1e22], experts, force=True).n_active
    power = np.log(at[1] / at[0]) / np.log(100.0)
    return float(1e20 * (n_active / at[0]) ** (1.0 / power))


def best_by_budget(law: JointLaw, path: str | Path, sizes: Sequence[float] = (2e9, 5e9, 10e9)) -> Path:
    """Loss against the dense model for three sizes and three scenarios, shaded where each E is best (Fig. 4)."""
    figure, axes = new_figure(12.5, 9.0, columns=3, rows=3, sharex=True, sharey=True)
    flops = np.geomspace(1e20, 1e25, 160)
    for row, size in zip(axes, sizes, strict=True):
        for ax, (title, extra) in zip(row, SCENARIOS, strict=True):
            losses = _losses_by_budget(law, flops, size, extra)
            _draw_differences(ax, flops, losses)
            ax.set_title(f"{format_count(size)} {title}", fontsize=10)
    for ax in axes[-1]:
        ax.set_xlabel("budget (FLOPs)")
    for ax in axes[:, 0]:
        ax.set_ylabel("loss against dense (nats)")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, ncols=len(EXPERTS), loc="outside upper center")
    return save(figure, path)


def _losses_by_budget(law: JointLaw, flops: Any, size: float, extra: dict[str, float]) -> Any:
    """[budgets, E]: best loss within the memory of a dense model of `size` in this scenario; NaN beyond the guard."""
    limits: dict[str, Any] = dict(extra)
    if "kv_cache_tokens" in extra:
        width = width_of_total(size, 1)
        limits["max_memory_bytes"] = float(_dense_memory(width, extra["kv_cache_tokens"]))
    else:
        limits["max_parameters"] = size
    grid = np.broadcast_to(flops[:, None], (len(flops), len(EXPERTS)))
    found = optimal_widths(law, grid, np.broadcast_to(np.array(EXPERTS, float), grid.shape), Constraints(**limits))
    guarded = law.conditions is not None and law.conditions.beyond_guard(found.n_active, found.tokens)
    return np.where(np.isfinite(found.loss) & ~np.asarray(guarded), found.loss, np.nan)


def _dense_memory(width: float, kv_tokens: float) -> Any:
    """Bytes of a dense bf16 model of this (fractional) width and its KV cache."""
    constraints = Constraints(kv_cache_tokens=kv_tokens)
    return constraints.weight_bytes(width, 1) + constraints.kv_bytes(width)


def _draw_differences(ax: Any, flops: Any, losses: Any) -> None:
    shown = ~np.isnan(losses[:, 0])
    x, difference = flops[shown], (losses - losses[:, :1])[shown]
    best = np.nanargmin(losses[shown], axis=1)
    edges = np.flatnonzero(np.diff(best)) + 1
    for first, last in zip([0, *edges], [*edges, len(best)], strict=True):
        right = x[min(last, len(x) - 1)]
        ax.axvspan(x[first], right, color=colour_of(EXPERTS[best[first]]), alpha=0.16, linewidth=0)
    for i, e in enumerate(EXPERTS):
        ax.plot(x, difference[:, i], color=colour_of(e), label=f"E = {e}" if e > 1 else "dense")
    ax.set(xscale="log", ylim=(-0.12, 0.06))


def matched(law: JointLaw, path: str | Path, experts: Sequence[int] = (2, 4, 8)) -> Path:
    """Loss of MoE models matched in FLOPs and total parameters with compute-optimal dense ones (Appendix)."""
    figure, (left, right) = new_figure(10.5, 4.2, columns=2)
    flops = np.geomspace(1e19, 1e25, 80)
    dense = law.compute_optimal(flops, 1.0, force=True)
    losses = compute_matched(law, flops, list(experts), force=True)
    left.plot(flops, dense.loss, color=colour_of(1), label="dense, compute-optimal")
    for i, e in enumerate(experts):
        left.plot(flops, losses[:, i], color=colour_of(e), label=f"E = {e}, same FLOPs and memory")
        right.plot(flops, losses[:, i] - dense.loss, color=colour_of(e), label=f"E = {e}")
    right.axhline(0.0, color=colour_of(1), linewidth=1)
    left.set(xscale="log", xlabel="training FLOPs", ylabel="loss (nats per token)")
    right.set(xscale="log", xlabel="training FLOPs", ylabel="loss against dense (nats)")
    left.legend(frameon=False)
    return save(figure, path)


def learning_rates(path: str | Path, law: LearningRateLaw | None = None, points: Any = None) -> Path:
    """Peak learning rate against active parameters for several E (Appendix "Learning Rate Scaling Fit").

    `points`: optional columns (n_active, experts, learning_rate) of measured optima, drawn over the lines.
    """
    law = law or LearningRateLaw.published()
    figure, ax = new_figure()
    widths = np.geomspace(256, 4096, 60)
    for e in (1, 4, 8, 32):
        rates = law.at(law.counted_parameters(widths), e)
        ax.plot(active_parameters(widths), rates, color=colour_of(e), label=f"E = {e}")
    if points is not None:
        for n, e, rate in zip(*points, strict=True):
            ax.plot(n, rate, "o", color=colour_of(e), markeredgecolor="white", markersize=6)
    ax.set(xscale="log", yscale="log", xlabel="active parameters N_act", ylabel="peak learning rate")
    ax.set_title(f"{law.source} (reading {law.reading!r})", fontsize=10)
    ax.legend(frameon=False)
    return save(figure, path)


def loss_curves(result: FitResult, path: str | Path, experts: float = 1) -> Path:
    """Predicted (dashed) and observed loss for the runs of one E: a curve for each size over tokens (Fig. 5b, c)."""
    runs, law = result.runs, result.law
    own = runs.experts == experts
    if not own.any():
        raise ValueError(f"experts={experts!r}: no runs; there are E in {sorted(set(runs.experts.tolist()))}")
    from matplotlib import colormaps

    figure, ax = new_figure(7.4, 4.6)
    sizes = np.unique(runs.n_active[own])
    for i, n in enumerate(sizes):
        mask = own & (runs.n_active == n)
        colour = colormaps["plasma"](0.88 * i / max(len(sizes) - 1, 1))
        span = np.geomspace(runs.tokens[mask].min() / 1.3, runs.tokens[mask].max() * 1.3, 60)
        ax.plot(span, law.loss(n, span, experts), "--", color=colour, linewidth=1.1)
        ax.plot(runs.tokens[mask], runs.loss[mask], "o", color=colour, markersize=4, label=format_count(n))
    ax.set(xscale="log", xlabel="training tokens D", ylabel="loss (nats per token)", title=f"E = {experts:g}")
    figure.legend(frameon=False, title="N_act", fontsize=8, loc="outside right center")
    return save(figure, path)
