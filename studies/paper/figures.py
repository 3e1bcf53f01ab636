"""The paper's figures from any joint law (Ludziejewski et al. 2025): `python -m studies.paper --figures FOLDER`.

Lines are dashed outside the runs of the law. Bands are 95 % intervals over its draws; a band of a difference compares
the same two models in each draw.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hub.base.units import format_count
from scaling_law import (
    Architecture,
    Budget,
    JointLaw,
    LearningRateLaw,
    Limits,
    memory_optimal,
)
from scaling_law.figures import drawing, isoflop
from scaling_law.figures.drawing import LOSS, colour_of
from scaling_law.planning import optimal_widths
from scaling_law.size import active_parameters, affordable_tokens, width_of_total
from studies.common import LEVEL

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EXPERTS = (1, 2, 4, 8, 16, 32)
SCENARIOS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("model size", {}),
    ("with KV cache of 32k tokens", {"kv_tokens": 32_768}),
    ("with inference on 100B tokens", {"inference_tokens": 1e11}),
)


def draw_all(law: JointLaw, folder: str | Path, suffix: str = "png") -> list[Path]:
    """Draw every figure of the paper that follows from a law into `folder`, and return the files."""
    files = []
    for name, draw in FIGURES.items():
        path = Path(folder) / f"{name}.{suffix}"
        files.append(drawing.save(draw(law), path))
    return files


def _interval(draws: NDArray[np.float64]) -> Any:
    """Return the ends of 95 % intervals of `draws` [draws, points], from draws without NaN."""
    finite = draws[np.isfinite(draws).all(axis=1)]
    return np.quantile(finite, LEVEL, axis=0)


def savings(law: JointLaw, experts: Sequence[int] = EXPERTS[1:]) -> Axes:
    """Draw the FLOPs that compute-optimal MoE models save against dense ones of the same loss (Fig. 2b)."""
    ax = drawing.axes_or_new(None)
    flops = np.geomspace(1e18, 1e24, 60)
    dense = law.compute_optimal(flops, 1.0, force=True)
    reached = law.reach(
        dense.loss,
        experts,
        force=True,
    )
    percent = 100 * (1.0 - reached.flops / flops[:, None])
    dense_inside = law.check(dense.n_active, dense.tokens, 1).inside
    for i, e in enumerate(experts):
        moe = law.compute_optimal(
            flops * (1 - percent[:, i] / 100),
            e,
            force=True,
        )
        inside = dense_inside & law.check(moe.n_active, moe.tokens, e).inside
        interval = None
        if law.draws is not None:
            interval = _interval(100 * _savings_of_draws(law, flops, e))
        drawing.draw_curve(
            ax,
            flops,
            percent[:, i],
            inside,
            e,
            interval,
        )
    ax.set(
        xscale="log",
        xlabel="training FLOPs of the dense model",
        ylabel="FLOPs saved (%)",
        ylim=(0, 100),
    )
    drawing.legend(
        ax,
        ncols=3,
        loc="upper left",
        fontsize=9,
    )
    return ax


def _savings_of_draws(law: JointLaw, flops: NDArray[np.float64], experts: float) -> NDArray[np.float64]:
    """Compute the share of the dense model's FLOPs that are saved under every draw, [draws, budgets].

    L − c of the optima is a power μν / (μ + ν) of the budget.
    """
    assert law.draws is not None
    constants = law.draws[:, -1:]
    _, mu, _, nu = law.chinchilla_of(law.draws.T[..., None], experts)
    dense_loss = law.optimum_draws(flops, 1, force=True).loss
    moe_loss = law.optimum_draws(flops, experts, force=True).loss
    ratio = (dense_loss - constants) / (moe_loss - constants)
    return np.asarray(1.0 - ratio ** ((mu + nu) / (mu * nu)))


def memory_scenarios(law: JointLaw, flops: float = 5e22, kv_tokens: float = 8192) -> NDArray[Any]:
    """Draw the loss under a memory limit at 5e22 FLOPs: parameters, with KV cache, with inference as well (Fig. 3)."""
    axes = drawing.panels_or_new(
        None,
        3,
        13.5,
        4.8,
        sharey=True,
    )
    scenarios = ((0.0, 0.0), (kv_tokens, 0.0), (kv_tokens, 1e11))
    for ax, (cache_tokens, inference_tokens) in zip(axes, scenarios, strict=True):
        memory_optimal(
            law,
            flops,
            EXPERTS,
            cache_tokens,
            inference_tokens,
            ax,
        )
        # One legend below serves all panels.
        ax.get_legend().remove()
        ax.set_ylabel("" if ax is not axes[0] else LOSS)
    drawing.shared_legend(axes[0])
    return axes


def family(law: JointLaw) -> Axes:
    """Draw the loss of the 1.1B family (same total parameters, E = 1, 2, 4) against training FLOPs (Fig. 1b)."""
    ax = drawing.axes_or_new(None)
    flops = np.geomspace(5e18, 1e21, 200)
    for e, width in ((1, 1664), (2, 1408), (4, 1152)):
        n = Architecture(width, e).n_active
        label = f"{drawing.label_of(e)}, d_model {width}, N_act {format_count(n)}"
        tokens = affordable_tokens(flops, n)
        interval = None if law.draws is None else _interval(law.loss_draws(n, tokens, e))
        inside = law.check(n, tokens, e).inside
        drawing.draw_curve(
            ax,
            flops,
            law.loss(n, tokens, e),
            inside,
            e,
            interval,
            label=label,
        )
        optimum = _budget_of_optimum(law, n, e)
        if flops[0] <= optimum <= flops[-1]:
            loss = law.loss(n, affordable_tokens(optimum, n), e)
            ax.plot(
                optimum,
                loss,
                "o",
                color=colour_of(e),
                markersize=5,
            )
    ax.set(
        xscale="log",
        xlabel=drawing.FLOPS,
        ylabel=f"predicted {LOSS}",
    )
    ax.set_title("1.1B total parameters; ● compute-optimal for this size", fontsize=10)
    drawing.legend(ax)
    return ax


def _budget_of_optimum(law: JointLaw, n_active: float, experts: float) -> float:
    """Return the FLOPs for which this size is compute-optimal: the optimal N is a power of the budget."""
    sizes = law.compute_optimal([1e20, 1e22], experts, force=True).n_active
    power = np.log(sizes[1] / sizes[0]) / np.log(100.0)
    return float(1e20 * (n_active / sizes[0]) ** (1.0 / power))


def best_by_budget(law: JointLaw) -> NDArray[Any]:
    """Draw the loss against the dense model, axes [sizes, scenarios], shaded where each E is best (Fig. 4)."""
    sizes = (2e9, 5e9, 10e9)
    _, axes = drawing.new_figure(
        12.5,
        9.4,
        columns=len(SCENARIOS),
        rows=len(sizes),
        sharex=True,
        sharey=True,
    )
    flops = np.geomspace(1e20, 1e25, 100)
    budgets = Budget.each(flops[:, None])
    for row, size in zip(axes, sizes, strict=True):
        dense_width = width_of_total(size, 1, law.vocab_size)
        for ax, (title, fields) in zip(row, SCENARIOS, strict=True):
            limits = Limits.of(law, **fields)
            dense_memory = float(limits.memory_bytes(dense_width, 1))
            optimum = optimal_widths(law, budgets, EXPERTS, replace(limits, memory=dense_memory))
            _draw_differences(ax, law, flops, optimum)
            ax.set_title(f"{format_count(size)} {title}", fontsize=10)
    for ax in axes[-1]:
        ax.set_xlabel("budget (FLOPs)")
    for ax in axes[:, 0]:
        ax.set_ylabel("loss against dense (nats)")
    drawing.shared_legend(axes[0][0], "outside upper center")
    return np.asarray(axes)


def _draw_differences(ax: Axes, law: JointLaw, flops: Any, optimum: Any) -> None:
    """Draw losses less that of the dense model, without models beyond the law's range guard."""
    experts = np.array(EXPERTS, float)
    near = ~law.check(n_active=optimum.n_active, tokens=optimum.tokens, experts=experts).beyond
    losses = np.where(np.isfinite(optimum.loss) & near, optimum.loss, np.nan)
    has_dense = ~np.isnan(losses[:, 0])
    x = flops[has_dense]
    losses = losses[has_dense]
    _shade(ax, x, np.nanargmin(losses, axis=1))
    sizes = optimum.n_active[has_dense]
    tokens = optimum.tokens[has_dense]
    dense = (sizes[:, 0], tokens[:, 0], 1)
    dense_inside = law.check(*dense).inside
    dense_draws = None if law.draws is None else law.loss_draws(*dense)
    for i, e in enumerate(EXPERTS):
        differences = losses[:, i] - losses[:, 0]
        finite = ~np.isnan(differences)
        moe = (sizes[finite, i], tokens[finite, i], e)
        interval = None
        if dense_draws is not None and e > 1 and finite.any():
            interval = _interval(law.loss_draws(*moe) - dense_draws[:, finite])
        inside = dense_inside[finite] & law.check(*moe).inside
        drawing.draw_curve(
            ax,
            x[finite],
            differences[finite],
            inside,
            e,
            interval,
        )
    ax.set(xscale="log", ylim=(-0.12, 0.06))


def _shade(ax: Axes, x: NDArray[np.float64], best: NDArray[np.int64]) -> None:
    """Shade along `x` [points] where each E is best; `best` [points] counts them."""
    edges = [0, *(np.flatnonzero(np.diff(best)) + 1), len(best) - 1]
    for first, last in pairwise(edges):
        ax.axvspan(
            x[first],
            x[last],
            color=colour_of(EXPERTS[best[first]]),
            alpha=0.14,
            linewidth=0,
        )


def matched(law: JointLaw, experts: Sequence[int] = (2, 4, 8)) -> NDArray[Any]:
    """Draw the loss of MoE models matched in FLOPs and total parameters with compute-optimal dense ones (Appendix)."""
    axes = drawing.panels_or_new(
        None,
        2,
        10.5,
        4.2,
    )
    loss_axes, difference_axes = axes
    flops = np.geomspace(1e19, 1e25, 80)
    dense = law.compute_optimal(flops, 1.0, force=True)
    dense_inside = law.check(dense.n_active, dense.tokens, 1).inside
    dense_draws = None if law.draws is None else law.loss_draws(dense.n_active, dense.tokens, 1)
    drawing.draw_curve(
        loss_axes,
        flops,
        dense.loss,
        dense_inside,
        1,
        label="dense, compute-optimal",
    )
    difference_axes.axhline(0.0, color=colour_of(1), linewidth=1)
    for e in experts:
        # The MoE has the total parameters of the dense model, or fewer.
        width = width_of_total(dense.n_active, e, law.vocab_size)
        optimal_n = law.compute_optimal(flops, e, force=True).n_active
        n = np.minimum(active_parameters(width, vocab_size=law.vocab_size), optimal_n)
        tokens = affordable_tokens(flops, n)
        loss = law.loss(n, tokens, e)
        inside = dense_inside & law.check(n, tokens, e).inside
        drawing.draw_curve(
            loss_axes,
            flops,
            loss,
            inside,
            e,
            label=f"E = {e}, same FLOPs and memory",
        )
        interval = None
        if dense_draws is not None:
            draws = law.loss_draws(
                n,
                tokens,
                e,
            )
            interval = _interval(draws - dense_draws)
        drawing.draw_curve(
            difference_axes,
            flops,
            loss - dense.loss,
            inside,
            e,
            interval,
        )
    loss_axes.set_ylabel(LOSS)
    difference_axes.set_ylabel("loss against dense (nats)")
    for ax in axes:
        ax.set(
            xscale="log",
            xlabel=drawing.FLOPS,
        )
        drawing.legend(
            ax,
            fontsize=9,
        )
    return axes


def learning_rates(law: LearningRateLaw) -> Axes:
    """Draw the peak learning rate against active parameters for several E (Appendix "Learning Rate Scaling Fit")."""
    ax = drawing.axes_or_new(None)
    widths = np.geomspace(256, 4096, 60)
    n_active = active_parameters(widths, vocab_size=law.vocab_size)
    for e in (1, 4, 8, 32):
        rates = law.at(law.counted(Limits(vocab_size=law.vocab_size).widths(widths, e)), e)
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
    "figB_learning_rate": lambda law: learning_rates(LearningRateLaw.published()),
}
