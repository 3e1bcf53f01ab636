"""Experts run by what transformers' registry of kernels holds when they are called."""

from unittest.mock import Mock, patch

import pytest
import torch
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from modeling_switch_moe.experts import SWITCH_EXPERTS

KERNELS = ("grouped_mm", "batched_mm")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_each_implementation_calls_its_registered_kernel_and_no_other(make_model, tokens, dtype):
    """As `test_eager_matches_batched_and_grouped_inference` of transformers."""
    model = make_model().eval().to(dtype)
    mocks = {name: Mock(wraps=ALL_EXPERTS_FUNCTIONS[name]) for name in KERNELS}
    logits = {}
    with patch.dict(ALL_EXPERTS_FUNCTIONS._global_mapping, mocks):
        for name in ("eager", *KERNELS):
            model.set_experts_implementation(name)
            logits[name] = model(tokens).logits
            calls = {kernel for kernel, mock in mocks.items() if mock.called}
            assert calls == {name} - {"eager"}
            for mock in mocks.values():
                mock.reset_mock()
    tolerance = 1e-4 if dtype == torch.float32 else 5e-3
    for name in KERNELS:
        torch.testing.assert_close(
            logits[name], logits["eager"], rtol=tolerance, atol=tolerance * logits["eager"].abs().max()
        )


@pytest.mark.parametrize("name", [*KERNELS, "a_kernel_of_the_user"])
@torch.no_grad()
def test_a_kernel_that_is_put_into_the_registry_is_used_until_it_is_taken_out(make_model, tokens, name):
    """Also with experts in place of its own kernels: the experts of this model then add nothing."""
    model = make_model().eval()
    kernel = Mock(side_effect=lambda module, hidden_states, *_: torch.zeros_like(hidden_states))
    ALL_EXPERTS_FUNCTIONS[name] = kernel
    try:
        model.set_experts_implementation(name)
        without_experts = model(tokens).logits
        assert kernel.call_count == model.config.num_hidden_layers
    finally:
        del ALL_EXPERTS_FUNCTIONS[name]
    model.set_experts_implementation("eager")
    assert not torch.allclose(model(tokens).logits, without_experts)
    assert (name in SWITCH_EXPERTS) == (name in KERNELS)


def test_a_kernel_that_is_registered_for_good_is_allowed_by_name(make_model, tokens):
    with patch.dict(ALL_EXPERTS_FUNCTIONS._global_mapping):
        type(ALL_EXPERTS_FUNCTIONS).register("a_kernel_of_the_user", ALL_EXPERTS_FUNCTIONS["batched_mm"])
        model = make_model(implementation="a_kernel_of_the_user").eval()
        logits = model(tokens).logits
    torch.testing.assert_close(logits, make_model(implementation="eager").eval()(tokens).logits)


def test_our_implementations_are_no_others(make_model):
    assert {"auto", "capacity"}.isdisjoint(ALL_EXPERTS_FUNCTIONS.valid_keys())
    with pytest.raises(ValueError, match=r"'unknown' is not supported; allowed are eager, .*auto"):
        make_model(implementation="unknown")
