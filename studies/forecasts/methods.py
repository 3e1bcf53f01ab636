"""Forecasts by hand, means over labs, and the fresh fits beside which forecasts are judged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from scaling_law import published
from scaling_law.fitting.holdout import pool_errors
from scaling_law.forecasting.stack import FRESH, NORMAL, Evidence, Stacked
from studies.common import FloatArray, rms
from studies.forecasts.splits import Split

CONSTANT = "one constant"
# The published joint law moves by its mean error.
BY_HAND = {CONSTANT: published("ludziejewski")}
# Errors below this, in nats, are counted as this: the runs of no set scatter less about a law.
SEEDS = 0.003
# A miss costs so much of its distance in the score of 90 % intervals.
MISS = 2 / 0.1


@dataclass(frozen=True)
class Forecast:
    """ln L of the held-out runs [n] and its spread [n]."""

    log_loss: FloatArray
    spread: FloatArray

    def rmse(self, loss: FloatArray) -> float:
        """Return the RMSE in nats, at least the noise of seeds."""
        return max(rms(np.exp(self.log_loss) - loss), SEEDS)

    def inside(self, loss: FloatArray) -> FloatArray:
        """Mark the runs in their 90 % intervals, [n]."""
        return np.asarray(np.abs(np.log(loss) - self.log_loss) <= NORMAL * self.spread)

    def interval_score(self, loss: FloatArray) -> float:
        """Return the mean width of the 90 % intervals of ln L, with what a miss costs (Gneiting and Raftery 2007)."""
        half = NORMAL * self.spread
        beyond = np.maximum(np.abs(np.log(loss) - self.log_loss) - half, 0.0)
        return float(np.mean(2 * half + MISS * beyond))


@dataclass(frozen=True)
class Cell:
    """The held-out runs of a split [n], the direction in which each lies furthest out, and their forecasts.

    `fresh` has the fresh fits that the runs determine, `preferred` the one that is better at cuts within them ("" for
    none).
    """

    split: Split
    loss: FloatArray
    directions: FloatArray
    stack: Forecast
    fresh: dict[str, Forecast]
    preferred: str

    @property
    def ratio(self) -> float:
        """The error over that of the fresh form that the rolling origins choose; NaN without one."""
        return self._over([self.fresh[self.preferred]] if self.preferred else [])

    @property
    def hindsight(self) -> float:
        """The error over that of the better fresh form; NaN without one."""
        return self._over([*self.fresh.values()])

    def _over(self, rivals: Sequence[Forecast]) -> float:
        least = min((rival.rmse(self.loss) for rival in rivals), default=float("nan"))
        return self.stack.rmse(self.loss) / least


def cell_of(split: Split, loss: FloatArray, evidence: Evidence, stacked: Stacked) -> Cell:
    """Make the cell of a split."""
    fresh = {}
    for name in FRESH:
        if name in evidence.predictions:
            prediction = evidence.predictions[name]
            fresh[name] = Forecast(prediction.log_loss, np.hypot(prediction.error, prediction.noise))
    return Cell(
        split,
        loss,
        np.argmax(evidence.beyond, axis=0),
        Forecast(stacked.log_loss, stacked.spread),
        fresh,
        choose_fresh(evidence, [*fresh]),
    )


def choose_fresh(evidence: Evidence, names: Sequence[str]) -> str:
    """Return the fresh form of least error at the cuts within the runs; the first where no cut determines them."""
    if len(names) < 2:
        return "".join(names)
    indices, tests = pool_errors(evidence.backtests, names)
    if not tests.cuts:
        return names[0]
    return names[indices[np.argmin(np.mean(tests.errors**2, axis=1))]]


def by_lab(values: Iterable[tuple[str, float]]) -> float:
    """Return the geometric mean within labs, then over labs; NaN of nothing."""
    logs: dict[str, list[float]] = {}
    for lab, value in values:
        logs.setdefault(lab, []).append(np.log(value))
    if not logs:
        return float("nan")
    return float(np.exp(np.mean([np.mean(logs_of_lab) for logs_of_lab in logs.values()])))
