"""The order in which training sequences are read: a pure function of (seed, position).

Independent of world size, of micro-batches and of where a run was resumed, and the same for every model of a sweep.
Sequences are shuffled within consecutive *windows* of the data, because it may still be being tokenised while training
reads it, and how much there is of it is then not known: a full window is permuted in the same way however much
comes after it. Only the last window of an epoch may be shorter, and its order, like everything in later epochs, is
asked for once the end is known.

Each window of each epoch is a pseudo-random permutation, computed for just the positions that are asked for (a Feistel
network over the index bits with cycle walking), so that going to any position costs the same and nothing is stored.

What windows cost: a batch mixes documents of one window and never of two, so the order in which text is drawn shows at
scales above a window. With the default of 65,536 sequences of 512 tokens a batch of 512 sequences is drawn from about
30,000 documents of FineWeb-Edu. Above a window it is `tokens.parts` that mixes. Data that fits into one window is
shuffled as a whole.
"""

from __future__ import annotations

import hashlib

import numpy as np

_ROUNDS = 4  # Luby and Rackoff: four rounds with independent keys make a strong pseudo-random permutation


class SequenceOrder:
    """Position in training -> index of a sequence in the token cache.

    Args:
        seed: another seed, another order.
        window: sequences that are shuffled together, at least 1.
    """

    def __init__(self, seed: int, window: int):
        if window < 1:
            raise ValueError(f"data.shuffle_window: {window}; at least one sequence")
        self.seed = seed
        self.window = window

    def needed(self, start: int, count: int) -> int:
        """Sequences that must be there before positions start .. start + count - 1 are settled: whole windows."""
        return -(-(start + count) // self.window) * self.window

    def indices(self, start: int, count: int, n_sequences: int | None) -> np.ndarray:
        """Sequence indices of positions start .. start + count - 1, int64 of shape (count,).

        Args:
            n_sequences: sequences of one epoch, at least 1; None while that is not known, when all the windows asked
                for must be full ones of the first epoch.
        """
        if n_sequences is not None and n_sequences < 1:
            raise ValueError(f"n_sequences: {n_sequences}; the training data must hold at least one sequence")
        positions = np.arange(start, start + count, dtype=np.int64)
        epochs, within = np.divmod(positions, n_sequences) if n_sequences else (np.zeros_like(positions), positions)
        windows, places = np.divmod(within, self.window)
        out = np.empty(count, dtype=np.int64)
        for epoch, window in sorted(set(zip(epochs.tolist(), windows.tolist(), strict=True))):
            chosen = (epochs == epoch) & (windows == window)
            first = window * self.window
            size = self.window if n_sequences is None else min(self.window, n_sequences - first)
            out[chosen] = first + permute(places[chosen], size, self._key(epoch, window))
        return out

    def _key(self, epoch: int, window: int) -> str:
        # The first window's key names no window: the held-out sequences are chosen by it, since before there were any.
        return f"sequence-order:{self.seed}:{epoch}" + (f":{window}" if window else "")


def permute(places: np.ndarray, size: int, key: str) -> np.ndarray:
    """Where a pseudo-random permutation of 0 .. size - 1 takes `places`; int64 of their shape."""
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
