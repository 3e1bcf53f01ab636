"""Fewer rows of a large table: a few checkpoints of each run, and a sample that is spread evenly over models.

Neighbouring checkpoints of one run share nearly all of their training. Hundreds of them say little more than a few
dozen, and would outweigh every run that is measured once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hub.base.notices import Notice
from scaling_law.runs.table import Runs
from scaling_law.size.arrays import FloatArray, IntArray

# Checkpoints of one run, at most, that are fitted.
POINTS = 40
KEEP_ALL = 'trunks="run" fits every row, as an independent run'


def with_few_checkpoints(runs: Runs) -> tuple[Runs, IntArray]:
    """Take of each trunk of one model at most `POINTS` runs, evenly spaced in ln D; return these runs and their rows.

    The runs say how many of them there are.
    """
    _, trunk, counts = np.unique(runs.trunk, return_inverse=True, return_counts=True)
    models = np.column_stack([runs.n_active, runs.experts])
    is_fitted = np.ones(len(runs), bool)

    for i in np.flatnonzero(counts > POINTS):
        rows = np.flatnonzero(trunk.ravel() == i)
        if np.all(models[rows] == models[rows[0]]):
            is_fitted[rows] = False
            rows = rows[np.argsort(runs.tokens[rows], kind="stable")]
            is_fitted[rows[_evenly_spaced(np.log(runs.tokens[rows]))]] = True

    rows = np.flatnonzero(is_fitted)
    if is_fitted.all():
        return runs, rows

    topic = f"{len(rows):,} of {len(runs):,} rows are fitted"
    note = f"{topic}: of a run at most {POINTS} checkpoints, evenly spaced in ln D; {KEEP_ALL}"

    return replace(runs.take(rows), thinned=Notice(note, topic)), rows


def _evenly_spaced(ascending: FloatArray) -> IntArray:
    """Find the places of the values nearest to `POINTS` evenly spaced ones, the later of two that are as near."""
    places = []

    for target in np.linspace(ascending[0], ascending[-1], POINTS):
        distances = np.abs(ascending - target)
        places.append(len(ascending) - 1 - int(np.argmin(distances[::-1])))

    return np.unique(places)


def spread_evenly(columns: Sequence[FloatArray], most: int) -> IntArray:
    """Choose about `most` of n rows, evenly in the order of `columns` [n], the last first, with the ends of each."""
    count = len(columns[0])
    if count <= most:
        return np.arange(count)

    order = np.lexsort(columns)
    places = np.linspace(0, count - 1, most).astype(int)

    extremes = []

    for column in columns:
        extremes += [np.argmin(column), np.argmax(column)]

    return np.unique(np.append(order[places], extremes))


def sample_of(runs: Runs, most: int) -> Runs:
    """Take about `most` runs, spread evenly over E, N and D, with the largest and least of each E; say so."""
    if len(runs) <= most:
        return runs

    sizes = [runs.flops, runs.tokens, runs.n_active]
    rows = spread_evenly([runs.loss, *sizes, runs.experts], most)

    for column in sizes:
        order = np.lexsort([column, runs.experts])
        # The least and the largest of each E.
        experts = runs.experts[order]
        first = np.flatnonzero(np.diff(experts, prepend=0.0))
        last = np.append(first[1:] - 1, len(order) - 1)
        # They are taken only if there is room for those of each E.
        if 2 * len(sizes) * len(first) <= most:
            extremes = order[np.append(first, last)]
            rows = np.union1d(rows, extremes)

    note = f"forecast from {len(rows):,} of {len(runs):,} rows, spread evenly over E, N and D"
    if runs.thinned:
        note = f"{runs.thinned}; {note}"

    return replace(runs.take(rows), thinned=note)
