"""Tags and collections on the loopback Hub."""

import pytest

from hub import AccessError, ConflictError, FilesError, NotFoundError, collect, load_index, push_index, tag_index
from tests.hub.conftest import hub_store
from tests.hub.loopback import Fault
from tests.hub.samples import make_record


def test_a_tag_names_one_state_of_the_index_for_good(loopback):
    store = hub_store(loopback)
    with pytest.raises(NotFoundError):
        tag_index(store, "demo", "v1")
    push_index(store, "demo", [make_record(run_id="one")])
    loopback.faults.append(Fault(lambda request: request.api == "tag", "lose"))
    commit = tag_index(store, "demo", "v1")
    push_index(store, "demo", [make_record(run_id="two", seed=1)])
    assert [record.run_id for record in load_index(store, "demo", "v1")] == ["one"]
    assert tag_index(store, "demo", "v1", commit=commit) == commit
    with pytest.raises(ConflictError, match=r"has a tag 'v1' on commit"):
        tag_index(store, "demo", "v1")
    with pytest.raises(FilesError, match="tag"):
        tag_index(store, "demo", "a/b")


def test_a_collection_has_each_repository_once(loopback):
    store = hub_store(loopback)
    records = [make_record(), make_record(seed=1), make_record(d_model=128), make_record(repo="org/demo-d64-E4")]
    address = collect(store, "demo", records)
    assert collect(store, "demo", records) == address
    (collection,) = loopback.state.collections.values()
    assert address.endswith(collection["slug"])
    assert [item["id"] for item in collection["items"]] == ["org/demo-runs", "org/demo-d128-E4", "org/demo-d64-E4"]
    with pytest.raises(AccessError):
        collect(hub_store(loopback, token=None), "demo", records)
