"""Families: a released model at every width, against the class that has it and against its own configuration."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling_law.size.family import BALANCED_BY_BIAS, DENSE_TWINS, WITHOUT_CLASS, Family
from scaling_law.size.model_configs import FAMILIES, read_model, released_models, released_names
from tests.conftest import examples, sweep

NAMES = released_names()
MIXTURES = (
    "qwen3-30b-a3b",
    "deepseek-v3",
    "gpt-oss-20b",
    "qwen1.5-moe-a2.7b",
    "llama-4-maverick",
    "glm-5",
)
TRAINABLE = [name for name in NAMES if Family.read(name).members[0]["model_type"] not in WITHOUT_CLASS]
SIZES = (
    "n_active",
    "n_total",
    "n_active_non_embedding",
    "n_total_non_embedding",
    "embedding_parameters",
)

SHAPE = (
    "active_width",
    "blocks",
    "routed_blocks",
    "heads",
    "n_kv_heads",
    "experts",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_family_has_its_member(name):
    family = Family.read(name)
    a = read_model(name).architecture
    assert family.architecture(a.d_model, a.experts_equivalent) == a


@pytest.mark.parametrize("name", sweep(TRAINABLE, fast=["qwen3-30b-a3b", "deepseek-v3", "olmoe-1b-7b"]))
@pytest.mark.parametrize("width", sweep([256, 1000, 1600], fast=[256]))
def test_models_are_those_of_the_class_that_trains_them(name, width):
    """The class is built on the meta device, where its parameters, caches and states are counted."""
    model_classes = pytest.importorskip("training.configuration.model_classes")
    family = Family.read(name)
    width = float(family.rungs(width)[-1])
    for experts in [1] * family.has_dense_twin + [family.experts or 1, 2 * (family.experts or 1)]:
        if experts > 1 and not family.experts:
            continue
        e = float(family.expansion(experts))
        section = family.model_section(width, e)
        built = model_classes.ModelClassArguments(**section).model(family.own_vocab_size).architecture
        assert built == family.architecture(width, e)
        assert built.experts_equivalent == pytest.approx(e, rel=1e-12)


@pytest.mark.parametrize("name", sweep(NAMES, fast=MIXTURES))
def test_arrays_are_the_architectures(name):
    """Every size of a rung, its FLOPs at a length and its cache, for several numbers of experts at once."""
    family = Family.read(name)
    widths = family.rungs(4096)[::5]
    experts = np.array([e for e in family.list_experts([1, 2, 8, 32]) if e > 1] or [1.0])
    expansions = family.expansion(experts)
    models = family.widths(widths[:, None], expansions)
    variables = family.variables(widths[:, None], expansions)
    cache = family.cache_bytes(widths, 5000.0, 2.0)
    for i, width in enumerate(widths.tolist()):
        for j, e in enumerate(expansions.tolist()):
            a = family.architecture(width, e)
            for size in (*SIZES, *SHAPE):
                value = np.broadcast_to(getattr(models, size), models.n_total.shape)[i, j]
                assert value == pytest.approx(getattr(a, size), rel=1e-12), size
            for context in (0, 512, 100_000):
                assert models.forward_flops(context)[i, j] == pytest.approx(a.forward_flops(context), rel=1e-12)
            assert cache[i] == pytest.approx(a.kv_cache_bytes(5000, 2.0), rel=1e-12)
            own = a.variables()
            for variable in set(own) & set(variables) - {"n_active", "n_total"}:
                value = np.broadcast_to(variables[variable], models.n_total.shape)[i, j]
                assert value == pytest.approx(own[variable], rel=1e-12), variable


@pytest.mark.parametrize("name", sweep(MIXTURES, fast=["qwen3-30b-a3b"]))
@examples(20, 200)
@given(width=st.floats(100, 8000), experts=st.sampled_from([16, 64, 256]))
def test_sizes_rise_between_rungs_and_widths_are_found_again(name, width, experts):
    family = Family.read(name)
    e = family.expansion(experts)
    below, above = family.beside(np.array(width))
    if width < family.smallest:
        return
    for size in ("n_active", "n_total"):
        low, value, high = (float(getattr(family.widths(d, e), size)) for d in (below, width, above))
        assert low <= value * (1 + 1e-12)
        assert value <= high * (1 + 1e-12)
    rung_sizes = family.variables(np.array([below, above]), e)["n_active"]
    assert family.width_of_active(rung_sizes) == pytest.approx([float(below), float(above)], rel=1e-9)
    found = family.width_of_active(family.variables(width, e)["n_active"])
    assert below * (1 - 1e-9) <= found <= above * (1 + 1e-9)
    # At E = 1 nothing is idle.
    dense = family.widths(width, 1.0)
    assert float(dense.n_total) == pytest.approx(float(dense.n_active + dense.lookup_parameters), rel=1e-12)


def test_what_grows_with_the_width_and_what_stays():
    """Qwen3 30B-A3B: 32 heads of 128 at width 2,048 are 2 d, 48 blocks, experts of 768, 4 key-value heads."""
    a = Family.read("qwen3-30b-a3b").architecture(1024, 16)
    assert (a.heads, a.n_kv_heads, a.head_dim) == (16, 4, 128)
    assert (a.blocks, a.d_expert, a.experts, a.experts_per_token) == (24, 384, 128, 8)
    mla = Family.read("deepseek-v3").architecture(1792, Family.read("deepseek-v3").expansion(64))
    assert (mla.heads, mla.dense_blocks, mla.shared_experts, mla.experts) == (32, 3, 1, 64)
    assert (mla.latent_attention.kv_rank, mla.latent_attention.rope_dim) == (512, 64)


def test_depth_lies_between_two_members():
    """Qwen3 30B-A3B has 48 blocks at 2,048, 235B-A22B 94 at 4,096: in between by a power of the width."""
    family = Family.read("qwen3-30b-a3b,qwen3-235b-a22b")
    blocks = [family.architecture(d, 16).blocks for d in (1024, 2048, 2944, 4096, 8192)]
    power = math.log(94 / 48) / math.log(2)
    assert blocks == [24, 48, round(48 * (2944 / 2048) ** power), 94, 188]


def test_routed_experts_and_e():
    family = Family.read("deepseek-v3")
    assert family.expansion(256) == pytest.approx(257 / 9)
    assert family.routed_experts(family.expansion([16.0, 64.0])).tolist() == pytest.approx([16, 64])
    assert family.list_experts([1, 2, 4]) == [16, 32, 256]
    assert Family.read("qwen3-30b-a3b").list_experts([1, 2, 4]) == [1, 16, 32, 128]


@pytest.mark.parametrize(
    ("like", "message"),
    [
        ("qwen3-30b-a3b,deepseek-v3", "members of one family have the same model_type, not 'qwen3_moe' and 'deepsee"),
        ("qwen3-30b-a3b,qwen3-30b-a3b", "two members have the same hidden_size"),
        ({"model_type": "mamba", "hidden_size": 64}, "models of type mamba are counted on their class"),
    ],
)
def test_what_is_no_family_is_refused(like, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        Family.read(like)


@pytest.mark.parametrize(
    ("name", "experts", "message"),
    [
        ("llama-3.1-8b", 8, "is a dense family, which has experts=1 alone"),
        ("deepseek-v3", 1, "no class has the blocks of deepseek-v3"),
        ("qwen3-30b-a3b", 8, "must be a whole number above the 8 that a token"),
        ("qwen3-30b-a3b", 12.5, "must be a whole number"),
        ("deepseek-v3", 12, "must be a multiple of its 8 groups"),
    ],
)
def test_numbers_of_experts_that_a_family_lacks_are_refused(name, experts, message):
    with pytest.raises(ValueError, match=message):
        Family.read(name).read_experts(np.array([float(experts)]))


def test_tables_of_classes_are_those_of_transformers():
    model_classes = pytest.importorskip("training.configuration.model_classes")
    types = {*model_classes.model_types()} & {*FAMILIES}
    assert {name for name in types if model_classes.has_selection_bias(name)} == BALANCED_BY_BIAS
    assert {*DENSE_TWINS, *DENSE_TWINS.values()} <= types
    assert not WITHOUT_CLASS & types


def test_every_released_model_has_a_name_of_its_own():
    assert len({*NAMES}) == len(released_models())


@pytest.mark.parametrize("kind", ["qwen3", "qwen3_moe", "mixtral", "olmoe", "gpt_oss", "deepseek_v3", "llama"])
def test_what_a_file_leaves_to_its_class_is_in_the_family(kind):
    """Heads of 128, 8 key-value heads, all sizes: by the table's defaults and the class's."""
    a = read_model({"model_type": kind}).architecture
    family = Family.read({"model_type": kind})
    assert family.architecture(a.d_model, a.experts_equivalent) == a


@pytest.mark.slow
def test_a_hybrid_is_counted_on_its_class_at_a_few_widths():
    """Three of four blocks have linear attention, whose heads follow the width, too."""
    model_classes = pytest.importorskip("training.configuration.model_classes")
    hybrid = {
        "model_type": "qwen3_next",
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "vocab_size": 300,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "full_attention_interval": 4,
        "intermediate_size": 512,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
        "num_experts": 16,
        "num_experts_per_tok": 4,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "linear_conv_kernel_dim": 4,
        "tie_word_embeddings": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        # As configurations have them in memory.
        "id2label": {0: "LABEL_0", 1: "LABEL_1"},
    }
    family = Family.read(hybrid)
    assert family.rungs(1e9).tolist() == [128, 256, 384, 512, 768]
    a = read_model(hybrid).architecture
    assert family.architecture(256, a.experts_equivalent) == a
    for width, experts in ((128, 16), (768, 32)):
        e = float(family.expansion(experts))
        section = family.model_section(width, e)
        assert model_classes.ModelClassArguments(**section).model(300).architecture == family.architecture(width, e)
    models = family.widths(np.array([256.0, 512.0]), family.expansion(16))
    for context in (0, 4096):
        # One width at a time.
        expected = [family.architecture(d, family.expansion(16)).forward_flops(context) for d in (256, 512)]
        np.testing.assert_allclose(models.forward_flops(context), expected, rtol=1e-12)
