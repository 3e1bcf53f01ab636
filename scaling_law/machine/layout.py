"""How a model is laid out on GPUs: the fastest step of those that fit, over what `train.py` can do.

DDP or FSDP2, every micro-batch that divides the batch, activations kept or recomputed. A step takes the longer of
compute (a third more of it where activations are recomputed) and communication, which compute hides at best. Steps
that were measured have their communication in them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from hub.base.errors import InputError
from hub.base.units import format_bytes, format_count
from scaling_law.machine.communication import communication
from scaling_law.machine.gpus import find_gpu
from scaling_law.machine.memory import Sharding, TrainingMemory, training_memory
from scaling_law.machine.throughput import ModelWork, Throughput
from scaling_law.size.architecture import Architecture
from scaling_law.size.arrays import FloatArray
from scaling_law.size.widths import Widths

RESERVED = 2e9  # bytes of a GPU for CUDA's context, NCCL and fragmentation
RECOMPUTED = 4 / 3  # FLOPs of a step that computes the forward pass twice


class DoesNotFit(InputError):
    """A model whose training takes more memory than the GPUs have."""


@dataclass(frozen=True)
class Option:
    """A way to train: sequences of a micro-batch of one GPU, sharding, and whether activations are recomputed."""

    micro_batch_sequences: int
    sharding: Sharding
    gradient_checkpointing: bool

    def __str__(self) -> str:
        ways = {"none": [], "ddp": ["DDP"], "fsdp2": ["FSDP2"]}[self.sharding]
        ways += ["gradient checkpointing"] * self.gradient_checkpointing
        return ", ".join([f"micro-batches of {self.micro_batch_sequences} sequences", *ways])


@dataclass(frozen=True)
class Placement(Option):
    """The way in which one model is trained, and what each GPU holds at the peak of a step."""

    memory: TrainingMemory

    def __str__(self) -> str:
        return f"{format_bytes(self.memory.total)} of each GPU, {super().__str__()}"


@dataclass(frozen=True)
class Steps:
    """Seconds of a step in each stage of the batch ramp, [stages, ...], of the fastest option that fits, [...].

    `compute` is times `slowdown` where activations are recomputed. `fits` is False where none does.
    """

    option: Any
    slowdown: Any
    communication: FloatArray
    fits: Any


@dataclass(frozen=True)
class Layouts:
    """GPUs that share batches of these numbers of sequences; how fast, and how much memory each has."""

    throughput: Throughput
    gpus: int
    batches: tuple[int, ...]
    sequence_length: int

    @property
    def available(self) -> float:
        """Bytes of each GPU; infinite if unknown."""
        memory = self.throughput.memory_bytes
        if memory is None:
            return math.inf
        return memory - (RESERVED if find_gpu(self.throughput.device) else 0.0)

    def options(self) -> list[Option]:
        """Every way, in the order of preference at equal speed. ValueError where GPUs cannot share a batch equally."""
        if (share := math.gcd(*self.batches)) % self.gpus:
            batches = ", ".join(map(str, self.batches))
            raise InputError(f"gpus={self.gpus} cannot share batches of {batches} sequences equally")
        sizes = [size for size in range(share // self.gpus, 0, -1) if share // self.gpus % size == 0]
        ways: tuple[Sharding, ...] = ("none",) if self.gpus == 1 else ("ddp", "fsdp2")
        return [Option(size, way, recompute) for recompute, size, way in product((False, True), sizes, ways)]

    def memory(self, model: Architecture | Widths, option: Option) -> TrainingMemory:
        """Memory of each GPU in the largest batch."""
        return training_memory(
            model,
            option.micro_batch_sequences,
            self.sequence_length,
            passes=max(self.batches) // (option.micro_batch_sequences * self.gpus),
            precision="fp32" if self.throughput.precision == "fp32" else "bf16",
            gradient_checkpointing=option.gradient_checkpointing,
            sharding=option.sharding,
            devices=self.gpus,
            on_cpu=find_gpu(self.throughput.device) is None,
        )

    def communication(self, model: Architecture | Widths, option: Option, batch: int) -> Any:
        """Least seconds in a step of `batch` sequences; 0 where they are in the measured steps."""
        sheet = find_gpu(self.throughput.device)
        if sheet is None or not self.throughput.is_assumed:
            return 0.0
        passes = batch // (option.micro_batch_sequences * self.gpus)
        return communication(model, option.sharding, self.gpus, passes).seconds(self.gpus, sheet)

    def compute(self, work: ModelWork, batch: int, drawn: bool = False) -> Any:
        """Seconds of compute in a step of `batch` sequences; `drawn`: under each draw of the throughput."""
        step = self.throughput.step_seconds_draws if drawn else self.throughput.step_seconds
        length = self.sequence_length
        return step(work, batch * length, sequence_length=length, devices=self.gpus)

    def steps(self, work: ModelWork) -> Steps:
        """The fastest steps of these models in the largest batch, of options that fit."""
        model, every, batch = work.model, self.options(), max(self.batches)
        assert model is not None
        compute = self.compute(work, batch)
        slowdown = np.array([RECOMPUTED if option.gradient_checkpointing else 1.0 for option in every])
        sent = [[self.communication(model, option, batch) for option in every] for batch in self.batches]
        held = [self.memory(model, option).total for option in every]
        shape = np.shape(compute)
        exchanged = np.array([[np.broadcast_to(seconds, shape) for seconds in stage] for stage in sent])
        total = np.array([np.broadcast_to(size, shape) for size in held])
        slower = slowdown.reshape(-1, *(1 for _ in shape))
        seconds = np.maximum(slower * compute, exchanged[self.batches.index(batch)])
        seconds = np.where(total <= self.available, seconds, np.inf)
        best = np.argmin(seconds, axis=0)
        chosen = np.take_along_axis(exchanged, np.broadcast_to(best, (len(sent), 1, *shape)), axis=1)[:, 0]
        return Steps(best, slowdown[best], chosen, np.isfinite(seconds.min(axis=0)))

    def place(self, architecture: Architecture) -> Placement:
        """The fastest way that fits. DoesNotFit, with what is missing, where there is none."""
        steps, every = self.steps(ModelWork.of(architecture)), self.options()
        if not steps.fits:
            least = min(self.memory(architecture, option).total for option in every)
            size = f"d_model {architecture.d_model}, E = {architecture.experts}"
            raise DoesNotFit(
                f"{size} ({format_count(architecture.n_total)} parameters) cannot be trained on {self.gpus} × "
                f"{self.throughput.device}: it needs {format_bytes(least)} on each GPU, which has "
                f"{format_bytes(self.available)} free; give more gpus, or limit the model (max_parameters, experts)"
            )
        option = every[int(steps.option)]
        return Placement(**vars(option), memory=self.memory(architecture, option))
