"""A release is a state: a push finds what differs on a branch, in any file, and puts it right, in both stores."""

import json

import pytest

from hub import (
    ConflictError,
    FilesError,
    IntegrityError,
    NotFoundError,
    RunRecord,
    load_records,
    model_card,
    open_store,
    pull_run,
    push_run,
    push_runs,
    run_folders,
)
from hub.base.markdown import read_card
from hub.release.index import merge
from hub.release.push import push_listing
from tests.hub.conftest import changed_by_hand, hub_store, release
from tests.hub.samples import make_record

REPO, BRANCH = "demo-d64-E4", "tokens001.5M-seed0"
RUN = ("model", REPO, BRANCH)


def released(store, name):
    return store.read("model", REPO, name, BRANCH).decode()


def test_a_corrected_loss_and_a_prediction_reach_what_was_released(store, checkpoint, record):
    folder, corrected = checkpoint(), record.replaced(eval_loss=4.0)
    first, second = (push_run(store, folder, version) for version in (record, corrected))
    assert second.commit != first.commit
    assert RunRecord.from_json(released(store, "run.json")) == second.replaced(commit=None)
    card = released(store, "README.md")
    assert "| Held-out loss (nats/token, dropless) | 4.0000 |" in card
    assert read_card(card).data["model-index"][0]["results"][0]["metrics"][0]["value"] == 4.0
    with_law = push_run(store, folder, corrected, predicted_loss=4.3)
    assert "run: 4.3000." in released(store, "README.md")
    assert push_run(store, folder, corrected) == with_law  # a push that knows no law takes none away


def test_a_card_that_lies_beside_the_model_is_put_right_and_keeps_what_a_person_wrote(store, checkpoint, record):
    """Also one that was written for another place."""
    folder, before = checkpoint(), record.replaced(repo="elsewhere/demo-d64-E4", branch="other")
    card = model_card(before, license="mit").replace("library_name:", "inference: false\nlibrary_name:")
    (folder / "README.md").write_text(card.replace("## Limits", "A note.\n\n## Limits"))
    pushed = push_run(store, folder, record.replaced(eval_loss=4.0), predicted_loss=4.25)
    card = released(store, "README.md")
    place = f'"{pushed.repo}", "{BRANCH}"' if pushed.repo != REPO else f'"models/{REPO}/{BRANCH}"'
    for part in ("| Held-out loss (nats/token, dropless) | 4.0000 |", "run: 4.2500."):
        assert part in card
    for part in ("A note.", f"= {place}\n"):
        assert part in card
    assert "4.3125" not in card
    assert "elsewhere" not in card
    metadata = read_card(card).data
    assert (metadata["license"], metadata["inference"]) == ("mit", False)
    assert metadata["model-index"][0]["results"][0]["metrics"][0]["value"] == 4.0


def test_what_is_missing_or_differs_is_sent_and_what_should_not_be_there_goes(store, checkpoint, record):
    folder = checkpoint()
    (folder / "old_helper.py").write_text("# old\n")
    push_run(store, folder, record)
    (folder / "old_helper.py").unlink()
    (folder / "modeling_switch_moe.py").write_text("# a fixed version\n")
    push_run(store, folder, record)
    assert released(store, "modeling_switch_moe.py") == "# a fixed version\n"
    files = store.files("model", REPO, BRANCH)
    assert "old_helper.py" not in files
    for name in files.keys() - {"model.safetensors"}:
        view = changed_by_hand(store, RUN, name)
        assert name not in view.files("model", REPO, BRANCH)
        push_run(view, folder, record)
        assert view.files("model", REPO, BRANCH) == files


def test_a_repair_sends_what_differs_only(loopback, checkpoint, record):
    folder = checkpoint()
    push_run(hub_store(loopback), folder, record)
    (folder / "tokenizer.json").write_text('{"version": "2.0"}')
    before = len(loopback.requests)
    push_run(hub_store(loopback), folder, record)
    (commit,) = (request for request in loopback.requests[before:] if request.api == "commit")
    keys = [json.loads(line)["value"].get("path") for line in commit.body.splitlines()]
    assert keys == [None, "tokenizer.json"]


def test_a_record_that_says_the_same_or_is_not_ours_to_change_stays(store, checkpoint, record):
    """As one of an older version does, that did not know all fields; one of a newer version or of another run."""
    folder = checkpoint()
    pushed = push_run(store, folder, record)
    known = pushed.replaced(commit=None).to_dict()
    older = json.dumps({name: value for name, value in known.items() if value is not None}).encode()
    view = changed_by_hand(store, RUN, "run.json", older)
    assert push_run(view, folder, record).commit == view.branches("model", REPO)[BRANCH]
    with pytest.raises(ConflictError, match="belongs to run demo-d64-E4-a, not other"):
        push_run(view, folder, record.replaced(run_id="other"))
    assert released(view, "run.json").encode() == older
    newer = pushed.to_json().replace('"schema_version": 1', '"schema_version": 9').encode()
    view = changed_by_hand(store, RUN, "run.json", newer)
    with pytest.raises(ConflictError, match=r"branch '.*' of .*: schema_version is 9, .*: update the package"):
        push_run(view, folder, record)
    assert released(view, "run.json").encode() == newer


def test_two_runs_that_would_be_one_branch_are_refused_before_anything_is_sent(store, checkpoint, record):
    runs = [(checkpoint(name, weight=ord(name)), record.replaced(run_id=name)) for name in "ab"]
    with pytest.raises(FilesError, match=r"runs a and b would both be branch 'tokens001\.5M-seed0' of demo-d64-E4"):
        push_runs(store, runs)
    assert store.repos("model") == []


def test_a_run_released_under_another_name_is_in_the_index_once(record):
    weights = {"weights_sha256": {"model.safetensors": "0" * 64}}
    before = record.replaced(branch=BRANCH, **weights)
    after = record.replaced(branch=f"{BRANCH}-lr0.002", **weights)
    assert merge([before], [after]) == [after]
    intermediate = record.replaced(branch="step0000001-x", weights_sha256={"model.safetensors": "1" * 64})
    assert len(merge([before], [intermediate])) == 2


# -- pulling


def test_pull_from_a_folder_gives_what_the_index_lists_or_nothing(tmp_path, checkpoint, record):
    store = open_store(tmp_path / "releases")
    pushed = push_run(store, checkpoint(), record)
    (tmp_path / "releases/models" / REPO / BRANCH / "modeling_switch_moe.py").write_text("# changed\n")
    with pytest.raises(NotFoundError, match="its files have changed since"):
        pull_run(store, pushed, tmp_path / "to")
    destination = tmp_path / "used"
    destination.mkdir()
    (destination / "config.json").write_text("{}")
    push_run(store, checkpoint("again"), record)
    with pytest.raises(IntegrityError, match=r"config\.json has other content"):
        pull_run(store, pushed, destination)


def test_a_tokenizer_is_released_without_settings_of_the_machine_and_the_step_log_as_it_is(store, checkpoint, record):
    folder, log = checkpoint(), '{"step": 1, "tokens": 2048, "loss": 6.2}\n'
    (folder / "tokenizer_config.json").write_text('{"local_files_only": true, "model_max_length": 512}')
    (folder / "log.jsonl").write_text(log)
    pushed = push_run(store, folder, record)
    assert json.loads(released(store, "tokenizer_config.json")) == {"model_max_length": 512}
    assert (pull_run(store, pushed) / "log.jsonl").read_text() == log


def test_a_licence_is_named_if_it_is_given_and_stays(store, checkpoint, record):
    places = [("model", REPO, BRANCH), ("model", REPO, "main"), ("dataset", "demo-runs", "main")]
    pushed = push_run(store, checkpoint(), record, license="cc0-1.0")
    for license in ("cc0-1.0", None):  # whoever adds a run takes no licence away
        push_listing(store, "demo", [pushed, make_record(run_id=f"{license}", seed=1)], license=license)
        cards = [store.read(kind, repo, "README.md", at).decode() for kind, repo, at in places]
        assert [read_card(card).data["license"] for card in cards] == ["cc0-1.0"] * 3


def test_the_copy_on_main_is_no_second_run(tmp_path, runs_of):
    """When a folder without its index is read, or a store is pushed on."""
    store = open_store(tmp_path / "releases")
    release(store, runs_of(2))
    models = tmp_path / "releases" / "models"
    assert (models / REPO / "main" / "run.json").is_file()
    assert sorted(record.run_id for record in load_records(models)) == ["run0", "run1"]
    assert [folder.name for folder in run_folders(tmp_path / "releases")] == [BRANCH, "tokens001.5M-seed1"]
    assert load_records(models / REPO / "main")[0].run_id == "run0"
