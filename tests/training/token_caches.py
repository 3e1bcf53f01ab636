"""Helpers of the tests of token caches."""

from pathlib import Path

from training import TextSource
from training.data.cache import TokenCache, open_cache
from training.data.filling import build, lock_of


def prepare(source: TextSource, tokenizer, cache_dir, max_tokens=None, until=None, **options) -> TokenCache:
    """The cache of a source, built here and now as far as `until`; `options` are those of `open_cache`."""
    cache = open_cache(source, tokenizer, cache_dir, max_tokens, **options)
    with lock_of(cache.folder, timeout=0):
        build(source, cache.folder, until)
    cache.refresh()
    return cache


def flip_a_bit(path: Path, position: int = 100) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 4
    path.write_bytes(data)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a cache that says what its tokens are."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix != ".lock"}
