"""Questions about families: the best of all models that exist, against a search over each of them by itself."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling_law import JointLaw, compare
from scaling_law.planning.budget import Cluster
from scaling_law.planning.limits import Limits
from scaling_law.planning.optimum import optimum_draws
from scaling_law.size import Family, read_model
from tests.conftest import examples, sweep

LAW = JointLaw.published().replace(draws=None)
# Grouped queries; latent attention, a shared expert and leading dense blocks; all heads; windows; two experts; dense.
NAMES = (
    "qwen3-30b-a3b",
    "deepseek-v3",
    "olmoe-1b-7b",
    "gpt-oss-20b",
    "mixtral-8x7b",
    "llama-3.1-8b",
)


def models_of(name, experts, largest=6144):
    """Every architecture of a family with these routed experts, and the variables that the law sees of it."""
    family = Family.read(name)
    for width, count in itertools.product(family.rungs(largest).tolist(), experts):
        a = family.architecture(width, float(family.expansion(count)))
        n_active = a.n_active_non_embedding + 2 * a.d_model * LAW.vocab_size
        yield a, count, {"n_active": n_active, "experts": a.experts_equivalent}


@pytest.mark.parametrize("name", sweep(NAMES, fast=["qwen3-30b-a3b", "deepseek-v3"]))
@examples(8, 60)
@given(
    log_flops=st.floats(18, 22),
    log_memory=st.floats(9.5, 12),
    kv_tokens=st.sampled_from([0, 16_384, 1_000_000]),
    served=st.sampled_from([0.0, 1e10]),
)
def test_the_best_model_is_the_best_of_all_that_exist(name, log_flops, log_memory, kv_tokens, served):
    flops, memory = 10**log_flops, 10**log_memory
    experts = [1.0] if name.startswith("llama") else [16.0, 64.0]
    # One model at a time, without arrays.
    losses = {}
    for a, count, variables in models_of(name, experts):
        tokens = flops / (6 * a.n_active) - served / 3
        if tokens > 0 and 2 * a.n_total + a.kv_cache_bytes(kv_tokens) <= memory:
            losses[a.d_model, count] = float(LAW.loss(tokens=tokens, **variables))
    limits = {
        "memory": memory,
        "kv_tokens": kv_tokens,
        "inference_tokens": served,
    }
    if not losses:
        with pytest.raises(ValueError, match="nothing fits"):
            LAW.optimal(flops, experts, like=name, force=True, **limits)
        return
    best = LAW.optimal(flops, experts, like=name, force=True, **limits).best
    assert best.loss == pytest.approx(min(losses.values()), rel=1e-12)
    assert losses[best.d_model, best.routed_experts] == pytest.approx(best.loss, rel=1e-12)
    assert best.n_active == best.architecture.n_active
    assert best.weight_bytes + best.kv_cache_bytes <= memory
    assert best.training_flops + best.inference_flops == pytest.approx(flops, rel=1e-5)


@pytest.mark.parametrize("name", sweep(NAMES, fast=["qwen3-30b-a3b"]))
def test_hours_go_to_the_best_of_all_that_exist(name):
    cluster = Cluster.of({}, gpus=8, gpu="h100")
    experts = [1.0] if name.startswith("llama") else [16.0, 64.0]
    losses = []
    for a, _, variables in models_of(name, experts, largest=3072):
        tokens = float(cluster.tokens(a, 3600 * 24))
        if tokens > 0:
            losses.append(float(LAW.loss(tokens=tokens, **variables)))
    best = LAW.optimal(hours=24, gpus=8, gpu="h100", experts=experts, like=name, force=True).best
    assert best.loss == pytest.approx(min(losses), rel=1e-6)


@examples(10, 100)
@given(log_flops=st.floats(18, 22), memory=st.floats(4e10, 4e11), more=st.floats(1, 3))
def test_more_memory_or_compute_is_never_worse(log_flops, memory, more):
    """The region of trusted models is a limit, too."""

    def loss(flops, memory):
        return LAW.optimal(flops, [16, 64], like="qwen3-30b-a3b", memory=memory).trusted_loss or np.inf

    flops = 10**log_flops
    assert loss(flops, more * memory) <= loss(flops, memory)
    assert loss(more * flops, memory) <= loss(flops, memory) * (1 + 1e-12)


def test_a_released_model_is_found_again():
    """Qwen3-30B-A3B itself, where its size is the limit, with the E of the law beside its 128 experts."""
    a = read_model("qwen3-30b-a3b").architecture
    table = LAW.optimal(1e22, [1, 128], like="qwen3-30b-a3b", max_parameters=a.n_total, force=True)
    row = table[128]
    assert (row.architecture, row.experts, row.routed_experts) == (a, 16, 128)
    assert str(row.model).startswith("128 experts, E = 16: 3.34B active of 30.5B parameters")
    planned = LAW.plan(1e22, [128], like="qwen3-30b-a3b", max_parameters=a.n_total, force=True)
    section = planned.configuration()["model"]
    assert planned.architecture == a
    assert (section["type"], section["num_experts"], section["hidden_size"]) == ("qwen3_moe", 128, 2048)
    assert read_model({**section, "model_type": "qwen3_moe", "vocab_size": a.vocab_size}).architecture == a


def test_every_width_between_rungs_is_an_answer_where_it_is_asked_for():
    exact = LAW.optimal(1e20, [64], like="olmoe-1b-7b", integral=False).best
    whole = LAW.optimal(1e20, [64], like="olmoe-1b-7b").best
    assert exact.architecture is None
    assert abs(exact.d_model - whole.d_model) < 128
    assert exact.loss <= whole.loss * (1 + 1e-6)
    reached = LAW.reach(exact.loss, [64], like="olmoe-1b-7b")
    assert reached.best.flops == pytest.approx(1e20, rel=1e-3)
    assert reached.best.routed_experts == 64
    least = LAW.reach(exact.loss * 1.002, [64], flops=1e20, like="olmoe-1b-7b").best
    assert least.memory_bytes < exact.memory_bytes
    draws = optimum_draws(JointLaw.published(), 1e20, [64], like="olmoe-1b-7b")
    assert np.quantile(draws.d_model, 0.1) < exact.d_model < np.quantile(draws.d_model, 0.9)


def test_a_vocabulary_of_its_own_changes_the_model_and_not_what_the_law_counts():
    small = Limits.of(LAW, like="qwen3-30b-a3b", vocab_size=50_257)
    large = Limits.of(LAW, like="qwen3-30b-a3b")
    assert (small.vocab_size, large.vocab_size) == (50_257, 151_936)
    assert small.architecture(2048, 16).vocab_size == 50_257
    for variable in ("n_active", "n_total"):
        assert small.ladder.variables(2048, 16)[variable] == large.ladder.variables(2048, 16)[variable]
    assert small.memory_bytes(2048, 16) < large.memory_bytes(2048, 16)
    # Of its own vocabulary a model of ours and of a family count alike.
    assert small.ladder.variables(2048, 16)["own_n_active"] == small.ladder.variables(2048, 16)["n_active"]


def test_what_experts_are_worth_in_a_family():
    worth = LAW.speedup(128, flops=1e21, like="qwen3-30b-a3b")
    of_paper = LAW.speedup(16, flops=1e21)
    assert worth.model == "E = 16"
    assert worth.factor == pytest.approx(of_paper.factor, rel=0.2)
    assert LAW.speedup(flops=1e21, like="qwen3-30b-a3b").factor == worth.factor


def test_every_law_can_be_asked_about_a_family():
    comparison = compare(1e21, laws=["chinchilla", "krajewski", "ludziejewski"], like="qwen3-30b-a3b")
    assert comparison.rows[0].experts == 1


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({"like": "qwen3-30b-a3b", "granularity": 4}, "granularity=4.* is of the paper's shape"),
        ({"like": "qwen3-30b-a3b", "kv_heads_ratio": 0.5}, "kv_heads_ratio=0.5 is of the paper's shape"),
        ({"like": "qwen3-30b-a3b", "experts": [4]}, "experts=4 must be a whole number above the 8"),
        ({"like": "no-such-model"}, "no folder or Hub repo"),
        ({"like": "llama-3.1-8b", "experts": [8]}, "is a dense family"),
        ({"like": ""}, "like=''"),
    ],
)
def test_what_does_not_go_with_a_family_is_refused(question, message):
    with pytest.raises(ValueError, match=message):
        LAW.optimal(1e20, **question)
