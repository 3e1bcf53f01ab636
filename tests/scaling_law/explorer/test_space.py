"""The Space of docs/explorer.md: its app serves the page, with a law beside it, from the wheel alone."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from shutil import copy, copytree

import pytest

from scaling_law import Law
from tests.conftest import free_port
from tests.guides import DOCS, ROOT, blocks


@pytest.mark.slow
def test_the_app_runs_from_its_own_files(tmp_path, published):
    pytest.importorskip("gradio")
    port = free_port()
    (app,) = (code for code in blocks(DOCS / "explorer.md", "python") if "*.whl" in code)
    space = tmp_path / "space"
    space.mkdir()
    (space / "app.py").write_text(app.replace("7860", str(port)))
    published.save_pretrained(tmp_path).rename(space / "ours.json")
    assert Law.from_pretrained(space / "ours.json").coefficients == published.coefficients
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(space)]
    # A build leaves files in the folder that it is of.
    source = tmp_path / "source"
    for package in ("hub", "modeling_switch_moe", "scaling_law", "training"):
        copytree(ROOT / package, source / package)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        copy(ROOT / file, source)
    subprocess.run([*pip, str(source)], check=True, capture_output=True)
    # The wheel is installed in a folder of its own: all that it needs is there.
    installed = str(tmp_path / "installed")
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "HF_HUB_OFFLINE": "1",
        "PIP_NO_DEPS": "1",
        "PIP_NO_INDEX": "1",
        "PIP_TARGET": installed,
        "PYTHONPATH": installed,
    }
    with subprocess.Popen([sys.executable, "app.py"], cwd=space, env=environment) as served:
        try:
            for _ in range(120):
                time.sleep(1)
                try:
                    page = urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).read().decode()
                    break
                except OSError:
                    assert served.poll() is None
            assert "Joint MoE scaling laws" in page
            assert "ours" in page
        finally:
            served.terminate()
    assert (tmp_path / "installed" / "scaling_law" / "explorer" / "app.py").is_file()
