"""What the devices of a run send each other in one step, and the least time that takes.

FSDP2 gathers the weights for the forward and again for the backward pass of every micro-batch (blocks in the precision
of autocast, embedding and head in fp32), and sums the gradients in fp32 after each; DDP sums them once a step. Of B
bytes that n devices share, each receives (n − 1) / n B. A ring brings them into a node once, over all of its network
cards; all-to-all leaves each device to its own card.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hub.base.errors import InputError
from scaling_law.machine.gpus import Gpu
from scaling_law.machine.memory import HALF, WEIGHT_BYTES, Sharding
from scaling_law.size.architecture import GRADIENT_BYTES, Architecture
from scaling_law.size.widths import Widths

# Bytes/s of each GPU between nodes, theoretical: 3200 Gb/s for a node of 8, the top speed of stas00/ml-engineering.
NETWORK_CARD = 50e9


@dataclass(frozen=True)
class Communication:
    """Bytes that one device receives in one step, by operation."""

    all_gather: Any = 0.0
    reduce_scatter: Any = 0.0
    all_reduce: Any = 0.0

    @property
    def total(self) -> Any:
        return self.all_gather + self.reduce_scatter + self.all_reduce

    def seconds(self, devices: int, gpu: Gpu) -> Any:
        """Least time, over the links of a node and the network cards between nodes."""
        return self.total / (gpu.link if devices <= gpu.node else min(gpu.link, gpu.node * NETWORK_CARD))


def communication(architecture: Architecture | Widths, sharding: Sharding, devices: int, passes: int) -> Communication:
    """Traffic of one step of `passes` micro-batches under autocast in bf16. ValueError for counts below 1."""
    for name, value in {"devices": devices, "passes": passes}.items():
        if value < 1:
            raise InputError(f"{name}={value!r} must be at least 1")
    a, received = architecture, 1.0 - 1.0 / devices
    if sharding == "ddp":
        return Communication(all_reduce=2 * received * GRADIENT_BYTES * a.n_total)
    if sharding == "none" or devices == 1:
        return Communication()
    head = 1.0 * a.vocab_size * a.d_model
    embedding = 0.0 if a.tied_embeddings else head
    gathered = 2 * HALF * a.n_total_non_embedding + WEIGHT_BYTES * (2 * embedding + head)
    return Communication(
        all_gather=passes * received * gathered, reduce_scatter=passes * received * GRADIENT_BYTES * a.n_total
    )


def all_to_all_bytes(architecture: Architecture, tokens: float, devices: int) -> float:
    """Bytes in bf16 that one device receives with experts spread over the devices: both ways, forward and backward."""
    a = architecture
    rows = tokens * a.routed_blocks * a.experts_per_token if a.experts > 1 else 0.0
    return 4 * (1.0 - 1.0 / devices) * HALF * rows * a.d_model


def all_to_all_seconds(received: float, devices: int, gpu: Gpu) -> float:
    """Least time; only what goes to another node crosses the network."""
    if devices <= gpu.node:
        return received / gpu.link
    outside = (devices - gpu.node) / (devices - 1)
    return max(received * outside / NETWORK_CARD, received * (1 - outside) / gpu.link)
