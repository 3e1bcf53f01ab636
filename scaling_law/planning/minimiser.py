"""One minimiser along a line, for any law and budget: the best of several minima, in many rows at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from scaling_law.size.arrays import FloatArray

# Points of the grid between the ends.
POINTS = 257
# Minima of a row that are followed.
MINIMA = 3
# Halvings of a grid's step.
HALVINGS = 50
# Share of a grid's step to which a minimum is bracketed, by zooms of 10 or moves of a bracket's edge.
CLOSE = 1e-4
ZOOMS = 40


def least(
    function: Callable[[FloatArray], FloatArray],
    low: float | FloatArray,
    high: float | FloatArray,
    points: int = POINTS,
) -> FloatArray:
    """Find the x of the lowest minimum of `function` between `low` and `high`, [...]; NaN if it is an end.

    `function` takes arrays [points, ...]; what is not finite is not chosen.
    """
    return choose_inner(*minima(function, low, high, points), low, high)


def choose_inner(
    x: FloatArray,
    y: FloatArray,
    low: float | FloatArray,
    high: float | FloatArray,
    closed: bool | NDArray[np.bool_] = False,
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

    A grid brackets the minima. Each is zoomed into, around the vertex of a parabola through the best points so far; a
    vertex that is no minimum, as at a kink, does no harm: the grid points around it are tried too.
    """

    def evaluate(x: FloatArray) -> FloatArray:
        with np.errstate(all="ignore"):
            y = np.asarray(function(x), float)
        return np.where(np.isfinite(y), y, np.inf)

    x = np.linspace(low, high, points)
    x = _local_minima(x, evaluate(x))
    step = (np.asarray(high) - low) / (points - 1)
    reach = np.broadcast_to(step, x.shape)
    for _ in range(ZOOMS):
        # [5, k, ...]
        grid = np.linspace(np.maximum(x - reach, low), np.minimum(x + reach, high), 5)
        values = evaluate(grid.reshape(-1, *x.shape[1:])).reshape(grid.shape)
        i = np.argmin(values, axis=0)[None]
        best = np.take_along_axis(grid, i, 0)[0]
        y = np.take_along_axis(values, i, 0)[0]
        is_bracketed = ((i[0] > 0) & (i[0] < 4)) | (best <= low) | (best >= high)
        reach = np.where(is_bracketed, 0.1 * reach, reach)
        x = np.clip(_vertex(grid, values, i), low, high)
        if np.all((reach <= CLOSE * step) | np.isinf(y)):
            break
    return x, y


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


def _vertex(grid: FloatArray, values: FloatArray, i: NDArray[np.int64]) -> FloatArray:
    """Find the vertex of a parabola through three points of a grid [points, ...], at most a step from point `i`."""
    step = grid[1] - grid[0]
    middle = np.clip(i, 1, len(grid) - 2)
    best = np.take_along_axis(grid, i, 0)[0]
    x = np.take_along_axis(grid, middle, 0)[0]
    y_before, y, y_after = (np.take_along_axis(values, middle + k, 0)[0] for k in (-1, 0, 1))
    with np.errstate(invalid="ignore", divide="ignore"):
        vertex = x + (y_before - y_after) / (y_before - 2.0 * y + y_after) / 2.0 * step
    is_convex = np.isfinite(vertex) & (y_before + y_after > 2.0 * y)
    return np.where(is_convex, np.clip(vertex, best - step, best + step), best)


def _local_minima(x: FloatArray, y: FloatArray) -> FloatArray:
    """Pick the points of a grid [points, ...] that are no higher than their neighbours, [k, ...]; the lowest first."""
    wall = np.full((1, *y.shape[1:]), np.inf)
    y_before = np.concatenate([wall, y[:-1]])
    y_after = np.concatenate([y[1:], wall])
    dips = np.where((y <= y_before) & (y <= y_after), y, np.inf)
    most_dips = int(np.isfinite(dips).sum(axis=0).max(initial=0))
    lowest = []
    for _ in range(max(1, min(MINIMA, most_dips))):
        i = np.argmin(dips, axis=0)[None]
        lowest.append(np.take_along_axis(x, i, 0)[0])
        np.put_along_axis(dips, i, np.inf, 0)
    return np.stack(lowest)
