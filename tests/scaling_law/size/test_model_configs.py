"""Reading config.json: what is named, what is missing, and where it may lie."""

import json
import re
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from scaling_law.size import model_configs
from scaling_law.size.model_configs import read_model
from tests.conftest import sweep
from tests.scaling_law.configs import MIXTRAL
from training.configuration.class_counts import read_class


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    """The entry point of pyproject.toml, whenever this environment was made."""
    text = Path("pyproject.toml").read_text()
    (point,) = re.findall(rf'entry-points."{model_configs.CLASSES}"\].*\n(\w+) = "(.*)"\n', text)
    points = [EntryPoint(*point, model_configs.CLASSES)]
    monkeypatch.setattr(model_configs, "entry_points", lambda group: points)
    return points


@pytest.mark.parametrize(("blocks", "billions"), sweep([(48, 3.8), (4, 0.9)], [(4, 0.9)]))
def test_a_type_of_no_table_is_counted_on_its_class(blocks, billions):
    """GPT-2 and a hybrid: 124,439,808 parameters, of which laws leave out the vectors.

    Of the hybrid's parameters 0.62B are embeddings; its 48 blocks have the rest, and four are built sooner.
    """
    read = read_model({"model_type": "gpt2"})
    assert (read.parameters, read.architecture.n_blocks, read.architecture.gated) == (124_439_808, 12, False)
    text = {"model_type": "qwen3_next", "num_hidden_layers": blocks}
    hybrid = read_model({"model_type": "llava", "text_config": text})
    assert (hybrid.text_only, hybrid.architecture.attention_blocks) == (True, blocks // 4)
    assert (round(hybrid.architecture.n_active / 1e9, 1), hybrid.architecture.experts) == (billions, 512)


def test_a_file_a_folder_and_a_mapping_are_the_same(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(MIXTRAL))
    read = read_model(MIXTRAL)
    assert (round(read.parameters / 1e9, 1), round(read.architecture.n_active / 1e9, 1)) == (46.7, 12.9)
    for source in (tmp_path, str(tmp_path), tmp_path / "config.json"):
        assert read_model(source).architecture == read.architecture


@pytest.mark.parametrize("tied", [False, True])
def test_the_language_model_of_a_larger_one(tied):
    """Whose own word on tied embeddings comes first, as in transformers."""
    text = MIXTRAL | {"tie_word_embeddings": not tied}
    read = read_model({"model_type": "llava", "tie_word_embeddings": tied, "text_config": text})
    assert (read.text_only, read.architecture.tied_embeddings) == (True, tied)
    assert read_model({"model_type": "llava", "text_config": text}).architecture.tied_embeddings != tied


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": None}, "model_type=None: transformers has no causal language model of this type"),
        ({"model_type": "t5"}, "model_type='t5': transformers has no causal language model of this type"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder=True: laws here are of decoders only"),
        ({"num_experts_per_tok": 9}, "mixtral: experts_per_token=9 must be at most experts=8"),
        ({"hidden_size": "wide"}, "d_model='wide' must be a whole number"),
        ({"num_hidden_layers": None}, "config.json lacks num_hidden_layers, which model_type 'mixtral' needs"),
        (
            {"model_type": "bailing_moe"},
            "config.json lacks moe_intermediate_size, which model_type 'bailing_moe' needs",
        ),
        (
            {"model_type": "qwen3_moe", "moe_intermediate_size": 8, "decoder_sparse_step": 1, "mlp_only_layers": 3},
            "qwen3_moe: ",
        ),
    ],
)
def test_what_cannot_be_read_is_named(changes, message):
    with pytest.raises(ValueError, match=message) as error:
        read_model(MIXTRAL | changes)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("source", [None, 5, [1], 3.5])
def test_what_is_no_model_is_said(source):
    with pytest.raises(
        ValueError, match=r"^model=.* must be org/model on the Hub, a folder, a config.json, a mapping"
    ):
        read_model(source)


GEMMA = MIXTRAL | {"model_type": "gemma3_text"}
LLAMA_4 = MIXTRAL | {"model_type": "llama4_text", "intermediate_size_mlp": 64}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (MIXTRAL | {"num_attention_heads": 0}, "n_heads=0 must be a whole number of at least 1"),
        (MIXTRAL | {"num_key_value_heads": 0}, "n_kv_heads=0 must be a whole number of at least 1"),
        (MIXTRAL | {"head_dim": 0}, "head_dim=0 must be a whole number of at least 1"),
        ({"model_type": "gpt2", "n_head": 0}, "gpt2 cannot be built: n_head=0 must be at least 1"),
        ({"model_type": "gpt2", "n_head": "x"}, "gpt2 cannot be read: Validation error for field 'n_head'"),
        (MIXTRAL | {"sliding_window": -1}, "spans: limit=-1 must be an integer of at least 1"),
        (GEMMA | {"sliding_window_pattern": 0}, "sliding_window_pattern=0 must be an integer of at least 1"),
        (GEMMA | {"layer_types": ["banana"] * 32}, "layer_types=.* each one of full_attention, attention, sliding"),
        (GEMMA | {"layer_types": ["full_attention"]}, "must be a list of 32"),
        (LLAMA_4 | {"no_rope_layer_interval": 0}, "no_rope_layer_interval=0 must be an integer of at least 1"),
        (LLAMA_4 | {"no_rope_layers": [1]}, "no_rope_layers has 1 entries; it must have one for each of 32 blocks"),
        (LLAMA_4 | {"num_hidden_layers": "x"}, "num_hidden_layers='x' must be an integer of at least 1"),
    ],
)
def test_impossible_heads_and_windows_are_named(config, message):
    with pytest.raises(ValueError, match=message) as error:
        read_model(config)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("field", [name for name in MIXTRAL if name not in ("model_type", "tie_word_embeddings")])
def test_a_missing_field_has_the_default_of_its_class_and_is_named(field):
    two_blocks = MIXTRAL | {"num_hidden_layers": 2}  # which are built sooner
    without = {name: value for name, value in two_blocks.items() if name != field}
    read = read_model(without)
    assert read.architecture == read_class(without)[0]
    (note,) = read.notes
    assert note.startswith(f"Defaults of the class, since config.json leaves them out: {field} ")
    # No class has defaults for this type.
    with pytest.raises(ValueError, match=r"config.json lacks .*, which model_type 'bailing_moe' needs"):
        read_model(without | {"model_type": "bailing_moe"})
    with pytest.raises(ValueError, match=f"config.json lacks {field}|must be"):
        read_model(MIXTRAL | {field: None, "num_key_value_heads": 8 if field != "num_key_value_heads" else "x"})


def test_an_alias_of_a_field_comes_before_the_default():
    without = {name: value for name, value in MIXTRAL.items() if name != "num_local_experts"}
    assert read_model(without | {"num_experts": 4}).architecture.experts == 4


@pytest.mark.parametrize("value", [None, "no_such_module:read_class"])
def test_without_torch_a_type_of_no_table_names_the_extra(value, installed):
    installed[:] = [EntryPoint("transformers", value, model_configs.CLASSES)] if value else []
    with pytest.raises(ValueError, match=r"model_type='mamba' is unknown.* mistral, llama.*pip install .*\[train\]"):
        read_model(MIXTRAL | {"model_type": "mamba"})


def test_no_configuration_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match="no folder or Hub repo with a config"):
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
