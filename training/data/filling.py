"""Filling a token cache: `build` tokenises in order, `tokenise_groups` by many processes on any number of machines.

The tokens are those of group after group of the text, and a shard never holds two groups. So a group can be tokenised
without those before it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from filelock import FileLock, Timeout
from tokenizers import Tokenizer

from hub.base import atomic
from hub.base.errors import InputError
from training.data.cache import AS_TEXT, WITHOUT_TEXT, CorruptCacheError, TokenCache, group_file, read_group
from training.data.text import OpenText, Place, TextSource
from training.data.tokenizer import fingerprint, read_names_as_text

_BATCH_DOCUMENTS = 256  # encoded at a time, on all cores
_CHARACTERS = 4_000_000  # encoded at once: `tokenizers` takes some 100 bytes a token, and a document may be a book


def lock_of(folder: Path, timeout: float) -> FileLock:
    """The lock of whoever builds this cache in order; it is released with the process, however that ends."""
    return FileLock(folder / "build.lock", timeout=timeout)


def build(source: TextSource, folder: Path, until_tokens: int | None = None) -> None:
    """Append whole shards until there are `until_tokens` tokens or the data ends. The caller holds the lock.

    `folder` is one made by `open_cache`. Groups that other processes have finished are taken as they are.

    Raises:
        ValueError: the source cannot be read, has changed, or has no document.
        CorruptCacheError: a file is damaged.
        OSError: the disk is full, the network is gone, …; what was finished stays, and the next build resumes there.
    """
    cache, text = TokenCache(folder), source.open()
    for number in range(len(cache.shards)):
        cache.check_size(number)
    while cache.group is not None and not cache.has(until_tokens):
        # Another process may be at the group.
        with suppress(Timeout), _group_lock(folder, cache.group, timeout=1):
            for _ in _tokenised(cache, text, cache.group):
                cache.refresh()
                if cache.has(until_tokens):
                    return
        cache.refresh()
    if not cache.shards:
        raise InputError(
            f"data.dataset: split {source.split!r} of {source.dataset!r} has no document "
            + ("that is held out" if source.held_out else "to train on")
        )


# -- by many processes


class Share(NamedTuple):
    """The groups number index, index + of, index + 2 · of, …"""

    index: int = 0
    of: int = 1

    @classmethod
    def parse(cls, text: str) -> Share:
        """A share written as INDEX/OF. Raises ValueError for another text, or an index that is not below OF."""
        with suppress(ValueError):
            index, of = map(int, text.split("/"))
            if 0 <= index < of:
                return cls(index, of)
        raise InputError(f"{text!r}; it must be I/N with 0 <= I < N, such as 0/8 for the first of eight")

    def split(self, number: int, of: int) -> Share:
        """Part `number` of `of` parts of this share."""
        return Share(self.index + number * self.of, self.of * of)


def tokenise_groups(source: TextSource, folder: Path, share: Share, until_tokens: int | None = None) -> None:
    """Tokenise the groups of a share that nobody has finished; what is killed loses the shard it was at.

    With `until_tokens` no group is begun once there are so many in groups that are finished, wherever these lie.

    Raises as `build`.
    """
    cache, text = TokenCache(folder), source.open()
    for start in group_starts(folder, text)[share.index :: share.of]:
        cache.refresh()
        tokens = sum(shard["tokens"] for group in finished(folder) for shard in group["shards"])
        if cache.has(until_tokens) or (until_tokens is not None and tokens >= until_tokens):
            return
        # Another process may have the group.
        with suppress(Timeout), _group_lock(folder, start, timeout=0):
            deque(_tokenised(cache, text, start), maxlen=0)


def group_starts(folder: Path, text: OpenText) -> list[int]:
    """`OpenText.group_starts`, found by one process for all."""
    path = folder / "groups.json"
    with FileLock(folder / "groups.lock"):
        if not path.exists():
            atomic.write_json(path, text.group_starts())
    return json.loads(path.read_text())


# -- groups


def finished(folder: Path) -> list[dict]:
    """The groups that are tokenised to their end."""
    groups = [read_group(folder, int(path.stem[6:])) for path in folder.glob("group-*.json")]
    return [group for group in groups if "following" in group]


def _group_lock(folder: Path, start: int, timeout: float) -> FileLock:
    return FileLock(group_file(folder, start).with_suffix(".lock"), timeout=timeout)


def _tokenised(cache: TokenCache, text: OpenText, start: int) -> Iterator[None]:
    """Tokenise what is missing of a group; yields after every shard. The caller holds the group's lock."""
    path = group_file(cache.folder, start)
    if "following" in (group := read_group(cache.folder, start)):
        return
    shards = group["shards"]
    if not all(cache.has_file(shard) for shard in shards):  # damaged: the group begins again
        shards = []
    place = Place(*shards[-1]["next"]) if shards else Place(group=start)
    with closing(_encoded(text, place, cache)) as documents:
        while True:
            wanted = min(cache.recipe["shard_tokens"], cache.max_tokens - len(cache))
            name = f"tokens-{start:07d}-{len(shards):02d}.bin"
            shard = _write_shard(documents, cache, name, wanted)
            _note_rows_without_text(cache.folder, text)
            if shard is None:
                break
            shards.append(shard)
            atomic.write_json(path, {"shards": shards})
            yield
    if text.following is not None:
        group_file(cache.folder, text.following.group).touch()  # before anybody looks for it: see `open_cache`
    atomic.write_json(path, {"shards": shards, "following": text.following})


# -- documents to shards


def _encoded(text: OpenText, start: Place, cache: TokenCache) -> Iterator[tuple[bytes, Callable[[], Place]]]:
    """(token ids as bytes, function to the place after it) of the documents from `start` to the end of its group."""
    path, recipe = cache.folder / "tokenizer.json", cache.recipe
    try:
        intact = fingerprint(tokenizer := path.read_text()) == recipe["tokenizer"]
    except (ValueError, KeyError):
        intact = False
    if not intact:
        raise CorruptCacheError(path, "is not the tokenizer of these tokens")
    tokenizer = read_names_as_text(tokenizer, recipe.get(AS_TEXT, []))
    encode = encoder(tokenizer, recipe["eos_token_id"], recipe["dtype"])
    batches = text.batches(_BATCH_DOCUMENTS, start)
    with ThreadPoolExecutor(1) as thread:  # reads a batch while the one before it is encoded on all cores
        following = thread.submit(next, batches, None)
        while batch := following.result():
            following = thread.submit(next, batches, None)
            texts, place = batch
            for count, data in enumerate(encode(texts), start=1):
                yield data, partial(place.after, texts, count)


def encoder(tokenizer_json: str, eos_token_id: int, dtype: str) -> Callable[[list[str]], list[bytes]]:
    """A function: texts -> the bytes of each one's token ids ("<u2" or "<u4"), end-of-text included."""
    tokenizer = Tokenizer.from_str(tokenizer_json)

    def encode(texts: list[str]) -> list[bytes]:
        ids, begin, characters = [], 0, 0
        for end, text in enumerate(texts, start=1):
            characters += len(text)
            if characters > _CHARACTERS or end == len(texts):
                try:
                    encoded = tokenizer.encode_batch_fast(texts[begin:end], add_special_tokens=False)
                except Exception as error:  # the library raises nothing narrower
                    raise InputError(f"data.tokenizer: it cannot encode a document: {error}") from error
                ids += [np.asarray([*one.ids, eos_token_id], dtype=dtype).tobytes() for one in encoded]
                begin, characters = end, 0
        return ids

    return encode


def _write_shard(
    documents: Iterator[tuple[bytes, Callable[[], Place]]], cache: TokenCache, name: str, wanted: float
) -> dict | None:
    """Write documents to a file until it holds `wanted` tokens; returns its entry, None when no document was left."""
    path, width = cache.folder / name, cache.dtype.itemsize
    temporary = path.with_suffix(".tmp")
    digest, n_documents, n_tokens = hashlib.sha256(), 0, 0
    try:
        with open(temporary, "wb") as file:
            for data, place_after in documents:  # noqa: B007 (the last one is used)
                file.write(data)
                digest.update(data)
                n_documents, n_tokens = n_documents + 1, n_tokens + len(data) // width
                if n_tokens >= wanted:
                    break
            file.flush()
            os.fsync(file.fileno())
        if not n_documents:
            return None
        os.replace(temporary, path)
        atomic.sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)
    shard = {"file": name, "tokens": n_tokens, "documents": n_documents, "sha256": digest.hexdigest()}
    return {**shard, "next": place_after()}


def _note_rows_without_text(folder: Path, text: OpenText) -> None:
    """Write the names of skipped rows beside the tokens; a row that is read twice, after a kill, is noted twice."""
    with open(folder / WITHOUT_TEXT, "a", encoding="utf-8") if text.without_text else nullcontext() as file:
        # Another thread may be adding to it.
        while text.without_text:
            file.write(f"{text.without_text.popleft()}\n")
