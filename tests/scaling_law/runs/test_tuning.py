"""Tuned points from grids of settings."""

from dataclasses import replace

import numpy as np

from scaling_law import Runs
from scaling_law.runs import best_of

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


def test_a_best_run_at_an_edge_is_said():
    runs = grid([(1e8, 1e9, 1)])
    high = runs.subset(runs["learning_rate"] > 1.35e-3)
    best = best_of(high)
    assert best["at_edge"].tolist() == [1.0]
    assert best.loss[0] == high.loss.min()


def test_models_are_told_apart_by_their_shape_where_sizes_agree():
    runs = grid([(1e8, 1e9, 1), (1e8, 1e9, 1)], d_model=np.repeat([512.0, 1024.0], 45))
    spread = replace(runs, loss=runs.loss + 1e-3 * (runs["d_model"] > 600))
    assert best_of(spread)["d_model"].tolist() == [512.0, 1024.0]
    assert len(best_of(spread, by=())) == 1


def test_values_rounded_twice_are_one_step_of_the_grid():
    """The least of 0.000976 and 0.000977 is no edge of its own."""
    rates = np.array([0.000976, 0.000977, 0.00138, 0.001381, 0.00195, 0.001953, 0.00276, 0.002762])
    for best, at_edge in ((0.00138, 0.0), (0.000977, 1.0)):
        losses = 2.0 + 0.1 * np.log(rates / best) ** 2
        runs = Runs.from_columns(1e8, 1e9, 1, losses, trunk="run", columns={"learning_rate": rates})
        assert best_of(runs, "learning_rate")["at_edge"].tolist() == [at_edge]
