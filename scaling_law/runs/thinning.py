"""Fewer rows of a large table: a few checkpoints of each run, and a sample that is spread evenly over models.

Neighbouring checkpoints of one run share nearly all of their training. Hundreds of them say little more than a few
dozen, and would outweigh every run that is measured once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from scaling_law.runs.table import Runs
from scaling_law.size.arrays import FloatArray

POINTS = 40  # checkpoints of one run, at most, that are fitted
KEEP_ALL = 'trunks="run" fits every row, as an independent run'


def rows_of_curves(runs: Runs) -> NDArray[np.intp]:
    """Choose the rows to fit: of each trunk of one model at most `POINTS`, evenly spaced in ln D."""
    _, trunk, counts = np.unique(runs.trunk, return_inverse=True, return_counts=True)
    keep = np.ones(len(runs), bool)
    order = np.lexsort([runs.tokens, trunk.ravel()])
    ends = np.cumsum(counts)
    for place in np.flatnonzero(counts > POINTS):
        rows = order[ends[place] - counts[place] : ends[place]]
        if np.ptp(runs.n_active[rows]) == 0 and np.ptp(runs.experts[rows]) == 0:
            keep[rows] = False
            keep[rows[_evenly(np.log(runs.tokens[rows]))]] = True
    return np.flatnonzero(keep)


def _evenly(ascending: FloatArray) -> NDArray[np.intp]:
    """The places of the values nearest to `POINTS` evenly spaced ones."""
    targets = np.linspace(ascending[0], ascending[-1], POINTS)
    above = np.clip(np.searchsorted(ascending, targets), 1, len(ascending) - 1)
    nearer = targets - ascending[above - 1] < ascending[above] - targets
    return np.unique(np.where(nearer, above - 1, above))


def with_few_checkpoints(runs: Runs, rows: NDArray[np.intp]) -> Runs:
    """Take the `rows` that `rows_of_curves` chose, and say how many of them there are."""
    if len(rows) == len(runs):
        return runs
    kept = runs.take(rows)
    long = int(np.sum(np.unique(runs.trunk, return_counts=True)[1] > POINTS))
    trunks = "1 run has" if long == 1 else f"{long} runs have"
    count = f"{len(kept):,} of {len(runs):,} rows are fitted"
    return replace(
        kept, thinned=f"{trunks} more than {POINTS} checkpoints: {count}, evenly spaced in ln D; {KEEP_ALL}"
    )


def spread_evenly(columns: Sequence[FloatArray], most: int) -> NDArray[np.intp]:
    """Choose about `most` of n rows, evenly in the order of `columns` [n], the last first, with the ends of each."""
    count = len(columns[0])
    if count <= most:
        return np.arange(count)
    order = np.lexsort(columns)
    even = order[np.linspace(0, count - 1, most).astype(int)]
    ends = [end for column in columns for end in (np.argmin(column), np.argmax(column))]
    return np.unique(np.append(even, ends))


def sample_of(runs: Runs, most: int) -> Runs:
    """Take about `most` runs, spread evenly over E, N and D, with the largest and least of each E; say so."""
    if len(runs) <= most:
        return runs
    sizes = [runs.flops, runs.tokens, runs.n_active]
    rows = spread_evenly([runs.loss, *sizes, runs.experts], most)
    for column in sizes:
        order = np.lexsort([column, runs.experts])
        first = np.flatnonzero(np.diff(runs.experts[order], prepend=0.0))
        last = np.append(first[1:] - 1, len(order) - 1)
        if 2 * len(sizes) * len(first) <= most:
            rows = np.union1d(rows, order[np.append(first, last)])
    note = f"forecast from {len(rows):,} of {len(runs):,} rows, spread evenly over E, N and D"
    return replace(runs.take(rows), thinned="; ".join(filter(None, (runs.thinned, note))))
