"""vLLM serves releases as docs/serving.md says, and gives what transformers does.

`make test-vllm` makes an environment without this project; its folder is in `VLLM`. Without it the tests are skipped.
"""

import itertools
import json
import os
import shlex
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import modeling_switch_moe  # noqa: F401 (registers the Auto classes)
from tests.conftest import WORDS, free_port, wait_for, write_dataset
from tests.guides import DOCS, ROOT, blocks, command_lines
from training import Run

PAGE = DOCS / "serving.md"
OFFLINE, CLIENT = blocks(PAGE, "python")
(SERVER,) = [line for line in command_lines(PAGE) if "api_server" in line]
FOLDER, PROMPT = "demo-output/hub/models/demo-d64-b2-h2-E8/main", "Returns the number of"  # as in the guide

# A busy machine imports vLLM in minutes.
LIMIT = 1500
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(2 * LIMIT)]

SWITCH = {"d_model": 64, "n_heads": 2, "n_blocks": 2, "experts": 8}
QWEN3 = {
    **{"type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 32},
    **{"num_key_value_heads": 1, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
}


@pytest.fixture(scope="module")
def python():
    """The interpreter of vLLM's environment."""
    folder = (ROOT / os.environ.get("VLLM", ".venv-vllm")).resolve()
    if not (folder / ".ready").exists():
        pytest.skip(f"vLLM is not installed in {folder.name}; `make test-vllm` shows why")
    return folder / "bin" / "python"


@pytest.fixture
def trained(tiny, tmp_path):
    """A function: the folder of a model with these fields, trained on the words forwards and backwards."""
    texts = [" ".join(WORDS[:: 1 if i % 2 else -1] * 12) + "." for i in range(200)]
    write_dataset(tmp_path / "texts", {"train": texts, "validation": texts[:20]})

    def train(fields):
        data = {"data__dataset": str(tmp_path / "texts"), "data__sequence_length": 256}
        arguments = tiny(model=fields, **data, schedule__tokens=[61440], schedule__warmup_tokens=4096)
        assert Run(arguments).execute() == 0
        (folder,) = Path(arguments.run.output_dir).glob("*/model")
        return folder

    return train


def surroundings(cwd):
    """Environment variables of a user who has nothing of this project."""
    cwd.mkdir()
    return {
        **{"PATH": "/usr/bin:/bin", "HOME": str(cwd), "HF_HOME": str(cwd / "home"), "HF_HUB_OFFLINE": "1"},
        **{"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"},
        "VLLM_CACHE_ROOT": str(cwd.parents[1] / "vllm-cache"),  # of all tests: else each imports vLLM once more
    }


def run_in(python, cwd, code):
    """Run Python code in vLLM's environment and an empty folder; returns what it left in result.json."""
    environment = surroundings(cwd) | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}  # one process imports vLLM, not three
    done = subprocess.run(
        [python, "-c", code], env=environment, cwd=cwd, capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return json.loads((cwd / "result.json").read_text())


def greedy(model, ids, count):
    """The most likely token, `count` times."""
    ids = list(ids)
    with torch.no_grad():
        for _ in range(count):
            ids.append(model(torch.tensor([ids])).logits[0, -1].argmax().item())
    return ids[-count:]


def scores_of(model, ids):
    """Log-probabilities [tokens - 1, vocabulary] of all next tokens, and [tokens - 1] of those that follow."""
    with torch.no_grad():
        rows = model(torch.tensor([ids])).logits[0, :-1].float().log_softmax(-1)
    return rows, rows.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


def rms(errors):
    return errors.square().mean().sqrt().item()


AFTERWARDS = """
import itertools
import json
from pathlib import Path
prompts = [{"prompt_token_ids": ids} for ids in PROMPTS]
outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=40, prompt_logprobs=0, ignore_eos=True))
Path("result.json").write_text(json.dumps({
    "architecture": llm.llm_engine.model_config.architecture,
    "dtype": str(llm.llm_engine.model_config.dtype),
    "scores": [
        [step[token].logprob for step, token in zip(output.prompt_logprobs[1:], output.prompt_token_ids[1:])]
        for output in outputs
    ],
    "written": [list(output.outputs[0].token_ids) for output in outputs],
}))
"""


@pytest.mark.parametrize(
    ("fields", "dtype", "served_as"),
    [
        pytest.param(SWITCH, "float32", "TransformersMoEForCausalLM", id="switch-float32"),
        pytest.param(SWITCH, "auto", "TransformersMoEForCausalLM", id="switch-auto"),
        pytest.param(QWEN3, "float32", "Qwen3MoeForCausalLM", id="qwen3"),
    ],
)
def test_log_probabilities_and_greedy_text(python, trained, tmp_path, fields, dtype, served_as):
    """Errors are root mean squares: in bf16 a token whose router is undecided goes to another expert now and then."""
    folder = trained(fields)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    texts = [" ".join(WORDS * 3), " ".join(WORDS[::-1] * 2), " ".join(sorted(WORDS))]
    prompts = [tokenizer(text)["input_ids"] for text in texts]
    call = OFFLINE.replace(FOLDER, str(folder)).replace("LLM(folder", f'LLM(folder, dtype="{dtype}"')
    result = run_in(python, tmp_path / "vllm", f"{call}\nPROMPTS = {prompts}\n{AFTERWARDS}")

    assert result["architecture"] == served_as
    assert result["dtype"] == ("torch.float32" if dtype == "float32" else "torch.bfloat16")
    expected = torch.cat([scores_of(model, ids)[1] for ids in prompts])
    if dtype == "float32":
        allowed = 1e-5
    else:  # what transformers itself loses in bf16
        rounded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        allowed = 4 * rms(torch.cat([scores_of(rounded, ids)[1] for ids in prompts]) - expected)
    assert rms(torch.tensor([*itertools.chain(*result["scores"])]) - expected) < allowed
    for ids, written in zip(prompts, result["written"], strict=True):  # each token the likeliest, but for near ties
        rows, chosen = (values[len(ids) - 1 :] for values in scores_of(model, ids + written))
        assert rms(rows.max(dim=1).values - chosen) < 2 * allowed


CHAT = """
import itertools
import json
from pathlib import Path
from openai import BadRequestError
try:
    client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "Hello"}])
    refused = ""
except BadRequestError as error:
    refused = str(error)
Path("result.json").write_text(json.dumps({"text": answer.choices[0].text, "refused": refused}))
"""


def test_the_server_answers_openai_s_client(python, trained, tmp_path):
    folder, port = trained(SWITCH), free_port()
    words = shlex.split(SERVER.replace(FOLDER, str(folder)).removeprefix("python "))
    log = tmp_path / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [python, *words, "--dtype", "float32", "--port", str(port)],
            **{"env": surroundings(tmp_path / "server"), "cwd": tmp_path / "server"},
            **{"stdout": output, "stderr": subprocess.STDOUT},
        )

    def ready():
        assert server.poll() is None, log.read_text()[-6000:]
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).status == 200
        except (urllib.error.URLError, OSError):
            return False

    try:
        wait_for("vLLM's server", ready, timeout=LIMIT)
        code = CLIENT.replace("localhost:8000", f"127.0.0.1:{port}").replace(PROMPT, " ".join(WORDS[:3]))
        result = run_in(python, tmp_path / "client", code + CHAT)
    finally:
        server.terminate()
        server.wait()
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert result["text"] == tokenizer.decode(greedy(model, tokenizer(" ".join(WORDS[:3]))["input_ids"], 60))
    assert "chat template" in result["refused"]
