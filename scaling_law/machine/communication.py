"""What the GPUs of a run send each other in one step, and the least time that takes: a formula for each operation.

Of B bytes that n GPUs share, a ring brings each (n − 1) / n B. It enters a node once, over the network cards of all
GPUs of the group there; all-to-all leaves each GPU to its own card. Where activations are computed again, so are the
forward's all-reduces and all-to-alls. For t tokens and width d:

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
from scaling_law.size.architecture import GRADIENT_BYTES, Architecture
from scaling_law.size.widths import Widths

# Bytes/s of each GPU between nodes, theoretical: 3200 Gb/s for a node of 8, the top speed of stas00/ml-engineering.
NETWORK_CARD = 50e9
DEGREES = ("dp", "fsdp", "tp", "pp", "ep", "cp")


@dataclass(frozen=True, kw_only=True)
class Degrees:
    """How many GPUs share each thing; numbers, or arrays that broadcast with models.

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
        """Least time, over the links of a node and the network cards between nodes."""
        in_node = np.maximum(1, gpu.node // np.asarray(self.stride))
        if self.is_ring:
            cards = np.minimum(gpu.link, in_node * NETWORK_CARD)
            return self.received / np.where(np.asarray(self.members) * self.stride <= gpu.node, gpu.link, cards)
        outside = (self.members - np.minimum(self.members, in_node)) / np.maximum(np.asarray(self.members) - 1, 1)
        return np.maximum(self.received * outside / NETWORK_CARD, self.received * (1 - outside) / gpu.link)


def communication(
    model: Architecture | Widths,
    sharding: Sharding,
    degrees: Degrees,
    passes: Any,
    tokens: Any,
    *,
    reshard: Any = True,
    recompute: Any = False,
) -> dict[str, Sent]:
    """Traffic by operation of a step of `passes` micro-batches under autocast in bf16.

    `tokens` are those of the step over the number of GPUs. ValueError for counts below 1.
    """
    check_counts(**{name: getattr(degrees, name) for name in DEGREES}, passes=passes)
    dp, fsdp, tp, pp, ep, cp = (getattr(degrees, name) for name in DEGREES)
    again = np.where(recompute, 1.5, 1.0)
    keys = 3 * (np.asarray(cp) - 1) * 2 * HALF * tokens * model.blocks * model.n_kv_heads * model.head_dim
    return {
        **_of_batches(model, sharding, degrees, passes, reshard),
        "tensor all-reduce": Sent(again * tensor_bytes(model, tokens, tp), tp),
        "all-to-all": Sent(again * all_to_all_bytes(model, tokens, ep), ep, tp * cp, is_ring=False),
        "context ring": Sent(keys * np.where(recompute, 4 / 3, 1.0), cp, tp),
        "pipeline": Sent(2 * HALF * tokens * pp * model.d_model * (np.asarray(pp) > 1), 2, dp * fsdp * tp * cp),
    }


def _of_batches(
    model: Architecture | Widths, sharding: Sharding, degrees: Degrees, passes: Any, reshard: Any
) -> dict[str, Sent]:
    """What GPUs that share batches send of weights and gradients; experts are shared by one in `ep` of them."""
    dp, fsdp, tp, pp, ep, cp = (getattr(degrees, name) for name in DEGREES)
    _, ends, inner = stage_of(model, tp, pp, ep)
    _, _, all_inner = stage_of(model, tp, pp, 1)
    # The part of one GPU where experts are divided.
    experts = np.where(np.asarray(ep) > 1, (all_inner - inner) / np.maximum(ep - 1, 1), 0.0)
    shards = fsdp * cp if sharding == "fsdp2" else dp * fsdp * cp
    parts = ((inner - experts, shards, ends), (experts, shards / np.asarray(ep), 0.0))

    def sent(bytes_of: Any, times: Any) -> Any:
        """Bytes of the dense part and of experts, a ring each, as if over the larger group."""
        return sum(times * (1 - 1 / np.maximum(n, 1)) * bytes_of(weights, end) for weights, n, end in parts)

    def gradients(weights: Any, end: Any) -> Any:
        return GRADIENT_BYTES * (weights + end)

    if sharding in ("none", "ddp"):
        return {"all-reduce": Sent(sent(gradients, 2), shards, tp)} if sharding == "ddp" else {}
    if sharding == "zero1":
        gathered = sent(lambda weights, end: HALF * (weights + end), 1)
        return {"reduce-scatter": Sent(sent(gradients, 1), shards, tp), "all-gather": Sent(gathered, shards, tp)}
    head = ends if model.tied_embeddings else ends / 2  # gathered once: the backward pass begins with it
    twice = np.where(reshard, 2.0, 1.0)
    gathered = sent(
        lambda weights, end: HALF * twice * weights + WEIGHT_BYTES * np.where(end, twice * (ends - head) + head, 0.0),
        passes,
    )
    between = 2 * (1 - 1 / np.asarray(dp)) * gradients(all_inner, ends) / shards
    return {
        "all-gather": Sent(gathered, shards, tp),
        "reduce-scatter": Sent(sent(gradients, passes), shards, tp),
        "all-reduce": Sent(passes * between, dp, tp * shards),
    }


def tensor_bytes(model: Architecture | Widths, tokens: Any, tp: Any) -> Any:
    """Bytes that one GPU receives in the all-reduces of blocks whose matrices are divided among `tp`."""
    return 4 * 2 * (1 - 1 / np.asarray(tp)) * HALF * tokens * tp * model.blocks * model.d_model


def bubble(pp: Any, passes: Any) -> Any:
    """Time that stages of a pipeline idle, over that of their work (1F1B)."""
    return (np.asarray(pp) - 1) / passes


def all_to_all_bytes(architecture: Architecture | Widths, tokens: Any, ep: Any) -> Any:
    """Bytes in bf16 that one GPU receives with experts divided among `ep`: both ways, forward and backward."""
    a = architecture
    rows = tokens * a.routed_blocks * a.experts_per_token * (np.asarray(a.experts) > 1)
    return 4 * (1.0 - 1.0 / np.asarray(ep)) * HALF * rows * a.d_model
