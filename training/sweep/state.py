"""How far the runs of a sweep have come, from what lies in their folders."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout

from hub import RunRecord
from hub.plain import atomic
from training.sweep.file import Sweep, SweepRun

State = Literal["waiting", "running", "finished", "diverged", "failed"]
_FRESH_SECONDS = 120  # a run that is not started by `sweep run` runs if its log is no older


@dataclass(frozen=True)
class Attempt:
    """How the last attempt at a run ended; `state.json` in its folder.

    Attributes:
        exit_status: of the launcher.
        stopped: whether it ended because the sweep was asked to stop, with a checkpoint to go on from.
    """

    exit_status: int
    stopped: bool

    def save(self, folder: Path) -> None:
        atomic.write_json(folder / "state.json", asdict(self))

    @classmethod
    def load(cls, folder: Path) -> Attempt | None:
        path = folder / "state.json"
        return cls(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


@dataclass(frozen=True)
class RunStatus:
    """Where a run stands. Tokens are those trained, the trunk counted once; seconds_left is at the present speed."""

    name: str
    state: State
    tokens: int
    target_tokens: int
    loss: float | None
    tokens_per_second: float | None
    seconds_left: float | None

    def to_dict(self) -> dict:
        """Plain JSON values."""
        return asdict(self)


@contextmanager
def held(run: SweepRun, timeout: float) -> Iterator[bool]:
    """Hold a run against other sweeps while it is started and watched; the value says whether that was possible.

    The lock goes with the process, however it ends. `train.py` holds the folder with a lock of its own.
    """
    lock = FileLock(run.folder / ".sweep.lock")
    try:
        lock.acquire(timeout=timeout)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def records(run: SweepRun) -> list[RunRecord]:
    """The records of the branches that are through, final or diverged."""
    return [RunRecord.load(folder) for folder in run.finished()]


def is_through(run: SweepRun) -> bool:
    """Whether every branch has its record, so that starting the run again would do nothing."""
    return len(run.finished()) == len(run.branches)


def state(run: SweepRun) -> State:
    """What the run is doing; `waiting` is also a run that was stopped and will go on."""
    through = records(run)
    diverged = any(record.status == "diverged" for record in through)
    if len(through) == len(run.branches):
        return "diverged" if diverged else "finished"
    if not run.folder.exists():
        return "waiting"
    with held(run, timeout=0) as is_free:
        if not is_free:
            return "running"
    attempt = Attempt.load(run.folder)
    if attempt is None:
        newest = max((path.stat().st_mtime for path in run.folder.glob("*/log.jsonl")), default=0.0)
        return "running" if time.time() - newest < _FRESH_SECONDS else "waiting"
    if attempt.stopped or attempt.exit_status == 0:
        return "waiting"
    last = _last_line(run.folder / "trunk" / "log.jsonl")
    return "diverged" if diverged or (last is not None and last.get("loss") is None) else "failed"


def status(run: SweepRun) -> RunStatus:
    """State, progress and speed of a run."""
    now, logs = state(run), _logs(run)
    tokens = run.target_tokens if now == "finished" else trained_tokens(run)
    line = _last_line(logs[-1]) if logs else None
    speed = line.get("tokens_per_second") if line else None
    left = (run.target_tokens - tokens) / speed if speed and now in ("running", "waiting") else None
    return RunStatus(run.name, now, tokens, run.target_tokens, line.get("loss") if line else None, speed, left)


def trained_tokens(run: SweepRun) -> int:
    """Tokens trained so far, as far as the logs tell."""
    done = 0
    for branch in [None, *run.branches]:
        folder = run.folder / "trunk" if branch is None else run.folder_of(branch)
        if (line := _last_line(folder / "log.jsonl")) is not None:
            done += max(0, line["tokens"] - (branch.branch_point_tokens if branch else 0))
    return min(done, run.target_tokens)


def measured_flops_per_second(sweep: Sweep) -> float | None:
    """Training FLOP/s of one run: the median over the records, or over the newest log lines; None without any."""
    found = [
        record.training_flops / record.tokens * record.tokens_per_second
        for run in sweep.runs
        for record in records(run)
        if record.tokens_per_second
    ]
    if not found:
        for run in sweep.runs:
            lines = [line for log in _logs(run) if (line := _last_line(log)) and line.get("tokens_per_second")]
            found += [run.architecture.training_flops(1) * line["tokens_per_second"] for line in lines[-1:]]
    return sorted(found)[len(found) // 2] if found else None


def status_table(sweep: Sweep):
    """A rich table with one line per run."""
    from rich.table import Table

    table = Table(title=f"sweep {sweep.name}")
    for heading in ("run", "state", "tokens", "", "loss", "tokens/s", "time left"):
        left = heading in ("run", "state")
        table.add_column(heading, justify="left" if left else "right", no_wrap=heading == "run")  # E1 is not E1…
    colours = {"finished": "green", "running": "cyan", "failed": "red", "diverged": "red", "waiting": "dim"}
    for one in map(status, sweep.runs):
        table.add_row(
            one.name,
            f"[{colours[one.state]}]{one.state}[/]",
            f"{one.tokens:,} / {one.target_tokens:,}",
            f"{one.tokens / one.target_tokens:.0%}",
            "" if one.loss is None else f"{one.loss:.4f}",
            "" if one.tokens_per_second is None else f"{one.tokens_per_second:,.0f}",
            "" if one.seconds_left is None else format_seconds(one.seconds_left),
        )
    return table


def format_seconds(seconds: float) -> str:
    """For a reader: 48 s, 12 min, 3.4 h, 5.1 days."""
    for size, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} min" if unit == "min" else f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.0f} s"


def _logs(run: SweepRun) -> list[Path]:
    """The logs of trunk and branches, the last written last."""
    return sorted(run.folder.glob("*/log.jsonl"), key=lambda path: path.stat().st_mtime)


def _last_line(log: Path, size: int = 1 << 16) -> dict | None:
    """The last whole line of a log. A long log is not read whole at every look."""
    if not log.exists():
        return None
    with open(log, "rb") as file:
        file.seek(max(0, file.seek(0, 2) - size))
        lines = file.read().splitlines()
    for line in reversed(lines):
        try:
            return json.loads(line)
        except ValueError:
            continue  # being written just now, or cut by the seek
    return None
