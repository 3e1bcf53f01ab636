"""The token cache: a split of a dataset as one long row of token ids on disk, read by memory map while it grows.

`recipe.json` holds what decides the tokens, `shards.jsonl` a line per finished shard. A shard ends with the document
that reaches `shard_tokens`, so an interrupted or extended cache is byte for byte the one built in one go.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from filelock import FileLock
from tokenizers import Tokenizer

from hub.plain import atomic
from hub.plain.atomic import sha256_of, sync, write_bytes
from training.data.text import ORDER_RECIPE, Place, TextSource
from training.data.tokenizer import description, fingerprint

FORMAT = 2
SHARD_TOKENS = 1 << 24
_OPEN_SHARDS = 256  # memory maps held at a time; a training window lies in a few
_BATCH_DOCUMENTS = 256  # encoded at a time, on all cores
_CHARACTERS = 4_000_000  # encoded at once: `tokenizers` takes some 100 bytes a token, and a document may be a book


class CorruptCacheError(RuntimeError):
    """A file of the token cache is missing or is not what was written. The message says which, and what to do."""

    exit_status = 3

    def __init__(self, path: Path, what: str):
        super().__init__(f"{path} {what}; delete the folder {path.parent}, and the next start tokenises it again")


class TokenCache:
    """A token cache as far as it is built; `refresh` looks for more.

    Attributes:
        recipe: everything that decides the tokens; the folder is named after its hash.
        dtype: of the ids on disk, uint16 or uint32 little endian.
        shards: the entries of `shards.jsonl` for the finished shards.
        complete: whether the data ends with these shards.

    Raises:
        CorruptCacheError: when opened or refreshed, a shard is missing or has another size.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.shards: list[dict] = []
        self.complete = False
        path = folder / "recipe.json"
        try:
            self.recipe = json.loads(path.read_text())
            self.dtype = np.dtype(self.recipe["dtype"])
        except (ValueError, KeyError, TypeError):  # ValueError: neither JSON nor UTF-8
            raise CorruptCacheError(path, "is not what was written") from None
        self._ends: list[int] = []  # of the shards, in tokens
        self._read_bytes = 0  # of shards.jsonl
        self._checked: set[int] = set()  # numbers of the shards whose sha256 was compared
        self._map = lru_cache(_OPEN_SHARDS)(self._open)
        self.refresh()

    def refresh(self) -> bool:
        """Take in the shards finished since; returns whether there were any, or the end was found."""
        path = self.folder / "shards.jsonl"
        if self.complete or not path.exists():
            return False
        with open(path, "rb") as file:
            file.seek(self._read_bytes)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]  # the last line may be half written
        self._read_bytes += len(whole)
        for line in whole.splitlines():
            shard = _parsed(path, line)
            if "end" in shard:
                self.complete = True
                break
            file, size = self.folder / shard["file"], shard["tokens"] * self.dtype.itemsize
            if not file.exists() or file.stat().st_size != size:
                raise CorruptCacheError(file, f"does not hold {shard['tokens']} tokens")
            self.shards.append(shard)
            self._ends.append(len(self) + shard["tokens"])
        return bool(whole)

    def check_shard(self, number: int) -> None:
        """Compare the sha256 of a shard, once; this takes a second for each 1.5 GB. Raises CorruptCacheError."""
        if number in self._checked:
            return
        shard = self.shards[number]
        if sha256_of(self.folder / shard["file"]) != shard["sha256"]:
            raise CorruptCacheError(self.folder / shard["file"], "has another sha256 than when it was written")
        self._checked.add(number)

    def _open(self, number: int) -> np.ndarray:
        self.check_shard(number)
        mapped = np.memmap(self.folder / self.shards[number]["file"], dtype=self.dtype, mode="r")
        return mapped.view(np.ndarray)  # slices of a plain array are several times cheaper to make

    def __len__(self) -> int:
        """Tokens there are by now, end-of-text tokens included."""
        return self._ends[-1] if self._ends else 0

    def has(self, tokens: int | None) -> bool:
        """Whether there are this many tokens by now (None: all of the data), or the data ends before."""
        return self.complete or (tokens is not None and len(self) >= tokens)

    @property
    def dataset(self) -> dict[str, str]:
        """The dataset's id, revision and fingerprint as a run record states them, however far the cache is built."""
        source = self.recipe["source"]
        return {"id": source["dataset"], "revision": source["revision"], "fingerprint": self.fingerprint}

    @property
    def fingerprint(self) -> str:
        """A sha256 over the recipe and the first shard's checksum; there must be a shard.

        The recipe decides every shard; the checksum notices a library that makes other tokens than it used to.
        """
        text = f"{recipe_hash(self.recipe)}\n{self.shards[0]['sha256']}"
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()

    def n_sequences(self, sequence_length: int) -> int:
        """Sequences of this length by now (each needs one token more, for its last target)."""
        return max(0, len(self) - 1) // sequence_length

    def sequences(self, indices: np.ndarray, sequence_length: int) -> np.ndarray:
        """Sequences by index: int64 (len(indices), sequence_length + 1); inputs are [:, :-1] and targets [:, 1:]."""
        out = np.empty((len(indices), sequence_length + 1), dtype=np.int64)
        for row, start in zip(out, (indices * sequence_length).tolist(), strict=True):
            self._read_into(row, start)
        return out

    def read(self, start: int, count: int) -> np.ndarray:
        """Token ids start .. start + count - 1 as int64, across shard borders."""
        out = np.empty(count, dtype=np.int64)
        self._read_into(out, start)
        return out

    def _read_into(self, out: np.ndarray, start: int) -> None:
        shard, filled = bisect_right(self._ends, start), 0
        begin = start - (self._ends[shard - 1] if shard else 0)
        while filled < len(out):
            part = self._map(shard)[begin : begin + len(out) - filled]
            out[filled : filled + len(part)] = part
            filled, begin, shard = filled + len(part), 0, shard + 1


def _parsed(path: Path, line: bytes) -> dict:
    """A line of the list of shards: a shard, or the end."""
    try:
        entry = json.loads(line)
        if "end" in entry or (entry["sha256"] and entry["documents"] > 0 and entry["tokens"] > 0 and entry["file"]):
            return entry
    except (ValueError, KeyError, TypeError):
        pass
    raise CorruptCacheError(path, f"has the line {line[:60]!r}, which was not written so")


def open_cache(source: TextSource, tokenizer, cache_dir: str | Path, max_tokens: int | None = None) -> TokenCache:
    """The cache of a source, with its recipe on disk but possibly no tokens yet.

    It ends with the document that reaches `max_tokens`, and is another cache for another number; with None it ends
    where the data does, and is shared by all who want more or less of it. `cache_dir` holds all caches.

    Raises as `TextSource.identify` and `TokenCache`, and CorruptCacheError for another recipe.
    """
    cache_dir = Path(cache_dir)
    dataset, tokenizer_json = source.identify(cache_dir / "checksums.json"), description(tokenizer)
    recipe = {
        "format": FORMAT,
        "shard_tokens": SHARD_TOKENS,
        "source": {**asdict(source), **dataset},
        "tokenizer": fingerprint(tokenizer_json),
        "eos_token_id": tokenizer.eos_token_id,
        "dtype": "<u2" if len(tokenizer) <= 1 << 16 else "<u4",
        "max_tokens": max_tokens,
    }
    if source.file_seed is not None:  # the stored order keeps the recipe that it had before there was another
        recipe["order"] = ORDER_RECIPE
    folder = cache_dir / f"{Path(source.dataset).name}-{source.split}-{recipe_hash(recipe)[:16]}"
    if not (folder / "recipe.json").exists():
        write_bytes(folder / "tokenizer.json", tokenizer_json.encode())
        atomic.write_json(folder / "recipe.json", recipe)  # last: a folder with a recipe is whole
    cache = TokenCache(folder)
    if cache.recipe != recipe:
        raise CorruptCacheError(folder / "recipe.json", "is not the recipe that its folder is named after")
    return cache


def recipe_hash(recipe: dict) -> str:
    """sha256 (hex) of everything that decides the tokens."""
    return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()


# -- filling it


def lock_of(folder: Path, timeout: float) -> FileLock:
    """The lock of whoever builds this cache; it is released with the process, however that ends."""
    return FileLock(folder / "build.lock", timeout=timeout)


def build(
    source: TextSource,
    folder: Path,
    until_tokens: int | None = None,
    on_tokens: Callable[[int], None] = lambda tokens: None,
) -> None:
    """Append whole shards until there are `until_tokens` tokens or the data ends. The caller holds the lock.

    `folder` is one made by `open_cache`; `on_tokens` is called with the tokens of each document.

    Raises:
        ValueError: the source cannot be read, has changed, or has no document.
        CorruptCacheError: a file is not what was written.
        OSError: the disk is full, the network is gone, …; what was finished stays, and the next build resumes there.
    """
    log = folder / "shards.jsonl"
    if log.exists() and (content := log.read_bytes()) and not content.endswith(b"\n"):
        os.truncate(log, content.rfind(b"\n") + 1)  # left by a crash or a full disk; its shard is made again
    cache = TokenCache(folder)
    limit = cache.recipe["max_tokens"] or math.inf
    if cache.has(until_tokens):
        return
    place = Place(*cache.shards[-1]["next"]) if cache.shards else Place()
    with closing(_encoded(source, place, cache)) as documents:
        while not cache.has(until_tokens):
            wanted = min(cache.recipe["shard_tokens"], limit - len(cache))
            shard = _write_shard(documents, wanted, cache, on_tokens)
            if shard is not None:
                _append(log, shard)
                cache.refresh()
            if shard is None or shard["tokens"] < wanted or len(cache) >= limit:
                break
        else:
            return
    if not cache.shards:
        raise ValueError(
            f"data.dataset: split {source.split!r} of {source.dataset!r} has no document "
            + ("that is held out" if source.held_out else "to train on")
        )
    _append(log, {"end": True, "tokens": len(cache)})


def _encoded(source: TextSource, start: Place, cache: TokenCache) -> Iterator[tuple[bytes, Callable[[], Place]]]:
    """(token ids as bytes, function to the place after it) of every document from `start` on, in order."""
    path, recipe = cache.folder / "tokenizer.json", cache.recipe
    try:
        intact = fingerprint(text := path.read_text()) == recipe["tokenizer"]
    except (ValueError, KeyError):
        intact = False
    if not intact:
        raise CorruptCacheError(path, "is not the tokenizer that the tokens were made with")
    encode = encoder(text, recipe["eos_token_id"], recipe["dtype"])
    batches = source.batches(_BATCH_DOCUMENTS, start)
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
        found, begin, characters = [], 0, 0
        for end, text in enumerate(texts, start=1):
            characters += len(text)
            if characters > _CHARACTERS or end == len(texts):
                encoded = tokenizer.encode_batch_fast(texts[begin:end], add_special_tokens=False)
                found += [np.asarray([*one.ids, eos_token_id], dtype=dtype).tobytes() for one in encoded]
                begin, characters = end, 0
        return found

    return encode


def _write_shard(
    documents: Iterator[tuple[bytes, Callable[[], Place]]],
    wanted: float,
    cache: TokenCache,
    on_tokens: Callable[[int], None],
) -> dict | None:
    """Write documents until the next shard holds `wanted` tokens; None when no document was left."""
    path, width = cache.folder / f"tokens-{len(cache.shards):05d}.bin", cache.dtype.itemsize
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
        sync(cache.folder)
    finally:
        temporary.unlink(missing_ok=True)
    shard = {"file": path.name, "tokens": n_tokens, "documents": n_documents, "sha256": digest.hexdigest()}
    return {**shard, "next": place_after()}


def _append(path: Path, entry: dict) -> None:
    with open(path, "ab") as file:
        file.write(json.dumps(entry).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
