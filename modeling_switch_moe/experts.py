"""How the experts of a block are computed: one function per situation, all with the same result.

Each takes `(module, hidden_states [T, H], top_k_index [T, 1], top_k_weights [T, 1])` and returns `[T, H]`, zero where
the weight is. `module` holds `gate_up_proj [E, 2I, H]`, gate rows first, and `down_proj [E, H, I]`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, ExpertsInterface

from .precision import cast, compute_dtype
from .routing import assignment_matrix, most_kept, position_in_expert


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
        destinations: `[n]` int64, where each of `rows` went to; only one place of each has a gradient.
        is_used: `[n]` bool, false for rows that went nowhere, or to places without a gradient.

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
        gradient = gradient.index_select(0, destinations)
        return torch.where(is_used.unsqueeze(1), gradient, 0), None, None, None


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
    """A module of experts as transformers' function reads it, with other matrices; torch.compile can trace it."""

    def __init__(self, module: nn.Module, matrices: dict[str, torch.Tensor]) -> None:
        self._module = module
        self._matrices = matrices

    def __getattr__(self, name: str) -> Any:
        return self._matrices[name] if name in self._matrices else getattr(self._module, name)


def autocast_grouped_mm(
    module: nn.Module, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """Compute experts of any class (`[T, k]`) by transformers' grouped matmul, in autocast's precision.

    By itself it multiplies in the precision of the weights, also under autocast. Biases keep theirs: their gradients
    are sums over tokens. The kernels want rows of a multiple of 16 bytes: an odd inner width is padded with zeros,
    which change nothing; where the weights are stored otherwise than ours, the class's own loop is run instead.
    """
    up_name = "gate_up_proj" if module.has_gate else "up_proj"
    up = cast(getattr(module, up_name))
    down = cast(module.down_proj)
    hidden, inner = down.shape[-2:][::-1] if module.is_transposed else down.shape[-2:]
    multiple = 16 // down.element_size()
    padding = -inner % multiple
    is_stored_as_ours = module.has_gate and not module.is_transposed and not module.has_bias
    if hidden % multiple or (padding and not is_stored_as_ours):
        return type(module).forward.__wrapped__(module, hidden_states, top_k_index, top_k_weights)
    if padding:
        up = F.pad(up.unflatten(1, (2, inner)), (0, 0, 0, padding)).flatten(1, 2)
        down = F.pad(down, (0, padding))
    weights = CastWeights(module, {up_name: up, "down_proj": down})
    return ALL_EXPERTS_FUNCTIONS["grouped_mm"](weights, hidden_states, top_k_index, top_k_weights)


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
