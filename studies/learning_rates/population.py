"""Learning-rate laws of several labs as one population: ln LR linear in ln N, ln E, ln D and ln B, by lab.

A lab's coefficients are normal about the population's, each with a spread of its own (restricted likelihood, and a
weak prior on the spreads, since there are five labs). A member is a set of best rates as a quadratic of its log
likelihood, which holds all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.stats import norm, t

from scaling_law import LearningRateLaw
from scaling_law.rates.law import COEFFICIENTS
from studies.common import FloatArray
from studies.learning_rates.sets import Rates

# N, E, D and B at which levels are compared.
CENTRE = np.log([2e8, 1.0, 5e9, 262_144.0])
# Deviations of a model's best rate about the law of its lab, and of one of its batches about that.
SCATTER = 0.1
BATCH_SCATTER = 0.05
# Spreads between labs: the medians of the prior, and its spread of their ln.
SPREADS = np.array([0.5, 0.15, 0.15, 0.1, 0.1])
WIDTH = 0.7
# Decimals of ln spread that the optimiser determines on every processor.
DETERMINED = 5
# The deviation of ln LR in a lab before its first model is tuned.
UNKNOWN_LEVEL = 2.0
# The member that is a law, not a grid.
LAW = "paper"
# Labs by the names that they go by.
TITLES = {
    "stepfun": "StepFun",
    "marin": "Marin",
    "epfl": "EPFL",
    "lingle": "Lingle",
    "ludziejewski": "Ludziejewski et al.",
}
RANGES = ("n_range", "experts_range", "tokens_range", "batch_range")


@dataclass(frozen=True)
class Member:
    """The log likelihood of a lab's five coefficients x by one set: pull·x − x'·precision·x / 2.

    The first coefficient is the level at `CENTRE`.
    """

    name: str
    lab: str
    models: int
    rates: int
    pull: Any
    precision: Any
    ranges: Any


@dataclass(frozen=True)
class Population:
    """Coefficients [5] of an average lab with their covariance, the spread of a lab's [5], and each lab's own."""

    mean: FloatArray
    covariance: FloatArray
    spread: FloatArray
    labs: Mapping[str, tuple[FloatArray, FloatArray]]

    @property
    def of_a_new_lab(self) -> tuple[FloatArray, FloatArray]:
        """The mean and covariance of a new lab's coefficients, as wide as Student's t of so few labs at 95 %."""
        widening = t.ppf(0.975, len(self.labs) - 1) / norm.ppf(0.975)
        return self.mean, (self.covariance + np.diag(self.spread**2)) * widening**2


def information(rates: Rates, level: float = 0.0) -> tuple[FloatArray, FloatArray]:
    """Return the pull [5] and precision [5, 5] of best rates whose common level has this error."""
    constant = np.ones(len(rates.ln_rate))
    design = np.column_stack([constant, rates.variables - CENTRE])
    is_same_model = rates.model[:, None] == rates.model
    own_variance = rates.error**2 + BATCH_SCATTER**2
    covariance = np.diag(own_variance) + SCATTER**2 * is_same_model + level**2
    columns = np.column_stack([rates.ln_rate, design])
    weighted = np.linalg.solve(covariance, columns)
    pull = design.T @ weighted[:, 0]
    precision = design.T @ weighted[:, 1:]
    return pull, precision


def member_of(name: str, lab: str, rates: Rates, level: float) -> Member:
    """Summarise a set of best rates as a member of the population."""
    pull, precision = information(rates, level)
    ranges = np.exp([rates.variables.min(0), rates.variables.max(0)]).T
    return Member(
        name,
        lab,
        models=len(set(rates.model.tolist())),
        rates=len(rates.ln_rate),
        pull=pull.tolist(),
        precision=precision.tolist(),
        ranges=ranges.tolist(),
    )


def estimate(members: Iterable[Member]) -> Population:
    """Estimate the population of these members."""
    sums: dict[str, tuple[FloatArray, FloatArray]] = {}
    for member in members:
        pull, precision = sums.get(member.lab, (np.zeros(5), np.zeros((5, 5))))
        sums[member.lab] = (pull + np.array(member.pull), precision + np.array(member.precision))
    # About the labs' mean the likelihood is of order 1. The last digits of 80,000 would move its flat optimum.
    _, start = _solve(SPREADS, sums)
    centred = {lab: (pull - precision @ start.mean, precision) for lab, (pull, precision) in sums.items()}
    best = minimize(
        lambda ln_spread: _solve(np.exp(ln_spread), centred)[0],
        np.log(SPREADS),
        method="L-BFGS-B",
        jac="3-point",
        options={"ftol": 1e-15, "gtol": 1e-8},
    )
    return _solve(np.exp(best.x.round(DETERMINED)), sums)[1]


def _solve(spread: FloatArray, sums: Mapping[str, tuple[FloatArray, FloatArray]]) -> tuple[float, Population]:
    """Return minus the restricted log likelihood of these spreads, and the population under them."""
    between = np.diag(spread**2)
    # Covariance of each lab's coefficients about the mean, given its rates.
    within = {}
    total = np.zeros((5, 5))
    pulls = np.zeros(5)
    loss = 0.5 * np.sum((np.log(spread / SPREADS) / WIDTH) ** 2)
    for lab, (pull, precision) in sums.items():
        shrinkage = np.linalg.inv(np.eye(5) + precision @ between)
        within[lab] = between @ shrinkage
        total = total + shrinkage @ precision
        pulls = pulls + shrinkage @ pull
        _, ln_determinant = np.linalg.slogdet(shrinkage)
        loss += -0.5 * ln_determinant - 0.5 * pull @ within[lab] @ pull
    covariance = np.asarray(np.linalg.inv(total), float)
    mean = covariance @ pulls
    _, ln_determinant = np.linalg.slogdet(total)
    loss += 0.5 * ln_determinant - 0.5 * pulls @ mean
    labs = {}
    for lab, (pull, precision) in sums.items():
        weight_of_mean = np.eye(5) - within[lab] @ precision
        lab_mean = mean + within[lab] @ (pull - precision @ mean)
        lab_covariance = within[lab] + weight_of_mean @ covariance @ weight_of_mean.T
        labs[lab] = (lab_mean, lab_covariance)
    return float(loss), Population(mean, covariance, spread, labs)


def with_one_model(population: Population, rates: Rates, model: float) -> FloatArray:
    """Estimate the coefficients [5] of a new lab of which one model is tuned, and whose level is unknown before."""
    mean, covariance = population.of_a_new_lab
    prior = np.linalg.inv(covariance + np.diag([UNKNOWN_LEVEL**2, 0, 0, 0, 0]))
    is_tuned = rates.model == model
    rates_of_model = rates._replace(
        variables=rates.variables[is_tuned],
        ln_rate=rates.ln_rate[is_tuned],
        error=rates.error[is_tuned],
        model=rates.model[is_tuned],
    )
    pull, precision = information(rates_of_model)
    return np.asarray(np.linalg.solve(prior + precision, prior @ mean + pull), float)


def law_of(coefficients: FloatArray, covariance: FloatArray | None = None, **options: Any) -> LearningRateLaw:
    """Return the law with these coefficients at `CENTRE`."""
    to_origin = np.eye(5)
    to_origin[0, 1:] = -CENTRE
    values = dict(zip(COEFFICIENTS, (to_origin @ coefficients).tolist(), strict=True))
    law_covariance = None
    if covariance is not None:
        law_covariance = (to_origin @ covariance @ to_origin.T).tolist()
    return LearningRateLaw(**values, reading="paper", covariance=law_covariance, **options)


def library_laws(members: list[Member], regret: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """Return the fields of the public laws by name: of a lab without rates, and calibrated to each."""
    population = estimate(members)
    swept = [member for member in members if member.name != LAW]
    n_models = sum(member.models for member in swept)
    n_labs = len({member.lab for member in swept})
    source = f"public grids: {n_models} models of {n_labs} labs and the paper's law"
    options: dict[str, Any] = {"rmse": SCATTER, **_ranges(members)}
    laws = {
        "public": law_of(
            *population.of_a_new_lab, source=f"{source}, for another lab", regret=regret["public"], **options
        )
    }
    for lab, coefficients in population.labs.items():
        laws[f"public:{lab}"] = law_of(
            *coefficients,
            source=f"{source}, calibrated to the recipe of {TITLES.get(lab, lab)}",
            regret=regret["lab"],
            **options,
        )
    fields_of_laws = {}
    for name, law in laws.items():
        fields_of_laws[name] = {key: value for key, value in vars(law).items() if value is not None}
    return fields_of_laws


def _ranges(members: Iterable[Member]) -> dict[str, list[float]]:
    """Return the range of each variable over all members."""
    ranges = np.array([member.ranges for member in members])
    lowest = ranges[..., 0].min(0)
    highest = ranges[..., 1].max(0)
    return dict(zip(RANGES, np.stack([lowest, highest], 1).tolist(), strict=True))
