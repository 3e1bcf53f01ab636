"""A model in the loop leaves other models of its process alone, and one training the next."""

import copy
from functools import partial
from unittest.mock import Mock, patch

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from tests.model_classes import CLASSES, TOP_K
from tests.training.run.test_causal_model import batch, config_of
from tests.training.run.test_passes import session_of
from training.run.model import build_model
from training.run.step import train_step


def plain_results(model):
    """Loss and gradients of a model of transformers under autocast, where its own kernels multiply in fp32."""
    inputs, _ = batch()
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(input_ids=inputs, labels=inputs, use_cache=False).loss
    loss.backward()
    return loss, [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("section", CLASSES.values(), ids=CLASSES)
def test_models_of_a_class_are_as_without_ours_before_and_after(section):
    config = config_of(section)
    registered = dict(ALL_EXPERTS_FUNCTIONS)

    def plain():
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(copy.deepcopy(config), dtype=torch.float32).train()

    before = plain()
    expected = plain_results(before)
    config_before = config.to_dict()
    ours = build_model(config, seed=0).train()
    ours.set_experts_implementation("eager")
    ours(*batch()).lm_loss.backward()
    after = plain()
    assert dict(ALL_EXPERTS_FUNCTIONS) == registered
    assert config.to_dict() == config_before
    for model in (before, after):
        torch.testing.assert_close(plain_results(model), expected, rtol=0, atol=0)
        assert type(model.get_output_embeddings()) is torch.nn.Linear
        assert type(model).forward is not type(ours).forward
        assert isinstance(ours, type(model))
        assert not any("forward" in vars(module) for module in model.modules())
        assert not any(module._forward_hooks for module in model.modules())


def test_a_registered_kernel_computes_the_experts_of_a_class_in_the_loop():
    model, (inputs, targets) = build_model(config_of(TOP_K), seed=0).train(), batch()
    kernel = Mock(wraps=ALL_EXPERTS_FUNCTIONS["grouped_mm"])
    with patch.dict(ALL_EXPERTS_FUNCTIONS._global_mapping, {"grouped_mm": kernel}):
        model(inputs, targets)
    assert kernel.call_count == model.config.num_hidden_layers


def test_a_copy_of_a_model_computes_with_its_own_weights():
    model, (inputs, targets) = build_model(config_of(TOP_K), seed=0).train(), batch()
    other = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "experts" in name:
                parameter.zero_()
    assert other(inputs, targets).lm_loss != model(inputs, targets).lm_loss


def test_two_trainings_take_turns_in_one_process():
    alone = partial(session_of, CLASSES["qwen3_moe"], compiled=False)
    session = alone()
    expected = [train_step(session, step, 1e-3).loss for step in range(2)]
    session, other = alone(), session_of(CLASSES["deepseek_v3"], compiled=False)
    losses = []
    for step in range(2):
        losses.append(train_step(session, step, 1e-3).loss)
        train_step(other, step, 1e-3)
    assert losses == expected
