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
HALF = 0.6745  # standard errors of a 50 % interval
CUTS = ("C/3", "C/10", "C/30", "N/3", "D/3")
GOALS = {"C/3": 0.12, "C/10": 0.30, "C/30": 0.55}  # how much lower than fresh the RMSE should be


@dataclass(frozen=True)
class Result:
    """The cells of all methods."""

    cells: Sequence[Cell]

    def of(self, method: str, cut: str = "") -> list[Cell]:
        return [one for one in self.cells if one.method == method and cut in ("", one.split.cut)]

    def rmse(self, method: str, cut: str) -> float:
        """Geometric mean within labs, then over labs."""
        return by_lab((one.split.lab, one.rmse) for one in self.of(method, cut))

    @property
    def ratios(self) -> dict[tuple[str, str], float]:
        """The stack's RMSE over the lesser of fresh and one constant, by set and cut."""
        rmse, fresh, constant = (
            {(one.split.set, one.split.cut): one.rmse for one in self.of(name)} for name in (STACK, FRESH, CONSTANT)
        )
        return {key: value / min(fresh[key], constant[key]) for key, value in rmse.items()}

    def coverage(self, errors: float) -> dict[str, np.ndarray]:
        """Whether each held-out run lies within so many standard errors, by set, all cuts together."""
        held: dict[str, list[np.ndarray]] = {}
        for one in self.of(STACK):
            held.setdefault(one.split.set, []).append(np.abs(one.errors) <= errors * np.asarray(one.spread))
        return {name: np.concatenate(parts) for name, parts in held.items()}


def result_of(tables: Mapping[str, Runs]) -> Result:
    """All methods on the list."""
    members = members_of(tables)
    prior, choices = nested(forecasts_of(tables, members))
    return Result([*baselines(tables), *prior, *stacked_cells([*cases_of(tables, members, choices)])])


def write_stack(tables: Mapping[str, Runs]) -> Path:
    """What the library's stack has learnt from all labs."""
    members = members_of(tables)
    return write_defaults([*cases_of(tables, members, nested(forecasts_of(tables, members))[1])])


def methods(result: Result) -> Iterator[Part]:
    yield "method", *CUTS
    for method in METHODS:
        yield method, *(f"{result.rmse(method, cut):.4f}" for cut in CUTS)
    counts = [result.of(PRIOR, cut) for cut in CUTS]
    yield "sets (labs)", *(f"{len(cells)} ({len({one.split.lab for one in cells})})" for cells in counts)


def goals(result: Result) -> Iterator[Part]:
    """Goals of the forecast that the library makes, the stack."""
    yield "goal", "asked", "measured", ""

    def verdict(met: bool) -> str:
        return "met" if met else "missed"

    for name in (FRESH, CONSTANT):
        for cut, goal in GOALS.items():
            wanted = goal if name == FRESH else 0.5
            measured = 1 - result.rmse(STACK, cut) / result.rmse(name, cut)
            yield f"below {name} at {cut}", f"{wanted:.0%}", f"{measured:.0%}", verdict(measured >= wanted)
    ratios = np.array(list(result.ratios.values()))
    within = float(np.mean(ratios <= 1.2))
    yield "cells within 1.2 of the better", "90%", f"{within:.0%}", verdict(within >= 0.9)
    yield "largest ratio to the better", "1.6", f"{ratios.max():.2f}", verdict(ratios.max() <= 1.6)
    held, half = (result.coverage(errors) for errors in (NORMAL, HALF))
    pooled = float(np.mean(np.concatenate([*held.values()])))
    yield "90 % intervals, pooled", "85–97%", f"{pooled:.1%}", verdict(0.85 <= pooled <= 0.97)
    yield "50 % intervals, pooled", "–", f"{np.mean(np.concatenate([*half.values()])):.1%}", ""
    least = min((float(inside.mean()), name) for name, inside in held.items() if len(inside) >= 10)
    yield "90 % intervals, least of a set", "70%", f"{least[0]:.0%} ({least[1]})", verdict(least[0] >= 0.7)
    width = float(np.median([2 * NORMAL * np.median(np.asarray(one.spread)) / one.rmse for one in result.of(STACK)]))
    yield "median width over RMSE", "4", f"{width:.1f}", verdict(width <= 4)


def forecasts(result: Result) -> Iterator[Part]:
    yield "set", "lab", "cut", "fitted", "held out", *METHODS, "to the better", "in 90 %"
    by_key = {(one.split.set, one.split.cut, one.method): one for one in result.cells}
    for (name, cut), ratio in result.ratios.items():
        split, stacked = by_key[name, cut, STACK].split, by_key[name, cut, STACK]
        held = np.mean(np.abs(stacked.errors) <= NORMAL * np.asarray(stacked.spread))
        values = (f"{by_key[name, cut, method].rmse:.4f}" for method in METHODS)
        yield name, split.lab, cut, split.fitted, split.held_out, *values, f"{ratio:.2f}", f"{held:.0%}"


def page(tables: Mapping[str, Runs]) -> Page:
    """The page of these tables."""
    return Page(lambda: result_of(tables), blocks=(methods, goals), tables=(forecasts,))
