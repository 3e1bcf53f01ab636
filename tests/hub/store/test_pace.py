"""The pace of calls: never more in five minutes than allowed, whoever calls, and no waiting below that."""

from concurrent.futures import ThreadPoolExecutor

from hub.store.hub import CALLS_PER_WINDOW, Pace
from tests.hub.conftest import hub_store, release


def test_a_window_takes_so_many_calls_and_no_more():
    now, slept, times = [1000.0], [], []

    def sleep(seconds):
        slept.append(seconds)
        now[0] += seconds

    pace = Pace(10, 60.0, clock=lambda: now[0], sleep=sleep)
    for number in range(45):
        pace.wait(1 + number % 3)
        times += [now[0]] * (1 + number % 3)
        now[0] += 0.5
    assert max(sum(start <= other < start + 60.0 for other in times) for start in times) == 10
    assert times[8] < 1010.0  # the first were not kept waiting; three together would have been too many
    now[0] += 60.0
    slept.clear()
    for _ in range(50):
        pace.wait(1)
        now[0] += 6.01
    assert slept == []
    assert Pace().calls == CALLS_PER_WINDOW < 1000  # of a free account, in 300 s
    assert Pace().seconds == 300.0


def test_threads_share_a_pace():
    waits: list[float] = []
    pace = Pace(10, 60.0, clock=lambda: 1000.0, sleep=waits.append)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: pace.wait(1), range(35)))
    assert sorted(waits) == [60.0] * 10 + [120.0] * 10 + [180.0] * 5


def test_every_call_of_the_api_is_paced(loopback, runs_of):
    """What the pace counts is at least what the Hub sees, and hardly more."""
    taken: list[int] = []

    class Counting(Pace):
        def wait(self, calls):
            taken.append(calls)

    store = hub_store(loopback, pace=Counting())
    release(store, runs_of(3))
    assert len(loopback.api_calls()) <= sum(taken) <= len(loopback.api_calls()) + 2
