"""One minimiser along a line, for any law and budget: the best of several minima, in many rows at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from scaling_law.size.arrays import BoolArray, FloatArray

# Points of the grid between the ends.
POINTS = 513
# Minima of a row that are followed.
MINIMA = 3
# Halvings of a grid's step.
HALVINGS = 50
# Points between the neighbours of a grid's minimum, because a layout may be the best one for few widths.
WITHIN = 33
# A minimum is found where its bracket is this share of a grid's step, as at a jump, or as flat as rounding allows.
CLOSE = 1e-8
FLAT = 1e-11
# Share of a value that its rounding may be.
ROUNDING = 1e-15
# A bracket that is not found by then, because every point of it is a jump, is left as it is.
ZOOMS = 40
# Where the points lie that narrow a bracket: shares of each side, and shares of it around the vertex of a parabola.
SIDE = np.array([1 / 3, 2 / 3])
AROUND = np.array([-1 / 40, 0.0, 1 / 40])
# Two points are next to each other that are this share of their bracket apart.
NEAR = 1 / 200


def choose_inner(
    x: FloatArray,
    y: FloatArray,
    low: float | FloatArray,
    high: float | FloatArray,
    closed: bool | BoolArray = False,
) -> FloatArray:
    """Choose the x of the lowest of the minima [k, ...] between `low` and `high`, NaN if it is an end.

    Where the interval is `closed`, the low end is an answer.
    """
    best = np.argmin(y, axis=0)[None]
    x = np.take_along_axis(x, best, 0)[0]
    y = np.take_along_axis(y, best, 0)[0]
    is_minimum = np.isfinite(y) & ((x > low) | closed) & (x < high)
    return np.where(is_minimum, x, np.nan)


def minima(
    function: Callable[[FloatArray], FloatArray],
    low: float | FloatArray,
    high: float | FloatArray,
    points: int = POINTS,
) -> tuple[FloatArray, FloatArray]:
    """Find the x and values of the lowest local minima of `function` in an interval, its ends among them, [k, ...].

    `function` takes arrays [points, ...]; what is not finite is not chosen.

    A grid brackets the minima, a finer one searches each bracket, and points within narrow it: some around the vertex
    of a parabola, which is close to a smooth minimum, and some on both sides, as at a jump or a kink.
    """

    def evaluate(x: FloatArray) -> FloatArray:
        with np.errstate(all="ignore"):
            y = np.asarray(function(x), float)
        return np.where(np.isfinite(y), y, np.inf)

    def narrow(x: FloatArray, y: FloatArray, inner: FloatArray) -> tuple[FloatArray, FloatArray]:
        inner_values = evaluate(inner.reshape(-1, *inner.shape[2:])).reshape(inner.shape)
        return _narrow(np.concatenate([x, inner]), np.concatenate([y, inner_values]))

    grid = np.linspace(low, high, points)
    x, y = _bracket_minima(grid, evaluate(grid))
    x, y = narrow(x, y, np.linspace(x[1], x[2], WITHIN))
    step = (np.asarray(high) - low) / (points - 1)
    for _ in range(ZOOMS):
        with np.errstate(invalid="ignore"):
            is_flat = y[1] + y[2] - 2.0 * y[0] <= FLAT * np.abs(y[0])
        if np.all((x[2] - x[1] <= CLOSE * step) | is_flat):
            break
        x, y = narrow(x, y, _points_within(x, y))
    # The lowest of values that differ by rounding may be any of them.
    vertex = _vertex(x, y)
    value = evaluate(vertex)
    is_inside = (x[1] < x[0]) & (x[0] < x[2])
    highest = y[0] + ROUNDING * np.abs(y[0])
    with np.errstate(invalid="ignore"):
        is_lowest = is_inside & (value <= highest)
    return np.where(is_lowest, vertex, x[0]), np.where(is_lowest, value, y[0])


def first_below(function: Callable[[FloatArray], FloatArray], low: FloatArray, high: FloatArray) -> FloatArray:
    """Find the least x between `low` and `high` where `function` is at most 0, [...]; NaN where it never is.

    A grid finds the first of several crossings, and halving pins it down. `function` takes arrays [points, ...].
    """
    x = np.linspace(low, high, POINTS)
    is_below = function(x) <= 0
    i = np.argmax(is_below, axis=0)[None]
    above = np.take_along_axis(x, np.maximum(i - 1, 0), 0)[0]
    below = np.take_along_axis(x, i, 0)[0]
    for _ in range(HALVINGS):
        middle = (above + below) / 2
        is_middle_below = function(middle[None])[0] <= 0
        above = np.where(is_middle_below, above, middle)
        below = np.where(is_middle_below, middle, below)
    return np.where(is_below.any(axis=0), below, np.nan)


def _bracket_minima(grid: FloatArray, values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Pick the points of a grid [points, ...] that are no higher than their neighbours, the lowest first.

    Returns x and values of (point, lower neighbour, higher neighbour), [3, k, ...]; a row with fewer than k minima
    has brackets without a width.
    """
    wall = np.full((1, *values.shape[1:]), np.inf)
    before = np.concatenate([wall, values[:-1]])
    after = np.concatenate([values[1:], wall])
    dips = np.where((values <= before) & (values <= after), values, np.inf)
    most_dips = int(np.isfinite(dips).sum(axis=0).max(initial=0))
    last = len(grid) - 1
    brackets = []
    bracket_values = []
    for _ in range(max(1, min(MINIMA, most_dips))):
        i = np.argmin(dips, axis=0)[None]
        is_dip = np.isfinite(np.take_along_axis(dips, i, 0))
        places = np.concatenate([i, np.maximum(i - is_dip, 0), np.minimum(i + is_dip, last)])
        brackets.append(np.take_along_axis(grid, places, 0))
        bracket_values.append(np.take_along_axis(values, places, 0))
        np.put_along_axis(dips, i, np.inf, 0)
    return np.stack(brackets, axis=1), np.stack(bracket_values, axis=1)


def _vertex(x: FloatArray, y: FloatArray) -> FloatArray:
    """Find the vertex of the parabola through brackets [3, k, ...] (point, lower end, higher end), [k, ...]."""
    middle, low, high = x
    with np.errstate(invalid="ignore", divide="ignore"):
        rise_below = (middle - low) * (y[0] - y[2])
        rise_above = (middle - high) * (y[0] - y[1])
        moment = (middle - low) * rise_below - (middle - high) * rise_above
        shift = moment / (rise_below - rise_above) / 2.0
    return np.clip(middle - np.where(np.isfinite(shift), shift, 0.0), low, high)


def _points_within(x: FloatArray, y: FloatArray) -> FloatArray:
    """Choose points [n, k, ...] within brackets [3, k, ...] (point, lower end, higher end)."""
    middle, low, high = x
    vertex = _vertex(x, y)
    around = vertex + np.multiply.outer(AROUND, high - low)
    below = low + np.multiply.outer(SIDE, middle - low)
    above = middle + np.multiply.outer(SIDE, high - middle)
    return np.concatenate([np.clip(around, low, high), below, above])


def _narrow(x: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Take the lowest of the points [n, k, ...], of which three are a bracket, and a neighbour on each side of it.

    Points next to the lowest one are no neighbours: rounding alone may make them higher.
    """
    best = np.argmin(y, axis=0)[None]
    middle = np.take_along_axis(x, best, 0)
    gap = NEAR * (x[2] - x[1])
    is_below = x < middle - gap
    is_above = x > middle + gap
    low = np.argmax(np.where(is_below, x, -np.inf), axis=0)[None]
    high = np.argmin(np.where(is_above, x, np.inf), axis=0)[None]
    low = np.where(is_below.any(axis=0), low, 1)
    high = np.where(is_above.any(axis=0), high, 2)
    places = np.concatenate([best, low, high])
    return np.take_along_axis(x, places, 0), np.take_along_axis(y, places, 0)
