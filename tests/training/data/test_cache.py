"""The token cache: what it holds, that nothing half-built is used, and that damage is found before it is trained on.

Damage ends a run with exit status 3 and one line that says which file, and what to do.
"""

import threading
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import make_documents, write_dataset
from tests.training.token_caches import contents, flip_a_bit, prepare
from training import TextSource, train_tokenizer
from training.data import builder, filling
from training.data import cache as tokens
from training.data import text as text_module
from training.data.cache import CorruptCacheError, TokenCache
from training.data.filling import encoder
from training.data.tokenizer import END_OF_TEXT, description
from training.run.inputs import text_sources, tokens_needed, training_data


def test_the_cache_is_every_document_followed_by_end_of_text(corpus, tokenizer, tmp_path, monkeypatch):
    cache = prepare(TextSource(str(corpus)), tokenizer, tmp_path)
    expected = []
    for document in make_documents(300, 0):
        expected += [*tokenizer(document)["input_ids"], tokenizer.convert_tokens_to_ids(END_OF_TEXT)]
    assert cache.read(0, len(cache)).tolist() == expected
    assert ([shard["documents"] for shard in cache.shards], cache.complete) == ([300], True)
    sequences = cache.sequences(np.array([0, 5]), 32)
    assert sequences.shape == (2, 33)
    assert sequences[1].tolist() == expected[160:193]  # the last token is the next sequence's first
    monkeypatch.setattr(tokens, "SHARD_TOKENS", 700)
    sharded = prepare(TextSource(str(corpus)), tokenizer, tmp_path)
    assert len(sharded.shards) > 10
    everywhere = np.arange(cache.n_sequences(32))
    assert np.array_equal(sharded.sequences(everywhere, 32), cache.sequences(everywhere, 32))


@pytest.mark.parametrize(
    ("file_seed", "held_out", "part_bytes"), [(None, True, 1 << 23), (3, False, 1 << 23), (1, True, 700)]
)
def test_a_cache_in_pieces_is_byte_for_byte_the_one_in_one_go(
    crawls, tokenizer, tmp_path, small_shards, monkeypatch, file_seed, held_out, part_bytes
):
    monkeypatch.setattr(text_module, "PART_BYTES", part_bytes)
    source = TextSource(str(crawls), held_out_buckets=300, held_out=held_out, file_seed=file_seed)
    whole = prepare(source, tokenizer, tmp_path / "whole")
    assert len(whole.shards) > 5
    for until in (1, 1, 1500, 1500, 3000):  # extended, left as it is, extended
        part = prepare(source, tokenizer, tmp_path / "parts", until=until)
        assert not part.complete
        assert len(part) >= until
        assert np.array_equal(part.read(0, len(part)), whole.read(0, len(part)))
        assert part.fingerprint == whole.fingerprint
    for _ in range(2):  # a complete cache is left alone
        extended = prepare(source, tokenizer, tmp_path / "parts")
        assert contents(extended.folder) == contents(whole.folder)


def test_no_document_is_an_error(corpus, tokenizer, tmp_path):
    write_dataset(tmp_path / "few", {"train": make_documents(1, 0)})
    for folder, buckets, held, missing in (
        (corpus, 1000, False, "to train on"),
        (tmp_path / "few", 1, True, "that is held out"),
    ):
        with pytest.raises(ValueError, match=rf"data.dataset: split 'train' .* has no document {missing}"):
            prepare(TextSource(str(folder), held_out_buckets=buckets, held_out=held), tokenizer, tmp_path)


def test_another_text_or_tokenizer_makes_another_cache(corpus, tokenizer, tmp_path, monkeypatch):
    first = prepare(TextSource(str(corpus)), tokenizer, tmp_path)
    changed = tmp_path / "corpus"
    write_dataset(changed, {"train": make_documents(299, 0)})
    assert prepare(TextSource(str(changed)), tokenizer, tmp_path).folder != first.folder
    other = train_tokenizer(make_documents(300, 0), 290, tmp_path / "other", progress=False)
    assert prepare(TextSource(str(corpus)), other, tmp_path).folder != first.folder
    with pytest.raises(ValueError, match="vocab_size: 100; a byte-level BPE needs at least 257"):
        train_tokenizer(["text"], 100, tmp_path)
    tokenizer(["a", "b b"], padding=False, truncation=True, max_length=4)  # changes the backend's state
    assert prepare(TextSource(str(corpus)), tokenizer, tmp_path).folder == first.folder
    monkeypatch.setattr(tokens, "vocabulary_size", lambda tokenizer: 70_000)
    large = prepare(TextSource(str(corpus)), tokenizer, tmp_path)
    assert (first.recipe["dtype"], large.recipe["dtype"]) == ("<u2", "<u4")
    assert np.array_equal(large.read(0, len(large)), first.read(0, len(first)))


# -- tokens

TEXTS = [
    "It's we'll I'D they've 'tis ''s don't", "  two  spaces \n\n and\tlines \r\n ", "", " ",
    "\x1c\x85\xa0\u2003x\u3000",
    "½ of x² is Ⅷ, ٣ and 3.14", f"before {END_OF_TEXT} after", "\x00\x7f\ufeff\u200b zero",
    "naïve café 中文字 русский ελληνικά हिन्दी ไทย 👍🏽 e\u0301", "a" * 5000 + "!" * 300 + " " * 300 + "\n" * 50,
]  # fmt: skip


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=60), max_size=4))
def test_any_text_gets_the_ids_that_the_tokenizer_gives(tokenizer, texts):
    texts = [*TEXTS, *texts]
    encode = encoder(description(tokenizer), tokenizer.eos_token_id, "<u4")
    with patch.object(filling, "_CHARACTERS", 50):
        assert encode(texts) == [encode([text])[0] for text in texts]
    for text, data in zip(texts, encode(texts), strict=True):
        expected = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert np.frombuffer(data, "<u4").tolist() == [*expected, tokenizer.eos_token_id], text


# -- damage


def test_a_shard_that_comes_later_is_compared_before_it_is_read(corpus, tokenizer, tmp_path, small_shards):
    whole = prepare(TextSource(str(corpus)), tokenizer, tmp_path)
    damaged = whole.folder / whole.shards[4]["file"]
    flip_a_bit(damaged)
    cache = TokenCache(whole.folder)
    cache.read(0, 2000)
    with pytest.raises(CorruptCacheError, match=r"tokens-0000000-04.bin has a wrong sha256"):
        cache.sequences(np.arange(cache.n_sequences(32)), 32)
    damaged.write_bytes(damaged.read_bytes()[:-2])
    with pytest.raises(CorruptCacheError, match=r"tokens-0000000-04.bin does not hold"):
        prepare(TextSource(str(corpus)), tokenizer, tmp_path)
    with pytest.raises(CorruptCacheError, match=r"tokens-0000000-04.bin does not hold"):
        TokenCache(whole.folder).check_shard(4)


def test_what_is_found_after_the_start_ends_the_training(tiny, tokenizer, tmp_path, monkeypatch, small_shards):
    """The thread that compares finds it in the last shard that the run reads; a batch reads the first ones."""
    started, check = threading.Event(), TokenCache.check_shard
    monkeypatch.setattr(builder, "_CHECK_SECONDS", 0)
    monkeypatch.setattr(TokenCache, "check_shard", lambda cache, number: started.wait(10) and check(cache, number))
    arguments = tiny(data__cache_dir=str(tmp_path / "cache"), data__shuffle_window=16)
    cache = prepare(text_sources(arguments)[0], tokenizer, tmp_path / "cache")
    last = cache.shards_until(tokens_needed(arguments)[0]) - 1
    assert 2 < last < len(cache.shards) - 1
    flip_a_bit(cache.folder / cache.shards[last]["file"])
    data = training_data(arguments, tokenizer)
    started.set()
    data.tokens._thread.join(10)
    with pytest.raises(CorruptCacheError, match="wrong sha256"):
        list(data.micro_batches(0, 2, 2, 0, 1, None))
    data.tokens.close()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("recipe.json", b"{", "is damaged"),
        ("recipe.json", b'{"dtype": "<u2", "max_tokens": null}', "does not match the name of its folder"),
        ("group-0000000.json", b"{", "is damaged"),
        ("group-0000000.json", b"[1]", "is damaged"),
        ("group-0000000.json", b'{"shards": [{"file": "x"}]}', "is damaged"),
        ("group-0000000.json", b'{"shards": [], "following": [0, "", 0, 0]}', "is damaged"),
        ("tokenizer.json", b'{"padding": 0, "truncation": 0}', "is not the tokenizer of these tokens"),
    ],
)
def test_other_files_of_a_cache_are_checked_too(corpus, tokenizer, tmp_path, small_shards, name, content, message):
    source = TextSource(str(corpus))
    folder = prepare(source, tokenizer, tmp_path, until=700).folder
    (folder / name).write_bytes(content)
    with pytest.raises(CorruptCacheError) as caught:
        prepare(source, tokenizer, tmp_path)
    assert str(caught.value).startswith(f"{folder / name} {message}")
    assert "\n" not in str(caught.value)
