"""docs/studies/hours.md: predicted against published times of public training runs, each lab left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from scaling_law.figures import drawing
from scaling_law.machine.efficiency import write as write_rates
from studies.common import FloatArray, Page, Part, rms
from studies.hours.fit import efficiency_of, fitted, left_out, spreads
from studies.hours.runs import Timed, derive, read, seconds

RUNS = Path(__file__).with_name("runs.csv")
GOALS = {  # group → rms of ln(predicted / published) that was wanted, labs left out
    "dense, steady state": 0.20,
    "MoE, steady state": 0.35,
    "dense, whole runs": 0.30,
    "MoE, whole runs": 0.40,
}
NORMAL = 1.645  # standard deviations of 90 % intervals
COLOURS = {"dense": "#0072B2", "MoE": "#D55E00"}


@dataclass(frozen=True)
class Results:
    """What the page shows, computed when it is asked for."""

    rows: Sequence[Timed]

    @cached_property
    def misses(self) -> tuple[FloatArray, FloatArray]:
        """ln(predicted / published) of each row by the fit to other labs, and the standard deviation foreseen."""
        return left_out(self.rows)

    @cached_property
    def groups(self) -> dict[str, Any]:
        """Group → mask of the rows."""
        names = np.array([row.group for row in self.rows])
        return {name: names == name for name in (*GOALS, *sorted({*names} - {*GOALS}))}


def take(tables: Sequence[Path]) -> list[Path]:
    """Derive the runs from a public table, and the rates that the library ships from them."""
    (table,) = tables
    derive(table, RUNS)
    return [RUNS, write_rates(efficiency_of(read(RUNS)))]


def errors(r: Results) -> Iterator[Part]:
    yield "rows", "n", "labs", "rms", "wanted", "", "mean", "90 % interval holds"
    error, width = r.misses
    for group, mask in r.groups.items():
        off, goal = error[mask], GOALS.get(group)
        met = "" if goal is None else "met" if rms(off) <= goal else "missed"
        held = np.mean(np.abs(off) <= NORMAL * width[mask])
        labs = len({row.lab for row, chosen in zip(r.rows, mask, strict=True) if chosen})
        wanted = "" if goal is None else f"{goal:.2f}"
        yield group, len(off), labs, f"{rms(off):.2f}", wanted, met, f"{off.mean():+.2f}", f"{held:.0%}"
    large = np.any([r.groups[group] for group in GOALS], axis=0)
    held = np.mean(np.abs(error[large]) <= NORMAL * width[large])
    rest = error[r.groups["MoE, whole runs"] & np.array([row.lab != "DeepSeek" for row in r.rows])]
    yield (
        f"ln(predicted / published). From 0.5B parameters on, 90 % intervals hold {held:.0%} of {large.sum()} rows. "
        f"Whole runs of MoE without DeepSeek's: rms {rms(rest):.2f}, mean {rest.mean():+.2f}."
    )


def rates(r: Results) -> Iterator[Part]:
    *logs, growth, overhead = fitted(r.rows)[0]
    flops, routed, activations, routing, fp8, fp4, forced = np.exp(logs)
    yield "seconds of", "rate"
    yield "FLOPs", f"{flops:.2f} / peak, an MFU of {1 / flops:.0%} of products alone"
    yield "FLOPs of models with experts, besides", f"{routed:.2f} / peak; {forced:.2f} times that if balanced by force"
    yield "FLOPs in FP8, in FP4", f"{fp8:.2f} and {fp4:.2f} times those in bf16"
    yield "elements between operations (tokens × blocks × d_model)", f"{activations:.0f} bytes each, by the bandwidth"
    yield "elements sent to experts", f"{routing:.0f} bytes each, by the bandwidth"
    yield "a step on n nodes", f"n^{growth:.3f}"
    yield "a whole run on n nodes, besides", f"n^{overhead:.3f}"
    every, activations, added, small, whole = spreads(r.rows)
    yield "between labs (sd of ln): all of a step, and of a whole run besides", f"{every:.2f}, {whole:.2f}"
    yield "between labs, besides: activations, what experts add", f"{activations:.2f}, {added:.2f}"
    yield "between labs, besides: models below 0.5B, for each factor of e", f"{small:.2f}"


def hours(r: Results) -> Iterator[Part]:
    yield "name", "lab", "group", "gpu", "gpus", "precision", "tokens_per_second", "predicted_over_published", "source"
    for row, error in zip(r.rows, r.misses[0], strict=True):
        about = row.name, row.lab, row.group, row.gpu, row.gpus, row.precision, row.tokens_per_second
        yield *about, f"{np.exp(error):.3f}", row.source


def hours_predicted(r: Results) -> Any:
    """Tokens/s per GPU predicted by the other labs' runs against those published; a panel for each kind of number."""
    axes = drawing.panels_or_new(None, 2, 9.6, 4.8, sharex=True, sharey=True)
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


PAGE = Page(lambda: Results(read(RUNS)), blocks=(errors, rates), tables=(hours,), figures=(hours_predicted,))
