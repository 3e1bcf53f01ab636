"""What follows from the index: the cards of repositories and of the sweep, and reading a sweep that has no index."""

import logging
import re
from collections.abc import Mapping

import pytest
from huggingface_hub import ModelCard

from hub import (
    ConflictError,
    FilesError,
    NotFoundError,
    RecordError,
    describe_index,
    list_runs,
    load_index,
    open_store,
    push_index,
    push_repo_cards,
    push_run,
)
from hub.base.markdown import read_card, tags_of
from hub.release.push import push_listing
from tests.hub.conftest import hub_store, sharded
from tests.hub.loopback import TOKEN, Fault
from tests.hub.samples import make_record

REPO = "demo-d64-E4"


def push(store, checkpoint, number, **changes):
    record = make_record(run_id=f"run{number}", seed=number, **changes)
    return push_run(store, checkpoint(f"c{number}", weight=float(number)), record)


def main_card(store):
    return store.read("model", REPO, "README.md").decode()


# -- the card on main


def test_main_holds_the_longest_run_and_a_card_with_all_revisions(store, checkpoint):
    """So that `from_pretrained(repo)` works, and the Hub's search, which sees `main` only, finds every revision."""
    data = {"id": "org/corpus", "fingerprint": "f"}
    push_listing(store, "demo", [push(store, checkpoint, n, eval_loss=4.0 + n, dataset=data) for n in range(2)])
    folder = sharded(checkpoint("longest", weight=9.0))
    (folder / "tokenizer.json").unlink()
    longest = push_run(store, folder, make_record(run_id="longest", tokens=3_000_000, eval_loss=3.5, dataset=data))
    push_listing(store, "demo", [longest])
    released = dict(store.files("model", REPO, longest.branch))
    on_main = dict(store.files("model", REPO))
    assert on_main.pop("README.md") != released.pop("README.md")
    assert on_main == released
    card = main_card(store)
    place = f'"{longest.repo}", "{longest.commit}"' if "/" in longest.repo else f'"models/{REPO}/{longest.branch}"'
    for part in (
        f"`main` holds the same files as the revision `{longest.branch}`",
        "| tokens001.5M-seed0 | 1.5M | 4.0000 |",
        "| tokens001.5M-seed1 | 1.5M | 5.0000 |",
        f"= {place}\n",
    ):
        assert part in card
    assert "sweep:demo" in tags_of(card)
    assert len(ModelCard(card).data.eval_results) == 6  # by the Hub's own parser
    data = read_card(card).data
    assert data["datasets"] == ["org/corpus"]
    losses = {model["name"]: model["results"][0]["metrics"][0]["value"] for model in data["model-index"]}
    assert (len(losses), losses["demo-d64-E4-tokens003.0M-seed0"]) == (3, 3.5)
    before = store.branches("model", REPO)
    push_repo_cards(store, "demo", [REPO])
    assert store.branches("model", REPO) == before  # nothing new, nothing written


def test_weights_of_no_run_on_main_stay(store, checkpoint, caplog):
    pushed = push(store, checkpoint, 0)
    theirs = (checkpoint("theirs", weight=7.0) / "model.safetensors").read_bytes()
    store.update("model", REPO, (), lambda _: {"model.safetensors": theirs}, "mine")
    push_listing(store, "demo", [pushed])
    assert store.read("model", REPO, "model.safetensors") == theirs
    assert "main has weights of no run in the index" in caplog.text
    assert "**The branch `main` has no weights.**" in main_card(store)
    assert f"| {pushed.branch} |" in main_card(store)


def test_weights_are_copied_inside_the_store(loopback, checkpoint, tmp_path):
    store = hub_store(loopback)
    push_index(store, "demo", [push(store, checkpoint, 0)])
    before = len(loopback.requests)
    push_repo_cards(store, "demo", [REPO])
    assert all(request.origin == "hub" for request in loopback.requests[before:])  # no upload, no download of weights
    assert loopback.api_calls(before).count("commit") == 1
    repo = loopback.state.repository("model", "org/demo-d64-E4")
    assert [commit.title for commit in repo.history("main")] == ["List the revisions", "initial commit"]
    local = open_store(tmp_path / "folder")
    pushed = push(local, checkpoint, 1)
    push_listing(local, "demo", [pushed])
    places = [tmp_path / "folder/models/demo-d64-E4" / name for name in ("main", pushed.branch)]
    assert len({(place / "model.safetensors").stat().st_ino for place in places}) == 1  # a hard link


def test_rows_that_another_writer_added_meanwhile_are_on_the_card(loopback, checkpoint):
    """The other one writes index and card after this one has read the index and before it writes its card."""
    store = hub_store(loopback)
    push_index(store, "demo", [push(store, checkpoint, 0)])

    def other():
        theirs = hub_store(loopback)
        push_listing(theirs, "demo", [push(theirs, checkpoint, 1)])

    def before_the_card_is_read(request):
        return request.api == "revision" and request.path.startswith("/api/models")

    loopback.faults.append(Fault(before_the_card_is_read, "before", action=other))
    push_repo_cards(store, "demo", [REPO])
    assert loopback.faults[0].times == 0
    assert all(f"| tokens001.5M-seed{number} |" in main_card(store) for number in range(2))


# -- the law in the index's card

SECTION = "## The law\n\nL = a law\n\n![fit](law_fit.png)"
FILES: Mapping[str, bytes] = {"law_fit.png": b"\x89PNG\r\n", "scaling_law.json": b"{}"}


def test_a_law_in_the_card_of_the_index_stays_when_runs_are_added(store):
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
    assert ("another" in card, "L = a law" in card) == (True, False)


def test_a_law_is_checked_before_it_is_sent(store):
    with pytest.raises(NotFoundError):
        push_repo_cards(store, "demo", [REPO])
    with pytest.raises(NotFoundError, match="has no index of the sweep 'demo'"):
        describe_index(store, "demo", SECTION, FILES)
    push_index(store, "demo", [make_record(run_id="one")])
    for section, files, reason in (
        (SECTION, {"law.pkl": b""}, "not on the list"),
        (SECTION, {"README.md": b""}, "may not lie beside a law"),
        (f"{SECTION} {TOKEN}", {}, "access token"),
        (SECTION, {"scaling_law.json": TOKEN.encode()}, "access token"),
    ):
        with pytest.raises(FilesError, match=reason):
            describe_index(store, "demo", section, files)
    own = b"---\nlicense: mit\n---\nown card\n"
    store.update("dataset", "demo-runs", (), lambda _: {"README.md": own}, "edit")
    with pytest.raises(NotFoundError, match="no place for a law"):
        describe_index(store, "demo", SECTION, FILES)


# -- a sweep without an index


def test_a_sweep_without_an_index_is_read_from_its_repositories(store, checkpoint, caplog):
    pushed = [push(store, checkpoint, number, d_model=64 * (1 + number % 2)) for number in range(4)]
    push_listing(store, "demo", pushed)
    other = push_run(store, checkpoint("other", weight=9.0), make_record(run_id="x", sweep="demo-d64", seed=9))
    push_listing(store, "demo-d64", [other])
    caplog.set_level(logging.WARNING)
    assert list_runs(store, "demo") == load_index(store, "demo")
    assert "has no index of the sweep demo; its 4 runs were read from 4 branches, one by one" in caplog.text
    assert list_runs(store, "nothing") == []


def test_what_is_broken_is_named_or_left_out(loopback, checkpoint):
    store = hub_store(loopback)
    good = push(store, checkpoint, 0)
    push_listing(store, "demo", [good])
    loopback.state.put("model", "org/demo-d64-E4", "broken", {"run.json": b'{"run_id": "<script>"}'})
    loopback.state.put("model", "org/demo-d64-E4", "notes", {"notes.txt": b"no run"})
    with pytest.raises(RecordError, match=r"1 of 2 rows are not valid run records\nrun.json of demo-d64-E4@broken"):
        list_runs(store, "demo")
    problems: list[str] = []
    assert list_runs(store, "demo", problems=problems) == [good]
    assert len(problems) == 1


# -- no markup, no token


def test_a_malicious_index_does_no_harm_to_the_cards(loopback, checkpoint):
    """Rows that break the schema are left out; a valid one cannot break out of its table or forge a block."""
    store = hub_store(loopback)
    evil = "<!-- /revisions --> <script>alert(1)</script> | x"
    pushed = push(store, checkpoint, 0, hardware=evil, precision=evil)
    push_index(store, "demo", [pushed])
    good = store.read("dataset", "demo-runs", "runs.jsonl")
    loopback.state.put("dataset", "org/demo-runs", "main", {"runs.jsonl": good + b'{"run_id": "<b>"}\n'})
    push_repo_cards(store, "demo", [pushed.repo, "../../etc"])
    released = store.read("model", REPO, "README.md", pushed.branch).decode()
    for card in (main_card(store), released):
        body = re.sub(
            r"```.*?```|<!-- (?:/?(?:revisions|loading|place|run|main)|as pushed: \w+) -->", "", card, flags=re.DOTALL
        )
        assert "<" not in body.split("---\n", 2)[2]


@pytest.mark.parametrize(
    ("step", "ended"),
    [
        ("", {"status": "diverged", "train_loss": None, "eval_loss": None}),
        ("step0000733-", {"status": "intermediate", "stopped": "hopeless: final loss 4.1 to 4.2 (99%)"}),
    ],
)
def test_branches_of_a_trunk_that_ended_early_share_its_weights(store, checkpoint, step, ended):
    """The same checkpoint stands for each of them, on a branch of its own; of other runs, that is refused."""
    folder, ended = checkpoint(), ended | {"parent_run_id": "trunk"}
    horizons = ({"horizon_tokens": number * 10**7, "decay_tokens": number * 2 * 10**6} for number in (1, 2))
    schedules = [{**make_record().schedule.model_dump(), **horizon} for horizon in horizons]
    records = [make_record(run_id=f"run{i + 1}", schedule=s, **ended) for i, s in enumerate(schedules)]
    pushed = [push_run(store, folder, record) for record in records]
    assert [record.branch for record in pushed] == [
        f"{step}tokens001.5M-seed0-horizon0{number}0.0M" for number in (1, 2)
    ]
    push_index(store, "demo", pushed)
    assert [record.run_id for record in load_index(store, "demo")] == ["run1", "run2"]
    with pytest.raises(ConflictError, match="same weights"):
        push_index(store, "demo", [record.replaced(status="final", train_loss=1.0, stopped=None) for record in pushed])
