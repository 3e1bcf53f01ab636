"""Models as arrays: the sizes of an `Architecture` that memory, traffic and time need."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from scaling_law.size.architecture import HEAD_DIM, VOCAB_SIZE, Architecture, Forward, Span, variables_of_width


@dataclass(frozen=True)
class Widths(Forward):
    """Arrays under the names of `Architecture`; `products` pairs a span with its elements by entry, of all blocks."""

    d_model: Any
    experts: Any
    experts_per_token: Any
    d_expert: Any
    active_width: Any
    n_active: Any
    n_total: Any
    n_active_non_embedding: Any
    n_total_non_embedding: Any
    blocks: Any
    routed_blocks: Any
    heads: Any
    n_kv_heads: Any
    head_dim: Any
    embedding_parameters: Any
    lookup_parameters: Any
    vocab_size: float
    tied_embeddings: bool
    gated: bool
    products: tuple[tuple[Span, Any], ...]

    @classmethod
    def of(
        cls,
        d_model: ArrayLike,
        experts: ArrayLike,
        granularity: float = 1.0,
        shared_ratio: float = 0.0,
        vocab_size: float = VOCAB_SIZE,
    ) -> Widths:
        """Make models of the d / 64 rule, whose widths may be fractional; broadcasts, like `variables_of_width`."""
        d, e = np.broadcast_arrays(np.asarray(d_model, float), np.asarray(experts, float))
        sizes = variables_of_width(d, e, granularity, shared_ratio, vocab_size)
        counts = {name: sizes[name] for name in cls.__annotations__ if name.startswith("n_") and name in sizes}
        blocks = d / HEAD_DIM
        return cls(
            d_model=d,
            experts=np.where(e > 1, (e - shared_ratio) * granularity, 1.0),
            experts_per_token=np.where(e > 1, (1.0 - shared_ratio) * granularity, 1.0),
            d_expert=3.0 * d / np.where(e > 1, granularity, 1.0),
            active_width=3.0 * d,
            blocks=blocks,
            routed_blocks=blocks,
            heads=blocks,
            n_kv_heads=blocks,
            head_dim=HEAD_DIM,
            embedding_parameters=2.0 * d * vocab_size,
            lookup_parameters=0,
            vocab_size=vocab_size,
            tied_embeddings=False,
            gated=True,
            products=((Span(1), 2.0 * blocks * d),),
            **counts,
        )

    def at(self, mask: Any) -> Widths:
        """Pick some of the models."""

        def pick(value: Any) -> Any:
            return np.broadcast_to(value, np.shape(mask))[mask] if np.ndim(value) else value

        values = {size.name: pick(getattr(self, size.name)) for size in fields(self) if size.name != "products"}
        return Widths(**values, products=tuple((span, pick(elements)) for span, elements in self.products))


# What memory, traffic and times are computed of.
Sized = Architecture | Widths
