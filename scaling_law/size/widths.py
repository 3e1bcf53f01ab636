"""Models of the d / 64 rule as arrays: the sizes of an `Architecture` that memory, traffic and time need."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from scaling_law.size.architecture import HEAD_DIM, VOCAB_SIZE, Architecture, variables_of_width


@dataclass(frozen=True)
class Widths:
    """Arrays under the names of `Architecture`, and of the values that it has for widths that exist."""

    d_model: Any
    experts: Any
    experts_per_token: Any
    d_expert: Any
    n_active: Any
    n_total: Any
    n_active_non_embedding: Any
    n_total_non_embedding: Any
    vocab_size: float
    head_dim: int = HEAD_DIM
    tied_embeddings: bool = False
    gated: bool = True
    lookup_parameters: int = 0

    @classmethod
    def of(
        cls,
        d_model: ArrayLike,
        experts: ArrayLike,
        granularity: float = 1.0,
        shared_ratio: float = 0.0,
        vocab_size: float = VOCAB_SIZE,
    ) -> Widths:
        """Make models of these widths, which may be fractional, and E; broadcasts, like `variables_of_width`."""
        d, e = np.broadcast_arrays(np.asarray(d_model, float), np.asarray(experts, float))
        sizes = variables_of_width(d, e, granularity, shared_ratio, vocab_size)
        counts = {name: sizes[name] for name in cls.__annotations__ if name.startswith("n_")}
        return cls(
            d_model=d,
            experts=np.where(e > 1, (e - shared_ratio) * granularity, 1.0),
            experts_per_token=np.where(e > 1, (1.0 - shared_ratio) * granularity, 1.0),
            d_expert=3.0 * d / np.where(e > 1, granularity, 1.0),
            vocab_size=vocab_size,
            **counts,
        )

    def at(self, mask: Any) -> Widths:
        """Pick some of the models."""
        arrays: dict[str, Any] = {}
        for name, value in vars(self).items():
            if np.ndim(value):
                arrays[name] = np.broadcast_to(value, np.shape(mask))[mask]
        return replace(self, **arrays)

    @property
    def blocks(self) -> Any:
        return self.d_model / HEAD_DIM

    heads = n_kv_heads = routed_blocks = blocks

    @property
    def active_width(self) -> Any:
        return 3.0 * self.d_model

    @property
    def embedding_parameters(self) -> Any:
        return 2.0 * self.d_model * self.vocab_size

    def forward_flops(self, context: float = 0.0) -> Any:
        """Count the FLOPs of one token's forward pass, as `Architecture.forward_flops` does."""
        router = np.where(self.experts > 1, self.routed_blocks * self.d_model * self.experts, 0.0)
        weights = self.n_active_non_embedding + router + self.d_model * self.vocab_size
        return 2.0 * (weights + 2 * context * self.blocks * self.d_model)


# What memory, traffic and times are computed of.
Sized = Architecture | Widths
