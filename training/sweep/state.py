"""How far the runs of a sweep have come, from what lies in their folders."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median_high
from typing import Any, Literal

from filelock import FileLock, Timeout

from hub.plain import atomic
from hub.plain.tables import Table
from hub.plain.units import format_decimal
from training.sweep.file import Sweep, SweepRun

State = Literal["waiting", "running", "finished", "diverged", "failed"]
_FRESH_SECONDS = 120  # a run that `sweep run` did not start counts as running if its log is no older
_STYLES = {"finished": "green", "running": "cyan", "failed": "red", "diverged": "red", "waiting": "dim"}


@dataclass(frozen=True)
class Attempt:
    """How the last attempt at a run ended; `state.json` in its folder.

    Attributes:
        exit_status: of the launcher.
        stopped: whether it ended because the sweep was asked to stop, with a checkpoint to resume from.
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


def lock_of(run: SweepRun) -> FileLock:
    """Held by the sweep that executes the run, and released with its process; `train.py` has a lock of its own."""
    return FileLock(run.folder / ".sweep.lock")


def state(run: SweepRun) -> State:
    """What the run is doing; a run that was stopped and will be resumed is `waiting`, too."""
    diverged = any(record.status == "diverged" for record in run.records())
    if run.complete:
        return "diverged" if diverged else "finished"
    if not run.folder.exists():
        return "waiting"
    try:
        with lock_of(run).acquire(timeout=0):
            pass
    except Timeout:
        return "running"
    attempt = Attempt.load(run.folder)
    if attempt is None:
        newest = max((path.stat().st_mtime for path in run.folder.glob("*/log.jsonl")), default=0.0)
        return "running" if time.time() - newest < _FRESH_SECONDS else "waiting"
    if attempt.stopped or attempt.exit_status == 0:
        return "waiting"
    last = _last_line(run.folder / "trunk" / "log.jsonl")
    return "diverged" if diverged or (last and last.get("loss") is None) else "failed"


def status(run: SweepRun) -> RunStatus:
    """State, progress and speed of a run."""
    now, line = state(run), _newest_line(run)
    tokens = run.target_tokens if now == "finished" else trained_tokens(run)
    speed = line.get("tokens_per_second")
    left = (run.target_tokens - tokens) / speed if speed and now in ("running", "waiting") else None
    return RunStatus(run.name, now, tokens, run.target_tokens, line.get("loss"), speed, left)


def trained_tokens(run: SweepRun) -> int:
    """Tokens trained so far, according to the logs."""
    done = (_last_line(run.folder / "trunk" / "log.jsonl") or {}).get("tokens", 0)
    for branch in run.branches:
        if line := _last_line(run.folder_of(branch) / "log.jsonl"):
            done += max(0, line["tokens"] - branch.branch_point_tokens)
    return min(done, run.target_tokens)


def measured_flops_per_second(sweep: Sweep) -> float | None:
    """Training FLOP/s of one run: the median over the records, or over the newest log lines; None without any."""
    records = [record for run in sweep.runs for record in run.records() if record.tokens_per_second]
    found = [record.training_flops / record.tokens * (record.tokens_per_second or 0) for record in records]
    if not found:
        speeds = ((run, _newest_line(run).get("tokens_per_second")) for run in sweep.runs)
        found = [run.architecture.training_flops(1) * speed for run, speed in speeds if speed]
    return median_high(found) if found else None


def status_table(found: Sequence[RunStatus]) -> Table:
    """One line per run."""
    rows = [
        (
            one.name,
            one.state,
            f"{one.tokens:,} / {one.target_tokens:,}",
            f"{one.tokens / one.target_tokens:.0%}",
            format_decimal(one.loss),
            "–" if one.tokens_per_second is None else f"{one.tokens_per_second:,.0f}",
            format_seconds(one.seconds_left),
        )
        for one in found
    ]
    header = ("run", "state", "tokens", "done", "loss", "tokens/s", "time left")
    return Table(header, rows, styles=[_STYLES[one.state] for one in found])


def format_seconds(seconds: float | None) -> str:
    """For a reader: 48 s, 12 min, 3.4 h, 5.1 days; – for None."""
    if seconds is None:
        return "–"
    for size, unit, digits in ((86400, "days", 1), (3600, "h", 1), (60, "min", 0)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.{digits}f} {unit}"
    return f"{seconds:.0f} s"


def _newest_line(run: SweepRun) -> dict[str, Any]:
    """The last line of the log, of the trunk or a branch, that was written last."""
    logs = sorted(run.folder.glob("*/log.jsonl"), key=lambda path: path.stat().st_mtime)
    return (_last_line(logs[-1]) if logs else None) or {}


def _last_line(log: Path, size: int = 1 << 16) -> dict[str, Any] | None:
    """The last whole line of a log, of which only the end is read."""
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
