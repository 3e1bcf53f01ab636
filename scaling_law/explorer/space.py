"""The explorer as a Space of the Hub: a card, requirements, the app, and a wheel of this package (not on PyPI)."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from importlib.metadata import PathDistribution, version
from pathlib import Path
from shutil import copytree

from hub import FilesError, HubStore, Publication, Store
from scaling_law.explorer.app import TITLE, check_packages
from scaling_law.law import Law
from scaling_law.law_files import law_to_json

ROOT = Path(__file__).parents[2]
BUILT_FROM = ("pyproject.toml", "README.md", "LICENSE")
PACKAGES = ("hub", "modeling_switch_moe", "scaling_law", "training")
EXTRA = "explorer"
BUILD = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
LAW_SUFFIX = ".law.json"
APP = f'''"""The explorer of joint MoE scaling laws, from the wheel and the laws beside this file."""

import sys
import zipfile
from pathlib import Path

here = Path(__file__).parent
for wheel in here.glob("*.whl"):
    zipfile.ZipFile(wheel).extractall(here / "package")
sys.path.insert(0, str(here / "package"))

from scaling_law import Law, explore  # noqa: E402

laws = {{path.name.removesuffix("{LAW_SUFFIX}"): Law.from_pretrained(path) for path in here.glob("*{LAW_SUFFIX}")}}
explore(laws, host="0.0.0.0", port=7860, browser=False)
'''
CARD = """---
title: {title}
emoji: 📐
colorFrom: blue
colorTo: green
sdk: gradio
sdk_version: {gradio}
python_version: "3.11"
app_file: app.py
pinned: false
license: apache-2.0
short_description: How many experts, how big, how many tokens?
tags:
- scaling-laws
- mixture-of-experts
- mcp-server
---

# {title}

How many experts, how big, how many tokens, for a training budget and a memory limit: the answers and figures of the
package `joint-moe-scaling-laws` (the wheel beside this file), with an API and an MCP server.
"""


def push_space(
    repo: str,
    laws: Mapping[str, Law] | None = None,
    *,
    wheel: Path | None = None,
    private: bool = False,
    store: Store | None = None,
) -> Publication:
    """Write the Space "org/name" with further `laws` by name, in one commit; `store` is another place for it.

    FilesError for a name of another form, and where there is no checkout to build the wheel from and none is given;
    `hub.HubError` for what the Hub refuses.
    """
    owner, slash, name = repo.partition("/")
    if not (owner and slash and name) or "/" in name:
        raise FilesError(f"--push-to-hub {repo!r}: allowed is org/space")
    check_packages()  # the card names the version of gradio that is installed here
    with tempfile.TemporaryDirectory() as folder:
        packed = wheel or build_wheel(Path(folder))
        files = space_files(packed, laws or {})
    place = store or HubStore(owner, private=private)
    return place.update("space", name, (), lambda _: files, "Add the explorer")


def space_files(wheel: Path, laws: Mapping[str, Law]) -> dict[str, bytes]:
    """Make the files of the Space by name; what readers start from, the app, last."""
    files = {f"{Path(name).stem}{LAW_SUFFIX}": law_to_json(law) for name, law in laws.items()}
    files[wheel.name] = wheel.read_bytes()
    files["requirements.txt"] = "".join(f"{line}\n" for line in requirements(wheel)).encode()
    files["README.md"] = CARD.format(title=TITLE, gradio=version("gradio")).encode()
    files["app.py"] = APP.encode()
    return files


def requirements(wheel: Path) -> list[str]:
    """List what the wheel needs with the extra of the explorer."""
    from packaging.requirements import Requirement

    (metadata,) = (folder for folder in zipfile.Path(wheel).iterdir() if folder.name.endswith(".dist-info"))
    lines = []
    for requirement in map(Requirement, PathDistribution(metadata).requires or []):
        if requirement.marker is None or requirement.marker.evaluate({"extra": EXTRA}):
            lines.append(str(requirement).partition(";")[0].strip())
    return lines


def build_wheel(folder: Path) -> Path:
    """Build the wheel of the checkout that this module lies in, in `folder`."""
    for name in (*BUILT_FROM, *PACKAGES):
        if not (ROOT / name).exists():
            raise FilesError(f"{ROOT} is not a checkout (no {name}) to build a wheel from: pass --wheel FILE")
    source = folder / "source"
    built = folder / "built"
    for name in PACKAGES:
        copytree(ROOT / name, source / name, ignore=lambda *_: {"__pycache__"})
    for name in BUILT_FROM:
        (source / name).write_bytes((ROOT / name).read_bytes())
    built.mkdir()
    process = subprocess.run(
        [sys.executable, "-c", BUILD, str(built)], cwd=source, capture_output=True, text=True, check=False
    )
    if process.returncode:
        reason = (process.stderr.strip().splitlines() or ["no output"])[-1]
        raise FilesError(
            f"the wheel could not be built ({reason}): pip install 'setuptools>=77', or pass --wheel FILE"
        )
    return next(built.glob("*.whl"))
