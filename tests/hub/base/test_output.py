"""Output that cannot be written neither ends nor delays a command, and what can be written is, in its order."""

import errno
import fcntl
import io
import logging
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from hub.base.output import GuardedStream, guard_output, log_to_stderr

ROOT = Path(__file__).parents[3]
SCRIPT = """
import logging, sys
from hub.base.output import guard_output
from hub.base.progress import progress_line
if "before" in sys.argv:
    try:
        print("before", file=sys.stderr)
    except OSError:
        pass
with guard_output("stdout", "stderr"):
    logging.basicConfig()
    logging.warning("warned")
    with progress_line("work", 3, "runs") as advance:
        advance(1, "")
    print("printed", flush=True)
    sys.stderr.write("x" * 300_000)
open(sys.argv[1], "w").write("saved")
"""


@contextmanager
def gone_reader():
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@contextmanager
def idle_reader():
    """A pipe that is full."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.write(writer, b"x" * 4096)
    yield writer
    os.close(reader)
    os.close(writer)


@contextmanager
def full_disk():
    with open("/dev/full", "w") as file:
        yield file.fileno()


@contextmanager
def lost_terminal():
    main, terminal = os.openpty()
    os.close(main)
    yield terminal
    os.close(terminal)


@pytest.mark.parametrize(
    "place", [gone_reader, pytest.param(idle_reader, marks=pytest.mark.slow), full_disk, lost_terminal]
)
def test_a_command_ends_as_if_all_were_written(tmp_path, place):
    """Its exit status is 0, and not the 120 of a Python that cannot empty its buffers at the end."""
    saved = tmp_path / "saved"
    early = [] if place is idle_reader else ["before"]  # which is not guarded
    with place() as output:
        command = [sys.executable, "-c", SCRIPT, str(saved), *early]
        assert subprocess.call(command, cwd=ROOT, stdout=output, stderr=output, timeout=120) == 0
    assert saved.read_text() == "saved"


def test_a_closed_descriptor_is_no_file_that_is_opened_next(tmp_path):
    """What a library writes to it would stand in a checkpoint."""
    script = SCRIPT.replace('open(sys.argv[1], "w").write("saved")', "") + (
        'with guard_output("stderr"), open(sys.argv[1], "w") as file:\n'
        '    import os; os.write(2, b"of a library"); file.write("saved")\n'
    )
    saved = tmp_path / "saved"
    command = ["sh", "-c", 'exec "$0" -c "$1" "$2" <&- >&- 2>&-', sys.executable, script, str(saved)]
    assert subprocess.call(command, cwd=ROOT, timeout=120) == 0
    assert saved.read_text() == "saved"


def test_all_that_a_slow_reader_takes_arrives_in_order():
    reader, writer = os.pipe()
    os.set_blocking(writer, False)  # as another program leaves it: a full pipe is then an error
    lines = "".join(f"line {number}\n" for number in range(20_000))
    with open(writer, "w") as file:
        stream = GuardedStream(file)
        for line in lines.splitlines(keepends=True):
            stream.write(line)
        received = b""
        while len(received) < len(lines):
            time.sleep(0.001)
            received += os.read(reader, 65_536)
        stream.end()
    os.close(reader)
    assert received.decode() == lines


def test_a_stream_that_fails_now_and_then_gets_the_rest():
    class Shaky(io.StringIO):
        def write(self, text):
            if text == "lost":
                raise OSError(errno.EIO, "no terminal")
            return super().write(text)

    shaky = Shaky()
    for text in ("one ", "lost", "two"):
        stream = GuardedStream(shaky)
        stream.write("")
        stream.write(text)
        stream.end()
    stream.write(", kept by a library")
    assert shaky.getvalue() == "one two, kept by a library"


def test_streams_and_handlers_are_put_back(monkeypatch):
    before, text = sys.stderr, io.StringIO()
    handler = logging.StreamHandler(before)
    logger = logging.getLogger("some.library")
    monkeypatch.setattr(logger, "handlers", [handler])
    with guard_output("stderr"):
        guard = sys.stderr
        assert handler.stream is guard
        late = logging.StreamHandler()
        logger.handlers.append(late)
        with guard_output("stderr"):
            assert sys.stderr is guard
    assert sys.stderr is handler.stream is late.stream is before
    with guard_output("stderr"):
        monkeypatch.setattr(sys, "stderr", text)  # of somebody else, who wants it to stay
    assert sys.stderr is text


def test_a_stream_is_asked_what_it_is():
    for name, expected in {"encoding": "utf-8", "isatty": False, "writable": True}.items():
        value = getattr(GuardedStream(None), name)
        assert (value() if callable(value) else value) == expected
    with pytest.raises(TypeError, match="takes a str"):
        GuardedStream(None).write(b"")  # by which click tells a text stream
    with pytest.raises(io.UnsupportedOperation):
        GuardedStream(None).fileno()


def test_the_log_is_ours_only_where_nobody_else_has_one(monkeypatch, capsys):
    logger = logging.getLogger("training")
    monkeypatch.setattr(logging.root, "handlers", [])
    for _ in range(2):
        with log_to_stderr("training"):
            logger.info("of interest")
    assert capsys.readouterr().err == "INFO of interest\n" * 2
    assert (logging.root.handlers, logger.level) == ([], logging.NOTSET)
    theirs = logging.NullHandler()
    monkeypatch.setattr(logging.root, "handlers", [theirs])
    with log_to_stderr("training"):
        assert logging.root.handlers == [theirs]
