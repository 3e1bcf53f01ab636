"""Pushing in the background: nothing is lost, and no failure stays silent."""

import threading
from concurrent.futures import Future

import pytest

from hub import BackgroundPusher, PushErrors, load_index
from hub.plain.errors import AccessError, UnavailableError
from hub.record.run_record import RunRecord
from tests.hub.conftest import hub_store
from tests.hub.loopback import TOKEN, Fault
from tests.hub.samples import make_record


def test_all_runs_arrive_in_order(store, checkpoint):
    with BackgroundPusher(store, "demo") as pusher:
        for number in range(4):
            pusher.submit(checkpoint(f"r{number}", weight=number), make_record(run_id=f"run{number}", seed=number))
        released = pusher.close()
    assert [record.run_id for record in released] == [f"run{number}" for number in range(4)]
    assert pusher.pending() == 0
    assert load_index(store, "demo") == released


def test_the_index_is_written_once(loopback, checkpoint):
    """Not once for each branch: a sweep in parallel would write hundreds of commits to one repository."""
    with BackgroundPusher(hub_store(loopback), "demo") as pusher:
        for number in range(4):
            pusher.submit(checkpoint(f"r{number}", weight=number), make_record(run_id=f"run{number}", seed=number))
    index = loopback.state.repository("dataset", "org/demo-runs")
    assert [commit.title for commit in index.history("main")] == ["Add 4 runs to the index", "initial commit"]
    assert len(load_index(hub_store(loopback), "demo")) == 4


def test_a_failure_is_raised_at_the_end_and_the_others_arrive(store, checkpoint):
    broken = checkpoint("broken")
    (broken / "config.json").unlink()
    pusher = BackgroundPusher(store, "demo")
    pusher.submit(broken, make_record(run_id="broken", seed=1))
    pusher.submit(checkpoint("good"), make_record(run_id="good"))
    with pytest.raises(PushErrors, match=r"1 of the pushes failed: broken: .*no config\.json") as caught:
        pusher.close()
    assert [run_id for run_id, _ in caught.value.failures] == ["broken"]
    assert [record.run_id for record in load_index(store, "demo")] == ["good"]


def test_an_error_of_the_training_is_not_hidden_by_one_of_a_push(store, checkpoint):
    started, go_on = threading.Event(), threading.Event()
    publish = store.publish

    def slow(*arguments):
        started.set()
        assert go_on.wait(10)
        return publish(*arguments)

    store.publish = slow
    futures: list[Future[RunRecord]] = []

    def training():
        with BackgroundPusher(store, "demo") as pusher:
            futures.append(pusher.submit(checkpoint("a"), make_record(run_id="a")))
            futures.append(pusher.submit(checkpoint("b", weight=2.0), make_record(run_id="b", seed=1)))
            assert started.wait(10)
            threading.Timer(0.1, go_on.set).start()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        training()
    running, waiting = futures
    assert running.result().run_id == "a"
    assert waiting.cancelled()
    assert [record.run_id for record in load_index(store, "demo")] == ["a"]


def test_what_failed_while_the_hub_was_away_is_pushed_at_the_end(loopback, checkpoint):
    """And each repository gets its card on main, once."""
    pusher = BackgroundPusher(hub_store(loopback, attempts=2), "demo")
    away = Fault(lambda request: True, "status", 503, times=10**9)
    loopback.faults.append(away)
    first = pusher.submit(checkpoint("first"), make_record(run_id="first"))
    assert isinstance(first.exception(60), UnavailableError)
    loopback.faults.clear()
    pusher.submit(checkpoint("second", weight=2.0), make_record(run_id="second", seed=1))
    assert [record.run_id for record in pusher.close()] == ["first", "second"]
    assert [record.run_id for record in load_index(hub_store(loopback), "demo")] == ["first", "second"]
    repo = loopback.state.repository("model", "org/demo-d64-E4")
    assert [commit.title for commit in repo.history("main")] == ["List the revisions", "initial commit"]


def test_a_token_in_an_error_is_not_repeated(store, checkpoint, caplog):
    """Neither in what is logged while the training goes on, nor in what is raised at the end."""

    def refuse(*_):
        raise ValueError(f"bad header: Bearer {TOKEN}")

    store.publish = refuse
    pusher = BackgroundPusher(store, "demo")
    pusher.submit(checkpoint(), make_record(run_id="a")).exception(60)
    with pytest.raises(PushErrors, match="Bearer <token>") as caught:
        pusher.close()
    assert "pushing a failed, training goes on: bad header: Bearer <token>" in caplog.text
    assert TOKEN not in f"{caught.value} {caught.value!r} {caplog.text}"


def test_a_refused_token_is_reported_once(store, checkpoint, caplog):
    def refuse(*_):
        raise AccessError("the Hub does not accept the token")

    store.publish = refuse
    pusher = BackgroundPusher(store, "demo")
    for number in range(3):
        pusher.submit(checkpoint(f"r{number}"), make_record(run_id=f"run{number}", seed=number))
    with pytest.raises(PushErrors, match=r"^3 of the pushes failed: run0, run1, run2: the Hub does not"):
        pusher.close()
    assert caplog.text.count("the Hub does not accept the token") == 1
