"""Tables and figures of the demo: losses, gaps between MoE and dense models, crossovers, and the run left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hub import RunRecord
from hub.base.tables import Table
from hub.base.units import format_bytes, format_count, format_decimal, format_flops
from scaling_law import FitResult, JointLaw, Law
from scaling_law.answer.columns import tabulate
from scaling_law.figures import drawing
from scaling_law.figures.curves import interval_of
from scaling_law.planning.break_even import TOKENS_RANGE, find_crossing
from scaling_law.planning.optimal_table import OptimalTable
from training.demo.left_out import LeftOut, misses_in_words
from training.sweep.plan import SweepPlan

# Columns of the optimum: those of `OptimalRow` that a first look needs.
OPTIMUM_FIELDS = ("experts", "d_model", "n_active", "n_total", "tokens", "loss", "loss_interval", "learning_rate")


def sweep_table(plan: SweepPlan) -> Table:
    """Tabulate the runs of a sweep: size, FLOPs, disk and state."""
    rows = []
    for run in plan.runs:
        rows.append(
            [
                run.name,
                run.experts,
                format_count(run.n_active),
                format_count(run.n_total),
                format_flops(run.training_flops),
                format_bytes(run.disk_bytes),
                run.state,
            ]
        )
    flops = format_flops(plan.total("training_flops"))
    disk = format_bytes(plan.total("disk_bytes"))
    total = ["total", "", "", "", flops, disk, ""]
    horizons = [run.branches[-1].target_tokens for run in plan.runs]
    longest = format_count(max(horizons))
    return Table(
        ["run", "E", "N_act", "N_total", "FLOPs", "disk", "state"],
        rows,
        title=f"Sweep {plan.sweep}: {len(plan.runs)} trunks with decay branches, the last after {longest} tokens",
        total=total,
        notes=[f"Shared trunks save {plan.saved:.0%} of the FLOPs of separate runs."],
    )


def optimum_table(answer: OptimalTable) -> Table:
    """Tabulate the best model of each E: the columns that fit a page."""
    rows = []
    for row in answer.to_rows():
        rows.append({name: row[name] for name in OPTIMUM_FIELDS})
    return tabulate(rows, title=f"{format_flops(answer.flops)} FLOPs: {answer.verdict}")


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
    header = ["d_model", "E", "N_act", "N_total", *map(format_count, tokens), "load"]
    note = "Load: tokens of the busiest expert over those of the average one, at the end of the longest run."
    title = "Held-out loss in nats per byte, after so many tokens"
    return Table(header, rows, title=title, keys=("d_model", "E"), notes=[note])


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


def format_interval(low: float, high: float, between: tuple[float, float]) -> str:
    """Format the interval of a crossing that is sought `between` these tokens."""
    if low == 0 and high == np.inf:
        return "anywhere"
    return f"{format_crossing(low, between)} to {format_crossing(high, between)}"


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
        rows.append(
            [
                f"d_model {gaps.d_model}, E = {gaps.experts}",
                gaps.crossing,
                format_crossing(float(by_law.tokens), span),
                format_interval(float(by_law.tokens_low), float(by_law.tokens_high), span),
                format_crossing(float(by_published.tokens), TOKENS_RANGE),
            ]
        )
    header = ["", "measured", "law fitted", "95 %", "as published"]
    note = "One seed each. Over four seeds, losses of such models scatter by 0.03 nats, crossovers by a factor of 1.5."
    return Table(header, rows, title="Crossover: tokens at which an MoE overtakes the dense model", notes=[note])


def coefficients_table(result: FitResult) -> Table:
    """Tabulate the coefficients that were fitted, with their standard errors, beside those of the published law."""
    published = JointLaw.published().coefficients
    status = result.status
    open_names = vague_coefficients(result)
    rows = []
    for name in result.fitted:
        error = "at a bound" if name in status.bounds_hit else status.error_in_words(name)
        origin = "left open" if name in open_names else "determined"
        value = f"{result.law.coefficients[name]:.3g}"
        rows.append([name, value, error, f"{published[name]:.3g}", origin])
    fixed = [name for name in published if name not in result.fitted]
    notes = []
    if fixed:
        names = ", ".join(fixed)
        notes.append(f"Fixed as published, since two numbers of experts cannot identify them: {names}.")
    return Table(
        ["", "fitted", "standard error", "published", "by these runs"],
        rows,
        title="Coefficients of L = a·Ê^δ·N^(α + γ ln Ê) + b·Ê^ω·D^(β + ζ ln Ê) + c",
        notes=notes,
    )


def vague_coefficients(result: FitResult) -> set[str]:
    """Return the fitted coefficients that the runs leave open."""
    return {*result.status.open_coefficients}.intersection(result.fitted)


def gains_table(records: Sequence[RunRecord], law: Law) -> Table:
    """Tabulate MoE minus dense losses after the most tokens that both have: measured, and by the fitted law."""
    rows = []
    for gaps in Gaps.of(records):
        tokens = max(gaps.gaps)
        by_law = float(gap_of_law(law, gaps, tokens))
        rows.append(
            [
                f"d_model {gaps.d_model}, E = {gaps.experts}",
                format_count(tokens),
                f"{gaps.gaps[tokens]:+.3f}",
                f"{by_law:+.3f}",
                gain_interval(law, gaps, tokens),
            ]
        )
    header = ["", "tokens", "measured", "law fitted", "95 %"]
    return Table(header, rows, title="Loss of an MoE minus that of the dense model of equal N_act, nats per byte")


def gap_of_law(law: Law, gaps: Gaps, tokens: Any) -> Any:
    """Compute the law's loss of the MoE minus that of its dense twin."""
    return law.loss(gaps.n_active, tokens, gaps.experts) - law.loss(gaps.n_active, tokens, 1)


def gap_draws(law: Law, gaps: Gaps, tokens: Any) -> Any:
    """Compute the same for each draw of the law."""
    draws = law.loss_draws(gaps.n_active, tokens, gaps.experts)
    return draws - law.loss_draws(gaps.n_active, tokens, 1)


def gain_interval(law: Law, gaps: Gaps, tokens: int) -> str:
    """Format the law's 95 % interval of a gap; empty for a law without draws."""
    if law.draws is None:
        return ""
    interval = interval_of(gap_draws(law, gaps, np.array([float(tokens)])))
    if interval is None:
        return ""
    low, high = interval
    return f"{low[0]:+.3f} to {high[0]:+.3f}"


def conclude(
    records: Sequence[RunRecord],
    result: FitResult,
    left_out: Sequence[LeftOut],
    crossings: Table,
    checked: str,
) -> str:
    """Say what the runs show, and what they do not; `checked` says what others of the same sweep showed."""
    all_gaps = Gaps.of(records)
    ahead = sum(gaps.gaps[max(gaps.gaps)] < 0 for gaps in all_gaps)
    count = len(result.fitted)
    determined_count = count - len(vague_coefficients(result))
    source = "; the published law as a prior gives the others" if result.status.prior else ""
    errors = [f"With {predictions.unit} left out in turn, {misses_in_words(predictions)}." for predictions in left_out]
    n_open = sum("anywhere" in row for row in crossings.rows)
    place = ""
    if n_open:
        place = f"where experts begin to pay, since {n_open} of {len(all_gaps)} intervals say anywhere; "
    return (
        f"Shown: every step of the loop runs on this machine, and {ahead} of {len(all_gaps)} MoE models end below "
        f"their dense twin. The runs determine {determined_count} of {count} fitted coefficients{source}. "
        f"{' '.join([*errors, checked]).rstrip()}\n"
        f"Not shown: {place}that the law holds for larger models, for other numbers of experts, or beyond the scatter "
        "of seeds, of which there is one for each size. A sweep that measures crossovers: docs/studies/crossing.md."
    )


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
        curve = gap_of_law(law, gaps, tokens)
        interval = None
        if law.draws is not None:
            interval = interval_of(gap_draws(law, gaps, tokens))
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
