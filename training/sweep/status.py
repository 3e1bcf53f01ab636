"""Progress and cost of a sweep's runs, read from their folders.

The launcher exits with 1 for any failure, so the folder says how a run ended.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median_high
from typing import Any, Literal

from filelock import FileLock, Timeout

from hub.base import atomic
from hub.base.tables import Table
from hub.base.units import format_decimal
from scaling_law.size.architecture import training_flops
from training.sweep.file import Sweep, SweepRun

State = Literal["waiting", "running", "finished", "diverged", "failed"]
_FRESH_SECONDS = 120  # a run that `sweep run` did not start counts as running if its log is no older
_STYLES = {"finished": "green", "running": "cyan", "failed": "red", "diverged": "red", "waiting": "dim"}


@dataclass(frozen=True)
class Attempt:
    """How the last attempt at a run ended (`state.json`); `stopped` by the sweep, with a checkpoint to resume from."""

    exit_status: int
    stopped: bool

    def save(self, folder: Path) -> None:
        atomic.write_json(folder / "state.json", asdict(self))

    @classmethod
    def load(cls, folder: Path) -> Attempt | None:
        attempt: Attempt | None = atomic.read_json(folder / "state.json", None, cls)
        return attempt


@dataclass(frozen=True)
class Queued:
    """State of a job by its engine.

    Attributes:
        text: for readers, in the engine's words.
        alive: whether it is still waiting or running.
        state: of the run, as far as the engine knows it.
    """

    text: str
    alive: bool
    state: State | None = None


@dataclass(frozen=True)
class RunStatus:
    """State, progress and cost of a run.

    Attributes:
        tokens, target_tokens: trained and to be trained, the trunk counted once.
        seconds_left: at the present speed.
        device_seconds: spent training so far, times the devices.
        engine, queue: of its newest job on an engine that queues.
        forecast, forecast_low, forecast_high: of the final loss, the newest in its log, with its 90 % interval.
        verdict: "on track"; "off track", since where log.jsonl says.
    """

    name: str
    state: State
    tokens: int
    target_tokens: int
    loss: float | None
    tokens_per_second: float | None
    seconds_left: float | None
    device_seconds: float
    engine: str = "local"
    queue: str | None = None
    forecast: float | None = None
    forecast_low: float | None = None
    forecast_high: float | None = None
    verdict: str | None = None


def lock_of(run: SweepRun) -> FileLock:
    """Held by the sweep that executes the run, and released with its process."""
    return FileLock(run.folder / ".sweep.lock")


def is_locked(run: SweepRun) -> bool:
    """Whether a sweep executes the run, on any machine that shares its folder."""
    if not run.folder.exists():
        return False
    try:
        with lock_of(run).acquire(timeout=0):
            return False
    except Timeout:
        return True


def state(run: SweepRun, queued: State | None = None) -> State:
    """The state of a run, which may be `queued` on an engine; a stopped run is `waiting`, too."""
    diverged = any(record.status == "diverged" for record in run.records())
    if run.complete:
        return "diverged" if diverged else "finished"
    if not run.folder.exists():
        return "waiting"
    if is_locked(run):
        return "running"
    if queued in ("waiting", "running"):
        return queued
    attempt = Attempt.load(run.folder)
    if queued == "failed" or (attempt and attempt.exit_status and not attempt.stopped):
        last = _last_line(run.folder / "trunk")
        return "diverged" if diverged or (last and last.get("loss") is None) else "failed"
    if attempt:
        return "waiting"
    newest = max((path.stat().st_mtime for path in run.folder.glob("*/log.jsonl")), default=0.0)
    return "running" if time.time() - newest < _FRESH_SECONDS else "waiting"


def status(run: SweepRun, engine: str = "local", jobs: Sequence[Queued] = ()) -> RunStatus:
    """State, progress, speed and cost of a run, with its engine's jobs, the decisive one last."""
    now, line = state(run, jobs[-1].state if jobs else None), newest_line(run)
    queue = [job.text for job in jobs if job.alive] or [job.text for job in jobs[-1:]]
    tokens = run.target_tokens if now == "finished" else trained_tokens(run)
    speed = line.get("tokens_per_second")
    left = (run.target_tokens - tokens) / speed if speed and now in ("running", "waiting") else None
    return RunStatus(
        run.name,
        now,
        tokens,
        run.target_tokens,
        line.get("loss"),
        speed,
        left,
        device_seconds(run),
        engine,
        "; ".join(queue) or None,
        *(line.get(name) for name in ("forecast_loss", "forecast_low", "forecast_high")),
        _verdict(run, line),
    )


def _verdict(run: SweepRun, line: dict[str, Any]) -> str | None:
    if any(b'"off_track"' in path.read_bytes() for path in run.folder.glob("*/log.jsonl")):
        return "off track"
    return "on track" if "forecast_loss" in line else None


def _final_loss(one: RunStatus) -> str:
    """The forecast and the verdict, as a cell."""
    if one.forecast is None or one.forecast_low is None or one.forecast_high is None:
        return one.verdict or ""
    return f"{one.forecast:.3f} ± {(one.forecast_high - one.forecast_low) / 2:.3f}, {one.verdict}"


def device_seconds(run: SweepRun) -> float:
    """Seconds of training by the logs, times the devices; without starting, evaluating and saving."""
    spent = 0.0
    points = {run.folder_of(branch): branch.branch_point_tokens for branch in run.branches}
    for folder in [run.folder / "trunk", *points]:
        lines = _lines(folder, at_end=False)[:1] + _lines(folder, at_end=True)
        steps = [line for line in lines if "wall_seconds" in line]  # others are evaluations
        if folder not in points and steps:
            spent += steps[-1]["wall_seconds"] * steps[-1]["devices"]
        elif steps and (logged := steps[-1]["tokens"] - steps[0]["tokens"]):
            # A branch goes on counting from the trunk, and its first line is of some steps on.
            seconds = (steps[-1]["wall_seconds"] - steps[0]["wall_seconds"]) / logged
            spent += seconds * (steps[-1]["tokens"] - points[folder]) * steps[-1]["devices"]
    return spent


def trained_tokens(run: SweepRun) -> int:
    """Tokens trained so far, according to the logs."""
    done = _last_line(run.folder / "trunk").get("tokens", 0)
    for branch in run.branches:
        done += max(0, _last_line(run.folder_of(branch)).get("tokens", 0) - branch.branch_point_tokens)
    return min(done, run.target_tokens)


def measured_flops_per_second(sweep: Sweep) -> float | None:
    """Training FLOP/s of one run: the median over the records, or over the newest log lines; None without any."""
    records = [record for run in sweep.runs for record in run.records() if record.tokens_per_second]
    flops = [float(training_flops(record.n_active, record.tokens_per_second)) for record in records]
    if not flops:
        speeds = ((run, newest_line(run).get("tokens_per_second")) for run in sweep.runs)
        flops = [run.architecture.training_flops(1) * speed for run, speed in speeds if speed]
    return median_high(flops) if flops else None


def status_table(statuses: Sequence[RunStatus]) -> Table:
    """Lay out one row per run, with its place in the queue where the engine reports one."""
    rows = [
        {
            "run": one.name,
            "state": one.state,
            "queue": "" if one.queue is None else f"{one.engine}: {one.queue}",
            "tokens": f"{one.tokens:,} / {one.target_tokens:,}",
            "done": f"{one.tokens / one.target_tokens:.0%}",
            "loss": format_decimal(one.loss),
            "final loss (forecast)": _final_loss(one),
            "tokens/s": None if one.tokens_per_second is None else f"{one.tokens_per_second:,.0f}",
            "time left": format_seconds(one.seconds_left),
            "device-hours": f"{one.device_seconds / 3600:,.2f}",
        }
        for one in statuses
    ]
    return Table.of(rows, styles=[_STYLES[one.state] for one in statuses])


def format_seconds(seconds: float | None) -> str:
    """Format a duration: 48 s, 12 min, 3.4 h, 5.1 days; – for None and infinity."""
    if seconds is None or seconds == math.inf:
        return "–"
    for size, unit, digits in ((86400, "days", 1), (3600, "h", 1), (60, "min", 0)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.{digits}f} {unit}"
    return f"{seconds:.0f} s"


def newest_line(run: SweepRun) -> dict[str, Any]:
    """The last line of the log, of the trunk or a branch, that was written last."""
    logs = sorted(run.folder.glob("*/log.jsonl"), key=lambda path: path.stat().st_mtime)
    return _last_line(logs[-1].parent) if logs else {}


def _last_line(folder: Path) -> dict[str, Any]:
    """The last whole line of the log of a trunk or branch; empty without one."""
    return (_lines(folder, at_end=True) or [{}])[-1]


def _lines(folder: Path, *, at_end: bool, size: int = 1 << 16) -> list[dict[str, Any]]:
    """The whole lines among the first or last `size` bytes of the log of a trunk or branch."""
    if not (log := folder / "log.jsonl").exists():
        return []
    with open(log, "rb") as file:
        if at_end:
            file.seek(max(0, file.seek(0, 2) - size))
        texts = file.read(size).splitlines()
    lines = []
    for text in texts:
        with suppress(ValueError):  # being written just now, or cut
            lines.append(json.loads(text))
    return lines
