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
from tests.training.ranks import save_configuration

ROOT = Path(__file__).parents[3]
NAME = "HuggingFaceFW/fineweb-edu"
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
    ids = [f"<urn:uuid:{number}-{i}>" for i in range(len(documents))]
    buffer = io.BytesIO()
    pq.write_table(pa.table({"text": documents, "id": ids, "score": [3.1] * len(ids)}), buffer)
    return buffer.getvalue()


@pytest.fixture
def loopback(tokenizer_folder):
    with LoopbackHub() as server:
        shards = {f"sample/10BT/{i:03d}_00000.parquet": parquet(make_documents(150, i), i) for i in range(2)}
        wrong = {"data/CC-MAIN-2024-10/000_00000.parquet": parquet(["not this one " * 500], 9)}
        server.state.put("dataset", NAME, "main", {"README.md": CARD, **shards, **wrong})
        files = {path.name: path.read_bytes() for path in tokenizer_folder.iterdir() if path.name != "trained.json"}
        server.state.put("model", "openai-community/gpt2", "main", files)
        yield server


@pytest.fixture
def train(loopback, tiny, tmp_path):
    """A function: train a tiny run with changes in a process that knows this Hub only; records by token count."""
    fixed = {"data.dataset": NAME, "data.dataset_config": "sample-10BT", "data.tokenizer": "openai-community/gpt2"}
    fixed |= {"data.validation_split": None, "data.held_out_per_mille": 100, "data.cache_dir": str(tmp_path / "cache")}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {"HF_ENDPOINT": loopback.endpoint, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}

    def run(offline="0", **changes) -> dict[int, RunRecord]:
        arguments = tiny(**fixed, **changes)
        command = [sys.executable, ROOT / "train.py", "--config", save_configuration(arguments)]
        subprocess.run(command, env={**environment, "HF_HUB_OFFLINE": offline}, check=True, timeout=300)
        folders = Path(arguments.run.output_dir).glob("*/model")
        return {record.tokens: record for record in map(RunRecord.load, folders)}

    return run


def test_a_run_reads_a_dataset_and_a_tokenizer_by_name(train):
    record = train(schedule__tokens=[1280])[1280]
    assert record.dataset.id == NAME
    assert record.tokenizer.id == "openai-community/gpt2"
    assert len(record.dataset.revision) == 40
    assert record.unique_tokens == 1280
    assert record.data_order.startswith("drawn across all files")


@pytest.mark.slow
def test_a_run_is_pinned_to_the_commits_of_its_first_start(loopback, train, tmp_path):
    record = train(schedule__tokens=[1280])[1280]
    for kind, repo in (("dataset", NAME), ("model", "openai-community/gpt2")):
        before = loopback.state.repositories[kind, repo].branches["main"]
        loopback.state.put(kind, repo, "main", {"README.md": CARD + b"# More words\n"})
        assert loopback.state.repositories[kind, repo].branches["main"] != before
    # The same command goes on, with more to do.
    longer = train(schedule__tokens=[1280, 2560])[2560]
    assert (longer.dataset, longer.tokenizer) == (record.dataset, record.tokenizer)
    # Another run finds the cache offline: the commit that it was made at is remembered beside it.
    again = train(offline="1", schedule__tokens=[1280], run__output_dir=str(tmp_path / "again"))[1280]
    assert (again.dataset, again.weights_sha256) == (record.dataset, record.weights_sha256)
