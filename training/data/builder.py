"""Filling a token cache: documents in, shards out, from wherever the last build stopped.

`build` fills it in this process. `GrowingCache` is what a training process holds: when it needs tokens that are not
there yet it looks for new shards, and starts a builder process when nobody holds the cache's lock. So of many ranks
and runs one builds and the others watch, and when its run ends before theirs have what they need, another takes over.
The builder goes as far as its run can need, and ends with it: it reads its standard input, which ends when the
training process does, also by `kill -9`.

    python -m training.data.builder < task.json     # started by `GrowingCache`; to tokenise by hand: training.prepare
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import math
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout
from tokenizers import Tokenizer

from hub.plain.atomic import sync
from hub.plain.commands import BAD_INPUT, report
from training.configuration.arguments import ConfigurationError
from training.data.cache import CorruptCacheError, TokenCache
from training.data.text import Place, TextSource
from training.data.tokenizer import fingerprint

logger = logging.getLogger(__name__)

_ROOT = str(Path(__file__).resolve().parents[2])  # for a process started in another folder
_BATCH_DOCUMENTS = 256  # encoded at a time, on all cores
_CHARACTERS = (
    4_000_000  # of them at once: `tokenizers` takes some 100 bytes for each token, and a document may be a book
)
_BUSY = 75  # exit status (EX_TEMPFAIL): another process builds this cache
_POLL_SECONDS = 0.05
_LOCK_SECONDS = 0.5  # between two attempts on the lock
_REPORT_SECONDS = 10  # of waiting before it is reported, and again every time it has doubled
_CHECK_SECONDS = 1.0  # that a start waits for checksums; the rest are compared beside it
_MAX_DEATHS = 3  # of builders that made no shard, before the error is raised


class TokenBuildError(RuntimeError):
    """The tokens could not be made, for a reason outside the configuration: disk, network, memory."""

    exit_status = 3


# -- in this process


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

    Args:
        folder: of a cache made by `open_cache`.
        until_tokens: None for all there are.
        on_tokens: called with the tokens of each document.

    Raises:
        ValueError: the source cannot be read, has changed, or has no document.
        CorruptCacheError: a file is not what was written.
        OSError: the disk is full, the network is gone, …; what was finished stays, and the next build resumes there.
    """
    log = folder / "shards.jsonl"
    if log.exists() and (content := log.read_bytes()) and not content.endswith(b"\n"):
        os.truncate(log, content.rfind(b"\n") + 1)  # left by a crash or a full disk; its shard is made again
    cache = TokenCache(folder)
    tokens, number, limit = len(cache), len(cache.shards), cache.recipe["max_tokens"] or math.inf
    if cache.has(until_tokens):
        return
    place = Place(*cache.shards[-1]["next"]) if cache.shards else Place()
    with closing(_encoded(source, place, cache)) as documents:
        while until_tokens is None or tokens < until_tokens:
            wanted = min(cache.recipe["shard_tokens"], limit - tokens)
            shard = _write_shard(documents, wanted, folder, number, cache.recipe["dtype"], on_tokens)
            if shard is not None:
                _append(log, shard)
                tokens, number = tokens + shard["tokens"], number + 1
            if shard is None or shard["tokens"] < wanted or tokens >= limit:
                break
        else:
            return
    if not tokens:
        raise ValueError(
            f"data.dataset: split {source.split!r} of {source.dataset!r} has no document "
            + ("that is held out" if source.held_out else "to train on")
        )
    _append(log, {"end": True, "tokens": tokens})


def _encoded(source: TextSource, start: Place, cache: TokenCache) -> Iterator[tuple[bytes, Callable[[], Place]]]:
    """(token ids as bytes, function to the place after it) of every document from `start` on, in order.

    `tokenizers` encodes a batch on all cores while the one before it is written.
    """
    path, recipe = cache.folder / "tokenizer.json", cache.recipe
    try:
        intact = fingerprint(text := path.read_text()) == recipe["tokenizer"]
    except (ValueError, KeyError):
        intact = False
    if not intact:
        raise CorruptCacheError(path, "is not the tokenizer that the tokens were made with")
    encode = encoder(text, recipe["eos_token_id"], recipe["dtype"])
    with ThreadPoolExecutor(1) as thread:
        before = None
        for batch in itertools.chain(source.batches(_BATCH_DOCUMENTS, start), [None]):
            following = batch and (*batch, thread.submit(encode, batch[0]))
            if before:
                texts, place, encoded = before
                for count, data in enumerate(encoded.result(), start=1):
                    yield data, partial(place.after, texts, count)
            before = following


def encoder(tokenizer_json: str, eos_token_id: int, dtype: str) -> Callable[[list[str]], list[bytes]]:
    """A function: texts -> the bytes of each one's token ids, end-of-text included.

    Args:
        tokenizer_json: see `tokenizer.description`.
        dtype: "<u2" or "<u4".
    """
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
    folder: Path,
    number: int,
    dtype: str,
    on_tokens: Callable[[int], None],
) -> dict | None:
    """Write documents until the shard holds `wanted` tokens; None when no document was left."""
    path, width = folder / f"tokens-{number:05d}.bin", int(dtype[-1])
    temporary = path.with_suffix(".tmp")
    digest, n_documents, n_bytes = hashlib.sha256(), 0, 0
    try:
        with open(temporary, "wb") as file:
            for data, place_after in documents:  # noqa: B007 (the last one is used)
                file.write(data)
                digest.update(data)
                n_documents, n_bytes = n_documents + 1, n_bytes + len(data)
                on_tokens(len(data) // width)
                if n_bytes >= wanted * width:
                    break
            file.flush()
            os.fsync(file.fileno())
        if not n_documents:
            return None
        os.replace(temporary, path)
        sync(folder)
    finally:
        temporary.unlink(missing_ok=True)
    shard = {"file": path.name, "tokens": n_bytes // width, "documents": n_documents, "sha256": digest.hexdigest()}
    return {**shard, "next": place_after()}


def _append(path: Path, entry: dict) -> None:
    with open(path, "ab") as file:
        file.write(json.dumps(entry).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


# -- beside the training


class GrowingCache:
    """A token cache that is extended while it is read.

    Args:
        cache: the cache as far as it is there.
        source: what it is built from.
        until_tokens: as far as this run can need it; None to the end of the data.
        patience: seconds to wait for other processes to build, so that the first rank of each node builds.
    """

    def __init__(self, cache: TokenCache, source: TextSource, until_tokens: int | None, patience: float = 0.0):
        self.cache = cache
        self._source = source
        self._until = until_tokens
        self._builder: _Builder | None = None
        self._deaths = 0
        self._next_look = time.monotonic() + patience
        self._compares = patience == 0  # checksums: one process of a node is enough
        self._damage: CorruptCacheError | OSError | None = None
        self._stop = threading.Event()

    def start(self) -> None:
        """Begin to build if tokens are missing and nobody does, and to compare the checksums of those that are there.

        The checksums are compared in a thread, so that damage is found before hours of training have come to it.

        Raises:
            CorruptCacheError: of a shard compared within a second; of a later one `check_shards` raises it.
        """
        self.cache.refresh()
        if self._compares and self.cache.shards:
            self._thread = threading.Thread(target=self._compare, name="check-tokens", daemon=True)
            self._thread.start()
            self._thread.join(_CHECK_SECONDS)
            self.check_shards()
        if not self.cache.has(self._until):
            self._keep_building()

    def wait_for(self, tokens: int | None) -> None:
        """Return once there are this many tokens (None: all), or the data is known to end before.

        Raises:
            ConfigurationError: the data cannot be read as configured, or is empty.
            TokenBuildError: the builder failed for another reason; what it had finished is kept.
            CorruptCacheError: a shard is not what it should be.
        """
        began, report_at = time.monotonic(), _REPORT_SECONDS
        if self._until is not None:
            self._until = None if tokens is None else max(self._until, tokens)
        while not self.cache.has(tokens):
            if self.cache.refresh():
                continue
            self._keep_building()
            if time.monotonic() - began > report_at:
                logger.info("waited %d s for tokens; the cache holds %s so far", report_at, f"{len(self.cache):,}")
                report_at *= 2
            time.sleep(_POLL_SECONDS)

    def check(self) -> None:
        """Raise what `wait_for` would raise by now, without waiting."""
        self.check_shards()
        self._poll()

    def check_shards(self) -> None:
        """Raise CorruptCacheError if a shard that was there at the start has turned out to be damaged."""
        if self._damage is not None:
            raise self._damage

    def close(self) -> None:
        """End the builder, if this process started one; the shard it was writing is lost."""
        self._stop.set()
        if self._builder is not None:
            self._builder.end()
            self._builder = None

    def _compare(self) -> None:
        try:
            for number in range(len(self.cache.shards)):
                if self._stop.is_set():
                    return
                self.cache.check_shard(number)
        except (CorruptCacheError, OSError) as error:
            self._damage = error

    def _keep_building(self) -> None:
        self._poll()
        if self._builder is None and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _LOCK_SECONDS
            with suppress(Timeout):  # another process builds
                lock_of(self.cache.folder, timeout=0).acquire().lock.release()
                self._builder = _Builder(self.cache, self._source, self._until)

    def _poll(self) -> None:
        """Raise what a builder of this process failed with, unless it is worth starting another."""
        if self._builder is None or (status := self._builder.process.poll()) is None:
            return
        builder, self._builder = self._builder, None
        if status in (0, _BUSY):
            return
        self.cache.refresh()
        error = builder.error(status)
        self._deaths += status < 0
        made_shards = len(self.cache.shards) > builder.shards_before  # so a fresh start may do: a lost connection, say
        if not made_shards and (status > 0 or self._deaths >= _MAX_DEATHS):
            raise error
        logger.warning("%s; restarting it", error)


class _Builder:
    """A started builder process."""

    def __init__(self, cache: TokenCache, source: TextSource, until_tokens: int | None):
        task = {"source": asdict(source), "folder": str(cache.folder), "until_tokens": until_tokens}
        self.folder, self.shards_before = cache.folder, len(cache.shards)
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `end`)
        # Found from any folder, and no other `training` that lies in the working directory.
        path = os.pathsep.join(filter(None, [_ROOT, os.environ.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "training.data.builder"],
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"},
            start_new_session=True,  # Ctrl-C is for the training, which still wants to finish its step and save
        )
        with suppress(BrokenPipeError):  # it died at once; `error` will say of what
            self.process.stdin.write(json.dumps(task).encode() + b"\n")
            self.process.stdin.flush()

    def error(self, status: int) -> ConfigurationError | TokenBuildError:
        """What a builder that failed said, or how it ended."""
        self._output.seek(0)
        output = self._output.read().decode(errors="replace")
        _, is_error, message = f"\n{output}".rpartition("\nerror: ")
        if is_error and status == BAD_INPUT:
            return ConfigurationError(message.strip())
        if is_error:
            return TokenBuildError(f"tokenising into {self.folder} failed: {message.strip()}")
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        return TokenBuildError("\n".join([f"the tokenising process {how}", *output.splitlines()[-20:]]))

    def end(self) -> None:
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()
        self._output.close()


def main() -> int:
    """The builder: a task as a line of JSON on standard input, which stays open as long as the tokens are wanted."""
    task = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    os.nice(5)  # on a machine that trains on its CPU the training goes first
    folder = Path(task["folder"])
    try:
        with lock_of(folder, timeout=1):
            build(TextSource(**task["source"]), folder, task["until_tokens"])
    except Timeout:
        return _BUSY
    except Exception as error:
        return report(error)
    return 0


def _end_with_parent(parent: int) -> None:
    # The pipe ends with the parent; its process id is a second sign, should another process have inherited the pipe.
    while os.getppid() == parent:
        if select.select([sys.stdin], [], [], 1.0)[0]:
            break
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
