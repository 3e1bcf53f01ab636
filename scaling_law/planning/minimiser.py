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
    closed: bool | NDArray[np.bool_] = False,
) -> FloatArray:
    """The x of the lowest minimum of `function` between `low` and `high`, [...]; NaN if it is an end.

    `function` takes arrays [points, ...]; what is not finite is not chosen. Where the interval is `closed`, the low
    end is an answer.
    """
    x, y = minima(function, low, high, points)
    best = np.argmin(y, axis=0)[None]
    x, y = (np.take_along_axis(v, best, 0)[0] for v in (x, y))
    return np.where(np.isfinite(y) & ((x > low) | closed) & (x < high), x, np.nan)


def minima(
    function: Callable[[FloatArray], FloatArray],
    low: float | FloatArray,
    high: float | FloatArray,
    points: int = POINTS,
) -> tuple[FloatArray, FloatArray]:
    """The x and values of the lowest local minima of `function` between `low` and `high`, ends among them, [k, ...].

    A grid brackets the minima. Each is zoomed into, around the vertex of a parabola through the best points so far; a
    vertex that is no minimum, as at a kink, does no harm: the grid points around it are tried too.
    """

    def finite(x: FloatArray) -> FloatArray:
        with np.errstate(all="ignore"):
            y = np.asarray(function(x), float)
        return np.where(np.isfinite(y), y, np.inf)

    x = np.linspace(low, high, points)
    x = _lowest(x, finite(x))
    step = (np.asarray(high) - low) / (points - 1)
    reach = np.broadcast_to(step, x.shape)
    for _ in range(ZOOMS):
        grid = np.linspace(np.maximum(x - reach, low), np.minimum(x + reach, high), 5)  # [5, k, ...]
        values = finite(grid.reshape(-1, *x.shape[1:])).reshape(grid.shape)
        i = np.argmin(values, axis=0)[None]
        best, y = (np.take_along_axis(v, i, 0)[0] for v in (grid, values))
        inside = ((i[0] > 0) & (i[0] < 4)) | (best <= low) | (best >= high)
        reach = np.where(inside, 0.1 * reach, reach)
        x = np.clip(_vertex(grid, values, i), low, high)
        if np.all((reach <= CLOSE * step) | np.isinf(y)):
            break
    return x, y


def first_below(function: Callable[[FloatArray], FloatArray], low: FloatArray, high: FloatArray) -> FloatArray:
    """The least x between `low` and `high` where `function` is at most 0, [...]; NaN where it is above throughout.

    A grid finds the first of several crossings, and halving pins it down. `function` takes arrays [points, ...].
    """
    x = np.linspace(low, high, POINTS)
    below = function(x) <= 0
    i = np.argmax(below, axis=0)[None]
    before, at = (np.take_along_axis(x, k, 0)[0] for k in (np.maximum(i - 1, 0), i))
    for _ in range(HALVINGS):
        middle = (before + at) / 2
        inside = function(middle[None])[0] <= 0
        before, at = np.where(inside, before, middle), np.where(inside, middle, at)
    return np.where(below.any(axis=0), at, np.nan)


def _vertex(grid: FloatArray, values: FloatArray, i: NDArray[np.int64]) -> FloatArray:
    """The x where a parabola through three points of a grid [points, ...] is least, at most a step from point `i`."""
    middle, step = np.clip(i, 1, len(grid) - 2), grid[1] - grid[0]
    best, around = (np.take_along_axis(grid, k, 0)[0] for k in (i, middle))
    before, at, after = (np.take_along_axis(values, middle + k, 0)[0] for k in (-1, 0, 1))
    with np.errstate(invalid="ignore", divide="ignore"):
        vertex = around + (before - after) / (before - 2.0 * at + after) / 2.0 * step
    convex = np.isfinite(vertex) & (before + after > 2.0 * at)
    return np.where(convex, np.clip(vertex, best - step, best + step), best)


def _lowest(x: FloatArray, y: FloatArray) -> FloatArray:
    """The points of a grid [points, ...] that are no higher than their neighbours, [k, ...]; the lowest first."""
    wall = np.full((1, *y.shape[1:]), np.inf)
    dips = np.where((y <= np.concatenate([wall, y[:-1]])) & (y <= np.concatenate([y[1:], wall])), y, np.inf)
    lowest = []
    for _ in range(max(1, min(MINIMA, int(np.isfinite(dips).sum(axis=0).max(initial=0))))):
        i = np.argmin(dips, axis=0)[None]
        lowest.append(np.take_along_axis(x, i, 0)[0])
        np.put_along_axis(dips, i, np.inf, 0)
    return np.stack(lowest)
