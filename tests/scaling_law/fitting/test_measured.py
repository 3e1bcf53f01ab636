"""Speed-up of measured runs: Marin's rule where nothing scatters, and intervals that hold the lack of fit."""

import numpy as np
import pytest

from scaling_law import Runs, speedup
from tests.conftest import sweep

BUDGETS = np.array([3e17, 9e17, 2.8e18, 1e19])
SETS = {"loss": (1.6, 87.7, 0.0941), "dclm": (1.9, 95.0, 0.09)}  # L∞, A and α: each set has its own


def runs_of(gain=1.0, noise=0.0, seed=0, budgets=BUDGETS):
    """The best runs of these budgets, each as good as the baseline's with `gain` times the FLOPs."""
    rng, n = np.random.default_rng(seed), np.sqrt(budgets / 120)
    losses = {
        name: (c + a * (gain * budgets) ** -alpha) * np.exp(noise * rng.standard_normal(len(budgets)))
        for name, (c, a, alpha) in SETS.items()
    }
    return Runs.from_columns(n, 20 * n, 1, losses["loss"], "run", columns={"dclm": losses["dclm"]})


def test_without_scatter_each_set_has_its_asymptote_and_its_factor():
    answer = speedup(runs_of(1.25), runs_of(), ["loss", "dclm"], {"loss": 1.6})
    assert [row["set"] for row in answer.to_rows()] == ["loss"] * 4 + ["dclm"] * 4
    for row in answer.to_rows():
        assert row["factor"] == pytest.approx(1.25, rel=1e-3)
        assert row["asymptote"] == pytest.approx(SETS[row["set"]][0], rel=1e-3)
        assert row["low"] <= row["factor"] <= row["high"]
    for row, worse in zip(answer.to_rows(), runs_of().loss, strict=False):  # Marin's identity, whatever the budget
        if row["set"] == "loss":
            marin = ((worse - 1.6) / (row["loss"] - 1.6)) ** (1 / row["exponent"])
            assert row["factor"] == pytest.approx(marin, rel=1e-4)


@pytest.mark.parametrize(("asymptotes", "sets"), sweep([({"loss": 1.6}, 120), ({}, 120), ({}, 60)], [({}, 60)]))
def test_intervals_hold_the_truth_as_often_as_they_say(asymptotes, sets):
    variant = {"gain": 1.2, "noise": 0.002, "budgets": BUDGETS[2:3]}
    inside = []
    for seed in range(sets):
        base = runs_of(noise=0.002, seed=seed, budgets=np.geomspace(1e17, 1e19, 6))
        (row,) = speedup(runs_of(seed=1000 + seed, **variant), base, asymptotes=asymptotes).to_rows()
        inside.append(row["low"] < 1.2 < row["high"])
    assert 0.83 <= np.mean(inside) <= 0.96


def test_a_pinned_asymptote_narrows_and_level_widens():
    base, variant = runs_of(noise=0.001), runs_of(1.2)
    wide, pinned = (speedup(variant, base, None, pins).to_rows()[-1] for pins in ({}, {"loss": 1.6}))
    half = speedup(variant, base, None, {"loss": 1.6}, level=0.5).to_rows()[-1]
    spans = [np.log(row["high"] / row["low"]) for row in (half, pinned, wide)]
    assert spans == sorted(spans)


def test_a_loss_near_the_asymptote_has_no_upper_end():
    variant = Runs.from_columns(1e9, 2e10, 1, [1.59], "run")
    (row,) = speedup(variant, runs_of(noise=0.002), asymptotes={"loss": 1.6}).to_rows()
    assert (row["factor"], row["high"]) == (np.inf, np.inf)
    assert "∞" in str(speedup(variant, runs_of(noise=0.002), asymptotes={"loss": 1.6}).summary().rows)
