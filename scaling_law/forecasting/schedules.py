"""How the loss falls along a run under any learning-rate schedule.

Two things move it. The run makes progress, S = ∫ u^(2/3) dt, where u is the rate over its peak, and the loss falls
with S as a power law. And a lower rate leaves less noise in the weights: each fall of u by du lowers the loss by

    gap · du · (1 − 1 / √(1 + 2 x)),    x = LAG · (S / S_then − 1)

so it follows the rate within about 1/LAG of the progress so far, and the rest ever slower. This is the multi-power law
of Luo et al. (2025, arXiv 2503.12811) with two changes found on their curves: lags are in proportion to the progress,
so that no unit of steps is needed, and progress goes with a power of the rate below one. docs/studies/live.md shows
how near it comes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from scaling_law.size.arrays import FloatArray

# Progress goes with this power of the rate.
PROGRESS_POWER = 2.0 / 3.0
# At first the loss follows a fall of the rate as if it had done so after 1/LAG of the progress so far.
LAG = 240.0
# Lags that differ by this factor either way span those that occur.
LAG_FACTOR = 3.0
# Exponents of the fall with progress, and two whose difference bends it.
FALL_POWER = 0.4
BENDING_POWERS = (0.2, 1.0)
# The part of the gap that is left at the end of the runs that laws are fitted to.
USUAL_HEAT = 0.2
# Steps of a schedule that is planned, and most steps of any.
PLANNED_STEPS = 400
MOST_STEPS = 1000
# Least progress at which the loss is said to fall as a power.
LEAST_PROGRESS = 1e-6
# Forms of schedules: the rate over its peak after a share of the tokens, and after a share x of those that follow the
# warm-up; each has a value, by default the second of the pair: the rate at the end, or the last share that decays.
FORMS: dict[str, tuple[Callable[[FloatArray, FloatArray, float], FloatArray], float]] = {
    "cosine": (lambda share, x, low: low + (1 - low) * (1 + np.cos(np.pi * x)) / 2, 0.0),
    "linear": (lambda share, x, low: low + (1 - low) * (1 - x), 0.0),
    "wsd": (lambda share, x, decay: np.minimum(1.0, (1 - share) / decay), 0.2),
    "constant": (lambda share, x, _: np.ones_like(share), 0.0),
}
# Rates are of a form within this much of the peak, and must have fallen by twice as much to show one.
SAME_RATE = 0.01


def plan_rates(form: str, value: float | None = None, warmup: float = 0.0) -> FloatArray:
    """Plan rates at equal steps of a run: a linear warm-up over a share of the tokens, then one of `FORMS`."""
    shares = np.linspace(0.0, 1.0, PLANNED_STEPS + 1)
    rates = _form(shares, form, value, warmup)
    return np.minimum(rates, shares / warmup) if warmup > 0 else rates


def recognize(shares: FloatArray, rates: FloatArray, warmup: float) -> tuple[str, float] | None:
    """Find the form and the value of a schedule from the rates so far; None where they do not show it."""
    is_warm = shares >= warmup
    levels = rates[is_warm] / rates.max()
    shares = shares[is_warm]
    if levels[-1] > 1 - 2 * SAME_RATE:
        return None
    values = {}
    for form in ("cosine", "linear"):
        at_zero = _form(shares, form, 0.0, warmup)
        values[form] = (levels[-1] - at_zero[-1]) / (1 - at_zero[-1])
    values["wsd"] = (1 - shares[-1]) / max(levels[-1], SAME_RATE)
    for form, value in values.items():
        # A schedule that falls to 0 may be a rounding error below it.
        value = max(value, 0.0) if value > -SAME_RATE else value
        if 0 <= value <= 1 and np.abs(_form(shares, form, value, warmup) - levels).max() < SAME_RATE:
            return form, float(value)
    return None


def _form(shares: FloatArray, form: str, value: float | None, warmup: float) -> FloatArray:
    rate, usual_value = FORMS[form]
    return rate(shares, np.maximum(shares - warmup, 0.0) / (1 - warmup), usual_value if value is None else value)


class RateSchedule:
    """Learning rates at equal steps from the beginning of a run to its end; their unit does not matter."""

    def __init__(self, rates: FloatArray):
        self.shares = np.linspace(0.0, 1.0, min(len(rates), MOST_STEPS + 1))
        self.rates = np.interp(self.shares, np.linspace(0.0, 1.0, len(rates)), rates / rates.max())

    def basis(self, shares: ArrayLike) -> FloatArray:
        """Return what ln L is a sum of after `shares` [k] of the tokens, [k, 5].

        Columns: the level, the fall with progress, its bend, the gap above a usual end, and what a slower lag adds.
        """
        progress = self.progress(shares)
        low, high = BENDING_POWERS
        columns = (
            np.ones(len(progress)),
            _fall(progress, FALL_POWER),
            _fall(progress, high) - _fall(progress, low),
            self._heat(progress, LAG) - USUAL_HEAT,
            self._heat(progress, LAG / LAG_FACTOR) - self._heat(progress, LAG * LAG_FACTOR),
        )
        return np.column_stack(columns)

    def progress(self, shares: ArrayLike) -> FloatArray:
        """Return the progress after `shares` [k] of the tokens, as shares of the whole run's."""
        return np.maximum(np.interp(np.atleast_1d(shares), self.shares, self._progress), LEAST_PROGRESS)

    @cached_property
    def _progress(self) -> FloatArray:
        middle = (self.rates[1:] + self.rates[:-1]) / 2
        progress = np.concatenate([[0.0], np.cumsum(middle**PROGRESS_POWER)])
        return np.asarray(progress / progress[-1])

    def _heat(self, progress: FloatArray, lag: float) -> FloatArray:
        """Return the share of the gap that is there: the rate over its peak, which the loss follows with a lag."""
        falls = self.rates[:-1] - self.rates[1:]
        is_change = falls != 0
        then = (self._progress[:-1] + self._progress[1:])[is_change] / 2
        x = lag * np.maximum(progress[:, None] / then - 1.0, 0.0)
        followed = 1.0 - 1.0 / np.sqrt(1.0 + 2.0 * x)
        return np.asarray(self.rates[0] - followed @ falls[is_change])


def _fall(progress: FloatArray, power: float) -> FloatArray:
    """Return how far ln L, a power of the progress, lies above its end per unit of its slope there."""
    return np.asarray((progress**-power - 1.0) / power)
