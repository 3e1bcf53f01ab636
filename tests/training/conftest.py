"""What the tests of training share: cards without drawings, text and its token cache."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.training.ranks import without_drawing
from training import load_tokenizer
from training.configuration.class_counts import without_gradient
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
def _gradients_are_looked_for_once():
    """The parameters that no loss moves are found once for all models of one configuration."""
    lists = {}

    def remember(config):
        key = type(config), config.to_json_string(use_diff=False)
        if key not in lists:
            lists[key] = without_gradient(config)
        return lists[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(causal_model, "without_gradient", remember)
        yield


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
            filling.build(growing.source, growing.cache.folder, growing.until_tokens)

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
