"""What the tests of the token cache share."""

import pytest

from training.data import cache as tokens
from training.data.tokenizer import load_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder):
    return load_tokenizer(str(tokenizer_folder))


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(tokens, "SHARD_TOKENS", 700)
