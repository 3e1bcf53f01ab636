"""A release is a state: a push finds what differs on a branch, in any file, and puts it right, in both stores."""

import json

import pytest

from hub import (
    load_index,
    load_records,
    model_card,
    open_store,
    pull_run,
    push_index,
    push_repo_cards,
    push_run,
    push_runs,
    run_folders,
)
from hub.plain.errors import ConflictError, FilesError, IntegrityError, NotFoundError
from hub.plain.markdown import read_card
from hub.record.names import branch_name
from hub.record.run_record import RunRecord
from hub.release.index import merge
from hub.release.push import push_listing
from tests.hub.conftest import another_view, hub_cache, hub_store
from tests.hub.loopback import TOKEN, Fault
from tests.hub.samples import make_record

REPO, BRANCH = "demo-d64-E4", "tokens001.5M-seed0"


def released(store, name):
    return store.read("model", REPO, name, BRANCH).decode()


def remove(store, record, name):
    """Take a file off a branch, as a hand or another tool might."""
    if hasattr(store, "root"):
        (store.root / "models" / REPO / BRANCH / name).unlink()
    else:
        store.transport.api.delete_file(name, store.repo_id(REPO), revision=BRANCH)


def test_a_corrected_loss_reaches_the_record_and_the_card(store, checkpoint, record):
    folder = checkpoint()
    first = push_run(store, folder, record)
    second = push_run(store, folder, record.replaced(eval_loss=4.0))
    assert second.commit != first.commit
    assert RunRecord.from_json(released(store, "run.json")) == second.replaced(commit=None)
    card = released(store, "README.md")
    assert "| Held-out loss (nats/token, dropless) | 4.0000 |" in card
    assert read_card(card).data["model-index"][0]["results"][0]["metrics"][0]["value"] == 4.0
    push_index(store, "demo", [second])
    assert load_index(store, "demo") == [second]
    assert push_run(store, folder, record.replaced(eval_loss=4.0)) == second


def test_a_card_that_lies_beside_the_model_is_put_right_and_keeps_what_a_person_wrote(store, checkpoint, record):
    """Also one that was written before its table was marked as a block."""
    folder = checkpoint()
    card = model_card(record, license="mit").replace("<!-- run -->\n", "").replace("<!-- /run -->\n", "")
    card = card.replace("library_name:", "inference: false\nlibrary_name:").replace(
        "## Limits", "A note.\n\n## Limits"
    )
    (folder / "README.md").write_text(card)
    push_run(store, folder, record.replaced(eval_loss=4.0))
    card = released(store, "README.md")
    assert "| Held-out loss (nats/token, dropless) | 4.0000 |" in card
    assert "4.3125" not in card
    assert "A note." in card
    metadata = read_card(card).data
    assert (metadata["license"], metadata["inference"]) == ("mit", False)
    assert metadata["model-index"][0]["results"][0]["metrics"][0]["value"] == 4.0


@pytest.mark.parametrize("name", ["config.json", "modeling_switch_moe.py", "tokenizer.json", "run.json", "README.md"])
def test_what_is_missing_on_a_branch_is_sent(store, checkpoint, record, name):
    folder = checkpoint()
    push_run(store, folder, record)
    before = store.files("model", REPO, BRANCH)
    remove(store, record, name)
    assert name not in store.files("model", REPO, BRANCH)
    again = push_run(another_view(store), folder, record)
    assert store.files("model", REPO, again.commit) == before


def overwrite(store, record):
    """Put another run.json on the branch; returns another process's view of the store."""
    if hasattr(store, "root"):
        (store.root / "models" / REPO / BRANCH / "run.json").write_bytes(record)
        return store
    store.transport.api.upload_file(
        path_or_fileobj=record, path_in_repo="run.json", repo_id=store.repo_id(REPO), revision=BRANCH
    )
    return another_view(store)


def test_changed_code_is_sent_and_what_should_not_be_there_goes(store, checkpoint, record):
    folder = checkpoint()
    (folder / "old_helper.py").write_text("# old\n")
    push_run(store, folder, record)
    (folder / "old_helper.py").unlink()
    (folder / "modeling_switch_moe.py").write_text("# a fixed version\n")
    pushed = push_run(store, folder, record)
    assert released(store, "modeling_switch_moe.py") == "# a fixed version\n"
    assert "old_helper.py" not in store.files("model", REPO, BRANCH)
    assert push_run(store, folder, record) == pushed


def test_a_repair_sends_what_differs_only(loopback, checkpoint, record):
    folder = checkpoint()
    push_run(hub_store(loopback), folder, record)
    (folder / "tokenizer.json").write_text('{"version": "2.0"}')
    before = len(loopback.requests)
    push_run(hub_store(loopback), folder, record)
    (commit,) = (request for request in loopback.requests[before:] if request.api == "commit")
    keys = [json.loads(line)["value"].get("path") for line in commit.body.splitlines()]
    assert keys == [None, "tokenizer.json"]


def test_a_repair_whose_response_is_lost_is_not_sent_again(loopback, checkpoint, record):
    folder = checkpoint()
    push_run(hub_store(loopback), folder, record)
    loopback.faults.append(Fault(lambda request: request.api == "commit", "lose"))
    before = len(loopback.requests)
    pushed = push_run(hub_store(loopback), folder, record.replaced(eval_loss=4.0))
    assert loopback.api_calls(before).count("commit") == 1
    assert loopback.state.repository("model", f"org/{REPO}").branches[BRANCH] == pushed.commit


def test_a_record_that_says_the_same_in_other_words_is_not_written_again(store, checkpoint, record):
    """As one of an older version does, that did not know all fields."""
    folder = checkpoint()
    first = push_run(store, folder, record)
    fields = {name: value for name, value in json.loads(released(store, "run.json")).items() if value is not None}
    older = json.dumps(fields).encode()
    store = overwrite(store, older)
    again = push_run(store, folder, record)
    assert released(store, "run.json").encode() == older
    assert again.replaced(commit=None) == first.replaced(commit=None)
    assert again.commit == store.branches("model", REPO)[BRANCH]


def test_the_branch_of_another_run_is_not_taken(store, checkpoint, record):
    folder = checkpoint()
    pushed = push_run(store, folder, record)
    with pytest.raises(ConflictError, match="is that of run demo-d64-E4-a, not other"):
        push_run(store, folder, record.replaced(run_id="other"))
    assert store.branches("model", REPO)[BRANCH] == pushed.commit


def test_a_prediction_reaches_the_card_of_a_run_that_was_released_before(store, checkpoint, record):
    folder = checkpoint()
    push_run(store, folder, record)
    with_law = push_run(store, folder, record, predicted_loss=4.3)
    assert "4.3000 (measured" in released(store, "README.md")
    assert push_run(store, folder, record, predicted_loss=4.3) == with_law
    assert push_run(store, folder, record) == with_law  # a push that knows no law takes none away


def test_two_runs_that_would_be_one_branch_are_refused_before_anything_is_sent(store, checkpoint, record):
    runs = [(checkpoint(name, weight=ord(name)), record.replaced(run_id=name)) for name in "ab"]
    with pytest.raises(FilesError, match=r"runs a and b would both be branch 'tokens001\.5M-seed0' of demo-d64-E4"):
        push_runs(store, runs)
    assert store.repos("model") == []


def test_a_record_of_a_newer_version_is_not_overwritten(store, checkpoint, record):
    folder = checkpoint()
    pushed = push_run(store, folder, record)
    newer = pushed.to_json().replace('"schema_version": 1', '"schema_version": 9').encode()
    store = overwrite(store, newer)
    with pytest.raises(ConflictError, match=r"branch '.*' of .* has a record with schema_version 9, .* newer version"):
        push_run(store, folder, record)
    assert released(store, "run.json").encode() == newer


def test_runs_that_differ_in_their_rate_are_released_beside_each_other(store, checkpoint):
    schedule = {**make_record().schedule.model_dump(), "learning_rate_law": "given"}
    records = [
        make_record(run_id=f"run{n}", schedule={**schedule, "peak_learning_rate": rate})
        for n, rate in enumerate((0.001, 0.002, 0.004))
    ]
    pushed = push_runs(store, [(checkpoint(r.run_id, weight=n), r) for n, r in enumerate(records)])
    push_index(store, "demo", pushed)
    assert [record.branch for record in load_index(store, "demo")] == [
        f"tokens001.5M-seed0-lr{rate}" for rate in (0.001, 0.002, 0.004)
    ]


def test_a_run_released_under_another_name_is_in_the_index_once(record):
    weights = {"weights_sha256": {"model.safetensors": "0" * 64}}
    before = record.replaced(branch=BRANCH, **weights)
    after = record.replaced(branch=f"{BRANCH}-lr0.002", **weights)
    assert merge([before], [after]) == [after]
    intermediate = record.replaced(branch="step0000001-x", weights_sha256={"model.safetensors": "1" * 64})
    assert len(merge([before], [intermediate])) == 2


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, BRANCH),
        ({"optimizer": {"weight_decay": 0.2, "gradient_clip_norm": 1.0}}, f"{BRANCH}-wd0.2-clip1"),
        ({"optimizer": {"beta2": 0.95, "epsilon": 1e-6}}, f"{BRANCH}-beta0.9-0.95-eps1e-06"),
        ({"schedule": {"decay_tokens": 150_000}}, f"{BRANCH}-decay0.1"),
        ({"schedule": {"peak_learning_rate": 0.5}}, BRANCH),  # by a law
        ({"schedule": {"learning_rate_law": "given"}}, f"{BRANCH}-lr0.002"),
        ({"schedule": {"learning_rate_law": "a law, times 0.5"}}, BRANCH),  # its run was named before scales were
        ({"schedule": {"learning_rate_law": "a law, times 0.5"}, "run_id": "s-lrscale0.5-a"}, f"{BRANCH}-lrscale0.5"),
        ({"schedule": {"learning_rate_law": "given"}, "sweep": "demo-lr0.002"}, BRANCH),  # the sweep says it
        ({"capacity_factor": 0, "balance_loss_coefficient": 0.1}, f"{BRANCH}-dropless-balance0.1"),
        ({"status": "diverged", "tokens": 500_000}, "tokens000.5M-seed0-horizon001.5M"),
        ({"status": "intermediate"}, f"step0000733-{BRANCH}"),
    ],
)
def test_branch_names_say_what_departs_from_the_recipe(changes, name):
    record = make_record()
    parts = {
        part: {**getattr(record, part).model_dump(), **changes.get(part, {})} for part in ("optimizer", "schedule")
    }
    assert branch_name(record.replaced(**{**changes, **parts})) == name


def test_branch_names_are_bounded():
    optimizer = {
        **make_record().optimizer.model_dump(),
        "beta1": 0.123456,
        "beta2": 0.123457,
        "weight_decay": 1.23457e-7,
    }
    schedule = {**make_record().schedule.model_dump(), "learning_rate_law": "given", "peak_learning_rate": 1.23457e-9}
    base = {"status": "intermediate", "steps": 10**18, "tokens": 10**18 - 1, "seed": (1 << 63) - 1}
    names = {
        branch_name(make_record(optimizer={**optimizer, "epsilon": e}, schedule=schedule, **base))
        for e in (1e-7, 1e-6)
    }
    assert len(names) == 2
    assert all(len(name) <= 120 for name in names)
    assert {RunRecord(**{**make_record().to_dict(), "branch": name}).branch for name in names} == names


# -- pulling


@pytest.mark.parametrize("name", ["modeling_switch_moe.py", "tokenizer.json", "README.md", "config.json"])
def test_pull_checks_code_tokenizer_and_card(loopback, checkpoint, record, name):
    """A file of the cache that was changed, or cut short, is not handed out as the released one."""
    store = hub_store(loopback)
    pushed = push_run(store, checkpoint(), record)
    folder = pull_run(store, pushed)
    assert hub_cache() in folder.parents
    with (folder / name).open("a") as file:
        file.write("changed")
    with pytest.raises(IntegrityError, match=f"run demo-d64-E4-a as fetched from .*: {name} has other content"):
        pull_run(store, pushed)


def test_pull_from_a_folder_gives_what_the_index_lists_or_nothing(tmp_path, checkpoint, record):
    store = open_store(tmp_path / "releases")
    pushed = push_run(store, checkpoint(), record)
    (tmp_path / "releases/models" / REPO / BRANCH / "modeling_switch_moe.py").write_text("# changed\n")
    with pytest.raises(NotFoundError, match="files of it were changed since"):
        pull_run(store, pushed, tmp_path / "to")
    destination = tmp_path / "used"
    destination.mkdir()
    (destination / "config.json").write_text("{}")
    push_run(store, checkpoint("again"), record)
    with pytest.raises(IntegrityError, match=r"config\.json has other content"):
        pull_run(store, pushed, destination)


# -- what is sent


def test_a_tokenizer_is_released_without_settings_of_the_machine(store, checkpoint, record):
    folder = checkpoint()
    (folder / "tokenizer_config.json").write_text('{"local_files_only": true, "model_max_length": 512}')
    push_run(store, folder, record)
    assert json.loads(released(store, "tokenizer_config.json")) == {"model_max_length": 512}


def test_the_step_log_is_part_of_a_release(store, checkpoint, record):
    folder = checkpoint()
    (folder / "log.jsonl").write_text('{"step": 1, "tokens": 2048, "loss": 6.2}\n')
    pushed = push_run(store, folder, record)
    assert released(store, "log.jsonl").startswith('{"step": 1')
    assert (pull_run(store, pushed) / "log.jsonl").is_file()
    (folder / "log.jsonl").write_text(json.dumps({"step": 1, "note": TOKEN}))
    with pytest.raises(FilesError, match=r"log\.jsonl holds what looks like an access token"):
        push_run(store, folder, record)


def test_a_licence_is_named_if_it_is_given(store, checkpoint, record):
    folder = checkpoint()
    push_listing(store, "demo", [push_run(store, folder, record)])
    places = [("model", REPO, BRANCH), ("model", REPO, "main"), ("dataset", "demo-runs", "main")]

    def licences():
        return [read_card(store.read(k, repo, "README.md", at).decode()).data.get("license") for k, repo, at in places]

    assert licences() == [None, None, None]
    push_index(store, "demo", [push_run(store, folder, record, license="cc0-1.0")], license="cc0-1.0")
    push_repo_cards(store, "demo", [REPO], license="cc0-1.0")
    assert licences() == ["cc0-1.0"] * 3
    push_index(store, "demo", [make_record(run_id="next", seed=1)])  # whoever adds a run takes no licence away
    push_repo_cards(store, "demo", [REPO])
    assert licences() == ["cc0-1.0"] * 3
    with pytest.raises(FilesError, match="license 'apache2': allowed are the Hub's identifiers"):
        push_run(store, folder, record, license="apache2")


def test_the_copy_on_main_is_no_second_run(tmp_path, runs_of):
    """When a folder without its index is read, or a store is pushed on."""
    store = open_store(tmp_path / "releases")
    push_listing(store, "demo", push_runs(store, runs_of(2)))
    models = tmp_path / "releases" / "models"
    assert (models / REPO / "main" / "run.json").is_file()
    assert sorted(record.run_id for record in load_records(models)) == ["run0", "run1"]
    assert [folder.name for folder in run_folders(tmp_path / "releases")] == [BRANCH, "tokens001.5M-seed1"]
    assert load_records(models / REPO / "main")[0].run_id == "run0"
