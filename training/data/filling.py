"""Filling a token cache: the tokens of group after group of the text, in shards that never hold two groups."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
from filelock import FileLock
from tokenizers import Tokenizer

from hub.base import atomic
from hub.base.errors import InputError
from training.data.cache import AS_TEXT, WITHOUT_TEXT, CorruptCacheError, TokenCache, group_file, read_group
from training.data.text import OpenText, Place, TextSource
from training.data.tokenizer import DroppedText, fingerprint, read_names_as_text

# Documents that are encoded at a time, on all cores.
_BATCH_DOCUMENTS = 256
# Characters that are encoded at once: `tokenizers` takes some 100 bytes a token, and a document may be a book.
_CHARACTERS = 4_000_000

# Token ids as bytes, and a function to the place after the document.
EncodedDocument = tuple[bytes, Callable[[], Place]]


def lock_of(folder: Path, timeout: float) -> FileLock:
    """Return the lock of whoever builds this cache; it is released with the process, however that ends."""
    return FileLock(folder / "build.lock", timeout=timeout)


def build(source: TextSource, folder: Path, until_tokens: int | None = None) -> None:
    """Append whole shards until there are `until_tokens` tokens or the data ends. The caller holds the lock.

    `folder` is one made by `open_cache`.

    Raises:
        ValueError: the source cannot be read, has changed, or has no document.
        CorruptCacheError: a file is damaged.
        OSError: the disk is full, the network is gone, …; what was finished stays, and the next build resumes there.
    """
    cache = TokenCache(folder)
    text = OpenText(source)
    for number in range(len(cache.shards)):
        cache.check_size(number)
    while cache.group is not None and not cache.has(until_tokens):
        _tokenise_group(cache, text, cache.group, until_tokens)
    if not cache.shards:
        purpose = "that is held out" if source.held_out else "to train on"
        raise InputError(f"data.dataset: split {source.split!r} of {source.dataset!r} has no document {purpose}")


def _tokenise_group(cache: TokenCache, text: OpenText, start: int, until_tokens: int | None) -> None:
    """Append what is missing of a group, until the cache holds enough."""
    path = group_file(cache.folder, start)
    shards = read_group(cache.folder, start)["shards"]
    place = Place(*shards[-1]["next"]) if shards else Place(group=start)
    dropped = DroppedText(_read_tokenizer(cache))
    with closing(_encoded(text, place, cache, dropped)) as documents:
        while not cache.has(until_tokens):
            min_tokens = min(cache.recipe["shard_tokens"], cache.max_tokens - len(cache))
            name = f"tokens-{start:07d}-{len(shards):02d}.bin"
            shard = _write_shard(documents, cache, name, min_tokens)
            if text.without_text:
                # A row that is read twice, after a kill, is noted twice.
                with open(cache.folder / WITHOUT_TEXT, "a", encoding="utf-8") as file:
                    # The thread that reads may be adding to it.
                    while text.without_text:
                        file.write(f"{text.without_text.popleft()}\n")
            if shard is None:
                break
            shards.append({**shard, "dropped": dict(dropped.counts)})
            dropped.counts.clear()
            atomic.write_json(path, {"shards": shards})
            cache.refresh()
        else:
            return
    if text.following is not None:
        # The file is there before anybody looks for it: see `open_cache`.
        group_file(cache.folder, text.following.group).touch()
    atomic.write_json(path, {"shards": shards, "following": text.following})
    cache.refresh()


def _encoded(
    text: OpenText, start: Place, cache: TokenCache, dropped: DroppedText
) -> Generator[EncodedDocument, None, None]:
    """Encode the documents from `start` to the end of its group, and count what is dropped of them."""
    encode = encoder(_read_tokenizer(cache), cache.recipe["eos_token_id"], cache.recipe["dtype"])
    batches = text.batches(_BATCH_DOCUMENTS, start)
    # The thread reads a batch while the one before it is encoded on all cores.
    with ThreadPoolExecutor(1) as thread:
        following = thread.submit(next, batches, None)
        while batch := following.result():
            following = thread.submit(next, batches, None)
            texts, place = batch
            for count, data in enumerate(encode(texts), start=1):
                dropped.count(texts[count - 1])
                yield data, partial(place.after, texts, count)


def _read_tokenizer(cache: TokenCache) -> str:
    """Read the tokenizer of a cache, to which the names of special tokens are text, unless the cache is an old one.

    Raises CorruptCacheError if it is not the tokenizer of these tokens.
    """
    path = cache.folder / "tokenizer.json"
    try:
        tokenizer = path.read_text()
        is_intact = fingerprint(tokenizer) == cache.recipe["tokenizer"]
    except (ValueError, KeyError):
        is_intact = False
    if not is_intact:
        raise CorruptCacheError(path, "is not the tokenizer of these tokens")
    return read_names_as_text(tokenizer, cache.recipe.get(AS_TEXT, []))


def encoder(tokenizer_json: str, eos_token_id: int, dtype: str) -> Callable[[list[str]], list[bytes]]:
    """Make a function: texts -> the bytes of each text's token ids ("<u2" or "<u4"), end-of-text included."""
    tokenizer = Tokenizer.from_str(tokenizer_json)

    def encode(texts: list[str]) -> list[bytes]:
        """Encode up to `_CHARACTERS` and a text more at once."""
        documents: list[bytes] = []
        begin = characters = 0
        for end, text in enumerate(texts, start=1):
            characters += len(text)
            if characters <= _CHARACTERS and end < len(texts):
                continue
            try:
                encodings = tokenizer.encode_batch_fast(texts[begin:end], add_special_tokens=False)
            except Exception as error:
                # The library raises nothing narrower.
                raise InputError(f"data.tokenizer: it cannot encode a document: {error}") from error
            documents += [np.asarray([*encoding.ids, eos_token_id], dtype=dtype).tobytes() for encoding in encodings]
            begin = end
            characters = 0
        return documents

    return encode


def _write_shard(documents: Iterator[EncodedDocument], cache: TokenCache, name: str, min_tokens: float) -> dict | None:
    """Write documents to a file until it holds `min_tokens`, and return its entry; None if no document was left."""
    path = cache.folder / name
    temporary = path.with_suffix(".tmp")
    token_bytes = cache.dtype.itemsize
    digest = hashlib.sha256()
    n_documents = 0
    n_tokens = 0
    try:
        with open(temporary, "wb") as file:
            for data, place_after in documents:  # noqa: B007 (the last one is used)
                file.write(data)
                digest.update(data)
                n_documents += 1
                n_tokens += len(data) // token_bytes
                if n_tokens >= min_tokens:
                    break
            file.flush()
            os.fsync(file.fileno())
        if not n_documents:
            return None
        os.replace(temporary, path)
        atomic.sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)
    return {
        "file": name,
        "tokens": n_tokens,
        "documents": n_documents,
        "sha256": digest.hexdigest(),
        "next": place_after(),
    }
