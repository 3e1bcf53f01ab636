"""Write what one small sweep leaves behind, as the installed version writes it, for `test_older_files.py`.

    python -m tests.compatibility.write_archive NAME.tar.xz

Run it where the version to keep is installed; it needs no network and half a minute on a CPU.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import torch
import yaml

from tests.conftest import WORDS

TRAIN = Path(__file__).resolve().parents[2] / "train.py"
CONFIGURATION = {
    "run": {
        "output_dir": "run",
        "sweep": "old",
        "precision": "fp32",
        "micro_batch_sequences": 2,
        "eval_sequences": 8,
        "log_steps": 1,
        "progress": False,
    },
    "model": {"d_model": 16, "experts": 4, "n_blocks": 1, "n_heads": 2, "capacity_group_tokens": 64},
    "data": {
        "dataset": "corpus",
        "validation_split": "validation",
        "tokenizer": "tokenizer",
        "sequence_length": 32,
        "cache_dir": "cache",
    },
    "schedule": {"tokens": [1280], "warmup_tokens": 256, "batch_ramp": ["0:2", "512:4"]},
    "optimizer": {"learning_rate": 0.01},
}
SWEEP = {
    "sweep": "old-grid",
    "output_dir": "sweep",
    "base": {
        "run": {"precision": "fp32", "micro_batch_sequences": 2},
        "data": CONFIGURATION["data"],
        "schedule": {**CONFIGURATION["schedule"], "tokens": [1280, 2560]},
        "optimizer": CONFIGURATION["optimizer"],
    },
    "grid": {"model.d_model": [64, 128], "model.experts": [1, 8], "run.seed": [0, 1]},
}


def call(*arguments: str) -> None:
    """Run Python offline with these arguments."""
    subprocess.run([sys.executable, *arguments], check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})


def write_corpus() -> None:
    """Write documents with a little structure, as a dataset of two splits and the tokenizer of its text."""
    from training.data.text import TextSource
    from training.data.tokenizer import train_tokenizer

    for split, count in (("train", 120), ("validation", 16)):
        lines = []
        for i in range(count):
            words = [WORDS[(7 * i + 5 * j * j + j % 3) % len(WORDS)] for j in range(40 + i % 50)]
            lines.append(json.dumps({"id": f"<urn:uuid:{split}-{i}>", "text": " ".join(words) + "."}))
        Path("corpus").mkdir(exist_ok=True)
        Path("corpus", f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    train_tokenizer(TextSource("corpus").documents(), 280, Path("tokenizer"), progress=False)


def train(tokens: list[int]) -> dict[int, dict[str, object]]:
    """Train, or train on, to each number of tokens; returns the records of the runs by their tokens."""
    CONFIGURATION["schedule"]["tokens"] = tokens
    Path("run.yaml").write_text(yaml.safe_dump(CONFIGURATION, sort_keys=False))
    call(str(TRAIN), "--config", "run.yaml")
    records = [json.loads(file.read_text()) for file in Path("run").glob("tokens*/model/run.json")]
    return {record["tokens"]: record for record in records}


def compute_logits() -> list[object]:
    """Compute a few logits of the released model."""
    from transformers import AutoModelForCausalLM

    import modeling_switch_moe  # noqa: F401 (registers the Auto classes)

    model = AutoModelForCausalLM.from_pretrained("model").eval()
    with torch.no_grad():
        logits = model(torch.arange(24).reshape(2, 12) * 11 % 280).logits[:, -1, :4]
    return logits.tolist()


def describe_sweep() -> dict[str, object]:
    """Write the sweep's file and its planned configurations; returns what each run trains."""
    from training import Sweep

    Path("sweep.yaml").write_text(yaml.safe_dump(SWEEP, sort_keys=False))
    call("-m", "training.sweep", "plan", "sweep.yaml")
    runs = {}
    for run in Sweep.load(Path("sweep.yaml")).runs:
        runs[run.name] = [run.architecture.n_active, list(run.arguments.schedule.tokens)]
    return runs


def main() -> None:
    archive = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_corpus()
        records = train([1280])
        (model,) = Path("run").glob("tokens*/model")
        shutil.copytree(model, "model")
        call("-m", "hub", "push", "run", "store")
        expected = {"logits": compute_logits(), "sweep": describe_sweep(), "runs": records}
        shutil.copytree("run", "unfinished")
        expected["runs"] = train([1280, 2560])
        shutil.rmtree("run")
        shutil.move("unfinished", "run")
        # It has absolute paths, and is made again.
        Path("cache/checksums.json").unlink(missing_ok=True)
        Path("expected.json").write_text(json.dumps(expected, indent=1) + "\n")
        with tarfile.open(archive, "w:xz") as written:
            written.add(".", arcname=".")
        os.chdir(archive.parent)


if __name__ == "__main__":
    main()
