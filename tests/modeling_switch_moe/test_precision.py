"""Experts are multiplied in autocast's precision, and nothing is cast without it."""

import torch

from modeling_switch_moe.precision import cast


def test_a_weight_is_cast_under_autocast_alone(make_model):
    weight = make_model().lm_head.weight
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert cast(weight).dtype == torch.bfloat16
        assert cast(weight).requires_grad
    assert cast(weight) is weight
