"""Private and public do not mix: no private run in a public index, and no public index of private models."""

import pytest

from hub import push_index, push_run, push_runs
from hub.plain.errors import FilesError
from hub.release.push import collect
from tests.hub.conftest import hub_store
from tests.hub.samples import make_record


def written(server):
    return {key: sorted(repo.commits) for key, repo in server.state.repositories.items()}


@pytest.mark.parametrize("kind", ["dataset", "model"])
def test_a_private_push_into_what_is_public_is_refused(loopback, checkpoint, record, kind):
    name = "org/demo-runs" if kind == "dataset" else "org/demo-d64-E4"
    loopback.state.create(kind, name, private=False)
    before = written(loopback)
    with pytest.raises(FilesError, match=f"private: {name} is public; push without --private"):
        push_runs(hub_store(loopback, private=True), [(checkpoint(), record)])
    assert written(loopback) == before


def test_an_index_that_is_public_takes_no_row_of_a_private_push(loopback, record):
    """Also if it became public after it was looked at."""
    store = hub_store(loopback, private=True)
    push_index(store, "demo", [record])
    index = loopback.state.repository("dataset", "org/demo-runs")
    assert index.private
    index.private = False
    before = written(loopback)
    with pytest.raises(FilesError, match="org/demo-runs is public; nothing was written"):
        push_index(store, "demo", [make_record(run_id="next", seed=1)])
    with pytest.raises(FilesError, match="org/demo-runs is public"):
        push_index(hub_store(loopback, private=True), "demo", [make_record(run_id="next", seed=1)])
    assert written(loopback) == before


def test_private_models_get_no_public_index(loopback, checkpoint, record):
    """As when a private push was interrupted, and the command is started again without --private."""
    folder = checkpoint()
    pushed = push_run(hub_store(loopback, private=True), folder, record)
    before = written(loopback)
    for push in (
        lambda: push_runs(hub_store(loopback), [(folder, record)]),
        lambda: push_index(hub_store(loopback), "demo", [pushed]),
    ):
        with pytest.raises(FilesError, match=r"org/demo-d64-E4 is private.* would be public; push with --private"):
            push()
    assert written(loopback) == before
    push_index(hub_store(loopback, private=True), "demo", [pushed])
    push_index(hub_store(loopback), "demo", [pushed])  # into the private index, which is no harm
    assert all(repo.private for repo in loopback.state.repositories.values())


def test_a_public_collection_takes_nothing_private(loopback, record):
    collect(hub_store(loopback), "demo", [])
    with pytest.raises(FilesError, match="collection 'Runs of demo' is public"):
        collect(hub_store(loopback, private=True), "demo", [record])


def test_visibility_is_asked_for_once(loopback, runs_of):
    store = hub_store(loopback)
    push_index(store, "demo", push_runs(store, runs_of(3)))
    assert loopback.api_calls().count("list") == 2
