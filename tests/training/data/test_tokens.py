"""Text and token cache: what is read, how it is cut into sequences, and that nothing half-built is used."""

import json
import os
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import make_documents, write_dataset
from tests.training.token_caches import contents, prepare
from training.data import cache as tokens
from training.data.builder import encoder
from training.data.cache import CorruptCacheError, TokenCache
from training.data.text import Place, TextSource
from training.data.tokenizer import (
    END_OF_TEXT,
    description,
    load_tokenizer,
    token_counter,
    train_tokenizer,
)


@pytest.fixture(scope="module")
def many_files(tmp_path_factory):
    """Twelve files of 20 documents each."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = tmp_path_factory.mktemp("many") / "files"
    folder.mkdir()
    for i in range(12):
        columns = {"text": make_documents(20, i), "id": [f"{i}-{j}" for j in range(20)], "score": [1.0] * 20}
        pq.write_table(pa.table(columns), folder / f"train-{i:05d}-of-00012.parquet", row_group_size=7)
    return folder


def test_the_cache_is_every_document_followed_by_end_of_text(corpus, tokenizer, tmp_path):
    cache = prepare(TextSource(str(corpus)), tokenizer, tmp_path)
    expected = []
    for document in make_documents(300, 0):
        expected += [*tokenizer(document)["input_ids"], tokenizer.convert_tokens_to_ids(END_OF_TEXT)]
    assert cache.read(0, len(cache)).tolist() == expected
    assert (cache.documents, cache.complete) == (300, True)
    sequences = cache.sequences(np.array([0, 5]), 32)
    assert sequences.shape == (2, 33)
    assert sequences[1].tolist() == expected[160:193]  # the last token is the next sequence's first


def test_shards_are_read_as_one_row(corpus, tokenizer, tmp_path, monkeypatch):
    whole = prepare(TextSource(str(corpus)), tokenizer, tmp_path)
    monkeypatch.setattr(tokens, "SHARD_TOKENS", 700)
    sharded = prepare(TextSource(str(corpus)), tokenizer, tmp_path)
    assert len(sharded.shards) > 10
    assert np.array_equal(sharded.read(0, len(whole)), whole.read(0, len(whole)))
    assert np.array_equal(sharded.read(650, 200), whole.read(650, 200))


@pytest.mark.parametrize("file_seed", [None, 3])
@pytest.mark.parametrize("held_out", [False, True])
def test_a_cache_in_pieces_is_byte_for_byte_the_one_in_one_go(
    many_files, tokenizer, tmp_path, small_shards, file_seed, held_out
):
    source = TextSource(str(many_files), held_out_buckets=300, held_out=held_out, file_seed=file_seed)
    whole = prepare(source, tokenizer, tmp_path / "whole")
    assert len(whole.shards) > 5
    for until in (1, 1, 1500, 1500, 3000):  # extended, left as it is, extended
        part = prepare(source, tokenizer, tmp_path / "parts", until=until)
        assert not part.complete
        assert len(part) >= until
        assert np.array_equal(part.read(0, len(part)), whole.read(0, len(part)))
        assert part.fingerprint == whole.fingerprint
    extended = prepare(source, tokenizer, tmp_path / "parts")
    assert {k: v for k, v in contents(extended.folder).items() if k != "shards.jsonl"} == {
        k: v for k, v in contents(whole.folder).items() if k != "shards.jsonl"
    }
    names = ("file", "tokens", "documents", "sha256")
    assert [[s[n] for n in names] for s in extended.shards] == [[s[n] for n in names] for s in whole.shards]
    prepare(source, tokenizer, tmp_path / "parts")  # a complete cache is left alone
    assert contents(TokenCache(extended.folder).folder) == contents(extended.folder)


def test_reading_goes_on_at_any_place_and_notices_other_documents(many_files):
    source = TextSource(str(many_files), held_out_buckets=300)
    batches = list(source.batches(16))
    whole = [text for texts, _ in batches for text in texts]
    assert whole == list(source.documents())
    for texts, place in batches:
        for behind in (place, place.after(texts, 5)):
            kept = Place(*json.loads(json.dumps(behind)))
            # Also where another version of `datasets` noted the state, which may mean something else to this one.
            for start in (kept, kept._replace(datasets="0")):
                assert [text for part, _ in source.batches(7, start) for text in part] == whole[behind.documents :]
    with pytest.raises(ValueError, match="has changed since its token cache was begun"):
        next(source.batches(7, behind._replace(last="0" * 64)))


def test_whole_files_before_the_place_are_not_read_again(many_files, monkeypatch):
    reader = import_module("datasets.packaged_modules.parquet.parquet")
    source = TextSource(str(many_files))
    *_, (_, place) = source.batches(16)
    opened, make = [], reader.Parquet._generate_tables
    monkeypatch.setattr(
        reader.Parquet, "_generate_tables", lambda self, files, **k: opened.extend(files) or make(self, files, **k)
    )
    assert len([text for texts, _ in source.batches(16, place) for text in texts]) == 240 - place.documents
    # The place is in the last file; the state is of a batch of 16 documents before it, and a chunk of them more.
    assert [Path(str(file)).name for file in opened] == [f"train-{i:05d}-of-00012.parquet" for i in (9, 10, 11)]


def test_a_crash_at_any_write_leaves_a_cache_that_goes_on(corpus, tokenizer, tmp_path, small_shards):
    whole = prepare(TextSource(str(corpus)), tokenizer, tmp_path / "whole")
    cut = prepare(TextSource(str(corpus)), tokenizer, tmp_path / "cut", until=2000)
    log = cut.folder / "shards.jsonl"
    log.write_bytes(log.read_bytes()[:-40])  # the last line was being written
    (cut.folder / "tokens-00002.tmp").write_bytes(b"half a shard")
    assert len(TokenCache(cut.folder).shards) == len(cut.shards) - 1
    assert (
        prepare(TextSource(str(corpus)), tokenizer, tmp_path / "cut").shards[-1]["sha256"]
        == whole.shards[-1]["sha256"]
    )
    assert not list(cut.folder.glob("*.tmp"))
    assert np.array_equal(TokenCache(cut.folder).read(0, len(whole)), whole.read(0, len(whole)))


def test_a_full_disk_is_one_clear_error_and_what_was_finished_stays(corpus, tokenizer, tmp_path, small_shards):
    cache = prepare(TextSource(str(corpus)), tokenizer, tmp_path, until=2000)
    (cache.folder / f"tokens-{len(cache.shards):05d}.tmp").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        prepare(TextSource(str(corpus)), tokenizer, tmp_path)
    assert len(TokenCache(cache.folder)) == len(cache)
    assert prepare(TextSource(str(corpus)), tokenizer, tmp_path).complete


def test_max_tokens_ends_the_cache_with_the_document_that_reaches_it(corpus, tokenizer, tmp_path, small_shards):
    cache = prepare(TextSource(str(corpus)), tokenizer, tmp_path, max_tokens=1000)
    assert 1000 <= len(cache) < 1500
    assert cache.complete
    assert prepare(TextSource(str(corpus)), tokenizer, tmp_path, max_tokens=2000).folder != cache.folder


def test_documents_longer_than_a_shard_and_a_single_one(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(tokens, "SHARD_TOKENS", 5)
    long = make_documents(3, 0)
    write_dataset(tmp_path / "long", {"train": long})
    cache = prepare(TextSource(str(tmp_path / "long")), tokenizer, tmp_path)
    assert [shard["documents"] for shard in cache.shards] == [1, 1, 1]
    write_dataset(tmp_path / "one", {"train": long[:1]})
    one = prepare(TextSource(str(tmp_path / "one")), tokenizer, tmp_path)
    assert one.read(0, len(one)).tolist() == [*tokenizer(long[0])["input_ids"], tokenizer.eos_token_id]
    assert one.complete


def test_no_document_is_an_error(corpus, tokenizer, tmp_path):
    everything, nothing = (TextSource(str(corpus), held_out_buckets=1000, held_out=held) for held in (True, False))
    assert prepare(everything, tokenizer, tmp_path).documents == 300
    with pytest.raises(ValueError, match=r"data.dataset: split 'train' .* has no document to train on"):
        prepare(nothing, tokenizer, tmp_path)
    few = tmp_path / "few"
    write_dataset(few, {"train": make_documents(1, 0)})
    with pytest.raises(ValueError, match="has no document that is held out"):
        prepare(TextSource(str(few), held_out_buckets=1, held_out=True), tokenizer, tmp_path)
    write_dataset(tmp_path / "none", {"train": []})  # which `datasets` cannot read
    with pytest.raises(ValueError, match=r"data.dataset: .*none' cannot be read"):
        prepare(TextSource(str(tmp_path / "none")), tokenizer, tmp_path)
    (tmp_path / "null.jsonl").write_text('{"text": "a"}\n{"text": null}\n')
    with pytest.raises(ValueError, match=r"data.text_column: 'text' holds None in a row of"):
        prepare(TextSource(str(tmp_path / "null.jsonl")), tokenizer, tmp_path)


def test_large_vocabularies_take_four_bytes(corpus, tokenizer, tmp_path, monkeypatch):
    small = prepare(TextSource(str(corpus)), tokenizer, tmp_path)
    monkeypatch.setattr(type(tokenizer), "__len__", lambda self: 70_000)
    large = prepare(TextSource(str(corpus)), tokenizer, tmp_path)
    assert (small.recipe["dtype"], large.recipe["dtype"]) == ("<u2", "<u4")
    assert large.folder != small.folder
    assert np.array_equal(large.read(0, len(large)), small.read(0, len(small)))


TEXTS = [
    "It's we'll I'D they've 'tis ''s don't", "  two  spaces \n\n and\tlines \r\n ", "", " ",
    "\x1c\x85\xa0\u2003x\u3000", "½ of x² is Ⅷ, ٣ and 3.14", f"before {END_OF_TEXT} after",
    "naïve café 中文字 русский ελληνικά हिन्दी ไทย 👍🏽 e\u0301", "\x00\x7f\ufeff\u200b zero",
    "a" * 5000 + "!" * 300 + " " * 300 + "\n" * 50,
]  # fmt: skip


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=60), max_size=4))
def test_any_text_gets_the_ids_that_the_tokenizer_gives(tokenizer, texts):
    texts = [*TEXTS, *texts]
    encode = encoder(description(tokenizer), tokenizer.eos_token_id, "<u4")
    for text, data in zip(texts, encode(texts), strict=True):
        expected = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert np.frombuffer(data, "<u4").tolist() == [*expected, tokenizer.eos_token_id], text


def test_checksums_of_local_files_are_remembered_until_they_change(corpus, tmp_path, monkeypatch):
    from training.data import text

    memory, source = tmp_path / "checksums.json", TextSource(str(corpus))
    identity = source.identify(memory)
    assert identity == source.identify()
    with monkeypatch.context() as patched:
        patched.setattr(text, "sha256_of", None)  # nothing is read
        assert source.identify(memory) == identity
    changed = tmp_path / "changed"
    write_dataset(changed, {"train": make_documents(5, 0)})
    before = TextSource(str(changed)).identify(memory)
    write_dataset(changed, {"train": make_documents(5, 1)})
    os.utime(changed / "train-00000-of-00001.parquet", ns=(1, 1))
    assert TextSource(str(changed)).identify(memory) != before


def test_another_text_or_tokenizer_makes_another_cache(corpus, tokenizer, tmp_path):
    first = prepare(TextSource(str(corpus)), tokenizer, tmp_path)
    changed = tmp_path / "corpus"
    write_dataset(changed, {"train": make_documents(299, 0)})
    assert prepare(TextSource(str(changed)), tokenizer, tmp_path).folder != first.folder
    other = train_tokenizer(make_documents(300, 0), 290, tmp_path / "other", progress=False)
    assert prepare(TextSource(str(corpus)), other, tmp_path).folder != first.folder
    assert prepare(TextSource(str(corpus)), tokenizer, tmp_path).folder == first.folder


def test_held_out_documents_are_fixed_by_their_id_and_never_trained_on(corpus):
    source = {held: TextSource(str(corpus), held_out_buckets=200, held_out=held) for held in (False, True)}
    train, held_out = list(source[False].documents()), list(source[True].documents())
    assert sorted(train + held_out) == sorted(make_documents(300, 0))
    assert 30 < len(held_out) < 90  # 20 % of 300


def test_damage_is_found(corpus, tokenizer, tmp_path):
    cache = prepare(TextSource(str(corpus)), tokenizer, tmp_path)
    assert len(list(cache.verify())) == 1
    shard = cache.folder / cache.shards[0]["file"]
    data = bytearray(shard.read_bytes())
    data[100] ^= 1
    shard.write_bytes(data)
    with pytest.raises(CorruptCacheError, match="another sha256"):
        list(cache.verify())
    shard.write_bytes(data[:-2])
    with pytest.raises(CorruptCacheError, match="does not hold"):
        prepare(TextSource(str(corpus)), tokenizer, tmp_path)


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
    before = description(loaded)
    loaded(["a", "b b"], padding=False, truncation=True, max_length=4)  # changes the backend's state
    assert description(loaded) == before
    with pytest.raises(ValueError, match="at least 257"):
        train_tokenizer(["text"], 100, "unused")
