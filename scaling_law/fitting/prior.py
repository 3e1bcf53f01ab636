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
from scaling_law.fitting.penalty import Coordinates, Penalty, natural_of, values_of
from scaling_law.fitting.problem import Problem, make_problem
from scaling_law.formulas.conditions import Conditions
from scaling_law.formulas.terms import BY_DESIGN, CONSTANT, INTERACTION, SIZE, SLOPE
from scaling_law.law import LAWS, ChinchillaLaw, JointLaw, Law
from scaling_law.runs.table import Runs
from scaling_law.size.architecture import is_size
from scaling_law.size.arrays import FloatArray

CHINCHILLA = Coordinates.of(ChinchillaLaw.form)  # of the population
POPULATION = Path(__file__).with_name("population.json")
FORMAT, VERSION = "population", 1
PUBLISHER = "ideas"  # the lab of the published joint law
VAGUE_MEAN = (-1.0, -1.0, -1.1, -1.1, 0.5)  # near Chinchilla's law; with VAGUE_SPREAD, weaker than any population
VAGUE_SPREAD = (1.0, 1.0, 0.7, 0.7, 0.7)
NOISE_DOF = 4.0  # runs that the population's noise is worth, when that of a set is estimated
LEAST_SPREAD = 0.03  # of a coordinate between labs
LEAST_EFFECT = 0.003  # of an exponent by design or an interaction between labs, where the law has none
INTERACTION_SPREAD = 0.5  # of ln q between labs
OTHER_CORPUS = (0.1, 0.15)  # standard deviations of ln loss and ln D between two corpora and their tokenizers
ASSUMED_LABS = 2.0  # that the assumed spread of the terms of E counts as, beside a handful of real ones
VAGUE_EXPERTS = (0.5, 0.5, 0.1, 0.1, 1.5, 3.0)  # δ and ω at the reference, γ, ζ, ln distances of E_start and E_max
ROUNDS = 4  # of estimating the noise and fitting under it
WANTED = "must be 'public', a law that predicts a loss, a Prior or None"


@dataclass(frozen=True)
class Member:
    """What one set of runs says of its law: ln likelihood ≈ pull·x − x'·precision·x / 2, x as in `penalty`.

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
    units: tuple[float, float] = (0.0, 0.0)
    terms: tuple[str, ...] = ()


@dataclass(frozen=True)
class Prior:
    """Where the law of a new lab may lie: Student's t of mean [k] and covariance [k, k] with `dof` degrees of freedom.

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
        mean, covariance = (np.array(values, float) for values in (self.mean, self.covariance))
        size = len(self.coordinates.names)
        if mean.shape != (size,) or covariance.shape != (size, size) or not np.linalg.eigvalsh(covariance).min() > 0:
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

    def in_units(self, loss: float = 0.0, tokens: float = 0.0) -> Prior:
        """The prior for losses or tokens in units that differ by free factors of these standard deviations of ln."""
        return replace(
            self, covariance=self.covariance + units_covariance(self.kind, self.coordinates, self.mean, loss, tokens)
        )


def law_of(natural: FloatArray, kind: str = "chinchilla") -> Law:
    """The law of natural coordinates [k], such as (ln m, μ, ln n, ν, ln c)."""
    values: dict[str, Any] = values_of(LAWS[kind].form, natural)
    return LAWS[kind](**values)


def units_covariance(kind: str, coordinates: Coordinates, mean: FloatArray, loss: float, tokens: float) -> FloatArray:
    """What free factors of the loss and of D add: one shift of all terms, and one of what multiplies ln D."""
    form, natural = LAWS[kind].form, coordinates.natural(mean)
    scales = np.array([form.roles[name] in (SIZE, CONSTANT) for name in coordinates.names], float)
    by_loss = scales / (values_of(form, natural)[form.outer] if form.outer else 1.0)
    by_tokens = coordinates.shift_by_tokens(natural)
    return np.asarray(loss**2 * np.outer(by_loss, by_loss) + tokens**2 * np.outer(by_tokens, by_tokens))


# ------------------------------------------------------------------ one law as a prior


def prior_of(law: Law, population: Prior) -> Prior:
    """The law as the mean; its draws, the spread between labs and another corpus's units as the covariance.

    ValueError for a law that is no sum of terms, and for one whose coefficients have no such coordinates.
    """
    form = law.form
    if not form.terms:
        raise InputError(f"prior: the {law.name} law is not a sum of terms, so it cannot be fitted")
    if zero := [name for name in form.positive if law.coefficients[name] == 0]:
        raise InputError(f"prior: {zero[0]}=0 of {law!r} must be positive: its logarithm is not finite")
    coordinates, natural = Coordinates.of(form, law.coefficients), natural_of(form, law.coefficients)
    covariance = spread_between_labs(law, coordinates, population.covariance)
    if law.draws is not None:
        covariance = covariance + covariance_of_draws(law, coordinates)
    said = law.conditions.provenance if law.conditions else f"a {law.name} law"
    source = f"{said}, {'its draws' if law.draws is not None else 'no draws'} and the spread between labs"
    settings = (population.dof, population.noise, population.dependence, (source,))
    mean = coordinates.of_natural(natural)
    return Prior(mean, covariance, *settings, law.name, coordinates, law.conditions).in_units(*OTHER_CORPUS)


def covariance_of_draws(law: Law, coordinates: Coordinates) -> FloatArray:
    """How sure a law with draws is of its own runs, [k, k]."""
    drawn = dict(zip(law.coefficient_names(), np.asarray(law.draws).T, strict=True))
    if len(np.asarray(law.draws)) < 2:
        raise InputError(f"prior: {law!r} must have no draws, or at least two")
    return np.asarray(np.cov(coordinates.of_natural(natural_of(law.form, drawn)).T))


def spread_between_labs(law: Law, coordinates: Coordinates, population: FloatArray) -> FloatArray:
    """How far a law of another lab lies from this one, as a covariance [k, k], from the population's [5, 5].

    Terms in a size, terms in D, their exponents and the constant are matched with Chinchilla's. Of the rest nothing is
    known but for exponents: logarithms spread as these do, and so do effects of a design and interactions, relative to
    what they are.
    """
    form = law.form
    alike = {i: place for i, name in enumerate(coordinates.names) if (place := _matching(form, name)) is not None}
    relative = float(np.sqrt(population[2:4, 2:4].diagonal().mean()))
    effect = np.abs(coordinates.matrix @ natural_of(form, law.coefficients))
    additive = np.array([form.roles[name] in (BY_DESIGN, INTERACTION) for name in coordinates.names])
    covariance = np.diag(np.where(additive, np.maximum(relative * effect, LEAST_EFFECT), relative) ** 2)
    matched, places = [*alike], [*alike.values()]
    block = population[np.ix_(places, places)]
    unique = len({*places}) == len(places)  # of several terms in one size, each is free
    covariance[np.ix_(matched, matched)] = block if unique else np.diag(block.diagonal())
    return covariance


def _matching(form: Any, name: str) -> int | None:
    """The coordinate of Chinchilla's law that is like this one."""
    role = form.roles[name]
    if role == CONSTANT:
        return 4
    if role not in (SIZE, SLOPE):
        return None
    term = next(term for term in form.terms if name in term.coefficients)
    factors = [f for f in term.factors if is_size(f)] if role == SIZE else [term.features[name][0][1][0]]
    return None if not factors else (0 if role == SIZE else 2) + ("tokens" in factors)


def for_kind(prior: Prior, kind: str) -> Prior:
    """The prior for laws of this kind. One of Chinchilla laws gets its `experts`' terms of E, or an open q.

    ValueError where it is of another kind.
    """
    if prior.kind == kind:
        return prior
    if (prior.kind, kind) == ("chinchilla", "interaction"):
        return _with_interaction(prior)
    if (prior.kind, kind) != ("chinchilla", "joint"):
        kinds = "chinchilla (or joint) laws" if prior.kind == "chinchilla" else f"{prior.kind} laws"
        raise InputError(f"kind={kind!r}: the prior is one of {kinds}")
    joint, size = prior.experts or prior_of(JointLaw.published(), prior), len(prior.mean)
    covariance = joint.covariance.copy()
    covariance[:size], covariance[:, :size] = 0.0, 0.0
    covariance[:size, :size] = prior.covariance
    of_experts = (", ".join(prior.experts.sources) or "no lab") if prior.experts else "the published law"
    return replace(
        prior,
        mean=np.concatenate([prior.mean, joint.mean[size:]]),
        covariance=covariance,
        sources=(*prior.sources, f"terms of E of {of_experts}"),
        kind=joint.kind,
        coordinates=joint.coordinates,
        experts=None,
    )


def _with_interaction(prior: Prior) -> Prior:
    """The prior for interaction laws whose A, α, B, β and c are as in the prior, and ln q about 0."""
    law = prior.law
    m, mu, n, nu, c = law.coefficients.values()
    coordinates = Coordinates.of(LAWS["interaction"].form, {"a": m, "x": -mu, "b": n, "y": -nu, "c": c, "q": 1.0})
    # a = A^(1/q) and x = α / q: where ln q rises, the logarithms of terms shrink by their part
    with_q = np.array([*-prior.mean[:2], -1.0, -1.0, 0.0, 1.0])
    covariance = np.pad(prior.covariance, (0, 1)) + INTERACTION_SPREAD**2 * np.outer(with_q, with_q)
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
        """ln L of each run under each law, [S, n], and its standard error without a run's noise. No loss is read."""
        objective = make_problem(replace(runs, loss=np.ones(len(runs))), self.kind).objective
        back = np.linalg.inv(objective.to_natural)
        residual, jacobian = objective.linearised(self.natural @ back.T)
        slopes = jacobian @ back
        variance = np.einsum("snp,spq,snq->sn", slopes, self.covariance, slopes)
        return residual, np.sqrt(np.maximum(variance, 0.0))


def modes(runs: Runs, priors: Sequence[Prior], weights: Any = None) -> Modes:
    """Fit a law under each prior, all of one kind; `weights` [n] or [S, n] are inverse variances of ln L, relative."""
    problem = make_problem(runs, priors[0].kind)
    weight = np.broadcast_to(np.ones(len(runs)) if weights is None else weights, (len(priors), len(runs)))
    usual = np.array([p.noise for p in priors])
    theta, noise = _settled(problem, priors, weight, usual)
    at, penalty = problem.objective.evaluate(theta, weight), problem.objective.penalty
    assert penalty is not None  # set by `_settled`
    matrix = problem.objective.to_natural
    inverse = np.linalg.inv(at.curvature + 1e-12 * np.eye(len(matrix))) * penalty.variance[:, None, None]
    return Modes(theta @ matrix.T, matrix @ inverse @ matrix.T, noise, priors[0].kind)


def under(prior: Prior, problem: Problem, starts: FloatArray) -> tuple[Problem, FloatArray]:
    """The problem with the prior, weighed by the noise at the mode, and its starts with the mode before them.

    The noise is that of a run of average weight. ValueError for a prior of another kind of law.
    """
    prior = for_kind(prior, problem.settings.law)
    problem = replace(problem, objective=copy.copy(problem.objective))
    weight = problem.objective.weight
    usual = np.array([prior.noise * float(np.sqrt(weight[weight > 0].mean()))])
    theta, _ = _settled(problem, [prior], weight[None], usual)
    several = len(prior.sources) > 2
    told = f"{len(prior.sources)} public sets and laws" if several else " and ".join(prior.sources) or "given"
    return replace(problem, settings=replace(problem.settings, prior=told)), np.vstack([theta, starts])


def _settled(
    problem: Problem, priors: Sequence[Prior], weight: FloatArray, usual: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """θ [S, k] of the modes near the priors' means, and the noise [S] there; the objective gets the penalty."""
    natural = np.array([p.coordinates.natural(p.mean) for p in priors])
    theta = np.clip(np.linalg.solve(problem.objective.to_natural, natural.T).T, problem.lower, problem.upper)
    noise = usual
    for _ in range(ROUNDS):
        problem.objective.penalty = penalty_of(priors, noise)
        theta = problem.solve(theta, weight, max_iterations=200, tolerance=1e-9).theta
        noise = noise_under(problem, theta, weight, usual)
    return theta, noise


def penalty_of(priors: Sequence[Prior], noise: FloatArray) -> Penalty:
    """The priors beside runs of this noise [S]."""
    means = np.array([p.mean for p in priors])
    precisions = np.linalg.inv(np.array([p.covariance for p in priors]))
    dependence = np.array([p.dependence for p in priors])
    dof = np.array([float(p.dof) for p in priors])
    return Penalty(means, precisions, dof, dependence * noise**2, priors[0].coordinates)


def noise_under(problem: Problem, theta: FloatArray, weight: FloatArray, usual: FloatArray) -> FloatArray:
    """Standard deviation of ln L of one run [S], from residuals and the usual noise, which counts as `NOISE_DOF` runs.

    Residuals are trimmed as the Huber loss does.
    """
    residual = problem.objective.residuals(theta)
    size = np.where(problem.objective.idle(residual), 0.0, np.abs(residual))
    squares = weight * size * np.minimum(size, problem.objective.huber_delta)
    count = (weight > 0).sum(axis=1)
    return np.asarray(np.sqrt((NOISE_DOF * usual**2 + squares.sum(axis=1)) / (NOISE_DOF + count)))


# ------------------------------------------------------------------ the population


def vague() -> Prior:
    """A prior of Chinchilla laws, weaker than any population."""
    return Prior(np.array(VAGUE_MEAN), np.diag(np.square(VAGUE_SPREAD)))


def vague_of_experts() -> Prior:
    """The same of joint laws: terms of E about those of the published law, so weak that their sign is open."""
    law = JointLaw.published()
    coordinates = Coordinates.of(law.form, law.coefficients)
    terms_of_e = coordinates.of_natural(natural_of(law.form, law.coefficients))[len(VAGUE_MEAN) :]
    spread = np.square([*VAGUE_SPREAD, *VAGUE_EXPERTS])
    return Prior(np.array([*VAGUE_MEAN, *terms_of_e]), np.diag(spread), kind=law.name, coordinates=coordinates)


def member_of(
    runs: Runs, name: str, lab: str, terms: tuple[str, ...] = (), about: Prior | None = None, **told: Any
) -> Member:
    """A set of runs as a member, from its law under a vague prior and the curvature there.

    The law is of the kind of `about` (None: Chinchilla's). With `terms`, only these coordinates stay; the others take
    any value that the vague prior allows.
    """
    start = about or vague()
    mode = modes(runs, [start])
    x = start.coordinates.of_natural(mode.natural)[0]
    back = np.linalg.inv(start.coordinates.jacobian(mode.natural)[0])
    prior = np.linalg.inv(start.covariance)
    precision = back.T @ np.linalg.inv(mode.covariance[0]) @ back - prior
    values, vectors = np.linalg.eigh(0.5 * (precision + precision.T))
    precision = (vectors * np.maximum(values, 0.0)) @ vectors.T
    pull = precision @ x + prior @ (x - start.mean)
    if terms:
        keep = np.array([start.coordinates.names.index(term) for term in terms])
        drop = np.setdiff1d(np.arange(len(x)), keep)
        rest = np.ix_(drop, drop)
        carried = precision[np.ix_(keep, drop)] @ np.linalg.inv(precision[rest] + prior[rest])
        pull = pull[keep] - carried @ (pull[drop] + prior[rest] @ start.mean[drop])
        precision = precision[np.ix_(keep, keep)] - carried @ precision[np.ix_(drop, keep)]
    rows = tuple(tuple(row) for row in precision.tolist())
    return Member(
        name, lab, runs=len(runs), noise=float(mode.noise[0]), pull=tuple(pull), precision=rows, terms=terms, **told
    )


def estimate(
    members: Iterable[Member],
    shrinkage: float,
    dof: float,
    dependence: float,
    rounds: int = 100,
    about: Prior | None = None,
    assumed: FloatArray | None = None,
) -> Prior:
    """The population of these members, laws of the kind of the vague prior `about` (None: Chinchilla's).

    `shrinkage` is the part of the covariances that is dropped, from 0 to 1. `assumed`, a covariance [k, k], counts as
    that of `ASSUMED_LABS` more labs. ValueError for fewer than two labs, or for none where a covariance is assumed.
    """
    sets = list(members)
    labs = [member.lab for member in sets]
    if len({*labs}) < (2 if assumed is None else 1):
        raise InputError(f"prior: a population needs members of two labs, not of {sorted({*labs})}")
    share = np.array([1.0 / labs.count(lab) for lab in labs])
    start = about or vague()
    mean, covariance, size, count = start.mean, start.covariance, len(start.mean), len({*labs})
    more, further = (0.0, 0.0 * covariance) if assumed is None else (ASSUMED_LABS, ASSUMED_LABS * assumed)
    pull, precision = (values / dependence for values in _in_full(sets, start.coordinates.names))
    for _ in range(rounds):
        shift = np.array([units_covariance(start.kind, start.coordinates, mean, *member.units) for member in sets])
        seen = np.linalg.inv(np.eye(size) + precision @ shift)
        inverse = np.linalg.inv(covariance)
        spread = np.linalg.inv(inverse + seen @ precision)
        centre = np.matmul(spread, (inverse @ mean)[:, None] + seen @ pull[..., None])[..., 0]
        away = centre - mean
        second = away[:, :, None] * away[:, None, :] + spread
        square = np.einsum("ij,sij->s", inverse, second)
        weight = share * ((dof + size) / (dof + square) if np.isfinite(dof) else 1.0)
        mean = weight @ centre / weight.sum()
        away = centre - mean
        second = away[:, :, None] * away[:, None, :] + spread
        covariance = (np.einsum("s,sij->ij", weight, second) + further) / (share.sum() + more)
        diagonal = np.diag(np.maximum(np.diag(covariance), LEAST_SPREAD**2 if assumed is None else 0.0))
        covariance = (1.0 - shrinkage) * covariance + shrinkage * diagonal
    noise = np.exp(np.average([np.log(member.noise) for member in sets], weights=share))
    names = tuple(member.name for member in sets)
    if assumed is not None:  # members say little of some terms: the mean is as uncertain as they are
        seen = precision @ np.linalg.inv(np.eye(size) + covariance @ precision)
        error = np.linalg.inv(np.einsum("s,sij->ij", share, seen) + np.linalg.inv(start.covariance))
        return replace(start, mean=mean, covariance=covariance + error, dof=dof, noise=float(noise), sources=names)
    grown = covariance * (count / (count - 1.0)) * (1.0 + 1.0 / count)  # the mean, too, is estimated
    return Prior(mean, grown, dof, float(noise), dependence, names)


def _in_full(sets: Sequence[Member], names: tuple[str, ...]) -> tuple[FloatArray, FloatArray]:
    """Pull [S, k] and precision [S, k, k] in all coordinates: 0 for those that a member says nothing of."""
    pull, precision = np.zeros((len(sets), len(names))), np.zeros((len(sets), len(names), len(names)))
    for i, member in enumerate(sets):
        places = [names.index(term) for term in member.terms or names]
        pull[i, places] = member.pull
        precision[i][np.ix_(places, places)] = member.precision
    return pull, precision


def terms_of_experts(members: Iterable[Member], population: Prior) -> Prior:
    """The population of the terms of E, as one of joint laws that says nothing of dense models.

    Labs are too few for correlations, so there are none. What no member tells is vague, about the published law's.
    """
    law, about, sets = JointLaw.published(), vague_of_experts(), list(members)
    if not sets:
        return about
    assumed = np.diag(np.diag(spread_between_labs(law, about.coordinates, population.covariance)))
    return estimate(sets, 1.0, population.dof, population.dependence, about=about, assumed=assumed)


@reads(name=as_it_is)
def prior(
    name: str | Law = "public",
    experts: Literal["pooled", "published"] | None = None,
) -> Prior:
    """Return the population shipped under this name, or a law with the spread between labs.

    `experts`: whose terms of E joint laws get, those "pooled" over labs or those of the "published" law; None for what
    forecasts other labs' MoE models better (docs/studies/forecasts.md). ValueError for another name, and for a law
    that cannot be fitted.
    """
    if isinstance(name, Law) and experts is None:
        return prior_of(name, prior())
    if not isinstance(name, Law) and not (isinstance(name, str) and name == "public"):
        raise InputError(f"prior={name!r} {WANTED}")
    if experts not in (None, "pooled", "published") or isinstance(name, Law):
        raise InputError(f"experts={experts!r} must be 'pooled', 'published' or None, and None beside a law")
    return _population(experts)


@cache
def _population(experts: str | None) -> Prior:
    members, settings, of_experts, usual = read_population(POPULATION)
    base = estimate(members, **settings)
    if (experts or usual) == "published":
        return base
    return replace(base, experts=terms_of_experts(of_experts, base))


def read_prior(value: Any) -> Prior:
    """What `fit` takes as a prior; ValueError for anything else."""
    return value if isinstance(value, Prior) else prior(value)


def read_population(path: Path) -> tuple[list[Member], dict[str, Any], list[Member], str]:
    """Members and settings of a file; members of the terms of E, and whether these are "pooled" or "published"."""
    data = strict_json.read(path, FORMAT, VERSION)
    settings = {key: np.inf if value is None else float(value) for key, value in data["settings"].items()}
    members, of_experts = ([_member(row) for row in part["members"]] for part in (data, data["experts"]))
    return members, settings, of_experts, str(data["experts"]["usual"])


def _member(row: dict[str, Any]) -> Member:
    matrix = tuple(tuple(line) for line in row["precision"])
    tuples: dict[str, Any] = {name: tuple(row[name]) for name in ("pull", "units", "terms") if name in row}
    return Member(**{**row, **tuples, "precision": matrix})
