"""The data order: a permutation in every epoch, the same however much of the data is known, at O(1) from anywhere."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from training.data.batches import SequenceOrder

SIZES = st.integers(1, 2000)
WINDOWS = st.integers(40, 700)
SEEDS = st.integers(0, 2**32)


@given(SIZES, WINDOWS, SEEDS, st.integers(20, 60))
def test_every_epoch_holds_every_sequence_once_however_it_is_cut_into_batches(n, window, seed, batch):
    order = SequenceOrder(seed, window)
    whole = order.indices(0, 3 * n, n)
    parts = [order.indices(start, min(batch, 3 * n - start), n) for start in range(0, 3 * n, batch)]
    assert np.array_equal(np.concatenate(parts), whole)
    for epoch in whole.reshape(3, n):
        assert sorted(epoch) == list(range(n))
        assert np.array_equal(epoch // window, np.arange(n) // window)


@given(SIZES, WINDOWS, SEEDS, st.integers(0, 2000), st.integers(1, 50))
def test_the_order_does_not_depend_on_how_much_is_known(n, window, seed, start, count):
    """What is read while the total is unknown (as soon as `needed` sequences are there) is what is read later."""
    order = SequenceOrder(seed, window)
    needed = order.count_to_tokenise(start, count)
    assert needed >= start + count
    early = order.indices(start, count, None)
    assert early.max() < needed
    for total in (needed, needed + 1, needed + n):
        assert np.array_equal(order.indices(start, count, total), early)


@given(SIZES, WINDOWS, SEEDS, st.integers(1, 800), st.integers(20, 60))
def test_only_the_first_window_is_cut_and_its_parts_double(n, window, seed, first, batch):
    """Each is shuffled by itself, before more is known; what follows is as if there were no cuts."""
    order, uncut = SequenceOrder(seed, window, first), SequenceOrder(seed, window)
    whole = order.indices(0, 3 * n, n)
    for epoch in whole.reshape(3, n):
        assert sorted(epoch) == list(range(n))
    rest = min(window, n)
    assert np.array_equal(whole[rest:], uncut.indices(0, 3 * n, n)[rest:])
    borders = [0, *(first << k for k in range(12) if first << k < rest), rest]
    for begin, end in itertools.pairwise(borders):
        assert sorted(whole[begin:end]) == list(range(begin, end))
    for start in range(0, n, batch):
        count = min(batch, n - start)
        needed = order.count_to_tokenise(start, count)
        assert start + count <= needed <= uncut.count_to_tokenise(start, count)
        if needed <= n:
            assert np.array_equal(order.indices(start, count, None), whole[start : start + count])


def test_seeds_epochs_and_windows_give_different_orders():
    orders = [SequenceOrder(seed, 1000).indices(0, 1000, 2000) for seed in (0, 1)]
    orders.append(SequenceOrder(0, 1000).indices(2000, 1000, 2000))
    orders.append(SequenceOrder(0, 1000).indices(1000, 1000, 2000) - 1000)
    for i, one in enumerate(orders):
        for other in orders[i + 1 :]:
            assert (one == other).mean() < 0.02


def test_the_order_is_pinned():
    """A change here would silently change the data of every run that is resumed or extended."""
    assert SequenceOrder(0, 1 << 16).indices(0, 8, 100).tolist() == [51, 61, 49, 95, 34, 59, 78, 7]
    assert SequenceOrder(0, 50).indices(48, 4, 100).tolist() == [26, 13, 66, 58]
    assert SequenceOrder(0, 50, 8).indices(14, 4, 100).tolist() == [14, 8, 28, 27]
    assert SequenceOrder(0, 1 << 16, 1 << 10).count_to_tokenise(0, 128) == 1024
