"""How much of a forecast's variance is the constant's: against fits and laws that are told the constant."""

from dataclasses import replace

import numpy as np
import pytest

from scaling_law import Prior, Runs, forecast, prior
from scaling_law.fitting.prior import for_kind
from scaling_law.forecasting.asymptote import Asymptote, spread_at_one_constant, spread_of
from scaling_law.forecasting.forecasters import CHINCHILLA, INTERACTION, fresh, from_prior
from tests.scaling_law.forecasting.test_forecast import FAR, sweep

HUGE = {"n_active": 1e12, "tokens": 3e13}
POINTS = Runs.from_columns([2e9, 1e11], [4e10, 3e12], 1.0, 2.0)


def tell(distribution: Prior, constant: float) -> Prior:
    """Return a prior conditional on the constant."""
    place = distribution.coordinates.names.index("c")
    column = distribution.covariance[:, place]
    mean = distribution.mean + column / column[place] * (np.log(constant) - distribution.mean[place])
    covariance = distribution.covariance - np.outer(column, column) / column[place]
    covariance[place, place] = 1e-8
    return replace(distribution, mean=mean, covariance=covariance)


@pytest.mark.parametrize("kind", [CHINCHILLA, INTERACTION])
def test_what_a_law_says_of_its_constant_is_what_a_fit_that_is_told_it_no_longer_doubts(kind):
    population = prior("public")
    runs = sweep(sizes=(5e7, 2e8, 8e8), ratios=(5, 20, 80))
    free = from_prior(for_kind(population, kind), 0.0, kind).predict(runs, POINTS, True)
    constant = float(free.asymptote.loss[0])
    told = from_prior(for_kind(tell(population, constant), kind), 0.0, kind).predict(runs, POINTS, True)
    np.testing.assert_allclose(free.asymptote.correlation**2, 1 - (told.error / free.error) ** 2, atol=0.05)
    np.testing.assert_allclose(told.log_loss, free.log_loss, atol=0.002)
    assert free.asymptote.correlation[1] > 0.9


def test_far_out_the_constant_of_a_fresh_fit_is_its_forecast():
    far = Runs.from_columns([1e9, 1e16], [2e10, 1e18], 1.0, 2.0)
    near, at_the_end = fresh(CHINCHILLA).predict(sweep(), far, True).asymptote.correlation
    assert at_the_end == pytest.approx(1, abs=0.02)
    assert near < 0.9


def test_laws_that_differ_in_nothing_else_agree_when_told_the_constant():
    weights = np.array([0.5, 0.3, 0.2])
    constants = np.array([1.5, 1.7, 2.0])
    error = np.array([0.02, 0.01, 0.03])
    log_loss = 0.4 + 0.3 * constants
    before = spread_of(weights, log_loss, error)
    assert before.disagreement > 0
    sure = np.array([constants, error / 0.3, np.ones(3)])
    of_it = spread_at_one_constant(weights, log_loss, error, sure)
    assert of_it == pytest.approx((0.0, 0.0), abs=1e-12)
    unrelated = np.array([constants, error / 0.3, np.zeros(3)])
    of_the_rest = spread_at_one_constant(weights, log_loss, error, unrelated)
    assert of_the_rest == pytest.approx(before)
    silent = spread_at_one_constant(weights, log_loss, error, np.zeros((3, 3)))
    assert silent == pytest.approx(before)


def test_a_constant_that_no_draw_moves_tells_nothing():
    draws = np.random.default_rng(0).standard_normal((50, 2))
    assert Asymptote.of_draws(0.0, np.zeros(50), draws).correlation.tolist() == [0, 0]
    scaled = Asymptote.of_draws(1.5, draws[:, 0], draws).times(np.array([2.0, 3.0]))
    assert scaled.correlation[0] == pytest.approx(1)
    assert scaled.loss.tolist() == [3.0, 4.5]


def test_the_share_grows_on_the_way_to_large_models():
    runs = sweep(sizes=(5e7, 2e8, 8e8), ratios=(5, 80))
    near = {"n_active": 1e9, "tokens": 2e10}
    answer = forecast(runs, [near, FAR, HUGE])
    shares = [row["share_of_constant"] for row in answer.rows]
    assert 0 <= shares[0] < shares[2] < 1
    is_said = any("the constant c" in warning for warning in answer.warnings)
    assert is_said == (max(shares) > 0.5)
