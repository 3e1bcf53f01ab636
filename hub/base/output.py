"""Standard output and error that can neither end nor delay the work: text that cannot be written is dropped.

A closed terminal, a pipe whose reader has gone or does not read, and a log file on a full disk are the usual cases.
"""

from __future__ import annotations

import io
import logging
import os
import select
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import Full, Queue
from typing import Any, TextIO

# Texts that may wait to be written.
_MOST_TEXTS = 50_000
# Seconds that the end waits for the rest; a busy machine may need some.
_LAST_SECONDS = 10.0


class GuardedStream(io.TextIOBase):
    """Writes to a stream in a thread; what the stream does not take is dropped. `None`: all of it."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        # None for a stream that is no file, pipe or terminal, say a notebook's.
        self._descriptor: int | None = None
        if isinstance(stream, io.TextIOWrapper):
            with suppress(OSError, ValueError):
                self._descriptor = stream.fileno()
        # None is the last one.
        self._texts: Queue[str | None] = Queue(_MOST_TEXTS)
        self._thread: threading.Thread | None = None
        self._is_ended = False

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() takes a str, not {type(text).__name__}")
        if self._is_ended:
            # A library may have kept this stream.
            self._write_out(text)
        # click writes nothing to ask whether a stream takes text.
        elif text:
            with suppress(Full):
                self._texts.put_nowait(text)
            if self._thread is None:
                # Not before, so that a process that is forked until then has one of its own.
                self._thread = threading.Thread(target=self._work, name="output", daemon=True)
                self._thread.start()
        return len(text)

    def flush(self) -> None:
        """Do nothing: whoever flushes would wait for the stream."""

    def end(self) -> None:
        """Wait a moment for what is not yet written; from here on, text is written at once."""
        if self._thread is not None:
            with suppress(Full):
                self._texts.put(None, timeout=_LAST_SECONDS)
                self._thread.join(_LAST_SECONDS)
        self._is_ended = True
        _discard_unwritten(self._stream, self._descriptor)

    def _work(self) -> None:
        for text in iter(self._texts.get, None):
            self._write_out(text)

    def _write_out(self, text: str) -> None:
        if self._stream is None:
            return
        # A stream that was closed raises ValueError.
        with suppress(OSError, ValueError):
            if self._descriptor is None:
                self._stream.write(text)
                self._stream.flush()
                return
            # Past the stream's buffer, whose lock a write that never ends would hold: Python could not end, either.
            data = memoryview(text.encode(self._stream.encoding, "backslashreplace"))
            while data:
                try:
                    data = data[os.write(self._descriptor, data) :]
                except BlockingIOError:
                    # Another program has made the descriptor non-blocking.
                    select.select([], [self._descriptor], [])

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        with suppress(AttributeError, ValueError):
            return self._stream.isatty()  # type: ignore[union-attr]
        return False

    def fileno(self) -> int:
        if self._stream is None:
            raise io.UnsupportedOperation("fileno")
        return self._stream.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return getattr(self._stream, "encoding", None) or "utf-8"

    def __getattr__(self, name: str) -> Any:
        """Get what else the stream has, such as its buffer, or what a notebook adds to it."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._stream, name)


def _discard_unwritten(stream: TextIO | None, descriptor: int | None) -> None:
    """Empty the buffer of a stream that takes no text any more: else Python's own flush would fail at its end."""
    if stream is None or descriptor is None:
        return
    try:
        stream.flush()
    except (OSError, ValueError):
        with suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
            duplicate = os.dup(descriptor)
            os.dup2(nowhere.fileno(), descriptor)
            try:
                stream.flush()
            finally:
                os.dup2(duplicate, descriptor)
                os.close(duplicate)


@contextmanager
def guard_output(*names: str) -> Iterator[None]:
    """Make `sys.stdout`, `sys.stderr` or both guarded streams, and have the handlers of `logging` write to them."""
    _fill_descriptors()
    guards: dict[str, tuple[Any, GuardedStream]] = {}
    for name in names:
        stream = getattr(sys, name)
        if not isinstance(stream, GuardedStream):
            guard = GuardedStream(stream)
            guards[name] = (stream, guard)
            setattr(sys, name, guard)
    for stream, guard in guards.values():
        _move_handlers(stream, guard)
    try:
        yield
    finally:
        for name, (stream, guard) in guards.items():
            if getattr(sys, name) is guard:
                setattr(sys, name, stream)
            _move_handlers(guard, stream)
            guard.end()


@contextmanager
def log_to_stderr(package: str) -> Iterator[None]:
    """Log warnings, and all that a package says, to standard error, unless the caller has handlers of its own."""
    logger = logging.getLogger(package)
    level = logger.level
    logger.setLevel(logging.INFO)
    handler = None if logging.root.handlers else logging.StreamHandler()
    if handler is not None:
        handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
        logging.root.addHandler(handler)
    try:
        yield
    finally:
        logger.setLevel(level)
        if handler is not None:
            logging.root.removeHandler(handler)


def _move_handlers(before: Any, after: Any) -> None:
    for logger in [logging.root, *logging.root.manager.loggerDict.values()]:
        for handler in getattr(logger, "handlers", ()):
            # Not by `setStream`, which flushes the stream before.
            if isinstance(handler, logging.StreamHandler) and handler.stream is before:
                handler.stream = after


def _fill_descriptors() -> None:
    """Open the null device for each closed descriptor of input, output and errors.

    Else a checkpoint would be opened in its place, and get what libraries write to it.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # The system opens the lowest descriptor that is free, which is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
