"""Tuned points from a grid of settings: the best run of each model.

A law describes tuned models. A grid of learning rates and batches holds one tuned point for each model and number of
tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hub.base.errors import InputError
from hub.base.fields import parse_names
from hub.base.tables import column_name
from scaling_law.runs.rows import RunsError
from scaling_law.runs.settings import SAME, cells_of, codes_of, places
from scaling_law.runs.table import Runs
from scaling_law.size.arrays import IntArray

SHAPE = (
    "n_total",
    "d_model",
    "d_ff",
    "d_expert",
    "n_blocks",
    "n_heads",
    "n_kv_heads",
    "vocab_size",
    "sequence_length",
)
SPARSITY = ("routed_experts", "experts_per_token", "shared_experts", "shared_ratio", "density", "granularity")


def best_of(
    runs: Runs,
    over: str | Sequence[str] = ("learning_rate", "batch"),
    by: Sequence[str] = (*SHAPE, *SPARSITY),
) -> Runs:
    """Choose the run of least loss for each model and number of tokens of a grid over the settings `over`.

    Other settings that tell its runs apart, such as the corpus, are no part of the choice: each value keeps a run.

    Args:
        over: columns that were tuned, positive or zero.
        by: columns that tell models apart besides N, D (within 1 %) and E; those that the runs lack are ignored.

    Further columns of the result: `grid_runs`, how many runs a model has; `at_edge`, 1 where a setting of the best run
    is the least or greatest of its grid. RunsError for a missing or negative setting and for one that never varies.
    """
    names = [column_name(name, runs.columns) for name in parse_names(over, "over")]
    if not names:
        raise InputError("over=() must name at least one column that was tuned")

    settings = np.stack([runs.positive(name, or_zero=True) for name in names], axis=1)

    for name, values in zip(names, settings.T, strict=True):
        if values.max() <= values.min() * (1 + SAME):
            only = f"{name} is {values[0]:g} in every run"
            raise RunsError(f"{runs.source}: {only}; nothing to choose from")

    blend = runs.blend((*names, *by))
    other_columns = [*runs.recipe]
    if blend is not None:
        other_columns += [setting.name for setting in blend.settings]
    groups = models_of(runs, names, by, other_columns)
    best = []
    at_edge = []
    for group in groups:
        i = int(np.argmin(runs.loss[group]))
        steps = np.stack([places(column) for column in settings[group].T], axis=1)
        at_edge.append(float(np.any((steps[i] == 0) | (steps[i] == steps.max(axis=0)))))
        best.append(group[i])
    tuned = runs.take(np.array(best))
    counts = np.array([len(group) for group in groups], float)
    columns = {**tuned.columns, "grid_runs": counts, "at_edge": np.array(at_edge)}
    return replace(tuned, columns=columns, source=f"{runs.source}, best of {' and '.join(names)}")


def models_of(
    runs: Runs,
    over: Sequence[str],
    by: Sequence[str] = (*SHAPE, *SPARSITY),
    settings: Sequence[str] = (),
) -> list[IntArray]:
    """Find the rows of each model, number of tokens and other `settings`, in the order in which they appear.

    See `best_of` for `over` and `by`.
    """
    columns: dict[str, Any] = {**runs.texts, **runs.recipe, **runs.columns}
    keys = [codes_of(runs.n_active), codes_of(runs.experts), places(runs.tokens)]
    for name in (*by, *settings):
        if name in columns and name not in over:
            keys.append(codes_of(columns[name]))

    model = cells_of(keys)
    _, first = np.unique(model, return_index=True)
    return [np.flatnonzero(model == model[row]) for row in np.sort(first)]
