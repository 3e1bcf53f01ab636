"""What laws of other runs say of a fit: a population of laws of many labs, or one law and the spread between labs.

`fit(runs, prior="public")` takes the population: mean and covariance of the laws of many labs in the coordinates of
`penalty`. Student's t lets a lab be unlike all others. The terms of E are a population of their own.

`fit(runs, prior=law)` takes the law as the mean. Its draws say how sure it was of its own runs; the population adds
how far labs lie apart, since another corpus, tokenizer and recipe change the levels at least (`spread_between_labs`).

`population.json` holds the population as numbers, and its members with their sources; `python -m studies.forecasts
prior` derives it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from hub.base import strict_json
from hub.base.errors import InputError
from hub.base.fields import UNREAD, reads
from hub.base.notices import Notice
from hub.base.tables import Summarised, Table
from hub.base.types import Fields
from scaling_law.fitting.penalty import Coordinates, natural_of, values_of
from scaling_law.formulas.conditions import Conditions
from scaling_law.formulas.terms import BY_DESIGN, CONSTANT, INTERACTION, SIZE, SLOPE
from scaling_law.law import LAWS, ChinchillaLaw, JointLaw, Law
from scaling_law.law.shelf import SHELF, choose_law
from scaling_law.runs.table import Runs
from scaling_law.size.architecture import is_size
from scaling_law.size.arrays import FloatArray

CHINCHILLA = Coordinates.of(ChinchillaLaw.form)
POPULATION = Path(__file__).with_name("population.json")
FORMAT = "population"
VERSION = 1
# A prior near Chinchilla's law, weaker than any population.
VAGUE_MEAN = (-1.0, -1.0, -1.1, -1.1, 0.5)
VAGUE_SPREAD = (1.0, 1.0, 0.7, 0.7, 0.7)
# The scale of a term that Chinchilla's law does not have, and the standard deviation of what a design does to it.
FURTHER_SCALE = 0.4
FURTHER_EFFECT = 0.5
# Least spread between labs of an exponent by design, or of an interaction, where the law has none.
LEAST_EFFECT = 0.003
# Standard deviation of ln q between labs.
INTERACTION_SPREAD = 0.5
# Standard deviations of ln loss and ln D between two corpora and their tokenizers.
OTHER_CORPUS = (0.1, 0.15)
# Beyond this ln loss from the population's, its unit is freed by this standard deviation.
OTHER_UNIT = 0.35
FREE_UNIT = 1.0
WANTED = "must be 'public', a law that predicts a loss, a Prior or None; laws may be named, as 'published'"


@dataclass(frozen=True, repr=False)
class Prior(Summarised):
    """A distribution of the law of a new lab: Student's t of mean [k], covariance [k, k] and `dof` degrees of freedom.

    The k `coordinates` are those of `penalty` for laws of this `kind`. `noise` is the usual standard deviation of ln L
    of one run. `sources` are the members' names, or the provenance of the one law; its `conditions` say where it
    holds. `experts` is a prior of joint laws whose terms of E go with one of Chinchilla laws (None: those of the
    published law).
    """

    mean: FloatArray
    covariance: FloatArray
    dof: float = np.inf
    noise: float = 0.01
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
        for name, value in (("dof", self.dof), ("noise", self.noise)):
            if not value > 0:
                raise InputError(f"prior: {name}={value!r} must be positive")
        for name, values in (("mean", mean), ("covariance", covariance)):
            values.setflags(write=False)
            object.__setattr__(self, name, values)
        # A file has them as a list.
        object.__setattr__(self, "sources", tuple(self.sources))

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
    values: Fields = values_of(LAWS[kind].form, natural)
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
    place_of = _places_in_chinchilla(form, coordinates.names)
    matched = [*place_of]
    places = [*place_of.values()]
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


def _places_in_chinchilla(form: Any, names: Sequence[str]) -> dict[int, int]:
    """Return the coordinates of Chinchilla's law that are like some of these, by the index of each."""
    places = {i: _index_in_chinchilla(form, name) for i, name in enumerate(names)}
    return {i: place for i, place in places.items() if place is not None}


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

    Of a law with further terms it says what it says of Chinchilla's, and next to nothing of the rest. ValueError where
    it is of another kind.
    """
    if prior.kind == kind:
        return prior
    if (prior.kind, kind) == ("chinchilla", "interaction"):
        return _with_interaction(prior)
    if (prior.kind, kind) == ("chinchilla", "joint"):
        source = "the published law"
        if prior.experts:
            source = ", ".join(prior.experts.sources) or "no lab"
        joint = _extend(prior, prior.experts or prior_of(JointLaw.published(), prior))
        return replace(joint, sources=(*prior.sources, f"terms of E of {source}"))
    form = LAWS[kind].form
    places = _places_in_chinchilla(form, form.coefficients).values()
    if prior.kind == "chinchilla" and sorted(places) == [*range(len(prior.mean))] and not form.outer:
        return _extend(prior, _wide(kind))
    kinds = "chinchilla (or joint) laws" if prior.kind == "chinchilla" else f"{prior.kind} laws"
    raise InputError(f"kind={kind!r}: the prior is one of {kinds}")


def _extend(prior: Prior, wider: Prior) -> Prior:
    """Return the prior of Chinchilla laws for the kind of another, which says what is left, as of terms of E."""
    places = _places_in_chinchilla(LAWS[wider.kind].form, wider.coordinates.names)
    matched = [*places]
    order = [*places.values()]
    mean = wider.mean.copy()
    mean[matched] = prior.mean[order]
    covariance = wider.covariance.copy()
    covariance[matched] = 0.0
    covariance[:, matched] = 0.0
    covariance[np.ix_(matched, matched)] = prior.covariance[np.ix_(order, order)]
    return replace(
        prior, mean=mean, covariance=covariance, kind=wider.kind, coordinates=wider.coordinates, experts=None
    )


def _wide(kind: str) -> Prior:
    """Return a prior that says next to nothing, about a law of this kind that falls with sizes and nothing else."""
    form = LAWS[kind].form
    values = {name: FURTHER_SCALE if name in form.positive else 0.0 for name in form.coefficients}
    for term in form.terms:
        for name, features in term.features.items():
            if form.roles[name] == SLOPE:
                values[name] = -features[0][0]
    for transform in form.transforms:
        values.update(zip((p.name for p in transform.parameters), transform.starts[0], strict=True))
    coordinates = Coordinates.of(form, values)
    additive = [form.roles[name] in (BY_DESIGN, INTERACTION) for name in coordinates.names]
    deviations = np.where(additive, FURTHER_EFFECT, 1.0)
    mean = coordinates.of_natural(natural_of(form, values))
    return Prior(mean, np.diag(deviations**2), kind=kind, coordinates=coordinates)


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


# ------------------------------------------------------------------ the population


def vague() -> Prior:
    """Return a prior of Chinchilla laws that is weaker than any population."""
    return Prior(np.array(VAGUE_MEAN), np.diag(np.square(VAGUE_SPREAD)))


@reads
def prior(
    name: Annotated[str | Law, UNREAD] = "public",
    experts: Literal["pooled", "published"] | None = None,
) -> Prior:
    """Return the population "public", or a law with the spread between labs: a Law, or its name as of `--prior`.

    `experts`: whose terms of E joint laws get, those "pooled" over labs or those of the "published" law; None for what
    forecasts other labs' MoE models better (docs/studies/forecasts.md). ValueError for another name, and for a law
    that cannot be fitted.
    """
    if isinstance(name, str) and (name in ("published", "printed", *SHELF) or "/" in name or Path(name).exists()):
        name = choose_law(name, flag="prior")
    if isinstance(name, Law):
        if experts:
            raise InputError(f"experts={experts!r} must be None beside a law")
        return prior_of(name, prior())
    if not isinstance(name, str) or name != "public":
        raise InputError(f"prior={name!r} {WANTED}")
    return _population(experts)


@cache
def _population(experts: str | None) -> Prior:
    """Read the population, with the prior of the terms of E where they are pooled."""
    data = strict_json.read(POPULATION, FORMAT, VERSION)
    population = Prior(**data["estimated"]["population"])
    if (experts or data["experts"]["usual"]) == "published":
        return population
    law = JointLaw.published()
    coordinates = Coordinates.of(law.form, law.coefficients)
    pooled = Prior(**data["estimated"]["experts"], kind=law.name, coordinates=coordinates)
    return replace(population, experts=pooled)


def read_prior(value: Any, runs: Runs | None = None) -> tuple[Prior, tuple[str, ...]]:
    """Read what `fit` takes as a prior, with warnings; ValueError for anything else.

    The public population is of other corpora and tokenizers than the runs. Where their losses cannot be in its unit,
    its scale is free.
    """
    if isinstance(value, Prior):
        return value, ()
    law_prior = prior(value)
    if value != "public" or runs is None:
        return law_prior, ()
    usual_loss = law_prior.law.loss(runs.n_active, runs.tokens)
    log_ratio = float(np.median(np.log(runs.loss / usual_loss)))
    if abs(log_ratio) < OTHER_UNIT:
        return law_prior.in_units(*OTHER_CORPUS), ()
    ratio = f"×{np.exp(log_ratio):.2g} those of other labs' laws at these sizes"
    note = f"the losses ({runs.loss_name}) are {ratio}: the prior's scale is left free"
    return law_prior.in_units(FREE_UNIT, OTHER_CORPUS[1]), (Notice(note, "the prior's scale is left free"),)
