"""An index with rows that cannot be read: pushed to, and rebuilt from the branches."""

import pytest

from hub import (
    NotFoundError,
    load_index,
    load_records,
    open_store,
    push_index,
    push_repo_cards,
    push_run,
    push_runs,
    repair_index,
)
from hub.record.table import JSONL_NAME
from tests.hub.samples import make_record


def released(store, runs):
    pushed = push_runs(store, runs)
    push_index(store, "demo", pushed)
    return pushed


def newer(record):
    text = record.to_json().replace('"schema_version": 1', '"schema_version": 9')
    assert '"schema_version": 9' in text
    return text.encode()


def rewrite(store, *lines):
    content = b"".join(line + b"\n" for line in lines)
    store.update("dataset", "demo-runs", (), lambda _: {JSONL_NAME: content}, "edit")


def lines_of(store):
    return store.read("dataset", "demo-runs", JSONL_NAME).splitlines()


def test_rows_that_cannot_be_read_do_not_block_a_push_and_stay_as_they_are(store, runs_of):
    (old,) = released(store, runs_of(1))
    future = newer(make_record(run_id="future", seed=7, something_new={"a": [1, 2]}))
    strange = b'{"run_id": "bad",  "spaces": "kept",\t"n_active": "many"}'
    rewrite(store, strange, old.to_json().encode(), future, b"\xff no text")
    (new,) = released(store, runs_of(1, start=1))
    assert set(lines_of(store)[2:]) == {strange, future, b"\xff no text"}
    problems: list[str] = []
    assert load_index(store, "demo", problems=problems) == [old, new]
    assert len(problems) == 3
    assert any("future" in problem for problem in problems)
    push_repo_cards(store, "demo", ["demo-d64-E4"])
    before = lines_of(store)
    assert not push_index(store, "demo", [new]).written
    assert lines_of(store) == before
    rewrite(store, newer(old), new.to_json().encode())  # a run that is pushed again replaces its broken row
    push_index(store, "demo", [old])
    assert load_index(store, "demo") == [old, new]


def test_a_repair_rebuilds_the_index_from_the_branches(store, runs_of):
    first, second, third = released(store, runs_of(3))
    wrong = second.replaced(eval_loss=1.0)
    gone = make_record(run_id="gone", seed=50, repo=store.repo_id("demo-d64-E4"), branch="gone", commit="a" * 40)
    elsewhere = make_record(run_id="hidden", seed=51, repo=store.repo_id("demo-d64-E8"), branch="b", commit="b" * 40)
    unreleased = make_record(run_id="unreleased", seed=52)
    future = newer(make_record(run_id="future", seed=53))
    rows = (wrong, gone, elsewhere, unreleased)
    rewrite(store, newer(first), b"{oops", future, *(row.to_json().encode() for row in rows))
    assert repair_index(store, "demo").written
    assert lines_of(store)[-1] == future
    listed = load_index(store, "demo", problems=[])
    assert {row.run_id for row in listed} == {"run0", "run1", "run2", "hidden", "unreleased"}
    assert [row for row in listed if row.run_id.startswith("run")] == [first, second, third]

    assert not repair_index(store, "demo").written


def test_a_lost_index_is_made_anew_and_nothing_is_made_of_nothing(store, checkpoint):
    with pytest.raises(NotFoundError, match="no index and no released run of the sweep 'demo'"):
        repair_index(store, "demo")
    pushed = push_run(store, checkpoint("a"), make_record())
    repair_index(store, "demo")
    assert load_index(store, "demo") == [pushed]


def test_the_command(command, tmp_path, runs_of):
    store = open_store(tmp_path / "store")
    (run,) = released(store, runs_of(1))
    rewrite(store, b"{oops")
    status, _, err = command("repair", tmp_path / "store", "demo")
    assert (status, "was rebuilt from the branches of demo" in err) == (0, True)
    assert load_records(tmp_path / "store") == [run]
    assert "agrees with its branches\n" in command("repair", tmp_path / "store", "demo")[2]
    status, _, err = command("repair", tmp_path / "store", "other")
    assert (status, err.count("\n")) == (2, 1)
