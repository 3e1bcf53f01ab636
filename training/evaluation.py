"""Held-out loss: dropless, over a fixed set of sequences."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .batches.order import SequenceOrder
from .batches.training_data import to_inputs_and_targets
from .tokens.cache import TokenCache

_HELD_OUT_SEED = 420  # which held-out sequences are used; independent of the run's seed, so runs are comparable


@dataclass(frozen=True)
class HeldOut:
    """A fixed choice of held-out sequences.

    Attributes:
        sequences: int64 array (n, sequence_length + 1).
    """

    sequences: object

    @classmethod
    def from_cache(cls, cache: TokenCache, sequence_length: int, n_sequences: int) -> HeldOut:
        """The first `n_sequences` of a fixed shuffle, or all where there are fewer."""
        available = cache.n_sequences(sequence_length)
        if available < 1:
            raise ValueError(f"data: the held-out split has {len(cache)} tokens, less than one sequence")
        indices = SequenceOrder(_HELD_OUT_SEED, available).indices(0, min(n_sequences, available), available)
        return cls(cache.sequences(indices, sequence_length))

    @property
    def tokens(self) -> int:
        """Targets that the loss is a mean over."""
        return self.sequences.shape[0] * (self.sequences.shape[1] - 1)


@torch.no_grad()
def evaluate(model, held_out: HeldOut, batch_sequences: int, device: torch.device, rank=0, world_size=1, reduce=None):
    """Mean cross-entropy in nats per token, as a float.

    In evaluation mode the model routes dropless, so the loss of a sequence does not depend on its batch.

    Args:
        model: returns `.lm_loss` for `input_ids` and `shift_labels`; may be wrapped.
        reduce: sums a tensor over the processes; None with one process.
    """
    was_training = model.training
    model.eval()
    total = torch.zeros((), dtype=torch.float64, device=device)
    n_sequences = len(held_out.sequences)
    # Every process makes the same number of forward passes, as sharded models demand: one that has no batch left
    # takes the first again, and does not count it.
    for round_start in range(0, n_sequences, world_size * batch_sequences):
        start = round_start + rank * batch_sequences
        counts = start < n_sequences
        start = start if counts else 0
        inputs, targets = to_inputs_and_targets(held_out.sequences[start : start + batch_sequences], device)
        out = model(input_ids=inputs, shift_labels=targets, use_cache=False, output_logits=False)
        if counts:
            total += out.lm_loss.double() * targets.numel()
    model.train(was_training)
    if reduce is not None:
        total = reduce(total)
    return total.item() / held_out.tokens
