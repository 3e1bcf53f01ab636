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
from scaling_law.formulas.learning_rate import COEFFICIENTS
from studies.common import FloatArray
from studies.learning_rates.sets import Rates

CENTRE = np.log([2e8, 1.0, 5e9, 262_144.0])  # N, E, D and B at which levels are compared
SCATTER = 0.1  # of a model's best rate about the law of its lab, and of one batch of its about that:
BATCH_SCATTER = 0.05
SPREADS = np.array([0.5, 0.15, 0.15, 0.1, 0.1])  # between labs: the median of the prior, and its spread of the ln
WIDTH = 0.7
UNKNOWN_LEVEL = 2.0  # of ln LR in a lab before its first model is tuned
LAW = "paper"  # the member that is a law, not a grid
RANGES = ("n_range", "experts_range", "tokens_range", "batch_range")


@dataclass(frozen=True)
class Member:
    """What one set says of its lab's five coefficients x, the level at `CENTRE` first: pull·x − x'·precision·x / 2."""

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
        """Mean and covariance of its coefficients: the normal of the same 95 % as Student's t of so few labs."""
        wider = t.ppf(0.975, len(self.labs) - 1) / norm.ppf(0.975)
        return self.mean, (self.covariance + np.diag(self.spread**2)) * wider**2


def information(rates: Rates, level: float = 0.0) -> tuple[FloatArray, FloatArray]:
    """Pull [5] and precision [5, 5] of best rates whose common level has this error."""
    x = np.column_stack([np.ones(len(rates.ln_rate)), rates.variables - CENTRE])
    same = rates.model[:, None] == rates.model
    covariance = np.diag(rates.error**2 + BATCH_SCATTER**2) + SCATTER**2 * same + level**2
    weighed = np.linalg.solve(covariance, np.column_stack([rates.ln_rate, x]))
    return x.T @ weighed[:, 0], x.T @ weighed[:, 1:]


def member_of(name: str, lab: str, rates: Rates, level: float) -> Member:
    pull, precision = information(rates, level)
    ends = np.exp([rates.variables.min(0), rates.variables.max(0)]).T.tolist()
    models = len({*rates.model.tolist()})
    return Member(name, lab, models, len(rates.ln_rate), pull.tolist(), precision.tolist(), ends)


def estimate(members: Iterable[Member]) -> Population:
    """The population of these members."""
    sums: dict[str, tuple[FloatArray, FloatArray]] = {}
    for one in members:
        pull, precision = sums.get(one.lab, (np.zeros(5), np.zeros((5, 5))))
        sums[one.lab] = pull + np.array(one.pull), precision + np.array(one.precision)
    # The optimum is flat: at usual tolerances its last digits would depend on the processor.
    tight = {"method": "L-BFGS-B", "jac": "3-point", "options": {"ftol": 1e-15, "gtol": 1e-8}}
    best = minimize(lambda x: _solve(np.exp(x), sums)[0], np.log(SPREADS), **tight)
    return _solve(np.exp(best.x), sums)[1]


def _solve(spread: FloatArray, sums: Mapping[str, tuple[FloatArray, FloatArray]]) -> tuple[float, Population]:
    """Minus the restricted log likelihood of these spreads, and the population under them."""
    between, within = np.diag(spread**2), {}
    total, pulls, loss = np.zeros((5, 5)), np.zeros(5), 0.5 * np.sum((np.log(spread / SPREADS) / WIDTH) ** 2)
    for lab, (pull, precision) in sums.items():
        seen = np.linalg.inv(np.eye(5) + precision @ between)
        within[lab] = between @ seen  # covariance of the lab's coefficients about the mean, given its rates
        total, pulls = total + seen @ precision, pulls + seen @ pull
        loss += -0.5 * np.linalg.slogdet(seen)[1] - 0.5 * pull @ within[lab] @ pull
    covariance = np.asarray(np.linalg.inv(total), float)
    mean = covariance @ pulls
    loss += 0.5 * np.linalg.slogdet(total)[1] - 0.5 * pulls @ mean
    labs = {}
    for lab, (pull, precision) in sums.items():
        kept = np.eye(5) - within[lab] @ precision
        labs[lab] = mean + within[lab] @ (pull - precision @ mean), within[lab] + kept @ covariance @ kept.T
    return float(loss), Population(mean, covariance, spread, labs)


def with_one_model(population: Population, rates: Rates, model: float) -> FloatArray:
    """Coefficients [5] for a new lab of which one model is tuned, and whose level is unknown before."""
    mean, covariance = population.of_a_new_lab
    prior = np.linalg.inv(covariance + np.diag([UNKNOWN_LEVEL**2, 0, 0, 0, 0]))
    tuned = rates.model == model
    pull, precision = information(rates._replace(**{name: getattr(rates, name)[tuned] for name in rates._fields[:4]}))
    return np.asarray(np.linalg.solve(prior + precision, prior @ mean + pull), float)


def law_of(coefficients: FloatArray, covariance: FloatArray | None = None, **more: Any) -> LearningRateLaw:
    """The law of coefficients at `CENTRE`."""
    back = np.eye(5)
    back[0, 1:] = -CENTRE
    values = dict(zip(COEFFICIENTS, (back @ coefficients).tolist(), strict=True))
    spread = None if covariance is None else (back @ covariance @ back.T).tolist()
    return LearningRateLaw(**values, reading="paper", covariance=spread, **more)


def shipped(members: list[Member], regret: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """Fields of the public laws by name: of a lab without rates, and at the level of each."""
    population = estimate(members)
    ends = np.array([one.ranges for one in members])
    ranges = dict(zip(RANGES, np.stack([ends[..., 0].min(0), ends[..., 1].max(0)], 1).tolist(), strict=True))
    swept = [one for one in members if one.name != LAW]
    grids = f"{sum(one.models for one in swept)} models of {len({one.lab for one in swept})} labs and the paper's law"
    of_labs = {"public": (*population.of_a_new_lab, "for another lab", regret["public"])}
    of_labs |= {
        f"public:{lab}": (*own, f"at the level of {lab}", regret["lab"]) for lab, own in population.labs.items()
    }
    laws = {
        name: law_of(*own, source=f"public grids: {grids}, {what}", regret=nats, rmse=SCATTER, **ranges)
        for name, (*own, what, nats) in of_labs.items()
    }
    return {name: {key: value for key, value in vars(law).items() if value is not None} for name, law in laws.items()}
