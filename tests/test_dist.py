"""What `make dist` built: an sdist, the wheel that was built from it, and the environment $FRESH with the wheel."""

import json
import os
import subprocess
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.dist
ROOT = Path(__file__).parent.parent
PACKAGES = ("hub", "modeling_switch_moe", "scaling_law", "training")


@pytest.fixture(scope="module")
def fresh():
    """A function: run a program of the fresh environment outside of the checkout; its output."""
    binaries = (ROOT / os.environ["FRESH"] / "bin").absolute()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*words: str, cwd: Path) -> str:
        command = [str(binaries / words[0]), *words[1:]]
        return subprocess.run(command, cwd=cwd, env=environment, check=True, capture_output=True, text=True).stdout

    return run


def test_the_wheel_has_every_file_of_the_packages():
    """Python builds the wheel from the sdist, so this holds for both."""
    listed = subprocess.run(["git", "ls-files", *PACKAGES], cwd=ROOT, check=True, capture_output=True, text=True)
    tracked = listed.stdout.splitlines()
    (wheel,) = (ROOT / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}
    assert sorted(packed) == sorted(tracked)
    assert {Path(name).suffix for name in tracked} >= {".npy", ".pyi", ".typed", ".yaml"}
    assert [name for name in tracked if packed[name] != (ROOT / name).read_bytes()] == []


def test_the_installed_law_answers(fresh, tmp_path):
    code = "import scaling_law as s; print(s.__file__, s.JointLaw.published().optimal(1e22).best.loss_interval)"
    where, _, interval = fresh("python", "-c", code, cwd=tmp_path).partition(" ")
    assert "site-packages" in where
    assert interval.startswith("(")  # from the draws that the package brings


def test_the_installed_commands_answer(fresh, tmp_path):
    answer = fresh("scaling-law", "optimal", "--flops", "1e22", "--memory", "80GB", "--json", cwd=tmp_path)
    assert json.loads(answer)["best"]["experts"] > 1
    fresh("scaling-law", "plan", "--flops", "1e19", "-o", "run.yaml", cwd=tmp_path)
    assert "schedule:" in (tmp_path / "run.yaml").read_text()
    assert "push" in fresh("python", "-m", "hub", "--help", cwd=tmp_path)
