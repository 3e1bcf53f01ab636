"""docs/training.md must work as it stands: its commands are parsed or run, its files and names exist."""

import json
import re
import shlex
from pathlib import Path

import pytest
import typer
import yaml
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from typer.testing import CliRunner

from training import prepare, presets
from training.arguments import SECTIONS
from training.configuration import parse_command_line
from training.model import build_model, model_config
from training.release.releaser import RELEASE_INCOMPLETE
from training.sweep import cli as sweep_module
from training.tokens.tokenizer import load_tokenizer

ROOT = Path(__file__).parent.parent
GUIDE = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", GUIDE, flags=re.DOTALL)
COMMANDS = [
    line for language, block in BLOCKS if language == "bash" for line in block.splitlines() if not line.startswith("#")
]


@pytest.fixture
def in_guide_folder(tmp_path, monkeypatch):
    """A folder with the YAML files of the guide, each named by its first line."""
    for language, block in BLOCKS:
        if language == "yaml":
            (tmp_path / re.match(r"# (\S+)\n", block)[1]).write_text(block)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("accelerate launch")])
def test_the_launched_commands_are_understood(command, in_guide_folder):
    before, _, flags = command.partition("train.py ")
    words = shlex.split(before)[2:]
    launcher = launch_command_parser().parse_args([*words, "train.py"])
    if launcher.config_file:
        launcher.config_file = str(ROOT / launcher.config_file)
    launcher, _, _ = _validate_launch_command(launcher)
    arguments = parse_command_line(shlex.split(flags))
    assert (arguments.model.d_model, arguments.model.experts) == (512, 8)
    assert arguments.run.output_dir == "runs/d512-E8"
    arguments.check_processes(launcher.num_processes or 1)
    if "--config" in flags:
        assert arguments.schedule.tokens == [10**9, 2 * 10**9]


@pytest.mark.parametrize("command", [command for command in COMMANDS if "training.prepare" in command])
def test_the_prepare_commands_are_understood(command):
    options = typer.main.get_command(prepare.app)
    context = options.make_context("prepare", shlex.split(command)[3:])
    arguments = parse_command_line(["--run.output_dir", "unused", *context.args])
    assert (arguments.model.d_model, arguments.data.dataset_config) == (512, "sample-10BT")


@pytest.mark.parametrize("command", [command for command in COMMANDS if "training.sweep" in command])
def test_the_sweep_commands_work(command, in_guide_folder):
    words = shlex.split(command.partition(" > ")[0])
    assert words[:3] == ["python", "-m", "training.sweep"]
    if words[3] == "run":  # would train for days: its options must exist
        parser = typer.main.get_command(sweep_module.app).commands["run"]
        assert parser.make_context("run", words[4:]).params["workers"] > 1
        return
    result = CliRunner().invoke(sweep_module.app, words[3:])
    assert result.exit_code == 0, result.output
    assert "d1024-E8-seed0" in result.output


def test_what_the_text_names_exists():
    for section, name in re.findall(r"`(?:--)?(\w+)\.(\w+)", GUIDE):
        if section in SECTIONS and name != "json":
            assert name in SECTIONS[section].__dataclass_fields__, f"{section}.{name}"
    for name in re.findall(r"`(paper/[\w-]+)`", GUIDE):
        assert name in presets.names()
    assert all(f"`{name}`" in GUIDE for name in presets.recipes())
    for path in re.findall(r"training/configs/[\w/.]+", GUIDE):
        assert (ROOT / path).exists(), path
    for command in re.findall(r"`python -m training.presets (show .+?)`", GUIDE):
        assert CliRunner().invoke(presets.app, shlex.split(command)).exit_code == 0


def test_the_python_block_runs(tiny, tmp_path, monkeypatch):
    arguments = tiny()
    tokenizer = load_tokenizer(arguments.data.tokenizer)
    model = build_model(model_config(arguments, len(tokenizer), tokenizer.eos_token_id), 0)
    model.save_pretrained(tmp_path / "runs" / "model")
    tokenizer.save_pretrained(tmp_path / "runs" / "model")
    monkeypatch.chdir(tmp_path)
    (code,) = [block for language, block in BLOCKS if language == "python"]
    namespace = {}
    exec(compile(code, "training.md", "exec"), namespace)
    assert set(namespace["result"]) == {"loss", "perplexity", "tokens", "bits_per_byte"}


def test_the_sweep_of_the_guide_is_what_the_text_says(in_guide_folder):
    values = yaml.safe_load((in_guide_folder / "sweep.yaml").read_text())
    assert values["from"] == "paper"
    planned = json.loads(CliRunner().invoke(sweep_module.app, ["plan", "sweep.yaml", "--json"]).output)
    assert len(planned["runs"]) == 9
    assert max(branch["target_tokens"] for run in planned["runs"] for branch in run["branches"]) == 4 * 10**9


def test_exit_statuses_are_those_of_the_code():
    rows = re.findall(r"^\| ([\d, ]+) \|", GUIDE, flags=re.MULTILINE)
    assert rows == ["0", "1", "2", "3", str(RELEASE_INCOMPLETE), "130, 143"]
