"""Why classes of transformers are refused: each reason holds, and says what to do."""

import csv
import re

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.every_class import OWN, PAGE, section
from hub.base.errors import InputError
from training import ConfigurationError, from_dict
from training.configuration.class_counts import _experts, _reason, generates, on_meta
from training.configuration.model_classes import model_types
from training.run.causal_model import build

REFUSED = {kind: line for kind, line in list(csv.reader(PAGE.open(encoding="utf-8")))[1:] if line != "trains"}
# What a reason may say, and of which types.
REASONS = {
    r"is_encoder_decoder=True: laws here are of decoders only; choose another type, such as llama": 11,
    r"\S+ is more than a decoder of tokens; its parts are [\w, ]+; choose (another type, such as llama|\w+)": 22,
    r"\S+ is not causal: transformers gives it the tokens that it predicts; choose another type, such as llama": 3,
    r"model.type: \S+ counts positions by a padding token, which the text here does not have; choose .*": 7,
    r"\w+ makes \d+ layers of \d+ blocks, where laws count one layer a block; choose another type, such as llama": 2,
    r"its blocks share weights \([\d,]+ of [\d,]+ are their own\), where laws count each block's; choose .*": 1,
    r"cannot be built: .* \(\w+\); give other fields, or choose another type, such as llama": 1,
}


def config_of(kind, **fields):
    """The configuration of a tiny model, unchecked."""
    values = section(kind) | {"pad_token_id": None, "bos_token_id": 0, "eos_token_id": 0} | fields
    del values["type"]
    return AutoConfig.for_model(kind, **values)


def test_every_refusal_is_one_of_few_sentences_that_say_what_to_do():
    counts = dict.fromkeys(REASONS, 0)
    for kind, line in REFUSED.items():
        matches = [reason for reason in REASONS if re.fullmatch(reason, line)]
        assert len(matches) == 1, (kind, line)
        counts[matches[0]] += 1
        assert len(line) < 300, kind
    assert counts == REASONS


@pytest.mark.parametrize("kind", [kind for kind, line in REFUSED.items() if "more than a decoder" in line])
def test_the_type_that_is_advised_is_a_causal_one(kind):
    advised = REFUSED[kind].rpartition("choose ")[2]
    assert advised.removeprefix("another type, such as ") in model_types()


def test_experts_are_stacked_where_the_router_alone_has_their_number():
    model = on_meta(config_of("longcat_flash"))
    blocks = max((part for part in model.modules() if isinstance(part, nn.ModuleList)), key=len)
    stacked = [p for p in blocks.parameters() if p.ndim == 3]
    experts = _experts(blocks)
    assert len(experts) == len(blocks)
    assert {p.shape for part in experts for p in part.parameters()} == {p.shape for p in stacked}


def test_not_stacked_is_said_only_where_no_weights_are():
    router = nn.Linear(4, 2)
    router.num_experts = 2
    stack = nn.Module()
    stack.weight = nn.Parameter(torch.empty(2, 4, 4))
    stack.num_routed_experts = 2
    assert _experts(nn.ModuleList([router, stack])) == [stack]
    assert _experts(nn.ModuleList([nn.Linear(4, 4)])) == []
    with pytest.raises(InputError, match="Linear: its experts are not stacked matrices"):
        _experts(nn.ModuleList([router, nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])]))


def test_a_long_error_of_a_class_is_cut_after_a_word():
    words = [f"word{i}" for i in range(100)]
    reason = _reason("llama", ValueError(" ".join(words)))
    text, _, advice = reason.partition(" (ValueError); ")
    assert text.endswith(" …")
    assert set(text.split()[:-1]) <= set(words)
    assert advice == "give other fields, or choose another type, such as llama"
    assert _reason("llama", KeyError()).startswith("it does not say why (KeyError); ")


@pytest.mark.parametrize("kind", ["roberta", "xmod"])
def test_positions_counted_from_padding_are_refused(kind):
    with pytest.raises(ConfigurationError, match=f"{kind} counts positions by a padding token, which the text"):
        from_dict({"model": section(kind), "run": {"output_dir": "out"}})


def test_an_embedding_narrower_than_the_blocks_is_named():
    fields = section("opt") | {"word_embed_proj_dim": 16, "vocab_size": 5000}
    with pytest.raises(ConfigurationError, match="its embedding is 16 wide and its blocks 64, where laws have one"):
        from_dict({"model": fields, "run": {"output_dir": "out"}})


def test_a_class_that_must_have_a_padding_token_trains_every_embedding():
    model_arguments = from_dict({"model": section("modernbert-decoder"), "run": {"output_dir": "out"}}).model
    assert model_arguments.config(96).pad_token_id == 0  # without an end token
    config = model_arguments.config(96, 32, 7)
    assert {config.pad_token_id, config.eos_token_id, config.bos_token_id, config.sep_token_id} == {7}
    torch.manual_seed(0)
    model = build(config).train()
    ids = torch.tensor([[1, 7, 3, 7, 5, 2]])
    model(ids, ids.roll(-1, 1)).lm_loss.backward()
    assert model.get_input_embeddings().weight.grad[7].abs().sum() > 0


ATTENDS = {"layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"]}


@pytest.mark.parametrize(
    ("kind", "fields", "expected"),
    [
        ("llama", {}, True),
        ("mamba", {}, True),
        ("granitemoehybrid", {}, False),
        ("granitemoehybrid", ATTENDS, True),
        pytest.param("jamba", {"attn_layer_offset": 7, "attn_layer_period": 8}, False, marks=pytest.mark.slow),
        pytest.param("jamba", {"attn_layer_offset": 1, "attn_layer_period": 2}, True, marks=pytest.mark.slow),
    ],
)
def test_hybrids_without_attention_cannot_generate(kind, fields, expected, caplog):
    # Recurrences pass token by token, so few positions.
    config = config_of(kind, max_position_embeddings=16, **fields)
    assert generates(config) is expected
    build(config)
    assert ("transformers' generate fails" in caplog.text) is not expected
    model = AutoModelForCausalLM.from_config(config).eval()
    prompt = torch.arange(1, 9)[None]
    words = {"max_new_tokens": 2, "do_sample": False, "pad_token_id": 0}
    if expected:
        assert model.generate(prompt, **words).shape == (1, 10)
        return
    with pytest.raises(ValueError, match="only contain LinearAttention layers"):
        model.generate(prompt, **words)


def test_sizes_that_are_set_by_name_are_of_types_that_exist():
    assert {*OWN} <= {*model_types()}
