"""The bootstrap: clusters stay together, intervals cover, draws travel."""

import numpy as np
import pytest

from scaling_law import JointLaw, fit
from scaling_law.fitting.uncertainty import cluster_counts
from tests.conftest import sweep
from tests.scaling_law.synthetic import synthetic_runs, tiny_fit


@pytest.fixture(scope="module")
def drawn(paper_fit):
    return paper_fit.bootstrap(120, seed=3)


def test_trunks_are_resampled_whole(paper_runs):
    counts = cluster_counts(paper_runs, 50, seed=1)
    for trunk in np.unique(paper_runs.trunk):
        own = counts[:, paper_runs.trunk == trunk]
        assert np.all(own == own[:, :1])
    first = [np.flatnonzero(paper_runs.trunk == t)[0] for t in np.unique(paper_runs.trunk)]
    assert np.all(counts[:, first].sum(axis=1) == len(first))


@pytest.mark.parametrize("count", sweep([120, 4], [4]))
def test_deterministic_for_a_seed(paper_fit, count):
    first, again, other = (paper_fit.bootstrap(count, seed=seed).draws for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(other, first)


@pytest.mark.parametrize("k", sweep([0, 7, 19], [7]))
def test_each_draw_is_the_optimum_of_its_resample(paper_fit, drawn, k):
    """Refits from the full grid of starts find nothing better than the warm start did."""
    counts = cluster_counts(paper_fit.runs, 120, seed=3)
    cold = fit(paper_fit.runs, weights=counts[k])
    warm = fit(paper_fit.runs, weights=counts[k], starts=[JointLaw(*drawn.draws[k])])
    assert warm.objective <= cold.objective * (1 + 1e-6)


def test_intervals_cover_the_truth(drawn, published):
    n, d, e = np.array([2e8, 1e9, 6e8]), np.array([8e9, 2e10, 4e9]), np.array([16, 1, 4])
    low, high = drawn.prediction_interval(n, d, e, level=0.99)
    truth = published.loss(n, d, e)
    assert np.all((low < truth) & (truth < high))
    wide_low, wide_high = drawn.prediction_interval(n, d, e, level=0.99, kind="prediction")
    assert np.all((wide_low < low) & (wide_high > high))
    assert np.all(wide_high - wide_low > 0.02)
    start, end = drawn.interval("c")
    assert start < published.c < end


@pytest.mark.parametrize("sweeps", sweep([24, 12], [12]))
def test_intervals_have_their_level(sweeps):
    """Ninety-percent intervals of a prediction, over repeated sweeps, contain the truth nine times of ten or so."""
    law, hits = JointLaw.published(), []
    for seed in range(sweeps):
        result = fit(synthetic_runs(seed=100 + seed), starts=[law])
        low, high = result.bootstrap(60, seed=seed).prediction_interval([1e9, 3e8], [1e10, 8e9], [1, 8], level=0.9)
        hits.append(
            (low < law.loss([1e9, 3e8], [1e10, 8e9], [1, 8])) & (law.loss([1e9, 3e8], [1e10, 8e9], [1, 8]) < high)
        )
    assert 0.72 <= np.mean(hits) <= 1.0


def test_tiny_sweeps_bootstrap_too():
    result = tiny_fit()
    drawn = result.bootstrap(60)
    assert np.all(np.isfinite(drawn.draws))
    low, high = drawn.prediction_interval(1e6, 1e6, 4)
    assert low < result.law.loss(1e6, 1e6, 4) < high


def test_optima_have_intervals(drawn, published):
    found = drawn.law.optimum_draws(1e20, [1, 4, 16])
    low, high = np.nanquantile(found.n_active, [0.005, 0.995], axis=0)
    truth = published.compute_optimal(1e20, [1, 4, 16]).n_active
    assert np.all((low < truth) & (truth < high))
    assert np.isfinite(found.loss).all(axis=1).mean() > 0.95
    assert np.mean(np.argmin(found.loss, axis=1) == 2) > 0.9
    limited = drawn.law.optimum_draws(1e22, [1, 16], memory=80e9)
    assert np.ptp(limited.n_active[:, 1]) < 1e-3 * limited.n_active[0, 1]  # the memory decides, not the law
