"""The section `model` of other classes than ours: what is read, and that what is wrong is said in one line."""

import json
import pickle
import re

import pytest

from tests.model_classes import CLASSES, DENSE, SHARED, TOP_K
from training import ConfigurationError, from_dict, parse_command_line
from training.configuration.model_classes import fields_of, unread_fields

OUT = {"run": {"output_dir": "out"}}
LEFT_OUT = {"capacity_group_tokens": None, "balance": "loss", "bias_update_rate": 0.001}


@pytest.mark.parametrize("section", CLASSES.values(), ids=CLASSES)
def test_a_configuration_is_saved_with_the_fields_that_it_was_given(section, tmp_path):
    arguments = from_dict({"model": section, **OUT})
    assert arguments.model.experts >= 1
    assert arguments.model.balance_loss >= 0  # what is remembered of them is not saved
    assert arguments.to_dict()["model"] == LEFT_OUT | section
    arguments.save(tmp_path / "config.yaml")
    again = parse_command_line(["--config", str(tmp_path / "config.yaml")])
    assert again == arguments == pickle.loads(pickle.dumps(arguments))


def test_flags_are_read_as_yaml_is():
    flags = ["--model.type", "qwen3_moe", "--model.num_experts", "8", "--model.rms_norm_eps=1e-5"]
    flags += ["--model.mlp_only_layers", "0", "1", "--model.tie_word_embeddings", "true", "--run.output_dir", "out"]
    config = parse_command_line(flags).model.config(300)
    assert (config.num_experts, config.rms_norm_eps, config.mlp_only_layers) == (8, 1e-5, [0, 1])
    assert config.tie_word_embeddings is True


IGNORED = [
    ("llama", {"partial_rotary_factor": 0.5}, "model.partial_rotary_factor: transformers' llama does not read it"),
    ("llama", {"pretraining_tp": 2}, "model.pretraining_tp: transformers' llama does not read it; leave it out"),
    ("gpt_oss", {"hidden_act": "gelu"}, "model.hidden_act: transformers' gpt_oss does not read it"),
    ("deepseek_v2", {"norm_topk_prob": True}, "model.norm_topk_prob: transformers' deepseek_v2 does not read it"),
    ("llama", {"tie_word_embeddings": "yes"}, "'tie_word_embeddings' expected bool, got str (value: 'yes')"),
    ("llama", {"num_key_value_heads": "0x2"}, "'num_key_value_heads' expected int, got str (value: '0x2')"),
    ("llama", {"rms_norm_eps": "1e400"}, "'rms_norm_eps' expected float, got str (value: '1e400')"),
]
ROTARY = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
IGNORED += [("llama", {"rope_parameters": ROTARY}, "model.rope_parameters.partial_rotary_factor: transformers' llama")]


@pytest.mark.parametrize(("kind", "fields", "message"), IGNORED)
def test_what_a_class_ignores_or_would_take_for_something_else_is_refused(kind, fields, message):
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        from_dict({"model": {**DENSE, "type": kind, **fields}, **OUT})


def test_classes_that_rotate_a_part_of_each_head_read_how_much():
    assert "partial_rotary_factor" in fields_of("glm")
    assert not {"head_dim", "sliding_window", "layer_types", "initializer_range"} & unread_fields("qwen3")


def test_a_list_of_one_stays_a_list_and_a_flag_is_a_word(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(
        "run: {output_dir: out}\nmodel: {type: qwen3, num_hidden_layers: 1, layer_types: [full_attention]}"
    )
    assert parse_command_line(["--config", str(path)]).model.config(300).layer_types == ["full_attention"]


def test_null_is_a_value_of_a_class():
    arguments = from_dict({"model": SHARED | {"q_lora_rank": None, "capacity_group_tokens": None}, **OUT})
    assert arguments.model.config(300).q_lora_rank is None
    assert from_dict(arguments.to_dict()) == arguments


def test_ours_is_the_default_and_writes_no_type():
    named = from_dict({"model": {"type": "switch_moe", "experts": 4}, **OUT})
    assert named == from_dict({"model": {"experts": 4}, **OUT})
    assert "type" not in named.to_dict()["model"]


def test_tokens_are_those_of_the_tokenizer_and_none_is_padding():
    config = from_dict({"model": {**DENSE, "type": "olmo2"}, **OUT}).model.config(300, 32, 7)
    assert (config.vocab_size, config.max_position_embeddings) == (300, 32)
    assert (config.eos_token_id, config.bos_token_id, config.pad_token_id) == (7, 7, None)


def test_a_config_json_is_its_fields(tmp_path, caplog):
    about_the_file = {"architectures": ["Qwen3MoeForCausalLM"], "torch_dtype": "bfloat16", "transformers_version": "4"}
    tokens = {"eos_token_id": 151643, "vocab_size": 400, "quantization_config": {"bits": 8}}
    rotary = {"rope_theta": 1_000_000.0}  # as released files have it; transformers 5 calls it `rope_parameters`
    section = {name: value for name, value in TOP_K.items() if name != "type"}
    config = {"model_type": "qwen3_moe", "aux_loss_alpha": 0.1, **about_the_file, **tokens, **section, **rotary}
    (tmp_path / "config.json").write_text(json.dumps(config))
    arguments = from_dict({"model": {"type": str(tmp_path / "config.json"), "num_experts": 16}, **OUT})
    expected = {**LEFT_OUT, **TOP_K, **rotary, "num_experts": 16, "vocab_size": 400}
    assert arguments.to_dict()["model"] == expected  # as of a machine that has not the file
    assert "left out, since transformers' qwen3_moe does not read it: aux_loss_alpha" in caplog.text
    assert arguments.model.config(300).eos_token_id is None
    assert arguments.model.config(300).rope_parameters["rope_theta"] == 1_000_000


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"type": "nonsense"}, "model.type: 'nonsense'; it must be switch_moe, a config.json or a causal type of"),
        (
            {"type": "t5"},
            "model.type: 't5'; it must be switch_moe, a config.json or a causal type of transformers",
        ),
        ({"type": "qwen3_mo"}, "model.type: 'qwen3_mo'; did you mean qwen3_moe? it must be switch_moe"),
        ({"type": "kimi_k2"}, "model.type: 'kimi_k2'; it must be switch_moe"),
        (
            {"type": "gemma3"},
            "model: gemma3 is more than a decoder of tokens; its parts are gemma3_text, siglip",
        ),
        ({"type": "xlnet"}, "model: xlnet is not causal: transformers gives it the tokens that it predicts"),
        ({"type": "bart"}, "model: bart: is_encoder_decoder=True: laws here are of decoders only"),
        ({"type": "roberta"}, "model.type: roberta counts positions by a padding token, which the text here does"),
        ({"type": "gpt2", "n_embd": 50}, "model: transformers' gpt2 cannot be built: "),
        (
            {"type": "doge", "is_moe": True, "num_hidden_layers": 1},
            "model: DogeCDMoE: its experts are not",
        ),
        ({"type": "missing.json"}, "model.type: 'missing.json' cannot be read: No such file"),
        (TOP_K | {"num_expert": 4}, "model: qwen3_moe's field 'num_expert' is unknown: did you mean 'num_experts'?"),
        (
            TOP_K | {"zzz": 4},
            "model: qwen3_moe's field 'zzz' is unknown; there are attention_bias, attention_dropout",
        ),
        (TOP_K | {"d_model": 64}, "model: qwen3_moe's field 'd_model' is unknown"),
        # read by the class's part for images, and computed from other fields
        (
            {"type": "gemma3_text", "mm_tokens_per_image": 4},
            "model: gemma3_text's field 'mm_tokens_per_image' is unknown",
        ),
        ({"type": "jetmoe", "num_attention_heads": 4}, "model: jetmoe's field 'num_attention_heads' is unknown"),
        (DENSE | {"vocab_size": "many"}, "model: Validation error for field 'vocab_size': TypeError"),
        (TOP_K | {"num_experts": 8.5}, "model: Validation error for field 'num_experts': TypeError"),
        (TOP_K | {"num_experts_per_tok": 9}, "model: experts_per_token=9 must be at most experts=8"),
        (TOP_K | {"num_key_value_heads": 3}, "model: n_heads=4 is not divisible by n_kv_heads=3"),
        (DENSE | {"hidden_size": 50}, "model: "),
        # what only the class knows, of types in tables, too: before data are read
        (
            DENSE | {"hidden_act": "none"},
            "model: transformers' llama cannot be built: hidden_act='none': KeyError",
        ),
        (
            {"type": "phi", "num_attention_heads": 0},
            "model: transformers' phi cannot be built: num_attention_heads=0, num_key_value_heads=0 must be",
        ),
        (
            {"type": "phi", "rope_parameters": {"rope_type": "none"}},
            "model: transformers' phi cannot be built: rope_type='none': KeyError",
        ),
        (DENSE | {"attention_dropout": 2.0}, "model: transformers' llama cannot be run: dropout probability"),
        (SHARED | {"num_key_value_heads": 2}, "model: transformers' deepseek_v3 cannot be run: The size"),
        (SHARED | {"n_group": 3}, "model: n_group=3 must divide n_routed_experts=8 into groups of at least 2"),
        (SHARED | {"n_group": 8}, "model: n_group=8 must divide n_routed_experts=8 into groups of at least 2"),
        (
            SHARED | {"num_experts_per_tok": 6},
            "model: n_group=2 must divide n_routed_experts=8 into groups of at least 2, and topk_group=1",
        ),
        (TOP_K | {"capacity_group_tokens": 0}, "model.capacity_group_tokens: 0; it must be greater than 0"),
        (TOP_K | {"capacity_group_tokens": 77}, "model.capacity_group_tokens: 77; a micro-batch (32 sequences"),
    ],
)
def test_bad_input_is_one_line_that_names_what_is_allowed(section, message):
    with pytest.raises(ConfigurationError) as caught:
        from_dict({"model": section, **OUT})
    _, line = str(caught.value).splitlines()
    assert line.startswith(f"  {message}")


def test_a_tokenizer_must_fit_the_vocabulary_and_a_sequence_the_positions():
    small = from_dict({"model": DENSE | {"vocab_size": 299, "max_position_embeddings": 31}, **OUT}).model
    with pytest.raises(ValueError, match=re.escape("model.vocab_size: 299; it must be at least the tokenizer's 300")):
        small.config(300)
    with pytest.raises(
        ValueError, match=r"model.max_position_embeddings: 31; it must be at least data.sequence_length"
    ):
        small.config(299, 32)


def test_a_model_that_is_named_is_told_from_others():
    names = [from_dict({"model": section, **OUT}).model.name for section in CLASSES.values()]
    assert names == [
        "llama-d48-b2-h4-kv2-E1-f96",
        "qwen3_moe-d48-b2-h4-kv2-E8-k2-f24",
        "deepseek_v3-d48-b2-h4-E8-k2-f24-s2",
        "qwen2_moe-d48-b2-h4-E8-k2-f24-s1",
    ]
