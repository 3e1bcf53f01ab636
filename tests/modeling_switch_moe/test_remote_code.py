"""A saved folder works with `trust_remote_code=True` in a process in which this package cannot be imported."""

import json
import subprocess
import sys

import torch

SIBLINGS = ("experts", "losses", "routing")
SCRIPT = """
import json, sys
sys.path = [p for p in sys.path if p not in ("", ".")]


class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("modeling_switch_moe", "training", "hub", "scaling_law"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Hidden())
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

folder, again = sys.argv[1:]
tokens = torch.arange(24).view(2, 12)
config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()
base = AutoModel.from_pretrained(folder, trust_remote_code=True).eval()
model.save_pretrained(again)
second = AutoModelForCausalLM.from_pretrained(again, trust_remote_code=True).eval()
assert torch.equal(second(tokens).logits, model(tokens).logits)
assert torch.equal(model.lm_head(base(tokens).last_hidden_state), model(tokens).logits)
print(json.dumps({
    "module": type(model).__module__,
    "experts": config.num_experts,
    "logits": model(tokens).logits.sum(-1).flatten().tolist(),
    "generated": model.generate(tokens, max_new_tokens=4, do_sample=False).tolist(),
}))
"""


def test_remote_code_in_a_separate_process(make_model, tmp_path):
    model = make_model().eval()
    folder, again, elsewhere = tmp_path / "saved", tmp_path / "again", tmp_path / "cwd"
    elsewhere.mkdir()
    model.save_pretrained(folder)
    copied = {path.name for path in folder.glob("*.py")}
    assert copied == {f"{name}.py" for name in ("configuration_switch_moe", "modeling_switch_moe", *SIBLINGS)}
    auto_map = json.loads((folder / "config.json").read_text())["auto_map"]
    assert set(auto_map) == {"AutoConfig", "AutoModel", "AutoModelForCausalLM"}
    environment = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin"}
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, folder, again],
        cwd=elsewhere,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    remote = json.loads(result.stdout.splitlines()[-1])
    assert remote["module"].startswith("transformers_modules.")
    assert remote["experts"] == 4
    tokens = torch.arange(24).view(2, 12)
    logits = torch.tensor(remote["logits"])
    torch.testing.assert_close(logits, model(tokens).logits.sum(-1).flatten(), rtol=0, atol=1e-5)
    assert remote["generated"] == model.generate(tokens, max_new_tokens=4, do_sample=False).tolist()
    assert (again / "experts.py").exists()


def test_saving_the_base_model_names_all_classes(make_model, tmp_path):
    make_model().model.save_pretrained(tmp_path)
    auto_map = json.loads((tmp_path / "config.json").read_text())["auto_map"]
    assert auto_map["AutoModelForCausalLM"] == "modeling_switch_moe.SwitchMoeForCausalLM"
    assert auto_map["AutoModel"] == "modeling_switch_moe.SwitchMoeModel"
