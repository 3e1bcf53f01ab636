"""A Space with the package's wheel, through the store: on a loopback Hub, and in a folder, where its app runs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
import zipfile

import pytest

from hub import FilesError, HubStore, open_store
from scaling_law import Law
from scaling_law.explorer import space
from tests.conftest import free_port
from tests.hub.conftest import hub_store, loopback, online, the_hub  # noqa: F401 (fixtures)
from tests.hub.loopback import TOKEN

METADATA = """Metadata-Version: 2.4
Name: joint-moe-scaling-laws
Version: 0.1.0
Requires-Dist: numpy>=1.26
Requires-Dist: torch>=2.11; extra == "train"
Requires-Dist: gradio[mcp]>=6.5; extra == "explorer"
"""


@pytest.fixture
def wheel(tmp_path):
    path = tmp_path / "joint_moe_scaling_laws-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("joint_moe_scaling_laws-0.1.0.dist-info/METADATA", METADATA)
    return path


def test_a_space_is_pushed_in_one_commit(the_hub, wheel, published, capsys, monkeypatch):  # noqa: F811
    monkeypatch.setattr("sys.argv", ["scaling-law", *f"explore --push-to-hub org/moe --wheel {wheel} --json".split()])
    from scaling_law.commands.cli import main

    with pytest.raises(SystemExit) as stopped:
        main()
    shown = json.loads(capsys.readouterr().out)
    assert (stopped.value.code or 0, shown["space"], shown["written"]) == (0, "org/moe", True)
    repo = the_hub.state.repositories[("space", "org/moe")]
    assert [commit.title for commit in repo.history("main")] == ["Add the explorer", "initial commit"]
    store = HubStore("org", endpoint=the_hub.endpoint, token=TOKEN)
    assert {*store.files("space", "moe")} == {"README.md", "app.py", "requirements.txt", wheel.name}
    assert store.read("space", "moe", "requirements.txt").decode().split() == ["numpy>=1.26", "gradio[mcp]>=6.5"]
    card = store.read("space", "moe", "README.md").decode()
    assert "\nsdk: gradio\n" in card
    assert "\napp_file: app.py\n" in card
    again = space.push_space("org/moe", wheel=wheel, store=store)
    assert (again.written, again.commit) == (False, shown["commit"])
    compile(store.read("space", "moe", "app.py"), "app.py", "exec")


def test_laws_travel_with_the_space(tmp_path, wheel, published):
    store = open_store(tmp_path / "store")
    space.push_space("org/moe", {"folder/ours": published.replace(a=36.0)}, wheel=wheel, store=store)
    assert Law.from_pretrained(tmp_path / "store" / "spaces" / "moe" / "main" / "ours.law.json").a == 36.0


@pytest.mark.parametrize("name", ["moe", "org/", "/moe", "org/moe/x"])
def test_a_name_of_another_form_is_refused(name, wheel):
    with pytest.raises(FilesError, match="allowed is org/space"):
        space.push_space(name, wheel=wheel)


def test_without_a_checkout_a_wheel_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(space, "ROOT", tmp_path)
    with pytest.raises(FilesError, match=r"is not a checkout .* pass --wheel FILE"):
        space.push_space("org/moe")


@pytest.mark.slow
def test_the_app_of_a_space_runs_from_its_own_files(tmp_path):
    """The wheel is built from the checkout; the app sees nothing else of it."""
    pytest.importorskip("gradio")
    store, port = open_store(tmp_path), free_port()
    space.push_space("org/moe", store=store)
    folder = tmp_path / "spaces" / "moe" / "main"
    text = (folder / "app.py").read_text().replace("7860", str(port))
    (folder / "app.py").write_text(text)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    with subprocess.Popen([sys.executable, "app.py"], cwd=folder, env=environment) as served:
        try:
            for _ in range(120):
                time.sleep(1)
                try:
                    page = urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).read().decode()
                    break
                except OSError:
                    assert served.poll() is None
            assert "Joint MoE scaling laws" in page
        finally:
            served.terminate()
    assert (folder / "package" / "scaling_law" / "explorer" / "app.py").is_file()
