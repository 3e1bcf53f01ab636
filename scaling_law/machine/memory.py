"""The memory that training takes on each device: state, activations, and the workspace at the peak.

It counts what `training.run` holds: fp32 weights, gradients and the optimizer's state, autocast in bf16 or fp32,
experts with capacity buffers (in fp32 on a CPU without), the cross-entropy in chunks of logits. Under DDP every device
has all of the state, and its gradients always. FSDP2 shards both; whole are the weights of two blocks at a time, in
the precision of autocast, and the gradients of one until their fp32 sum. The tests compare this with the peak of
torch's allocator on a CPU. CUDA, NCCL and fragmentation take a GB or two more.

Other engines follow from these parts, and were not measured: "zero1", Megatron's distributed optimizer (6 + 12 / d
bytes for a parameter on d devices); tensor parallelism, which divides matrices and all activations (Korthikanti et al.
2022, arXiv 2205.05198); and pipelines, whose first stage keeps a micro-batch for each (arXiv 2104.04473).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from hub.base.errors import InputError
from scaling_law.size.architecture import ADAM_BYTES, GRADIENT_BYTES, Architecture
from scaling_law.size.missing import refuse_none
from scaling_law.size.widths import Widths

Sharding = Literal["none", "ddp", "fsdp2", "zero1"]
SHARDINGS: tuple[Sharding, ...] = get_args(Sharding)
WEIGHT_BYTES = 4.0
MOMENT_BYTES = ADAM_BYTES - WEIGHT_BYTES
# Bytes of a parameter in a matrix that Muon takes.
MOMENTUM_BYTES = 4.0
HALF, SINGLE = 2.0, 4.0
# Of logits at a time (modeling_switch_moe.losses): on a CPU in fp32, on a GPU with their gradient, in bf16 there.
CPU_CHUNK_BYTES, GPU_CHUNK_BYTES = 2**21, 2**31
LEAST_CHUNK_ROWS = 64


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes of one device at the peak of a step (arrays for `Widths`).

    `activations` are kept for the backward pass, bf16 weights too; `workspace` exists only at the peak.
    """

    weights: Any
    gradients: Any
    optimizer: Any
    activations: Any
    workspace: Any

    @property
    def total(self) -> Any:
        return self.weights + self.gradients + self.optimizer + self.activations + self.workspace

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "total": self.total}


def training_memory(
    architecture: Architecture | Widths,
    micro_batch_sequences: Any,
    sequence_length: int,
    *,
    passes: Any = 2,
    precision: Literal["bf16", "fp32"] = "bf16",
    gradient_checkpointing: Any = False,
    capacity_factor: float = 1.0,
    optimizer: Literal["adamw", "muon"] = "adamw",
    sharding: Sharding = "none",
    devices: Any = 1,
    on_cpu: bool = False,
    reshard: Any = True,
    tp: Any = 1,
    pp: Any = 1,
    ep: Any = 1,
    cp: Any = 1,
) -> TrainingMemory:
    """Memory at the peak of a step of `passes` micro-batches, each of `micro_batch_sequences` sequences per device.

    `devices` share the state under `sharding="fsdp2"`, moments and master weights under "zero1". Gathered weights stay
    until their backward pass without `reshard`. `tp`, `pp`, `ep` and `cp` are degrees of parallelism.
    `capacity_factor` 0 is dropless. Muon keeps a momentum of hidden matrices, and AdamW two moments of the rest: of
    embedding, head and routers. Numbers, or arrays that broadcast with the models. ValueError names what is not
    allowed.
    """
    refuse_none("architecture", architecture)
    check_counts(
        micro_batch_sequences=micro_batch_sequences,
        sequence_length=sequence_length,
        **{"passes": passes, "devices": devices, "tp": tp, "pp": pp, "ep": ep, "cp": cp},
    )
    if sharding not in SHARDINGS or precision not in ("bf16", "fp32"):
        names = ", ".join(SHARDINGS)
        raise InputError(f"sharding={sharding!r}, precision={precision!r}; allowed: {names}; bf16, fp32")
    a, half, passes = architecture, precision == "bf16", np.asarray(passes)
    tokens = micro_batch_sequences * sequence_length / (tp * cp)
    blocks, ends, inner = stage_of(a, tp, pp, ep)
    router = a.routed_blocks * a.d_model * np.where(a.experts > 1, a.experts, 0) * blocks / a.blocks
    parameters = inner + ends + router
    sharded = sharding == "fsdp2" and np.any(np.asarray(devices) > 1)
    # Matrices with all experts.
    matrices = stage_of(a, tp, pp, 1)[2]
    between = matrices + router
    is_shared = sharded or sharding == "zero1"
    held = (between + ends) / devices if is_shared else parameters
    state = MOMENT_BYTES * held
    if optimizer == "muon":
        state = state - (MOMENT_BYTES - MOMENTUM_BYTES) * (matrices / devices if is_shared else inner)

    # Rows that the experts compute, by token and active expert: a buffer has as many as the capacity. Divided experts
    # compute buffers on every device; without a capacity they are taken to get equally many tokens.
    in_buffers = (np.asarray(ep) > 1) | (half or not on_cpu)
    rows = np.where(in_buffers, capacity_factor or 1.0, 1.0)
    stream, block = tokens * a.d_model * SINGLE, tokens * _kept_by_a_block(a, half, rows)
    # Casts live as long as a step; what FSDP2 gathers is in that precision already, and so are Megatron's weights.
    casts = HALF * inner if half and not sharded and sharding != "zero1" else 0.0
    every = blocks * np.where(np.asarray(pp) > 1, np.minimum(pp, passes), 1)  # blocks × micro-batches that are kept
    # at the head, and in the last block's backward pass
    whole, streams = every * block + casts, every * stream + casts
    kept = (
        np.where(gradient_checkpointing, streams, whole),
        np.where(gradient_checkpointing, block + streams - stream, whole),
    )
    workspace = (_at_the_head(a, tokens, half, on_cpu), _in_a_block(a, tokens, half, rows))
    if sharded:
        of_block = between / blocks, (parameters - ends) / blocks
        moments = _moments_of_shards(a, kept, workspace, block, of_block, held, passes, half, blocks, ends, reshard)
    else:
        # of one matrix, before it is added
        stacked = GRADIENT_BYTES * 2 * a.d_model * a.experts * a.d_expert / (ep * tp)
        before = GRADIENT_BYTES * parameters * ((passes > 1) | (sharding in ("ddp", "zero1")))
        moments = [(before, kept[0], workspace[0])]
        moments.append((before, kept[1], workspace[1] + stacked * (passes > 1)))
        # The end of a backward pass: only the casts are kept any more, and every gradient is there.
        moments.append((GRADIENT_BYTES * parameters, casts, stacked))
    gradients, activations, transient = _peak(moments)
    whole_weights = HALF * parameters + WEIGHT_BYTES * held if sharding == "zero1" else WEIGHT_BYTES * held
    parts = (whole_weights, gradients, state, activations, transient)
    return TrainingMemory(*(float(part) if np.ndim(part) == 0 else part for part in parts))


def saved_bytes(parameters: float, matrices: float, optimizer: str) -> float:
    """Count the bytes of fp32 weights and the optimizer's state: two moments, or the momentum of Muon's matrices."""
    adamw_bytes = (WEIGHT_BYTES + MOMENT_BYTES) * parameters
    return adamw_bytes - (MOMENT_BYTES - MOMENTUM_BYTES) * matrices if optimizer == "muon" else adamw_bytes


def check_counts(**counts: Any) -> None:
    """ValueError for a number, or an array with one, below 1."""
    for name, value in counts.items():
        if not np.all(np.asarray(value) >= 1):
            raise InputError(f"{name}={value!r} must be at least 1")


def stage_of(a: Architecture | Widths, tp: Any, pp: Any, ep: Any) -> tuple[Any, Any, Any]:
    """Blocks of the longest stage of a pipeline, and parameters that one device has: of its ends, and between them.

    A stage of several has the embedding or the head. Routers are not counted.
    """
    several = np.asarray(pp) > 1
    blocks = np.where(several, np.ceil(a.blocks / np.asarray(pp)), a.blocks)
    ends = np.where(several, 1.0 * a.vocab_size * a.d_model, a.embedding_parameters) / tp
    idle = a.n_total_non_embedding - a.n_active_non_embedding
    experts = idle * a.experts / np.maximum(a.experts - a.experts_per_token, 1e-9)  # those that a router chooses among
    inner = (a.n_total_non_embedding - experts * (1 - 1 / np.asarray(ep))) * blocks / a.blocks / tp
    return blocks, ends, inner


def _peak(moments: list[tuple[Any, Any, Any]]) -> tuple[Any, Any, Any]:
    """The parts of the moment with the largest sum, for each model."""
    shape = np.broadcast_shapes(*(np.shape(part) for moment in moments for part in moment))
    every = np.array([[np.broadcast_to(part, shape) for part in moment] for moment in moments])
    peak = np.argmax(every.sum(axis=1), axis=0)
    return tuple(np.take_along_axis(every[:, part], peak[None], 0)[0] for part in range(3))


def _moments_of_shards(
    a: Architecture | Widths,
    kept: tuple[Any, Any],
    workspace: tuple[Any, Any],
    block_activations: Any,
    of_block: tuple[Any, Any],
    held: Any,
    passes: Any,
    half: bool,
    blocks: Any,
    ends: Any,
    reshard: Any,
) -> list[tuple[Any, Any, Any]]:
    """(gradients, activations, workspace) where the peak may be with `held` parameters on a device, block by block."""
    head, compute = 1.0 * a.vocab_size * a.d_model, HALF if half else SINGLE
    block_weights, gathered = of_block  # all of a block, and those that a device gathers
    # Gradients are there in the precision of the weights, then as an fp32 sum that lives until the next is summed.
    whole, summed = compute * gathered, SINGLE * gathered
    share = held / (ends + blocks * block_weights)
    ahead = np.where(reshard, 2.0 * whole, blocks * whole + SINGLE * (ends - head))  # gathered, the embedding too

    def gradients(count: Any) -> Any:
        return GRADIENT_BYTES * np.where(passes > 1, held, share * count)

    (at_head, in_block), earlier = workspace, kept[1] - block_activations
    moments = [
        (gradients(0.0), kept[0], at_head + SINGLE * head + np.where(reshard, 0.0, ahead)),
        (gradients(head), kept[1], in_block + ahead + whole),  # the last block; `in_block` counts the sum of the head
        (gradients(head + block_weights), earlier, ahead + summed),
        (GRADIENT_BYTES * held, 0.0, 2 * SINGLE * head),  # the embedding
    ]
    several = np.asarray(blocks) > 1  # blocks before the last
    before_last = in_block - SINGLE * head + ahead + whole + summed
    moments.append((several * gradients(head + block_weights), several * earlier, several * before_last))
    return moments


def _kept_by_a_block(a: Architecture | Widths, half: bool, rows: Any) -> Any:
    """Bytes by token that a block's backward pass needs. Autocast copies the input of every projection."""
    d, width, compute = a.d_model, a.active_width, HALF if half else SINGLE
    attended = 2 * a.heads * a.head_dim + 2 * a.n_kv_heads * a.head_dim  # queries, outputs, keys and values
    kept = 2 * d * SINGLE + attended * compute + (4 * HALF if half else SINGLE) * d  # two residuals; the inputs
    kept += 4 * SINGLE + a.heads * SINGLE  # moments of the norms, normalisers of the softmax
    dense = kept + 4 * width * compute + (2 * HALF if half else SINGLE) * d
    # Gate, up, its activation, product; the buffer.
    kept = kept + rows * (4 * width + a.experts_per_token * d) * compute
    kept += (SINGLE + (2 * HALF if half else SINGLE)) * d  # the router's input, the outputs before their gate
    return np.where(a.experts > 1, kept + 2 * a.experts * SINGLE + 40, dense)  # logits and probabilities, indices


def _at_the_head(a: Architecture | Widths, tokens: Any, half: bool, on_cpu: bool) -> Any:
    """The chunked cross-entropy: hidden states, their gradient, that of the head, and chunks of logits."""
    d, vocabulary = a.d_model, a.vocab_size
    rows = chunk_rows(tokens, vocabulary, half, on_cpu)
    if on_cpu:
        logits = rows * vocabulary * SINGLE
        chunks = np.minimum(2, np.ceil(tokens / rows)) + (1 if half else 0)  # the one before is still there
    else:
        logits = rows * vocabulary * (HALF if half else SINGLE)
        chunks = np.minimum(2, np.ceil(tokens / rows)) + 1  # logits, their gradient, and the gradient before
    copies = (tokens + vocabulary) * d * HALF if half else 0.0
    return tokens * d * (SINGLE + (HALF if half else SINGLE)) + vocabulary * d * SINGLE + chunks * logits + copies


def chunk_rows(tokens: Any, vocabulary: float, half: bool, on_cpu: bool) -> Any:
    """Count the rows of logits that are computed at a time; a power of two on a GPU, where the last is padded."""
    if on_cpu:
        return np.minimum(tokens, max(LEAST_CHUNK_ROWS, CPU_CHUNK_BYTES // (4 * vocabulary)))
    size = int(HALF if half else SINGLE)
    most = max(LEAST_CHUNK_ROWS, GPU_CHUNK_BYTES // (2 * size * vocabulary))
    needed = np.maximum(tokens, LEAST_CHUNK_ROWS)
    return np.minimum(2.0 ** np.floor(np.log2(most)), 2.0 ** np.ceil(np.log2(needed)))


def _in_a_block(a: Architecture | Widths, tokens: Any, half: bool, rows: Any) -> Any:
    """The last block's backward pass: gradients of its output, two inner activations, and the head."""
    inner = np.where(a.experts > 1, rows, 1.0) * 2 * a.active_width * (HALF if half else SINGLE)
    return tokens * (a.d_model * SINGLE + inner) + a.vocab_size * a.d_model * SINGLE
