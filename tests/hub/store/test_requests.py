"""How often the Hub is asked: one retry layer, a token that is refused once, and the limit of commits."""

import pytest

from hub import (
    AccessError,
    FilesError,
    HubStore,
    PushErrors,
    UnavailableError,
    load_index,
    pull_run,
    push_index,
    push_run,
    push_runs,
)
from hub.base.commands import status_of
from hub.release.index import read_branches
from hub.store.transport import Transport
from tests.hub.conftest import hub_store
from tests.hub.loopback import TOKEN, Fault
from tests.hub.samples import make_record

MANY = 10**6
NEW = make_record(run_id="new", seed=9)
CALLS = {
    "load_index": lambda store, run, folder: load_index(store, "demo"),
    "push_run": lambda store, run, folder: push_run(store, folder / "new", NEW),
    "push_index": lambda store, run, folder: push_index(store, "demo", [NEW]),
    "pull_run": lambda store, run, folder: pull_run(store, run, folder / "got"),
    "repos": lambda store, run, folder: store.repos("model"),
}
PLACES = [
    ("load_index", "/resolve/"),
    ("push_run", "/preupload/"),
    ("push_run", "/batch"),
    ("push_run", "/upload/"),
    ("push_index", "/commit/"),
    ("pull_run", "/large/"),
    ("repos", "/"),
]


@pytest.mark.parametrize(("call", "where"), PLACES)
def test_a_permanent_503_costs_six_requests(loopback, checkpoint, tmp_path, monkeypatch, call, where):
    pushed = push_run(hub_store(loopback), checkpoint("old"), make_record())
    push_index(hub_store(loopback), "demo", [pushed])
    checkpoint("new", weight=2.0)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "empty"))
    store = hub_store(loopback)
    down = Fault(lambda request: where in request.path, "status", 503, times=MANY)
    loopback.faults.append(down)
    with pytest.raises(UnavailableError, match="answered 503"):
        CALLS[call](store, pushed, tmp_path)
    assert MANY - down.times == 6


@pytest.mark.parametrize(("what", "requests"), [("uploads", 6), ("branches", 9)])
def test_a_lasting_503_is_not_met_by_every_thread_anew(loopback, checkpoint, runs_of, what, requests):
    """Four large files, or four branches that are read at the same time: not six requests for each."""
    push_runs(hub_store(loopback), runs_of(4))
    folder, store = checkpoint("new", weight=9.0), hub_store(loopback)
    for number in range(3):
        (folder / f"picture{number}.png").write_bytes(b"\x89PNG\0" + bytes([number]))
    where = {"uploads": "/upload/", "branches": "/revision/"}[what]
    down = Fault(lambda request: where in request.path, "status", 503, times=MANY)
    loopback.faults.append(down)
    with pytest.raises(UnavailableError, match="answered 503"):
        push_run(store, folder, NEW) if what == "uploads" else read_branches(store, "demo", ["demo-d64-E4"])
    assert MANY - down.times == requests


def test_others_in_the_process_keep_the_retries_of_the_library(loopback):
    from huggingface_hub import HfApi

    push_index(hub_store(loopback), "demo", [make_record()])
    loopback.faults.append(Fault(lambda request: request.api == "tree", "status", 503, times=2))
    files = HfApi(endpoint=loopback.endpoint, token=TOKEN).list_repo_files("org/demo-runs", repo_type="dataset")
    assert "runs.jsonl" in files


def test_a_hub_without_a_connection_is_given_up_within_seconds(online, monkeypatch):
    """Three attempts and two short waits; a Hub that answers 503 is waited for longer."""
    waited: list[float] = []
    monkeypatch.setattr("hub.store.transport._sleep", waited.append)
    with pytest.raises(UnavailableError, match="cannot be reached"):
        HubStore("org", endpoint="http://127.0.0.1:9").repos("model")
    assert len(waited) == 2
    assert sum(waited) < 2.0


# -- tokens


def test_a_wrong_token_is_sent_once(loopback):
    push_index(hub_store(loopback), "demo", [make_record()])
    before, store = len(loopback.requests), hub_store(loopback, token="hf_" + "Wrong" * 6)
    for _ in range(3):
        with pytest.raises(AccessError, match="does not accept the token"):
            load_index(store, "demo")
    assert len(loopback.requests) - before == 1


# -- the limit of commits, 128 per hour and repository: a 429 that does not say when to come back


def test_the_limit_of_commits_is_handed_back_with_what_remains(loopback, runs_of):
    """Three commits are taken; one is refused, and the others are not sent any more."""
    accepted = [0]

    def beyond(request):
        accepted[0] += request.api == "commit"
        return request.api == "commit" and accepted[0] > 3

    loopback.faults.append(Fault(beyond, "status", 429, times=MANY))
    runs, message = runs_of(8), r"5 of the pushes failed: run3, run4, run5 and 2 more: .*no more commits"
    with pytest.raises(PushErrors, match=message) as caught:
        push_runs(hub_store(loopback), runs)
    assert [record.run_id for record in caught.value.pushed] == ["run0", "run1", "run2"]
    assert "re-run the same command in an hour" in str(caught.value)
    assert loopback.api_calls().count("commit") == loopback.api_calls().count("preupload") == 4
    assert status_of(caught.value) == 4
    loopback.faults.clear()
    assert len(push_runs(hub_store(loopback), runs)) == 8  # the same command goes on
    assert loopback.api_calls().count("commit") == 4 + 5


def test_the_limit_of_commits_of_one_repository_leaves_the_others_alone(loopback, checkpoint):
    full = Fault(lambda request: "demo-d64-E4/commit" in request.path, "status", 429, times=MANY)
    loopback.faults.append(full)
    store = hub_store(loopback)
    with pytest.raises(UnavailableError, match="org/demo-d64-E4 takes no more commits"):
        push_run(store, checkpoint("a"), make_record())
    push_index(store, "demo", [make_record(run_id="other")])
    assert MANY - full.times == 1


def test_a_limit_that_says_when_to_come_back_is_waited_for(loopback, checkpoint, record, monkeypatch):
    waited: list[float] = []
    monkeypatch.setattr("hub.store.transport._sleep", waited.append)
    limit = Fault(lambda request: request.api == "commit", "status", 429, {"Retry-After": "40"})
    loopback.faults.append(limit)
    assert push_run(hub_store(loopback), checkpoint(), record).commit
    assert 40.0 <= waited[0] < 41.0


def test_a_server_without_xet_gets_the_hint(online):
    """The library's upload through Xet ends with this, of the class ConnectionError."""
    transport, calls = Transport("http://127.0.0.1:1", None, timeout=1.0, attempts=3, longest_wait=1.0), []
    address = "http://hub.example/api/models/org/demo/xet-write-token/main"

    def upload():
        calls.append(1)
        raise ConnectionError(f"Network error: HTTP status client error (404 Not Found), domain: {address}")

    with pytest.raises(FilesError, match="no Xet storage; set HF_HUB_DISABLE_XET=1"):
        transport.call(upload)
    assert calls == [1]


def test_a_folder_that_cannot_be_written_ends_a_command_with_one_line(the_hub, command, checkpoint):
    push_index(hub_store(the_hub), "demo", [push_run(hub_store(the_hub), checkpoint(), make_record())])
    status, _, shown = command("pull", "hf://org", "demo", "--to", "/proc/none")
    assert (status, shown[:7], shown.count("\n")) == (2, "error: ", 1)
