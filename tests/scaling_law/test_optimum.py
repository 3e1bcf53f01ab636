"""Optima against the paper's tables and against brute force."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaling_law import Architecture, JointLaw
from scaling_law.architecture import active_parameters, kv_cache_elements, total_parameters
from scaling_law.optimum import Constraints, optimal_widths

EXPERTS = [1, 2, 4, 8, 16, 32]


def brute_force(law, flops, experts, constraints, widths):
    """Lowest loss over a grid of widths that fit, and its width."""
    n = active_parameters(widths, vocab_size=constraints.vocab_size)
    tokens = flops / (6 * n) - constraints.inference_tokens / 3
    total = total_parameters(widths, experts, vocab_size=constraints.vocab_size)
    kv = constraints.kv_heads_ratio * kv_cache_elements(widths, constraints.kv_cache_tokens)
    memory = constraints.bytes_per_parameter * total + constraints.bytes_per_kv * kv
    ok = (tokens > 0) & (total <= (constraints.max_parameters or np.inf))
    ok &= memory <= (constraints.max_memory_bytes or np.inf)
    loss = np.where(ok, law.loss(n, np.where(tokens > 0, tokens, 1.0), experts), np.inf)
    best = int(np.argmin(loss))
    return float(loss[best]), float(widths[best])


def test_closed_form_is_the_minimum_along_the_budget(published):
    found = published.compute_optimal([1e20, 1e22], EXPERTS)
    assert found.loss.shape == (2, 6)
    np.testing.assert_allclose(6 * found.n_active * found.tokens, np.array([[1e20], [1e22]]) * np.ones(6), rtol=1e-12)
    for scale in (0.97, 1.03):
        assert np.all(published.loss(found.n_active * scale, found.tokens / scale, EXPERTS) > found.loss)


@pytest.mark.parametrize("integral", [False, True])
@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"max_parameters": 3e9},
        {"max_memory_bytes": 24e9, "kv_cache_tokens": 16384},
        {"max_memory_bytes": 80e9, "kv_cache_tokens": 2e6, "kv_heads_ratio": 0.25, "bytes_per_kv": 1.0},
        {"inference_tokens": 1e11},
        {"max_memory_bytes": 80e9, "max_parameters": 2e10, "kv_cache_tokens": 1e5, "inference_tokens": 5e11},
        {"max_memory_bytes": 8e9, "vocab_size": 128_000, "bytes_per_parameter": 1.0},
    ],
)
@pytest.mark.parametrize("flops", [1e19, 1e21, 5e22])
def test_constrained_optimum_is_that_of_brute_force(published, flops, limits, integral):
    constraints = Constraints(**limits)
    found = optimal_widths(published, flops, EXPERTS, constraints, integral)
    widths = 64.0 * np.arange(1, 1001) if integral else np.geomspace(64, 64_000, 60_001)
    for i, experts in enumerate(EXPERTS):
        loss, width = brute_force(published, flops, experts, constraints, widths)
        if not integral and np.isfinite(loss):  # a second, finer grid: at a limit the error is first order in the step
            around = np.geomspace(width / 1.0003, width * 1.0003, 60_001)
            loss, width = brute_force(published, flops, experts, constraints, around)
        assert found.fits[i] == np.isfinite(loss)
        if integral:
            assert found.d_model[i] == width
        if np.isfinite(loss):
            assert found.loss[i] <= loss + 1e-12
            assert found.loss[i] == pytest.approx(loss, abs=1e-12 if integral else 1e-8)


@settings(max_examples=60)
@given(
    st.floats(18, 25),
    st.floats(7.2, 13),
    st.floats(0, 7),
    st.one_of(st.just(0.0), st.floats(1e6, 1e13)),
    st.integers(1, 64),
    st.booleans(),
)
def test_optimum_properties(log_flops, log_memory, log_cache, inference, experts, integral):
    law, flops = JointLaw.published(), 10**log_flops
    limits = {"max_memory_bytes": 10**log_memory, "kv_cache_tokens": 10**log_cache, "inference_tokens": inference}
    found = optimal_widths(law, flops, [experts], Constraints(**limits), integral)
    if not found.fits[0]:
        return
    d, n, tokens = found.d_model[0], found.n_active[0], found.tokens[0]
    memory = 2 * total_parameters(d, experts) + 2 * kv_cache_elements(d, 10**log_cache)
    assert memory <= 10**log_memory * (1 + 1e-9)
    assert 6 * n * tokens + 2 * n * inference == pytest.approx(flops, rel=1e-9)
    assert found.loss[0] == pytest.approx(law.loss(n, tokens, experts), rel=1e-12)
    larger = optimal_widths(
        law, flops, [experts], Constraints(**limits | {"max_memory_bytes": 10 ** (log_memory + 0.3)})
    )
    assert larger.loss[0] <= found.loss[0] + 1e-12
    if integral:
        assert d % 64 == 0


def test_caption_of_the_matched_models(published):
    """Appendix: 1B dense on 10B tokens, matched in FLOPs and memory at E = 16: 155M active, 64B tokens, D/N 414."""
    dense_flops = 6 * 1e9 * 10e9
    row = published.optimal(dense_flops, [16], max_parameters=1e9)[16]
    assert row.n_active == pytest.approx(155e6, rel=4e-3)
    assert row.tokens == pytest.approx(64e9, rel=1e-2)
    assert row.tokens_per_parameter == pytest.approx(414, abs=1.0)
    assert any("D/N" in warning for warning in row.warnings)


def test_table_of_the_best_models(published):
    table = published.optimal(1e22, max_memory_bytes=80e9, kv_cache_tokens=16_384)
    assert [row.experts for row in table] == EXPERTS
    assert table.best is table[16]
    assert {row.limited_by for row in table.rows[2:]} == {"memory"}
    assert table[1].limited_by == "compute"
    for row in table.rows[2:]:
        assert row.memory_bytes == pytest.approx(80e9, rel=1e-9)
        assert row.weight_bytes == pytest.approx(2 * row.n_total)
    assert "best" in str(table)
    frame = table.to_pandas()
    assert frame.loc[frame.best, "experts"].tolist() == [16]
    assert table.to_dict()["best"]["experts"] == 16


def test_integral_rows_are_architectures(published):
    table = published.optimal(1e21, [1, 3, 8], max_memory_bytes=10e9, integral=True)
    for row in table:
        a = row.architecture
        assert isinstance(a, Architecture)
        assert (a.d_model % 64, a.blocks, a.heads) == (0, a.d_model // 64, a.d_model // 64)
        assert (a.n_active, a.n_total) == (row.n_active, row.n_total)
        assert row.config_arguments()["num_experts"] == row.experts
    with pytest.raises(ValueError, match="integral"):
        published.optimal(1e21)[1].config_arguments()


def test_guard_far_below_the_fitted_range(published):
    """Under about 0.34B elements at 5e22 the bare law prefers sparse models with absurd D/N."""
    small = published.optimal(5e22, max_parameters=0.2e9)
    bare = published.replace(conditions=None).optimal(5e22, max_parameters=0.06e9)
    assert bare.best.experts > 1
    assert small.best.experts == 1
    assert not small.best.trusted
    assert any("do not act" in warning for warning in small.warnings)


def test_contradictory_constraints_say_what_is_needed(published):
    with pytest.raises(ValueError, match=r"nothing fits.*at least 13 MB \(12972288 bytes\)"):
        published.optimal(1e20, max_memory_bytes=1e6)
    with pytest.raises(ValueError, match=r"inference_tokens=1e\+14 alone"):
        published.optimal(1e20, inference_tokens=1e14)
    table = published.optimal(1e19, [1, 512], max_memory_bytes=14e6)
    assert table.experts_that_do_not_fit == (512,)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"flops": -1}, "flops"),
        ({"flops": 1e20, "experts": [0]}, "experts"),
        ({"flops": 1e20, "experts": []}, "experts"),
        ({"flops": 1e20, "max_parameters": 0}, "max_parameters"),
        ({"flops": 1e20, "kv_cache_tokens": -1}, "kv_cache_tokens"),
        ({"flops": 1e20, "bytes_per_kv": 0}, "bytes_per_kv"),
        ({"flops": 1e20, "kv_heads_ratio": 2}, "kv_heads_ratio"),
        ({"flops": 1e20, "experts": [1.5], "integral": True}, "experts"),
    ],
)
def test_bad_limits_are_named(published, arguments, field):
    with pytest.raises(ValueError, match=field):
        published.optimal(**arguments)


def test_a_law_that_does_not_fall_has_no_optimum(published):
    with pytest.raises(ValueError, match="no compute optimum"):
        published.replace(beta=0.3).optimal(1e20)
