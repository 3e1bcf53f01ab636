"""Held-out loss with its standard error: dropless, over a fixed set of sequences."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from training.configuration.arguments import ConfigurationError
from training.data.batches import SequenceOrder, inputs_and_targets
from training.data.cache import TokenCache

# The held-out sequences are independent of the run's seed, so that runs compare.
_HELD_OUT_SEED = 420


@dataclass(frozen=True)
class HeldOut:
    """A fixed choice of held-out sequences."""

    # int64 (n, sequence_length + 1)
    sequences: np.ndarray
    # int64 (n, sequence_length): the document, numbered from 0, that each target is a token of.
    documents: np.ndarray
    # The text, as a run record states it.
    origin: str = ""

    @classmethod
    def from_cache(cls, cache: TokenCache, sequence_length: int, n_sequences: int, origin: str = "") -> HeldOut:
        """Take the first `n_sequences` of a fixed shuffle, or all there are.

        Raises ConfigurationError if the held-out text is less than one sequence.
        """
        available = cache.n_sequences(sequence_length)
        if available < 1:
            raise ConfigurationError(f"data: the held-out split has {len(cache)} tokens, less than one sequence")
        indices = SequenceOrder(_HELD_OUT_SEED, available).indices(0, min(n_sequences, available), available)
        # An end-of-text token is the last of its document.
        is_last = cache.read(0, len(cache)) == cache.recipe["eos_token_id"]
        document_numbers = np.cumsum(is_last) - is_last
        targets = indices[:, None] * sequence_length + np.arange(1, sequence_length + 1)
        _, documents = np.unique(document_numbers[targets], return_inverse=True)
        return cls(cache.sequences(indices, sequence_length), documents.reshape(targets.shape), origin)

    @property
    def n_documents(self) -> int:
        """Documents that the targets come from."""
        return int(self.documents.max()) + 1


@dataclass(frozen=True)
class HeldOutLoss:
    """Mean cross-entropy in nats per token, and its standard error over text like this.

    Documents are clusters, since their tokens are not independent; a single document has no error. Two models on the
    same text differ with a smaller error: most of it is common to them.
    """

    loss: float
    standard_error: float | None

    @classmethod
    def of(cls, nats: np.ndarray, targets: np.ndarray) -> HeldOutLoss:
        """Compute mean and error from each document's summed loss and number of targets, float64 (documents,).

        The error is that of the ratio estimator (Cochran, Sampling Techniques, 1977, section 2.11).
        """
        total = targets.sum()
        n = len(targets)
        mean = nats.sum() / total
        if n < 2:
            return cls(float(mean), None)
        spread = ((nats - mean * targets) ** 2).sum() * n / (n - 1)
        return cls(float(mean), math.sqrt(spread) / float(total))


@torch.no_grad()
def evaluate(
    model: nn.Module,
    held_out: HeldOut,
    batch_sequences: int,
    device: torch.device,
    rank: int = 0,
    world_size: int = 1,
    reduce: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> HeldOutLoss:
    """Measure the held-out loss, the same on every process and for any number of them.

    `reduce` sums a tensor over them. In evaluation mode the model routes dropless, so the loss of a sequence does not
    depend on its batch.
    """
    was_training = model.training
    model.eval()
    documents = torch.from_numpy(held_out.documents).to(device)
    nats = torch.zeros(held_out.n_documents, dtype=torch.float64, device=device)
    n_sequences = len(held_out.sequences)
    # Every process makes the same number of forward passes, as sharded models demand: one that has no batch left
    # repeats the first, and does not count it.
    for round_start in range(0, n_sequences, world_size * batch_sequences):
        start = round_start + rank * batch_sequences
        counts = start < n_sequences
        batch = slice(start, start + batch_sequences) if counts else slice(batch_sequences)
        inputs, targets = inputs_and_targets(held_out.sequences[batch], device)
        out = model(
            input_ids=inputs, shift_labels=targets, use_cache=False, output_logits=False, output_token_losses=True
        )
        if counts:
            nats.index_add_(0, documents[batch].flatten(), out.token_losses.double().flatten())
    model.train(was_training)
    if reduce is not None:
        nats = reduce(nats)
    return HeldOutLoss.of(nats.cpu().numpy(), np.bincount(held_out.documents.ravel()).astype(float))
