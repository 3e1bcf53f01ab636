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

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize_scalar

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
    levels = rates[is_warm] / rates.max(initial=0.0)
    if levels.min(initial=1.0) > 1 - 2 * SAME_RATE:
        return None

    def misfit(value: float, form: str) -> float:
        return float(np.abs(_form(shares[is_warm], form, value, warmup) - levels).max())

    fits = []
    for form in ("cosine", "linear", "wsd"):
        fit = minimize_scalar(misfit, bounds=(0.0, 1.0), args=(form,), method="bounded")
        # Of forms that fit alike, as linear and a cooldown over all do, the first by name stands for both.
        fits.append((round(fit.fun, 2), form, fit))
    _, form, best = min(fits)
    return (form, float(best.x)) if best.fun < SAME_RATE else None


def _form(shares: FloatArray, form: str, value: float | None, warmup: float) -> FloatArray:
    rate, usual_value = FORMS[form]
    return rate(shares, np.maximum(shares - warmup, 0.0) / (1 - warmup), usual_value if value is None else value)


def basis(rates: FloatArray, shares: ArrayLike) -> FloatArray:
    """Return what ln L is a sum of after `shares` [k] of the tokens, [k, 5].

    Columns: the level, the fall with progress, its bend, the gap above a usual end, and what a slower lag adds.

    Args:
        rates: learning rates at equal steps from the beginning of a run to its end; their unit does not matter.
        shares: of the tokens, of which the last one is 1.
    """
    places = np.linspace(0.0, 1.0, min(len(rates), MOST_STEPS + 1))
    levels = np.interp(places, np.linspace(0.0, 1.0, len(rates)), rates / rates.max())
    steps = ((levels[1:] + levels[:-1]) / 2) ** PROGRESS_POWER
    progress_of_places = np.append(0.0, np.cumsum(steps)) / steps.sum()
    progress = np.maximum(np.interp(np.atleast_1d(shares), places, progress_of_places), LEAST_PROGRESS)
    falls = levels[:-1] - levels[1:]
    is_change = falls != 0
    then = (progress_of_places[:-1] + progress_of_places[1:])[is_change] / 2
    since = np.maximum(progress[:, None] / then - 1.0, 0.0)

    def fall(power: float) -> FloatArray:
        """Return how far ln L, a power of the progress, lies above its end per unit of its slope there."""
        return np.asarray((progress**-power - 1.0) / power)

    def heat(lag: float) -> FloatArray:
        """Return the share of the gap that is there: the rate over its peak, which the loss follows with a lag."""
        followed = 1.0 - 1.0 / np.sqrt(1.0 + 2.0 * lag * since)
        return np.asarray(levels[0] - followed @ falls[is_change])

    low, high = BENDING_POWERS
    columns = (
        np.ones(len(progress)),
        fall(FALL_POWER),
        fall(high) - fall(low),
        heat(LAG) - USUAL_HEAT,
        heat(LAG / LAG_FACTOR) - heat(LAG * LAG_FACTOR),
    )
    return np.column_stack(columns)
