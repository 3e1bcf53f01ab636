"""What laws of other runs say of a fit: a population of laws of many labs, or one law and the spread between labs.

`fit(runs, prior="public")` takes the population. Each member is a set of runs, as a quadratic of its log likelihood in
the coordinates of `penalty`. Mean and covariance of the population follow by expectation maximisation (Dempster et al.
1977), which takes each member's own error off the spread between members. Labs weigh equally, and the sets of a lab
share its weight. About ten labs carry ten correlations badly, so the covariance is shrunk to its diagonal; Student's t
lets a lab be unlike all others. The terms of E are a population of their own, of the few labs whose runs tell E from N
and D: without correlations, and what `spread_between_labs` assumes counts as `ASSUMED_LABS` labs there.

`fit(runs, prior=law)` takes the law as the mean. Its draws say how sure it was of its own runs; the population adds
how far labs lie apart, since another corpus, tokenizer and recipe change the levels at least (`spread_between_labs`).

`population.json` holds the members as numbers, with their sources; `python -m studies.forecasts prior` derives it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hub.base import strict_json
from hub.base.errors import InputError
from hub.base.inputs import as_it_is, reads
from hub.base.tables import Summarised, Table
from scaling_law.fitting.penalty import Coordinates, Penalty, natural_of, values_of
from scaling_law.fitting.problem import Problem, make_problem
from scaling_law.formulas.conditions import Conditions
from scaling_law.formulas.terms import BY_DESIGN, CONSTANT, INTERACTION, SIZE, SLOPE
from scaling_law.law import LAWS, ChinchillaLaw, JointLaw, Law
from scaling_law.law.shelf import SHELF, choose_law
from scaling_law.runs.table import Runs
from scaling_law.size.architecture import is_size
from scaling_law.size.arrays import FloatArray, Interval

CHINCHILLA = Coordinates.of(ChinchillaLaw.form)
POPULATION = Path(__file__).with_name("population.json")
FORMAT = "population"
VERSION = 1
# The lab of the published joint law.
PUBLISHER = "ideas"
# A prior near Chinchilla's law, weaker than any population.
VAGUE_MEAN = (-1.0, -1.0, -1.1, -1.1, 0.5)
VAGUE_SPREAD = (1.0, 1.0, 0.7, 0.7, 0.7)
# Standard deviations of δ and ω at the reference, γ, ζ, and the ln distances of E_start and E_max.
VAGUE_EXPERTS = (0.5, 0.5, 0.1, 0.1, 1.5, 3.0)
# Runs that the population's noise is worth when the noise of a set is estimated.
NOISE_DOF = 4.0
# Least standard deviation of a coordinate between labs.
LEAST_SPREAD = 0.03
# Least spread between labs of an exponent by design, or of an interaction, where the law has none.
LEAST_EFFECT = 0.003
# Standard deviation of ln q between labs.
INTERACTION_SPREAD = 0.5
# Standard deviations of ln loss and ln D between two corpora and their tokenizers.
OTHER_CORPUS = (0.1, 0.15)
# Labs that the assumed spread of the terms of E counts as, beside a handful of real ones.
ASSUMED_LABS = 2.0
# Rounds of estimating the noise and fitting under it.
ROUNDS = 4
WANTED = "must be 'public', a law that predicts a loss, a Prior or None; laws may be named, as 'published'"


@dataclass(frozen=True)
class Member:
    """A set of runs as evidence of its law: ln likelihood ≈ pull·x − x'·precision·x / 2, x as in `penalty`.

    `noise` is the standard deviation of ln L of one run, `units` those of ln loss and ln D for another unit or corpus.
    `terms` are the coordinates that x holds, if not all: those that the design of the runs can tell.
    """

    name: str
    lab: str
    source: str
    licence: str
    runs: int
    noise: float
    pull: tuple[float, ...]
    precision: tuple[tuple[float, ...], ...]
    units: Interval = (0.0, 0.0)
    terms: tuple[str, ...] = ()


@dataclass(frozen=True, repr=False)
class Prior(Summarised):
    """A distribution of the law of a new lab: Student's t of mean [k], covariance [k, k] and `dof` degrees of freedom.

    The k `coordinates` are those of `penalty` for laws of this `kind`. `noise` is the usual standard deviation of ln L
    of one run. `dependence` is how many runs are worth one independent run of a law that is exactly of this form.
    `sources` are the members' names, or the provenance of the one law; its `conditions` say where it holds. `experts`
    is a prior of joint laws whose terms of E go with one of Chinchilla laws (None: those of the published law).
    """

    mean: FloatArray
    covariance: FloatArray
    dof: float = np.inf
    noise: float = 0.01
    dependence: float = 1.0
    sources: tuple[str, ...] = field(default=(), repr=False)
    kind: str = "chinchilla"
    coordinates: Coordinates = field(default=CHINCHILLA, repr=False)
    conditions: Conditions | None = field(default=None, repr=False)
    experts: Prior | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        mean = np.array(self.mean, float)
        covariance = np.array(self.covariance, float)
        size = len(self.coordinates.names)
        has_shapes = mean.shape == (size,) and covariance.shape == (size, size)
        if not has_shapes or not np.linalg.eigvalsh(covariance).min() > 0:
            raise InputError(f"prior: mean and covariance must be of {size} coordinates, the covariance positive")
        for name, value in (("dof", self.dof), ("noise", self.noise), ("dependence", self.dependence)):
            if not value > 0:
                raise InputError(f"prior: {name}={value!r} must be positive")
        for name, values in (("mean", mean), ("covariance", covariance)):
            values.setflags(write=False)
            object.__setattr__(self, name, values)

    @property
    def law(self) -> Law:
        """The law of the mean."""
        return law_of(self.coordinates.natural(self.mean), self.kind)

    def _headline(self) -> str:
        """Say the kind, the sources and the noise."""
        return f"{self.kind} laws from {len(self.sources)} sources, noise {self.noise:.2g}"

    def summary(self) -> Table:
        """Show the law of the mean."""
        return replace(self.law.summary(), notes=[f"mean of a prior from {', '.join(self.sources)}"])

    def in_units(self, loss: float = 0.0, tokens: float = 0.0) -> Prior:
        """Return the prior for losses or tokens in units that differ by free factors of these deviations of ln."""
        added = units_covariance(self.kind, self.coordinates, self.mean, loss, tokens)
        return replace(self, covariance=self.covariance + added)


def law_of(natural: FloatArray, kind: str = "chinchilla") -> Law:
    """Make the law of natural coordinates [k], such as (ln m, μ, ln n, ν, ln c)."""
    values: dict[str, Any] = values_of(LAWS[kind].form, natural)
    return LAWS[kind](**values)


def units_covariance(
    kind: str,
    coordinates: Coordinates,
    mean: FloatArray,
    loss: float,
    tokens: float,
) -> FloatArray:
    """Return the covariance of free factors of the loss, which shifts all terms, and of D."""
    form = LAWS[kind].form
    natural = coordinates.natural(mean)
    scales = np.array([form.roles[name] in (SIZE, CONSTANT) for name in coordinates.names], float)
    outer_exponent = values_of(form, natural)[form.outer] if form.outer else 1.0
    shift_by_loss = scales / outer_exponent
    shift_by_tokens = coordinates.shift_by_tokens(natural)
    of_loss = loss**2 * np.outer(shift_by_loss, shift_by_loss)
    of_tokens = tokens**2 * np.outer(shift_by_tokens, shift_by_tokens)
    return np.asarray(of_loss + of_tokens)


# ------------------------------------------------------------------ one law as a prior


def prior_of(law: Law, population: Prior) -> Prior:
    """Make a prior with the law as its mean, and its draws, the spread between labs and units as its covariance.

    ValueError for a law that is no sum of terms, and for one whose coefficients have no such coordinates.
    """
    form = law.form
    if not form.terms:
        raise InputError(f"prior: the {law.name} law is not a sum of terms, so it cannot be fitted")
    for name in form.positive:
        if law.coefficients[name] == 0:
            raise InputError(f"prior: {name}=0 of {law!r} must be positive: its logarithm is not finite")
    coordinates = Coordinates.of(form, law.coefficients)
    natural = natural_of(form, law.coefficients)
    covariance = spread_between_labs(law, coordinates, population.covariance)
    if law.draws is not None:
        covariance = covariance + covariance_of_draws(law, coordinates)
    provenance = law.conditions.provenance if law.conditions else f"a {law.name} law"
    draws = "no draws" if law.draws is None else "its draws"
    prior_of_law = Prior(
        mean=coordinates.of_natural(natural),
        covariance=covariance,
        dof=population.dof,
        noise=population.noise,
        dependence=population.dependence,
        sources=(f"{provenance}, {draws} and the spread between labs",),
        kind=law.name,
        coordinates=coordinates,
        conditions=law.conditions,
    )
    return prior_of_law.in_units(*OTHER_CORPUS)


def covariance_of_draws(law: Law, coordinates: Coordinates) -> FloatArray:
    """Return the covariance [k, k] of a law's draws: how sure it is of its own runs."""
    draws = np.asarray(law.draws)
    if len(draws) < 2:
        raise InputError(f"prior: {law!r} must have no draws, or at least two")
    coefficients = dict(zip(law.coefficient_names(), draws.T, strict=True))
    return np.asarray(np.cov(coordinates.of_natural(natural_of(law.form, coefficients)).T))


def spread_between_labs(
    law: Law,
    coordinates: Coordinates,
    population: FloatArray,
) -> FloatArray:
    """Return how far a law of another lab lies from this one, a covariance [k, k], from the population's [5, 5].

    Terms in a size, terms in D, their exponents and the constant are matched with Chinchilla's. Of the rest nothing is
    known but for exponents: logarithms spread as these do, and so do effects of a design and interactions, relative to
    what they are.
    """
    form = law.form
    matched: list[int] = []
    places: list[int] = []
    for i, name in enumerate(coordinates.names):
        place = _index_in_chinchilla(form, name)
        if place is not None:
            matched.append(i)
            places.append(place)
    relative = float(np.sqrt(population[2:4, 2:4].diagonal().mean()))
    effect = np.abs(coordinates.matrix @ natural_of(form, law.coefficients))
    is_additive = np.array([form.roles[name] in (BY_DESIGN, INTERACTION) for name in coordinates.names])
    deviations = np.where(is_additive, np.maximum(relative * effect, LEAST_EFFECT), relative)
    covariance = np.diag(deviations**2)
    block = population[np.ix_(places, places)]
    # Of several terms in one size, each is free.
    if len({*places}) < len(places):
        block = np.diag(block.diagonal())
    covariance[np.ix_(matched, matched)] = block
    return covariance


def _index_in_chinchilla(form: Any, name: str) -> int | None:
    """Return the index of the coordinate of Chinchilla's law (ln m, ln n, μ, ν, ln c) that is like this one."""
    role = form.roles[name]
    if role == CONSTANT:
        return 4
    if role not in (SIZE, SLOPE):
        return None
    term = next(term for term in form.terms if name in term.coefficients)
    if role == SIZE:
        factors = [factor for factor in term.factors if is_size(factor)]
        first = 0
    else:
        factors = [term.features[name][0][1][0]]
        first = 2
    if not factors:
        return None
    return first + ("tokens" in factors)


def for_kind(prior: Prior, kind: str) -> Prior:
    """Return the prior for laws of this kind. One of Chinchilla laws gets its `experts`' terms of E, or an open q.

    ValueError where it is of another kind.
    """
    if prior.kind == kind:
        return prior
    if (prior.kind, kind) == ("chinchilla", "interaction"):
        return _with_interaction(prior)
    if (prior.kind, kind) != ("chinchilla", "joint"):
        kinds = "chinchilla (or joint) laws" if prior.kind == "chinchilla" else f"{prior.kind} laws"
        raise InputError(f"kind={kind!r}: the prior is one of {kinds}")
    joint = prior.experts or prior_of(JointLaw.published(), prior)
    size = len(prior.mean)
    covariance = joint.covariance.copy()
    covariance[:size] = 0.0
    covariance[:, :size] = 0.0
    covariance[:size, :size] = prior.covariance
    source = "the published law"
    if prior.experts:
        source = ", ".join(prior.experts.sources) or "no lab"
    return replace(
        prior,
        mean=np.concatenate([prior.mean, joint.mean[size:]]),
        covariance=covariance,
        sources=(*prior.sources, f"terms of E of {source}"),
        kind=joint.kind,
        coordinates=joint.coordinates,
        experts=None,
    )


def _with_interaction(prior: Prior) -> Prior:
    """Return the prior for interaction laws whose A, α, B, β and c are as in the prior, and ln q about 0."""
    law = prior.law
    m, mu, n, nu, c = law.coefficients.values()
    coordinates = Coordinates.of(LAWS["interaction"].form, {"a": m, "x": -mu, "b": n, "y": -nu, "c": c, "q": 1.0})
    # As a = A^(1/q) and x = α / q, the logarithms of terms shrink by their part where ln q rises.
    slope_in_q = np.array([*-prior.mean[:2], -1.0, -1.0, 0.0, 1.0])
    covariance = np.pad(prior.covariance, (0, 1)) + INTERACTION_SPREAD**2 * np.outer(slope_in_q, slope_in_q)
    mean = np.append(prior.mean, 0.0)
    return replace(prior, mean=mean, covariance=covariance, kind="interaction", coordinates=coordinates)


# ------------------------------------------------------------------ laws under priors


@dataclass(frozen=True)
class Modes:
    """Laws of greatest posterior density under S priors: natural coordinates [S, k], their covariance, the noise [S].

    The covariance is Laplace's, with the runs' dependence in it.
    """

    natural: FloatArray
    covariance: FloatArray
    noise: FloatArray
    kind: str = "chinchilla"

    def losses(self, runs: Runs) -> tuple[FloatArray, FloatArray]:
        """Return ln L of each run under each law, [S, n], and its standard error without a run's noise.

        The losses of the runs are not read.
        """
        log_losses, slopes = self._linearise(runs)
        variance = np.einsum("snp,spq,snq->sn", slopes, self.covariance, slopes)
        return log_losses, np.sqrt(np.maximum(variance, 0.0))

    def covariance_with(self, coefficient: str, runs: Runs) -> FloatArray:
        """Return the covariance of ln L of each run with a natural coordinate, [S, n]."""
        _, slopes = self._linearise(runs)
        place = LAWS[self.kind].form.coefficients.index(coefficient)
        return np.asarray(np.einsum("snp,sp->sn", slopes, self.covariance[:, :, place]))

    def _linearise(self, runs: Runs) -> tuple[FloatArray, FloatArray]:
        """Return ln L of each run [S, n] and its derivatives by natural coordinates [S, n, k]."""
        objective = make_problem(replace(runs, loss=np.ones(len(runs))), self.kind).objective
        from_natural = np.linalg.inv(objective.to_natural)
        log_losses, jacobian = objective.linearise(self.natural @ from_natural.T)
        return log_losses, jacobian @ from_natural


def modes(
    runs: Runs,
    priors: Sequence[Prior],
    weights: Any = None,
) -> Modes:
    """Fit a law under each prior, all of one kind; `weights` [n] or [S, n] are inverse variances of ln L, relative."""
    problem = make_problem(runs, priors[0].kind)
    run_weights = np.ones(len(runs)) if weights is None else weights
    weight = np.broadcast_to(run_weights, (len(priors), len(runs)))
    usual_noise = np.array([prior.noise for prior in priors])
    theta, noise = _fit_modes(problem, priors, weight, usual_noise)
    evaluation = problem.objective.evaluate(theta, weight)
    penalty = problem.objective.penalty
    # `_fit_modes` has set it.
    assert penalty is not None
    to_natural = problem.objective.to_natural
    curvature = evaluation.curvature + 1e-12 * np.eye(len(to_natural))
    covariance = np.linalg.inv(curvature) * penalty.variance[:, None, None]
    return Modes(theta @ to_natural.T, to_natural @ covariance @ to_natural.T, noise, priors[0].kind)


def under(
    prior: Prior,
    problem: Problem,
    starts: FloatArray,
) -> tuple[Problem, FloatArray]:
    """Return the problem with the prior, weighed by the noise at the mode, and its starts with the mode before them.

    The noise is that of a run of average weight. ValueError for a prior of another kind of law.
    """
    prior = for_kind(prior, problem.settings.law)
    problem = replace(problem, objective=copy.copy(problem.objective))
    weight = problem.objective.weight
    usual_noise = np.array([prior.noise * float(np.sqrt(weight[weight > 0].mean()))])
    theta, _ = _fit_modes(problem, [prior], weight[None], usual_noise)
    description = " and ".join(prior.sources) or "given"
    if len(prior.sources) > 2:
        description = f"{len(prior.sources)} public sets and laws"
    return replace(problem, settings=replace(problem.settings, prior=description)), np.vstack([theta, starts])


def _fit_modes(
    problem: Problem,
    priors: Sequence[Prior],
    weight: FloatArray,
    usual_noise: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Fit θ [S, k] from the priors' means, and estimate the noise [S] there; the objective gets the penalty."""
    natural = np.array([prior.coordinates.natural(prior.mean) for prior in priors])
    means = np.linalg.solve(problem.objective.to_natural, natural.T).T
    theta = np.clip(means, problem.lower, problem.upper)
    noise = usual_noise
    for _ in range(ROUNDS):
        problem.objective.penalty = penalty_of(priors, noise)
        theta = problem.solve(theta, weight, max_iterations=200, tolerance=1e-9).theta
        noise = estimate_noise(problem, theta, weight, usual_noise)
    return theta, noise


def penalty_of(priors: Sequence[Prior], noise: FloatArray) -> Penalty:
    """Make the penalty of the priors beside runs of this noise [S]."""
    means = np.array([prior.mean for prior in priors])
    precisions = np.linalg.inv(np.array([prior.covariance for prior in priors]))
    dependence = np.array([prior.dependence for prior in priors])
    dof = np.array([float(prior.dof) for prior in priors])
    return Penalty(means, precisions, dof, dependence * noise**2, priors[0].coordinates)


def estimate_noise(
    problem: Problem,
    theta: FloatArray,
    weight: FloatArray,
    usual_noise: FloatArray,
) -> FloatArray:
    """Estimate the standard deviation of ln L of one run [S]; the usual noise counts as `NOISE_DOF` runs.

    Residuals are trimmed as the Huber loss does.
    """
    residuals = problem.objective.residuals(theta)
    size = np.where(problem.objective.is_idle(residuals), 0.0, np.abs(residuals))
    squares = weight * size * np.minimum(size, problem.objective.huber_delta)
    n_runs = (weight > 0).sum(axis=1)
    total = NOISE_DOF * usual_noise**2 + squares.sum(axis=1)
    return np.asarray(np.sqrt(total / (NOISE_DOF + n_runs)))


# ------------------------------------------------------------------ the population


def vague() -> Prior:
    """Return a prior of Chinchilla laws that is weaker than any population."""
    return Prior(np.array(VAGUE_MEAN), np.diag(np.square(VAGUE_SPREAD)))


def vague_of_experts() -> Prior:
    """Return a weak prior of joint laws about the published one; even the signs of its terms of E are open."""
    law = JointLaw.published()
    coordinates = Coordinates.of(law.form, law.coefficients)
    terms_of_e = coordinates.of_natural(natural_of(law.form, law.coefficients))[len(VAGUE_MEAN) :]
    spread = np.square([*VAGUE_SPREAD, *VAGUE_EXPERTS])
    return Prior(np.array([*VAGUE_MEAN, *terms_of_e]), np.diag(spread), kind=law.name, coordinates=coordinates)


def member_of(
    runs: Runs, name: str, lab: str, terms: tuple[str, ...] = (), about: Prior | None = None, **source: Any
) -> Member:
    """Make a member of a set of runs, from its law under a vague prior and the curvature there.

    The law is of the kind of `about` (None: Chinchilla's). With `terms`, only these coordinates stay; the others take
    any value that the vague prior allows.
    """
    start = about or vague()
    mode = modes(runs, [start])
    x = start.coordinates.of_natural(mode.natural)[0]
    from_natural = np.linalg.inv(start.coordinates.jacobian(mode.natural)[0])
    prior_precision = np.asarray(np.linalg.inv(start.covariance), float)
    precision = from_natural.T @ np.linalg.inv(mode.covariance[0]) @ from_natural - prior_precision
    precision = _nearest_semidefinite(precision)
    pull = precision @ x + prior_precision @ (x - start.mean)
    if terms:
        indices = np.array([start.coordinates.names.index(term) for term in terms])
        pull, precision = _marginalise(pull, precision, indices, prior_precision, start.mean)
    return Member(
        name,
        lab,
        runs=len(runs),
        noise=float(mode.noise[0]),
        pull=tuple(pull),
        precision=tuple(tuple(row) for row in precision.tolist()),
        terms=terms,
        **source,
    )


def _nearest_semidefinite(matrix: FloatArray) -> FloatArray:
    """Return the symmetric part of a matrix without its negative eigenvalues."""
    values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
    return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)


def _marginalise(
    pull: FloatArray,
    precision: FloatArray,
    indices: Any,
    prior_precision: FloatArray,
    prior_mean: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Return pull and precision of some coordinates, while the others take any value that the prior allows.

    Args:
        pull: precision times mean, of all coordinates [k].
        precision: that of all coordinates [k, k].
        indices: the coordinates that stay.
        prior_precision: that of the prior [k, k].
        prior_mean: that of the prior [k].
    """
    dropped = np.setdiff1d(np.arange(len(pull)), indices)
    block = np.ix_(dropped, dropped)
    coupling = precision[np.ix_(indices, dropped)] @ np.linalg.inv(precision[block] + prior_precision[block])
    prior_pull = prior_precision[block] @ prior_mean[dropped]
    marginal_pull = pull[indices] - coupling @ (pull[dropped] + prior_pull)
    marginal_precision = precision[np.ix_(indices, indices)] - coupling @ precision[np.ix_(dropped, indices)]
    return marginal_pull, marginal_precision


def estimate(
    members: Iterable[Member],
    shrinkage: float,
    dof: float,
    dependence: float,
    rounds: int = 100,
    about: Prior | None = None,
    assumed: FloatArray | None = None,
) -> Prior:
    """Estimate the population of these members, laws of the kind of the vague prior `about` (None: Chinchilla's).

    `shrinkage` is the part of the covariances that is dropped, from 0 to 1. `assumed`, a covariance [k, k], counts as
    that of `ASSUMED_LABS` more labs. ValueError for fewer than two labs, or for none where a covariance is assumed.
    """
    sets = list(members)
    labs = [member.lab for member in sets]
    n_labs = len({*labs})
    if n_labs < (2 if assumed is None else 1):
        raise InputError(f"prior: a population needs members of two labs, not of {sorted({*labs})}")
    # The sets of a lab share its weight.
    weights = np.array([1.0 / labs.count(lab) for lab in labs])
    start = about or vague()
    size = len(start.mean)
    assumed_labs = 0.0 if assumed is None else ASSUMED_LABS
    assumed_sum = np.zeros((size, size)) if assumed is None else ASSUMED_LABS * assumed
    least_variance = LEAST_SPREAD**2 if assumed is None else 0.0

    pull, precision = _in_all_coordinates(sets, start.coordinates.names)
    pull = pull / dependence
    precision = precision / dependence
    mean = start.mean
    covariance = start.covariance
    for _ in range(rounds):
        centres, spreads = _expected_members(sets, start, mean, covariance, pull, precision)
        # Student's t lets a lab be unlike all others: a distant member weighs less.
        second_moments = _second_moments(centres - mean, spreads)
        distances = np.einsum("ij,sij->s", np.linalg.inv(covariance), second_moments)
        tail_weights = (dof + size) / (dof + distances) if np.isfinite(dof) else np.ones(len(sets))
        member_weights = weights * tail_weights
        mean = member_weights @ centres / member_weights.sum()

        second_moments = _second_moments(centres - mean, spreads)
        total = np.einsum("s,sij->ij", member_weights, second_moments) + assumed_sum
        covariance = total / (weights.sum() + assumed_labs)
        variances = np.maximum(np.diag(covariance), least_variance)
        diagonal = np.diag(variances)
        covariance = (1.0 - shrinkage) * covariance + shrinkage * diagonal

    log_noises = [np.log(member.noise) for member in sets]
    noise = float(np.exp(np.average(log_noises, weights=weights)))
    names = tuple(member.name for member in sets)
    if assumed is None:
        # The mean, too, is estimated.
        covariance = covariance * (n_labs / (n_labs - 1.0)) * (1.0 + 1.0 / n_labs)
        return Prior(mean, covariance, dof, noise, dependence, names)

    # Members say little of some terms: the mean is as uncertain as they are.
    information = precision @ np.linalg.inv(np.eye(size) + covariance @ precision)
    mean_precision = np.einsum("s,sij->ij", weights, information) + np.linalg.inv(start.covariance)
    covariance = covariance + np.linalg.inv(mean_precision)
    return replace(start, mean=mean, covariance=covariance, dof=dof, noise=noise, sources=names)


def _expected_members(
    sets: Sequence[Member],
    start: Prior,
    mean: FloatArray,
    covariance: FloatArray,
    pull: FloatArray,
    precision: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Return the mean [S, k] and the covariance [S, k, k] of each member's law, given the population."""
    unit_shifts = np.array([units_covariance(start.kind, start.coordinates, mean, *member.units) for member in sets])
    discount = np.linalg.inv(np.eye(len(mean)) + precision @ unit_shifts)
    population_precision = np.linalg.inv(covariance)
    spreads = np.asarray(np.linalg.inv(population_precision + discount @ precision), float)
    pulls = (population_precision @ mean)[:, None] + discount @ pull[..., None]
    return np.matmul(spreads, pulls)[..., 0], spreads


def _second_moments(deviations: FloatArray, spreads: FloatArray) -> FloatArray:
    """Return the expected outer products [S, k, k] of members' deviations from the mean."""
    return np.asarray(deviations[:, :, None] * deviations[:, None, :] + spreads)


def _in_all_coordinates(sets: Sequence[Member], names: tuple[str, ...]) -> tuple[FloatArray, FloatArray]:
    """Return pull [S, k] and precision [S, k, k] in all coordinates: 0 for those that a member says nothing of."""
    pull = np.zeros((len(sets), len(names)))
    precision = np.zeros((len(sets), len(names), len(names)))
    for i, member in enumerate(sets):
        places = [names.index(term) for term in member.terms or names]
        pull[i, places] = member.pull
        precision[i][np.ix_(places, places)] = member.precision
    return pull, precision


def terms_of_experts(members: Iterable[Member], population: Prior) -> Prior:
    """Estimate the population of the terms of E, as a prior of joint laws that says nothing of dense models.

    Labs are too few for correlations, so there are none. What no member tells is vague, about the published law's.
    """
    law = JointLaw.published()
    about = vague_of_experts()
    sets = list(members)
    if not sets:
        return about
    assumed = np.diag(np.diag(spread_between_labs(law, about.coordinates, population.covariance)))
    return estimate(sets, 1.0, population.dof, population.dependence, about=about, assumed=assumed)


@reads(name=as_it_is)
def prior(
    name: str | Law = "public",
    experts: Literal["pooled", "published"] | None = None,
) -> Prior:
    """Return the population "public", or a law with the spread between labs: a Law, or its name as of `--prior`.

    `experts`: whose terms of E joint laws get, those "pooled" over labs or those of the "published" law; None for what
    forecasts other labs' MoE models better (docs/studies/forecasts.md). ValueError for another name, and for a law
    that cannot be fitted.
    """
    if isinstance(name, str) and (name in ("published", "printed", *SHELF) or "/" in name or Path(name).is_dir()):
        name = choose_law(name, flag="prior")
    if isinstance(name, Law) and experts is None:
        return prior_of(name, prior())
    if not isinstance(name, Law) and not (isinstance(name, str) and name == "public"):
        raise InputError(f"prior={name!r} {WANTED}")
    if experts not in (None, "pooled", "published") or isinstance(name, Law):
        raise InputError(f"experts={experts!r} must be 'pooled', 'published' or None, and None beside a law")
    return _population(experts)


@cache
def _population(experts: str | None) -> Prior:
    members, settings, members_of_experts, default_experts = read_population(POPULATION)
    population = estimate(members, **settings)
    if (experts or default_experts) == "published":
        return population
    return replace(population, experts=terms_of_experts(members_of_experts, population))


def read_prior(value: Any) -> Prior:
    """Read what `fit` takes as a prior; ValueError for anything else."""
    return value if isinstance(value, Prior) else prior(value)


def read_population(path: Path) -> tuple[list[Member], dict[str, Any], list[Member], str]:
    """Read a file: members and settings; members of the terms of E, and which are usual, "pooled" or "published"."""
    data = strict_json.read(path, FORMAT, VERSION)
    settings = {key: np.inf if value is None else float(value) for key, value in data["settings"].items()}
    members = [_read_member(row) for row in data["members"]]
    members_of_experts = [_read_member(row) for row in data["experts"]["members"]]
    return members, settings, members_of_experts, str(data["experts"]["usual"])


def _read_member(row: dict[str, Any]) -> Member:
    fields = dict(row)
    for name in ("pull", "units", "terms"):
        if name in fields:
            fields[name] = tuple(fields[name])
    fields["precision"] = tuple(tuple(line) for line in fields["precision"])
    return Member(**fields)
