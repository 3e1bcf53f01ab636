"""Forecasts of the held-out runs of a split: without, and from, a prior whose every choice is made on other labs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from scaling_law import Prior, Runs, backtest, fit, published
from scaling_law.fitting.prior import Member, estimate, modes
from studies.common import FloatArray, rms
from studies.forecasts.sets import SETS, UNITS
from studies.forecasts.splits import Split, read_list

FRESH = "fresh"
CONSTANT = "one constant"
PRIOR = "prior"
# Powers of compute with which runs weigh.
POWERS = (0.0, 0.5, 1.0)
BY_NAME = {run_set.name: run_set for run_set in SETS}


@dataclass(frozen=True)
class Choice:
    """The settings that the prior leaves open, chosen within the training folds.

    `power` is that of compute with which the inverse variance of a run's ln L grows.
    """

    shrinkage: float
    dof: float
    dependence: float
    power: float


CHOICES = tuple(Choice(*values) for values in product((0.0, 0.25, 0.75), (4.0, np.inf), (1.0, 4.0), POWERS))


@dataclass(frozen=True)
class Cell:
    """The forecast of one split by one method: errors and standard errors of the held-out runs [n], nats per token."""

    split: Split
    method: str
    errors: FloatArray
    spread: FloatArray | None = None

    @property
    def rmse(self) -> float:
        """The RMSE of the held-out runs."""
        return rms(self.errors)


def by_lab(values: Iterable[tuple[str, float]]) -> float:
    """Return the geometric mean within labs, then over labs; NaN of nothing."""
    logs: dict[str, list[float]] = {}
    for lab, value in values:
        logs.setdefault(lab, []).append(np.log(value))
    if not logs:
        return float("nan")
    return float(np.exp(np.mean([np.mean(logs_of_lab) for logs_of_lab in logs.values()])))


def fresh(train: Runs, held_out: Runs) -> FloatArray:
    """Predict losses by a Chinchilla law fitted to these runs alone."""
    return fit(train, "chinchilla", allow_unidentifiable=True).errors_on(held_out) + held_out.loss


# The published joint law moves by its mean error.
BY_HAND = {FRESH: fresh, CONSTANT: published("ludziejewski")}


def baselines(tables: Mapping[str, Runs]) -> Iterator[Cell]:
    """Yield the cells of fresh fits and of one constant."""
    for split in splits_of(tables):
        train, test = split.divide(tables[split.set])
        for name, forecast in backtest(train, test, BY_HAND).laws.items():
            yield Cell(split, name, forecast.errors)


# ------------------------------------------------------------------ from the prior


@dataclass(frozen=True)
class Forecasts:
    """Errors [labs, choices, n] of a split's runs under each choice, with each further lab left out."""

    split: Split
    labs: tuple[str, ...]
    errors: FloatArray

    def scores(self, lab: str) -> FloatArray:
        """Return ln RMSE of each choice [choices] when `lab` is left out, too."""
        errors = self.errors[self.labs.index(lab)]
        return np.asarray(0.5 * np.log((errors**2).mean(axis=1)))


def forecasts(split: Split, runs: Runs, priors: Mapping[frozenset[str], Sequence[Prior]]) -> Forecasts:
    """Forecast the split's runs under the populations without its lab, and without one lab more."""
    labs = tuple(sorted({lab for pair in priors for lab in pair}))
    train, held_out = split.divide(runs)
    units = UNITS[BY_NAME[split.set].unit]
    rows: list[Prior] = []
    for lab in labs:
        rows += [prior.in_units(*units) for prior in priors[frozenset({split.lab, lab})]]
    power = np.tile([choice.power for choice in CHOICES], len(labs))[:, None]
    weights = np.exp(power * np.log(train.flops / train.flops.max()))
    errors = np.exp(modes(train, rows, weights).losses(held_out)[0]) - held_out.loss
    return Forecasts(split, labs, errors.reshape(len(labs), len(CHOICES), len(held_out)))


def populations(members: Sequence[Member]) -> dict[frozenset[str], list[Prior]]:
    """Estimate the population under each choice, without each lab and each pair of labs."""
    labs = sorted({member.lab for member in members})
    pairs = {frozenset(pair) for pair in product(labs, labs)}
    settings = dict.fromkeys((choice.shrinkage, choice.dof, choice.dependence) for choice in CHOICES)
    priors = {}
    for pair in pairs:
        members_left = [member for member in members if member.lab not in pair]
        estimates = {setting: estimate(members_left, *setting) for setting in settings}
        priors[pair] = [estimates[choice.shrinkage, choice.dof, choice.dependence] for choice in CHOICES]
    return priors


def forecasts_of(tables: Mapping[str, Runs], members: Sequence[Member]) -> list[Forecasts]:
    """Forecast all splits of the list that have a table."""
    priors = populations(members)
    return [forecasts(split, tables[split.set], priors) for split in splits_of(tables)]


def splits_of(tables: Mapping[str, Runs]) -> list[Split]:
    """Return the splits of the list that are not out and have a table."""
    return [split for split in read_list() if not split.out and split.set in tables]


def best_choice(forecasts: Sequence[Forecasts], lab: str | None = None) -> int:
    """Return the place of the choice of least RMSE over labs; `lab`, if any, is in no population and not judged."""
    scores: dict[str, list[FloatArray]] = {}
    for forecast in forecasts:
        split_lab = forecast.split.lab
        if split_lab != lab:
            scores.setdefault(split_lab, []).append(forecast.scores(lab or split_lab))
    means_of_labs = [np.mean(scores_of_lab, axis=0) for scores_of_lab in scores.values()]
    return int(np.argmin(np.mean(means_of_labs, axis=0)))


def nested(forecasts: Sequence[Forecasts]) -> tuple[list[Cell], dict[tuple[str, str], Choice]]:
    """Return the cells of the prior, and the choice for each lab and variable that is cut (C, N or D).

    The choice is that best for the same cuts of the other labs, without this lab.
    """
    cells = []
    choices = {}
    for lab, by in sorted({(forecast.split.lab, forecast.split.by) for forecast in forecasts}):
        forecasts_of_cut = [forecast for forecast in forecasts if forecast.split.by == by]
        best = best_choice(forecasts_of_cut, lab)
        choices[lab, by] = CHOICES[best]
        for forecast in forecasts_of_cut:
            if forecast.split.lab == lab:
                errors = forecast.errors[forecast.labs.index(lab), best]
                cells.append(Cell(forecast.split, PRIOR, errors))
    return cells, choices


def quantile_by_lab(samples: Sequence[tuple[str, FloatArray]], level: float = 0.9) -> float:
    """Return the value below which `level` of all values lie; labs weigh equally, and so do the samples of a lab."""
    labs = [lab for lab, _ in samples]
    weights = []
    for lab, values in samples:
        weights.append(np.full(len(values), 1.0 / len(values) / labs.count(lab)))
    weight = np.concatenate(weights)
    all_values = np.concatenate([values for _, values in samples])
    order = np.argsort(all_values)
    share = np.cumsum(weight[order]) / weight.sum()
    return float(all_values[order][np.searchsorted(share, level)])
