"""A start of a run as other processes see it: which process trains (`.lock.json`), and how it ended (`state.json`).

Nothing here imports torch, which takes seconds: `parse_or_exit` refuses bad input before.
"""

from __future__ import annotations

import os
import platform
import signal
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from hub.base import atomic
from hub.base.commands import message_of, report
from hub.base.output import guard_output, log_to_stderr
from training.configuration.arguments import ConfigurationError, TrainingArguments
from training.configuration.reading import answer_help, parse_command_line
from training.configuration.variables import check_variables

# The variable by which a sweep names the file that a failing process writes its `Attempt` into.
STATE_FILE = "TRAINING_STATE_FILE"
_LOCK = ".lock"
_HOLDER = ".lock.json"
# A second is long enough for `status`, which tries the lock.
_LOCK_SECONDS = 1
# Times that a lock is tried whose holder is not known, or has ended.
_ATTEMPTS = 5


@dataclass(frozen=True)
class Holder:
    """A process that holds a lock of a run: its training's, or its sweep's, with the launcher that the sweep started.

    Earlier versions did not note which process it is.
    """

    host: str = ""
    pid: int = 0
    launcher: int = 0

    @classmethod
    def load(cls, path: Path) -> Holder:
        """Read the holder that a file names; an unknown process where there is no file."""
        holder: Holder = atomic.read_json(path, cls(), cls)
        return holder

    @property
    def is_here(self) -> bool:
        """True if the process is one of this machine."""
        return self.host == platform.node()

    def find(self) -> psutil.Process | None:
        """Find the process; None if it has ended, or is one of another machine."""
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.pid)
            if self.is_here and process.status() != psutil.STATUS_ZOMBIE:
                return process
        return None

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}" if self.host else "an unknown process"


@dataclass(frozen=True)
class Attempt:
    """End of the last attempt at a run (`state.json`); `stopped`: on request, with a checkpoint to resume from."""

    exit_status: int
    stopped: bool
    message: str = ""

    def save(self, folder: Path) -> None:
        """Write `state.json` into the run's folder."""
        atomic.write_json(folder / "state.json", asdict(self))

    @classmethod
    def load(cls, folder: Path) -> Attempt | None:
        """Read `state.json`; None for a run that was never started by a sweep."""
        attempt: Attempt | None = atomic.read_json(folder / "state.json", None, cls)
        return attempt


def parse_or_exit(argv: list[str]) -> TrainingArguments:
    """Parse the command line of a new process; end the process on an error, as `main` does.

    Variables are checked first, since some classes of models import the libraries that read them.
    """
    with guard_output("stderr"), log_to_stderr("training"):
        try:
            answer_help(argv)
            check_variables()
            return parse_command_line(argv)
        except Exception as error:
            raise SystemExit(note_error(error)) from None


def note_error(error: Exception) -> int:
    """Report an error, and note it as the end; returns the exit status."""
    status = report(error)
    note_end(status, message_of(error))
    return status


def note_end(exit_status: int, message: str = "") -> None:
    """Tell the sweep that started this process how it failed or was stopped: a launcher says just that it did."""
    path = os.environ.get(STATE_FILE)
    if path and exit_status:
        Attempt(exit_status, stopped=exit_status > 128, message=message).save(Path(path).parent)


def signals_to_stop() -> list[signal.Signals]:
    """List the signals that ask a process to stop; nohup ignores SIGHUP."""
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    return numbers[:2] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else numbers


def lock_run(folder: Path) -> FileLock:
    """Lock a run's folder for this process; the lock is released with it, however it ends.

    Raises ConfigurationError if another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / _LOCK)
    try:
        lock.acquire(timeout=_LOCK_SECONDS)
    except Timeout:
        text = f"run.output_dir: another process is training in {folder}: {Holder.load(folder / _HOLDER)}"
        raise ConfigurationError(text) from None
    atomic.write_json(folder / _HOLDER, asdict(Holder(platform.node(), os.getpid())))
    return lock


def find_trainer(folder: Path) -> Holder | None:
    """Find the process that trains in a run's folder, on any machine that shares it; None without one."""
    # Asking leaves nothing behind.
    if not (folder / _LOCK).exists():
        return None
    holder = Holder()
    # Another process that asks holds the lock for a moment, too, and a new holder is noted a moment later.
    for _ in range(_ATTEMPTS):
        try:
            with FileLock(folder / _LOCK, timeout=0):
                return None
        except Timeout:
            holder = Holder.load(folder / _HOLDER)
        if holder.find() or not (holder.is_here or holder == Holder()):
            return holder
        time.sleep(0.1)
    return None if holder.is_here else holder
