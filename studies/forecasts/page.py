"""The tables of docs/studies/forecasts.md: RMSE by method and cut, the goals, and every cell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scaling_law import Runs
from studies.common import Page, Part
from studies.forecasts.methods import CONSTANT, FRESH, PRIOR, Cell, baselines, by_lab, forecasts_of, nested
from studies.forecasts.population import members_of
from studies.forecasts.stacking import NORMAL, STACK, cases_of, stacked_cells, write_defaults

FORECASTS = Path(__file__).parents[2] / "docs" / "studies" / "forecasts.md"
METHODS = (FRESH, CONSTANT, PRIOR, STACK)
# Standard errors of a 50 % interval.
HALF = 0.6745
CUTS = ("C/3", "C/10", "C/30", "N/3", "D/3")
# How much lower than fresh the RMSE should be.
GOALS = {"C/3": 0.12, "C/10": 0.30, "C/30": 0.55}


@dataclass(frozen=True)
class Result:
    """The cells of all methods."""

    cells: Sequence[Cell]

    def of(self, method: str, cut: str = "") -> list[Cell]:
        """Return the cells of a method, at one cut if it is named."""
        return [cell for cell in self.cells if cell.method == method and cut in ("", cell.split.cut)]

    def rmse(self, method: str, cut: str) -> float:
        """Return the geometric mean within labs, then over labs."""
        return by_lab((cell.split.lab, cell.rmse) for cell in self.of(method, cut))

    @property
    def ratios(self) -> dict[tuple[str, str], float]:
        """The stack's RMSE over the lesser of fresh and one constant, by set and cut."""
        fresh = self._rmse_by_split(FRESH)
        constant = self._rmse_by_split(CONSTANT)
        return {key: rmse / min(fresh[key], constant[key]) for key, rmse in self._rmse_by_split(STACK).items()}

    def _rmse_by_split(self, method: str) -> dict[tuple[str, str], float]:
        return {(cell.split.set, cell.split.cut): cell.rmse for cell in self.of(method)}

    def coverage(self, standard_errors: float) -> dict[str, np.ndarray]:
        """Mark the held-out runs within so many standard errors, by set, all cuts together."""
        inside: dict[str, list[np.ndarray]] = {}
        for cell in self.of(STACK):
            inside.setdefault(cell.split.set, []).append(_is_inside(cell, standard_errors))
        return {name: np.concatenate(inside_of_cuts) for name, inside_of_cuts in inside.items()}


def _is_inside(cell: Cell, standard_errors: float) -> np.ndarray:
    """Mark the held-out runs of a cell of the stack within so many standard errors."""
    return np.asarray(np.abs(cell.errors) <= standard_errors * np.asarray(cell.spread))


def result_of(tables: Mapping[str, Runs]) -> Result:
    """Forecast the splits of the list by all methods."""
    members = members_of(tables)
    prior_cells, choices = nested(forecasts_of(tables, members))
    cases = [*cases_of(tables, members, choices)]
    return Result([*baselines(tables), *prior_cells, *stacked_cells(cases)])


def write_stack(tables: Mapping[str, Runs]) -> Path:
    """Write what the library's stack has learnt from all labs."""
    members = members_of(tables)
    _, choices = nested(forecasts_of(tables, members))
    return write_defaults([*cases_of(tables, members, choices)])


def methods(result: Result) -> Iterator[Part]:
    """List the RMSE of every method at every cut."""
    yield "method", *CUTS
    for method in METHODS:
        yield method, *(f"{result.rmse(method, cut):.4f}" for cut in CUTS)
    counts = []
    for cut in CUTS:
        cells = result.of(PRIOR, cut)
        labs = {cell.split.lab for cell in cells}
        counts.append(f"{len(cells)} ({len(labs)})")
    yield "sets (labs)", *counts


def goals(result: Result) -> Iterator[Part]:
    """Compare the forecast that the library makes, the stack, with its goals."""
    yield "goal", "asked", "measured", ""
    yield from _goals_of_gain(result)
    yield from _goals_of_ratio(result)
    yield from _goals_of_coverage(result)
    widths = []
    for cell in result.of(STACK):
        typical_spread = np.median(np.asarray(cell.spread))
        widths.append(2 * NORMAL * typical_spread / cell.rmse)
    width = float(np.median(widths))
    yield "median width over RMSE", "4", f"{width:.1f}", _verdict(width <= 4)


def _goals_of_gain(result: Result) -> Iterator[Part]:
    """Compare how much lower the RMSE is than that of fresh fits and of one constant."""
    for name in (FRESH, CONSTANT):
        for cut, goal_below_fresh in GOALS.items():
            goal = goal_below_fresh if name == FRESH else 0.5
            gain = 1 - result.rmse(STACK, cut) / result.rmse(name, cut)
            yield f"below {name} at {cut}", f"{goal:.0%}", f"{gain:.0%}", _verdict(gain >= goal)


def _goals_of_ratio(result: Result) -> Iterator[Part]:
    """Compare the RMSE of each cell with the better of fresh and one constant."""
    ratios = np.array(list(result.ratios.values()))
    largest = ratios.max()
    share_within = float(np.mean(ratios <= 1.2))
    yield "cells within 1.2 of the better", "90%", f"{share_within:.0%}", _verdict(share_within >= 0.9)
    yield "largest ratio to the better", "1.6", f"{largest:.2f}", _verdict(largest <= 1.6)


def _goals_of_coverage(result: Result) -> Iterator[Part]:
    """Compare the shares of the held-out runs that the intervals hold."""
    inside = result.coverage(NORMAL)
    pooled = _pooled_share(inside)
    yield "90 % intervals, pooled", "85–97%", f"{pooled:.1%}", _verdict(0.85 <= pooled <= 0.97)
    yield "50 % intervals, pooled", "–", f"{_pooled_share(result.coverage(HALF)):.1%}", ""
    share, name = min((float(runs.mean()), name) for name, runs in inside.items() if len(runs) >= 10)
    yield "90 % intervals, least of a set", "70%", f"{share:.0%} ({name})", _verdict(share >= 0.7)


def _pooled_share(inside: Mapping[str, np.ndarray]) -> float:
    return float(np.mean(np.concatenate([*inside.values()])))


def _verdict(is_met: bool) -> str:
    return "met" if is_met else "missed"


def forecasts(result: Result) -> Iterator[Part]:
    """List every split with the RMSE of every method."""
    yield "set", "lab", "cut", "fitted", "held out", *METHODS, "to the better", "in 90 %"
    cells = {(cell.split.set, cell.split.cut, cell.method): cell for cell in result.cells}
    for (name, cut), ratio in result.ratios.items():
        stacked = cells[name, cut, STACK]
        split = stacked.split
        yield (
            name,
            split.lab,
            cut,
            split.fitted,
            split.held_out,
            *(f"{cells[name, cut, method].rmse:.4f}" for method in METHODS),
            f"{ratio:.2f}",
            f"{np.mean(_is_inside(stacked, NORMAL)):.0%}",
        )


def page(tables: Mapping[str, Runs]) -> Page:
    """Return the page of these tables."""
    return Page(lambda: result_of(tables), blocks=(methods, goals), tables=(forecasts,))
