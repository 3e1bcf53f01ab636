"""`python -m training.prepare`: build, look, verify, and what it says when that cannot be done."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.training.token_caches import flip_a_bit
from training.data.cache import TokenCache
from training.data.tokenizer import load_tokenizer
from training.prepare import app
from training.run.inputs import training_data

ROOT = Path(__file__).parents[3]


@pytest.fixture
def config(tiny, tmp_path):
    path = tmp_path / "run.yaml"
    tiny(data__cache_dir=str(tmp_path / "cache")).save(path)
    return path


def prepare(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def caches(tmp_path):
    return {path.parent: TokenCache(path.parent) for path in (tmp_path / "cache").glob("*/recipe.json")}


def test_it_builds_what_a_run_then_finds(config, tiny, tmp_path, tokenizer_folder, monkeypatch):
    assert "less than the run reads" in prepare("--config", config, "--status").output
    assert not any(len(cache) for cache in caches(tmp_path).values())
    done = prepare("--config", config, "--verify")
    assert done.exit_code == 0, done.output
    assert "2 shards are as they were written" in done.output
    assert "all of it" in done.output
    before = {path: path.read_bytes() for path in (tmp_path / "cache").rglob("*") if path.is_file()}
    assert prepare("--config", config).exit_code == 0
    assert {path: path.read_bytes() for path in before} == before
    monkeypatch.setattr("training.data.builder.GrowingCache._start_builder", None)  # nothing is left to build
    tokenizer = load_tokenizer(str(tokenizer_folder))
    training_data(tiny(data__cache_dir=str(tmp_path / "cache")), tokenizer).tokens.close()


def test_damage_and_bad_flags_have_their_exit_status(config, tmp_path):
    assert prepare("--config", config).exit_code == 0
    shard = next((tmp_path / "cache").glob("corpus-train-*/tokens-00000.bin"))
    flip_a_bit(shard)
    damaged = prepare("--config", config, "--verify")
    assert damaged.exit_code == 3
    assert "tokens-00000.bin has another sha256 than when it was written; delete the folder" in damaged.output
    for words, message in (
        (["--data.colour", "red"], "data.colour: no such key"),
        (["--data.text_column", "body"], "data.text_column: no column 'body'"),
        (["--data.tokenizer", "./nowhere"], "nowhere"),
    ):
        failed = prepare("--config", config, *words)
        assert failed.exit_code == 2
        assert failed.stdout == ""
        assert failed.stderr.count("error: ") == 1
        assert message in failed.stderr


def test_two_at_once_end_with_one_whole_cache(config, tmp_path):
    command = [sys.executable, "-m", "training.prepare", "--config", str(config), "--verify"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(2)]
    outputs = [one.communicate(timeout=120)[0] for one in both]
    assert [one.returncode for one in both] == [0, 0]
    assert outputs[0] == outputs[1]
    assert all(cache.complete and len(cache.shards) == 1 for cache in caches(tmp_path).values())
