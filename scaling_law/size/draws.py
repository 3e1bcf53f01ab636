"""Draws of normal vectors, the same on every machine.

They are continuous in mean and covariance: no sign or order of vectors that a decomposition may choose freely decides
what is drawn. Without a seed they are a sequence of low discrepancy: the ends of an interval are about twice as sure
as those of random draws.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scaling_law.size.arrays import FloatArray

# A correlation matrix with a smaller eigenvalue counts as rank-deficient.
_RANK_TOLERANCE = 1e-10


def draw_normal(
    mean: FloatArray,
    covariance: FloatArray,
    count: int,
    seed: int | Sequence[int] | None = None,
) -> FloatArray:
    """Draw normal vectors of this mean [k] and covariance [k, k]: [count, k].

    A seed makes them random, for vectors that must be independent of others. Without one, the first coordinates that
    vary are covered best.
    """
    draws = np.tile(np.asarray(mean, float), (count, 1))
    deviation = np.sqrt(np.maximum(np.diagonal(covariance), 0.0))
    varies = np.flatnonzero(deviation > 0)
    scale = deviation[varies]
    correlation = covariance[np.ix_(varies, varies)] / np.outer(scale, scale)
    if seed is None:
        scores = _normal_scores(count, len(varies))
    else:
        scores = np.random.default_rng(seed).standard_normal((count, len(varies)))
    draws[:, varies] += scores @ _root(correlation).T * scale
    return draws


def _root(correlation: FloatArray) -> FloatArray:
    """Return a square root of a correlation matrix [k, k]: Cholesky's, or the symmetric one where rank is missing."""
    values, vectors = np.linalg.eigh(correlation)
    if values.min(initial=1.0) > _RANK_TOLERANCE:
        return np.asarray(np.linalg.cholesky(correlation))
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)) @ vectors.T)


def _normal_scores(count: int, dimensions: int) -> FloatArray:
    """Return standard normal vectors [count, dimensions]: multiples of square roots of primes, by Box and Muller."""
    n_pairs = (dimensions + 1) // 2
    uniform = np.outer(np.arange(count) + 0.5, np.sqrt(_first_primes(2 * n_pairs))) % 1.0
    pairs = np.sqrt(-2.0 * np.log1p(-uniform[:, ::2])) * np.exp(2j * np.pi * uniform[:, 1::2])
    return pairs.view(float)[:, :dimensions]


def _first_primes(count: int) -> list[int]:
    primes: list[int] = []
    candidate = 2
    while len(primes) < count:
        if all(candidate % prime for prime in primes):
            primes.append(candidate)
        candidate += 1
    return primes
