"""Laws asked where experts begin to pay: as published, calibrated on the short half of the runs, and fitted to all.

Fits are to single runs, each weighted by the scatter of its D, which makes them fits to the cells' means. The Huber
threshold on ln L is 0.05, not the paper's 0.01: seeds scatter by more than that, and a cell is a mean, not a median.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from scaling_law import Bootstrap, Calibration, FitResult, JointLaw, Law, Runs, calibrate, errors_of, fit
from studies.common import FloatArray, rms
from studies.crossing.gaps import Gap, Scatter, cell_means, gaps_of, scatter_of, with_precision
from studies.crossing.records import EXPERTS, WIDTHS, Sweep
from studies.evidence.forecasts import longest_of_each

HUBER, DRAWS, SEED = 0.05, 200, 0
HALF = 4e6  # tokens of the longest runs that the calibration sees
BEYOND = 4.0  # laws are asked this many times below the shortest and above the longest runs
PUBLISHED, CALIBRATED, FITTED = "published law", "law calibrated on D ≤ 4M", "law fitted to the sweep"
LAWS = (PUBLISHED, CALIBRATED, FITTED)
LEAST_CELLS, LEAST_VALUES = 22, 3  # twice the coefficients of the joint law; of N_act and D, and of E to fit it
SIGNS = ("alpha", "beta", "delta", "gamma", "omega", "zeta")
KEPT = ("gamma", "zeta", "e_start", "e_max")  # as published: free, they leave hardly a coefficient determined
FREE = tuple(name for name in SIGNS if name not in KEPT)


@dataclass(frozen=True)
class Comparison:
    """The D from which on experts pay, as one law has it, over that measured, of every crossing that was bracketed."""

    ratios: FloatArray

    @property
    def middle(self) -> float:
        """Geometric mean."""
        return float(np.exp(np.log(self.ratios).mean())) if len(self.ratios) else float("nan")

    @property
    def factor(self) -> float:
        """By which the law is off, as a root mean square of logarithms."""
        return float(np.exp(rms(np.log(self.ratios)))) if len(self.ratios) else float("nan")


@dataclass(frozen=True)
class HeldOut:
    """Errors on the cells that a fit has not seen, nats per byte, and the RMSE that a true law would leave there."""

    what: str
    fitted: int
    errors: FloatArray
    of_seeds: float


@dataclass(frozen=True)
class Results:
    """Everything that the page shows of a sweep, computed when it is asked for; None where the runs do not suffice."""

    sweep: Sweep
    draws: int = DRAWS  # of the law, from trunks resampled

    @cached_property
    def cells(self) -> Runs:
        return cell_means(self.sweep.runs)

    @cached_property
    def scatter(self) -> Scatter:
        return scatter_of(self.sweep.runs)

    @cached_property
    def all_gaps(self) -> list[Gap]:
        """Those of predicted sizes and E included."""
        return gaps_of(self.sweep.counted)

    @cached_property
    def gaps(self) -> list[Gap]:
        return [gap for gap in self.all_gaps if gap.d_model in WIDTHS and gap.experts in EXPERTS]

    @property
    def between(self) -> tuple[float, float]:
        """The D in which laws are searched for a crossing."""
        tokens = self.sweep.runs.tokens
        return float(tokens.min() / BEYOND), float(tokens.max() * BEYOND)

    # ------------------------------------------------------------------ laws

    @cached_property
    def fitted(self) -> FitResult[Any] | None:
        """The joint law fitted to all runs, but for `KEPT`."""
        return fitted_to(self.sweep.runs)

    @cached_property
    def drawn(self) -> Bootstrap | None:
        """Trunks resampled."""
        return self.fitted.bootstrap(self.draws, SEED) if self.fitted else None

    @cached_property
    def calibration(self) -> Calibration | None:
        """Of the published law, on the cells of at most 4M tokens."""
        return calibrated_on(self.cells.subset(self.cells.tokens <= HALF))

    @property
    def forecast(self) -> FloatArray:
        """Errors of the calibrated law on the cells beyond those that it saw, nats per byte; none without it."""
        later = self.cells.subset(self.cells.tokens > HALF)
        return errors_of(self.calibration.law, later) if self.calibration else np.zeros(0)

    @cached_property
    def laws(self) -> Mapping[str, Law]:
        """By their names on the page, those that there are."""
        found: dict[str, Law] = {PUBLISHED: JointLaw.published().replace(draws=None)}
        if self.calibration:
            found[CALIBRATED] = self.calibration.law
        if self.fitted:
            found[FITTED] = self.fitted.law
        return found

    def asked(self, law: Law, n_active: Any, experts: Any) -> FloatArray:
        """The D from which on experts pay; 0 or infinite where that lies beyond what is searched."""
        return law.break_even(n_active, experts, between=self.between, force=True).tokens

    def comparison(self, law: Law) -> Comparison:
        """Of the law's crossings with those measured, where both are bracketed."""
        known = [gap for gap in self.gaps if gap.bracketed]
        asked = np.array([float(self.asked(law, gap.n_active, gap.experts)) for gap in known])
        ratios = asked / np.array([gap.crossing[0] for gap in known])
        return Comparison(ratios[np.isfinite(ratios) & (ratios > 0)])

    # ------------------------------------------------------------------ errors

    @property
    def rmse(self) -> float:
        """Of the fitted law on the cells, nats per byte; NaN without a fit."""
        return rms(errors_of(self.fitted.law, self.cells)) if self.fitted else float("nan")

    @property
    def rmse_of_seeds(self) -> float:
        """What a true law would leave: the standard errors of the cells."""
        return rms(self.cells["standard_error"])

    @cached_property
    def held_out(self) -> list[HeldOut]:
        """The largest size, and the longest runs of each size and E."""
        runs, cells = self.sweep.runs, self.cells
        parts = {
            "largest size": (runs.n_active == runs.n_active.max(), cells.n_active == cells.n_active.max()),
            "longest runs": (longest_of_each(runs), longest_of_each(cells)),
        }
        found = []
        for what, (mask, cell) in parts.items():
            if fitted := fitted_to(runs.subset(~mask)):
                held = cells.subset(cell)
                errors = errors_of(fitted.law, held)
                found.append(HeldOut(what, int((~cell).sum()), errors, rms(held["standard_error"])))
        return found


def fitted_to(runs: Runs) -> FitResult[Any] | None:
    """The joint law with the published values of `KEPT`; None where the runs are too few, or do not determine it.

    With two values of E, any pair of laws in N_act and D fits, so the terms of E need three. Starts are searched on
    the cells, which are few.
    """
    if not len(runs) or not _enough(cells := cell_means(runs)) or len(np.unique(cells.experts)) < LEAST_VALUES:
        return None
    published = JointLaw.published().coefficients
    kept = {name: published[name] for name in KEPT}
    settings: dict[str, Any] = {"huber_delta": HUBER, "weights": "precision", "fixed": kept}
    try:
        found = fit(cells, "joint", **settings)
    except ValueError:
        return None
    return fit(with_precision(runs), "joint", starts=[found.law], **settings)


def calibrated_on(cells: Runs) -> Calibration | None:
    """The published law; None where the cells are too few."""
    if not _enough(cells):
        return None
    try:
        return calibrate(JointLaw.published(), cells, huber_delta=HUBER, weights="precision")
    except ValueError:
        return None


def _enough(cells: Runs) -> bool:
    values = min(len(np.unique(cells.n_active)), len(np.unique(cells.tokens)))
    return len(cells) >= LEAST_CELLS and values >= LEAST_VALUES
