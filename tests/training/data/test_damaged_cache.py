"""Damage in a token cache is found before a token of it is trained on: exit status 3, the file, and what to do."""

import json
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.training.token_caches import prepare
from training.data import builder as token_builder
from training.data.builder import GrowingCache
from training.data.cache import CorruptCacheError, TokenCache, open_cache
from training.data.text import TextSource
from training.run.inputs import held_out, held_out_tokens, text_sources, training_data
from training.run.main import main


def flip_a_bit(path: Path, position: int = 100) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 4
    path.write_bytes(data)


@pytest.fixture
def prepared(tiny, tokenizer, tmp_path):
    """Arguments of a run whose caches are there, and the folders of the two."""
    arguments = tiny(data__cache_dir=str(tmp_path / "cache"))
    training = prepare(text_sources(arguments)[0], tokenizer, tmp_path / "cache")
    held_out = prepare(text_sources(arguments)[1], tokenizer, tmp_path / "cache", held_out_tokens(arguments))
    return arguments, training.folder, held_out.folder


@pytest.mark.parametrize("which", [1, 2], ids=["training", "held out"])
def test_a_flipped_bit_ends_the_run_before_it_begins(prepared, capsys, which):
    arguments, folder = prepared[0], prepared[which]
    path = Path(arguments.run.output_dir).with_suffix(".yaml")
    arguments.save(path)
    flip_a_bit(folder / "tokens-00000.bin")
    assert main(["--config", str(path)]) == 3
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert line.startswith(f"error: {folder / 'tokens-00000.bin'} has another sha256 than when it was written; ")
    assert line.endswith(f"; delete the folder {folder}, and the next start tokenises it again")
    assert not Path(arguments.run.output_dir).exists()


def test_a_shard_that_comes_later_is_compared_before_it_is_read(corpus, tokenizer, tmp_path, small_shards):
    whole = prepare(TextSource(str(corpus)), tokenizer, tmp_path)
    flip_a_bit(whole.folder / whole.shards[4]["file"])
    cache = TokenCache(whole.folder)
    cache.read(0, 2000)
    with pytest.raises(CorruptCacheError, match=r"tokens-00004.bin has another sha256"):
        cache.read(0, len(cache))
    with pytest.raises(CorruptCacheError, match=r"tokens-00004.bin has another sha256"):
        cache.sequences(np.arange(cache.n_sequences(32)), 32)


def test_what_is_found_after_the_start_ends_the_training(tiny, tokenizer, tmp_path, monkeypatch, small_shards):
    started, check = threading.Event(), TokenCache.check_shard
    monkeypatch.setattr(token_builder, "_CHECK_SECONDS", 0)
    monkeypatch.setattr(TokenCache, "check_shard", lambda cache, number: started.wait(10) and check(cache, number))
    arguments = tiny(data__cache_dir=str(tmp_path / "cache"))
    cache = prepare(text_sources(arguments)[0], tokenizer, tmp_path / "cache")
    flip_a_bit(cache.folder / cache.shards[-1]["file"])
    one = GrowingCache(cache, text_sources(arguments)[0], None)
    one.start()
    started.set()
    one._thread.join(10)
    with pytest.raises(CorruptCacheError, match="another sha256"):
        one.check()
    others = GrowingCache(TokenCache(cache.folder), text_sources(arguments)[0], None, patience=5.0)
    others.start()
    assert not hasattr(others, "_thread")  # one process of a node compares
    one.close()
    flip_a_bit(cache.folder / cache.shards[-1]["file"])
    data = training_data(arguments, tokenizer)
    data.tokens._damage = CorruptCacheError(cache.folder / "tokens-00000.bin", "has another sha256")
    with pytest.raises(CorruptCacheError):
        list(data.micro_batches(0, 2, 0, 1, None))
    data.close()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("recipe.json", b"{", "is not what was written"),
        ("recipe.json", b'{"dtype": "<u2"}', "is not the recipe that its folder is named after"),
        ("shards.jsonl", b"[1]\n", "has the line b'[1]', which was not written so"),
        ("shards.jsonl", b'{"file": "tokens-00000.bin"}\n', 'has the line b\'{"file": '),
    ],
)
def test_other_files_of_a_cache_are_checked_too(corpus, tokenizer, tmp_path, name, content, message):
    source = TextSource(str(corpus))
    folder = prepare(source, tokenizer, tmp_path).folder
    (folder / name).write_bytes(content)
    with pytest.raises(CorruptCacheError) as caught:
        open_cache(source, tokenizer, tmp_path)
    assert str(caught.value).startswith(f"{folder / name} {message}")
    assert "\n" not in str(caught.value)


def test_a_damaged_tokenizer_does_not_make_other_tokens(corpus, tokenizer, tmp_path, small_shards):
    folder = prepare(TextSource(str(corpus)), tokenizer, tmp_path, until=700).folder
    description = json.loads((folder / "tokenizer.json").read_text())
    description["model"]["merges"] = description["model"]["merges"][:-1]
    (folder / "tokenizer.json").write_text(json.dumps(description))
    with pytest.raises(CorruptCacheError, match=r"tokenizer.json is not the tokenizer that the tokens were made with"):
        prepare(TextSource(str(corpus)), tokenizer, tmp_path)


def test_intact_caches_of_either_part_are_read(prepared, tokenizer):
    for one in (training_data(prepared[0], tokenizer), held_out(prepared[0], tokenizer)):
        one.close()
