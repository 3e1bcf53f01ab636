"""Single bits flipped in the Hub's cache: refused offline, with the file to delete, and fetched again online."""

import random
import re
from pathlib import Path

import pytest

from hub import IntegrityError, UnavailableError, publish_files, pull_run, push_run
from hub.record.table import JSONL_NAME, PARQUET_NAME
from hub.release.push import push_listing
from tests.hub.conftest import hub_cache, hub_store
from tests.hub.loopback import Fault
from tests.hub.samples import flip

REPO = "demo-d64-E4"
RELEASED = ["README.md", "config.json", "model.safetensors", "modeling_switch_moe.py", "run.json", "tokenizer.json"]
OTHERS = [
    *(("dataset", "demo-runs", name) for name in ("README.md", JSONL_NAME, PARQUET_NAME)),
    *(("model", "demo-law", name) for name in ("README.md", "scaling_law.json")),
    ("model", REPO, "README.md"),
]
FLIPS = 10  # of each file


@pytest.fixture
def released(loopback, checkpoint, record):
    """A store with a run, its index and a law, all of them in the cache; the run as released."""
    store = hub_store(loopback)
    law = {"scaling_law.json": b'{"format": "scaling_law"}', "README.md": b"---\nlicense: mit\n---\n# A law\n"}
    publish_files(store, "demo-law", law, message="A law")
    pushed = push_run(store, checkpoint(), record)
    push_listing(store, "demo", [pushed])
    pull_run(store, pushed)
    for place in OTHERS:
        store.read(*place)
    return store, pushed


@pytest.fixture
def offline(monkeypatch):
    """Runs a function as a process does that has no network."""
    from huggingface_hub import constants

    def run(function):
        with monkeypatch.context() as patched:
            patched.setattr(constants, "HF_HUB_OFFLINE", True)
            return function()

    return run


def reads(released):
    """Each cached file, with its content and what reads it as another process would."""
    store, pushed = released

    def reader(*place):
        return lambda: store.read(*place)

    folder = pull_run(store, pushed)
    for name in RELEASED:
        yield folder / name, lambda: (pull_run(store, pushed) / name).read_bytes()  # noqa: B023 (called at once)
    for kind, repo, name in OTHERS:
        (snapshot,) = {
            path.parent / name
            for path in hub_cache().glob(f"{kind}s--org--{repo}/snapshots/*/{name}")
            if path.read_bytes() == store.read(kind, repo, name)
        }
        yield snapshot, reader(kind, repo, name)


def test_no_flipped_bit_is_taken_and_each_heals_once_online_or_when_it_is_deleted(loopback, released, offline):
    chosen, files = random.Random(0), 0
    for file, read in reads(released):
        files += 1
        content, blob = file.read_bytes(), file.resolve()
        for bit in chosen.sample(range(8 * len(content)), FLIPS):
            flip(blob, content, bit)
            with pytest.raises(IntegrityError, match=re.escape(f"{file.name} of org/")) as caught:
                offline(read)
            assert str(blob) in str(caught.value)
            assert "\n" not in str(caught.value)
        before = len(loopback.requests)
        assert read() == content == blob.read_bytes()
        fetched = [request for request in loopback.requests[before:] if request.method == "GET" and not request.api]
        assert len(fetched) == 1
        assert offline(read) == content
        flip(blob, content, 7)
        with pytest.raises(IntegrityError) as caught:
            offline(read)
        Path(str(caught.value).rpartition("delete ")[2]).unlink()  # is all that has to be deleted
        with pytest.raises(UnavailableError, match="not in the cache"):
            offline(read)
        assert read() == content
    assert files == len(RELEASED) + len(OTHERS)


def test_a_damaged_cache_and_a_hub_that_fails_while_it_is_fetched_again(loopback, released):
    """What is not fetched is not handed out, and the next time it is fetched."""
    for file, read in reads(released):
        content = file.read_bytes()
        flip(file.resolve(), content, 3)
        loopback.faults.append(Fault(lambda request: "/resolve/" in request.path, "drop", times=10**9))
        with pytest.raises((UnavailableError, IntegrityError)):
            read()
        loopback.faults.clear()
        assert read() == content


def test_a_folder_that_is_fetched_into_gets_nothing_damaged_from_the_cache(released, tmp_path):
    store, pushed = released
    good, cached = {}, pull_run(store, pushed)
    for name in RELEASED:
        good[name] = (cached / name).read_bytes()
        flip((cached / name).resolve(), good[name], 11)
    folder = pull_run(store, pushed, tmp_path / "to")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == good


def test_a_hub_that_sends_damaged_content_is_asked_twice(loopback, released):
    store, pushed = released
    folder = pull_run(store, pushed)
    entry = loopback.state.repository("model", f"org/{REPO}").resolve(pushed.commit).tree["tokenizer.json"]
    damaged = bytearray(loopback.state.blobs[entry.oid])
    damaged[3] ^= 1
    loopback.state.blobs[entry.oid] = bytes(damaged)
    (folder / "tokenizer.json").resolve().unlink()
    before = len(loopback.requests)
    with pytest.raises(IntegrityError, match=r"tokenizer\.json of org/demo-d64-E4 was received with other content"):
        pull_run(hub_store(loopback), pushed)
    asked = [request.path for request in loopback.requests[before:] if request.method == "GET" and not request.api]
    assert len([path for path in asked if path.endswith("tokenizer.json")]) == 2


def test_a_damaged_note_of_a_branchs_commit_is_no_commit(released, offline):
    store, _ = released
    note = next(hub_cache().glob("datasets--org--demo-runs/refs/main"))
    commit, content = note.read_bytes(), store.read("dataset", "demo-runs", JSONL_NAME)
    for bit in (0, 7, 12):  # another commit, and no text at all
        flip(note, commit, bit)
        with pytest.raises(UnavailableError, match="not in the cache either"):
            offline(lambda: store.read("dataset", "demo-runs", JSONL_NAME))
        assert store.read("dataset", "demo-runs", JSONL_NAME) == content
        assert note.read_bytes() == commit
