"""Sizes against the paper's listing, and the inverses of the size formulas."""

import json
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling_law import Architecture, published_design
from scaling_law.size import ROWS, LatentAttention
from scaling_law.size.architecture import (
    Span,
    active_parameters,
    affordable_tokens,
    inference_flops,
    total_parameters,
    width_of_total,
)
from scaling_law.size.ladder import PaperLadder


def printed_value(text: str) -> tuple[float, float]:
    """The value of '1.1B' and half a unit of its last digit."""
    number, scale = float(text[:-1]), {"B": 1e9, "M": 1e6}[text[-1]]
    decimals = len(text[:-1].partition(".")[2])
    return number * scale, 0.5 * scale * 10**-decimals


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.d_model}x{row.n_blocks}-E{row.experts}")
def test_sizes_of_the_listing(row):
    for text, value in ((row.n_total, row.architecture.n_total), (row.n_active, row.architecture.n_active)):
        expected, half_unit = printed_value(text)
        assert abs(value - expected) <= half_unit * (1 + 1e-9)


def test_listing_has_the_counted_runs():
    design = published_design()
    assert (len(ROWS), len(design.tokens), len(np.unique(design.trunk))) == (53, 270, 51)
    ratio = design.tokens / design.n_active
    assert (ratio.min(), ratio.max()) == (pytest.approx(0.36, abs=0.005), pytest.approx(72.7, abs=0.05))
    assert int(np.sum(ratio < 1)) == 13
    assert sum(row.d_model // row.n_heads == 128 for row in ROWS) == 8


def test_flops_and_cache():
    a = Architecture(1024, experts=8)
    assert a.n_active == 2 * 1024 * 50257 + 13 * 16 * 1024**2
    assert a.n_total == 2 * 1024 * 50257 + (4 + 72) * 16 * 1024**2
    assert set(a.to_dict()) == {"d_model", "n_blocks", "n_heads", "experts", "vocab_size"}  # the paper's: no more
    assert a.training_flops(1e9) == 6 * a.n_active * 1e9
    assert inference_flops(a.n_active, 1e9) == 2 * a.n_active * 1e9
    assert PaperLadder().cache_bytes(1024, 8192, 2.0) == a.kv_cache_bytes(8192) == 2 * 2 * 8192 * 16 * 1024


DEEPSEEK_V3 = Architecture(  # 671B and 37B: deepseek-ai/DeepSeek-V3 at 9b4e9788, README.md
    7168,
    experts=256,
    n_blocks=61,
    n_heads=128,
    vocab_size=129280,
    experts_per_token=8,
    d_expert=2048,
    shared_experts=1,
    dense_blocks=3,
    d_ff=18432,
    latent_attention=LatentAttention(kv_rank=512, rope_dim=64, nope_dim=128, value_dim=128, query_rank=1536),
)
# Step Law (arXiv 2503.04715), `data/moe_lr_bs_loss.csv` at 32a8f4cc: nume, topk, moeh, sed, and N and Na of the table.
STEP_LAW = [
    (89, 1, 352, 352, 2150612992, 187973632, 45),
    (88, 2, 352, 704, 2150612992, 232579072, 22.5),
    (8, 1, 3528, 3528, 2155174912, 590436352, 4.5),
    (8, 3, 2888, 8664, 2156188672, 1241270272, 11 / 6),
]


@pytest.mark.parametrize(("experts", "top_k", "width", "shared", "total", "active", "equivalent"), STEP_LAW)
def test_sizes_of_another_lab(experts, top_k, width, shared, total, active, equivalent):
    sizes = {"experts_per_token": top_k, "d_expert": width, "shared_experts": 1, "d_shared": shared}
    a = Architecture(1408, experts, n_blocks=16, n_heads=11, vocab_size=65536, dense_blocks=1, d_ff=3904, **sizes)
    assert (a.n_total_non_embedding, a.n_active_non_embedding) == (total, active)
    assert a.attention_parameters == 126877696
    assert a.experts_equivalent == pytest.approx(equivalent, rel=1e-12)


def test_sizes_of_deepseek_v3():
    a = DEEPSEEK_V3
    assert (round(a.n_total / 1e9), round(a.n_active / 1e9)) == (671, 37)
    assert a.kv_cache_bytes(1, bytes_per_element=1) == 61 * (512 + 64)
    assert (a.granularity, a.experts_equivalent) == (9, 257 / 9)
    named = {"density": 8 / 256, "sparsity": 248 / 256, "activation_ratio": 9 / 257, "shared_ratio": 1 / 9}
    named["active_experts"] = 9
    assert a.variables().items() >= (named | {"experts": 257 / 9, "routed_experts": 256}).items()


@given(st.integers(1, 64), st.integers(1, 8), st.sampled_from([1, 2, 4, 8]))
def test_finer_experts_change_granularity_alone(experts, top_k, finer):
    """Krajewski et al. 2024, Section 4: each expert split into G, of which G times as many are active."""
    coarse = Architecture(512, experts * top_k, experts_per_token=top_k, d_expert=1536)
    fine = Architecture(512, experts * top_k * finer, experts_per_token=top_k * finer, d_expert=1536 // finer)
    changed = {"granularity", "d_expert", "experts_per_token", "active_experts", "routed_experts"}
    before, after = coarse.variables(), fine.variables()
    assert {name for name in before if before[name] != pytest.approx(after[name])} <= changed
    assert fine.granularity == finer * coarse.granularity
    assert (fine.n_total, fine.n_active) == (coarse.n_total, coarse.n_active)


@pytest.mark.parametrize("experts", [1, 8])
def test_the_defaults_are_the_models_of_the_paper(experts):
    a = Architecture(1024, experts)
    written_out = {"d_expert": 3072, "n_kv_heads": 16, "head_dim": 64, "experts_per_token": 1, "gated": True}
    assert a == Architecture(1024, experts, 16, 16, 50257, **written_out)
    assert a.variables()["experts"] == experts
    assert a.variables()["density"] == 1 / experts
    assert a.weight_bytes() == 2 * a.n_total == 2 * total_parameters(1024, experts)
    assert a.kv_cache_bytes(8192) == 2 * 2 * 8192 * 16 * 1024
    assert a.inference_flops(10) == 20 * a.n_active
    assert a.training_state_bytes == 16 * a.n_total


def test_exact_flops_leave_out_the_lookup_and_add_router_and_attention():
    a = Architecture(1024, 8)
    assert a.forward_flops() == 2 * (a.n_active - 1024 * 50257 + 16 * 1024 * 8)
    assert a.training_flops(3, context=512) == pytest.approx(9 * (a.forward_flops() + 16 * 4 * 512 * 1024))
    assert a.inference_flops(3, context=512) == pytest.approx(a.training_flops(1, context=512))


def test_parts_that_shrink_a_model():
    a = Architecture(1024, n_kv_heads=4, tied_embeddings=True, gated=False)
    full = Architecture(1024)
    assert full.n_total - a.n_total == 16 * 2 * 1024 * 768 + 1024 * 50257 + 16 * 1024 * 3072
    assert full.kv_cache_bytes(1) == 4 * a.kv_cache_bytes(1)
    assert Architecture(1024, head_dim=128).attention_parameters == 2 * full.attention_parameters


@pytest.mark.parametrize("a", [Architecture(192, 8, 5, 3), DEEPSEEK_V3, Architecture(100, 1, 2, 3, head_dim=7)])
def test_an_architecture_is_made_again_from_its_json(a):
    assert Architecture(**json.loads(json.dumps(a.to_dict()))) == a


MLA = LatentAttention(kv_rank=64, rope_dim=64, nope_dim=128, value_dim=128)


def test_the_width_of_a_dense_model_counts_by_either_name():
    by_d_ff, by_d_expert = (Architecture(4096, 1, 32, 32, **{name: 14336}) for name in ("d_ff", "d_expert"))
    assert by_d_ff == by_d_expert == replace(by_d_ff)
    assert by_d_ff.n_total == 2 * 4096 * 50257 + 32 * (4 * 4096**2 + 3 * 4096 * 14336)  # 8.2B
    assert Architecture(**by_d_ff.to_dict()) == by_d_ff
    partly = Architecture(1024, 1, dense_blocks=4, d_ff=512)  # the other blocks keep their width
    assert (partly.d_expert, partly.d_ff) == (3072, 512)


# A field that says something of its own, the field's value and what else the architecture needs for it to count.
COUNTS = {
    "experts": (4, {}),
    "n_blocks": (3, {}),
    "n_heads": (8, {"head_dim": 64}),
    "vocab_size": (1000, {}),
    "experts_per_token": (2, {"experts": 4}),
    "d_expert": (512, {}),
    "shared_experts": (1, {"experts": 4}),
    "d_shared": (512, {"experts": 4, "shared_experts": 1}),
    "dense_blocks": (1, {"experts": 4}),
    "d_ff": (512, {"experts": 4, "dense_blocks": 1}),
    "n_kv_heads": (4, {}),
    "head_dim": (32, {}),
    "gated": (False, {}),
    "tied_embeddings": (True, {}),
    "latent_attention": (MLA, {}),
    "lookup_parameters": (1 << 20, {}),
    "mixer_parameters": (1 << 20, {}),
    "attention_blocks": (3, {}),
    "spans": ((Span(1, limit=8),), {}),
}


@pytest.mark.parametrize("name", [f.name for f in fields(Architecture) if f.name not in ("d_model", "_")])
def test_no_field_is_ignored(name):
    value, others = COUNTS[name]
    changed, plain = Architecture(1024, **{**others, name: value}), Architecture(1024, **others)
    counts = [(a.n_total, a.n_active, a.forward_flops(1), a.kv_cache_bytes(1)) for a in (changed, plain)]
    assert counts[0] != counts[1]


@given(st.floats(1e-3, 1e12), st.integers(1, 512), st.integers(256, 300_000))
def test_widths_invert_sizes(d, experts, vocab):
    assert width_of_total(active_parameters(d, vocab_size=vocab), 1, vocab) == pytest.approx(d, rel=1e-12)
    total = total_parameters(d, experts, vocab_size=vocab)
    assert width_of_total(total, experts, vocab) == pytest.approx(d, rel=1e-12)


def test_affordable_tokens_spend_the_budget():
    n, served = 3e9, 1e11
    d = affordable_tokens(1e22, n, served)
    assert 6 * n * d + 2 * n * served == pytest.approx(1e22, rel=1e-12)
