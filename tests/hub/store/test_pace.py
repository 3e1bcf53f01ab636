"""The pace of calls: never more in five minutes than allowed, whoever calls, and no waiting below that."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from hub import push_runs
from hub.release.push import push_listing
from hub.store.hub import CALLS_PER_WINDOW, Pace
from tests.hub.conftest import hub_store


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def busiest(times, window):
    """The largest number of the times within one window."""
    return max(sum(start <= other < start + window for other in times) for start in times)


def test_a_window_takes_so_many_calls_and_no_more():
    clock = Clock()
    pace = Pace(10, 60.0, clock=clock, sleep=clock.sleep)
    times = []
    for number in range(45):
        pace.take(1 + number % 3)
        times += [clock.now] * (1 + number % 3)
        clock.now += 0.5
    assert busiest(times, 60.0) == 10
    assert times[8] < 1010.0  # the first were not kept waiting; three together would have been too many


def test_calls_that_come_slowly_are_not_kept_waiting():
    clock = Clock()
    pace = Pace(10, 60.0, clock=clock, sleep=lambda seconds: pytest.fail(f"slept {seconds}"))
    for _ in range(50):
        pace.take(1)
        clock.now += 6.01


def test_threads_share_a_pace():
    waits: list[float] = []
    pace = Pace(10, 60.0, clock=lambda: 1000.0, sleep=waits.append)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: pace.take(1), range(35)))
    assert sorted(waits) == [60.0] * 10 + [120.0] * 10 + [180.0] * 5


def test_the_default_stays_below_a_free_account():
    assert Pace().calls == CALLS_PER_WINDOW < 1000
    assert Pace().seconds == 300.0


def test_every_call_of_the_api_is_paced(loopback, runs_of):
    """What the pace counts is at least what the Hub sees, and hardly more."""
    taken: list[int] = []

    class Counting(Pace):
        def take(self, calls):
            taken.append(calls)

    store = hub_store(loopback, pace=Counting())
    push_listing(store, "demo", push_runs(store, runs_of(3)))
    assert len(loopback.api_calls()) <= sum(taken) <= len(loopback.api_calls()) + 2
