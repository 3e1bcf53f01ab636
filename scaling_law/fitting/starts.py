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

from scaling_law.fitting.objective import Objective, shift
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
) -> dict[str, FloatArray]:
    """A grid around the data: coefficients as arrays [S].

    At the middle of the runs, in ln N, ln D and ln Ê, the loss is divided into a constant and the terms; each term is
    given a falling slope in its variable and a small slope of either sign in ln Ê.
    """
    middle = float(np.exp(np.median(np.log(columns["loss"]))))
    powers = [term for term in objective.terms if term.variable]
    choices: dict[str, tuple[float, ...]] = {}
    if objective.constants:
        choices["floor"] = (0.05, 0.5, 0.85)  # the constant, as a part of the lowest loss
    if len(powers) > 1:
        choices["share"] = (0.2, 0.5, 0.8)  # the first term's part of the rest
    for i, term in enumerate(powers):
        choices[f"slope{i}"] = (-0.1, -0.4)
        if term.experts:
            choices[f"experts{i}"] = (-0.2, 0.2)
    at = dict(zip(choices, np.array(list(product(*choices.values()))).T, strict=True))
    count = len(at["slope0"])
    floor = at.get("floor", np.zeros(count)) * columns["loss"].min()
    found = {name: np.full(count, fixed[name]) if name in fixed else floor for name in objective.constants}
    rest = np.maximum(middle - sum(found.values()), 0.02 * middle)
    for i, term in enumerate(powers):
        share = at.get("share", np.ones(count))
        size = rest * (share if i == 0 else (1.0 - share) / (len(powers) - 1))
        by_experts = at.get(f"experts{i}", np.zeros(count))
        found |= _term_start(term, columns, np.log(size), at[f"slope{i}"], by_experts, fixed)
    if not objective.has_transform:
        return found
    pairs = list(dict.fromkeys(_start_transform(fixed, *pair) for pair in SCALED_TRANSFORMS))
    repeated = {name: np.tile(values, len(pairs)) for name, values in found.items()}
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
    term: Term,
    columns: Mapping[str, FloatArray],
    size: FloatArray,
    slope: FloatArray,
    by_experts: FloatArray,
    fixed: Mapping[str, float],
) -> dict[str, FloatArray]:
    """Coefficients [S] of a term with given ln size and slopes at the middle of the data; fixed ones as they are."""
    assert term.variable is not None  # a constant has no slopes to start from
    names = term.coefficients
    cx = float(np.mean(np.log(columns[term.variable])))
    ce = float(np.mean(np.log(1.0 + columns["experts"]))) if term.experts else 0.0
    interaction = fixed.get(names[3], 0.0) if term.experts else 0.0
    values: list[Any] = [size, fixed[names[1]] + interaction * ce if names[1] in fixed else slope]
    if term.experts:
        values += [fixed[names[2]] + interaction * cx if names[2] in fixed else by_experts, interaction]
    values = shift(values, -cx, -ce)
    values[0] = np.exp(values[0])
    return {name: np.full(len(size), fixed.get(name, value)) for name, value in zip(names, values, strict=True)}
