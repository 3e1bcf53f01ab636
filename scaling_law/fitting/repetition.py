"""Repeated data in a fit: Muennighoff's terms on top of any form of law (`formulas.repeated`).

    L = form(N', D', …)      D' from R*_D,  N' from R*_N and N_opt(U_D), which depends on the law's own coefficients

The coefficients are fitted at given R*, with the derivative of N_opt in the Jacobian; R*_D and R*_N minimise what that
leaves. One that the runs do not tell stays at its published value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from hub.base.errors import InputError
from hub.base.types import Strings
from scaling_law.fitting.diagnostics import depends
from scaling_law.fitting.objective import Designs, Evaluation, FitSettings, Logs, Objective, Slopes
from scaling_law.fitting.problem import Problem
from scaling_law.fitting.solver import Solutions
from scaling_law.formulas.law import numbers, positive
from scaling_law.formulas.repeated import Repetition, saturate
from scaling_law.law import Law
from scaling_law.runs.table import Runs
from scaling_law.size.architecture import is_parameters
from scaling_law.size.arrays import BoolArray, FloatArray, IntArray

# Columns that say how often tokens repeat, and the one in which a fit finds it.
REPEATED = ("unique_tokens", "epochs")
UNIQUE = "unique_tokens"
# Names of both R*, as fields of `Repetition`.
R_STARS = ("tokens", "parameters")
# Bounds of both R*; at the upper end nothing is discounted.
BOX = (0.1, 1000.0)
STARTS = (Repetition(), Repetition(100.0, 100.0))
# Steps of derivatives, in ln R* and θ, and in ln N.
STEP = 1e-4
SIZE_STEP = 1e-3
# Slope of ln N_opt by a coefficient: beyond it, the loss is flat along 6·N·D and N_opt means nothing.
STEEPEST = 1e6
# The ln of an excess of parameters that makes no difference any more.
FAR = 300.0
# The standard error of ln R* up to which the runs determine it.
RESOLUTION = 0.7
# Epochs beyond one that are none.
ROUNDED = 0.01
# Probability that runs of the published value speak so much against it.
CHANCE = 0.05


@dataclass(frozen=True)
class RepetitionFit:
    """R*_D (`tokens`) and R*_N (`parameters`) of a fit; `held`: at the published value, as the runs do not tell it.

    `standard_errors` are those of the logarithms of the others.
    """

    value: Repetition
    standard_errors: Mapping[str, float]
    held: Strings

    @property
    def coefficients(self) -> dict[str, float]:
        """The values as coefficients: r_star_tokens, r_star_parameters."""
        return {f"r_star_{name}": value for name, value in asdict(self.value).items()}

    @property
    def errors(self) -> dict[str, float]:
        """The standard errors of those that are not held."""
        return {f"r_star_{name}": error for name, error in self.standard_errors.items()}

    @property
    def at_bound(self) -> Strings:
        """The coefficients at an end of their box, of those that are not held."""
        coefficients = self.coefficients
        return tuple(name for name in self.errors if np.isclose(coefficients[name], BOX, rtol=1e-3).any())

    @property
    def messages(self) -> Strings:
        """The basis of the values that the runs do not tell, in sentences."""
        if not self.held:
            return ()
        labels = {"tokens": "R*_D of repeated tokens", "parameters": "R*_N of excess parameters"}
        names = " and ".join(labels[name] for name in self.held)
        return (f"Not told by these runs, so as published by Muennighoff et al. 2023: {names}.",)


class RepeatedObjective(Objective):
    """An objective whose tokens are D', and whose sizes are N' under the coefficients themselves."""

    def __init__(
        self,
        settings: FitSettings,
        columns: Mapping[str, FloatArray],
        one_sided: BoolArray,
        unique_tokens: FloatArray,
        repetition: Repetition,
    ) -> None:
        super().__init__(settings, columns, one_sided)
        self.repetition = repetition
        self.unique = np.minimum(columns["tokens"], unique_tokens)
        self.raw = {name: columns[name] for name in self.form.variables}
        effective_tokens = saturate(columns["tokens"], self.unique, repetition.tokens)
        self.logs = {**self.logs, "tokens": np.log(effective_tokens)}
        self.sizes = [name for name in self.form.variables if is_parameters(name)]
        self.of_tokens = Objective(settings, columns, one_sided)
        self.of_tokens.logs = self.logs

    def make_law(self, theta: FloatArray) -> Law:
        return super().make_law(theta).replace(repetition=self.repetition)

    def evaluate(
        self,
        theta: FloatArray,
        weight: FloatArray | None = None,
        *,
        hold_transform: bool = False,
        rows: IntArray | None = None,
    ) -> Evaluation:
        """Evaluate as any objective; the first stage of a search, which is to be quick, discounts tokens alone."""
        if not hold_transform:
            return super().evaluate(theta, weight, rows=rows)
        self.of_tokens.penalty = self.penalty
        weight = self.weight if weight is None else weight
        return self.of_tokens.evaluate(theta, weight, hold_transform=True, rows=rows)

    def _features(self, theta: FloatArray) -> tuple[Logs, Slopes, Designs]:
        # Features depend on all of θ, so none is stored.
        self._last = None
        return super()._features(theta)

    def _transforms(self, theta: FloatArray) -> tuple[Logs, Slopes]:
        logs, slopes = super()._transforms(theta)
        log_ratio, _ = self._discount(self._log_optimal_ratio(theta))
        effective_sizes = {name: self.logs[name] + log_ratio for name in self.sizes}
        return {**logs, **effective_sizes}, slopes

    def _jacobian(
        self,
        theta: FloatArray,
        logs: Logs,
        designs: Designs,
        slopes: Slopes,
        residual: FloatArray,
        shares: list[FloatArray],
    ) -> FloatArray:
        jacobian = super()._jacobian(theta, logs, designs, slopes, residual, shares)
        natural = theta @ self.to_natural.T
        # This is ∂ ln L̂ / ∂ ln N'.
        size_slope = np.zeros_like(residual)
        for term, share in zip(self.terms, shares, strict=True):
            for name in self.sizes:
                size_slope += share * self._exponent_slope(term, natural[:, term.indices], name, logs)
        log_ratio = self._log_optimal_ratio(theta)
        _, discount_slope = self._discount(log_ratio)
        slope = size_slope * discount_slope
        if slope.any():
            jacobian += slope[..., None] * self._optimal_size_slopes(theta, log_ratio)
        return jacobian

    def _log_optimal_ratio(self, theta: FloatArray) -> FloatArray:
        """Return ln of N_opt(U_D) over N, [S, n]; NaN where these coefficients have no optimum."""
        if not self.sizes or "tokens" not in self.raw:
            return np.full((len(theta), len(self.target)), np.nan)
        law = super().make_law(theta[0])
        coefficients = np.moveaxis(self.coefficients(theta), -1, 0)[..., None]
        optimal_size = law.size_called_for(coefficients, self.raw, self.unique)
        # Coefficients may lie at the ends of their box.
        with np.errstate(all="ignore"):
            ratio = np.log(optimal_size) - np.log(self.raw[self.sizes[0]])
        return np.where(np.isfinite(ratio), ratio, np.nan)

    def _discount(self, log_optimal_ratio: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return ln N'/N, and the derivative of ln N' by ln N_opt, where N exceeds it."""
        r_star = self.repetition.parameters
        log_excess = np.clip(np.nan_to_num(-log_optimal_ratio, nan=0.0), 0.0, FAR)
        excess = np.exp(log_excess)
        decay = np.exp(-(excess - 1.0) / r_star)
        effective = 1.0 + r_star * (1.0 - decay)
        slope = np.where(log_excess > 0, 1.0 - decay * excess / effective, 0.0)
        return np.log(effective) - log_excess, slope

    def _optimal_size_slopes(self, theta: FloatArray, log_optimal_ratio: FloatArray) -> FloatArray:
        """Return ∂ ln N_opt / ∂θ, [S, n, p]: N_opt solves an equation in θ, whose derivatives are differences."""
        law = super().make_law(theta[0])
        x = np.nan_to_num(log_optimal_ratio, nan=0.0)

        def loss_slope(point: FloatArray, log_size: FloatArray) -> FloatArray:
            """Return the difference of ln L along 6·N·D, which is 0 at N_opt, for θ [..., S, p]."""
            coefficients = np.moveaxis(self.coefficients(point), -1, 0)[..., None]
            log_losses = []
            for step in (-SIZE_STEP, SIZE_STEP):
                variables = dict(self.raw)
                variables.update({name: self.raw[name] * np.exp(log_size + step) for name in self.sizes})
                variables["tokens"] = self.unique * np.exp(-step)
                log_losses.append(np.log(law.evaluate(coefficients, variables)))
            low, high = log_losses
            return np.asarray(high - low)

        steps = STEP * np.eye(self.size)[:, None, :]
        # Some rows have no turning point.
        with np.errstate(all="ignore"):
            by_size = loss_slope(theta, x + SIZE_STEP) - loss_slope(theta, x - SIZE_STEP)
            # The differences by θ are [p, S, n].
            by_theta = loss_slope(theta + steps, x) - loss_slope(theta - steps, x)
            slopes = np.moveaxis(-by_theta / (by_size * (STEP / SIZE_STEP)), 0, -1)
        # NaN is not below the limit either.
        return np.where(np.abs(slopes) < STEEPEST, slopes, 0.0)


def unexplained_repetition(
    problem: Problem,
    theta: FloatArray,
    runs: Runs,
) -> Strings:
    """Say, with what to type, that the `runs` repeat tokens and errors of the law at θ [p] depend on it."""
    names = [name for name in REPEATED if name in runs]
    if not names or isinstance(problem.objective, RepeatedObjective):
        return ()
    name = names[0]
    is_point = problem.measured
    epochs = (runs.tokens / runs[name] if name == UNIQUE else runs[name])[is_point]
    if not np.all(epochs > 0) or not np.any(epochs > 1.0 + ROUNDED):
        return ()
    residual, jacobian = (values[is_point] for values in problem.objective.linearise_at(theta))
    if not depends(residual, jacobian[:, problem.free(theta)], np.log(np.maximum(epochs, 1.0))):
        return ()
    option = f"{name}={name!r} (--{name.replace('_', '-')} {name})"
    return (
        f"tokens repeat, up to {epochs.max():.3g} epochs, and the errors of this law depend on it: {option} counts "
        "repeated tokens as what they are worth",
    )


def with_unique_tokens(
    runs: Runs,
    unique_tokens: Any,
    epochs: Any,
) -> Runs:
    """Give the runs a column of unique tokens, read from a column, one number or one for each run; of either name.

    ValueError unless one of the two is given, and for values that are not positive.
    """
    if unique_tokens is not None and epochs is not None:
        raise InputError(f"unique_tokens={unique_tokens!r}, epochs={epochs!r}: give one of them, the other follows")
    name = UNIQUE if epochs is None else "epochs"
    column = _read_column(name, unique_tokens if epochs is None else epochs, runs)
    unique = column if name == UNIQUE else runs.tokens / column
    return replace(runs, columns={**runs.columns, UNIQUE: np.asarray(unique, float)})


def _read_column(
    name: str,
    value: Any,
    runs: Runs,
) -> FloatArray:
    """Read positive numbers [n] from a column, a list or one number, which may be a text such as "5B"."""
    if isinstance(value, str) and value in runs:
        return runs.positive(value)
    try:
        column = numbers(name, value)
    except ValueError:
        if not isinstance(value, str):
            raise
        # A text that is no number raises RunsError, which lists the columns.
        column = runs.column(value)
    column = positive(name, column)
    if column.shape not in ((), (len(runs),)):
        raise InputError(f"{name} must be a column, or positive numbers, one for all {len(runs)} runs or for each")
    return np.broadcast_to(column, (len(runs),))


def repeated(
    problem: Problem,
    unique_tokens: FloatArray,
    repetition: Repetition,
) -> Problem:
    """Count tokens and sizes of a problem as what they are worth at these R*; ValueError for a law without D."""
    if "tokens" not in problem.columns:
        raise InputError(f"unique_tokens: the {problem.settings.law} law does not depend on tokens")
    plain = problem.objective
    objective = RepeatedObjective(problem.settings, problem.columns, plain.one_sided, unique_tokens, repetition)
    objective.weight = plain.weight
    objective.penalty = plain.penalty
    return replace(problem, objective=objective)


def fit_repetition(
    problem: Problem,
    unique_tokens: FloatArray,
    theta: FloatArray,
) -> tuple[Problem, Solutions, RepetitionFit]:
    """Find R*_D and R*_N of these runs, from the fit θ [p] at published ones, and fit the law at them.

    One that neither has a standard error below `RESOLUTION` nor lowers the objective much is held.
    """
    from scipy.special import fdtrc

    profiles = [_fit_profile(problem, unique_tokens, theta, R_STARS, start) for start in STARTS]
    best = min(profiles, key=lambda profile: profile.cost)
    fixed: list[str] = []
    for name in R_STARS:
        free = tuple(r_star for r_star in R_STARS if r_star != name and r_star not in fixed)
        without = _fit_profile(problem, unique_tokens, best.theta, free, best.value)
        is_inside = BOX[0] * 1.01 < getattr(best.value, name) < BOX[1] / 1.01
        if is_inside and best.errors.get(name, np.inf) <= RESOLUTION:
            continue
        freedom = max(int(problem.measured.sum()) - len(theta) - len(free) - 1, 1)
        gain = (without.cost - best.cost) / max(best.cost / freedom, 1e-300)
        if fdtrc(1, freedom, max(gain, 0.0)) >= CHANCE:
            fixed.append(name)
            best = without
    final = best.problem.solve(best.theta[None], max_iterations=1000, tolerance=1e-12)
    return best.problem, final, RepetitionFit(best.value, best.errors, tuple(fixed))


@dataclass(frozen=True)
class _Profile:
    """The best of the R* that were free, the others at published values, and the fit θ [p] there."""

    problem: Problem
    theta: FloatArray
    cost: float
    value: Repetition
    errors: Mapping[str, float]


def _fit_profile(
    problem: Problem,
    unique_tokens: FloatArray,
    theta: FloatArray,
    free: Strings,
    start: Repetition,
) -> _Profile:
    """Minimise over θ and some of the R*; the others are the published ones.

    Args:
        theta: coefficients [p] to start from.
        free: the R* that are fitted.
        start: their values to start from.
    """
    from scipy.optimize import minimize

    nearest_theta = theta

    def repetition_at(log_r: FloatArray) -> Repetition:
        return replace(Repetition(), **dict(zip(free, np.exp(log_r).tolist(), strict=True)))

    def problem_at(log_r: FloatArray) -> Problem:
        return repeated(problem, unique_tokens, repetition_at(log_r))

    def profile(log_r: FloatArray) -> tuple[float, FloatArray]:
        """Return Q minimised over θ, and its slopes by ln R*, at θ held: at a minimum θ makes no difference."""
        nonlocal nearest_theta
        solution = problem_at(log_r).solve(nearest_theta[None], max_iterations=200, tolerance=1e-9)
        nearest_theta = solution.theta[0]
        slopes = []
        for step in STEP * np.eye(len(free)):
            low = problem_at(log_r - step).objective.evaluate(nearest_theta[None]).cost[0]
            high = problem_at(log_r + step).objective.evaluate(nearest_theta[None]).cost[0]
            slopes.append((high - low) / (2.0 * STEP))
        return float(solution.cost[0]), np.array(slopes)

    log_r = np.log([getattr(start, name) for name in free])
    if free:
        box = [tuple(np.log(BOX))] * len(free)
        log_r = minimize(profile, log_r, jac=True, method="L-BFGS-B", bounds=box, options={"ftol": 1e-9}).x
    cost, _ = profile(log_r)
    best = problem_at(log_r)
    neighbours = [problem_at(log_r + step) for step in STEP * np.eye(len(free))]
    errors = _standard_errors(best, nearest_theta, neighbours)
    return _Profile(
        problem=best,
        theta=nearest_theta,
        cost=cost,
        value=repetition_at(log_r),
        errors=dict(zip(free, errors, strict=True)),
    )


def _standard_errors(
    problem: Problem,
    theta: FloatArray,
    neighbours: Sequence[Problem],
) -> list[float]:
    """Estimate the standard error of each ln R*, in which a neighbour is one step away, beside the free coefficients.

    Infinite for an R* that makes no difference, and NaN for the others then.
    """
    if not neighbours:
        return []
    residual, jacobian = problem.objective.linearise_at(theta)
    columns = [jacobian[:, problem.free(theta)]]
    for neighbour in neighbours:
        columns.append((neighbour.objective.residuals(theta[None])[0] - residual) / STEP)
    influence = problem.objective.influence(residual)
    design = np.column_stack(columns)
    weighted = design * np.sqrt(influence)[:, None]
    scale = np.linalg.norm(weighted, axis=0)
    of_r = slice(-len(neighbours), None)
    if not np.all(scale[of_r] > 0):
        return [float("inf") if size == 0 else float("nan") for size in scale[of_r]]
    scaled = weighted / np.where(scale > 0, scale, 1.0)
    freedom = max(int(problem.measured.sum()) - design.shape[1], 1)
    noise = float(influence @ residual**2 / freedom)
    variances = np.diag(np.linalg.pinv(scaled.T @ scaled))
    return (np.sqrt(noise * variances[of_r]) / scale[of_r]).tolist()
