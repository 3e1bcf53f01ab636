"""A fit before it runs: objective, box and starts, which fit, bootstrap and profiles share as a `Problem`.

Starts are the grid of Ludziejewski et al. 2025, Appendix "Fit Details" (3⁹ = 19,683 points, made for large language
models), or one laid around the data ("scaled"), in whose coordinates a tiny sweep looks like a large one.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hub.plain.tables import literal
from scaling_law.fitting.objective import Evaluation, Objective, shift
from scaling_law.fitting.solver import Solutions, minimise
from scaling_law.laws import LAWS
from scaling_law.laws.terms import (
    BY_EXPERTS,
    CONSTANT,
    INTERACTION,
    SIZE,
    SLOPE,
    TRANSFORM,
    coefficients_of,
    positive_coefficients,
    roles,
)
from scaling_law.runs.table import Runs

FloatArray = NDArray[np.float64]
Limits = Mapping[str, tuple[float, float]]
U_BOX = (np.log(0.01), np.log(100.0))  # E_start − 1
V_BOX = (np.log(1.0), np.log(1e5))  # E_max − E_start
C_BOX = 1e-6  # smallest c, as a part of the lowest loss
# Keeps degenerate data and resamples from running to infinity: ln of a term's size, slope in ln N or ln D, slope in
# ln Ê and interaction, for centred (True) and plain coordinates.
WIDE_BOX = {True: (50.0, 3.0, 20.0, 3.0), False: (200.0, 3.0, 80.0, 3.0)}

PAPER_GRID: dict[str, tuple[float, ...]] = {
    SIZE: (30.0, 100.0, 300.0),
    SLOPE: (-0.05, -0.25, -0.5),
    BY_EXPERTS: (-0.5, 0.0, 0.5),
    INTERACTION: (-0.5, 0.0, 0.5),
    CONSTANT: (0.5, 1.0, 2.0),
}
PAPER_TRANSFORM = (2.0, 256.0)  # E_start and E_max while the paper's grid is run
SCALED_TRANSFORMS = (PAPER_TRANSFORM, (1.1, 12.0), (1.1, 1e4), (5.0, 40.0), (5.0, 1e4))


@dataclass(frozen=True)
class FitSettings:
    """What was asked of a fit besides the runs."""

    law: str
    huber_delta: float
    l2: float
    weights: str
    fixed: Mapping[str, float]
    bounds: Limits
    starts: str
    outliers: str = "keep"

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {"loss": "huber", "delta": self.huber_delta, "on": "ln L", "aggregation": "sum"}
        found |= {name: getattr(self, name) for name in ("weights", "l2", "fixed", "starts", "outliers")}
        found["bounds"] = {k: [end if np.isfinite(end) else None for end in v] for k, v in self.bounds.items()}
        return found


@dataclass(frozen=True)
class Problem:
    """An objective with its box [p], [p]; made by `make_problem`."""

    objective: Objective
    lower: FloatArray
    upper: FloatArray
    settings: FitSettings
    columns: Mapping[str, FloatArray]

    @property
    def used(self) -> NDArray[np.bool_]:
        """Runs [n] of positive weight."""
        return self.objective.weight > 0

    @property
    def floor(self) -> float:
        """The objective at residuals of 1e-8: decreasing it further means nothing."""
        return 1e-16 * float(self.objective.weight.sum())

    def free(self, theta: FloatArray) -> NDArray[np.bool_]:
        """Parameters [p] that are neither fixed nor at a bound at θ [p]."""
        span = 1e-9 * np.maximum(1.0, np.abs(theta))
        return np.asarray((theta > self.lower + span) & (theta < self.upper - span))

    def with_constant_below(self, loss: float) -> Problem:
        """With `loss` as the upper end of c, unless c was fixed or bounded."""
        free = set(self.objective.constants) - {*self.settings.fixed, *self.settings.bounds}
        here = [name in free for name in self.objective.names]
        return replace(self, upper=np.where(here, np.log(loss), self.upper))

    def without(self, aside: NDArray[np.bool_]) -> Problem:
        """Without the runs of the mask [n]: their weight is 0, and c may lie above their losses."""
        kept = self.used & ~aside
        objective = copy.copy(self.objective)
        objective.weight = np.where(kept, self.objective.weight, 0.0)
        problem = self.with_constant_below(float(self.columns["loss"][kept].min()))
        return replace(problem, objective=objective, settings=replace(self.settings, outliers="set_aside"))

    def solve(
        self, theta: FloatArray, weight: FloatArray | None = None, *, hold_transform: bool = False, **options: Any
    ) -> Solutions:
        """From each θ [S, p], with weights [S, n]; `hold_transform` fixes the E_start and E_max that all θ share."""
        lower, upper = self.lower.copy(), self.upper.copy()
        if hold_transform and self.objective.has_transform:
            lower[-2:] = upper[-2:] = theta[0, -2:]

        def evaluate(points: FloatArray, rows: NDArray[np.int64]) -> Evaluation:
            own = None if weight is None else weight[rows]
            return self.objective.evaluate(points, own, hold_transform=hold_transform)

        return minimise(evaluate, theta, lower, upper, floor=self.floor, **options)


def make_problem(
    runs: Runs,
    law: str,
    huber_delta: float,
    weights: Any,
    l2: float,
    fixed: Mapping[str, float],
    bounds: Limits,
    starts: Any,
) -> Problem:
    """Check the settings; ValueError names the one that is wrong."""
    if not isinstance(law, str) or law not in LAWS:
        raise ValueError(f"law={law!r} must be one of {sorted(LAWS)}")
    huber_delta, l2 = _number("huber_delta", huber_delta), _number("l2", l2)
    if not huber_delta > 0:
        raise ValueError(f"huber_delta={huber_delta!r} must be positive and finite")
    if not l2 >= 0:
        raise ValueError(f"l2={l2!r} must be finite and not negative")
    if starts not in ("scaled", "paper") if isinstance(starts, str) else not isinstance(starts, Sequence):
        raise ValueError(f"starts={starts!r} must be 'scaled', 'paper' or a list of laws")
    name = starts if isinstance(starts, str) else f"{len(starts)} given laws"
    weight, weights_name = _weights(runs, weights)
    limits = _checked_limits(law, fixed, bounds)
    held = {name: low for name, (low, high) in limits.items() if low == high}
    ranges = {name: ends for name, ends in limits.items() if name not in held}
    settings = FitSettings(law, huber_delta, l2, weights_name, held, ranges, name)
    columns = {name: getattr(runs, name) for name in ("n_active", "tokens", "experts", "loss")} | {"weight": weight}
    centred = [term.coefficients[0] for term in LAWS[law].terms if not limits.keys() & set(term.coefficients)]
    objective = Objective(law, columns, huber_delta, l2, centred, held.get("e_max"), "e_max" in ranges)
    return Problem(objective, *_box(objective, limits, runs.loss), settings, columns)


def _number(name: str, value: Any, missing: float | None = None) -> float:
    """A finite number; `missing`, where given, stands for None and is itself allowed."""
    try:
        number = missing if value is None and missing is not None else float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name}={literal(value)} must be a number") from None
    if not np.isfinite(number) and number != missing:
        raise ValueError(f"{name}={literal(value)} must be finite")
    return number


def _weights(runs: Runs, weights: Any) -> tuple[FloatArray, str]:
    if weights is None:
        return np.ones(len(runs)), "equal"
    if isinstance(weights, str) and weights == "inverse_loss":
        return runs.loss.min() / runs.loss, weights
    try:
        array = np.asarray(weights, float)
    except (TypeError, ValueError):
        array = np.zeros(0)
    if array.shape != (len(runs),) or not np.all(np.isfinite(array) & (array >= 0)) or not array.any():
        given = f"={weights!r}" if isinstance(weights, str) else ""
        raise ValueError(f"weights{given} must be 'inverse_loss' or {len(runs)} finite numbers ≥ 0, not all zero")
    return array, "given"


def _checked_limits(law: str, fixed: Mapping[str, float], bounds: Limits) -> dict[str, tuple[float, float]]:
    """(low, high) of each coefficient in `bounds` and, low = high, in `fixed`; an open end is infinite."""
    names, positive = coefficients_of(LAWS[law].terms), positive_coefficients(LAWS[law].terms)
    limits: dict[str, tuple[float, float]] = {}
    for setting, given in (("fixed", fixed), ("bounds", bounds)):
        for name, value in given.items():
            label = f"{setting}: {name}"
            if name not in names:
                raise ValueError(f"{setting}: {name!r} is not a coefficient of the {law} law: {', '.join(names)}")
            if setting == "fixed":
                low = high = _number(label, value)
                shown = repr(low)
            elif not isinstance(value, (tuple, list, np.ndarray)) or len(value) != 2:
                raise ValueError(f"{label}={literal(value)} must be a pair (low, high)")
            else:
                low, high = _number(label, value[0], -np.inf), _number(label, value[1], np.inf)
                shown = repr((low, high))
            floor = 0.0 if name in positive else 1.0 if name in TRANSFORM else -np.inf
            low = -np.inf if low == floor else low
            if not low <= high:
                raise ValueError(f"{label}={shown} must be ordered, low ≤ high")
            if high <= floor or (np.isfinite(low) and low <= floor):
                raise ValueError(f"{label}={shown} must be {'positive' if floor == 0.0 else f'above {floor:g}'}")
            if name in limits and not low <= limits[name][0] <= high:
                raise ValueError(f"fixed: {name}={limits[name][0]!r} lies outside its bounds {low, high}")
            limits.setdefault(name, (low, high))
    start, top = (limits.get(name, (-np.inf, np.inf)) for name in TRANSFORM)
    if start[0] >= top[1]:
        raise ValueError(f"e_start={start[0]!r} must be below e_max={top[1]!r}")
    return limits


def _box(objective: Objective, limits: Limits, losses: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The box [p], [p] of θ, with defaults for open ends."""
    terms = zip(objective.terms, objective.centre_x, strict=True)
    upper = np.concatenate([WIDE_BOX[cx != 0.0][: len(t.coefficients)] for t, cx in terms])
    upper = np.append(upper, [np.inf] * (objective.size - len(upper)))
    lower = -upper
    lowest, highest = (float(losses.min()), float(losses.max())) if len(losses) else (1.0, np.inf)
    for i, name in enumerate(objective.names):
        if name in TRANSFORM:
            continue
        low, high = limits.get(name, (-np.inf, np.inf))
        if name in objective.constants:
            lower[i], upper[i] = np.log([C_BOX * lowest, lowest])
            if low >= highest:
                what = f"{'fixed' if low == high else 'bounds'}: {name}={low:g}"
                losses_of = f"the losses of the runs, {lowest:g} to {highest:g} nats per token"
                raise ValueError(f"{what} must be below {losses_of}")
        for side, end in ((lower, low), (upper, high)):
            if np.isfinite(end):
                side[i] = np.log(end) if name in objective.positive else end
        if lower[i] > upper[i]:
            raise ValueError(f"bounds: {name}={limits[name]} has an open end where one is needed: give both")
    if objective.has_transform:
        lower[-2:], upper[-2:] = _transform_box(objective, limits)
    return lower, upper


def _transform_box(objective: Objective, limits: Limits) -> tuple[FloatArray, FloatArray]:
    """The box of (u, v), where E_start stays below all that E_max may be."""
    low, high = 1.0 + np.exp(np.array(U_BOX))
    start = limits.get("e_start", (low, high))
    start = (start[0] if np.isfinite(start[0]) else low, start[1] if np.isfinite(start[1]) else max(high, start[0]))
    box_v = np.array(V_BOX)
    if objective.e_max is not None:
        start, box_v = (start[0], min(start[1], objective.e_max * (1 - 1e-6))), np.zeros(2)
    elif objective.e_max_alone:
        least, most = limits["e_max"]
        least = max(least, start[0] * (1 + 1e-6))
        most = most if np.isfinite(most) else max(1e5, 2.0 * least)
        start, box_v = (start[0], min(start[1], least * (1 - 1e-6))), np.log(np.array([least, most]) - 1.0)
    if not 1.0 < start[0] <= start[1] or box_v[0] > box_v[1]:
        raise ValueError(f"e_start={start[0]:g} must be above 1 and below e_max")
    box_u = np.log(np.array(start) - 1.0)
    return np.array([box_u[0], box_v[0]]), np.array([box_u[1], box_v[1]])


def start_points(problem: Problem, starts: Any) -> FloatArray:
    """θ [S, p], inside the box."""
    objective, fixed = problem.objective, problem.settings.fixed
    transforms: tuple[tuple[float, float], ...] = ()
    if starts == "paper":
        choices = {name: fixed.get(name, PAPER_GRID[role]) for name, role in roles(objective.terms).items()}
        coefficients, transforms = _grid(choices), (PAPER_TRANSFORM,)
    elif starts == "scaled":
        coefficients, transforms = _scaled_starts(objective, problem.columns, fixed), SCALED_TRANSFORMS
    else:
        wrong = [law for law in starts if not isinstance(law, LAWS[objective.law])]
        if wrong or not len(starts):
            raise ValueError(f"starts must be laws of kind {objective.law!r}, got {wrong[0] if wrong else 'none'!r}")
        coefficients = {name: np.array([law.coefficients[name] for law in starts]) for name in objective.names}
    if objective.has_transform and transforms:
        pairs = np.array(list(dict.fromkeys(_start_transform(fixed, *pair) for pair in transforms)))
        count = len(next(iter(coefficients.values())))
        coefficients = {name: np.tile(values, len(pairs)) for name, values in coefficients.items()}
        coefficients |= dict(zip(TRANSFORM, np.repeat(pairs, count, axis=0).T, strict=True))
    return np.clip(objective.from_coefficients(coefficients), problem.lower, problem.upper)


def _grid(choices: Mapping[str, Any]) -> dict[str, FloatArray]:
    """All combinations of the choices, each name as an array [S]."""
    table = np.array(list(product(*(np.atleast_1d(values) for values in choices.values()))))
    return dict(zip(choices, table.T, strict=True))


def _start_transform(fixed: Mapping[str, float], e_start: float, e_max: float) -> tuple[float, float]:
    """A start for (E_start, E_max) that respects what is fixed and keeps their order."""
    if "e_max" in fixed:
        e_max = fixed["e_max"]
        e_start = min(e_start, 0.5 * (1.0 + e_max))
    if "e_start" in fixed:
        e_start = fixed["e_start"]
        e_max = fixed.get("e_max", max(e_max, 2.0 * e_start))
    return e_start, e_max


def _scaled_starts(
    objective: Objective, columns: Mapping[str, FloatArray], fixed: Mapping[str, float]
) -> dict[str, FloatArray]:
    """A grid around the data: coefficients as arrays [S].

    The median loss is split into a constant and the terms, each with a falling slope in its variable and a small slope
    of either sign in ln Ê.
    """
    middle = float(np.exp(np.median(np.log(columns["loss"]))))
    powers = [term for term in objective.terms if term.variable]
    choices: dict[str, Any] = {
        "floor": (0.05, 0.5, 0.85) if objective.constants else 0.0,  # the constant, as a part of the lowest loss
        "share": (0.2, 0.5, 0.8) if len(powers) > 1 else 1.0,  # the first term's part of the rest
    }
    for i, term in enumerate(powers):
        choices |= {f"slope{i}": (-0.1, -0.4), f"experts{i}": (-0.2, 0.2) if term.experts else 0.0}
    at = _grid(choices)
    found = {name: np.full_like(at["floor"], fixed[name]) for name in objective.constants if name in fixed}
    found |= {name: at["floor"] * columns["loss"].min() for name in objective.constants if name not in fixed}
    rest = np.maximum(middle - sum(found.values()), 0.02 * middle)
    for i, term in enumerate(powers):
        names, size = term.coefficients, rest * (at["share"] if i == 0 else (1.0 - at["share"]) / (len(powers) - 1))
        cx = float(np.mean(np.log(columns[str(term.variable)])))
        ce = float(np.mean(np.log(1.0 + columns["experts"]))) if term.experts else 0.0
        interaction = fixed.get(names[3], 0.0) if term.experts else 0.0
        values: list[Any] = [np.log(size), at[f"slope{i}"]]
        if names[1] in fixed:  # as a slope at the middle
            values[1] = fixed[names[1]] + interaction * ce
        if term.experts:
            by_experts = fixed[names[2]] + interaction * cx if names[2] in fixed else at[f"experts{i}"]
            values += [by_experts, interaction]
        values = shift(values, -cx, -ce)
        values[0] = np.exp(values[0])
        found |= {name: np.full(len(size), fixed.get(name, v)) for name, v in zip(names, values, strict=True)}
    return found
