"""The tables of docs/studies/forecasts.md: errors by method and cut, the goals, each lab, and every cell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from scaling_law.fitting.holdout import DIRECTIONS
from scaling_law.forecasting.stack import FRESH, NORMAL
from studies.common import FloatArray, Page, Part
from studies.forecasts.methods import Cell, by_lab
from studies.forecasts.splits import SYMBOLS
from studies.forecasts.stacking import Case, cells_of

FORECASTS = Path(__file__).parents[2] / "docs" / "studies" / "forecasts.md"
STACK = "stack"
CHOSEN = "chosen fresh"
CUTS = ("C/3", "C/10", "C/30", "C/100", "N/3", "N/10", "D/3", "D/10")
# What is asked: of the error over that of the fresh form chosen, and over the better in hindsight.
RATIO = 0.80
HINDSIGHT = 0.95
# No cell of so many held-out runs should be worse than this.
MANY = 10
WORST = 1.5
COVERAGE = (0.85, 0.95)
# A set whose intervals hold less than this is one of the few that may.
LEAST = 0.5
SETS_BELOW = 1 / 8
RESAMPLES = 2000


@dataclass(frozen=True)
class Result:
    """The cells of all splits."""

    cells: Sequence[Cell]

    @cached_property
    def compared(self) -> list[Cell]:
        """The cells whose runs determine a fresh fit."""
        return [cell for cell in self.cells if cell.preferred]

    def at(self, cut: str) -> list[Cell]:
        """Return the cells of a cut that are compared."""
        return [cell for cell in self.compared if cell.split.cut == cut]

    def inside(self, direction: int) -> dict[str, FloatArray]:
        """Return for each lab which runs furthest in a direction lie in their 90 % intervals."""
        inside: dict[str, list[FloatArray]] = {}
        for cell in self.cells:
            marks = cell.stack.inside(cell.loss)[cell.directions == direction]
            inside.setdefault(cell.split.lab, []).append(marks)
        marks_of_labs = {lab: np.concatenate(marks) for lab, marks in inside.items()}
        return {lab: marks for lab, marks in marks_of_labs.items() if len(marks)}

    @cached_property
    def coverage_of_sets(self) -> dict[str, float]:
        """The share of the runs of each set in their 90 % intervals, all cuts together."""
        inside: dict[str, list[FloatArray]] = {}
        for cell in self.cells:
            inside.setdefault(cell.split.set, []).append(cell.stack.inside(cell.loss))
        return {name: float(np.concatenate(marks).mean()) for name, marks in inside.items()}


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean."""
    return float(np.exp(np.mean(np.log(values))))


def methods(result: Result) -> Iterator[Part]:
    """List the error of every method at every cut, and the stack's over the fresh form's."""
    yield "method", *CUTS
    cells_at = {cut: result.at(cut) for cut in CUTS}
    for method in (*FRESH, CHOSEN, STACK):
        row = []
        for cells in cells_at.values():
            row.append(f"{by_lab((cell.split.lab, error_of(cell, method)) for cell in cells):.4f}")
        yield method, *row
    over_preferred = []
    over_better = []
    for cells in cells_at.values():
        over_preferred.append(f"{geometric_mean([cell.ratio for cell in cells]):.2f}")
        over_better.append(f"{geometric_mean([cell.hindsight for cell in cells]):.2f}")
    yield "stack over chosen", *over_preferred
    yield "stack over the better", *over_better
    counts = []
    for cells in cells_at.values():
        counts.append(f"{len(cells)} ({len({cell.split.lab for cell in cells})})")
    yield "sets (labs)", *counts


def error_of(cell: Cell, method: str) -> float:
    """Return the RMSE of a method; of a fresh form that the runs do not determine, that of the other."""
    if method == STACK:
        return cell.stack.rmse(cell.loss)
    return cell.fresh.get(method, cell.fresh[cell.preferred]).rmse(cell.loss)


def goals(result: Result) -> Iterator[Part]:
    """Compare the forecast that the library makes, the stack, with its goals."""
    yield "goal", "asked", "measured", ""
    cells = result.compared
    ratio = geometric_mean([cell.ratio for cell in cells])
    labs = by_lab((cell.split.lab, cell.ratio) for cell in cells)
    yield "error over the chosen fresh form's", f"{RATIO:.2f}", f"{ratio:.2f}", _verdict(ratio <= RATIO)
    yield "the same, labs equally", "–", f"{labs:.2f}", ""
    ratio = geometric_mean([cell.hindsight for cell in cells])
    yield "error over the better form's", f"{HINDSIGHT:.2f}", f"{ratio:.2f}", _verdict(ratio <= HINDSIGHT)
    large_ratios = np.array([cell.ratio for cell in cells if len(cell.loss) >= MANY])
    n_worse = int(np.sum(large_ratios > WORST))
    value = f"{n_worse} of {len(large_ratios)}, the largest {large_ratios.max():.2f}"
    yield f"cells of {MANY} runs above {WORST}", "0", value, _verdict(n_worse == 0)
    yield from _goals_of_coverage(result)
    yield from _goals_of_score(result)


def _goals_of_coverage(result: Result) -> Iterator[Part]:
    """Compare the shares of the held-out runs that the intervals hold."""
    low, high = COVERAGE
    for direction, name in enumerate(DIRECTIONS):
        inside = result.inside(direction)
        share = float(np.mean(np.concatenate([*inside.values()])))
        limits = " to ".join(f"{limit:.0%}" for limit in _clustered_interval([*inside.values()]))
        verdict = _verdict(low <= share <= high)
        yield (
            f"90 % intervals, runs furthest in {SYMBOLS[name]}",
            f"{low:.0%} to {high:.0%}",
            f"{share:.1%} ({limits})",
            verdict,
        )
        mean = float(np.mean([marks.mean() for marks in inside.values()]))
        yield "the same, labs equally", f"{low:.0%} to {high:.0%}", f"{mean:.1%}", _verdict(low <= mean <= high)
    shares = result.coverage_of_sets
    below = sum(share < LEAST for share in shares.values())
    least, name = min((share, name) for name, share in shares.items())
    value = f"{below} of {len(shares)}, the least {least:.0%} ({name})"
    yield "sets below 50 %", "one in eight", value, _verdict(below <= SETS_BELOW * len(shares))


def _goals_of_score(result: Result) -> Iterator[Part]:
    """Compare the interval score with that of the bootstrap of the chosen fresh form."""
    for quantity, symbol in SYMBOLS.items():
        cells = [cell for cell in result.compared if cell.split.by == quantity]
        stacked = float(np.mean([cell.stack.interval_score(cell.loss) for cell in cells]))
        fresh = float(np.mean([cell.fresh[cell.preferred].interval_score(cell.loss) for cell in cells]))
        value = f"{stacked / fresh:.2f}"
        yield f"interval score over the bootstrap's, cuts in {symbol}", "below 1", value, _verdict(stacked < fresh)
    widths = []
    for cell in result.cells:
        widths.append(2 * NORMAL * float(np.median(cell.stack.spread * cell.loss)) / cell.stack.rmse(cell.loss))
    yield "median width of an interval over RMSE", "–", f"{np.median(widths):.1f}", ""


def _clustered_interval(groups: Sequence[FloatArray]) -> FloatArray:
    """Return the 95 % interval of the mean over all values, when groups are resampled."""
    rng = np.random.default_rng(0)
    sums = np.array([group.sum() for group in groups], float)
    counts = np.array([len(group) for group in groups])
    drawn_groups = rng.integers(len(groups), size=(RESAMPLES, len(groups)))
    return np.quantile(sums[drawn_groups].sum(axis=1) / counts[drawn_groups].sum(axis=1), (0.025, 0.975))


def _verdict(is_met: bool) -> str:
    return "met" if is_met else "missed"


def labs(result: Result) -> Iterator[Part]:
    """List what the stack does for each lab, of which nothing was used."""
    yield "lab", "cells", "error over the chosen fresh form's", "over the better's", "in 90 %"
    for lab in sorted({cell.split.lab for cell in result.cells}):
        cells = [cell for cell in result.compared if cell.split.lab == lab]
        inside = [cell.stack.inside(cell.loss) for cell in result.cells if cell.split.lab == lab]
        yield (
            lab,
            len(cells),
            f"{geometric_mean([cell.ratio for cell in cells]):.2f}",
            f"{geometric_mean([cell.hindsight for cell in cells]):.2f}",
            f"{np.mean(np.concatenate(inside)):.0%}",
        )


def forecasts(result: Result) -> Iterator[Part]:
    """List every split with the RMSE of every method."""
    yield (
        "set",
        "lab",
        "cut",
        "fitted",
        "held out",
        *FRESH,
        "chosen",
        STACK,
        "over chosen",
        "over the better",
        "in 90 %",
    )
    for cell in sorted(result.cells, key=lambda cell: (cell.split.set, CUTS.index(cell.split.cut))):
        split = cell.split
        errors = [f"{cell.fresh[name].rmse(cell.loss):.4f}" if name in cell.fresh else "" for name in FRESH]
        ratios = [f"{ratio:.2f}" if cell.preferred else "" for ratio in (cell.ratio, cell.hindsight)]
        yield (
            split.set,
            split.lab,
            split.cut,
            split.fitted,
            split.held_out,
            *errors,
            cell.preferred,
            f"{cell.stack.rmse(cell.loss):.4f}",
            *ratios,
            f"{np.mean(cell.stack.inside(cell.loss)):.0%}",
        )


def page(cases: Sequence[Case]) -> Page:
    """Return the page of these cases."""
    return Page(lambda: Result([*cells_of(cases)]), blocks=(methods, goals, labs), tables=(forecasts,))
