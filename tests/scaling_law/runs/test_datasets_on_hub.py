"""Runs from datasets of others on a loopback Hub: any table, by config, with a mapping of columns."""

from __future__ import annotations

import io
import json

import pandas
import pytest

from hub import FilesError, NotFoundError
from hub.release.dataset_tables import choose_files
from scaling_law import ChinchillaLaw, load_runs
from scaling_law.runs.rows import RunsError
from tests.hub.conftest import loopback, online, the_hub  # noqa: F401
from tests.hub.loopback import LoopbackHub

LAW = ChinchillaLaw(m=30.0, mu=-0.18, n=54.0, nu=-0.2, c=1.4, experts=1)
OURS = {"n_active": "params * 1e6", "tokens": "seen", "experts": 1, "loss": "final"}


def rows_of(count: int, first: int = 0) -> list[dict]:
    rows = []
    for i in range(first, first + count):
        n, d = 1e7 * (1 + i), 1e9 * (1 + i % 3)
        rows.append({"name": f"r{i}", "params": n / 1e6, "seen": d, "final": float(LAW.loss(n, d, 1))})
    return rows


def csv_of(rows: list[dict]) -> bytes:
    return pandas.DataFrame(rows).to_csv(index=False).encode()


def parquet_of(rows: list[dict]) -> bytes:
    stream = io.BytesIO()
    pandas.DataFrame(rows).to_parquet(stream)
    return stream.getvalue()


def jsonl_of(rows: list[dict]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def test_tables_of_each_format_and_all_shards_and_splits(the_hub: LoopbackHub) -> None:  # noqa: F811
    the_hub.state.put(
        "dataset",
        "org/sweeps",
        "main",
        {
            "data/train-00000-of-00002.parquet": parquet_of(rows_of(4)),
            "data/train-00001-of-00002.parquet": parquet_of(rows_of(3, 4)),
            "data/test.jsonl": jsonl_of(rows_of(2, 7)),
            "small/runs.csv": csv_of(rows_of(2)),
        },
    )
    runs = load_runs("org/sweeps", columns=OURS)
    assert len(runs) == 9
    assert runs.loss == pytest.approx(LAW.loss(runs.n_active, runs.tokens, 1))
    assert runs.dataset == "org/sweeps"
    commit = runs.commit
    assert runs.source == f"org/sweeps@{commit[:12]}"
    small = load_runs("hf://datasets/org/sweeps", columns=OURS, config="small")
    assert (len(small), small.source) == (2, f"org/sweeps@{commit[:12]} (small)")
    assert len(load_runs("org/sweeps", columns=OURS, config="data/test.jsonl")) == 2
    assert len(load_runs("org/sweeps", columns=OURS, revision=commit, where="params <= 30")) == 3
    with pytest.raises(RunsError, match="has no config='large'; there are default, small"):
        load_runs("org/sweeps", columns=OURS, config="large")
    with pytest.raises(NotFoundError, match="org/nothing"):
        load_runs("org/nothing", columns=OURS)
    with pytest.raises(RunsError, match="config='x' only applies to a dataset on the Hub"):
        load_runs(__file__, config="x")


def test_the_configs_of_the_card(the_hub: LoopbackHub) -> None:  # noqa: F811
    card = """---
configs:
- config_name: dense
  data_files:
  - split: train
    path: tables/d-*.csv
- config_name: moe
  data_files: tables/m.csv
---
# Sweeps
"""
    files = {"tables/d-1.csv": csv_of(rows_of(3)), "tables/d-2.csv": csv_of(rows_of(2, 3))}
    files |= {"tables/m.csv": csv_of(rows_of(1)), "README.md": card.encode()}
    the_hub.state.put("dataset", "org/cards", "main", files)
    assert len(load_runs("org/cards", columns=OURS, config="dense")) == 5
    assert len(load_runs("org/cards", columns=OURS, config="moe")) == 1
    with pytest.raises(RunsError, match=r"several configs: name one by config=.*; there are dense, moe"):
        load_runs("org/cards", columns=OURS)


@pytest.mark.parametrize(
    ("names", "config", "expected"),
    [
        (["train.csv", "README.md"], None, ["train.csv"]),
        (["runs-00000-of-00002.parquet", "runs-00001-of-00002.parquet"], None, 2),
        (["runs.csv", "steps.csv"], "steps", ["steps.csv"]),
        (["dataset_infos.json", ".hidden/a.csv", "a/b.json"], "a", ["a/b.json"]),
        (["notes.txt"], None, "no table"),
        (["runs.csv", "steps.csv"], None, "several configs"),
    ],
)
def test_configs_are_guessed_from_names(names: list[str], config: str | None, expected: object) -> None:
    if isinstance(expected, str):
        with pytest.raises(FilesError, match=expected):
            choose_files(names, {}, config, "org/x")
        return
    files = choose_files(names, {}, config, "org/x")
    assert files == (expected if isinstance(expected, list) else names)
