"""Questions asked backwards: which budget reaches a loss, which memory suffices, how many tokens make up for fewer
active parameters.

All follow from the joint law of Ludziejewski et al. 2025 and monotony: the best loss falls with the budget and with
the memory, so each question is one root of one variable, found by bisection for all E (and budgets) at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scaling_law.architecture import HEAD_DIM, VOCAB_SIZE, active_parameters, total_parameters, width_of_total
from scaling_law.laws import JointLaw
from scaling_law.optimum import Constraints, optimal_widths

FloatArray = NDArray[np.float64]
EXPERTS = (1, 2, 4, 8, 16, 32)
FLOPS_RANGE = (1e10, 1e40)


def cheapest_budget(law: JointLaw, loss: ArrayLike, experts: ArrayLike = EXPERTS, **limits: Any) -> FloatArray:
    """Least FLOPs whose best model with E experts reaches `loss`; infinite where no budget does.

    `limits` are the fields of `optimum.Constraints` (memory, inference). Shape: loss.shape + experts.shape.
    """
    target = np.asarray(loss, float)
    if not np.all(np.isfinite(target) & (target > 0)):
        raise ValueError(f"loss={loss!r} must be positive and finite")
    constraints, e = Constraints(**limits), np.asarray(experts, float)
    target = target.reshape(target.shape + (1,) * e.ndim)

    def reached(log_flops: FloatArray) -> NDArray[np.bool_]:
        return optimal_widths(law, np.exp(log_flops), np.broadcast_to(e, log_flops.shape), constraints).loss <= target

    return _least(reached, np.broadcast_shapes(target.shape, e.shape), FLOPS_RANGE)


def flop_savings(law: JointLaw, flops: ArrayLike, experts: ArrayLike = EXPERTS) -> FloatArray:
    """Part of the dense compute-optimal budget that an MoE of equal loss saves: flops.shape + experts.shape."""
    budget = np.asarray(flops, float)
    dense = law.compute_optimal(budget, 1.0).loss
    needed = cheapest_budget(law, dense, experts)
    return np.asarray(1.0 - needed / budget.reshape(budget.shape + (1,) * np.ndim(experts)))


@dataclass(frozen=True)
class SmallestMemory:
    """For each E the least memory within which a model of the same budget reaches the loss (infinite: none does)."""

    experts: FloatArray
    memory_bytes: FloatArray
    n_total: FloatArray
    n_active: FloatArray
    tokens: FloatArray


def smallest_memory(
    law: JointLaw, flops: float, loss: float, experts: ArrayLike = EXPERTS, **limits: Any
) -> SmallestMemory:
    """The least memory (weights and KV cache, bytes) with which `flops` reach `loss`, for each E.

    To beat a given dense model: its loss, and its training FLOPs. `limits` as in `optimum.Constraints`, without
    max_memory_bytes.
    """
    if "max_memory_bytes" in limits:
        raise ValueError("max_memory_bytes is what is asked for: leave it out")
    constraints, e = Constraints(**limits), np.atleast_1d(np.asarray(experts, float))
    free = optimal_widths(law, flops, e, constraints)

    def at(width: FloatArray) -> NDArray[np.bool_]:
        n = active_parameters(width, vocab_size=constraints.vocab_size)
        tokens = flops / (6.0 * n) - constraints.inference_tokens / 3.0
        return np.asarray(np.asarray(law.loss(n, np.maximum(tokens, 1e-300), e)) <= loss)

    widest = np.where(free.fits, free.d_model, HEAD_DIM)
    low, high = np.full(e.shape, np.log(HEAD_DIM)), np.log(widest)
    possible = free.fits & (free.loss <= loss)
    for _ in range(100):
        middle = 0.5 * (low + high)
        ok = at(np.exp(middle))
        low, high = np.where(ok, low, middle), np.where(ok, middle, high)
    width = np.where(possible, np.where(at(np.full(e.shape, float(HEAD_DIM))), HEAD_DIM, np.exp(high)), np.nan)
    n_active = active_parameters(width, vocab_size=constraints.vocab_size)
    memory = constraints.weight_bytes(width, e) + constraints.kv_bytes(width)
    return SmallestMemory(
        experts=e,
        memory_bytes=np.where(possible, memory, np.inf),
        n_total=total_parameters(width, e, vocab_size=constraints.vocab_size),
        n_active=n_active,
        tokens=flops / (6.0 * n_active) - constraints.inference_tokens / 3.0,
    )


def tokens_to_reach(law: JointLaw, loss: ArrayLike, n_active: ArrayLike, experts: ArrayLike) -> FloatArray:
    """Training tokens with which a model of n_active and E reaches `loss` (closed form); infinite if none suffice."""
    m, mu, n, nu = law.chinchilla_coefficients(experts)
    left = (np.asarray(loss, float) - law.c - m * np.asarray(n_active, float) ** mu) / n
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(left > 0, np.abs(left) ** (1.0 / nu), np.inf)


@dataclass(frozen=True)
class MatchedMemory:
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

    @property
    def rule_holds(self) -> NDArray[np.bool_]:
        """Whether E times the tokens beat the dense model."""
        return np.asarray(self.gain > 0)


def matched_memory(
    law: JointLaw, flops: ArrayLike, experts: ArrayLike = (2, 4, 8), vocab_size: int = VOCAB_SIZE
) -> MatchedMemory:
    """Compare compute-optimal dense models of budgets `flops` with E-expert models of the same total parameters."""
    budget, e = np.asarray(flops, float), np.asarray(experts, float)
    dense = law.compute_optimal(budget, 1.0)
    expand = budget.shape + (1,) * e.ndim
    n, d, loss = (np.asarray(v).reshape(expand) for v in (dense.n_active, dense.tokens, dense.loss))
    n_active = active_parameters(width_of_total(n, e, vocab_size), vocab_size=vocab_size)
    ratio = tokens_to_reach(law, loss, n_active, e) / d
    gain = loss - law.loss(n_active, e * d, e)
    return MatchedMemory(budget, e, n, d, loss, n_active, ratio, gain)


def compute_matched(law: JointLaw, flops: ArrayLike, experts: ArrayLike = (2, 4, 8), **limits: Any) -> FloatArray:
    """Loss of the best model with the budget and at most the N_total of the compute-optimal dense one (Appendix
    "Compute- & Memory-Matched Models"): flops.shape + experts.shape."""
    budget, e = np.asarray(flops, float), np.asarray(experts, float)
    dense = law.compute_optimal(budget, 1.0).n_active
    base = Constraints(**limits)
    rows = [
        optimal_widths(law, f, e, replace(base, max_parameters=float(n))).loss
        for f, n in zip(np.atleast_1d(budget), np.atleast_1d(dense), strict=True)
    ]
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
