"""Tables and figures of the demo: losses, gaps between MoE and dense models, and crossovers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hub import RunRecord
from hub.base.tables import Table
from hub.base.units import format_count, format_decimal
from scaling_law import JointLaw
from scaling_law.figures import drawing
from scaling_law.figures.curves import interval_of
from scaling_law.planning.break_even import TOKENS_RANGE, find_crossing


def losses_by_size(records: Sequence[RunRecord]) -> dict[tuple[int, int], dict[int, RunRecord]]:
    """The records by (d_model, E), and by the tokens asked for."""
    sizes = sorted({(record.d_model, record.experts) for record in records})
    by_size: dict[tuple[int, int], dict[int, RunRecord]] = {size: {} for size in sizes}
    for record in records:
        by_size[record.d_model, record.experts][record.schedule.horizon_tokens] = record
    return by_size


def losses_table(records: Sequence[RunRecord]) -> Table:
    """Held-out losses: a row per size, a column per token count."""
    tokens = sorted({record.schedule.horizon_tokens for record in records})
    rows = []
    for (d_model, experts), of_size in losses_by_size(records).items():
        last = of_size[max(of_size)]
        losses = [format_decimal(of_size[count].eval_loss, 3) if count in of_size else "" for count in tokens]
        load = f"{last.expert_load_max_over_mean:.2f}" if experts > 1 else ""
        rows.append([d_model, experts, format_count(last.n_active), format_count(last.n_total), *losses, load])
    header = ["d_model", "E", "N_act", "N_total", *map(format_count, tokens), "load max/mean"]
    return Table(header, rows, title="Held-out loss, nats per byte", keys=("d_model", "E"))


@dataclass(frozen=True)
class Gaps:
    """Losses of E experts minus those of the dense model of equal N_act, by tokens; nats per byte."""

    d_model: int
    n_active: int
    experts: int
    gaps: dict[int, float]

    @classmethod
    def of(cls, records: Sequence[RunRecord]) -> list[Gaps]:
        """The gaps of every size with experts."""
        losses = losses_by_size(records)
        all_gaps = []
        for (d_model, experts), runs in losses.items():
            dense = losses.get((d_model, 1), {})
            if experts > 1 and (common := sorted({*runs} & {*dense})):
                gaps = {count: runs[count].eval_loss - dense[count].eval_loss for count in common}
                all_gaps.append(cls(d_model, runs[common[0]].n_active, experts, gaps))
        return all_gaps

    @property
    def crossing(self) -> str:
        """Crossover token count D*, interpolated in the logarithm of tokens."""
        tokens = find_crossing(np.log([*self.gaps]), np.array([*self.gaps.values()]))
        return format_crossing(float(tokens), (min(self.gaps), max(self.gaps)))


def format_crossing(tokens: float, between: tuple[float, float]) -> str:
    """A crossing for a reader; `find_crossing` gives 0 and infinity for one that is not `between` these tokens."""
    if 0 < tokens < np.inf:
        return format_count(tokens)
    return f"after {format_count(between[1])}" if tokens else f"before {format_count(between[0])}"


def crossings_table(records: Sequence[RunRecord], law: JointLaw) -> Table:
    """Crossover token counts: measured, by the fitted law, and by the published one."""
    all_gaps = Gaps.of(records)
    counts = [count for gaps in all_gaps for count in gaps.gaps]
    span = float(min(counts)), float(max(counts))
    rows = []
    for gaps in all_gaps:
        at = gaps.n_active, gaps.experts
        ours = law.break_even(*at, between=span, force=True)
        theirs = JointLaw.published().break_even(*at, force=True)
        low, middle, high = (
            format_crossing(float(tokens), span) for tokens in (ours.tokens_low, ours.tokens, ours.tokens_high)
        )
        published = format_crossing(float(theirs.tokens), TOKENS_RANGE)
        size = f"d_model {gaps.d_model}, E = {gaps.experts}"
        rows.append([size, gaps.crossing, middle, f"{low} to {high}", published])
    header = ["", "measured", "law fitted", "95 %", "as published"]
    note = "One seed each: losses of such small models scatter by 0.02 nats, crossovers by a factor of two."
    return Table(header, rows, title="Crossover: tokens at which an MoE overtakes the dense model", notes=[note])


def gap_curves(law: JointLaw, records: Sequence[RunRecord]) -> Any:
    """MoE minus dense losses against tokens, measured and by the law: axes [sizes]."""
    all_gaps = Gaps.of(records)
    sizes = sorted({gaps.d_model for gaps in all_gaps})
    axes = drawing.panels_or_new(None, len(sizes), 3.2 * len(sizes), 3.8, sharey=True)
    panels = dict(zip(sizes, axes, strict=True))
    for gaps in all_gaps:
        ax, e, tokens = panels[gaps.d_model], gaps.experts, [*gaps.gaps]
        span = np.geomspace(min(tokens), max(tokens), 100)
        curve = law.loss(gaps.n_active, span, e) - law.loss(gaps.n_active, span, 1)
        interval = None
        if law.draws is not None:
            interval = interval_of(law.loss_draws(gaps.n_active, span, e) - law.loss_draws(gaps.n_active, span, 1))
        drawing.draw_curve(ax, span, curve, law.check(gaps.n_active, span, e).inside, e, interval)
        ax.plot(tokens, [*gaps.gaps.values()], "o", color=drawing.colour_of(e))
    for size, ax in panels.items():
        ax.axhline(0.0, color=drawing.DARK, linewidth=0.9)
        ax.set(title=f"d_model {size}")
        drawing.log_axis(ax, drawing.TOKENS)
    axes[0].set_ylabel("loss minus the dense model's")
    drawing.shared_legend(axes[0])
    return axes
