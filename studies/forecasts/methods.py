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

FRESH, CONSTANT, PRIOR = "fresh", "one constant", "prior"
POWERS = (0.0, 0.5, 1.0)  # of compute, with which runs weigh
BY_NAME = {one.name: one for one in SETS}


@dataclass(frozen=True)
class Choice:
    """What the prior leaves open, chosen within the training folds.

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
        return rms(self.errors)


def by_lab(values: Iterable[tuple[str, float]]) -> float:
    """Geometric mean within labs, then over labs; NaN of nothing."""
    logs: dict[str, list[float]] = {}
    for lab, value in values:
        logs.setdefault(lab, []).append(np.log(value))
    return float(np.exp(np.mean([np.mean(each) for each in logs.values()]))) if logs else float("nan")


def fresh(fitted: Runs, held_out: Runs) -> FloatArray:
    """Losses of a Chinchilla law fitted to these runs alone."""
    return fit(fitted, "chinchilla", allow_unidentifiable=True).errors_on(held_out) + held_out.loss


BY_HAND = {FRESH: fresh, CONSTANT: published("ludziejewski")}  # the published joint law moves by its mean error


def baselines(tables: Mapping[str, Runs]) -> Iterator[Cell]:
    """The cells of fresh fits and of one constant."""
    for split in asked(tables):
        for name, held in backtest(*split.parts(tables[split.set]), BY_HAND).laws.items():
            yield Cell(split, name, held.errors)


# ------------------------------------------------------------------ from the prior


@dataclass(frozen=True)
class Forecasts:
    """Errors [labs, choices, n] of a split's runs under each choice, with each further lab left out."""

    split: Split
    labs: tuple[str, ...]
    errors: FloatArray

    def scores(self, lab: str) -> FloatArray:
        """ln RMSE of each choice [choices] when `lab` is left out, too."""
        return np.asarray(0.5 * np.log((self.errors[self.labs.index(lab)] ** 2).mean(axis=1)))


def forecasts(split: Split, runs: Runs, priors: Mapping[frozenset[str], Sequence[Prior]]) -> Forecasts:
    """The split's runs under the populations without its lab, and without one lab more."""
    labs = tuple(sorted({lab for pair in priors for lab in pair}))
    fitted, held_out = split.parts(runs)
    units = UNITS[BY_NAME[split.set].unit]
    rows = [p.in_units(*units) for lab in labs for p in priors[frozenset({split.lab, lab})]]
    power = np.tile([choice.power for choice in CHOICES], len(labs))[:, None]
    weights = np.exp(power * np.log(fitted.flops / fitted.flops.max()))
    errors = np.exp(modes(fitted, rows, weights).losses(held_out)[0]) - held_out.loss
    return Forecasts(split, labs, errors.reshape(len(labs), len(CHOICES), len(held_out)))


def populations(members: Sequence[Member]) -> dict[frozenset[str], list[Prior]]:
    """The population under each choice, without each lab and each pair of labs."""
    labs = sorted({member.lab for member in members})
    pairs = {frozenset(pair) for pair in product(labs, labs)}
    settings = dict.fromkeys((choice.shrinkage, choice.dof, choice.dependence) for choice in CHOICES)
    priors = {}
    for pair in pairs:
        rest = [member for member in members if member.lab not in pair]
        estimates = {setting: estimate(rest, *setting) for setting in settings}
        priors[pair] = [estimates[choice.shrinkage, choice.dof, choice.dependence] for choice in CHOICES]
    return priors


def forecasts_of(tables: Mapping[str, Runs], members: Sequence[Member]) -> list[Forecasts]:
    """Forecasts of all splits of the list whose tables there are."""
    priors = populations(members)
    return [forecasts(split, tables[split.set], priors) for split in asked(tables)]


def asked(tables: Mapping[str, Runs]) -> list[Split]:
    """The splits of the list that are not out and whose tables there are."""
    return [split for split in read_list() if not split.out and split.set in tables]


def best_choice(forecasts: Sequence[Forecasts], lab: str | None = None) -> int:
    """The place of the choice of least RMSE over labs; `lab`, if given, is in no population and not judged."""
    scores: dict[str, list[FloatArray]] = {}
    for one in forecasts:
        if one.split.lab != lab:
            scores.setdefault(one.split.lab, []).append(one.scores(lab or one.split.lab))
    return int(np.argmin(np.mean([np.mean(values, axis=0) for values in scores.values()], axis=0)))


def nested(forecasts: Sequence[Forecasts]) -> tuple[list[Cell], dict[tuple[str, str], Choice]]:
    """The cells of the prior, and the choice for each lab and what is cut (C, N or D).

    The choice is that best for the same cuts of the other labs, without this lab.
    """
    cells, choices = [], {}
    for lab, by in sorted({(one.split.lab, one.split.by) for one in forecasts}):
        same = [one for one in forecasts if one.split.by == by]
        best = best_choice(same, lab)
        choices[lab, by] = CHOICES[best]
        own = [one for one in same if one.split.lab == lab]
        cells += [Cell(one.split, PRIOR, one.errors[one.labs.index(lab), best]) for one in own]
    return cells, choices


def quantile_by_lab(parts: Sequence[tuple[str, FloatArray]], level: float = 0.9) -> float:
    """The value below which `level` of all values lie; labs weigh equally, and the parts of a lab."""
    labs = [lab for lab, _ in parts]
    weight = np.concatenate([np.full(len(part), 1.0 / len(part) / labs.count(lab)) for lab, part in parts])
    values = np.concatenate([part for _, part in parts])
    order = np.argsort(values)
    share = np.cumsum(weight[order]) / weight.sum()
    return float(values[order][np.searchsorted(share, level)])
