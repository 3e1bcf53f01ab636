"""A cache tokenised by many processes is the one that a single one makes, whoever was killed meanwhile."""

import json
import os
import signal
import threading
from contextlib import closing, suppress

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from filelock import FileLock
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.training.conftest import CRAWLS, write_crawls
from tests.training.token_caches import prepare
from training import ConfigurationError, TextSource
from training.data import builder, filling
from training.data import cache as cache_module
from training.data import text as text_module
from training.data.builder import TokenBuildError, build_by_many
from training.data.cache import TokenCache, open_cache
from training.data.filling import Share, tokenise_groups
from training.prepare import app
from training.run.inputs import text_sources

ALL = Share()


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
def single(source, tokenizer, tmp_path_factory):
    """The cache of a single process, built in one go; it is only read."""
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch)
        return prepare(source, tokenizer, tmp_path_factory.mktemp("single"))


@pytest.fixture
def empty(source, tokenizer, tmp_path, groups):
    """A cache in which nothing is."""
    return open_cache(source, tokenizer, tmp_path / "many")


def assert_same(cache: TokenCache, expected: TokenCache) -> None:
    """The same ids in the same shards, which know the same places to resume from."""
    cache.refresh()
    assert cache.complete == expected.complete
    assert cache.shards == expected.shards
    assert np.array_equal(cache.read(0, len(cache)), expected.read(0, len(expected)))
    assert cache.fingerprint == expected.fingerprint


def starts(cache: TokenCache) -> list[int]:
    return json.loads((cache.folder / "groups.json").read_text())


@pytest.mark.parametrize("shares", [["0/1"], ["2/3", "0/3", "1/3"], ["1/2", "3/4", "0/4", "2/4"], ["8/9", "0/1"]])
def test_shares_in_any_order_make_the_cache_of_a_single_process(source, single, empty, tokenizer, tmp_path, shares):
    for share in shares:
        tokenise_groups(source, empty.folder, Share.parse(share))
    assert len(starts(empty)) > 10
    assert_same(empty, single)
    assert not list(empty.folder.rglob("*.tmp"))
    assert_same(prepare(source, tokenizer, tmp_path / "many"), single)  # nothing is left to do


def test_one_process_and_many_continue_each_other_s_work(source, single, empty, tokenizer, tmp_path):
    """The single one stops within a group; a share leaves gaps; the single one closes them."""
    alone = prepare(source, tokenizer, tmp_path / "many", until=1500)
    assert 0 < len(filling.finished(alone.folder)) < len(list(alone.folder.glob("group-*.json")))
    tokenise_groups(source, empty.folder, Share(0, 2))
    empty.refresh()
    assert 1500 <= len(empty) < len(single)
    assert np.array_equal(empty.read(0, len(empty)), single.read(0, len(empty)))
    assert_same(prepare(source, tokenizer, tmp_path / "many"), single)


def test_a_reader_needs_only_the_groups_before(source, single, empty, tokenizer, tmp_path, monkeypatch):
    tokenise_groups(source, empty.folder, ALL, until_tokens=1)
    assert len(filling.finished(empty.folder)) == 1
    monkeypatch.setattr(TextSource, "rows", None)  # nothing is tokenised
    first = prepare(source, tokenizer, tmp_path / "many", until=1)
    assert np.array_equal(first.read(0, len(first)), single.read(0, len(first)))
    assert first.fingerprint == single.fingerprint


def test_groups_stop_where_there_is_enough(source, single, empty, tokenizer, tmp_path):
    until = len(single) // 2
    tokenise_groups(source, empty.folder, ALL, until)
    empty.refresh()
    assert until <= len(empty) < until + len(single) // 5
    tokenise_groups(source, empty.folder, ALL, until)
    assert 2 < len(filling.finished(empty.folder)) < len(starts(empty)) - 2


def test_groups_without_documents(crawls, tokenizer, tmp_path, groups):
    source = TextSource(str(crawls), file_seed=3, held_out_buckets=990)
    cache = open_cache(source, tokenizer, tmp_path / "many")
    tokenise_groups(source, cache.folder, Share(0, 2))
    tokenise_groups(source, cache.folder, Share(1, 2))
    tokenise_groups(source, cache.folder, Share(900, 901))  # a share without a group
    assert_same(cache, prepare(source, tokenizer, tmp_path / "single"))
    assert len(cache.shards) < len(starts(cache)) - 3


# -- what goes wrong


@pytest.mark.parametrize("document", [0, 200, 700])
def test_what_fails_in_the_middle_loses_its_group_only(source, single, empty, monkeypatch, document):
    encoded, seen = filling._encoded, iter(range(10_000))

    def failing(*arguments):
        for one in encoded(*arguments):
            if next(seen) == document:
                raise MemoryError
            yield one

    monkeypatch.setattr(filling, "_encoded", failing)
    with pytest.raises(MemoryError):
        tokenise_groups(source, empty.folder, ALL)
    finished = {path: path.stat().st_mtime_ns for path in empty.folder.glob("tokens-*.bin")}
    assert bool(finished) == (document > 0)
    tokenise_groups(source, empty.folder, ALL)
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    assert_same(empty, single)


def test_what_is_always_preempted_makes_progress_within_a_group(source, single, empty, monkeypatch):
    """Each process is killed before it has finished a second shard; groups have several."""
    write, written = filling._write_shard, []

    def preempted(*arguments):
        if written:
            raise MemoryError
        written.append(write(*arguments))
        return written[-1]

    with monkeypatch.context() as patched:
        patched.setattr(filling, "_write_shard", preempted)
        for _ in range(3 * len(single.shards)):
            written.clear()
            with suppress(MemoryError):
                tokenise_groups(source, empty.folder, ALL)
                break
    assert len(single.shards) > 1.5 * len(starts(empty))
    assert_same(empty, single)


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: os.truncate(path, 10)])
def test_a_group_whose_beginning_is_damaged_begins_again(source, single, empty, damage):
    with closing(filling._tokenised(empty, source.open(), 0)) as shards:
        next(shards)
    (file,) = empty.folder.glob("tokens-*.bin")
    damage(file)
    tokenise_groups(source, empty.folder, ALL)
    assert_same(empty, single)


def test_a_group_that_another_process_has_is_left_to_it(source, single, empty):
    tokenise_groups(source, empty.folder, ALL, until_tokens=1)
    with FileLock(empty.folder / f"group-{starts(empty)[2]:07d}.lock"):
        tokenise_groups(source, empty.folder, ALL)
    assert len(filling.finished(empty.folder)) == len(starts(empty)) - 1
    empty.refresh()
    assert not empty.complete
    tokenise_groups(source, empty.folder, ALL)
    assert_same(empty, single)


def test_the_builder_in_order_waits_for_a_group_that_another_process_has(source, single, empty, tokenizer, tmp_path):
    lock = FileLock(empty.folder / "group-0000000.lock", thread_local=False)
    lock.acquire()
    threading.Timer(1.5, lock.release).start()
    assert_same(prepare(source, tokenizer, tmp_path / "many"), single)
    assert not lock.is_locked


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 90))
def test_every_group_is_in_one_share_of_one_worker(shards, workers, n):
    shares = [Share(i, shards).split(worker, workers) for i in range(shards) for worker in range(workers)]
    assert sorted(group for share in shares for group in range(n)[share.first :: share.step]) == list(range(n))


# -- processes


@pytest.fixture
def large(tmp_path):
    """Three groups of files, as the processes cut them, whose tokenising takes a second."""
    folder = write_crawls(tmp_path / "large")
    rng = np.random.default_rng(0)
    for number in range(16 * 3 - CRAWLS):
        words = rng.integers(0, 10**6, (20, 1000))
        columns = {
            "text": [" ".join(map(str, row)) for row in words],
            "id": [f"{number}-{i}" for i in range(len(words))],
        }
        pq.write_table(pa.table(columns), folder / f"more-{number:02d}.parquet")
    return TextSource(str(folder), file_seed=1)


@pytest.mark.slow
def test_a_killed_process_is_started_again_and_two_at_once_share_the_work(large, tokenizer, tmp_path, monkeypatch):
    started, killed, start = [], [], builder.Builder.__init__
    monkeypatch.setattr(builder.Builder, "__init__", lambda self, *task: start(self, *task) or started.append(self))
    monkeypatch.setattr(builder, "_LOCK_SECONDS", 0.02)
    cache = open_cache(large, tokenizer, tmp_path / "many")
    beside = builder.Builder(large, cache.folder, None, Share(0, 3))

    def kill_a_worker_that_writes():
        if not killed and list(cache.folder.glob("tokens-*.tmp")):
            killed.append(started[1].pid)
            os.kill(killed[0], signal.SIGKILL)

    build_by_many(large, cache, None, 2, ALL, kill_a_worker_that_writes)
    assert beside.error() is None
    beside.close()
    assert len(started) == 3 + len(killed) == 4
    assert_same(cache, prepare(large, tokenizer, tmp_path / "single"))


@pytest.mark.slow
def test_a_process_that_is_killed_after_every_shard_gets_to_the_end(large, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(builder, "_LOCK_SECONDS", 0.02)
    monkeypatch.setattr(cache_module, "SHARD_TOKENS", 200_000)
    started, kills, start = [], [0], builder.Builder.__init__
    monkeypatch.setattr(builder.Builder, "__init__", lambda self, *task: start(self, *task) or started.append(self))
    cache = open_cache(large, tokenizer, tmp_path / "many")

    def kill_after_each_shard():
        made = len(list(cache.folder.glob("tokens-*.bin")))
        if made > kills[-1] and len(kills) <= 2 * builder._MAX_DEATHS and started[-1].poll() is None:
            os.kill(started[-1].pid, signal.SIGKILL)
            kills.append(made)

    build_by_many(large, cache, None, 1, ALL, kill_after_each_shard)
    assert len(kills) > builder._MAX_DEATHS + 1
    assert_same(cache, prepare(large, tokenizer, tmp_path / "single"))


@pytest.mark.slow
def test_processes_that_fail_are_one_error_here(crawls, tokenizer, tmp_path, monkeypatch):
    source = TextSource(str(crawls), text_column="body", file_seed=0)
    with pytest.raises(ConfigurationError, match=r"^data.text_column: no column 'body' in [^\n]*$"):
        build_by_many(source, open_cache(source, tokenizer, tmp_path), None, 2, ALL)
    start = builder.Builder.__init__

    def started_and_killed(self, *task):
        start(self, *task)
        os.kill(self.pid, signal.SIGKILL)

    monkeypatch.setattr(builder.Builder, "__init__", started_and_killed)
    with pytest.raises(TokenBuildError, match="was killed by signal 9"):
        build_by_many(source, open_cache(source, tokenizer, tmp_path), None, 2, ALL)


@pytest.fixture
def command(tiny, tmp_path):
    """`python -m training.prepare` on a tiny run, with these flags."""
    path = tmp_path / "run.yaml"
    tiny(data__cache_dir=str(tmp_path / "cache")).save(path)
    return lambda *flags: CliRunner().invoke(app, ["--config", str(path), *flags])


@pytest.mark.slow
def test_the_command_does_its_shard_and_then_nothing_is_left(command, tiny, tokenizer, tmp_path):
    shard = command("--all", "--shard", "1/2")
    assert shard.exit_code == 0, shard.output
    assert "0 of 1 groups are tokenised" in shard.output
    done = command("--all", "--workers", "2", "--verify")
    assert done.exit_code == 0, done.output
    assert "1 of 1 groups are tokenised" in done.output
    assert "2 shards are intact" in done.output
    expected = prepare(text_sources(tiny())[0], tokenizer, tmp_path / "single")
    (folder,) = (tmp_path / "cache").glob("corpus-train-*")
    assert_same(TokenCache(folder), expected)


@pytest.mark.parametrize("shard", ["2/2", "-1/2", "1", "1/0", "a/b", "1/2/3"])
def test_shards_that_there_cannot_be_are_refused(command, shard):
    refused = command(f"--shard={shard}")
    assert refused.exit_code == 2
    assert f"{shard!r}; it must be I/N with 0 <= I < N" in " ".join(refused.stderr.replace("│", " ").split())
