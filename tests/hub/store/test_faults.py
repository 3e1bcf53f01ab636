"""A Hub that fails at every request of a push in turn, in every way: the release ends complete or not in the index."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from hub import AccessError, ConflictError, HubError, RunRecord, UnavailableError, load_index, push_index, push_run
from hub.store.transport import Transport
from tests.hub.conftest import hub_store
from tests.hub.loopback import Fault
from tests.hub.samples import make_record

# What a push of one run into an empty Hub, with its index, asks for, in order; the tests below break each in turn.
SEQUENCE = [
    *("create", "resolve", "branch", "preupload", "lfs-batch", "upload", "verify", "commit", "revision"),
    *("list", "list", "create", "revision", "preupload", "lfs-batch", "upload", "verify", "commit", "revision"),
]
NUMBERS = range(len(SEQUENCE))
BRANCH = "tokens001.5M-seed0"


def named(request):
    if request.origin == "storage":
        return request.path.split("/")[1]
    return request.api or ("lfs-batch" if request.path.endswith("/batch") else "resolve")


def release(server, folder, record, **options):
    store = hub_store(server, **options)
    pushed = push_run(store, folder, record)
    push_index(store, record.sweep, [pushed])
    return pushed


def assert_complete(server, pushed, folder):
    """The index has the run once, at a commit that holds all its files, and the branch ends there."""
    assert load_index(hub_store(server), "demo") == [pushed]
    repo = server.state.repository("model", "org/demo-d64-E4")
    commit = repo.commits[pushed.commit]
    assert repo.branches[BRANCH] == commit.id
    assert set(commit.tree) == {
        *(".gitattributes", "README.md", "config.json", "model.safetensors", "modeling_switch_moe.py"),
        *("run.json", "tokenizer.json"),
    }
    weights = server.state.content(commit.tree["model.safetensors"])
    assert weights == (folder / "model.safetensors").read_bytes()
    assert [c.title for c in repo.history(BRANCH)][1:] == ["initial commit"]  # committed once, on the first commit


def test_the_sequence_of_requests(loopback, checkpoint, record):
    folder = checkpoint()
    assert_complete(loopback, release(loopback, folder, record), folder)
    assert [named(request) for request in loopback.requests][: len(SEQUENCE)] == SEQUENCE


def is_often(number, kind):
    """Tell whether a fault is tried each time: the loss of each response, and one of three other faults in turn."""
    return kind == "lose" or kind == ("status", "drop", "cut")[number % 3]


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        pytest.param(number, kind, marks=[] if is_often(number, kind) else pytest.mark.slow)
        for number in NUMBERS
        for kind in ("status", "drop", "lose", "cut", "429", "twice")
    ],
)
def test_a_fault_at_each_request(loopback, checkpoint, record, kind, number):
    faults = {
        "429": Fault(lambda request: request.number == number, "status", 429, {"Retry-After": "0"}),
        "twice": Fault(lambda request: request.number in (number, number + 1), "lose", times=2),
    }
    loopback.faults.append(faults.get(kind) or Fault(lambda request: request.number == number, kind))
    folder = checkpoint()
    pushed = release(loopback, folder, record)
    assert loopback.faults[0].times == 0
    assert_complete(loopback, pushed, folder)


@pytest.mark.parametrize("kind", ["status", pytest.param("lose", marks=pytest.mark.slow)])
@pytest.mark.parametrize("number", NUMBERS)
def test_a_hub_that_stays_down_from_each_request_on(loopback, checkpoint, record, kind, number):
    """The push ends with one clear error; nothing half is in the index; started again, it goes on to the end."""
    folder = checkpoint()
    loopback.faults.append(Fault(lambda request: request.number >= number, kind, times=10**9))
    with pytest.raises((UnavailableError, ConflictError)):
        release(loopback, folder, record, attempts=2)
    loopback.faults.clear()
    repo = loopback.state.repositories.get(("dataset", "org/demo-runs"))
    if repo is not None and "runs.jsonl" in repo.resolve("main").tree:
        (row,) = load_index(hub_store(loopback), "demo")
        assert row.commit in loopback.state.repository("model", "org/demo-d64-E4").commits
    assert_complete(loopback, release(loopback, folder, record), folder)


def test_a_commit_that_lands_while_its_response_is_lost_is_not_sent_again(loopback, checkpoint, record):
    loopback.faults.append(Fault(lambda request: request.api == "commit", "lose"))
    folder = checkpoint()
    assert_complete(loopback, release(loopback, folder, record), folder)
    assert loopback.api_calls().count("commit") == 2  # the run's and the index's


@pytest.mark.parametrize("kind", ["drop", "lose", "status"])
def test_a_failure_while_a_conflict_is_looked_into_is_tried_again(loopback, checkpoint, record, kind):
    """The branch is made but its response lost, so the next attempt gets a 409: and then the listing fails, too."""
    loopback.faults.append(Fault(lambda request: request.api == "branch", "lose"))
    loopback.faults.append(Fault(lambda request: request.api == "refs", kind, 503))
    folder = checkpoint("a")
    assert_complete(loopback, release(loopback, folder, record), folder)
    assert [fault.times for fault in loopback.faults] == [0, 0]


def test_a_slow_hub_is_not_waited_for(loopback, checkpoint, record):
    """Longer silence than the timeout counts as a failure; the late commit cannot do harm."""
    go_on, went_on = threading.Event(), threading.Event()

    def action():
        go_on.wait(60)
        went_on.set()

    loopback.faults.append(Fault(lambda request: request.api == "commit", "before", action=action))
    folder = checkpoint()
    store = hub_store(loopback, timeout=0.4)
    pushed = push_run(store, folder, record)
    assert not went_on.is_set()
    push_index(store, "demo", [pushed])
    go_on.set()
    late = next(request for request in loopback.requests if request.api == "commit")
    while not late.status:
        time.sleep(0.01)
    assert late.status == 412
    assert_complete(loopback, pushed, folder)


def test_another_writer_between_reading_and_committing_the_index(loopback):
    store = hub_store(loopback)
    push_index(store, "demo", [make_record(run_id="first")])

    def other():
        push_index(hub_store(loopback), "demo", [make_record(run_id="other", seed=1)])

    loopback.faults.append(Fault(lambda request: request.api == "commit", "before", action=other))
    push_index(store, "demo", [make_record(run_id="mine", seed=2)])
    assert {record.run_id for record in load_index(store, "demo")} == {"first", "other", "mine"}
    assert 412 in [request.status for request in loopback.requests]


@pytest.mark.parametrize("same", [True, False])
def test_another_writer_of_the_same_branch(loopback, checkpoint, record, same):
    mine, theirs = checkpoint("mine"), checkpoint("theirs", weight=1.0 if same else 2.0)
    committed: list[RunRecord] = []

    def other():
        committed.append(push_run(hub_store(loopback), theirs, record))

    loopback.faults.append(Fault(lambda request: request.api == "commit", "before", action=other))
    if same:
        assert push_run(hub_store(loopback), mine, record).commit == committed[0].commit
    else:
        with pytest.raises(ConflictError, match="with other weights"):
            push_run(hub_store(loopback), mine, record)
    repo = loopback.state.repository("model", "org/demo-d64-E4")
    assert repo.branches[BRANCH] == committed[0].commit


def test_threads_set_the_timeout_once(online, monkeypatch):
    """A second change of the client would close the one that another thread has begun to use."""
    import huggingface_hub

    original, changes = huggingface_hub.set_client_factory, []

    def slow(factory):
        changes.append(factory)
        time.sleep(0.05)
        original(factory)

    monkeypatch.setattr(huggingface_hub, "set_client_factory", slow)
    with ThreadPoolExecutor(8) as pool:
        made = pool.map(lambda _: Transport(None, None, timeout=3.0, attempts=1, longest_wait=1.0), range(8))
        assert len(list(made)) == 8
    assert len(changes) == 1
    assert huggingface_hub.get_session().timeout.read == 3.0


def test_the_wait_follows_retry_after_and_else_grows_with_jitter(online):
    transport = Transport("http://127.0.0.1:1", None, timeout=1.0, attempts=3, longest_wait=60.0)
    asked = UnavailableError("busy")
    asked.retry_after = 7.0
    assert all(7.0 <= transport.wait(attempt, asked) <= 7.3 for attempt in range(2))
    plain = [transport.wait(4, UnavailableError("down")) for _ in range(50)]
    assert all(4.0 <= wait <= 8.0 for wait in plain)
    assert len(set(plain)) > 40
    assert max(transport.wait(50, ConflictError("stale")) for _ in range(20)) <= 30.0


def test_a_rate_limit_that_is_used_up_for_long_is_an_error_at_once(loopback, checkpoint, record):
    headers = {"RateLimit": '"api";r=0;t=1200'}
    loopback.faults.append(Fault(lambda request: request.api == "create", "status", 429, headers))
    with pytest.raises(UnavailableError, match="asks to wait 1200 s"):
        push_run(hub_store(loopback), checkpoint(), record)
    assert loopback.api_calls() == ["create"]


@pytest.mark.parametrize(
    ("status", "error"), [(400, HubError), (402, AccessError), (403, AccessError), (413, AccessError)]
)
@pytest.mark.parametrize("api", ["create", "branch", "commit", "preupload"])
def test_what_is_no_passing_failure_is_not_tried_again(loopback, checkpoint, record, status, error, api):
    loopback.faults.append(Fault(lambda request: request.api == api, "status", status, times=10**9))
    with pytest.raises(error, match="injected fault"):
        push_run(hub_store(loopback), checkpoint(), record)
    assert loopback.api_calls().count(api) == 1
