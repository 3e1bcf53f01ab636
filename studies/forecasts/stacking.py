"""The stack of `scaling_law.forecast` on the list of splits; all that it learns, it learns on other labs' sets.

A lab left out is neither in the population of laws behind its own forecasts nor among the sets whose errors set the
usual products of errors, the coefficients of the variance and the widths of intervals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize

from hub.base import strict_json
from scaling_law import Runs
from scaling_law.fitting.holdout import DIRECTIONS
from scaling_law.fitting.prior import POPULATION, Prior
from scaling_law.forecasting.forecast import UNITS
from scaling_law.forecasting.forecasters import BASE, PUBLISHED, forecasters
from scaling_law.forecasting.stack import (
    COMPONENTS,
    DEFAULTS,
    FORMAT,
    LEAST_VARIANCE,
    NORMAL,
    VERSION,
    Defaults,
    Evidence,
    gather,
    moments_of,
    stack,
)
from studies.common import FloatArray
from studies.forecasts.members import Member, estimate, read_population
from studies.forecasts.methods import Cell, cell_of
from studies.forecasts.splits import Split, splits_of

# How many cuts the errors of other labs count as.
CUTS = 1.0
# The least held-out runs in one direction whose errors say something of their products.
FEWEST = 3
# Student's t of the errors of other labs, whose tails keep one of them from setting a coefficient.
DOF = 4.0
# Where the coefficients of `COMPONENTS` start, and how little they are held there: beside labs that weigh 1 each.
START = (0.5, 0.5, 1.0, 1e-4, 1e-4, 1e-4, 0.5)
HOLD = 1e-3
# Limits of the logarithm of a coefficient.
LIMITS = (np.log(1e-8), 3.0)
# The share of runs in an interval.
LEVEL = 0.9


@dataclass(frozen=True)
class Case:
    """The held-out runs of a split, and what laws say of them; the population behind these is without its lab."""

    split: Split
    loss: FloatArray
    evidence: Evidence

    @property
    def lab(self) -> str:
        """The lab of the split."""
        return self.split.lab

    @cached_property
    def candidates(self) -> Evidence:
        """The laws that compete where a prior is given: all but the published one."""
        predictions = {name: prediction for name, prediction in self.evidence.predictions.items() if name != PUBLISHED}
        return replace(self.evidence, predictions=predictions)

    @property
    def directions(self) -> FloatArray:
        """The place in `DIRECTIONS` in which each run lies furthest beyond those fitted, [n]."""
        return np.argmax(self.evidence.beyond, axis=0)


def cases_of(tables: Mapping[str, Runs]) -> Iterator[Case]:
    """Yield all splits of the list, forecast under the population that ships without the split's lab.

    E is ignored: Step Law's MoE set, of another E for each size, is taken as of one.
    """
    members, settings, *_ = read_population(POPULATION)
    for split in splits_of(tables):
        train, held_out = split.divide(tables[split.set])
        dense = replace(train, experts=np.ones(len(train)))
        laws = forecasters(dense, 1.0, prior_without(members, settings, split.lab), BASE)
        yield Case(split, held_out.loss, gather(dense, held_out, laws))


def prior_without(members: Sequence[Member], settings: Mapping[str, Any], lab: str) -> Prior:
    """Estimate the population of the other labs, for any unit, as `forecast` takes it."""
    members_left = [member for member in members if member.lab != lab]
    return estimate(members_left, **settings).in_units(*UNITS)


# ------------------------------------------------------------------ what other labs' sets say


def learn(cases: Sequence[Case], lab: str | None = None) -> Defaults:
    """Learn from the sets of all labs but `lab`: nothing of it is in what is learnt.

    Each other lab's sets are forecast by the products of errors of the labs that are neither. In the coefficients of
    the variance labs weigh equally; the widths are such that 90 % of all runs lie in their intervals.
    """
    judges = [case for case in cases if case.lab != lab]
    labs = {case.lab for case in judges}
    moments = {left_out: _moments(judges, left_out) for left_out in labs}
    plain = np.ones(len(COMPONENTS))
    stacks = []
    for case in judges:
        stacks.append(stack(case.candidates, Defaults(moments[case.lab], plain, np.ones(len(DIRECTIONS)), CUTS)))
    weights = np.concatenate(_weights_of_runs(judges))
    components = np.hstack([stacked.components for stacked in stacks])
    squares = np.concatenate(
        [(np.log(case.loss) - stacked.log_loss) ** 2 for case, stacked in zip(judges, stacks, strict=True)]
    )
    variances = _fit_variances(components, squares, weights)
    misses = np.sqrt(squares / (variances @ components + LEAST_VARIANCE))
    directions = np.concatenate([case.directions for case in judges])
    widths = []
    for direction in range(len(DIRECTIONS)):
        is_furthest = directions == direction
        is_counted = is_furthest if is_furthest.any() else ~is_furthest
        widths.append(float(np.quantile(misses[is_counted], LEVEL)) / NORMAL)
    return Defaults(_moments(judges, None), variances, np.array(widths), CUTS)


def _weights_of_runs(cases: Sequence[Case]) -> list[FloatArray]:
    """Return the weight of each run of each case: labs weigh equally, and so do the cases of a lab and their runs."""
    cases_of_lab = Counter(case.lab for case in cases)
    return [np.full(len(case.loss), 1.0 / cases_of_lab[case.lab] / len(case.loss)) for case in cases]


def _fit_variances(components: FloatArray, squares: FloatArray, weights: FloatArray) -> FloatArray:
    """Fit the coefficients [7] of the components [7, n] of the variance to squared errors of ln L [n]."""
    start = np.log(START)

    def score(log_coefficients: FloatArray) -> tuple[float, FloatArray]:
        coefficients = np.exp(log_coefficients)
        variance = coefficients @ components + LEAST_VARIANCE
        tail = 1.0 + squares / (DOF * variance)
        log_density = 0.5 * np.log(variance) + 0.5 * (DOF + 1.0) * np.log(tail)
        slope = 0.5 / variance - 0.5 * (DOF + 1.0) * squares / (DOF * variance**2) / tail
        shift = log_coefficients - start
        value = weights @ log_density + HOLD * shift @ shift
        return float(value), coefficients * (components @ (weights * slope)) + 2 * HOLD * shift

    solution = minimize(score, start, jac=True, method="L-BFGS-B", bounds=[LIMITS] * len(start))
    return np.exp(solution.x)


def _moments(cases: Sequence[Case], left_out: str | None) -> FloatArray:
    """Return mean products of relative errors [3, J, J] of the laws of `BASE`, labs equally, but for one.

    A direction that no set has is of one weight for every law.
    """
    products: list[dict[str, list[FloatArray]]] = [{} for _ in DIRECTIONS]
    for case in cases:
        if case.lab == left_out or not {*BASE} <= {*case.evidence.predictions}:
            continue
        errors = np.array([case.evidence.predictions[name].log_loss - np.log(case.loss) for name in BASE])
        if not np.isfinite(errors).all():
            continue
        for direction, products_of_labs in enumerate(products):
            is_furthest = case.directions == direction
            if is_furthest.sum() >= FEWEST:
                products_of_labs.setdefault(case.lab, []).append(moments_of(errors[:, is_furthest]))
    moments = []
    for products_of_labs in products:
        means = [np.mean(products_of_lab, axis=0) for products_of_lab in products_of_labs.values()]
        moments.append(np.mean(means or [np.eye(len(BASE))], axis=0))
    return np.array(moments)


# ------------------------------------------------------------------ the forecasts


def cells_of(cases: Sequence[Case]) -> Iterator[Cell]:
    """Yield the forecast of each case, each lab's with what is learnt on the judges."""
    for lab in sorted({case.lab for case in cases}):
        defaults = learn(cases, lab)
        for case in cases:
            if case.lab == lab:
                yield cell_of(case.split, case.loss, case.evidence, stack(case.candidates, defaults))


def write_defaults(cases: Sequence[Case], path: Path = DEFAULTS) -> Path:
    """Write the defaults that the library ships: learnt on all labs."""
    defaults = learn(cases)
    fields = {
        "laws": list(BASE),
        "moments": np.round(defaults.moments, 4).tolist(),
        "variances": [float(f"{value:.4g}") for value in defaults.variances],
        "widths": np.round(defaults.widths, 4).tolist(),
        "cuts": defaults.cuts,
    }
    return strict_json.write(path, FORMAT, VERSION, fields)
