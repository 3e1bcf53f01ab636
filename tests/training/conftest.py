"""What the tests of training share: cards without drawings, text and its token cache."""

from functools import wraps

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.training.ranks import without_drawing
from training import load_tokenizer
from training.data import cache as tokens
from training.data import filling
from training.data.builder import GrowingCache
from training.run import causal_model, releaser

CRAWLS, ROWS = 12, 120


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_drawn():
    """Cards are without drawings; `drawings` has them drawn."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(releaser, "run_pictures", without_drawing)
        yield


@pytest.fixture(scope="session", autouse=True)
def _classes_are_looked_through_once():
    """Read a class once for equal fields, on which alone the answer hangs, and not again for every run."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("without_gradient", "generates"):
            patch.setattr(causal_model, name, once_for_equal_fields(getattr(causal_model, name)))
        yield


def once_for_equal_fields(read):
    answers = {}

    @wraps(read)
    def stored(config):
        key = config.to_json_string(use_diff=False)
        if key not in answers:
            answers[key] = read(config)
        return answers[key]

    return stored


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder):
    return load_tokenizer(str(tokenizer_folder))


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(tokens, "SHARD_TOKENS", 700)


@pytest.fixture
def builds_here(monkeypatch):
    """Token caches are built in this process, for tests to which it does not matter who builds."""

    def build(growing):
        with filling.lock_of(growing.cache.folder, timeout=0):
            filling.build(growing._source, growing.cache.folder, growing._until)

    monkeypatch.setattr(GrowingCache, "_start_builder", build)


def write_crawls(folder, row_group_size=10):
    """A file for each crawl, whose documents name it and their place in it."""
    folder.mkdir()
    for crawl in range(CRAWLS):
        columns = {
            "text": [f"crawl {crawl} document {i}" for i in range(ROWS)],
            "id": [f"{crawl}-{i}" for i in range(ROWS)],
        }
        pq.write_table(pa.table(columns), folder / f"CC-{crawl:02d}.parquet", row_group_size=row_group_size)
    return folder


@pytest.fixture(scope="session")
def crawls(tmp_path_factory):
    return write_crawls(tmp_path_factory.mktemp("crawls") / "sorted")
