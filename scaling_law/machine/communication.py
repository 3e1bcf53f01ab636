"""What the devices of a run send each other in one step, and the least time that takes.

FSDP2 gathers the weights for the forward and again for the backward pass of every micro-batch (blocks in the precision
of autocast, embedding and head in fp32), and sums the gradients in fp32 after each; DDP sums them once a step. Of B
bytes that n devices share, each receives (n − 1) / n B. A ring brings them into a node once, over all of its network
cards; all-to-all leaves each device to its own card.
"""

from __future__ import annotations

from dataclasses import dataclass

from hub.base.errors import InputError
from scaling_law.machine.memory import HALF, WEIGHT_BYTES, Sharding
from scaling_law.size.architecture import GRADIENT_BYTES, Architecture

PER_NODE = 8  # devices
# Bytes/s in one direction, theoretical: stas00/ml-engineering, network/README.md, 0030e63 ("All-to-all bandwidth", and
# 3200 Gb/s for each node as the top speed between nodes).
NVLINK: dict[str, float] = {"H200": 450e9, "H100": 450e9, "A100": 300e9, "B200": 900e9}
NETWORK_CARD = 3200e9 / 8 / PER_NODE


@dataclass(frozen=True)
class Communication:
    """Bytes that one device receives in one step, by operation."""

    all_gather: float = 0.0
    reduce_scatter: float = 0.0
    all_reduce: float = 0.0

    @property
    def total(self) -> float:
        return self.all_gather + self.reduce_scatter + self.all_reduce

    def seconds(self, devices: int, link: float) -> float:
        """Least time, over links of `link` bytes/s within a node and network cards between nodes."""
        return self.total / (link if devices <= PER_NODE else min(link, PER_NODE * NETWORK_CARD))


def communication(architecture: Architecture, sharding: Sharding, devices: int, passes: int) -> Communication:
    """Traffic of one step of `passes` micro-batches under autocast in bf16. ValueError for counts below 1."""
    for name, value in {"devices": devices, "passes": passes}.items():
        if value < 1:
            raise InputError(f"{name}={value!r} must be at least 1")
    a, received = architecture, 1.0 - 1.0 / devices
    if sharding == "ddp":
        return Communication(all_reduce=2 * received * GRADIENT_BYTES * a.n_total)
    if sharding == "none" or devices == 1:
        return Communication()
    head = float(a.vocab_size * a.d_model)
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


def all_to_all_seconds(received: float, devices: int, link: float) -> float:
    """Least time; only what goes to another node crosses the network."""
    if devices <= PER_NODE:
        return received / link
    outside = (devices - PER_NODE) / (devices - 1)
    return max(received * outside / NETWORK_CARD, received * (1 - outside) / link)
