"""Private and public do not mix: no private run in a public index, and no public index of private models."""

import pytest

from hub import FilesError, NotFoundError, collect, load_index, push_index, push_run, push_runs
from tests.hub.conftest import hub_store
from tests.hub.samples import make_record

NEXT = make_record(run_id="next", seed=1)


@pytest.fixture
def unchanged(loopback):
    """A function: forbids a call with this message, and that it writes anything."""

    def check(message, call):
        def commits():
            return {key: sorted(repo.commits) for key, repo in loopback.state.repositories.items()}

        before = commits()
        with pytest.raises(FilesError, match=message):
            call()
        assert commits() == before

    return check


def test_private_repositories_are_not_shown(loopback, checkpoint, record):
    store = hub_store(loopback, private=True)
    push_index(store, "demo", [push_run(store, checkpoint(), record)])
    assert [repo.private for repo in loopback.state.repositories.values()] == [True, True]
    stranger = hub_store(loopback, token=False, attempts=1)
    with pytest.raises(NotFoundError, match="not visible with this token"):
        load_index(stranger, "demo")
    assert (store.repos("model"), stranger.repos("model")) == (["demo-d64-E4"], [])


@pytest.mark.parametrize(("kind", "name"), [("dataset", "org/demo-runs"), ("model", "org/demo-d64-E4")])
def test_a_private_push_into_what_is_public_is_refused(loopback, checkpoint, record, kind, name, unchanged):
    loopback.state.create(kind, name, private=False)
    private = hub_store(loopback, private=True)
    message = f"private: {name} is public; push without --private"
    unchanged(message, lambda: push_runs(private, [(checkpoint(), record)]))


def test_an_index_that_became_public_takes_no_row_of_a_private_push(loopback, record, unchanged):
    store = hub_store(loopback, private=True)
    push_index(store, "demo", [record])
    loopback.state.repository("dataset", "org/demo-runs").private = False
    unchanged("org/demo-runs is public; nothing was written", lambda: push_index(store, "demo", [NEXT]))
    another = hub_store(loopback, private=True)
    unchanged("org/demo-runs is public", lambda: push_index(another, "demo", [NEXT]))


def test_private_models_get_no_public_index(loopback, checkpoint, record, unchanged):
    """As when a private push was interrupted, and the command is started again without --private."""
    folder = checkpoint()
    pushed = push_run(hub_store(loopback, private=True), folder, record)
    message = r"org/demo-d64-E4 is private.* would be public; push with --private"
    unchanged(message, lambda: push_runs(hub_store(loopback), [(folder, record)]))
    unchanged(message, lambda: push_index(hub_store(loopback), "demo", [pushed]))
    push_index(hub_store(loopback, private=True), "demo", [pushed])
    push_index(hub_store(loopback), "demo", [pushed])  # into the private index, which is no harm
    assert all(repo.private for repo in loopback.state.repositories.values())


def test_a_public_collection_takes_nothing_private(loopback, record):
    collect(hub_store(loopback), "demo", [])
    with pytest.raises(FilesError, match="collection 'Runs of demo' is public"):
        collect(hub_store(loopback, private=True), "demo", [record])
