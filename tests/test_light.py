"""What `pip install .` alone can do, without torch, transformers, datasets, pyarrow and pandas (`make test-light`).

The same tests pass where everything is installed, but for the first, which is about what is not there.
"""

import json
import re
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from hub import load_index, open_store, pull_runs, push_index, push_run
from scaling_law import JointLaw, describe, fit, load_runs, memory_optimal
from tests.hub.samples import make_record, write_safetensors
from tests.scaling_law.configs import MIXTRAL
from tests.scaling_law.synthetic import synthetic_runs

pytestmark = pytest.mark.light
COMMAND = ("-m", "scaling_law")
HEAVY = ("accelerate", "datasets", "evaluate", "pandas", "psutil", "pyarrow", "tokenizers", "torch", "transformers")
needs_light = pytest.mark.skipif(find_spec("torch") is not None, reason="all extras are installed here")


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Any connection fails."""

    def refuse(*address):
        raise AssertionError(f"a connection to {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def python(*words: str, status: int = 0, cwd: Path | None = None) -> subprocess.CompletedProcess:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, cwd=cwd)
    assert done.returncode == status, done.stderr
    return done


@needs_light
def test_the_heavy_packages_are_not_installed():
    assert [name for name in HEAVY if find_spec(name)] == []


def test_the_published_law_answers_and_is_drawn(tmp_path):
    table = JointLaw.published().optimal(1e22, memory=80e9, kv_tokens=16_384, integral=True)
    assert table.best.experts == 16
    assert table.best.loss_interval is not None  # the draws lie in the package
    memory_optimal(JointLaw.published()).figure.savefig(tmp_path / "memory.png")
    assert (tmp_path / "memory.png").stat().st_size > 10_000


def test_a_model_is_described_from_its_configuration(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(MIXTRAL))
    found = describe(tmp_path, tokens="1T")
    assert found.architecture.experts_equivalent == 4
    assert found.prediction.loss < 2.2


def test_a_law_is_fitted_and_saved_and_csv_is_read(tmp_path):
    bootstrap = fit(synthetic_runs(), starts=[JointLaw.published()]).bootstrap(n_resamples=5)
    bootstrap.law.save_pretrained(tmp_path / "law")
    assert JointLaw.from_pretrained(tmp_path / "law") == bootstrap.law
    (tmp_path / "runs.csv").write_text("run_id,n_active,tokens,experts,loss\na,1e8,2e9,1,3.5\nb,1e8,2e9,8,3.4\n")
    runs = load_runs(tmp_path / "runs.csv")
    assert (list(runs.experts), list(runs.loss), runs.run_id) == ([1, 8], [3.5, 3.4], ("a", "b"))


def test_commands_answer_in_json():
    best = json.loads(python(*COMMAND, "optimal", "--flops", "1e22", "--memory", "80GB", "--json").stdout)["best"]
    assert best["experts"] > 1
    (row,) = json.loads(python(*COMMAND, "loss", "--n-active", "1B", "--tokens", "20B", "--json").stdout)["rows"]
    assert 2 < row["loss"] < 3
    assert "d_model" in python(*COMMAND, "optimal", "--help").stdout
    assert python(*COMMAND, "--version").stdout == python("-m", "hub", "--version").stdout


def test_runs_are_pushed_and_pulled_through_a_folder(tmp_path):
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    write_safetensors(checkpoint / "model.safetensors", [1.0] * 16)
    (checkpoint / "config.json").write_text('{"model_type": "switch_moe", "hidden_size": 64}')
    record, store = make_record(), open_store(tmp_path / "releases")
    push_index(store, record.sweep, [push_run(store, checkpoint, record)])
    (loaded,) = load_index(store, record.sweep)
    assert loaded.run_id == record.run_id
    ((_, folder),) = pull_runs(store, [loaded])
    assert (folder / "model.safetensors").read_bytes() == (checkpoint / "model.safetensors").read_bytes()
    assert len(load_runs(tmp_path / "releases" / "datasets" / f"{record.sweep}-runs")) == 1


@pytest.mark.parametrize("name", ["hub.py", "hub/__init__.py"])
def test_a_file_that_hides_the_package_hub_is_named(name, tmp_path):
    """In the folder of the user's script, which Python searches first."""
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("import scaling_law\n")
    for package in ("scaling_law", "training"):
        done = python("-c", f"import {package}", status=1, cwd=tmp_path)
        assert done.stderr.splitlines()[-1].startswith(f"ImportError: {tmp_path / name} hides the package `hub`")


@needs_light
def test_what_needs_more_says_so_in_one_line(tmp_path):
    (tmp_path / "runs.parquet").write_bytes(b"PAR1")
    done = python(*COMMAND, "fit", str(tmp_path / "runs.parquet"), status=2)
    assert re.fullmatch(r'error: .*pip install "joint-moe-scaling-laws\[parquet\]"\n', done.stderr)
    message = 'training needs accelerate, .*, transformers: pip install "joint-moe-scaling-laws\\[train\\]"'
    with pytest.raises(ModuleNotFoundError, match=message):
        import training  # noqa: F401
    done = python("-m", "training.sweep", "plan", "sweep.yaml", status=2)
    assert re.fullmatch(f"error: {message}\n", done.stderr)


@needs_light
def test_an_index_without_pyarrow_has_no_old_parquet_file(tmp_path):
    store, old = open_store(tmp_path), make_record(weights_sha256=None)
    index = tmp_path / "datasets" / "demo-runs" / "main"
    index.mkdir(parents=True)
    (index / "runs.parquet").write_bytes(b"of an earlier push")
    push_index(store, "demo", [old])
    assert sorted(path.name for path in index.iterdir() if path.is_file()) == [".sha256", "README.md", "runs.jsonl"]
    assert "path: runs.jsonl" in (index / "README.md").read_text()
