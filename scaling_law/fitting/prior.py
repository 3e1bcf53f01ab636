"""A population of laws, estimated from public runs of many labs, as the prior of a fit: `fit(runs, prior="public")`.

Each member is a set of runs, as a quadratic of its log likelihood in the coordinates of `penalty`. Mean and covariance
of the population follow by expectation maximisation (Dempster et al. 1977), which takes each member's own error off
the spread between members. Labs weigh equally, and the sets of a lab share its weight. About ten labs carry ten
correlations badly, so the covariance is shrunk to its diagonal; Student's t lets a lab be unlike all others.

`population.json` holds the members as numbers, with their sources; `python -m studies.forecasts prior` derives it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from hub.base import strict_json
from hub.base.errors import InputError
from scaling_law.fitting.penalty import FLATTEST, STEEPEST, Penalty, coordinates, jacobian_of, natural_of
from scaling_law.fitting.problem import Problem, make_problem
from scaling_law.law import ChinchillaLaw
from scaling_law.runs.table import Runs
from scaling_law.size.arrays import FloatArray

KIND, SIZE = "chinchilla", 5
POPULATION = Path(__file__).with_name("population.json")
FORMAT, VERSION = "population", 1
VAGUE_MEAN = (-1.0, -1.0, -1.1, -1.1, 0.5)  # near Chinchilla's law; with VAGUE_SPREAD, weaker than any population
VAGUE_SPREAD = (1.0, 1.0, 0.7, 0.7, 0.7)
NOISE_DOF = 4.0  # runs that the population's noise is worth, when that of a set is estimated
LEAST_SPREAD = 0.03  # of a coordinate between labs
ROUNDS = 4  # of estimating the noise and fitting under it


@dataclass(frozen=True)
class Member:
    """What one set of runs says of its law: ln likelihood ≈ pull·x − x'·precision·x / 2, x as in `penalty`.

    `noise` is the standard deviation of ln L of one run, `units` those of ln loss and ln D for another unit or corpus.
    """

    name: str
    lab: str
    source: str
    licence: str
    runs: int
    noise: float
    pull: tuple[float, ...]
    precision: tuple[tuple[float, ...], ...]
    units: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True)
class Prior:
    """Where the law of a new lab may lie: Student's t of mean [5] and covariance [5, 5] with `dof` degrees of freedom.

    `noise` is the usual standard deviation of ln L of one run. `dependence` is how many runs are worth one
    independent run of a law that is exactly of this form. `sources` are the members' names.
    """

    mean: FloatArray
    covariance: FloatArray
    dof: float = np.inf
    noise: float = 0.01
    dependence: float = 1.0
    sources: tuple[str, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        mean, covariance = (np.asarray(values, float) for values in (self.mean, self.covariance))
        if mean.shape != (SIZE,) or covariance.shape != (SIZE, SIZE) or np.linalg.eigvalsh(covariance).min() <= 0:
            raise InputError(f"prior: mean and covariance must be of {SIZE} coordinates, the covariance positive")
        for name, value in (("dof", self.dof), ("noise", self.noise), ("dependence", self.dependence)):
            if not value > 0:
                raise InputError(f"prior: {name}={value!r} must be positive")
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "covariance", covariance)

    @property
    def law(self) -> ChinchillaLaw:
        """The law of the mean."""
        return law_of(natural_of(self.mean))

    def in_units(self, loss: float = 0.0, tokens: float = 0.0) -> Prior:
        """The prior for losses or tokens in units that differ by free factors of these standard deviations of ln."""
        shift = units_covariance(loss, tokens, float(np.exp(self.mean[3])))
        return replace(self, covariance=self.covariance + shift)


def law_of(natural: FloatArray) -> ChinchillaLaw:
    """The law of (ln m, μ, ln n, ν, ln c), [5]."""
    log_m, mu, log_n, nu, log_c = natural
    return ChinchillaLaw(m=np.exp(log_m), mu=mu, n=np.exp(log_n), nu=nu, c=np.exp(log_c))


def units_covariance(loss: float, tokens: float, exponent: float) -> FloatArray:
    """What free factors of the loss and of D add: one shift of all three terms, and one of D's term alone."""
    by_loss, by_tokens = np.array([1.0, 1.0, 0.0, 0.0, 1.0]), np.array([0.0, exponent, 0.0, 0.0, 0.0])
    return np.asarray(loss**2 * np.outer(by_loss, by_loss) + tokens**2 * np.outer(by_tokens, by_tokens))


# ------------------------------------------------------------------ laws under priors


@dataclass(frozen=True)
class Modes:
    """Laws of greatest posterior density under S priors: natural coordinates [S, 5], their covariance, the noise [S].

    The covariance is Laplace's, with the runs' dependence in it.
    """

    natural: FloatArray
    covariance: FloatArray
    noise: FloatArray

    def losses(self, runs: Runs) -> tuple[FloatArray, FloatArray]:
        """ln L of each run under each law, [S, n], and its standard error without a run's noise."""
        log_n, log_d = np.log(runs.n_active), np.log(runs.tokens)
        log_m, mu, log_nn, nu, log_c = (column[:, None] for column in self.natural.T)
        terms = [np.exp(log_m + mu * log_n), np.exp(log_nn + nu * log_d), np.exp(log_c + 0 * log_n)]
        total = sum(terms[1:], start=terms[0])
        slopes = [terms[0], terms[0] * log_n, terms[1], terms[1] * log_d, terms[2]]
        jacobian = np.stack([slope / total for slope in slopes], axis=-1)
        variance = np.einsum("snp,spq,snq->sn", jacobian, self.covariance, jacobian)
        return np.log(total), np.sqrt(np.maximum(variance, 0.0))


def modes(runs: Runs, priors: Sequence[Prior], weights: Any = None) -> Modes:
    """Fit a Chinchilla law under each prior; `weights` [n] or [S, n] are inverse variances of ln L, relative."""
    problem = under_prior(make_problem(runs, KIND, 0.01, None, 0.0, {}, {}, [p.law for p in priors]))
    weight = np.broadcast_to(np.ones(len(runs)) if weights is None else weights, (len(priors), len(runs)))
    theta = starts_of(problem, priors)
    noise = np.array([p.noise for p in priors])
    for _ in range(ROUNDS):
        penalty = penalty_of(priors, noise)
        problem.objective.penalty = penalty
        theta = problem.solve(theta, weight, max_iterations=200, tolerance=1e-9).theta
        noise = noise_under(problem, theta, weight, np.array([p.noise for p in priors]))
    at = problem.objective.evaluate(theta, weight)
    matrix = problem.objective.to_natural
    inverse = np.linalg.inv(at.curvature + 1e-12 * np.eye(SIZE)) * penalty.variance[:, None, None]
    return Modes(theta @ matrix.T, matrix @ inverse @ matrix.T, noise)


def under(prior: Prior, problem: Problem, starts: FloatArray) -> tuple[Problem, FloatArray]:
    """The problem with the prior, weighed by the noise at the mode, and its starts with the mode before them."""
    if not isinstance(prior, Prior):
        raise InputError(f"prior={prior!r} must be 'public', a Prior or None")
    problem = under_prior(problem)
    theta, usual = starts_of(problem, [prior]), np.array([prior.noise])
    noise, weight = usual, problem.objective.weight[None]
    for _ in range(ROUNDS):
        problem.objective.penalty = penalty_of([prior], noise)
        theta = problem.solve(theta, max_iterations=200, tolerance=1e-9).theta
        noise = noise_under(problem, theta, weight, usual)
    problem.objective.penalty = penalty_of([prior], noise)
    told = f"{len(prior.sources)} public sets" if prior.sources else "given"
    settings = replace(problem.settings, prior=told)
    return replace(problem, settings=settings), np.vstack([theta, np.clip(starts, problem.lower, problem.upper)])


def under_prior(problem: Problem) -> Problem:
    """The problem with exponents that have logarithms. ValueError for another kind of law than the prior's."""
    if problem.settings.law != KIND:
        raise InputError(f"prior: is one of {KIND} laws, not of kind={problem.settings.law!r}")
    slopes = np.array([name in ("mu", "nu") for name in problem.objective.names])
    lower = np.where(slopes, np.maximum(problem.lower, STEEPEST), problem.lower)
    return replace(problem, lower=lower, upper=np.where(slopes, np.minimum(problem.upper, FLATTEST), problem.upper))


def starts_of(problem: Problem, priors: Sequence[Prior]) -> FloatArray:
    """θ [S, 5] of the means, inside the box."""
    natural = natural_of(np.array([p.mean for p in priors]))
    theta = np.linalg.solve(problem.objective.to_natural, natural.T).T
    return np.clip(theta, problem.lower, problem.upper)


def penalty_of(priors: Sequence[Prior], noise: FloatArray) -> Penalty:
    """The priors beside runs of this noise [S]."""
    means = np.array([p.mean for p in priors])
    precisions = np.linalg.inv(np.array([p.covariance for p in priors]))
    dependence = np.array([p.dependence for p in priors])
    return Penalty(means, precisions, np.array([float(p.dof) for p in priors]), dependence * noise**2)


def noise_under(problem: Problem, theta: FloatArray, weight: FloatArray, usual: FloatArray) -> FloatArray:
    """Standard deviation of ln L of one run [S], from residuals and the usual noise, which counts as `NOISE_DOF` runs.

    Residuals are trimmed as the Huber loss does.
    """
    residual = problem.objective.residuals(theta)
    delta = problem.objective.huber_delta
    squares = weight * np.abs(residual) * np.minimum(np.abs(residual), delta)
    return np.asarray(np.sqrt((NOISE_DOF * usual**2 + squares.sum(axis=1)) / (NOISE_DOF + residual.shape[1])))


# ------------------------------------------------------------------ the population


def member_of(runs: Runs, name: str, lab: str, **about: Any) -> Member:
    """A set of runs as a member, from its law under a vague prior and the curvature there."""
    vague = Prior(np.array(VAGUE_MEAN), np.diag(np.square(VAGUE_SPREAD)))
    mode = modes(runs, [vague])
    x = coordinates(mode.natural)[0]
    back = np.linalg.inv(jacobian_of(mode.natural)[0])
    prior = np.linalg.inv(vague.covariance)
    precision = back.T @ np.linalg.inv(mode.covariance[0]) @ back - prior
    values, vectors = np.linalg.eigh(0.5 * (precision + precision.T))
    precision = (vectors * np.maximum(values, 0.0)) @ vectors.T
    pull = precision @ x + prior @ (x - vague.mean)
    rows = tuple(tuple(row) for row in precision.tolist())
    return Member(name, lab, runs=len(runs), noise=float(mode.noise[0]), pull=tuple(pull), precision=rows, **about)


def estimate(members: Iterable[Member], shrinkage: float, dof: float, dependence: float, rounds: int = 100) -> Prior:
    """The population of these members.

    `shrinkage` is the part of the covariances that is dropped, from 0 to 1. ValueError for fewer than two labs.
    """
    sets = list(members)
    labs = [member.lab for member in sets]
    if len({*labs}) < 2:
        raise InputError(f"prior: a population needs members of two labs, not of {sorted({*labs})}")
    share = np.array([1.0 / labs.count(lab) for lab in labs])
    eye, count = np.eye(SIZE), len({*labs})
    mean, covariance = np.array(VAGUE_MEAN), np.diag(np.square(VAGUE_SPREAD))
    precision = np.array([member.precision for member in sets]) / dependence
    pull = np.array([member.pull for member in sets]) / dependence
    for _ in range(rounds):
        shift = np.array([units_covariance(*member.units, float(np.exp(mean[3]))) for member in sets])
        seen = np.linalg.inv(eye + precision @ shift)
        inverse = np.linalg.inv(covariance)
        spread = np.linalg.inv(inverse + seen @ precision)
        centre = np.matmul(spread, (inverse @ mean)[:, None] + seen @ pull[..., None])[..., 0]
        away = centre - mean
        second = away[:, :, None] * away[:, None, :] + spread
        square = np.einsum("ij,sij->s", inverse, second)
        weight = share * ((dof + SIZE) / (dof + square) if np.isfinite(dof) else 1.0)
        mean = weight @ centre / weight.sum()
        away = centre - mean
        second = away[:, :, None] * away[:, None, :] + spread
        covariance = np.einsum("s,sij->ij", weight, second) / share.sum()
        diagonal = np.diag(np.maximum(np.diag(covariance), LEAST_SPREAD**2))
        covariance = (1.0 - shrinkage) * covariance + shrinkage * diagonal
    noise = np.exp(np.average([np.log(member.noise) for member in sets], weights=share))
    grown = covariance * (count / (count - 1.0)) * (1.0 + 1.0 / count)  # the mean, too, is estimated
    return Prior(mean, grown, dof, float(noise), dependence, tuple(member.name for member in sets))


def prior(name: str = "public", without: str | Collection[str] = ()) -> Prior:
    """The population shipped under this name, without the members of some labs.

    ValueError for another name, and for labs that have no member.
    """
    if name != "public":
        raise InputError(f"prior={name!r} must be 'public', a Prior or None")
    members, settings = read_population(POPULATION)
    left_out = {without} if isinstance(without, str) else {*without}
    labs = sorted({member.lab for member in members})
    if unknown := sorted(left_out - {*labs}):
        raise InputError(f"without={unknown[0]!r} must be among {', '.join(labs)}")
    return estimate([member for member in members if member.lab not in left_out], **settings)


def read_population(path: Path) -> tuple[list[Member], dict[str, Any]]:
    """Members and settings of a file."""
    data = strict_json.read(path, FORMAT, VERSION)
    settings: dict[str, Any] = {
        key: np.inf if value is None else float(value) for key, value in data["settings"].items()
    }
    return [_member(row) for row in data["members"]], settings


def _member(row: dict[str, Any]) -> Member:
    matrix = tuple(tuple(line) for line in row["precision"])
    return Member(**{**row, "pull": tuple(row["pull"]), "precision": matrix, "units": tuple(row["units"])})
