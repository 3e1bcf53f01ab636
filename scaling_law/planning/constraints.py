"""What limits a model, and what it is charged for: memory, parameters, served tokens (Ludziejewski et al. 2025,
Section "Compute and Memory Optimality": N_total + KV cache ≤ M, and 6 N_act D + 2 N_act D_inf = F)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypedDict, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hub.plain.tables import literal
from hub.plain.units import parse_bytes, parse_context, parse_count, parse_experts
from scaling_law.laws import ChinchillaForm, Law
from scaling_law.size.architecture import (
    VOCAB_SIZE,
    kv_cache_elements,
    size_in_width,
    solve_width,
    total_parameters,
    width_of_total,
)

FloatArray = NDArray[np.float64]
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
Quantity = float | str  # a number, or text such as "80GB", "7B", "16k"; see `hub.plain.units`


class Limits(TypedDict, total=False):
    """The fields of `Constraints` as keywords of a question; without a vocabulary that of the law's runs counts."""

    max_parameters: Quantity | None
    max_memory_bytes: Quantity | None
    kv_cache_tokens: Quantity
    bytes_per_parameter: float
    bytes_per_kv: float
    inference_tokens: Quantity
    kv_heads_ratio: float
    vocab_size: int | None


_PARSERS: dict[str, Callable[[str, str], float]] = {
    "max_parameters": parse_count,
    "max_memory_bytes": parse_bytes,
    "kv_cache_tokens": parse_context,
    "inference_tokens": parse_count,
}


@dataclass(frozen=True)
class Constraints:
    """Limits and costs of a model; None means no limit. Numbers, or text such as "80GB", "7B", "16k".

    Attributes:
        max_parameters: limit on N_total: 7e9 or "7B".
        max_memory_bytes: limit on weights and key-value cache: 80e9, "80GB" or "80GiB".
        kv_cache_tokens: tokens in the cache over all sequences: 16384 or "16k".
        bytes_per_parameter, bytes_per_kv: 2 for bf16.
        inference_tokens: tokens served over the model's life: 1e11 or "100B".
        kv_heads_ratio: key-value heads / heads (1: multi-head attention as in the paper, less: grouped queries, the
            parameter count left as it is).
        vocab_size: of the tokenizer; it sets the size of a width.

    ValueError names the field, the value and what is allowed.
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
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            if value is None and field.default is None:
                continue
            allowed = "finite and not negative" if field.default == 0 else "positive and finite"
            if field.default is None:
                allowed += ", or None for no limit"
            number = _PARSERS[name](value, name) if isinstance(value, str) and name in _PARSERS else value
            if isinstance(number, bool) or not isinstance(number, (int, float, np.integer, np.floating)):
                raise ValueError(f"{name}={literal(value)} is not a number; it must be {allowed}")
            number = float(number)
            if not (0 < number < np.inf or number == field.default == 0):
                raise ValueError(f"{name}={value if isinstance(value, str) else number!r} must be {allowed}")
            object.__setattr__(self, name, int(number) if name == "vocab_size" else number)
        if self.kv_heads_ratio > 1:
            raise ValueError(f"kv_heads_ratio={self.kv_heads_ratio!r} must be above 0 and at most 1")

    def weight_bytes(self, d_model: ArrayLike, experts: ArrayLike) -> Any:
        return self.bytes_per_parameter * total_parameters(d_model, experts, vocab_size=self.vocab_size)

    def kv_bytes(self, d_model: ArrayLike) -> Any:
        return self.bytes_per_kv * self.kv_heads_ratio * kv_cache_elements(d_model, self.kv_cache_tokens)

    def width_limit(self, experts: ArrayLike) -> Any:
        """The largest (fractional) d_model that both limits allow, for each E; infinite without limits."""
        limit = np.full(np.shape(experts), np.inf)
        if self.max_parameters is not None:
            limit = np.minimum(limit, width_of_total(self.max_parameters, experts, self.vocab_size))
        if self.max_memory_bytes is not None:
            linear, cubic = size_in_width(experts, self.vocab_size)
            b, cache = self.bytes_per_parameter, self.kv_bytes(1.0)  # the cache grows with the width squared
            limit = np.minimum(limit, solve_width(b * linear, cache, b * cubic, self.max_memory_bytes))
        return limit


def name_limits(function: FunctionT) -> FunctionT:
    """Decorator: the fields of `Constraints` in the place of `**limits` in a signature, for help and completion."""
    signature = inspect.signature(function)
    own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    defaults = {f.name: None if f.name == "vocab_size" else f.default for f in fields(Constraints)}  # None: the law's
    keywords = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=d) for name, d in defaults.items()]
    function.__signature__ = signature.replace(parameters=[*own, *keywords])  # type: ignore[attr-defined]
    return function


def asked_experts(law: ChinchillaForm, experts: Any) -> FloatArray:
    """The expert counts to answer for: as given, text such as "1,2,4-8", or the law's own for None."""
    if isinstance(experts, str):
        return np.array(parse_experts(experts), float)
    try:
        return np.asarray(law.default_experts() if experts is None else experts, float)
    except (TypeError, ValueError):
        raise ValueError(f"experts={experts!r} must be numbers of at least 1, or text such as '1,2,4-8'") from None


def positive(name: str, value: ArrayLike) -> FloatArray:
    """An array of positive finite numbers; text such as "1e22" or "100B" is read. ValueError for anything else."""
    try:
        array = np.asarray(parse_count(value, name) if isinstance(value, str) else value, float)
    except TypeError:
        raise ValueError(f"{name}={value!r} must be a positive and finite number") from None
    wrong = array[~((array > 0) & (array < np.inf))]
    if wrong.size:
        raise ValueError(f"{name}={float(wrong.flat[0]):g} must be positive and finite")
    return array
