"""`generate` in its many ways: every way to decode gives the tokens of the full forward."""

import pytest
import torch
from transformers import CompileConfig, ContinuousBatchingConfig, GenerationConfig, StaticCache

from modeling_switch_moe import SwitchMoeForCausalLM

GREEDY = {"max_new_tokens": 6, "do_sample": False}


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("experts", [1, 4])
def test_cached_generation_equals_the_full_forward(make_model, tokens, attention, experts):
    model = make_model(num_experts=experts).eval()
    model.set_attn_implementation(attention)
    for cache in ({}, {"cache_implementation": "static"}, {"use_cache": False}):
        out = model.generate(tokens, return_dict_in_generate=True, output_logits=True, **GREEDY, **cache)
        full = model(out.sequences).logits[:, tokens.shape[1] - 1 : -1]
        torch.testing.assert_close(torch.stack(out.logits, 1), full, rtol=0, atol=2e-5)
        assert torch.equal(full.argmax(-1), out.sequences[:, tokens.shape[1] :])


def test_other_ways_to_decode(make_model, tokens):
    model, assistant = make_model().eval(), make_model(seed=1, num_experts=2).eval()
    beams = {"num_beams": 3, "num_return_sequences": 2, **GREEDY}
    assert torch.equal(*(model.generate(tokens, use_cache=cache, **beams) for cache in (True, False)))
    drawn = []
    for _ in range(2):
        torch.manual_seed(3)
        drawn.append(model.generate(tokens, max_new_tokens=5, do_sample=True))
    assert torch.equal(*drawn)
    row = tokens[:1].repeat(1, 2)
    expected, embeddings = model.generate(row, **GREEDY), model.get_input_embeddings()(row)
    for options in ({"assistant_model": assistant}, {"prompt_lookup_num_tokens": 3}):
        assert torch.equal(model.generate(row, **options, **GREEDY), expected)
    for cache in ({}, {"cache_implementation": "static"}):
        assert torch.equal(model.generate(inputs_embeds=embeddings, **cache, **GREEDY), expected[:, row.shape[1] :])


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_left_padding_changes_nothing(make_model, tokens, attention):
    model = make_model(pad_token_id=0).eval()
    model.set_attn_implementation(attention)
    short = tokens[:1, :7]
    batch = torch.cat([torch.nn.functional.pad(short, (5, 0)), tokens[1:]])
    mask = torch.ones_like(batch)
    mask[0, :5] = 0
    together = model.generate(batch, attention_mask=mask, **GREEDY)[:1, 12:]
    assert torch.equal(model.generate(short, **GREEDY)[:, 7:], together)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    logits = model(batch, attention_mask=mask, position_ids=positions).logits[:1, 5:]
    torch.testing.assert_close(logits, model(short).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_generation_with_a_static_cache(make_model, tokens, backend):
    expected = make_model().eval().generate(tokens, **GREEDY)
    compiled = make_model().eval()
    options = CompileConfig(fullgraph=True, dynamic=False, mode="default", backend=backend)
    options._compile_all_devices = True  # transformers compiles on accelerators only, unless told so
    found = compiled.generate(tokens, cache_implementation="static", compile_config=options, **GREEDY)
    assert torch.equal(found, expected)
    assert hasattr(compiled, "_compiled_call")


def test_logits_of_chosen_positions(make_model, tokens):
    model = make_model().eval()
    logits = model(tokens).logits
    torch.testing.assert_close(model(tokens, logits_to_keep=3).logits, logits[:, -3:])
    torch.testing.assert_close(model(tokens, logits_to_keep=torch.tensor([2, 5])).logits, logits[:, [2, 5]])


@pytest.mark.parametrize("implementation", ["eager", "capacity", "grouped_mm", "batched_mm"])
@pytest.mark.parametrize("rows", [0, 1])
def test_decoding_equals_the_forward_with_gradients(make_model, tokens, implementation, rows):
    """Without gradients the experts take a shorter way; one row is the usual case while decoding."""
    model = make_model(implementation=implementation).eval()
    batch = tokens[:rows] if rows else tokens
    expected = model(batch).logits.detach()
    with torch.no_grad():
        torch.testing.assert_close(model(batch).logits, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("precision", ["float32", "compute"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_continuous_batching_in_bf16(make_config, tokens, precision, attention):
    model = SwitchMoeForCausalLM(make_config(attention_precision=precision)).eval().bfloat16()
    model.set_attn_implementation(attention)
    found = model.generate_batch(
        inputs=tokens.tolist(),
        generation_config=GenerationConfig(eos_token_id=-1, pad_token_id=0, **GREEDY),
        # By default it takes all free memory.
        continuous_batching_config=ContinuousBatchingConfig(num_blocks=16, page_size=16, max_batch_tokens=64),
    )
    assert [request.error for request in found.values()] == [None] * 3
    rows = torch.tensor([[*request.prompt_ids, *request.generated_tokens] for request in found.values()])
    assert rows.shape == (3, tokens.shape[1] + 6)
    with torch.no_grad():
        logits = model(rows).logits[:, tokens.shape[1] - 1 : -1].float()
    # Each token is the best one, or as good as that but for rounding.
    chosen = logits.gather(-1, rows[:, tokens.shape[1] :, None]).squeeze(-1)
    assert (logits.amax(-1) - chosen).max() < 0.1 * logits.std()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_cache_keeps_the_dtype_it_was_allocated_in(make_model, tokens, dtype):
    """Exports and compiled prefills allocate a static cache before the first call, in the model's dtype."""
    model = make_model().eval().to(dtype)
    cache = StaticCache(model.config, max_cache_len=32)
    cache.early_initialization(len(tokens), 2, model.config.head_dim, dtype, torch.device("cpu"))
    found = model.generate(tokens, past_key_values=cache, **GREEDY)
    assert cache.layers[0].keys.dtype == dtype
    assert torch.equal(found, model.generate(tokens, **GREEDY))
    with torch.no_grad():  # a cache that was filled in one precision is read in the other
        first = model(tokens, use_cache=True)
        model.config.attention_precision = "compute"
        logits = model(tokens[:, :1], past_key_values=first.past_key_values).logits
    assert logits.isfinite().all()


def test_a_quantised_cache(make_model, tokens):
    model = make_model().eval().bfloat16()
    options = {"cache_implementation": "quantized", "cache_config": {"backend": "fp8"}}
    found = model.generate(tokens, **options, **GREEDY)
    agreement = (found == model.generate(tokens, **GREEDY)).float().mean()
    assert agreement > 0.8
