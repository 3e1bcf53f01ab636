"""The best model that can be trusted: the region that backtests support is a limit, like memory.

    minimise L(N_act, D, E)   subject to   C(N_act, D) ≤ budget,   memory ≤ M,   (N_act, D, E) in the trusted region

A model may leave a part of the budget unspent. The least loss is a minimum over nested sets, so it never rises with a
budget or a limit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from scaling_law.formulas import Formula
from scaling_law.planning.budget import Budget
from scaling_law.planning.limits import Limits
from scaling_law.planning.minimiser import minima
from scaling_law.planning.optimum import ROUNDING, Models, WidthOptimum, choose_width, models_at_budget, tokens_trusted
from scaling_law.size.arrays import BoolArray, Columns, FloatArray, Intervals

if TYPE_CHECKING:
    from typing_extensions import Self

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


def find_trusted(law: Formula, budget: Budget, experts: FloatArray, limits: Limits, integral: bool) -> WidthOptimum:
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
) -> WidthOptimum:
    """Choose the width of the least loss or cost, NaN for models that are not trusted, up to the width `most`."""
    least, largest = trusted_widths(law, experts, limits)
    largest = np.minimum(largest, most)
    exists = largest >= least * (1 - ROUNDING)
    if integral:
        rungs = limits.ladder.rungs(np.max(largest, initial=0.0))
        widths = np.multiply.outer(rungs, np.ones(experts.shape))
    else:
        low = np.log(least)
        high = np.log(np.maximum(largest, least))
        widths = np.exp(minima(lambda log_width: models(np.exp(log_width))[2], low, high)[0])
        # An end of the interval is itself an answer, whatever its logarithm rounds to.
        widths = np.clip(widths, least, np.maximum(largest, least))
    return choose_width(models, widths, exists & (widths <= largest * (1 + ROUNDING)), exists)


@dataclass(frozen=True)
class BestModels:
    """The best model of each E, the last axis, for several questions at once; the loss is infinite where none is."""

    d_model: FloatArray
    loss: FloatArray
    variables: Columns

    @property
    def experts(self) -> FloatArray:
        """The E of each model."""
        return self.variables["experts"]

    def replaced(self, where: BoolArray, substitutes: BestModels) -> Self:
        """Return these models, with others in some places."""
        return replace(
            self,
            d_model=np.where(where, substitutes.d_model, self.d_model),
            loss=np.where(where, substitutes.loss, self.loss),
            variables={
                name: np.where(where, substitutes.variables[name], self.variables[name]) for name in self.variables
            },
        )

    def take(self, find: Callable[[FloatArray], FloatArray]) -> Self:
        """Return some of these models, which `find` picks of each array."""
        return replace(
            self,
            d_model=find(self.d_model),
            loss=find(self.loss),
            variables={name: find(values) for name, values in self.variables.items()},
        )


def prefer_trusted(
    law: Formula, budget: Budget, limits: Limits, models: BestModels, trusted: BestModels
) -> tuple[BestModels, BoolArray]:
    """Answer each question with its trusted models, if one spends `LEAST_SHARE` of the budget, as `optimal` does.

    Returns the models that answer, and which of them are compared: trusted ones, or all of a question without one.
    """
    check = limits.check(law, models.variables)
    trusted = trusted.replaced(np.isfinite(models.loss) & check.trusted, models)
    shares = budget.share_spent(trusted.d_model, trusted.variables, limits)
    spends_enough = np.isfinite(trusted.loss) & (shares >= LEAST_SHARE)
    # Of any E: the best one may change with the budget, and the answer would be trusted or not from one to the next.
    has_answer = spends_enough.any(axis=-1, keepdims=True)
    is_trusted = has_answer & np.isfinite(trusted.loss)
    return models.replaced(is_trusted, trusted), is_trusted | ~has_answer
