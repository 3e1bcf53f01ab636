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
from training.tokens.text import TextSource

ROOT = Path(__file__).parent.parent.parent
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
COLUMNS = {  # names and types of FineWeb-Edu
    "text": pa.string(), "id": pa.string(), "dump": pa.string(), "url": pa.string(), "file_path": pa.string(),
    "language": pa.string(), "language_score": pa.float64(), "token_count": pa.int64(), "score": pa.float64(),
    "int_score": pa.int64(),
}  # fmt: skip


def parquet(documents: list[str], number: int) -> bytes:
    rows = [
        {"text": text, "id": f"<urn:uuid:{number}-{i}>", "dump": "CC-MAIN-2024-10", "url": "https://example.com",
         "file_path": "s3://example", "language": "en", "language_score": 0.9, "token_count": 1, "score": 3.1,
         "int_score": 3}
        for i, text in enumerate(documents)
    ]  # fmt: skip
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(COLUMNS)), buffer)
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


def train(server: LoopbackHub, folder: Path, *flags: str | Path, **environment: str) -> subprocess.CompletedProcess:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
        **{"HF_ENDPOINT": server.endpoint, "HF_HOME": str(folder / "home"), "HF_HUB_DISABLE_XET": "1"},
        **{"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_UPDATE_CHECK": "1", "OMP_NUM_THREADS": "1"},
        **environment,
    }
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
    command = [sys.executable, ROOT / "train.py", *flags]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_fineweb_edu_is_streamed_by_name_and_its_commit_is_recorded(loopback, tmp_path):
    done = train(loopback, tmp_path)
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "run").glob("*/model/run.json")
    record = RunRecord.load(path)
    assert record.dataset.id == "HuggingFaceFW/fineweb-edu"
    assert record.tokenizer.id == "openai-community/gpt2"
    assert len(record.dataset.revision) == 40
    assert record.unique_tokens == 1280
    # A second run starts warm: with the commit named, nothing is asked of the Hub.
    flags = ["--data.revision", record.dataset.revision, "--run.output_dir", tmp_path / "again"]
    done = train(loopback, tmp_path, *flags, HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "again").glob("*/model/run.json")
    assert RunRecord.load(path).weights_sha256 == record.weights_sha256


def test_without_a_network_the_revision_has_to_be_named():
    with pytest.raises(ValueError, match=r"data.revision: .* 'HuggingFaceFW/fineweb-edu'"):
        TextSource("HuggingFaceFW/fineweb-edu").identify()
