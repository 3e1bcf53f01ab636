"""The laws that forecast as one law: what `forecast` says, under the questions that every law answers."""

import numpy as np
import pytest

from scaling_law import ChinchillaLaw, JointLaw, Law, StackLaw, forecast, stack_laws
from tests.scaling_law.forecasting.test_forecast import sweep
from tests.scaling_law.synthetic import synthetic_runs


@pytest.fixture(scope="module")
def dense() -> StackLaw:
    return stack_laws(sweep())


@pytest.fixture(scope="module")
def several() -> StackLaw:
    runs = synthetic_runs(sigma=0.004)
    return stack_laws(runs.take(np.arange(0, len(runs), 5)), "1e22")


def test_it_says_what_the_forecast_says(dense):
    runs = sweep()
    top = np.argmax(runs.flops)
    at = {name: runs[name][top] * np.sqrt(10.0) for name in ("n_active", "tokens")}
    answer = forecast(runs, at)
    assert float(dense.loss(**at)) == pytest.approx(answer.rows[0]["loss"], rel=1e-6)
    weights = {law["law"]: law["weights"][0] for law in answer.laws}
    assert sorted(dense.weights) == pytest.approx(sorted(w for w in weights.values() if w > 0))
    low, high = np.quantile(dense.loss_draws(**at), [0.05, 0.95])
    assert low < answer.rows[0]["loss"] < high


@pytest.mark.parametrize("budget", ["1e20", "3e21"])
def test_brute_force_finds_no_better_model(dense, budget):
    best = dense.compute_optimal(budget, 1.0)
    n = np.geomspace(1e7, 1e11, 20_001)
    losses = dense.loss(n, float(budget) / 6 / n)
    assert float(best.loss) == pytest.approx(losses.min(), abs=1e-7)
    assert float(best.n_active) == pytest.approx(n[np.argmin(losses)], rel=0.01)


def test_brute_force_over_experts_and_memory(several):
    memory = 24e9
    table = several.optimal("1e22", [1, 2, 4, 8, 16], memory=memory, force=True)
    assert table.best.memory_bytes <= memory * (1 + 1e-9)
    for row in table:
        wide = several.optimal("1e22", row.experts, force=True).best
        n = np.geomspace(1e8, 1e11, 4001)
        assert wide.loss == pytest.approx(several.loss(n, 1e22 / 6 / n, row.experts).min(), abs=1e-6)
        assert row.loss >= wide.loss - 1e-9
    assert table.best.loss == min(row.loss for row in table)
    assert several.plan("1e21").architecture.experts in several.default_experts()
    dense_flops, sparse_flops = several.reach(2.4, [1, 8]).flops
    assert sparse_flops < dense_flops


def test_laws_without_experts_move_by_the_published_gain(several):
    joint = JointLaw.published()
    one = StackLaw([ChinchillaLaw(30.0, -0.18, 54.0, -0.2, 1.4)], [1.0], 2.0)
    assert one.loss(1e9, 2e10, 2) == pytest.approx(one.laws[0].loss(1e9, 2e10))
    assert one.loss(1e9, 2e10, 8) / one.loss(1e9, 2e10, 2) == pytest.approx(
        joint.loss(1e9, 2e10, 8) / joint.loss(1e9, 2e10, 2)
    )
    assert several.loss(3e9, 1e11, 8) == pytest.approx(float(joint.loss(3e9, 1e11, 8)), rel=0.01)


def test_draws_are_laws_by_weight_and_survive_a_file(several, tmp_path):
    ones = several.draws[:, : len(several.weights)]
    assert {*np.unique(ones)} <= {0.0, 1.0}
    np.testing.assert_allclose(ones.mean(axis=0), several.weights, atol=0.01)
    several.save_pretrained(tmp_path)
    again = Law.from_pretrained(tmp_path)
    assert again == several
    np.testing.assert_array_equal(again.loss_draws(1e9, 2e10, 4), several.loss_draws(1e9, 2e10, 4))
    assert again.replace(weights=again.weights[::-1]).draws is None
    assert f"{max(several.weights):.2f}" in str(several.summary().rows)
    assert "StackLaw(" in repr(several)


def test_a_published_law_that_ends_below_zero_is_left_out():
    import dataclasses

    runs = sweep()
    low = dataclasses.replace(runs, loss=runs.loss / 4)
    assert not any(law.name == "joint" for law in stack_laws(low, kinds=("published", "chinchilla")).laws)
