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
from functools import cached_property, reduce
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from hub.base.errors import InputError
from scaling_law.size.architecture import ADAM_BYTES, GRADIENT_BYTES
from scaling_law.size.missing import refuse_none
from scaling_law.size.widths import Sized

Sharding = Literal["none", "ddp", "fsdp2", "zero1"]
SHARDINGS: tuple[Sharding, ...] = get_args(Sharding)
WEIGHT_BYTES = 4.0
MOMENT_BYTES = ADAM_BYTES - WEIGHT_BYTES
# Bytes of a parameter in a matrix that Muon takes.
MOMENTUM_BYTES = 4.0
# Bytes of a number in bf16, and in fp32.
HALF = 2.0
SINGLE = 4.0
# Bytes of logits at a time (modeling_switch_moe.losses): on a CPU in fp32, on a GPU in bf16 and with their gradient.
CPU_CHUNK_BYTES = 2**21
GPU_CHUNK_BYTES = 2**31
LEAST_CHUNK_ROWS = 64


class Moment(NamedTuple):
    """Bytes that live together at one moment of a step."""

    gradients: Any
    activations: Any
    workspace: Any

    @property
    def total(self) -> Any:
        return self.gradients + self.activations + self.workspace


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes of one device at the peak of a step (arrays for `Widths`).

    `activations` are kept for the backward pass, bf16 weights too; `workspace` exists only at the peak, which is the
    largest of the `moments`.
    """

    weights: Any
    optimizer: Any
    moments: tuple[Moment, ...]

    @property
    def gradients(self) -> Any:
        return self._peak.gradients

    @property
    def activations(self) -> Any:
        return self._peak.activations

    @property
    def workspace(self) -> Any:
        return self._peak.workspace

    @property
    def total(self) -> Any:
        totals = [moment.total for moment in self.moments]
        return _as_number(self.weights + self.optimizer + reduce(np.maximum, totals))

    @cached_property
    def _peak(self) -> Moment:
        """The moment with the largest sum, for each model."""
        totals = np.broadcast_arrays(*(moment.total for moment in self.moments))
        peak = np.argmax(np.stack(totals), axis=0)
        parts = [np.choose(peak, values) for values in zip(*self.moments, strict=True)]
        return Moment(*map(_as_number, parts))

    def to_dict(self) -> dict[str, Any]:
        names = ("weights", "gradients", "optimizer", "activations", "workspace", "total")
        return {name: getattr(self, name) for name in names}


def training_memory(
    architecture: Sized,
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
    reduces_once: bool = False,
    tp: Any = 1,
    pp: Any = 1,
    ep: Any = 1,
    cp: Any = 1,
) -> TrainingMemory:
    """Compute the memory at the peak of a step of `passes` micro-batches of `micro_batch_sequences` on each device.

    `devices` share the state under `sharding="fsdp2"`, moments and master weights under "zero1". Gathered weights stay
    until their backward pass without `reshard`, and whole gradients until the last of the passes with `reduces_once`.
    `tp`, `pp`, `ep` and `cp` are degrees of parallelism.
    `capacity_factor` 0 is dropless. Muon keeps a momentum of hidden matrices, and AdamW two moments of the rest: of
    embedding, head and routers. Numbers, or arrays that broadcast with the models. ValueError names what is not
    allowed.
    """
    refuse_none("architecture", architecture)
    check_counts(
        micro_batch_sequences=micro_batch_sequences,
        sequence_length=sequence_length,
        passes=passes,
        devices=devices,
        tp=tp,
        pp=pp,
        ep=ep,
        cp=cp,
    )
    if sharding not in SHARDINGS or precision not in ("bf16", "fp32"):
        names = ", ".join(SHARDINGS)
        raise InputError(f"sharding={sharding!r}, precision={precision!r}; allowed: {names}; bf16, fp32")
    a = architecture
    half = precision == "bf16"
    passes = np.asarray(passes)
    stage = stage_of(a, tp, pp, ep)
    # FSDP2 gathers weights; it and "zero1" share the state.
    is_gathered = sharding == "fsdp2" and bool(np.any(np.asarray(devices) > 1))
    is_state_shared = is_gathered or sharding == "zero1"
    parameters = stage.inner + stage.outer + stage.router
    owned = parameters
    owned_matrices = stage.inner
    if is_state_shared:
        owned = (stage.all_inner + stage.router + stage.outer) / devices
        owned_matrices = stage.all_inner / devices
    state = MOMENT_BYTES * owned
    if optimizer == "muon":
        state = state - (MOMENT_BYTES - MOMENTUM_BYTES) * owned_matrices

    # Rows that the experts compute, by token and active expert: a buffer has as many as the capacity. Divided experts
    # compute buffers on every device; without a capacity they are taken to get equally many tokens.
    in_buffers = (np.asarray(ep) > 1) | (half or not on_cpu)
    rows = np.where(in_buffers, capacity_factor or 1.0, 1.0)
    tokens = micro_batch_sequences * sequence_length / (tp * cp)
    stream = tokens * a.d_model * SINGLE
    block = tokens * _block_activations(a, half, rows)
    # Casts live as long as a step; what FSDP2 gathers is in that precision already, and so are Megatron's weights.
    casts = HALF * stage.inner if half and not is_state_shared else 0.0
    micro_batches = np.where(np.asarray(pp) > 1, np.minimum(pp, passes), 1)
    saved_blocks = stage.blocks * micro_batches
    everything = saved_blocks * block + casts
    streams = saved_blocks * stream + casts
    backward = _Backward(
        head_activations=np.where(gradient_checkpointing, streams, everything),
        last_activations=np.where(gradient_checkpointing, block + streams - stream, everything),
        block_activations=block,
        head_workspace=_head_workspace(a, tokens, half, on_cpu),
        block_workspace=_block_workspace(a, tokens, half, rows),
    )
    if is_gathered:
        head = 1.0 * a.vocab_size * a.d_model
        between_passes = np.where(reduces_once & (passes > 1), parameters, owned)
        gathered_bytes = HALF if half else SINGLE
        moments = _moments_of_shards(backward, stage, owned, between_passes, head, gathered_bytes, passes, reshard)
    else:
        # The gradients of one matrix of all experts, before they are added.
        stacked = GRADIENT_BYTES * 2 * a.d_model * a.experts * a.d_expert / (ep * tp)
        is_summed = (passes > 1) | (sharding in ("ddp", "zero1"))
        moments = _moments_of_whole(backward, parameters, casts, stacked, passes, is_summed)
    weights = WEIGHT_BYTES * owned
    if sharding == "zero1":
        weights = HALF * parameters + weights
    return TrainingMemory(_as_number(weights), _as_number(state), tuple(moments))


def _as_number(values: Any) -> Any:
    return float(values) if np.ndim(values) == 0 else values


def saved_bytes(parameters: float, matrices: float, optimizer: str) -> float:
    """Count the bytes of fp32 weights and the optimizer's state: two moments, or the momentum of Muon's matrices."""
    adamw_bytes = (WEIGHT_BYTES + MOMENT_BYTES) * parameters
    if optimizer == "muon":
        return adamw_bytes - (MOMENT_BYTES - MOMENTUM_BYTES) * matrices
    return adamw_bytes


def check_counts(**counts: Any) -> None:
    """Raise ValueError for a number, or an array with one, below 1."""
    for name, value in counts.items():
        if not np.all(np.asarray(value) >= 1):
            raise InputError(f"{name}={value!r} must be at least 1")


# ------------------------------------------------------------------ parameters of a device


class Stage(NamedTuple):
    """Blocks of the longest stage of a pipeline, and the parameters that one device computes with.

    `outer` are of embedding and head, `inner` of the matrices between, `all_inner` of these with the experts of all
    devices, `router` of routers.
    """

    blocks: Any
    outer: Any
    inner: Any
    all_inner: Any
    router: Any


def stage_of(a: Sized, tp: Any, pp: Any, ep: Any) -> Stage:
    """Count what one device has. If there are several stages, one has the embedding or the head."""
    has_stages = np.asarray(pp) > 1
    blocks = np.where(has_stages, np.ceil(a.blocks / np.asarray(pp)), a.blocks)
    end_parameters = np.where(has_stages, 1.0 * a.vocab_size * a.d_model, a.embedding_parameters)
    end_parameters = (end_parameters + a.lookup_parameters) / tp
    idle = a.n_total_non_embedding - a.n_active_non_embedding
    # Parameters of the experts that a router chooses among.
    routed = idle * a.experts / np.maximum(a.experts - a.experts_per_token, 1e-9)
    undivided = a.n_total_non_embedding - routed * (1 - 1 / np.asarray(ep))
    inner = undivided * blocks / a.blocks / tp
    all_inner = a.n_total_non_embedding * blocks / a.blocks / tp
    router = a.routed_blocks * a.d_model * np.where(a.experts > 1, a.experts, 0) * blocks / a.blocks
    return Stage(blocks, end_parameters, inner, all_inner, router)


# ------------------------------------------------------------------ moments of a step where the peak may be


class _Backward(NamedTuple):
    """Bytes in the backward pass at the head and in the last block, without weights and gradients.

    `block_activations` are those of one block alone.
    """

    head_activations: Any
    last_activations: Any
    block_activations: Any
    head_workspace: Any
    block_workspace: Any


def _moments_of_whole(
    backward: _Backward,
    parameters: Any,
    casts: Any,
    stacked: Any,
    passes: Any,
    is_summed: Any,
) -> list[Moment]:
    """List the moments where every device has all weights: at the head, in the last block, and at the end.

    `stacked` are bytes of the gradients of stacked experts; `is_summed`: gradients exist before the backward pass.
    """
    gradients = GRADIENT_BYTES * parameters
    before = gradients * is_summed
    return [
        Moment(before, backward.head_activations, backward.head_workspace),
        Moment(before, backward.last_activations, backward.block_workspace + stacked * (passes > 1)),
        # The end of a backward pass: only the casts are kept any more, and every gradient is there.
        Moment(gradients, casts, stacked),
    ]


def _moments_of_shards(
    backward: _Backward,
    stage: Stage,
    owned: Any,
    between_passes: Any,
    head: Any,
    gathered_bytes: float,
    passes: Any,
    reshard: Any,
) -> list[Moment]:
    """List the moments of FSDP2, block by block; a weight has `gathered_bytes` where it is gathered.

    `between_passes` are parameters whose gradients wait for the next micro-batch.
    """
    block_weights = (stage.all_inner + stage.router) / stage.blocks
    gathered = (stage.inner + stage.router) / stage.blocks
    # Gradients are there in the precision of the weights, then as an fp32 sum that lives until the next is summed.
    block = gathered_bytes * gathered
    block_sum = SINGLE * gathered
    fraction = owned / (stage.outer + stage.blocks * block_weights)
    # Weights that are gathered ahead, the embedding too.
    ahead = np.where(reshard, 2.0 * block, stage.blocks * block + SINGLE * (stage.outer - head))

    def gradients(count: Any) -> Any:
        return GRADIENT_BYTES * np.where(passes > 1, between_passes, fraction * count)

    earlier = backward.last_activations - backward.block_activations
    at_head = backward.head_workspace + SINGLE * head + np.where(reshard, 0.0, ahead)
    in_block = backward.block_workspace
    before_last = in_block - SINGLE * head + ahead + block + block_sum
    has_others = np.asarray(stage.blocks) > 1
    above = gradients(head + block_weights)
    return [
        Moment(gradients(0.0), backward.head_activations, at_head),
        # The last block; its workspace counts the sum of the head.
        Moment(gradients(head), backward.last_activations, in_block + ahead + block),
        Moment(above, earlier, ahead + block_sum),
        # The embedding.
        Moment(GRADIENT_BYTES * between_passes, 0.0, 2 * SINGLE * head),
        # A block before the last.
        Moment(has_others * above, has_others * earlier, has_others * before_last),
    ]


# ------------------------------------------------------------------ activations and workspace


def _block_activations(a: Sized, half: bool, rows: Any) -> Any:
    """Count the bytes by token that a block's backward pass needs. Autocast copies the input of every projection."""
    d = a.d_model
    compute = HALF if half else SINGLE
    # Elements of queries, outputs, keys and values.
    attention = 2 * a.heads * a.head_dim + 2 * a.n_kv_heads * a.head_dim
    # Two residuals, attention, and the inputs of projections.
    shared = 2 * d * SINGLE + attention * compute + (4 * HALF if half else SINGLE) * d
    # Moments of the norms, and normalisers of the softmax.
    shared = shared + (4 * SINGLE + a.heads * SINGLE)
    input_copies = 2 * HALF if half else SINGLE
    dense = shared + 4 * a.active_width * compute + input_copies * d
    # Gate, up, its activation and the product, and the buffer.
    routed = shared + rows * (4 * a.active_width + a.experts_per_token * d) * compute
    # The router's input, and the outputs before their gate.
    routed = routed + (SINGLE + input_copies) * d
    # Logits and probabilities, and indices.
    routed = routed + 2 * a.experts * SINGLE + 40
    return np.where(a.experts > 1, routed, dense)


def _head_workspace(a: Sized, tokens: Any, half: bool, on_cpu: bool) -> Any:
    """Count the bytes of the chunked cross-entropy: hidden states, gradients of these and the head, and logits."""
    d = a.d_model
    vocabulary = a.vocab_size
    compute = HALF if half else SINGLE
    rows = chunk_rows(tokens, vocabulary, half, on_cpu)
    chunks = np.minimum(2, np.ceil(tokens / rows))
    if on_cpu:
        logits = rows * vocabulary * SINGLE
        # The chunk before is still there.
        chunks = chunks + (1 if half else 0)
    else:
        logits = rows * vocabulary * compute
        # Logits, their gradient, and the gradient before.
        chunks = chunks + 1
    copies = (tokens + vocabulary) * d * HALF if half else 0.0
    return tokens * d * (SINGLE + compute) + vocabulary * d * SINGLE + chunks * logits + copies


def chunk_rows(tokens: Any, vocabulary: float, half: bool, on_cpu: bool) -> Any:
    """Count the rows of logits that are computed at a time; a power of two on a GPU, where the last is padded."""
    if on_cpu:
        return np.minimum(tokens, max(LEAST_CHUNK_ROWS, CPU_CHUNK_BYTES // (4 * vocabulary)))
    size = int(HALF if half else SINGLE)
    most = max(LEAST_CHUNK_ROWS, GPU_CHUNK_BYTES // (2 * size * vocabulary))
    fewest = np.maximum(tokens, LEAST_CHUNK_ROWS)
    return np.minimum(2.0 ** np.floor(np.log2(most)), 2.0 ** np.ceil(np.log2(fewest)))


def _block_workspace(a: Sized, tokens: Any, half: bool, rows: Any) -> Any:
    """Count the bytes of the last block's backward pass: gradients of its output and the head, inner activations."""
    compute = HALF if half else SINGLE
    inner = np.where(a.experts > 1, rows, 1.0) * 2 * a.active_width * compute
    return tokens * (a.d_model * SINGLE + inner) + a.vocab_size * a.d_model * SINGLE
