"""Many runs from one file: `python -m training.sweep plan|run|status|records|config|slurm SWEEP.yaml`.

What the file may hold is described in `file`. Each run is one `accelerate launch train.py`, which goes on from
what is there; a run that fails does not stop the others.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Annotated

import typer

from hub.plain.commands import App, Json
from hub.plain.tables import print_table
from training.configuration.arguments import ConfigurationError
from training.sweep.file import Sweep
from training.sweep.plan import plan_sweep, plan_table
from training.sweep.runner import run_sweep, sweep_progress, write_configuration
from training.sweep.slurm import Job, script
from training.sweep.state import records as run_records
from training.sweep.state import status as run_status
from training.sweep.state import status_table

app = App(help="Plan, run and look at a sweep of training runs.")

_SweepFile = Annotated[Path, typer.Argument(help="The sweep file (YAML).")]
_AccelerateConfig = Annotated[
    Path | None, typer.Option(help="Start runs with this file (accelerate launch --config_file).")
]


@app.command()
def plan(
    sweep_file: _SweepFile,
    flops_per_second: Annotated[
        float | None, typer.Option(help="Sustained FLOP/s of one run: peak of its devices times MFU, such as 4e14.")
    ] = None,
    shards: Annotated[int, typer.Option(min=1, help="Devices that a model is cut up over (FSDP).")] = 1,
    as_json: Json = False,
) -> None:
    """Show the trunks and branches of a sweep and what they cost; nothing is run."""
    sweep = _load(sweep_file)
    if flops_per_second is not None and not 0 < flops_per_second < float("inf"):
        _fail(f"--flops-per-second: {flops_per_second}; it must be greater than 0")
    planned = plan_sweep(sweep, flops_per_second, shards)
    if as_json:
        print(json.dumps(planned.to_dict(), indent=1))
    else:
        print_table(plan_table(sweep, planned))


@app.command()
def status(sweep_file: _SweepFile, as_json: Json = False) -> None:
    """Show how far each run has come: waiting, running, finished, diverged or failed."""
    sweep = _load(sweep_file)
    if as_json:
        print(json.dumps([run_status(run).to_dict() for run in sweep.runs], indent=1))
    else:
        print_table(status_table(sweep))


@app.command()
def run(
    sweep_file: _SweepFile,
    workers: Annotated[int, typer.Option(min=1, help="Runs at a time; on CPU the cores are shared out.")] = 1,
    processes_per_run: Annotated[int, typer.Option(min=1, help="Processes (GPUs) of each run.")] = 1,
    accelerate_config: _AccelerateConfig = None,
    retries: Annotated[int, typer.Option(min=0, help="Start a failed run again this often.")] = 0,
    only: Annotated[list[str] | None, typer.Option(help="Only the run of this name; may be given again.")] = None,
) -> None:
    """Work off the sweep; start it again to go on after an interruption.

    Exit status: 0 all finished, 1 a run failed or diverged, 2 bad input, 128 + n stopped by signal n.
    """
    from rich.console import Console

    _stop_on_signals()
    try:
        sweep = Sweep.load(sweep_file).only(only or [])
        with sweep_progress(sweep) as watch:
            outcome = run_sweep(
                sweep,
                workers,
                watch,
                processes_per_run=processes_per_run,
                accelerate_config=accelerate_config,
                retries=retries,
            )
    except ConfigurationError as error:
        _fail(str(error))
    print_table(status_table(sweep))
    errors = Console(stderr=True)
    for name in outcome.elsewhere:
        errors.print(f"run {name} was left alone: another sweep is working on it")
    for name, (exit_status, log) in outcome.failed.items():
        errors.print(f"[red]run {name} failed with exit status {exit_status}[/]: see {log}")
    raise typer.Exit(1 if outcome.failed else 0)


@app.command()
def records(
    sweep_file: _SweepFile,
    output: Annotated[Path, typer.Option("--output", "-o", help="The .jsonl file to write.")],
) -> None:
    """Write the records of the runs that are through, one JSON line each, as `scaling-law fit` reads them."""
    from hub.plain.atomic import write_bytes
    from hub.record.table import to_jsonl

    if output.suffix != ".jsonl":
        _fail(f"--output: {str(output)!r}; it must end in .jsonl")
    found = [record for run in _load(sweep_file).runs for record in run_records(run)]
    if not found:
        _fail("no run of the sweep is through")
    write_bytes(output, to_jsonl(found))
    print(f"{len(found)} records in {output}")


@app.command()
def config(sweep_file: _SweepFile, name: Annotated[str, typer.Argument(help="Name of a run.")]) -> None:
    """Write the configuration of a run into its folder and print its path, for `train.py --config`."""
    try:
        (one,) = Sweep.load(sweep_file).only([name]).runs
        print(write_configuration(one))
    except ConfigurationError as error:
        _fail(str(error))


@app.command()
def slurm(
    sweep_file: _SweepFile,
    gpus: Annotated[int, typer.Option(min=0, help="GPUs of each node; 0 trains on CPU.")] = 1,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes of each run.")] = 1,
    time: Annotated[str, typer.Option(help="Time limit of one start of a run, as sbatch takes it.")] = "24:00:00",
    partition: Annotated[str | None, typer.Option(help="Partition.")] = None,
    account: Annotated[str | None, typer.Option(help="Account.")] = None,
    at_most: Annotated[int | None, typer.Option(min=1, help="Runs at a time.")] = None,
    accelerate_config: _AccelerateConfig = None,
    sbatch: Annotated[list[str] | None, typer.Option(help="Another #SBATCH option, such as --mem=64G.")] = None,
    setup: Annotated[list[str] | None, typer.Option(help="A shell line to run first, such as module load.")] = None,
) -> None:
    """Print a SLURM array script: one task for each trunk, put back into the queue when it is stopped."""
    sweep = _load(sweep_file)
    job = Job(
        gpus=gpus,
        nodes=nodes,
        time=time,
        partition=partition,
        account=account,
        at_most=at_most,
        accelerate_config=accelerate_config,
        sbatch=tuple(sbatch or ()),
        setup=tuple(setup or ()),
    )
    try:
        print(script(sweep, sweep_file, job), end="")
    except ConfigurationError as error:
        _fail(str(error))


def _stop_on_signals() -> None:
    """End by an exception at the first SIGINT or SIGTERM, so that the runs are asked to save and stop."""

    def stop(number, _frame) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a scheduler may send it again
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a second Ctrl-C does not wait
        raise SystemExit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)


def _load(path: Path) -> Sweep:
    try:
        return Sweep.load(path)
    except ConfigurationError as error:
        _fail(str(error))


def _fail(message: str):
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(2)
