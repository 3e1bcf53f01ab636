"""Records and files from wherever they lie, and files of a law to wherever they go."""

from pathlib import Path

import pytest

from hub import (
    FilesError,
    NotFoundError,
    load_records,
    open_store,
    publish_files,
    push_index,
    push_run,
    read_file,
)
from hub.release.push import push_listing
from hub.release.sources import RepositoryReference, repository
from tests.hub.conftest import hub_store
from tests.hub.samples import make_record

CARD = b"---\nlicense: apache-2.0\n---\n# A law\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/demo-runs", RepositoryReference("org", "demo-runs")),
        ("hf://org/demo-runs", RepositoryReference("org", "demo-runs")),
        ("hf://datasets/org/demo-runs@main", RepositoryReference("org", "demo-runs", "main")),
        ("runs.jsonl", None),
        ("sweep/runs.jsonl", None),
        ("./org/demo-runs", None),
        ("/org/demo-runs", None),
        ("a/b/c", None),
    ],
)
def test_what_a_text_names(text, expected):
    assert repository(text) == expected


def test_a_path_that_exists_is_never_a_repository(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "demo-runs").mkdir(parents=True)
    (tmp_path / "org" / "demo-runs" / "runs.jsonl").write_text(make_record().to_json())
    assert repository("org/demo-runs") is None
    assert repository(Path("org/other-runs")) is None
    assert load_records("org/demo-runs") == [make_record()]
    with pytest.raises(FilesError, match="allowed is hf://"):
        repository("hf://only-one-part")


def test_every_kind_of_folder_gives_the_records(tmp_path, checkpoint):
    store = open_store(tmp_path / "store")
    pushed = push_run(store, checkpoint("a"), make_record())
    assert [r.run_id for r in load_records(tmp_path / "store")] == [pushed.run_id]  # the run.json of the branches
    push_index(store, "demo", [pushed, make_record(run_id="more", seed=1)])
    both = [pushed.run_id, "more"]
    index = tmp_path / "store" / "datasets" / "demo-runs" / "main"
    for source in (tmp_path / "store", f"file:{tmp_path / 'store'}", index.parent, index, index / "runs.parquet"):
        assert [record.run_id for record in load_records(source)] == both
    make_record(run_id="x").save(tmp_path / "sweep" / "one")
    make_record(run_id="y").save(tmp_path / "sweep" / "deep" / "two")
    assert sorted(record.run_id for record in load_records(tmp_path / "sweep")) == ["x", "y"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(FilesError, match=r"no run records \(runs\.jsonl"):
        load_records(tmp_path / "empty")


def test_records_of_the_hub_with_an_index_and_without(the_hub, checkpoint):
    store = hub_store(the_hub)
    pushed = push_run(store, checkpoint(), make_record())
    push_listing(store, "demo", [pushed])
    assert load_records("org/demo-runs") == [pushed]
    the_hub.state.repositories.pop(("dataset", "org/demo-runs"))
    assert load_records("hf://org/demo-runs") == [pushed]
    for missing in ("org/model", "hf://org/other-runs", "org/demo-runs@v1"):
        with pytest.raises(NotFoundError, match=r"org/(model|other|demo)-runs"):
            load_records(missing)


def test_a_law_goes_to_a_repository_and_comes_back(store):
    for refused, reason in (
        ({"law.pkl": b"x"}, "not on the list"),
        ({"../scaling_law.json": b"{}"}, "not on the list"),
        ({"README.md": b"no metadata"}, "starts with metadata"),
        ({"scaling_law.json": b'"hf_' + b"q" * 34 + b'"'}, "access token"),
    ):
        with pytest.raises(FilesError, match=reason):
            publish_files(store, "demo-law", refused, message="A law")
    assert store.repos("model") == []
    files = {"README.md": CARD, "scaling_law.json": b'{"law": "joint"}', "isoflop.png": b"\x89PNG\r\n"}
    first = publish_files(store, "demo-law", files, message="A law")
    again = publish_files(store, "demo-law", files, message="A law")
    assert (first.written, again.written, again.commit) == (True, False, first.commit)
    assert store.read("model", "demo-law", "scaling_law.json") == files["scaling_law.json"]
    changed = publish_files(store, "demo-law", {"scaling_law.json": b"{}"}, message="Another")
    assert store.read("model", "demo-law", "scaling_law.json") == b"{}"
    assert set(store.files("model", "demo-law")) == set(files)
    assert changed.commit != first.commit


def test_a_file_of_a_folder(tmp_path):
    (tmp_path / "scaling_law.json").write_text("{}")
    assert read_file(tmp_path, "scaling_law.json") == b"{}"
    assert read_file(f"file:{tmp_path}", "scaling_law.json") == b"{}"
    with pytest.raises(NotFoundError, match="does not exist"):
        read_file(tmp_path, "README.md")


@pytest.mark.parametrize(
    "source", [[make_record()], [1], None, 3, {"runs": []}], ids=["records", "numbers", "None", "3", "mapping"]
)
def test_what_names_no_place_is_refused(source):
    with pytest.raises(FilesError, match=r"^source=.* must be the name of a file, a folder or a dataset on the Hub$"):
        load_records(source)
