"""Progress and cost of a sweep's runs, read from their folders.

The launcher exits with 1 for any failure, so the folder says how a run ended.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median_high
from typing import Literal

import psutil
from filelock import FileLock, Timeout

from hub.base.tables import Table
from hub.base.types import Fields
from hub.base.units import format_decimal
from scaling_law.size.architecture import training_flops
from training.run.attempt import Attempt, Holder, find_trainer
from training.sweep.file import Sweep, SweepRun

State = Literal["waiting", "running", "finished", "diverged", "failed"]
# The file of the process of the sweep that executes, or executed, a run.
EXECUTOR = "process.json"
_STYLES = {"finished": "green", "running": "cyan", "failed": "red", "diverged": "red", "waiting": "dim"}


@dataclass(frozen=True)
class Job:
    """A run's job in SLURM's queue.

    Attributes:
        id: SLURM's.
        text: its state for readers, in SLURM's words.
        alive: whether it is still waiting or running.
        state: of the run, as far as SLURM knows it.
    """

    id: str
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
        engine, queue: of its jobs, if SLURM has any.
        forecast, forecast_low, forecast_high: of the final loss, the newest in its log, with its 90 % interval.
        verdict: "on track"; "off track", since where log.jsonl says.
        process: at work on it, the sweep's or else the training's.
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
    process: str | None = None


def lock_of(run: SweepRun) -> FileLock:
    """Return the lock that the sweep holds which executes the run; its process and the launcher's release it."""
    return FileLock(run.folder / ".sweep.lock")


def find_process(run: SweepRun) -> Holder | None:
    """Find the process at work on a run, whoever started it: of a sweep, or else of a training; None without one.

    A sweep that is killed leaves its runs training; its launcher has the lock until it ends.
    """
    trainer = find_trainer(run.folder)
    if not run.folder.exists():
        return trainer
    with suppress(Timeout), lock_of(run).acquire(timeout=0):
        return trainer
    executor = Holder.load(run.folder / EXECUTOR)
    if executor.find() or not executor.is_here:
        return executor
    launcher = Holder(executor.host, executor.launcher).find()
    with suppress(psutil.NoSuchProcess):
        if launcher and not trainer:
            # One that it has started will train.
            pids = [process.pid for process in (*launcher.children(), launcher)]
            return Holder(executor.host, pids[0])
    return trainer


def state(run: SweepRun) -> State:
    """Find the state of a run from its folder."""
    return _state(run, find_process(run))


def _state(run: SweepRun, process: Holder | None, queued: State | None = None) -> State:
    """Find the state of a run, which may be `queued` by SLURM; a stopped run is `waiting`, too."""
    diverged = any(record.status == "diverged" for record in run.records())
    if run.complete:
        return "diverged" if diverged else "finished"
    if process:
        return "running"
    if queued in ("waiting", "running"):
        return queued
    attempt = Attempt.load(run.folder)
    if queued == "failed" or (attempt and attempt.exit_status and not attempt.stopped):
        last = _last_line(run.folder / "trunk")
        return "diverged" if diverged or (last and last.get("loss") is None) else "failed"
    return "waiting"


def status(run: SweepRun, jobs: Sequence[Job] = ()) -> RunStatus:
    """Find state, progress, speed and cost of a run, with its jobs in the queue, the decisive one last."""
    process = find_process(run)
    run_state = _state(run, process, jobs[-1].state if jobs else None)
    line = newest_line(run)
    queue = [job.text for job in jobs if job.alive] or [job.text for job in jobs[-1:]]
    tokens = run.target_tokens if run_state == "finished" else trained_tokens(run)
    speed = line.get("tokens_per_second")
    seconds_left = None
    if speed and run_state in ("running", "waiting"):
        seconds_left = (run.target_tokens - tokens) / speed
    return RunStatus(
        name=run.name,
        state=run_state,
        tokens=tokens,
        target_tokens=run.target_tokens,
        loss=line.get("loss"),
        tokens_per_second=speed,
        seconds_left=seconds_left,
        device_seconds=device_seconds(run),
        engine="slurm" if jobs else "local",
        queue="; ".join(queue) or None,
        forecast=line.get("forecast_loss"),
        forecast_low=line.get("forecast_low"),
        forecast_high=line.get("forecast_high"),
        verdict=_verdict(run, line),
        process=str(process) if process else None,
    )


def _verdict(run: SweepRun, line: Fields) -> str | None:
    if any(b'"off_track"' in path.read_bytes() for path in run.folder.glob("*/log.jsonl")):
        return "off track"
    return "on track" if "forecast_loss" in line else None


def _final_loss(run: RunStatus) -> str:
    """Format the forecast and the verdict as a cell."""
    if run.forecast is None or run.forecast_low is None or run.forecast_high is None:
        return run.verdict or ""
    half_width = (run.forecast_high - run.forecast_low) / 2
    return f"{run.forecast:.3f} ± {half_width:.3f}, {run.verdict}"


def device_seconds(run: SweepRun) -> float:
    """Add up the seconds of training by the logs, times the devices; without starting, evaluating and saving."""
    total = 0.0
    trunk_steps = _first_and_last_steps(run.folder / "trunk")
    if trunk_steps:
        total += trunk_steps[-1]["wall_seconds"] * trunk_steps[-1]["devices"]
    branch_points = {run.folder_of(branch): branch.branch_point_tokens for branch in run.branches}
    for folder, branch_point in branch_points.items():
        steps = _first_and_last_steps(folder)
        logged_tokens = steps[-1]["tokens"] - steps[0]["tokens"] if steps else 0
        if logged_tokens:
            # A branch goes on counting from the trunk, and its first line is of some steps on.
            seconds_per_token = (steps[-1]["wall_seconds"] - steps[0]["wall_seconds"]) / logged_tokens
            total += seconds_per_token * (steps[-1]["tokens"] - branch_point) * steps[-1]["devices"]
    return total


def _first_and_last_steps(folder: Path) -> list[Fields]:
    """Read the lines of steps at the beginning and the end of the log of a trunk or branch; others are evaluations."""
    lines = _lines(folder, at_end=False)[:1] + _lines(folder, at_end=True)
    return [line for line in lines if "wall_seconds" in line]


def trained_tokens(run: SweepRun) -> int:
    """Count the tokens trained so far, according to the logs."""
    tokens = _last_line(run.folder / "trunk").get("tokens", 0)
    for branch in run.branches:
        tokens += max(0, _last_line(run.folder_of(branch)).get("tokens", 0) - branch.branch_point_tokens)
    return min(tokens, run.target_tokens)


def measured_flops_per_second(sweep: Sweep) -> float | None:
    """Return training FLOP/s of a run: the median over the records, or over the newest log lines; None without any."""
    flops = []
    for record in itertools.chain(*(run.records() for run in sweep.runs)):
        if record.tokens_per_second:
            flops.append(float(training_flops(record.n_active, record.tokens_per_second)))
    if not flops:
        for run in sweep.runs:
            speed = newest_line(run).get("tokens_per_second")
            if speed:
                flops.append(run.architecture.training_flops(1) * speed)
    return median_high(flops) if flops else None


def status_table(statuses: Sequence[RunStatus]) -> Table:
    """Lay out one row per run, with its place in the queue where the engine reports one."""
    rows = [
        {
            "run": run.name,
            "state": run.state,
            "queue": "" if run.queue is None else f"{run.engine}: {run.queue}",
            "process": (run.process or "").removeprefix("process "),
            "tokens": f"{run.tokens:,} / {run.target_tokens:,}",
            "done": f"{run.tokens / run.target_tokens:.0%}",
            "loss": format_decimal(run.loss),
            "final loss (forecast)": _final_loss(run),
            "tokens/s": None if run.tokens_per_second is None else f"{run.tokens_per_second:,.0f}",
            "time left": format_seconds(run.seconds_left),
            "device-hours": f"{run.device_seconds / 3600:,.2f}",
        }
        for run in statuses
    ]
    return Table.of(rows, styles=[_STYLES[run.state] for run in statuses])


def format_seconds(seconds: float | None) -> str:
    """Format a duration: 48 s, 12 min, 3.4 h, 5.1 days; – for None and infinity."""
    if seconds is None or seconds == math.inf:
        return "–"
    for size, unit, digits in ((86400, "days", 1), (3600, "h", 1), (60, "min", 0)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.{digits}f} {unit}"
    return f"{seconds:.0f} s"


def newest_line(run: SweepRun) -> Fields:
    """Read the last line of the log, of the trunk or a branch, that was written last."""
    logs = sorted(run.folder.glob("*/log.jsonl"), key=lambda path: path.stat().st_mtime)
    return _last_line(logs[-1].parent) if logs else {}


def _last_line(folder: Path) -> Fields:
    """Read the last complete line of the log of a trunk or branch; empty without one."""
    lines = _lines(folder, at_end=True)
    return lines[-1] if lines else {}


def _lines(folder: Path, *, at_end: bool, size: int = 1 << 16) -> list[Fields]:
    """Read the complete lines among the first or last `size` bytes of the log of a trunk or branch."""
    log = folder / "log.jsonl"
    if not log.exists():
        return []
    with open(log, "rb") as file:
        if at_end:
            file.seek(max(0, file.seek(0, 2) - size))
        texts = file.read(size).splitlines()
    lines = []
    for text in texts:
        # A line may be cut, or being written just now.
        with suppress(ValueError):
            lines.append(json.loads(text))
    return lines
