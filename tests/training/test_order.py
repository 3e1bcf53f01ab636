"""The data order: a permutation in every epoch, at O(1) from anywhere."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.order import SequenceOrder


@given(st.integers(1, 3000), st.integers(0, 2**32))
def test_every_epoch_holds_every_sequence_once(n, seed):
    order = SequenceOrder(n, seed)
    for epoch in (0, 1, 7):
        assert sorted(order.indices(epoch * n, n)) == list(range(n))


@given(st.integers(1, 500), st.integers(0, 5), st.lists(st.integers(1, 60), max_size=8))
def test_any_cutting_into_batches_reads_the_same_sequences(n, seed, batches):
    order = SequenceOrder(n, seed)
    whole = order.indices(0, sum(batches))
    starts = np.cumsum([0, *batches])
    parts = [order.indices(int(start), batch) for start, batch in zip(starts, batches, strict=False)]
    assert np.array_equal(np.concatenate([*parts, np.empty(0, int)]), whole)


def test_seeds_and_epochs_give_different_orders():
    orders = [SequenceOrder(1000, 0).indices(0, 1000), SequenceOrder(1000, 1).indices(0, 1000)]
    orders.append(SequenceOrder(1000, 0).indices(1000, 1000))
    for i, one in enumerate(orders):
        for other in orders[i + 1 :]:
            assert (one == other).mean() < 0.02


def test_the_order_is_pinned():
    """A change here would silently change the data of every run that is resumed or extended."""
    assert SequenceOrder(100, 0).indices(0, 8).tolist() == [51, 61, 49, 95, 34, 59, 78, 7]


def test_places_are_uniform():
    """Mean position of each tenth of the data: none is systematically early."""
    order = SequenceOrder(10_000, 3).indices(0, 10_000)
    place = np.empty(10_000)
    place[order] = np.arange(10_000)
    means = place.reshape(10, 1000).mean(axis=1)
    assert np.all(np.abs(means - 5000) < 4 * 10_000 / np.sqrt(12 * 1000))


def test_no_data_is_refused():
    with pytest.raises(ValueError, match="at least one sequence"):
        SequenceOrder(0, 0)
