"""A fit before it runs: objective, box and starts, which fit and bootstrap share as a `Problem`.

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

from hub.base.errors import InputError, unknown
from hub.base.inputs import numbers_of
from hub.base.tables import literal
from scaling_law.fitting.objective import Evaluation, FitSettings, Limits, Objective
from scaling_law.fitting.solver import Solutions, minimise
from scaling_law.formulas.terms import (
    BY_DESIGN,
    CONSTANT,
    INTERACTION,
    OUTER,
    SIZE,
    SLOPE,
    TRANSFORM,
    Form,
    Term,
    derivative,
    total,
)
from scaling_law.law import LAWS, Law
from scaling_law.runs.table import Runs, RunsError
from scaling_law.runs.thinning import spread_evenly
from scaling_law.size.arrays import FloatArray

BATCH = 128  # starts solved together: arrays of 128 × runs stay in the processor's cache
CELLS = 1_000_000  # starts × runs, at most, that are solved together
C_BOX = 1e-6  # smallest c, as a part of the lowest loss
# Keeps degenerate data and resamples from running to infinity, for coefficients of centred (True) and plain features:
# of the logarithms of scales and outer exponents, else of the coefficients themselves.
WIDE_BOX = {
    True: {SIZE: 50.0, CONSTANT: 50.0, SLOPE: 3.0, BY_DESIGN: 20.0, INTERACTION: 3.0, OUTER: 5.0},
    False: {SIZE: 200.0, CONSTANT: 200.0, SLOPE: 3.0, BY_DESIGN: 80.0, INTERACTION: 3.0, OUTER: 5.0},
}

PAPER_GRID: dict[str, tuple[float, ...]] = {
    SIZE: (30.0, 100.0, 300.0),
    SLOPE: (-0.05, -0.25, -0.5),
    BY_DESIGN: (-0.5, 0.0, 0.5),
    INTERACTION: (-0.5, 0.0, 0.5),
    CONSTANT: (0.5, 1.0, 2.0),
    OUTER: (1.0,),
}
SCALED_SLOPES = {SLOPE: (-0.1, -0.4), BY_DESIGN: (-0.2, 0.2), INTERACTION: (0.0,)}


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
    def measured(self) -> NDArray[np.bool_]:
        """Runs [n] of positive weight whose loss the law should meet, not only stay below."""
        return self.used & ~self.objective.one_sided

    @property
    def floor(self) -> float:
        """The objective at residuals of 1e-8: decreasing it further means nothing."""
        return 1e-16 * float(self.objective.weight.sum())

    def free(self, theta: FloatArray) -> NDArray[np.bool_]:
        """Parameters [p] that are neither fixed nor at a bound at θ [p]."""
        span = 1e-9 * np.maximum(1.0, np.abs(theta))
        return np.asarray((theta > self.lower + span) & (theta < self.upper - span))

    def with_constant_below(self, loss: float) -> Problem:
        """The problem with `loss` as the upper end of c, unless c was fixed or bounded."""
        free = {*self.objective.constants} - {*self.settings.fixed, *self.settings.bounds}
        here = [name in free for name in self.objective.names]
        return replace(self, upper=np.where(here, np.log(loss), self.upper))

    def sample(self, most: int) -> Problem:
        """The problem of at most about `most` of the runs used, spread evenly over models, with all extremes.

        Bounds stay those of all runs. The problem itself where it has no more runs than that.
        """
        used = np.flatnonzero(self.used)
        if len(used) <= most:
            return self
        rows = used[spread_evenly([column[used] for column in self.columns.values()], most)]
        columns = {name: column[rows] for name, column in self.columns.items()}
        return replace(self, objective=self.objective.of_rows(rows), columns=columns)

    def without(self, aside: NDArray[np.bool_]) -> Problem:
        """The problem without the runs of the mask [n]: their weight is 0, and c may lie above their losses."""
        kept = self.used & ~aside
        objective = copy.copy(self.objective)
        objective.weight = np.where(kept, self.objective.weight, 0.0)
        problem = self.with_constant_below(float(self.columns["loss"][kept].min()))
        return replace(problem, objective=objective, settings=replace(self.settings, outliers="set_aside"))

    def solve(
        self, theta: FloatArray, weight: FloatArray | None = None, *, hold_transform: bool = False, **options: Any
    ) -> Solutions:
        """Minimise from each θ [S, p], with weights [S, n].

        `hold_transform` fixes the E_start and E_max that all θ share.
        """
        lower, upper = self.lower.copy(), self.upper.copy()
        if hold_transform:
            last = slice(self.objective.first_transform, None)
            lower[last] = upper[last] = theta[0, last]

        def evaluate(points: FloatArray, rows: NDArray[np.int64]) -> Evaluation:
            weights = None if weight is None else weight[rows]
            return self.objective.evaluate(points, weights, hold_transform=hold_transform, rows=rows)

        solutions = minimise(evaluate, theta, lower, upper, floor=self.floor, **options)
        if not self.settings.tied:
            return solutions
        return replace(solutions, theta=solutions.theta @ self.objective.carry.T)

    @property
    def batch(self) -> int:
        """How many starts to solve together: their arrays of starts × runs stay small."""
        return int(np.clip(CELLS // max(len(self.objective.target), 1), 1, BATCH))


def make_problem(
    runs: Runs,
    law: str,
    huber_delta: float = 0.01,
    weights: Any = None,
    l2: float = 0.0,
    fixed: Mapping[str, float | str] | None = None,
    bounds: Limits | None = None,
    starts: Any = "scaled",
    one_sided: Any = None,
) -> Problem:
    """Check the settings; ValueError names the one that is wrong."""
    if not isinstance(law, str) or law not in LAWS:
        raise InputError(unknown("kind=", law, sorted(LAWS)))
    if not LAWS[law].form.terms:
        raise InputError(f"kind={law!r} is not a sum of terms, so it cannot be fitted")
    huber_delta, l2 = _number("huber_delta", huber_delta), _number("l2", l2)
    if not huber_delta > 0:
        raise InputError(f"huber_delta={huber_delta!r} must be positive and finite")
    if not l2 >= 0:
        raise InputError(f"l2={l2!r} must be finite and not negative")
    if starts not in ("scaled", "paper") if isinstance(starts, str) else not isinstance(starts, Sequence):
        raise InputError(f"starts={starts!r} must be 'scaled', 'paper' or a list of laws")
    name = starts if isinstance(starts, str) else f"{len(starts)} given laws"
    weight, weights_name = _weights(runs, weights)
    bound = _one_sided(runs, one_sided)
    numbers, ties = _split_ties(LAWS[law].form, fixed or {}, bounds or {})
    limits = _checked_limits(law, numbers, bounds or {})
    held = {name: low for name, (low, high) in limits.items() if low == high}
    ranges = {name: ends for name, ends in limits.items() if name not in held}
    settings = FitSettings(
        law, huber_delta, l2, weights_name, held, ranges, name, one_sided=int(bound.sum()), tied=ties
    )
    variables = variables_of(runs, LAWS[law])
    columns = {name: runs.positive(name) for name in (*variables, "loss")} | {"weight": weight}
    objective = Objective(settings, columns, bound)
    return Problem(objective, *_box(objective, limits, runs.loss), settings, columns)


def variables_of(runs: Runs, law: Law | type[Law]) -> tuple[str, ...]:
    """The columns that a law reads. RunsError for one that the runs do not have."""
    if missing := [name for name in law.form.variables if name not in runs]:
        raise RunsError(f"{runs.source}: the {law.name} law reads {', '.join(missing)}, which these runs do not have")
    return law.form.variables


def _number(name: str, value: Any, missing: float | None = None, or_one_of: Sequence[str] = ()) -> float:
    """A finite number; `missing`, where given, stands for None and is itself allowed."""
    try:
        number = missing if value is None and missing is not None else float(value)
    except (TypeError, ValueError):
        also = f", or one of {', '.join(or_one_of)}" if or_one_of and isinstance(value, str) else ""
        raise InputError(f"{name}={literal(value)} must be a number{also}") from None
    if not np.isfinite(number) and number != missing:
        raise InputError(f"{name}={literal(value)} must be finite")
    return number


def _weights(runs: Runs, weights: Any) -> tuple[FloatArray, str]:
    if weights is None:
        return np.ones(len(runs)), "equal"
    if isinstance(weights, str) and weights == "inverse_loss":
        return runs.loss.min() / runs.loss, weights
    named = isinstance(weights, str)
    if named and weights not in runs.columns:
        raise InputError(unknown("weights=", weights, ["inverse_loss", *runs.columns]))
    try:
        array = np.asarray(runs.columns[weights] if named else weights, float)
    except (TypeError, ValueError, OverflowError):
        array = np.zeros(0)
    if array.shape != (len(runs),) or not np.all(np.isfinite(array) & (array >= 0)) or not array.any():
        label = f"={weights!r}" if named else ""
        allowed = f"'inverse_loss', or a column or list of {len(runs)} finite numbers ≥ 0, not all zero"
        raise InputError(f"weights{label} must be {allowed}")
    return array, weights if named else "given"


def _one_sided(runs: Runs, one_sided: Any) -> NDArray[np.bool_]:
    """The mask [n] of the runs that are upper bounds: given as such, or as the column that is 1 for them, else 0."""
    if one_sided is None:
        return np.zeros(len(runs), bool)
    label = f"={one_sided!r}" if isinstance(one_sided, str) else ""
    mask = runs.column(one_sided) if isinstance(one_sided, str) else numbers_of("one_sided", one_sided)
    if mask.shape != (len(runs),) or not np.isin(mask, (0, 1)).all():
        raise InputError(f"one_sided{label} must be {len(runs)} values true or false, or the name of such a column")
    if mask.all():
        raise InputError(f"one_sided{label}: all {len(runs)} runs are upper bounds; at least one must not be")
    return mask.astype(bool)


def _split_ties(
    form: Form, fixed: Mapping[str, float | str], bounds: Limits
) -> tuple[dict[str, float | str], dict[str, str]]:
    """Part what is fixed to numbers from what is tied to another coefficient, which is the last of a chain.

    What is tied to a number is fixed to it.
    """
    names, roles = form.coefficients, form.roles
    targets = {name: value.strip() for name, value in fixed.items() if isinstance(value, str) and name in names}
    targets = {name: value for name, value in targets.items() if value in names}
    numbers = {name: value for name, value in fixed.items() if name not in targets}
    ties: dict[str, str] = {}
    for name, target in targets.items():
        label = f"fixed: {name}={target!r}"
        if name in bounds:
            raise InputError(f"{label} ties it, so bounds cannot hold {name}, too: bound {target}")
        if roles[name] != roles[target] or roles[name] == TRANSFORM:
            alike = [other for other in names if roles[other] == roles[name] != TRANSFORM and other != name]
            raise InputError(f"{label} must be {' or '.join(['a number', *alike])}")
        chain = [name]
        while target in targets and target not in chain:
            chain.append(target)
            target = targets[target]
        if target in chain:
            raise InputError(f"{label} goes in a circle: {' = '.join([*chain, target])}")
        if target in numbers:
            numbers[name] = numbers[target]
        else:
            ties[name] = target
    return numbers, ties


def _checked_limits(law: str, fixed: Mapping[str, float | str], bounds: Limits) -> dict[str, tuple[float, float]]:
    """(low, high) of each coefficient in `bounds` and, low = high, in `fixed`; an open end is infinite."""
    form = LAWS[law].form
    names, floors = form.coefficients, floors_of(form)
    limits: dict[str, tuple[float, float]] = {}
    for setting, values in (("fixed", fixed), ("bounds", bounds)):
        for name, value in values.items():
            label = f"{setting}: {name}"
            if name not in names:
                raise InputError(f"{setting}: ", unknown("coefficient ", name, names))
            if setting == "fixed":
                low = high = _number(label, value, or_one_of=names)
                text = repr(low)
            elif not isinstance(value, (tuple, list, np.ndarray)) or len(value) != 2:
                raise InputError(f"{label}={literal(value)} must be a pair (low, high)")
            else:
                low, high = _number(label, value[0], -np.inf), _number(label, value[1], np.inf)
                text = repr((low, high))
            floor = floors.get(name, -np.inf)
            low = -np.inf if low == floor else low
            if not low <= high:
                raise InputError(f"{label}={text} must be ordered, low ≤ high")
            if high <= floor or (np.isfinite(low) and low <= floor):
                raise InputError(f"{label}={text} must be {'positive' if floor == 0.0 else f'above {floor:g}'}")
            if name in limits and not low <= limits[name][0] <= high:
                raise InputError(f"fixed: {name}={limits[name][0]!r} lies outside its bounds {low, high}")
            limits.setdefault(name, (low, high))
    for p in form.parameters:
        low, high = limits.get(str(p.above), (-np.inf, np.inf))[0], limits.get(p.name, (-np.inf, np.inf))[1]
        if low >= high:
            raise InputError(f"{p.above}={low!r} must be below {p.name}={high!r}")
    return limits


def floors_of(form: Form) -> dict[str, float]:
    """What each coefficient that has a lower end must lie above."""
    return dict.fromkeys(form.positive, 0.0) | {p.name: p.floor for p in form.parameters}


def _box(objective: Objective, limits: Limits, losses: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The box [p], [p] of θ, with defaults for open ends."""
    roles = objective.form.roles
    upper = np.full(objective.size, np.inf)
    for term, columns in zip(objective.form.terms, objective.terms, strict=True):
        wide = WIDE_BOX[columns.centred]
        upper[columns.indices] = [wide[roles[name]] for name in term.coefficients]
    if objective.outer is not None:
        upper[objective.outer] = WIDE_BOX[False][OUTER]
    lower = -upper
    lowest, highest = (float(losses.min()), float(losses.max())) if len(losses) else (1.0, np.inf)
    for i, name in enumerate(objective.names[: objective.first_transform]):
        low, high = limits.get(name, (-np.inf, np.inf))
        if name in objective.constants:
            lower[i], upper[i] = np.log([C_BOX * lowest, lowest])
            if low >= highest:
                what = f"{'fixed' if low == high else 'bounds'}: {name}={low:g}"
                losses_of = f"the losses of the runs, {lowest:g} to {highest:g} nats per token"
                raise InputError(f"{what} must be below {losses_of}")
        for side, end in ((lower, low), (upper, high)):
            if np.isfinite(end):
                side[i] = np.log(end) if name in objective.positive else end
        if lower[i] > upper[i]:
            raise InputError(f"bounds: {name}={limits[name]} must not be open here: give both ends")
    follow = [objective.names.index(name) for name in objective.tied]
    # A tied coefficient does not move by itself.
    lower[follow] = upper[follow] = 0.0
    boxes = _transform_box(objective, limits).values()
    lower[objective.first_transform :], upper[objective.first_transform :] = np.reshape([*boxes], (-1, 2)).T
    return lower, upper


def _transform_box(objective: Objective, limits: Limits) -> dict[str, tuple[float, float]]:
    """The box of each parameter of a transform, as the logarithm of its distance."""
    spans: dict[str, tuple[float, float]] = {}
    for p in objective.form.parameters:
        low, high = limits.get(p.name, (-np.inf, np.inf))
        if p.name in objective.follows:
            spans[p.name] = p.box
            continue
        least = p.floor + (p.box[0] if p.above is None else 0.0)
        low, high = (low if np.isfinite(low) else least), (high if np.isfinite(high) else max(p.floor + p.box[1], low))
        if p.above:
            below = [p.floor + distance for distance in spans[p.above]]
            low = max(low, below[0] * (1 + 1e-6))  # limited itself: E_start stays below all that it may be
            high = max(high, 2.0 * low) if not np.isfinite(limits[p.name][1]) else high
            below[1] = min(below[1], low * (1 - 1e-6))
            if low > high or below[0] > below[1]:
                raise InputError(f"{p.above}={below[0]:g} must be above {p.floor:g} and below {p.name}")
            spans[p.above] = (below[0] - p.floor, below[1] - p.floor)
        spans[p.name] = (low - p.floor, high - p.floor)
    return {name: (float(np.log(low)), float(np.log(high))) for name, (low, high) in spans.items()}


def start_points(problem: Problem, starts: Any) -> FloatArray:
    """θ [S, p], inside the box."""
    objective, fixed = problem.objective, problem.settings.fixed
    form, pairs = objective.form, list(product(*(transform.starts for transform in objective.form.transforms)))
    if starts == "paper":
        slopes = {name: _signed(term, name, PAPER_GRID, form.roles) for term in form.terms for name in term.features}
        grid = {name: slopes.get(name, PAPER_GRID.get(form.roles[name], ())) for name in objective.names}
        coefficients = _grid({name: fixed.get(name, values) for name, values in grid.items() if values})
        pairs = pairs[:1]
    elif starts == "scaled":
        coefficients = _scaled_starts(objective, problem.columns, fixed)
    else:
        wrong = [law for law in starts if not isinstance(law, LAWS[objective.law])]
        if wrong or not len(starts):
            raise InputError(f"starts must be laws of kind {objective.law!r}, got {wrong[0] if wrong else 'none'!r}")
        coefficients = {name: np.array([law.coefficients[name] for law in starts]) for name in objective.names}
        pairs = []
    if form.parameters and pairs:
        rows = list(
            dict.fromkeys(_transform_start(form, fixed, [v for start in pair for v in start]) for pair in pairs)
        )
        count = len(next(iter(coefficients.values())))
        coefficients = {name: np.tile(values, len(rows)) for name, values in coefficients.items()}
        columns = np.repeat(np.array(rows), count, axis=0).T
        coefficients |= {p.name: column for p, column in zip(form.parameters, columns, strict=True)}
    return np.clip(objective.from_coefficients(coefficients), problem.lower, problem.upper)


def _grid(choices: Mapping[str, Any]) -> dict[str, FloatArray]:
    """All combinations of the choices, each name as an array [S]."""
    table = np.array(list(product(*(np.atleast_1d(values) for values in choices.values()))))
    return dict(zip(choices, table.T, strict=True))


def _signed(term: Term, name: str, table: Mapping[str, Any], roles: Mapping[str, str]) -> tuple[float, ...]:
    """What `table` has for a coefficient's role, turned where the term has it with a minus."""
    sign = term.features[name][0][0]
    return tuple(sign * value for value in table[roles[name]])


def _transform_start(form: Form, fixed: Mapping[str, float], start: Sequence[float]) -> tuple[float, ...]:
    """A start of the transforms' parameters that respects what is fixed and keeps their order."""
    parameters = {p.name: fixed.get(p.name, value) for p, value in zip(form.parameters, start, strict=True)}
    for p in form.parameters:
        if p.above and p.above not in fixed and p.name in fixed:
            parameters[p.above] = min(parameters[p.above], 0.5 * (p.floor + parameters[p.name]))
        elif p.above and p.above in fixed and p.name not in fixed:
            parameters[p.name] = max(parameters[p.name], 2.0 * parameters[p.above])
    return tuple(parameters.values())


def _scaled_starts(
    objective: Objective, columns: Mapping[str, FloatArray], fixed: Mapping[str, float]
) -> dict[str, FloatArray]:
    """A grid around the data, coefficients as arrays [S]: terms fall in sizes and hardly depend on the rest."""
    form = objective.form
    powers = [term for term in form.terms if term.slopes]
    choices: dict[str, Any] = {
        "floor": (0.05, 0.5, 0.85) if objective.constants else 0.0,  # the constant, as a part of the lowest loss
        "share": (0.2, 0.5, 0.8) if len(powers) > 1 else 1.0,  # the first term's part of the rest
    }
    for term in powers:
        slopes = {name: _signed(term, name, SCALED_SLOPES, form.roles) for name in term.features}
        choices |= {name: fixed.get(name, values) for name, values in slopes.items() if name not in choices}
    if form.outer:
        choices[form.outer] = fixed.get(form.outer, (1.0, 0.2))
    at = _grid(choices)
    start = {name: at[name] for name in objective.names if name in at}
    for name in objective.constants:
        start[name] = np.full_like(at["floor"], fixed[name]) if name in fixed else at["floor"] * columns["loss"].min()
    middle = np.exp(np.median(np.log(columns["loss"])))
    rest = np.maximum(middle - sum(start[name] for name in objective.constants), 0.02 * middle)
    rest = rest ** (1.0 / at[form.outer]) if form.outer else rest
    means = {name: float(np.mean(values)) for name, values in objective.reference_logs().items()}
    for i, term in enumerate(powers):
        start |= {name: start[name] - _spill(term, name, fixed, means) for name in term.features if name not in fixed}
        size = rest * (at["share"] if i == 0 else (1.0 - at["share"]) / (len(powers) - 1))
        scale = np.exp(np.log(size) - term.exponent(start, means))
        start[term.scale] = np.full_like(size, fixed[term.scale]) if term.scale in fixed else scale
    return start


def _spill(term: Term, name: str, fixed: Mapping[str, float], means: Mapping[str, float]) -> float:
    """What the term's fixed interactions add to this slope at the middle of the runs."""
    (sign, factors), *_ = term.features[name]
    if len(factors) > 1:
        return 0.0
    products = [(value * s, f) for other, value in fixed.items() for s, f in term.features.get(other, ())]
    return float(sign * total([one for one in derivative(products, factors[0]) if one[1]], means))
