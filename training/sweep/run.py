"""Executing a sweep on this machine: several runs at a time, each `accelerate launch train.py`, which resumes."""

from __future__ import annotations

import logging
import os
import platform
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import torch
from filelock import FileLock, Timeout

from hub.base import atomic
from hub.base.progress import format_rate, progress_bars
from training.configuration.arguments import ConfigurationError
from training.data.pins import pinned_with_sweep
from training.run.attempt import STATE_FILE, Attempt, Holder, find_trainer, signals_to_stop
from training.run.inputs import resolve_arguments
from training.run.model import check_rate
from training.sweep.engine import EngineError, Outcome
from training.sweep.file import Sweep, SweepRun
from training.sweep.status import (
    EXECUTOR,
    find_process,
    lock_of,
    newest_line,
    state,
    trained_tokens,
)

if TYPE_CHECKING:
    from rich.console import Console

logger = logging.getLogger(__name__)

CONFIGURATION = "launch.yaml"
# Seconds to write a checkpoint; then the run is killed, and resumes from the one before.
STOP_SECONDS = 120


def launch_command(on_cpu: bool, processes: int = 1, accelerate_config: Path | None = None) -> list[str]:
    """Return `accelerate launch train.py` on this machine, or of the module where there is no train.py.

    A single process leaves the number of processes to the file of `accelerate config`, if there is one.
    """
    launch = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch"]
    if accelerate_config is not None:
        launch += ["--config_file", str(accelerate_config)]
        if processes > 1:
            launch += ["--num_processes", str(processes)]
    else:
        launch += ["--num_processes", str(processes), "--num_machines", "1"]
        launch += ["--mixed_precision", "no", "--dynamo_backend", "no"]
        # `--cpu` starts a single process whatever --num_processes says; `--multi_gpu` starts them all, also on CPU.
        if processes > 1:
            launch.append("--multi_gpu")
        elif on_cpu:
            launch.append("--cpu")
    if accelerate_config is not None or processes > 1:
        # Port 0 is any free one: other runs of the sweep need theirs.
        launch += ["--main_process_port", "0"]
    if processes == 1:
        # Without its own traceback below the error of a single process.
        launch.append("--quiet")
    script = Path(__file__).parents[2] / "train.py"
    return [*launch, str(script)] if script.exists() else [*launch, "-m", "training.run"]


def environments(count: int, processes: int = 1, accelerate_config: Path | None = None) -> list[dict[str, str]]:
    """Make environments that give `count` runs their devices: GPUs in turn, or else equal shares of the cores.

    Raises ConfigurationError if a run needs more GPUs than there are, or the configuration file cannot be used.
    """
    if accelerate_config is not None and processes == 1:
        from accelerate.commands.config.config_args import (
            load_config_from_file,
        )

        try:
            processes = max(1, load_config_from_file(str(accelerate_config)).num_processes)
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise ConfigurationError(f"--accelerate-config: {str(accelerate_config)!r}: {error}") from error
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = visible.split(",") if visible else [str(i) for i in range(torch.cuda.device_count())]
    if devices:
        groups = [devices[i : i + processes] for i in range(0, len(devices) - processes + 1, processes)]
        if not groups:
            raise ConfigurationError(f"--processes-per-run: {processes}; it must be at most {len(devices)}, the GPUs")
        return [{"CUDA_VISIBLE_DEVICES": ",".join(groups[i % len(groups)])} for i in range(count)]
    threads = max(1, (os.cpu_count() or 1) // (count * processes))
    return [{"OMP_NUM_THREADS": str(threads), "ACCELERATE_USE_CPU": "true"} for _ in range(count)]


@dataclass(eq=False)
class _Running:
    """A run that is being trained, in the environment that gives it its devices.

    Without a lock, another sweep started it, and was killed.
    """

    run: SweepRun
    retries: int
    environment: dict[str, str]
    lock: FileLock | None
    launcher: psutil.Popen = field(init=False)

    @property
    def has_ended(self) -> bool:
        """True if no process trains the run any more."""
        return self.launcher.poll() is not None if self.lock else not _find_left_training(self.run)

    def start(self, command: list[str]) -> None:
        """Start `command` for the run; its output is appended to the run's `output.log`."""
        folder = self.run.folder
        command = [*command, "--config", str(write_configuration(self.run)), "--run.progress", "false"]
        (folder / "state.json").unlink(missing_ok=True)
        with open(folder / "output.log", "a", encoding="utf-8") as output:
            # In a session of its own, a stop reaches the launcher's children, and Ctrl-C only us.
            self.launcher = psutil.Popen(
                command,
                env={**os.environ, **self.environment, STATE_FILE: str(folder.absolute() / "state.json")},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # If this process is killed, the launcher goes on to hold the lock.
                pass_fds=[self.lock._context.lock_file_fd] if self.lock else [],
            )
        executor = Holder(platform.node(), os.getpid(), self.launcher.pid)
        atomic.write_json(folder / EXECUTOR, asdict(executor))

    def interrupt(self) -> None:
        """Ask the run to save a checkpoint and stop."""
        # Only the training processes are asked. The launcher of several processes would otherwise pass the signal on
        # a second time, and kill them 30 seconds later.
        with suppress(psutil.NoSuchProcess):
            # A launcher without children is starting, or ending.
            for process in self.launcher.children() or [self.launcher]:
                with suppress(psutil.NoSuchProcess):
                    process.terminate()

    def join(self) -> None:
        """Wait until the launcher and its children are gone; kill them after `STOP_SECONDS`."""
        with suppress(ProcessLookupError):
            for _ in range(STOP_SECONDS * 10):
                self.launcher.poll()
                # This raises once the last of them is gone.
                os.killpg(self.launcher.pid, 0)
                time.sleep(0.1)
            os.killpg(self.launcher.pid, signal.SIGKILL)
            self.launcher.wait()

    def release(self, *, stopped: bool) -> Attempt | None:
        """Save how the run ended and release it for other sweeps; None if another's run ended without a word.

        A launcher ends with 1 for any failure; the training that fails or is stopped says how.
        """
        attempt = Attempt.load(self.run.folder)
        if self.lock:
            attempt = attempt or Attempt(int(self.launcher.wait()), stopped)
            replace(attempt, stopped=stopped or attempt.stopped).save(self.run.folder)
            self.lock.release()
        return attempt


def run_sweep(
    sweep: Sweep,
    workers: int,
    watch: Callable[[list[SweepRun]], None] = lambda running: None,
    processes_per_run: int = 1,
    accelerate_config: Path | None = None,
    retries: int = 0,
) -> Outcome:
    """Execute unfinished runs, `workers` at a time, most expensive first.

    A run that fails does not stop the others, and is started again up to `retries` times after them, unless it
    diverged. A run that is being trained already, as by a sweep that was killed, is waited for. On SystemExit or
    KeyboardInterrupt the runs that were started save a checkpoint and stop. `watch` gets the running ones twice a
    second.

    Raises ConfigurationError for too few devices, batches that processes cannot share, or data of unknown commit.
    """
    outcome = Outcome()
    waiting: list[tuple[SweepRun, int]] = []
    # At equal FLOPs more experts take longer.
    for run in sorted(sweep.runs, key=lambda run: (run.cost, run.arguments.model.experts), reverse=True):
        if run.complete:
            outcome.add(run, 0)
            continue
        run.arguments.check_processes(processes_per_run)
        check_rate(run.arguments, run.architecture)
        # All runs are pinned before the first is started.
        pinned_with_sweep(run.arguments, run.folder)
        waiting.append((run, retries))
    free = environments(workers, processes_per_run, accelerate_config)
    command = launch_command("ACCELERATE_USE_CPU" in free[0], processes_per_run, accelerate_config)
    busy: list[_Running] = []
    try:
        while waiting or busy:
            while waiting and free:
                run, retries_left = waiting.pop(0)
                process = _find_left_training(run)
                if process:
                    logger.warning("run %s: waiting for process %d, which trains it already", run.name, process.pid)
                    busy.append(_Running(run, retries_left, _take(free, process), lock=None))
                    continue
                lock = _lock_unless_busy(run, outcome)
                if lock is not None:
                    running = _Running(run, retries_left, free.pop(), lock)
                    running.start(command)
                    busy.append(running)
            time.sleep(0.5)
            watch([running.run for running in busy])
            for running in [running for running in busy if running.has_ended]:
                busy.remove(running)
                free.append(running.environment)
                attempt = running.release(stopped=False)
                if attempt is None:
                    waiting.append((running.run, running.retries))
                elif running.retries and state(running.run) == "failed":
                    waiting.append((running.run, running.retries - 1))
                else:
                    outcome.add(running.run, attempt.exit_status)
    finally:
        started = [running for running in busy if running.lock]
        for running in started:
            running.interrupt()
        for running in started:
            running.join()
            running.release(stopped=True)
    return outcome


def _lock_unless_busy(run: SweepRun, outcome: Outcome) -> FileLock | None:
    """Lock a run; None, which `outcome` notes, if another sweep executes it or has finished it meanwhile."""
    run.folder.mkdir(parents=True, exist_ok=True)
    lock = lock_of(run)
    with suppress(Timeout):
        # A second is long enough for `status`, which tries the lock.
        lock.acquire(timeout=1)
        if not (find_trainer(run.folder) or run.complete):
            return lock
        lock.release()
    if run.complete:
        outcome.add(run, 0)
    else:
        outcome.elsewhere.append(run.name)
    return None


def _find_left_training(run: SweepRun) -> psutil.Process | None:
    """Find the process on this machine that trains a run, or is about to, without a sweep that executes it."""
    holder = find_process(run)
    return None if holder is None or holder.launcher else holder.find()


def _take(free: list[dict[str, str]], process: psutil.Process) -> dict[str, str]:
    """Take the environment in which a process works, or else the last, from those that are free."""
    with suppress(psutil.NoSuchProcess):
        variables = process.environ().items()
        for environment in free:
            if environment.items() <= variables:
                free.remove(environment)
                return environment
    return free.pop()


def stop_on_signals() -> None:
    """End by an exception at the first signal to stop, so that `run_sweep` asks the runs to save and stop."""

    def stop(number: int, _frame: object) -> None:
        # A scheduler may send SIGTERM again. A second Ctrl-C does not wait.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        raise SystemExit(128 + number)

    for number in signals_to_stop():
        signal.signal(number, stop)


def write_configuration(run: SweepRun) -> Path:
    """Write `CONFIGURATION` for `train.py --config` into the run's folder, pinned to the sweep's data; see `pins`."""
    arguments = resolve_arguments(pinned_with_sweep(run.arguments, run.folder))
    run.folder.mkdir(parents=True, exist_ok=True)
    path = run.folder / CONFIGURATION
    arguments.save(path)
    return path


@contextmanager
def sweep_progress(sweep: Sweep, console: Console | None = None) -> Iterator[Callable[[list[SweepRun]], None]]:
    """Show the progress of the sweep and of the running runs, each with its latest training loss and its speed.

    Yields the `watch` for `run_sweep`.
    """
    with progress_bars(console) as display:
        total = sum(run.cost for run in sweep.runs)
        sweep_task = display.add_task(f"[bold]sweep {sweep.name}", total=total, detail="", unit="")
        tasks = {
            run.name: display.add_task(run.name, total=run.target_tokens, visible=False, detail="", unit="")
            for run in sweep.runs
        }

        def watch(running: list[SweepRun]) -> None:
            flops = 0.0
            for run in sweep.runs:
                tokens = trained_tokens(run)
                display.update(tasks[run.name], completed=tokens, visible=run in running)
                flops += run.cost * tokens / run.target_tokens
            for run in running:
                line = newest_line(run)
                loss = "" if line.get("loss") is None else f"loss {line['loss']:.3f}"
                # The display's own speed would be wrong: a resumed run starts far along.
                rate = format_rate(line.get("tokens_per_second"), "tok")
                display.update(tasks[run.name], detail=f"{loss} {rate}".strip())
            display.update(sweep_task, completed=flops)

        yield watch


@dataclass(frozen=True)
class Local:
    """This machine: the runs are executed while the command waits; `run_sweep` has the fields."""

    workers: int = 1
    processes_per_run: int = 1
    accelerate_config: Path | None = None
    retries: int = 0

    def preview(self, sweep: Sweep, sweep_file: Path) -> str:
        """Write a command for each run, with the variables that give it its devices."""
        places = environments(self.workers, self.processes_per_run, self.accelerate_config)
        command = launch_command("ACCELERATE_USE_CPU" in places[0], self.processes_per_run, self.accelerate_config)
        lines = []
        for i, run in enumerate(sweep.runs):
            variables = [f"{name}={value}" for name, value in places[i % len(places)].items()]
            lines.append(shlex.join([*variables, *command, "--config", str(run.folder / CONFIGURATION)]))
        return "\n".join([*lines, ""])

    def submit(self, sweep: Sweep, sweep_file: Path) -> Outcome:
        """Execute unfinished runs, with a live display; at the first signal to stop, all of them save and stop."""
        stop_on_signals()
        with sweep_progress(sweep) as watch:
            return run_sweep(sweep, watch=watch, **vars(self))

    def cancel(self, runs: Sequence[SweepRun]) -> list[str]:
        """Stop the commands that execute these runs, each with all of its runs, and trainings without a command."""
        processes: dict[str, psutil.Process] = {}
        for run in runs:
            holder = find_process(run)
            if holder is None:
                continue
            process = holder.find()
            if process is None:
                raise EngineError(f"local: run {run.name} is executed by {holder}; cancel it there")
            processes[run.name] = process
        for process in {*processes.values()}:
            process.terminate()
        return list(processes)
