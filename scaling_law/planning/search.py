"""Numeric searches over many laws, draws and sizes at once: the least point of a row, and the tokens for a loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaling_law.formulas import Formula
from scaling_law.planning.limits import Limits
from scaling_law.size.architecture import training_flops

FloatArray = NDArray[np.float64]
ENDLESS = 1e100  # parameters or tokens whose terms are nothing beside an asymptote


def coefficients_of(law: Formula) -> FloatArray:
    """The law's own coefficients and those of its draws, [n_coefficients, 1 + n_draws, 1]."""
    every = np.array([[*law.coefficients.values()], *(() if law.draws is None else law.draws)])
    return np.asarray(every.T[..., None])


def least(function: Callable[[FloatArray], FloatArray], middle: FloatArray, spans: Any) -> FloatArray:
    """Where `function` is least in each row around `middle`, [n, 1]; NaN for a row that falls or rises throughout.

    `spans` are (half-width, points) of grids, each around the vertex of a parabola through the best points of the one
    before. `function` takes arrays [n, points]; what is not finite is not chosen.
    """
    for reach, points in spans:
        x = middle + np.linspace(-reach, reach, points)
        y = function(x)
        i = np.argmin(np.where(np.isfinite(y), y, np.inf), axis=1)[:, None]
        low, best, high = (np.take_along_axis(y, np.clip(i + k, 0, points - 1), 1) for k in (-1, 0, 1))
        with np.errstate(invalid="ignore", divide="ignore"):
            shift = (low - high) / (low - 2.0 * best + high) / 2.0
        inside = (i > 0) & (i < points - 1)
        step = np.where(np.isfinite(shift), shift, 0.0) * 2.0 * reach / (points - 1)
        middle = np.where(inside, np.take_along_axis(x, i, 1) + step, np.nan)
    return middle


def floor(law: Formula, coefficients: FloatArray, variables: Mapping[str, Any]) -> FloatArray:
    """The loss of models with endless tokens under each row of coefficients, [1 + n_draws, ...]."""
    with np.errstate(all="ignore"):
        return np.asarray(law.evaluate(coefficients, {**variables, "tokens": np.array(ENDLESS)}), float)


def tokens_needed(
    law: Formula, coefficients: FloatArray, loss: FloatArray, variables: Mapping[str, Any]
) -> FloatArray:
    """Training tokens with which models reach `loss`; infinite where none suffice. All broadcast.

    By secants of ln(L − floor) in ln D, which is a straight line for a law with one power of D.
    """
    least_loss = floor(law, coefficients, variables)
    gap = loss - least_loss

    def excess(x: Any) -> FloatArray:
        reached = law.evaluate(coefficients, {**variables, "tokens": np.exp(x)})
        return np.asarray(np.log((reached - least_loss) / gap))

    with np.errstate(all="ignore"):
        last, x = np.log(1e9), np.full(gap.shape, np.log(1e12))
        y_last, y = excess(last), excess(x)
        for _ in range(60):
            step = y * (x - last) / (y - y_last)
            step = np.where(np.isfinite(step), step, 0.0)
            last, y_last, x = x, y, x - step
            if not np.any(np.abs(step) > 1e-12):
                break
            y = excess(x)
    return np.where(gap > 0, np.exp(x), np.inf)


def cheapest_width(
    law: Formula,
    coefficients: FloatArray,
    loss: FloatArray,
    experts: Any,
    limits: Limits,
    cost: Callable[[FloatArray, Mapping[str, Any], FloatArray], FloatArray],
    middle: FloatArray,
    spans: Any,
) -> FloatArray:
    """The d_model that reaches `loss` at least `cost(d_model, variables, tokens)`, one a row, [n, 1]; NaN for none.

    `middle` and `spans` of ln d_model are those of `least`; no limit is regarded.
    """

    def log_cost(x: FloatArray) -> FloatArray:
        found = limits.variables(np.exp(x), experts, 1.0)
        with np.errstate(invalid="ignore"):
            return np.log(cost(np.exp(x), found, tokens_needed(law, coefficients, loss, found)))

    return np.exp(least(log_cost, middle, spans))


def flops_of(_: FloatArray, variables: Mapping[str, Any], tokens: FloatArray) -> FloatArray:
    """6 N_act D, as a cost."""
    return np.asarray(training_flops(variables["n_active"], tokens))
