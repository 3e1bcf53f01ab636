"""Configuration: clear errors, parameter counts (the paper's listing, the instantiated model), initialisation."""

import copy
import json
import math
from pathlib import Path

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError

from modeling_switch_moe import SwitchMoeConfig, SwitchMoeForCausalLM
from scaling_law.size import ROWS

# As the paper prints them: heads, blocks, d_model, active parameters, E, total parameters.
CASES = sorted({(r.n_heads, r.n_blocks, r.d_model, r.n_active, r.experts, r.n_total) for r in ROWS})


def as_printed(count):
    return f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.0f}M"


@pytest.mark.parametrize(("heads", "blocks", "width", "active", "experts", "total"), CASES)
def test_counts_of_the_papers_listing(heads, blocks, width, active, experts, total):
    config = SwitchMoeConfig(
        hidden_size=width, num_hidden_layers=blocks, num_attention_heads=heads, num_experts=experts
    )
    assert as_printed(config.num_parameters()) == total
    assert as_printed(config.num_parameters(active=True)) == active
    assert config.num_parameters() == 2 * width * 50257 + (4 + 9 * experts) * blocks * width**2
    with torch.device("meta"):
        model = SwitchMoeForCausalLM(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == config.num_parameters(exact=True)
    counted = sum(p.numel() for name, p in model.named_parameters() if "norm" not in name and "router" not in name)
    assert counted == config.num_parameters()


@pytest.mark.parametrize(
    "changes",
    [
        {"norm_type": "rms_norm"},
        {"final_norm": True},
        {"tie_word_embeddings": True},
        {"num_experts": 1, "final_norm": True, "norm_type": "rms_norm", "intermediate_size": 50},
    ],
)
def test_exact_count_of_other_configurations(make_config, changes):
    config = make_config(**changes)
    model = SwitchMoeForCausalLM(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == config.num_parameters(exact=True)
    experts = config.num_experts
    per_expert = 3 * config.hidden_size * config.intermediate_size * config.num_hidden_layers
    for exact in (True, False):
        inactive = config.num_parameters(exact=exact) - config.num_parameters(active=True, exact=exact)
        assert inactive == (experts - 1) * per_expert


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_experts": 0}, "num_experts=0 must be an integer of at least 1"),
        ({"num_experts": True}, "num_experts.*expected int"),
        ({"hidden_size": 100, "num_attention_heads": 3}, "num_attention_heads=3 must divide hidden_size=100"),
        ({"hidden_size": 9, "num_attention_heads": 3}, "=3 must be even"),
        ({"hidden_size": 0}, "hidden_size=0"),
        ({"capacity_group_tokens": 0}, "capacity_group_tokens=0 must be an integer of at least 1, or None"),
        ({"capacity_factor": math.nan}, "capacity_factor=nan must be"),
        ({"attention_precision": "float8"}, "attention_precision.*'float32', 'compute'"),
        ({"norm_type": "batch_norm"}, "norm_type.*'layer_norm', 'rms_norm'"),
        ({"initialization": "xavier"}, "initialization.*'paper', 'normal'"),
        ({"router_z_loss_coef": -0.1}, "router_z_loss_coef=-0.1"),
        ({"vocab_size": 50256, "eos_token_id": 50256}, "eos_token_id=50256 must lie in the vocabulary, 0 to 50255"),
        ({"eos_token_id": [1, 99999]}, "eos_token_id=99999"),
        ({"attention_dropout": 1.0}, "attention_dropout=1.0"),
        ({"num_expert": 4}, "did you mean 'num_experts'"),
        ({"num_experts_per_tok": 2}, "num_experts_per_tok must be 1"),
    ],
)
def test_bad_values_and_names_are_refused(changes, message):
    with pytest.raises((StrictDataclassError, ValueError), match=message):
        SwitchMoeConfig(**changes)


def test_defaults_are_the_papers_runs():
    config = SwitchMoeConfig(num_experts=8)
    assert config.intermediate_size == 3 * config.hidden_size
    assert config.rope_parameters == {"rope_theta": 10000.0, "rope_type": "default"}
    assert (config.capacity_factor, config.router_aux_loss_coef, config.router_z_loss_coef) == (1.0, 0.01, 0.001)
    assert (config.norm_type, config.final_norm, config.tie_word_embeddings) == ("layer_norm", False, False)


def test_paper_initialisation(make_config):
    """Moments of a truncated normal of std sqrt(0.1 / fan_in) cut at +-0.2; fan_in counts all experts for `down`."""
    config = make_config(hidden_size=128, vocab_size=4000, num_experts=8)
    weights = dict(SwitchMoeForCausalLM(config).named_parameters())
    block = "model.layers.1."
    expected = {
        "model.embed_tokens.weight": 0.1124,  # std 0.316 cut at 0.63 sigma
        block + "self_attn.q_proj.weight": math.sqrt(0.1 / 128),
        block + "self_attn.o_proj.weight": math.sqrt(0.1 / 128),
        block + "mlp.router.weight": math.sqrt(0.1 / 128),
        block + "mlp.experts.gate_up_proj": math.sqrt(0.1 / 128),
        block + "mlp.experts.down_proj": math.sqrt(0.1 / (8 * 3 * 128)),
        "lm_head.weight": math.sqrt(0.1 / 128),
    }
    for name, std in expected.items():
        weight = weights[name]
        tolerance = 4 / math.sqrt(weight.numel())
        assert weight.std().item() == pytest.approx(std, rel=tolerance), name
        assert abs(weight.mean().item()) < 4 * std / math.sqrt(weight.numel()), name
        assert weight.abs().max() <= 0.2, name
    assert weights["model.embed_tokens.weight"].abs().max() > 0.199
    assert (weights[block + "input_layernorm.weight"] == 1).all()
    assert (weights[block + "input_layernorm.bias"] == 0).all()
    dense = dict(SwitchMoeForCausalLM(make_config(hidden_size=128, num_experts=1)).named_parameters())
    std = dense[block + "mlp.down_proj.weight"].std().item()
    assert std == pytest.approx(math.sqrt(0.1 / 384), rel=0.03)


def test_normal_initialisation(make_config):
    model = SwitchMoeForCausalLM(make_config(hidden_size=128, initialization="normal", initializer_range=0.05))
    for name, weight in model.named_parameters():
        if "norm" not in name:
            assert weight.std().item() == pytest.approx(0.05, rel=0.2), name


ROUTER_FIELDS = {"output_router_logits", "router_aux_loss_coef", "router_z_loss_coef"}


def test_a_dense_model_has_no_fields_of_a_router(make_config, tmp_path):
    """By these fields TRL and others tell that a model has auxiliary losses."""
    dense, switch = make_config(num_experts=1, router_aux_loss_coef=0.1), make_config(router_aux_loss_coef=0.1)
    for config in (dense, copy.deepcopy(dense)):
        assert not any(hasattr(config, name) for name in ROUTER_FIELDS)
    assert all(hasattr(switch, name) for name in ROUTER_FIELDS)
    for config in (dense, switch):
        config.save_pretrained(tmp_path)
        saved = json.loads((tmp_path / "config.json").read_text())
        assert saved.keys() & ROUTER_FIELDS == (ROUTER_FIELDS if config is switch else set())
        assert SwitchMoeConfig.from_pretrained(tmp_path).to_dict() == config.to_dict()
    with pytest.raises(AttributeError, match="'SwitchMoeConfig' object has no attribute 'router_z_loss_coef'"):
        _ = dense.router_z_loss_coef


def test_experts_added_to_a_dense_configuration_have_a_router_with_defaults(make_config):
    config = make_config(num_experts=1)
    config.num_experts = 4
    assert (config.router_aux_loss_coef, config.router_z_loss_coef, config.output_router_logits) == (
        0.01,
        0.001,
        False,
    )


def test_a_dense_configuration_of_an_earlier_version_is_read():
    """It has the router's fields."""
    folder = Path(__file__).parent / "saved" / "dense"
    assert json.loads((folder / "config.json").read_text()).keys() > ROUTER_FIELDS
    assert not hasattr(SwitchMoeConfig.from_pretrained(folder), "output_router_logits")
