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
    a = np.asarray(high, float)
    b = np.asarray(low, float)
    f_a = function(a)
    f_b = function(b)
    a, b, f_a, f_b = np.broadcast_arrays(a, b, f_a, f_b)
    # NaN does not cross.
    crosses = np.sign(f_a) * np.sign(f_b) <= 0
    share: FloatArray | float = 0.5
    for _ in range(STEPS):
        x = a + share * (b - a)
        f_x = function(x)
        is_on_side_of_a = np.sign(f_x) == np.sign(f_a)
        c = np.where(is_on_side_of_a, a, b)
        f_c = np.where(is_on_side_of_a, f_a, f_b)
        b = np.where(is_on_side_of_a, b, a)
        f_b = np.where(is_on_side_of_a, f_b, f_a)
        a = x
        f_a = f_x
        best = np.where(np.abs(f_a) < np.abs(f_b), a, b)
        least = np.minimum(np.abs(f_a), np.abs(f_b))
        # Rows that are done may overflow.
        with np.errstate(all="ignore"):
            tolerance = precision * np.maximum(np.abs(best), 1.0) / np.abs(b - a)
            if np.all((tolerance > 0.5) | (least == 0) | ~crosses):
                break
            xi = (a - b) / (c - b)
            phi = (f_a - f_b) / (f_c - f_b)
            is_quadratic = (phi**2 < xi) & ((1.0 - phi) ** 2 < 1.0 - xi)
            inverse = f_a / (f_b - f_a) * f_c / (f_b - f_c)
            inverse = inverse + (c - a) / (b - a) * f_a / (f_c - f_a) * f_b / (f_c - f_b)
        share = np.clip(np.where(is_quadratic, inverse, 0.5), tolerance, 1.0 - tolerance)
    return np.where(crosses, best, np.nan)
