"""What `training` offers to who imports it, and what it says where the packages that training needs are missing."""

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


@pytest.mark.parametrize("command", [*COMMANDS, *SWEEPS])
def test_help_does_not_wait_for_torch(command):
    words = [sys.executable, "-X", "importtime", *command.split(), "--help"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "--" in done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "pydantic" in imported or "typer" in imported
    assert not imported & {"torch", "transformers", "accelerate", "datasets"}
