"""A grid of models whose training steps are timed on this machine, for `python -m training.throughput`."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from rich.console import Console

from hub.base.errors import InputError
from hub.base.types import Fields
from scaling_law.machine.throughput import Measurement, Throughput
from scaling_law.machine.throughput_fit import LEAST_ARCHITECTURES, fit_throughput
from scaling_law.size.architecture import VOCAB_SIZE, Architecture
from scaling_law.size.family import Family
from scaling_law.size.recipe import PAPER
from training.configuration.arguments import TrainingArguments
from training.run import devices
from training.run.step import Session
from training.run.timing import (
    arguments_of_steps,
    peak_bytes,
    release,
    session_on_random_tokens,
    timed_step,
)

# The first of several processes speaks.
CONSOLE = Console(stderr=True, quiet=os.environ.get("RANK", "0") != "0")
# (whether half the micro-batch, passes): these tell the times of passes, steps and tokens apart.
BATCHES = ((False, 1), (False, 2), (True, 1))
# Settings that are not given; `widths` are shapes of a family.
ON_GPU: Fields = {
    "shapes": ("512", "768", "1024", "1536x8"),
    "widths": ("256", "512", "768"),
    "experts": (1, 4, 16),
    "micro_batch_sequences": 32,
    "sequence_length": PAPER.sequence_length,
    "vocab_size": VOCAB_SIZE,
    "compile": True,
}
ON_CPU: Fields = {
    **ON_GPU,
    "shapes": ("64x2", "128x2", "128x6", "256x4"),
    "widths": ("128", "256", "384"),
    "micro_batch_sequences": 4,
    "sequence_length": 128,
    "compile": False,
}


@dataclass(frozen=True)
class Grid:
    """The grid of models: every shape "d_model" or "d_modelxblocks" with every number of experts.

    Those of a `family` have its depth, and experts are its routed ones.
    """

    shapes: Sequence[str]
    experts: Sequence[int]
    micro_batch_sequences: int
    sequence_length: int
    vocab_size: int
    precision: str
    gradient_checkpointing: bool
    compile: bool
    family: Family | None = None

    @classmethod
    def by_device(cls, family: Family | None = None, **settings: Any) -> Grid:
        """Make a grid of these settings; what is None is by the device, and by the family."""
        defaults = ON_GPU if torch.cuda.is_available() else ON_CPU
        if family is not None:
            family = family.with_vocabulary(settings["vocab_size"], VOCAB_SIZE)
            experts = family.list_experts(defaults["experts"])
            shape: Fields = {"shapes": defaults["widths"], "experts": experts, "vocab_size": family.own_vocab_size}
            defaults = {**defaults, **shape}
        values = {name: defaults[name] if value is None else value for name, value in settings.items()}
        return cls(**values, family=family)

    def architectures(self) -> list[Architecture]:
        """List the architectures, smallest first. Raises ValueError for a malformed shape."""
        models = self._models_of_paper() if self.family is None else self._models_of_family(self.family)
        return sorted(models, key=lambda a: a.n_total)

    def _models_of_paper(self) -> list[Architecture]:
        """List shapes of our class."""
        models = []
        for shape in self.shapes:
            width, _, blocks = shape.partition("x")
            if not (width.isdigit() and (blocks.isdigit() or not blocks)):
                raise InputError(f"--shape {shape!r}: give a width such as 512, or width x blocks such as 512x4")
            heads = max(1, int(width) // 64)
            depth = int(blocks) if blocks else heads
            models += [Architecture(int(width), e, depth, heads, self.vocab_size) for e in self.experts]
        return models

    def _models_of_family(self, family: Family) -> list[Architecture]:
        """List models of a family. Raises ValueError for widths and experts that it does not have."""
        for shape in self.shapes:
            if not shape.isdigit():
                raise InputError(f"--shape {shape!r}: give a width alone, such as 512; blocks follow as in {family}")
        return family.models(map(int, self.shapes), self.experts)

    def arguments(self, model: Architecture, is_half: bool = False, passes: int = 1) -> TrainingArguments:
        """Make arguments of a run of this model whose batches are so many passes of a whole or half micro-batch."""
        half = max(1, self.micro_batch_sequences // 2)
        sequences = half if is_half else self.micro_batch_sequences
        run = {
            "precision": self.precision,
            "gradient_checkpointing": self.gradient_checkpointing,
            "compile": self.compile,
            "micro_batch_sequences": sequences,
        }
        # Sequences that divide both micro-batches, so that all of them hold whole capacity groups.
        group = math.gcd(half, self.micro_batch_sequences)
        section: Fields = {**model.shape}
        if self.family is not None:
            section = self.family.model_section(model.d_model, model.experts_equivalent)
        section["capacity_group_tokens"] = self.sequence_length * group
        return arguments_of_steps(run, section, self.sequence_length, passes)


def measure(grid: Grid, model: Architecture, repeats: int) -> list[Measurement]:
    """Measure the steps of one model, by batch.

    The first has the peak memory, of making the model and of two steps.
    """
    accelerator = devices.make_accelerator(grid.arguments(model).run)
    batches = [grid.arguments(model, is_half, passes * accelerator.num_processes) for is_half, passes in BATCHES]

    def make_first() -> Session:
        session = session_on_random_tokens(batches[0], grid.vocab_size)
        for _ in range(2):
            timed_step(session)
        return session

    first, memory = peak_bytes(accelerator.device, make_first)
    sessions = []
    for batch in batches:
        sessions.append(replace(first, arguments=batch, schedule=batch.schedule_at(first.schedule.peak)))
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
            f"d_model {model.d_model}, {model.blocks} blocks, experts {model.experts}: {model.n_total:,} parameters"
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
        memory_bytes=devices.device_memory(accelerator.device),
        source=f"least of {repeats} steps of each batch on random tokens, torch {torch.__version__}",
    )
    return throughput if accelerator.is_main_process else None
