"""Runs that train on when the process of their sweep is killed: commands see them, wait for them and stop them."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict

import psutil
import pytest
import yaml

from hub.base import atomic
from tests.conftest import wait_for
from tests.guides import ROOT
from tests.training.sweep.commands import command
from training import Sweep, run_sweep
from training.run.attempt import Attempt, Holder, find_trainer
from training.sweep.engine import EngineError
from training.sweep.run import Local, _Running
from training.sweep.status import EXECUTOR, find_process, lock_of, state, status

# What `train.py` does to its folder, without training: it holds the lock until it is stopped, or fails.
STAND_IN = """
import signal, sys, time
from pathlib import Path
from training.run.attempt import lock_run, note_end

def end(status, message=""):
    note_end(status, message)
    sys.exit(status)

folder = Path(sys.argv[2]).parent
signal.signal(signal.SIGTERM, lambda *_: end(143))
lock = lock_run(folder)
while not (folder / "fail").exists():
    time.sleep(0.02)
end(2, "data.dataset: a.jsonl, line 301 is no JSON")
"""


@pytest.fixture
def leave_training(tiny, tmp_path, monkeypatch):
    """A function: start a run by a command in the place of `train.py`, and leave what a sweep leaves at `kill -9`."""

    def leave(words, begun):
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        path = tmp_path / "sweep.yaml"
        path.write_text(yaml.safe_dump({"base": tiny().to_dict(), "output_dir": str(tmp_path / "runs")}))
        sweep = Sweep.load(path)
        (run,) = sweep.runs
        run.folder.mkdir(parents=True)
        running = _Running(run, 0, {}, lock_of(run))
        running.lock.acquire()
        running.start(words)
        wait_for("the training", lambda: begun(run))
        # As a killed process, without unlocking what its launcher holds, too.
        os.close(running.lock._context.lock_file_fd)
        running.lock._context.lock_file_fd = None
        ended = subprocess.Popen(["true"])
        ended.wait()
        executor = Holder.load(run.folder / EXECUTOR)
        atomic.write_json(run.folder / "process.json", {**asdict(executor), "pid": ended.pid})
        return path, sweep, run

    return leave


@pytest.fixture
def killed(leave_training):
    return leave_training([sys.executable, "-c", STAND_IN], lambda run: find_trainer(run.folder))


def test_a_run_of_a_killed_sweep_is_shown_and_cancelled(killed):
    path, _, run = killed
    trainer = find_trainer(run.folder)
    assert (state(run), status(run).process) == ("running", f"process {trainer.pid} on {os.uname().nodename}")
    assert command(path, "cancel") == f"{run.name}: cancelled (local)\n"
    wait_for("its end", lambda: find_process(run) is None)
    assert (state(run), Attempt.load(run.folder)) == ("waiting", Attempt(143, stopped=True))
    assert command(path, "cancel") == ""


def test_a_run_of_a_killed_sweep_is_waited_for_and_tells_why_it_failed(killed):
    _, sweep, run = killed
    trainer = find_trainer(run.folder)
    outcome = run_sweep(sweep, 1, lambda running: (run.folder / "fail").touch())
    assert json.loads((run.folder / ".lock.json").read_text())["pid"] == trainer.pid  # none was started beside it
    log = run.folder / "output.log"
    assert outcome.failed == {run.name: (2, log)}
    assert str(outcome.failed[run.name]) == f"exit status 2: data.dataset: a.jsonl, line 301 is no JSON; see {log}"
    assert state(run) == "failed"


def test_a_run_of_a_killed_sweep_is_waited_for_and_stays_stopped_when_it_is_cancelled(killed):
    path, sweep, run = killed
    outcome = run_sweep(sweep, 1, lambda running: command(path, "cancel"))
    assert (outcome.failed[run.name].exit_status, Attempt.load(run.folder)) == (143, Attempt(143, stopped=True))


def test_a_run_that_has_not_begun_when_its_sweep_is_killed_is_found_by_its_launcher(leave_training):
    words = [sys.executable, "-c", "import subprocess; subprocess.run(['sleep', '60'])"]
    path, _, run = leave_training(
        words, lambda run: psutil.Process(Holder.load(run.folder / EXECUTOR).launcher).children()
    )
    wait_for("its program", lambda: find_process(run).find().name() == "sleep")
    assert (state(run), find_trainer(run.folder)) == ("running", None)
    assert command(path, "cancel") == f"{run.name}: cancelled (local)\n"
    wait_for("its end", lambda: find_process(run) is None)
    assert state(run) == "waiting"


def test_a_training_on_another_machine_is_named_and_left_alone(killed, capsys):
    _, sweep, run = killed
    trainer = find_trainer(run.folder)
    atomic.write_json(run.folder / ".lock.json", {"host": "another", "pid": 12})
    assert run_sweep(sweep, 1).elsewhere == [run.name]
    assert status(run).process == "process 12 on another"
    with pytest.raises(EngineError, match="executed by process 12 on another; cancel it there"):
        Local().cancel([run])
    trainer.find().kill()


@pytest.mark.slow
def test_a_real_run_trains_on_when_its_sweep_is_killed_and_saves_when_it_is_cancelled(tiny, tmp_path):
    path = tmp_path / "sweep.yaml"
    base = tiny(run__checkpoint_seconds=0.01, schedule__tokens=[10_000_000]).to_dict()
    path.write_text(yaml.safe_dump({"base": base, "output_dir": str(tmp_path / "runs")}))
    (run,) = Sweep.load(path).runs
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    sweep = subprocess.Popen([sys.executable, "-m", "training.sweep", "run", str(path)], cwd=ROOT, env=environment)
    wait_for("a checkpoint", lambda: list(run.folder.glob("trunk/step*")))
    sweep.send_signal(signal.SIGKILL)
    sweep.wait()
    trainer = find_trainer(run.folder)
    assert str(ROOT / "train.py") in trainer.find().cmdline()
    again = subprocess.Popen(
        [sys.executable, "-m", "training.sweep", "run", str(path)], cwd=ROOT, env=environment, stderr=subprocess.PIPE
    )
    line = f"run {run.name}: waiting for process {trainer.pid}, which trains it already\n"
    assert again.stderr.readline().decode() == line
    assert command(path, "cancel", "--only", run.name) == f"{run.name}: cancelled (local)\n"
    assert again.wait(timeout=120) == 1
    assert (find_process(run), Attempt.load(run.folder)) == (None, Attempt(143, stopped=True))
