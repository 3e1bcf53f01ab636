"""Pushing while training: complete in spite of faults; with the Hub down nothing is lost, and the status says so."""

# ruff: noqa: F811 (fixtures are imported)
import os
import signal
import time
from pathlib import Path

import pytest

from hub import RunRecord, load_index, open_store, push_run
from hub.store.files import is_allowed
from tests.hub.conftest import command, hub_store, loopback, online, the_hub  # noqa: F401
from tests.hub.loopback import TOKEN, Fault
from tests.training.ranks import save_configuration
from training import ConfigurationError, Run
from training.run import releaser as release
from training.run.main import main
from training.run.releaser import RELEASE_INCOMPLETE, finishers

ROOT = Path(__file__).parents[3]
FILES = {
    *("README.md", "config.json", "model.safetensors", "run.json", "log.jsonl"),
    *("training_curve.png", "expert_load.png"),
}


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


def train(arguments) -> int:
    """The exit status of `train.py`."""
    return main(["--config", str(save_configuration(arguments))])


def test_branches_are_pushed_through_faults(the_hub, tiny, drawings, tmp_path, capfd, caplog):
    arguments = tiny(run__push_to_hub="hf://org", run__private=True)
    for number in range(2, 80, 6):
        kind = ("status", "drop", "lose")[number // 6 % 3]
        the_hub.faults.append(Fault(lambda request, n=number: request.number == n, kind, 503))
    assert train(arguments) == 0
    assert sum(fault.times == 0 for fault in the_hub.faults) > 5
    assert_released(the_hub, arguments)
    assert all(repo.private for repo in the_hub.state.repositories.values())
    assert_no_token(the_hub, tmp_path, caplog.text + "".join(capfd.readouterr()))


def test_a_hub_that_is_down_costs_nothing_but_the_exit_status(
    the_hub, tiny, tmp_path, command, capsys, caplog, monkeypatch
):
    """And the documented command completes the release."""
    arguments = tiny(run__push_to_hub="hf://org")
    the_hub.faults.append(Fault(lambda request: True, "status", 403, times=10**9))
    assert train(arguments) == RELEASE_INCOMPLETE == 4
    assert "the release in hf://org is not complete" in caplog.text
    assert "injected fault" in caplog.text
    assert len(list(Path(arguments.run.output_dir).glob("*/model/model.safetensors"))) == 2
    assert the_hub.state.repositories == {}
    assert_no_token(the_hub, tmp_path, caplog.text + "".join(capsys.readouterr()))
    with monkeypatch.context() as patch:  # a diverged run keeps its own status
        patch.setattr(Run, "_train", lambda self, ends: False)
        assert train(arguments) == 1
    the_hub.faults.clear()
    assert command("push", arguments.run.output_dir, "hf://org")[0] == 0
    assert_released(the_hub, arguments)


def test_a_run_that_is_stopped_ends_what_it_is_sending(the_hub, tiny):
    """SIGTERM comes while the first branch is on its way: it arrives, though the second is not trained."""

    def stop_at_upload(request):
        return request.api == "preupload" and os.kill(os.getpid(), signal.SIGTERM) is None

    the_hub.faults.append(Fault(stop_at_upload, "before", action=lambda: time.sleep(1.0)))
    short_trunk = {"schedule.tokens": [1280, 50_000], "schedule.warmup_tokens": 0, "schedule.decay_fraction": 0.9}
    arguments = tiny(run__push_to_hub="hf://org", **short_trunk)
    assert train(arguments) == 128 + signal.SIGTERM
    assert [record.tokens for record in load_index(hub_store(the_hub), "tiny")] == [1280]
    assert not list(Path(arguments.run.output_dir).glob("*50*/model"))


def test_a_restart_pushes_what_was_not_pushed_as_hub_push_does(tiny, tmp_path):
    """Branches that were finished before are offered again; what is there is not written again."""
    assert train(tiny()) == 0
    pushed = tiny(run__push_to_hub=str(tmp_path / "store"))
    assert train(pushed) == 0
    assert [record.tokens for record in load_index(open_store(tmp_path / "store"), "tiny")] == [1280, 2560]
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*.*") if path.name != ".lock"}
    assert train(pushed) == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
    folder = next(Path(pushed.run.output_dir).glob("*/model"))
    by_hand = push_run(open_store(tmp_path / "other"), folder, RunRecord.load(folder))
    one, two = (tmp_path / name / "models" / by_hand.repo / by_hand.branch for name in ("store", "other"))
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


def test_only_the_main_process_needs_a_token(online, tiny, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert len(finishers(tiny(run__push_to_hub="hf://org"))) == 1
