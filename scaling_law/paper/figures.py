"""The paper's figures from any joint law (Ludziejewski et al. 2025), beside the plain ones of `figures.law_figures`.

Bands are 95 % intervals over the law's draws; those of a difference compare the same two models in each draw.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hub.base.units import format_count
from scaling_law.figures import drawing
from scaling_law.figures.curves import Region, interval_of, near_the_runs, parts_of
from scaling_law.figures.drawing import LOSS, colour_of
from scaling_law.figures.law_figures import isoflop, memory_optimal, shade
from scaling_law.formulas.learning_rate import LearningRateLaw
from scaling_law.law import JointLaw
from scaling_law.planning.budget import Budget
from scaling_law.planning.inverse import flop_savings
from scaling_law.planning.limits import Limits
from scaling_law.planning.matched import matched_memory
from scaling_law.planning.optimum import WidthOptimum, drawn_optimum, optimal_widths
from scaling_law.planning.question import ModelFields
from scaling_law.size.architecture import Architecture, active_parameters, affordable_tokens, width_of_total
from scaling_law.size.recipe import PAPER

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EXPERTS = PAPER.experts
SCENARIOS: tuple[tuple[str, ModelFields], ...] = (
    ("model size", {}),
    ("with KV cache of 32k tokens", {"kv_tokens": 32_768}),
    ("with inference on 100B tokens", {"inference_tokens": 1e11}),
)


def draw_all(law: JointLaw, folder: str | Path, suffix: str = "png") -> list[Path]:
    """Every figure of the paper that follows from a law, into `folder`; returns the files."""
    return [drawing.save(draw(law), Path(folder) / f"{name}.{suffix}") for name, draw in FIGURES.items()]


def savings(law: JointLaw, experts: Sequence[int] = EXPERTS[1:], ax: Axes | None = None) -> Axes:
    """FLOPs saved by compute-optimal MoE models against dense ones of the same loss (Fig. 2b)."""
    ax = drawing.axes_or_new(ax)
    flops = np.geomspace(1e18, 1e24, 60)
    saved = 100 * flop_savings(law, flops, list(experts), force=True)
    dense = law.compute_optimal(flops, 1.0, force=True)
    dense_inside = law.check(dense.n_active, dense.tokens, 1).inside
    for i, e in enumerate(experts):
        moe = law.compute_optimal(flops * (1 - saved[:, i] / 100), e, force=True)
        inside = dense_inside & law.check(moe.n_active, moe.tokens, e).inside
        interval = None if law.draws is None else interval_of(100 * _saved_by_draws(law, flops, e))
        drawing.draw_curve(ax, flops, saved[:, i], inside, e, interval)
    ax.set(xscale="log", xlabel="training FLOPs of the dense model", ylabel="FLOPs saved (%)", ylim=(0, 100))
    drawing.legend(ax, ncols=3, loc="upper left", fontsize=9)
    return ax


def _saved_by_draws(law: JointLaw, flops: NDArray[np.float64], experts: float) -> NDArray[np.float64]:
    """`flop_savings` for every draw, [draws, budgets]: L − c of the optima is a power μν / (μ + ν) of the budget."""
    assert law.draws is not None
    _, mu, _, nu = law.chinchilla_of(law.draws.T[..., None], experts)
    dense, moe = (drawn_optimum(law, flops, e)[2] - law.draws[:, -1:] for e in (1, experts))
    return np.asarray(1.0 - (dense / moe) ** ((mu + nu) / (mu * nu)))


def memory_scenarios(law: JointLaw, flops: float = 5e22, kv_tokens: float = 8192, axes: Any = None) -> NDArray[Any]:
    """Loss under a memory limit at 5e22 FLOPs: parameters, with KV cache, with inference as well (Fig. 3)."""
    axes = drawing.panels_or_new(axes, 3, 13.5, 4.8, sharey=True)
    for ax, (cache, served) in zip(axes, ((0.0, 0.0), (kv_tokens, 0.0), (kv_tokens, 1e11)), strict=True):
        legend = memory_optimal(law, flops, EXPERTS, cache, served, ax).get_legend()
        legend.remove()  # type: ignore[union-attr]  # one below serves all panels
        ax.set_ylabel("" if ax is not axes[0] else LOSS)
    drawing.shared_legend(axes[0])
    return axes


def family(law: JointLaw, ax: Axes | None = None) -> Axes:
    """Predicted loss of the 1.1B family (same total parameters, E = 1, 2, 4) against training FLOPs (Fig. 1b)."""
    ax = drawing.axes_or_new(ax)
    flops = np.geomspace(5e18, 1e21, 200)
    for e, width in ((1, 1664), (2, 1408), (4, 1152)):
        n = Architecture(width, e).n_active
        label = f"{drawing.label_of(e)}, d_model {width}, N_act {format_count(n)}"
        drawing.draw_loss(ax, law, flops, n, affordable_tokens(flops, n), e, label=label)
        at = law.compute_optimal([1e20, 1e22], e, force=True).n_active
        power = np.log(at[1] / at[0]) / np.log(100.0)  # N_opt grows as a power of the budget
        optimum = 1e20 * (n / at[0]) ** (1.0 / power)
        if flops[0] <= optimum <= flops[-1]:
            ax.plot(optimum, law.loss(n, affordable_tokens(optimum, n), e), "o", color=colour_of(e), markersize=5)
    ax.set(xscale="log", xlabel=drawing.FLOPS, ylabel=f"predicted {LOSS}")
    ax.set_title("1.1B total parameters; ● compute-optimal for this size", fontsize=10)
    drawing.legend(ax)
    return ax


def best_by_budget(law: JointLaw) -> NDArray[Any]:
    """Loss against the dense model, axes [sizes, scenarios], shaded where each E is best (Fig. 4)."""
    sizes = (2e9, 5e9, 10e9)
    axes = drawing.new_figure(12.5, 9.4, columns=len(SCENARIOS), rows=len(sizes), sharex=True, sharey=True)[1]
    flops = np.geomspace(1e20, 1e25, 100)
    for row, size in zip(axes, sizes, strict=True):
        for ax, (title, extra) in zip(row, SCENARIOS, strict=True):
            dense, width = Limits.of(law, **extra), width_of_total(size, 1, law.vocab_size)
            # The memory of a dense model of this size.
            within = replace(dense, memory=float(dense.memory_bytes(width, 1)))
            _draw_differences(ax, law, flops, optimal_widths(law, Budget.each(flops[:, None]), EXPERTS, within))
            ax.set_title(f"{format_count(size)} {title}", fontsize=10)
    for ax in axes[-1]:
        ax.set_xlabel("budget (FLOPs)")
    for ax in axes[:, 0]:
        ax.set_ylabel("loss against dense (nats)")
    drawing.shared_legend(axes[0][0], "outside upper center")
    return np.asarray(axes)


def _draw_differences(ax: Axes, law: JointLaw, flops: Any, optimum: WidthOptimum) -> None:
    """Losses less that of the dense model, without what lies beyond the law's range guard."""
    at = {"n_active": optimum.n_active, "tokens": optimum.tokens, "experts": np.array(EXPERTS, float)}
    near = near_the_runs(law, **at)
    losses = np.where(np.isfinite(optimum.loss) & near, optimum.loss, np.nan)
    kept = ~np.isnan(losses[:, 0])
    x, losses, n, tokens = (v[kept] for v in (flops, losses, optimum.n_active, optimum.tokens))
    regions = [Region(EXPERTS[i], part) for part, i in parts_of(np.nanargmin(losses, axis=1))]
    shade(ax, x, regions, alpha=0.14)
    dense_inside = law.check(n[:, 0], tokens[:, 0], 1).inside
    of_dense = None if law.draws is None else law.loss_draws(n[:, 0], tokens[:, 0], 1)
    for i, e in enumerate(EXPERTS):
        finite = ~np.isnan(losses[:, i])
        inside = dense_inside & law.check(n[:, i], tokens[:, i], e).inside
        drawing.draw_curve(ax, x, losses[:, i] - losses[:, 0], inside, e)
        if of_dense is not None and e > 1 and finite.any():
            draws = law.loss_draws(n[finite, i], tokens[finite, i], e) - of_dense[:, finite]
            drawing.draw_band(ax, x[finite], interval_of(draws), e)
    ax.set(xscale="log", ylim=(-0.12, 0.06))


def matched(law: JointLaw, experts: Sequence[int] = (2, 4, 8), axes: Any = None) -> NDArray[Any]:
    """Loss of MoE models matched in FLOPs and total parameters with compute-optimal dense ones (Appendix)."""
    left, right = axes = drawing.panels_or_new(axes, 2, 10.5, 4.2)
    flops = np.geomspace(1e19, 1e25, 80)
    dense = law.compute_optimal(flops, 1.0, force=True)
    matches = matched_memory(law, flops, list(experts), force=True)
    dense_inside = law.check(dense.n_active, dense.tokens, 1).inside
    of_dense = None if law.draws is None else law.loss_draws(dense.n_active, dense.tokens, 1)
    drawing.draw_curve(left, flops, dense.loss, dense_inside, 1, label="dense, compute-optimal")
    right.axhline(0.0, color=colour_of(1), linewidth=1)
    for i, e in enumerate(experts):
        n = np.minimum(matches.n_active[:, i], law.compute_optimal(flops, e, force=True).n_active)
        tokens = affordable_tokens(flops, n)
        inside = dense_inside & law.check(n, tokens, e).inside
        drawing.draw_curve(left, flops, matches.loss[:, i], inside, e, label=f"E = {e}, same FLOPs and memory")
        interval = None if of_dense is None else interval_of(law.loss_draws(n, tokens, e) - of_dense)
        drawing.draw_curve(right, flops, matches.loss[:, i] - dense.loss, inside, e, interval)
    for ax, label in ((left, LOSS), (right, "loss against dense (nats)")):
        ax.set(xscale="log", xlabel=drawing.FLOPS, ylabel=label)
        drawing.legend(ax, fontsize=9)
    return axes


def learning_rates(law: LearningRateLaw | None = None, ax: Axes | None = None) -> Axes:
    """Peak learning rate against active parameters for several E (Appendix "Learning Rate Scaling Fit")."""
    law = law or LearningRateLaw.published()
    ax = drawing.axes_or_new(ax)
    widths = np.geomspace(256, 4096, 60)
    n_active = active_parameters(widths, vocab_size=law.vocab_size)
    for e in (1, 4, 8, 32):
        rates = law.at(law.counted_parameters(widths), e)
        ax.plot(n_active, rates, color=colour_of(e), label=drawing.label_of(e))
    drawing.log_axis(ax, drawing.ACTIVE)
    drawing.log_axis(ax, "peak learning rate", "y")
    ax.set_title(f"{law.source} (reading {law.reading!r})", fontsize=10)
    drawing.legend(ax)
    return ax


FIGURES: dict[str, Callable[[JointLaw], Any]] = {
    "fig1a_memory_optimal": memory_optimal,
    "fig1b_family_1b": family,
    "fig2a_isoflop": isoflop,
    "fig2b_flop_savings": savings,
    "fig3_memory_optimal_5e22": memory_scenarios,
    "fig4_optimal_experts": best_by_budget,
    "figA_matched_models": matched,
    "figB_learning_rate": lambda law: learning_rates(),
}
