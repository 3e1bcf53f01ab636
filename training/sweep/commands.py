"""The commands of `python -m training.sweep`, which imports them when they are called.

What they use, and torch with it, is imported when they work: their help is there at once.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from hub.base.commands import Json
from hub.base.tables import print_table, show
from training import sweep as sweeps
from training.configuration.variables import check_variables

_SweepFile = Annotated[Path, typer.Argument(help="The sweep file (YAML).")]
_Only = Annotated[list[str] | None, typer.Option(help="Only the run of this name; may be repeated.")]


def _option(text: str, engines: str, **settings: Any) -> Any:
    return typer.Option(help=text, rich_help_panel=f"Options of --on {engines}", **settings)


def plan(
    sweep_file: _SweepFile,
    gpus: Annotated[int | None, typer.Option(help="GPUs that train each run.")] = None,
    gpu: Annotated[str | None, typer.Option(help="GPU model, whose step times are assumed: h100.")] = None,
    throughput: Annotated[
        Path | None, typer.Option(help="Step times of such a GPU, measured by `python -m training.throughput`.")
    ] = None,
    price: Annotated[float | None, typer.Option(help="Price of a GPU-hour.")] = None,
    as_json: Json = False,
) -> None:
    """Show the trunks and branches of a sweep and their cost, without training."""
    sweep = sweeps.Sweep.load(sweep_file)
    sweep_plan = sweeps.plan_sweep(sweep, gpus=gpus, gpu=gpu, throughput=throughput, price=price)
    show(sweep_plan.to_dict(), as_json, sweep_plan)


def status(sweep_file: _SweepFile, as_json: Json = False) -> None:
    """Show each run's progress, forecast of its final loss (± of 90 %), place in the queue and cost.

    States: waiting, running, finished, diverged or failed.
    """
    statuses = sweeps.find_statuses(sweeps.Sweep.load(sweep_file))
    show([asdict(run) for run in statuses], as_json, sweeps.status_table(statuses))


def run(
    sweep_file: _SweepFile,
    on: Annotated[
        Literal["local", "slurm"],
        typer.Option(help="What executes the runs."),
    ] = "local",
    only: _Only = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be started or sent.")] = False,
    workers: Annotated[
        int | None, _option("Runs at a time; on CPU they share the cores. [default: 1]", "local", min=1)
    ] = None,
    processes_per_run: Annotated[
        int | None, _option("Processes (GPUs) of each run. [default: 1]", "local", min=1)
    ] = None,
    retries: Annotated[int | None, _option("Retries of a failed run. [default: 0]", "local", min=0)] = None,
    accelerate_config: Annotated[
        Path | None, _option("Start runs with this file (accelerate launch --config_file).", "local or slurm")
    ] = None,
    gpus: Annotated[int | None, _option("GPUs of each node; 0 trains on CPU. [default: 1]", "slurm", min=0)] = None,
    nodes: Annotated[int | None, _option("Nodes of each run. [default: 1]", "slurm", min=1)] = None,
    partition: Annotated[str | None, _option("Partition.", "slurm")] = None,
    account: Annotated[str | None, _option("Account.", "slurm")] = None,
    at_most: Annotated[int | None, _option("Runs at a time.", "slurm", min=1)] = None,
    sbatch: Annotated[list[str] | None, _option("Another #SBATCH option, such as --mem=64G.", "slurm")] = None,
    time: Annotated[
        str | None, _option("Limit of one start of a run, as sbatch takes it. [default: 24:00:00]", "slurm")
    ] = None,
    setup: Annotated[list[str] | None, _option("A shell line to run first, such as module load.", "slurm")] = None,
) -> None:
    """Execute the sweep, most expensive runs first; run it again to resume after an interruption.

    `local` waits for the runs; the others queue unfinished runs and return, and `status` follows them.

    Exit status: 0 all finished or queued, 1 a run failed or diverged, 2 bad input, 128 + n stopped by signal n.
    """
    check_variables()
    engine = sweeps.make_engine(
        on,
        workers=workers,
        processes_per_run=processes_per_run,
        retries=retries,
        accelerate_config=accelerate_config,
        gpus=gpus,
        nodes=nodes,
        partition=partition,
        account=account,
        at_most=at_most,
        sbatch=sbatch,
        time=time,
        setup=setup,
    )
    sweep = sweeps.Sweep.load(sweep_file).only(only or [])
    if dry_run:
        print(engine.preview(sweep, sweep_file), end="")
        return
    outcome = engine.submit(sweep, sweep_file)
    statuses = sweeps.find_statuses(sweep, ask_slurm=on == "slurm")
    print_table(sweeps.status_table(statuses))
    for name in outcome.elsewhere:
        typer.echo(f"run {name} was skipped: it is queued, or the process above executes it", err=True)
    for name, job_id in outcome.queued.items():
        typer.echo(f"run {name} is slurm job {job_id}", err=True)
    for name, failure in outcome.failed.items():
        typer.echo(f"run {name} failed: {failure}", err=True)
    raise typer.Exit(1 if outcome.failed else 0)


def cancel(sweep_file: _SweepFile, only: _Only = None) -> None:
    """Stop waiting and running runs on any engine; `run` resumes them from their checkpoints.

    A `run` on this machine stops with all of its runs.
    """
    runs = list(sweeps.Sweep.load(sweep_file).only(only or []).runs)
    for engine_name, engine in sweeps.ENGINES.items():
        cancelled = engine().cancel(runs)
        runs = [sweep_run for sweep_run in runs if sweep_run.name not in cancelled]
        for name in cancelled:
            print(f"{name}: cancelled ({engine_name})")


def config(sweep_file: _SweepFile, name: Annotated[str, typer.Argument(help="Name of a run.")]) -> None:
    """Write the configuration of a run into its folder and print its path, for `train.py --config`."""
    (sweep_run,) = sweeps.Sweep.load(sweep_file).only([name]).runs
    print(sweeps.write_configuration(sweep_run))
