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
from scaling_law.rates.law import PUBLIC_FILE
from studies.common import FloatArray, Page, Part, round_numbers
from studies.learning_rates import population
from studies.learning_rates.population import Member, Population, estimate, law_of, member_of
from studies.learning_rates.sets import OTHER_OPTIMIZER, SETS, Rates, read_sets

MEMBERS = Path(__file__).with_name("members.json")
FORMAT = "learning_rates"
# Significant digits of every number kept.
DIGITS = 8
# Significant digits of the library's laws: those in which processors agree.
SHIPPED = 6
EXPONENTS = ("N", "E", "D", "batch")
METHODS = ("another lab", "one model", "paper")


@dataclass(frozen=True)
class Results:
    """Members, and for each set how laws that have not seen its lab do on it: `folds` by name."""

    members: Sequence[Member]
    folds: Mapping[str, Mapping[str, Any]]

    @cached_property
    def population(self) -> Population:
        """The population of all members."""
        return estimate(self.members)


def take(folders: Sequence[Path]) -> list[Path]:
    """Derive members, folds and the library's laws from the public tables below a folder."""
    (folder,) = folders
    rates = read_sets(folder)
    members = [
        member_of(rate_set.name, rate_set.lab, rates[rate_set.name], rate_set.level)
        for rate_set in SETS
        if rate_set.member
    ]
    paper = _law_of_the_paper(rates["paper"])
    folds = {}
    for rate_set in SETS:
        other_labs = estimate(member for member in members if member.lab != rate_set.lab)
        folds[rate_set.name] = fold(rates[rate_set.name], other_labs, paper)
    fields = {"members": [vars(member) for member in members], "folds": folds}
    return [strict_json.write(MEMBERS, FORMAT, 1, round_numbers(fields, DIGITS))]


def ship(r: Results) -> Path:
    """Write the laws that the library ships."""
    regret = {"public": _mean_regret(r, "another lab"), "lab": _mean_regret(r, "one model")}
    laws = population.library_laws(list(r.members), regret)
    return strict_json.write(PUBLIC_FILE, "learning_rate_laws", 1, round_numbers({"laws": laws}, SHIPPED))


def _mean_regret(r: Results, method: str) -> float:
    """Return the mean regret of a method; the labs of the population weigh equally."""
    means = []
    for lab in dict.fromkeys(rate_set.lab for rate_set in SETS if rate_set.member):
        folds_of_lab = [r.folds[rate_set.name] for rate_set in SETS if rate_set.lab == lab]
        regrets = [row["regret"][method] for row in folds_of_lab if row["regret"]]
        if regrets:
            means.append(np.mean(regrets))
    return float(np.mean(means))


def fold(rates: Rates, other_labs: Population, paper: LearningRateLaw) -> dict[str, Any]:
    """Judge the laws that other labs give on these best rates; models weigh equally.

    Errors of ln LR are root mean squares, regrets means in nats. "one model": the level is known from one model, each
    in turn, and the other models are predicted.
    """
    models = np.unique(rates.model)
    all_models = np.ones(len(models), bool)
    public = law_of(*other_labs.of_a_new_lab, rmse=population.SCATTER)
    # The laws of each method, with the models that each predicts.
    laws_of_methods = {
        "another lab": [(public, all_models)],
        "one model": [
            (law_of(population.with_one_model(other_labs, rates, model)), models != model) for model in models
        ],
        "paper": [(paper, all_models)],
    }
    rms: dict[str, float] = {}
    regret: dict[str, float] = {}
    for name, laws in laws_of_methods.items():
        rms[name] = float(np.sqrt(np.mean([_squared_errors(rates, law)[predicted] for law, predicted in laws])))
        if rates.grid is not None:
            regret[name] = float(np.mean([_regrets(rates, law, models[predicted]) for law, predicted in laws]))
    inputs = np.exp(rates.variables)
    intervals = np.array([public.interval_at(*row) for row in inputs], float)
    low, high = np.log(intervals).T
    return {
        "models": len(models),
        "rates": len(inputs),
        "rms": rms,
        "regret": regret,
        "held": float(np.mean((low < rates.ln_rate) & (rates.ln_rate < high))),
        "alone": alone(rates) if _has_several_sizes_and_tokens(inputs) else {},
    }


def _squared_errors(rates: Rates, law: LearningRateLaw) -> FloatArray:
    """Return the mean squared error of ln LR of each model, ascending."""
    is_of_model = rates.model[:, None] == np.unique(rates.model)
    squares = (np.log(law.at(*np.exp(rates.variables).T)) - rates.ln_rate) ** 2
    return np.asarray(squares @ is_of_model / is_of_model.sum(0))


def _has_several_sizes_and_tokens(inputs: FloatArray) -> bool:
    return len(np.unique(inputs[:, 0])) > 1 and len(np.unique(inputs[:, 2])) > 1


def alone(rates: Rates) -> dict[str, float]:
    """Return the errors (rms) of laws of ln(LR/√B) in N and E, without and with D, fitted to these rates alone."""
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
    """Return the loss of the law's rate above that of each model's best run, nats.

    It is that of the parabola where no run lies beyond the law's rate.
    """
    # Only sets with a grid are asked.
    assert rates.grid is not None
    regret_by_grid = np.array([rates.grid.regret(law, int(model)) for model in models])
    error = np.log(law.at(*np.exp(rates.variables).T)) - rates.ln_rate
    half_curvature = 0.5 * (rates.curvature or 0.0)
    parabola = [half_curvature * np.mean(error[rates.model == model] ** 2) for model in models]
    return np.where(np.isnan(regret_by_grid), parabola, regret_by_grid)


def _law_of_the_paper(rates: Rates) -> LearningRateLaw:
    """Fit the paper's law of the code as a power law in N without embeddings, which it nearly is."""
    ln_n, ln_e, _, _ = rates.variables.T
    (intercept, slope_n, slope_e), rmse = _least_squares([ln_n, ln_e], rates.ln_rate)
    return LearningRateLaw(intercept, slope_n, slope_e, "paper", "least squares", rmse)


def read_results() -> Results:
    """Read the members and folds."""
    data = strict_json.read(MEMBERS, FORMAT, 1)
    return Results([Member(**row) for row in data["members"]], data["folds"])


# ------------------------------------------------------------------ the page


def exponents(r: Results) -> Iterator[Part]:
    """List the exponents of every lab and of the population."""
    yield "lab", *(f"exponent of {name}" for name in EXPONENTS), "level"
    p = r.population
    mean_level = exp(p.mean[0])
    for name, (coefficients, covariance) in p.labs.items():
        yield name, *_exponents(coefficients, covariance), f"{exp(coefficients[0]) / mean_level:.2f}"
    yield "mean", *_exponents(p.mean, p.covariance), f"{mean_level:.2g}"
    yield "spread between labs", *(f"{value:.2f}" for value in p.spread[1:]), f"×/÷ {exp(p.spread[0]):.1f}"


def _exponents(coefficients: FloatArray, covariance: FloatArray) -> list[str]:
    errors = np.sqrt(np.diag(covariance))
    return [f"{value:.2f} ± {error:.2f}" for value, error in zip(coefficients[1:], errors[1:], strict=True)]


def folds(r: Results) -> Iterator[Part]:
    """List the errors and regrets of every set."""
    head = [f"error, {name}" for name in METHODS] + [f"regret, {name}" for name in METHODS]
    yield "set", "models", *head, "95 % holds"
    for rate_set in SETS:
        row = r.folds[rate_set.name]
        errors = []
        for name in METHODS:
            # The paper's law has no error on its own rates.
            is_own_law = (rate_set.name, name) == ("paper", "paper")
            errors.append("" if is_own_law else f"{row['rms'][name]:.2f}")
        regrets = [f"{row['regret'][name]:.4f}" if row["regret"] else "" for name in METHODS]
        yield f"{rate_set.name} ({rate_set.description})", row["models"], *errors, *regrets, f"{row['held']:.0%}"


def values(r: Results) -> dict[str, str]:
    """Return the numbers in the page's sentences."""
    p = r.population
    _, covariance = p.of_a_new_lab
    deviation = np.sqrt(covariance[0, 0] + population.SCATTER**2)
    return {
        "level": f"{exp(p.spread[0]):.1f}",
        "factor": f"{exp(1.96 * deviation):.1f}",
        "tuned": _range_of_adamw(r, "rms", "one model", ".2f"),
        "tuned-cost": _range_of_adamw(r, "regret", "one model", ".4f"),
        "public-cost": _range_of_adamw(r, "regret", "another lab", ".4f"),
        "paper-cost": _range_of_adamw(r, "regret", "paper", ".4f"),
    }


def _range_of_adamw(r: Results, measure: str, method: str, form: str) -> str:
    """Format the range of a measure over the sets of the population that were trained with AdamW."""
    rows = [r.folds[rate_set.name] for rate_set in SETS if rate_set.member and rate_set.level < OTHER_OPTIMIZER]
    numbers = [row[measure][method] for row in rows if method in row["regret"]]
    return f"{min(numbers):{form}} to {max(numbers):{form}}"


def d_decides(r: Results, name: str) -> bool:
    """Return whether a law with D halves the error on a set."""
    errors = r.folds[name]["alone"]
    return bool(errors["with D"] < 0.5 * errors["without D"])


CLAIMS = {
    "rates fall with N and E and rise with the batch in every lab": lambda r: all(
        slopes[1] < 0 > slopes[2] and slopes[4] > 0 for slopes, _ in r.population.labs.values()
    ),
    "levels differ by more than a model's scatter": lambda r: r.population.spread[0] > 5 * population.SCATTER,
    "one tuned model costs less than none in most grids": lambda r: _fewer(r, "one model", "another lab") >= 4,
    "the population costs less than the paper's law in most grids": lambda r: _fewer(r, "another lab", "paper") >= 5,
    "D decides Marin's rates and hardly Step Law's": lambda r: (
        [d_decides(r, name) for name in ("marin_moe", "marin_adamw")] == [True, True]
        and [d_decides(r, name) for name in ("step_dense", "step_moe", "lingle")] == [False, False, False]
    ),
    "AdamH's exponents are not AdamW's": lambda r: r.folds["marin_moe"]["rms"]["one model"] > 0.5,
    "the paper's rates are a third of the average": lambda r: (
        0.25 < exp(r.population.labs["ludziejewski"][0][0] - r.population.mean[0]) < 0.4
    ),
}


def _fewer(r: Results, method: str, reference: str) -> int:
    """Count the grids in which one method costs less than another."""
    grids = [row for row in r.folds.values() if row["regret"]]
    return sum(row["regret"][method] < row["regret"][reference] for row in grids)


PAGE = Page(read_results, blocks=(exponents, folds), values=values, claims=CLAIMS)
