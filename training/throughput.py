"""`python -m training.throughput -o throughput.json`: how fast this machine trains, for questions in hours.

It times steps of a grid of shapes and numbers of experts on random tokens, each with several batches, and fits
seconds per unit of work (`scaling_law.machine.throughput`). Under `accelerate launch` it measures those processes
together. The time of a step is the least of `--repeats`, taken in turns over the batches of a model: whatever else the
machine does makes a step longer, never shorter.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from hub.base.commands import App, Version
from hub.base.errors import InputError
from hub.base.tables import Table, print_table
from hub.record.filter import select
from hub.release.sources import load_records
from scaling_law.machine.throughput import Measurement, Throughput
from scaling_law.machine.throughput_fit import LEAST_ARCHITECTURES, fit_throughput, left_out_ratios, of_records
from scaling_law.size.architecture import VOCAB_SIZE, Architecture
from scaling_law.size.recipe import PAPER
from training.configuration.arguments import TrainingArguments
from training.run import devices
from training.run.step import Session
from training.run.timing import (
    arguments_of_steps,
    device_memory,
    peak_bytes,
    release,
    session_on_random_tokens,
    timed_step,
)

app = App(single=True)
# The first of several processes speaks.
CONSOLE = Console(stderr=True, quiet=os.environ.get("RANK", "0") != "0")
_SIZE = ("d_model", "blocks", "experts", "n_active", "n_total")
# (share of the micro-batch, passes): these tell the times of passes, steps and tokens apart.
BATCHES = ((1, 1), (1, 2), (0.5, 1))


@dataclass(frozen=True)
class Grid:
    """The grid of models: every shape "d_model" or "d_modelxblocks" with every number of experts."""

    shapes: tuple[str, ...]
    experts: tuple[int, ...]
    micro_batch_sequences: int
    sequence_length: int
    vocab_size: int
    precision: str
    gradient_checkpointing: bool
    compile: bool

    def architectures(self) -> list[Architecture]:
        """List the architectures, smallest first. Raises ValueError for a malformed shape."""
        models = []
        for shape in self.shapes:
            width, _, blocks = shape.partition("x")
            if not (width.isdigit() and (blocks.isdigit() or not blocks)):
                raise InputError(f"--shape {shape!r}: give a width such as 512, or width x blocks such as 512x4")
            heads = max(1, int(width) // 64)
            depth = int(blocks) if blocks else heads
            models += [Architecture(int(width), e, depth, heads, self.vocab_size) for e in self.experts]
        return sorted(models, key=lambda a: a.n_total)

    def arguments(self, model: Architecture, share: float = 1, passes: int = 1) -> TrainingArguments:
        """Make arguments of a run of this model whose batches are so many passes of a share of the micro-batch."""
        # Sequences that divide every micro-batch, so that all of them hold whole capacity groups.
        common = math.gcd(*(self._sequences_of(share) for share, _ in BATCHES))
        run = {
            "precision": self.precision,
            "gradient_checkpointing": self.gradient_checkpointing,
            "compile": self.compile,
            "micro_batch_sequences": self._sequences_of(share),
        }
        section = {**model.shape, "capacity_group_tokens": self.sequence_length * common}
        return arguments_of_steps(run, section, self.sequence_length, passes)

    def _sequences_of(self, share: float) -> int:
        return max(1, round(share * self.micro_batch_sequences))


def measure(grid: Grid, model: Architecture, repeats: int) -> list[Measurement]:
    """Measure the steps of one model, by batch.

    The first has the peak memory, of making the model and of two steps.
    """
    accelerator = devices.make_accelerator(grid.arguments(model).run)
    batches = [grid.arguments(model, share, passes * accelerator.num_processes) for share, passes in BATCHES]

    def make_first() -> Session:
        session = session_on_random_tokens(batches[0], grid.vocab_size)
        for _ in range(2):
            timed_step(session)
        return session

    first, memory = peak_bytes(accelerator.device, make_first)
    sessions = [_with_batch(first, batch) for batch in batches]
    # These steps warm up.
    for session in sessions:
        timed_step(session)
    seconds_by_batch: list[list[float]] = [[] for _ in batches]
    for _ in range(repeats):
        for session, seconds in zip(sessions, seconds_by_batch, strict=True):
            seconds.append(timed_step(session)[1])
    measurements: list[Measurement] = []
    for batch, seconds in zip(batches, seconds_by_batch, strict=True):
        measurement = Measurement(
            model,
            grid.sequence_length,
            tokens_per_step=batch.batch_ramp().tokens(1),
            micro_batch_tokens=batch.micro_batch_tokens,
            step_seconds=min(seconds),
            memory_bytes=None if measurements else memory,
        )
        measurements.append(measurement)
    del first, session, sessions
    release(accelerator.device)
    return measurements


def _with_batch(session: Session, batch: TrainingArguments) -> Session:
    """Return the session with another batch."""
    # The data are `RandomTokens`, a dataclass.
    data = replace(session.data, micro_batch_sequences=batch.run.micro_batch_sequences)
    return replace(session, arguments=batch, data=data, schedule=batch.schedule_at(session.schedule.peak))


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
        row: dict[str, Any] = {name: getattr(m.architecture, name) for name in _SIZE}
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
    return [Table.of(rows, title=title, notes=(note,)), Table(("work", "a unit takes"), rates)]


def finish(throughput: Throughput, output: Path) -> None:
    """Print the throughput and write its file."""
    for table in report(throughput):
        print_table(table)
    CONSOLE.print(f"wrote {throughput.save(output)}")


@app.command()
def main(
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path("throughput.json"),
    shape: Annotated[
        list[str] | None, typer.Option(help="A width, or WIDTHxBLOCKS; repeat it. [default: by the device]")
    ] = None,
    experts: Annotated[list[int] | None, typer.Option(help="Experts; repeat it. [default: 1 4 16]")] = None,
    micro_batch: Annotated[
        int | None, typer.Option(min=2, help="Sequences in a forward pass of one device. [default: 32; on a CPU 4]")
    ] = None,
    sequence_length: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a sequence. [default: 512; on a CPU 128]")
    ] = None,
    vocab_size: Annotated[int, typer.Option(min=2, help="Entries of the vocabulary.")] = VOCAB_SIZE,
    precision: Annotated[str, typer.Option(help="bf16 or fp32.")] = "bf16",
    gradient_checkpointing: Annotated[bool, typer.Option(help="Recompute activations.")] = False,
    compile: Annotated[
        bool | None, typer.Option(help="Compile the blocks of the model. [default: on a GPU, as train.py does]")
    ] = None,
    runs: Annotated[
        str | None, typer.Option(help="Measure nothing: read finished runs (folder, runs.jsonl, org/sweep-runs).")
    ] = None,
    where: Annotated[str, typer.Option(help="Of those runs, the ones that fulfil this: 'precision = bf16'.")] = "",
    repeats: Annotated[int, typer.Option(min=1, help="Steps of each batch; the fastest counts.")] = 5,
    version: Version = False,
) -> None:
    """Time training steps on this machine and write throughput.json, which answers in hours are computed from.

    Exit status: 0 done, 2 the grid cannot be measured, 3 a step does not fit into memory.
    """
    if runs is not None:
        finish(of_records(select(load_records(runs), where)), output)
        return
    on_gpu = torch.cuda.is_available()
    is_compiled = on_gpu if compile is None else compile
    default_shapes = ("512", "768", "1024", "1536x8") if on_gpu else ("64x2", "128x2", "128x6", "256x4")
    grid = Grid(
        shapes=tuple(shape or default_shapes),
        experts=tuple(experts or (1, 4, 16)),
        micro_batch_sequences=micro_batch or (32 if on_gpu else 4),
        sequence_length=sequence_length or (PAPER.sequence_length if on_gpu else 128),
        vocab_size=vocab_size,
        precision=precision,
        gradient_checkpointing=gradient_checkpointing,
        compile=is_compiled,
    )
    models = grid.architectures()
    if len(models) < LEAST_ARCHITECTURES:
        raise InputError(f"{len(models)} architectures would be measured; at least {LEAST_ARCHITECTURES} are needed")
    measurements = []
    for model in models:
        CONSOLE.print(
            f"d_model {model.d_model}, {model.blocks} blocks, E = {model.experts}: {model.n_total:,} parameters"
        )
        measurements += measure(grid, model, repeats)
    accelerator = devices.make_accelerator(grid.arguments(models[0]).run)
    throughput = fit_throughput(
        measurements,
        device=devices.name(accelerator.device),
        precision=precision,
        devices=accelerator.num_processes,
        settings={"gradient_checkpointing": gradient_checkpointing, "compile": is_compiled, "vocab_size": vocab_size},
        memory_bytes=device_memory(accelerator.device),
        source=f"least of {repeats} steps of each batch on random tokens, torch {torch.__version__}",
    )
    if accelerator.is_main_process:
        finish(throughput, output)


if __name__ == "__main__":
    app()
