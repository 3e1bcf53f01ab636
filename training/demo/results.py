"""Tables and figures of the demo: losses, gaps between MoE and dense models, and crossovers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hub import RunRecord
from hub.base.tables import Table
from hub.base.units import format_count, format_decimal
from scaling_law import JointLaw, Law
from scaling_law.figures import drawing
from scaling_law.figures.curves import interval_of
from scaling_law.planning.break_even import TOKENS_RANGE, find_crossing


def losses_by_size(records: Sequence[RunRecord]) -> dict[tuple[int, int], dict[int, RunRecord]]:
    """Group the records by (d_model, E), and by their configured tokens."""
    by_size: dict[tuple[int, int], dict[int, RunRecord]] = {}
    for record in sorted(records, key=lambda record: (record.d_model, record.experts)):
        runs = by_size.setdefault((record.d_model, record.experts), {})
        runs[record.schedule.horizon_tokens] = record
    return by_size


def losses_table(records: Sequence[RunRecord]) -> Table:
    """Tabulate held-out losses: a row per size, a column per token count."""
    tokens = sorted({record.schedule.horizon_tokens for record in records})
    rows = []
    for (d_model, experts), runs in losses_by_size(records).items():
        last = runs[max(runs)]
        sizes = [d_model, experts, format_count(last.n_active), format_count(last.n_total)]
        losses = [format_decimal(runs[count].eval_loss, 3) if count in runs else "" for count in tokens]
        load = f"{last.expert_load_max_over_mean:.2f}" if experts > 1 else ""
        rows.append([*sizes, *losses, load])
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
        """Compute the gaps of every size with experts."""
        sizes = losses_by_size(records)
        all_gaps = []
        for (d_model, experts), runs in sizes.items():
            if experts == 1:
                continue
            dense_runs = sizes.get((d_model, 1), {})
            gaps = {}
            for tokens in sorted({*runs} & {*dense_runs}):
                loss = runs[tokens].eval_loss
                dense_loss = dense_runs[tokens].eval_loss
                if loss is not None and dense_loss is not None:
                    gaps[tokens] = loss - dense_loss
            if gaps:
                all_gaps.append(cls(d_model, runs[min(gaps)].n_active, experts, gaps))
        return all_gaps

    @property
    def crossing(self) -> str:
        """Crossover token count D*, interpolated in the logarithm of tokens."""
        tokens = find_crossing(np.log([*self.gaps]), np.array([*self.gaps.values()]))
        return format_crossing(float(tokens), (min(self.gaps), max(self.gaps)))


def format_crossing(tokens: float, between: tuple[float, float]) -> str:
    """Format a crossing; `find_crossing` gives 0 and infinity for a crossing that is not `between` these tokens."""
    if 0 < tokens < np.inf:
        return format_count(tokens)
    return f"after {format_count(between[1])}" if tokens else f"before {format_count(between[0])}"


def crossings_table(records: Sequence[RunRecord], law: Law) -> Table:
    """Tabulate crossover token counts: measured, by the fitted law, and by the published law."""
    all_gaps = Gaps.of(records)
    span = (
        float(min(min(gaps.gaps) for gaps in all_gaps)),
        float(max(max(gaps.gaps) for gaps in all_gaps)),
    )
    rows = []
    for gaps in all_gaps:
        by_law = law.break_even(gaps.n_active, gaps.experts, between=span, force=True)
        by_published = JointLaw.published().break_even(gaps.n_active, gaps.experts, force=True)
        low = format_crossing(float(by_law.tokens_low), span)
        high = format_crossing(float(by_law.tokens_high), span)
        rows.append(
            [
                f"d_model {gaps.d_model}, E = {gaps.experts}",
                gaps.crossing,
                format_crossing(float(by_law.tokens), span),
                f"{low} to {high}",
                format_crossing(float(by_published.tokens), TOKENS_RANGE),
            ]
        )
    header = ["", "measured", "law fitted", "95 %", "as published"]
    note = "One seed each: losses of such small models scatter by 0.02 nats, crossovers by a factor of two."
    return Table(header, rows, title="Crossover: tokens at which an MoE overtakes the dense model", notes=[note])


def gap_curves(law: Law, records: Sequence[RunRecord]) -> Any:
    """Draw MoE minus dense losses against tokens, measured and by the law: axes [sizes]."""
    all_gaps = Gaps.of(records)
    sizes = sorted({gaps.d_model for gaps in all_gaps})
    axes = drawing.panels_or_new(None, len(sizes), 3.2 * len(sizes), 3.8, sharey=True)
    panels = dict(zip(sizes, axes, strict=True))
    for gaps in all_gaps:
        ax = panels[gaps.d_model]
        experts = gaps.experts
        tokens = np.geomspace(min(gaps.gaps), max(gaps.gaps), 100)
        curve = law.loss(gaps.n_active, tokens, experts) - law.loss(gaps.n_active, tokens, 1)
        interval = None
        if law.draws is not None:
            draws = law.loss_draws(gaps.n_active, tokens, experts)
            interval = interval_of(draws - law.loss_draws(gaps.n_active, tokens, 1))
        is_inside = law.check(gaps.n_active, tokens, experts).inside
        drawing.draw_curve(ax, tokens, curve, is_inside, experts, interval)
        ax.plot([*gaps.gaps], [*gaps.gaps.values()], "o", color=drawing.colour_of(experts))
    for size, ax in panels.items():
        ax.axhline(0.0, color=drawing.DARK, linewidth=0.9)
        ax.set(title=f"d_model {size}")
        drawing.log_axis(ax, drawing.TOKENS)
    axes[0].set_ylabel("loss minus the dense model's")
    drawing.shared_legend(axes[0])
    return axes
