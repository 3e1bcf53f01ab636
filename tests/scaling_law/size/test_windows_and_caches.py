"""Keys that blocks see and caches that they fill, against tiny models of transformers' classes that really do so."""

import json
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.every_class import section
from scaling_law import Architecture, describe
from scaling_law.machine import decode_seconds
from scaling_law.machine.throughput import ModelWork
from scaling_law.size.architecture import Span
from scaling_law.size.model_configs import FAMILIES, read_model
from tests.conftest import sweep
from training.configuration.class_counts import read_class, training_flops
from training.configuration.model_classes import ModelClassArguments, model_types

LENGTH, WINDOW = 24, 8
LIMITS = ("sliding_window", "attention_chunk_size", "window_size", "attention_window_size", "sliding_window_size")
SMALL = {"index_topk": 8, "index_topk_blocks": 2, "index_block_size": 4, "use_sliding_window": True}
# What makes tiny models of these types have blocks of every kind.
OWN = {
    "deepseek_v4": {
        "layer_types": ["heavily_compressed_attention", "compressed_sparse_attention", *["sliding_attention"] * 2],
        "compress_rates": {"compressed_sparse_attention": 2, "heavily_compressed_attention": 8},
    },
    "minimax_m3_vl_text": {"layer_types": ["full_attention", "minimax_m3_sparse"] * 2, "index_n_heads": 2},
    **{key: {"max_window_layers": 2} for key in ("qwen2", "qwen3", "dots1")},
    "smollm3": {"no_rope_layer_interval": 2},
    "glm_moe_dsa": {"indexer_types": ["full", "shared"] * 2},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "bamba": {"attn_layer_indices": [1, 3]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    **{key: {"sliding_window": WINDOW} for key in ("mixtral", "phi3", "starcoder2", "phimoe")},
}
STATES = ("mamba", "mamba2", "falcon_mamba", "falcon_h1", "bamba", "granitemoehybrid", "qwen3_next", "olmo_hybrid")
STATES += ("jamba", "lfm2_moe", "nemotron_h", "zaya", "qwen3_5_text")
# Masks that are counted and caches that are filled in the fast tests: windows, chunks, a selection, compression,
# shared keys, latents, states.
FAST = ("gpt_oss", "gemma3_text", "mistral", "llama4_text", "gpt_neo", "deepseek_v32", "deepseek_v4", "gemma4_text")
FAST += ("mimo_v2_flash", "deepseek_v3", "minicpm3", "mamba", "mamba2", "bamba", "qwen3_next", "nemotron_h", "zaya")
LATENT = ("deepseek_v2", "deepseek_v3", "minicpm3", "youtu", "glm4_moe_lite")


def tiny(kind):
    """The configuration of a tiny model whose windows, chunks and selections are shorter than LENGTH."""
    fields = section(kind) | {"type": kind}
    default = ModelClassArguments.model_construct(**fields).config(96, 64, 0)
    small = {name: WINDOW for name in LIMITS if isinstance(getattr(default, name, None), int)}
    small |= {name: value for name, value in SMALL.items() if hasattr(default, name)}
    return ModelClassArguments.model_construct(**fields | small | OWN.get(kind, {})).config(96, 64, 0)


# The types of transformers that have blocks which do not see all keys.
WITH_LIMITS = ("afmoe", "axk2", "beam", "cohere2", "cohere2_moe", "cohere_compass_text", "cwm")
WITH_LIMITS += ("deepseek_v32", "deepseek_v4", "dots1", "dots3_note_text", "exaone4", "exaone_moe", "flint")
WITH_LIMITS += ("gemma2", "gemma3_text", "gemma3n_text", "gemma4_text", "gemma4_unified_text", "glm_moe_dsa")
WITH_LIMITS += ("gpt_neo", "gpt_oss", "granite_swa", "granitemoe_swa", "hy_v4", "inkling2_text")
WITH_LIMITS += ("inkling_text", "kolibri1", "laguna", "lfm3", "llama4_text", "mellum", "mimo_v2_flash")
WITH_LIMITS += ("minimax_m3_vl_text", "ministral", "mistral", "mixtral", "modernbert-decoder", "olmo3")
WITH_LIMITS += ("phi3", "phimoe", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen4_exp_text")
WITH_LIMITS += ("recurrent_gemma", "starcoder2", "vaultgemma")
LIMITED = [kind for kind in WITH_LIMITS if kind in model_types()]


@pytest.mark.slow
def test_every_type_with_a_limit_is_listed():
    """Whatever word of its configuration says so."""
    words = ("sliding", "chunked", "local", "indexed", "sparse", "compressed")
    kinds = []
    for kind in model_types():
        try:
            config = tiny(kind)
        except Exception:  # every class has errors of its own
            continue
        types = [*(getattr(config, "layer_types", None) or ()), *(getattr(config, "attention_layers", None) or ())]
        if any(word in name for name in types for word in words) or getattr(config, "sliding_window", None):
            kinds.append(kind)
    assert kinds == LIMITED


def passed(config, **options):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    ids = torch.randint(1, 95, (1, LENGTH))
    with torch.no_grad():
        return model(input_ids=ids, **options)


def keys_of_attention(a, config):
    """Keys that the last token sees in all blocks: not those of indexers."""
    index = 0
    for name in ("index", "indexer"):
        index += getattr(config, f"{name}_n_heads", 0) * getattr(config, f"{name}_head_dim", 0)
    spans = [span for span in a.all_spans if span.multiplied and not span.once]
    return sum(
        s.blocks * s.entries(LENGTH) for s in spans if not (index and s.limit is None and s.multiplied == index)
    )


@pytest.mark.parametrize("kind", sweep(LIMITED, (*FAST, "qwen2", "minimax_m3_vl_text")))
def test_a_block_counts_the_keys_of_the_fullest_row_of_its_mask(kind):
    """Weights that are not 0, in the fullest row of each block: masks, selections and compression are the class's."""
    config = tiny(kind)
    try:
        a, _ = read_class(config.to_dict())
    except ValueError as error:
        pytest.skip(f"not counted: {error}")
    attentions = getattr(passed(config, output_attentions=True), "attentions", None)
    rows = [int((weights > 0).sum(-1).max()) for weights in attentions or () if weights is not None]
    assert rows, f"{kind} hands out no attention"
    # A class that selects whole blocks also sees the unfinished one, which is not counted.
    unfinished = getattr(config, "indexer_compress_ratio", 1) - 1
    assert sum(rows) == keys_of_attention(a, config) + unfinished
    if kind in FAMILIES:
        assert read_model(config).architecture == a


@pytest.mark.parametrize("kind", ["gpt_oss", "gemma3_text"])
def test_the_count_on_the_class_has_the_keys_of_the_formula(kind):
    """Torch counts the angles of rotary positions besides."""
    config = tiny(kind)
    a, _ = read_class(config.to_dict())
    for length in (WINDOW, 8 * WINDOW):
        assert training_flops(config, length) == pytest.approx(a.training_flops(1, length), rel=4e-3)
    whole = replace(a, attention_blocks=a.blocks, spans=())
    assert a.training_flops(1, 8 * WINDOW) < 0.95 * whole.training_flops(1, 8 * WINDOW)


def held(output):
    """Elements of the cache, without positions and the buffers of tokens that are not compressed yet."""
    cache = next(value for value in output.values() if hasattr(value, "layers"))
    tensors = {}
    for layer in cache.layers:
        for name, value in vars(layer).items():
            parts = value.values() if isinstance(value, dict) else [value]
            if not name.startswith(("buffer", "overlap", "_")) and not name.endswith("position_ids"):
                tensors |= {part.data_ptr(): part.numel() for part in parts if isinstance(part, torch.Tensor)}
    return sum(tensors.values())


CACHES = sorted({*LIMITED, *STATES, *LATENT} - {"recurrent_gemma"})  # which keeps its states in its blocks


@pytest.mark.parametrize("kind", sweep(CACHES, FAST))
def test_the_cache_is_what_the_class_holds(kind):
    """But for one key of each full window: the class drops it, since the next token brings its own."""
    config = tiny(kind)
    try:
        a, _ = read_class(config.to_dict())
    except ValueError as error:
        pytest.skip(f"not counted: {error}")
    dropped = 0
    for span in a.all_spans:
        is_window = span.limit is not None and span.stride == 1
        dropped += span.blocks * span.cached if is_window and span.limit <= LENGTH else 0
    local = kind == "gpt_neo"  # whose cache keeps what its windows no longer see
    elements = sum(span.blocks * span.cached * span.entries(LENGTH) for span in a.all_spans)
    expected = elements - dropped
    if local:
        assert held(passed(config, use_cache=True)) > expected
    else:
        assert held(passed(config, use_cache=True)) == expected


GPT_OSS = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 24,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 201088,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
}
THIN_V4 = {  # DeepSeek-V4's blocks and heads of keys; all else is small
    "model_type": "deepseek_v4",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "moe_intermediate_size": 32,
    "num_attention_heads": 2,
    "q_lora_rank": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "o_groups": 2,
    "o_lora_rank": 16,
    "vocab_size": 96,
}


def test_gpt_oss_20b_counts_its_windows():
    """torchtitan (#4300) says 24,141,260,160: 6 FLOPs more for each element of norms, biases and sinks."""
    found = describe(GPT_OSS, context="4k")
    vectors = sum(found.model.left_out[name] for name in ("norms", "biases", "sinks"))
    assert 24_134_270_976 + 6 * vectors == 24_141_260_160
    assert found.to_dict()["flops_per_token"]["training_exact"] == 24_134_270_976
    text = str(found)
    assert "exactly" not in text
    assert "12 of 24 blocks see all keys, 12 of 24 blocks see at most 128 keys" in text
    assert "attention without the causal half" in text


def test_a_cache_of_several_sequences_holds_their_windows_and_states():
    a = describe(GPT_OSS).architecture
    full, window = 12 * 1024 * 2, 12 * 1024 * 2 * 128
    assert (a.kv_bytes_per_token(), a.kv_bytes_per_sequence()) == (full, window)
    assert a.kv_cache_bytes(65_536) == 65_536 * full + window
    assert a.kv_cache_bytes(65_536, context=4096) == 65_536 * full + 16 * window
    assert a.kv_cache_bytes(64, context=4096) == 64 * 2 * full  # shorter than a window
    assert a.kv_cache_bytes(0) == 0
    told = describe(GPT_OSS, context=4096, kv_tokens="64k")
    assert told.to_dict()["bytes"]["kv_cache"] == a.kv_cache_bytes(65_536, context=4096)
    assert "in 16 sequences" in str(told)
    batch = decode_seconds(a, "h100", 16, context=4096) - decode_seconds(a, "h100", 16)
    assert batch == pytest.approx(a.kv_cache_bytes(65_536, context=4096) / 3.35e12 / 16)


def test_the_cache_counts_for_the_choice_of_the_law():
    """A cache of many tokens leaves the law's own model less memory for weights, and its own cache."""
    small = {"model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 16, "num_attention_heads": 16}
    small |= {"intermediate_size": 4096, "vocab_size": 50257}
    plain, cached = (describe(small, "8B", kv_tokens=tokens).prediction.optimum for tokens in (None, "16k"))
    total = cached.best.weight_bytes + cached.best.kv_cache_bytes
    a = describe(small).architecture
    assert cached.best.kv_cache_bytes > 0
    assert plain.best.weight_bytes <= a.weight_bytes() * (1 + 1e-9)
    assert total <= (a.weight_bytes() + a.kv_cache_bytes(16_384)) * (1 + 1e-9)


def test_deepseek_v4_caches_what_its_configuration_compresses():
    """A block keeps one vector of 512 for 128 tokens, or one of 512 and 128 for 4; and a window of 128."""
    a = read_model(THIN_V4).architecture  # 3 blocks of the one kind and 1 of the other
    heavy, sparse, window = 2 * 512 / 128, 2 * (512 + 128) / 4, 2 * 128 * 512
    assert a.kv_bytes_per_token() == 3 * heavy + sparse
    assert a.kv_bytes_per_sequence() == 4 * window
    assert a.kv_cache_bytes(4096) == 4096 * a.kv_bytes_per_token() + 4 * window
    assert (23 * heavy + 20 * sparse, 43 * window) == (6584, 5_636_096)  # of DeepSeek-V4's 43 blocks


def test_mamba_2_keeps_a_state_and_no_keys():
    shape = {"hidden_size": 2560, "num_heads": 80, "state_size": 128, "n_groups": 1, "num_hidden_layers": 2}
    found = describe({"model_type": "mamba2", "vocab_size": 96, **shape}, context="4k")
    a, state = found.architecture, 80 * 64 * 128
    convolution = (2 * 2560 + 2 * 128) * 4
    assert (a.heads, a.kv_bytes_per_token(), a.kv_bytes_per_sequence()) == (80, 0, 2 * (4 * state + 2 * convolution))
    assert a.kv_cache_bytes(8192, context=1024) == 8 * a.kv_bytes_per_sequence()
    assert a.forward_flops(4096) - a.forward_flops() == a.forward_flops(8) - a.forward_flops() == 2 * 4 * state
    assert "2 of 2 blocks keep a state" in str(found)
    assert "The scan of a state counts 4 FLOPs" in str(found)


def test_step_times_count_what_blocks_see():
    """The FLOPs of a step are those of `Architecture`, for models of different windows."""
    windowed = replace(Architecture(512), attention_blocks=2, spans=(Span(6, 128), Span(8, once=True, multiplied=999)))
    models = [Architecture(512), windowed, Architecture(1024, attention_blocks=4, spans=(Span(12, 64, stride=4),))]
    each = [ModelWork.of(a).in_step(1, None, 2048, 1)["flops"] for a in models]
    assert each == pytest.approx([a.training_flops(1, 2048) for a in models])


def test_spans_are_read_from_json():
    a = replace(Architecture(512), attention_blocks=2, spans=(Span(6, 128), Span(6, 64, 4, multiplied=7, cached=3)))
    assert Architecture(**json.loads(json.dumps(a.to_dict()))) == a
    for spans, message in (([3], "must be a Span"), ([{"blocks": 0}], "spans: blocks=0"), (3, "spans=3 must be")):
        with pytest.raises(ValueError, match=message):
            Architecture(512, spans=spans)
