"""The best model for a budget: compute-optimal in closed form, and under memory and inference constraints.

Ludziejewski et al. 2025 (arXiv 2502.05172), Section "Compute and Memory Optimality":

    minimise L(N_act, D, E)   subject to   6 N_act D + 2 N_act D_inf = F,   N_total + KV cache ≤ M

Along the budget, and for a fixed E, the loss is a convex function of ln N_act, and every size grows with d_model.
So the constrained optimum is the compute optimum where it fits, else the largest model that fits: an undertrained
model is both larger and worse. For the same reason the best architecture that exists is one of the two neighbours
of the continuous optimum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scaling_law.architecture import (
    ATTENTION,
    EXPERT,
    HEAD_DIM,
    VOCAB_SIZE,
    Architecture,
    active_parameters,
    affordable_tokens,
    inference_flops,
    kv_cache_elements,
    solve_width,
    total_parameters,
    training_flops,
    width_of_active,
)
from scaling_law.laws import JointLaw, chinchilla_optimum
from scaling_law.learning_rate import LearningRateLaw
from scaling_law.optimal_table import OptimalRow, OptimalTable
from scaling_law.units import format_bytes, format_count

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class ComputeOptimum:
    """Compute-optimal configurations; arrays of shape flops.shape + experts.shape (parameters, tokens, nats)."""

    flops: FloatArray
    experts: FloatArray
    n_active: FloatArray
    tokens: FloatArray
    loss: FloatArray


def compute_optimal(law: JointLaw, flops: ArrayLike, experts: ArrayLike) -> ComputeOptimum:
    """Closed form for every budget and E. ValueError for budgets that are not positive and finite, or E < 1."""
    budget = _positive("flops", flops)
    e = np.asarray(experts, float)
    coefficients = law.chinchilla_coefficients(e)
    _check_shape(coefficients)
    expanded = budget.reshape(budget.shape + (1,) * e.ndim)
    n_active, tokens = chinchilla_optimum(*coefficients, expanded / 6.0)
    return ComputeOptimum(budget, e, n_active, tokens, law.loss(n_active, tokens, e))


@dataclass(frozen=True)
class Constraints:
    """What limits a model, and what it is charged for. None means no limit. Bytes, parameters, tokens.

    `kv_cache_tokens` is over all sequences of a batch; `kv_heads_ratio` is key-value heads / heads (1: multi-head
    attention as in the paper, less: grouped queries, the parameter count left as it is).
    """

    max_parameters: float | None = None
    max_memory_bytes: float | None = None
    kv_cache_tokens: float = 0.0
    bytes_per_parameter: float = 2.0
    bytes_per_kv: float = 2.0
    inference_tokens: float = 0.0
    kv_heads_ratio: float = 1.0
    vocab_size: int = VOCAB_SIZE

    def __post_init__(self) -> None:
        for name in ("max_parameters", "max_memory_bytes"):
            value = getattr(self, name)
            if value is not None and not (np.isfinite(value) and value > 0):
                raise ValueError(f"{name}={value!r} must be positive and finite, or None for no limit")
        for name in ("kv_cache_tokens", "inference_tokens"):
            value = getattr(self, name)
            if not (np.isfinite(value) and value >= 0):
                raise ValueError(f"{name}={value!r} must be finite and not negative")
        for name in ("bytes_per_parameter", "bytes_per_kv", "vocab_size"):
            value = getattr(self, name)
            if not (np.isfinite(value) and value > 0):
                raise ValueError(f"{name}={value!r} must be positive and finite")
        if not 0 < self.kv_heads_ratio <= 1:
            raise ValueError(f"kv_heads_ratio={self.kv_heads_ratio!r} must be above 0 and at most 1")

    def weight_bytes(self, d_model: ArrayLike, experts: ArrayLike) -> Any:
        return self.bytes_per_parameter * total_parameters(d_model, experts, vocab_size=self.vocab_size)

    def kv_bytes(self, d_model: ArrayLike) -> Any:
        return self.bytes_per_kv * self.kv_heads_ratio * kv_cache_elements(d_model, self.kv_cache_tokens)

    def width_limit(self, experts: ArrayLike) -> Any:
        """The largest (fractional) d_model that both limits allow, for each E; infinite without limits."""
        e = np.asarray(experts, float)
        linear, cubic = 2.0 * self.vocab_size, (ATTENTION + EXPERT * e) / HEAD_DIM
        limit = np.full(e.shape, np.inf)
        if self.max_parameters is not None:
            limit = np.minimum(limit, solve_width(linear, 0.0, cubic, self.max_parameters))
        if self.max_memory_bytes is not None:
            b = self.bytes_per_parameter
            quadratic = self.bytes_per_kv * self.kv_heads_ratio * 2.0 * self.kv_cache_tokens / HEAD_DIM
            limit = np.minimum(limit, solve_width(b * linear, quadratic, b * cubic, self.max_memory_bytes))
        return limit


@dataclass(frozen=True)
class WidthOptimum:
    """The optimum as arrays that broadcast over budgets and E. `fits` is False where even d_model = 64 does not."""

    d_model: FloatArray
    n_active: FloatArray
    tokens: FloatArray
    loss: FloatArray
    truncated: NDArray[np.bool_]
    fits: NDArray[np.bool_]


def optimal_widths(
    law: JointLaw, flops: ArrayLike, experts: ArrayLike, constraints: Constraints, integral: bool = False
) -> WidthOptimum:
    """The constrained optimum for each pair of the broadcast of `flops` and `experts`, vectorised.

    `truncated` is True where a limit, not compute, decides the size. Where `fits` is False the loss is infinite.
    """
    budget, e = np.broadcast_arrays(_positive("flops", flops), np.asarray(experts, float))
    vocab = constraints.vocab_size
    coefficients = law.chinchilla_coefficients(e)
    _check_shape(coefficients)
    limit = constraints.width_limit(e)
    free = width_of_active(_unconstrained(coefficients, budget, constraints.inference_tokens), vocab)
    truncated = free > limit
    width = np.maximum(np.minimum(free, limit), HEAD_DIM)
    fits = limit >= HEAD_DIM * (1 - 1e-12)

    def loss_at(d: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        n_active = active_parameters(d, vocab_size=vocab)
        tokens = affordable_tokens(budget, n_active, constraints.inference_tokens)
        m, mu, n, nu = coefficients
        with np.errstate(invalid="ignore"):
            loss = m * n_active**mu + n * np.where(tokens > 0, tokens, np.nan) ** nu + law.c
        return n_active, tokens, np.where((tokens > 0) & fits, loss, np.inf)

    if integral:
        largest = np.maximum(np.where(np.isfinite(limit), np.floor(limit * (1 + 1e-12) / HEAD_DIM), np.inf), 1)
        below = np.maximum(np.floor(width / HEAD_DIM), 1)
        below, above = HEAD_DIM * np.minimum(below, largest), HEAD_DIM * np.minimum(below + 1, largest)
        width = np.where(loss_at(above)[2] < loss_at(below)[2], above, below)
    n_active, tokens, loss = loss_at(width)
    return WidthOptimum(width, n_active, tokens, loss, truncated, np.isfinite(loss))


def optimal(
    law: JointLaw,
    flops: float,
    experts: ArrayLike | None = (1, 2, 4, 8, 16, 32),
    *,
    integral: bool = False,
    learning_rate_law: LearningRateLaw | None = None,
    **limits: Any,
) -> OptimalTable:
    """The best model for each E, and the best of all, for `flops` training (and inference) FLOPs.

    `limits` are the fields of `Constraints`. With `integral` only architectures with d_model a multiple of 64 and
    n_blocks = n_heads = d_model / 64 count. Raises ValueError for bad input, and where nothing fits, naming the least
    memory that would.
    """
    constraints = Constraints(**limits)
    columns = np.atleast_1d(np.asarray((1, 2, 4, 8, 16, 32) if experts is None else experts, float))
    if columns.ndim != 1 or not columns.size:
        raise ValueError(f"experts={experts!r} must be one number or a list of them")
    if integral and np.any(columns != np.round(columns)):
        raise ValueError(f"experts={experts!r}: integral=True needs whole numbers")
    found = optimal_widths(law, float(_positive("flops", flops)), columns, constraints, integral)
    if not found.fits.any():
        raise ValueError(_nothing_fits(float(flops), columns, constraints))
    rates = learning_rate_law or LearningRateLaw.published()
    bounds = _intervals(law, found, columns)
    rows = tuple(
        _row(law, found, i, float(columns[i]), constraints, rates, integral, bounds)
        for i in range(len(columns))
        if found.fits[i]
    )
    left_out = tuple(float(e) for e in columns[~found.fits])
    return OptimalTable(rows, float(flops), constraints, integral, left_out, _title(law))


def _unconstrained(coefficients: Any, budget: FloatArray, inference_tokens: float) -> FloatArray:
    """N_act of lowest loss along 6 N D + 2 N D_inf = budget; closed form without inference, Newton with it."""
    m, mu, n, nu = coefficients
    optimum = chinchilla_optimum(m, mu, n, nu, budget / 6.0)[0]
    if inference_tokens == 0:
        return np.asarray(optimum)
    # The derivative by x = ln N increases; its root lies below the optimum without inference and below D = 0.
    high = np.minimum(np.log(optimum), np.log(budget / (2.0 * inference_tokens)))
    low, x = high - 60.0, high - 1e-3
    for _ in range(200):
        log_d = np.log(np.maximum(affordable_tokens(budget, np.exp(x), inference_tokens), 1e-300))
        ratio = np.exp(np.log(budget / 6.0) - x - log_d)  # (D + D_inf / 3) / D
        rising = -n * nu * np.exp(nu * log_d) * ratio
        slope = m * mu * np.exp(mu * x) + rising
        curvature = m * mu * mu * np.exp(mu * x) + rising * (ratio * (1.0 - nu) - 1.0)
        low, high = np.where(slope < 0, x, low), np.where(slope < 0, high, x)
        step = x - slope / np.maximum(curvature, 1e-300)
        new = np.where((step > low) & (step < high), step, 0.5 * (low + high))
        moved, x = np.abs(new - x), new
        if np.all(moved < 1e-12 * np.abs(x)):
            break
    return np.asarray(np.exp(x))


def _row(
    law: JointLaw,
    found: WidthOptimum,
    i: int,
    experts: float,
    constraints: Constraints,
    rates: LearningRateLaw,
    integral: bool,
    bounds: tuple[FloatArray, FloatArray] | None,
) -> OptimalRow:
    d, n, tokens = float(found.d_model[i]), float(found.n_active[i]), float(found.tokens[i])
    warnings = law.conditions.warnings(n, tokens, experts) if law.conditions else []
    vocab = constraints.vocab_size
    return OptimalRow(
        experts=experts,
        d_model=d,
        n_active=n,
        n_total=float(total_parameters(d, experts, vocab_size=vocab)),
        tokens=tokens,
        tokens_per_parameter=tokens / n,
        weight_bytes=float(constraints.weight_bytes(d, experts)),
        kv_cache_bytes=float(constraints.kv_bytes(d)),
        training_flops=float(training_flops(n, tokens)),
        inference_flops=float(inference_flops(n, constraints.inference_tokens)),
        loss=float(found.loss[i]),
        loss_interval=None if bounds is None else (float(bounds[0][i]), float(bounds[1][i])),
        learning_rate=float(rates.at(rates.counted_parameters(d, vocab_size=vocab), experts)),
        limited_by="memory" if bool(found.truncated[i]) else "compute",
        warnings=tuple(warnings),
        trusted=law.conditions is None or not bool(law.conditions.beyond_guard(n, tokens)),
        architecture=Architecture(round(d), int(experts), vocab_size=vocab) if integral else None,
    )


def _intervals(law: JointLaw, found: WidthOptimum, experts: FloatArray) -> tuple[FloatArray, FloatArray] | None:
    if law.draws is None:
        return None
    n, d = np.where(found.fits, found.n_active, 1.0), np.where(found.fits, found.tokens, 1.0)
    low, high = np.quantile(law.loss_draws(n, d, experts), [0.025, 0.975], axis=0)
    return low, high


def _nothing_fits(flops: float, experts: FloatArray, constraints: Constraints) -> str:
    e = float(experts.min())
    memory = float(constraints.weight_bytes(HEAD_DIM, e) + constraints.kv_bytes(HEAD_DIM))
    parameters = float(total_parameters(HEAD_DIM, e, vocab_size=constraints.vocab_size))
    message = (
        f"nothing fits: the smallest model (d_model {HEAD_DIM}, E = {e:g}) has {format_count(parameters)} parameters"
    )
    message += f" and needs at least {format_bytes(memory)} ({memory:.0f} bytes) with its KV cache"
    smallest = active_parameters(HEAD_DIM, vocab_size=constraints.vocab_size)
    if affordable_tokens(flops, smallest, constraints.inference_tokens) <= 0:
        needed = float(inference_flops(smallest, constraints.inference_tokens))
        message = (
            f"nothing fits: inference_tokens={constraints.inference_tokens:g} alone cost at least {needed:.3g} FLOPs,"
        )
        message += f" which leaves nothing of flops={flops:g} for training"
    return message


def _title(law: JointLaw) -> str:
    return law.conditions.provenance if law.conditions else "fitted law"


def _check_shape(coefficients: tuple[Any, Any, Any, Any]) -> None:
    m, mu, n, nu = (np.asarray(c) for c in coefficients)
    if np.any(mu >= 0) or np.any(nu >= 0) or np.any(m <= 0) or np.any(n <= 0):
        raise ValueError(
            "this law has no compute optimum for some of these experts: its loss does not fall with both N and D "
            f"(exponents of N {np.round(mu, 4)}, of D {np.round(nu, 4)}); the fit is not to be used there"
        )


def _positive(name: str, value: ArrayLike) -> FloatArray:
    array = np.asarray(value, float)
    if not np.all((array > 0) & (array < np.inf)):
        raise ValueError(f"{name}={value!r} must be positive and finite")
    return array
