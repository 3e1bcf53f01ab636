"""A token cache that grows beside the training.

The process that holds the cache's lock builds; others wait, and take over if its run ends early. The builder ends with
its run, even after `kill -9`, because its standard input then closes.
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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO

from filelock import Timeout

from hub.base.commands import BAD_INPUT, report
from hub.base.disk import explain_full_disk
from training.configuration.errors import ConfigurationError
from training.data.cache import WITHOUT_TEXT, CorruptCacheError, TokenCache
from training.data.filling import build, lock_of
from training.data.text import TextSource

logger = logging.getLogger(__name__)

# A process started in another folder finds the package here.
_ROOT = str(Path(__file__).resolve().parents[2])
# Exit status (EX_TEMPFAIL) where another process builds this cache.
_BUSY = 75
_POLL_SECONDS = 0.05
# Seconds between two attempts on the lock.
_LOCK_SECONDS = 0.5
# Seconds of waiting before it is reported, and again every time they have doubled.
_REPORT_SECONDS = 10
# Seconds that a start waits for checksums; the rest are compared beside it.
_CHECK_SECONDS = 1.0
_ADVICE = "remove what you do not need, such as token caches beside it, and start again: finished shards are kept"
# Builders that may die without a shard before the error is raised.
_MAX_DEATHS = 3


class TokenBuildError(RuntimeError):
    """Tokenising failed for a reason outside the configuration: disk, network, memory."""

    exit_status = 3


class GrowingCache:
    """A token cache that is extended while it is read, from `source`, as far as `until_tokens` (None: all the data).

    It leaves building to others for `patience` seconds, so that the first rank of each node builds.
    """

    def __init__(self, cache: TokenCache, source: TextSource, until_tokens: int | None, patience: float = 0.0):
        self.cache = cache
        self.source = source
        self.until_tokens = until_tokens
        self._builder: Builder | None = None
        self._deaths = 0
        self._shards_at_death = len(cache.shards)
        self._next_attempt = time.monotonic() + patience
        # One process of a node compares checksums and reports rows.
        self._is_first = patience == 0
        self._reported_rows = 0
        self._has_reported_dropped = False
        self._damage: CorruptCacheError | OSError | None = None

    def start(self) -> None:
        """Start building if tokens are missing and no other process builds; start checking existing checksums.

        Raises CorruptCacheError for damage that shows within a second; `check_shards` raises it later.
        """
        self.cache.refresh()
        self._report_rows()
        self._report_dropped()
        if self._is_first and self.cache.shards:
            # In a thread: damage shows now, not after hours of training.
            self._thread = threading.Thread(target=self._compare, name="check-tokens", daemon=True)
            self._thread.start()
            self._thread.join(_CHECK_SECONDS)
            self.check_shards()
        if not self.cache.has(self.until_tokens):
            self._keep_building()

    def wait_for(self, tokens: int | None, on_shards: Callable[[], object] = lambda: None) -> None:
        """Wait for this many tokens (None: all), or the end of the data; `on_shards` is called for what comes.

        Raises:
            ConfigurationError: the data cannot be read as configured, or is empty.
            TokenBuildError: the builder failed for another reason; its finished shards are kept.
            CorruptCacheError: a shard is damaged.
        """
        start_time = time.monotonic()
        report_at = _REPORT_SECONDS
        if self.until_tokens is not None:
            self.until_tokens = None if tokens is None else max(self.until_tokens, tokens)
        while not self.cache.has(tokens):
            if self.cache.refresh():
                self._report_dropped()
                on_shards()
                continue
            self._keep_building()
            if time.monotonic() - start_time > report_at:
                logger.info("waited %d s for tokens; the cache holds %s so far", report_at, f"{len(self.cache):,}")
                report_at *= 2
            # The longer it takes, the less it matters when this is seen, and many may be looking at one file.
            pause = 0.02 * (time.monotonic() - start_time)
            time.sleep(min(max(_POLL_SECONDS, pause), 20 * _POLL_SECONDS))

    def check(self) -> None:
        """Raise the error that `wait_for` would raise, without waiting."""
        self.check_shards()
        self._poll()

    def check_shards(self) -> None:
        """Raise CorruptCacheError if a shard that was there at the start has turned out to be damaged."""
        if self._damage is not None:
            raise self._damage

    def close(self) -> None:
        """End the builder, if this process started one; the shard it was writing is lost."""
        self._report_rows()
        self._report_dropped()
        if self._builder is not None:
            self._builder.close()
            self._builder = None

    def _report_rows(self) -> None:
        """Log how many rows were skipped, if there are new ones."""
        rows = self.cache.rows_without_text if self._is_first else []
        if len(rows) > self._reported_rows:
            self._reported_rows = len(rows)
            text = "%d rows of %r have no text (null) and are skipped, the first: %s; all of them: %s"
            logger.warning(text, len(rows), self.source.dataset, rows[0], self.cache.folder / WITHOUT_TEXT)

    def _report_dropped(self) -> None:
        """Log once what the tokenizer drops of the training text, as far as that is tokenised."""
        counts = self.cache.dropped if self._is_first and not self.source.held_out else None
        if not counts or self._has_reported_dropped:
            return
        self._has_reported_dropped = True
        examples = ", ".join(f"U+{ord(character):04X} {count:,} times" for character, count in counts.most_common(3))
        text = "data.tokenizer: it drops %s characters of the first %s tokens' text, which the model never sees: %s"
        logger.warning(text, f"{counts.total():,}", f"{len(self.cache):,}", examples)

    def _compare(self) -> None:
        try:
            for number in range(self.cache.shards_until(self.until_tokens)):
                self.cache.check_shard(number)
        except (CorruptCacheError, OSError) as error:
            self._damage = error

    def _keep_building(self) -> None:
        self._poll()
        if self._builder is None and time.monotonic() >= self._next_attempt:
            self._next_attempt = time.monotonic() + _LOCK_SECONDS
            # The lock is taken where another process builds.
            with suppress(Timeout):
                lock_of(self.cache.folder, timeout=0).acquire().lock.release()
                self._start_builder()

    def _start_builder(self) -> None:
        self._builder = Builder(self.source, self.cache.folder, self.until_tokens)

    def _poll(self) -> None:
        """Look whether this process's builder has ended.

        Raises its error unless a restart may help: it made shards, or was killed and this is not the third time.
        """
        builder = self._builder
        if builder is None or builder.poll() is None:
            return
        self._builder = None
        error = builder.error()
        builder.close()
        if error is None:
            return
        self.cache.refresh()
        is_in_vain = len(self.cache.shards) <= self._shards_at_death
        self._shards_at_death = len(self.cache.shards)
        self._deaths = self._deaths + 1 if is_in_vain else 0
        was_killed = builder.returncode < 0
        if is_in_vain and (not was_killed or self._deaths >= _MAX_DEATHS):
            raise error
        logger.warning("%s; restarting it", error)


class Builder(subprocess.Popen[bytes]):
    """A process that tokenises from `source` into `folder`, a thread for each core; it ends with this one."""

    def __init__(self, source: TextSource, folder: Path, until_tokens: int | None):
        self.folder = folder
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)
        # The child imports this package from any folder, and no other `training` in the working directory.
        path = os.pathsep.join(filter(None, [_ROOT, os.environ.get("PYTHONPATH")]))
        super().__init__(
            [sys.executable, "-m", "training.data.builder"],
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            # `datasets` would import torch, which takes seconds and tokenises nothing.
            env={**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1", "USE_TORCH": "0"},
            # Ctrl-C is for the training, which still has to finish its step and save.
            start_new_session=True,
        )
        task = {"source": asdict(source), "folder": str(folder), "until_tokens": until_tokens}
        # If it died at once, `error` says of what.
        with suppress(BrokenPipeError):
            self._pipe.write(json.dumps(task).encode() + b"\n")
            self._pipe.flush()

    @property
    def _pipe(self) -> IO[bytes]:
        """Standard input of the process, whose end is the end of the process, too."""
        assert self.stdin is not None
        return self.stdin

    def close(self) -> None:
        """End the process."""
        with suppress(BrokenPipeError):
            self._pipe.close()
        self.wait()
        self._output.close()

    def error(self) -> ConfigurationError | TokenBuildError | None:
        """Wait for its end and return its error; None if it finished, or another process is building."""
        status = self.wait()
        if status in (0, _BUSY):
            return None
        self._output.seek(0)
        output = self._output.read().decode(errors="replace")
        _, is_error, message = f"\n{output}".rpartition("\nerror: ")
        if is_error and status == BAD_INPUT:
            return ConfigurationError(message.strip())
        if is_error:
            return TokenBuildError(f"tokenising into {self.folder} failed: {message.strip()}")
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        return TokenBuildError("\n".join([f"the tokenising process {how}", *output.splitlines()[-20:]]))


def main() -> int:
    """Build from a task, a line of JSON on standard input, which stays open as long as the tokens are wanted."""
    task = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    # On a machine that trains on its CPU the training goes first.
    os.nice(5)
    folder = Path(task["folder"])
    try:
        source = TextSource(**task["source"])
        until_tokens = task["until_tokens"]
        n_bytes = until_tokens and until_tokens * TokenCache(folder).dtype.itemsize
        with explain_full_disk("its tokens", folder, n_bytes, lambda: _ADVICE), lock_of(folder, timeout=1):
            build(source, folder, until_tokens)
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
