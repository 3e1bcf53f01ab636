"""How a run fits into the memory of its GPUs: the micro-batch, and what must be sharded or recomputed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

from hub.base.errors import InputError
from hub.base.units import format_bytes, format_count
from scaling_law.machine.gpus import find_gpu
from scaling_law.machine.memory import Sharding, TrainingMemory, training_memory
from scaling_law.planning.budget import Cluster
from scaling_law.size.architecture import Architecture

RESERVED = 2e9  # bytes of a GPU for CUDA's context, NCCL and fragmentation


class DoesNotFit(InputError):
    """A model whose training takes more memory than the GPUs have."""


@dataclass(frozen=True)
class Placement:
    """What each GPU holds at the peak of a step; sequences of a micro-batch are those of one GPU."""

    micro_batch_sequences: int
    sharding: Sharding
    gradient_checkpointing: bool
    memory: TrainingMemory

    def __str__(self) -> str:
        ways = {"none": [], "ddp": ["DDP"], "fsdp2": ["FSDP2"]}[self.sharding]
        ways += ["gradient checkpointing"] * self.gradient_checkpointing
        text = (
            f"{format_bytes(self.memory.total)} of each GPU, micro-batches of {self.micro_batch_sequences} sequences"
        )
        return ", ".join([text, *ways])


def place(architecture: Architecture, cluster: Cluster) -> Placement | None:
    """The largest micro-batch that fits, on whole or sharded models; activations are recomputed if none does.

    None where the memory of the GPUs is unknown. DoesNotFit where nothing fits, and ValueError where the GPUs cannot
    share the batches of the ramp equally.
    """
    if cluster.throughput.memory_bytes is None:
        return None
    gpus, batches = cluster.gpus, [stage.sequences for stage in cluster.ramp.stages]
    if (share := math.gcd(*batches)) % gpus:
        raise InputError(f"gpus={gpus} cannot share batches of {', '.join(map(str, batches))} sequences equally")
    sizes = [size for size in range(share // gpus, 0, -1) if share // gpus % size == 0]
    ways: tuple[Sharding, ...] = ("none",) if gpus == 1 else ("ddp", "fsdp2")
    least, largest, on_cpu = math.inf, max(batches), find_gpu(cluster.throughput.device) is None
    available = cluster.throughput.memory_bytes - (0.0 if on_cpu else RESERVED)
    precision: Any = "fp32" if cluster.throughput.precision == "fp32" else "bf16"
    memory = partial(training_memory, architecture, precision=precision, devices=gpus, on_cpu=on_cpu)
    for recompute, size, sharding in product((False, True), sizes, ways):
        step: dict[str, Any] = {"passes": largest // (size * gpus), "gradient_checkpointing": recompute}
        placed = Placement(
            size, sharding, recompute, memory(size, cluster.ramp.sequence_length, sharding=sharding, **step)
        )
        if placed.memory.total <= available:
            return placed
        least = min(least, placed.memory.total)
    model = (
        f"d_model {architecture.d_model}, E = {architecture.experts} ({format_count(architecture.n_total)} parameters)"
    )
    raise DoesNotFit(
        f"{model} cannot be trained on {cluster.hardware}: it needs {format_bytes(least)} on each GPU, which has "
        f"{format_bytes(available)} free; give more gpus, or limit the model (max_parameters, experts)"
    )


def fits(architecture: Architecture, cluster: Cluster) -> bool:
    """Whether the GPUs can train it, as far as their memory is known. ValueError as of `place`."""
    try:
        place(architecture, cluster)
    except DoesNotFit:
        return False
    return True
