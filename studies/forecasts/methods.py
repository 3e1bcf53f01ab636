"""Forecasts of the held-out runs of a split: by hand, and from a prior whose every choice is made on other labs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from scaling_law import Prior, Runs, errors_of, fit, published
from scaling_law.fitting.prior import Member, estimate, modes
from studies.common import FloatArray, rms
from studies.forecasts.sets import SETS, UNITS
from studies.forecasts.splits import Split, read_list

FRESH, CONSTANT, PINNED, PRIOR = "fresh", "one constant", "c pinned", "prior"
WEIGHTED, EQUAL = "fresh, runs weighted", "prior, runs not weighted"  # what of the gain is not the prior's
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


# ------------------------------------------------------------------ by hand


def fresh(fitted: Runs, held_out: Runs, power: float = 0.0) -> FloatArray:
    """Errors of a Chinchilla law fitted to these runs alone, weighted by this power of their compute."""
    weights = (fitted.flops / fitted.flops.max()) ** power
    return fit(fitted, "chinchilla", weights=weights, allow_unidentifiable=True).errors_on(held_out)


def one_constant(fitted: Runs, held_out: Runs) -> FloatArray:
    """Errors of the published joint law, moved by its mean error."""
    law = published("ludziejewski")
    return np.asarray(errors_of(law, held_out) - errors_of(law, fitted).mean())


def pinned(constants: Mapping[str, float]) -> Callable[[Runs, Runs, str], FloatArray]:
    """The fresh fit with c held at the mean of other labs' (geometric), below the lowest loss."""

    def errors(fitted: Runs, held_out: Runs, lab: str) -> FloatArray:
        others = [(BY_NAME[name].lab, c) for name, c in constants.items() if BY_NAME[name].lab != lab]
        c = min(by_lab(others), 0.98 * float(fitted.loss.min()))
        return fit(fitted, "chinchilla", fixed={"c": c}, allow_unidentifiable=True).errors_on(held_out)

    return errors


def baselines(tables: Mapping[str, Runs]) -> list[Cell]:
    """The cells of fresh fits, weighted ones, one constant and c pinned."""
    members = [name for name in tables if BY_NAME[name].member]
    laws = {name: fit(tables[name], "chinchilla", allow_unidentifiable=True).law for name in members}
    constants = {name: law.coefficients["c"] for name, law in laws.items()}
    with_c, cells = pinned(constants), []
    for split in asked(tables):
        parts = split.parts(tables[split.set])
        cells += [Cell(split, FRESH, fresh(*parts)), Cell(split, CONSTANT, one_constant(*parts))]
        cells.append(Cell(split, PINNED, with_c(*parts, split.lab)))
    return cells + weighted(tables)


def weighted(tables: Mapping[str, Runs]) -> list[Cell]:
    """Fresh fits of weighted runs, with the power that is best for the same cuts of the other labs."""
    by_power: dict[float, list[Cell]] = {power: [] for power in POWERS}
    for split in asked(tables):
        for power, cells_of in by_power.items():
            cells_of.append(Cell(split, WEIGHTED, fresh(*split.parts(tables[split.set]), power)))
    cells = []
    for i, split in enumerate(asked(tables)):
        scores = {power: by_lab(_others(cells_of, split)) for power, cells_of in by_power.items()}
        cells.append(by_power[min(scores, key=lambda power: scores[power])][i])
    return cells


def _others(cells: Iterable[Cell], split: Split) -> Iterator[tuple[str, float]]:
    """(lab, RMSE) of the same cuts of other labs."""
    for one in cells:
        if one.split.by == split.by and one.split.lab != split.lab:
            yield one.split.lab, one.rmse


# ------------------------------------------------------------------ from the prior


@dataclass(frozen=True)
class Forecasts:
    """Errors and standard errors [labs, choices, n] under each choice, with each further lab left out."""

    split: Split
    labs: tuple[str, ...]
    errors: FloatArray
    spread: FloatArray

    def scores(self, lab: str) -> FloatArray:
        """ln RMSE of each choice [choices] when `lab` is left out, too."""
        return np.asarray(0.5 * np.log((self.errors[self.labs.index(lab)] ** 2).mean(axis=1)))


def forecasts(split: Split, runs: Runs, priors: Mapping[frozenset[str], Sequence[Prior]]) -> Forecasts:
    """The split's runs under the populations without its lab, and without one lab more."""
    labs = tuple(sorted({lab for pair in priors for lab in pair}))
    fitted, held_out = split.parts(runs)
    units = UNITS[BY_NAME[split.set].unit]
    rows = [p.in_units(*units) for lab in labs for p in priors[frozenset({split.lab, lab})]]
    relative = (np.log(part.flops / fitted.flops.max()) for part in (fitted, held_out))
    power = np.tile([choice.power for choice in CHOICES], len(labs))[:, None]
    weights, ahead = (np.exp(power * logs) for logs in relative)
    solved = modes(fitted, rows, weights)
    logs, error = solved.losses(held_out)
    loss = np.exp(logs)
    spread = loss * np.sqrt(error**2 + solved.noise[:, None] ** 2 / ahead)
    shape = (len(labs), len(CHOICES), len(held_out))
    return Forecasts(split, labs, (loss - held_out.loss).reshape(shape), spread.reshape(shape))


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


def without_weights(forecasts: Sequence[Forecasts]) -> list[Cell]:
    """The cells of the prior where runs must weigh equally."""
    equal = [choice.power == 0 for choice in CHOICES]
    errors = [np.where(np.array(equal)[:, None], one.errors, np.inf) for one in forecasts]
    narrowed = [replace(one, errors=each) for one, each in zip(forecasts, errors, strict=True)]
    return [replace(cell, method=EQUAL) for cell in nested(narrowed)[0]]


def nested(forecasts: Sequence[Forecasts]) -> tuple[list[Cell], dict[tuple[str, str], Choice]]:
    """The cells of the prior, and the choice for each lab and what is cut (C, N or D).

    Choice and width are those best for the same cuts of the other labs, without this lab.
    """
    cells, choices = [], {}
    for lab, by in sorted({(one.split.lab, one.split.by) for one in forecasts}):
        same = [one for one in forecasts if one.split.by == by]
        best = best_choice(same, lab)
        choices[lab, by] = CHOICES[best]
        width = _width([one for one in same if one.split.lab != lab], lab, best)
        for one in same:
            if one.split.lab == lab:
                at = one.labs.index(lab)
                cells.append(Cell(one.split, PRIOR, one.errors[at, best], width * one.spread[at, best]))
    return cells, choices


def _width(others: Sequence[Forecasts], lab: str, best: int, level: float = 0.9) -> float:
    """Factor by which a Gaussian's intervals must grow to hold `level` of the other labs' runs; labs weigh equally."""
    ratios = []
    for one in others:
        at = one.labs.index(lab)
        ratios.append((one.split.lab, np.abs(one.errors[at, best]) / one.spread[at, best]))
    return quantile_by_lab(ratios, level) / 1.6449


def quantile_by_lab(parts: Sequence[tuple[str, FloatArray]], level: float = 0.9) -> float:
    """The value below which `level` of all values lie; labs weigh equally, and the parts of a lab."""
    labs = [lab for lab, _ in parts]
    weight = np.concatenate([np.full(len(part), 1.0 / len(part) / labs.count(lab)) for lab, part in parts])
    values = np.concatenate([part for _, part in parts])
    order = np.argsort(values)
    share = np.cumsum(weight[order]) / weight.sum()
    return float(values[order][np.searchsorted(share, level)])
