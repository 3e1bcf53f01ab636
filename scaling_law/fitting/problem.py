"""A fit before it runs: objective, box and starts, which fit and bootstrap share as a `Problem`.

Starts are laws that are given, or a grid laid around the data ("scaled"), in whose coordinates a tiny sweep looks like
a large one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import Any

import numpy as np

from hub.base.errors import InputError, literal, unknown
from hub.base.tables import column_name
from hub.base.types import Fields
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
)
from scaling_law.law import Law, choose_kind
from scaling_law.runs.table import Runs, RunsError
from scaling_law.runs.thinning import spread_evenly
from scaling_law.size.arrays import BoolArray, Columns, FloatArray, IntArray

# The (low, high) of coefficients; an open end is infinite.
Intervals = dict[str, tuple[float, float]]

# Starts that are solved together: arrays of 128 × runs stay in the processor's cache.
BATCH = 128
# At most this many starts × runs are solved together.
CELLS = 1_000_000
# The smallest c, as a share of the lowest loss.
C_BOX = 1e-6
# Keeps degenerate data and resamples from running to infinity, for coefficients of centred (True) and plain features:
# of the logarithms of scales and outer exponents, else of the coefficients themselves.
WIDE_BOX = {
    True: {SIZE: 50.0, CONSTANT: 50.0, SLOPE: 3.0, BY_DESIGN: 20.0, INTERACTION: 3.0, OUTER: 5.0},
    False: {SIZE: 200.0, CONSTANT: 200.0, SLOPE: 3.0, BY_DESIGN: 80.0, INTERACTION: 3.0, OUTER: 5.0},
}

SCALED_SLOPES = {SLOPE: (-0.1, -0.4), BY_DESIGN: (-0.2, 0.2), INTERACTION: (0.0,)}
SCALED_OUTERS = (1.0, 0.2)
# The constant as a share of the lowest loss, and the first term as a share of the rest.
CONSTANT_SHARES = (0.05, 0.5, 0.85)
TERM_SHARES = (0.2, 0.5, 0.8)


@dataclass(frozen=True)
class Problem:
    """An objective with its box [p], [p]; made by `make_problem`."""

    objective: Objective
    lower: FloatArray
    upper: FloatArray

    @property
    def settings(self) -> FitSettings:
        return self.objective.settings

    @property
    def columns(self) -> Columns:
        return self.objective.columns

    @property
    def used(self) -> BoolArray:
        """Runs [n] of positive weight."""
        return self.objective.weight > 0

    @property
    def floor(self) -> float:
        """The objective at residuals of 1e-8: decreasing it further means nothing."""
        return 1e-16 * float(self.objective.weight.sum())

    @property
    def batch(self) -> int:
        """The number of starts to solve together: their arrays of starts × runs stay small."""
        return int(np.clip(CELLS // max(len(self.objective.target), 1), 1, BATCH))

    def free(self, theta: FloatArray) -> BoolArray:
        """Mark the parameters [p] that are neither fixed nor at a bound at θ [p]."""
        margin = 1e-9 * np.maximum(1.0, np.abs(theta))
        return np.asarray((theta > self.lower + margin) & (theta < self.upper - margin))

    def with_constant_below(self, loss: float) -> Problem:
        """Return the problem with `loss` as the upper end of c, unless c was fixed or bounded."""
        free = {*self.objective.form.constants} - self.settings.limited
        is_free = [name in free for name in self.objective.names]
        return replace(self, upper=np.where(is_free, np.log(loss), self.upper))

    def sample(self, most: int) -> Problem:
        """Return the problem of at most about `most` of the runs used, spread evenly over models, with all extremes.

        Bounds stay those of all runs. The problem itself where it has no more runs than that.
        """
        used_rows = np.flatnonzero(self.used)
        if len(used_rows) <= most:
            return self
        rows = used_rows[spread_evenly([column[used_rows] for column in self.columns.values()], most)]
        return replace(self, objective=self.objective.of_rows(rows))

    def without(self, set_aside: BoolArray) -> Problem:
        """Return the problem without the runs of the mask [n]: their weight is 0, and c may lie above their losses."""
        is_left = self.used & ~set_aside
        columns = {**self.columns, "weight": np.where(is_left, self.objective.weight, 0.0)}
        settings = replace(self.settings, outliers="set_aside")
        problem = self.with_constant_below(float(self.columns["loss"][is_left].min()))
        return replace(problem, objective=replace(self.objective, columns=columns, settings=settings))

    def solve(
        self,
        theta: FloatArray,
        weight: FloatArray | None = None,
        *,
        hold_transform: bool = False,
        **options: Any,
    ) -> Solutions:
        """Minimise from each θ [S, p], with weights [S, n].

        `hold_transform` fixes the E_start and E_max that all θ share.
        """
        lower = self.lower.copy()
        upper = self.upper.copy()
        objective = self.objective
        if hold_transform:
            if objective.form.outer is None and objective.misfit is None:
                objective = replace(objective, held_theta=theta[:1])
            transform = slice(objective.first_transform, None)
            lower[transform] = upper[transform] = theta[0, transform]

        def evaluate(points: FloatArray, rows: IntArray) -> Evaluation:
            weights = None if weight is None else weight[rows]
            return objective.evaluate(points, weights)

        solutions = minimise(evaluate, theta, lower, upper, floor=self.floor, **options)
        if not self.settings.tied:
            return solutions
        return replace(solutions, theta=solutions.theta @ objective.carry.T)


def make_problem(
    runs: Runs,
    law: Any,
    huber_delta: float = 0.01,
    weights: Any = None,
    fixed: Mapping[str, float | str] | None = None,
    bounds: Limits | None = None,
    starts: Sequence[Law] | None = None,
) -> Problem:
    """Check the settings and make their problem; ValueError names the one that is wrong."""
    kind = choose_kind(law)
    law = kind.name
    form = kind.form
    if not form.terms:
        raise InputError(f"kind={law!r} is not a sum of terms, so it cannot be fitted")
    weight, weights_name = _read_weights(runs, weights)
    numbers, ties = _split_ties(form, fixed or {}, bounds or {})
    limits = _read_limits(form, numbers, bounds or {})
    settings = FitSettings(
        law=law,
        huber_delta=huber_delta,
        weights=weights_name,
        fixed={name: low for name, (low, high) in limits.items() if low == high},
        bounds={name: (low, high) for name, (low, high) in limits.items() if low != high},
        starts="scaled" if starts is None else f"{len(starts)} given laws",
        tied=ties,
    )
    columns = {name: runs.positive(name) for name in (*variables_of(runs, kind), "loss")}
    columns["weight"] = weight
    objective = Objective.of(settings, columns)
    return Problem(objective, *_make_box(objective, limits, runs.loss))


def variables_of(runs: Runs, law: Law | type[Law]) -> tuple[str, ...]:
    """Return the columns that a law reads. RunsError for one that the runs do not have."""
    missing = [name for name in law.form.variables if name not in runs]
    if missing:
        raise RunsError(f"{runs.source}: the {law.name} law reads {', '.join(missing)}, which these runs do not have")
    return law.form.variables


def _read_number(
    name: str,
    value: Any,
    missing: float | None = None,
    choices: Sequence[str] = (),
) -> float:
    """Read a finite number.

    Args:
        name: the setting, for errors.
        value: what the user gave.
        missing: the number that None stands for, which is allowed even if infinite.
        choices: texts that the setting may also be, for errors.
    """
    if value is None and missing is not None:
        return missing
    try:
        number = float(value)
    except (TypeError, ValueError):
        alternative = f", or one of {', '.join(choices)}" if choices else ""
        raise InputError(f"{name}={literal(value)} must be a number{alternative}") from None
    if not np.isfinite(number) and number != missing:
        raise InputError(f"{name}={literal(value)} must be finite")
    return number


def _read_weights(runs: Runs, weights: Any) -> tuple[FloatArray, str]:
    """Return the weights of the runs [n], and their name for a record."""
    if weights is None:
        return np.ones(len(runs)), "equal"
    if isinstance(weights, str) and weights == "inverse_loss":
        return runs.loss.min() / runs.loss, weights
    label = "weights"
    name = "given"
    if isinstance(weights, str):
        weights = column_name(weights, runs.columns)
        if weights not in runs.columns:
            raise InputError(unknown("weights=", weights, ["inverse_loss", *runs.columns]))
        label = f"weights={weights!r}"
        name = weights
        weights = runs.columns[weights]
    try:
        array = np.asarray(weights, float)
    except (TypeError, ValueError, OverflowError):
        array = np.zeros(0)
    is_valid = array.shape == (len(runs),) and np.all(np.isfinite(array) & (array >= 0)) and array.any()
    if not is_valid:
        choices = f"'inverse_loss', or a column or list of {len(runs)} finite numbers ≥ 0, not all zero"
        raise InputError(f"{label} must be {choices}")
    return array, name


def _split_ties(
    form: Form,
    fixed: Mapping[str, float | str],
    bounds: Limits,
) -> tuple[dict[str, float | str], dict[str, str]]:
    """Separate what is fixed to numbers from what is tied to another coefficient, which is the last of a chain.

    What is tied to a number is fixed to it.
    """
    numbers: dict[str, float | str] = {}
    ties: dict[str, str] = {}
    for name in fixed:
        chain = [name]
        target = _target_of(form, fixed, name)
        while target:
            _check_tie(form, chain[-1], target, bounds)
            if target in chain:
                raise InputError(f"fixed: {name}={fixed[name]!r} goes in a circle: {' = '.join([*chain, target])}")
            chain.append(target)
            target = _target_of(form, fixed, target)
        leader = chain[-1]
        if leader in fixed:
            numbers[name] = fixed[leader]
        else:
            ties[name] = leader
    return numbers, ties


def _target_of(form: Form, fixed: Mapping[str, float | str], name: str) -> str:
    """Return the coefficient that one is tied to; nothing where it is free or fixed to a number."""
    target = str(fixed.get(name, "")).strip()
    return target if {name, target} <= {*form.coefficients} else ""


def _check_tie(
    form: Form,
    name: str,
    target: str,
    bounds: Limits,
) -> None:
    """Raise InputError for a coefficient that is bounded as well as tied, or tied to one of another role."""
    if name in bounds:
        raise InputError(f"fixed: {name}={target!r} ties it, so bounds cannot hold {name}, too: bound {target}")
    role = form.roles[name]
    if role == form.roles[target] and role != TRANSFORM:
        return
    choices = ["a number"]
    for coefficient in form.coefficients:
        if form.roles[coefficient] == role != TRANSFORM and coefficient != name:
            choices.append(coefficient)
    raise InputError(f"fixed: {name}={target!r} must be {' or '.join(choices)}")


def _read_limits(
    form: Form,
    fixed: Mapping[str, float | str],
    bounds: Limits,
) -> Intervals:
    """Return (low, high) of each coefficient in `bounds` and, low = high, in `fixed`; an open end is infinite."""
    limits: Intervals = {}
    for name, number in fixed.items():
        limits[name] = _read_interval(form, "fixed", name, number)
    for name, pair in bounds.items():
        low, high = _read_interval(form, "bounds", name, pair)
        if name in limits and not low <= limits[name][0] <= high:
            raise InputError(f"fixed: {name}={limits[name][0]!r} lies outside its bounds {low, high}")
        limits.setdefault(name, (low, high))

    for p in form.parameters:
        low_below, _ = limits.get(str(p.above), (-np.inf, np.inf))
        _, high = limits.get(p.name, (-np.inf, np.inf))
        if low_below >= high:
            raise InputError(f"{p.above}={low_below!r} must be below {p.name}={high!r}")
    return limits


def _read_interval(
    form: Form,
    setting: str,
    name: str,
    value: Any,
) -> tuple[float, float]:
    """Read the (low, high) of a coefficient.

    Args:
        setting: "bounds", where the value is a pair, or "fixed", where it is a number.
    """
    label = f"{setting}: {name}"
    if name not in form.coefficients:
        raise InputError(f"{setting}: ", unknown("coefficient ", name, form.coefficients))
    if setting == "fixed":
        low = high = _read_number(label, value, choices=form.coefficients)
        text = repr(low)
    elif isinstance(value, (tuple, list, np.ndarray)) and len(value) == 2:
        low = _read_number(label, value[0], -np.inf)
        high = _read_number(label, value[1], np.inf)
        text = repr((low, high))
    else:
        raise InputError(f"{label}={literal(value)} must be a pair (low, high)")

    floors = {**dict.fromkeys(form.positive, 0.0), **{p.name: p.floor for p in form.parameters}}
    floor = floors.get(name, -np.inf)
    if low == floor:
        low = -np.inf
    if not low <= high:
        raise InputError(f"{label}={text} must be ordered, low ≤ high")
    if high <= floor or (np.isfinite(low) and low <= floor):
        requirement = "positive" if floor == 0.0 else f"above {floor:g}"
        raise InputError(f"{label}={text} must be {requirement}")
    return low, high


def _make_box(
    objective: Objective,
    limits: Intervals,
    losses: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Return the box [p], [p] of θ, with defaults for open ends."""
    lower, upper = _wide_box(objective)
    lowest = float(losses.min()) if len(losses) else 1.0
    highest = float(losses.max()) if len(losses) else np.inf
    for i, name in enumerate(objective.names[: objective.first_transform]):
        low, high = limits.get(name, (-np.inf, np.inf))
        if name in objective.form.constants:
            lower[i], upper[i] = np.log([C_BOX * lowest, lowest])
            if low >= highest:
                setting = "fixed" if low == high else "bounds"
                loss_range = f"{lowest:g} to {highest:g} nats per token"
                raise InputError(f"{setting}: {name}={low:g} must be below the losses of the runs, {loss_range}")

        is_log = name in objective.form.positive
        if np.isfinite(low):
            lower[i] = np.log(low) if is_log else low
        if np.isfinite(high):
            upper[i] = np.log(high) if is_log else high
        if lower[i] > upper[i]:
            raise InputError(f"bounds: {name}={limits[name]} must not be open here: give both ends")

    for name in objective.settings.tied:
        # A tied coefficient does not move by itself.
        i = objective.names.index(name)
        lower[i] = 0.0
        upper[i] = 0.0
    for name, (low, high) in _transform_box(objective, limits).items():
        i = objective.names.index(name)
        lower[i] = low
        upper[i] = high
    return lower, upper


def _wide_box(objective: Objective) -> tuple[FloatArray, FloatArray]:
    """Return the default box [p], [p], infinite for parameters of transforms."""
    roles = objective.form.roles
    upper = np.full(objective.size, np.inf)
    for term, indices in objective.terms:
        is_centred = np.any(objective.to_natural[np.ix_(indices, indices)] != np.eye(len(indices)))
        widths = WIDE_BOX[bool(is_centred)]
        upper[indices] = [widths[roles[name]] for name in term.coefficients]
    if objective.form.outer:
        upper[objective.names.index(objective.form.outer)] = WIDE_BOX[False][OUTER]
    return -upper, upper


def _transform_box(objective: Objective, limits: Intervals) -> Intervals:
    """Return the box of each parameter of a transform, as the logarithm of its distance."""
    distances: Intervals = {}
    for p in objective.form.parameters:
        if p.name in objective.follows:
            distances[p.name] = p.box
            continue
        low, high = limits.get(p.name, (-np.inf, np.inf))
        is_open = not np.isfinite(high)
        if not np.isfinite(low):
            low = p.floor + (p.box[0] if p.above is None else 0.0)
        if is_open:
            high = max(p.floor + p.box[1], low)

        if p.above:
            # The parameter is limited itself, so E_start stays below all that it may be.
            low_below = p.floor + distances[p.above][0]
            high_below = p.floor + distances[p.above][1]
            low = max(low, low_below * (1 + 1e-6))
            if is_open:
                high = max(high, 2.0 * low)
            high_below = min(high_below, low * (1 - 1e-6))
            if low > high or low_below > high_below:
                raise InputError(f"{p.above}={low_below:g} must be above {p.floor:g} and below {p.name}")
            distances[p.above] = (low_below - p.floor, high_below - p.floor)
        distances[p.name] = (low - p.floor, high - p.floor)

    boxes = {}
    for name, (low, high) in distances.items():
        boxes[name] = (float(np.log(low)), float(np.log(high)))
    return boxes


def start_points(problem: Problem, starts: Sequence[Law] | None = None) -> FloatArray:
    """Return θ [S, p], inside the box: of these laws, or of the scaled grid."""
    objective = problem.objective
    if starts is not None:
        wrong = [law for law in starts if not isinstance(law, objective.law)]
        if wrong or not len(starts):
            first = wrong[0] if wrong else "none"
            raise InputError(f"starts must be laws of kind {objective.settings.law!r}, got {first!r}")
        coefficients = {name: np.array([law.coefficients[name] for law in starts]) for name in objective.names}
    else:
        coefficients = _scaled_starts(objective, problem.columns, problem.settings.fixed)
        if objective.form.parameters:
            coefficients = _with_transform_starts(objective.form, problem.settings.fixed, coefficients)
    return np.clip(objective.from_coefficients(coefficients), problem.lower, problem.upper)


def _with_transform_starts(
    form: Form,
    fixed: Mapping[str, float],
    coefficients: Mapping[str, FloatArray],
) -> dict[str, FloatArray]:
    """Repeat starts of the coefficients, each an array [S], for each start of the transforms' parameters."""
    rows = []
    for starts in product(*(transform.starts for transform in form.transforms)):
        parameters = zip(form.parameters, chain(*starts), strict=True)
        rows.append(tuple(fixed.get(p.name, value) for p, value in parameters))
    # Where parameters are fixed, several combinations are one.
    distinct_rows = np.array(list(dict.fromkeys(rows)))
    count = len(next(iter(coefficients.values())))
    repeated = {name: np.tile(values, len(distinct_rows)) for name, values in coefficients.items()}
    columns = np.repeat(distinct_rows, count, axis=0).T
    return {**repeated, **dict(zip((p.name for p in form.parameters), columns, strict=True))}


def _make_grid(choices: Mapping[str, Any]) -> dict[str, FloatArray]:
    """Return all combinations of the choices, each name as an array [S]."""
    columns = [np.atleast_1d(values) for values in choices.values()]
    table = np.array(list(product(*columns)))
    return dict(zip(choices, table.T, strict=True))


def _scaled_starts(
    objective: Objective,
    columns: Mapping[str, FloatArray],
    fixed: Mapping[str, float],
) -> dict[str, FloatArray]:
    """Return a grid around the data, coefficients as arrays [S].

    Terms fall in sizes and hardly depend on the rest.
    """
    form = objective.form
    powers = [term for term in form.terms if term.slopes]
    grid = _make_grid(_scaled_choices(objective, powers, fixed))
    starts = {name: grid[name] for name in objective.names if name in grid}
    for name in form.constants:
        if name in fixed:
            starts[name] = np.full_like(grid["constant share"], fixed[name])
        else:
            starts[name] = grid["constant share"] * columns["loss"].min()

    median_loss = np.exp(np.median(np.log(columns["loss"])))
    constant = sum(starts[name] for name in form.constants)
    # The sum of the terms at the middle of the runs.
    term_sum = np.maximum(median_loss - constant, 0.02 * median_loss)
    if form.outer:
        term_sum = term_sum ** (1.0 / grid[form.outer])

    mean_logs = {name: float(np.mean(values)) for name, values in objective.reference_logs().items()}
    for i, term in enumerate(powers):
        share = grid["first share"]
        if i > 0:
            share = (1.0 - share) / (len(powers) - 1)
        size = term_sum * share
        # The box holds a scale that is fixed.
        starts[term.scale] = np.exp(np.log(size) - term.exponent(starts, mean_logs))
    return starts


def _scaled_choices(
    objective: Objective,
    powers: Sequence[Term],
    fixed: Mapping[str, float],
) -> Fields:
    """Return the values of the shares of the loss and of the exponents of terms that starts combine."""
    form = objective.form
    choices: Fields = {
        "constant share": CONSTANT_SHARES if form.constants else 0.0,
        "first share": TERM_SHARES if len(powers) > 1 else 1.0,
    }
    for term in powers:
        for name, ((sign, _), *_) in term.features.items():
            if name not in choices:
                # A term that has the coefficient with a minus turns its starts.
                slopes = [sign * slope for slope in SCALED_SLOPES[form.roles[name]]]
                choices[name] = fixed.get(name, slopes)
    if form.outer:
        choices[form.outer] = fixed.get(form.outer, SCALED_OUTERS)
    return choices
