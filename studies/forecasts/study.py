"""The page on forecasts, from the records: cells.csv, misfits.csv and simulated.csv (simulated laboratories).

`designs` says how the model behind `forecast` was chosen.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from hub.base.errors import InputError
from scaling_law.fitting.posterior import DEPENDENCE, MISFIT
from studies.common import Page, Part
from studies.forecasts import cells, heroes, misfits, simulated
from studies.forecasts.cells import Cell
from studies.forecasts.methods import FRESH, by_lab
from studies.forecasts.sets import read_sets
from studies.forecasts.splits import CUT_NAMES

# What is asked: of the error over that of the fresh form chosen, and over the better in hindsight.
RATIO = 0.80
HINDSIGHT = 1.10
# No cell of so many held-out runs should be worse than this over the form chosen.
MANY = 10
WORST = 2.0
COVERAGE = (0.85, 0.95)
# Of two designs the simpler is taken if it is within this of the other.
MARGIN = 0.03
DESIGNS = {
    "one law": "plain",
    "with a misfit in N and D": "additive",
    "with a misfit in N, D and C": "forecast",
    "the stack": "stack",
}


@dataclass(frozen=True)
class Records:
    """The cells of all splits, what scales of the misfit give for them, and the simulated laboratories."""

    cells: Sequence[Cell]
    misfits: list[misfits.Misfit]
    simulated: list[simulated.Simulated]
    heroes: list[heroes.Hero]

    @cached_property
    def at_hand(self) -> list[Cell]:
        """The cells of the sets whose tables were at hand."""
        return [cell for cell in self.cells if cell.forecast]

    @cached_property
    def compared(self) -> list[Cell]:
        """The cells at hand whose runs determine a fresh fit."""
        return [cell for cell in self.at_hand if cell.chosen]

    def at(self, cut: str) -> list[Cell]:
        """Return the cells of a cut that are compared."""
        return [cell for cell in self.compared if cell.cut == cut]

    def over_chosen(self, design: str) -> float:
        """Return the error of a design over that of the form chosen, the geometric mean over cells."""
        return geometric_mean([cell.over_chosen(getattr(cell, design)) for cell in self.compared])


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean."""
    return float(np.exp(np.mean(np.log(values))))


def read() -> Records:
    """Read the records."""
    return Records(cells.read(), misfits.read(), simulated.read(), heroes.read())


def take(sources: Sequence[Path]) -> list[Path]:
    """Forecast the splits again, from a folder that holds public tables under their own names."""
    (folder,) = sources
    tables, missing = read_sets(folder)
    if not tables:
        raise InputError("; ".join(missing))
    print(*missing, sep="\n", file=sys.stderr)
    return [cells.take(tables), misfits.take(tables, cells.read()), *heroes.take(tables)]


def methods(records: Records) -> Iterator[Part]:
    """List the error of every method at every cut, and the forecast's over the fresh form's."""
    yield "method", *CUT_NAMES
    cells_at = {cut: records.at(cut) for cut in CUT_NAMES}
    for method in (*FRESH, "chosen fresh", "forecast"):
        row = []
        for group in cells_at.values():
            row.append(f"{by_lab((cell.lab, error_of(cell, method)) for cell in group):.4f}")
        yield method, *row
    over_chosen = []
    over_better = []
    counts = []
    for group in cells_at.values():
        over_chosen.append(f"{geometric_mean([cell.over_chosen(cell.forecast) for cell in group]):.2f}")
        over_better.append(f"{geometric_mean([cell.over_better(cell.forecast) for cell in group]):.2f}")
        counts.append(f"{len(group)} ({len({cell.lab for cell in group})})")
    yield "forecast over chosen", *over_chosen
    yield "forecast over the better", *over_better
    yield "sets (labs)", *counts


def error_of(cell: Cell, method: str) -> float:
    """Return the RMSE of a method; of a fresh form that the runs do not determine, that of the other."""
    if method == "forecast":
        return cell.forecast
    return cell.fresh.get(method, cell.fresh[cell.chosen])


def goals(records: Records) -> Iterator[Part]:
    """Compare the forecast that the library makes with its goals."""
    yield "goal", "asked", "measured", ""
    compared = records.compared
    ratio = records.over_chosen("forecast")
    yield "error over the chosen fresh form's", f"{RATIO:.2f}", f"{ratio:.2f}", _verdict(ratio <= RATIO)
    ratio = by_lab((cell.lab, cell.over_chosen(cell.forecast)) for cell in compared)
    yield "the same, labs equally", "–", f"{ratio:.2f}", ""
    ratio = geometric_mean([cell.over_better(cell.forecast) for cell in compared])
    yield "error over the better form's", f"{HINDSIGHT:.2f}", f"{ratio:.2f}", _verdict(ratio <= HINDSIGHT)
    ratios = np.array([cell.over_chosen(cell.forecast) for cell in compared if cell.held_out >= MANY])
    n_worse = int(np.sum(ratios > WORST))
    value = f"{n_worse} of {len(ratios)}, the largest {ratios.max():.2f}"
    yield f"cells of {MANY} runs above {WORST:g}", "0", value, _verdict(n_worse == 0)
    low, high = COVERAGE
    for direction in ("C", "N", "D"):
        total, inside = np.sum([cell.held[direction] for cell in records.at_hand], axis=0)
        share = inside / total
        limits = f"{low:.0%} to {high:.0%}"
        yield f"90 % intervals, runs furthest in {direction}", limits, f"{share:.1%}", _verdict(low <= share <= high)
        share = _share_of_labs(records.at_hand, direction)
        yield "the same, labs equally", limits, f"{share:.1%}", _verdict(low <= share <= high)


def _share_of_labs(group: Sequence[Cell], direction: str) -> float:
    """Return the share of runs furthest in a direction that lie in their intervals, the mean over labs."""
    shares = []
    for lab in {cell.lab for cell in group}:
        total, inside = np.sum([cell.held[direction] for cell in group if cell.lab == lab], axis=0)
        if total:
            shares.append(inside / total)
    return float(np.mean(shares))


def _verdict(is_met: bool) -> str:
    return "met" if is_met else "missed"


def designs(records: Records) -> Iterator[Part]:
    """Compare the designs on all cells."""
    many = [cell for cell in records.compared if cell.held_out >= MANY]
    yield (
        "design",
        "over the chosen fresh form's",
        "labs equally",
        "over the better's",
        f"cells above {WORST:g}",
        "largest",
    )
    for name, design in DESIGNS.items():
        ratios = np.array([cell.over_chosen(getattr(cell, design)) for cell in many])
        yield (
            name,
            f"{records.over_chosen(design):.3f}",
            f"{by_lab((cell.lab, cell.over_chosen(getattr(cell, design))) for cell in records.compared):.3f}",
            f"{geometric_mean([cell.over_better(getattr(cell, design)) for cell in records.compared]):.3f}",
            f"{int(np.sum(ratios > WORST))} of {len(ratios)}",
            f"{ratios.max():.2f}",
        )


def labs(records: Records) -> Iterator[Part]:
    """List what the forecast does for each lab, of which nothing was used."""
    yield "lab", "cells", "error over the chosen fresh form's", "over the better's", "in 90 %"
    for lab in sorted({cell.lab for cell in records.at_hand}):
        group = [cell for cell in records.compared if cell.lab == lab]
        counts = np.sum([(cell.held_out, cell.inside) for cell in records.at_hand if cell.lab == lab], axis=0)
        yield (
            lab,
            len(group),
            f"{geometric_mean([cell.over_chosen(cell.forecast) for cell in group]):.2f}",
            f"{geometric_mean([cell.over_better(cell.forecast) for cell in group]):.2f}",
            f"{counts[1] / counts[0]:.0%}",
        )


def left_out(records: Records) -> Iterator[Part]:
    """List what the scale and the dependence that other labs choose give for each lab."""
    yield from misfits.misfits(records.misfits)


def fits(records: Records) -> Iterator[Part]:
    """List what the intervals of a law fitted under the prior hold, and its bias, ten times beyond the runs."""
    yield "cut", "runs", "in 90 %", "labs equally", "ln L over the law's", "labs equally"
    for cut in ("N/10", "C/10"):
        group = [cell for cell in records.at_hand if cell.cut == cut]
        n_runs = sum(cell.held_out for cell in group)
        shares = []
        biases = []
        for lab in sorted({cell.lab for cell in group}):
            share, bias = _of_fits([cell for cell in group if cell.lab == lab])
            shares.append(share)
            biases.append(bias)
        share, bias = _of_fits(group)
        yield cut, n_runs, f"{share:.1%}", f"{np.mean(shares):.1%}", f"{bias:+.3f}", f"{np.mean(biases):+.3f}"


def _of_fits(group: Sequence[Cell]) -> tuple[float, float]:
    """Return the share of runs in the intervals of fits under the prior, and how far ln L lies above their laws."""
    n_runs = sum(cell.held_out for cell in group)
    share = sum(cell.plain_inside for cell in group) / n_runs
    bias = sum(cell.plain_bias * cell.held_out for cell in group) / n_runs
    return share, bias


def large_models(records: Records) -> Iterator[Part]:
    """List what was forecast of two large models."""
    yield from heroes.heroes(records.heroes)


def simulated_labs(records: Records) -> Iterator[Part]:
    """List what forecasts do for simulated laboratories."""
    yield from simulated.simulated(records.simulated)


def forecasts(records: Records) -> Iterator[Part]:
    """List every split with the RMSE of every method; that of the forecast where the table was at hand."""
    header = ("set", "lab", "cut", "fitted", "held out", *FRESH, "chosen", "N and D", "stack", "one law", "forecast")
    yield *header, "over chosen", "over the better", "in 90 %"
    for cell in sorted(records.cells, key=lambda cell: (cell.set, CUT_NAMES.index(cell.cut))):
        errors = [f"{cell.fresh[form]:.4f}" if form in cell.fresh else "" for form in FRESH]
        before = (f"{cell.additive:.4f}", f"{cell.stack:.4f}")
        forecasts = [""] * 5
        if cell.forecast:
            forecasts = [f"{cell.plain:.4f}", f"{cell.forecast:.4f}", "", "", f"{cell.inside / cell.held_out:.0%}"]
        if cell in records.compared:
            forecasts[2:4] = [f"{ratio(cell.forecast):.2f}" for ratio in (cell.over_chosen, cell.over_better)]
        yield cell.set, cell.lab, cell.cut, cell.fitted, cell.held_out, *errors, cell.chosen, *before, *forecasts


CLAIMS = {
    "one law with a misfit is within the margin of the stack": lambda r: (
        r.over_chosen("forecast") <= (1 + MARGIN) * r.over_chosen("stack")
    ),
    "one law without a misfit is not": lambda r: r.over_chosen("plain") > (1 + MARGIN) * r.over_chosen("stack"),
    "all labs choose what the library takes": lambda r: misfits.choose(r.misfits) == (MISFIT, DEPENDENCE),
}
BLOCKS = (methods, goals, labs, designs, left_out, fits, large_models, simulated_labs)
PAGE = Page(read, blocks=BLOCKS, tables=(forecasts,), claims=CLAIMS)
