"""What only a store on the Hub can do or get wrong: requests, tokens, permissions, foreign content, the cache."""

import logging
import shutil
from dataclasses import replace

import pytest

from hub import (
    AccessError,
    HubStore,
    IntegrityError,
    UnavailableError,
    load_index,
    pull_run,
    push_index,
    push_run,
    push_runs,
)
from tests.hub.conftest import hub_cache, hub_store, sharded
from tests.hub.loopback import TOKEN, Fault, LoopbackHub
from tests.hub.samples import make_record

MODEL = "org/demo-d64-E4"


def test_api_calls_of_a_push(loopback, runs_of):
    """Four for each run, one more for a new repository; pushing again asks for the tree of each branch only."""
    store = hub_store(loopback)
    runs, counts = runs_of(3), []
    for folder, record in runs:
        before = len(loopback.requests)
        push_run(store, folder, record)
        counts.append(loopback.api_calls(before))
    run = ["branch", "preupload", "commit", "revision"]
    assert counts == [["create", *run], run, run]

    again, before = hub_store(loopback), len(loopback.requests)
    for folder, record in runs:
        push_run(again, folder, record)
    assert loopback.api_calls(before) == ["create", "refs", "revision", "revision", "revision"]


def test_an_index_is_read_in_three_requests_at_one_commit(loopback):
    store = hub_store(loopback)
    push_index(store, "demo", [make_record(run_id="one")])
    first = loopback.state.repository("dataset", "org/demo-runs").branches["main"]
    push_index(store, "demo", [make_record(run_id="two", seed=1)])

    def read(revision=None):
        before = len(loopback.requests)
        names = [record.run_id for record in load_index(hub_store(loopback, token=False), "demo", revision)]
        return len(loopback.requests) - before, names

    shutil.rmtree(hub_cache())
    assert read(first) == (3, ["one"])
    assert read() == (3, ["one", "two"])
    assert read() == (1, ["one", "two"])  # from the cache, after asking which commit is the newest


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_an_index_that_changes_while_it_is_read(loopback, method):
    push_index(hub_store(loopback), "demo", [make_record(run_id="one")])

    def other():
        loopback.state.put("dataset", "org/demo-runs", "main", {"runs.jsonl": b"{}\n"})

    def during(request):
        return request.method == method and "/resolve/" in request.path

    loopback.faults.append(Fault(during, "before", action=other))
    assert [record.run_id for record in load_index(hub_store(loopback), "demo")] == ["one"]
    assert loopback.faults[0].times == 0


@pytest.mark.parametrize("how", ["offline", "no network"])
def test_without_a_network_the_cache_answers(loopback, checkpoint, record, monkeypatch, tmp_path, how):
    from huggingface_hub import constants

    store = hub_store(loopback, attempts=2)
    pushed = push_run(store, checkpoint(), record)
    push_index(store, "demo", [pushed])
    assert load_index(store, "demo") == [pushed]
    folder = pull_run(store, pushed)
    before = len(loopback.requests)
    if how == "offline":
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        monkeypatch.setattr("hub.store.transport._sleep", lambda _: pytest.fail("waiting does not end offline mode"))
    else:
        loopback.faults.append(Fault(lambda request: True, "drop", times=10**9))
    assert load_index(store, "demo") == [pushed]
    assert pull_run(hub_store(loopback, attempts=2), pushed) == folder  # by another process
    copy = pull_run(store, pushed, tmp_path / "to")
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == {
        path.name: path.read_bytes() for path in folder.iterdir()
    }
    with pytest.raises(UnavailableError, match="not in the cache either"):
        load_index(store, "other")
    with pytest.raises(UnavailableError):
        push_index(store, "demo", [make_record(run_id="new", seed=4)])
    assert how != "offline" or len(loopback.requests) == before


# -- tokens and permissions


def test_the_token_appears_in_the_authorization_header_only(
    loopback, checkpoint, record, tmp_path, caplog, capfd, monkeypatch
):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    caplog.set_level(logging.DEBUG)
    store = hub_store(loopback, token=None, attempts=3)  # two of the faults hit the same commit
    loopback.faults.append(Fault(lambda request: request.number in (2, 5, 9), "status", 500, times=3))
    pushed = push_run(store, checkpoint(), record)
    push_index(store, "demo", [pushed])
    pull_run(store, pushed, tmp_path / "pulled")
    logged = caplog.text
    logging.getLogger("httpcore2").setLevel(logging.INFO)  # it traces responses, and the next one repeats the token
    echo = {"X-Error-Message": f"bad {TOKEN}"}
    loopback.faults.append(Fault(lambda request: True, "status", 403, echo, times=10**9))
    with pytest.raises(AccessError) as caught:
        push_run(store, checkpoint("next", weight=3.0), record.replaced(seed=1))
    chain, link = [], caught.value
    while link is not None:
        chain.append(f"{link!r} {link} {vars(link)}")
        link = link.__cause__
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    stored = [*loopback.state.blobs.values(), *loopback.state.large.values()]
    shown = capfd.readouterr()
    everything = [*chain, logged, shown.out, shown.err, repr(store), repr(store.__dict__.keys()), pushed.to_json()]
    assert not any(TOKEN in text for text in everything)
    assert not any(TOKEN.encode() in content for content in (*written, *stored))
    sent = 0
    for request in loopback.requests:
        sent += request.headers.pop("authorization", "") == f"Bearer {TOKEN}"
        assert TOKEN not in f"{request.path} {request.query} {request.headers}"
        assert TOKEN.encode() not in request.body
        assert request.origin == "hub" or request.method == "POST" or "authorization" not in request.headers
    assert sent > 10


@pytest.mark.parametrize(
    ("token", "organisation", "message"),
    [
        (None, "org", "no access token: run `hf auth login`"),
        ("hf_" + "unknown" * 5, "org", "does not accept the token"),
        ("reader", "org", "not allowed with this token"),
        (TOKEN, "other-org", "don't have the rights to write to other-org"),
    ],
    ids=["none", "wrong", "read only", "another organisation"],
)
def test_access_errors_say_what_to_do_and_are_not_met_by_each_run(online, runs_of, token, organisation, message):
    users = {
        TOKEN: {"name": "tester", "orgs": ["org"], "write": True},
        "reader": {"name": "reader", "orgs": ["org"], "write": False},
    }
    with LoopbackHub(users) as server:
        store = HubStore(organisation, endpoint=server.endpoint, token=token)
        with pytest.raises(AccessError, match=message):
            push_runs(store, runs_of(8), workers=2)
        assert len(server.requests) <= (4 if token else 0)
        with pytest.raises(AccessError, match=message):
            push_index(store, "demo", [make_record()])
        assert server.state.repositories == {}


# -- content that was there before


@pytest.mark.parametrize("squashed", [False, True])
def test_weights_on_main_never_lie_beside_ours(loopback, checkpoint, record, squashed):
    """A sharded release beside main's model.safetensors would silently load main's weights."""
    loopback.state.put("model", MODEL, "main", {"model.safetensors": b"main's", "extra.txt": b"x"})
    repo = loopback.state.repository("model", MODEL)
    if squashed:  # the first commit holds them
        head = repo.commits[repo.branches["main"]]
        repo.commits = {head.id: replace(head, parent=None)}
    pushed = push_run(hub_store(loopback), sharded(checkpoint()), record)
    assert not {"model.safetensors", "extra.txt"} & repo.commits[pushed.commit].tree.keys()


def test_a_hub_that_loses_files_is_noticed(loopback, checkpoint, record):
    commit = loopback.state.commit

    def forgetful(repo, branch, changes, *rest, **named):
        kept = {path: entry for path, entry in changes.items() if path != "config.json"}
        return commit(repo, branch, kept, *rest, **named)

    loopback.state.commit = forgetful
    with pytest.raises(IntegrityError, match=r"has not what was sent: config\.json"):
        push_run(hub_store(loopback), checkpoint(), record)


def test_a_repository_with_many_branches_and_commits(loopback, checkpoint):
    """Listings come in pages: the first commit is on the last one."""
    for number in range(120):
        loopback.state.put("model", MODEL, "main", {"notes.txt": b"%d" % number})
        loopback.state.create("model", f"org/more-{number}", private=False)
    pushed = push_run(hub_store(loopback), checkpoint(), make_record())
    assert "notes.txt" not in loopback.state.repository("model", MODEL).commits[pushed.commit].tree
    assert len(hub_store(loopback).repos("model", "more")) == 120


# -- malicious content


def test_a_row_that_points_to_another_organisation_is_not_followed(loopback, checkpoint, record, tmp_path):
    pushed = push_run(hub_store(loopback), checkpoint(), record)
    before = len(loopback.requests)
    pull_run(hub_store(loopback), pushed.replaced(repo="elsewhere/demo-d64-E4"), tmp_path / "to")
    assert all("elsewhere" not in request.path for request in loopback.requests[before:])


def test_an_index_that_is_too_large_is_not_downloaded(loopback, record):
    push_index(hub_store(loopback), "demo", [record])
    before = len(loopback.requests)
    with pytest.raises(IntegrityError, match="allowed are 100"):
        hub_store(loopback).read("dataset", "demo-runs", "runs.jsonl", max_bytes=100)
    assert [request.api for request in loopback.requests[before:]] == ["info"]


def test_pulling_ignores_what_a_release_may_not_hold(loopback, checkpoint, record, tmp_path):
    pushed = push_run(hub_store(loopback), checkpoint(), record)
    extra = {"training_args.bin": b"pickle", "sub/config.json": b"{}", "evil.pkl": b"x", "sub/x.safetensors": b"y"}
    head = loopback.state.put("model", MODEL, pushed.branch, extra)
    folder = pull_run(hub_store(loopback), pushed.replaced(commit=head), tmp_path / "to")
    assert {path.name for path in folder.rglob("*")} == {
        *("README.md", "config.json", "model.safetensors", "modeling_switch_moe.py", "run.json", "tokenizer.json")
    }
