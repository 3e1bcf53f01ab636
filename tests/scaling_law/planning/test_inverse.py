"""Inverse questions: each answer put back into the law gives the question."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling_law import ExtrapolationError, JointLaw
from scaling_law.planning.inverse import flop_savings
from scaling_law.planning.matched import matched_memory, tokens_to_reach

EXPERTS = [1, 2, 4, 8, 16, 32]


def test_flop_savings_of_the_paper(published):
    np.testing.assert_allclose(100 * flop_savings(published, 1e20), [0, 12.0, 25.9, 40.0, 52.9, 63.7], atol=0.05)
    assert flop_savings(published, [1e19, 1e20, 1e21], [8]).shape == (3, 1)
    with pytest.raises(ExtrapolationError, match="N_act"):
        flop_savings(published, 1e28, [8])


def test_cheapest_budget_reaches_the_loss_and_no_less_does(published):
    limits = {"memory": 24e9, "kv_tokens": 16_384, "inference_tokens": 1e10}
    found = published.reach(2.3, EXPERTS, **limits)
    for e, row in zip(EXPERTS, found.to_rows(), strict=True):
        best = published.optimal(row["flops"], [e], **limits)[e]
        assert best.loss == pytest.approx(2.3, abs=1e-6)
        for name in ("n_active", "n_total", "tokens", "memory_bytes"):
            assert row[name] == pytest.approx(getattr(best, name))
        assert published.optimal(row["flops"] * 0.99, [e], **limits)[e].loss > 2.3
    assert np.isinf(published.reach(1.9, [32], memory="24GB").flops).all()
    assert np.isinf(published.reach(1.3, [1]).flops).all()  # below the irreducible loss
    with pytest.raises(ValueError, match="loss=-1"):
        published.reach(-1)


def test_smallest_memory_that_beats_a_dense_model(published):
    flops = 6 * 1.1e9 * 8e9
    loss = published.loss(1.1e9, 8e9, 1)
    found = published.reach(loss, EXPERTS, flops=flops)
    assert found.memory_bytes[0] == pytest.approx(2.2e9, rel=1e-6)
    assert np.all(np.diff(found.memory_bytes) < 0)
    for e, memory in zip(EXPERTS, found.memory_bytes, strict=True):
        assert published.optimal(flops, [e], memory=memory)[e].loss == pytest.approx(loss, abs=1e-9)
        assert published.optimal(flops, [e], memory=0.98 * memory)[e].loss > loss
    assert np.isinf(published.reach(2.0, [1], flops=1e18).memory_bytes[0])
    with pytest.raises(ValueError, match="memory"):
        published.reach(2.5, flops=1e20, memory=1e9)


def test_an_answer_beyond_the_guard_is_refused_or_marked(published):
    """1e22 FLOPs reach 2.3 nats in the least memory at D/N of up to 45,000."""
    with pytest.raises(ExtrapolationError, match=r"D/N 45.5K is outside the fitted 0.361…72.7 .*guard of 100 times"):
        published.reach(2.3, flops=1e22, experts=[8, 32])
    found = published.reach(2.3, flops=1e22, experts=[1, 32])
    assert found.check.trusted.tolist() == [True, False]
    assert any("D/N 45.5K" in warning for warning in found.warnings)
    with pytest.raises(ExtrapolationError, match="D 6"):
        published.reach([2.3, 1.42], [1])  # one of two losses
    assert published.reach([2.3, 1.42], [1], force=True).check.trusted.tolist() == [[True], [False]]
    for question in ((1e22, 1024), (1e28,)):
        with pytest.raises(ExtrapolationError):
            matched_memory(published, *question)


@given(st.floats(7.5, 10.5), st.floats(8, 12), st.integers(1, 64))
def test_tokens_to_reach_inverts_the_law(log_n, log_d, experts):
    law = JointLaw.published()
    loss = law.loss(10**log_n, 10**log_d, experts)
    assert tokens_to_reach(law, loss, 10**log_n, experts) == pytest.approx(10**log_d, rel=1e-6)
    assert np.isinf(tokens_to_reach(law, 2.0, 1e8, 8))  # tokens cannot replace all parameters


def test_rule_of_thumb(published):
    """E ≤ 8: holds for 1e16 … 1e27 with at least 0.0075 nats; E = 16 fails from 3e25, E = 32 from 1e23."""
    flops = np.geomspace(1e16, 1e27, 111)
    found = matched_memory(published, flops, [2, 4, 8, 16, 32], force=True)
    assert "gain" in found.to_dataframe().columns
    assert "gain" in found._repr_html_()
    holds = found.gain > 0
    assert holds[:, :3].all()
    assert found.gain[:, :3].min() == pytest.approx(0.0075, abs=1e-4)
    first = [flops[np.argmin(holds[:, i])] for i in (3, 4)]
    assert first == pytest.approx([3e25, 1e23], rel=0.3)
    assert np.all((found.token_ratio <= [2, 4, 8, 16, 32]) == holds)
    inside = (flops >= 1e19) & (flops <= 1e25)  # appendix: the same FLOPs and total parameters beat the dense model
    assert np.all(found.loss[inside, :3] < found.dense_loss[inside])
