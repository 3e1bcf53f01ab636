"""What the guides show must work: Python blocks run in their order, shell commands answer, links lead somewhere."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
GUIDES = sorted(DOCS.glob("*.md"))


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize("guide", ["planning.md", "fitting.md"])
def test_python_blocks_run(guide, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {}
    for code in blocks(DOCS / guide, "python"):
        exec(compile(code, guide, "exec"), namespace)
    assert namespace


COMMANDS = [line for block in blocks(DOCS / "planning.md", "bash") for line in block.splitlines()]


@pytest.mark.parametrize("command", [line for line in COMMANDS if line.startswith("scaling-law")])
def test_shell_commands_answer(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [sys.executable, "-m", "scaling_law.cli", *shlex.split(command)[1:]]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    assert result.returncode in (0, 3), result.stderr  # 3: answered, outside the fitted range


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.name)
def test_links_lead_somewhere(guide):
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", guide.read_text(encoding="utf-8")):
        assert (guide.parent / target).exists(), target
