"""Global batches and the share of each process in them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator

import torch

from training.data.builder import GrowingCache
from training.data.order import SequenceOrder
from training.data.prefetch import Prefetcher

logger = logging.getLogger(__name__)


class TrainingData:
    """The training sequences in their order, read while they are still being tokenised.

    A global batch is cut into micro-batches in the order of the data, and micro-batch j goes to process j mod world
    size. A micro-batch holds whole capacity groups, so which tokens compete for an expert's places depends neither on
    its size nor on how many processes there are.

    Args:
        tokens: the token cache; what is missing in it is waited for.
        order: of the sequences.
        sequence_length: tokens of a sequence.
        micro_batch_sequences: sequences of a micro-batch.
        max_sequences: the first so many sequences of the data make an epoch; None for all there are.
        end_position: sequences that the longest branch of the run reads; None where that is not known. Nothing beyond
            is read ahead.

    Attributes:
        wait_seconds: that `micro_batches` has kept its callers waiting so far, in this process.

    Raises:
        ValueError: the data is too little for one sequence, or cannot be read; also `GrowingCache.wait_for`'s others.
    """

    def __init__(
        self,
        tokens: GrowingCache,
        order: SequenceOrder,
        sequence_length: int,
        micro_batch_sequences: int,
        max_sequences: int | None = None,
        end_position: int | None = None,
    ):
        self.sequence_length = sequence_length
        self.micro_batch_sequences = micro_batch_sequences
        self.wait_seconds = 0.0
        self._tokens, self._order = tokens, order
        self._max_sequences, self._end_position = max_sequences, end_position
        self._prefetcher: Prefetcher | None = None
        self._share: tuple | None = None  # (rank, world size, device) that is read ahead for
        self._said_epoch = 0
        self._checks: list[Callable[[], None]] = [tokens.check_shards]
        tokens.start()
        tokens.wait_for(sequence_length + 1)
        if tokens.cache.n_sequences(sequence_length) < 1:
            raise ValueError(
                f"data.sequence_length: {sequence_length}; the training data has only {len(tokens.cache)} tokens"
            )

    def watch(self, check: Callable[[], None]) -> None:
        """Call `check` before every global batch; it raises when something beside the training went wrong."""
        self._checks.append(check)

    @property
    def dataset(self) -> dict[str, str]:
        """id, revision and fingerprint for the run record; the same however far the data is tokenised."""
        return {**self._tokens.cache.dataset, "fingerprint": self._tokens.cache.fingerprint}

    @property
    def unique_tokens(self) -> int | None:
        """Tokens of one epoch; None while more of the data may follow."""
        n_sequences = self._n_sequences()
        return None if n_sequences is None else n_sequences * self.sequence_length

    def unique_among(self, tokens: int) -> int:
        """How many of the first `tokens` training tokens, which have been read, are different places of the data."""
        unique = self.unique_tokens
        return tokens if unique is None else min(tokens, unique)

    def _n_sequences(self) -> int | None:
        there, most = self._tokens.cache.n_sequences(self.sequence_length), self._max_sequences
        if most is not None and there >= most:
            return most
        return there if self._tokens.cache.complete else None

    def indices(self, position: int, count: int, stop: threading.Event | None = None):
        """Cache indices of the sequences at these positions, int64 (count,), once they are there."""
        needed = self._order.needed(position, count)
        if self._max_sequences is not None:
            needed = min(needed, self._max_sequences)
        self._tokens.wait_for(needed * self.sequence_length + 1, stop)
        return self._order.indices(position, count, self._n_sequences())

    def micro_batches(
        self, position: int, sequences: int, rank: int, world_size: int, device: torch.device
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """(inputs, targets) of one process in one global batch: int64 (micro_batch_sequences, sequence_length)."""
        size = self.micro_batch_sequences
        for check in self._checks:
            check()
        if rank == 0:
            self._say_epoch(position)
        for start in range(position + rank * size, position + sequences, world_size * size):
            began = time.perf_counter()
            inputs, targets = self._take(start, min(size, position + sequences - start), rank, world_size, device)
            self.wait_seconds += time.perf_counter() - began
            yield inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)

    def _take(self, position: int, count: int, rank: int, world_size: int, device: torch.device):
        """The micro-batch at a position: as it was read ahead, or read now where that was not foreseen."""
        if count != self.micro_batch_sequences:
            return self._read(position, count, device)
        # One global batch begins where the last one ended, so a process's micro-batches lie at one stride through
        # them all, whatever their sizes; only a jump back to a branch point breaks it.
        share = (rank, world_size, device)
        if self._prefetcher is None or self._share != share or not self._prefetcher.gives(position):
            self.stop_reading()
            if self._end_position is not None and position >= self._end_position:
                return self._read(position, count, device)
            self._share = share
            self._prefetcher = Prefetcher(
                lambda start, stop: self._read(start, count, device, stop),
                position,
                world_size * count,
                self._end_position,
            )
        return self._prefetcher.take()

    def _read(self, position: int, count: int, device: torch.device, stop: threading.Event | None = None):
        """(inputs, targets) in the host's memory, pinned for a copy that does not block where the device is a GPU."""
        chosen = self.indices(position, count, stop)
        inputs, targets = split(self._tokens.cache.sequences(chosen, self.sequence_length))
        if device.type == "cuda":
            torch.cuda.set_device(device)  # per thread; pinning would set up another GPU otherwise
            return inputs.pin_memory(), targets.pin_memory()
        return inputs, targets

    def _say_epoch(self, position: int) -> None:
        n_sequences = self._n_sequences()
        if n_sequences and (epoch := position // n_sequences) > self._said_epoch:
            self._said_epoch = epoch
            logger.warning("the data repeats: epoch %d of %s tokens", epoch + 1, f"{self.unique_tokens:,}")

    def stop_reading(self) -> None:
        """End the thread that reads ahead; the next micro-batch starts another."""
        if self._prefetcher is not None:
            self._prefetcher.close()
            self._prefetcher = None

    def close(self) -> None:
        """End the thread that reads ahead, and the tokenising if this process does it."""
        self.stop_reading()
        self._tokens.close()


def split(sequences) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences of length L + 1 as inputs and the targets one token on."""
    tokens = torch.from_numpy(sequences)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def to_inputs_and_targets(sequences, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences of length L + 1 as inputs and the targets one token on, on the device."""
    inputs, targets = split(sequences)
    return inputs.to(device), targets.to(device)
