"""Experts of any class by grouped matmuls, beside an obvious loop over experts and their tokens."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from modeling_switch_moe.experts import autocast_grouped_mm

TOKENS = 40
# Hidden and inner width, experts, and experts of a token; the kernels pad widths that are no multiple of 8.
SIZES = [(32, 48, 8, 1), (32, 48, 8, 2), (16, 24, 128, 8), (30, 21, 5, 2)]


class Experts(nn.Module):
    """As transformers stores experts: gate and up concatenated or interleaved, matrices as they are or transposed."""

    def __init__(self, width, inner, experts, *, has_gate=True, has_bias=False, is_transposed=False):
        super().__init__()
        self.has_gate, self.has_bias, self.is_transposed = has_gate, has_bias, is_transposed
        self.name = "gate_up_proj" if has_gate else "up_proj"
        sizes = {self.name: (width, inner * (1 + has_gate)), "down_proj": (inner, width)}
        generator = torch.Generator().manual_seed(0)
        for name, (n_in, n_out) in sizes.items():
            shape = (experts, n_in, n_out) if is_transposed else (experts, n_out, n_in)
            setattr(self, name, nn.Parameter(torch.randn(shape, generator=generator) / n_in**0.5))
            if has_bias:
                setattr(self, f"{name}_bias", nn.Parameter(torch.randn(experts, n_out, generator=generator)))

    def act_fn(self, rows):
        return nn.functional.silu(rows)

    def _apply_gate(self, rows):
        # Experts that have biases (GPT-OSS) also interleave gate and up.
        gate, up = (rows[..., ::2], rows[..., 1::2]) if self.has_bias else rows.chunk(2, dim=-1)
        return self.act_fn(gate) * up

    def one(self, number, rows):
        """Compute one expert."""
        for name in (self.name, "down_proj"):
            weight = getattr(self, name)[number]
            rows = rows @ (weight if self.is_transposed else weight.T)
            if self.has_bias:
                rows = rows + getattr(self, f"{name}_bias")[number]
            if name == self.name:
                rows = self._apply_gate(rows) if self.has_gate else self.act_fn(rows)
        return rows


def loop(experts, states, index, weights):
    """Each token through each of its experts."""
    outputs = []
    for token, row in enumerate(states):
        terms = [weights[token, j] * experts.one(index[token, j], row) for j in range(index.shape[1])]
        outputs.append(sum(terms))
    return torch.stack(outputs)


def drawn(width, experts, per_token):
    """States, choices and their weights; the last expert has no token."""
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(TOKENS, width, generator=generator)
    index = torch.rand(TOKENS, experts - 1, generator=generator).argsort(1)[:, :per_token]
    return states, index, torch.rand(TOKENS, per_token, generator=generator)


def gradients_of(compute, experts, states, index, weights, precision="fp32"):
    """The output, and gradients of a fixed sum of it: of states, weights and parameters."""
    states, weights = (tensor.clone().requires_grad_() for tensor in (states, weights))
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        output = compute(experts, states, index, weights)
    assert output.dtype == torch.float32
    upstream = torch.arange(output.numel()).sin().view_as(output)
    inputs = [states, weights, *experts.parameters()]
    return [output.detach(), *torch.autograd.grad(output, inputs, upstream)]


def deviation(results, expected):
    """The largest norm of a difference, over the norm of what is expected."""
    return max((tensor - other).norm() / other.norm() for tensor, other in zip(results, expected, strict=True))


def case(size, form):
    """Experts of a size and form, and what they are called with."""
    width, inner, experts, per_token = size
    return Experts(width, inner, experts, **form), drawn(width, experts, per_token)


FORMS = {
    "ours": {},
    "without a gate": {"has_gate": False},
    "transposed": {"is_transposed": True},
    "biases, interleaved": {"has_bias": True},
    "as GPT-OSS": {"has_bias": True, "is_transposed": True},
}


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-6), ("bf16", 2e-2)])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_outputs_and_gradients_are_those_of_a_loop(size, form, precision, tolerance):
    experts, inputs = case(size, form)
    expected = gradients_of(loop, experts, *inputs)
    results = gradients_of(autocast_grouped_mm, experts, *inputs, precision)
    assert {tensor.dtype for tensor in results} == {torch.float32}
    assert deviation(results, expected) <= tolerance
    # Of an expert without a token.
    assert not any(gradient[-1].any() for gradient in results[3:])


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_choices_of_experts_of_other_processes_add_nothing(form):
    """These have the number E and the weight 0; what the kernel leaves in their rows does not matter."""
    experts, (states, index, weights) = case(SIZES[1], form)
    experts._is_expert_parallel = True
    elsewhere = torch.rand(index.shape, generator=torch.Generator().manual_seed(2)) < 0.5
    weights = weights.masked_fill(elsewhere, 0.0)
    expected = gradients_of(loop, experts, states, index, weights)

    class Leftovers(TorchDispatchMode):
        """Puts nan into the rows of products that belong to no expert."""

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            if function is torch.ops.aten._grouped_mm.default and result.dim() == 2:
                result[int(args[2][-1]) :] = torch.nan
            return result

    with Leftovers():
        results = gradients_of(
            autocast_grouped_mm, experts, states, index.masked_fill(elsewhere, SIZES[1][2]), weights
        )
    expected[2] = expected[2].masked_fill(elsewhere, 0.0)
    assert deviation(results, expected) <= 1e-6


def test_a_norm_after_each_expert_is_applied():
    experts, inputs = case(SIZES[1], {})
    experts.has_post_expert_norm, experts.post_expert_norm = True, lambda rows: 2 * rows
    doubled = autocast_grouped_mm(experts, *inputs)
    torch.testing.assert_close(doubled, 2 * loop(experts, *inputs))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_gradients_have_the_layout_of_the_weights(form):
    """A transposed gradient could only be added to others at a fraction of the memory's bandwidth."""
    experts, inputs = case(SIZES[1], form)
    _, _, _, *gradients = gradients_of(autocast_grouped_mm, experts, *inputs, "bf16")
    assert [gradient.stride() for gradient in gradients] == [weight.stride() for weight in experts.parameters()]


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_graph_has_no_break_and_the_same_numbers(form):
    experts, inputs = case(SIZES[2], form)
    compiled = torch.compile(autocast_grouped_mm, backend="aot_eager", fullgraph=True, dynamic=False)
    expected = gradients_of(autocast_grouped_mm, experts, *inputs, "bf16")
    results = gradients_of(compiled, experts, *inputs, "bf16")
    torch.testing.assert_close(results, expected, rtol=1e-5, atol=1e-5)
    torch._dynamo.reset()
