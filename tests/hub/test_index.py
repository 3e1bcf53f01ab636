"""What follows from the index: the cards of repositories and of the sweep, and reading a sweep that has no index."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from hub import describe_index, list_runs, load_index, load_records, push_index, push_repo_cards, push_run
from hub.cards import check_metadata, tags_of
from hub.errors import ConflictError, FilesError, NotFoundError, RecordError
from hub.records import RunRecord
from hub.store import Store

from .conftest import Checkpoint, hub_store
from .loopback import TOKEN, Fault, LoopbackHub, Request
from .samples import make_record


def push(store: Store, checkpoint: Checkpoint, number: int, **changes: object) -> RunRecord:
    record = make_record(run_id=f"run{number}", seed=number, **changes)
    return push_run(store, checkpoint(f"c{number}", weight=float(number)), record)


def main_card(store: Store, repo: str = "demo-d64-E4") -> str:
    return store.read("model", repo, "README.md").decode()


# -- the card on main


def test_main_holds_a_card_with_the_revisions_and_no_weights(store: Store, checkpoint: Checkpoint) -> None:
    pushed = [push(store, checkpoint, number, eval_loss=4.0 + number) for number in range(2)]
    push_index(store, "demo", pushed)
    push_repo_cards(store, "demo", [record.repo or "" for record in pushed])
    assert set(store.files("model", "demo-d64-E4")) == {"README.md"}
    card = main_card(store)
    check_metadata(card)
    assert "sweep:demo" in tags_of(card)
    assert "**The branch `main` has no weights.**" in card
    assert "| tokens001.5M-seed0 | 1.5M | 4.0000 |" in card
    assert "| tokens001.5M-seed1 | 1.5M | 5.0000 |" in card
    newest = pushed[1]
    on_hub = "/" in (newest.repo or "")  # a folder is named as it lies in the store
    place = f'"{newest.repo}", "{newest.commit}"' if on_hub else f'"models/{newest.repo}/{newest.branch}"'
    assert f"= {place}\n" in card
    before = store.branches("model", "demo-d64-E4")
    push_repo_cards(store, "demo", ["demo-d64-E4"])
    assert store.branches("model", "demo-d64-E4") == before  # nothing new, nothing written


def test_what_a_person_wrote_on_main_stays(store: Store, checkpoint: Checkpoint) -> None:
    push_index(store, "demo", [push(store, checkpoint, 0)])
    push_repo_cards(store, "demo", ["demo-d64-E4"])
    edited = main_card(store).replace("## How to load", "A note of ours.\n\n## How to load")
    store.update("model", "demo-d64-E4", (), lambda _: {"README.md": edited.encode()}, "edit")
    push_index(store, "demo", [push(store, checkpoint, 1)])
    push_repo_cards(store, "demo", ["demo-d64-E4"])
    assert "A note of ours." in main_card(store)
    assert "| tokens001.5M-seed1 |" in main_card(store)
    own = b"---\nlicense: mit\n---\nquite another card\n"
    store.update("model", "demo-d64-E4", (), lambda _: {"README.md": own}, "replace")
    push_repo_cards(store, "demo", ["demo-d64-E4"])
    assert main_card(store).encode() == own


def test_rows_that_another_writer_added_meanwhile_are_on_the_card(
    loopback: LoopbackHub, checkpoint: Checkpoint
) -> None:
    """The other one writes index and card after this one has read the index and before it writes its card."""
    store = hub_store(loopback)
    push_index(store, "demo", [push(store, checkpoint, 0)])

    def other() -> None:
        theirs = hub_store(loopback)
        push_index(theirs, "demo", [push(theirs, checkpoint, 1)])
        push_repo_cards(theirs, "demo", ["demo-d64-E4"])

    def before_the_card_is_read(request: Request) -> bool:
        return request.api == "revision" and request.path.startswith("/api/models")

    loopback.faults.append(Fault(before_the_card_is_read, "before", action=other))
    push_repo_cards(store, "demo", ["demo-d64-E4"])
    assert loopback.faults[0].times == 0
    assert all(f"| tokens001.5M-seed{number} |" in main_card(store) for number in range(2))


def test_without_an_index_there_is_nothing_to_list(store: Store) -> None:
    with pytest.raises(NotFoundError):
        push_repo_cards(store, "demo", ["demo-d64-E4"])


# -- the law in the index's card

SECTION = "## The law\n\nL = a law\n\n![fit](law_fit.png)"
FILES: Mapping[str, bytes] = {"law_fit.png": b"\x89PNG\r\n", "scaling_law.json": b"{}"}


def test_a_law_in_the_card_of_the_index_stays_when_runs_are_added(store: Store) -> None:
    push_index(store, "demo", [make_record(run_id="one")])
    assert describe_index(store, "demo", SECTION, FILES).written
    assert not describe_index(store, "demo", SECTION, FILES).written
    push_index(store, "demo", [make_record(run_id="two", seed=1)])
    card = store.read("dataset", "demo-runs", "README.md").decode()
    assert SECTION in card
    assert "| two |" in card
    assert store.read("dataset", "demo-runs", "law_fit.png") == FILES["law_fit.png"]
    describe_index(store, "demo", "## The law\n\nanother", {})
    card = store.read("dataset", "demo-runs", "README.md").decode()
    assert "another" in card
    assert "L = a law" not in card
    assert len(load_index(store, "demo")) == 2


def test_a_law_is_checked_before_it_is_sent(store: Store) -> None:
    with pytest.raises(NotFoundError, match="has no index of the sweep 'demo'"):
        describe_index(store, "demo", SECTION, FILES)
    push_index(store, "demo", [make_record(run_id="one")])
    for section, files, reason in (
        (SECTION, {"law.pkl": b""}, "not on the list"),
        (SECTION, {"README.md": b""}, "not on the list"),
        (f"{SECTION} {TOKEN}", {}, "access token"),
        (SECTION, {"scaling_law.json": TOKEN.encode()}, "access token"),
    ):
        with pytest.raises(FilesError, match=reason):
            describe_index(store, "demo", section, files)
    push_index(store, "demo", [make_record(run_id="two")], card="---\nlicense: mit\n---\nown card\n")
    with pytest.raises(NotFoundError, match="no place for a law"):
        describe_index(store, "demo", SECTION, FILES)


# -- a sweep without an index


def test_a_sweep_without_an_index_is_read_from_its_repositories(
    store: Store, checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture
) -> None:
    pushed = [push(store, checkpoint, number, d_model=64 * (1 + number % 2)) for number in range(4)]
    push_index(store, "demo", pushed)
    push_repo_cards(store, "demo", [record.repo or "" for record in pushed])
    other = push_run(store, checkpoint("other", weight=9.0), make_record(run_id="x", sweep="demo-d64", seed=9))
    push_index(store, "demo-d64", [other])
    push_repo_cards(store, "demo-d64", [other.repo or ""])
    caplog.set_level(logging.WARNING)
    assert list_runs(store, "demo") == load_index(store, "demo")
    assert "has no index of the sweep demo; its 4 runs were read from 4 branches, one by one" in caplog.text
    assert list_runs(store, "nothing") == []


def test_what_is_broken_is_named_or_left_out(loopback: LoopbackHub, checkpoint: Checkpoint) -> None:
    store = hub_store(loopback)
    good = push(store, checkpoint, 0)
    push_index(store, "demo", [good])
    push_repo_cards(store, "demo", [good.repo or ""])
    loopback.state.put("model", "org/demo-d64-E4", "broken", {"run.json": b'{"run_id": "<script>"}'})
    loopback.state.put("model", "org/demo-d64-E4", "notes", {"notes.txt": b"no run"})
    with pytest.raises(RecordError, match=r"1 of 3 run records are not valid\nrun.json of demo-d64-E4@broken"):
        list_runs(store, "demo")
    problems: list[str] = []
    assert list_runs(store, "demo", on_invalid="skip", problems=problems) == [good]
    assert len(problems) == 1


def test_load_records_falls_back_to_the_listing(
    loopback: LoopbackHub, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hub import sources

    store = hub_store(loopback)
    pushed = push(store, checkpoint, 0)
    push_index(store, "demo", [pushed])
    push_repo_cards(store, "demo", [pushed.repo or ""])
    loopback.state.repositories.pop(("dataset", "org/demo-runs"))
    monkeypatch.setattr(sources, "open_store", lambda uri: hub_store(loopback))
    assert load_records("hf://org/demo-runs") == [pushed]
    with pytest.raises(NotFoundError):
        load_records("hf://org/other-runs")
    with pytest.raises(NotFoundError):
        load_records("hf://org/demo-runs@v1")


# -- no markup, no token


def test_a_malicious_index_does_no_harm_to_the_cards(loopback: LoopbackHub, checkpoint: Checkpoint) -> None:
    """Rows that break the schema are left out; a valid one cannot break out of its table or forge a block."""
    store = hub_store(loopback)
    evil = "<!-- /revisions --> <script>alert(1)</script> | x"
    pushed = push(store, checkpoint, 0, hardware=evil, precision=evil)
    push_index(store, "demo", [pushed])
    good = store.read("dataset", "demo-runs", "runs.jsonl")
    loopback.state.put("dataset", "org/demo-runs", "main", {"runs.jsonl": good + b'{"run_id": "<b>"}\n'})
    push_repo_cards(store, "demo", [pushed.repo or "", "../../etc"])
    released = store.read("model", "demo-d64-E4", "README.md", pushed.branch).decode()
    for card in (main_card(store), released):
        body = re.sub(r"```.*?```|<!-- /?(?:revisions|loading|place) -->", "", card, flags=re.DOTALL)
        assert "<" not in body.split("---\n", 2)[2]


def test_a_card_of_a_folder_is_put_right_at_its_place_and_else_left_alone(
    store: Store, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    from hub.cards import model_card

    folder, record = checkpoint(), make_record(repo="elsewhere/demo-d64-E4", branch="other")
    (folder / "README.md").write_text(model_card(record).replace("## Limits", "A word of mine.\n\n## Limits"))
    pushed = push_run(store, folder, record, siblings=[make_record(run_id="next")], predicted_loss=4.25)
    card = store.read("model", "demo-d64-E4", "README.md", pushed.branch).decode()
    assert "A word of mine." in card
    assert "elsewhere" not in card
    on_hub = "/" in (pushed.repo or "")
    place = f'"{pushed.repo}", "{pushed.branch}"' if on_hub else f'"models/{pushed.repo}/{pushed.branch}"'
    assert f"= {place}\n" in card
    assert "| next |" in card
    assert "4.2500 (measured − predicted = +0.0625)" in card


def test_branches_of_a_trunk_that_diverged_share_its_weights(store: Store, checkpoint: Checkpoint) -> None:
    """The same checkpoint stands for each of them; of runs that did not diverge, that is refused."""
    folder = checkpoint()
    diverged = {"status": "diverged", "train_loss": None, "eval_loss": None, "parent_run_id": "trunk"}
    pushed = [push_run(store, folder, make_record(run_id=f"run{number}", **diverged)) for number in range(2)]
    push_index(store, "demo", pushed)
    assert [record.run_id for record in load_index(store, "demo")] == ["run0", "run1"]
    with pytest.raises(ConflictError, match="same weights"):
        push_index(store, "demo", [record.replaced(status="final", train_loss=1.0) for record in pushed])
