"""Mixtures of normal distributions, what evidence makes of them, and the coefficients of runs of one family.

    values = basis · c + noise                       of a run: its lines and its final loss tell its coefficients c [k]
    c = θ_0 + θ_1 x_1 + … + θ_p x_p + u              at its position x [p], with u ~ N(0, B) of its own
    θ ~ N(means, covariances)                        for each hypothesis about the family, with its odds

θ [m] holds k means, then k drifts for each of the p coordinates: m = k · (1 + p).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri, softmax

from scaling_law.size.arrays import FloatArray

# Rounds of expectation maximisation.
ROUNDS = 12
# Runs that the prior of the scatter between runs counts as.
PRIOR_RUNS = 2.0
# The level at which the intervals of mixtures hold what they say.
LEVEL = 0.9


class Evidence(NamedTuple):
    """A normal likelihood of k values: its precision [..., k, k], and that times its mean [..., k]."""

    precision: FloatArray
    vector: FloatArray

    def plus(self, evidence: Evidence) -> Evidence:
        """Add what else is known of the same values."""
        return Evidence(self.precision + evidence.precision, self.vector + evidence.vector)


def measure(basis: FloatArray, values: FloatArray, variances: FloatArray) -> Evidence:
    """Return the evidence of values [..., n] that are sums of coefficients times a basis [n, k]."""
    weighted = basis.T / variances[..., None, :]
    return Evidence(weighted @ basis, _multiply(weighted, values))


class Mixture(NamedTuple):
    """Normal distributions of k values by hypothesis.

    `log_odds` [..., h] are ln of the odds; `means` are [..., h, k], and `covariances` [..., h, k, k].
    """

    log_odds: FloatArray
    means: FloatArray
    covariances: FloatArray

    @property
    def weights(self) -> FloatArray:
        """Probabilities of the hypotheses [..., h]."""
        return np.asarray(softmax(self.log_odds, axis=-1))

    @property
    def deviations(self) -> FloatArray:
        """Standard deviations [..., h, k]."""
        variances = np.diagonal(self.covariances, axis1=-2, axis2=-1)
        return np.asarray(np.sqrt(np.maximum(variances, 1e-18)))

    @property
    def mean(self) -> FloatArray:
        """Mean values [..., k]."""
        return np.asarray((self.weights[..., None] * self.means).sum(axis=-2))

    def probability(self) -> FloatArray:
        """Return the probability that a value is above 0, [..., k]."""
        chances = ndtr(self.means / self.deviations)
        return np.asarray((self.weights[..., None] * chances).sum(axis=-2))

    def at(self, places: slice) -> Mixture:
        """Return the distribution of the values at these places."""
        return Mixture(self.log_odds, self.means[..., places], self.covariances[..., places, places])

    def given(self, evidence: Evidence) -> Mixture:
        """Condition on evidence of the first n values; a hypothesis gains by how probable it made that."""
        n = evidence.vector.shape[-1]
        blur = np.linalg.inv(np.eye(n) + evidence.precision @ self.covariances[..., :n, :n])
        gains = self.covariances[..., :n] @ blur
        means = self.means[..., :n]
        surprise = evidence.vector - _multiply(evidence.precision, means)
        shift = _multiply(gains, surprise)
        squares = surprise * shift[..., :n] + (evidence.vector + surprise) * means
        log_odds = self.log_odds + 0.5 * (squares.sum(axis=-1) + np.linalg.slogdet(blur)[1])
        covariances = self.covariances - gains @ evidence.precision @ self.covariances[..., :n, :]
        return Mixture(log_odds, self.means + shift, covariances)

    def project(self, basis: FloatArray, noise: float = 0.0) -> tuple[float, float]:
        """Return mean and spread of the values times a basis [k], plus normal noise, over hypotheses [h].

        The spread is the standard deviation of a normal distribution whose interval of `LEVEL` around the mean holds
        as much as that of the mixture: an improbable hypothesis that is far off widens it less than a standard
        deviation.
        """
        weights = self.weights
        means = self.means @ basis
        mean = float(weights @ means)
        distances = np.abs(means - mean)
        spreads = np.sqrt(self.covariances @ basis @ basis + noise**2)
        quantile = float(ndtri(0.5 + LEVEL / 2))

        def excess(spread: float) -> float:
            nearer = ndtr((quantile * spread + distances) / spreads)
            farther = ndtr((distances - quantile * spread) / spreads)
            return float(weights @ (nearer - farther)) - LEVEL

        # Every hypothesis has more than that within twice the widest of them around the farthest mean.
        return mean, float(brentq(excess, 0.0, 2.0 * (spreads.max() + distances.max())))

    def draw(self, count: int, seed: int = 0) -> FloatArray:
        """Draw values by hypotheses [h], [count, k], each value by itself and whatever values follow."""
        generator = np.random.default_rng(seed)
        components = generator.choice(len(self.weights), count, p=self.weights)
        normal = generator.standard_normal((self.means.shape[-1], count))
        return np.asarray(self.means[components] + self.deviations[components] * normal.T)


def learn(
    prior: Mixture,
    runs: Evidence,
    positions: FloatArray,
    weights: FloatArray,
    between: FloatArray,
) -> Mixture:
    """Learn the coefficients of one more run from others, by expectation maximisation of the scatter between runs.

    Args:
        prior: of means and drifts; the last hypothesis, the widest, is that by which the scatter is learnt.
        runs: what each of n runs, or none, tells of its own coefficients.
        positions: where the runs are, from the one more run on [n, p].
        weights: how much each run counts [n].
        between: covariance between runs [k, k], which counts as `PRIOR_RUNS` runs.
    """
    size = len(between)
    columns = np.column_stack([np.ones(len(positions)), positions])
    # What means and drifts are multiplied by in the coefficients of each run [n, k, m].
    design = np.kron(columns[:, None, :], np.eye(size))
    weighted = weights[:, None, None] * design
    widest = Mixture(*(values[-1:] for values in prior))
    scatter = between
    for _ in range(ROUNDS):
        # What is each run's own in its coefficients blurs what it tells of the family.
        blur = np.linalg.inv(np.eye(size) + runs.precision @ scatter)
        precision = blur @ runs.precision
        vector = _multiply(blur, runs.vector)
        slopes = precision @ design
        evidence = Evidence(np.einsum("nkm,nkl->ml", weighted, slopes), np.einsum("nkm,nk->m", weighted, vector))
        family = widest.given(evidence)
        residuals = vector - slopes @ family.means[0]
        squares = residuals[:, :, None] * residuals[:, None, :] - precision
        squares += slopes @ family.covariances[0] @ np.swapaxes(slopes, 1, 2)
        moments = weights.sum() * scatter + scatter @ np.tensordot(weights, squares, 1) @ scatter
        scatter = (PRIOR_RUNS * between + moments) / (PRIOR_RUNS + weights.sum())
    family = prior.given(evidence).at(slice(size))
    return family._replace(covariances=family.covariances + scatter)


def _multiply(matrices: Any, vectors: FloatArray) -> FloatArray:
    """Multiply matrices [..., n, k] with vectors [..., k]."""
    return np.asarray((matrices @ vectors[..., None])[..., 0])
