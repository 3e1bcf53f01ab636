"""docs/studies/hours.md: predicted against published times of public runs, and what they say of 72 hours on H100s."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from hub.base.units import format_count
from scaling_law import JointLaw
from scaling_law.figures import drawing
from scaling_law.machine import GPUS as SHEETS
from scaling_law.machine.efficiency import PARAMETERS
from scaling_law.machine.efficiency import write as write_rates
from studies.common import FloatArray, Part, rms, write_page
from studies.hours.fit import LAYOUT, efficiency_of, fitted, left_out, misses, spreads
from studies.hours.runs import BATCH_UNKNOWN, Timed, derive, read, seconds

RUNS = Path(__file__).with_name("runs.csv")
GOALS = {  # group → rms of ln(predicted / published) that was wanted, labs left out
    "dense, steady state": 0.20,
    "MoE, steady state": 0.35,
    "dense, whole runs": 0.30,
    "MoE, whole runs": 0.40,
}
LEVEL = 1.645  # of 90 % intervals
HOURS, GPUS, GPU = 72, (8, 64), "h100"
COLOURS = {"dense": "#0072B2", "MoE": "#D55E00"}


@dataclass(frozen=True)
class Results:
    """What the page shows, computed when it is asked for."""

    rows: Sequence[Timed]

    @cached_property
    def parameters(self) -> FloatArray:
        return fitted(self.rows)[0]

    @cached_property
    def misses(self) -> tuple[FloatArray, FloatArray]:
        """ln(predicted / published) of each row by the fit to other labs, and the standard deviation foreseen."""
        return left_out(self.rows)

    @cached_property
    def groups(self) -> dict[str, Any]:
        """Group → mask of the rows."""
        names = np.array([row.group for row in self.rows])
        return {name: names == name for name in (*GOALS, *sorted({*names} - {*GOALS}))}


def write(page: Path) -> list[Path]:
    """Replace the blocks of the Markdown file `page`, its table and its figure; returns what was written."""
    return write_page(page, Results(read(RUNS)), BLOCKS, {"hours": every_row}, {"hours": predicted_and_published})


def take(tables: Sequence[Path]) -> list[Path]:
    """Derive the runs from a public table, and the rates that the library ships from them."""
    (table,) = tables
    derive(table, RUNS)
    return [RUNS, write_rates(efficiency_of(read(RUNS)))]


def errors(r: Results) -> Iterator[Part]:
    yield "rows", "n", "labs", "rms", "wanted", "", "mean", "90 % interval holds"
    (error, width), every = r.misses, r.groups.items()
    for group, mask in every:
        off, goal = error[mask], GOALS.get(group)
        met = "" if goal is None else "met" if rms(off) <= goal else "missed"
        held = np.mean(np.abs(off) <= LEVEL * width[mask])
        labs = len({row.lab for row, chosen in zip(r.rows, mask, strict=True) if chosen})
        wanted = "" if goal is None else f"{goal:.2f}"
        yield group, len(off), labs, f"{rms(off):.2f}", wanted, met, f"{off.mean():+.2f}", f"{held:.0%}"
    large = np.any([r.groups[group] for group in GOALS], axis=0)
    held = np.mean(np.abs(error[large]) <= LEVEL * width[large])
    rest = error[r.groups["MoE, whole runs"] & np.array([row.lab != "DeepSeek" for row in r.rows])]
    yield (
        f"ln(predicted / published). From 0.5B parameters on, 90 % intervals hold {held:.0%} of {large.sum()} rows. "
        f"Whole runs of MoE without DeepSeek's: rms {rms(rest):.2f}, mean {rest.mean():+.2f}."
    )


def searched(r: Results) -> Iterator[Part]:
    """Rates alone beside a layout that is searched where none is published, by the batch of rows that publish none."""
    yield "layout", *(f"{group}, rms (mean), 90 % holds" for group in GOALS)
    for batch in (None, 1e6, 2e6, BATCH_UNKNOWN, 16e6):
        error, width = r.misses if batch == BATCH_UNKNOWN else left_out(r.rows, batch)
        held = np.abs(error) <= LEVEL * width
        name = "rates alone" if batch is None else f"searched, batches of {format_count(batch)} tokens where unknown"
        of_groups = ((error[m], held[m]) for m in (r.groups[group] for group in GOALS))
        yield name, *(f"{rms(e):.2f} ({e.mean():+.2f}), {h.mean():.0%}" for e, h in of_groups)


def layouts(r: Results) -> Iterator[Part]:
    """What parts of the published layouts, counted in the seconds, do to the errors."""
    yield "counted", *(f"{group}, rms (mean)" for group in GOALS)
    said = {"recomputation": "a third more FLOPs where activations are recomputed", "bubble": "bubble of pipelines"}
    for counted in ((), *((name,) for name in LAYOUT), LAYOUT):
        error = r.misses[0] if not counted else misses(r.rows, counted)[0]
        name = "all of these" if counted == LAYOUT else said.get(counted[0], counted[0]) if counted else "none"
        yield name, *(f"{rms(error[r.groups[g]]):.2f} ({error[r.groups[g]].mean():+.2f})" for g in GOALS)


def rates_found(r: Results) -> Iterator[Part]:
    values = dict(zip(PARAMETERS, r.parameters, strict=True))
    flops, routed, activations, routing, fp8, fp4, forced = np.exp(r.parameters[:7])
    yield "seconds of", "rate"
    yield "FLOPs", f"{flops:.2f} / peak, an MFU of {1 / flops:.0%} of products alone"
    yield "FLOPs of models with experts, besides", f"{routed:.2f} / peak; {forced:.2f} times that if balanced by force"
    yield "FLOPs in FP8, in FP4", f"{fp8:.2f} and {fp4:.2f} times those in bf16"
    yield "elements between operations (tokens × blocks × d_model)", f"{activations:.0f} bytes each, by the bandwidth"
    yield "elements sent to experts", f"{routing:.0f} bytes each, by the bandwidth"
    yield "a step on n nodes", f"n^{values['growth']:.3f}"
    yield "a whole run on n nodes, besides", f"n^{values['overhead']:.3f}"
    every, activations, added, small, whole = spreads(r.rows)
    yield "between labs (sd of ln): all of a step, and of a whole run besides", f"{every:.2f}, {whole:.2f}"
    yield "between labs, besides: activations, what experts add", f"{activations:.2f}, {added:.2f}"
    yield "between labs, besides: models below 0.5B, for each factor of e", f"{small:.2f}"


def flagship(r: Results) -> Iterator[Part]:
    """The best model of each E in the hours, with what limits a step of it."""
    head = "GPUs", "E", "d_model", "N_act", "tokens", "loss (95 %)", "", "MFU", "limited by", "train.py"
    yield *head, "Megatron-like"
    for gpus in GPUS:
        table = JointLaw.published().optimal(hours=HOURS, gpus=gpus, gpu=GPU, integral=True)
        tied, cluster = table.comparison.tied if table.comparison else (), table.budget.cluster
        assert cluster is not None
        assert cluster.elsewhere is not None  # of step times that are estimated
        for row in table:
            assert row.architecture is not None  # integral rows of a law with draws
            assert row.loss_interval is not None
            placed, other = cluster.place(row.architecture), cluster.elsewhere.place(row.architecture)
            batch = max(cluster.batches) * (length := cluster.ramp.sequence_length)
            ideal = row.architecture.training_flops(batch, context=length) / (gpus * SHEETS[GPU.upper()].peak_flops)
            assert placed is not None
            assert other is not None
            loss = "{:.3f} ({:.3f} to {:.3f})".format(row.loss, *row.loss_interval)
            said = "best" if row is table.best else "tie" if row.experts in tied else ""
            sizes = f"{row.experts:g}", f"{row.d_model:g}", format_count(row.n_active), format_count(row.tokens)
            ways = f"{other.ways}, MFU {ideal / other.step_seconds:.0%}" if other.faster_than(placed) else ""
            mfu = f"{ideal / placed.step_seconds:.0%}"
            yield gpus, *sizes, loss, said, mfu, placed.bottleneck, placed.ways, ways


def every_row(r: Results) -> Iterator[tuple[object, ...]]:
    yield "name", "lab", "group", "gpu", "gpus", "precision", "tokens_per_second", "predicted_over_published", "source"
    for row, error in zip(r.rows, r.misses[0], strict=True):
        about = row.name, row.lab, row.group, row.gpu, row.gpus, row.precision, row.tokens_per_second
        yield *about, f"{np.exp(error):.3f}", row.source


def predicted_and_published(r: Results, axes: Any = None) -> Any:
    """Tokens/s per GPU predicted by the other labs' runs against those published; a panel for each kind of number."""
    axes = drawing.panels_or_new(axes, 2, 9.6, 4.8, sharex=True, sharey=True)
    speed, predicted = 1.0 / seconds(r.rows), np.exp(-r.misses[0]) / seconds(r.rows)
    for ax, whole in zip(axes, ("steady state", "whole runs"), strict=True):
        for kind, colour in COLOURS.items():
            named = np.array([row.group.startswith(kind) and row.group.endswith(whole) for row in r.rows])
            ax.plot(speed[named], predicted[named], "o", color=colour, markersize=4, alpha=0.7, label=kind)
        ends = np.array([speed.min() / 1.5, speed.max() * 1.5])
        ax.plot(ends, ends, color="0.4", linewidth=0.9, zorder=0)
        ax.set_title(whole, fontsize=10)
        drawing.log_axis(ax, "published tokens/s of a GPU")
        drawing.log_axis(ax, "", "y")
        ax.set(xlim=ends, ylim=ends)
    axes[0].set_ylabel("predicted, its lab left out")
    drawing.shared_legend(axes[0])
    return axes


BLOCKS = {"errors": errors, "rates": rates_found, "searched": searched}
BLOCKS |= {"layouts": layouts, "flagship": flagship}
