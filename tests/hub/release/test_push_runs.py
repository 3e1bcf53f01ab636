"""Several runs at a time: complete through faults, one pause for all threads, and a failure does not stop the rest."""

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from hub import AccessError, FilesError, PushErrors, UnavailableError, load_index, push_runs
from hub.store.transport import Transport
from tests.hub.conftest import hub_store, release
from tests.hub.loopback import Fault
from tests.hub.samples import make_record

RUNS = 6


@pytest.fixture
def runs(checkpoint):
    """Six runs in two repositories, as training leaves them."""
    return [
        (checkpoint(f"c{n}", weight=float(n)), make_record(run_id=f"run{n}", d_model=64 if n < 3 else 128, seed=n))
        for n in range(RUNS)
    ]


def assert_complete(server, pushed, runs):
    """Each run is in the index once, at a commit that holds its weights, and on its repository's card."""
    assert sorted(load_index(hub_store(server), "demo"), key=lambda row: row.run_id) == pushed
    for row, (folder, _) in zip(pushed, runs, strict=True):
        repo = server.state.repository("model", row.repo)
        assert repo.branches[row.branch] == row.commit
        weights = repo.commits[row.commit].tree["model.safetensors"]
        assert server.state.content(weights) == (Path(folder) / "model.safetensors").read_bytes()
        card = server.state.content(repo.resolve("main").tree["README.md"]).decode()
        assert f"| {row.branch} |" in card


@pytest.mark.parametrize("workers", [1, 4])
def test_all_arrive_in_the_order_given(store, runs, workers):
    seen: list[str] = []
    pushed = push_runs(store, runs, workers=workers, done=lambda record: seen.append(record.run_id))
    assert [record.run_id for record in pushed] == [f"run{number}" for number in range(RUNS)]
    assert sorted(seen) == sorted(record.run_id for record in pushed)
    assert push_runs(store, runs, workers=workers) == pushed


def test_an_error_of_the_callers_callback_stops_no_push(store, runs):
    def done(record):
        if record.run_id == "run1":
            raise AccessError("a file of the caller's")

    with pytest.raises(PushErrors) as caught:
        push_runs(store, runs, workers=2, done=done)
    assert [record.run_id for record in caught.value.pushed] == ["run0", "run2", "run3", "run4", "run5"]


def test_threads_ask_once_for_what_they_share(loopback, runs):
    """Into repositories that were there before: create and refs, commits and tree of each, then four calls a run."""
    for repo in ("org/demo-d64-E4", "org/demo-d128-E4"):
        loopback.state.put("model", repo, "main", {"notes.txt": b"x"})
    push_runs(hub_store(loopback), runs, workers=6)
    calls = loopback.api_calls()
    assert {name: calls.count(name) for name in set(calls)} == {
        **{"list": 2, "create": 2, "refs": 2, "commits": 2, "revision": 2 + RUNS},
        **{"branch": RUNS, "preupload": RUNS, "commit": RUNS},
    }


@pytest.mark.parametrize(("kind", "status"), [("status", 503), ("status", 429), ("drop", 0), ("lose", 0)])
@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_every_seventh_request_fails(loopback, runs, kind, status, workers):
    hit: set[tuple[str, str]] = set()

    def seventh(request):
        """Each path at most once: with several threads a call could else meet a seventh request at every attempt."""
        chosen = request.number % 7 == 3 and (request.method, request.path) not in hit
        if chosen:
            hit.add((request.method, request.path))
        return chosen

    loopback.faults.append(Fault(seventh, kind, status, {"Retry-After": "0"}, times=10**9))
    pushed = release(hub_store(loopback), runs, workers)
    assert len(hit) >= 5
    loopback.faults.clear()
    assert_complete(loopback, pushed, runs)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["status", "drop", "lose", "cut"])
@pytest.mark.parametrize("number", range(0, 87, 3))
def test_a_fault_at_each_request_with_four_workers(loopback, runs, kind, number):
    loopback.faults.append(Fault(lambda request: request.number == number, kind, 503))
    assert_complete(loopback, release(hub_store(loopback), runs, 4), runs)
    assert loopback.faults[0].times == 0


@pytest.mark.parametrize("number", [3, 13, 28, 42])
def test_a_hub_that_goes_down_on_the_way_leaves_whole_runs_only(loopback, runs, number):
    loopback.faults.append(Fault(lambda request: request.number >= number, "status", 503, times=10**9))
    with pytest.raises(PushErrors) as caught:
        push_runs(hub_store(loopback, attempts=2), runs, workers=4)
    assert len(caught.value.failures) + len(caught.value.pushed) == RUNS
    for record in caught.value.pushed:
        repo = loopback.state.repository("model", record.repo)
        assert set(repo.commits[record.commit].tree) > {"model.safetensors", "run.json", "README.md"}
    loopback.faults.clear()
    assert_complete(loopback, release(hub_store(loopback), runs, 4), runs)


def test_one_that_fails_does_not_stop_the_others(store, runs):
    for workers in (0, 33):
        with pytest.raises(ValueError, match="allowed are 1 to 32"):
            push_runs(store, runs, workers=workers)
    (Path(runs[2][0]) / "config.json").unlink()
    with pytest.raises(PushErrors, match=r"1 of the pushes failed: run2: .*no config\.json") as caught:
        push_runs(store, runs, workers=4)
    assert isinstance(caught.value.failures[0][1], FilesError)
    assert [record.run_id for record in caught.value.pushed] == ["run0", "run1", "run3", "run4", "run5"]


def test_interrupted_it_ends_what_is_being_sent_and_starts_nothing_more(store, runs, request, monkeypatch):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    publish, calls = store.publish, []
    noticed, shutdown = threading.Event(), ThreadPoolExecutor.shutdown

    def shut_down(pool, *arguments, **named):
        noticed.set()
        shutdown(pool, *arguments, **named)

    monkeypatch.setattr(ThreadPoolExecutor, "shutdown", shut_down)

    def interrupted(*arguments):
        calls.append(arguments)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        assert noticed.wait(60)
        return publish(*arguments)

    store.publish = interrupted
    with pytest.raises(KeyboardInterrupt):
        push_runs(store, runs, workers=1)
    assert len(calls) == 1
    branches = {repo: store.branches("model", repo) for repo in store.repos("model")}
    assert [repo for repo in branches if set(branches[repo]) - {"main"}] == ["demo-d64-E4"]
    assert "run.json" in store.files("model", "demo-d64-E4", "tokens001.5M-seed0")


def test_when_the_hub_asks_one_thread_to_wait_all_wait(online, monkeypatch):
    """One thread is told to come back in 2 s; what the others ask meanwhile is sent after that."""
    clock, slept = [100.0], []

    def sleep(seconds):
        slept.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr("hub.store.transport._sleep", sleep)
    monkeypatch.setattr("hub.store.transport.time", SimpleNamespace(monotonic=lambda: clock[0]))
    transport = Transport("http://127.0.0.1:1", None, timeout=1.0, attempts=3, longest_wait=60.0)
    limited = UnavailableError("429")
    limited.retry_after = 2.0
    assert transport.wait(0, limited) >= 2.0
    with ThreadPoolExecutor(4) as pool:
        sent = list(pool.map(lambda _: transport.call(lambda: clock[0]), range(4)))
    assert min(sent) >= 102.0
    assert max(slept) <= 2.3
    slept.clear()
    transport.call(lambda: None)
    assert slept == []  # the pause is over
