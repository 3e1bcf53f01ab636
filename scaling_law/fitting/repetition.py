"""Repeated data in a fit: Muennighoff's terms on top of any form of law (`formulas.repeated`).

    L = form(N', D', …)      D' from R*_D,  N' from R*_N and N_opt(U_D), which depends on the law's own coefficients

The published ln R* are a prior with an error of `LOG_ERROR`, which the runs move as far as they tell. Coefficients are
fitted at given R*, with the derivative of N_opt in the Jacobian.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from hub.base.errors import InputError
from hub.base.types import Strings
from scaling_law.fitting.diagnostics import EPOCHS, UNIQUE
from scaling_law.fitting.objective import Logs, Objective, Prediction
from scaling_law.fitting.problem import Problem
from scaling_law.formulas.law import numbers, positive
from scaling_law.formulas.repeated import R_STAR_PARAMETERS, R_STAR_TOKENS, Repetition, saturate
from scaling_law.law import Law
from scaling_law.runs.table import Runs
from scaling_law.size.architecture import is_parameters
from scaling_law.size.arrays import FloatArray

# Columns that say how often tokens repeat.
REPEATED = (UNIQUE, EPOCHS)
# Standard error of the published ln R*: a refit to the authors' 182 runs lies a factor of 2.3 from their R*_D, and
# more than 3 from their R*_N.
LOG_ERROR = 1.0
PUBLISHED = np.log([R_STAR_TOKENS, R_STAR_PARAMETERS])
# Names of both R*.
R_STARS = ("r_star_tokens", "r_star_parameters")
# Bounds of ln R*; at the upper end nothing is discounted.
BOX = (np.log(0.1), np.log(1000.0))
# The standard error of ln R* up to which the runs determine it.
RESOLUTION = 0.7
# Steps of derivatives, in ln R* and θ, and in ln R* of second ones.
STEP = 3e-5
WIDE_STEP = 0.02
# Slope of ln N' by a parameter: beyond it, the loss is flat along 6·N·D and N_opt means nothing.
STEEPEST = 1e6


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


@dataclass(eq=False)
class RepeatedObjective(Objective):
    """An objective whose tokens are D', and whose `sizes` are N' under the coefficients themselves."""

    sizes: Strings = ()

    @cached_property
    def logs(self) -> Logs:
        assert self.repetition is not None
        tokens = saturate(self.columns["tokens"], self.columns[UNIQUE], self.repetition.tokens)
        return {name: np.log(tokens if name == "tokens" else self.columns[name]) for name in self.form.variables}

    def _logs_at(self, natural: FloatArray) -> Logs:
        if not self.sizes:
            return self.logs
        coefficients = np.moveaxis(self.coefficients_of(natural), -1, 0)
        law = self.law(*coefficients.reshape(self.size, -1)[:, 0], repetition=self.repetition)
        variables = {name: self.columns[name] for name in self.form.variables}
        # Coefficients may lie at the ends of their box.
        with np.errstate(all="ignore"):
            effective = law.effective(coefficients[..., None], variables, self.columns[UNIQUE])
            return {**self.logs, **{name: np.log(effective[name]) for name in self.sizes}}

    def _jacobian(self, prediction: Prediction) -> FloatArray:
        jacobian = super()._jacobian(prediction)
        if not self.sizes:
            return jacobian
        slope = sum(self._slope_by(name, prediction) for name in self.sizes)
        # All sizes shrink alike. Differences are by θ, whose features are centred: [p, S, n].
        steps = STEP * self.to_natural.T[:, None, :]
        above, below = (self._logs_at(prediction.natural + sign * steps)[self.sizes[0]] for sign in (1.0, -1.0))
        slopes = (above - below) / (2.0 * STEP)
        # NaN is not below the limit either.
        return np.asarray(jacobian + slope * np.where(np.abs(slopes) < STEEPEST, slopes, 0.0))


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
    columns = {**problem.columns, UNIQUE: np.minimum(problem.columns["tokens"], unique_tokens)}
    plain = problem.objective
    objective = RepeatedObjective(
        plain.settings, columns, plain.to_natural, plain.penalty, plain.misfit, repetition, sizes=sizes
    )
    return replace(problem, objective=objective)


@dataclass
class _Profile:
    """Minus the log density of ln R*, with its slopes, where `theta` [p] becomes the best law for these.

    The noise of the runs is that of their residuals, so Q counts by its logarithm.
    """

    problem: Problem
    theta: FloatArray

    def problem_at(self, log_r: FloatArray) -> Problem:
        """Return the problem at these R*."""
        return repeated(self.problem, self.problem.columns[UNIQUE], Repetition(*np.exp(log_r).tolist()))

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
    theta: FloatArray,
) -> tuple[Problem, FloatArray, RepetitionFit]:
    """Find R*_D and R*_N of a problem that counts repetition, from a fit θ [p]; return it and the fit there."""
    from scipy.optimize import minimize

    profile = _Profile(problem, theta)
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
    return profile.problem_at(log_r), profile.theta, fit
