"""Questions asked backwards: which budget reaches a loss, which memory suffices, how many tokens make up for fewer
active parameters.

All follow from the joint law of Ludziejewski et al. 2025 and monotony: the best loss falls with the budget and with
the memory, so each question is one root of one variable, found by bisection for all E (and budgets) at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hub.plain.tables import ResultTable
from scaling_law.laws.conditions import Conditions, range_warnings, refuse_extrapolation
from scaling_law.planning.constraints import Constraints
from scaling_law.planning.optimum import asked_experts, has_optimum, optimal_widths, positive, why_no_optimum
from scaling_law.size.architecture import (
    HEAD_DIM,
    active_parameters,
    affordable_tokens,
    total_parameters,
    width_of_total,
)

if TYPE_CHECKING:
    from scaling_law.laws import ChinchillaForm

FloatArray = NDArray[np.float64]
FLOPS_RANGE = (1.0, 1e40)


@dataclass(frozen=True)
class Reached(ResultTable):
    """The model that reaches each loss with each E at least cost; arrays of shape loss.shape + experts.shape.

    Attributes:
        experts, loss: as asked, and broadcast against each other; the loss in nats per token.
        flops, memory_bytes: training and inference FLOPs, and weights with KV cache; infinite where none reaches it.
        n_active, n_total, tokens: of that model; NaN where there is none.
        trusted: False beyond the range guard of the law.
        notes: which E are left out, and why.
    """

    _question: ClassVar[tuple[str, ...]] = ("loss", "experts")

    experts: FloatArray
    loss: FloatArray
    flops: FloatArray
    memory_bytes: FloatArray
    n_active: FloatArray
    n_total: FloatArray
    tokens: FloatArray
    trusted: NDArray[np.bool_]
    notes: tuple[str, ...] = ()
    conditions: Conditions | None = field(default=None, repr=False, compare=False)

    @property
    def tokens_per_parameter(self) -> FloatArray:
        """D / N_act."""
        return self.tokens / self.n_active

    @property
    def warnings(self) -> tuple[str, ...]:
        experts = np.where(np.isfinite(self.n_active), self.experts, np.nan)
        return (*self.notes, *range_warnings(self.conditions, self.n_active, self.tokens, experts))

    def _columns(self) -> dict[str, Any]:
        names = ("loss", "experts", "flops", "memory_bytes", "n_active", "n_total", "tokens", "tokens_per_parameter")
        return {name: getattr(self, name) for name in (*names, "trusted")}


def cheapest_budget(
    law: ChinchillaForm, loss: ArrayLike, experts: ArrayLike | None = None, *, force: bool = False, **limits: Any
) -> Reached:
    """Least FLOPs whose best model with E experts reaches `loss`, for each E (None: `law.default_experts()`).

    `limits` are the fields of `constraints.Constraints` (memory, inference, vocabulary). Raises ValueError for bad
    input; ExtrapolationError where every answer for a loss lies beyond the range guard, unless `force`.
    """
    target = positive("loss", loss)
    constraints = Constraints.of(law, **limits)
    e = asked_experts(law, experts)
    target = target.reshape(target.shape + (1,) * e.ndim)
    shape = np.broadcast_shapes(target.shape, e.shape)

    def reached(log_flops: FloatArray) -> NDArray[np.bool_]:
        return optimal_widths(law, np.exp(log_flops), np.broadcast_to(e, log_flops.shape), constraints).loss <= target

    flops = _least(reached, shape, FLOPS_RANGE)
    known = np.isfinite(flops)
    found = optimal_widths(law, np.where(known, flops, 1e20), np.broadcast_to(e, shape), constraints)
    return _reached(law, target, e, flops, np.where(known, found.d_model, np.nan), constraints, force)


def flop_savings(
    law: ChinchillaForm, flops: ArrayLike, experts: ArrayLike | None = None, *, force: bool = False
) -> FloatArray:
    """Part of the dense compute-optimal budget that an MoE of equal loss saves: flops.shape + experts.shape.

    Raises ExtrapolationError where one of the models lies beyond the range guard, unless `force`.
    """
    budget = positive("flops", flops)
    e = asked_experts(law, experts)
    dense = law.compute_optimal(budget, 1.0, force=force).loss
    found = cheapest_budget(law, dense, e, force=True)
    refuse_extrapolation(law.conditions, found.n_active, found.tokens, e, force)
    return np.asarray(1.0 - found.flops / budget.reshape(budget.shape + (1,) * e.ndim))


def smallest_memory(
    law: ChinchillaForm,
    flops: Any,
    loss: Any,
    experts: ArrayLike | None = None,
    *,
    force: bool = False,
    **limits: Any,
) -> Reached:
    """The least memory (weights and KV cache, bytes) with which `flops` reach `loss`, for each E.

    To beat a given dense model: its loss, and its training FLOPs. `limits` as in `constraints.Constraints`, without
    max_memory_bytes. Raises ValueError for bad input; ExtrapolationError where every answer lies beyond the range
    guard, unless `force`.
    """
    if "max_memory_bytes" in limits:
        raise ValueError("max_memory_bytes is what is asked for: leave it out")
    budget, target = float(positive("flops", flops)), float(positive("loss", loss))
    constraints = Constraints.of(law, **limits)
    e = np.atleast_1d(asked_experts(law, experts))
    free = optimal_widths(law, budget, e, constraints)

    def at(width: FloatArray) -> NDArray[np.bool_]:
        n = active_parameters(width, vocab_size=constraints.vocab_size)
        tokens = affordable_tokens(budget, n, constraints.inference_tokens)
        return np.asarray(np.asarray(law.loss(n, np.maximum(tokens, 1e-300), e)) <= target)

    widest = np.where(free.fits, free.d_model, HEAD_DIM)
    low, high = np.full(e.shape, np.log(HEAD_DIM)), np.log(widest)
    possible = free.fits & (free.loss <= target)
    for _ in range(100):
        middle = 0.5 * (low + high)
        ok = at(np.exp(middle))
        low, high = np.where(ok, low, middle), np.where(ok, middle, high)
    width = np.where(possible, np.where(at(np.full(e.shape, float(HEAD_DIM))), HEAD_DIM, np.exp(high)), np.nan)
    spent = np.where(possible, budget, np.inf)
    return _reached(law, np.asarray(target), e, spent, width, constraints, force)


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
    trusted = np.broadcast_to(~np.asarray(law.beyond_guard(n_active, tokens, experts), bool), width.shape)
    axes = tuple(range(width.ndim - experts.ndim, width.ndim))
    found = np.isfinite(width)
    if np.any(found.any(axis=axes) & ~(found & trusted).any(axis=axes)):
        lost = found & ~(found & trusted).any(axis=axes, keepdims=True)
        refuse_extrapolation(
            law.conditions, n_active[lost], tokens[lost], np.broadcast_to(experts, lost.shape)[lost], force
        )
    exists = has_optimum(law.chinchilla_coefficients(experts))
    notes = [f"E = {e:g} is left out: {why_no_optimum(law, e)}" for e in np.unique(experts[~exists]).tolist()]
    if np.any(found & ~trusted):
        notes.append("rows marked not trusted are too far outside the fitted range to act on")
    return Reached(
        experts=experts,
        loss=target,
        flops=flops,
        memory_bytes=np.where(found, memory, np.inf),
        n_active=n_active,
        n_total=total_parameters(width, experts, vocab_size=constraints.vocab_size),
        tokens=tokens,
        trusted=trusted,
        notes=tuple(notes),
        conditions=law.conditions,
    )


def tokens_to_reach(
    law: ChinchillaForm, loss: ArrayLike, n_active: ArrayLike, experts: ArrayLike, *, force: bool = False
) -> FloatArray:
    """Training tokens with which a model of n_active and E reaches `loss` (closed form); infinite if none suffice.

    Raises ExtrapolationError where one of the finite answers lies beyond the range guard, unless `force`.
    """
    m, mu, n, nu = law.chinchilla_coefficients(experts)
    left = (np.asarray(loss, float) - law.irreducible_loss - m * np.asarray(n_active, float) ** mu) / n
    with np.errstate(divide="ignore", invalid="ignore"):
        tokens = np.where(left > 0, np.abs(left) ** (1.0 / nu), np.inf)
    refuse_extrapolation(law.conditions, n_active, np.where(np.isfinite(tokens), tokens, np.nan), experts, force)
    return tokens


@dataclass(frozen=True)
class MatchedMemory(ResultTable):
    """E-expert models with the N_total of a dense one: arrays of shape flops.shape + experts.shape.

    `token_ratio` is the least multiple of the dense model's tokens with which the MoE reaches its loss; `gain` the
    dense loss less that of the MoE on E times the tokens (the paper's rule of thumb: positive for E ≤ 8).
    """

    flops: FloatArray
    experts: FloatArray
    dense_n: FloatArray
    dense_tokens: FloatArray
    dense_loss: FloatArray
    n_active: FloatArray
    token_ratio: FloatArray
    gain: FloatArray
    conditions: Conditions | None = field(default=None, repr=False, compare=False)

    @property
    def warnings(self) -> tuple[str, ...]:
        found = range_warnings(self.conditions, self.n_active, self.experts * self.dense_tokens, self.experts)
        dense = range_warnings(self.conditions, self.dense_n, self.dense_tokens, 1.0)
        return tuple(dict.fromkeys([*found, *(f"dense model: {warning}" for warning in dense)]))

    def _columns(self) -> dict[str, Any]:
        flops = self.flops.reshape(self.flops.shape + (1,) * self.experts.ndim)
        names = ("experts", "n_active", "token_ratio", "gain", "dense_n", "dense_tokens", "dense_loss")
        return {"flops": flops} | {name: getattr(self, name) for name in names}

    @property
    def rule_holds(self) -> NDArray[np.bool_]:
        """Whether E times the tokens beat the dense model."""
        return np.asarray(self.gain > 0)


def matched_memory(
    law: ChinchillaForm,
    flops: ArrayLike,
    experts: ArrayLike = (2, 4, 8),
    vocab_size: int | None = None,
    *,
    force: bool = False,
) -> MatchedMemory:
    """Compare compute-optimal dense models of budgets `flops` with E-expert models of the same total parameters.

    `vocab_size` None is that of the law's runs.
    Raises ExtrapolationError where a dense model, or one on E times its tokens, lies beyond the range guard, unless
    `force`.
    """
    budget, e = positive("flops", flops), np.asarray(experts, float)
    dense = law.compute_optimal(budget, 1.0, force=force)
    expand = budget.shape + (1,) * e.ndim
    n, d, loss = (np.asarray(v).reshape(expand) for v in (dense.n_active, dense.tokens, dense.loss))
    vocabulary = law.vocab_size if vocab_size is None else vocab_size
    n_active = active_parameters(width_of_total(n, e, vocabulary), vocab_size=vocabulary)
    refuse_extrapolation(law.conditions, n_active, e * d, e, force)
    ratio = tokens_to_reach(law, loss, n_active, e, force=True) / d
    gain = loss - law.loss(n_active, e * d, e)
    return MatchedMemory(budget, e, n, d, loss, n_active, ratio, gain, law.conditions)


def compute_matched(
    law: ChinchillaForm, flops: ArrayLike, experts: ArrayLike = (2, 4, 8), *, force: bool = False, **limits: Any
) -> FloatArray:
    """Loss of the best model with the budget and at most the N_total of the compute-optimal dense one (Appendix
    "Compute- & Memory-Matched Models"): flops.shape + experts.shape.

    Raises ExtrapolationError where one of the models lies beyond the range guard, unless `force`.
    """
    budget, e = positive("flops", flops), np.asarray(experts, float)
    dense = law.compute_optimal(budget, 1.0, force=force).n_active
    base = Constraints.of(law, **limits)
    rows = []
    for f, n in zip(np.atleast_1d(budget), np.atleast_1d(dense), strict=True):
        found = optimal_widths(law, f, e, replace(base, max_parameters=float(n)))
        refuse_extrapolation(law.conditions, found.n_active, found.tokens, e, force)
        rows.append(found.loss)
    return np.array(rows).reshape(budget.shape + e.shape)


def _least(
    reached: Callable[[FloatArray], NDArray[np.bool_]], shape: tuple[int, ...], span: tuple[float, float]
) -> FloatArray:
    """Least value in `span` from which `reached` (monotone, of logarithms) is True; infinite where it never is."""
    low, high = np.full(shape, np.log(span[0])), np.full(shape, np.log(span[1]))
    possible = reached(high)
    for _ in range(70):
        middle = 0.5 * (low + high)
        ok = reached(middle)
        low, high = np.where(ok, low, middle), np.where(ok, middle, high)
    return np.where(possible, np.exp(high), np.inf)
