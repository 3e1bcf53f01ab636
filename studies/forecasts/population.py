"""The population of laws that the library ships: members as numbers, and settings chosen by leaving labs out.

The terms of E have a population of their own, of the runs that can tell them. What they are worth is measured on the
questions of `studies/evidence`, set there before; N counts embeddings. A lab whose MoE models are forecast is in
neither population. Whether the terms are pooled or the published law's is chosen for each lab on the others'
questions, with that lab in no population either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hub.base import strict_json
from scaling_law import JointLaw, Prior, Runs, backtest
from scaling_law.fitting.prior import (
    CHINCHILLA,
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
from studies.common import FloatArray, Page, Part, rms, round_numbers
from studies.evidence.forecasts import Question, joined, questions
from studies.evidence.points import Source, read_sources
from studies.forecasts.methods import BY_HAND, BY_NAME, CHOICES, CONSTANT, best_choice, by_lab, forecasts_of
from studies.forecasts.sets import UNITS

POINTS = Path(__file__).parents[1] / "evidence"
DIGITS = 6  # significant, of every number kept
OF_SIZE, OF_TOKENS, OF_E = ("delta", "gamma"), ("omega", "zeta"), ("e_start", "e_max")
LABS = {"Step Law": "stepfun", "Marin, isoFLOP": "marin", "Marin, ladder": "marin", "Clark et al., S-Base": "deepmind"}
USES = ("published", "pooled")  # whose terms of E


def write_population(tables: Mapping[str, Runs], path: Path = POPULATION) -> Path:
    """Members as numbers, and the settings under which labs forecast each other best beyond a compute."""
    members = members_of(tables)
    cut = [one for one in forecasts_of(tables, members) if one.split.by == "flops"]
    choice = CHOICES[best_choice(cut)]
    settings = {
        "shrinkage": choice.shrinkage,
        "dof": choice.dof if np.isfinite(choice.dof) else None,
        "dependence": choice.dependence,
    }
    rows = [round_numbers(vars(member), DIGITS) for member in members]
    none: dict[str, Any] = {"usual": USES[0], "members": []}
    strict_json.write(path, FORMAT, VERSION, {"settings": settings, "members": rows, "experts": none})
    return write_experts(members_of_experts(read_sources(POINTS)), folds(path), path)


def write_experts(members: Sequence[Member], folds: Sequence[Fold], path: Path = POPULATION) -> Path:
    """The terms of E: members as numbers, and whose are used; the file keeps the rest."""
    data = strict_json.read(path, FORMAT, VERSION)
    parts = {name: data[name] for name in ("settings", "members")}
    rows = [round_numbers(vars(member), DIGITS) for member in members]
    return strict_json.write(path, FORMAT, VERSION, parts | {"experts": {"usual": better(folds), "members": rows}})


# ------------------------------------------------------------------ members


def members_of(tables: Mapping[str, Runs]) -> list[Member]:
    """Each set of the population as a member, and the published joint law at E = 1, of which no runs are public."""
    sets = [
        member_of(runs, name, one.lab, source=one.place, licence=one.licence, units=UNITS[one.unit])
        for name, runs in tables.items()
        if (one := BY_NAME[name]).member
    ]
    law = JointLaw.published()
    rows = [law.replace(**dict(zip(law.coefficients, row, strict=True))) for row in np.asarray(law.draws)]
    parts = [(*map(float, one.chinchilla_coefficients(1.0)), one.coefficients["c"]) for one in rows]
    m, mu, n, nu, c = np.array(parts).T
    x = CHINCHILLA.of_natural(np.stack([np.log(m), mu, np.log(n), nu, np.log(c)], axis=-1))
    return [*sets, _published_as(x.mean(axis=0), np.cov(x.T), units=UNITS["nats"])]


def members_of_experts(sources: Mapping[str, Source]) -> list[Member]:
    """The published law's draws, and the sets of several E, each with the terms of E that its design can tell."""
    about, terms = vague_of_experts(), (*OF_SIZE, *OF_TOKENS, *OF_E)
    places = [about.coordinates.names.index(term) for term in terms]
    covariance = covariance_of_draws(JointLaw.published(), about.coordinates)[np.ix_(places, places)]
    clark, marin, few, step = (sources[name] for name in ("clark", "marin", "marin_experts", "step_law"))
    grids = joined(marin["isoflop"], few["experts"])
    sets: list[tuple[Any, ...]] = [
        *((f"clark_{router}", clark, "CC-BY-4.0", runs, (*OF_SIZE, *OF_E)) for router, runs in clark.tables.items()),
        ("marin_experts", few, "Apache-2.0", grids, (*OF_SIZE, *OF_TOKENS)),
        ("step_law", step, "none stated", joined(step["dense"], step["moe"]), OF_TOKENS),
    ]
    labs = {"clark": "deepmind", "marin_experts": "marin", "step_law": "stepfun"}
    return [
        _published_as(about.mean[places], covariance, terms=terms),
        *(
            member_of(runs, name, labs[one.name], terms, about, source=one.place, licence=licence)
            for name, one, licence, runs, terms in sets
        ),
    ]


def _published_as(mean: FloatArray, covariance: FloatArray, **told: Any) -> Member:
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


# ------------------------------------------------------------------ what the terms of E are worth


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


def folds(path: Path = POPULATION) -> list[Fold]:
    """The questions on the points kept, beside the Chinchilla laws of a population."""
    sources = read_sources(POINTS)
    return folds_of(members_of_experts(sources), *read_population(path)[:2], questions(sources))


def folds_of(
    members: Sequence[Member], sets: Sequence[Member], settings: Mapping[str, Any], asked: Sequence[Question]
) -> list[Fold]:
    """The questions whose held-out runs have experts; the lab that asks is in no population."""
    return [_fold(members, sets, settings, one, LABS[one.source]) for one in asked if one.source in LABS]


def _fold(
    members: Sequence[Member], sets: Sequence[Member], settings: Mapping[str, Any], question: Question, lab: str
) -> Fold:
    """With the Chinchilla laws `sets` and the terms of E of `members`, without this lab and each of the others."""
    train, test = question.train, question.test
    others, priors = ["", *sorted({*LABS.values()} - {lab})], list[Prior]()
    for out in ({lab, other} for other in others):
        base = estimate([one for one in sets if one.lab not in out], **settings)
        pooled = terms_of_experts([one for one in members if one.lab not in out], base)
        priors += [base, replace(base, experts=pooled)]
    solved = modes(train, [for_kind(one, "joint") for one in priors])
    off = (np.exp(solved.losses(test)[0]) - test.loss).reshape(len(others), len(USES), len(test))
    errors = {other: dict(zip(USES, map(rms, each), strict=True)) for other, each in zip(others, off, strict=True)}
    return Fold(question, errors, backtest(train, test, {CONSTANT: BY_HAND[CONSTANT]}).laws[CONSTANT].rmse)


def better(folds: Sequence[Fold], lab: str = "") -> str:
    """Whose terms forecast the labs' MoE models better; `lab`, if any, neither judges nor is in a population."""
    others = [one for one in folds if one.lab != lab]
    return min(USES, key=lambda use: by_lab((one.lab, one.errors[lab][use]) for one in others))


def experts_prior(folds: Sequence[Fold]) -> Iterator[Part]:
    """RMSE of each question, and of each lab the use that the others choose."""
    yield "forecast", "fitted", "held out", "one constant", "published terms", "pooled terms", "chosen on other labs"
    for one in folds:
        values = (f"{one.errors[''][use]:.4f}" for use in USES)
        sizes = len(one.question.train), len(one.question.test)
        yield one.question.name, *sizes, f"{one.constant:.4f}", *values, better(folds, one.lab)
    means = [by_lab((one.lab, one.errors[""][use]) for one in folds) for use in USES]
    constant = by_lab((one.lab, one.constant) for one in folds)
    nested = by_lab((one.lab, one.errors[""][better(folds, one.lab)]) for one in folds)
    yield "mean over labs", "", "", *(f"{mean:.4f}" for mean in (constant, *means, nested))


PAGE = Page(folds, blocks=(experts_prior,))
