"""How the experts of a block are computed: one function per situation, all with the same result.

Each takes `(module, hidden_states [T, H], top_k_index [T, 1], top_k_weights [T, 1])` and returns `[T, H]`, zero where
the weight is. `module` holds `gate_up_proj [E, 2I, H]`, gate rows first, and `down_proj [E, H, I]`. Those of grouped
matmuls compute the experts of any class of transformers, k for each token.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, ExpertsInterface, grouped_mm_experts_forward
from transformers.utils.generic import maybe_autocast

from .precision import cast, compute_dtype
from .routing import Groups, assignment_matrix, group_by_expert, most_kept, position_in_expert


class SwitchExpertsInterface(ExpertsInterface):
    """Implementations of this file, and under all other names what transformers' registry holds when they are called.

    So kernels that are registered there, or put in the place of its own, compute our experts, too.
    """

    _global_mapping = ALL_EXPERTS_FUNCTIONS


SWITCH_EXPERTS = SwitchExpertsInterface()


def bounds_tokens(module: nn.Module) -> bool:
    """Tell whether the router bounds the tokens of each expert by the capacity of this call's tokens."""
    return module.training and module.config.capacity_factor is not None


def has_capacity(module: nn.Module) -> bool:
    """Tell whether the tokens of this call are those that the router has bounded.

    Where experts are divided among ranks, they are those of several calls. transformers before 5.19 cannot divide
    experts, and does not say so.
    """
    return bounds_tokens(module) and not getattr(module, "_is_expert_parallel", False)


class StackedLinear(torch.autograd.Function):
    """Multiply `rows [E, C, in]` by `weights [E, out, in]`, each expert's rows by its own matrix: `[E, C, out]`.

    The gradient of the weights is formed in the layout of the weights. By autograd's own formula it is a transposed
    view, which can only be added to other gradients at a fraction of the memory's bandwidth.
    """

    @staticmethod
    def forward(rows, weights):
        return torch.bmm(rows, weights.mT)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        rows, weights = ctx.saved_tensors
        return torch.bmm(gradient, weights), torch.bmm(gradient.mT, rows)


class MoveRows(torch.autograd.Function):
    """Copy rows to other places: row `i` of the result is `rows[sources[i]]`.

    Args:
        rows: `[n, d]`.
        sources: `[m]` int64.
        destinations: `[n]` or `[n, k]` int64, where each of `rows` went to; only these places have a gradient.
        is_used: bool, false for those of `destinations` that have no gradient; `None` means that all have one.

    The backward pass copies, too, where that of `index_select` would fill with zeros and add atomically.
    """

    @staticmethod
    def forward(rows, sources, destinations, is_used):
        return rows.index_select(0, sources)

    @staticmethod
    def setup_context(ctx, inputs, output):
        *_, destinations, is_used = inputs
        ctx.save_for_backward(destinations, is_used)

    @staticmethod
    def backward(ctx, gradient):
        destinations, is_used = ctx.saved_tensors
        gradient = gradient.index_select(0, destinations.flatten())
        if is_used is not None:
            gradient = torch.where(is_used.view(-1, 1), gradient, 0)
        if destinations.dim() > 1:
            gradient = gradient.unflatten(0, destinations.shape).sum(1)
        return gradient, None, None, None


class SpreadBiases(torch.autograd.Function):
    """Copy to each of the rows `[S]` that are ordered by expert the bias of its expert, from `biases [E, d]`.

    The gradient of a bias is one product, where that of an index would add row by row.
    """

    @staticmethod
    def forward(biases, expert):
        return biases.index_select(0, expert.clamp(max=len(biases) - 1).int())

    @staticmethod
    def setup_context(ctx, inputs, output):
        biases, expert = inputs
        ctx.num_experts = len(biases)
        ctx.save_for_backward(expert)

    @staticmethod
    def backward(ctx, gradient):
        (expert,) = ctx.saved_tensors
        assignment = assignment_matrix(expert, ctx.num_experts)
        # Rows of no expert hold anything, also nan.
        gradient = torch.where(assignment.any(0).unsqueeze(1), gradient, 0)
        with maybe_autocast(gradient.device.type, enabled=False):
            total = assignment.to(gradient.dtype) @ gradient
        return total, None


def capacity_experts_forward(
    module: nn.Module, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """Compute with a buffer of C rows per expert and batched matmuls.

    No shape depends on the data, so training steps compile. C is the router's capacity in training. Elsewhere it is
    the largest count or, in a compiled graph, all tokens.
    """
    num_tokens = hidden_states.shape[0]
    num_experts = module.num_experts
    expert = top_k_index.reshape(-1)
    gate = top_k_weights.reshape(-1)
    if has_capacity(module):
        capacity = rows_per_expert(module.config, num_tokens, num_experts)
    elif torch.compiler.is_compiling():
        capacity = max(num_tokens, 1)
    else:
        # A row at least, where every token is dropped.
        capacity = max(int(assignment_matrix(expert, num_experts, gate != 0).sum(1).max()), 1)
    states = hidden_states.to(compute_dtype(module.down_proj))
    return through_buffer(states, expert, gate, (num_experts, capacity), partial(multiply_buffer, module))


def rows_per_expert(config: Any, num_tokens: int, num_experts: int) -> int:
    """Count the rows of a buffer that hold whatever one expert keeps of `num_tokens` tokens; at least one."""
    return max(most_kept(num_tokens, num_experts, config.capacity_factor, config.capacity_group_tokens), 1)


def multiply_buffer(module: nn.Module, buffer: torch.Tensor) -> torch.Tensor:
    """Compute the experts of a module on a buffer `[E, C, H]`, in autocast's precision."""
    inner = module._apply_gate(StackedLinear.apply(buffer, cast(module.gate_up_proj)))
    return StackedLinear.apply(inner, cast(module.down_proj))


def through_buffer(
    hidden_states: torch.Tensor,
    expert: torch.Tensor,
    gate: torch.Tensor,
    size: tuple[int, int],
    multiply: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Lay tokens `[T, H]` into a buffer `[E, C, H]`, multiply it, and return each token's row times its gate.

    Args:
        expert, gate: `[T]`; tokens without a gate, or of an expert past the last, stay outside.
        size: E and C; no expert may have more tokens than C.
        multiply: maps a buffer to one of the same shape.
    """
    num_tokens = hidden_states.shape[0]
    num_experts, capacity = size
    is_computed = (gate != 0) & (expert < num_experts)
    expert = expert.clamp(max=num_experts - 1)
    assignment = assignment_matrix(expert, num_experts, is_computed)
    position = position_in_expert(assignment, expert, num_tokens)
    n_rows = num_experts * capacity
    slot = torch.where(is_computed, expert * capacity + position, n_rows)
    # Which token lies in each row of the buffer. Tokens that are not computed share one more, which is left out.
    tokens = torch.arange(num_tokens, device=slot.device)
    token = torch.full((n_rows + 1,), num_tokens, device=slot.device).scatter(0, slot, tokens)[:n_rows]
    is_filled = token < num_tokens
    # Rows without a token hold some token's values: nothing reads what becomes of them, and their gradients are zero.
    token = token.clamp(max=num_tokens - 1)
    slot = slot.clamp(max=n_rows - 1)
    buffer = MoveRows.apply(hidden_states, token, slot, is_computed).view(num_experts, capacity, -1)
    outputs = multiply(buffer).flatten(0, 1)
    weights = torch.where(is_computed, gate, 0.0).to(outputs.dtype)
    return MoveRows.apply(outputs, slot, token, is_filled) * weights.unsqueeze(1)


class CastWeights:
    """A module of experts with its matrices in autocast's precision, for other kernels; torch.compile traces it."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        return cast(value) if getattr(value, "ndim", 0) == 3 else value


def autocast_grouped_mm(
    module: nn.Module, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """Compute experts of any class (`[T, k]`) by grouped matmuls, in autocast's precision.

    By itself transformers multiplies in the precision of the weights, also under autocast. A kernel that is registered
    in the place of its own is called; and its own in compiled graphs of fp32, where torch has no grouped matmul.
    """
    kernel = ALL_EXPERTS_FUNCTIONS["grouped_mm"]
    dtype = compute_dtype(module.down_proj)
    lacks_product = torch.compiler.is_compiling() and dtype != torch.bfloat16
    if lacks_product or kernel is not grouped_mm_experts_forward:
        return kernel(CastWeights(module), hidden_states, top_k_index, top_k_weights)
    num_experts = len(module.down_proj)
    is_local = None
    # Where experts are divided among ranks, those of others have the number E.
    if getattr(module, "_is_expert_parallel", False):
        is_local = top_k_index < num_experts
    groups = group_by_expert(top_k_index, num_experts)
    token = groups.order // top_k_index.shape[1]
    rows = MoveRows.apply(hidden_states, token, groups.place, is_local).to(dtype)
    if module.has_gate:
        rows = multiply_groups(module, "gate_up_proj", rows, groups)
        rows = module._apply_gate(rows)
    else:
        rows = multiply_groups(module, "up_proj", rows, groups)
        rows = module.act_fn(rows)
    rows = multiply_groups(module, "down_proj", rows, groups)
    if getattr(module, "has_post_expert_norm", False):
        rows = module.post_expert_norm(rows)
    outputs = MoveRows.apply(rows, groups.place.flatten(), groups.order, None)
    # [T, k, H]
    outputs = outputs.unflatten(0, top_k_index.shape)
    if is_local is not None:
        outputs = torch.where(is_local.unsqueeze(2), outputs, 0)
    total = (outputs * top_k_weights.unsqueeze(2)).sum(1)
    return total.to(hidden_states.dtype)


def multiply_groups(module: nn.Module, name: str, rows: torch.Tensor, groups: Groups) -> torch.Tensor:
    """Multiply rows `[S, in]` by the matrices `name` of their experts, and add the experts' biases if there are any.

    The kernels want rows of a multiple of 16 bytes: odd widths are padded with zeros, which change nothing.
    """
    weights = cast(getattr(module, name))
    weights = weights if module.is_transposed else weights.mT
    width = weights.shape[2]
    multiple = 16 // weights.element_size()
    padding = [-size % multiple for size in weights.shape[1:]]
    if any(padding):
        rows = F.pad(rows, (0, padding[0]))
        weights = F.pad(weights, (0, padding[1], 0, padding[0]))
    products = F.grouped_mm(rows, weights, offs=groups.bounds)[:, :width]
    if not module.has_bias:
        return products
    biases = SpreadBiases.apply(getattr(module, f"{name}_bias"), groups.expert)
    return (products + biases).to(products.dtype)


def automatic_experts_forward(
    module: nn.Module, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """Choose the implementation for this call.

    "capacity" where a capacity bounds the buffer, except eagerly in fp32 on a CPU. Else "grouped_mm", or "batched_mm"
    for a handful of tokens on an accelerator, where gathering the weights of their experts beats a grouped launch. An
    export to ONNX, which has no grouped matmul, takes "capacity".
    """
    is_on_cpu = hidden_states.device.type == "cpu"
    is_compiling = torch.compiler.is_compiling()
    is_fp32 = compute_dtype(module.down_proj) == torch.float32
    is_bounded = has_capacity(module) and (is_compiling or not (is_on_cpu and is_fp32))
    if is_bounded or torch.onnx.is_in_onnx_export():
        name = "capacity"
    else:
        name = "grouped_mm" if is_on_cpu or is_compiling or hidden_states.shape[0] > 16 else "batched_mm"
        hidden_states = hidden_states.to(compute_dtype(module.down_proj))
    return SWITCH_EXPERTS[name](module, hidden_states, top_k_index, top_k_weights)


SWITCH_EXPERTS["auto"] = automatic_experts_forward
SWITCH_EXPERTS["capacity"] = capacity_experts_forward
SWITCH_EXPERTS["grouped_mm"] = autocast_grouped_mm
