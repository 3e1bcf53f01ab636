"""Reading config.json: what is named, what is missing, and where it may lie."""

import json

import pytest

from scaling_law.size.model_configs import FAMILIES, read_model

MIXTRAL = {  # mistralai/Mixtral-8x7B-v0.1
    "model_type": "mixtral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
}


def test_a_file_a_folder_and_a_mapping_are_the_same(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(MIXTRAL))
    read = read_model(MIXTRAL)
    assert read.parameters == 46_702_792_704  # as its weights' index says, at 2 bytes each
    for source in (tmp_path, str(tmp_path), tmp_path / "config.json"):
        assert read_model(source).architecture == read.architecture


def test_the_language_model_of_a_larger_one():
    read = read_model({"model_type": "llava", "tie_word_embeddings": True, "text_config": MIXTRAL})
    assert read.text_only
    assert not read.architecture.tied_embeddings  # what the language model says itself comes first
    own = {name: value for name, value in MIXTRAL.items() if name != "tie_word_embeddings"}
    assert read_model({"model_type": "llava", "tie_word_embeddings": True, "text_config": own}).architecture.tied_embeddings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "model_type='mamba' is not one of llama, mistral"),
        ({"model_type": None}, "model_type=None is not one of"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder=True: laws here are of decoders only"),
        ({"num_experts_per_tok": 9}, "mixtral: experts_per_token=9 must be at most experts=8"),
        ({"hidden_size": "wide"}, "d_model='wide' must be an integer of at least 1"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
    ],
)
def test_what_cannot_be_read_is_named(changes, message):
    with pytest.raises(ValueError, match=message) as error:
        read_model(MIXTRAL | changes)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("field", [name for name in MIXTRAL if name not in ("model_type", "tie_word_embeddings")])
def test_a_missing_field_is_named(field):
    with pytest.raises(ValueError, match=f"config.json lacks {field}, which model_type 'mixtral' needs"):
        read_model({name: value for name, value in MIXTRAL.items() if name != field})


def test_no_configuration_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match="neither a folder or Hub repo with a config.json"):
        read_model(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ValueError, match="must be an object with fields, not a list"):
        read_model(tmp_path)


def test_dense_blocks_wherever_they_are_named():
    base = MIXTRAL | {"model_type": "qwen3_moe", "num_experts": 8, "moe_intermediate_size": 512, "head_dim": 128}
    every_other = read_model(base | {"decoder_sparse_step": 2, "mlp_only_layers": [1]}).architecture
    assert (every_other.dense_blocks, every_other.d_ff) == (17, 14336)
    assert read_model(base).architecture.dense_blocks == 0
    assert read_model(base | {"mlp_layer_types": ["dense"] * 3 + ["sparse"] * 29}).architecture.dense_blocks == 3


def test_families_have_the_fields_of_each_other_only_where_meant():
    """A dense family has no experts, and one with a shared expert names how wide it is or has the routed width."""
    assert all(family.shared == 0 and family.d_shared is None for family in FAMILIES.values() if not family.experts)
