"""The Python that cards, `hub push` and the demo print loads a release when it is pasted into a fresh interpreter.

The real clients, transformers and datasets, run it with no input to read, so a prompt ("Do you wish to run the custom
code?") fails it.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hub import RunRecord, load_index, open_store, push_run
from hub.release.cards import loading_code
from hub.release.push import push_listing
from tests.hub.conftest import hub_store, release
from tests.hub.samples import HIDDEN, make_record

ROOT = Path(__file__).parents[3]
# Every snippet starts from an empty namespace, as in an interpreter of its own.
EACH = """
import json, os
seen = []
for place, code in SNIPPETS:
    os.chdir(place)
    names = {}
    exec(code, names)
    ids = names["tokenizer"]("model expert token", return_tensors="pt")["input_ids"]
    seen.append([type(names["model"]).__module__.split(".")[0], names["model"].eval()(ids).logits.sum().item()])
print(json.dumps(seen))
"""
FIND = """
import json
from datasets import load_dataset
from huggingface_hub import HfApi
table = load_dataset("org/demo-runs", split="train").to_pandas()
(found,) = HfApi().list_models(author="org", filter="sweep:demo")
metrics = [[result.metric_type, result.metric_value] for result in HfApi().model_info(found.id).card_data.eval_results]
print(json.dumps([found.id, metrics[0], *(table[name].tolist() for name in ("run_id", "n_active", "eval_loss"))]))
"""


@pytest.fixture
def model_folder(tokenizer_folder, tmp_path):
    """A small model with its tokenizer, as training leaves them."""
    from modeling_switch_moe import SwitchMoeConfig, SwitchMoeForCausalLM

    torch.manual_seed(0)
    config = SwitchMoeConfig(vocab_size=300, hidden_size=64, num_hidden_layers=1, num_attention_heads=1, num_experts=4)
    folder = tmp_path / "model"
    SwitchMoeForCausalLM(config).save_pretrained(folder)
    for path in tokenizer_folder.iterdir():
        shutil.copy(path, folder)
    make_record(vocab_size=300).save(folder)
    return folder


def code_of(text):
    """The Python of a card."""
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)[0]


def python(code, endpoint, home, ours=False):
    """Run code in a fresh interpreter, with or without this project; returns the JSON of the last line it printed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "PYTHON"))}
    environment |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
    environment |= {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_UPDATE_CHECK": "1", "OMP_NUM_THREADS": "1"}
    environment |= {"PYTHONPATH": str(ROOT)} if ours else {}
    words = [sys.executable, "-c", code if ours else HIDDEN + code]
    done = subprocess.run(
        words, stdin=subprocess.DEVNULL, cwd=home, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Do you wish" not in done.stdout
    return json.loads(done.stdout.splitlines()[-1])


def printed(result):
    """The Python that `hub push` prints beside what it says."""
    status, _, shown = result
    assert status == 0
    return shown[shown.index("from transformers") :]


@pytest.mark.slow
@pytest.mark.parametrize("ours", [False, True], ids=["without our packages", "with them"])
def test_what_is_printed_loads_when_pasted(loopback, model_folder, tmp_path, monkeypatch, command, ours):
    from transformers import AutoTokenizer

    from modeling_switch_moe import SwitchMoeForCausalLM

    empty, local = tmp_path / "empty", tmp_path / "a folder's store"
    empty.mkdir()
    monkeypatch.chdir(tmp_path)
    remote, folder = hub_store(loopback), Path("a folder's store/models/demo-d64-E4/tokens001.5M-seed0")
    run = (model_folder, RunRecord.load(model_folder))
    (pushed,) = release(remote, [run])
    release(open_store(local), [run])
    cards = [remote.read("model", "demo-d64-E4", "README.md", at) for at in (pushed.branch, "main")]
    snippets = [
        *((empty, code_of(card.decode())) for card in cards),
        (local, code_of((folder / "README.md").read_text())),
        (local, code_of((local / "models" / "demo-d64-E4" / "main" / "README.md").read_text())),
        (empty, printed(command("push", model_folder, local))),
        (empty, loading_code(str(folder.resolve()))),  # as the demo prints it
        (empty, code_of(cards[1].decode()).replace(", revision=revision", "")),  # main has its longest run's files
    ]
    assert pushed.commit in snippets[1][1]  # on main the commit is known, and with it the code that will run
    modules = ["transformers_modules"] * len(snippets)
    if ours:  # what the card says of those who have the package
        assert "import it, and leave\nthe argument out" in cards[0].decode()
        snippets.append(
            (empty, "import modeling_switch_moe\n" + snippets[0][1].replace(", trust_remote_code=True", ""))
        )
        modules.append("modeling_switch_moe")
    model, tokenizer = SwitchMoeForCausalLM.from_pretrained(model_folder), AutoTokenizer.from_pretrained(model_folder)
    expected = model.eval()(tokenizer("model expert token", return_tensors="pt")["input_ids"]).logits.sum().item()
    pasted = [(str(place), code) for place, code in snippets]
    seen = python(f"SNIPPETS = {pasted}\n{EACH}", loopback.endpoint, empty, ours)
    assert [module for module, _ in seen] == modules
    assert [logits for _, logits in seen] == pytest.approx([expected] * len(snippets), rel=1e-5)


def test_with_the_package_no_code_of_a_release_runs(model_folder):
    code, names = loading_code(str(model_folder)), {}
    assert ", trust_remote_code=True" in code
    exec("import modeling_switch_moe\n" + code.replace(", trust_remote_code=True", ""), names)
    assert type(names["model"]).__module__.split(".")[0] == "modeling_switch_moe"


def test_push_to_the_hub_prints_the_commit(the_hub, command, model_folder):
    code = printed(command("push", model_folder, "hf://org"))
    (record,) = load_index(hub_store(the_hub), "demo")
    assert f'repo, revision = "org/demo-d64-E4", "{record.commit}"' in code


def test_a_sweep_is_found_by_its_tag_and_its_index_read(loopback, checkpoint, tmp_path):
    store = hub_store(loopback)
    pushed = push_run(store, checkpoint(), make_record())
    push_listing(store, "demo", [pushed, make_record(run_id="second", seed=1, eval_loss=None)])
    found, metric, *columns = python(FIND, loopback.endpoint, tmp_path)
    assert (found, metric) == (pushed.repo, ["loss", 4.3125])
    assert columns[:2] == [[pushed.run_id, "second"], [118_784, 118_784]]
    assert columns[2][0] == pushed.eval_loss
