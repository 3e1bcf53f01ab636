"""Training on a cache that is being built: by whom, how far, and what happens when one of the two is killed."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from tests.conftest import make_documents, wait_for, write_dataset
from tests.training.ranks import SERVER
from tests.training.token_caches import contents, prepare
from training import ConfigurationError, TextSource
from training.data import builder as token_builder
from training.data.batches import SequenceOrder, TrainingData
from training.data.builder import GrowingCache, TokenBuildError
from training.data.cache import TokenCache, open_cache
from training.run.inputs import HeldOutText, training_data

CPU = torch.device("cpu")
LENGTH = 32


@pytest.fixture(scope="module")
def text_file(corpus):
    """Give the training text as one file: for a folder, each builder would import `datasets`, which takes a second."""
    (path,) = corpus.glob("train-*.parquet")
    return str(path)


@pytest.fixture
def growing(text_file, tokenizer, tmp_path, small_shards):
    """A function: a growing cache for `until` tokens; what it started is ended with the test."""
    made = []

    def build(until=None, **changes):
        source = TextSource(**{"dataset": text_file, **changes})
        made.append(GrowingCache(open_cache(source, tokenizer, tmp_path), source, until))
        return made[-1]

    yield build
    for one in made:
        one.close()


@pytest.fixture
def expected(text_file, tokenizer, tmp_path, small_shards):
    """Checksums of the shards of the cache that is built in one go."""
    return checksums(prepare(TextSource(text_file), tokenizer, tmp_path / "whole"))


def checksums(cache: TokenCache) -> list[str]:
    return [shard["sha256"] for shard in cache.shards]


@pytest.mark.slow
def test_another_process_builds_as_far_as_is_needed_and_no_further(growing, expected):
    short = growing(until=1500)
    short.wait_for(1500)
    assert 1500 <= len(short.cache) < 1500 + 2 * 700
    assert not short.cache.complete
    builder = short._builder
    assert builder is None or builder.wait(60) == 0
    longer = growing(until=4000)  # a second, longer run goes on from there
    longer.wait_for(4000)
    assert len(longer.cache) < 4000 + 2 * 700
    longer.wait_for(None)  # more than was foreseen
    assert longer.cache.complete
    assert checksums(longer.cache) == expected
    assert longer.cache.fingerprint == short.cache.fingerprint


def test_a_killed_builder_is_started_again(growing, expected):
    one = growing()
    for _ in range(2):
        one.start()
        while one._builder is None:
            one.start()
        os.kill(one._builder.pid, signal.SIGKILL)
        one._builder.wait()
        one._next_attempt = 0
    one.wait_for(None)
    assert checksums(one.cache) == expected


def test_a_builder_that_is_always_killed_is_an_error_at_last(growing, monkeypatch):
    monkeypatch.setattr(token_builder, "_LOCK_SECONDS", 0)
    start = GrowingCache._start_builder

    def started_and_killed(self):
        start(self)
        os.kill(self._builder.pid, signal.SIGKILL)

    monkeypatch.setattr(GrowingCache, "_start_builder", started_and_killed)
    with pytest.raises(TokenBuildError, match="was killed by signal 9"):
        growing().wait_for(None)


def build_and_wait(folder: Path, source: Path, connection) -> None:
    cache = GrowingCache(TokenCache(folder), TextSource(str(source)), None)
    cache.start()
    connection.send(cache._builder.pid)
    time.sleep(1000)


def test_the_builder_ends_with_the_trainer_also_by_kill_9(growing, tmp_path):
    fifo = tmp_path / "train.jsonl"  # a source that never says anything: the builder waits in a read
    os.mkfifo(fifo)
    cache = growing().cache
    ours, theirs = SERVER.Pipe()
    trainer = SERVER.Process(target=build_and_wait, args=(cache.folder, fifo, theirs))
    trainer.start()
    pid = ours.recv()
    wait_for("the builder", (cache.folder / "tokens-0000000-00.tmp").exists)
    trainer.kill()
    trainer.join()
    wait_for("its end", lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    one = growing()
    one.wait_for(None)  # the lock went with it
    assert one.cache.complete


def test_two_at_once_share_one_cache(growing, expected):
    one, two = growing(), growing()
    one.start()
    two.start()
    two.wait_for(None)
    one.wait_for(None)
    assert checksums(one.cache) == expected
    assert one.cache.shards == two.cache.shards
    assert contents(one.cache.folder).keys() == contents(two.cache.folder).keys()


def test_what_the_builder_finds_wrong_is_raised_here(growing):
    with pytest.raises(ConfigurationError, match=r"data.text_column: no column 'body'"):
        growing(text_column="body").wait_for(1)


def test_a_full_disk_is_one_error_here(growing):
    one = growing()
    (one.cache.folder / "tokens-0000000-00.tmp").symlink_to("/dev/full")
    with pytest.raises(TokenBuildError, match=r"tokenising into .* failed: .* the disk is full"):
        one.wait_for(1)
    one.wait_for(1)  # there is space again: the link went with the failed shard


# -- the training's view


def batches(data: TrainingData, steps):
    """Inputs and targets of the global batches (position, sequences), one array."""
    parts = [part for step in steps for part in data.micro_batches(*step, 2, 0, 1, CPU)]
    return torch.stack([torch.cat(part) for part in parts]).numpy()


@pytest.fixture
def complete(growing, text_file, tokenizer, tmp_path):
    """`growing`, where there is the whole cache."""
    prepare(TextSource(text_file), tokenizer, tmp_path)
    return growing


def test_batches_are_what_the_order_says_from_any_position(complete):
    order = SequenceOrder(0, 16)
    data = TrainingData(complete(), order, LENGTH)
    cache, n = data.tokens.cache, data.tokens.cache.n_sequences(LENGTH)
    steps = [(0, 2), (2, 2), (4, 4), (8, 4), (12, 8), (20, 8)]
    steps += [(4, 2), (6, 2), (30, 8), (n - 4, 8), (n + 4, 8)]  # back to a branch point, and over the end
    found = batches(data, steps)
    expected = []
    for position, count in steps:
        for start in range(position, position + count, 2):
            sequences = cache.sequences(order.indices(start, 2, n), LENGTH)
            expected.append(np.concatenate([sequences[:, :-1], sequences[:, 1:]]))
    assert np.array_equal(found, np.stack(expected))
    assert data.wait_seconds > 0


def test_training_reads_the_same_from_a_cache_that_grows(complete, growing, text_file, tokenizer, tmp_path):
    """And it begins long before the cache is whole."""
    steps = [(position, 4) for position in range(0, 120, 4)]
    whole = TrainingData(complete(), SequenceOrder(0, 16), LENGTH)
    expected = batches(whole, steps)
    source = TextSource(text_file)
    cache = open_cache(source, tokenizer, tmp_path / "new")
    part = GrowingCache(cache, source, 16 * LENGTH + 1)
    data = TrainingData(part, SequenceOrder(0, 16), LENGTH)
    assert np.array_equal(batches(data, steps[:4]), expected[:8])
    assert not cache.complete
    assert data.unique_tokens is None
    identity = cache.dataset
    data.tokens.close()
    data = TrainingData(GrowingCache(cache, source, None), SequenceOrder(0, 16), LENGTH)
    assert np.array_equal(batches(data, steps), expected)
    data.tokens.wait_for(None)
    assert cache.dataset == identity == whole.tokens.cache.dataset
    assert data.unique_tokens == whole.unique_tokens == cache.n_sequences(LENGTH) * LENGTH
    data.tokens.close()


def test_the_cap_is_an_epoch_of_its_own(complete, caplog):
    data = TrainingData(complete(), SequenceOrder(0, 16), LENGTH, max_sequences=20)
    assert data.unique_tokens == 20 * LENGTH
    assert sorted(data.indices(0, 20)) == sorted(data.indices(20, 20)) == list(range(20))
    batches(data, [(18, 2)])
    assert "repeats" not in caplog.text
    batches(data, [(20, 2)])
    assert "the data repeats: epoch 2 of 640 tokens" in caplog.text


# -- from a configuration


def test_too_little_data_is_a_configuration_error(tiny, tokenizer, tmp_path, builds_here):
    write_dataset(tmp_path / "few", {"train": ["one."], "validation": make_documents(3, 0)})
    few = tiny(data__dataset=str(tmp_path / "few"))
    with pytest.raises(ConfigurationError, match=r"data.sequence_length: 32; the training data has only \d+ tokens"):
        training_data(few, tokenizer)
    with pytest.raises(ConfigurationError, match=r"data.train_tokens: 31; it must hold a sequence of 32"):
        training_data(tiny(data__train_tokens=31), tokenizer)
    with pytest.raises(ConfigurationError, match=r"data.shuffle_window: 0; it must be greater than 0"):
        tiny(data__shuffle_window=0)


def test_an_error_in_the_held_out_text_is_raised_while_training(tiny, tokenizer):
    pending = HeldOutText(tiny(data__validation_split="absent"), tokenizer)
    pending.tokens._builder.wait(60)
    with pytest.raises(ConfigurationError, match="absent"):
        pending.tokens.check()
