"""A fit before it runs: the objective of the runs, the box of the parameters, and where to start.

`Problem` holds all that a solver needs; the fit, the bootstrap and the profiles share it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from scaling_law.laws import LAWS
from scaling_law.objective import Objective
from scaling_law.runs import Runs
from scaling_law.solver import Solutions, minimise
from scaling_law.starts import paper_starts, scaled_starts
from scaling_law.terms import TRANSFORM

if TYPE_CHECKING:
    from scaling_law.objective import Evaluation

FloatArray = NDArray[np.float64]
U_BOX = (np.log(0.01), np.log(100.0))  # E_start − 1
V_BOX = (np.log(1.0), np.log(1e5))  # E_max − E_start
C_BOX = 1e-6  # smallest c, as a part of the lowest loss
# Far outside anything sensible; they only keep degenerate data (and resamples) from running to infinity. In the
# order of a term's parameters: ln of its size, slope in ln N or ln D, slope in ln Ê, interaction; centred, and as
# they are.
WIDE_BOX = {True: (50.0, 3.0, 20.0, 3.0), False: (200.0, 3.0, 80.0, 3.0)}


@dataclass(frozen=True)
class FitSettings:
    """What was asked of a fit besides the runs; kept, so that a bootstrap repeats the same fit."""

    law: str
    huber_delta: float
    l2: float
    weights: str
    fixed: Mapping[str, float]
    bounds: Mapping[str, tuple[float, float]]
    starts: str
    outliers: str = "keep"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, as a law stores them."""
        return {
            "loss": "huber",
            "delta": self.huber_delta,
            "on": "ln L",
            "aggregation": "sum",
            "weights": self.weights,
            "l2": self.l2,
            "fixed": dict(self.fixed),
            "bounds": {k: list(v) for k, v in self.bounds.items()},
            "starts": self.starts,
            "outliers": self.outliers,
        }


@dataclass(frozen=True)
class Problem:
    """An objective with its box: all that a solver needs. Made by `make_problem`, reused by the bootstrap."""

    objective: Objective
    lower: FloatArray
    upper: FloatArray
    settings: FitSettings
    columns: Mapping[str, FloatArray]

    @property
    def floor(self) -> float:
        """An objective so small (residuals of 1e-8) that decreasing it further means nothing."""
        return 1e-16 * float(self.objective.weight.sum())

    def with_constant_below(self, loss: float) -> Problem:
        """The same problem with `loss` as the upper end of its constant c, unless c has been fixed or bounded."""
        upper = self.upper.copy()
        for i, name in enumerate(self.objective.names):
            if name in self.objective.constants and name not in {**self.settings.fixed, **self.settings.bounds}:
                upper[i] = np.log(loss)
        return replace(self, upper=upper)

    def without(self, aside: NDArray[np.bool_]) -> Problem:
        """The same problem with the runs of the mask [n] set aside: their weight is 0, and c need not lie below them.

        Their losses no longer limit the constant; the other runs' do.
        """
        kept = (self.objective.weight > 0) & ~aside
        objective = copy.copy(self.objective)
        objective.weight = np.where(kept, self.objective.weight, 0.0)
        problem = self.with_constant_below(float(self.columns["loss"][kept].min()))
        return replace(problem, objective=objective, settings=replace(self.settings, outliers="set_aside"))

    def solve(self, theta: FloatArray, weight: FloatArray | None = None, **options: Any) -> Solutions:
        """From each θ [S, p]; `weight` [S, n] replaces the runs' weights."""

        def evaluate(points: FloatArray, rows: NDArray[np.int64]) -> Evaluation:
            return self.objective.evaluate(points, None if weight is None else weight[rows])

        return minimise(evaluate, theta, self.lower, self.upper, floor=self.floor, **options)


def make_problem(
    runs: Runs,
    law: str,
    huber_delta: float,
    weights: Any,
    l2: float,
    fixed: Mapping[str, float],
    bounds: Mapping[str, tuple[float, float]],
    starts: Any,
) -> Problem:
    """Check the settings and set up objective and box. ValueError naming the setting."""
    if law not in LAWS:
        raise ValueError(f"law={law!r} must be one of {sorted(LAWS)}")
    if not (np.isfinite(huber_delta) and huber_delta > 0):
        raise ValueError(f"huber_delta={huber_delta!r} must be positive and finite")
    if not (np.isfinite(l2) and l2 >= 0):
        raise ValueError(f"l2={l2!r} must be finite and not negative")
    if isinstance(starts, str) and starts not in ("scaled", "paper"):
        raise ValueError(f"starts={starts!r} must be 'scaled', 'paper' or a list of laws")
    row_weights, weights_name = _weights(runs, weights)
    columns = {"n_active": runs.n_active, "tokens": runs.tokens, "experts": runs.experts, "loss": runs.loss}
    columns["weight"] = row_weights
    touched = {*fixed, *bounds}
    centred = [term.coefficients[0] for term in LAWS[law].terms if not touched & set(term.coefficients)]
    objective = Objective(law, columns, huber_delta, l2, centred, e_max=fixed.get("e_max"))
    lower, upper = _box(objective, fixed, bounds, float(runs.loss.min()) if len(runs) else 1.0)
    name = starts if isinstance(starts, str) else f"{len(starts)} given laws"
    settings = FitSettings(law, huber_delta, l2, weights_name, dict(fixed), dict(bounds), name)
    return Problem(objective, lower, upper, settings, columns)


def _weights(runs: Runs, weights: Any) -> tuple[FloatArray, str]:
    if weights is None:
        return np.ones(len(runs)), "equal"
    if isinstance(weights, str):
        if weights != "inverse_loss":
            raise ValueError(f"weights={weights!r} must be 'inverse_loss', an array of length {len(runs)}, or None")
        return runs.loss.min() / runs.loss, weights
    array = np.asarray(weights, float)
    if array.shape != (len(runs),) or not np.all(np.isfinite(array) & (array >= 0)) or not array.any():
        raise ValueError(f"weights must be {len(runs)} finite numbers ≥ 0, not all zero")
    return array, "given"


def _box(
    objective: Objective, fixed: Mapping[str, float], bounds: Mapping[str, tuple[float, float]], lowest_loss: float
) -> tuple[FloatArray, FloatArray]:
    wide = np.concatenate(
        [WIDE_BOX[cx != 0.0][: len(t.coefficients)] for t, cx in zip(objective.terms, objective.centre_x, strict=True)]
    )
    upper = np.append(wide, [np.inf] * (objective.size - len(wide)))
    lower = -upper
    constants = [term.coefficients[0] for term in objective.terms if term.variable is None]
    limits = dict.fromkeys(constants, (C_BOX * lowest_loss, lowest_loss)) | dict(bounds)
    limits |= {name: (value, value) for name, value in fixed.items()}
    if "e_max" in bounds:
        raise ValueError("bounds: e_max cannot be bounded; fix it with fixed={'e_max': ...} or bound e_start")
    for name, (low, high) in limits.items():
        if name not in objective.names:
            raise ValueError(
                f"{'fixed' if name in fixed else 'bounds'}: {name!r} is not one of {list(objective.names)}"
            )
        if not (np.isfinite(low) and np.isfinite(high) and low <= high) or (name in objective.positive and low <= 0):
            raise ValueError(
                f"{name}: ({low!r}, {high!r}) must be finite, ordered{', positive' * (name in objective.positive)}"
            )
    for i, name in enumerate(objective.names):
        if name in TRANSFORM:
            lower[i], upper[i] = U_BOX if name == "e_start" else V_BOX
        if name == "e_max" and name in fixed:
            if not fixed[name] > 1.0 + np.exp(U_BOX[0]):
                raise ValueError(f"fixed: e_max={fixed[name]!r} must be above 1.01")
            lower[i] = upper[i] = 0.0
            upper[i - 1] = min(upper[i - 1], np.log((fixed[name] - 1.0) * (1 - 1e-6)))
    for i, name in enumerate(objective.names):
        if name == "e_start" and name in limits:
            if not 1.0 < limits[name][0] <= limits[name][1] < fixed.get("e_max", np.inf):
                raise ValueError(f"e_start: {limits[name]} must be above 1 and below e_max")
            lower[i], upper[i] = np.log(np.array(limits[name]) - 1.0)
        elif name in limits and name not in TRANSFORM:
            lower[i], upper[i] = np.log(limits[name]) if name in objective.positive else limits[name]
    return lower, upper


def start_points(problem: Problem, starts: Any) -> FloatArray:
    """θ [S, p] of the starts asked for, inside the box."""
    objective, fixed = problem.objective, problem.settings.fixed
    if starts == "paper":
        theta = objective.from_coefficients(paper_starts(objective.law, fixed))
    elif isinstance(starts, str):
        theta = objective.from_coefficients(scaled_starts(objective, problem.columns, fixed))
    else:
        wrong = [law for law in starts if not isinstance(law, LAWS[objective.law])]
        if wrong or not len(starts):
            raise ValueError(f"starts must be laws of kind {objective.law!r}, got {wrong[:1] or 'none'}")
        theta = np.stack([objective.from_coefficients(law.coefficients) for law in starts])
    return np.clip(np.atleast_2d(theta), problem.lower, problem.upper)
