"""The engines that can execute a sweep, and what they say of its runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import typer

from training.configuration.arguments import ConfigurationError
from training.sweep.engine import EngineError, Job
from training.sweep.file import Sweep
from training.sweep.run import Local
from training.sweep.slurm import Slurm
from training.sweep.status import Queued, RunStatus, status

# SLURM comes first, since one of its nodes runs a run as local, too.
ENGINES: Mapping[str, type[Local | Slurm]] = {"slurm": Slurm, "local": Local}


def make_engine(engine_name: str, **options: Any) -> Local | Slurm:
    """Make the engine with its options, of which None and [] are defaults. Raises ConfigurationError for another's."""
    engine = ENGINES[engine_name]
    names = [field.name for field in fields(engine)]
    options = {option: value for option, value in options.items() if value not in (None, [])}
    for option in options.keys() - set(names):
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in names)
        raise ConfigurationError(
            f"--{option.replace('_', '-')}: --on {engine_name} does not take it; it takes {flags}"
        )
    return engine(**options)


def ask_slurm(sweep: Sweep) -> Mapping[Job, Queued]:
    """Return SLURM's state of the jobs of all runs; none, with a warning, where it cannot be reached."""
    try:
        return Slurm().queue(sweep.runs)
    except EngineError as error:
        typer.echo(f"warning: {error}", err=True)
        return {}


def find_statuses(sweep: Sweep, queue: Mapping[Job, Queued]) -> list[RunStatus]:
    """Find the status of all runs, from their folders and from the queue of their jobs."""
    statuses = []
    for sweep_run in sweep.runs:
        # Jobs that have ended come first: an older job may still be alive.
        jobs = sorted(Job.of(sweep_run), key=lambda job: job in queue and queue[job].alive)
        engine_name = jobs[-1].engine if jobs else "local"
        statuses.append(status(sweep_run, engine_name, [queue[job] for job in jobs if job in queue]))
    return statuses
