"""Small models that all tests of the model share, and a step of their training."""

import pytest
import torch

from modeling_switch_moe import SwitchMoeConfig, SwitchMoeForCausalLM

IMPLEMENTATIONS = ("auto", "capacity", "grouped_mm", "batched_mm", "eager")


def step(model, *inputs, autocast=False, **options):
    """Output and gradients of a forward and backward pass."""
    model.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        output = model(*inputs, **options)
    output.loss.backward()
    return output, {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def make_config():
    def make(**changes):
        fields = {
            "vocab_size": 61,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_experts": 4,
            "max_position_embeddings": 64,
        }
        return SwitchMoeConfig(**(fields | changes))

    return make


@pytest.fixture
def make_model(make_config):
    """A model whose router is sharp enough to leave the experts unevenly loaded, so that tokens are dropped."""

    def make(seed=0, sharpen=8.0, implementation=None, **changes):
        torch.manual_seed(seed)
        model = SwitchMoeForCausalLM(make_config(**changes))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "router" in name:
                    parameter.mul_(sharpen)
                elif "experts" in name or "mlp" in name:
                    parameter.mul_(4.0)  # outputs of the experts as large as the stream, so that errors would show
                elif "layernorm" in name:
                    parameter.add_(0.1 * torch.randn_like(parameter))
        if implementation is not None:
            model.set_experts_implementation(implementation)
        return model

    return make


@pytest.fixture
def tokens():
    return torch.randint(0, 61, (3, 12), generator=torch.Generator().manual_seed(1))
