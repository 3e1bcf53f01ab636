"""Many runs from one file: `python -m training.sweep plan|run|status|records|config|slurm SWEEP.yaml`.

`file.SweepFile` describes the file. Each run is one `accelerate launch train.py`, which resumes from what is there.
"""

from __future__ import annotations

import signal
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from hub.plain.atomic import write_bytes
from hub.plain.commands import App, Json
from hub.plain.tables import print_table, show
from hub.record.table import to_jsonl
from training.configuration.arguments import ConfigurationError
from training.sweep.file import Sweep
from training.sweep.plan import plan_sweep
from training.sweep.run import run_sweep, status_table, sweep_progress, write_configuration
from training.sweep.run import status as run_status
from training.sweep.slurm import script

app = App(help="Plan, execute and watch a sweep of training runs.")

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
    shards: Annotated[int, typer.Option(min=1, help="Devices that a model is sharded over (FSDP).")] = 1,
    as_json: Json = False,
) -> None:
    """Show the trunks and branches of a sweep and what they cost; nothing is trained."""
    if flops_per_second is not None and not 0 < flops_per_second < float("inf"):
        raise ConfigurationError(f"--flops-per-second: {flops_per_second}; it must be greater than 0")
    planned = plan_sweep(Sweep.load(sweep_file), flops_per_second, shards)
    show(planned.to_dict(), as_json, planned)


@app.command()
def status(sweep_file: _SweepFile, as_json: Json = False) -> None:
    """Show how far each run has come: waiting, running, finished, diverged or failed."""
    found = [run_status(run) for run in Sweep.load(sweep_file).runs]
    show([asdict(one) for one in found], as_json, status_table(found))


@app.command()
def run(
    sweep_file: _SweepFile,
    workers: Annotated[int, typer.Option(min=1, help="Runs at a time; on CPU they share the cores.")] = 1,
    processes_per_run: Annotated[int, typer.Option(min=1, help="Processes (GPUs) of each run.")] = 1,
    accelerate_config: _AccelerateConfig = None,
    retries: Annotated[int, typer.Option(min=0, help="Start a failed run again this often.")] = 0,
    only: Annotated[list[str] | None, typer.Option(help="Only the run of this name; may be repeated.")] = None,
) -> None:
    """Execute the sweep, most expensive runs first; run it again to resume after an interruption.

    Exit status: 0 all finished, 1 a run failed or diverged, 2 bad input, 128 + n stopped by signal n.
    """
    _stop_on_signals()
    sweep = Sweep.load(sweep_file).only(only or [])
    with sweep_progress(sweep) as watch:
        outcome = run_sweep(sweep, workers, watch, processes_per_run, accelerate_config, retries=retries)
    print_table(status_table([run_status(run) for run in sweep.runs]))
    for name in outcome.elsewhere:
        typer.echo(f"run {name} was skipped: another sweep is working on it", err=True)
    for name, (exit_status, log) in outcome.failed.items():
        typer.echo(f"run {name} failed with exit status {exit_status}: see {log}", err=True)
    raise typer.Exit(1 if outcome.failed else 0)


@app.command()
def records(
    sweep_file: _SweepFile,
    output: Annotated[Path, typer.Option("--output", "-o", help="The .jsonl file to write.")],
) -> None:
    """Write the records of the finished runs, one JSON line each, as `scaling-law fit` reads them."""
    if output.suffix != ".jsonl":
        raise ConfigurationError(f"--output: {str(output)!r}; it must end in .jsonl")
    found = [record for run in Sweep.load(sweep_file).runs for record in run.records()]
    if not found:
        raise ConfigurationError("no run of this sweep has finished yet")
    write_bytes(output, to_jsonl(found))
    print(f"{len(found)} records in {output}")


@app.command()
def config(sweep_file: _SweepFile, name: Annotated[str, typer.Argument(help="Name of a run.")]) -> None:
    """Write the configuration of a run into its folder and print its path, for `train.py --config`."""
    (one,) = Sweep.load(sweep_file).only([name]).runs
    print(write_configuration(one))


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
    """Print a SLURM array script: one task for each trunk, requeued when it is stopped."""
    named = {"--time": time, "--partition": partition, "--account": account}
    options = [*(f"{name}={value}" for name, value in named.items() if value), *(sbatch or [])]
    sweep = Sweep.load(sweep_file)
    print(script(sweep, sweep_file, gpus, nodes, at_most, accelerate_config, options, setup or []), end="")


def _stop_on_signals() -> None:
    """End by an exception at the first SIGINT or SIGTERM, so that the runs are asked to save and stop."""

    def stop(number: int, _frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a scheduler may send it again
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a second Ctrl-C does not wait
        raise SystemExit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)


if __name__ == "__main__":
    app()
