"""Weights of laws from their errors within the runs, and the spread of their forecasts together.

Rolling origin: each law is fitted to the runs below a cut and predicts those above, at several cuts. The weights,
w ≥ 0 and Σ w = 1, minimise w'Mw, where M holds the mean products of the laws' errors (Bates and Granger 1969); runs
that lie as far above a cut as the point lies above all runs count most. The few cuts of one table say little of so
many products, so M is averaged with that of the public sets (`defaults.json`; studies/forecasts derives it).

ln L of a new run then has the variance  Σ w (error² + (its forecast − mean)² + noise²) + growth² (a² + NEAR²),  for a
point whose compute lies a = ln(C / largest C) beyond the runs: errors of the fits, disagreement between laws, scatter
of runs, and the growth of errors with distance, from the cuts and the public sets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

from hub.base import strict_json
from hub.base.errors import InputError, reason_of
from scaling_law.fitting.holdout import TINY, Backtest, PooledErrors, backtest_at_cuts, pool_errors
from scaling_law.forecasting.forecasters import BASE, Forecaster, Prediction
from scaling_law.runs.table import Runs
from scaling_law.size.arrays import FloatArray

DEFAULTS = Path(__file__).with_name("defaults.json")
FORMAT = "forecast_defaults"
VERSION = 1
# Directions in which a point may lie furthest beyond the runs.
DIRECTIONS = ("flops", "n_active", "tokens")
# Width of the kernel on ln distances.
REACH = 1.0
# The ln distance at which errors begin to grow.
NEAR = 0.3
# A law is not weighed from this many times the RMSE of the best law on.
FAR = 10.0


@dataclass(frozen=True)
class Evidence:
    """The predictions of laws at points, how far these lie `beyond` the runs [3, n], and how laws did at the cuts.

    `left_out` says why a law says nothing. `like`: as of `Forecaster`.
    """

    beyond: FloatArray
    predictions: Mapping[str, Prediction]
    like: Mapping[str, str]
    backtests: tuple[Backtest, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)

    def with_laws(self, evidence: Evidence) -> Evidence:
        """Join the laws of both, of the same runs and points."""
        backtests = []
        for first, second in zip(self.backtests, evidence.backtests, strict=True):
            backtests.append(replace(first, laws={**first.laws, **second.laws}))
        return Evidence(
            beyond=self.beyond,
            predictions={**self.predictions, **evidence.predictions},
            like={**self.like, **evidence.like},
            backtests=tuple(backtests),
            left_out={**self.left_out, **evidence.left_out},
        )


@dataclass(frozen=True)
class Defaults:
    """Moments and growth of errors on the public sets.

    `moments` are mean products of relative errors of the laws of `BASE`, [4, 4], by direction; `growth` is that of the
    error of ln L. `cuts` is how many cuts they count as, and `width` the factor by which the spread is scaled.
    """

    moments: Mapping[str, FloatArray]
    growth: float
    width: float
    cuts: float = 4.0


@dataclass(frozen=True)
class Stacked:
    """ln L [n], its spread [n], and of each law losses, weights and RMSE at the cuts (NaN without one), [3, n]."""

    log_loss: FloatArray
    spread: FloatArray
    laws: Mapping[str, FloatArray]


def distances(runs: Runs, points: Runs) -> FloatArray:
    """Return ln of how far each point lies beyond the largest run, in each of `DIRECTIONS`, [3, n]."""
    rows = [np.log(getattr(points, name)) - np.log(getattr(runs, name).max()) for name in DIRECTIONS]
    return np.stack(rows)


def gather(
    runs: Runs,
    points: Runs,
    laws: Mapping[str, Forecaster],
    tested: Any = True,
) -> Evidence:
    """Fit each law to all runs and to those below each cut. `tested` [runs] marks those that may be held out."""
    predictions: dict[str, Prediction] = {}
    left_out: dict[str, str] = {}
    for name, law in laws.items():
        try:
            predictions[name] = law.predict(runs, points, True)
        except ValueError as error:
            left_out[name] = reason_of(error)
    return Evidence(
        beyond=distances(runs, points),
        predictions=predictions,
        like={name: laws[name].like for name in predictions},
        backtests=backtest_at_cuts(runs, {name: laws[name].losses for name in predictions}, tested),
        left_out=left_out,
    )


def moments_of(errors: FloatArray, weight: Any = 1.0) -> FloatArray:
    """Return mean products [J, J] of errors [J, n], relative to the geometric mean of the laws' mean squares."""
    weight_sum = np.sum(np.broadcast_to(weight, errors.shape[1]))
    return _scale_to_diagonal(np.asarray((errors * weight) @ errors.T / weight_sum))


def _scale_to_diagonal(products: FloatArray) -> FloatArray:
    """Divide by the geometric mean of the diagonal."""
    return np.asarray(products / np.exp(np.log(np.diag(products) + TINY**2).mean()))


def stack(evidence: Evidence, defaults: Defaults) -> Stacked:
    """Weigh the laws for each point by itself. ValueError where none says anything of one."""
    names = list(evidence.predictions)
    count = evidence.beyond.shape[1]
    # Empty arrays keep their shape where there is no law.
    predictions = np.array([(p.log_loss, p.error, p.noise) for p in evidence.predictions.values()])
    predictions = predictions.reshape(len(names), 3, count)

    # Losses, weights and RMSE of each law at each point.
    laws = np.zeros((len(names), 3, count))
    laws[:, 0] = np.exp(predictions[:, 0])
    laws[:, 2] = np.nan
    log_loss = np.zeros(count)
    spread = np.zeros(count)
    for i, beyond in enumerate(evidence.beyond.T):
        rows = np.flatnonzero(np.isfinite(predictions[:, 0, i]))
        if not rows.size:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in evidence.left_out.items())
            raise InputError(f"no law can forecast point {i + 1} from these runs: {reasons or 'no law was asked'}")
        indices, tests = pool_errors(evidence.backtests, [names[row] for row in rows])
        rows = rows[indices]
        if tests.cuts:
            squares = np.mean(tests.errors**2, axis=1)
            laws[rows, 2, i] = np.sqrt(squares)
            # A law that is far off would add nothing but its spread.
            is_good = squares <= FAR**2 * (squares.min() + TINY**2)
            rows = rows[is_good]
            tests = tests._replace(errors=tests.errors[is_good])

        like = [BASE.index(evidence.like[names[row]]) for row in rows]
        direction = DIRECTIONS[np.argmax(beyond)]
        moments = defaults.moments[direction][np.ix_(like, like)]
        log_distance = beyond[0]
        weights, growth, rmse = _weigh(tests, moments, defaults, log_distance)
        laws[rows, 1, i] = weights
        laws[rows, 2, i] = rmse

        mean, error, noise = predictions[rows, :, i].T
        log_loss[i] = weights @ mean
        variance = weights @ (error**2 + noise**2 + (mean - log_loss[i]) ** 2)
        growth_variance = growth * (max(log_distance, 0.0) ** 2 + NEAR**2)
        spread[i] = defaults.width * np.sqrt(variance + growth_variance)
    return Stacked(log_loss, spread, dict(zip(names, laws, strict=True)))


def _weigh(
    tests: PooledErrors,
    moments: FloatArray,
    defaults: Defaults,
    log_distance: float,
) -> tuple[FloatArray, float, FloatArray]:
    """Weigh the laws for a point.

    Args:
        tests: errors of the laws at the cuts.
        moments: mean products of relative errors on the public sets, [J, J].
        log_distance: how far the point's compute lies beyond the runs.

    Returns:
        Weights [J], the squared growth of errors, and the RMSE of each law at the cuts [J], NaN without one.
    """
    matrix = defaults.cuts * _scale_to_diagonal(moments)
    growth = defaults.growth**2
    if not tests.cuts:
        return simplex(matrix), growth, np.full(len(moments), np.nan)
    from_point = tests.log_distance - min(log_distance, tests.log_distance.max())
    nearness = np.exp(-0.5 * (from_point / REACH) ** 2) + TINY
    weights = simplex(matrix + tests.cuts * moments_of(tests.errors, nearness))
    squares = (weights @ tests.errors / tests.loss) ** 2 / (tests.log_distance**2 + NEAR**2)
    growth_at_cuts = np.average(squares, weights=nearness)
    growth = np.average([growth, growth_at_cuts], weights=[defaults.cuts, tests.cuts])
    rmse = np.sqrt(np.average(tests.errors**2, axis=1, weights=nearness))
    return weights, float(growth), rmse


def simplex(matrix: FloatArray) -> FloatArray:
    """Find w ≥ 0 of sum 1 that minimises w'Mw, for M positive semidefinite, [J]."""
    ridge = 1e-9 * np.trace(matrix) * np.eye(len(matrix))
    root = np.linalg.cholesky(matrix + ridge)
    w, _ = nnls(root.T, np.linalg.solve(root, np.ones(len(matrix))))
    return np.asarray(w / w.sum())


def read_defaults(path: Path = DEFAULTS) -> Defaults:
    """Read the defaults that the package ships."""
    data = strict_json.read(path, FORMAT, VERSION)
    moments = {name: np.array(rows) for name, rows in data["moments"].items()}
    return Defaults(moments, data["growth"], data["width"], data["cuts"])
