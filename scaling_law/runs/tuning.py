"""Tuned points from a grid of settings: for each model the best run, or the minimum of a local quadratic.

A law describes tuned models. A grid of learning rates and batches holds one tuned point for each model and number of
tokens; how far its spacing leaves that point from the minimum is the `regret`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from hub.base.errors import InputError
from hub.base.tables import column_name
from scaling_law.runs.rows import RunsError
from scaling_law.runs.settings import SAME, cells_of, codes_of, places
from scaling_law.runs.table import Runs
from scaling_law.size.arrays import FloatArray, IntArray

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
# Least curvature of a quadratic that has a minimum, nats.
FLAT = 1e-12


@dataclass(frozen=True)
class Tuned:
    """The best of one model's runs: run `best` has the least loss; `settings` [k] and `loss` are at the minimum.

    If the runs around it determine no minimum, they are those of the run, and `regret` is NaN; else the regret is the
    run's loss minus that of the minimum, nats. `at_edge`: a setting of the run is the least or greatest of the grid.
    """

    best: int
    settings: FloatArray
    loss: float
    regret: float
    at_edge: bool


def best_of(
    runs: Runs,
    over: str | Sequence[str] = ("learning_rate", "batch"),
    method: Literal["least", "quadratic"] = "least",
    by: Sequence[str] = (*SHAPE, *SPARSITY),
) -> Runs:
    """Choose one tuned run for each model and number of tokens of a grid over the settings `over`.

    Other settings that tell its runs apart, such as the corpus, are no part of the choice: each value keeps a run.

    Args:
        over: columns that were tuned, positive or zero (where one is zero, distances are not those of logarithms).
        method: "least" keeps the run of least loss; "quadratic" puts the minimum of a quadratic in the logarithms of
            the settings in its place, with its loss and settings, where the runs determine one.
        by: columns that tell models apart besides N, D (within 1 %) and E; those that the runs lack are ignored.

    Further columns of the result: `grid_runs`, how many runs a model has; `at_edge`, 1 where the best run lies at an
    edge of its grid; `regret`, what the spacing of the grid costs: the loss of the best run minus the quadratic's
    minimum in nats (negative where noise favoured the best run, NaN where the runs around it determine no minimum).
    RunsError for a missing or negative setting and for one that never varies.
    """
    names = [over] if isinstance(over, str) else list(over)
    names = [column_name(name, runs.columns) for name in names]
    if method not in ("least", "quadratic"):
        raise InputError(f"method={method!r} must be 'least' or 'quadratic'")
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

    points = []
    best = []

    for group in groups:
        point = tune(settings[group], runs.loss[group])
        points.append(point)
        best.append(group[point.best])

    tuned = runs.take(np.array(best))

    columns = dict(tuned.columns)
    if method == "quadratic":
        minima = np.stack([point.settings for point in points])
        columns.update(zip(names, minima.T, strict=True))
        tuned = replace(tuned, loss=np.array([point.loss for point in points]))

    columns["grid_runs"] = np.array([len(group) for group in groups], float)
    columns["at_edge"] = np.array([point.at_edge for point in points], float)
    columns["regret"] = np.array([point.regret for point in points])
    source = f"{runs.source}, best of {' and '.join(names)} ({method})"
    return replace(tuned, columns=columns, source=source)


def tune(settings: FloatArray, losses: FloatArray) -> Tuned:
    """Find the best of one model's runs with settings [n, k] and finite losses [n]."""
    best = int(np.argmin(losses))
    has_zeros = (settings == 0).any(axis=0)
    # A setting with zeros has no logarithm.
    logs = np.log(np.where(has_zeros, 1.0, settings))
    x = np.where(has_zeros, settings, logs)

    steps = np.stack([places(column) for column in settings.T], axis=1)
    best_steps = steps[best]
    at_edge = bool(np.any((best_steps == 0) | (best_steps == steps.max(axis=0))))
    distances = np.abs(steps - best_steps)
    is_near = np.all(distances <= 1, axis=1)

    minimum = _quadratic_minimum(x[is_near] - x[best], losses[is_near])
    best_settings = settings[best]
    best_loss = float(losses[best])
    if minimum is None:
        return Tuned(best, best_settings, best_loss, math.nan, at_edge)
    offset, loss = minimum
    factor = np.exp(np.where(has_zeros, 0.0, offset))
    lowest = np.where(has_zeros, best_settings + offset, best_settings * factor)
    return Tuned(best, lowest, loss, best_loss - loss, at_edge)


def loss_between(ln_rate: float, ln_rates: FloatArray, losses: FloatArray) -> float:
    """Interpolate the loss at a rate, linearly in ln LR between runs in ascending order; NaN outside of them."""
    return float(np.interp(ln_rate, ln_rates, losses, left=np.nan, right=np.nan))


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


def _quadratic_minimum(x: FloatArray, y: FloatArray) -> tuple[Any, float] | None:
    """Find the minimum of the quadratic through y [n] at x [n, k], and its value; None unless it is inside."""
    n, k = x.shape
    first, second = np.triu_indices(k)
    design = np.column_stack([np.ones(n), x, x[:, first] * x[:, second]])
    terms = design.shape[1]
    if n < terms or np.linalg.matrix_rank(design) < terms:
        return None

    solution = np.linalg.lstsq(design, y, rcond=None)[0]
    constant, gradient, curvature = np.split(solution, [1, 1 + k])
    hessian = np.zeros((k, k))
    hessian[first, second] = curvature
    hessian += hessian.T
    if np.linalg.eigvalsh(hessian)[0] <= FLAT:
        return None
    lowest = -np.linalg.solve(hessian, gradient)
    is_outside = (lowest < x.min(axis=0)) | (lowest > x.max(axis=0))
    if np.any(is_outside):
        return None
    return lowest, float(constant[0] + gradient @ lowest / 2)
