"""docs/bring_your_own_architecture.md: its configuration is built and counted, its commands and its code work."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from hub import RunRecord
from hub.record.names import final_branch_name
from scaling_law.commands.cli import app
from scaling_law.size.model_configs import FAMILIES
from tests.guides import DOCS, blocks, command_lines, run_python, text_of
from tests.model_classes import CLASSES, TOP_K
from tests.training.run.test_run import finish, folders
from training import from_dict, parse_command_line
from training.configuration.class_counts import on_meta
from training.configuration.model_classes import balance_loss_of, causal_class, model_types

PAGE = DOCS / "bring_your_own_architecture.md"
GUIDE = text_of(PAGE)


@pytest.fixture
def configured(tmp_path, monkeypatch):
    """A folder with the YAML of the guide, and a config.json."""
    (block,) = blocks(PAGE, "yaml")
    (tmp_path / re.match(r"# (\S+)\n", block)[1]).write_text(block)
    section = {name: value for name, value in TOP_K.items() if name != "type"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": TOP_K["type"], **section}))
    monkeypatch.chdir(tmp_path)
    return yaml.safe_load(block)


def test_the_configuration_is_the_model_that_the_text_counts(configured):
    model = from_dict(configured).model
    read = model.model()
    assert f"{read.architecture.n_active:,} active of {read.architecture.n_total:,} parameters" in GUIDE
    assert sum(p.numel() for p in on_meta(model.config(50257, 512, 0)).parameters()) == read.parameters
    assert f"`{model.name}`" in GUIDE


@pytest.mark.parametrize("command", [line for line in command_lines(PAGE) if "train.py" in line])
def test_the_commands_are_understood(command, configured):
    arguments = parse_command_line(shlex.split(command.partition("train.py ")[2]))
    assert arguments.model.type == "qwen3_moe"


def test_the_plan_is_a_configuration_of_train(configured):
    (command,) = [line for line in command_lines(PAGE) if line.startswith("scaling-law plan")]
    done = CliRunner().invoke(app, shlex.split(command)[1:])
    assert done.exit_code == 0, done.output
    assert parse_command_line(["--config", "fine-plan.yaml"]).model.type == "qwen3_moe"


def test_the_python_block_runs(tiny, tmp_path, monkeypatch, capsys):
    arguments = tiny(model=CLASSES["qwen3_moe"], schedule__tokens=[1280])
    finish(arguments)
    folder = Path(re.search(r'folder = "(.*?)"', GUIDE)[1])
    shutil.copytree(folders(arguments)[0], tmp_path / folder)
    monkeypatch.chdir(tmp_path)
    left = run_python(PAGE)
    assert left["described"].architecture == arguments.model.model(300).architecture
    assert re.search(r"0 +4\.0 +8\.0 +2\.0\n", capsys.readouterr().out)
    record = RunRecord.load(tmp_path / folder)
    assert record.model_type == "qwen3_moe"
    # The folder of the guide's run of 2B tokens.
    assert folder.parent.name == final_branch_name(2_000_000_000, record.seed)


def test_what_the_text_says_of_classes_is_so():
    from transformers import CONFIG_MAPPING

    configs = {kind: CONFIG_MAPPING[kind]() for kind in set(FAMILIES) & set(model_types())}
    routed = {kind for kind, config in configs.items() if hasattr(config, "num_experts_per_tok")}
    unbalanced = {kind for kind in routed if balance_loss_of(causal_class(configs[kind])) is None}
    named = {"deepseek_v2", "deepseek_v3", "deepseek_v32", "dots1", "glm4_moe", "glm_moe_dsa", "llama4_text"}
    assert unbalanced == named
    padded = {kind for kind, config in configs.items() if config.pad_token_id is not None}
    assert padded == {"olmo2", "olmo3", "olmoe", "gemma2", "gemma3_text", "phi3", "glm4", "smollm3"}
    assert not [kind for kind, config in configs.items() if getattr(config, "output_router_logits", False)]
