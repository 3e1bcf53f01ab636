"""A grid of models whose training steps are timed on this machine, for `python -m training.throughput`."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from rich.console import Console

from hub.base.errors import InputError
from scaling_law.machine.throughput import Measurement, Throughput
from scaling_law.machine.throughput_fit import LEAST_ARCHITECTURES, fit_throughput
from scaling_law.size.architecture import Architecture
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

# The first of several processes speaks.
CONSOLE = Console(stderr=True, quiet=os.environ.get("RANK", "0") != "0")
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


def make_grid(
    shapes: Sequence[str] | None,
    experts: Sequence[int] | None,
    micro_batch: int | None,
    sequence_length: int | None,
    vocab_size: int,
    precision: str,
    gradient_checkpointing: bool,
    compile: bool | None,
) -> Grid:
    """Make the grid of these models; what is None is by the device."""
    on_gpu = torch.cuda.is_available()
    default_shapes = ("512", "768", "1024", "1536x8") if on_gpu else ("64x2", "128x2", "128x6", "256x4")
    return Grid(
        shapes=tuple(shapes or default_shapes),
        experts=tuple(experts or (1, 4, 16)),
        micro_batch_sequences=micro_batch or (32 if on_gpu else 4),
        sequence_length=sequence_length or (PAPER.sequence_length if on_gpu else 128),
        vocab_size=vocab_size,
        precision=precision,
        gradient_checkpointing=gradient_checkpointing,
        compile=on_gpu if compile is None else compile,
    )


def measure_grid(grid: Grid, repeats: int) -> Throughput | None:
    """Measure the models of the grid and fit their step times; None in all processes but the first.

    InputError for too few models.
    """
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
    settings = {
        "gradient_checkpointing": grid.gradient_checkpointing,
        "compile": grid.compile,
        "vocab_size": grid.vocab_size,
    }
    throughput = fit_throughput(
        measurements,
        device=devices.name(accelerator.device),
        precision=grid.precision,
        devices=accelerator.num_processes,
        settings=settings,
        memory_bytes=device_memory(accelerator.device),
        source=f"least of {repeats} steps of each batch on random tokens, torch {torch.__version__}",
    )
    return throughput if accelerator.is_main_process else None
