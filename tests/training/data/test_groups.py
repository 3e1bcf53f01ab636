"""A cache of many groups and shards: whoever was killed meanwhile, it is the one that is built in one go."""

import json
import os
import shutil
from contextlib import suppress

import numpy as np
import pytest

from tests.training.token_caches import contents, prepare
from training import TextSource
from training.data import cache as cache_module
from training.data import filling
from training.data import text as text_module
from training.data.cache import CorruptCacheError, TokenCache


def make_small(patch) -> None:
    """Make parts small, so that there are many groups, and shards."""
    patch.setattr(text_module, "PART_BYTES", 700)
    patch.setattr(text_module, "GROUP", 5)
    patch.setattr(cache_module, "SHARD_TOKENS", 700)


@pytest.fixture
def groups(monkeypatch):
    """Many groups and shards."""
    make_small(monkeypatch)


@pytest.fixture(scope="module", params=[3, None], ids=["shuffled", "stored"])
def source(crawls, request):
    return TextSource(str(crawls), file_seed=request.param, held_out_buckets=300)


@pytest.fixture(scope="module")
def expected(source, tokenizer, tmp_path_factory):
    """The cache that is built in one go; it is only read."""
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch)
        return prepare(source, tokenizer, tmp_path_factory.mktemp("expected"))


def assert_same(cache: TokenCache, expected: TokenCache) -> None:
    """The same ids in the same shards, which know the same places to resume from."""
    assert cache.complete == expected.complete
    assert cache.shards == expected.shards
    assert np.array_equal(cache.read(0, len(cache)), expected.read(0, len(expected)))
    assert cache.fingerprint == expected.fingerprint


def test_gaps_that_many_processes_have_left_are_filled(source, expected, tokenizer, tmp_path, groups):
    """Earlier versions tokenised groups by many processes, which noted where all groups begin."""
    shutil.copytree(expected.folder, tmp_path / expected.folder.name)
    files = sorted((tmp_path / expected.folder.name).glob("group-*.json"))
    (files[0].parent / "groups.json").write_text("[0]")
    for file in files[1::3]:
        file.write_text("")
    for file in files[2::3]:
        file.write_text(json.dumps({"shards": json.loads(file.read_text())["shards"][:1]}))
    cache = TokenCache(files[0].parent)
    assert 0 < len(cache) < len(expected)
    assert np.array_equal(cache.read(0, len(cache)), expected.read(0, len(cache)))
    cache = prepare(source, tokenizer, tmp_path)
    assert_same(cache, expected)
    assert contents(cache.folder).keys() - contents(expected.folder).keys() == {"groups.json"}


def test_groups_without_documents(crawls, tokenizer, tmp_path, groups):
    source = TextSource(str(crawls), file_seed=3, held_out_buckets=990)
    cache = prepare(source, tokenizer, tmp_path)
    assert cache.complete
    assert 0 < len(cache.shards) < len(list(cache.folder.glob("group-*.json"))) - 3


@pytest.mark.parametrize("document", [0, 200, 700])
def test_what_fails_in_the_middle_loses_its_shard_only(
    source, expected, tokenizer, tmp_path, groups, monkeypatch, document
):
    encoded, numbers = filling._encoded, iter(range(10_000))

    def failing(*arguments):
        for document_bytes in encoded(*arguments):
            if next(numbers) == document:
                raise MemoryError
            yield document_bytes

    with monkeypatch.context() as patched:
        patched.setattr(filling, "_encoded", failing)
        with pytest.raises(MemoryError):
            prepare(source, tokenizer, tmp_path)
    (folder,) = tmp_path.glob("sorted-*")
    finished = {path: path.stat().st_mtime_ns for path in folder.glob("tokens-*.bin")}
    assert bool(finished) == (document > 0)
    assert_same(prepare(source, tokenizer, tmp_path), expected)
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    assert not list(folder.glob("*.tmp"))


@pytest.mark.parametrize("source", [3, pytest.param(None, marks=pytest.mark.slow)], indirect=True)
def test_what_is_always_preempted_makes_progress_within_a_group(
    source, expected, tokenizer, tmp_path, groups, monkeypatch
):
    """Each process is killed before it has finished a second shard; groups have several."""
    write, written = filling._write_shard, []

    def preempted(*arguments):
        if written:
            raise MemoryError
        written.append(write(*arguments))
        return written[-1]

    monkeypatch.setattr(filling, "_write_shard", preempted)
    for _ in range(3 * len(expected.shards)):
        written.clear()
        with suppress(MemoryError):
            cache = prepare(source, tokenizer, tmp_path)
            break
    assert len(expected.shards) > 1.5 * len(list(expected.folder.glob("group-*.json")))
    assert_same(cache, expected)


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: os.truncate(path, 10)])
def test_a_damaged_shard_is_named(source, tokenizer, tmp_path, groups, damage):
    cache = prepare(source, tokenizer, tmp_path, until=1)
    (file,) = cache.folder.glob("tokens-*.bin")
    damage(file)
    with pytest.raises(CorruptCacheError, match=r"tokens-0000000-00.bin does not hold"):
        prepare(source, tokenizer, tmp_path)
