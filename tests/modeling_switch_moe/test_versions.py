"""Released code under another transformers, and releases whose code differs, in one process."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import transformers
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from hub.release import cards
from modeling_switch_moe.configuration_switch_moe import write_code_hash
from modeling_switch_moe.modeling_switch_moe import AUTO_MAP
from modeling_switch_moe.versions import TRANSFORMERS, check_transformers

ROOT = Path(__file__).parents[2]
ENTRIES = sorted({name.split(".")[0] for name in AUTO_MAP.values()})
# Several places of one release, each with a number that its code gives; every folder is called "model".
LOAD = """
import json, sys
from transformers import AutoConfig, AutoModelForCausalLM
sys.modules["modeling_switch_moe"] = None
seen = []
for place in sys.argv[1:]:
    repo, _, revision = place.partition("@")
    words = {"revision": revision} if revision else {}
    model = AutoModelForCausalLM.from_pretrained(repo, trust_remote_code=True, **words)
    code = sys.modules[type(model).__module__]
    config = AutoConfig.from_pretrained(repo, trust_remote_code=True, **words)
    seen.append([getattr(code, "EDITION", 0), type(model).__module__, type(config).__module__])
    if place == sys.argv[1]:
        model.save_pretrained("saved/model")
print(json.dumps(seen))
"""


def test_one_version_is_needed_everywhere():
    required = re.findall(r'"transformers>=([\d.]+)', (ROOT / "pyproject.toml").read_text())
    assert {*required, cards.TRANSFORMERS} == {TRANSFORMERS}


@pytest.mark.parametrize("entry", ENTRIES)
def test_files_that_transformers_loads_check_the_version_before_they_import_anything_else(entry):
    body = ast.parse((ROOT / "modeling_switch_moe" / f"{entry}.py").read_text()).body
    first = next(node for node in body if isinstance(node, ast.Import | ast.ImportFrom))
    assert (first.module, first.level) == ("versions", 1)


@pytest.mark.parametrize("installed", ["5.17.0", "5.17.0.dev0", "5.23.1", "6.0.0rc1"])
def test_newer_versions_are_allowed(monkeypatch, installed):
    monkeypatch.setattr(transformers, "__version__", installed)
    check_transformers()


@pytest.mark.parametrize("installed", ["4.40.2", "4.57.6", "5.0.0", "5.16.4"])
@pytest.mark.parametrize("entry", ENTRIES)
def test_released_code_refuses_an_older_version_in_one_line(make_model, tmp_path, monkeypatch, installed, entry):
    folder = tmp_path / f"{entry}-{installed}"  # a name of its own, so that no module of it is loaded yet
    make_model().save_pretrained(folder)
    monkeypatch.setattr(transformers, "__version__", installed)
    name = next(name for name in AUTO_MAP.values() if name.startswith(entry))
    with pytest.raises(ImportError) as caught:
        get_class_from_dynamic_module(name, str(folder))
    assert str(caught.value) == (
        f"this model's code needs transformers {TRANSFORMERS} or newer, found {installed}; "
        f"type: pip install --upgrade 'transformers>={TRANSFORMERS}'"
    )


def test_the_configuration_file_names_its_code(make_model, tmp_path):
    make_model().save_pretrained(tmp_path)
    configuration = tmp_path / "configuration_switch_moe.py"
    text = configuration.read_text()
    assert len(re.findall(r'^CODE_SHA256 = "[0-9a-f]{64}"$', text, flags=re.MULTILINE)) == 1
    write_code_hash(tmp_path)
    assert configuration.read_text() == text
    for file in sorted(tmp_path.glob("*.py")):
        if file == configuration:
            continue
        original = file.read_text()
        file.write_text(f"{original}\n# changed\n")
        write_code_hash(tmp_path)
        assert configuration.read_text() != text, file.name
        file.write_text(original)
    (tmp_path / "of_a_user.py").write_text("a = 1\n")
    write_code_hash(tmp_path)
    assert configuration.read_text() == text


def edit(folder, file, edition):
    """Change the code of a release: one file, and what the model's file says of itself."""
    with (folder / file).open("a") as code:
        code.write(f"\n# edition {edition}\n")
    with (folder / "modeling_switch_moe.py").open("a") as code:
        code.write(f"\nEDITION = {edition}\n")


def test_releases_with_other_code_have_classes_of_their_own_in_one_process(make_model, tmp_path):
    """Folders of one name, revisions of one repository, and what is saved anew."""
    first, second, by_hand = (tmp_path / name / "model" for name in ("first", "second", "by-hand"))
    make_model().save_pretrained(first)
    for folder in (second, by_hand):
        shutil.copytree(first, folder)
    edit(second, "losses.py", 2)
    write_code_hash(second)  # as code that was changed is saved
    edit(by_hand, "routing.py", 3)
    repository = tmp_path / "hub" / "models--org--name"
    for commit, folder in (("1" * 40, first), ("2" * 40, second)):
        shutil.copytree(folder, repository / "snapshots" / commit)
    places = [first, second, by_hand, "saved/model", f"org/name@{'1' * 40}", f"org/name@{'2' * 40}"]
    environment = os.environ | {"HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1"}
    environment |= {"HF_HUB_CACHE": str(tmp_path / "hub"), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", LOAD, *map(str, places)]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert [edition for edition, *_ in seen] == [0, 2, 3, 0, 0, 2]
    models = [model for _, model, _ in seen]
    configs = [config for *_, config in seen]
    assert models[3] == models[0]  # the same code, in a folder of the same name
    assert len({*models}) == 5
    assert len({configs[0], configs[1], configs[4], configs[5]}) == 4
