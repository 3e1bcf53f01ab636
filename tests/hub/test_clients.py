"""What was pushed is loaded by the real clients, transformers and datasets, in a process without this project."""

import json
import os
import subprocess
import sys

import torch

from hub import load_index, push_index, push_repo_cards, push_run
from hub.record.table import to_jsonl
from tests.hub.conftest import hub_store
from tests.hub.samples import HIDDEN, make_record

SCRIPT = """
import json, sys
import torch
from datasets import load_dataset
from huggingface_hub import HfApi, ModelCard
from transformers import AutoModelForCausalLM

repo, revision, commit, index = sys.argv[1:]
tokens = torch.arange(12).view(1, 12)
logits = []
for at in (revision, commit):
    model = AutoModelForCausalLM.from_pretrained(repo, revision=at, trust_remote_code=True, use_safetensors=True)
    logits.append(model.eval()(tokens).logits.sum(-1).flatten().tolist())
assert logits[0] == logits[1]
table = load_dataset(index, split="train").to_pandas()
card = HfApi().model_info(repo, revision=revision).card_data
found = [model.id for model in HfApi().list_models(author="org", filter="sweep:demo")]
main = AutoModelForCausalLM.from_pretrained("org/demo-d128-E4", trust_remote_code=True, use_safetensors=True)
print(json.dumps({
    "module": type(model).__module__,
    "logits": logits[0],
    "rows": [table["run_id"].tolist(), table["n_active"].tolist(), table["eval_loss"].tolist()],
    "library": card.library_name,
    "found": found,
    "main": main.eval()(tokens).logits.sum(-1).flatten().tolist(),
    "results": [(result.metric_type, result.metric_value) for result in card.eval_results],
}))
"""


def test_transformers_and_datasets_load_a_release(loopback, tmp_path):
    from modeling_switch_moe import SwitchMoeConfig, SwitchMoeForCausalLM

    torch.manual_seed(0)
    config = SwitchMoeConfig(vocab_size=61, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, num_experts=4)
    model = SwitchMoeForCausalLM(config).eval()
    model.save_pretrained(tmp_path / "saved")
    # Weights on main must not be the ones that are loaded from the branch.
    loopback.state.put("model", "org/demo-d64-E4", "main", {"model.safetensors": b"not these"})
    store = hub_store(loopback)
    pushed = push_run(store, tmp_path / "saved", make_record())
    other = push_run(store, tmp_path / "saved", make_record(run_id="wide", d_model=128, sweep="demo", seed=7))
    push_index(store, "demo", [pushed, make_record(run_id="second", seed=1, eval_loss=None)])
    # The index lists each checkpoint once; for the card on main, the other one stands in an index of its own.
    loopback.state.put("dataset", "org/wide-runs", "main", {"runs.jsonl": other.to_json().encode() + b"\n"})
    push_repo_cards(store, "wide", [other.repo])
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
        **{"HF_ENDPOINT": loopback.endpoint, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"},
        **{"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_UPDATE_CHECK": "1", "OMP_NUM_THREADS": "1"},
    }
    arguments = [pushed.repo, pushed.branch, pushed.commit, "org/demo-runs"]
    done = subprocess.run(
        [sys.executable, "-c", HIDDEN + SCRIPT, *arguments],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["module"].startswith("transformers_modules.")
    tokens = torch.arange(12).view(1, 12)
    torch.testing.assert_close(
        torch.tensor(seen["logits"]), model(tokens).logits.sum(-1).flatten().detach(), rtol=0, atol=1e-5
    )
    first, second = load_index(store, "demo")
    assert seen["rows"][:2] == [[first.run_id, second.run_id], [118_784, 118_784]]
    assert seen["rows"][2][0] == first.eval_loss
    assert seen["library"] == "transformers"
    assert seen["found"] == ["org/demo-d128-E4"]  # by the tag of the card on main
    assert seen["main"] == seen["logits"]  # without a revision: main has the files of its longest run
    assert seen["results"][0] == ["loss", 4.3125]
    assert to_jsonl([first, second]) == store.read("dataset", "demo-runs", "runs.jsonl")
