"""Where a fit starts: the paper's grid, or one laid around the data, so that any scale of runs converges.

The paper's grid (Ludziejewski et al. 2025, Appendix "Fit Details") is 3⁹ = 19,683 points made for large language
models. The grid "scaled" divides the loss at the middle of the data among the terms in several ways and gives each
term several slopes there; in these coordinates a tiny sweep looks like a large one.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaling_law.fitting.objective import Objective, _shift
from scaling_law.laws import LAWS
from scaling_law.laws.terms import (
    BY_EXPERTS,
    CONSTANT,
    INTERACTION,
    SIZE,
    SLOPE,
    TRANSFORM,
    Term,
    has_transform,
    roles,
)

FloatArray = NDArray[np.float64]
START_TRANSFORM = (2.0, 256.0)  # E_start and E_max while the paper's grid is run
SCALED_TRANSFORMS = (START_TRANSFORM, (1.1, 12.0), (1.1, 1e4), (5.0, 40.0), (5.0, 1e4))

PAPER_GRID: dict[str, tuple[float, ...]] = {
    SIZE: (30.0, 100.0, 300.0),
    SLOPE: (-0.05, -0.25, -0.5),
    BY_EXPERTS: (-0.5, 0.0, 0.5),
    INTERACTION: (-0.5, 0.0, 0.5),
    CONSTANT: (0.5, 1.0, 2.0),
}


def paper_starts(law: str, fixed: Mapping[str, float]) -> dict[str, FloatArray]:
    """The paper's grid for the coefficients of `law` that are not fixed; each coefficient as an array [S]."""
    terms = LAWS[law].terms
    choices = {name: (fixed[name],) if name in fixed else PAPER_GRID[role] for name, role in roles(terms).items()}
    table = np.array(list(product(*choices.values())))
    found = dict(zip(choices, table.T, strict=True))
    if has_transform(terms):
        for name, value in zip(TRANSFORM, _start_transform(fixed, *START_TRANSFORM), strict=True):
            found[name] = np.full(len(table), value)
    return found


def scaled_starts(
    objective: Objective, columns: Mapping[str, FloatArray], fixed: Mapping[str, float]
) -> dict[str, Any]:
    """A grid around the data: coefficients as arrays [S].

    At the middle of the runs, in ln N, ln D and ln Ê, the loss is divided into a constant and the terms; each term is
    given a falling slope in its variable and a small slope of either sign in ln Ê.
    """
    middle = float(np.exp(np.median(np.log(columns["loss"]))))
    lowest = float(columns["loss"].min())
    choices: dict[str, tuple[float, ...]] = {}
    powers = [term for term in objective.terms if term.variable]
    constants = [term.coefficients[0] for term in objective.terms if not term.variable]
    if constants:
        choices["floor"] = (0.05, 0.5, 0.85)
    if len(powers) > 1:
        choices["share"] = (0.2, 0.5, 0.8)
    for i, term in enumerate(powers):
        choices[f"slope{i}"] = (-0.1, -0.4)
        if term.experts:
            choices[f"experts{i}"] = (-0.2, 0.2)
    found: dict[str, list[Any]] = {}
    for values in product(*choices.values()):
        point = dict(zip(choices, values, strict=True))
        floor = point.get("floor", 0.0) * lowest
        start = {name: fixed.get(name, floor) for name in constants}
        floor = sum(start.values())
        rest = max(middle - floor, 0.02 * middle)
        for i, term in enumerate(powers):
            share = point.get("share", 1.0)
            size = rest * (share if i == 0 else (1.0 - share) / (len(powers) - 1))
            start |= _term_start(
                term, columns, (np.log(size), point[f"slope{i}"], point.get(f"experts{i}", 0.0)), fixed
            )
        for name, value in start.items():
            found.setdefault(name, []).append(value)
    columns_of = {name: np.array(values) for name, values in found.items()}
    if not objective.has_transform:
        return columns_of
    pairs = list(dict.fromkeys(_start_transform(fixed, *pair) for pair in SCALED_TRANSFORMS))
    count = len(next(iter(columns_of.values())))
    repeated = {name: np.tile(values, len(pairs)) for name, values in columns_of.items()}
    return repeated | {name: np.repeat([pair[i] for pair in pairs], count) for i, name in enumerate(TRANSFORM)}


def _start_transform(fixed: Mapping[str, float], e_start: float, e_max: float) -> tuple[float, float]:
    """A start for (E_start, E_max) that respects what is fixed and keeps their order."""
    if "e_max" in fixed:
        e_max = fixed["e_max"]
        e_start = min(e_start, 0.5 * (1.0 + e_max))
    if "e_start" in fixed:
        e_start = fixed["e_start"]
        e_max = fixed.get("e_max", max(e_max, 2.0 * e_start))
    return e_start, e_max


def _term_start(
    term: Term, columns: Mapping[str, FloatArray], at_centre: tuple[float, float, float], fixed: Mapping[str, float]
) -> dict[str, float]:
    """Coefficients of a term with given size and slopes at the middle of the data; fixed ones in their places."""
    assert term.variable is not None  # a constant has no slopes to start from
    size, slope, by_experts = at_centre
    cx = float(np.mean(np.log(columns[term.variable])))
    ce = float(np.mean(np.log(1.0 + columns["experts"]))) if term.experts else 0.0
    names = term.coefficients
    interaction = fixed.get(names[3], 0.0) if term.experts else 0.0
    x = fixed[names[1]] + interaction * ce if names[1] in fixed else slope
    if not term.experts:
        values = _shift([size, x], -cx, 0.0)
    else:
        e = fixed[names[2]] + interaction * cx if names[2] in fixed else by_experts
        values = _shift([size, x, e, interaction], -cx, -ce)
    natural = dict(zip(names, values, strict=True))
    return {k: fixed[k] if k in fixed else float(np.exp(v) if k == names[0] else v) for k, v in natural.items()}
