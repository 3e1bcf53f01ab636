"""Building a token cache: documents in, shards out, from wherever the last build stopped."""

from __future__ import annotations

import hashlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from threading import Thread

import pyarrow as pa
from filelock import FileLock

from hub.plain.atomic import sync_folder
from training.data.cache import CorruptCacheError, TokenCache
from training.data.encoding import DocumentEncoder
from training.data.text import Place, TextSource
from training.data.tokenizer import fingerprint_of

# A batch is one piece of work for one process: large enough to be worth sending, small enough to share out evenly.
_BATCH_DOCUMENTS = 256
# Below this many characters the pool's start would cost more than it saves.
_CHARACTERS_ALONE = 8_000_000


def lock_of(folder: Path, timeout: float) -> FileLock:
    """The lock that whoever builds this cache holds; it goes with the process, however that ends."""
    return FileLock(folder / "build.lock", timeout=timeout)


def build(
    source: TextSource,
    folder: Path,
    until_tokens: int | None = None,
    processes: int | None = None,
    on_tokens: Callable[[int], None] = lambda tokens: None,
) -> None:
    """Append whole shards until there are `until_tokens` tokens or the data ends. The caller holds the lock.

    Args:
        folder: of a cache made by `open_cache`.
        until_tokens: None for all there are.
        processes: that tokenise; default: one per core.
        on_tokens: called with the tokens of each document.

    Raises:
        ValueError: the source cannot be read, is not what it was, or has no document.
        CorruptCacheError: what is there is not what was written.
        OSError: the disk is full, the network is gone, …; what was finished stays, and the next build goes on there.
    """
    _drop_torn_line(folder / "shards.jsonl")
    cache = TokenCache(folder)
    limit, tokens = cache.recipe["max_tokens"], len(cache)
    place = Place(*cache.shards[-1]["next"]) if cache.shards else Place()
    if cache.complete or (until_tokens is not None and tokens >= until_tokens):
        return
    number, ended = len(cache.shards), False
    with ExitStack() as stack:
        documents = _encoded(_readable(source, place), cache, processes, stack)
        while not ended and (until_tokens is None or tokens < until_tokens):
            wanted = cache.recipe["shard_tokens"]
            wanted = wanted if limit is None else min(wanted, limit - tokens)
            shard = _write_shard(documents, wanted, folder, number, cache.recipe["dtype"], on_tokens)
            if shard is not None:
                _append(folder / "shards.jsonl", shard)
                number, tokens = number + 1, tokens + shard["tokens"]
            ended = shard is None or shard["tokens"] < wanted or (limit is not None and tokens >= limit)
    if not ended:
        return
    if not tokens:
        raise ValueError(
            f"data.dataset: split {source.split!r} of {source.dataset!r} has no document "
            + ("that is held out" if source.held_out else "to train on")
        )
    _append(folder / "shards.jsonl", {"end": True, "tokens": tokens})


def _write_shard(
    documents: Iterator[tuple[bytes, Callable[[], Place]]],
    wanted: int,
    folder: Path,
    number: int,
    dtype: str,
    on_tokens,
) -> dict | None:
    """Write documents until the shard holds `wanted` tokens; None when there was no document left."""
    path, width = folder / f"tokens-{number:05d}.bin", int(dtype[-1])
    temporary = path.with_suffix(".tmp")
    digest, n_documents, n_bytes, behind = hashlib.sha256(), 0, 0, None
    try:
        with open(temporary, "wb") as file:
            for data, behind in documents:  # noqa: B007 (the last one is used)
                file.write(data)
                digest.update(data)
                n_documents += 1
                n_bytes += len(data)
                on_tokens(len(data) // width)
                if n_bytes >= wanted * width:
                    break
            file.flush()
            os.fsync(file.fileno())
        if not n_documents:
            return None
        os.replace(temporary, path)
        sync_folder(folder)
    finally:
        temporary.unlink(missing_ok=True)
    tokens = n_bytes // width
    return {
        "file": path.name, "tokens": tokens, "documents": n_documents, "sha256": digest.hexdigest(), "next": behind()
    }  # fmt: skip


def _append(path: Path, entry: dict) -> None:
    with open(path, "ab") as file:
        file.write(json.dumps(entry).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _drop_torn_line(path: Path) -> None:
    """A crash or a full disk can leave half a line behind; the shard that it was for is made again."""
    if path.exists() and (content := path.read_bytes()) and not content.endswith(b"\n"):
        os.truncate(path, content.rfind(b"\n") + 1)


def _readable(source: TextSource, place: Place) -> Iterator[tuple[list[str], Place]]:
    try:
        yield from source.batches(_BATCH_DOCUMENTS, place)
    except pa.ArrowException as error:  # a damaged or empty file; which it is stands in the log of `datasets`
        raise ValueError(f"data.dataset: {source.dataset!r} cannot be read: {error}") from error


def _encoded(
    batches: Iterable[tuple[list[str], Place]], cache: TokenCache, processes: int | None, stack: ExitStack
) -> Iterator[tuple[bytes, Callable[[], Place]]]:
    """(bytes, function to the place behind it) of every document in order; in several processes if it is much text."""
    description = _description(cache)
    encoder = (description, cache.recipe["eos_token_id"], cache.recipe["dtype"])
    encode, characters = DocumentEncoder(*encoder), 0
    processes = processes or len(os.sched_getaffinity(0))
    batches = iter(batches)
    for texts, place in batches:
        yield from _with_places(encode(texts), texts, place)
        characters += sum(map(len, texts))
        if characters > _CHARACTERS_ALONE and processes > 1:
            break
    pool, pending = None, deque()
    for texts, place in batches:
        if pool is None:
            pool = _start_pool(processes, encoder)
            stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        pending.append((texts, place, pool.submit(_encode, texts)))
        if len(pending) > 2 * processes:  # enough to keep all busy, and the memory bounded
            texts, place, done = pending.popleft()
            yield from _with_places(done.result(), texts, place)
    for texts, place, done in pending:
        yield from _with_places(done.result(), texts, place)


def _description(cache: TokenCache) -> str:
    """The cache's tokenizer. Raises CorruptCacheError where it is not the one that the recipe names."""
    path = cache.folder / "tokenizer.json"
    try:
        if fingerprint_of(text := path.read_text()) == cache.recipe["tokenizer"]:
            return text
    except (ValueError, KeyError):
        pass
    raise CorruptCacheError(path, "is not the tokenizer that the tokens were made with")


def _with_places(encoded: list[bytes], texts: list[str], place: Place) -> Iterator[tuple[bytes, Callable[[], Place]]]:
    for count, data in enumerate(encoded, start=1):
        yield data, partial(place.behind, texts, count)


def _start_pool(processes: int, encoder: tuple) -> ProcessPoolExecutor:
    # Spawned, since a fork of a process with threads (the readers of `datasets`) may hang.
    return ProcessPoolExecutor(processes, get_context("spawn"), _start_worker, encoder)


def _start_worker(*encoder) -> None:
    global _encode_documents
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a process per core already
    _encode_documents = DocumentEncoder(*encoder)
    # A worker whose parent is killed would wait for work for ever.
    sentinel = parent_process().sentinel
    Thread(target=lambda: (connection.wait([sentinel]), os._exit(1)), daemon=True).start()


def _encode(texts: list[str]) -> list[bytes]:
    return _encode_documents(texts)
