"""Pushing in the background: nothing is lost, and no failure stays silent."""

# ruff: noqa: F811 (fixtures are imported)
import logging
from unittest.mock import Mock

import pytest

from hub import AccessError, load_index
from tests.hub.conftest import checkpoint, hub_store, loopback, online, runs_of, store  # noqa: F401
from tests.hub.loopback import TOKEN, Fault
from tests.hub.samples import make_record
from training.run.releaser import RELEASE_INCOMPLETE, Releaser


@pytest.fixture(autouse=True)
def messages(caplog):
    caplog.set_level(logging.INFO, "training")


def released(store, runs) -> Releaser:
    releaser = Releaser(store)
    for folder, record in runs:
        releaser(folder, record)
    releaser.close()
    return releaser


def test_all_runs_arrive_and_the_index_is_written_once(loopback, runs_of, caplog):
    """Not once for each branch: a sweep in parallel would write hundreds of commits to one repository."""
    store = hub_store(loopback)
    assert released(store, runs_of(4)).exit_status == 0
    assert [record.run_id for record in load_index(store, "demo")] == [f"run{number}" for number in range(4)]
    assert "4 runs are released in" in caplog.text
    index = loopback.state.repository("dataset", "org/demo-runs")
    assert [commit.title for commit in index.history("main")] == ["Add 4 runs to the index", "initial commit"]


def test_a_failure_is_reported_at_the_end_and_the_others_arrive(store, runs_of, caplog):
    runs = runs_of(2)
    (runs[0][0] / "config.json").unlink()
    assert released(store, runs).exit_status == RELEASE_INCOMPLETE
    assert "is not complete: 1 of the pushes failed: run0: " in caplog.text
    assert "no config.json" in caplog.text
    assert [record.run_id for record in load_index(store, "demo")] == ["run1"]


def test_an_index_that_cannot_be_written_is_reported(loopback, runs_of, caplog):
    loopback.faults.append(Fault(lambda request: "/datasets/" in request.path, "status", 403, times=10**9))
    assert released(hub_store(loopback), runs_of(1)).exit_status == RELEASE_INCOMPLETE
    assert "is not complete" in caplog.text


def test_what_failed_while_the_hub_was_away_is_pushed_at_the_end(loopback, checkpoint, caplog):
    """And each repository gets its card on main, once."""
    releaser = Releaser(hub_store(loopback, attempts=2))
    loopback.faults.append(Fault(lambda request: True, "status", 503, times=10**9))
    releaser(checkpoint("first"), make_record(run_id="first"))
    releaser._pushes[0].result(60)
    assert "pushing first failed, training continues: " in caplog.text
    loopback.faults.clear()
    releaser(checkpoint("second", weight=2.0), make_record(run_id="second", seed=1))
    releaser.close()
    assert releaser.exit_status == 0
    assert [record.run_id for record in load_index(hub_store(loopback), "demo")] == ["first", "second"]
    repo = loopback.state.repository("model", "org/demo-d64-E4")
    assert [commit.title for commit in repo.history("main")] == ["List the revisions", "initial commit"]


def test_errors_name_no_token_and_a_refused_one_is_reported_once_and_at_the_end(store, runs_of, caplog):
    store.publish = Mock(side_effect=ValueError(f"bad header: Bearer {TOKEN}"))
    released(store, runs_of(1))
    assert "pushing run0 failed, training continues: bad header: Bearer <token>" in caplog.text
    assert "1 of the pushes failed: run0: bad header: Bearer <token>" in caplog.text
    assert TOKEN not in caplog.text
    store.publish = Mock(side_effect=AccessError("the Hub does not accept the token"))
    released(store, runs_of(3, start=1))
    assert "is not complete: the Hub does not accept the token" in caplog.text
    assert caplog.text.count("the Hub does not accept the token") == 2
