"""Runs from the index of a sweep on a loopback Hub: pinned, offline, with bad rows; and what a law says of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hub import FilesError, NotFoundError, Store, push_index, tag_index
from scaling_law import Architecture, ChinchillaLaw, Conditions, fit, load_runs
from scaling_law.law_files import law_card
from tests.hub.conftest import hub_store, loopback, online, the_hub  # noqa: F401
from tests.hub.loopback import Fault, LoopbackHub
from tests.hub.samples import make_record

TAGGED, LATER = 8, 3
LAW = ChinchillaLaw(m=30.0, mu=-0.18, n=54.0, nu=-0.2, c=1.4, experts=1)
FITTED = LAW.replace(conditions=Conditions("fitted on runs.jsonl (eval_loss)", n_runs=5, rmse=0.01))


def runs_of(count: int, start: int = 0) -> list:
    """Dense runs whose losses a Chinchilla law gives."""
    made = []
    for i in range(start, start + count):
        a, tokens = Architecture(64 * (1 + i % 4), vocab_size=512), (1 + i) * 1_000_000
        sizes = a.shape | {"vocab_size": 512, "n_active": a.n_active, "n_total": a.n_active, "tokens": tokens}
        made.append(make_record(run_id=f"run{i}", seed=i, eval_loss=float(LAW.loss(a.n_active, tokens, 1)), **sizes))
    return made


@pytest.fixture
def index(the_hub: LoopbackHub) -> tuple[Store, str]:  # noqa: F811
    """The store, with runs tagged v1 and more runs after them, and the commit of v1."""
    store = hub_store(the_hub)
    commit = push_index(store, "demo", runs_of(TAGGED)).commit
    tag_index(store, "demo", "v1", commit=commit)
    push_index(store, "demo", runs_of(LATER, TAGGED))
    return store, commit


def test_a_pinned_index_is_read_in_every_way_of_naming_it(index: tuple[Store, str]) -> None:
    _, commit = index
    assert len(load_runs("org/demo-runs")) == len(load_runs("hf://datasets/org/demo-runs@main")) == TAGGED + LATER
    for source in ("org/demo-runs@v1", "hf://org/demo-runs@v1", "hf://datasets/org/demo-runs@v1", "org/demo@v1"):
        runs = load_runs(source)
        assert (len(runs), runs.dataset, runs.commit) == (TAGGED, "org/demo-runs", commit)
        assert runs.source == f"org/demo-runs@v1 ({commit[:12]})"
    for revision in ("v1", commit):
        assert len(load_runs("org/demo-runs", revision=revision)) == TAGGED
    assert load_runs("org/demo-runs", revision=commit).source == f"org/demo-runs@{commit}"
    with pytest.raises(NotFoundError, match="org/demo-runs@v9: not found"):
        load_runs("org/demo-runs@v9")
    with pytest.raises(FilesError, match="contradicts"):
        load_runs("org/demo-runs@v1", revision="v2")
    with pytest.raises(FilesError, match="not a branch, tag or commit"):
        load_runs("org/demo-runs@../../x")


def test_a_pinned_index_is_read_offline_once_it_was_loaded(
    index: tuple[Store, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    _, commit = index
    load_runs("org/demo-runs@v1")
    load_runs("org/demo-runs")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for revision, count in (("v1", TAGGED), (commit, TAGGED), (None, TAGGED + LATER)):
        runs = load_runs("org/demo-runs", revision=revision)
        assert len(runs) == count
        assert (runs.commit == commit) == (count == TAGGED)


def test_a_law_says_which_dataset_and_commit_it_was_fitted_on(index: tuple[Store, str], tmp_path: Path) -> None:
    _, commit = index
    result = fit(load_runs("org/demo-runs@v1"), kind="chinchilla")
    law = result.law
    assert law.conditions is not None
    assert (law.conditions.dataset, law.conditions.commit) == ("org/demo-runs", commit)
    assert f"org/demo-runs@v1 ({commit[:12]})" in repr(law)
    law.save_pretrained(tmp_path)
    again = ChinchillaLaw.from_pretrained(tmp_path)
    assert again.conditions == law.conditions
    card = law_card(again, "org/demo-law")
    assert f'load_runs("org/demo-runs", revision="{commit}")' in card
    assert len(load_runs(again.conditions.dataset, revision=again.conditions.commit)) == TAGGED
    assert str(result.to_dict()["source"]).startswith("org/demo-runs@v1")
    chosen = fit(load_runs("org/demo-runs@v1", where="D <= 7M"), kind="chinchilla").law
    assert "where D <= 7M (eval_loss)" in repr(chosen)
    assert f"revision=\"{commit}\", where='D <= 7M')" in law_card(chosen, "org/demo-law")


def test_files_of_laws_without_a_dataset_are_as_before(tmp_path: Path) -> None:
    """Those of today load, and what is not fitted on a dataset of the Hub writes no field that they do not have."""
    path = FITTED.save_pretrained(tmp_path)
    assert not {"dataset", "commit"} & set(json.loads(path.read_text())["conditions"])
    loaded = ChinchillaLaw.from_pretrained(tmp_path)
    assert loaded.conditions is not None
    assert loaded.conditions.dataset is None


@pytest.mark.parametrize(("name", "value"), [("dataset", "org/x\n# heading"), ("dataset", 3), ("commit", "main")])
def test_a_dataset_of_somebodys_law_is_checked(tmp_path: Path, name: str, value: object) -> None:
    path = FITTED.save_pretrained(tmp_path)
    data = json.loads(path.read_text())
    data["conditions"][name] = value
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=f"{name}=.* must have the form"):
        ChinchillaLaw.from_pretrained(tmp_path)


def test_the_shell_ends_in_one_line_when_the_hub_does_not_have_the_runs(
    index: tuple[Store, str],
    loopback: LoopbackHub,  # noqa: F811
) -> None:
    from typer.testing import CliRunner

    from scaling_law.commands.cli import app

    missing = CliRunner().invoke(app, ["fit", "org/none-runs"])
    assert (missing.exit_code, missing.stderr.count("\n")) == (2, 1)
    loopback.faults.append(Fault(lambda request: True, "status", 503, times=10**6))
    down = CliRunner().invoke(app, ["fit", "org/other-runs"])
    assert (down.exit_code, down.stderr.count("\n")) == (1, 1)


def broken_index(store: Store) -> None:
    """A row of a newer schema and one that is no JSON beside the valid ones."""
    newer = (
        make_record(run_id="from-the-future", seed=77).to_json().replace('"schema_version": 1', '"schema_version": 9')
    )
    assert '"schema_version": 9' in newer
    present = store.read("dataset", "demo-runs", "runs.jsonl")
    content = present + newer.encode() + b"\n{oops\n"
    store.update("dataset", "demo-runs", (), lambda _: {"runs.jsonl": content}, "break")


def test_bad_rows_are_skipped_by_name_where_asked(index: tuple[Store, str]) -> None:
    broken_index(index[0])
    with pytest.raises(ValueError, match=r"org/demo-runs: .*2 of 13 rows.*(?s:.)*on_invalid=.skip."):
        load_runs("org/demo-runs")
    runs = load_runs("org/demo-runs", on_invalid="skip")
    assert len(runs) == TAGGED + LATER
    newer, broken = runs.skipped
    assert "from-the-future" in newer
    assert "reads up to 1: update the package" in newer
    assert "line 13" in broken
