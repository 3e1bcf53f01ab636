"""Weights are cast once where a step keeps their casts, and nothing else changes."""

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from modeling_switch_moe.precision import cast, keep_casts


class Casts(TorchDispatchMode):
    """Counts casts of fp32 to bf16 by shape, and keeps the precisions of the operands of grouped matmuls."""

    def __init__(self):
        super().__init__()
        self.counts, self.precisions = Counter(), []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function is torch.ops.aten._grouped_mm.default:
            self.precisions += [args[0].dtype, args[1].dtype]
        elif function is torch.ops.aten._to_copy.default and args[0].dtype == torch.float32:
            self.counts[tuple(result.shape)] += result.dtype == torch.bfloat16
        return result


def three_passes(model, tokens, keep):
    """Gradients after three micro-batches in bf16, and how often each shape of weight was cast."""
    model.zero_grad()
    with Casts() as casts, keep_casts("cpu") if keep else torch.enable_grad():
        for row in tokens:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                output = model(row[None], shift_labels=row[None], use_cache=False, output_logits=False)
            output.loss.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}, casts.counts


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("implementation", ["capacity", "grouped_mm"])
def test_weights_are_cast_once(make_model, tokens, implementation, checkpointing):
    model = make_model(implementation=implementation).train()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    every, before = three_passes(model, tokens, keep=False)
    once, after = three_passes(model, tokens, keep=True)
    for name, gradient in every.items():
        assert torch.equal(once[name], gradient), name
    layers = model.config.num_hidden_layers
    for shape, count in {(4, 192, 32): 1, (4, 32, 96): 1, (32, 32): 4}.items():  # gate and up, down, q k v o
        assert before[shape] == 3 * layers * count * (2 if checkpointing else 1)
        assert after[shape] == layers * count
    assert after[61, 32] == 1  # the head


def test_a_cast_without_gradients_does_not_stand_in_for_one_with(make_model):
    weight = make_model().lm_head.weight
    with keep_casts("cpu"), torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.no_grad():
            assert not cast(weight).requires_grad
        assert cast(weight).requires_grad
        assert cast(weight) is cast(weight)
    assert cast(weight) is weight
