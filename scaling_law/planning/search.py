"""Numeric searches over many laws, draws and sizes at once: the tokens for a loss, and the cheapest width."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from scaling_law.formulas import Formula
from scaling_law.planning.budget import WIDTHS, Cluster, work_of
from scaling_law.planning.limits import Limits
from scaling_law.planning.minimiser import POINTS, least
from scaling_law.size.architecture import inference_flops, training_flops
from scaling_law.size.arrays import FloatArray

ENDLESS = 1e100  # parameters or tokens whose terms are nothing beside an asymptote


def floor(law: Formula, coefficients: Any, variables: Mapping[str, Any]) -> FloatArray:
    """The loss of models with endless tokens under each row of coefficients, [1 + n_draws, ...]."""
    with np.errstate(all="ignore"):
        return np.asarray(law.evaluate(coefficients, {**variables, "tokens": np.array(ENDLESS)}), float)


def tokens_needed(
    law: Formula, coefficients: Any, loss: FloatArray, variables: Mapping[str, Any], limits: Limits
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
    return np.asarray(limits.tokens_worth(np.where(gap > 0, np.exp(x), np.inf)))


def cheapest_width(
    law: Formula,
    coefficients: Any,
    loss: FloatArray,
    experts: Any,
    limits: Limits,
    widths: tuple[Any, Any] = WIDTHS,
    cluster: Cluster | None = None,
    points: int = POINTS,
    *,
    ends: bool = False,
) -> FloatArray:
    """The d_model that reaches `loss` for the fewest FLOPs, or on a cluster in the fewest hours; NaN for none.

    It lies between the two `widths`; `points` and `ends` are those of `least`. All broadcast to the shape of `loss`.
    """

    def log_cost(x: FloatArray) -> FloatArray:
        d_model, variables = np.exp(x), limits.variables(np.exp(x), experts, 1.0)
        tokens = tokens_needed(law, coefficients, loss, variables, limits)
        if cluster is not None:
            return np.log(cluster.seconds(work_of(d_model, experts, limits), tokens))
        return np.log(flops_of(variables, tokens, limits))

    low, high = (np.broadcast_to(np.log(width), loss.shape) for width in widths)
    return np.exp(least(log_cost, low, high, points, ends=ends))


def flops_of(variables: Mapping[str, Any], tokens: Any, limits: Limits) -> FloatArray:
    """6 N_act D + 2 N_act D_inf."""
    n_active = variables["n_active"]
    return np.asarray(training_flops(n_active, tokens) + inference_flops(n_active, limits.inference_tokens))
