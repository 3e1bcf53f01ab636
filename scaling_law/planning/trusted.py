"""The best model that can be trusted: the region that backtests support is a limit, like memory.

    minimise L(N_act, D, E)   subject to   C(N_act, D) ≤ budget,   memory ≤ M,   (N_act, D, E) in the trusted region

A model may leave a part of the budget unspent. The least loss is a minimum over nested sets, so it never rises with a
budget or a limit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from scaling_law.formulas import Formula
from scaling_law.planning.budget import Budget
from scaling_law.planning.limits import Limits
from scaling_law.planning.minimiser import minima
from scaling_law.planning.optimum import (
    ROUNDING,
    BestModels,
    Models,
    choose_among,
    choose_width,
    models_at_budget,
    tokens_trusted,
)
from scaling_law.size.arrays import BoolArray, FloatArray, Intervals

# Share of the budget that a trusted model spends at least, or the answer is the best model, trusted or not.
LEAST_SHARE = 0.5


def trusted_widths(law: Formula, experts: FloatArray, limits: Limits) -> Intervals:
    """Return the d_model between which all models lie that are trusted at these E and within the limits."""
    check = limits.check(law, {"n_active": 1.0, "tokens": 1.0, "experts": experts})
    low, high = check.supported("N_act")
    fewest_tokens, _ = check.supported("D")
    _, most_per_parameter = check.supported("D/N")
    low = np.maximum(low, fewest_tokens / most_per_parameter)
    # The ends are inside the region, however their widths round.
    ladder = limits.ladder
    least = ladder.width_of_active(low * (1 + ROUNDING))
    largest = ladder.width_of_active(high * (1 - ROUNDING))
    return np.maximum(least, ladder.smallest), np.minimum(largest, limits.width_limit(experts))


def budgets_trusted(
    law: Formula, budget: Budget, experts: FloatArray, limits: Limits, memory: FloatArray
) -> Intervals:
    """Return the least and the largest budget whose answer is trusted within each memory limit, as shares of `budget`.

    The least buys the smallest trusted model, and the largest is one of which a trusted model spends `LEAST_SHARE`.
    Both are NaN where no model is trusted, and where tokens are served, since the best trusted model is then not the
    largest. More of the ascending `memory` never narrows them.
    """
    least, largest = trusted_widths(law, experts, limits)
    within = limits.width_of_memory(memory[:, None], experts)

    def share(widths: FloatArray, end: int) -> FloatArray:
        variables = limits.models(law, widths, experts, 1.0)
        tokens = tokens_trusted(law, variables, limits)[end]
        shares = budget.share_spent(widths, {**variables, "tokens": tokens}, limits)
        return np.where(within >= least * (1 - ROUNDING), shares, np.nan)

    low = share(np.broadcast_to(least, within.shape), 0)
    # The trusted region may end at a smaller model than memory holds.
    high = np.fmax.accumulate(share(np.clip(within, least, largest), 1) / LEAST_SHARE, axis=0)
    is_trusted = (low <= high) & (limits.inference_tokens == 0)
    low = np.where(is_trusted, low, np.inf).min(axis=-1)
    high = np.where(is_trusted, high, -np.inf).max(axis=-1)
    has_models = is_trusted.any(axis=-1)
    return np.where(has_models, low, np.nan), np.where(has_models, high, np.nan)


def find_trusted(law: Formula, budget: Budget, experts: FloatArray, limits: Limits, integral: bool) -> BestModels:
    """Find the best trusted model of each E that the budget and the limits allow; the budget and E broadcast.

    `fits` says where there is one. The law must have ranges.
    """
    experts = np.broadcast_to(experts, np.broadcast_shapes(np.shape(experts), np.shape(np.asarray(budget.flops))))
    models = models_at_budget(law, law.columns, experts, budget, limits, trusted=True)
    return choose_trusted(models, law, experts, limits, integral, budget.widths(limits)[1])


def choose_trusted(
    models: Models,
    law: Formula,
    experts: FloatArray,
    limits: Limits,
    integral: bool = False,
    most: ArrayLike = np.inf,
) -> BestModels:
    """Choose the width of the least loss or cost, NaN for models that are not trusted, up to the width `most`."""
    least, largest = trusted_widths(law, experts, limits)
    largest = np.minimum(largest, most)
    allowed = np.where(largest >= least * (1 - ROUNDING), largest * (1 + ROUNDING), 0.0)
    if integral:
        return choose_among(models, limits.ladder.rungs(np.max(largest, initial=0.0)), allowed)
    largest = np.maximum(largest, least)
    widths = np.exp(minima(lambda log_width: models(np.exp(log_width))[1], np.log(least), np.log(largest))[0])
    # An end of the interval is itself an answer, whatever its logarithm rounds to.
    widths = np.clip(widths, least, largest)
    return choose_width(models, widths, widths <= allowed)


def spend_enough(budget: Budget, limits: Limits, models: BestModels) -> BoolArray:
    """Say which questions trusted models answer, [..., 1]: those in which one spends `LEAST_SHARE` of the budget.

    It may be of any E: the best one may change with the budget, and the answer would be trusted or not from one to the
    next.
    """
    shares = budget.share_spent(models.d_model, models.variables, limits)
    return np.any(models.fits & (shares >= LEAST_SHARE), axis=-1, keepdims=True)
