"""What `training` offers to who imports it, and what it says where the packages that training needs are missing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import training

ROOT = Path(training.__file__).parents[1]
MESSAGE = 'training needs datasets, torch: pip install "joint-moe-scaling-laws[train]"'


def test_every_name_is_there():
    assert all(getattr(training, name).__name__ == name for name in training.__all__)
    with pytest.raises(AttributeError, match="swep"):
        _ = training.swep


def test_without_its_packages_it_says_what_to_install(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = sys.modules['datasets'] = None\n")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}

    def run(*words):
        return subprocess.run([sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True)

    for words in (["train.py"], ["-m", "training.run"], ["-m", "training.sweep", "--help"]):
        done = run(*words)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: {MESSAGE}\n")
    assert run("-c", "import training").stderr.endswith(f"MissingPackagesError: {MESSAGE}\n")


COMMANDS = ("train.py", "-m training.run", "-m training.prepare", "-m training.demo", "-m training.throughput")
SWEEPS = ("-m training.sweep", "-m training.sweep plan", "-m training.sweep run")


HEAVY = {"torch", "transformers", "accelerate", "datasets"}


def run_command(command, **variables):
    """Run a command of the shell; returns the finished process and the modules that it imported."""
    words = [sys.executable, "-X", "importtime", *command.split()]
    environment = {**os.environ, **variables}
    process = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    lines = process.stderr.splitlines()
    imported = {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}
    assert "pydantic" in imported or "typer" in imported
    process.stderr = "\n".join(line for line in lines if not line.startswith("import time:"))
    return process, imported


@pytest.mark.parametrize("command", [*COMMANDS, *SWEEPS])
def test_help_does_not_wait_for_torch(command):
    process, imported = run_command(f"{command} --help")
    assert process.returncode == 0
    assert "--" in process.stdout
    assert not imported & HEAVY


@pytest.mark.parametrize("command", ["train.py", "-m training.run"])
def test_an_invalid_configuration_does_not_wait_for_torch(command, tmp_path):
    state = tmp_path / "state.json"
    process, imported = run_command(f"{command} --run.output_dir run --model.nope 1", TRAINING_STATE_FILE=str(state))
    message = "invalid configuration:\n  model.nope: no such key; did you mean model.type?"
    assert (process.returncode, process.stdout, process.stderr) == (2, "", f"error: {message}")
    assert not imported & HEAVY
    assert json.loads(state.read_text()) == {"exit_status": 2, "stopped": False, "message": message}


def test_an_unreadable_variable_does_not_wait_for_torch():
    process, imported = run_command("train.py --run.output_dir run", WORLD_SIZE="two")
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr.startswith("error: WORLD_SIZE: 'two'; it must be a whole number")
    assert not imported & HEAVY
