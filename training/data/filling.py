"""Filling a token cache: `build` tokenises in order, `tokenise_groups` by many processes on any number of machines.

The tokens are those of group after group of the text, and a shard never holds two groups. So a group can be tokenised
without those before it, into `groups/`; `build` and `adopt` list its shards where they belong, and nothing is copied.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
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
from training.data.cache import WITHOUT_TEXT, CorruptCacheError, TokenCache
from training.data.text import OpenText, Place, TextSource
from training.data.tokenizer import fingerprint

_BATCH_DOCUMENTS = 256  # encoded at a time, on all cores
_CHARACTERS = 4_000_000  # encoded at once: `tokenizers` takes some 100 bytes a token, and a document may be a book

OnTokens = Callable[[int], object]  # called with the tokens of each document


def lock_of(folder: Path, timeout: float) -> FileLock:
    """The lock for listing shards in this cache; it is released with the process, however that ends."""
    return FileLock(folder / "build.lock", timeout=timeout)


def build(
    source: TextSource, folder: Path, until_tokens: int | None = None, on_tokens: OnTokens = lambda tokens: None
) -> None:
    """Append whole shards until there are `until_tokens` tokens or the data ends. The caller holds the lock.

    `folder` is one made by `open_cache`. Groups that other processes have finished are taken as they are.

    Raises:
        ValueError: the source cannot be read, has changed, or has no document.
        CorruptCacheError: a file is damaged.
        OSError: the disk is full, the network is gone, …; what was finished stays, and the next build resumes there.
    """
    _repair(folder)
    cache = TokenCache(folder)
    cache.check_sizes()
    limit = cache.recipe["max_tokens"] or math.inf
    place, text = _adopted(cache, cache.end), None
    while place is not None and not cache.has(until_tokens) and len(cache) < limit:
        text = text or source.open()
        place = _extended(cache, text, place, until_tokens, on_tokens)
        place = place and _adopted(cache, place)
    if cache.complete or (place is not None and len(cache) < limit):
        return
    if not cache.shards:
        raise InputError(
            f"data.dataset: split {source.split!r} of {source.dataset!r} has no document "
            + ("that is held out" if source.held_out else "to train on")
        )
    _append(folder, [{"end": True, "tokens": len(cache)}])


def _repair(folder: Path) -> None:
    """Cut off a line that a crash or a full disk left half written: its shard is made, or listed, again."""
    log = folder / "shards.jsonl"
    if log.exists() and (content := log.read_bytes()) and not content.endswith(b"\n"):
        os.truncate(log, content.rfind(b"\n") + 1)


def _extended(
    cache: TokenCache, text: OpenText, place: Place, until_tokens: int | None, on_tokens: OnTokens
) -> Place | None:
    """Tokenise from a place to the end of its group, or as far as is needed; returns the place after that."""
    limit = cache.recipe["max_tokens"] or math.inf
    with closing(_encoded(text, place, cache)) as documents:
        while not cache.has(until_tokens) and len(cache) < limit:
            wanted = min(cache.recipe["shard_tokens"], limit - len(cache))
            name = f"tokens-{len(cache.shards):05d}.bin"
            shard = _write_shard(documents, cache, name, wanted, on_tokens)
            _note_rows_without_text(cache.folder, text)
            if shard is None:
                return text.following
            ended = shard["tokens"] < wanted
            if ended and text.following is not None:
                shard["next"] = text.following
            _append(cache.folder, [shard])
            cache.refresh()
            if ended:
                return text.following
    return cache.end


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

    Raises as `build`, and ValueError in the stored order, which has no groups.
    """
    cache, text = TokenCache(folder), source.open()
    starts = group_starts(folder, text)
    (folder / "groups").mkdir(exist_ok=True)
    for start in starts[share.index :: share.of]:
        cache.refresh()
        if cache.has(until_tokens) or (until_tokens is not None and _finished_tokens(folder) >= until_tokens):
            return
        if _group(cache.end) > start:  # `build` has been here
            continue
        with suppress(Timeout), FileLock(folder / "groups" / f"{start:07d}.lock", timeout=0):  # else another has it
            if not _finished(folder, start).exists():
                _write_group(cache, text, start)


def group_starts(folder: Path, text: OpenText) -> list[int]:
    """`OpenText.group_starts`, found by one process for all."""
    path = folder / "groups.json"
    with FileLock(folder / "groups.lock"):
        if not path.exists():
            atomic.write_json(path, text.group_starts())
    return json.loads(path.read_text())


def n_finished(folder: Path) -> int:
    """Groups that were finished by `tokenise_groups`."""
    return len(list((folder / "groups").glob("*.json")))


def adopt(cache: TokenCache) -> None:
    """List the shards of all groups that are finished and follow on what is there. The caller holds the lock."""
    cache.refresh()
    if cache.complete or not _finished(cache.folder, _group(cache.end)).exists():
        return
    _repair(cache.folder)
    if _adopted(cache, cache.end) is None and cache.shards:
        _append(cache.folder, [{"end": True, "tokens": len(cache)}])
        cache.refresh()


def _finished(folder: Path, start: int) -> Path:
    """The list of the shards of a group, which is there once it is finished."""
    return folder / "groups" / f"{start:07d}.json"


def _finished_tokens(folder: Path) -> int:
    groups = [_read_group(path) for path in (folder / "groups").glob("*.json")]
    return sum(shard["tokens"] for group in groups for shard in group["shards"])


def _write_group(cache: TokenCache, text: OpenText, start: int) -> None:
    begun = _finished(cache.folder, start).with_suffix(".begun")
    shards = _begun(cache, begun)
    place = Place(*shards[-1]["next"]) if shards else _beginning(start)
    with closing(_encoded(text, place, cache)) as documents:
        wanted = cache.recipe["shard_tokens"]
        while shard := _write_shard(documents, cache, f"groups/{start:07d}-{len(shards):02d}.bin", wanted):
            shards.append(shard)
            _note_rows_without_text(cache.folder, text)
            atomic.write_json(begun, shards)
    _note_rows_without_text(cache.folder, text)
    if shards and text.following is not None:
        shards[-1]["next"] = text.following
    atomic.write_json(_finished(cache.folder, start), {"shards": shards, "following": text.following})
    begun.unlink(missing_ok=True)


def _begun(cache: TokenCache, path: Path) -> list[dict]:
    """The shards of a group that a killed process had finished; none if any of them is missing or damaged."""
    try:
        shards = json.loads(path.read_text())
        sizes = [(cache.folder / shard["file"]).stat().st_size for shard in shards]
        return shards if sizes == [shard["tokens"] * cache.dtype.itemsize for shard in shards] else []
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _beginning(start: int) -> Place:
    return Place(state={"part": start, "rows": 0}) if start else Place()


def _group(place: Place) -> int:
    """Number of the first part of a place's group, in a shuffled source."""
    return place.state["part"] if place.state else 0


def _adopted(cache: TokenCache, place: Place) -> Place | None:
    """List the shards of finished groups from a place on; returns the place after them, None where the data ends."""
    if "order" not in cache.recipe:
        return place
    at: Place | None = place
    while at is not None and (path := _finished(cache.folder, _group(at))).exists():
        group, beginning = _read_group(path), _beginning(_group(at))
        places = [beginning, *(Place(*shard["next"]) for shard in group["shards"])]
        here, ends = (at.state, at.after_state), [(one.state, one.after_state) for one in places]
        if here not in ends:  # the listed shard ends elsewhere: `build` continues from there
            break
        listed = ends.index(here)
        before = at.documents - places[listed].documents

        def counted(place: list, before: int = before) -> Place:
            return Place(*place)._replace(documents=place[0] + before)

        _append(cache.folder, [{**shard, "next": counted(shard["next"])} for shard in group["shards"][listed:]])
        at = group["following"] and counted(group["following"])
    cache.refresh()
    return at


def _read_group(path: Path) -> dict:
    try:
        group = json.loads(path.read_text())
        return {"shards": group["shards"], "following": group["following"]}
    except (ValueError, KeyError, TypeError):
        raise CorruptCacheError(path, "is damaged") from None


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
                encoded = tokenizer.encode_batch_fast(texts[begin:end], add_special_tokens=False)
                ids += [np.asarray([*one.ids, eos_token_id], dtype=dtype).tobytes() for one in encoded]
                begin, characters = end, 0
        return ids

    return encode


def _write_shard(
    documents: Iterator[tuple[bytes, Callable[[], Place]]],
    cache: TokenCache,
    name: str,
    wanted: float,
    on_tokens: OnTokens = lambda tokens: None,
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
                on_tokens(len(data) // width)
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
        while text.without_text:  # which another thread may be adding to
            file.write(f"{text.without_text.popleft()}\n")


def _append(folder: Path, entries: list[dict]) -> None:
    with open(folder / "shards.jsonl", "ab") as file:
        file.write(b"".join(json.dumps(entry).encode() + b"\n" for entry in entries))
        file.flush()
        os.fsync(file.fileno())
