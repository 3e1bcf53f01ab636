"""N with embeddings or without: where the runs say both, laws are fitted to either, and their backtests choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from scaling_law.fitting.holdout import TINY, pool_errors
from scaling_law.forecasting.forecasters import Forecaster, Predict, Prediction
from scaling_law.forecasting.stack import Evidence
from scaling_law.runs.table import Runs
from scaling_law.size.arrays import FloatArray

WITH = "with embeddings"
WITHOUT = "without embeddings"
COUNTED = "n_active_non_embedding"
# N without embeddings, under a name that no law reads.
BODY = "n_without_embeddings"
# Counts whose ln ratio varies less than this among the runs tell nothing apart.
LEAST_VARIATION = 0.1
# Sizes at which N is computed from N without embeddings.
GRID = 400


def with_both_counts(runs: Runs) -> Runs:
    """Return the runs with N without embeddings as a column, where that is known and is not just a factor times N.

    It is `n_active_non_embedding`, or N less the two matrices of `d_model` and the vocabulary.
    """
    body = _read_body(runs)
    if body is None or not np.all((body > 0) & (body < runs.n_active)):
        return runs
    if np.ptp(np.log(runs.n_active / body)) < LEAST_VARIATION:
        return runs
    return replace(runs, columns={**runs.columns, BODY: body})


def _read_body(runs: Runs) -> FloatArray | None:
    """Return N without embeddings [n]; None where the runs do not say it."""
    if COUNTED in runs:
        return runs[COUNTED]
    vocabulary: Any = runs.columns.get("vocab_size", runs.vocab_size)
    if vocabulary is None or "d_model" not in runs:
        return None
    return np.asarray(runs.n_active - 2.0 * runs["d_model"] * vocabulary)


def count_points(points: Runs, runs: Runs) -> Runs:
    """Return models with N without embeddings, for runs that have it.

    It is the models' own `n_active_non_embedding`, or what the runs' embeddings, as a power of it, leave of their N.
    """
    if COUNTED in points and np.isfinite(points[COUNTED]).all():
        return replace(points, columns={**points.columns, BODY: points[COUNTED]})
    log_body = np.log(runs[BODY])
    power, factor = np.polyfit(log_body, np.log(runs.n_active - runs[BODY]), 1)
    low = min(log_body.min(), np.log(points.n_active.min())) - np.log(100.0)
    high = max(log_body.max(), np.log(points.n_active.max()))
    grid = np.linspace(low, high, GRID)
    log_n_active = np.logaddexp(grid, factor + power * grid)
    body = np.exp(np.interp(np.log(points.n_active), log_n_active, grid))
    return replace(points, columns={**points.columns, BODY: body})


def count_without(laws: Mapping[str, Forecaster]) -> dict[str, Forecaster]:
    """Return the laws, fitted to N without embeddings."""
    return {name: law.through(_without_embeddings) for name, law in laws.items()}


def _without_embeddings(predict: Predict) -> Predict:
    def predict_from_bodies(
        runs: Runs,
        points: Runs,
        errors: bool,
    ) -> Prediction:
        counted_runs = replace(runs, n_active=runs[BODY])
        counted_points = replace(points, n_active=points[BODY])
        return predict(counted_runs, counted_points, errors)

    return predict_from_bodies


def choose_count(groups: Sequence[Mapping[str, Evidence]]) -> tuple[str, dict[str, float]]:
    """Choose the count of N by the errors of laws at the cuts, over groups of evidence by count.

    Returns the count, that of `n_active` where it is the only one or no cut tests the other, and by count the
    geometric mean of the laws' RMSE, of those that the cuts determine with either; empty where nothing is compared.
    """
    logs: dict[str, list[float]] = {WITH: [], WITHOUT: []}
    for evidence in groups:
        if WITHOUT not in evidence:
            return WITH, {}
        errors = {count: _rmse_of_laws(evidence_of_count) for count, evidence_of_count in evidence.items()}
        for name in errors[WITH].keys() & errors[WITHOUT].keys():
            for count in logs:
                logs[count].append(float(np.log(errors[count][name])))
    if not logs[WITH]:
        return WITH, {}
    n_counts = {count: float(np.exp(np.mean(values))) for count, values in logs.items()}
    return min(n_counts, key=lambda count: n_counts[count]), n_counts


def _rmse_of_laws(evidence: Evidence) -> dict[str, float]:
    """Return the RMSE at the cuts of each law that these determine, in nats."""
    names = list(evidence.predictions)
    indices, tests = pool_errors(evidence.backtests, names)
    if not tests.cuts:
        return {}
    rmse = np.sqrt(np.mean(tests.errors**2, axis=1) + TINY**2)
    return {names[index]: float(error) for index, error in zip(indices, rmse, strict=True)}
