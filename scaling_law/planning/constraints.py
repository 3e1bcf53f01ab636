"""What limits a model, and what it is charged for: memory, parameters, served tokens (Ludziejewski et al. 2025,
Section "Compute and Memory Optimality": N_total + KV cache ≤ M, and 6 N_act D + 2 N_act D_inf = F)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from hub.plain.units import parse_bytes, parse_context, parse_count
from scaling_law.size.architecture import (
    ATTENTION,
    EXPERT,
    HEAD_DIM,
    VOCAB_SIZE,
    kv_cache_elements,
    solve_width,
    total_parameters,
)

if TYPE_CHECKING:
    from scaling_law.laws import Law

Quantity = float | str  # a number, or text such as "80GB", "7B", "16k"; see `hub.plain.units`


@dataclass(frozen=True)
class Constraints:
    """What limits a model, and what it is charged for. None means no limit. Bytes, parameters, tokens.

    Limits and tokens may be text: `max_memory_bytes="80GB"`, `max_parameters="7B"`, `kv_cache_tokens="16k"` (16,384),
    `inference_tokens="1T"`; the fields hold numbers. `kv_cache_tokens` is over all sequences of a batch;
    `kv_heads_ratio` is key-value heads / heads (1: multi-head attention as in the paper, less: grouped queries, the
    parameter count left as it is). ValueError names the field, the value and what is allowed.
    """

    max_parameters: float | None = None
    max_memory_bytes: float | None = None
    kv_cache_tokens: float = 0.0
    bytes_per_parameter: float = 2.0
    bytes_per_kv: float = 2.0
    inference_tokens: float = 0.0
    kv_heads_ratio: float = 1.0
    vocab_size: int = VOCAB_SIZE

    @classmethod
    def of(cls, law: Law, **limits: Any) -> Constraints:
        """The constraints of a question to `law`: without a `vocab_size` (or with None) sizes count the law's own."""
        given = limits.pop("vocab_size", None)
        return cls(**limits, vocab_size=law.vocab_size if given is None else given)

    def __post_init__(self) -> None:
        self._read("max_parameters", parse_count, "positive and finite, or None for no limit", positive=True)
        self._read("max_memory_bytes", parse_bytes, "positive and finite, or None for no limit", positive=True)
        self._read("kv_cache_tokens", parse_context, "finite and not negative")
        self._read("inference_tokens", parse_count, "finite and not negative")
        for name in ("bytes_per_parameter", "bytes_per_kv", "vocab_size"):
            self._read(name, None, "positive and finite", positive=True)
        self._read("kv_heads_ratio", None, "above 0 and at most 1", positive=True)
        if self.kv_heads_ratio > 1:
            raise ValueError(f"kv_heads_ratio={self.kv_heads_ratio!r} must be above 0 and at most 1")

    def _read(
        self, name: str, parse: Callable[[str, str], float] | None, allowed: str, *, positive: bool = False
    ) -> None:
        """Put the number that the field means in its place."""
        value = getattr(self, name)
        if value is None and "None" in allowed:
            return
        if isinstance(value, str) and parse is not None:
            number = parse(value, name)
        elif isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
            number = float(value)
        else:
            raise ValueError(f"{name}={value!r} is not a number; it must be {allowed}")
        if not np.isfinite(number) or number < 0 or (positive and number == 0):
            raise ValueError(f"{name}={value if isinstance(value, str) else number!r} must be {allowed}")
        object.__setattr__(self, name, int(number) if name == "vocab_size" else number)

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
