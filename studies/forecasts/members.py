"""The population of laws: members as numbers, and mean and covariance estimated from them.

Each member is a set of runs, as a quadratic of its log likelihood in the coordinates of `Prior`. Mean and covariance
follow by expectation maximisation (Dempster et al. 1977), which takes each member's own error off the spread between
members. Labs weigh equally, and the sets of a lab share its weight. About ten labs carry ten correlations badly, so
the covariance is shrunk to its diagonal; Student's t lets a lab be unlike all others. The terms of E are a population
of their own, of the few labs whose runs tell E from N and D: without correlations, and what `spread_between_labs`
assumes counts as `ASSUMED_LABS` labs there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hub.base import strict_json
from hub.base.errors import InputError
from scaling_law import JointLaw, Prior, Runs
from scaling_law.fitting.posterior import posterior
from scaling_law.fitting.prior import (
    FORMAT,
    VAGUE_MEAN,
    VAGUE_SPREAD,
    VERSION,
    prior_of,
    spread_between_labs,
    units_covariance,
    vague,
)
from studies.common import FloatArray

# The lab of the published joint law.
PUBLISHER = "ideas"
# Standard deviations of δ and ω at the reference, γ, ζ, and the ln distances of E_start and E_max.
VAGUE_EXPERTS = (0.5, 0.5, 0.1, 0.1, 1.5, 3.0)
# Least standard deviation of a coordinate between labs.
LEAST_SPREAD = 0.03
# So many runs that tell terms of E are worth one.
DEPENDENCE = 4.0
# Labs that the assumed spread of the terms of E counts as, beside a handful of real ones.
ASSUMED_LABS = 2.0


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
    units: tuple[float, float] = (0.0, 0.0)
    terms: tuple[str, ...] = ()


def vague_of_experts() -> Prior:
    """Return a weak prior of joint laws about the published one; even the signs of its terms of E are open."""
    published = prior_of(JointLaw.published(), vague())
    terms_of_e = published.mean[len(VAGUE_MEAN) :]
    spread = np.square([*VAGUE_SPREAD, *VAGUE_EXPERTS])
    return Prior(
        np.array([*VAGUE_MEAN, *terms_of_e]),
        np.diag(spread),
        kind=published.kind,
        coordinates=published.coordinates,
    )


def member_of(
    runs: Runs, name: str, lab: str, terms: tuple[str, ...] = (), vague_prior: Prior | None = None, **source: Any
) -> Member:
    """Make a member of a set of runs, from its law under a vague prior and the curvature there.

    The law is of the kind of `vague_prior` (None: Chinchilla's). With `terms`, only these coordinates stay; the others
    take any value that the vague prior allows.
    """
    start = vague_prior or vague()
    mode = posterior(runs, start, start.kind)
    objective = mode.problem.objective
    natural = objective.to_natural @ mode.theta
    x = start.coordinates.of_natural(natural)
    slopes = start.coordinates.jacobian(natural) @ objective.to_natural
    covariance = slopes @ objective.covariance(mode.theta, np.full(len(x), True)) @ slopes.T
    prior_precision = np.asarray(np.linalg.inv(start.covariance), float)
    precision = np.linalg.inv(covariance) - prior_precision
    precision = _nearest_semidefinite(precision)
    pull = precision @ x + prior_precision @ (x - start.mean)
    if terms:
        indices = np.array([start.coordinates.names.index(term) for term in terms])
        pull, precision = _marginalise(pull, precision, indices, prior_precision, start.mean)
    return Member(
        name,
        lab,
        runs=len(runs),
        noise=mode.noise,
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
    vague_prior: Prior | None = None,
    assumed: FloatArray | None = None,
) -> Prior:
    """Estimate the population of these members, laws of the kind of `vague_prior` (None: Chinchilla's).

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
    start = vague_prior or vague()
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
        return Prior(mean, covariance, dof, noise, sources=names)

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
    vague_prior = vague_of_experts()
    sets = list(members)
    if not sets:
        return vague_prior
    assumed = np.diag(np.diag(spread_between_labs(law, vague_prior.coordinates, population.covariance)))
    return estimate(sets, 1.0, population.dof, DEPENDENCE, vague_prior=vague_prior, assumed=assumed)


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
