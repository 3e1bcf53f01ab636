"""What the README shows must work as it stands: its Python blocks are run, and its commands exist."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hub import RunRecord, open_store, push_index, push_run
from scaling_law import Architecture, JointLaw
from training.run import Run

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, flags=re.DOTALL)


@pytest.fixture
def demo_output(tiny, tmp_path, monkeypatch):
    """A folder with a release where the README's blocks look for that of `make demo`: one real checkpoint, and records
    whose losses are those of a law with a little noise."""
    arguments = tiny(schedule__tokens=[1280])
    assert Run(arguments).execute() == 0
    (folder,) = Path(arguments.run.output_dir).glob("*/model")
    record = RunRecord.load(folder)
    store = open_store(tmp_path / "demo-output" / "hub")
    push_run(store, folder, record.replaced(sweep="demo"), branch="tokens002.0M-seed0")
    push_index(store, "demo", made_up_records(record))
    monkeypatch.chdir(tmp_path)


def made_up_records(like: RunRecord) -> list[RunRecord]:
    law, noise = JointLaw.published(), np.random.default_rng(0)
    records = []
    for d_model in (64, 128, 192):
        for experts in (1, 2, 4, 8):
            arch = Architecture(d_model, experts, vocab_size=1024)
            for tokens in (250_000, 500_000, 1_000_000):
                loss = float(law.loss(arch.n_active, tokens, experts)) + noise.normal(0, 0.005)
                size = {"d_model": d_model, "n_blocks": arch.n_blocks, "n_heads": arch.n_heads, "experts": experts}
                counts = {"n_active": arch.n_active, "n_total": arch.n_total, "vocab_size": 1024, "tokens": tokens}
                trunk = f"demo-d{d_model}-E{experts}"
                names = {
                    "sweep": "demo",
                    "run_id": f"{trunk}-{tokens}",
                    "parent_run_id": trunk,
                    "weights_sha256": None,
                }
                records.append(like.replaced(**size, **counts, **names, eval_loss=loss, branch_point_tokens=None))
    return records


def test_the_python_blocks_run_in_their_order(demo_output, capsys):
    blocks = [code for language, code in BLOCKS if language == "python"]
    assert len(blocks) == 3
    namespace = {}
    for code in blocks:
        exec(compile(code, "README.md", "exec"), namespace)
    shown = capsys.readouterr().out
    assert "16" in shown.splitlines()[0] or namespace["best"].experts == 16  # the paper's answer for 80 GB at 1e22
    assert Path("my-law").exists()
    assert namespace["result"].status.converged


def test_the_training_command_is_a_configuration_that_can_be_used():
    from training.configuration import parse_command_line

    (command,) = [line for _, code in BLOCKS for line in code.replace("\\\n", " ").splitlines() if "train.py" in line]
    words = shlex.split(command)
    assert words[:3] == ["accelerate", "launch", "train.py"]
    arguments = parse_command_line(words[3:])
    assert (arguments.model.experts, len(arguments.schedule.tokens)) == (8, 3)


@pytest.mark.parametrize("command", re.findall(r"`(scaling-law [^`]+?)`", README))
def test_the_shell_commands_answer(command, tmp_path):
    words = shlex.split(command)
    result = subprocess.run(
        [sys.executable, "-m", "scaling_law.cli", *words[1:]], cwd=tmp_path, capture_output=True, text=True
    )
    assert result.returncode in (0, 3), result.stderr  # 3: answered, outside the fitted range


def test_links_and_make_targets_exist():
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make ([\w-]+)", README, flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
