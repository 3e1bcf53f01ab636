"""Tuned points from grids of settings."""

from dataclasses import replace

import numpy as np
import pytest

from scaling_law import Runs
from scaling_law.runs import best_of
from scaling_law.runs.tuning import tune

RATES, BATCHES = 1e-3 * np.sqrt(2.0) ** np.arange(-4, 5), 64.0 * 2.0 ** np.arange(-2, 3)


def bowl(rate, batch, best=(1.3e-3, 80.0), least=2.5):
    """A quadratic in the logarithms, with an interaction."""
    x, y = np.log(rate / best[0]), np.log(batch / best[1])
    return least + 0.05 * x**2 + 0.02 * y**2 - 0.03 * x * y


def grid(models=((1e8, 1e9, 1), (1e8, 1e9, 8), (2e8, 4e9, 8)), **columns):
    """All rates and batches for each model (N, D, E); the tokens are whole steps, so never exactly D."""
    rate, batch = (v.ravel() for v in np.meshgrid(RATES, BATCHES))
    n, d, e = (np.repeat(v, rate.size) for v in np.array(models).T)
    rate, batch = np.tile(rate, len(models)), np.tile(batch, len(models))
    tokens = np.round(d / (batch * 2048)) * batch * 2048
    given = {"learning_rate": rate, "batch": batch, "d_model": 512.0} | columns
    loss = bowl(rate, batch) + 1e8 / n + 1e8 / d - 0.01 * e
    return Runs.from_columns(n, tokens, e, loss, trunk="run", columns=given)


def test_the_least_run_of_each_model_is_kept_as_it_is():
    runs = grid()
    best = best_of(runs)
    assert len(best) == 3
    assert (best.n_active.tolist(), best.experts.tolist()) == ([1e8, 1e8, 2e8], [1, 8, 8])
    for i in range(3):
        own = slice(45 * i, 45 * (i + 1))
        at = 45 * i + int(np.argmin(runs.loss[own]))
        assert (best.loss[i], best.run_id[i], best["batch"][i]) == (runs.loss[at], runs.run_id[at], runs["batch"][at])
    assert (best["grid_runs"].tolist(), best["at_edge"].tolist()) == ([45.0] * 3, [0.0] * 3)


def test_a_quadratic_finds_the_minimum_between_the_runs_and_the_regret_of_the_grid():
    runs = grid()
    best = best_of(runs, ["learning_rate", "batch"], "quadratic")
    np.testing.assert_allclose(best["learning_rate"], 1.3e-3, rtol=1e-9)
    np.testing.assert_allclose(best["batch"], 80.0, rtol=1e-9)
    np.testing.assert_allclose(best.loss, 2.5 + 1e8 / best.n_active + [0.1, 0.1, 0.025] - 0.01 * best.experts)
    np.testing.assert_allclose(best["regret"], best_of(runs).loss - best.loss)
    np.testing.assert_allclose(best_of(runs)["regret"], best["regret"])
    assert np.all(best["regret"] > 0)


def test_with_noise_the_quadratic_scatters_less_than_the_least_run():
    """The least of noisy runs is biased low; the quadratic averages over the runs around it."""
    rng, errors = np.random.default_rng(0), {"least": [], "quadratic": []}
    for _ in range(40):
        runs = grid([(1e8, 1e9, 1)])
        noisy = replace(runs, loss=runs.loss + rng.normal(0, 0.002, len(runs)))
        for method, found in errors.items():
            found.append(np.log(best_of(noisy, method=method)["learning_rate"][0] / 1.3e-3))
    assert np.std(errors["quadratic"]) < 0.8 * np.std(errors["least"])


def test_a_best_run_at_an_edge_is_said_and_has_no_regret():
    runs = grid([(1e8, 1e9, 1)])
    high = runs.subset(runs["learning_rate"] > 1.35e-3)
    best = best_of(high, method="quadratic")
    assert best["at_edge"].tolist() == [1.0]
    assert np.isnan(best["regret"][0])
    assert best.loss[0] == high.loss.min()


def test_models_are_told_apart_by_their_shape_where_sizes_agree():
    runs = grid([(1e8, 1e9, 1), (1e8, 1e9, 1)], d_model=np.repeat([512.0, 1024.0], 45))
    spread = replace(runs, loss=runs.loss + 1e-3 * (runs["d_model"] > 600))
    assert best_of(spread)["d_model"].tolist() == [512.0, 1024.0]
    assert len(best_of(spread, by=())) == 1


def test_values_rounded_twice_are_one_step_of_the_grid():
    """Of 0.00195 and 0.001953 neither is an edge of the other, and both sides of them count as neighbours."""
    rates = np.array([0.000976, 0.000977, 0.00138, 0.001381, 0.00195, 0.001953, 0.00276, 0.002762])
    tuned = tune(rates[:, None], 2.0 + 0.1 * np.log(rates / 0.0015) ** 2)
    assert tuned.settings[0] == pytest.approx(0.0015, rel=1e-9)
    assert not tuned.at_edge
    assert tune(rates[:4, None], 2.0 + 0.1 * np.log(rates[:4] / 0.0015) ** 2).at_edge


@pytest.mark.parametrize(
    ("losses", "message"), [([3.0, 2.0, 3.0], None), ([2.0, 2.0, 2.0], "flat"), ([3.0, 2.0, 2.0], "plateau")]
)
def test_a_parabola_needs_a_minimum_between_its_runs(losses, message):
    tuned = tune(np.array([[1e-3], [2e-3], [4e-3]]), np.array(losses))
    assert np.isnan(tuned.regret) == (message == "flat")
    assert 1e-3 <= tuned.settings[0] <= 4e-3
    assert tuned.loss <= min(losses)


def test_the_best_rate_lies_between_the_runs():
    rates = np.geomspace(1e-4, 1e-2, 7)
    losses = 3 + 0.1 * (np.log(rates) - np.log(1.3e-3)) ** 2
    assert tune(rates[:, None], losses).settings == pytest.approx([1.3e-3], rel=1e-9)


def test_at_the_edge_of_the_grid_the_best_rate_is_that_of_the_run():
    tuned = tune(np.array([[1e-4], [1e-3]]), np.array([3.0, 2.0]))
    assert tuned.settings == pytest.approx([1e-3])
    assert tuned.at_edge
