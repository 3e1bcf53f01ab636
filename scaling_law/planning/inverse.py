"""Questions asked backwards: the cheapest budget and the least memory that reach a loss, and the FLOPs an MoE saves.

The best loss falls with the budget and with the memory (Ludziejewski et al. 2025), so each answer is one root.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hub.plain.tables import ResultTable
from scaling_law.formulas import ChinchillaForm
from scaling_law.formulas.conditions import Conditions, range_warnings, refuse_extrapolation
from scaling_law.planning.optimum import (
    Constraints,
    asked_experts,
    compute_optimal,
    has_optimum,
    name_limits,
    optimal_widths,
    positive,
    root,
    why_no_optimum,
)
from scaling_law.size.architecture import HEAD_DIM, active_parameters, affordable_tokens, total_parameters

FloatArray = NDArray[np.float64]
FLOPS_RANGE = (1.0, 1e40)  # of budgets that are searched


@dataclass(frozen=True)
class Reached(ResultTable):
    """The model that reaches each loss with each E at least cost; arrays of shape loss.shape + experts.shape.

    `flops` are of training and inference, `memory_bytes` of weights and KV cache: infinite where no model reaches the
    loss, and its sizes NaN. `trusted` is False beyond the range guard; `notes` say which E are left out, and why.
    """

    _question: ClassVar[tuple[str, ...]] = ("loss", "experts")

    loss: FloatArray
    experts: FloatArray
    flops: FloatArray
    memory_bytes: FloatArray
    n_active: FloatArray
    n_total: FloatArray
    tokens: FloatArray
    tokens_per_parameter: FloatArray
    trusted: NDArray[np.bool_]
    notes: tuple[str, ...] = ()
    conditions: Conditions | None = field(default=None, repr=False, compare=False)

    @property
    def warnings(self) -> tuple[str, ...]:
        experts = np.where(np.isfinite(self.n_active), self.experts, np.nan)
        return (*self.notes, *range_warnings(self.conditions, self.n_active, self.tokens, experts))

    def _columns(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("notes", "conditions")}


@name_limits
def cheapest_budget(
    law: ChinchillaForm, loss: ArrayLike, experts: ArrayLike | None = None, *, force: bool = False, **limits: Any
) -> Reached:
    """Least FLOPs whose best model with E experts reaches `loss`, for each E (None: `law.default_experts()`).

    `limits`: see `Constraints`. ExtrapolationError where all answers for a loss are beyond the guard, unless `force`.
    """
    constraints = Constraints.of(law, **limits)
    target, e = positive("loss", loss), asked_experts(law, experts)
    target = target.reshape(target.shape + (1,) * e.ndim)

    def excess(log_flops: FloatArray, target: FloatArray, e: FloatArray) -> FloatArray:
        return optimal_widths(law, np.exp(log_flops), e, constraints).loss - target

    flops = np.exp(root(excess, *np.log(FLOPS_RANGE), target, e))
    known = np.isfinite(flops)
    found = optimal_widths(law, np.where(known, flops, 1e20), np.broadcast_to(e, known.shape), constraints)
    return _reached(law, target, e, flops, np.where(known, found.d_model, np.nan), constraints, force)


def flop_savings(
    law: ChinchillaForm, flops: ArrayLike, experts: ArrayLike | None = None, *, force: bool = False
) -> FloatArray:
    """Part of the dense compute-optimal budget that an MoE of equal loss saves: flops.shape + experts.shape.

    ExtrapolationError where one of the models lies beyond the range guard, unless `force`.
    """
    budget, e = positive("flops", flops), asked_experts(law, experts)
    dense = compute_optimal(law, budget, 1.0, force=force).loss
    found = cheapest_budget(law, dense, e, force=True)
    refuse_extrapolation(law.conditions, found.n_active, found.tokens, e, force)
    return np.asarray(1.0 - found.flops / budget.reshape(budget.shape + (1,) * e.ndim))


@name_limits
def smallest_memory(
    law: ChinchillaForm,
    flops: Any,
    loss: Any,
    experts: ArrayLike | None = None,
    *,
    force: bool = False,
    **limits: Any,
) -> Reached:
    """The least memory (weights and KV cache, bytes) with which `flops` reach `loss`; else as `cheapest_budget`."""
    constraints = Constraints.of(law, **limits)
    if constraints.max_memory_bytes is not None:
        raise ValueError("max_memory_bytes is what is asked for: leave it out")
    budget, target = float(positive("flops", flops)), float(positive("loss", loss))
    e = np.atleast_1d(asked_experts(law, experts))

    def excess(width: FloatArray, e: FloatArray) -> FloatArray:
        n = active_parameters(width, vocab_size=constraints.vocab_size)
        tokens = affordable_tokens(budget, n, constraints.inference_tokens)
        return np.asarray(law.loss(n, np.maximum(tokens, 1e-300), e)) - target

    best = optimal_widths(law, budget, e, constraints)
    smallest = np.full(e.shape, float(HEAD_DIM))
    width = root(excess, smallest, np.maximum(best.d_model, HEAD_DIM), e)
    width = np.where(excess(smallest, e) <= 0, smallest, width)
    width = np.where(best.fits & (best.loss <= target), width, np.nan)
    return _reached(law, np.asarray(target), e, np.full(e.shape, budget), width, constraints, force)


def _reached(
    law: ChinchillaForm,
    target: FloatArray,
    experts: FloatArray,
    flops: FloatArray,
    width: FloatArray,
    constraints: Constraints,
    force: bool,
) -> Reached:
    """The models of these widths (NaN: none) and budgets, checked against the law's range."""
    n_active = active_parameters(width, vocab_size=constraints.vocab_size)
    memory = constraints.weight_bytes(width, experts) + constraints.kv_bytes(width)
    tokens = np.where(np.isnan(width), np.nan, affordable_tokens(flops, n_active, constraints.inference_tokens))
    trusted = ~law.beyond_guard(n_active, tokens, experts)
    axes = tuple(range(width.ndim - experts.ndim, width.ndim))
    found = np.isfinite(width)
    lost = found & ~(found & trusted).any(axis=axes, keepdims=True)  # no E is left for this loss
    if lost.any():
        own = np.broadcast_to(experts, lost.shape)[lost]
        refuse_extrapolation(law.conditions, n_active[lost], tokens[lost], own, force)
    exists = has_optimum(law.chinchilla_coefficients(experts))
    notes = [f"E = {e:g} is left out: {why_no_optimum(law, e)}" for e in np.unique(experts[~exists]).tolist()]
    if np.any(found & ~trusted):
        notes.append("rows marked not trusted are too far outside the fitted range to act on")
    n_total = total_parameters(width, experts, vocab_size=constraints.vocab_size)
    spent, memory = (np.where(found, values, np.inf) for values in (flops, memory))
    sizes = (n_active, n_total, tokens, tokens / n_active)
    return Reached(target, experts, spent, memory, *sizes, trusted, tuple(notes), law.conditions)
