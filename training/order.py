"""The order in which training sequences are read: a pure function of (seed, position).

Independent of world size, of micro-batches and of where a run was resumed, and the same for every model of a sweep.
Each epoch is a pseudo-random permutation of all sequences, computed for just the positions that are asked for (a
Feistel network over the index bits with cycle walking), so that going to any position costs the same and nothing has
to be stored.
"""

from __future__ import annotations

import hashlib

import numpy as np

_ROUNDS = 4  # Luby and Rackoff: four rounds with independent keys make a strong pseudo-random permutation


class SequenceOrder:
    """Position in training -> index of a sequence in the token cache.

    Args:
        n_sequences: sequences in the cache, at least 1.
        seed: another seed, another order.
    """

    def __init__(self, n_sequences: int, seed: int):
        if n_sequences < 1:
            raise ValueError(f"n_sequences: {n_sequences}; the training data must hold at least one sequence")
        self.n_sequences = n_sequences
        self.seed = seed
        self._half_bits = np.uint64(max(1, (max(n_sequences - 1, 1).bit_length() + 1) // 2))
        self._mask = np.uint64((1 << int(self._half_bits)) - 1)

    def epoch(self, position: int) -> int:
        """Epoch (from 0) that this position lies in."""
        return position // self.n_sequences

    def indices(self, start: int, count: int) -> np.ndarray:
        """Sequence indices, int64 of shape (count,), of positions start .. start + count - 1."""
        positions = np.arange(start, start + count, dtype=np.uint64)
        epochs, within = np.divmod(positions, np.uint64(self.n_sequences))
        out = np.empty(count, dtype=np.int64)
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            out[chosen] = self._permute(within[chosen], int(epoch))
        return out

    def _permute(self, values: np.ndarray, epoch: int) -> np.ndarray:
        keys = self._keys(epoch)
        values = self._feistel(values, keys)
        # The network permutes the next power of four above n. Walking on from a value outside until it falls inside
        # gives a permutation of the inside.
        while (outside := values >= self.n_sequences).any():
            values[outside] = self._feistel(values[outside], keys)
        return values.astype(np.int64)

    def _feistel(self, values: np.ndarray, keys: list[np.uint64]) -> np.ndarray:
        left, right = values >> self._half_bits, values & self._mask
        for key in keys:
            left, right = right, left ^ (_mix(right ^ key) & self._mask)
        return (left << self._half_bits) | right

    def _keys(self, epoch: int) -> list[np.uint64]:
        digest = hashlib.sha256(f"sequence-order:{self.seed}:{epoch}".encode()).digest()
        return [np.uint64(key) for key in np.frombuffer(digest, dtype="<u8")[:_ROUNDS]]


def _mix(values: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64 (Steele et al. 2014): every bit of the input reaches every bit of the output."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
