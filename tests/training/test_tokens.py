"""Text and token cache: what is read, how it is cut into sequences, and that nothing half-built is used."""

import json

import numpy as np
import pytest

from tests.conftest import make_documents, write_dataset
from training import tokens
from training.text import TextSource
from training.tokenizer import END_OF_TEXT, fingerprint, load_tokenizer, token_counter, train_tokenizer
from training.tokens import CorruptCacheError, prepare


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder):
    return load_tokenizer(str(tokenizer_folder))


def test_the_cache_is_every_document_followed_by_end_of_text(corpus, tokenizer, tmp_path):
    cache = prepare(TextSource(str(corpus)), tokenizer, tmp_path, progress=False)
    expected = []
    for document in make_documents(300, 0):
        expected += [*tokenizer(document)["input_ids"], tokenizer.convert_tokens_to_ids(END_OF_TEXT)]
    assert cache.read(0, len(cache)).tolist() == expected
    sequences = cache.sequences(np.array([0, 5]), 32)
    assert sequences.shape == (2, 33)
    assert sequences[1].tolist() == expected[160:193]  # the last token is the next sequence's first


def test_shards_are_read_as_one_row(corpus, tokenizer, tmp_path, monkeypatch):
    whole = prepare(TextSource(str(corpus)), tokenizer, tmp_path / "whole", progress=False)
    monkeypatch.setattr(tokens, "SHARD_TOKENS", 700)
    sharded = prepare(TextSource(str(corpus)), tokenizer, tmp_path / "sharded", progress=False)
    assert len(sharded.manifest["shards"]) > 10
    assert np.array_equal(sharded.read(0, len(whole)), whole.read(0, len(whole)))
    assert np.array_equal(sharded.read(650, 200), whole.read(650, 200))


def test_an_interrupted_build_goes_on_and_gives_the_same_tokens(corpus, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(tokens, "SHARD_TOKENS", 700)
    whole = prepare(TextSource(str(corpus)), tokenizer, tmp_path / "whole", progress=False)
    write, written = tokens._write_shard, []

    def write_three_then_fail(*arguments):
        if len(written) == 3:
            raise KeyboardInterrupt
        written.append(write(*arguments))
        return written[-1]

    monkeypatch.setattr(tokens, "_write_shard", write_three_then_fail)
    with pytest.raises(KeyboardInterrupt):
        prepare(TextSource(str(corpus)), tokenizer, tmp_path / "cut", progress=False)
    monkeypatch.setattr(tokens, "_write_shard", write)
    resumed = prepare(TextSource(str(corpus)), tokenizer, tmp_path / "cut", progress=False)
    assert resumed.fingerprint == whole.fingerprint


def test_max_tokens_stops_at_the_document_that_reaches_it(corpus, tokenizer, tmp_path):
    cache = prepare(TextSource(str(corpus)), tokenizer, tmp_path, max_tokens=1000, progress=False)
    assert 1000 <= len(cache) < 1500


def test_another_text_or_tokenizer_makes_another_cache(corpus, tokenizer, tmp_path):
    first = prepare(TextSource(str(corpus)), tokenizer, tmp_path, progress=False)
    changed = tmp_path / "corpus"
    write_dataset(changed, {"train": make_documents(299, 0)})
    assert prepare(TextSource(str(changed)), tokenizer, tmp_path, progress=False).folder != first.folder
    other = train_tokenizer(make_documents(300, 0), 290, tmp_path / "other", progress=False)
    assert prepare(TextSource(str(corpus)), other, tmp_path, progress=False).folder != first.folder
    assert prepare(TextSource(str(corpus)), tokenizer, tmp_path, progress=False).folder == first.folder


def test_held_out_documents_are_fixed_by_their_id_and_never_trained_on(corpus):
    source = {held: TextSource(str(corpus), held_out_buckets=200, held_out=held) for held in (False, True)}
    train, held_out = list(source[False].documents()), list(source[True].documents())
    assert sorted(train + held_out) == sorted(make_documents(300, 0))
    assert 30 < len(held_out) < 90  # 20 % of 300
    assert list(source[True].documents(skip=3)) == held_out[3:]


def test_damage_is_found(corpus, tokenizer, tmp_path):
    cache = prepare(TextSource(str(corpus)), tokenizer, tmp_path, progress=False)
    cache.verify()
    shard = cache.folder / cache.manifest["shards"][0]["file"]
    data = bytearray(shard.read_bytes())
    data[100] ^= 1
    shard.write_bytes(data)
    with pytest.raises(CorruptCacheError, match="sha256 differs"):
        cache.verify()
    shard.write_bytes(data[:-2])
    with pytest.raises(CorruptCacheError, match="does not hold"):
        prepare(TextSource(str(corpus)), tokenizer, tmp_path, progress=False)


def test_bad_sources_are_refused(corpus, tokenizer, tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        prepare(TextSource("./nowhere"), tokenizer, tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="holds no parquet or jsonl"):
        prepare(TextSource(str(tmp_path / "empty")), tokenizer, tmp_path)
    with pytest.raises(ValueError, match="no column 'body'"):
        prepare(TextSource(str(corpus), text_column="body"), tokenizer, tmp_path)
    with pytest.raises(ValueError, match="split 'test'"):
        prepare(TextSource(str(corpus), split="test"), tokenizer, tmp_path)


def test_jsonl_is_read_too(tokenizer, tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in make_documents(5, 0)))
    assert list(TextSource(str(path)).documents()) == make_documents(5, 0)


def test_the_tokenizer_survives_a_round_trip(tokenizer_folder):
    loaded = load_tokenizer(str(tokenizer_folder))
    text = "A router's loss: naïve café, 中文 — £5!\n\tdone"
    assert loaded.decode(loaded(text)["input_ids"]) == text
    assert token_counter(loaded)([text, ""]) == [len(loaded(text)["input_ids"]), 0]
    before = fingerprint(loaded)
    loaded(["a", "b b"], padding=False, truncation=True, max_length=4)  # changes the backend's state
    assert fingerprint(loaded) == before
    with pytest.raises(ValueError, match="at least 257"):
        train_tokenizer(["text"], 100, "unused")
