"""Pushing while training: complete in spite of faults; with the Hub down nothing is lost, and the status says so.

`train.py` runs in a process of its own, against the loopback Hub.
"""

# ruff: noqa: F811 (fixtures are imported)
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hub import RunRecord, load_index, open_store, push_run
from hub.plain.errors import UnavailableError
from hub.store.files import is_allowed
from tests.hub.conftest import hub_store, loopback, online  # noqa: F401
from tests.hub.loopback import TOKEN, Fault
from tests.hub.samples import make_record
from tests.training.run.test_run import poison
from training.configuration.arguments import ConfigurationError
from training.configuration.reading import from_dict
from training.run import releaser as release
from training.run.main import Run
from training.run.releaser import RELEASE_INCOMPLETE, Releaser, finishers
from training.run.results import _named_by_recipe

ROOT = Path(__file__).parents[3]
FILES = {
    *("README.md", "config.json", "model.safetensors", "run.json", "log.jsonl"),
    *("training_curve.png", "expert_load.png"),
}


def environment(server, tmp_path, **changes):
    return {
        **os.environ,
        "HF_ENDPOINT": server.endpoint,
        "HF_TOKEN": TOKEN,
        "HF_HOME": str(tmp_path / "hf-home"),
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
        "OMP_NUM_THREADS": "1",
        "ACCELERATE_USE_CPU": "true",
        "PYTHONPATH": str(ROOT),
        **changes,
    }


def train(arguments, server, tmp_path, *flags) -> subprocess.Popen:
    config = tmp_path / "config.yaml"
    arguments.save(config)
    command = [sys.executable, str(ROOT / "train.py"), "--config", str(config), *flags]
    return subprocess.Popen(
        command, env=environment(server, tmp_path), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finished(process) -> tuple[int, str]:
    output, _ = process.communicate(timeout=240)
    return process.returncode, output


def assert_released(server, arguments) -> None:
    """Every finished model of the run lies on the Hub, whole, and is in the index at its commit."""
    there = {record.run_id: record for record in load_index(hub_store(server), "tiny")}
    folders = sorted(Path(arguments.run.output_dir).glob("*/model"))
    assert len(there) == len(folders) == len(set(arguments.schedule.tokens))
    repo = server.state.repository("model", "org/tiny-d64-E4")
    for folder in folders:
        row = there[RunRecord.load(folder).run_id]
        tree = repo.commits[row.commit].tree
        assert repo.branches[row.branch] == row.commit
        assert set(tree) >= FILES
        assert all(is_allowed(name) for name in tree if name != ".gitattributes")
        for name in ("model.safetensors", "training_curve.png", "expert_load.png"):
            assert server.state.content(tree[name]) == (folder / name).read_bytes()
        card = server.state.content(tree["README.md"]).decode()
        assert f'repo, revision = "org/tiny-d64-E4", "{row.branch}"' in card
        assert "](training_curve.png)" in card
    main = repo.resolve("main").tree
    longest = max(there.values(), key=lambda row: row.tokens)
    assert main["model.safetensors"] == repo.commits[longest.commit].tree["model.safetensors"]
    listed = server.state.content(main["README.md"]).decode()
    assert all(f"| {row.branch} |" in listed for row in there.values())


def assert_no_token(server, tmp_path, output: str) -> None:
    assert TOKEN not in output
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or TOKEN.encode() not in path.read_bytes(), path
    for content in [*server.state.blobs.values(), *server.state.large.values()]:
        assert TOKEN.encode() not in content
    for request in server.requests:
        assert TOKEN not in request.path
        assert TOKEN.encode() not in request.body


def test_train_py_pushes_its_branches_through_faults(loopback, tiny, tmp_path):
    arguments = tiny(run__push_to_hub="hf://org", run__private=True)
    for number in range(2, 80, 6):
        kind = ("status", "drop", "lose")[number // 6 % 3]
        loopback.faults.append(Fault(lambda request, n=number: request.number == n, kind, 503))
    status, output = finished(train(arguments, loopback, tmp_path))
    assert status == 0, output
    assert sum(fault.times == 0 for fault in loopback.faults) > 5
    assert_released(loopback, arguments)
    assert all(repo.private for repo in loopback.state.repositories.values())
    assert_no_token(loopback, tmp_path, output)


def test_a_hub_that_is_down_costs_nothing_but_the_exit_status(loopback, tiny, tmp_path):
    """And the documented command completes the release."""
    arguments = tiny(run__push_to_hub="hf://org")
    loopback.faults.append(Fault(lambda request: True, "status", 403, times=10**9))
    status, output = finished(train(arguments, loopback, tmp_path))
    assert status == RELEASE_INCOMPLETE == 4, output
    assert "the release in hf://org is not complete" in output
    assert "injected fault" in output
    assert len(list(Path(arguments.run.output_dir).glob("*/model/model.safetensors"))) == 2
    assert loopback.state.repositories == {}
    assert_no_token(loopback, tmp_path, output)
    loopback.faults.clear()
    push = [sys.executable, "-m", "hub", "push", arguments.run.output_dir, "hf://org"]
    done = subprocess.run(push, env=environment(loopback, tmp_path), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert_released(loopback, arguments)


def test_a_run_that_is_stopped_ends_what_it_is_sending(loopback, tiny, tmp_path):
    """SIGTERM comes while the first branch is on its way: it arrives, though the second is not trained."""
    arguments = tiny(run__push_to_hub="hf://org", schedule__tokens=[1280, 100_000])
    loopback.faults.append(Fault(lambda request: request.api == "preupload", "delay", seconds=2.0))
    process = train(arguments, loopback, tmp_path)
    while "preupload" not in loopback.api_calls() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    status, output = finished(process)
    assert status == 128 + signal.SIGTERM, output
    assert [record.tokens for record in load_index(hub_store(loopback), "tiny")] == [1280]
    assert not list(Path(arguments.run.output_dir).glob("*100*/model"))


def released_in_process(arguments, store):
    """(exit status, releaser) of a run in this process."""
    releaser = Releaser(store, arguments.run.sweep)
    trained = Run(arguments, [releaser]).execute()
    return release.exit_status(trained, [releaser]), releaser


def test_a_restart_pushes_what_was_not_pushed(tiny, tmp_path):
    """Branches that were finished before are offered again; what is there is not written again."""
    arguments = tiny()
    assert Run(arguments).execute() == 0
    store = open_store(tmp_path / "store")
    assert released_in_process(arguments, store)[0] == 0
    first = load_index(store, "tiny")
    assert [record.tokens for record in first] == [1280, 2560]
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*.*") if path.name != ".lock"}
    assert released_in_process(arguments, store)[0] == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_diverged_run_keeps_its_own_status(tiny, tmp_path, monkeypatch):
    store = open_store(tmp_path / "store")
    store.publish = lambda *_: (_ for _ in ()).throw(UnavailableError("away"))
    arguments = tiny(run__max_skipped_steps=2, schedule__tokens=[1280])
    releaser = Releaser(store, "tiny")
    run = Run(arguments, [releaser])
    poison(run, monkeypatch, lambda call: call > 13)
    trained = run.execute()
    assert (trained, releaser.exit_status) == (1, RELEASE_INCOMPLETE)
    assert release.exit_status(trained, [releaser]) == 1
    (folder,) = Path(arguments.run.output_dir).glob("*/model")
    assert "This run diverged" in (folder / "README.md").read_text()


def test_the_card_beside_the_model_is_the_one_that_is_pushed(tiny, tmp_path):
    """`hub push` of the run's folder, and pushing while training, send the same card but for the place."""
    arguments = tiny(schedule__tokens=[1280], run__push_to_hub=str(tmp_path / "one"))
    (releaser,) = finishers(arguments)
    assert Run(arguments, [releaser]).execute() == 0
    (folder,) = Path(arguments.run.output_dir).glob("*/model")
    other = open_store(tmp_path / "two")
    pushed = push_run(other, folder, RunRecord.load(folder))
    one, two = (tmp_path / name / "models" / pushed.repo / pushed.branch for name in ("one", "two"))
    assert {path.name for path in one.iterdir()} == {path.name for path in two.iterdir()} >= FILES
    assert all((one / path.name).read_bytes() == path.read_bytes() for path in two.iterdir())
    assert "local_files_only" not in (folder / "tokenizer_config.json").read_text()


def test_pictures_that_cannot_be_drawn_do_not_end_a_run(tiny, monkeypatch, caplog):
    monkeypatch.setattr(release, "run_pictures", lambda *_: 1 / 0)
    arguments = tiny(schedule__tokens=[1280])
    assert Run(arguments).execute() == 0
    (folder,) = Path(arguments.run.output_dir).glob("*/model")
    assert "## The run" in (folder / "README.md").read_text()
    assert "could not be drawn: division by zero" in caplog.text


@pytest.mark.parametrize(
    ("store", "message"),
    [
        ("hf://", "run.push_to_hub: organisation ''"),
        ("https://huggingface.co/org", "run.push_to_hub: .*allowed are a folder"),
        ("hf://org", "run.push_to_hub: no access token"),
    ],
)
def test_a_store_that_cannot_be_used_is_found_out_before_training(online, tiny, store, message):
    with pytest.raises(ConfigurationError, match=message):
        finishers(tiny(run__push_to_hub=store))
    assert finishers(tiny()) == ()


def test_only_the_main_process_needs_a_token(online, tiny, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert len(finishers(tiny(run__push_to_hub="hf://org"))) == 1


def test_a_licence_that_the_hub_does_not_know_is_a_bad_configuration():
    with pytest.raises(ConfigurationError, match=r"run\.license: 'apache2'; it must be a licence"):
        from_dict({"run": {"license": "apache2", "output_dir": "out"}})
    assert from_dict({"run": {"license": "mit", "output_dir": "out"}}).run.license == "mit"


def test_runs_that_differ_in_the_recipe_have_ids_of_their_own():
    schedule = {**make_record().schedule.model_dump(), "learning_rate_law": "given"}
    names = {"run_id": "s-d64-E4-seed0-tokens001.5M", "parent_run_id": "s-d64-E4-seed0"}
    given = _named_by_recipe(make_record(schedule=schedule, **names), "tokens001.5M")
    assert (given.run_id, given.parent_run_id) == ("s-d64-E4-seed0-lr0.002-tokens001.5M", "s-d64-E4-seed0-lr0.002")
    by_law = make_record(**names)
    assert _named_by_recipe(by_law, "tokens001.5M") is by_law
    scaled = make_record(schedule={**schedule, "learning_rate_law": "published, times 2"}, **names)
    assert _named_by_recipe(scaled, "tokens001.5M").run_id == "s-d64-E4-seed0-lrscale2-tokens001.5M"
    long = "s" * 40 + "-d64-E4-seed0"
    assert len(_named_by_recipe(make_record(schedule=schedule, parent_run_id=long), "tokens001.5M").run_id) <= 64
