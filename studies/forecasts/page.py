"""The tables of docs/studies/forecasts.md: RMSE by method and cut, the goals, the choices made, and every cell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from scaling_law import Runs
from scaling_law.forecasting.stack import Defaults
from studies.common import Part, write_page
from studies.forecasts.methods import (
    CONSTANT,
    EQUAL,
    FRESH,
    PINNED,
    PRIOR,
    WEIGHTED,
    Cell,
    Choice,
    baselines,
    by_lab,
    forecasts_of,
    nested,
    without_weights,
)
from studies.forecasts.population import members_of
from studies.forecasts.stacking import (
    NORMAL,
    STACK,
    Case,
    across_experts,
    cases_of,
    prior_without,
    stacked_cells,
    write_defaults,
)

PAGE = Path(__file__).parents[2] / "docs" / "studies" / "forecasts.md"
METHODS = (FRESH, CONSTANT, PINNED, WEIGHTED, EQUAL, PRIOR, STACK)
HALF = 0.6745  # standard errors of a 50 % interval
CUTS = ("C/3", "C/10", "C/30", "N/3", "D/3")
GOALS = {"C/3": 0.12, "C/10": 0.30, "C/30": 0.55}  # how much lower than fresh the RMSE should be


@dataclass(frozen=True)
class Result:
    """All cells, the choice of the prior that was made for each lab, and what the stack of each lab was given."""

    cells: Sequence[Cell]
    choices: Mapping[tuple[str, str], Choice]
    learnt: Mapping[str, Defaults]
    experts: Sequence[tuple[str, float, str]] = ()

    def of(self, method: str, cut: str = "") -> list[Cell]:
        return [one for one in self.cells if one.method == method and cut in ("", one.split.cut)]

    def rmse(self, method: str, cut: str) -> float:
        """Geometric mean within labs, then over labs."""
        return by_lab((one.split.lab, one.rmse) for one in self.of(method, cut))

    def ratios(self, method: str) -> dict[tuple[str, str], float]:
        """The method's RMSE over the lesser of fresh and one constant, by set and cut."""
        rmse, fresh, constant = (
            {(one.split.set, one.split.cut): one.rmse for one in self.of(name)} for name in (method, FRESH, CONSTANT)
        )
        return {key: value / min(fresh[key], constant[key]) for key, value in rmse.items()}


def write(tables: Mapping[str, Runs], page: Path = PAGE) -> list[Path]:
    """Compute all methods on the list, fill the page's tables and write that of all cells."""
    members = members_of(tables)
    forecasts = forecasts_of(tables, members)
    prior, choices = nested(forecasts)
    stacked, learnt = stacked_cells([*cases_of(tables, members, choices)])
    experts: list[tuple[str, float, str]] = []
    if {"step_dense", "step_moe"} <= {*tables}:
        without = prior_without(members, choices["stepfun", "flops"], "stepfun")
        experts += across_experts(tables["step_dense"], tables["step_moe"], without, learnt["stepfun"])
    result = Result([*baselines(tables), *without_weights(forecasts), *prior, *stacked], choices, learnt, experts)
    blocks: dict[str, Callable[[Result], Iterator[Part]]] = {
        "methods": _methods,
        "goals": partial(_goals, method=PRIOR),
        "stack": partial(_goals, method=STACK),
        "experts": _experts,
        "learnt": _learnt,
        "choices": _choices,
    }
    return write_page(page, result, blocks, {"forecasts": _cells}, {})


def write_stack(tables: Mapping[str, Runs]) -> Path:
    """What the library's stack has learnt from all labs."""
    members = members_of(tables)
    cases: list[Case] = [*cases_of(tables, members, nested(forecasts_of(tables, members))[1])]
    return write_defaults(cases)


def _methods(result: Result) -> Iterator[Part]:
    yield ("method", *CUTS)
    for method in METHODS:
        yield (method, *(f"{result.rmse(method, cut):.4f}" for cut in CUTS))
    counts = [result.of(PRIOR, cut) for cut in CUTS]
    yield ("sets (labs)", *(f"{len(cells)} ({len({one.split.lab for one in cells})})" for cells in counts))


def _goals(result: Result, method: str) -> Iterator[Part]:
    yield ("goal", "asked", "measured", "")
    for cut, goal in GOALS.items():
        measured = 1 - result.rmse(method, cut) / result.rmse(FRESH, cut)
        yield (f"below fresh at {cut}", f"{goal:.0%}", f"{measured:.0%}", _verdict(measured >= goal))
    for cut in GOALS:
        measured = 1 - result.rmse(method, cut) / result.rmse(CONSTANT, cut)
        yield (f"below one constant at {cut}", "50%", f"{measured:.0%}", _verdict(measured >= 0.5))
    ratios = np.array(list(result.ratios(method).values()))
    within = float(np.mean(ratios <= 1.2))
    yield ("cells within 1.2 of the better", "90%", f"{within:.0%}", _verdict(within >= 0.9))
    yield ("largest ratio to the better", "1.6", f"{ratios.max():.2f}", _verdict(ratios.max() <= 1.6))
    held = _coverage(result, method)
    pooled = float(np.mean(np.concatenate([*held.values()])))
    yield ("90 % intervals, pooled", "85–97%", f"{pooled:.1%}", _verdict(0.85 <= pooled <= 0.97))
    half = float(np.mean(np.concatenate([*_coverage(result, method, HALF).values()])))
    yield ("50 % intervals, pooled", "–", f"{half:.1%}", "")
    least = min((float(inside.mean()), name) for name, inside in held.items() if len(inside) >= 10)
    yield ("90 % intervals, least of a set", "70%", f"{least[0]:.0%} ({least[1]})", _verdict(least[0] >= 0.7))
    width = float(np.median([2 * NORMAL * np.median(np.asarray(one.spread)) / one.rmse for one in result.of(method)]))
    yield ("median width over RMSE", "4", f"{width:.1f}", _verdict(width <= 4))


def _verdict(met: bool) -> str:
    return "met" if met else "missed"


def _coverage(result: Result, method: str, errors: float = NORMAL) -> dict[str, np.ndarray]:
    """Whether each held-out run lies within so many standard errors, by set, all cuts together."""
    held: dict[str, list[np.ndarray]] = {}
    for one in result.of(method):
        held.setdefault(one.split.set, []).append(np.abs(one.errors) <= errors * np.asarray(one.spread))
    return {name: np.concatenate(parts) for name, parts in held.items()}


def _cells(result: Result) -> Iterator[Part]:
    yield ("set", "lab", "cut", "fitted", "held out", *METHODS, "to the better", "in 90 %")
    by_key = {(one.split.set, one.split.cut, one.method): one for one in result.cells}
    for (name, cut), ratio in result.ratios(STACK).items():
        split, stacked = by_key[name, cut, STACK].split, by_key[name, cut, STACK]
        held = np.mean(np.abs(stacked.errors) <= NORMAL * np.asarray(stacked.spread))
        values = (f"{by_key[name, cut, method].rmse:.4f}" for method in METHODS)
        yield (name, split.lab, cut, split.fitted, split.held_out, *values, f"{ratio:.2f}", f"{held:.0%}")


def _choices(result: Result) -> Iterator[Part]:
    yield ("lab left out", "cut", "shrinkage", "degrees of freedom", "dependence", "power of compute")
    for (lab, by), one in result.choices.items():
        dof = "∞" if np.isinf(one.dof) else f"{one.dof:g}"
        cut = {"flops": "C", "n_active": "N", "tokens": "D"}[by]
        yield (lab, cut, f"{one.shrinkage:g}", dof, f"{one.dependence:g}", f"{one.power:g}")


def _experts(result: Result) -> Iterator[Part]:
    yield ("method", "RMSE", "in 90 %")
    for name, rmse, inside in result.experts:
        yield (name, f"{rmse:.4f}", inside)


def _learnt(result: Result) -> Iterator[Part]:
    yield ("lab left out", "cuts that the usual errors count as", "growth of ln L", "width")
    for lab, one in result.learnt.items():
        yield (lab, f"{one.cuts:g}", f"{one.growth:g}", f"{one.width:.2f}")
