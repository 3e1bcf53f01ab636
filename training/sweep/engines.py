"""The engines that can execute a sweep, and what all of them say of its runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import typer

from hub.base.errors import HubError
from training.configuration.arguments import ConfigurationError
from training.sweep.engine import Engine, EngineError, Job
from training.sweep.file import Sweep
from training.sweep.run import Local
from training.sweep.slurm import Slurm
from training.sweep.status import Queued, RunStatus, status

ENGINES: Mapping[str, type[Engine]] = {engine.name: engine for engine in (Local, Slurm)}


def make_engine(engine_name: str, **options: Any) -> Engine:
    """Make the engine with its options, of which None and [] are defaults. Raises ConfigurationError for another's."""
    engine = ENGINES[engine_name]
    names = [field.name for field in fields(engine)]  # type: ignore[arg-type]  # every engine is a dataclass
    options = {option: value for option, value in options.items() if value not in (None, [])}
    for option in options.keys() - set(names):
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in names)
        raise ConfigurationError(
            f"--{option.replace('_', '-')}: --on {engine_name} does not take it; it takes {flags}"
        )
    return engine(**options)


def find_statuses(sweep: Sweep) -> list[RunStatus]:
    """Find the status of all runs from their folders, without queues."""
    return [status(sweep_run) for sweep_run in sweep.runs]


def ask_engines(sweep: Sweep) -> list[RunStatus]:
    """Find the status of all runs, with the queues of all engines that can be reached."""
    queue: dict[Job, Queued] = {}
    for engine in ENGINES.values():
        try:
            queue.update(engine().queue(sweep.runs))
        except (EngineError, HubError) as error:
            typer.echo(f"warning: {error}", err=True)
    statuses = []
    for sweep_run in sweep.runs:
        # Jobs that have ended come first: an older job may still be alive.
        jobs = sorted(Job.of(sweep_run), key=lambda job: job in queue and queue[job].alive)
        engine_name = jobs[-1].engine if jobs else Local.name
        statuses.append(status(sweep_run, engine_name, [queue[job] for job in jobs if job in queue]))
    return statuses
