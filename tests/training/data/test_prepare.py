"""`python -m training.prepare`: build, look, verify, and what it says when that cannot be done."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.training.token_caches import flip_a_bit
from training import load_tokenizer
from training.prepare import app
from training.run.inputs import training_data
from training.run.main import main as train

ROOT = Path(__file__).parents[3]


@pytest.fixture
def config(tiny, tmp_path, builds_here):
    path = tmp_path / "run.yaml"
    tiny(data__cache_dir=str(tmp_path / "cache")).save(path)
    return path


def prepare(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_it_builds_what_a_run_then_finds(config, tiny, tmp_path, tokenizer_folder, monkeypatch):
    assert "less than the run reads" in prepare("--config", config, "--status").output
    assert not list((tmp_path / "cache").glob("*/*.bin"))
    done = prepare("--config", config, "--verify")
    assert done.exit_code == 0, done.output
    assert "2 shards are intact" in done.output
    assert "all of it" in done.output
    before = {path: path.read_bytes() for path in (tmp_path / "cache").rglob("*") if path.is_file()}
    assert prepare("--config", config).exit_code == 0
    assert {path: path.read_bytes() for path in before} == before
    monkeypatch.setattr("training.data.builder.GrowingCache._start_builder", None)  # nothing is left to build
    tokenizer = load_tokenizer(str(tokenizer_folder))
    training_data(tiny(data__cache_dir=str(tmp_path / "cache")), tokenizer).tokens.close()


@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_flipped_bit_is_found_here_and_before_a_run_begins(config, tmp_path, capsys, split):
    assert prepare("--config", config).exit_code == 0
    (shard,) = (tmp_path / "cache").glob(f"corpus-{split}-*/tokens-0000000-00.bin")
    flip_a_bit(shard)
    message = (
        f"error: {shard} has a wrong sha256; delete the folder {shard.parent}, and the next start tokenises it again\n"
    )
    damaged = prepare("--config", config, "--verify")
    assert (damaged.exit_code, damaged.stderr) == (3, message)
    assert train(["--config", str(config)]) == 3
    assert capsys.readouterr().err.endswith(message)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--data.colour=red", "data.colour: no such key"),
        ("--data.text_column=body", "data.text_column: no column 'body'"),
        ("--data.tokenizer=./nowhere", "nowhere"),
    ],
)
def test_bad_flags_end_with_one_line(config, flag, message):
    failed = prepare("--config", config, flag)
    assert (failed.exit_code, failed.stdout, failed.stderr.count("error: ")) == (2, "", 1)
    assert message in failed.stderr
