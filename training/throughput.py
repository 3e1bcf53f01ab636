"""`python -m training.throughput -o throughput.json`: how fast this machine trains, for questions in hours.

It times steps of a grid of shapes and numbers of experts on random tokens, each with several batches, and fits
seconds per unit of work (`scaling_law.machine.throughput`). Under `accelerate launch` it measures those processes
together. The time of a step is the least of `--repeats`, taken in turns over the batches of a model: whatever else the
machine does makes a step longer, never shorter. `run.grid`, and torch with it, is imported when it measures.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hub.base.commands import App, Version
from hub.base.tables import Table, print_table
from hub.base.types import Fields
from hub.record.filter import select
from hub.release.sources import load_records
from scaling_law.answer.columns import tabulate
from scaling_law.machine.throughput import Throughput
from scaling_law.machine.throughput_fit import left_out_ratios, of_records
from scaling_law.planning.question import parse_family
from training import run as running

app = App(single=True)
_SIZE = {
    "d_model": "d_model",
    "blocks": "blocks",
    "routed_experts": "experts",
    "n_active": "n_active",
    "n_total": "n_total",
}


def report(throughput: Throughput) -> list[Table]:
    """Tabulate measured and fitted step times, and the fitted time of each unit of work."""
    ratios = left_out_ratios(throughput)
    rows = []
    for m in throughput.measurements:
        predicted = throughput.step_seconds(
            m.architecture,
            m.tokens_per_step,
            micro_batch_tokens=m.micro_batch_tokens,
            sequence_length=m.sequence_length,
        )
        row: Fields = {column: getattr(m.architecture, name) for column, name in _SIZE.items()}
        row["tokens/step"] = f"{m.tokens_per_step:,}"
        row["seconds"] = m.step_seconds
        row["tokens/s"] = f"{m.tokens_per_step / m.step_seconds:,.0f}"
        row["memory_bytes"] = m.memory_bytes
        row["fit / measured"] = f"{predicted / m.step_seconds:.2f}"
        row["left out"] = f"{ratios[m.architecture]:.2f}"
        rows.append(row)
    title = f"{throughput.devices} x {throughput.device}, {throughput.precision}"
    note = f"shapes that the fit has not seen are off by {throughput.error:.1%} (rms)"
    rates = [(name, f"{value:.3g} s") for name, value in throughput.seconds.items()]
    return [tabulate(rows, title=title, notes=(note,)), Table(("work", "a unit takes"), rates)]


def finish(throughput: Throughput, output: Path) -> None:
    """Print the throughput and write its file."""
    for table in report(throughput):
        print_table(table)
    typer.echo(f"wrote {throughput.save(output)}", err=True)


@app.command()
def main(
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path("throughput.json"),
    family: Annotated[
        str | None,
        typer.Option("--like", help="Models of a family: qwen3-30b-a3b, org/model, a folder or a config.json."),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(help="A width, or WIDTHxBLOCKS; of a family a width. Repeat it. [default: by the device]"),
    ] = None,
    experts: Annotated[
        list[int] | None,
        typer.Option(help="Experts, routed ones for a family (repeatable). [default: 1 4 16, or its own]"),
    ] = None,
    micro_batch: Annotated[
        int | None, typer.Option(min=2, help="Sequences in a forward pass of one device. [default: 32; on a CPU 4]")
    ] = None,
    sequence_length: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a sequence. [default: 512; on a CPU 128]")
    ] = None,
    vocab_size: Annotated[
        int | None, typer.Option(min=2, help="Entries of the vocabulary. [default: GPT-2's 50257, or the family's]")
    ] = None,
    precision: Annotated[str, typer.Option(help="bf16 or fp32.")] = "bf16",
    gradient_checkpointing: Annotated[bool, typer.Option(help="Recompute activations.")] = False,
    compile: Annotated[
        bool | None, typer.Option(help="Compile the blocks of the model. [default: on a GPU, as train.py does]")
    ] = None,
    runs: Annotated[
        str | None, typer.Option(help="Measure nothing: read finished runs (folder, runs.jsonl, org/sweep-runs).")
    ] = None,
    where: Annotated[str, typer.Option(help="Filter for those runs: 'precision = bf16'.")] = "",
    repeats: Annotated[int, typer.Option(min=1, help="Steps of each batch; the fastest counts.")] = 5,
    version: Version = False,
) -> None:
    """Time training steps on this machine and write throughput.json, which answers in hours are computed from.

    Exit status: 0 done, 2 the grid cannot be measured, 3 a step does not fit into memory.
    """
    if runs is not None:
        finish(of_records(select(load_records(runs), where)), output)
        return
    grid = running.Grid.by_device(
        family=None if family is None else parse_family(family),
        shapes=shape,
        experts=experts,
        micro_batch_sequences=micro_batch,
        sequence_length=sequence_length,
        vocab_size=vocab_size,
        precision=precision,
        gradient_checkpointing=gradient_checkpointing,
        compile=compile,
    )
    throughput = running.measure_grid(grid, repeats)
    if throughput is not None:
        finish(throughput, output)


if __name__ == "__main__":
    app()
