"""Executing a sweep: several runs at a time, each `accelerate launch train.py`, which resumes from what is there.

The launcher exits with 1 for whatever went wrong, so what became of a run is read from its folder.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median_high
from typing import TYPE_CHECKING, Any, Literal

import psutil
from filelock import FileLock, Timeout

from hub.plain import atomic
from hub.plain.progress import format_rate, progress_bars
from hub.plain.tables import Table
from hub.plain.units import format_decimal
from training.configuration.arguments import ConfigurationError
from training.data.pins import pinned_with_sweep
from training.sweep.file import Sweep, SweepRun

if TYPE_CHECKING:
    from rich.console import Console

State = Literal["waiting", "running", "finished", "diverged", "failed"]
STOP_SECONDS = 120  # to write a checkpoint; then the run is killed, and resumes from the one before
_FRESH_SECONDS = 120  # a run that `sweep run` did not start counts as running if its log is no older
_STYLES = {"finished": "green", "running": "cyan", "failed": "red", "diverged": "red", "waiting": "dim"}


# -- how far the runs have come, from what lies in their folders


@dataclass(frozen=True)
class Attempt:
    """How the last attempt at a run ended (`state.json`); `stopped` by the sweep, with a checkpoint to resume from."""

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
    """Held by the sweep that executes the run, and released with its process."""
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
    last = _last_line(run.folder / "trunk")
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
    done = _last_line(run.folder / "trunk").get("tokens", 0)
    for branch in run.branches:
        done += max(0, _last_line(run.folder_of(branch)).get("tokens", 0) - branch.branch_point_tokens)
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
    return _last_line(logs[-1].parent) if logs else {}


def _last_line(folder: Path, size: int = 1 << 16) -> dict[str, Any]:
    """The last whole line of the log of a trunk or branch, of which only the end is read; empty without one."""
    if not (log := folder / "log.jsonl").exists():
        return {}
    with open(log, "rb") as file:
        file.seek(max(0, file.seek(0, 2) - size))
        lines = file.read().splitlines()
    for line in reversed(lines):
        with suppress(ValueError):  # being written just now, or cut by the seek
            return json.loads(line)
    return {}


# -- the processes of one run, on its own devices or share of the cores


def launch_command(on_cpu: bool, processes: int = 1, accelerate_config: Path | None = None) -> list[str]:
    """`accelerate launch train.py` on this machine, or the module where there is no train.py.

    A single process leaves the number of processes to the file of `accelerate config`, if there is one.
    """
    launch = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch"]
    if accelerate_config is not None:
        launch += ["--config_file", str(accelerate_config)]
        launch += ["--num_processes", str(processes)] if processes > 1 else []
    else:
        launch += ["--num_processes", str(processes), "--num_machines", "1"]
        launch += ["--mixed_precision", "no", "--dynamo_backend", "no"]
        # `--cpu` starts a single process whatever --num_processes says; `--multi_gpu` starts them all, also on CPU.
        launch += ["--multi_gpu"] if processes > 1 else ["--cpu"] if on_cpu else []
    if accelerate_config is not None or processes > 1:
        launch += ["--main_process_port", "0"]  # any free one: other runs of the sweep need theirs
    script = Path(__file__).parents[2] / "train.py"
    return [*launch, str(script)] if script.exists() else [*launch, "-m", "training.run"]


def environments(count: int, processes: int = 1, accelerate_config: Path | None = None) -> list[dict[str, str]]:
    """What gives each of `count` runs its devices: GPUs in turn if there are any, else an equal share of the cores.

    Raises ConfigurationError if a run needs more GPUs than there are, or the configuration file cannot be used.
    """
    if accelerate_config is not None and processes == 1:
        from accelerate.commands.config.config_args import load_config_from_file

        try:
            processes = max(1, load_config_from_file(str(accelerate_config)).num_processes)
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise ConfigurationError(f"--accelerate-config: {str(accelerate_config)!r}: {error}") from error
    if devices := _cuda_devices():
        groups = [devices[i : i + processes] for i in range(0, len(devices) - processes + 1, processes)]
        if not groups:
            raise ConfigurationError(f"--processes-per-run: {processes}; it must be at most {len(devices)}, the GPUs")
        return [{"CUDA_VISIBLE_DEVICES": ",".join(groups[i % len(groups)])} for i in range(count)]
    threads = max(1, (os.cpu_count() or 1) // (count * processes))
    return [{"OMP_NUM_THREADS": str(threads), "ACCELERATE_USE_CPU": "true"} for _ in range(count)]


def _cuda_devices() -> list[str]:
    import torch

    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return visible.split(",")
    return [str(i) for i in range(torch.cuda.device_count())]


@dataclass
class _Running:
    """A run that is being trained, in the environment that gives it its devices."""

    run: SweepRun
    retries: int
    environment: dict[str, str]
    lock: FileLock
    launcher: psutil.Popen = field(init=False)

    def start(self, command: list[str]) -> None:
        """Start `command` for the run; its output is appended to the run's `output.log`."""
        command = [*command, "--config", str(write_configuration(self.run)), "--run.progress", "false"]
        with open(self.run.folder / "output.log", "a", encoding="utf-8") as output:
            # A session of its own: so that a stop reaches the launcher's children, and Ctrl-C only us.
            options = {"stdout": output, "stderr": subprocess.STDOUT, "start_new_session": True}
            self.launcher = psutil.Popen(command, env={**os.environ, **self.environment}, **options)

    def interrupt(self) -> None:
        """Ask the run to save a checkpoint and stop."""
        # Only the training processes are asked. The launcher of several processes would otherwise pass the signal on
        # a second time, and kill them 30 seconds later.
        with suppress(psutil.NoSuchProcess):
            for process in self.launcher.children() or [self.launcher]:  # without children it is starting, or ending
                with suppress(psutil.NoSuchProcess):
                    process.terminate()

    def join(self) -> None:
        """Wait until the launcher and its children are gone; kill what is still there after `STOP_SECONDS`."""
        with suppress(ProcessLookupError):
            for _ in range(STOP_SECONDS * 10):
                self.launcher.poll()
                os.killpg(self.launcher.pid, 0)  # raises once the last of them is gone
                time.sleep(0.1)
            os.killpg(self.launcher.pid, signal.SIGKILL)
            self.launcher.wait()

    def ended(self, *, stopped: bool) -> int:
        """Note how the launcher ended, and let other sweeps have the run."""
        exit_status = self.launcher.wait()
        Attempt(exit_status, stopped).save(self.run.folder)
        self.lock.release()
        return exit_status


# -- all of them


@dataclass
class Outcome:
    """Names of the runs that finished, that failed or diverged (with exit status and log), or that are another's."""

    finished: list[str] = field(default_factory=list)
    failed: dict[str, tuple[int, Path]] = field(default_factory=dict)
    elsewhere: list[str] = field(default_factory=list)

    def add(self, run: SweepRun, exit_status: int) -> None:
        """Note a run that has ended."""
        if run.complete and all(record.status == "final" for record in run.records()):
            self.finished.append(run.name)
        else:
            self.failed[run.name] = exit_status or 1, run.folder / "output.log"


def run_sweep(
    sweep: Sweep,
    workers: int,
    watch: Callable[[list[SweepRun]], None] = lambda running: None,
    processes_per_run: int = 1,
    accelerate_config: Path | None = None,
    retries: int = 0,
) -> Outcome:
    """Execute what is not finished, `workers` runs at a time, most expensive runs first.

    A run that fails does not stop the others, and is started again up to `retries` times after them, unless it
    diverged. On SystemExit or KeyboardInterrupt the runs save a checkpoint and stop. `watch` gets the running ones
    twice a second.

    Raises ConfigurationError for too few devices, batches that processes cannot share, or data of unknown commit.
    """
    outcome = Outcome()
    waiting: list[tuple[SweepRun, int]] = []
    for run in sorted(sweep.runs, key=lambda run: run.cost, reverse=True):
        if run.complete:
            outcome.add(run, 0)
            continue
        run.arguments.check_processes(processes_per_run)
        pinned_with_sweep(run.arguments, run.folder)  # all of them before the first is started
        waiting.append((run, retries))
    free = environments(workers, processes_per_run, accelerate_config)
    command = launch_command("ACCELERATE_USE_CPU" in free[0], processes_per_run, accelerate_config)
    busy: list[_Running] = []
    try:
        while waiting or busy:
            while waiting and free:
                run, left = waiting.pop(0)
                run.folder.mkdir(parents=True, exist_ok=True)
                lock = lock_of(run)
                try:
                    lock.acquire(timeout=1)  # long enough for `status`, which tries the lock
                except Timeout:
                    outcome.elsewhere.append(run.name)
                    continue
                running = _Running(run, left, free.pop(), lock)
                running.start(command)
                busy.append(running)
            time.sleep(0.5)
            watch([running.run for running in busy])
            for ended in [running for running in busy if running.launcher.poll() is not None]:
                busy.remove(ended)
                free.append(ended.environment)
                exit_status = ended.ended(stopped=False)
                if ended.retries and state(ended.run) == "failed":
                    waiting.append((ended.run, ended.retries - 1))
                else:
                    outcome.add(ended.run, exit_status)
    finally:
        for running in busy:
            running.interrupt()
        for running in busy:
            running.join()
            running.ended(stopped=True)
    return outcome


def write_configuration(run: SweepRun) -> Path:
    """Write `launch.yaml` for `train.py --config` into the run's folder, pinned to the sweep's data; see `pins`."""
    arguments = pinned_with_sweep(run.arguments, run.folder)
    run.folder.mkdir(parents=True, exist_ok=True)
    path = run.folder / "launch.yaml"
    arguments.save(path)
    return path


@contextmanager
def sweep_progress(sweep: Sweep, console: Console | None = None) -> Iterator[Callable[[list[SweepRun]], None]]:
    """A live display of the whole sweep and of the running runs, each with its latest training loss and its speed.

    The value is the `watch` for `run_sweep`.
    """
    with progress_bars(console) as display:
        total = sum(run.cost for run in sweep.runs)
        whole = display.add_task(f"[bold]sweep {sweep.name}", total=total, detail="", unit="")
        tasks = {
            run.name: display.add_task(run.name, total=run.target_tokens, visible=False, detail="", unit="")
            for run in sweep.runs
        }

        def watch(running: list[SweepRun]) -> None:
            done = 0.0
            for run in sweep.runs:
                tokens = trained_tokens(run)
                display.update(tasks[run.name], completed=tokens, visible=run in running)
                done += run.cost * tokens / run.target_tokens
            for run in running:
                line = _newest_line(run)
                loss = "" if line.get("loss") is None else f"loss {line['loss']:.3f}"
                rate = format_rate(line.get("tokens_per_second"), "tok")  # not ours: a resumed run starts far along
                display.update(tasks[run.name], detail=f"{loss} {rate}".strip())
            display.update(whole, completed=done)

        yield watch
