"""What a person writes into a card, and its licence and base model, stay when runs are pushed again."""

import re

import pytest

from hub import push_index, push_run, repair_index
from hub.base.markdown import read_card
from hub.release.push import push_listing
from tests.hub.conftest import another_view, changed_by_hand
from tests.hub.samples import make_record

REPO, BRANCH = "demo-d64-E4", "tokens001.5M-seed0"
RUN, MAIN, INDEX = ("model", REPO, BRANCH), ("model", REPO, "main"), ("dataset", "demo-runs", "main")
OWN = b"---\nlicense: mit\n---\nquite another card\n"


def card_of(store, place):
    kind, repo, branch = place
    return store.read(kind, repo, "README.md", branch).decode()


def put(store, place, text):
    changed_by_hand(store, place, "README.md", text.encode())


def edit(store, place, heading):
    """A note, another licence and the base model, by hand."""
    text = re.sub(r"license: .*\n", "", card_of(store, place))
    text = text.replace("---\n", "---\nlicense: apache-2.0\nbase_model: org/base\n", 1)
    assert heading in text
    put(store, place, text.replace(heading, f"A note of ours.\n\n{heading}"))


def assert_kept(store, place, license="apache-2.0"):
    text = card_of(store, place)
    metadata = read_card(text).data
    assert (text.count("A note of ours."), metadata["license"], metadata["base_model"]) == (1, license, "org/base")


def test_a_branchs_card_keeps_what_a_person_wrote(store, checkpoint, record):
    folder = checkpoint()
    push_run(another_view(store), folder, record, license="mit")
    edit(store, RUN, "## The run")
    for loss in (4.0, 3.0):
        push_run(another_view(store), folder, record.replaced(eval_loss=loss), predicted_loss=4.25)
        assert_kept(store, RUN)
        card = card_of(store, RUN)
        assert f"| Held-out loss (nats/token, dropless) | {loss:.4f} |" in card
        assert "run: 4.2500." in card
        assert read_card(card).data["model-index"][0]["results"][0]["metrics"][0]["value"] == loss
    commit = store.branches("model", REPO)[BRANCH]
    assert push_run(another_view(store), folder, record.replaced(eval_loss=3.0)).commit == commit
    push_run(another_view(store), folder, record.replaced(eval_loss=3.0), license="cc0-1.0")
    assert_kept(store, RUN, license="cc0-1.0")


@pytest.mark.parametrize(
    ("in_folder", "pushed", "edited"), [("mit", None, "apache-2.0"), (None, "cc0-1.0", "cc0-1.0")]
)
def test_a_licence_stays_that_a_push_named_or_that_was_changed_on_the_branch(
    store, checkpoint, record, in_folder, pushed, edited
):
    """Also where the run's folder names another."""
    folder = checkpoint()
    if in_folder:
        (folder / "README.md").write_text(f"---\nlicense: {in_folder}\n---\n# A model\n")
    push_run(another_view(store), folder, record, license=pushed)
    if edited != pushed:
        put(store, RUN, card_of(store, RUN).replace(f"license: {in_folder}", f"license: {edited}"))
    push_run(another_view(store), folder, record.replaced(eval_loss=4.0))
    assert read_card(card_of(store, RUN)).data["license"] == edited


def test_the_card_in_the_runs_folder_is_that_of_its_first_push(store, checkpoint, record):
    """From then on, what stands outside of our blocks belongs to the card on the branch."""
    folder = checkpoint()
    push_run(another_view(store), folder, record)
    (folder / "README.md").write_text(f"{card_of(store, RUN)}\nA later note.\n")
    push_run(another_view(store), folder, record.replaced(eval_loss=4.0))
    assert "A later note." not in card_of(store, RUN)
    assert "dropless) | 4.0000 |" in card_of(store, RUN)


def test_a_card_of_an_earlier_version_with_its_mark_is_refreshed(store, checkpoint, record):
    folder = checkpoint()
    push_run(another_view(store), folder, record)
    put(store, RUN, f"{card_of(store, RUN)}\n<!-- as pushed: 0123456789abcdef -->\n")
    push_run(another_view(store), folder, record.replaced(eval_loss=4.0))
    assert "dropless) | 4.0000 |" in card_of(store, RUN)


@pytest.mark.parametrize("place", [RUN, MAIN, INDEX], ids=["branch", "main", "index"])
def test_a_card_of_another_kind_stays(store, checkpoint, record, place):
    push_listing(store, "demo", [push_run(another_view(store), checkpoint(), record)])
    put(store, place, OWN.decode())
    corrected = push_run(another_view(store), checkpoint("again"), record.replaced(eval_loss=4.0))
    push_listing(store, "demo", [corrected])
    assert card_of(store, place).encode() == OWN


def test_the_card_on_main_keeps_what_a_person_wrote(store, runs_of):
    one, two = (push_run(store, *run) for run in runs_of(2))
    push_listing(store, "demo", [one], license="mit")
    edit(store, MAIN, "## How to load")
    push_listing(another_view(store), "demo", [two])
    assert_kept(store, MAIN)
    assert "| tokens001.5M-seed1 |" in card_of(store, MAIN)


def test_the_card_of_an_index_keeps_what_a_person_wrote(store):
    push_index(store, "demo", [make_record(run_id="one")], license="mit")
    edit(store, INDEX, "## How to load")
    push_index(store, "demo", [make_record(run_id="two", seed=1)])
    assert_kept(store, INDEX)
    card = card_of(store, INDEX)
    assert (card.count("| one |"), card.count("| two |"), card.count("2 rows")) == (1, 1, 1)
    content = store.read("dataset", "demo-runs", "runs.jsonl").replace(b'"run_id": "one"', b'"run_id": "won"')
    store.update("dataset", "demo-runs", (), lambda _: {"runs.jsonl": content}, "edit")
    repair_index(store, "demo")
    assert_kept(store, INDEX)
    assert "| won |" in card_of(store, INDEX)
    push_index(store, "demo", [make_record(run_id="two", seed=1)], license="cc0-1.0")
    assert_kept(store, INDEX, license="cc0-1.0")
