"""What the engines that execute a sweep, `Local` and `Slurm`, have in common: errors and outcomes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from training.configuration.arguments import ConfigurationError
from training.run.attempt import Attempt
from training.sweep.file import SweepRun


class EngineError(Exception):
    """An engine cannot be reached, or refuses a request."""

    exit_status = 1


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
    """Results of runs by name. `failed` includes diverged runs; `elsewhere` are busy; `queued` are ids of jobs."""

    finished: list[str] = field(default_factory=list)
    failed: dict[str, Failure] = field(default_factory=dict)
    elsewhere: list[str] = field(default_factory=list)
    queued: dict[str, str] = field(default_factory=dict)

    def add(self, run: SweepRun, exit_status: int) -> None:
        """Note a run that has ended."""
        if run.complete and all(record.status == "final" for record in run.records()):
            self.finished.append(run.name)
        else:
            self.failed[run.name] = Failure(exit_status or 1, run.folder / "output.log")


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
