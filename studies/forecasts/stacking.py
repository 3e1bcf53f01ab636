"""The stack of `scaling_law.forecast` on the list of splits; all that it learns, it learns on other labs' sets.

A lab left out is neither in the population of laws nor among the sets whose errors set the usual products of errors,
the growth of errors with distance and the width of intervals.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hub.base import strict_json
from scaling_law import Prior, Runs
from scaling_law.fitting.prior import Member, estimate
from scaling_law.forecasting.forecast import UNITS
from scaling_law.forecasting.forecasters import BASE, CHINCHILLA, INTERACTION, POWERS, PUBLISHED, forecasters
from scaling_law.forecasting.stack import (
    DEFAULTS,
    DIRECTIONS,
    FORMAT,
    VERSION,
    Defaults,
    Evidence,
    Stacked,
    gather,
    moments_of,
    stack,
)
from studies.common import FloatArray, rms
from studies.forecasts.methods import Cell, Choice, by_lab, quantile_by_lab, splits_of
from studies.forecasts.splits import Split

STACK = "stack"
# Growths of the error of ln L with ln distance.
GROWTHS = (0.005, 0.01, 0.02, 0.04)
# Numbers of cuts that the defaults are worth.
CUTS = (1.0, 4.0, 16.0)
# The least held-out runs in one direction whose errors say something of their products.
FEWEST = 3
# Standard errors of a 90 % interval.
NORMAL = 1.6449


@dataclass(frozen=True)
class Case:
    """The held-out runs of a split, and what laws say of them.

    `evidence` has the laws under the population without the split's lab and one lab more, by that lab.
    """

    split: Split
    loss: FloatArray
    evidence: Mapping[str, Evidence]

    @property
    def lab(self) -> str:
        """The lab of the split."""
        return self.split.lab


def cases_of(
    tables: Mapping[str, Runs], members: Sequence[Member], choices: Mapping[tuple[str, str], Choice]
) -> Iterator[Case]:
    """Yield all splits of the list; `choices` are the settings of the population for each lab, chosen on the others.

    E is ignored, as by the other methods: Step Law's MoE set, of another E for each size, is taken as of one.
    """
    labs = sorted({member.lab for member in members} | {lab for lab, _ in choices})
    for split in splits_of(tables):
        train, held_out = split.divide(tables[split.set])
        dense = replace(train, experts=np.ones(len(train)))
        laws = forecasters(dense, 1.0, None, (CHINCHILLA, INTERACTION, PUBLISHED))
        shared_evidence = gather(train, held_out, laws)
        evidence = {}
        for lab in labs:
            choice = choices[lab if (lab, "flops") in choices else split.lab, "flops"]
            prior = prior_without(members, choice, split.lab, lab)
            laws = forecasters(dense, 1.0, prior, tuple(POWERS))
            evidence[lab] = shared_evidence.with_laws(gather(train, held_out, laws))
        yield Case(split, held_out.loss, evidence)


def prior_without(members: Sequence[Member], choice: Choice, *labs: str) -> Prior:
    """Estimate the population of the other labs, for any unit, as `forecast` takes it."""
    members_left = [member for member in members if member.lab not in labs]
    prior = estimate(members_left, choice.shrinkage, choice.dof, choice.dependence)
    return prior.in_units(*UNITS)


# ------------------------------------------------------------------ what other labs' sets say


def learn(cases: Sequence[Case], cuts: float, lab: str | None = None) -> tuple[Defaults, float]:
    """Learn from the sets of all labs but `lab`, and return the RMSE of their forecasts, a geometric mean over labs.

    Nothing of `lab` is in what is learnt, and of the lab that is forecast only its law, in the population behind other
    labs' errors. Of the growths, the one whose intervals are narrowest when they are scaled to hold 90 % of the runs.
    """
    other_cases = [case for case in cases if case.lab != lab]
    moments = {case.lab: _moments(other_cases, lab, case.lab) for case in other_cases}

    def stack_cases(growth: float) -> list[Stacked]:
        stacks = []
        for case in other_cases:
            stacks.append(stack(case.evidence[lab or case.lab], Defaults(moments[case.lab], growth, 1.0, cuts)))
        return stacks

    without_growth = stack_cases(0.0)
    with_growth = stack_cases(1.0)
    best = (np.inf, GROWTHS[0], 1.0)
    for growth in GROWTHS:
        # The variance is a linear function of the square of the growth.
        spreads = []
        for a, b in zip(without_growth, with_growth, strict=True):
            spreads.append(np.sqrt(a.spread**2 + growth**2 * (b.spread**2 - a.spread**2)))
        misses = []
        for case, stacked, spread in zip(other_cases, without_growth, spreads, strict=True):
            misses.append((case.lab, np.abs(np.log(case.loss) - stacked.log_loss) / spread))
        width = quantile_by_lab(misses)
        typical_spread = by_lab(
            (case.lab, float(np.exp(np.log(spread).mean()))) for case, spread in zip(other_cases, spreads, strict=True)
        )
        best = min(best, (width * typical_spread, growth, width / NORMAL))
    rmse = by_lab(
        (case.lab, rms(np.exp(stacked.log_loss) - case.loss))
        for case, stacked in zip(other_cases, without_growth, strict=True)
    )
    _, best_growth, best_width = best
    return Defaults(_moments(other_cases, lab, lab), best_growth, best_width, cuts), rmse


def _moments(cases: Sequence[Case], *left_out: str | None) -> dict[str, FloatArray]:
    """Return mean products of relative errors of the laws of `BASE` on runs furthest in each direction, labs equally.

    The population is without the first of these labs. A direction that no set has is of one weight for every law.
    """
    products: dict[str, dict[str, list[FloatArray]]] = {direction: {} for direction in DIRECTIONS}
    first_lab = next((lab for lab in left_out if lab), None)
    for case in cases:
        evidence = case.evidence[first_lab or case.lab]
        if case.lab in left_out or not {*BASE} <= {*evidence.predictions}:
            continue
        errors = np.array([np.exp(evidence.predictions[name].log_loss) - case.loss for name in BASE])
        furthest = np.argmax(evidence.beyond, axis=0)
        for i, direction in enumerate(DIRECTIONS):
            if (furthest == i).sum() >= FEWEST:
                products[direction].setdefault(case.lab, []).append(moments_of(errors[:, furthest == i]))
    moments = {}
    for direction, products_of_labs in products.items():
        means = [np.mean(products_of_lab, axis=0) for products_of_lab in products_of_labs.values()]
        moments[direction] = np.mean(means or [np.eye(len(BASE))], axis=0)
    return moments


# ------------------------------------------------------------------ the cells


def stacked_cells(cases: Sequence[Case]) -> Iterator[Cell]:
    """Yield the cells of the stack, each lab's with what is learnt on the others."""
    for lab in sorted({case.lab for case in cases}):
        defaults = best_defaults(cases, lab)
        for case in cases:
            if case.lab == lab:
                stacked = stack(case.evidence[lab], defaults)
                loss = np.exp(stacked.log_loss)
                yield Cell(case.split, STACK, loss - case.loss, stacked.spread * loss)


def best_defaults(cases: Sequence[Case], lab: str | None = None) -> Defaults:
    """Return the defaults under which the labs but `lab` are forecast best."""
    candidates = [learn(cases, cuts, lab) for cuts in CUTS]
    defaults, _ = min(candidates, key=lambda candidate: candidate[1])
    return defaults


def write_defaults(cases: Sequence[Case], path: Path = DEFAULTS) -> Path:
    """Write the defaults that the library ships: learnt on all labs."""
    defaults = best_defaults(cases)
    fields = {
        "laws": list(BASE),
        "moments": {name: np.round(table, 4).tolist() for name, table in defaults.moments.items()},
        "growth": defaults.growth,
        "width": round(defaults.width, 4),
        "cuts": defaults.cuts,
    }
    return strict_json.write(path, FORMAT, VERSION, fields)
