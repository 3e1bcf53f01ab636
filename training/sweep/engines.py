"""The engines that can execute a sweep, and what they say of its runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import typer

from training.configuration.arguments import ConfigurationError
from training.sweep.engine import EngineError
from training.sweep.file import Sweep
from training.sweep.run import Local
from training.sweep.slurm import Slurm
from training.sweep.status import Job, RunStatus, status

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


def find_statuses(sweep: Sweep, ask_slurm: bool = True) -> list[RunStatus]:
    """Find the status of all runs, from their folders and from SLURM's queue, if that can be reached."""
    queue: Mapping[str, list[Job]] = {}
    if ask_slurm:
        try:
            queue = Slurm().queue(sweep.runs)
        except EngineError as error:
            typer.echo(f"warning: {error}", err=True)
    return [status(sweep_run, queue.get(sweep_run.name, ())) for sweep_run in sweep.runs]
