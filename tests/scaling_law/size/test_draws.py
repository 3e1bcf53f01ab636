"""Normal draws: the moments that were asked for, and nothing that a decomposition may choose freely."""

import numpy as np
import pytest

from scaling_law.machine import GPUS, Efficiency, published_runs
from scaling_law.machine.efficiency import rates_of_engine
from scaling_law.size import draw_normal

FACTOR = np.array([[1.0, 0.0, 0.0], [0.6, 0.8, 0.0], [0.0, 0.3, 0.1]])
COVARIANCE = FACTOR @ FACTOR.T
MEAN = np.array([1.0, -2.0, 3.0])


@pytest.mark.parametrize("seed", [None, 3])
def test_draws_have_the_mean_and_the_covariance(seed):
    draws = draw_normal(MEAN, COVARIANCE, 20_000, seed)
    np.testing.assert_allclose(draws.mean(axis=0), MEAN, atol=0.02)
    np.testing.assert_allclose(np.cov(draws.T), COVARIANCE, atol=0.03)


def test_the_ends_of_an_interval_are_surer_than_those_of_random_draws():
    sizes = np.linspace(1.0, 0.2, 8)
    exact = 1.96 * np.linalg.norm(sizes)

    def miss(seed):
        draws = draw_normal(np.zeros(8), np.diag(sizes**2), 4096, seed).sum(axis=1)
        return np.abs(np.quantile(draws, [0.025, 0.975]) - [-exact, exact]).max()

    assert miss(None) < 2 / 3 * np.mean([miss(seed) for seed in range(20)])


def test_without_a_seed_draws_repeat_and_few_are_the_first_of_many():
    few = draw_normal(MEAN, COVARIANCE, 10)
    np.testing.assert_array_equal(few, draw_normal(MEAN, COVARIANCE, 10))
    np.testing.assert_allclose(few, draw_normal(MEAN, COVARIANCE, 100)[:10], rtol=1e-12)


def test_what_does_not_vary_stays_at_its_mean():
    covariance = np.zeros((3, 3))
    covariance[np.ix_([0, 2], [0, 2])] = COVARIANCE[:2, :2]
    draws = draw_normal(MEAN, covariance, 50)
    assert np.all(draws[:, 1] == MEAN[1])
    np.testing.assert_array_equal(draws[:, [0, 2]], draw_normal(MEAN[[0, 2]], COVARIANCE[:2, :2], 50))
    np.testing.assert_array_equal(draw_normal(MEAN, np.zeros((3, 3)), 2), [MEAN, MEAN])


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_draws_are_continuous_in_the_covariance(rank, seed):
    """As an SVD's are not: a change in the last bits turns its vectors, most of all among equal singular values."""
    covariance = np.eye(3) if rank == 3 else FACTOR[:, :rank] @ FACTOR[:, :rank].T
    noise = 1e-13 * np.array([[0.0, 1.0, -1.0], [1.0, 0.0, 1.0], [-1.0, 1.0, 0.0]])
    draws = draw_normal(MEAN, covariance, 100, seed)
    np.testing.assert_allclose(draw_normal(MEAN, covariance + noise, 100, seed), draws, atol=3e-6)


@pytest.mark.parametrize("rates", [published_runs(), rates_of_engine("train.py")])
def test_the_draws_of_rates_determine_two_digits(rates):
    """The ends are within a percent of those of very many random draws, whatever their seed."""
    seconds = np.log(rates.draws(GPUS["H100"])[:, 0])
    n_draws = 200_000
    scatter = np.hypot(rates.spread[0], rates.spread[-1])
    deviation = np.hypot(scatter, np.sqrt(rates.covariance[0, 0]))
    random = rates.parameters[0] - np.log(GPUS["H100"].peak_flops)
    random = random + deviation * np.random.default_rng(1).standard_normal(n_draws)
    low, high = np.quantile(random, [0.025, 0.975])
    np.testing.assert_allclose(np.quantile(seconds, [0.025, 0.975]), [low, high], atol=0.01)


@pytest.mark.parametrize("rates", [published_runs(), rates_of_engine("train.py")])
def test_rates_are_drawn_alike_whatever_the_order_of_their_covariance_decides(rates):
    """Rank 15 of 16: train.py's `balanced` has no variance."""
    noise = 1e-13 * np.random.default_rng(0).standard_normal(rates.covariance.shape)
    covariance = rates.covariance * (1 + noise + noise.T)
    moved = Efficiency(rates.parameters, covariance, rates.spread, rates.runs, rates.labs)
    np.testing.assert_allclose(moved._sample[0], rates._sample[0], rtol=1e-8, atol=1e-8)
