"""What docs/releasing.md shows must work: its Python is run, its commands with a folder in the place of the Hub."""

import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hub import load_index, open_store
from scaling_law.commands.cli import app
from tests.guides import DOCS, command_lines, run_python
from tests.hub.conftest import command  # noqa: F401
from training import Run, parse_command_line
from training.run.main import main

PAGE = DOCS / "releasing.md"
# Those for other tools run in an environment of their own: tests/hub/release/test_other_tools.py.
COMMANDS = [line for line in command_lines(PAGE) if not line.startswith(("pip", "lm_eval"))]


pytestmark = pytest.mark.slow


@pytest.fixture
def trained(tiny, tmp_path, monkeypatch):
    """A finished run in runs/ and its configuration in run.yaml."""
    monkeypatch.chdir(tmp_path)
    arguments = tiny(run__output_dir="runs/one", run__sweep="my-sweep")
    arguments.save(tmp_path / "run.yaml")
    assert Run(arguments).execute() == 0
    return arguments


@pytest.fixture
def shell(command):  # noqa: F811
    """A command of the guide with a folder in the place of the Hub (a tag and a collection are for the Hub only)."""

    def run(line: str) -> tuple[int, str]:
        line = line.replace("hf://my-org", "my-releases").replace(" --tag v1 --collection", "")
        if line.startswith("scaling-law "):
            done = CliRunner().invoke(app, shlex.split(line)[1:])
            return done.exit_code, done.output
        status, _, errors = command(*shlex.split(line.removeprefix("python -m hub ")))
        return status, errors

    return run


def test_training_pushes(tiny, tmp_path, monkeypatch):
    (line,) = [line for line in COMMANDS if "train.py" in line]
    monkeypatch.chdir(tmp_path)
    tiny(run__output_dir="runs/one", run__sweep="my-sweep").save(tmp_path / "run.yaml")
    words = shlex.split(line.replace("hf://my-org", "my-releases"))
    assert words[:3] == ["accelerate", "launch", "train.py"]
    assert parse_command_line([*words[3:], "--run.private", "true"]).run.private
    assert main(words[3:]) == 0
    assert len(load_index(open_store("my-releases"), "my-sweep")) == 2


def test_commands_and_python_in_their_order(trained, shell, capsys):
    """Everything but the training, the law that was fitted before, and the paper's checkpoints."""
    for line in COMMANDS:
        if "train.py" not in line and "--law" not in line and "published" not in line:
            status, shown = shell(line)
            assert status == 0, (line, shown)
    assert len(list(Path("checkpoints").glob("my-sweep-d64-E4/*/model.safetensors"))) == 2
    namespace = run_python(PAGE, without="peft")
    assert len(namespace["records"]) == 2
    assert len(namespace["runs"]) == 2
    assert "my-sweep-d64-E4" in capsys.readouterr().out
