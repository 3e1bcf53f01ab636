"""Weights of laws from their errors within the runs, and the spread of their forecasts together.

Rolling origin: each law is fitted to the runs below a cut of compute, N or D and predicts those above, at several
cuts. For each point the weights, w ≥ 0 and Σ w = 1, minimise w'Mw, where M holds the mean products of the laws' errors
(Bates and Granger 1969). M is a mean of two: the products at the cuts, each of which counts as much as its runs lie
like the point in direction and distance, and those of public sets in the point's direction (`defaults.json`;
studies/forecasts derives it), which count as one cut. So the runs' own backtest decides where it can. Where the laws
together leave the 90 % interval of the fresh fit that is best at the cuts, that fit gets so much weight that they do
not: no prior pulls a well-determined fit away. It then counts as one cut by itself, beside those within the runs and
the public sets: where few cuts say how laws do, the fit of the runs alone is heard, too.

The variance of ln L of a new run is a sum of five components, with coefficients learnt on the public sets: the errors
of the laws, their disagreement, the scatter of runs, and the growth of errors with distance on the public sets and at
the cuts. The spread is then scaled in each direction so that 90 % intervals hold 90 % of these sets' runs.

The share of the constant c in that variance is what goes of the first two components when all laws are told the same c
(`asymptote`). What c has in the growth with distance is not counted: the share is the least that it can be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import nnls

from hub.base import strict_json
from hub.base.errors import InputError, reason_of
from scaling_law.fitting.holdout import (
    CUTS_EACH_WAY,
    DIRECTIONS,
    TINY,
    Backtest,
    PooledErrors,
    backtest_at_cuts,
    distances,
    pool_errors,
)
from scaling_law.forecasting.asymptote import Asymptote, spread_at_one_constant, spread_of
from scaling_law.forecasting.forecasters import BASE, CHINCHILLA, INTERACTION, Forecaster, Prediction
from scaling_law.runs.table import Runs
from scaling_law.size.arrays import Columns, FloatArray, first_largest

DEFAULTS = Path(__file__).with_name("defaults.json")
FORMAT = "forecast_defaults"
VERSION = 2
# Width of the kernel on ln distances.
REACH = 2.0
# The ln distance at which errors begin to grow.
NEAR = 0.3
# A law is not weighed from this many times the RMSE of the best law on.
FAR = 10.0
# The components of a variance; growth on public sets is one for each direction.
COMPONENTS = ("errors", "disagreement", "noise", *(f"growth, {name}" for name in DIRECTIONS), "growth at the cuts")
# Laws fitted to the runs alone err like one of these.
FRESH = (CHINCHILLA, INTERACTION)
# Half the width of a 90 % interval in standard errors.
NORMAL = 1.6449
# Variance of ln L that no forecast is without.
LEAST_VARIANCE = 1e-8


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


@dataclass(frozen=True)
class Defaults:
    """The errors of laws on public sets.

    `moments` are mean products of relative errors of the laws of `BASE`, [3, J, J], by direction, and count as so many
    `cuts`. `variances` [7] are the coefficients of `COMPONENTS`, and the spread is scaled by `widths` [3] in each
    direction.
    """

    moments: FloatArray
    variances: FloatArray
    widths: FloatArray
    cuts: float = 1.0


@dataclass(frozen=True)
class Stacked:
    """ln L [n], its spread [n], and of each law losses, weights and RMSE at the cuts (NaN without one), [3, n].

    `components` [7, n] are those of the variance, without their coefficients; `share_of_constant` [n] is the part of
    the variance that would go if c were known.
    """

    log_loss: FloatArray
    spread: FloatArray
    laws: Columns
    components: FloatArray
    share_of_constant: FloatArray


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
    losses = {name: laws[name].losses for name in predictions}
    return Evidence(
        beyond=distances(runs, points),
        predictions=predictions,
        like={name: laws[name].like for name in predictions},
        backtests=backtest_at_cuts(runs, losses, tested, CUTS_EACH_WAY),
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
    constants = _constants(evidence.predictions, count)
    log_loss = np.zeros(count)
    components = np.zeros((len(COMPONENTS), count))
    of_constant = np.zeros(count)
    tests_of_laws: dict[bytes, _Tests] = {}
    for i, beyond in enumerate(evidence.beyond.T):
        says = np.isfinite(predictions[:, 0, i])
        if not says.any():
            reasons = "; ".join(f"{name}: {reason}" for name, reason in evidence.left_out.items())
            raise InputError(f"no law can forecast point {i + 1} from these runs: {reasons or 'no law was asked'}")
        key = says.tobytes()
        if key not in tests_of_laws:
            tests_of_laws[key] = _tests_of(evidence, np.flatnonzero(says))
        rows, tests, rmse, fresh = tests_of_laws[key]
        laws[says, 2, i] = rmse
        base_rows = [BASE.index(evidence.like[names[row]]) for row in rows]
        direction = int(first_largest(np.exp(beyond)))
        moments = defaults.moments[direction][np.ix_(base_rows, base_rows)]
        weights, growth, share = _weigh(tests, moments, defaults.cuts, beyond)
        mean, error, noise = predictions[rows, :, i].T
        if fresh is not None:
            weights = _hold_to_fresh(weights, predictions[rows, :, i].T, fresh)
            weights = _count_fresh(weights, fresh, tests.cuts + defaults.cuts)
        laws[rows, 1, i] = weights
        log_loss[i] = weights @ mean
        distance = max(beyond[direction], 0.0) ** 2 + NEAR**2
        spread_of_laws = spread_of(weights, mean, error)
        components[:3, i] = *spread_of_laws, weights @ noise**2
        told_spread = spread_at_one_constant(weights, mean, error, constants[rows, :, i].T)
        fall = np.subtract(spread_of_laws, told_spread)
        of_constant[i] = max(float(defaults.variances[:2] @ fall), 0.0)
        components[3 + direction, i] = (1 - share) * distance
        components[-1, i] = share * growth * distance
    width = defaults.widths[first_largest(np.exp(evidence.beyond))]
    variance = defaults.variances @ components + LEAST_VARIANCE
    return Stacked(
        log_loss,
        spread=width * np.sqrt(variance),
        laws=dict(zip(names, laws, strict=True)),
        components=components,
        share_of_constant=of_constant / variance,
    )


def _constants(predictions: Mapping[str, Prediction], count: int) -> FloatArray:
    """Return what each law says of its constant, [J, 3, n], as of `Asymptote`."""
    constants = np.zeros((len(predictions), 3, count))
    for row, prediction in zip(constants, predictions.values(), strict=True):
        asymptote = prediction.asymptote or Asymptote.nothing(count)
        row[:] = asymptote.loss, asymptote.error, asymptote.correlation
    return constants


class _Tests(NamedTuple):
    """Rows of the laws that are weighed, their errors at the cuts, and the RMSE of all laws that were asked [j].

    `fresh` is the place in `rows` of the law fitted to the runs alone that is best at the cuts, None for none.
    """

    rows: Any
    errors: PooledErrors
    rmse: FloatArray
    fresh: int | None


def _tests_of(evidence: Evidence, rows: Any) -> _Tests:
    """Return the laws of these rows that the cuts determine, without those that are far off."""
    names = list(evidence.predictions)
    rmse = np.full(len(rows), np.nan)
    indices, tests = pool_errors(evidence.backtests, [names[row] for row in rows])
    if not tests.cuts:
        fresh_rows = _fresh(evidence, rows[indices])
        return _Tests(rows[indices], tests, rmse, fresh_rows[0] if fresh_rows else None)
    squares = np.mean(tests.errors**2, axis=1)
    rmse[indices] = np.sqrt(squares)
    # A law that is far off would add nothing but its spread.
    is_good = squares <= FAR**2 * (squares.min() + TINY**2)
    good_rows = rows[indices[is_good]]
    squares = squares[is_good]
    best = min(_fresh(evidence, good_rows), key=lambda place: squares[place], default=None)
    return _Tests(good_rows, tests._replace(errors=tests.errors[is_good]), rmse, best)


def _fresh(evidence: Evidence, rows: Any) -> list[int]:
    """Return the places in `rows` of laws fitted to the runs alone."""
    names = list(evidence.predictions)
    return [place for place, row in enumerate(rows) if evidence.like[names[row]] in FRESH]


def _hold_to_fresh(
    weights: FloatArray,
    predictions: FloatArray,
    fresh: int,
) -> FloatArray:
    """Give a fresh law so much weight that all together stay in its 90 % interval, if it has one.

    Args:
        weights: of the laws, [J].
        predictions: ln L of each, its standard error and the noise of a run, [3, J].
        fresh: the place of the law.
    """
    mean, error, noise = predictions
    away = abs(float(weights @ mean - mean[fresh]))
    half_width = NORMAL * float(np.hypot(error[fresh], noise[fresh]))
    if error[fresh] == 0 or away <= half_width:
        return weights
    kept_share = half_width / away
    held_weights = kept_share * weights
    held_weights[fresh] += 1.0 - kept_share
    return held_weights


def _count_fresh(weights: FloatArray, fresh: int, cuts: float) -> FloatArray:
    """Let a fresh law count as one cut beside those that gave the weights [J]."""
    counted_weights = weights * cuts / (cuts + 1.0)
    counted_weights[fresh] += 1.0 / (cuts + 1.0)
    return counted_weights


def _weigh(
    tests: PooledErrors,
    moments: FloatArray,
    cuts: float,
    beyond: FloatArray,
) -> tuple[FloatArray, float, float]:
    """Weigh the laws for a point.

    Args:
        tests: errors of the laws at the cuts.
        moments: mean products of relative errors on the public sets, [J, J].
        cuts: how many cuts these count as.
        beyond: how far the point lies beyond the runs, [3].

    Returns:
        Weights [J], the growth of their squared error with squared distance at the cuts, and the share of the cuts in
        what is known of it, from 0 to 1.
    """
    matrix = cuts * _scale_to_diagonal(moments)
    if not tests.cuts:
        return simplex(matrix), 0.0, 0.0
    tested_beyond = np.maximum(tests.beyond, 0.0)
    # No cut is as far out as some points: those count as if they were as far as the furthest.
    point = np.minimum(np.maximum(beyond, 0.0), tested_beyond.max(axis=1))
    squares = np.sum((tested_beyond - point[:, None]) ** 2, axis=0)
    _, cut, counts = np.unique(tests.cut, return_inverse=True, return_counts=True)
    nearness = (np.exp(-0.5 * squares / REACH**2) + TINY) / counts[cut]
    n_cuts = float(nearness.sum())
    errors = tests.errors / tests.loss
    weights = simplex(matrix + n_cuts * moments_of(errors, nearness))
    growths = (weights @ errors) ** 2 / (tested_beyond.max(axis=0) ** 2 + NEAR**2)
    return weights, float(np.average(growths, weights=nearness)), n_cuts / (1.0 + n_cuts)


def simplex(matrix: FloatArray) -> FloatArray:
    """Find w ≥ 0 of sum 1 that minimises w'Mw, for M positive semidefinite, [J]."""
    ridge = 1e-9 * np.trace(matrix) * np.eye(len(matrix))
    root = np.linalg.cholesky(matrix + ridge)
    w, _ = nnls(root.T, np.linalg.solve(root, np.ones(len(matrix))))
    return np.asarray(w / w.sum())


def read_defaults(path: Path = DEFAULTS) -> Defaults:
    """Read the defaults that the package ships."""
    data = strict_json.read(path, FORMAT, VERSION)
    return Defaults(np.array(data["moments"]), np.array(data["variances"]), np.array(data["widths"]), data["cuts"])
