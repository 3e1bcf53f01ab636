"""How much of a forecast's variance is that of the constant c, the loss that neither size nor data take away.

Each law says what c is, how sure it is of it, and how that goes with what it forecasts. Were c known, a law would
forecast ln L + ρ e / s · (known c − c) with a standard error of e √(1 − ρ²), by the regression of ln L on c (e, s: the
standard errors of ln L and of c, ρ: their correlation). The share of c in the laws' variance is what goes away when
all of them are told the same c: their errors and their disagreement fall together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.stats import rankdata

from scaling_law.size.arrays import FloatArray

# Quantiles one standard deviation from the median of a normal distribution.
ONE_SIGMA = (0.158655, 0.841345)


@dataclass(frozen=True)
class Asymptote:
    """The constant of a law at points [n], in nats, its standard error [n], and the correlation of c with ln L [n]."""

    loss: FloatArray
    error: FloatArray
    correlation: FloatArray

    @classmethod
    def nothing(cls, count: int) -> Asymptote:
        """Return that of a law without a constant, or one that does not say how sure it is."""
        return cls(np.zeros(count), np.zeros(count), np.zeros(count))

    @classmethod
    def of_draws(cls, loss: float, constants: FloatArray, log_losses: FloatArray) -> Asymptote:
        """Return that of a law from draws of its constant [r] and of ln L at points [r, n], whatever their tails."""
        count = log_losses.shape[1]
        error = robust_deviation(constants)
        if not error > 0:
            return cls(np.full(count, loss), np.zeros(count), np.zeros(count))
        ranks = rankdata(constants)
        correlation = np.zeros(count)
        for i, draws in enumerate(log_losses.T):
            if np.ptp(draws) > 0:
                correlation[i] = np.corrcoef(ranks, rankdata(draws))[0, 1]
        return cls(np.full(count, loss), np.full(count, error), correlation)

    def times(self, factor: FloatArray) -> Asymptote:
        """Return that of a law whose losses are multiplied by a factor [n]."""
        return Asymptote(self.loss * factor, self.error * factor, self.correlation)


def robust_deviation(draws: FloatArray) -> FloatArray:
    """Return half the middle 68 % of draws [r, ...]."""
    low, high = np.quantile(draws, ONE_SIGMA, axis=0)
    return np.asarray(0.5 * (high - low))


class Spread(NamedTuple):
    """Mean squared errors of the laws for a point, and the mean square of their disagreement."""

    errors: float
    disagreement: float


def spread_of(weights: FloatArray, log_loss: FloatArray, error: FloatArray) -> Spread:
    """Return the spread of laws [J] of these weights [J] for one point."""
    away = log_loss - weights @ log_loss
    return Spread(float(weights @ error**2), float(weights @ away**2))


def spread_at_one_constant(
    weights: FloatArray,
    log_loss: FloatArray,
    error: FloatArray,
    constants: FloatArray,
) -> Spread:
    """Return the spread of laws [J] when all are told that c is the weighted mean of their constants.

    `constants` [3, J] are the fields of `Asymptote`. A law that does not say how sure it is of c stays as it is.
    """
    loss, standard_error, correlation = constants
    is_open = (standard_error > 0) & (weights > 0)
    if not is_open.any():
        return spread_of(weights, log_loss, error)
    constant = np.average(loss[is_open], weights=weights[is_open])
    slope = np.zeros(len(weights))
    slope[is_open] = correlation[is_open] * error[is_open] / standard_error[is_open]
    told_log_loss = log_loss + slope * (constant - loss)
    told_error = error * np.sqrt(np.maximum(1.0 - correlation**2, 0.0))
    return spread_of(weights, told_log_loss, told_error)
