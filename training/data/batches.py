"""Token cache to global batches: which sequences, in which order, and the share of each process in them.

The order is a pure function of (seed, position), whatever the world size, the micro-batches and the point of resuming.
It shuffles within consecutive *windows*, so a window that is full has its order before the rest is tokenised. The
first ones are small, so that training begins soon.
"""

from __future__ import annotations

import hashlib
import logging
import time
from bisect import bisect_right
from collections.abc import Iterator

import numpy as np
import torch

from training.configuration.arguments import ConfigurationError
from training.data.builder import GrowingCache

logger = logging.getLogger(__name__)

_ROUNDS = 4  # Luby and Rackoff: four rounds with independent keys make a strong pseudo-random permutation


class SequenceOrder:
    """Position in training -> index of a sequence in the token cache; `window` sequences are shuffled together.

    With `first`, the first window of the first epoch is cut after first, 2 · first, 4 · first, … sequences, and its
    parts are shuffled one by one.
    """

    def __init__(self, seed: int, window: int, first: int | None = None):
        self.seed = seed
        self.window = window
        doublings = range(((window - 1) // first).bit_length() if first else 0)
        # Borders in the first window.
        self._borders = [0, *(first << doubling for doubling in doublings), window]

    def needed(self, start: int, count: int) -> int:
        """Sequences that must be tokenised before positions start .. start + count - 1 are settled: whole windows."""
        return self._window_of(0, start + count - 1)[1]

    def indices(self, start: int, count: int, n_sequences: int | None) -> np.ndarray:
        """Sequence indices of positions start .. start + count - 1, int64 of shape (count,).

        An epoch has `n_sequences`; while that is unknown (None), only full windows of the first may be read.
        """
        out, filled = np.empty(count, dtype=np.int64), 0
        while filled < count:
            epoch, within = divmod(start + filled, n_sequences) if n_sequences else (0, start + filled)
            begin, end = self._window_of(epoch, within)
            end = min(end, n_sequences or end)
            places = np.arange(within, min(end, within + count - filled)) - begin
            out[filled : filled + len(places)] = begin + permute(places, end - begin, self._key(epoch, begin))
            filled += len(places)
        return out

    def _window_of(self, epoch: int, within: int) -> tuple[int, int]:
        """(begin, end) of the window, or the part of the first one, of a sequence of an epoch."""
        begin = within // self.window * self.window
        if epoch or begin:
            return begin, begin + self.window
        number = bisect_right(self._borders, within)
        return self._borders[number - 1], self._borders[number]

    def _key(self, epoch: int, begin: int) -> str:
        window, place = divmod(begin, self.window)
        # The first window's key names no window: the held-out sequences of all records were drawn with it.
        names = (f":{window}" if window else "") + (f":+{place}" if place else "")
        return f"sequence-order:{self.seed}:{epoch}{names}"


def permute(places: np.ndarray, size: int, key: str) -> np.ndarray:
    """Images of `places` under a pseudo-random permutation of 0 .. size - 1; int64 of their shape."""
    half_bits = np.uint64(max(1, (max(size - 1, 1).bit_length() + 1) // 2))
    keys = np.frombuffer(hashlib.sha256(key.encode()).digest(), dtype="<u8")[:_ROUNDS]
    values = _feistel(places.astype(np.uint64), half_bits, keys)
    # The network permutes the next power of four above the size. Walking on from a value outside until it falls inside
    # gives a permutation of the inside.
    while (outside := values >= size).any():
        values[outside] = _feistel(values[outside], half_bits, keys)
    return values.astype(np.int64)


def _feistel(values: np.ndarray, half_bits: np.uint64, keys: np.ndarray) -> np.ndarray:
    mask = np.uint64((1 << int(half_bits)) - 1)
    left, right = values >> half_bits, values & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (left << half_bits) | right


def _mix(values: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64 (Steele et al. 2014): every bit of the input reaches every bit of the output."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


class TrainingData:
    """The training sequences in their order, read while they are still being tokenised.

    A global batch is cut into micro-batches in the order of the data, and micro-batch j goes to process j mod world
    size. A micro-batch holds whole capacity groups, so which tokens compete for an expert's places depends neither on
    its size nor on how many processes there are.

    The first `max_sequences` sequences make an epoch (None: all). `wait_seconds` counts the time spent reading and
    waiting for tokens. Raises ConfigurationError for less than one sequence of data, and as `GrowingCache.wait_for`.
    """

    def __init__(
        self,
        tokens: GrowingCache,
        order: SequenceOrder,
        sequence_length: int,
        micro_batch_sequences: int,
        max_sequences: int | None = None,
    ):
        self.tokens, self.sequence_length = tokens, sequence_length
        self.micro_batch_sequences = micro_batch_sequences
        self.wait_seconds = 0.0
        self._order, self._max_sequences = order, max_sequences
        self._reported_epoch = 0
        tokens.start()
        tokens.wait_for(sequence_length + 1)
        if tokens.cache.n_sequences(sequence_length) < 1:
            found = f"the training data has only {len(tokens.cache)} tokens"
            raise ConfigurationError(f"data.sequence_length: {sequence_length}; {found}")

    @property
    def unique_tokens(self) -> int | None:
        """Tokens of one epoch; None while more of the data may follow."""
        n_sequences = self._n_sequences()
        return None if n_sequences is None else n_sequences * self.sequence_length

    def _n_sequences(self) -> int | None:
        available, most = self.tokens.cache.n_sequences(self.sequence_length), self._max_sequences
        if most is not None and available >= most:
            return most
        return available if self.tokens.cache.complete else None

    def indices(self, position: int, count: int) -> np.ndarray:
        """Cache indices of the sequences at these positions, int64 (count,); waits until they are tokenised."""
        needed = self._order.needed(position, count)
        if self._max_sequences is not None:
            needed = min(needed, self._max_sequences)
        self.tokens.wait_for(needed * self.sequence_length + 1)
        return self._order.indices(position, count, self._n_sequences())

    def micro_batches(
        self, position: int, sequences: int, rank: int, world_size: int, device: torch.device
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """(inputs, targets) of one process in one global batch: int64 (micro_batch_sequences, sequence_length)."""
        self.tokens.check_shards()
        n_sequences = self._n_sequences()
        if rank == 0 and n_sequences and (epoch := position // n_sequences) > self._reported_epoch:
            self._reported_epoch = epoch
            logger.warning("the data repeats: epoch %d of %s tokens", epoch + 1, f"{self.unique_tokens:,}")
        size, end = self.micro_batch_sequences, position + sequences
        for start in range(position + rank * size, end, world_size * size):
            began = time.perf_counter()
            indices = self.indices(start, min(size, end - start))
            batch = self.tokens.cache.sequences(indices, self.sequence_length)
            self.wait_seconds += time.perf_counter() - began
            yield inputs_and_targets(batch, device)


def inputs_and_targets(sequences: np.ndarray, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences of length L + 1 as inputs and the targets one token on, (n, L) each, on the device."""
    tokens = torch.from_numpy(sequences)
    if device.type == "cuda":
        # Sending pinned memory does not wait for what the GPU is still computing.
        tokens = tokens.pin_memory()
    tokens = tokens.to(device, non_blocking=True)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
