"""Publishing, reading and updating: the same tests for every store."""

import subprocess
import sys
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from hub import (
    ConflictError,
    FilesError,
    IntegrityError,
    NotFoundError,
    RecordError,
    RunRecord,
    load_index,
    open_store,
    pull_run,
    push_index,
    push_run,
)
from hub.base import atomic
from tests.hub.samples import make_record

RELEASED = {"README.md", "config.json", "model.safetensors", "modeling_switch_moe.py", "run.json", "tokenizer.json"}
BRANCH = "tokens001.5M-seed0"


def test_a_pushed_run_holds_the_listed_files_only_and_pushing_again_writes_nothing(store, checkpoint, record):
    folder = checkpoint()
    pushed = push_run(store, folder, record)
    assert (pushed.repo, pushed.branch) == (store.repo_id("demo-d64-E4"), BRANCH)
    files = store.files("model", "demo-d64-E4", BRANCH)
    assert set(files) == RELEASED
    assert files["model.safetensors"].sha256 == pushed.weights_sha256["model.safetensors"]
    inside = RunRecord.from_json(store.read("model", "demo-d64-E4", "run.json", pushed.branch))
    assert inside == pushed.replaced(commit=None)
    assert store.branches("model", "demo-d64-E4")[pushed.branch] == pushed.commit
    assert push_run(store, folder, record) == pushed


def test_other_weights_than_recorded_or_on_the_same_branch_are_refused(store, checkpoint, record):
    with pytest.raises(RecordError, match="do not match the files"):
        push_run(store, checkpoint(), record.replaced(weights_sha256={"model.safetensors": "0" * 64}))
    assert store.repos("model") == []
    pushed = push_run(store, checkpoint("one"), record)
    with pytest.raises(ConflictError, match=r"has a branch 'tokens001.5M-seed0' with other weights"):
        push_run(store, checkpoint("two", weight=2.0), record)
    assert store.branches("model", "demo-d64-E4")[BRANCH] == pushed.commit
    other = push_run(store, checkpoint("three", weight=3.0), record, branch="tokens001.5M-seed0-b")
    assert other.branch == "tokens001.5M-seed0-b"


def test_the_index_gains_rows_and_keeps_them(store):
    one, two = make_record(run_id="one"), make_record(run_id="two", seed=1)
    assert push_index(store, "demo", [one]).written
    push_index(store, "demo", [two])
    assert load_index(store, "demo") == [one, two]
    again = push_index(store, "demo", [two, one])
    assert not again.written
    better = one.replaced(eval_loss=4.0)
    push_index(store, "demo", [better])
    assert load_index(store, "demo") == [better, two]
    assert set(store.files("dataset", "demo-runs")) == {"README.md", "runs.jsonl", "runs.parquet"}
    card = store.read("dataset", "demo-runs", "README.md").decode()
    assert "path: runs.parquet" in card
    assert ": 2 rows" in card
    assert "4.0000" in card


def test_an_index_is_refused_when_runs_do_not_belong_together(store):
    with pytest.raises(RecordError, match="sweep of run x is 'other', allowed here is 'demo'"):
        push_index(store, "demo", [make_record(run_id="x", sweep="other")])
    same = {"weights_sha256": {"model.safetensors": "0" * 64}}
    with pytest.raises(ConflictError, match="2 runs have the same weights"):
        push_index(store, "demo", [make_record(run_id="a", **same), make_record(run_id="b", seed=1, **same)])
    with pytest.raises(NotFoundError):
        load_index(store, "demo")


def test_parallel_pushes_of_one_branch_agree(store, checkpoint, record):
    folders = [*(checkpoint(f"same{i}") for i in range(4)), checkpoint("other", weight=9.0)]
    push_run(store, checkpoint("first", weight=5.0), record.replaced(seed=5))
    with ThreadPoolExecutor(5) as pool:
        pushes = [pool.submit(push_run, store, folder, record) for folder in folders]
    errors = [push.exception() for push in pushes]
    won = [push.result().weights_sha256 for push in pushes if not push.exception()]
    assert {type(error) for error in errors if error} == {ConflictError}
    assert len(won) in (1, 4)
    files = store.files("model", "demo-d64-E4", BRANCH)
    assert won == [{"model.safetensors": files["model.safetensors"].sha256}] * len(won)


def test_pull_gives_a_folder_with_checked_weights(store, checkpoint, record, tmp_path):
    folder = checkpoint()
    pushed = push_run(store, folder, record)
    pulled = pull_run(store, pushed, tmp_path / "pulled")
    assert {entry.name for entry in pulled.iterdir()} == RELEASED
    assert (pulled / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    in_place = pull_run(store, pushed)
    assert (in_place / "config.json").read_bytes() == (folder / "config.json").read_bytes()
    with pytest.raises(IntegrityError, match="have sha256"):
        pull_run(store, pushed.replaced(weights_sha256={"model.safetensors": "0" * 64}), tmp_path / "wrong")
    with pytest.raises(NotFoundError, match="no released weights"):
        pull_run(store, record, tmp_path / "never")
    with pytest.raises(NotFoundError):
        pull_run(store, pushed.replaced(commit="0" * 40), tmp_path / "gone")


def test_what_is_not_there_is_an_error_of_its_own(store):
    assert store.repos("model") == []
    assert store.branches("model", "nothing") == {}
    for call in (
        lambda: store.files("model", "nothing"),
        lambda: store.read("dataset", "nothing", "runs.jsonl"),
        lambda: load_index(store, "nothing"),
    ):
        with pytest.raises(NotFoundError):
            call()
    push_index(store, "demo", [make_record()])
    with pytest.raises(NotFoundError, match="no file 'other'"):
        store.read("dataset", "demo-runs", "other")
    assert store.repos("dataset", "demo") == ["demo-runs"]
    assert store.repos("dataset", "x") == []
    with pytest.raises(IntegrityError, match="bytes"):
        store.read("dataset", "demo-runs", "runs.jsonl", max_bytes=100)


def test_names_that_lead_elsewhere_are_refused(store):
    for name in ("", "..", "a/b", "../x", "a..b", "-a", "a-", "a b", "x" * 200, "a\n"):
        with pytest.raises(FilesError, match="allowed are letters and digits"):
            store.publish("demo", name, {"config.json": b"{}"}, {}, "message")
        with pytest.raises(FilesError, match="organisation"):
            open_store(f"hf://{name}")
    for name in ("../evil.py", "training_args.bin", "sub/config.json", "/etc/passwd", ".gitattributes"):
        with pytest.raises(FilesError, match="not on the list"):
            store.publish("demo", "branch", {"config.json": b"{}", name: b"x"}, {}, "message")
    assert store.repos("model") == []


def test_uris():
    assert open_store("releases").uri == "releases"
    assert open_store("file:releases/x").uri == "releases/x"
    assert open_store("file:///srv/x").uri == "/srv/x"
    for uri in ("https://huggingface.co/org", "s3://bucket", "", None):
        with pytest.raises(FilesError, match="allowed are a folder"):
            open_store(uri)


def test_a_publication_is_there_whole_or_not_at_all(tmp_path, checkpoint, record):
    """A process that is killed while it writes leaves no branch, and the next push succeeds."""
    folder = checkpoint()
    record.save(folder)
    code = """
import os, sys
from hub import open_store, push_run
from hub.base import atomic
from hub.record.run_record import RunRecord
copy, copied = atomic.copy_file, []
def stop(source, destination):
    copied.append(source)
    if str(len(copied)) == sys.argv[3]:
        os._exit(9)
    return copy(source, destination)
atomic.copy_file = stop
if sys.argv[3] == "rename":
    os.rename = lambda *_: os._exit(9)
push_run(open_store(sys.argv[1]), sys.argv[2], RunRecord.load(sys.argv[2]))
"""
    local = open_store(tmp_path / "releases")
    for moment in ("1", "4", "rename"):
        arguments = [str(tmp_path / "releases"), str(folder), moment]
        assert subprocess.run([sys.executable, "-c", code, *arguments], check=False).returncode == 9
        assert local.branches("model", "demo-d64-E4") == {}
    assert push_run(local, folder, record).commit
    assert set(local.files("model", "demo-d64-E4", BRANCH)) == RELEASED
    repository = tmp_path / "releases" / "models" / "demo-d64-E4"
    assert {path.name for path in repository.iterdir()} - {".lock"} == {BRANCH}  # of the killed ones nothing stays


def test_what_is_being_published_is_not_taken_for_what_a_kill_left(tmp_path, checkpoint, record, monkeypatch):
    """One push is held up while it writes; another into the same repository waits for it."""
    local, (writing, go_on) = open_store(tmp_path / "releases"), (Event(), Event())
    slow, fast, copy = checkpoint("slow"), checkpoint("fast", weight=4.0), atomic.copy_file

    def wait(source, destination):
        copy(source, destination)
        if source.parent == slow and not writing.is_set():
            writing.set()
            go_on.wait(60)

    monkeypatch.setattr(atomic, "copy_file", wait)
    repository = tmp_path / "releases" / "models" / "demo-d64-E4"
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(push_run, local, slow, record)
        assert writing.wait(60)
        (incoming,) = repository.glob(".*.tmp")
        second = threads.submit(push_run, local, fast, record.replaced(seed=1))
        assert futures.wait([second], 0.2).not_done
        assert incoming.exists()
        go_on.set()
        assert {first.result().branch, second.result().branch} == {BRANCH, "tokens001.5M-seed1"}
    assert {path.name for path in repository.iterdir()} - {".lock"} == {BRANCH, "tokens001.5M-seed1"}


def test_processes_that_write_one_index_lose_no_row(tmp_path):
    for number in range(2):
        make_record(run_id=f"run{number}", seed=number).save(tmp_path / str(number))
    code = """
import sys
from hub import open_store, push_index
from hub.record.run_record import RunRecord
record = RunRecord.load(sys.argv[2])
for step in range(10):
    push_index(open_store(sys.argv[1]), "demo", [record.replaced(run_id=f"{record.run_id}-{step}")])
"""
    store = tmp_path / "releases"
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(store), str(tmp_path / str(number))]) for number in range(2)
    ]
    assert [process.wait(60) for process in processes] == [0, 0]
    assert len(load_index(open_store(store), "demo")) == 20
