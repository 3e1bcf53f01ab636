"""Inverse questions: each answer put back into the law gives the question."""

import numpy as np
import pytest

from scaling_law import ExtrapolationError, Throughput
from scaling_law import published as shelf
from tests.scaling_law.synthetic import PAPER_RAMP

EXPERTS = [1, 2, 4, 8, 16, 32]


def test_flop_savings_of_the_paper(published):
    dense = published.compute_optimal(1e20, 1)
    savings = 100 * (1 - published.reach(dense.loss).flops / 1e20)
    np.testing.assert_allclose(savings, [0, 12.0, 25.9, 40.0, 52.9, 63.7], atol=0.05)
    assert published.reach([2.5, 2.4, 2.3], [8]).flops.shape == (3, 1)
    with pytest.raises(ExtrapolationError, match="N_act"):
        published.compute_optimal(1e28, 1)


MEASURED = Throughput("a GPU", "bf16", {"steps": 0.02, "flops": 1 / 4e14, "weights": 1e-12}, devices=8)
HOURS = {"gpus": 8, "throughput": MEASURED, "price": 2.0}
COSTS = {"memory": 24e9, "kv_tokens": 16_384, "inference_tokens": 1e10}


@pytest.mark.parametrize(
    ("name", "loss", "experts", "question"),
    [
        ("ludziejewski", 2.3, EXPERTS, COSTS),
        ("ludziejewski", 2.4, [1, 8], {"unique_tokens": 5e9}),
        ("ludziejewski", 2.6, [1, 8], HOURS | {"unique_tokens": 5e9}),
        ("abnar", 2.4, [1, 16], {"unique_tokens": 3e10}),
        ("ludziejewski", 2.6, [1, 8], HOURS | {"memory": "4GB"}),
        ("abnar", 2.4, [1, 16], {"inference_tokens": 1e10}),
        ("abnar", 2.4, [16], HOURS),
    ],
)
def test_the_cheapest_budget_reaches_the_loss_and_no_less_does(name, loss, experts, question):
    law, timed = shelf(name), "gpus" in question
    for e, row in zip(experts, law.reach(loss, experts, **question).to_rows(), strict=True):
        budget = {"hours": row["hours"]} if timed else {"flops": row["flops"]}
        best = law.optimal(**budget, experts=[e], force=True, integral=False, **question).best
        assert best.loss == pytest.approx(loss, abs=1e-6)
        for field in ("n_active", "n_total", "tokens", "memory_bytes"):
            assert row[field] == pytest.approx(getattr(best, field), rel=3e-6)
        assert not timed or row["money"] == pytest.approx(row["hours"] * 8 * 2)
        less = {unit: 0.99 * value for unit, value in budget.items()}
        assert law.optimal(**less, experts=[e], force=True, integral=False, **question).best.loss > loss


def test_what_no_budget_reaches(published):
    assert np.isinf(published.reach(1.9, [32], memory="24GB").flops).all()
    for question in ({}, HOURS):  # below the irreducible loss
        out_of_reach = published.reach(1.3, [1], **question)
        assert np.isinf(out_of_reach.flops).all()
    assert np.isinf(out_of_reach.hours).all()
    (least,) = published.reach(10.0, [8], force=True).to_rows()  # the smallest width stands if any is too large
    assert published.loss(least["n_active"], least["tokens"], 8) == pytest.approx(10.0)


@pytest.mark.parametrize("question", [{"flops": 6 * 1.1e9 * 8e9}, HOURS | {"hours": 72, "batch": PAPER_RAMP}])
def test_the_smallest_memory_reaches_the_loss_and_no_less_does(published, question):
    loss = published.loss(1.1e9, 8e9, 1)  # a dense model that takes 2.2 GB
    found = published.reach(loss, EXPERTS, force=True, **question)
    if "flops" in question:
        assert found.memory_bytes[0] == pytest.approx(2.2e9, rel=1e-6)
        assert np.all(np.diff(found.memory_bytes) < 0)
    for e, memory in zip(EXPERTS, found.memory_bytes, strict=True):
        question |= {"force": True, "integral": False}
        best = published.optimal(**question, experts=[e], memory=memory).best
        assert (best.loss, best.limited_by) == (pytest.approx(loss, abs=1e-9), "memory")
        assert published.optimal(**question, experts=[e], memory=0.98 * memory).best.loss > loss
    assert np.isinf(published.reach(2.0, [1], flops=1e18).memory_bytes[0])


def test_an_answer_beyond_the_guard_is_refused_or_marked(published):
    """1e24 FLOPs reach 1.8 nats in the least memory at a D/N that no trusted model has."""
    with pytest.raises(ExtrapolationError, match=r"E = 200 is outside the fitted 1…32 \(×6.25\), beyond the limit"):
        published.reach(2.3, flops=1e22, experts=[150, 200])
    found = published.reach(2.3, flops=1e22, experts=[1, 200])
    assert found.check.beyond.tolist() == [False, True]
    assert found.check.trusted.tolist() == [True, False]
    assert (found.best["experts"], found.trusted) == (1, True)
    assert found.best["tokens_per_parameter"] == pytest.approx(3 * 72.7, rel=2e-3)
    beyond = published.reach(1.8, flops=1e25, experts=[1])
    assert not beyond.trusted
    assert any(warning.startswith("E = 1: not trusted: N_act ×42.8, D ×179") for warning in beyond.warnings)
    with pytest.raises(ExtrapolationError, match="D 6"):
        published.reach([2.3, 1.42], [1])  # one of two losses
    assert published.reach([2.3, 1.42], [1], force=True).check.trusted.tolist() == [[True], [False]]


def test_the_cheapest_row_that_is_trusted_is_named_and_warned_of(published):
    """At 2.0 nats E = 32 would be 74 times larger than the largest run of its E, and all take over 30 times the C."""
    found = published.reach(2.0)
    assert (found.best["experts"], found.trusted) == (32, False)
    assert found.verdict.endswith("; not trusted")
    assert {warning.partition(":")[0] for warning in found.warnings[1:]} == {"E = 32"}
    assert any(warning.startswith("E = 32: not trusted: N_act ×74.1 and C ×54.6; ") for warning in found.warnings)
    nearer = published.reach(2.08)
    rows = {row["experts"]: row for row in nearer.rows}
    trusted = [e for e, row in rows.items() if row["trusted"]]
    assert nearer.best["experts"] == min(trusted, key=lambda e: rows[e]["flops"]) == 32
    # Of E = 32 a larger model would take 8.65e21 FLOPs, but it is further out than the runs support.
    assert rows[32]["n_active"] == pytest.approx(30 * 321e6, rel=2e-3)
    assert 8.65e21 < rows[32]["flops"] < rows[16]["flops"] < rows[8]["flops"]
    with_another = published.reach(2.08, [16, 64])
    assert "; E = 64 would take 6.79e21 FLOPs, but is not trusted" in with_another.verdict
    several = published.reach([2.2, 2.0])
    assert several.trusted
    assert any(warning.startswith("loss 2, E = 32: N_act 23.8B") for warning in several.warnings)


def test_no_trusted_row_is_further_out_than_backtests(published):
    """By brute force over losses, budgets and memory: N_act and D of each E, C of all runs, and D/N."""
    ranges = {r.experts: r for r in published.conditions.ranges}
    for loss in (2.6, 2.3, 2.15, 2.1, 2.05, 1.9):
        for row in published.reach(loss, force=True).rows:
            of_e, whole = ranges[row["experts"]], ranges[None]
            times = [row["n_active"] / of_e.n_active[1], row["tokens"] / of_e.tokens[1]]
            times += [row["flops"] / whole.training_flops[1], 10 * row["tokens_per_parameter"] / 727.1]
            assert row["trusted"] == (max(times) <= 30.03)


def test_hours_in_which_no_model_reaches_the_loss(published):
    """Draws of step times have no models to be of."""
    answer = published.reach(2.4, hours=1.5, gpu="h100", gpus=8)
    assert answer.best is None
    assert answer.verdict == "no model reaches loss 2.400"
    assert {row["loss_interval"] for row in answer.to_rows()} == {None}
