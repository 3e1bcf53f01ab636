"""Trackers: a run of its own for the trunk and for every branch, which a resumed training continues; nothing is lost.

What the trackers wrote is read back from where they keep it: TensorBoard's events, trackio's database, wandb's files.
"""

import importlib.util
import json
from pathlib import Path
from unittest.mock import Mock

import pytest
from accelerate.tracking import LOGGER_TYPE_TO_CLASS

from tests.training.run.test_run import finish, lines_of
from tests.training.wandb_files import read_runs
from training import ConfigurationError, Run
from training.run import log as trackers_module
from training.run.inputs import check_inputs

SEGMENTS = {"d64-E4-seed0-trunk": "trunk"} | {
    f"d64-E4-seed0-tokens{tokens}": f"tokens{tokens}-seed0" for tokens in ("001.28K", "002.56K")
}


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """wandb and trackio write below the test's folder."""
    for name, value in {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    if importlib.util.find_spec("trackio"):
        from trackio import sqlite_storage, utils

        (tmp_path / "trackio").mkdir()
        for module in (sqlite_storage, utils):  # read from the environment when it is imported
            monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path / "trackio")
    return tmp_path


def logged(arguments, segment: str) -> dict[int, float]:
    """Tokens -> loss, as log.jsonl has it."""
    return {line["tokens"]: line["loss"] for line in lines_of(arguments, segment) if "loss" in line}


def test_trunk_and_branches_have_runs_of_their_own_and_lose_nothing(tiny, offline, monkeypatch):
    checks = {"tensorboard": check_tensorboard, "wandb": check_wandb, "trackio": check_trackio}
    installed = [name for name in checks if importlib.util.find_spec(name)]
    arguments = tiny(run__trackers=installed, run__eval_tokens=[640])
    log = trackers_module.Trackers.log

    def killed_at_18(self, line):  # which was logged, and lies behind the last checkpoint
        log(self, line)
        if line["step"] == 18:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(trackers_module.Trackers, "log", killed_at_18)
        with pytest.raises(KeyboardInterrupt):
            Run(arguments).execute()
    finish(arguments)
    for name in installed:
        checks[name](arguments, offline)
    if missing := checks.keys() - installed:
        pytest.skip(f"not installed: {', '.join(missing)}")


def check_tensorboard(arguments, offline):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = Path(arguments.run.output_dir) / "tensorboard"
    assert {path.name for path in folder.iterdir()} == set(SEGMENTS.values())
    for segment in SEGMENTS.values():
        accumulator = EventAccumulator(str(folder / segment))  # joins the files, hides what was trained twice
        accumulator.Reload()
        events = accumulator.Scalars("loss")
        assert {event.step: event.value for event in events} == pytest.approx(logged(arguments, segment))
        assert len(events) == len(logged(arguments, segment))
        tags = set(accumulator.Tags()["scalars"])
        assert {"learning_rate", "drop_rate", "router_entropy", "data_wait_seconds", "memory_bytes"} <= tags
        assert {"updates", "tokens", "expert_load_max_over_mean/layer00"} <= tags
        assert ("eval_loss" in tags) == (segment == "trunk")
        assert len(list((folder / segment).glob("*/hparams.yml"))) == 1


def check_wandb(arguments, offline):
    runs = read_runs(offline)
    assert {run["name"] for run in runs.values()} == set(SEGMENTS)
    for run_id, run in runs.items():
        folder = Path(arguments.run.output_dir) / SEGMENTS[run["name"]]
        assert json.loads((folder / "tracker.json").read_text())["id"] == run_id
        assert (run["project"], run["group"]) == ("tiny", "d64-E4-seed0")
        assert run["files"] == (2 if folder.name == "trunk" else 1)
        assert run["axes"] == {"*": "tokens"}
        assert run["config"]["model.experts"] == 4
        assert all(row["updates"] == row["_step"] for row in run["history"])
        assert {row["tokens"]: row["loss"] for row in run["history"]} == logged(arguments, folder.name)
    (trunk,) = [run for run in runs.values() if run["name"].endswith("trunk")]
    assert {row["tokens"] for row in trunk["history"] if "eval_loss" in row} == {640}


def check_trackio(arguments, offline):
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    runs = {run.name: run for run in trackio.Api().runs("tiny")}
    assert {name.rpartition("-")[0] for name in runs} == set(SEGMENTS)
    for name, run in runs.items():
        folder = Path(arguments.run.output_dir) / SEGMENTS[name.rpartition("-")[0]]
        rows = SQLiteStorage.get_logs("tiny", name, run_id=run.id)
        assert {row["step"]: row["loss"] for row in rows if "loss" in row} == logged(arguments, folder.name)
        assert run.config["model.experts"] == 4
        assert run.config["_Group"] == "d64-E4-seed0"


@pytest.mark.parametrize(
    ("names", "installed", "message"),
    [
        (["all"], [], "run.trackers: 'all'; installed trackers: none"),
        (["tensorboard", "wanb"], ["tensorboard"], "run.trackers: 'wanb'; installed trackers: tensorboard"),
    ],
)
def test_a_tracker_that_would_log_nothing_is_refused(tiny, monkeypatch, names, installed, message):
    monkeypatch.setattr("accelerate.tracking.get_available_trackers", lambda: installed)
    with pytest.raises(ConfigurationError, match=message):
        check_inputs(tiny(run__trackers=names))


def test_a_tracker_that_cannot_start_is_one_clear_error(tiny, monkeypatch):
    tracker = Mock()
    tracker.return_value.start.side_effect = RuntimeError("No API key\nconfigured")
    monkeypatch.setitem(LOGGER_TYPE_TO_CLASS, "tensorboard", tracker)
    with pytest.raises(ConfigurationError, match=r"^run.trackers: tensorboard could not be started: No API key conf"):
        Run(tiny(run__trackers=["tensorboard"])).execute()
