"""Weights of laws from how well they forecast within the runs, and the spread of what they say together.

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
from hub.base.errors import InputError
from scaling_law.fitting.holdout import TINY, Backtest, PooledErrors, backtest_at_cuts, pool_errors
from scaling_law.forecasting.forecasters import BASE, Forecaster, Prediction
from scaling_law.runs.table import Runs
from scaling_law.size.arrays import FloatArray

DEFAULTS = Path(__file__).with_name("defaults.json")
FORMAT, VERSION = "forecast_defaults", 1
# Directions in which a point may lie furthest beyond the runs.
DIRECTIONS = ("flops", "n_active", "tokens")
REACH = 1.0  # width of the kernel on ln distances
NEAR = 0.3  # ln distance at which errors begin to grow
FAR = 10.0  # times the RMSE of the best law, from which on a law is not weighed


@dataclass(frozen=True)
class Evidence:
    """What laws say of points, how far these lie beyond the runs (`distances`, [3, n]), and how laws did at the cuts.

    `left_out` says why a law says nothing. `like`: as of `Forecaster`.
    """

    beyond: FloatArray
    predictions: Mapping[str, Prediction]
    like: Mapping[str, str]
    backtests: tuple[Backtest, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)

    def with_laws(self, other: Evidence) -> Evidence:
        """The laws of both, of the same runs and points."""
        pairs = zip(self.backtests, other.backtests, strict=True)
        backtests = tuple(replace(one, laws={**one.laws, **two.laws}) for one, two in pairs)
        names = ("predictions", "like", "left_out")
        joined: dict[str, Any] = {name: {**getattr(self, name), **getattr(other, name)} for name in names}
        return replace(self, backtests=backtests, **joined)


@dataclass(frozen=True)
class Defaults:
    """What the public sets say: mean products of relative errors of the laws of `BASE` by direction, [4, 4] each, and
    the growth of the error of ln L; `cuts` and `width` are how many cuts they count as, and the factor by which the
    spread is scaled.
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
    """ln of how far each point lies beyond the largest run, in each of `DIRECTIONS`, [3, n]."""
    return np.stack([np.log(getattr(points, name)) - np.log(getattr(runs, name).max()) for name in DIRECTIONS])


def gather(runs: Runs, points: Runs, laws: Mapping[str, Forecaster], tested: Any = True) -> Evidence:
    """Fit each law to all runs and to those below each cut. `tested` [runs] marks those that may be held out."""
    predictions, left_out = dict[str, Prediction](), dict[str, str]()
    for name, law in laws.items():
        try:
            predictions[name] = law.predict(runs, points, True)
        except ValueError as error:
            left_out[name] = str(error)
    backtests = backtest_at_cuts(runs, {name: laws[name].losses for name in predictions}, tested)
    like = {name: laws[name].like for name in predictions}
    return Evidence(distances(runs, points), predictions, like, backtests, left_out)


def moments_of(errors: FloatArray, weight: Any = 1.0) -> FloatArray:
    """Mean products [J, J] of errors [J, n], relative to the geometric mean of the laws' mean squares."""
    return _relative(np.asarray((errors * weight) @ errors.T / np.sum(np.broadcast_to(weight, errors.shape[1]))))


def _relative(products: FloatArray) -> FloatArray:
    """Over the geometric mean of the diagonal."""
    return np.asarray(products / np.exp(np.log(np.diag(products) + TINY**2).mean()))


def stack(evidence: Evidence, defaults: Defaults) -> Stacked:
    """Weigh the laws for each point by itself. ValueError where none says anything of one."""
    names, count = list(evidence.predictions), evidence.beyond.shape[1]
    said = np.array([(p.log_loss, p.error, p.noise) for p in evidence.predictions.values()])
    # This also holds where there is no law.
    said = said.reshape(len(names), 3, count)
    laws = np.stack([np.exp(said[:, 0]), np.zeros((len(names), count)), np.full((len(names), count), np.nan)], axis=1)
    log_loss, spread = np.zeros((2, count))
    for i, beyond in enumerate(evidence.beyond.T):
        rows = np.flatnonzero(np.isfinite(said[:, 0, i]))
        if not rows.size:
            why = "; ".join(f"{name}: {reason}" for name, reason in evidence.left_out.items())
            raise InputError(f"no law can forecast point {i + 1} from these runs: {why or 'no law was asked'}")
        kept, tests = pool_errors(evidence.backtests, [names[row] for row in rows])
        rows = rows[kept]
        if tests.cuts:
            squares = np.mean(tests.errors**2, axis=1)
            laws[rows, 2, i] = np.sqrt(squares)
            near = squares <= FAR**2 * (squares.min() + TINY**2)  # others would add nothing but their spread
            rows, tests = rows[near], tests._replace(errors=tests.errors[near])
        like = [BASE.index(evidence.like[names[row]]) for row in rows]
        usual = defaults.moments[DIRECTIONS[np.argmax(beyond)]][np.ix_(like, like)]
        weights, growth, laws[rows, 2, i] = _weigh(tests, usual, defaults, beyond[0])
        laws[rows, 1, i] = weights
        mean, error, noise = said[rows, :, i].T
        log_loss[i] = weights @ mean
        variance = weights @ (error**2 + noise**2 + (mean - log_loss[i]) ** 2)
        spread[i] = defaults.width * np.sqrt(variance + growth * (max(beyond[0], 0.0) ** 2 + NEAR**2))
    return Stacked(log_loss, spread, dict(zip(names, laws, strict=True)))


def _weigh(
    tests: PooledErrors, usual: FloatArray, defaults: Defaults, ahead: float
) -> tuple[FloatArray, float, FloatArray]:
    """Weights [J] at this distance, the squared growth of errors, and the RMSE of each law at the cuts [J]."""
    matrix = defaults.cuts * _relative(usual)
    growth = defaults.growth**2
    if not tests.cuts:
        return simplex(matrix), growth, np.full(len(usual), np.nan)
    near = np.exp(-0.5 * ((tests.log_distance - min(ahead, tests.log_distance.max())) / REACH) ** 2) + TINY
    weights = simplex(matrix + tests.cuts * moments_of(tests.errors, near))
    relative = (weights @ tests.errors / tests.loss) ** 2 / (tests.log_distance**2 + NEAR**2)
    growth = np.average([growth, np.average(relative, weights=near)], weights=[defaults.cuts, tests.cuts])
    return weights, float(growth), np.sqrt(np.average(tests.errors**2, axis=1, weights=near))


def simplex(matrix: FloatArray) -> FloatArray:
    """w ≥ 0 of sum 1 that minimises w'Mw, for M positive semidefinite, [J]."""
    ridge = 1e-9 * np.trace(matrix) * np.eye(len(matrix))
    root = np.linalg.cholesky(matrix + ridge)
    w, _ = nnls(root.T, np.linalg.solve(root, np.ones(len(matrix))))
    return np.asarray(w / w.sum())


def read_defaults(path: Path = DEFAULTS) -> Defaults:
    """Those shipped."""
    data = strict_json.read(path, FORMAT, VERSION)
    moments = {name: np.array(rows) for name, rows in data["moments"].items()}
    return Defaults(moments, data["growth"], data["width"], data["cuts"])
