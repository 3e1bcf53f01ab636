"""Repeated data in a fit: Muennighoff's terms on top of any form of law (`formulas.repeated`).

    L = form(N', D', …)      D' from R*_D,  N' from R*_N and N_opt(U_D), which depends on the law's own coefficients

The published ln R* are a prior with an error of `LOG_ERROR`, which the runs move as far as they tell. Coefficients are
fitted at given R*, with the derivative of N_opt in the Jacobian.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from hub.base.errors import InputError
from hub.base.types import Fields, Strings
from scaling_law.fitting.diagnostics import EPOCHS, UNIQUE
from scaling_law.fitting.objective import Designs, Logs, Objective, Slopes
from scaling_law.fitting.problem import Problem
from scaling_law.formulas.law import numbers, positive
from scaling_law.formulas.repeated import Repetition, saturate, slope_along_flops
from scaling_law.law import Law
from scaling_law.runs.table import Runs
from scaling_law.size.architecture import is_parameters
from scaling_law.size.arrays import Columns, FloatArray, IntArray

# Columns that say how often tokens repeat.
REPEATED = (UNIQUE, EPOCHS)
# Standard error of the published ln R*: a refit to the authors' 182 runs lies a factor of 2.3 from their R*_D, and
# more than 3 from their R*_N.
LOG_ERROR = 1.0
PUBLISHED = np.log([*asdict(Repetition()).values()])
# Names of both R*.
R_STARS = tuple(f"r_star_{name}" for name in asdict(Repetition()))
# Bounds of ln R*; at the upper end nothing is discounted.
BOX = (np.log(0.1), np.log(1000.0))
# The standard error of ln R* up to which the runs determine it.
RESOLUTION = 0.7
# Steps of derivatives, in ln R* and θ, in ln N, and in ln R* of second ones.
STEP = 1e-4
SIZE_STEP = 1e-3
WIDE_STEP = 0.02
# Slope of ln N_opt by a coefficient: beyond it, the loss is flat along 6·N·D and N_opt means nothing.
STEEPEST = 1e6
# The ln of an excess of parameters that makes no difference any more.
FAR = 300.0


@dataclass(frozen=True)
class RepetitionFit:
    """R*_D (`tokens`) and R*_N (`parameters`) of a fit, with the standard errors of ln r_star_tokens and the other."""

    value: Repetition
    standard_errors: Mapping[str, float]

    @property
    def coefficients(self) -> dict[str, float]:
        """The values by the names of coefficients."""
        return dict(zip(self.standard_errors, asdict(self.value).values(), strict=True))

    @property
    def undetermined(self) -> Strings:
        """The coefficients that the runs hardly move from the published values."""
        return tuple(name for name, error in self.standard_errors.items() if error > RESOLUTION)

    @property
    def messages(self) -> Strings:
        """The basis of the values that the runs do not tell, in sentences."""
        if not self.undetermined:
            return ()
        names = " and ".join(self.undetermined)
        return (f"Hardly told by these runs, so near the values published by Muennighoff et al. 2023: {names}.",)


def with_unique_tokens(runs: Runs, unique_tokens: Any) -> Runs:
    """Give the runs a column of unique tokens, read from a column, one number or one for each run."""
    if isinstance(unique_tokens, str) and not unique_tokens[:1].isdigit():
        column = runs.positive(unique_tokens)
    else:
        column = positive(UNIQUE, numbers(UNIQUE, unique_tokens))
    if column.shape not in ((), (len(runs),)):
        raise InputError(f"{UNIQUE} must be a column, or positive numbers, one for all {len(runs)} runs or for each")
    return replace(runs, columns={**runs.columns, UNIQUE: np.broadcast_to(column, (len(runs),)).copy()})


def count_worth(law: Law, runs: Runs) -> Runs:
    """Count tokens and sizes as what they are worth to a law; tokens without a number of unique ones are unique."""
    unique = runs.columns.get(UNIQUE, runs.tokens)
    sizes = {name: values for name, values in runs.columns.items() if is_parameters(name)}
    variables = {"n_active": runs.n_active, **sizes, "tokens": runs.tokens, "experts": np.ones(len(runs))}
    effective = law.effective(law.columns, variables, unique)
    columns = {**runs.columns, **{name: effective[name] for name in sizes}}
    return replace(runs, n_active=effective["n_active"], tokens=effective["tokens"], columns=columns)


class RepeatedObjective(Objective):
    """An objective whose tokens are D', and whose `sizes` are N' under the coefficients themselves."""

    repetition: Repetition

    def __init__(
        self,
        plain: Objective,
        columns: Columns,
        unique_tokens: FloatArray,
        repetition: Repetition,
        sizes: Strings,
    ) -> None:
        vars(self).update(vars(plain))
        self.repetition = repetition
        self.sizes = sizes
        self.unique = np.minimum(columns["tokens"], unique_tokens)
        self.raw = {name: columns[name] for name in self.form.variables}
        counted = {**self.raw, "tokens": saturate(columns["tokens"], self.unique, repetition.tokens)}
        self.logs = {name: np.log(values) for name, values in counted.items()}
        self._last = None

    def of_rows(self, rows: IntArray) -> RepeatedObjective:
        objective = super().of_rows(rows)
        assert isinstance(objective, RepeatedObjective)
        objective.unique = self.unique[rows]
        objective.raw = {name: column[rows] for name, column in self.raw.items()}
        return objective

    def _features(self, theta: FloatArray) -> tuple[Logs, Slopes, Designs]:
        # Features depend on all of θ, so none is stored.
        self._last = None
        return super()._features(theta)

    def _transforms(self, theta: FloatArray) -> tuple[Logs, Slopes]:
        logs, slopes = super()._transforms(theta)
        if not self.sizes:
            return logs, slopes
        log_share, _ = self._discount(self._log_optimal_ratio(theta))
        return {**logs, **{name: self.logs[name] + log_share for name in self.sizes}}, slopes

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
        if not self.sizes:
            return jacobian
        natural = theta @ self.to_natural.T
        # This is ∂ ln L̂ / ∂ ln N'.
        size_slope = np.zeros_like(residual)
        for term, share in zip(self.terms, shares, strict=True):
            for name in self.sizes:
                size_slope += share * self._exponent_slope(term, natural[:, term.indices], name, logs)
        log_ratio = self._log_optimal_ratio(theta)
        _, discount_slope = self._discount(log_ratio)
        slope = size_slope * discount_slope
        return jacobian + slope[..., None] * self._optimal_size_slopes(theta, log_ratio)

    def _log_optimal_ratio(self, theta: FloatArray) -> FloatArray:
        """Return ln of N_opt(U_D) over N, [S, n]; 0 where these coefficients have no optimum."""
        law = self.make_law(theta[0])
        optimal_size = law.size_called_for(self._coefficient_columns(theta), self.raw, self.unique)
        # Coefficients may lie at the ends of their box.
        with np.errstate(all="ignore"):
            ratio = np.log(optimal_size / self.raw[self.sizes[0]])
        return np.where(np.isfinite(ratio), ratio, 0.0)

    def _coefficient_columns(self, theta: FloatArray) -> FloatArray:
        """Return the coefficients of θ [..., p] for arrays of the runs, [k, ..., 1]."""
        return np.moveaxis(self.coefficients(theta), -1, 0)[..., None]

    def _discount(self, log_optimal_ratio: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return ln N'/N, and the derivative of ln N' by ln N_opt, where N exceeds it."""
        r_star = self.repetition.parameters
        log_excess = np.clip(-log_optimal_ratio, 0.0, FAR)
        excess = np.exp(log_excess)
        decay = np.exp(-(excess - 1.0) / r_star)
        effective = 1.0 + r_star * (1.0 - decay)
        slope = np.where(log_excess > 0, 1.0 - decay * excess / effective, 0.0)
        return np.log(effective) - log_excess, slope

    def _optimal_size_slopes(self, theta: FloatArray, log_optimal_ratio: FloatArray) -> FloatArray:
        """Return ∂ ln N_opt / ∂θ, [S, n, p]: N_opt solves an equation in θ, whose derivatives are differences."""
        law = self.make_law(theta[0])

        def in_proportion(log_ratio: FloatArray) -> Fields:
            return {**self.raw, **{name: self.raw[name] * np.exp(log_ratio) for name in self.sizes}}

        def slope(point: FloatArray, log_ratio: FloatArray) -> FloatArray:
            """Return the slope of the loss along 6·N·D, which is 0 at N_opt, for θ [..., S, p]."""
            coefficients = self._coefficient_columns(point)
            loss = functools.partial(law.evaluate, coefficients)
            return slope_along_flops(loss, in_proportion, self.sizes[0], self.unique, log_ratio)

        x = log_optimal_ratio
        steps = STEP * np.eye(self.size)[:, None, :]
        # Some rows have no turning point.
        with np.errstate(all="ignore"):
            by_size = (slope(theta, x + SIZE_STEP) - slope(theta, x - SIZE_STEP)) / SIZE_STEP
            # The differences by θ are [p, S, n].
            by_theta = (slope(theta + steps, x) - slope(theta - steps, x)) / STEP
            slopes = np.moveaxis(-by_theta / by_size, 0, -1)
        # NaN is not below the limit either.
        return np.where(np.abs(slopes) < STEEPEST, slopes, 0.0)


def repeated(
    problem: Problem,
    unique_tokens: FloatArray,
    repetition: Repetition,
    counts_sizes: bool = True,
) -> Problem:
    """Count tokens, and sizes, of a problem as what they are worth at these R*; ValueError for a law without D."""
    if "tokens" not in problem.columns:
        raise InputError(f"unique_tokens: the {problem.settings.law} law does not depend on tokens")
    sizes = tuple(name for name in problem.columns if counts_sizes and is_parameters(name))
    objective = RepeatedObjective(problem.objective, problem.columns, unique_tokens, repetition, sizes)
    return replace(problem, objective=objective)


@dataclass
class _Profile:
    """Minus the log density of ln R*, with its slopes, where `theta` [p] becomes the best law for these.

    The noise of the runs is that of their residuals, so Q counts by its logarithm.
    """

    problem: Problem
    unique_tokens: FloatArray
    theta: FloatArray

    def problem_at(self, log_r: FloatArray) -> Problem:
        """Return the problem at these R*."""
        return repeated(self.problem, self.unique_tokens, Repetition(*np.exp(log_r).tolist()))

    def __call__(self, log_r: FloatArray) -> tuple[float, FloatArray]:
        problem = self.problem_at(log_r)
        solution = problem.solve(self.theta[None], max_iterations=200, tolerance=1e-9)
        self.theta = solution.theta[0]
        half = 0.5 * problem.used.sum()
        cost = solution.cost[0] + problem.floor
        distance = (log_r - PUBLISHED) / LOG_ERROR
        density = half * np.log(cost) + 0.5 * distance @ distance
        # At a minimum θ makes no difference.
        slopes = [(self._cost(log_r + move) - self._cost(log_r - move)) / (2.0 * STEP) for move in STEP * np.eye(2)]
        return float(density), half * np.array(slopes) / cost + distance / LOG_ERROR

    def _cost(self, log_r: FloatArray) -> float:
        return float(self.problem_at(log_r).objective.evaluate(self.theta[None]).cost[0])


def fit_repetition(
    problem: Problem,
    unique_tokens: FloatArray,
    theta: FloatArray,
) -> tuple[Problem, FloatArray, RepetitionFit]:
    """Find R*_D and R*_N of these runs, from a fit θ [p], and return the problem and the fit there."""
    from scipy.optimize import minimize

    profile = _Profile(problem, unique_tokens, theta)
    log_r = minimize(profile, PUBLISHED, jac=True, method="L-BFGS-B", bounds=[BOX, BOX]).x
    curvature = []
    for move in WIDE_STEP * np.eye(2):
        curvature.append((profile(log_r + move)[1] - profile(log_r - move)[1]) / (2.0 * WIDE_STEP))
    variances = np.diag(np.linalg.inv(curvature))
    # Where the density of the runs alone bends up, they tell nothing.
    errors = np.sqrt(np.where(variances > 0, np.minimum(variances, LOG_ERROR**2), LOG_ERROR**2))
    profile(log_r)
    value = Repetition(*np.exp(log_r).tolist())
    fit = RepetitionFit(value, dict(zip(R_STARS, errors.tolist(), strict=True)))
    return repeated(problem, unique_tokens, value), profile.theta, fit
