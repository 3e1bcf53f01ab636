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
from scaling_law.fitting.posterior import posterior
from scaling_law.fitting.prior import CHINCHILLA, FORMAT, POPULATION, VERSION, covariance_of_draws
from studies.common import FloatArray, Page, Part, rms, round_numbers
from studies.evidence.forecasts import Question, join_tables, questions
from studies.evidence.points import Source, read_sources
from studies.forecasts.members import (
    PUBLISHER,
    Member,
    estimate,
    member_of,
    read_population,
    terms_of_experts,
    vague_of_experts,
)
from studies.forecasts.methods import BY_HAND, CONSTANT, by_lab
from studies.forecasts.sets import SETS, UNITS

BY_NAME = {run_set.name: run_set for run_set in SETS}
POINTS = Path(__file__).parents[1] / "evidence"
# Significant digits of every number kept.
DIGITS = 6
# Those of what is estimated from them.
ESTIMATED_DIGITS = 12
OF_SIZE = ("delta", "gamma")
OF_TOKENS = ("omega", "zeta")
OF_E = ("e_start", "e_max")
LABS = {"Step Law": "stepfun", "Marin, isoFLOP": "marin", "Marin, ladder": "marin", "Clark et al., S-Base": "deepmind"}
# The two priors of the terms of E: those of the published law, and those pooled over sets.
USES = ("published", "pooled")


def write_population(tables: Mapping[str, Runs], path: Path = POPULATION) -> Path:
    """Write members as numbers; the file keeps its settings and the terms of E."""
    data = strict_json.read(path, FORMAT, VERSION)
    fields = {
        "settings": data["settings"],
        "members": _rounded_fields(members_of(tables)),
        "experts": data["experts"],
    }
    strict_json.write(path, FORMAT, VERSION, fields)
    return write_experts(members_of_experts(read_sources(POINTS)), folds(path), path)


def write_experts(members: Sequence[Member], folds: Sequence[Fold], path: Path = POPULATION) -> Path:
    """Write the terms of E: members as numbers, and whose are used; with them what all members say together."""
    data = strict_json.read(path, FORMAT, VERSION)
    fields = {
        "settings": data["settings"],
        "members": data["members"],
        "experts": {"usual": better(folds), "members": _rounded_fields(members)},
    }
    strict_json.write(path, FORMAT, VERSION, fields)
    sets, settings, members_of_experts, _ = read_population(path)
    population = estimate(sets, **settings)
    fields["estimated"] = {
        "population": _numbers_of(population),
        "experts": _numbers_of(terms_of_experts(members_of_experts, population)),
    }
    return strict_json.write(path, FORMAT, VERSION, fields)


def _numbers_of(prior: Prior) -> dict[str, Any]:
    """Return the numbers of a prior, to more digits than those of its members, and its sources."""
    fields: dict[str, Any] = {name: getattr(prior, name) for name in ("dof", "noise", "sources")}
    fields["mean"] = prior.mean.tolist()
    fields["covariance"] = prior.covariance.tolist()
    return round_numbers(fields, ESTIMATED_DIGITS)


def _rounded_fields(members: Sequence[Member]) -> list[Any]:
    return [round_numbers(vars(member), DIGITS) for member in members]


# ------------------------------------------------------------------ members


def members_of(tables: Mapping[str, Runs]) -> list[Member]:
    """Return each set of the population as a member, and the published joint law at E = 1.

    No runs are public of the published law, so its draws stand for them.
    """
    members = []
    for name, runs in tables.items():
        run_set = BY_NAME[name]
        if run_set.member:
            member = member_of(
                runs,
                name,
                run_set.lab,
                source=run_set.place,
                licence=run_set.licence,
                units=UNITS[run_set.unit],
            )
            members.append(member)
    law = JointLaw.published()
    parameters = []
    for row in np.asarray(law.draws):
        draw = law.replace(**dict(zip(law.coefficients, row, strict=True)))
        parameters.append((*map(float, draw.chinchilla_coefficients(1.0)), draw.coefficients["c"]))
    m, mu, n, nu, c = np.array(parameters).T
    x = CHINCHILLA.of_natural(np.stack([np.log(m), mu, np.log(n), nu, np.log(c)], axis=-1))
    published = _published_member(x.mean(axis=0), np.cov(x.T), units=UNITS["nats"])
    return [*members, published]


def members_of_experts(sources: Mapping[str, Source]) -> list[Member]:
    """Return the published law's draws, and the sets of several E, each with the terms of E that it can tell."""
    prior = vague_of_experts()
    terms = (*OF_SIZE, *OF_TOKENS, *OF_E)
    places = [prior.coordinates.names.index(term) for term in terms]
    covariance = covariance_of_draws(JointLaw.published(), prior.coordinates)[np.ix_(places, places)]
    members = [_published_member(prior.mean[places], covariance, terms=terms)]

    def add(name: str, lab: str, source: Source, licence: str, runs: Runs, terms: tuple[str, ...]) -> None:
        members.append(member_of(runs, name, lab, terms, prior, source=source.place, licence=licence))

    clark = sources["clark"]
    for router, runs in clark.tables.items():
        add(f"clark_{router}", "deepmind", clark, "CC-BY-4.0", runs, (*OF_SIZE, *OF_E))
    marin = sources["marin_experts"]
    grids = join_tables(sources["marin"]["isoflop"], marin["experts"])
    add("marin_experts", "marin", marin, "Apache-2.0", grids, (*OF_SIZE, *OF_TOKENS))
    step = sources["step_law"]
    add("step_law", "stepfun", step, "none stated", join_tables(step["dense"], step["moe"]), OF_TOKENS)
    return members


def _published_member(mean: FloatArray, covariance: FloatArray, **options: Any) -> Member:
    """Return the published law as a member, with these coordinates."""
    conditions = JointLaw.published().conditions
    precision = np.linalg.inv(covariance)
    return Member(
        "ludziejewski",
        PUBLISHER,
        "arXiv 2502.05172, the published coefficients and their draws",
        "coefficients, no table",
        runs=conditions.n_runs if conditions and conditions.n_runs else 0,
        noise=0.004,
        pull=tuple((precision @ mean).tolist()),
        precision=tuple(tuple(row) for row in precision.tolist()),
        **options,
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
        """The lab of the question's runs."""
        return LABS[self.question.source]


def folds(path: Path = POPULATION) -> list[Fold]:
    """Ask the questions on the points kept, beside the Chinchilla laws of a population."""
    sources = read_sources(POINTS)
    sets, settings = read_population(path)[:2]
    return folds_of(members_of_experts(sources), sets, settings, questions(sources))


def folds_of(
    members: Sequence[Member], sets: Sequence[Member], settings: Mapping[str, Any], questions: Sequence[Question]
) -> list[Fold]:
    """Ask the questions whose held-out runs have experts; the lab that asks is in no population."""
    return [_fold(members, sets, settings, question) for question in questions if question.source in LABS]


def _fold(members: Sequence[Member], sets: Sequence[Member], settings: Mapping[str, Any], question: Question) -> Fold:
    """Forecast with the Chinchilla laws of `sets` and the terms of E of `members`.

    Neither holds the lab of the question, nor, in turn, each of the other labs.
    """
    lab = LABS[question.source]
    further_labs = ["", *sorted(set(LABS.values()) - {lab})]
    priors: list[Prior] = []
    for further_lab in further_labs:
        left_out = {lab, further_lab}
        base = estimate([member for member in sets if member.lab not in left_out], **settings)
        pooled = terms_of_experts([member for member in members if member.lab not in left_out], base)
        priors += [base, replace(base, experts=pooled)]
    train, test = question.train, question.test
    laws = [posterior(train, prior, "joint").law for prior in priors]
    forecast_errors = np.array([law.loss(test.n_active, test.tokens, test.experts) - test.loss for law in laws])
    errors = {}
    errors_by_lab = forecast_errors.reshape(len(further_labs), len(USES), len(test))
    for further_lab, errors_of_uses in zip(further_labs, errors_by_lab, strict=True):
        errors[further_lab] = dict(zip(USES, map(rms, errors_of_uses), strict=True))
    constant = backtest(train, test, {CONSTANT: BY_HAND[CONSTANT]}).laws[CONSTANT]
    return Fold(question, errors, constant.rmse)


def better(folds: Sequence[Fold], lab: str = "") -> str:
    """Return whose terms forecast the labs' MoE models better.

    `lab`, if any, neither judges nor is in a population.
    """
    judges = [fold for fold in folds if fold.lab != lab]
    return min(USES, key=lambda use: by_lab((fold.lab, fold.errors[lab][use]) for fold in judges))


def experts_prior(folds: Sequence[Fold]) -> Iterator[Part]:
    """List the RMSE of each question, and for each lab the use that the others choose."""
    yield "forecast", "fitted", "held out", "one constant", "published terms", "pooled terms", "chosen on other labs"
    for fold in folds:
        yield (
            fold.question.name,
            len(fold.question.train),
            len(fold.question.test),
            f"{fold.constant:.4f}",
            *(f"{fold.errors[''][use]:.4f}" for use in USES),
            better(folds, fold.lab),
        )
    means = [by_lab((fold.lab, fold.constant) for fold in folds)]
    means += [by_lab((fold.lab, fold.errors[""][use]) for fold in folds) for use in USES]
    means.append(by_lab((fold.lab, fold.errors[""][better(folds, fold.lab)]) for fold in folds))
    yield "mean over labs", "", "", *(f"{mean:.4f}" for mean in means)


PAGE = Page(folds, blocks=(experts_prior,))
