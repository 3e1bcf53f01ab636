"""Models as arrays: the sizes of an `Architecture` that memory, traffic and time need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from scaling_law.size.architecture import Architecture, Forward, Span


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

    def at(self, mask: Any) -> Widths:
        """Pick some of the models."""

        def pick(value: Any) -> Any:
            return np.broadcast_to(value, np.shape(mask))[mask] if np.ndim(value) else value

        values = {name: pick(value) for name, value in vars(self).items() if name != "products"}
        return Widths(**values, products=tuple((span, pick(elements)) for span, elements in self.products))


# What memory, traffic and times are computed of.
Sized = Architecture | Widths
