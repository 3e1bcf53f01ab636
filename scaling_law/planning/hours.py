"""The best models of a budget of FLOPs or of hours on a cluster, and the losses that its draws predict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hub.base.errors import InputError
from scaling_law.formulas import Formula
from scaling_law.planning.budget import Budget, work_of
from scaling_law.planning.limits import Limits
from scaling_law.planning.optimum import (
    WidthOptimum,
    loss_of_variables,
    of_law,
    optimal_widths,
    refuse_other_variables,
    searched,
)
from scaling_law.planning.search import coefficients_of
from scaling_law.size.architecture import HEAD_DIM
from scaling_law.size.arrays import FloatArray

WIDTHS = (2.0, 2e6)  # d_model that are searched


def best_widths(law: Formula, budget: Budget, e: FloatArray, limits: Limits, integral: bool = False) -> WidthOptimum:
    """The best model for each E, [n], for a budget of either kind. ValueError where none has an optimum."""
    if budget.flops is None:
        return widths_in_time(law, budget, e, limits, integral)
    return optimal_widths(law, budget.flops, e, limits, integral)


def models_of(law: Formula, d_model: Any, experts: Any, budget: Budget, limits: Limits) -> dict[str, Any]:
    """N_act, D, E and the law's other variables, for models of these widths that spend the budget; broadcasts."""
    return of_law(law, budget.variables(d_model, experts, limits))


def widths_in_time(law: Formula, time: Budget, e: FloatArray, limits: Limits, integral: bool = False) -> WidthOptimum:
    """The best model for each E, [n], in the time and within the limits. ValueError where not one step is done."""
    refuse_other_variables(law, limits, e)
    if limits.inference_tokens:
        served = limits.inference_tokens
        raise InputError(f"inference_tokens={served:g} cost FLOPs: give a budget of flops, not of hours")
    refuse_less_than_a_step(time, float(e.min()), limits)

    def loss_of(d: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        variables = time.variables(d, e, limits)
        return variables["n_active"], variables["tokens"], np.asarray(loss_of_variables(law, variables, limits))

    optimum = searched(loss_of, WIDTHS, e, limits, integral)
    if not optimum.exists.any():
        raise InputError(f"this {law.name} law has no minimum in {time.hours:g} hours for any of these experts")
    return optimum


def refuse_less_than_a_step(time: Budget, experts: float, limits: Limits) -> None:
    """Raise ValueError where the first step of the smallest model takes longer."""
    assert time.cluster is not None
    first = time.cluster.ramp.last_batch_tokens(0)
    step = float(time.cluster.seconds(work_of(float(HEAD_DIM), experts, limits), float(first)))
    if step > time.seconds:
        smallest = f"the smallest model (d_model {HEAD_DIM}, E = {experts:g}) takes {step:.3g} s on {time.cluster}"
        raise InputError(f"hours={time.hours:g} is less than one training step: {smallest}")


def drawn_losses(
    law: Formula, budget: Budget, at: Mapping[str, Any], d_model: FloatArray, limits: Limits
) -> FloatArray | None:
    """Losses of these models, [n_draws, n], where law and throughput are drawn together; None without any draws.

    The draws of the two are independent: whichever has fewer is repeated.
    """
    if budget.cluster is None or budget.cluster.throughput.draws is None:
        return None if law.draws is None else law.loss_draws(**limits.worth(at))
    work = work_of(d_model, at["experts"], limits)
    tokens = budget.cluster.tokens(work, budget.seconds, drawn=True)
    coefficients = coefficients_of(law)[:, 1:] if law.draws is not None else coefficients_of(law)
    n = max(len(tokens), coefficients.shape[1])
    drawn = {**at, "tokens": tokens[np.arange(n) % len(tokens)]}
    columns = coefficients[:, np.arange(n) % coefficients.shape[1]]
    return np.asarray(law.evaluate(columns, limits.worth(drawn)))
