"""Engines that execute a sweep (this machine, SLURM), and the jobs of its runs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import ClassVar, NamedTuple

from filelock import FileLock, Timeout

from hub.base import atomic
from training.configuration.arguments import ConfigurationError
from training.run.attempt import Attempt
from training.sweep.file import Sweep, SweepRun
from training.sweep.status import Queued

# A file in the sweep's folder: a pair for each engine with a queue, its name first.
SUBMITS = "submits.json"
LOCK_SECONDS = 600


class EngineError(Exception):
    """An engine cannot be reached, or refuses a request."""

    exit_status = 1


@dataclass(frozen=True)
class Job:
    """A run's job on an engine with a queue; all jobs of a run are listed in its `jobs.json`.

    `id` is the engine's.
    """

    engine: str
    id: str

    @staticmethod
    def of(run: SweepRun) -> list[Job]:
        """Read all jobs of a run, oldest first; the last may be alive."""
        jobs: list[Job] = atomic.read_json(run.folder / "jobs.json", [], list[Job])
        return jobs

    def add_to(self, run: SweepRun) -> None:
        """Note the job as the run's newest, unless it is noted already."""
        jobs = Job.of(run)
        if self not in jobs:
            run.folder.mkdir(parents=True, exist_ok=True)
            atomic.write_json(run.folder / "jobs.json", [asdict(job) for job in [*jobs, self]])


class Failure(NamedTuple):
    """The end of a run that failed or diverged: its exit status, and its log."""

    exit_status: int
    log: Path

    def __str__(self) -> str:
        attempt = Attempt.load(self.log.parent)
        message = " ".join(attempt.message.split()) if attempt else ""
        reason = f": {message}" if message else ""
        return f"exit status {self.exit_status}{reason}; see {self.log}"


@dataclass
class Outcome:
    """Results of runs by name. `failed` includes diverged runs; `elsewhere` are busy."""

    finished: list[str] = field(default_factory=list)
    failed: dict[str, Failure] = field(default_factory=dict)
    elsewhere: list[str] = field(default_factory=list)
    queued: dict[str, Job] = field(default_factory=dict)

    def add(self, run: SweepRun, exit_status: int) -> None:
        """Note a run that has ended."""
        if run.complete and all(record.status == "final" for record in run.records()):
            self.finished.append(run.name)
        else:
            self.failed[run.name] = Failure(exit_status or 1, run.folder / "output.log")


class Engine:
    """Executes the runs of a sweep, each of which resumes from its checkpoints. All methods may raise EngineError.

    An engine that queues marks each job with its sweep. So the engine, rather than `jobs.json`, says which jobs there
    are: a submit that is killed sends jobs that it cannot note.
    """

    name: ClassVar[str]

    def preview(self, sweep: Sweep, sweep_file: Path) -> str:
        """Return the text that `submit` would start or send; nothing is started."""
        raise NotImplementedError

    def submit(self, sweep: Sweep, sweep_file: Path) -> Outcome:
        """Execute the runs, or put them into the engine's queue and return; `submitting` is held by the caller."""
        raise NotImplementedError

    def queue(self, runs: Sequence[SweepRun]) -> Mapping[Job, Queued]:
        """Return the engine's state of these runs' jobs, and add unlisted jobs to their runs."""
        return {}

    def stop(self, jobs: Sequence[Job]) -> None:
        """Cancel jobs of the engine's queue; a running one saves a checkpoint if the engine leaves it the time."""
        raise NotImplementedError

    def cancel(self, runs: Sequence[SweepRun]) -> list[str]:
        """Stop waiting and running runs for good, and return their names."""
        jobs = alive(self, runs)
        if jobs:
            self.stop([*itertools.chain(*jobs.values())])
        return list(jobs)


@contextmanager
def submitting(sweep: Sweep) -> Iterator[None]:
    """Hold a lock while runs are selected and queued, so that no two submits send the same run.

    Raises EngineError if another submit holds it for `LOCK_SECONDS`.
    """
    sweep.folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(sweep.folder / ".submit.lock", timeout=LOCK_SECONDS):
            yield
    except Timeout:
        raise EngineError(f"{sweep.folder}: another `run` has been submitting it for {LOCK_SECONDS} s") from None


def read_submits(folder: Path) -> dict[str, str]:
    """Read the engines to which a sweep was submitted, each with a text that no engine reads any more."""
    return dict(atomic.read_json(folder / SUBMITS, [], list[tuple[str, str]]))


def note_submit(engine: Engine, sweep: Sweep) -> None:
    """Note that the engine gets jobs; done before any is sent, so that `queue` finds those of a killed submit."""
    submits = read_submits(sweep.folder)
    atomic.write_json(sweep.folder / SUBMITS, [*({engine.name: ""} | submits).items()])


def select_unfinished(engine: Engine, sweep: Sweep) -> tuple[Sweep, Outcome]:
    """Select the runs to queue, most expensive first, and return the results of the others, too."""
    busy = alive(engine, sweep.runs)
    outcome = Outcome()
    runs_to_queue = []
    for run in sorted(sweep.runs, key=lambda run: run.cost, reverse=True):
        if run.complete:
            outcome.add(run, 0)
        elif run.name in busy:
            outcome.elsewhere.append(run.name)
        else:
            runs_to_queue.append(run)
    return Sweep(sweep.name, tuple(runs_to_queue)), outcome


def alive(engine: Engine, runs: Sequence[SweepRun]) -> dict[str, list[Job]]:
    """Return waiting and running jobs by the name of their run."""
    queue = engine.queue(runs)
    jobs_by_run = {}
    for run in runs:
        jobs = [job for job in Job.of(run) if job in queue and queue[job].alive]
        if jobs:
            jobs_by_run[run.name] = jobs
    return jobs_by_run


def seconds_of(time: str) -> int:
    """Return the seconds of a time in sbatch's notation, such as 90 (minutes), 12:00:00 or 1-12 (days-hours).

    Raises ConfigurationError for another text.
    """
    if not re.fullmatch(r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}", time):
        raise ConfigurationError(f"--time: {time!r}; it must be minutes, hours:minutes:seconds or days-hours")
    days, has_days, clock = time.rpartition("-")
    numbers = [int(number) for number in clock.split(":")]
    if not has_days and len(numbers) < 3:
        numbers = [0, *numbers]
    hours, minutes, seconds = [*numbers, 0, 0][:3]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
