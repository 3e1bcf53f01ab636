"""Types of arrays, which every room above uses, and what counts as equal among numbers."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]
BoolArray = NDArray[np.bool_]
# The ends of an interval or range, the lower first.
Interval = tuple[float, float]
# Those of several, as two arrays.
Intervals = tuple[Any, Any]
# Values of the variables of a law by name; they broadcast.
Variables = Mapping[str, Any]
# Arrays of models or runs by name.
Columns = Mapping[str, FloatArray]
# Relative differences that rounding may make.
_ROUNDING = 1e-9


def merge_rounded(values: FloatArray) -> FloatArray:
    """Return values [n] in which those that rounding may tell apart are equal: the smallest of them."""
    order = np.argsort(values)
    ascending = values[order]
    # Infinite values are not equal to each other.
    with np.errstate(invalid="ignore"):
        is_first = ~(np.diff(ascending, prepend=-np.inf) <= _ROUNDING * np.abs(ascending))
    merged = np.empty_like(ascending)
    merged[order] = ascending[is_first][np.cumsum(is_first) - 1]
    return merged


def first_smallest(values: FloatArray) -> Any:
    """Return the place along the first axis of the first of the smallest values, which rounding may tell apart."""
    smallest = values.min(axis=0)
    return np.argmax(values <= smallest + _ROUNDING * np.abs(smallest), axis=0)


def first_largest(values: FloatArray) -> Any:
    """Return the place along the first axis of the first of the largest values, which rounding may tell apart."""
    return first_smallest(-values)
