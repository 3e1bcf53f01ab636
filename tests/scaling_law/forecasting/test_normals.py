"""Mixtures of normals, against the conditional distribution of one joint normal."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from scaling_law.forecasting.normals import Evidence, Mixture, learn, measure

pytestmark = pytest.mark.light
ODDS = np.array([0.2, 0.3, 0.5])


def spd(rng, *shape, rank=None):
    roots = rng.normal(size=(*shape, rank or shape[-1]))
    return roots @ np.swapaxes(roots, -1, -2)


@pytest.mark.parametrize("rank", [4, 2])
def test_evidence_conditions_a_mixture_as_a_joint_normal_does(rank):
    """The covariance of rank 2 is singular, as that of gaps at two equal sizes."""
    rng = np.random.default_rng(0)
    means = rng.normal(size=(3, 4))
    covariances = spd(rng, 3, 4, rank=rank)
    basis = rng.normal(size=(6, 2))
    values = rng.normal(size=6)
    variances = np.array([0.5, 0.7, 1.0, 1.3, 1.7, 2.0])
    evidence = measure(basis, values, variances)
    before = Mixture(np.log(ODDS), means, covariances)

    after = before.given(evidence)

    likelihoods = []
    for place in range(3):
        mean = means[place]
        covariance = covariances[place]
        expected = basis @ mean[:2]
        across = covariance[:, :2] @ basis.T
        joint = basis @ across[:2] + np.diag(variances)
        gain = across @ np.linalg.inv(joint)
        assert after.means[place] == pytest.approx(mean + gain @ (values - expected))
        assert after.covariances[place] == pytest.approx(covariance - gain @ across.T, abs=1e-9)
        likelihoods.append(multivariate_normal(expected, joint).pdf(values))

    odds = ODDS * likelihoods
    assert after.weights == pytest.approx(odds / odds.sum())


def test_without_runs_only_the_prior_and_the_scatter_between_runs_tell():
    means = np.arange(4.0)
    variances = np.array([1.0, 2.0, 3.0, 4.0])
    prior = Mixture(np.zeros(1), means[None], np.diag(variances)[None])
    nothing = Evidence(np.zeros((0, 2, 2)), np.zeros((0, 2)))
    between = 0.5 * np.eye(2)

    run = learn(prior, nothing, np.zeros((0, 1)), np.zeros(0), between)

    assert run.means[0] == pytest.approx([0.0, 1.0])
    assert run.covariances[0] == pytest.approx(np.diag([1.5, 2.5]))


def test_the_scatter_between_many_runs_is_learnt():
    rng = np.random.default_rng(1)
    mean = np.array([1.0, -2.0])
    deviations = np.array([0.1, 0.5])
    coefficients = mean + deviations * rng.normal(size=(400, 2))
    positions = rng.normal(size=(400, 1))
    precision = np.broadcast_to(1e6 * np.eye(2), (400, 2, 2))
    runs = Evidence(precision, 1e6 * coefficients)
    prior = Mixture(np.zeros(1), np.zeros((1, 4)), 9.0 * np.eye(4)[None])
    weights = np.ones(400)

    run = learn(prior, runs, positions, weights, between=np.eye(2))

    assert run.means[0] == pytest.approx(mean, abs=0.1)
    assert np.sqrt(np.diagonal(run.covariances[0])) == pytest.approx(deviations, rel=0.3)
