"""What config.json of released models holds beside plain sizes: exact counts of text models, states, tables, bytes."""

import json

import pytest
import transformers

from benchmarks.every_class import section
from scaling_law import describe, scale_out
from scaling_law.size.config_fields import list_unread, read_precision
from scaling_law.size.model_configs import read_model
from tests.conftest import sweep
from tests.scaling_law.configs import MIXTRAL
from training.configuration.class_counts import on_meta, read_class, training_flops
from training.configuration.model_classes import ModelClassArguments, model_types

# google/gemma-4-E2B
GEMMA_4 = {
    "model_type": "gemma4_text",
    "hidden_size": 1536,
    "num_hidden_layers": 35,
    "intermediate_size": 6144,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "global_head_dim": 512,
    "num_kv_shared_layers": 20,
    "sliding_window": 512,
    "layer_types": [*["sliding_attention"] * 4, "full_attention"] * 7,
    "hidden_size_per_layer_input": 256,
    "vocab_size_per_layer_input": 262144,
    "vocab_size": 262144,
    "tie_word_embeddings": True,
    "use_double_wide_mlp": True,
    "enable_moe_block": False,
    "attention_k_eq_v": False,
    "num_global_key_value_heads": None,
}
# Qwen/Qwen3.5-27B
QWEN_3_5 = {
    "model_type": "qwen3_5",
    "text_config": {
        "model_type": "qwen3_5_text",
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_hidden_layers": 64,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 248320,
        "layer_types": [*["linear_attention"] * 3, "full_attention"] * 16,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_value_head_dim": 128,
        "mtp_num_hidden_layers": 1,
        "mamba_ssm_dtype": "float32",
    },
}
# deepseek-ai/DeepSeek-V3
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "num_nextn_predict_layers": 1,
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
    "tie_word_embeddings": False,
    "ep_size": 1,
    "topk_group": 4,
    "n_group": 8,
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
    "rope_scaling": {"original_max_position_embeddings": 4096},
}
# openai/gpt-oss-120b, whose other sizes are the class's.
GPT_OSS = {
    "model_type": "gpt_oss",
    "quantization_config": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens"],
    },
}
# A Kimi whose code has experts of a latent width, which the class of this type does not know.
LATENT_EXPERTS = {
    "model_type": "kimi_linear",
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_experts": 8,
    "num_experts_per_token": 2,
    "num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 12,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "vocab_size": 96,
    "pad_token_id": 0,
    "linear_attn_config": {
        "full_attn_layers": [4],
        "kda_layers": [1, 2, 3],
        "head_dim": 16,
        "num_heads": 4,
        "short_conv_kernel_size": 4,
    },
    "routed_expert_hidden_size": 48,
    "latent_moe_use_norm": True,
}


def test_per_layer_embeddings_of_few_blocks_are_looked_up():
    """Ten blocks, of which the last five share the keys of others."""
    few = {"num_hidden_layers": 10, "num_kv_shared_layers": 5, "layer_types": GEMMA_4["layer_types"][:10]}
    fields = GEMMA_4 | few
    read = describe(fields, context=2048)
    a = read.architecture
    config = transformers.CONFIG_MAPPING["gemma4_text"].from_dict(fields)
    parameters = sum(p.numel() for p in on_meta(config).parameters())
    table = 262_144 * 10 * 256
    assert (read.model.parameters, a.lookup_parameters) == (parameters, table)
    assert a.n_total - a.n_active == table
    norms = read.model.left_out["norms"]
    assert a.training_flops(1) == 6 * (parameters - table - norms)
    assert a.training_flops(1, 2048) == training_flops(config, 2048)
    assert a.weight_bytes() == 2 * a.n_total
    assert "671M in tables beside the embedding" in str(read)


@pytest.mark.slow
def test_per_layer_embeddings_are_looked_up():
    """Without them and the embedding 1.88B are multiplied; the FLOPs are torch's own count of the class."""
    read = describe(GEMMA_4, context=2048)
    a = read.architecture
    table = 262_144 * 35 * 256
    assert (read.model.parameters, a.lookup_parameters) == (4_628_569_344, table)
    assert a.n_total - a.n_active == table
    with_norms = a.n_active_non_embedding + sum(read.model.left_out.values())
    assert with_norms == 4_628_569_344 - 402_653_184 - 2_348_810_240
    assert a.training_flops(1) == 6 * (4_628_569_344 - table - read.model.left_out["norms"])
    config = transformers.CONFIG_MAPPING["gemma4_text"].from_dict(GEMMA_4)
    assert a.training_flops(1, 2048) == training_flops(config, 2048) == 14_733_803_520
    assert a.weight_bytes() == 2 * a.n_total
    assert a.kv_bytes_per_token() == 6144
    assert "2.35B in tables beside the embedding" in str(read)


def test_every_other_table_is_looked_up():
    shape = {"hidden_size": 64, "vocab_size": 96, "intermediate_size": 96, "num_hidden_layers": 2}
    a = read_model({"model_type": "roc_bert", "num_attention_heads": 4, "is_decoder": True, **shape}).architecture
    # Embeddings of pronunciations, shapes and sentences.
    assert a.lookup_parameters == 910 * 768 + 24858 * 512 + 2 * 64


@pytest.mark.skipif("qwen4_exp_text" not in model_types(), reason="no class of the installed transformers has n-grams")
def test_hashes_of_n_grams_are_looked_up():
    """Sixteen tables of 1,009, 1,013, … 1,097 rows, padded together to a multiple of 96, are 64 / 16 wide."""
    fields = {**section("qwen4_exp_text"), "ngram_vocab_size_base": 1000}
    plain, hashing = (_count_of(fields | changes) for changes in ({}, {"ple_layer_ids": [1]}))
    table = 16_896 * 4
    assert (plain.lookup_parameters, hashing.lookup_parameters) == (0, table)
    assert hashing.n_total - hashing.n_active == plain.n_total - plain.n_active + table


def _count_of(fields):
    return read_class(ModelClassArguments.model_construct(**fields).config(96, 128, 0).to_dict())[0]


@pytest.mark.parametrize(
    ("dtype", "size", "groups"),
    sweep(
        [("float32", 4, 16), ("float32", 4, 2), ("bfloat16", 2, 2), (None, 4, 2)],
        [("float32", 4, 2), ("bfloat16", 2, 2), (None, 4, 2)],
    ),
)
def test_a_recurrent_state_is_kept_in_the_type_that_the_configuration_or_the_class_says(dtype, size, groups):
    """The convolution's state is in the model's; no size of a KV element changes either."""
    # The model has sixteen groups of four blocks, of which three are recurrent; two groups are built sooner.
    text = {**QWEN_3_5["text_config"], "mamba_ssm_dtype": dtype, "num_hidden_layers": 4 * groups}
    text["layer_types"] = text["layer_types"][: 4 * groups]
    if dtype is None:
        text.pop("mamba_ssm_dtype")
    a = read_model({**QWEN_3_5, "text_config": text}).architecture
    state = 3 * groups * (48 * 128 * 128 * size + 10_240 * 4 * 2)
    key = 4_096 * groups
    assert (a.kv_bytes_per_token(), a.kv_bytes_per_sequence()) == (key, state)
    assert a.kv_bytes_per_sequence(bytes_per_element=1) == state
    if groups == 16:
        assert (key, state) == (65_536, 154_927_104)
    assert a.kv_cache_bytes(4 * 1024, context=1024) == 4 * 1024 * key + 4 * state


def test_infinities_are_read_as_python_writes_them(tmp_path):
    """Nemotron-H has them in `time_step_limit`; other files of ours refuse them still."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**MIXTRAL, "time_step_limit": [0.0, float("inf")], "x": float("nan")}))
    assert "Infinity" in path.read_text()
    assert read_model(path).architecture == read_model(MIXTRAL).architecture
    mamba = {"hidden_size": 64, "head_dim": 32, "num_heads": 4, "state_size": 8, "n_groups": 1, "num_hidden_layers": 2}
    config = transformers.CONFIG_MAPPING["mamba2"](**mamba)
    path.write_text(json.dumps({**config.to_dict(), "time_step_limit": [0.0, float("inf")]}))
    assert read_model(path).model_type == "mamba2"


def test_a_long_list_of_modules_is_read(tmp_path):
    path = tmp_path / "config.json"
    ignored = [f"model.layers.{i}.self_attn" for i in range(20_000)]
    path.write_text(json.dumps({**MIXTRAL, "quantization_config": {"quant_method": "modelopt", "ignore": ignored}}))
    assert read_model(path).precision.name == "modelopt"


def test_the_dense_qwen3_vl_is_a_qwen3():
    shape = {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "vocab_size": 151936}
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    text = {"model_type": "qwen3_vl_text", **shape, **heads}
    read = describe({"model_type": "qwen3_vl", "tie_word_embeddings": False, "text_config": text})
    assert read.model.parameters == 8_190_735_360
    assert "Only the language model is counted." in str(read)
    assert read.model.parameters == read_model({**text, "model_type": "qwen3"}).parameters


TINY = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
TINY |= {"intermediate_size": 96, "vocab_size": 96}


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "internvl_chat", "llm_config": {"model_type": "llama", **TINY}},
        {"model_type": "deepseek_vl_v2", "language_config": {"model_type": "llama", **TINY}},
        {"model_type": "mistral3", "text_config": {"model_type": "llama", **TINY}},
        {"model_type": "omni", "thinker_config": {"text_config": {"model_type": "llama", **TINY}}},
        {"model_type": "llama", "vision_config": {"depth": 2}, **TINY},
    ],
)
def test_the_text_model_is_looked_for_in_every_section(config):
    read = read_model(config)
    assert (read.text_only, read.architecture) == (True, read_model({"model_type": "llama", **TINY}).architecture)


def test_a_text_model_without_a_type_is_that_of_the_larger_models_class():
    text = {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 96}
    read = read_model({"model_type": "gemma3", "text_config": text})
    assert (read.model_type, read.architecture.vocab_size) == ("gemma3_text", 262_208)
    fuyu = {"model_type": "paligemma", "text_config": {**TINY, "head_dim": 16}}
    assert read_model(fuyu).architecture.d_model == 64


def test_gemma_3_leans_on_the_defaults_of_its_class():
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    config = {"model_type": "gemma3", "text_config": {**text, "sliding_window": 1024}, "vision_config": {}}
    read = read_model(config)
    assert read.parameters == 3_880_263_168
    assert "num_attention_heads 8, num_key_value_heads 4, vocab_size 262208" in read.notes[1]
    llava = {"model_type": "llava", "text_config": {"model_type": "llama", "vocab_size": 32064}}
    assert read_model(llava).parameters == 6_738_939_904
    pixtral = {"hidden_size": 5120, "head_dim": 128, "vocab_size": 131072, "num_hidden_layers": 40}
    pixtral = {"model_type": "mistral", "intermediate_size": 14336, **pixtral}
    assert read_model({"model_type": "llava", "text_config": pixtral}).parameters == 12_247_782_400


def test_the_checkpoints_precision_and_prediction_modules_are_named():
    read = describe(DEEPSEEK_V3)
    text = str(read)
    assert read.model.parameters == 671_026_404_352
    assert "weights 1.34 TB, " in text
    assert "fp8: --bytes-per-parameter 1 gives 671 GB" in text
    assert "Not counted: modules for multi-token prediction (num_nextn_predict_layers 1)." in text
    assert read.trusted
    assert not read.model.unread
    assert "weights 671 GB, " in str(describe(DEEPSEEK_V3, bytes_per_parameter=1))
    assert read.to_dict()["checkpoint"] == {"name": "fp8", "bytes_per_parameter": 1.0}
    assert read.model.notes[-1] in scale_out(DEEPSEEK_V3, gpus=1024).warnings


EXPERTS_ONLY = {"ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*"]}
GROUP = {"weights": {"num_bits": 4, "group_size": 32, "type": "int"}}


@pytest.mark.parametrize(
    ("config", "name", "size"),
    [
        # 65.3 GB on the Hub.
        (GPT_OSS, "mxfp4", 0.56),
        # moonshotai/Kimi-K2-Thinking has experts in int4.
        (
            {
                "model_type": "deepseek_v3",
                "quantization_config": {
                    "quant_method": "compressed-tensors",
                    "config_groups": {"group_0": GROUP},
                    **EXPERTS_ONLY,
                },
            },
            "int4 (compressed-tensors)",
            0.6,
        ),
        (MIXTRAL | {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}, "int4 (awq)", 0.52),
        (MIXTRAL | {"quantization_config": {"quant_method": "gptq", "bits": 8}}, "int8 (gptq)", 1.01),
        (
            MIXTRAL | {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
            "int4 (bitsandbytes)",
            0.51,
        ),
        (MIXTRAL | {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}, "nvfp4", 0.57),
        (MIXTRAL | {"quantization_config": {"quant_method": "fbgemm_fp8"}}, "fp8", 1.01),
        (MIXTRAL | {"quantization_config": {"quant_method": "quanto"}}, "quanto", None),
        (
            MIXTRAL | {"quantization_config": {"quant_method": "fp8"}, "expert_dtype": "fp4"},
            "fp8 with experts in fp4",
            0.55,
        ),
        (MIXTRAL | {"torch_dtype": "float32"}, "fp32", 4.0),
    ],
)
def test_every_quantization_has_its_bytes(config, name, size):
    precision = read_model(config).precision
    assert (precision.name, precision.bytes_per_parameter) == (name, size)


def test_a_checkpoint_in_half_precision_has_no_word():
    a = read_model(MIXTRAL).architecture
    assert read_precision(MIXTRAL | {"dtype": "bfloat16"}, a) is None
    assert "checkpoint" not in str(describe(MIXTRAL))


def test_fields_that_no_class_reads_make_it_another_model():
    read = describe(LATENT_EXPERTS)
    assert read.model.unread == ("routed_expert_hidden_size=48", "latent_moe_use_norm")
    assert not read.trusted
    warning = read.warnings[0]
    assert warning.startswith("config.json has fields that kimi_linear does not read, routed_expert_hidden_size=48")
    assert warning.endswith("the count is one of another model")
    assert warning in scale_out(LATENT_EXPERTS, gpus=8).warnings
    known = {name: value for name, value in LATENT_EXPERTS.items() if "routed_expert" not in name}
    assert describe(known).trusted
    with pytest.raises(
        ValueError, match=r"does not read, routed_expert_hidden_size=48, .*: it is another model \(.*'situ'"
    ):
        read_model(LATENT_EXPERTS | {"hidden_act": "situ"})


@pytest.mark.parametrize(
    "fields",
    [{"routed_expert_hidden_size": 3584}, {"engram_vocab_size": 10**6}, {"block_configs": [{"n": 1}]}, {"q_rank": 8}],
)
def test_a_table_names_fields_that_it_does_not_read(fields):
    """Sizes, ranks and widths, of which nothing else in the table speaks."""
    read = read_model(MIXTRAL | fields)
    assert [name.partition("=")[0] for name in read.unread] == [*fields]
    harmless = {"max_position_embeddings": 4096, "rope_theta": 1e6, "ep_size": 8, "pretraining_tp": 2}
    harmless |= {"router_aux_loss_coef": 0.1, "no_repeat_ngram_size": 3, "image_token_id": 7, "num_beams": 4}
    harmless |= {"quantization_config": {"group_size": 128}, "sliding_window": None, "hidden_act": "silu"}
    assert not read_model(MIXTRAL | harmless).unread
    assert list_unread(fields, {*fields}, "mixtral") == []


def test_an_unknown_type_says_what_to_type():
    mimo = {"model_type": "mimo", "head_dim": 16, "attention_bias": True, "use_sliding_window": False}
    mimo |= {"sliding_window": 64, "max_window_layers": 2, "num_nextn_predict_layers": 1, **TINY}
    with pytest.raises(ValueError, match="transformers has no causal language model of this type") as error:
        read_model(mimo)
    assert 'write that as "model_type" into a copy of its config.json: qwen2, ' in str(error.value)
    assert read_model(mimo | {"model_type": "qwen2"}).notes == (
        "Not counted: modules for multi-token prediction (num_nextn_predict_layers 1).",
    )
