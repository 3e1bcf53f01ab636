"""FineWeb-Edu by name: `train.py` against a Hub on loopback that holds a data set of its layout and a tokenizer."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hub import RunRecord
from tests.conftest import make_documents
from tests.hub.loopback import LoopbackHub

ROOT = Path(__file__).parents[3]
CARD = b"""---
configs:
- config_name: default
  data_files:
  - split: train
    path: data/*/*
- config_name: sample-10BT
  data_files:
  - split: train
    path: sample/10BT/*
---
"""


def parquet(documents: list[str], number: int) -> bytes:
    """With some of FineWeb-Edu's columns."""
    rows = [
        {"text": text, "id": f"<urn:uuid:{number}-{i}>", "dump": "CC-MAIN-2024-10", "token_count": 1, "score": 3.1}
        for i, text in enumerate(documents)
    ]
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), buffer)
    return buffer.getvalue()


@pytest.fixture
def loopback(tokenizer_folder):
    with LoopbackHub() as server:
        shards = {f"sample/10BT/{i:03d}_00000.parquet": parquet(make_documents(150, i), i) for i in range(2)}
        wrong = {"data/CC-MAIN-2024-10/000_00000.parquet": parquet(["not this one " * 500], 9)}
        server.state.put("dataset", "HuggingFaceFW/fineweb-edu", "main", {"README.md": CARD, **shards, **wrong})
        files = {path.name: path.read_bytes() for path in tokenizer_folder.iterdir() if path.name != "trained.json"}
        server.state.put("model", "openai-community/gpt2", "main", files)
        yield server


def train(server: LoopbackHub, folder: Path, *flags: str | Path, **changes: str) -> None:
    flags = [
        *["--run.output_dir", folder / "run", "--run.precision", "fp32", "--run.progress", "false"],
        *["--run.micro_batch_sequences", "2", "--run.eval_sequences", "8"],
        *["--model.d_model", "64", "--model.experts", "2"],
        *["--schedule.tokens", "1280", "--schedule.warmup_tokens", "64", "--schedule.batch_ramp", "0:2"],
        *["--optimizer.learning_rate", "0.01"],
        *["--data.dataset_config", "sample-10BT", "--data.sequence_length", "32", "--data.train_tokens", "5000"],
        *["--data.held_out_per_mille", "100", "--data.cache_dir", folder / "cache"],
        *flags,
    ]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
        **{"HF_ENDPOINT": server.endpoint, "HF_HOME": str(folder / "home"), "HF_HUB_DISABLE_XET": "1"},
        **{"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_UPDATE_CHECK": "1", "OMP_NUM_THREADS": "1"},
        **changes,
    }
    command = [sys.executable, ROOT / "train.py", *flags]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def record_of(folder: Path, tokens: int) -> RunRecord:
    (record,) = [r for r in map(RunRecord.load, folder.glob("*/model")) if r.tokens == tokens]
    return record


def test_a_run_is_pinned_to_the_commits_of_its_first_start(loopback, tmp_path):
    train(loopback, tmp_path)
    record = record_of(tmp_path / "run", 1280)
    assert record.dataset.id == "HuggingFaceFW/fineweb-edu"
    assert record.tokenizer.id == "openai-community/gpt2"
    assert len(record.dataset.revision) == 40
    assert record.unique_tokens == 1280
    assert record.data_order.startswith("drawn across all files")
    for kind, repo in (("dataset", "HuggingFaceFW/fineweb-edu"), ("model", "openai-community/gpt2")):
        before = loopback.state.repositories[kind, repo].branches["main"]
        loopback.state.put(kind, repo, "main", {"README.md": CARD + b"# More words\n"})
        assert loopback.state.repositories[kind, repo].branches["main"] != before
    # The same command goes on, with more to do.
    train(loopback, tmp_path, "--schedule.tokens", "1280", "2560")
    longer = record_of(tmp_path / "run", 2560)
    assert longer.dataset == record.dataset
    assert longer.tokenizer == record.tokenizer
    # Another run finds the cache offline: the commit that it was made at is remembered beside it.
    train(loopback, tmp_path, "--run.output_dir", tmp_path / "again", HF_HUB_OFFLINE="1")
    again = record_of(tmp_path / "again", 1280)
    assert (again.dataset, again.weights_sha256) == (record.dataset, record.weights_sha256)
