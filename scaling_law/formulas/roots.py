"""Roots of functions of one variable, in many rows at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from scaling_law.size.arrays import FloatArray

STEPS = 100
PRECISION = 4.0 * float(np.finfo(float).eps)


def find_root(
    function: Callable[[FloatArray], FloatArray], low: FloatArray, high: FloatArray, precision: float = PRECISION
) -> FloatArray:
    """Find the x between `low` and `high`, [...], where `function` changes its sign; NaN where it does not.

    Chandrupatla's method (1997): inverse quadratic interpolation where three points allow it, else halving.
    """
    a, b = np.asarray(high, float), np.asarray(low, float)
    at_a, at_b = function(a), function(b)
    a, b, at_a, at_b = np.broadcast_arrays(a, b, at_a, at_b)
    crosses = np.sign(at_a) * np.sign(at_b) <= 0  # False for NaN
    share: FloatArray | float = 0.5
    for _ in range(STEPS):
        x = a + share * (b - a)
        at_x = function(x)
        same = np.sign(at_x) == np.sign(at_a)
        c, at_c = np.where(same, a, b), np.where(same, at_a, at_b)
        b, at_b = np.where(same, b, a), np.where(same, at_b, at_a)
        a, at_a = x, at_x
        best = np.where(np.abs(at_a) < np.abs(at_b), a, b)
        least = np.minimum(np.abs(at_a), np.abs(at_b))
        # Rows that are done may overflow.
        with np.errstate(all="ignore"):
            tolerance = precision * np.maximum(np.abs(best), 1.0) / np.abs(b - a)
            if np.all((tolerance > 0.5) | (least == 0) | ~crosses):
                break
            part, ratio = (a - b) / (c - b), (at_a - at_b) / (at_c - at_b)
            quadratic = (ratio**2 < part) & ((1.0 - ratio) ** 2 < 1.0 - part)
            inverse = at_a / (at_b - at_a) * at_c / (at_b - at_c)
            inverse = inverse + (c - a) / (b - a) * at_a / (at_c - at_a) * at_b / (at_c - at_b)
        share = np.clip(np.where(quadratic, inverse, 0.5), tolerance, 1.0 - tolerance)
    return np.where(crosses, best, np.nan)
