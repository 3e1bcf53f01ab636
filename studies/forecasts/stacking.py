"""The stack of `scaling_law.forecast` on the list of splits; what it learns from sets, it learns on other labs' sets.

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
    gather,
    moments_of,
    stack,
)
from studies.common import FloatArray, rms
from studies.forecasts.methods import Cell, Choice, asked, by_lab, quantile_by_lab
from studies.forecasts.splits import Split

STACK = "stack"
GROWTHS = (0.005, 0.01, 0.02, 0.04)  # of the error of ln L with ln distance
CUTS = (1.0, 4.0, 16.0)  # how many cuts the defaults are worth
FEWEST = 3  # held-out runs in one direction whose errors say something of their products
NORMAL = 1.6449  # standard errors of a 90 % interval


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
        return self.split.lab


def cases_of(
    tables: Mapping[str, Runs], members: Sequence[Member], choices: Mapping[tuple[str, str], Choice]
) -> Iterator[Case]:
    """All splits of the list; `choices` are the settings of the population for each lab, chosen on the others.

    E is ignored, as by the other methods: Step Law's MoE set, of another E for each size, is taken as of one.
    """
    labs = sorted({member.lab for member in members} | {lab for lab, _ in choices})
    for split in asked(tables):
        fitted, held_out = split.parts(tables[split.set])
        one = replace(fitted, experts=np.ones(len(fitted)))
        shared = gather(fitted, held_out, forecasters(one, 1.0, None, (CHINCHILLA, INTERACTION, PUBLISHED)))
        evidence = {}
        for lab in labs:
            chosen = choices[lab if (lab, "flops") in choices else split.lab, "flops"]
            prior = prior_without(members, chosen, split.lab, lab)
            laws = forecasters(one, 1.0, prior, tuple(POWERS))
            evidence[lab] = shared.with_laws(gather(fitted, held_out, laws))
        yield Case(split, held_out.loss, evidence)


def prior_without(members: Sequence[Member], chosen: Choice, *labs: str) -> Prior:
    """The population of the other labs, for any unit, as `forecast` takes it."""
    rest = [member for member in members if member.lab not in labs]
    return estimate(rest, chosen.shrinkage, chosen.dof, chosen.dependence).in_units(*UNITS)


# ------------------------------------------------------------------ what other labs' sets say


def learn(cases: Sequence[Case], cuts: float, lab: str | None = None) -> tuple[Defaults, float]:
    """What the sets of all labs but `lab` say, and the RMSE of their forecasts: a geometric mean, labs equally.

    Nothing of `lab` is in what is learnt, and of the lab that is forecast only its law, in the population behind other
    labs' errors. Of the growths, the one whose intervals are narrowest when they are scaled to hold 90 % of the runs.
    """
    others = [case for case in cases if case.lab != lab]
    usual = {case.lab: _moments(others, lab, case.lab) for case in others}
    none, full = (
        [stack(case.evidence[lab or case.lab], Defaults(usual[case.lab], growth, 1.0, cuts)) for case in others]
        for growth in (0.0, 1.0)
    )
    best = np.inf, GROWTHS[0], 1.0
    for growth in GROWTHS:  # of which the variance is a linear function of the square
        spreads = [
            np.sqrt(a.spread**2 + growth**2 * (b.spread**2 - a.spread**2)) for a, b in zip(none, full, strict=True)
        ]
        rows = list(zip(others, none, spreads, strict=True))
        width = quantile_by_lab(
            [(case.lab, np.abs(np.log(case.loss) - s.log_loss) / spread) for case, s, spread in rows]
        )
        typical = by_lab((case.lab, float(np.exp(np.log(spread).mean()))) for case, _, spread in rows)
        best = min(best, (width * typical, growth, width / NORMAL))
    errors = by_lab((case.lab, rms(np.exp(s.log_loss) - case.loss)) for case, s in zip(others, none, strict=True))
    return Defaults(_moments(others, lab, lab), *best[1:], cuts), errors


def _moments(cases: Sequence[Case], *left_out: str | None) -> dict[str, FloatArray]:
    """Mean products of relative errors of the laws of `BASE` on runs furthest in each direction, labs equally.

    The population is without the first of these labs. A direction that no set has is of one weight for every law.
    """
    products: dict[str, dict[str, list[FloatArray]]] = {direction: {} for direction in DIRECTIONS}
    for case in cases:
        evidence = case.evidence[next((lab for lab in left_out if lab), case.lab)]
        if case.lab in left_out or not {*BASE} <= {*evidence.predictions}:
            continue
        errors = np.array([np.exp(evidence.predictions[name].log_loss) - case.loss for name in BASE])
        furthest = np.argmax(evidence.beyond, axis=0)
        for i, direction in enumerate(DIRECTIONS):
            if (furthest == i).sum() >= FEWEST:
                products[direction].setdefault(case.lab, []).append(moments_of(errors[:, furthest == i]))
    return {
        direction: np.mean([np.mean(each, axis=0) for each in of_labs.values()] or [np.eye(len(BASE))], axis=0)
        for direction, of_labs in products.items()
    }


# ------------------------------------------------------------------ the cells


def stacked_cells(cases: Sequence[Case]) -> Iterator[Cell]:
    """The cells of the stack, each lab's with what is learnt on the others."""
    for lab in sorted({case.lab for case in cases}):
        learnt = best_defaults(cases, lab)
        for case in (case for case in cases if case.lab == lab):
            stacked = stack(case.evidence[lab], learnt)
            loss = np.exp(stacked.log_loss)
            yield Cell(case.split, STACK, loss - case.loss, stacked.spread * loss)


def best_defaults(cases: Sequence[Case], lab: str | None = None) -> Defaults:
    """Those under which the labs but `lab` are forecast best."""
    return min((learn(cases, cuts, lab) for cuts in CUTS), key=lambda learnt: learnt[1])[0]


def write_defaults(cases: Sequence[Case], path: Path = DEFAULTS) -> Path:
    """What the library ships: learnt on all labs."""
    learnt = best_defaults(cases)
    moments = {name: np.round(table, 4).tolist() for name, table in learnt.moments.items()}
    numbers = {"growth": learnt.growth, "width": round(learnt.width, 4), "cuts": learnt.cuts}
    return strict_json.write(path, FORMAT, VERSION, {"laws": list(BASE), "moments": moments, **numbers})
