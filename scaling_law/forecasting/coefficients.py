"""Coefficients of curves, normal in a family of runs: what runs and a prior tell of those of one more run.

The coefficients of a run [k] are means of the family, plus drifts times its position, plus what is its own. Means and
drifts [m] are laid out as k means, then k drifts for each of the p coordinates of a position: m = k · (1 + p).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from scaling_law.size.arrays import FloatArray

# Rounds of expectation maximisation.
ROUNDS = 12
# Runs that the prior of the scatter between runs counts as.
PRIOR_RUNS = 2.0
# The level at which the intervals of mixtures hold what they say.
LEVEL = 0.9


class Normal(NamedTuple):
    """Mean [k] and covariance [k, k] of the coefficients of a run."""

    mean: FloatArray
    covariance: FloatArray


class Prior(NamedTuple):
    """Means and standard deviations [m] of means and drifts, before any run."""

    means: FloatArray
    spreads: FloatArray


class Evidence(NamedTuple):
    """A normal likelihood of coefficients: its precision [..., k, k], and that times its mean [..., k]."""

    precision: FloatArray
    vector: FloatArray

    def plus(self, further: Evidence) -> Evidence:
        """Add what else is known of the same coefficients."""
        return Evidence(self.precision + further.precision, self.vector + further.vector)


class Family(NamedTuple):
    """Evidence of means and drifts, the covariance of runs `between` each other [k, k], and the number of runs."""

    evidence: Evidence
    between: FloatArray
    runs: float


class Belief(NamedTuple):
    """The coefficients of a run before and after its own lines, with the logarithms of how probable the data were."""

    before: Normal
    after: Normal
    log_evidence_before: float
    log_evidence_after: float


def measure(
    basis: FloatArray,
    values: FloatArray,
    variances: FloatArray,
) -> Evidence:
    """Return the evidence of values [n] that are sums of coefficients times a basis [n, k]."""
    weighted = basis.T / variances
    return Evidence(weighted @ basis, weighted @ values)


def pool(
    runs: Sequence[Evidence],
    positions: FloatArray,
    weights: FloatArray,
    prior: Prior,
    prior_between: FloatArray,
) -> Family:
    """Learn means, drifts and the scatter between runs by expectation maximisation.

    Args:
        runs: what each of n runs tells of its own coefficients.
        positions: where the runs are, from where the family is asked for [n, p].
        weights: how much each run counts [n].
        prior: of means and drifts.
        prior_between: covariance between runs, which counts as `PRIOR_RUNS` runs [k, k].
    """
    precision = np.array([run.precision for run in runs])
    vector = np.array([run.vector for run in runs])
    design = _design(positions, len(prior_between))
    transposed = np.swapaxes(design, 1, 2)
    count = weights.sum()
    between = prior_between
    for _ in range(ROUNDS):
        # Between runs, each run's own coefficients blur what it tells of the family.
        blur = np.linalg.inv(np.eye(len(between)) + precision @ between)
        blurred_precision = transposed @ blur @ precision @ design
        blurred_vector = transposed @ blur @ vector[:, :, None]
        evidence = Evidence(
            np.tensordot(weights, blurred_precision, 1),
            weights @ blurred_vector[:, :, 0],
        )
        family = _combine(prior, evidence)
        moments = _moments(precision, vector, design, between, family)
        scatter = np.tensordot(weights, moments, 1)
        between = (PRIOR_RUNS * prior_between + scatter) / (PRIOR_RUNS + count)
    return Family(evidence, between, float(count))


def alone(prior: Prior, between: FloatArray) -> Family:
    """Return the family of which no run has finished."""
    size = len(prior.means)
    nothing = Evidence(np.zeros((size, size)), np.zeros(size))
    return Family(nothing, between, 0.0)


def believe(prior: Prior, family: Family, lines: Evidence) -> Belief:
    """Combine a prior, a family and the lines of a run that is where the family was asked for.

    The two logarithms leave out what does not depend on the prior.
    """
    size = len(family.between)
    means = _combine(prior, family.evidence)
    mean = means.mean[:size]
    covariance = means.covariance[:size, :size] + family.between
    inverse = np.linalg.inv(covariance)
    vector = inverse @ mean + lines.vector
    covariance_after = np.asarray(np.linalg.inv(inverse + lines.precision), float)
    mean_after = covariance_after @ vector

    standardized = prior.means / prior.spreads
    total = family.evidence.vector + standardized / prior.spreads
    log_before = 0.5 * (total @ means.mean - standardized @ standardized)
    log_before += 0.5 * _log_determinant(means.covariance) - np.log(prior.spreads).sum()
    log_after = log_before + 0.5 * (mean_after @ vector - mean @ inverse @ mean)
    log_after += 0.5 * (_log_determinant(covariance_after) - _log_determinant(covariance))
    before = Normal(mean, covariance)
    after = Normal(mean_after, covariance_after)
    return Belief(before, after, float(log_before), float(log_after))


def normalize(odds: FloatArray, log_evidence: Sequence[float]) -> FloatArray:
    """Return the probabilities of hypotheses, from those before the evidence."""
    likelihoods = np.exp(np.array(log_evidence) - max(log_evidence))
    products = odds * likelihoods
    return np.asarray(products / products.sum())


def mix(
    probabilities: FloatArray,
    coefficients: Sequence[Normal],
    basis: FloatArray,
    noise: float = 0.0,
) -> tuple[float, float]:
    """Return mean and spread of coefficients times a basis [k], plus normal noise, over hypotheses.

    The spread is the standard deviation of a normal distribution whose interval of `LEVEL` around the mean holds as
    much as that of the mixture: an improbable hypothesis that is far off widens it less than a standard deviation.
    """
    means = np.array([normal.mean @ basis for normal in coefficients])
    variances = np.array([basis @ normal.covariance @ basis for normal in coefficients])
    mean = float(probabilities @ means)
    distances = np.abs(means - mean)
    spreads = np.sqrt(variances + noise**2)
    quantile = float(ndtri(0.5 + LEVEL / 2))

    def excess(spread: float) -> float:
        nearer = ndtr((quantile * spread + distances) / spreads)
        farther = ndtr((distances - quantile * spread) / spreads)
        return float(probabilities @ (nearer - farther)) - LEVEL

    # Every hypothesis has more than that within twice the widest of them around the farthest mean.
    return mean, float(brentq(excess, 0.0, 2.0 * (spreads.max() + distances.max())))


def _design(positions: FloatArray, size: int) -> FloatArray:
    """Return what means and drifts are multiplied by in the coefficients of each run [n, k, m]."""
    columns = np.column_stack([np.ones(len(positions)), positions])
    products = np.einsum("nj,ik->nijk", columns, np.eye(size))
    return products.reshape(len(positions), size, -1)


def _combine(prior: Prior, evidence: Evidence) -> Normal:
    """Return means and drifts after evidence."""
    weights = prior.spreads**-2
    covariance = np.asarray(np.linalg.inv(evidence.precision + np.diag(weights)), float)
    mean = covariance @ (evidence.vector + weights * prior.means)
    return Normal(mean, covariance)


def _moments(
    precision: FloatArray,
    vector: FloatArray,
    design: FloatArray,
    between: FloatArray,
    family: Normal,
) -> FloatArray:
    """Return the expected squares of what is each run's own in its coefficients [n, k, k]."""
    covariance = np.linalg.inv(np.linalg.inv(between) + precision)
    pull = covariance @ precision @ design
    raw = covariance @ vector[:, :, None]
    deviations = raw[:, :, 0] - pull @ family.mean
    squares = deviations[:, :, None] * deviations[:, None, :]
    uncertain = pull @ family.covariance @ np.swapaxes(pull, 1, 2)
    return np.asarray(squares + covariance + uncertain)


def _log_determinant(matrix: FloatArray) -> float:
    return float(np.linalg.slogdet(matrix)[1])
