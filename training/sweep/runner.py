"""Executing a sweep: several runs at a time, each `accelerate launch train.py`, which resumes from what is there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from training.data.pins import pinned_with_sweep
from training.sweep import launch
from training.sweep.file import Sweep, SweepRun
from training.sweep.state import Attempt, lock_of, state, trained_tokens


@dataclass
class Outcome:
    """What became of the runs.

    Attributes:
        finished: names of the runs whose branches are all trained.
        failed: for each failed or diverged one its exit status and log.
        elsewhere: names of the runs that another sweep is working on.
    """

    finished: list[str] = field(default_factory=list)
    failed: dict[str, tuple[int, Path]] = field(default_factory=dict)
    elsewhere: list[str] = field(default_factory=list)

    def add(self, run: SweepRun, exit_status: int) -> None:
        """Note a run that has ended."""
        if run.complete and all(record.status == "final" for record in run.records()):
            self.finished.append(run.name)
        else:
            self.failed[run.name] = exit_status or 1, run.folder / "output.log"


@dataclass
class _Running:
    """A run that is being trained, in the environment that gives it its devices."""

    run: SweepRun
    retries: int
    environment: dict[str, str]
    lock: FileLock
    launcher: psutil.Popen

    def ended(self, *, stopped: bool) -> int:
        """Note how the launcher ended, and let other sweeps have the run."""
        exit_status = self.launcher.wait()
        Attempt(exit_status, stopped).save(self.run.folder)
        self.lock.release()
        return exit_status


def run_sweep(
    sweep: Sweep,
    workers: int,
    watch: Callable[[list[SweepRun]], None] = lambda running: None,
    *,
    processes_per_run: int = 1,
    accelerate_config: Path | None = None,
    retries: int = 0,
) -> Outcome:
    """Execute the sweep, `workers` runs at a time, most expensive runs first; finished runs are not run again.

    A run that fails does not stop the others. When this is interrupted by an exception (SystemExit,
    KeyboardInterrupt), the runs save a checkpoint and stop first.

    Args:
        watch: called about twice a second with the runs that are running now.
        retries: how often a failed run is started again, after the others; a diverged one would diverge again.

    Raises:
        ConfigurationError: there are too few devices for the processes of a run, or they cannot share its batches; or
            the commit of its dataset cannot be told.
    """
    outcome = Outcome()
    for run in (run for run in sweep.runs if run.complete):
        outcome.add(run, 0)
    runs = sorted((run for run in sweep.runs if not run.complete), key=lambda run: run.cost, reverse=True)
    waiting = [(run, retries) for run in runs]
    for run in runs:
        run.arguments.check_processes(processes_per_run)
        pinned_with_sweep(run.arguments, run.folder)  # all of them before the first is started
    free = launch.environments(workers, processes_per_run, accelerate_config)
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
                where = free.pop()
                command = launch.launch_command("ACCELERATE_USE_CPU" in where, processes_per_run, accelerate_config)
                command += ["--config", str(write_configuration(run)), "--run.progress", "false"]
                launcher = launch.start(command, where, run.folder / "output.log")
                busy.append(_Running(run, left, where, lock, launcher))
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
            launch.interrupt(running.launcher)
        for running in busy:
            launch.join(running.launcher)
            running.ended(stopped=True)
    return outcome


def write_configuration(run: SweepRun) -> Path:
    """Write `launch.yaml` into the run's folder, pinned to the sweep's data: the file that `train.py --config` takes.

    Raises:
        ConfigurationError: the dataset's commit cannot be told; see `pins`.
    """
    arguments = pinned_with_sweep(run.arguments, run.folder)
    run.folder.mkdir(parents=True, exist_ok=True)
    path = run.folder / "launch.yaml"
    arguments.save(path)
    return path


@contextmanager
def sweep_progress(sweep: Sweep) -> Iterator[Callable[[list[SweepRun]], None]]:
    """A live display of the running runs and of the whole sweep; the value is the `watch` for `run_sweep`."""
    from rich import progress

    columns = (*progress.Progress.get_default_columns(), progress.TimeElapsedColumn())
    with progress.Progress(*columns, transient=True) as display:
        whole = display.add_task(f"[bold]sweep {sweep.name}", total=sum(run.cost for run in sweep.runs))
        tasks = {run.name: display.add_task(run.name, total=run.target_tokens, visible=False) for run in sweep.runs}

        def watch(running: list[SweepRun]) -> None:
            done = 0.0
            for run in sweep.runs:
                tokens = trained_tokens(run)
                display.update(tasks[run.name], completed=tokens, visible=run in running)
                done += run.cost * tokens / run.target_tokens
            display.update(whole, completed=done)

        yield watch
