"""A fit before it runs: the objective of the runs, the box of the parameters, and where to start.

`Problem` holds all that a solver needs; the fit, the bootstrap and the profiles share it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hub.plain.tables import literal
from scaling_law.fitting.objective import Evaluation, Objective
from scaling_law.fitting.solver import Solutions, minimise
from scaling_law.fitting.starts import paper_starts, scaled_starts
from scaling_law.laws import LAWS
from scaling_law.laws.terms import TRANSFORM, coefficients_of, positive_coefficients
from scaling_law.runs.table import Runs

FloatArray = NDArray[np.float64]
Limits = Mapping[str, tuple[float, float]]
U_BOX = (np.log(0.01), np.log(100.0))  # E_start − 1
V_BOX = (np.log(1.0), np.log(1e5))  # E_max − E_start
C_BOX = 1e-6  # smallest c, as a part of the lowest loss
# Far outside anything sensible: these bounds only keep degenerate data (and resamples) from running to infinity. In
# the order of a term's parameters (ln of its size, slope in ln N or ln D, slope in ln Ê, interaction), for centred
# and for plain coordinates.
WIDE_BOX = {True: (50.0, 3.0, 20.0, 3.0), False: (200.0, 3.0, 80.0, 3.0)}


@dataclass(frozen=True)
class FitSettings:
    """What was asked of a fit besides the runs; kept, so that a bootstrap repeats the same fit."""

    law: str
    huber_delta: float
    l2: float
    weights: str
    fixed: Mapping[str, float]
    bounds: Limits
    starts: str
    outliers: str = "keep"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, as a law stores them."""
        named = {name: getattr(self, name) for name in ("weights", "l2", "fixed", "starts", "outliers")}
        bounds = {k: [end if np.isfinite(end) else None for end in v] for k, v in self.bounds.items()}
        objective = {"loss": "huber", "delta": self.huber_delta, "on": "ln L", "aggregation": "sum"}
        return objective | named | {"bounds": bounds}


@dataclass(frozen=True)
class Problem:
    """An objective with its box: all that a solver needs. Made by `make_problem`, reused by the bootstrap."""

    objective: Objective
    lower: FloatArray
    upper: FloatArray
    settings: FitSettings
    columns: Mapping[str, FloatArray]

    @property
    def used(self) -> NDArray[np.bool_]:
        """Which runs [n] are fitted: those of positive weight."""
        return self.objective.weight > 0

    @property
    def floor(self) -> float:
        """An objective so small (residuals of 1e-8) that decreasing it further means nothing."""
        return 1e-16 * float(self.objective.weight.sum())

    def free(self, theta: FloatArray) -> NDArray[np.bool_]:
        """Which parameters [p] may move both ways from θ [p]: neither fixed nor at a bound."""
        span = 1e-9 * np.maximum(1.0, np.abs(theta))
        return np.asarray((theta > self.lower + span) & (theta < self.upper - span))

    def with_constant_below(self, loss: float) -> Problem:
        """The same problem with `loss` as the upper end of its constant c, unless c has been fixed or bounded."""
        upper = self.upper.copy()
        for i, name in enumerate(self.objective.names):
            if name in self.objective.constants and name not in {**self.settings.fixed, **self.settings.bounds}:
                upper[i] = np.log(loss)
        return replace(self, upper=upper)

    def without(self, aside: NDArray[np.bool_]) -> Problem:
        """The same problem without the runs of the mask [n]: their weight is 0, and c may lie above their losses."""
        kept = self.used & ~aside
        objective = copy.copy(self.objective)
        objective.weight = np.where(kept, self.objective.weight, 0.0)
        problem = self.with_constant_below(float(self.columns["loss"][kept].min()))
        return replace(problem, objective=objective, settings=replace(self.settings, outliers="set_aside"))

    def solve(
        self, theta: FloatArray, weight: FloatArray | None = None, *, hold_transform: bool = False, **options: Any
    ) -> Solutions:
        """From each θ [S, p]; `weight` [S, n] replaces the runs' weights.

        `hold_transform` keeps E_start and E_max, which all θ share, where they are.
        """
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
    """Check the settings and set up objective and box. ValueError naming the setting."""
    if not isinstance(law, str) or law not in LAWS:
        raise ValueError(f"law={law!r} must be one of {sorted(LAWS)}")
    huber_delta, l2 = _number("huber_delta", huber_delta), _number("l2", l2)
    if not huber_delta > 0:
        raise ValueError(f"huber_delta={huber_delta!r} must be positive and finite")
    if not l2 >= 0:
        raise ValueError(f"l2={l2!r} must be finite and not negative")
    name = starts if isinstance(starts, str) else f"{len(starts)} given laws" if isinstance(starts, Sequence) else ""
    if not name or (isinstance(starts, str) and starts not in ("scaled", "paper")):
        raise ValueError(f"starts={starts!r} must be 'scaled', 'paper' or a list of laws")
    weight, weights_name = _weights(runs, weights)
    settings = FitSettings(law, huber_delta, l2, weights_name, *_checked_limits(law, fixed, bounds), name)
    columns = {name: getattr(runs, name) for name in ("n_active", "tokens", "experts", "loss")} | {"weight": weight}
    touched = {*settings.fixed, *settings.bounds}
    centred = [term.coefficients[0] for term in LAWS[law].terms if not touched & set(term.coefficients)]
    e_max, e_max_alone = settings.fixed.get("e_max"), "e_max" in settings.bounds
    objective = Objective(law, columns, huber_delta, l2, centred, e_max, e_max_alone)
    return Problem(objective, *_box(objective, settings, runs.loss), settings, columns)


def _number(name: str, value: Any, missing: float | None = None) -> float:
    """A finite number; `missing`, where given, for None or an infinity of its sign."""
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
    if isinstance(weights, str):
        if weights != "inverse_loss":
            raise ValueError(f"weights={weights!r} must be 'inverse_loss', an array of length {len(runs)}, or None")
        return runs.loss.min() / runs.loss, weights
    try:
        array = np.asarray(weights, float)
    except (TypeError, ValueError):
        array = np.zeros(0)
    if array.shape != (len(runs),) or not np.all(np.isfinite(array) & (array >= 0)) or not array.any():
        raise ValueError(f"weights must be 'inverse_loss' or {len(runs)} finite numbers ≥ 0, not all zero")
    return array, "given"


def _checked_limits(
    law: str, fixed: Mapping[str, float], bounds: Limits
) -> tuple[dict[str, float], dict[str, tuple[float, float]]]:
    """`fixed` and `bounds` as plain numbers: bounds that leave one value fix it, what is fixed needs no bounds.

    ValueError naming the setting, the coefficient and what is allowed.
    """
    names, positive = coefficients_of(LAWS[law].terms), positive_coefficients(LAWS[law].terms)
    limits: dict[str, tuple[float, float]] = {}
    for setting, given in (("fixed", fixed), ("bounds", bounds)):
        for name, value in given.items():
            if name not in names:
                raise ValueError(f"{setting}: {name!r} is not a coefficient of the {law} law: {', '.join(names)}")
            floor = 0.0 if name in positive else 1.0 if name in TRANSFORM else -np.inf
            low, high = _ends(setting, name, value, floor)
            if name in limits and not low <= limits[name][0] <= high:
                raise ValueError(f"fixed: {name}={limits[name][0]!r} lies outside its bounds {low, high}")
            limits.setdefault(name, (low, high))
    start, top = (limits.get(name, (-np.inf, np.inf)) for name in TRANSFORM)
    if start[0] >= top[1]:
        raise ValueError(f"e_start={start[0]!r} must be below e_max={top[1]!r}")
    held = {name: low for name, (low, high) in limits.items() if low == high}
    return held, {name: ends for name, ends in limits.items() if name not in held}


def _ends(setting: str, name: str, value: Any, floor: float) -> tuple[float, float]:
    """(low, high) of a coefficient that must lie above `floor`; equal for one that is fixed."""
    label = f"{setting}: {name}"
    if setting == "fixed":
        low = high = _number(label, value)
        shown = repr(low)
    else:
        pair = value.tolist() if isinstance(value, np.ndarray) else value
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise ValueError(f"{label}={literal(value)} must be a pair (low, high)")
        low, high = _number(label, pair[0], -np.inf), _number(label, pair[1], np.inf)
        low = -np.inf if low == floor else low
        shown = f"({low!r}, {high!r})"
    if not low <= high:
        raise ValueError(f"{label}={shown} must be ordered, low ≤ high")
    if high <= floor or (np.isfinite(low) and low <= floor):
        raise ValueError(f"{label}={shown} must be {'positive' if floor == 0.0 else f'above {floor:g}'}")
    return low, high


def _box(objective: Objective, settings: FitSettings, losses: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The box [p], [p] of θ: defaults where nothing is asked or an end is left open."""
    terms = zip(objective.terms, objective.centre_x, strict=True)
    upper = np.concatenate([WIDE_BOX[cx != 0.0][: len(t.coefficients)] for t, cx in terms])
    upper = np.append(upper, [np.inf] * (objective.size - len(upper)))
    lower = -upper
    limits = {**settings.bounds, **{name: (value, value) for name, value in settings.fixed.items()}}
    lowest, highest = (float(losses.min()), float(losses.max())) if len(losses) else (1.0, np.inf)
    for i, name in enumerate(objective.names):
        if name in TRANSFORM:
            continue
        if name in objective.constants:
            lower[i], upper[i] = np.log([C_BOX * lowest, lowest])
            if name in limits and limits[name][0] >= highest:
                what = f"{'fixed' if name in settings.fixed else 'bounds'}: {name}={limits[name][0]:g}"
                span = f"{lowest:g} to {highest:g} nats per token"
                raise ValueError(f"{what} must be below the losses of the runs, {span}")
        for side, end in zip((lower, upper), limits.get(name, ()), strict=False):
            if np.isfinite(end):
                side[i] = np.log(end) if name in objective.positive else end
        if lower[i] > upper[i]:
            raise ValueError(f"bounds: {name}={limits[name]} has an open end where one is needed: give both")
    if objective.has_transform:
        lower[-2:], upper[-2:] = _transform_box(objective, limits)
    return lower, upper


def _transform_box(objective: Objective, limits: Limits) -> tuple[FloatArray, FloatArray]:
    """The box of (u, v): 1 < E_start < E_max, E_start below all that E_max may be."""
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
    """θ [S, p] of the starts asked for, inside the box."""
    objective, fixed = problem.objective, problem.settings.fixed
    if starts == "paper":
        coefficients: Any = paper_starts(objective.law, fixed)
    elif starts == "scaled":
        coefficients = scaled_starts(objective, problem.columns, fixed)
    else:
        wrong = [law for law in starts if not isinstance(law, LAWS[objective.law])]
        if wrong or not len(starts):
            raise ValueError(f"starts must be laws of kind {objective.law!r}, got {wrong[0] if wrong else 'none'!r}")
        names = objective.names
        coefficients = {name: np.array([law.coefficients[name] for law in starts]) for name in names}
    return np.clip(objective.from_coefficients(coefficients), problem.lower, problem.upper)
