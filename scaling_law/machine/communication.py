"""Traffic between the GPUs of a run in one step, and the least time that it takes: a formula for each operation.

A ring brings each of n GPUs (n − 1) / n B of the B bytes that they share. It enters a node once, over the network
cards of all GPUs of the group there; all-to-all leaves each GPU to its own card. Where activations are computed again,
so are the forward's all-reduces and all-to-alls. For t tokens and width d:

- FSDP2 gathers weights forward and backward for every micro-batch (once without resharding; embedding and head in
  fp32) and sums fp32 gradients after each; HSDP adds an all-reduce between groups. DDP sums gradients once a step;
  Megatron's distributed optimizer scatters them, and gathers bf16 weights.
- Tensor parallelism: four all-reduces of 2 t d bytes in a block (Shoeybi et al. 2019, arXiv 1909.08053).
- Expert parallelism: routed rows there and back, forward and backward (Lepikhin et al. 2020, arXiv 2006.16668).
- Context parallelism: others' keys and values, backward with their gradients (Liu et al. 2023, arXiv 2310.01889).
- A pipeline hands each micro-batch on, forward and backward (Narayanan et al. 2021, arXiv 2104.04473).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from scaling_law.machine.gpus import Gpu
from scaling_law.machine.memory import HALF, WEIGHT_BYTES, Sharding, check_counts, stage_of
from scaling_law.size.architecture import GRADIENT_BYTES
from scaling_law.size.widths import Sized

# Bytes/s of each GPU between nodes, theoretical: 3200 Gb/s for a node of 8, the top speed of stas00/ml-engineering.
NETWORK_CARD = 50e9
DEGREES = ("dp", "fsdp", "tp", "pp", "ep", "cp")


@dataclass(frozen=True, kw_only=True)
class Degrees:
    """Numbers of GPUs that share something; numbers, or arrays that broadcast with models.

    `fsdp` GPUs share weights, gradients and moments, `dp` such groups share batches. Neighbours are tp, then cp, then
    ep or fsdp, then dp; pp are furthest apart. Experts are divided among `ep` of the GPUs that share batches.
    """

    dp: Any = 1
    fsdp: Any = 1
    tp: Any = 1
    pp: Any = 1
    ep: Any = 1
    cp: Any = 1


class Sent(NamedTuple):
    """Bytes that one GPU receives in a step, in groups of `members` GPUs, `stride` apart; in a ring or all to all."""

    received: Any
    members: Any
    stride: Any = 1
    is_ring: bool = True

    def seconds(self, gpu: Gpu) -> Any:
        """Compute the least time, over the links of a node and the network cards between nodes."""
        members = np.asarray(self.members)
        members_in_node = np.maximum(1, gpu.node // np.asarray(self.stride))
        if self.is_ring:
            is_in_node = members * self.stride <= gpu.node
            cards = np.minimum(gpu.link, members_in_node * NETWORK_CARD)
            return self.received / np.where(is_in_node, gpu.link, cards)
        outside = (members - np.minimum(members, members_in_node)) / np.maximum(members - 1, 1)
        over_cards = self.received * outside / NETWORK_CARD
        over_links = self.received * (1 - outside) / gpu.link
        return np.maximum(over_cards, over_links)


def communication(
    model: Sized,
    sharding: Sharding,
    degrees: Degrees,
    passes: Any,
    tokens: Any,
    *,
    reshard: Any = True,
    recompute: Any = False,
) -> dict[str, Sent]:
    """Compute the traffic by operation of a step of `passes` micro-batches under autocast in bf16.

    `tokens` are those of the step over the number of GPUs. ValueError for counts below 1.
    """
    check_counts(**{name: getattr(degrees, name) for name in DEGREES}, passes=passes)
    tp = degrees.tp
    cp = degrees.cp
    stage = degrees.dp * degrees.fsdp * tp * cp
    # Recomputing repeats the traffic of the forward pass, which is half of all.
    forward_again = np.where(recompute, 1.5, 1.0)
    reduced = forward_again * tensor_bytes(model, tokens, tp)
    exchanged = forward_again * all_to_all_bytes(model, tokens, degrees.ep)
    keys = 3 * (np.asarray(cp) - 1) * 2 * HALF * tokens * model.blocks * model.n_kv_heads * model.head_dim
    handed_on = 2 * HALF * tokens * degrees.pp * model.d_model * (np.asarray(degrees.pp) > 1)
    return {
        **_batch_traffic(model, sharding, degrees, passes, reshard),
        "tensor all-reduce": Sent(reduced, tp),
        "all-to-all": Sent(exchanged, degrees.ep, tp * cp, is_ring=False),
        "context ring": Sent(keys * np.where(recompute, 4 / 3, 1.0), cp, tp),
        "pipeline": Sent(handed_on, 2, stage),
    }


def _batch_traffic(
    model: Sized,
    sharding: Sharding,
    degrees: Degrees,
    passes: Any,
    reshard: Any,
) -> dict[str, Sent]:
    """Compute the traffic of weights and gradients between GPUs that share batches.

    One in `ep` of these GPUs has the same experts.
    """
    if sharding == "none":
        return {}
    tp = degrees.tp
    ep = np.asarray(degrees.ep)
    _, outer, inner, all_inner, _ = stage_of(model, tp, degrees.pp, ep)
    # Parameters of the experts on one GPU, if they are divided.
    experts = np.where(ep > 1, (all_inner - inner) / np.maximum(ep - 1, 1), 0.0)
    shards = degrees.fsdp * degrees.cp
    if sharding != "fsdp2":
        shards = degrees.dp * shards

    def ring(weight_bytes: Any, outer_bytes: Any, times: Any) -> Any:
        """Count the bytes of the dense part and of experts, a ring each, as if over the larger group."""
        dense = times * (1 - 1 / np.maximum(shards, 1)) * (weight_bytes * (inner - experts) + outer_bytes)
        return dense + times * (1 - 1 / np.maximum(shards / ep, 1)) * (weight_bytes * experts)

    gradients = GRADIENT_BYTES * outer
    if sharding == "ddp":
        return {"all-reduce": Sent(ring(GRADIENT_BYTES, gradients, 2), shards, tp)}
    if sharding == "zero1":
        return {
            "reduce-scatter": Sent(ring(GRADIENT_BYTES, gradients, 1), shards, tp),
            "all-gather": Sent(ring(HALF, HALF * outer, 1), shards, tp),
        }
    # The head is gathered once, because the backward pass begins with it.
    head = outer if model.tied_embeddings else outer / 2
    times = np.where(reshard, 2.0, 1.0)
    gathered = WEIGHT_BYTES * (times * (outer - head) + head)
    between_groups = 2 * (1 - 1 / np.asarray(degrees.dp)) * (GRADIENT_BYTES * (all_inner + outer)) / shards
    return {
        "all-gather": Sent(ring(HALF * times, gathered, passes), shards, tp),
        "reduce-scatter": Sent(ring(GRADIENT_BYTES, gradients, passes), shards, tp),
        "all-reduce": Sent(passes * between_groups, degrees.dp, tp * shards),
    }


def tensor_bytes(model: Sized, tokens: Any, tp: Any) -> Any:
    """Count the bytes that one GPU receives in the all-reduces of blocks whose matrices are divided among `tp`."""
    return 4 * 2 * (1 - 1 / np.asarray(tp)) * HALF * tokens * tp * model.blocks * model.d_model


def bubble(pp: Any, passes: Any) -> Any:
    """Compute the time that stages of a pipeline idle, over that of their work (1F1B)."""
    return (np.asarray(pp) - 1) / passes


def all_to_all_bytes(architecture: Sized, tokens: Any, ep: Any) -> Any:
    """Count the bytes in bf16 that a GPU receives with experts divided among `ep`: both ways, forward and backward."""
    a = architecture
    rows = tokens * a.routed_blocks * a.experts_per_token * (np.asarray(a.experts) > 1)
    return 4 * (1.0 - 1.0 / np.asarray(ep)) * HALF * rows * a.d_model
