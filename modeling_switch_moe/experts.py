"""How the experts of a block are computed: one function per situation, all with the same result.

Each takes `(module, hidden_states [T, H], top_k_index [T, 1], top_k_weights [T, 1])`, the experts interface of
transformers, and returns `[T, H]`: the chosen expert's output times its weight, zero where the weight is zero (a token
dropped over capacity, or padding). `module` holds `gate_up_proj [E, 2I, H]`, gate rows first, and `down_proj`
`[E, H, I]`.

    "auto"        the choice of `automatic_experts_forward`; used unless `experts_implementation` says otherwise
    "sorted"      tokens in the order of their experts, one matmul per expert that is hit; the fast path on CPU
    "capacity"    a fixed buffer of C rows per expert and batched matmuls; static shapes for compiled training steps
    "grouped_mm", "batched_mm"   transformers' own (one grouped matmul; weights gathered per token)
    "eager"       the plain loop in `SwitchMoeExperts.forward`

On CPU most of what top-1 experts cost beyond the dense feed-forward is memory traffic: fresh gradients, activations
that leave the cache, copies around autograd's views. "sorted" therefore is one autograd function whose backward writes
each expert's gradient in place into a single stacked tensor.
"""

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, ExpertsInterface

from .routing import assignment_matrix, most_kept, position_in_expert

SWITCH_EXPERTS = ExpertsInterface()


def compute_dtype(module: nn.Module, hidden_states: torch.Tensor) -> torch.dtype:
    """The precision of the experts' matmuls: autocast's where it is on, else that of the weights."""
    device_type = hidden_states.device.type
    if device_type != "meta" and torch.is_autocast_enabled(device_type):
        return torch.get_autocast_dtype(device_type)
    return module.down_proj.dtype


def has_capacity(module: nn.Module) -> bool:
    """Whether the router has bounded the tokens of each expert by the capacity of this call's tokens."""
    return module.training and module.config.capacity_factor is not None and not is_expert_parallel(module)


def is_expert_parallel(module: nn.Module) -> bool:
    """Whether the experts hold only this rank's share; transformers before 5.19 does not say, and cannot do it."""
    return getattr(module, "_is_expert_parallel", False)


def group_by_expert(
    expert: torch.Tensor, gate: torch.Tensor, num_experts: int
) -> tuple[torch.Tensor, list[int], list[int]]:
    """Order the tokens that are computed by expert. Waits for the device (reads the counts).

    Args:
        expert: `[T]` int64; ids outside 0..E-1 count as not computed (another rank's expert).
        gate: `[T]`; 0 means not computed.

    Returns:
        `[N]` token numbers, ascending within each expert; the experts that are hit, ascending; the tokens of each.
    """
    elsewhere = (gate == 0) | (expert >= num_experts)
    expert = torch.where(elsewhere, num_experts, expert)
    counts = torch.bincount(expert, minlength=num_experts + 1).tolist()[:num_experts]
    order = expert.sort(stable=True).indices[: sum(counts)]
    return order, [number for number, count in enumerate(counts) if count], [count for count in counts if count]


class SortedExperts(torch.autograd.Function):
    """SwiGLU experts over tokens sorted by expert, forward and backward written out.

    Inputs: `hidden_states [T, H]`, `gate [T]`, `gate_up_proj [E, 2I, H]`, `down_proj [E, H, I]`, then the constants
    `order [N]`, `hit` and `counts` of `group_by_expert`, and `dtype`, the precision of the matmuls and of the output
    `[T, H]`.
    """

    @staticmethod
    def forward(ctx, hidden_states, gate, gate_up_proj, down_proj, order, hit, counts, dtype):
        rows = hidden_states.to(dtype).index_select(0, order)
        inner = down_proj.shape[2]
        projected = rows.new_empty(len(order), 2 * inner)
        outputs = rows.new_empty(rows.shape)
        weights = gate_up_proj.transpose(1, 2).unbind(0)
        for expert, source, target in zip(hit, rows.split(counts), projected.split(counts), strict=True):
            torch.mm(source, weights[expert].to(dtype), out=target)
        activated = F.silu(projected[:, :inner]).mul_(projected[:, inner:])
        weights = down_proj.transpose(1, 2).unbind(0)
        for expert, source, target in zip(hit, activated.split(counts), outputs.split(counts), strict=True):
            torch.mm(source, weights[expert].to(dtype), out=target)
        scale = gate.index_select(0, order).to(dtype).unsqueeze(1)
        result = rows.new_zeros(hidden_states.shape).index_copy_(0, order, outputs * scale)
        ctx.save_for_backward(rows, projected, activated, outputs, scale, gate_up_proj, down_proj, order)
        ctx.hit, ctx.counts, ctx.dtype = hit, counts, dtype
        ctx.hidden_dtype, ctx.gate_dtype = hidden_states.dtype, gate.dtype
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_result):
        rows, projected, activated, outputs, scale, gate_up_proj, down_proj, order = ctx.saved_tensors
        dtype, inner, hit, counts = ctx.dtype, down_proj.shape[2], ctx.hit, ctx.counts
        grad_rows = grad_result.to(dtype).index_select(0, order)
        grad_gate = grad_result.new_zeros(grad_result.shape[0], dtype=ctx.gate_dtype)
        grad_gate.index_copy_(0, order, (grad_rows * outputs).sum(1, dtype=ctx.gate_dtype))
        grad_rows.mul_(scale)
        grad_activated = torch.empty_like(activated)
        grad_down = expert_gradients(
            hit, counts, dtype, weights=down_proj, inputs=activated, grad_outputs=grad_rows, grad_inputs=grad_activated
        )
        grad_projected = swiglu_backward(projected, grad_activated, inner)
        grad_sorted = grad_rows  # its values are used up
        grad_up = expert_gradients(
            hit, counts, dtype, weights=gate_up_proj, inputs=rows, grad_outputs=grad_projected, grad_inputs=grad_sorted
        )
        grad_hidden = grad_result.new_zeros(grad_result.shape, dtype=ctx.hidden_dtype)
        grad_hidden.index_copy_(0, order, grad_sorted.to(ctx.hidden_dtype))
        return grad_hidden, grad_gate, grad_up, grad_down, None, None, None, None


def expert_gradients(
    hit: list[int],
    counts: list[int],
    dtype: torch.dtype,
    *,
    weights: torch.Tensor,
    inputs: torch.Tensor,
    grad_outputs: torch.Tensor,
    grad_inputs: torch.Tensor,
) -> torch.Tensor:
    """Backward of `inputs @ weights[expert].T` by segments: fills `grad_inputs`, returns the gradient of `weights`."""
    gradient = torch.empty_like(weights)
    weight, out = weights.unbind(0), gradient.unbind(0)
    segments = (tensor.split(counts) for tensor in (inputs, grad_outputs, grad_inputs))
    for expert, source, grad_output, grad_input in zip(hit, *segments, strict=True):
        torch.mm(grad_output, weight[expert].to(dtype), out=grad_input)
        weight_gradient(grad_output, source, out[expert])
    for expert in set(range(len(out))).difference(hit):
        out[expert].zero_()
    return gradient


def weight_gradient(grad_output: torch.Tensor, rows: torch.Tensor, out: torch.Tensor) -> None:
    """Write `grad_output.T @ rows` into `out`, which may be of higher precision than the factors."""
    if out.dtype == rows.dtype:
        torch.mm(grad_output.t(), rows, out=out)
    else:
        out.copy_(grad_output.t() @ rows)


def swiglu_backward(projected: torch.Tensor, grad_activated: torch.Tensor, inner: int) -> torch.Tensor:
    """Gradient of `silu(gate) * up` with respect to `projected = [gate, up]` of shape `[N, 2I]`.

    `grad_activated [N, I]` is used up: fresh memory for a third product would cost more than the product.
    """
    gate, up = projected[:, :inner], projected[:, inner:]
    grad = torch.empty_like(projected)
    grad_gate, grad_up = grad[:, :inner], grad[:, inner:]
    torch.ops.aten.silu(gate, out=grad_up).mul_(grad_activated)
    torch.ops.aten.silu_backward(grad_activated.mul_(up), gate, grad_input=grad_gate)
    return grad


def sorted_experts_forward(
    module: nn.Module, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """Tokens sorted by expert, one matmul per expert hit; see `SortedExperts`. Waits for the device."""
    expert, gate = top_k_index.reshape(-1), top_k_weights.reshape(-1)
    order, hit, counts = group_by_expert(expert, gate, module.num_experts)
    arguments = (hidden_states, gate, module.gate_up_proj, module.down_proj, order, hit, counts)
    dtype = compute_dtype(module, hidden_states)
    return SortedExperts.apply(*arguments, dtype) if torch.is_grad_enabled() else infer_sorted(*arguments, dtype)


def infer_sorted(hidden_states, gate, gate_up_proj, down_proj, order, hit, counts, dtype) -> torch.Tensor:
    """`SortedExperts.forward` when nothing has to be kept: while decoding a token, each call counts."""
    rows = hidden_states.to(dtype).index_select(0, order)
    inner = down_proj.shape[2]
    outputs = torch.empty_like(rows)
    for expert, source, target in zip(hit, rows.split(counts), outputs.split(counts), strict=True):
        projected = F.linear(source, gate_up_proj[expert].to(dtype))
        activated = F.silu(projected[:, :inner]).mul_(projected[:, inner:])
        torch.mm(activated, down_proj[expert].to(dtype).t(), out=target)
    outputs.mul_(gate.index_select(0, order).to(dtype).unsqueeze(1))
    return rows.new_zeros(hidden_states.shape).index_copy_(0, order, outputs)


def capacity_experts_forward(
    module: nn.Module, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """A buffer of C rows per expert and batched matmuls; no shape depends on the data.

    In training C is the capacity of all groups together, which the router has already enforced. Without a capacity, or
    with the experts of several ranks' tokens (expert parallelism), C must hold the worst case, all tokens in one
    expert, unless the counts may be read from the device (outside a compiled graph).
    """
    num_tokens, num_experts = hidden_states.shape[0], module.num_experts
    expert, gate = top_k_index.reshape(-1), top_k_weights.reshape(-1)
    computed = (gate != 0) & (expert < num_experts)
    expert = expert.clamp(max=num_experts - 1)
    assignment = assignment_matrix(expert, num_experts, computed)
    position = position_in_expert(assignment, expert)
    if has_capacity(module):
        config = module.config
        capacity = most_kept(num_tokens, num_experts, config.capacity_factor, config.capacity_group_tokens)
    elif torch.compiler.is_compiling():
        capacity = num_tokens
    else:
        capacity = int(assignment.sum(1).max())
    dtype = compute_dtype(module, hidden_states)
    # Tokens that are not computed share one extra row behind the buffer; what stands there is thrown away.
    slot = torch.where(computed, expert * capacity + position, num_experts * capacity)
    buffer = hidden_states.new_zeros(num_experts * capacity + 1, hidden_states.shape[1], dtype=dtype)
    buffer = buffer.index_copy(0, slot, hidden_states.to(dtype))[:-1].view(num_experts, capacity, -1)
    gate_and_up = buffer @ module.gate_up_proj.to(dtype).transpose(1, 2)
    outputs = module._apply_gate(gate_and_up) @ module.down_proj.to(dtype).transpose(1, 2)
    outputs = F.pad(outputs.flatten(0, 1), (0, 0, 0, 1))
    return outputs.index_select(0, slot) * gate.to(dtype).unsqueeze(1)


def grouped_experts_forward(
    module: nn.Module, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """transformers' grouped matmul in our precision (it does not know autocast), for any inner width.

    The kernels want rows of a multiple of 16 bytes, so an odd inner width is padded with zeros, which change nothing.
    """
    padding = -module.intermediate_dim % (16 // module.down_proj.element_size())
    weights = module if padding == 0 else padded_experts(module, padding)
    hidden_states = hidden_states.to(compute_dtype(module, hidden_states))
    return ALL_EXPERTS_FUNCTIONS["grouped_mm"](weights, hidden_states, top_k_index, top_k_weights)


def padded_experts(module: nn.Module, padding: int) -> SimpleNamespace:
    """What the experts interface reads of `module`, with `padding` zero columns added to the inner width."""
    gate_up = module.gate_up_proj.unflatten(1, (2, module.intermediate_dim))
    attributes = ("num_experts", "has_gate", "has_bias", "has_post_expert_norm", "is_transposed", "is_concatenated")
    return SimpleNamespace(
        gate_up_proj=F.pad(gate_up, (0, 0, 0, padding)).flatten(1, 2),
        down_proj=F.pad(module.down_proj, (0, padding)),
        _apply_gate=module._apply_gate,
        _is_expert_parallel=is_expert_parallel(module),
        **{name: getattr(module, name) for name in attributes},
    )


def automatic_experts_forward(
    module: nn.Module, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """Choose the implementation for this call.

    Eagerly on CPU: "sorted". Training with a capacity elsewhere or under torch.compile: "capacity". What remains is
    dropless: "grouped_mm" (compiled too: no shape depends on the data), and "batched_mm" for a handful of tokens on an
    accelerator, where gathering the experts that are hit is cheaper than a grouped launch.
    """
    arguments = (module, hidden_states, top_k_index, top_k_weights)
    compiling = torch.compiler.is_compiling()
    if hidden_states.device.type == "cpu" and not compiling:
        return sorted_experts_forward(*arguments)
    if has_capacity(module):
        return capacity_experts_forward(*arguments)
    few = hidden_states.shape[0] <= FEW_TOKENS and not compiling
    hidden_states = hidden_states.to(compute_dtype(module, hidden_states))
    name = "batched_mm" if few and hidden_states.device.type != "cpu" else "grouped_mm"
    return SWITCH_EXPERTS[name](module, hidden_states, top_k_index, top_k_weights)


FEW_TOKENS = 16
SWITCH_EXPERTS["auto"] = automatic_experts_forward
SWITCH_EXPERTS["sorted"] = sorted_experts_forward
SWITCH_EXPERTS["capacity"] = capacity_experts_forward
SWITCH_EXPERTS["grouped_mm"] = grouped_experts_forward
