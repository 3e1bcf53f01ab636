"""An index in a folder whose bits flip, or that a person edits: refused, accepted by hand, rebuilt."""

import random

import pytest

from hub import IntegrityError, load_index, load_records, open_store, push_index, push_runs, repair_index
from hub.base import checksums
from hub.record.table import JSONL_NAME, PARQUET_NAME
from hub.release.push import push_listing
from scaling_law import load_runs
from tests.hub.samples import flip, make_record

FLIPS = 30  # of each file


@pytest.fixture
def index(tmp_path, runs_of):
    """A store in a folder with two released runs and one that never was, and the folder of their index."""
    store = open_store(tmp_path / "store")
    push_listing(store, "demo", [*push_runs(store, runs_of(2)), make_record(run_id="unreleased", seed=9)])
    return store, tmp_path / "store" / "datasets" / "demo-runs" / "main"


@pytest.mark.parametrize("name", [JSONL_NAME, PARQUET_NAME])
def test_no_flipped_bit_is_taken(index, name):
    store, folder = index
    file, chosen = folder / name, random.Random(0)
    content = file.read_bytes()
    readers = [lambda: load_records(file), lambda: load_runs(file)]
    if name == JSONL_NAME:
        readers += [lambda: load_records(folder), lambda: load_runs(store.root), lambda: load_index(store, "demo")]
        readers += [lambda: push_index(store, "demo", [make_record(run_id="new", seed=5)])]
    for bit in chosen.sample(range(8 * len(content)), FLIPS):
        flip(file, content, bit)
        for read in readers:
            with pytest.raises(IntegrityError, match="has changed since it was pushed") as caught:
                read()
            assert "\n" not in str(caught.value)
    file.write_bytes(content)
    for read in readers:
        read()


def test_a_folder_of_an_earlier_version_loads_and_is_protected_by_the_next_push(index):
    store, folder = index
    (folder / checksums.FILE_NAME).unlink()
    assert len(load_index(store, "demo")) == 3
    push_index(store, "demo", [make_record(run_id="new", seed=5)])
    content = (folder / JSONL_NAME).read_bytes()
    flip(folder / JSONL_NAME, content, 800)
    with pytest.raises(IntegrityError):
        load_index(store, "demo")


def test_an_index_that_was_edited_is_accepted_as_the_error_says(index, command):
    store, folder = index
    file = folder / JSONL_NAME
    file.write_bytes(file.read_bytes().replace(b'"hardware": "2 CPU cores"', b'"hardware": "2 other cores"'))
    status, _, shown = command("runs", store.root, "demo")
    assert (status, shown.count("\n")) == (1, 1)
    assert f"delete {folder / checksums.FILE_NAME}" in shown
    (folder / checksums.FILE_NAME).unlink()
    assert [record.hardware for record in load_index(store, "demo")] == ["2 other cores"] * 3
    push_index(store, "demo", [make_record(run_id="new", seed=5)])
    assert len(load_index(store, "demo")) == 4


def test_a_repair_rebuilds_what_is_damaged_and_vouches_for_nothing_else(index):
    store, folder = index
    good = {name: (folder / name).read_bytes() for name in (JSONL_NAME, PARQUET_NAME)}
    released, unreleased = good[JSONL_NAME].index(b'"steps": 733'), good[JSONL_NAME].rindex(b'"steps": 733')
    for name, byte in ((JSONL_NAME, released + 11), (PARQUET_NAME, 100)):
        flip(folder / name, good[name], 8 * byte)
        with pytest.raises(IntegrityError):
            load_records(folder / name)
        repair_index(store, "demo")
        assert (folder / name).read_bytes() == good[name]
        assert len(load_records(folder / name)) == 3
    flip(folder / JSONL_NAME, good[JSONL_NAME], 8 * (unreleased + 11))  # no branch says what it was
    repair_index(store, "demo")
    with pytest.raises(IntegrityError):
        load_index(store, "demo")
