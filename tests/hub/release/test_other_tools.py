"""lm-eval and PEFT use a release as docs/releasing.md says, from an environment without this project.

`make test-clients` makes that environment; its folder is in `CLIENTS`. The release lies on the loopback Hub, so the
model's code comes from the revision, as it does for everybody.
"""

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import modeling_switch_moe  # noqa: F401 (registers the Auto classes)
from hub import RunRecord, push_run
from tests.hub.conftest import hub_store
from training import Run

pytestmark = pytest.mark.clients

ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs" / "releasing.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", GUIDE, flags=re.DOTALL)
(COMMAND,) = [
    line for language, code in BLOCKS if language == "bash" for line in code.splitlines() if line.startswith("lm_eval")
]
(SCRIPT,) = [code for language, code in BLOCKS if language == "python" and "peft" in code]
REPO, REVISION = "my-org/my-sweep-d512-E8", "tokens002.0B-seed0"  # as in the guide

TEXTS = ["model expert token router.", "scale train dense budget."]  # short: lm-eval cuts at the trained length
CHOICES = ["router loss data", "law scale train", "dense budget memory"]
TASK = {
    "task": "choice",
    "test_split": "test",
    "dataset_path": "json",
    "output_type": "multiple_choice",
    "doc_to_text": "{{text}}",
    "doc_to_choice": CHOICES,
    "doc_to_target": 0,
    "metric_list": [{"metric": "acc"}],
}


@pytest.fixture
def released(loopback, tiny, tmp_path):
    """A trained run on the loopback Hub, its record, and its folder."""
    arguments = tiny(schedule__tokens=[1280])
    assert Run(arguments).execute() == 0
    (folder,) = Path(arguments.run.output_dir).glob("*/model")
    return loopback, push_run(hub_store(loopback), folder, RunRecord.load(folder)), folder


def use(hub, cwd, *words):
    """Run a program of the clients' environment in an empty folder of its own; returns its standard output."""
    programs = (ROOT / os.environ.get("CLIENTS", ".venv-clients") / "bin").resolve()
    environment = {
        **{"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(cwd), "HF_HOME": str(cwd / "home")},
        **{"HF_ENDPOINT": hub.endpoint, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"},
        **{"HF_HUB_DISABLE_UPDATE_CHECK": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
    }
    found = subprocess.run(
        [programs / "python", "-c", "import modeling_switch_moe"], env=environment, cwd=cwd, capture_output=True
    )
    assert b"No module named 'modeling_switch_moe'" in found.stderr
    done = subprocess.run(
        [programs / words[0], *words[1:]], env=environment, cwd=cwd, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def log_likelihood(model, tokenizer, context, text):
    """Nats of a text after a context."""
    ids = tokenizer(context + text)["input_ids"]
    with torch.no_grad():
        scores = model(torch.tensor([ids])).logits.log_softmax(-1)[0]
    return sum(scores[at - 1, ids[at]].item() for at in range(len(tokenizer(context)["input_ids"]), len(ids)))


def test_lm_eval_measures_what_the_model_says(released, tmp_path):
    hub, record, folder = released
    cwd = tmp_path / "lm-eval"
    (cwd / "tasks").mkdir(parents=True)
    (cwd / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    task = TASK | {"dataset_kwargs": {"data_files": {"test": str(cwd / "texts.jsonl")}}}
    (cwd / "tasks" / "choice.yaml").write_text(json.dumps(task))  # JSON is YAML
    line = COMMAND.replace(REPO, record.repo).replace(REVISION, record.branch)
    before, _, after = line.partition("--tasks ")
    rest = after[after.index("--") :]
    local = "--tasks choice --include_path tasks --output_path out --log_samples --device cpu"
    use(hub, cwd, *shlex.split(f"{before}{local} {rest}"))

    (results,) = cwd.glob("out/**/results_*.json")
    scores = json.loads(results.read_text())["results"]
    (samples,) = cwd.glob("out/**/samples_choice_*")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    best = []
    for sample in map(json.loads, samples.read_text().splitlines()):
        expected = [log_likelihood(model, tokenizer, sample["doc"]["text"], f" {choice}") for choice in CHOICES]
        found = [float(response[0][0]) for response in sample["resps"]]
        assert found == pytest.approx(expected, rel=1e-4)
        best.append(expected.index(max(expected)) == 0)
    assert scores["choice"]["acc,none"] == sum(best) / len(best)


AFTERWARDS = """
import json
start = AutoModelForCausalLM.from_pretrained(repo, revision=revision, trust_remote_code=True)
again = AutoModelForCausalLM.from_pretrained("merged", trust_remote_code=True)
with torch.no_grad():
    trained, loaded, before = (m(batch["input_ids"]).logits for m in (model, again, start))
print(json.dumps({
    "module": type(again).__module__,
    "trained": [name for name, parameter in model.named_parameters() if parameter.requires_grad],
    "loss": loss.item(),
    "changed": (trained - before).abs().max().item(),
    "difference": (trained - loaded).abs().max().item(),
    "tensors": sorted(again.state_dict()),
}))
"""


def test_peft_trains_saves_loads_and_merges(released, tmp_path):
    hub, record, folder = released
    cwd = tmp_path / "peft"
    cwd.mkdir()
    script = SCRIPT.replace(REPO, record.repo).replace(REVISION, record.branch) + AFTERWARDS
    seen = json.loads(use(hub, cwd, "python", "-c", script).splitlines()[-1])
    assert seen["module"].startswith("transformers_modules.")
    assert all("lora" in name for name in seen["trained"])
    assert any("self_attn.q_proj" in name for name in seen["trained"])
    assert any("experts" in name for name in seen["trained"])
    assert seen["changed"] > 0.1
    assert seen["difference"] < 1e-4
    base = AutoModelForCausalLM.from_pretrained(folder)
    assert seen["tensors"] == sorted(base.state_dict())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(["Text that the model is to learn."], return_tensors="pt")["input_ids"]
    assert seen["loss"] < base(ids, labels=ids).loss.item() - 0.1
    assert {path.name for path in (cwd / "merged").glob("*.py")} == {path.name for path in folder.glob("*.py")}
