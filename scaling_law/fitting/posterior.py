"""Laws of some runs under a prior: the mode of the posterior, its draws, and forecasts with what laws miss.

Runs are not independent about a law: their errors share what it misses. So the spread of a law counts `DEPENDENCE`
runs as one. A forecast has a misfit besides, in ln L: two functions each of x = ln N, ln D and ln ND, which are zero
below knots within the runs and linear above,

    ln L = ln f(N, D) + Σ_x Σ_k w_xk max(0, x − u_xk)

whose slopes w are normal about 0 with the standard deviation `MISFIT`. The last knots lie at the largest run, so
errors grow beyond it, and along ND also where N and D alone are within the runs. Nothing is added for extrapolation.
docs/studies/forecasts.md says how many of other labs' held-out runs the intervals hold.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from scaling_law.fitting.objective import Misfit
from scaling_law.fitting.penalty import FLATTEST, Penalty
from scaling_law.fitting.prior import Prior, for_kind
from scaling_law.fitting.problem import Problem, make_problem
from scaling_law.formulas.conditions import DEPENDENCE
from scaling_law.law import Law
from scaling_law.runs.table import Runs
from scaling_law.size.architecture import is_size
from scaling_law.size.arrays import FloatArray
from scaling_law.size.draws import draw_normal

# Standard deviation of the slopes of a misfit, and its knots as shares of the range of ln N, ln D and ln ND.
MISFIT = 0.003
KNOTS = (1 / 2, 1.0)
# Runs that the population's noise is worth when the noise of a set is estimated.
NOISE_DOF = 4.0
# Moves of each walker that draws from a posterior.
SWEEPS = 40
# Rounds of estimating the noise and fitting under it.
ROUNDS = 4


# Knots by the variables of a product.
Knots = dict[tuple[str, ...], FloatArray]


@dataclass(frozen=True)
class Posterior:
    """A problem under a prior, with the θ [p] of greatest posterior density, the noise of a run there, and the misfit.

    `knots` have values of ln x for each product x of variables whose misfit is open; `scale` is the deviation of its
    slopes.
    """

    problem: Problem
    theta: FloatArray
    noise: float
    knots: Knots
    scale: float

    @property
    def law(self) -> Law:
        """The law of greatest posterior density, without draws."""
        return self.problem.objective.make_law(self.theta)

    def draw(self, count: int, seed: int | None = None) -> Law:
        """Return the law with draws of the posterior."""
        draws = self.problem.objective.coefficients(draw_posterior(self.problem, self.theta, count, seed))
        return self.law.replace(draws=draws)

    def forecast(
        self,
        points: Runs,
        count: int,
        seed: int | None = None,
    ) -> tuple[FloatArray, FloatArray]:
        """Forecast ln L at points in draws [count, n], without the noise of a run, with the draws of θ, [count, p]."""
        thetas = draw_posterior(self.problem, self.theta, count, seed)
        objective = self.problem.objective
        columns = objective.coefficients(thetas).T[..., None]
        variables = {name: points.column(name) for name in objective.form.variables}
        log_losses = np.log(objective.law.evaluate(columns, variables))
        if self.knots:
            log_losses = log_losses + self._slopes(thetas, seed) @ functions_of(points, self.knots).T
        return log_losses, thetas

    def _slopes(self, thetas: FloatArray, seed: int | None) -> FloatArray:
        """Draw the slopes of the misfit [S, k] beside each θ [S, p]."""
        objective = self.problem.objective
        assert objective.penalty is not None
        influence = objective.influence(objective.absorb(objective.residuals(self.theta[None]))[0])
        residuals = replace(objective, misfit=None).residuals(thetas)
        functions = functions_of(self.problem.columns, self.knots)
        weighted = functions.T * influence / self.noise**2
        information = weighted @ functions
        prior_precision = np.eye(len(weighted)) / self.scale**2
        likeliest = -residuals @ weighted.T @ np.linalg.inv(information + prior_precision)
        spread = np.asarray(np.linalg.inv(information / objective.penalty.dependence + prior_precision), float)
        return likeliest + draw_normal(np.zeros(len(spread)), spread, len(thetas), (seed or 0, 1))


def draw_posterior(
    problem: Problem,
    theta: FloatArray,
    count: int,
    seed: int | None = None,
) -> FloatArray:
    """Draw θ [count, p] of the posterior; what is fixed or at a bound at the mode θ [p] stays.

    Walkers start from the normal distribution about the mode, and each moves along lines through others (Goodman and
    Weare 2010), which bends with the posterior.
    """
    objective = problem.objective
    # There is a posterior under a penalty alone.
    assert objective.penalty is not None
    coordinates = objective.penalty.coordinates
    is_open = problem.free(theta)
    natural = objective.basis @ theta
    slopes = (coordinates.jacobian(natural) @ objective.basis)[:, is_open]
    covariance = slopes @ objective.covariance(theta, is_open) @ slopes.T
    x = draw_normal(coordinates.of_natural(natural), covariance, count, seed)
    walkers = np.clip(objective.from_natural(coordinates.natural(x)), problem.lower, problem.upper)
    walkers[:, ~is_open] = theta[~is_open]
    walkers = walkers @ objective.carry.T

    rng = np.random.default_rng(seed or 0)
    dimensions = int(is_open.sum())
    densities = _log_density(problem, walkers)
    halves = np.array_split(np.arange(count), 2)
    for _ in range(SWEEPS if dimensions else 0):
        for moving, resting in (halves, halves[::-1]):
            scale = (1.0 + rng.random(len(moving))) ** 2 / 2.0
            partners = walkers[rng.choice(resting, len(moving))]
            proposals = partners + scale[:, None] * (walkers[moving] - partners)
            proposed = _log_density(problem, proposals)
            gain = (dimensions - 1) * np.log(scale) + proposed - densities[moving]
            is_taken = np.log(rng.random(len(moving))) < gain
            walkers[moving[is_taken]] = proposals[is_taken]
            densities[moving[is_taken]] = proposed[is_taken]
    return np.asarray(walkers)


def _log_density(problem: Problem, theta: FloatArray) -> FloatArray:
    """Return ln of the posterior density of θ [S, p], up to a constant: none outside the box."""
    objective = problem.objective
    assert objective.penalty is not None
    penalty = objective.penalty
    natural = theta @ objective.basis.T
    energy = objective.cost_of_runs(objective.residuals(theta)) / penalty.dependence + penalty.evaluate(natural)[0]
    # The prior is a density of coordinates, in which exponents are logarithms down to the flattest.
    logs = np.maximum(penalty.coordinates.of_natural(natural), np.log(FLATTEST))
    jacobian = np.where(penalty.coordinates.sign != 0, logs, 0.0).sum(axis=1)
    is_inside = np.all((theta >= problem.lower) & (theta <= problem.upper), axis=1)
    return np.where(is_inside, -energy / penalty.variance - jacobian, -np.inf)


def posterior(
    runs: Runs,
    prior: Prior,
    kind: str,
    *,
    weights: Any = None,
    misfit: float = 0.0,
    dependence: float = 1.0,
) -> Posterior:
    """Fit a law of this kind to runs whose ln L has inverse variances in proportion to `weights` [n].

    `misfit` is the deviation of the slopes of a misfit, 0 for none; `dependence` runs count as one.
    """
    problem = make_problem(runs, kind, weights=weights)
    return _find_mode(problem, for_kind(prior, problem.settings.law), prior.noise, misfit, dependence)


def under(
    prior: Prior,
    problem: Problem,
    starts: FloatArray,
) -> tuple[Problem, FloatArray]:
    """Return the problem with the prior, weighed by the noise at the mode, and its starts with the mode before them.

    The noise is that of a run of average weight. ValueError for a prior of another kind of law.
    """
    prior = for_kind(prior, problem.settings.law)
    weight = problem.objective.weight
    usual_noise = prior.noise * float(np.sqrt(weight[weight > 0].mean()))
    mode = _find_mode(problem, prior, usual_noise, 0.0, DEPENDENCE)
    description = " and ".join(prior.sources) or "given"
    if len(prior.sources) > 2:
        description = f"{len(prior.sources)} public sets and laws"
    objective = replace(mode.problem.objective, settings=replace(problem.settings, prior=description))
    return replace(problem, objective=objective), np.vstack([mode.theta, starts])


def _find_mode(
    problem: Problem,
    prior: Prior,
    usual_noise: float,
    misfit: float,
    dependence: float,
) -> Posterior:
    """Fit from the prior's mean, and estimate the noise there."""
    theta = problem.objective.from_natural(prior.coordinates.natural(prior.mean))
    theta = np.clip(theta, problem.lower, problem.upper)
    knots = find_knots(problem) if misfit > 0 else {}
    precision = np.asarray(np.linalg.inv(prior.covariance))
    noise = usual_noise
    for _ in range(ROUNDS):
        penalty = Penalty(prior.mean, precision, prior.dof, noise**2, dependence, prior.coordinates)
        problem = replace(problem, objective=replace(problem.objective, penalty=penalty))
        if knots:
            functions = functions_of(problem.columns, knots) * misfit / noise
            bend = Misfit.of(functions, problem.objective.weight)
            problem = replace(problem, objective=replace(problem.objective, misfit=bend))
        theta = problem.solve(theta[None], max_iterations=200, tolerance=1e-9).theta[0]
        noise = _estimate_noise(problem, theta, usual_noise)
    return Posterior(problem, theta, noise, knots, misfit)


def find_knots(problem: Problem) -> Knots:
    """Return the knots of the misfit in the size, in D and in their product."""
    sizes = [*filter(is_size, problem.columns)]
    names = (*sizes[:1], *({"tokens"} & {*problem.columns}))
    knots = {}
    for variables in (*combinations(names, 1), *combinations(names, 2)):
        logs = _log_product(problem.columns, variables)
        knots[variables] = logs.min() + np.ptp(logs) * np.array(KNOTS)
    return knots


def functions_of(columns: Any, knots: Knots) -> FloatArray:
    """Return what the slopes of the misfit multiply in ln L, [n, k], of runs or their columns."""
    functions = []
    for variables, knots_of_product in knots.items():
        functions.append(np.maximum(_log_product(columns, variables)[:, None] - knots_of_product, 0.0))
    return np.hstack(functions)


def _log_product(columns: Any, variables: tuple[str, ...]) -> FloatArray:
    """Return ln of the product of these variables [n]."""
    return np.asarray(sum(np.log(columns[name]) for name in variables))


def _estimate_noise(problem: Problem, theta: FloatArray, usual_noise: float) -> float:
    """Estimate the standard deviation of ln L of one run; the usual noise counts as `NOISE_DOF` runs.

    Residuals are those of the law with its misfit, trimmed as the Huber loss does.
    """
    objective = problem.objective
    # What is absorbed twice is what the likeliest misfit leaves.
    size = np.abs(objective.absorb(objective.residuals(theta[None]))[0])
    squares = objective.weight * size * np.minimum(size, objective.settings.huber_delta)
    total = NOISE_DOF * usual_noise**2 + squares.sum()
    return float(np.sqrt(total / (NOISE_DOF + problem.used.sum())))
