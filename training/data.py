"""Global batches and the share of each process in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from .order import SequenceOrder
from .tokens import TokenCache


@dataclass(frozen=True)
class TrainingData:
    """The training sequences in their order.

    A global batch is cut into micro-batches in the order of the data, and micro-batch j goes to process j mod world
    size. So which sequences share a micro-batch (and compete for the capacity of the experts) does not depend on how
    many processes there are.
    """

    cache: TokenCache
    order: SequenceOrder
    sequence_length: int
    micro_batch_sequences: int

    @classmethod
    def from_cache(
        cls, cache: TokenCache, sequence_length: int, micro_batch_sequences: int, seed: int
    ) -> TrainingData:
        n_sequences = cache.n_sequences(sequence_length)
        if n_sequences < 1:
            raise ValueError(
                f"data.sequence_length: {sequence_length}; the training data has only {len(cache)} tokens"
            )
        return cls(cache, SequenceOrder(n_sequences, seed), sequence_length, micro_batch_sequences)

    @property
    def unique_tokens(self) -> int:
        """Tokens of one epoch."""
        return self.order.n_sequences * self.sequence_length

    def micro_batches(
        self, position: int, sequences: int, rank: int, world_size: int, device: torch.device
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """(inputs, targets) of one process in one global batch: int64 (micro_batch_sequences, sequence_length)."""
        indices = self.order.indices(position, sequences)
        for start in range(rank * self.micro_batch_sequences, sequences, world_size * self.micro_batch_sequences):
            chosen = indices[start : start + self.micro_batch_sequences]
            yield to_inputs_and_targets(self.cache.sequences(chosen, self.sequence_length), device)


def to_inputs_and_targets(sequences, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences of length L + 1 as inputs and the targets one token on, on the device."""
    tokens = torch.from_numpy(sequences)
    if device.type == "cuda":
        tokens = tokens.pin_memory()
    tokens = tokens.to(device, non_blocking=True)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
