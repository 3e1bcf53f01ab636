"""N with embeddings or without: where the runs say both, laws are fitted to either, and their backtests weigh them.

Each count has a forecast of its own, of weighted laws. Their weights are as the inverse mean squares of the laws'
errors at the cuts (Bates and Granger 1969), and the spread holds their disagreement. Taking the better count alone
loses more where the cuts are wrong than it gains where they are right (docs/studies/forecasts.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import expit

from scaling_law.fitting.holdout import TINY, pool_errors
from scaling_law.forecasting.forecasters import Forecaster, Predict, Prediction
from scaling_law.forecasting.stack import Evidence, Stacked
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


def weigh_counts(groups: Sequence[Mapping[str, Evidence]]) -> dict[str, float]:
    """Weigh the counts of N by the errors of laws at the cuts, over groups of evidence by count.

    Returns the weight of each count, in inverse proportion to the mean square of the laws' errors (the geometric mean
    over laws that the cuts determine with either); empty where there is one count, or no cut tests both.
    """
    log_ratios: list[float] = []
    for evidence in groups:
        if WITHOUT not in evidence:
            return {}
        errors = _rmse_of_laws(evidence[WITH])
        errors_without = _rmse_of_laws(evidence[WITHOUT])
        for name in errors.keys() & errors_without.keys():
            log_ratios.append(np.log(errors_without[name] / errors[name]))
    if not log_ratios:
        return {}
    weight = float(expit(-2.0 * np.mean(log_ratios)))
    return {WITH: 1.0 - weight, WITHOUT: weight}


def mix_counts(answers: Mapping[str, Stacked], weights: Mapping[str, float]) -> Stacked:
    """Mix the forecasts of either count by their weights; laws of N without embeddings are named so."""
    log_losses = np.array([answers[count].log_loss for count in weights])
    variances = np.array([answers[count].spread ** 2 for count in weights])
    shares = np.array([answers[count].share_of_constant for count in weights])
    weight = np.array([*weights.values()])
    log_loss = weight @ log_losses
    variance = weight @ (variances + (log_losses - log_loss) ** 2)
    laws: dict[str, FloatArray] = {}
    for count in weights:
        for name, values in answers[count].laws.items():
            losses, weights_of_law, rmse = values
            full_name = f"{name} {WITHOUT}" if count == WITHOUT else name
            laws[full_name] = np.array([losses, weights[count] * weights_of_law, rmse])
    return Stacked(
        log_loss,
        spread=np.sqrt(variance),
        laws=laws,
        components=np.tensordot(weight, np.array([answers[count].components for count in weights]), 1),
        share_of_constant=weight @ (shares * variances) / variance,
    )


def _rmse_of_laws(evidence: Evidence) -> dict[str, float]:
    """Return the RMSE at the cuts of each law that these determine, in nats."""
    names = list(evidence.predictions)
    indices, tests = pool_errors(evidence.backtests, names)
    if not tests.cuts:
        return {}
    rmse = np.sqrt(np.mean(tests.errors**2, axis=1) + TINY**2)
    return {names[index]: float(error) for index, error in zip(indices, rmse, strict=True)}
