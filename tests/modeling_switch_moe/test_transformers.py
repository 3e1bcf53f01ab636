"""The model as a transformers model: saving, loading, generation, caches, outputs, checkpointing, bad input."""

import json
import logging
import os
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from modeling_switch_moe import (
    SwitchMoeConfig,
    SwitchMoeForCausalLM,
    SwitchMoeForSequenceClassification,
    SwitchMoeModel,
)
from tests.modeling_switch_moe.conftest import IMPLEMENTATIONS, step


@pytest.mark.parametrize("experts", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_save_and_load(make_model, tokens, tmp_path, experts, dtype):
    model = make_model(num_experts=experts).to(dtype).eval()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, use_safetensors=True)
    assert type(loaded) is SwitchMoeForCausalLM
    assert loaded.dtype == dtype
    assert torch.equal(loaded(tokens).logits, model(tokens).logits)
    base = AutoModel.from_pretrained(tmp_path)
    assert type(base) is SwitchMoeModel
    assert torch.equal(base(tokens).last_hidden_state, model.model(tokens).last_hidden_state)
    config = AutoConfig.from_pretrained(tmp_path)
    assert type(config) is SwitchMoeConfig
    assert config.to_diff_dict().keys() == model.config.to_diff_dict().keys()


def test_a_saved_folder_carries_its_code(make_model, tokens, tmp_path):
    """How it loads where this package is not installed: tests/hub/test_clients.py."""
    model = make_model().eval()
    folder, again = tmp_path / "saved", tmp_path / "again"
    model.save_pretrained(folder)
    files = {"configuration_switch_moe", "modeling_switch_moe"}
    files |= {"expert_parallel", "experts", "losses", "precision", "routing", "versions"}
    assert {path.stem for path in folder.glob("*.py")} == files

    def load(name, place):
        kind = get_class_from_dynamic_module(f"modeling_switch_moe.{name}", str(place))
        assert kind.__module__.startswith("transformers_modules.")
        return kind.from_pretrained(place)

    remote = load("SwitchMoeForCausalLM", folder)
    remote.save_pretrained(again)
    second, base = load("SwitchMoeForCausalLM", again), load("SwitchMoeModel", folder)
    expected = model(tokens).logits
    for logits in (remote(tokens).logits, second(tokens).logits, model.lm_head(base(tokens).last_hidden_state)):
        assert torch.equal(logits, expected)
    greedy = {"max_new_tokens": 4, "do_sample": False}
    assert torch.equal(remote.generate(tokens, **greedy), model.generate(tokens, **greedy))


def test_others_may_read_weights_as_they_may_the_configuration(make_model, tmp_path):
    for umask in (0o002, 0o077):
        before = os.umask(umask)
        make_model().save_pretrained(tmp_path / f"{umask}", max_shard_size="20KB")
        os.umask(before)
        modes = {path.stat().st_mode & 0o777 for path in (tmp_path / f"{umask}").iterdir() if path.suffix != ".py"}
        assert modes == {0o666 & ~umask}


def test_saving_the_base_model_names_all_classes(make_model, tmp_path):
    make_model().model.save_pretrained(tmp_path)
    auto_map = json.loads((tmp_path / "config.json").read_text())["auto_map"]
    assert auto_map["AutoModelForCausalLM"] == "modeling_switch_moe.SwitchMoeForCausalLM"
    assert auto_map["AutoModel"] == "modeling_switch_moe.SwitchMoeModel"
    head = auto_map["AutoModelForSequenceClassification"]
    assert head == "modeling_switch_moe.SwitchMoeForSequenceClassification"


@pytest.mark.parametrize("tied", [False, True])
def test_sharded_saving_and_tied_embeddings(make_model, tokens, tmp_path, tied):
    model = make_model(tie_word_embeddings=tied).eval()
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    model.save_pretrained(tmp_path, max_shard_size="30KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    for options in ({}, {"device_map": "cpu", "low_cpu_mem_usage": True}):
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path, **options)
        assert torch.equal(loaded(tokens).logits, model(tokens).logits)


def test_missing_weights_are_initialised_by_the_preset(make_model, tmp_path):
    make_model(hidden_size=128).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    kept = {name: tensor for name, tensor in load_file(file).items() if "layers.1.mlp" not in name}
    save_file(kept, file, metadata={"format": "pt"})
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    block, rotary = loaded.model.layers[1].mlp, loaded.model.rotary_emb
    assert block.experts.down_proj.std().item() == pytest.approx((0.1 / (4 * 384)) ** 0.5, rel=0.03)
    assert block.router.weight.std().item() == pytest.approx((0.1 / 128) ** 0.5, rel=0.2)
    assert all(torch.equal(loaded.state_dict()[name], tensor) for name, tensor in kept.items())
    assert (rotary.inv_freq == rotary.original_inv_freq).all()
    assert rotary.inv_freq[0] == 1


@pytest.mark.parametrize(
    ("saved", "asked"), [(4, {"num_experts": 8}), (1, {}), (4, {"num_experts": 1}), (4, {"hidden_size": 64})]
)
def test_a_checkpoint_of_other_sizes_is_refused(make_model, make_config, tmp_path, saved, asked):
    make_model(num_experts=saved).save_pretrained(tmp_path)
    with pytest.raises((RuntimeError, ValueError), match=r"num_experts|size mismatch|ignore_mismatched_sizes"):
        SwitchMoeForCausalLM.from_pretrained(tmp_path, config=make_config(**asked))


@pytest.mark.parametrize("attention", ["sdpa", pytest.param("flex_attention", marks=pytest.mark.slow)])
@torch.no_grad()  # flex attention has no backward on CPU
def test_attention_implementations_agree(make_model, tokens, attention):
    model = make_model().eval()
    mask = torch.ones_like(tokens)
    mask[1, 8:] = 0
    model.set_attn_implementation("eager")
    expected = model(tokens, attention_mask=mask).logits[mask.bool()]
    model.set_attn_implementation(attention)
    actual = model(tokens, attention_mask=mask).logits[mask.bool()]
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)


def test_recorded_outputs(make_model, tokens):
    model = make_model().eval()
    model.set_attn_implementation("eager")
    output = model(tokens, output_hidden_states=True, output_attentions=True, output_router_logits=True)
    assert [h.shape for h in output.hidden_states] == [(3, 12, 32)] * 3
    assert [a.shape for a in output.attentions] == [(3, 2, 12, 12)] * 2
    assert [r.shape for r in output.router_logits] == [(36, 4)] * 2
    assert all(r.dtype == torch.float32 for r in output.router_logits)
    torch.testing.assert_close(output.attentions[0].sum(-1), torch.ones(3, 2, 12))
    assert torch.equal(model.lm_head(output.hidden_states[-1]), output.logits)
    assert output.routing is None
    plain = model(tokens)
    assert (plain.router_logits, plain.hidden_states, plain.attentions, plain.loss) == (None,) * 4
    assert isinstance(model(tokens, return_dict=False), tuple)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("experts", [1, 4])
def test_gradient_checkpointing(make_model, tokens, reentrant, experts):
    model = make_model(num_experts=experts).train()
    plain, expected = step(model, tokens, labels=tokens)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    output, gradients = step(model, tokens, labels=tokens)
    torch.testing.assert_close(gradients, expected, rtol=0, atol=1e-7)
    assert torch.equal(output.routing.tokens_per_expert, plain.routing.tokens_per_expert)
    assert torch.equal(output.balance_loss, plain.balance_loss)


def test_resize_token_embeddings(make_model, tokens):
    model = make_model().eval()
    before = model(tokens).logits
    model.resize_token_embeddings(70)
    assert (model.config.vocab_size, model(tokens).logits.shape[-1]) == (70, 70)
    assert torch.equal(model(tokens).logits[..., :61], before)
    model(torch.full((1, 2), 69), labels=torch.full((1, 2), 69))
    with pytest.raises(ValueError, match=r"input_ids holds 70.*0 to 69"):
        model(torch.full((1, 2), 70))


@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("precision", "expected"), [("float32", torch.float32), ("compute", torch.bfloat16)])
def test_fp32_islands_under_autocast_and_bf16_weights(make_model, tokens, weights, precision, expected):
    """Router and attention see fp32 although everything around them is bf16; "compute" leaves attention in bf16."""
    model = make_model().eval()
    whole = model(tokens).logits.flatten()
    model.to(weights).config.attention_precision = precision
    model.set_attn_implementation("eager")
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=weights == torch.float32):
        output = model(tokens, output_attentions=True, output_router_logits=True, use_cache=True)
    assert {a.dtype for a in output.attentions} == {expected}
    assert {r.dtype for r in output.router_logits} == {torch.float32}
    assert output.past_key_values.layers[0].keys.dtype == expected
    assert torch.cosine_similarity(output.logits.float().flatten(), whole, dim=0) > 0.97


@pytest.mark.parametrize("name", ["vllm", "attention_of_a_user"])
def test_other_attention_gets_the_dtype_of_the_model(make_model, tokens, monkeypatch, name):
    """vLLM's backend stores keys and values in it, and reads fp32 ones wrongly; other kernels may lack fp32."""
    model = make_model().eval().bfloat16()
    expected = model(tokens, use_cache=False).logits
    dtypes = set()

    def attend(module, query, key, value, mask, scaling, **kwargs):
        dtypes.update(states.dtype for states in (query, key, value))
        output = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling)
        return output.transpose(1, 2), None

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._local_mapping, name, attend)
    model.config._attn_implementation = name  # as vLLM sets it
    logits = model(tokens, use_cache=False).logits
    assert dtypes == {torch.bfloat16}
    assert torch.cosine_similarity(logits.float().flatten(), expected.float().flatten(), dim=0) > 0.97


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_training_under_autocast(make_model, tokens, implementation):
    model = make_model().train()
    _, expected = step(model, tokens, labels=tokens)
    model.set_experts_implementation(implementation)
    _, gradients = step(model, tokens, labels=tokens, autocast=True)
    for name, gradient in gradients.items():
        assert gradient.dtype == torch.float32
        assert torch.cosine_similarity(gradient.flatten(), expected[name].flatten(), dim=0) > 0.8, name


@pytest.mark.parametrize("precision", ["float32", "compute"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
def test_a_mask_of_another_dtype(make_model, tokens, precision, attention, weights):
    """Its lowest number must not become an infinity: a row that sees nothing would be nan."""
    model = make_model(attention_precision=precision).eval().to(weights)
    model.set_attn_implementation(attention)
    lowest = torch.finfo(torch.float32).min
    mask = torch.zeros(3, 1, 12, 12).masked_fill(torch.ones(12, 12).triu(1).bool(), lowest)
    mask[2, :, 0] = lowest
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=weights == torch.float32):
        found, expected = model(tokens, attention_mask=mask).logits, model(tokens).logits
    assert found.isfinite().all()
    torch.testing.assert_close(found[:2], expected[:2], rtol=0, atol=0.1)


def test_bad_input_is_refused(make_model, tokens):
    model = make_model()
    for bad in (61, -1):
        with pytest.raises(ValueError, match=f"input_ids holds {bad}.*0 to 60"):
            model(torch.tensor([[1, bad]]))
    for shape in ((0, 4), (2, 0)):
        with pytest.raises(ValueError, match=re.escape(f"no tokens: its shape is {shape}")):
            model(torch.zeros(shape, dtype=torch.long))
    for inputs in ({}, {"input_ids": tokens, "inputs_embeds": torch.zeros(3, 12, 32)}):
        with pytest.raises(ValueError, match="exactly one"):
            model(**inputs)
    with pytest.raises(ValueError, match="'fastest' is not supported; allowed are eager"):
        model.set_experts_implementation("fastest")


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("training", [True, False])
def test_rows_of_padding_alone(make_model, tokens, attention, training):
    model = make_model().train(training)
    model.set_attn_implementation(attention)
    mask = torch.ones_like(tokens)
    mask[1] = 0
    labels = tokens.masked_fill(mask == 0, -100)
    output, gradients = step(model, tokens, attention_mask=mask, labels=labels)
    torch.testing.assert_close(output.loss, model(tokens[[0, 2]], labels=tokens[[0, 2]]).loss)
    assert all(gradient.isfinite().all() for gradient in gradients.values())
    nothing = model(tokens, attention_mask=torch.zeros_like(tokens), output_routing=True)
    assert (nothing.balance_loss, nothing.z_loss, nothing.routing.tokens_per_expert.sum()) == (0, 0, 0)


def test_longer_than_the_configuration_warns_and_runs(make_model, caplog):
    logging.getLogger("transformers").propagate = True
    model = make_model(max_position_embeddings=8).eval()
    with caplog.at_level("WARNING"):
        output = model(torch.zeros(1, 11, dtype=torch.long))
    assert "11 tokens, more than max_position_embeddings=8" in caplog.text
    assert output.logits.isfinite().all()


@pytest.mark.parametrize("implementation", ["capacity", "grouped_mm", "batched_mm", "eager"])
@pytest.mark.parametrize("training", [True, False])
def test_nan_is_not_routed_silently(make_model, tokens, implementation, training):
    """A NaN reaches loss and losses, whatever the router does with it."""
    model = make_model(implementation=implementation).train(training)
    with torch.no_grad():
        model.model.layers[0].mlp.router.weight[2, 3] = float("nan")
    output = model(tokens, labels=tokens)
    assert all(loss.isnan() for loss in (output.loss, output.z_loss, output.balance_loss))


@pytest.mark.parametrize("kind", ["dense", "switch"])
def test_a_checkpoint_of_an_earlier_version_loads_bit_equal(kind):
    """`saved` holds folders that `save_pretrained` wrote in November 2026, with what the model answered then."""
    folder = Path(__file__).parent / "saved" / kind
    model = AutoModelForCausalLM.from_pretrained(folder)
    stored = load_file(folder / "model.safetensors")
    torch.testing.assert_close(dict(model.state_dict()), stored, rtol=0, atol=0)
    expected = json.loads((folder / "outputs.json").read_text())
    ids = torch.arange(16).view(2, 8)
    output = model(ids, labels=ids)
    torch.testing.assert_close(output.logits, torch.tensor(expected["logits"]), rtol=0, atol=1e-6)
    losses = [output.loss.item(), output.balance_loss.item(), output.z_loss.item()]
    assert losses == pytest.approx(expected["losses"], abs=1e-6)


@pytest.mark.parametrize("experts", [1, 4])
def test_a_checkpoint_becomes_a_classifier(make_model, tokens, tmp_path, experts):
    base = make_model(num_experts=experts, pad_token_id=0).eval()
    base.save_pretrained(tmp_path / "base")
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "base", num_labels=3).eval()
    assert type(model) is SwitchMoeForSequenceClassification
    rows = tokens.clamp(min=1)
    rows[1, 8:] = 0
    mask = (rows != 0).long()
    output = model(rows, attention_mask=mask, labels=torch.tensor([0, 2, 1]))
    states = base.model(rows, attention_mask=mask).last_hidden_state
    expected = model.score(states[torch.arange(3), mask.sum(1) - 1])
    torch.testing.assert_close(output.logits, expected)
    torch.testing.assert_close(output.loss, F.cross_entropy(expected, torch.tensor([0, 2, 1])))
    _, gradients = step(model.train(), rows, attention_mask=mask, labels=torch.tensor([0, 2, 1]))
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients.values())

    model.eval().save_pretrained(tmp_path / "head")
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "head")
    kind = get_class_from_dynamic_module(
        "modeling_switch_moe.SwitchMoeForSequenceClassification", str(tmp_path / "head")
    )
    assert kind.__module__.startswith("transformers_modules.")
    for loaded in (again, kind.from_pretrained(tmp_path / "head")):
        assert torch.equal(loaded(rows, attention_mask=mask).logits, model(rows, attention_mask=mask).logits)
