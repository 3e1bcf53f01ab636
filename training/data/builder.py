"""Tokenising beside the training: a process of its own that fills the cache while the training reads it.

`GrowingCache` is what a training process holds. When it needs tokens that are not there yet it looks for new shards,
and starts a builder when nobody holds the cache's lock: so of many ranks and runs one builds and the others watch, and
when its run ends before theirs have what they need, another takes over. The builder goes as far as its run can need,
and ends with it: it reads its standard input, which ends when the training process does, also by `kill -9`.

    python -m training.data.builder < task.json     # not meant to be typed; see training.prepare for that
"""

from __future__ import annotations

import json
import logging
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from filelock import Timeout

from training.configuration.arguments import ConfigurationError
from training.data.cache import CorruptCacheError, TokenCache
from training.data.text import TextSource

logger = logging.getLogger(__name__)

_ROOT = str(Path(__file__).resolve().parents[2])  # for a process that is started elsewhere
_BUSY = 75  # exit status (EX_TEMPFAIL): somebody else builds this cache
_POLL_SECONDS = 0.05
_LOOK_SECONDS = 0.5  # between looks at the lock
_SAY_SECONDS = 10  # of waiting before it is said, and again every time it has doubled
_CHECK_SECONDS = 1.0  # that a start waits for the checksums of what is there; more of them go on beside it
_MAX_DEATHS = 3  # of a builder that made no shard, before it is not started again


class TokenBuildError(RuntimeError):
    """The tokens could not be made, for a reason outside the configuration: disk, network, memory."""

    exit_status = 3


class Stopped(Exception):
    """Nobody wants the tokens any more that were being waited for."""


class GrowingCache:
    """A token cache that is built on while it is read.

    Args:
        cache: the cache as far as it is there.
        source: what it is built from.
        until_tokens: as far as this run can need it; None to the end of the data.
        patience: seconds to leave the building to others; so that of the ranks of a node the first one builds.
    """

    def __init__(self, cache: TokenCache, source: TextSource, until_tokens: int | None, patience: float = 0.0):
        self.cache = cache
        self._source = source
        self._until = until_tokens
        self._lock = threading.Lock()
        self._builder: _Builder | None = None
        self._deaths = 0
        self._next_look = time.monotonic() + patience
        self._checks = _Checks(cache) if patience == 0 else None  # one process of a node is enough

    def start(self) -> None:
        """Begin to build, if tokens are missing and nobody does, and to compare the checksums of those that are there.

        Raises:
            CorruptCacheError: of a shard whose turn came within a second; of a later one `check` raises it.
        """
        self.cache.refresh()
        if self._checks is not None:
            self._checks.start()
        if not self._there(self._until):
            self._keep_building()

    def wait_for(self, tokens: int | None, stop: threading.Event | None = None) -> None:
        """Return once there are this many tokens (None: all), or the data is known to end before.

        Raises:
            ConfigurationError: the data cannot be read as configured, or there is none.
            TokenBuildError: the builder failed for another reason; what it had finished is kept.
            CorruptCacheError: a shard is not what it should be.
            Stopped: `stop` was set.
        """
        began, say_at = time.monotonic(), _SAY_SECONDS
        if self._until is not None:
            self._until = None if tokens is None else max(self._until, tokens)
        while not self._there(tokens):
            if self.cache.refresh():
                continue
            if stop is not None and stop.is_set():
                raise Stopped
            self._keep_building()
            if time.monotonic() - began > say_at:
                logger.info("waited %d s for tokens; there are %s by now", say_at, f"{len(self.cache):,}")
                say_at *= 2
            time.sleep(_POLL_SECONDS)

    def check(self) -> None:
        """Raise what `wait_for` would raise by now, without waiting."""
        self.check_shards()
        with self._lock:
            if self._builder is not None and (status := self._builder.process.poll()) is not None:
                builder, self._builder = self._builder, None
                self._judge(builder, status)

    def check_shards(self) -> None:
        """Raise CorruptCacheError if a shard that was there at the start has turned out to be damaged."""
        if self._checks is not None and self._checks.error is not None:
            raise self._checks.error

    def close(self) -> None:
        """End the builder, if this process started one; the shard it was writing is lost."""
        if self._checks is not None:
            self._checks.close()
        with self._lock:
            if self._builder is not None:
                self._builder.end()
                self._builder = None

    def _there(self, tokens: int | None) -> bool:
        return self.cache.complete or (tokens is not None and len(self.cache) >= tokens)

    def _keep_building(self) -> None:
        with self._lock:
            if self._builder is not None:
                if (status := self._builder.process.poll()) is None:
                    return
                builder, self._builder = self._builder, None
                self._judge(builder, status)
                return
            if time.monotonic() < self._next_look:
                return
            self._next_look = time.monotonic() + _LOOK_SECONDS
            if _nobody_builds(self.cache.folder):
                self._builder = _Builder(self.cache, self._source, self._until)

    def _judge(self, builder: _Builder, status: int) -> None:
        """Raise what a builder that ended ended with, unless it is worth starting another."""
        if status in (0, _BUSY):
            return
        self.cache.refresh()
        kind, message = builder.error(status)
        if len(self.cache.shards) > builder.shards_before:
            # It worked for a while, and nobody is in need yet or a fresh start may do: a lost connection, say.
            logger.warning("%s; it is started again", message)
            return
        self._deaths += status < 0
        if status < 0 and self._deaths < _MAX_DEATHS:
            logger.warning("%s; it is started again", message)
            return
        raise ConfigurationError(message) if kind == "ValueError" else TokenBuildError(message)


class _Checks:
    """A thread that compares the checksums of the shards that are there, so that damage is found before hours of
    training have come to it. A shard that is read sooner is compared then."""

    def __init__(self, cache: TokenCache):
        self.error: CorruptCacheError | OSError | None = None
        self._cache, self._stop = cache, threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Compare; returns when all are done or a second is over. Raises what was found by then."""
        if self._thread is None and self._cache.shards:
            self._thread = threading.Thread(target=self._work, name="check-tokens", daemon=True)
            self._thread.start()
            self._thread.join(_CHECK_SECONDS)
            if self.error is not None:
                raise self.error

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        try:
            for number in range(len(self._cache.shards)):
                if self._stop.is_set():
                    return
                self._cache.check_shard(number)
        except (CorruptCacheError, OSError) as error:
            self.error = error


class _Builder:
    """A started builder process."""

    def __init__(self, cache: TokenCache, source: TextSource, until_tokens: int | None):
        task = {"source": asdict(source), "folder": str(cache.folder), "until_tokens": until_tokens}
        self.shards_before = len(cache.shards)
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `end`)
        # A session of its own: Ctrl-C is for the training, which still wants to finish its step and save.
        self.process = subprocess.Popen(
            [sys.executable, "-m", "training.data.builder"],
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **_import_this_package()},
            start_new_session=True,
        )
        with suppress(BrokenPipeError):  # it died at once; `error` will say of what
            self.process.stdin.write(json.dumps(task).encode() + b"\n")
            self.process.stdin.flush()

    def error(self, status: int) -> tuple[str, str]:
        """(kind, message) of a builder that failed."""
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").splitlines()
        try:
            last = json.loads(lines[-1])
            return last["kind"], last["message"]
        except (IndexError, ValueError, KeyError, TypeError):
            how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
            return "", "\n".join([f"the process that tokenises {how}", *lines[-20:]])

    def end(self) -> None:
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()
        self._output.close()


def _import_this_package() -> dict[str, str]:
    """Environment in which Python finds this package, and no other `training` that lies in the working directory."""
    paths = filter(None, [_ROOT, *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    return {"PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}


def _nobody_builds(folder: Path) -> bool:
    from training.data.writer import lock_of

    try:
        with lock_of(folder, timeout=0):
            return True
    except Timeout:
        return False


def main() -> int:
    """The builder: a task as a line of JSON on standard input, which is held open by whoever wants the tokens."""
    from training.data.writer import build, lock_of

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
        kind = "ValueError" if isinstance(error, (ValueError, FileNotFoundError)) else type(error).__name__
        message = str(error) if kind == "ValueError" else f"tokenising into {folder} failed: {kind}: {error}"
        print("\n" + json.dumps({"kind": kind, "message": message}), flush=True)
        return 1
    return 0


def _end_with_parent(parent: int) -> None:
    # The pipe ends with the parent; its process id is a second sign, should somebody have inherited the pipe.
    while os.getppid() == parent:
        if select.select([sys.stdin], [], [], 1.0)[0]:
            break
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
