"""The terms of E from the runs that can tell them, and what they are worth in forecasts of MoE models.

Runs and questions are those of `studies/evidence`, set there before; N counts embeddings, as in the population. A lab
whose models are forecast is in neither population. Whether the terms are pooled or the published law's is chosen for
each lab on the others' questions, with that lab in no population either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hub.base import strict_json
from scaling_law import JointLaw, Prior
from scaling_law.fitting.prior import (
    FORMAT,
    POPULATION,
    PUBLISHER,
    VERSION,
    Member,
    covariance_of_draws,
    estimate,
    for_kind,
    member_of,
    modes,
    read_population,
    terms_of_experts,
    vague_of_experts,
)
from studies.common import FloatArray, Part, rms, rounded
from studies.evidence.forecasts import Question, joined, questions
from studies.evidence.points import Source, read_sources
from studies.forecasts.methods import by_lab, one_constant

POINTS = Path(__file__).parents[1] / "evidence"
DIGITS = 6
Population = tuple[Sequence[Member], Mapping[str, Any]]  # of Chinchilla laws, and its settings
OF_SIZE, OF_TOKENS, OF_E = ("delta", "gamma"), ("omega", "zeta"), ("e_start", "e_max")
LABS = {"Step Law": "stepfun", "Marin, isoFLOP": "marin", "Marin, ladder": "marin", "Clark et al., S-Base": "deepmind"}
USES = ("published", "pooled")  # whose terms of E


def members_of(sources: Mapping[str, Source]) -> list[Member]:
    """The published law's draws, and the sets of several E, each with the terms of E that its design can tell."""
    clark, marin, few, step = (sources[name] for name in ("clark", "marin", "marin_experts", "step_law"))
    sets: list[tuple[Any, ...]] = [
        (f"clark_{router}", "deepmind", clark, "CC-BY-4.0", runs, (*OF_SIZE, *OF_E))
        for router, runs in clark.tables.items()
    ]
    grids = joined(marin["isoflop"], few["experts"])
    sets.append(("marin_experts", "marin", few, "Apache-2.0", grids, (*OF_SIZE, *OF_TOKENS)))
    sets.append(("step_law", "stepfun", step, "none stated", joined(step["dense"], step["moe"]), OF_TOKENS))
    return [
        published_terms(),
        *(
            member_of(runs, name, lab, terms, vague_of_experts(), source=source.place, licence=licence)
            for name, lab, source, licence, runs, terms in sets
        ),
    ]


def published_terms() -> Member:
    """The terms of E of the published law, with the covariance of its draws."""
    about, terms = vague_of_experts(), (*OF_SIZE, *OF_TOKENS, *OF_E)
    places = [about.coordinates.names.index(term) for term in terms]
    covariance = covariance_of_draws(JointLaw.published(), about.coordinates)[np.ix_(places, places)]
    return of_published(about.mean[places], covariance, terms=terms)


def of_published(mean: FloatArray, covariance: FloatArray, **told: Any) -> Member:
    """The published law as a member, with these coordinates."""
    conditions, precision = JointLaw.published().conditions, np.linalg.inv(covariance)
    return Member(
        "ludziejewski",
        PUBLISHER,
        "arXiv 2502.05172, the published coefficients and their draws",
        "coefficients, no table",
        runs=conditions.n_runs if conditions and conditions.n_runs else 0,
        noise=0.004,
        pull=tuple((precision @ mean).tolist()),
        precision=tuple(tuple(row) for row in precision.tolist()),
        **told,
    )


# ------------------------------------------------------------------ what they are worth


@dataclass(frozen=True)
class Fold:
    """RMSE on the MoE models of a question, by whose terms of E the prior has, and of one constant.

    `errors` has them with each further lab left out, too, "" for none.
    """

    question: Question
    errors: Mapping[str, Mapping[str, float]]
    constant: float

    @property
    def lab(self) -> str:
        return LABS[self.question.source]


@dataclass(frozen=True)
class Result:
    """Members of the terms of E, folds, and the population of Chinchilla laws that goes with them."""

    members: Sequence[Member]
    folds: Sequence[Fold]
    base: Prior


def folds_of(members: Sequence[Member], population: Population, asked: Sequence[Question]) -> list[Fold]:
    """The questions whose held-out runs have experts; the lab that asks is in no population."""
    return [_fold(members, population, one, LABS[one.source]) for one in asked if one.source in LABS]


def _fold(members: Sequence[Member], population: Population, question: Question, lab: str) -> Fold:
    train, test = question.train, question.test
    others = ["", *sorted({*LABS.values()} - {lab})]
    pairs = [priors_without(members, population, {lab, other}) for other in others]
    solved = modes(train, [for_kind(one, "joint") for pair in pairs for one in pair])
    off = (np.exp(solved.losses(test)[0]) - test.loss).reshape(len(others), len(USES), len(test))
    errors = {other: dict(zip(USES, map(rms, each), strict=True)) for other, each in zip(others, off, strict=True)}
    return Fold(question, errors, rms(one_constant(train, test)))


def priors_without(members: Sequence[Member], population: Population, labs: set[str]) -> tuple[Prior, Prior]:
    """The population without these labs, with the published law's terms of E and with those of these members."""
    sets, settings = population
    base = estimate([one for one in sets if one.lab not in labs], **settings)
    return base, replace(base, experts=terms_of_experts([one for one in members if one.lab not in labs], base))


def better(folds: Sequence[Fold], lab: str = "") -> str:
    """Whose terms forecast the labs' MoE models better; `lab`, if any, neither judges nor is in a population."""
    others = [one for one in folds if one.lab != lab]
    return min(USES, key=lambda use: by_lab((one.lab, one.errors[lab][use]) for one in others))


def result(path: Path = POPULATION) -> Result:
    """Members and folds of the points kept, beside the Chinchilla laws of a population."""
    sources, population = read_sources(POINTS), read_population(path)[:2]
    members = members_of(sources)
    return Result(members, folds_of(members, population, questions(sources)), estimate(population[0], **population[1]))


def write(results: Result, path: Path = POPULATION) -> Path:
    """What the library ships of the terms of E: members as numbers, and whose are used; the file keeps the rest."""
    data = strict_json.read(path, FORMAT, VERSION)
    parts = {name: data[name] for name in ("settings", "members")}
    rows = [rounded(vars(member), DIGITS) for member in results.members]
    return strict_json.write(
        path, FORMAT, VERSION, parts | {"experts": {"usual": better(results.folds), "members": rows}}
    )


# ------------------------------------------------------------------ the page


def terms_shown(results: Result) -> Iterator[Part]:
    """What each member says of each term, under the vague prior, and the pooled one."""
    about, names = vague_of_experts(), (*OF_SIZE, *OF_TOKENS, *OF_E)
    yield ("member", "lab", "runs", "δ", "γ", "ω", "ζ", "ln (E_start − 1)", "ln (E_max − E_start)")
    for one in results.members:
        places = [about.coordinates.names.index(term) for term in one.terms]
        weak = np.linalg.inv(about.covariance[np.ix_(places, places)])
        spread = np.linalg.inv(np.array(one.precision) / results.base.dependence + weak)
        centre = spread @ (np.array(one.pull) / results.base.dependence + weak @ about.mean[places])
        told = {term: _with_error(x, v) for term, x, v in zip(one.terms, centre, np.diag(spread), strict=True)}
        yield (one.name, one.lab, one.runs, *(told.get(name, "") for name in names))
    pooled = terms_of_experts(results.members, results.base)
    places = [about.coordinates.names.index(name) for name in names]
    values = (_with_error(pooled.mean[i], pooled.covariance[i, i]) for i in places)
    yield ("pooled", "", "", *values)


def _with_error(value: float, variance: float) -> str:
    return f"{value:.3f} ± {np.sqrt(variance):.3f}"


def folds_shown(results: Result) -> Iterator[Part]:
    """RMSE of each question, and of each lab the use that the others choose."""
    folds = results.folds
    yield ("forecast", "fitted", "held out", "one constant", "published terms", "pooled terms", "chosen on other labs")
    for one in folds:
        values = (f"{one.errors[''][use]:.4f}" for use in USES)
        sizes = (len(one.question.train), len(one.question.test))
        yield (one.question.name, *sizes, f"{one.constant:.4f}", *values, better(folds, one.lab))
    means = (by_lab((one.lab, one.errors[""][use]) for one in folds) for use in USES)
    constant = by_lab((one.lab, one.constant) for one in folds)
    nested = by_lab((one.lab, one.errors[""][better(folds, one.lab)]) for one in folds)
    yield ("mean over labs", "", "", f"{constant:.4f}", *(f"{mean:.4f}" for mean in means), f"{nested:.4f}")


BLOCKS = {"terms-of-e": terms_shown, "experts-prior": folds_shown}
