"""docs/studies/learning_rates.md: one law of best learning rates for several labs, each lab left out in turn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp
from pathlib import Path
from typing import Any

import numpy as np

from hub.base import strict_json
from scaling_law import LearningRateLaw
from scaling_law.formulas.learning_rate import PUBLIC_FILE
from studies.common import FloatArray, Page, Part, rounded
from studies.learning_rates import population
from studies.learning_rates.population import Member, Population, estimate, law_of, member_of
from studies.learning_rates.sets import OTHER_OPTIMIZER, SETS, Rates, read_sets

MEMBERS = Path(__file__).with_name("members.json")
FORMAT = "learning_rates"
DIGITS = 8  # significant, of every number kept
SHIPPED = 6  # of the laws: the digits in which processors agree
EXPONENTS = ("N", "E", "D", "batch")


@dataclass(frozen=True)
class Results:
    """Members, and for each set how laws that have not seen its lab do on it: `folds` by name."""

    members: Sequence[Member]
    folds: Mapping[str, Mapping[str, Any]]

    @cached_property
    def population(self) -> Population:
        return estimate(self.members)


def take(folders: Sequence[Path]) -> list[Path]:
    """Derive members, folds and the library's laws from the public tables below a folder."""
    (folder,) = folders
    rates = read_sets(folder)
    members = [member_of(one.name, one.lab, rates[one.name], one.level) for one in SETS if one.member]
    paper = _law_of_the_paper(rates["paper"])
    folds = {one.name: fold(rates[one.name], estimate(m for m in members if m.lab != one.lab), paper) for one in SETS}
    kept = {"members": [vars(member) for member in members], "folds": folds}
    return [strict_json.write(MEMBERS, FORMAT, 1, rounded(kept, DIGITS))]


def ship(r: Results) -> Path:
    """Write the laws that the library ships."""
    labs = {one.lab: [r.folds[s.name] for s in SETS if s.lab == one.lab] for one in SETS if one.member}

    def regret(method: str) -> float:
        means = [[f["regret"][method] for f in folds if f["regret"]] for folds in labs.values()]
        return float(np.mean([np.mean(of_lab) for of_lab in means if of_lab]))

    laws = population.shipped(list(r.members), {"public": regret("another lab"), "lab": regret("one model")})
    return strict_json.write(PUBLIC_FILE, "learning_rate_laws", 1, rounded({"laws": laws}, SHIPPED))


def fold(rates: Rates, others: Population, paper: LearningRateLaw) -> dict[str, Any]:
    """Errors of ln LR (rms) and regrets (mean, nats) of the law of `others` labs on these best rates; models weigh
    equally. "one model": the level is known from one model, each in turn, and the rest are predicted.
    """
    models, at = np.unique(rates.model), np.exp(rates.variables)
    same, every = rates.model[:, None] == models, models == models
    public = law_of(*others.of_a_new_lab, rmse=population.SCATTER)
    tuned = [(law_of(population.with_one_model(others, rates, model)), models != model) for model in models]
    tried = {"another lab": [(public, every)], "one model": tuned, "paper": [(paper, every)]}
    rms, regret = dict[str, float](), dict[str, float]()
    for name, laws in tried.items():
        errors = [(np.log(law.at(*at.T)) - rates.ln_rate) ** 2 @ same / same.sum(0) for law, _ in laws]
        rms[name] = float(np.sqrt(np.mean([e[asked] for e, (_, asked) in zip(errors, laws, strict=True)])))
        if rates.grid is not None:
            regret[name] = float(np.mean([_regrets(rates, law, models[asked]) for law, asked in laws]))
    ends = np.log(np.array([public.interval_at(*row) for row in at], float))
    held = float(np.mean((ends[:, 0] < rates.ln_rate) & (rates.ln_rate < ends[:, 1])))
    row = {"models": len(models), "rates": len(at), "rms": rms, "regret": regret, "held": held}
    return row | {"alone": alone(rates) if len(np.unique(at[:, 0])) > 1 and len(np.unique(at[:, 2])) > 1 else {}}


def alone(rates: Rates) -> dict[str, float]:
    """Errors (rms) of laws of ln(LR/√B) in N and E, without and with D, fitted to these rates alone."""
    ln_n, ln_e, ln_d, ln_batch = rates.variables.T
    columns = [ln_n, ln_e] if np.ptp(ln_e) > 0 else [ln_n]
    target = rates.ln_rate - ln_batch / 2
    return {
        "without D": _least_squares(columns, target)[1],
        "with D": _least_squares([*columns, ln_d], target)[1],
    }


def _least_squares(columns: Sequence[FloatArray], target: FloatArray) -> tuple[FloatArray, float]:
    """Return the constant and slopes [1 + k] of a linear fit, and the root mean square of its errors."""
    design = np.stack([np.ones_like(target), *columns], axis=1)
    solution = np.linalg.lstsq(design, target, rcond=None)[0]
    return np.asarray(solution, float), float(np.sqrt(np.mean((design @ solution - target) ** 2)))


def _regrets(rates: Rates, law: LearningRateLaw, models: FloatArray) -> FloatArray:
    """The loss of the law's rate above that of each model's best run, nats; by the parabola where no run is beyond."""
    assert rates.grid is not None  # of sets with one
    measured = np.array([rates.grid.regret(law, int(model)) for model in models])
    error = np.log(law.at(*np.exp(rates.variables).T)) - rates.ln_rate
    parabola = [0.5 * (rates.curvature or 0.0) * np.mean(error[rates.model == model] ** 2) for model in models]
    return np.where(np.isnan(measured), parabola, measured)


def _law_of_the_paper(rates: Rates) -> LearningRateLaw:
    """The paper's law of the code as a power law in N without embeddings, which it nearly is."""
    ln_n, ln_e, _, _ = rates.variables.T
    (intercept, slope_n, slope_e), rmse = _least_squares([ln_n, ln_e], rates.ln_rate)
    return LearningRateLaw(intercept, slope_n, slope_e, "paper", "least squares", rmse)


def read_results() -> Results:
    data = strict_json.read(MEMBERS, FORMAT, 1)
    return Results([Member(**row) for row in data["members"]], data["folds"])


# ------------------------------------------------------------------ the page


def exponents(r: Results) -> Iterator[Part]:
    yield "lab", *(f"exponent of {name}" for name in EXPONENTS), "level"
    p = r.population
    level = exp(p.mean[0])
    levels = {lab: f"{exp(own[0]) / level:.2f}" for lab, (own, _) in p.labs.items()} | {"mean": f"{level:.2g}"}
    for name, (centre, covariance) in {**p.labs, "mean": (p.mean, p.covariance)}.items():
        errors = np.sqrt(np.diag(covariance))
        yield name, *(f"{a:.2f} ± {b:.2f}" for a, b in zip(centre[1:], errors[1:], strict=True)), levels[name]
    yield "spread between labs", *(f"{value:.2f}" for value in p.spread[1:]), f"×/÷ {exp(p.spread[0]):.1f}"


def folds(r: Results) -> Iterator[Part]:
    names = ("another lab", "one model", "paper")
    yield "set", "models", *(f"error, {name}" for name in names), *(f"regret, {name}" for name in names), "95 % holds"
    for one in SETS:
        row = r.folds[one.name]
        regrets = [f"{row['regret'][name]:.4f}" if row["regret"] else "" for name in names]
        errors = ["" if (one.name, name) == ("paper", "paper") else f"{row['rms'][name]:.2f}" for name in names]
        yield f"{one.name} ({one.what})", row["models"], *errors, *regrets, f"{row['held']:.0%}"


def values(r: Results) -> dict[str, str]:
    """The numbers in the page's sentences."""
    p, adamw = r.population, [r.folds[one.name] for one in SETS if one.member and one.level < OTHER_OPTIMIZER]

    def of_adamw(kind: str, method: str, form: str) -> str:
        every = [row[kind][method] for row in adamw if method in row["regret"]]
        return f"{min(every):{form}} to {max(every):{form}}"

    _, covariance = p.of_a_new_lab
    deviation = np.sqrt(covariance[0, 0] + population.SCATTER**2)
    return {
        "level": f"{exp(p.spread[0]):.1f}",
        "factor": f"{exp(1.96 * deviation):.1f}",
        "tuned": of_adamw("rms", "one model", ".2f"),
        "tuned-cost": of_adamw("regret", "one model", ".4f"),
        "public-cost": of_adamw("regret", "another lab", ".4f"),
        "paper-cost": of_adamw("regret", "paper", ".4f"),
    }


CLAIMS = {
    "rates fall with N and E and rise with the batch in every lab": lambda r: all(
        own[1] < 0 > own[2] and own[4] > 0 for own, _ in r.population.labs.values()
    ),
    "levels differ by more than a model's scatter": lambda r: r.population.spread[0] > 5 * population.SCATTER,
    "one tuned model costs less than none in most grids": lambda r: _fewer(r, "one model", "another lab") >= 4,
    "the population costs less than the paper's law in most grids": lambda r: _fewer(r, "another lab", "paper") >= 5,
    "D decides Marin's rates and hardly Step Law's": lambda r: (
        [
            r.folds[name]["alone"]["with D"] < 0.5 * r.folds[name]["alone"]["without D"]
            for name in ("marin_moe", "marin_adamw", "step_dense", "step_moe", "lingle")
        ]
        == [True, True, False, False, False]
    ),
    "AdamH's exponents are not AdamW's": lambda r: r.folds["marin_moe"]["rms"]["one model"] > 0.5,
    "the paper's rates are a third of the average": lambda r: (
        0.25 < exp(r.population.labs["ludziejewski"][0][0] - r.population.mean[0]) < 0.4
    ),
}


def _fewer(r: Results, method: str, other: str) -> int:
    """In how many grids one method costs less than another."""
    return sum(row["regret"][method] < row["regret"][other] for row in r.folds.values() if row["regret"])


PAGE = Page(read_results, blocks=(exponents, folds), values=values, claims=CLAIMS)
