"""What a model costs: parameters, FLOPs and KV cache (Ludziejewski et al. 2025, Appendix "Technical Details").

    N_total = 2 d V + (4 + 9 E) n_blocks d²        N_act = 2 d V + 13 n_blocks d²
    training 6 N_act D FLOPs, inference 2 N_act D FLOPs, KV cache 2 T n_blocks d elements (multi-head attention)

A block has 4 d² of attention and 9 d² per SwiGLU expert of width 3 d, one active per token. Embedding and head are
untied, router and norms neglected. The paper's sizes follow n_blocks = n_heads = d / 64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

VOCAB_SIZE = 50257  # GPT-2's tokenizer
HEAD_DIM = 64  # the d / 64 rule for the number of blocks and of heads
ATTENTION = 4  # d² units of parameters per block: query, key, value, output
EXPERT = 9  # d² units per expert: three matrices of d × 3 d
ADAM_BYTES = 12.0  # per parameter in training: fp32 master weights and two moments
GRADIENT_BYTES = 4.0


def active_parameters(d_model: ArrayLike, n_blocks: ArrayLike | None = None, vocab_size: float = VOCAB_SIZE) -> Any:
    """N_act of models of width d_model (broadcasts; d_model may be fractional). n_blocks None means d_model / 64."""
    return total_parameters(d_model, 1, n_blocks, vocab_size)


def total_parameters(
    d_model: ArrayLike, experts: ArrayLike, n_blocks: ArrayLike | None = None, vocab_size: float = VOCAB_SIZE
) -> Any:
    """N_total of models with `experts` experts of which one is active (broadcasts like `active_parameters`)."""
    d, blocks = _width_and_depth(d_model, n_blocks)
    return 2.0 * d * vocab_size + (ATTENTION + EXPERT * np.asarray(experts, float)) * blocks * d * d


def non_embedding_parameters(d_model: ArrayLike, n_blocks: ArrayLike | None = None) -> Any:
    """13 n_blocks d²."""
    d, blocks = _width_and_depth(d_model, n_blocks)
    return (ATTENTION + EXPERT) * blocks * d * d


def kv_cache_elements(d_model: ArrayLike, tokens: ArrayLike, n_blocks: ArrayLike | None = None) -> Any:
    """2 T n_blocks d, for multi-head attention."""
    d, blocks = _width_and_depth(d_model, n_blocks)
    return 2.0 * np.asarray(tokens, float) * blocks * d


def training_flops(n_active: ArrayLike, tokens: ArrayLike) -> Any:
    return 6.0 * np.asarray(n_active) * np.asarray(tokens)


def inference_flops(n_active: ArrayLike, tokens: ArrayLike) -> Any:
    return 2.0 * np.asarray(n_active, float) * np.asarray(tokens, float)


def affordable_tokens(flops: ArrayLike, n_active: ArrayLike, inference_tokens: ArrayLike = 0.0) -> Any:
    """Training tokens D that 6 N D + 2 N D_inf = F leaves (negative where inference alone exceeds the budget)."""
    return np.asarray(flops) / training_flops(n_active, 1.0) - np.asarray(inference_tokens) / 3.0


def size_in_width(experts: ArrayLike, vocab_size: float = VOCAB_SIZE) -> tuple[float, Any]:
    """The coefficients of d and d³ in N_total under the d / 64 rule, for `experts` experts."""
    return 2.0 * vocab_size, (ATTENTION + EXPERT * np.asarray(experts, float)) / HEAD_DIM


def variables_of_width(
    d_model: ArrayLike, experts: ArrayLike, granularity: ArrayLike = 1.0, vocab_size: float = VOCAB_SIZE
) -> dict[str, Any]:
    """What laws may depend on, for models under the d / 64 rule (broadcasts; differentiable by a complex step).

    `experts` is total over active feed-forward width, E; each of the E·G experts has 1/G of the dense width (G =
    `granularity`), and G are active: the parameters depend on E alone. `Architecture.variables` has the same names.
    """
    (linear, active), (_, total) = size_in_width(1.0, vocab_size), size_in_width(experts, vocab_size)
    d = np.asarray(d_model)
    embedding, cube = linear * d, d**3
    return {
        "n_active": embedding + active * cube,
        "n_total": embedding + total * cube,
        "n_active_non_embedding": active * cube,
        "n_total_non_embedding": total * cube,
        "experts": np.asarray(experts, float),
        "density": 1.0 / np.asarray(experts, float),
        "granularity": np.asarray(granularity, float),
        "experts_per_token": np.asarray(granularity, float),
    }


EXPERT_VARIABLES = {"experts", "density", "n_total", "n_total_non_embedding"}  # of those, what E decides


def is_size(variable: str) -> bool:
    """Whether a variable of a law counts parameters or tokens, with which a loss falls."""
    return variable == "tokens" or variable.startswith("n_")


def width_of_active(n_active: ArrayLike, vocab_size: float = VOCAB_SIZE) -> Any:
    """The fractional d_model of this N_act under the d / 64 rule."""
    return width_of_total(n_active, 1, vocab_size)


def width_of_total(n_total: ArrayLike, experts: ArrayLike, vocab_size: float = VOCAB_SIZE) -> Any:
    """The fractional d_model of this N_total under the d / 64 rule."""
    linear, cubic = size_in_width(experts, vocab_size)
    return solve_width(linear, 0.0, cubic, n_total)


def solve_width(linear: ArrayLike, quadratic: ArrayLike, cubic: ArrayLike, value: ArrayLike) -> Any:
    """The d > 0 with linear·d + quadratic·d² + cubic·d³ = value (all ≥ 0, broadcasts), as for every size here.

    Newton's method cannot fail: from the right of the root of a convex increasing function it descends monotonically.
    """
    a, b, c, target = np.broadcast_arrays(*(np.asarray(v, float) for v in (linear, quadratic, cubic, value)))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        roots = ((a, target / a), (b, np.sqrt(target / b)), (c, np.cbrt(target / c)))
        d = np.min([np.where(factor > 0, root, np.inf) for factor, root in roots], axis=0)
        for _ in range(60):
            step = (d * (a + d * (b + d * c)) - target) / (a + d * (2 * b + 3 * d * c))
            d = d - step
            if not np.any(np.abs(step) > 1e-14 * np.abs(d)):
                break
    return d if d.ndim else float(d)


def _width_and_depth(d_model: ArrayLike, n_blocks: ArrayLike | None) -> tuple[NDArray[Any], NDArray[Any]]:
    d = np.asarray(d_model, float)
    return d, (d / HEAD_DIM if n_blocks is None else np.asarray(n_blocks, float))


@dataclass(frozen=True)
class Architecture:
    """A model that can be built; `n_blocks` and `n_heads` default to d_model / 64. ValueError names the field."""

    d_model: int
    experts: int = 1
    n_blocks: int | None = None
    n_heads: int | None = None
    vocab_size: int = VOCAB_SIZE

    def __post_init__(self) -> None:
        for name in ("d_model", "experts", "n_blocks", "n_heads", "vocab_size"):
            value = getattr(self, name)
            if value is None:
                if isinstance(self.d_model, int) and self.d_model % HEAD_DIM:
                    raise ValueError(f"d_model={self.d_model} is not a multiple of {HEAD_DIM}: give {name} explicitly")
                value = self.d_model // HEAD_DIM
            if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name}={value!r} must be an integer of at least 1")
            object.__setattr__(self, name, int(value))
        if self.d_model % self.heads:
            raise ValueError(f"d_model={self.d_model} is not divisible by n_heads={self.n_heads}")

    @property
    def blocks(self) -> int:
        """n_blocks, known to be an integer."""
        return int(self.n_blocks or 0)

    @property
    def heads(self) -> int:
        """n_heads, known to be an integer."""
        return int(self.n_heads or 0)

    @property
    def shape(self) -> dict[str, int]:
        """As records and configurations name it."""
        return {"d_model": self.d_model, "n_blocks": self.blocks, "n_heads": self.heads, "experts": self.experts}

    @property
    def n_active(self) -> int:
        """Parameters that one token uses, with embedding and head."""
        return round(active_parameters(self.d_model, self.blocks, self.vocab_size))

    @property
    def n_total(self) -> int:
        return round(total_parameters(self.d_model, self.experts, self.blocks, self.vocab_size))

    def training_flops(self, tokens: float) -> float:
        return float(training_flops(self.n_active, tokens))
