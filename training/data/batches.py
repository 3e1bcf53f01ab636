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

# Luby and Rackoff: four rounds with independent keys make a strong pseudo-random permutation.
_ROUNDS = 4


class SequenceOrder:
    """Position in training -> index of a sequence in the token cache; `window` sequences are shuffled together.

    With `first`, the first window of the first epoch is cut after first, 2 · first, 4 · first, … sequences, and its
    parts are shuffled one by one.
    """

    def __init__(self, seed: int, window: int, first: int | None = None):
        self.seed = seed
        self.window = window
        # Borders in the first window.
        self._borders = [0]
        if first:
            doublings = ((window - 1) // first).bit_length()
            self._borders += [first << doubling for doubling in range(doublings)]
        self._borders.append(window)

    def count_to_tokenise(self, start: int, count: int) -> int:
        """Count the sequences, in whole windows, whose tokens decide positions start .. start + count - 1."""
        return self._window_of(0, start + count - 1)[1]

    def indices(self, start: int, count: int, n_sequences: int | None) -> np.ndarray:
        """Return the sequence indices of positions start .. start + count - 1, int64 of shape (count,).

        An epoch has `n_sequences`; while that is unknown (None), only full windows of the first may be read.
        """
        indices = np.empty(count, dtype=np.int64)
        filled = 0
        while filled < count:
            position = start + filled
            epoch, within = divmod(position, n_sequences) if n_sequences else (0, position)
            begin, end = self._window_of(epoch, within)
            end = min(end, n_sequences or end)
            places = np.arange(within, min(end, within + count - filled)) - begin
            permuted = permute(places, end - begin, self._key(epoch, begin))
            indices[filled : filled + len(places)] = begin + permuted
            filled += len(places)
        return indices

    def _window_of(self, epoch: int, within: int) -> tuple[int, int]:
        """Return (begin, end) of the window, or the part of the first one, of a sequence of an epoch."""
        begin = within // self.window * self.window
        if epoch or begin:
            return begin, begin + self.window
        number = bisect_right(self._borders, within)
        return self._borders[number - 1], self._borders[number]

    def _key(self, epoch: int, begin: int) -> str:
        window, place = divmod(begin, self.window)
        # The first window's key names no window: the held-out sequences of all records were drawn with it.
        window_name = f":{window}" if window else ""
        place_name = f":+{place}" if place else ""
        return f"sequence-order:{self.seed}:{epoch}{window_name}{place_name}"


def permute(places: np.ndarray, size: int, key: str) -> np.ndarray:
    """Return the images of `places` under a pseudo-random permutation of 0 .. size - 1; int64 of their shape."""
    half_bits = np.uint64(max(1, (max(size - 1, 1).bit_length() + 1) // 2))
    keys = np.frombuffer(hashlib.sha256(key.encode()).digest(), dtype="<u8")[:_ROUNDS]
    values = _feistel(places.astype(np.uint64), half_bits, keys)
    # The network permutes the next power of four above the size. Walking on from a value outside until it falls inside
    # gives a permutation of the inside.
    outside = values >= size
    while outside.any():
        values[outside] = _feistel(values[outside], half_bits, keys)
        outside = values >= size
    return values.astype(np.int64)


def _feistel(values: np.ndarray, half_bits: np.uint64, keys: np.ndarray) -> np.ndarray:
    mask = np.uint64((1 << int(half_bits)) - 1)
    high = values >> half_bits
    low = values & mask
    for key in keys:
        mixed = high ^ (_mix(low ^ key) & mask)
        high = low
        low = mixed
    return (high << half_bits) | low


def _mix(values: np.ndarray) -> np.ndarray:
    """Mix by the finaliser of splitmix64 (Steele et al. 2014): each bit of the input reaches each of the output."""
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
        max_sequences: int | None = None,
    ):
        self.tokens = tokens
        self.sequence_length = sequence_length
        self.wait_seconds = 0.0
        self._order = order
        self._max_sequences = max_sequences
        self._reported_epoch = 0
        tokens.start()
        tokens.wait_for(sequence_length + 1)
        if tokens.cache.n_sequences(sequence_length) < 1:
            raise ConfigurationError(
                f"data.sequence_length: {sequence_length}; the training data has only {len(tokens.cache)} tokens"
            )

    @property
    def unique_tokens(self) -> int | None:
        """Tokens of one epoch; None while more of the data may follow."""
        n_sequences = self._n_sequences()
        return None if n_sequences is None else n_sequences * self.sequence_length

    def _n_sequences(self) -> int | None:
        available = self.tokens.cache.n_sequences(self.sequence_length)
        if self._max_sequences is not None and available >= self._max_sequences:
            return self._max_sequences
        return available if self.tokens.cache.complete else None

    def indices(self, position: int, count: int) -> np.ndarray:
        """Wait until the sequences at these positions are tokenised; return their cache indices, int64 (count,)."""
        sequences = self._order.count_to_tokenise(position, count)
        if self._max_sequences is not None:
            sequences = min(sequences, self._max_sequences)
        self.tokens.wait_for(sequences * self.sequence_length + 1)
        return self._order.indices(position, count, self._n_sequences())

    def micro_batches(
        self, position: int, sequences: int, size: int, rank: int, world_size: int, device: torch.device
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield (inputs, targets) of a process in a global batch: int64 (size, sequence_length)."""
        self.tokens.check_shards()
        n_sequences = self._n_sequences()
        epoch = position // n_sequences if n_sequences else 0
        if rank == 0 and epoch > self._reported_epoch:
            self._reported_epoch = epoch
            logger.warning("the data repeats: epoch %d of %s tokens", epoch + 1, f"{self.unique_tokens:,}")
        for start in range(position + rank * size, position + sequences, world_size * size):
            began = time.perf_counter()
            indices = self.indices(start, size)
            batch = self.tokens.cache.sequences(indices, self.sequence_length)
            self.wait_seconds += time.perf_counter() - began
            yield inputs_and_targets(batch, device)


def inputs_and_targets(sequences: np.ndarray, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Split sequences of length L + 1 into inputs and the targets one token on, (n, L) each, on the device."""
    tokens = torch.from_numpy(sequences)
    if device.type == "cuda":
        # Sending pinned memory does not wait for what the GPU is still computing.
        tokens = tokens.pin_memory()
    tokens = tokens.to(device, non_blocking=True)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
