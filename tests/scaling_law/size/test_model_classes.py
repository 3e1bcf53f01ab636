"""Parameters and FLOPs of `Architecture` against the classes of transformers, built on the meta device."""

import dataclasses

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM

from benchmarks.every_class import section
from modeling_switch_moe import SwitchMoeConfig
from scaling_law.size.model_configs import CLASS_DEFAULTS, FAMILIES, Model, read_model
from tests.conftest import sweep
from training.configuration.class_counts import forward_flops, on_meta, read_class, training_flops
from training.configuration.model_classes import ModelClassArguments, model_types

BASE = {"hidden_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 96, "pad_token_id": 0}
WIDE_HEADS = BASE | {"num_key_value_heads": 2, "head_dim": 20, "intermediate_size": 56}
LATENT = {
    "num_key_value_heads": 4,
    "head_dim": 8,
    "kv_lora_rank": 12,
    "q_lora_rank": 20,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 6,
    "v_head_dim": 10,
}
MIXTURE = {"num_experts_per_tok": 3, "moe_intermediate_size": 24}
SHARED = MIXTURE | {
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
INDEXER = {"index_n_heads": 2, "index_head_dim": 16}
SHAPES = [
    *(("llama", own) for own in ({}, {"attention_bias": True, "mlp_bias": True}, {"num_key_value_heads": None})),
    ("mistral", {}),
    ("smollm3", {"attention_bias": True}),
    ("qwen2", {}),
    *(("qwen3", own) for own in ({}, {"attention_bias": True})),
    *((kind, {"attention_bias": bias}) for kind in ("olmo2", "olmo3") for bias in (False, True)),
    ("phi3", {"head_dim": 12}),
    ("phi3", {"head_dim": 12, "num_key_value_heads": None}),
    *(("gpt_neox", {"head_dim": 12, "num_key_value_heads": 4, "attention_bias": bias}) for bias in (True, False)),
    *(("glm4", {"attention_bias": bias}) for bias in (True, False)),
    *((kind, {"attention_bias": bias}) for kind in ("gemma2", "gemma3_text") for bias in (False, True)),
    *(("mixtral", {"num_local_experts": e, "num_experts_per_tok": 2}) for e in (2, 8)),
    *(("olmoe", {"head_dim": 12, "num_experts": 8, "attention_bias": bias} | MIXTURE) for bias in (False, True)),
    *(
        ("qwen2_moe", {"num_experts": 8, "shared_expert_intermediate_size": 40} | MIXTURE | own)
        for own in ({}, {"qkv_bias": False, "decoder_sparse_step": 2}, {"mlp_only_layers": [0, 3]})
    ),
    *(("qwen3_moe", {"num_experts": 8} | MIXTURE | own) for own in ({}, {"mlp_only_layers": [1]})),
    *(("deepseek_v2", SHARED | LATENT | own) for own in ({}, {"q_lora_rank": None, "topk_method": "greedy"})),
    *(("deepseek_v3", SHARED | LATENT | own) for own in ({}, {"q_lora_rank": None}, {"attention_bias": True})),
    *((kind, SHARED | LATENT | INDEXER) for kind in ("deepseek_v32", "glm_moe_dsa")),
    ("glm_moe_dsa", SHARED | LATENT | INDEXER | {"indexer_types": ["full", "shared"] * 2}),
    *(("glm4_moe", SHARED | {"attention_bias": on, "use_qk_norm": on}) for on in (False, True)),
    *(("dots1", SHARED | {"attention_bias": bias}) for bias in (False, True)),
    *(
        ("granitemoe", {"num_local_experts": 8, "num_experts_per_tok": 2, "attention_bias": bias})
        for bias in (False, True)
    ),
    ("minimax_m2", {"num_local_experts": 8, "num_experts_per_tok": 3}),
    *(
        ("llama4_text", {"num_local_experts": 8, "intermediate_size_mlp": 80, "interleave_moe_layer_step": step})
        for step in (1, 2)
    ),
    *(
        ("gpt_oss", {"num_local_experts": 8, "num_experts_per_tok": 2, "attention_bias": bias})
        for bias in (True, False)
    ),
]
NOT_IN_TRANSFORMERS = {"deepseek", "kimi_k2", "bailing_moe", "switch_moe"}
# Types of larger models, whose text models have no head of their own.
TEXT = {"qwen3_vl_text", "qwen3_vl_moe_text", "qwen2_vl_text", "qwen2_5_vl_text", "qwen2_vl", "qwen2_5_vl"}


def built(config, **options):
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, **options)


# Each type once, with tied embeddings and without in turn.
TIED = [(kind, own, tied) for kind, own in SHAPES for tied in (False, True)]
OFTEN = [next(case for case in TIED if case[::2] == (kind, i % 2)) for i, kind in enumerate(dict(SHAPES))]


@pytest.mark.parametrize(
    ("kind", "own", "tied"), sweep(TIED, OFTEN), ids=lambda value: "" if isinstance(value, dict) else value
)
def test_parameters_are_those_of_the_class(kind, own, tied):
    config = AutoConfig.for_model(kind, **(WIDE_HEADS | own | {"tie_word_embeddings": tied}))
    model, read = built(config), read_model(config)
    assert read.architecture.tied_embeddings == tied
    assert read.parameters == sum(p.numel() for p in model.parameters())
    by_class, left_out = read_class(config.to_dict())
    assert by_class == read.architecture
    assert left_out == read.left_out
    assert read.active_parameters == sum(p.numel() for p in model.parameters()) - idle(model, read.architecture)


def idle(model, a):
    """Of every module of experts all but k of E equal parts; Llama 4's is not marked as one."""
    parts = [part for part in model.modules() if {"_is_expert_parallel", "num_experts"} & {*dir(part)}]
    stacked = [part for part in parts if any(p.ndim == 3 for p in part.parameters(recurse=False))]
    size = sum(p.numel() for part in stacked for p in part.parameters())
    return size * (a.experts - a.experts_per_token) // a.experts


@pytest.mark.slow
def test_every_type_that_is_counted_has_the_parameters_of_its_class():
    """All and active ones, at tiny sizes; what is refused says why in docs/tables/every_class.csv."""
    counted = 0
    for kind in model_types():
        try:
            config = ModelClassArguments.model_construct(**section(kind)).config(96, 128, 0)
            a, left_out = read_class(config.to_dict())
        except Exception:  # every class has errors of its own
            continue
        model, read, counted = on_meta(config), Model(kind, kind, a, left_out), counted + 1
        assert read.parameters == sum(p.numel() for p in model.parameters()), kind
        assert read.active_parameters == read.parameters - idle(model, a) - a.lookup_parameters, kind
    assert counted >= 139  # of 189 in transformers 5.23


def test_every_family_of_transformers_is_built():
    assert {kind for kind, _ in SHAPES} == set(FAMILIES) - NOT_IN_TRANSFORMERS - TEXT


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", sorted(TEXT))
def test_the_text_model_of_a_larger_one_is_counted_with_its_head(kind, tied):
    """By the table and by the class, which agree; older files have all fields side by side."""
    heads = {"hidden_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = BASE | heads | {"model_type": kind, "intermediate_size": 96, "tie_word_embeddings": tied}
    if "moe" in kind:
        config |= {"num_experts": 8, "head_dim": 128} | MIXTURE
    read, (by_class, left_out) = read_model(config), read_class(config)
    assert (read.architecture, read.left_out) == (by_class, left_out)
    assert read.architecture.embedding_parameters == 512 * 96 * (1 if tied else 2)


@pytest.mark.parametrize("kind", [kind for kind in CLASS_DEFAULTS if kind not in TEXT])
def test_defaults_of_a_class_are_those_of_its_configuration(kind):
    fields = {field.name: field.default for field in dataclasses.fields(CONFIG_MAPPING[kind])}
    assert CLASS_DEFAULTS[kind] == {name: fields[name] for name in CLASS_DEFAULTS[kind]}
    if "num_experts_per_tok" not in fields or fields["num_experts_per_tok"]:
        assert read_model({"model_type": kind}).architecture == read_model(CONFIG_MAPPING[kind]()).architecture


@pytest.mark.parametrize("options", [{}, {"final_norm": True, "norm_type": "rms_norm"}, {"tie_word_embeddings": True}])
@pytest.mark.parametrize("experts", [1, 8])
def test_parameters_of_our_model(experts, options):
    config = SwitchMoeConfig(
        hidden_size=64, num_hidden_layers=3, num_attention_heads=2, num_experts=experts, **options
    )
    read = read_model(config)
    assert read.parameters == sum(p.numel() for p in built(config).parameters())
    embeddings = (1 if config.tie_word_embeddings else 2) * 64 * 50257
    assert read.architecture.n_total == embeddings + (4 + 9 * experts) * 3 * 64**2
    assert read.architecture.n_active == embeddings + 13 * 3 * 64**2


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        ("llama", {}),
        ("qwen3", {}),
        ("mixtral", {"num_local_experts": 8, "num_experts_per_tok": 2}),
        ("qwen3_moe", {"num_experts": 8, "mlp_only_layers": [1]} | MIXTURE),
        ("deepseek_v3", SHARED | LATENT),
    ],
)
def test_flops_of_a_forward_pass_are_those_that_torch_counts(kind, own):
    """The whole square of attention, as `forward_flops` says; a mixture's routing needs values, so on the CPU."""
    config = AutoConfig.for_model(kind, **(WIDE_HEADS | own))
    kernels = {"attn_implementation": "eager"} | ({"experts_implementation": "eager"} if len(own) else {})
    model = AutoModelForCausalLM.from_config(config, **kernels).eval()
    batch, context = 2, 32
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(batch, context, dtype=torch.long), use_cache=False)
    expected = read_model(config).architecture.inference_flops(batch * context, context)
    rotary = counter.get_total_flops() - expected
    assert 0 <= rotary <= 2e-3 * expected  # the angles of rotary positions are a product, too


@pytest.mark.parametrize("experts", [1, 8])
def test_the_formula_of_our_model_is_what_torch_counts(experts):
    config = SwitchMoeConfig(
        hidden_size=64, num_hidden_layers=3, num_attention_heads=2, num_experts=experts, capacity_factor=None
    )
    formula = read_model(config).architecture.training_flops(1, 512)
    assert formula == 3 * forward_flops(on_meta(config), 512)[0]


@pytest.mark.parametrize(
    "kind",
    sweep(["gpt_oss", "qwen3_next", "rwkv", "mamba", "deepseek_v32", "llama4_text"], ["gpt_oss", "qwen3_next"]),
)
def test_flops_of_any_length_are_those_of_two_short_ones(kind):
    """Of windows, recurrences token by token and in chunks, and of DeepSeek's indexer."""
    config = ModelClassArguments.model_validate(section(kind)).config(96, 128, 0)
    assert training_flops(config, 128) == pytest.approx(3 * forward_flops(on_meta(config), 128)[0], rel=1e-12)


QWEN3_30B = {
    "num_hidden_layers": 48,
    "hidden_size": 2048,
    "num_key_value_heads": 4,
    "vocab_size": 151936,
    "head_dim": 128,
    "num_experts": 128,
    "moe_intermediate_size": 768,
}


def test_flops_per_token_of_qwen3_30b_a3b():
    """torchtitan (#4819) says 37.579 G at 8,192 tokens."""
    a = read_model(AutoConfig.for_model("qwen3_moe", **QWEN3_30B)).architecture
    assert (f"{a.n_active / 1e9:.2f}", f"{a.n_total / 1e9:.2f}") == ("3.34", "30.52")
    assert f"{a.training_flops(1, 8192) / 1e9:.3f}" == "37.577"


@pytest.mark.parametrize("blocks", sweep([48, 4], [4]))
def test_the_formula_has_all_products_of_qwen3_moe_but_the_angles_of_rotary_positions(blocks):
    """The class's own products of all blocks are docs/planning.md's 37.577 G."""
    config = AutoConfig.for_model("qwen3_moe", **QWEN3_30B | {"num_hidden_layers": blocks})
    a, _ = read_class(config.to_dict())
    assert a == read_model(config).architecture
    counted = training_flops(config, 8192)
    assert counted == 3 * forward_flops(on_meta(config), 8192)[0]
    assert blocks < 48 or f"{counted / 1e9:.3f}" == "37.577"
    assert a.training_flops(1, 8192) == pytest.approx(counted, rel=1e-6)
