"""Working off a sweep: several runs at a time, each `accelerate launch train.py`, which goes on from what is there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from training.data.pins import pinned_with_sweep
from training.sweep import launch
from training.sweep.file import Sweep, SweepRun
from training.sweep.state import Attempt, held, is_through, records, state, trained_tokens


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


@dataclass
class _Started:
    run: SweepRun
    worker: launch.Worker
    holding: ExitStack
    attempt: int

    def ended(self, *, stopped: bool) -> None:
        if self.worker.process is not None:
            Attempt(self.worker.exit_status(), stopped).save(self.run.folder)
        self.holding.close()


def run_sweep(
    sweep: Sweep,
    workers: int,
    watch: Callable[[list[SweepRun]], None] = lambda running: None,
    *,
    processes_per_run: int = 1,
    accelerate_config: Path | None = None,
    retries: int = 0,
) -> Outcome:
    """Work off the sweep, `workers` runs at a time, the dearest first; what is through already is not run again.

    A run that fails does not stop the others. When this is interrupted by an exception (SystemExit,
    KeyboardInterrupt), the runs save a checkpoint and stop first.

    Args:
        watch: called about twice a second with the runs that are running now.
        retries: how often a failed run is started again, after the others; a diverged one would diverge again.

    Raises:
        ConfigurationError: there are too few devices for the processes of a run, or they cannot share its batches; or
            the commit of its dataset cannot be told.
    """
    waiting = [(run, 0) for run in sorted(sweep.runs, key=lambda run: run.cost, reverse=True) if not is_through(run)]
    outcome = Outcome()
    for run in sweep.runs:
        if is_through(run):
            _judge(run, 0, outcome)
    for run, _ in waiting:
        run.arguments.check_processes(processes_per_run)
        pinned_with_sweep(run.arguments, run.folder)  # all of them before the first is started
    free = launch.workers(workers, processes_per_run, accelerate_config)
    busy: list[_Started] = []
    try:
        while waiting or busy:
            while waiting and free:
                run, attempt = waiting.pop(0)
                if (holding := _hold(run)) is None:
                    outcome.elsewhere.append(run.name)
                    continue
                busy.append(_Started(run, free.pop(), holding, attempt))
                _start(busy[-1])
            time.sleep(0.5)
            watch([started.run for started in busy])
            for started in [started for started in busy if started.worker.exit_status() is not None]:
                busy.remove(started)
                free.append(started.worker)
                started.ended(stopped=False)
                if state(started.run) == "failed" and started.attempt < retries:
                    waiting.append((started.run, started.attempt + 1))
                else:
                    _judge(started.run, started.worker.exit_status(), outcome)
    finally:
        for started in busy:
            started.worker.interrupt()
        for started in busy:
            started.worker.join()
            started.ended(stopped=True)
    return outcome


def _hold(run: SweepRun) -> ExitStack | None:
    run.folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        # A second: long enough for a look at the lock by `status` to pass.
        return stack.pop_all() if stack.enter_context(held(run, timeout=1)) else None


def _start(started: _Started) -> None:
    config = write_configuration(started.run)
    started.worker.start(config, started.run.folder / "output.log")


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


def _judge(run: SweepRun, exit_status: int, outcome: Outcome) -> None:
    if is_through(run) and all(record.status == "final" for record in records(run)):
        outcome.finished.append(run.name)
    else:
        outcome.failed[run.name] = exit_status or 1, run.folder / "output.log"


@contextmanager
def sweep_progress(sweep: Sweep) -> Iterator[Callable[[list[SweepRun]], None]]:
    """A live display of the running runs and of the whole sweep; the value is the `watch` for `run_sweep`."""
    from rich import progress

    columns = (
        progress.TextColumn("{task.description:<20}"),
        progress.BarColumn(),
        progress.TaskProgressColumn(),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, transient=True) as display:
        whole = display.add_task(f"[bold]sweep {sweep.name}", total=sum(run.cost for run in sweep.runs))
        tasks = {run.name: display.add_task(run.name, total=run.target_tokens, visible=False) for run in sweep.runs}

        def watch(running: list[SweepRun]) -> None:
            names = {run.name for run in running}
            trained = {run.name: trained_tokens(run) for run in sweep.runs}
            for name, task in tasks.items():
                display.update(task, completed=trained[name], visible=name in names)
            done = sum(run.cost * trained[run.name] / run.target_tokens for run in sweep.runs)
            display.update(whole, completed=done)

        yield watch
