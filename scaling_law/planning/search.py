"""Numeric searches over many laws, draws and sizes at once: the tokens for a loss, and the cheapest width."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from scaling_law.formulas import Formula
from scaling_law.planning.limits import Limits
from scaling_law.planning.minimiser import POINTS, least
from scaling_law.size.architecture import training_flops
from scaling_law.size.arrays import FloatArray

ENDLESS = 1e100  # parameters or tokens whose terms are nothing beside an asymptote


def coefficients_of(law: Formula) -> FloatArray:
    """The law's own coefficients and those of its draws, [n_coefficients, 1 + n_draws, 1]."""
    every = np.array([[*law.coefficients.values()], *(() if law.draws is None else law.draws)])
    return np.asarray(every.T[..., None])


def floor(law: Formula, coefficients: FloatArray, variables: Mapping[str, Any]) -> FloatArray:
    """The loss of models with endless tokens under each row of coefficients, [1 + n_draws, ...]."""
    with np.errstate(all="ignore"):
        return np.asarray(law.evaluate(coefficients, {**variables, "tokens": np.array(ENDLESS)}), float)


def tokens_needed(
    law: Formula, coefficients: FloatArray, loss: FloatArray, variables: Mapping[str, Any]
) -> FloatArray:
    """Training tokens with which models reach `loss`; infinite where none suffice. All broadcast.

    Secants of ln(L − floor) in ln D, which is a straight line for a law with one power of D.
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
    widths: tuple[Any, Any],
    points: int = POINTS,
    *,
    ends: bool = False,
) -> FloatArray:
    """The d_model that reaches `loss` at least `cost(d_model, variables, tokens)`, one a row, [n, 1]; NaN for none.

    It lies between the two `widths`; `points` and `ends` are those of `least`.
    """

    def log_cost(x: FloatArray) -> FloatArray:
        variables = limits.variables(np.exp(x), experts, 1.0)
        return np.log(cost(np.exp(x), variables, tokens_needed(law, coefficients, loss, variables)))

    low, high = (np.broadcast_to(np.log(width), loss.shape) for width in widths)
    return np.exp(least(log_cost, low, high, points, ends=ends))


def flops_of(_: FloatArray, variables: Mapping[str, Any], tokens: FloatArray) -> FloatArray:
    """6 N_act D, as a cost."""
    return np.asarray(training_flops(variables["n_active"], tokens))
