"""What the first `make` shows: a few lines, with the installer's words in a file that an error points to."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
INSTALLER = """#!/bin/sh
case "$1" in
venv) for folder; do :; done; mkdir -p "$folder" ;;
pip) for n in 1 2 3 4 5 6 7 8 9; do echo "Collecting package-$n"; done; echo "No space left" >&2; exit $STATUS ;;
esac
"""


@pytest.fixture
def make(tmp_path):
    """`make` in a checkout with nothing set up, and an installer that says much and ends with a status."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "uv").write_text(INSTALLER)
    (tmp_path / "uv").chmod(0o755)
    # Without the flags of a make that runs these tests.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}

    def run(status):
        command = ["make", f"UV={tmp_path / 'uv'}", f"PYTHON={sys.executable}"]
        options = {"cwd": tmp_path, "env": environment | {"STATUS": str(status)}, "capture_output": True, "text": True}
        return subprocess.run(command, **options, check=False)

    return run


def test_the_first_make_says_what_it_does_in_five_lines(make, tmp_path):
    done = make(0)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith("Setting up .venv with uv: torch and the other packages")
    assert 2 <= len(done.stdout.splitlines()) <= 5
    assert done.stderr == ""
    assert (tmp_path / "build/setup.log").read_text().count("Collecting") == 9
    assert "Nothing to be done" in make(0).stdout


def test_a_failed_install_shows_its_end_and_points_to_the_rest(make, tmp_path):
    failed = make(1)
    assert failed.returncode != 0
    assert "No space left\nerror: see build/setup.log\n" in failed.stderr
    assert "package-1\n" not in failed.stdout + failed.stderr
    assert not (tmp_path / ".venv/.ready").exists()
