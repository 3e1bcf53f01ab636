"""docs/training.md must work as it stands: its commands are parsed or run, its files and names exist."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from typer.testing import CliRunner

from hub import RunRecord
from tests.conftest import free_port
from tests.guides import DOCS, ROOT, blocks, command_lines, run_python, text_of
from training import load_tokenizer, parse_command_line
from training import presets as presets_command
from training.configuration.arguments import SECTIONS
from training.configuration.reading import PAPER, listing, recipes
from training.run.model import build_model, model_config
from training.run.releaser import RELEASE_INCOMPLETE
from training.sweep import __main__ as sweep_module

PAGE = DOCS / "training.md"
GUIDE, COMMANDS = text_of(PAGE), command_lines(PAGE)
LAUNCHES = [command for command in COMMANDS if command.startswith("accelerate launch")]


@pytest.fixture
def in_guide_folder(tmp_path, monkeypatch):
    """A folder with the YAML files of the guide, each named by its first line."""
    for block in blocks(PAGE, "yaml"):
        (tmp_path / re.match(r"# (\S+)\n", block)[1]).write_text(block)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", LAUNCHES)
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


@pytest.fixture
def launched(tiny, tmp_path):
    """A function: run a launch command as it stands, where run.yaml is a tiny run; the processes that trained it.

    Without GPUs the processes run on CPU. `replaced` has for each launcher the flags whose values are others here.
    """

    def launch(command, *replaced: dict[str, str]):
        folder = tmp_path / "checkout"
        folder.mkdir(exist_ok=True)
        for name in ("train.py", "training"):
            (folder / name).symlink_to(ROOT / name)
        tiny(run__micro_batch_sequences=1, schedule__tokens=[1280], schedule__batch_ramp=["0:4"]).save(
            folder / "run.yaml"
        )
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        environment["HF_HOME"] = str(tmp_path / "home")  # without what `accelerate config` has left on this machine
        launches = []
        for words in replaced or [{}]:
            line = [sys.executable, "-m", "accelerate.commands.accelerate_cli", *shlex.split(command)[1:]]
            for flag, value in words.items():
                at = line.index(flag) if flag in line else 4  # among the launcher's own, right after `launch`
                line[at : at + (2 if flag in line else 0)] = [flag, value]
            output = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            launches.append(subprocess.Popen(line, cwd=folder, env=environment, **output))
        outputs = [process.communicate(timeout=400)[0] for process in launches]
        assert [process.returncode for process in launches] == [0] * len(launches), "\n".join(outputs)
        (model,) = Path(tiny().run.output_dir).glob("*/model")
        return int(RunRecord.load(model).hardware.partition(" x ")[0])

    return launch


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "processes"), [("single_gpu", 1), ("cpu_two_processes", 2), ("one_node_ddp", 4), ("one_node_fsdp2", 4)]
)
def test_the_commands_on_one_machine_train(launched, file, processes):
    (command,) = [command for command in LAUNCHES if f"{file}.yaml" in command]
    if "--num_processes" in command and (gpus := torch.cuda.device_count()):
        processes = min(processes, gpus)
        command = re.sub(r"--num_processes \d+", f"--num_processes {processes}", command)
    assert launched(command) == processes


@pytest.mark.slow
def test_the_command_for_several_nodes_trains(launched, monkeypatch):
    """Two launchers of one process each, on this machine."""
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    (command,) = [command for command in LAUNCHES if "multi_node_fsdp2.yaml" in command]
    here = {"--main_process_ip": "127.0.0.1", "--main_process_port": str(free_port()), "--num_processes": "2"}
    assert launched(command, {**here, "--machine_rank": "0"}, {**here, "--machine_rank": "1"}) == 2


def test_what_the_text_names_exists():
    for section, name in re.findall(r"`(?:--)?(\w+)\.(\w+)", GUIDE):
        if section in SECTIONS and name != "json":
            assert name in SECTIONS[section].model_fields, f"{section}.{name}"
    for name in re.findall(r"`(paper/[\w-]+)`", GUIDE):
        assert name in {PAPER, *recipes(), *listing()}
    assert all(f"`{name}`" in GUIDE for name in recipes())
    for path in re.findall(r"training/configs/[\w/.]+", GUIDE):
        assert (ROOT / path).exists(), path
    for command in re.findall(r"`python -m training.presets (show .+?)`", GUIDE):
        assert CliRunner().invoke(presets_command.app, shlex.split(command)).exit_code == 0


def test_the_python_block_runs(tiny, tmp_path, monkeypatch):
    arguments = tiny()
    tokenizer = load_tokenizer(arguments.data.tokenizer)
    model = build_model(model_config(arguments, len(tokenizer), tokenizer.eos_token_id), 0)
    model.save_pretrained(tmp_path / "runs" / "model")
    tokenizer.save_pretrained(tmp_path / "runs" / "model")
    monkeypatch.chdir(tmp_path)
    trainer = SimpleNamespace(add_callback=lambda callback: None)  # a real one: test_final_loss_callback
    assert set(run_python(PAGE, namespace={"trainer": trainer})["result"]) == {
        "loss",
        "perplexity",
        "tokens",
        "bits_per_byte",
    }


def test_the_sweep_of_the_guide_is_what_the_text_says(in_guide_folder):
    (plan,) = [shlex.split(command)[3:] for command in COMMANDS if "training.sweep plan" in command]
    planned = json.loads(CliRunner().invoke(sweep_module.app, [*plan, "--json"]).output)
    assert len(planned["runs"]) == 9
    assert max(branch["target_tokens"] for run in planned["runs"] for branch in run["branches"]) == 4 * 10**9


SWEEPS = [command for command in COMMANDS if "training.sweep run" in command]


@pytest.mark.parametrize("command", SWEEPS)
def test_what_the_guide_starts_can_be_started(command, in_guide_folder, monkeypatch):
    monkeypatch.setattr("training.data.pins._ask", lambda kind, name, asked: "a" * 40)
    words = [word for word in shlex.split(command)[3:] if word != "--dry-run"]
    shown = CliRunner().invoke(sweep_module.app, [*words, "--dry-run"])
    assert shown.exit_code == 0, shown.output
    runs = json.loads(CliRunner().invoke(sweep_module.app, ["plan", "sweep.yaml", "--json"]).output)["runs"]
    assert all(run["name"] in shown.output for run in runs)


def test_exit_statuses_are_those_of_the_code():
    rows = re.findall(r"^\| ([\d, ]+) \|", GUIDE, flags=re.MULTILINE)
    assert rows == ["0", "1", "2", "3", str(RELEASE_INCOMPLETE), "129, 130, 143"]
