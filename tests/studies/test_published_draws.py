"""The draws of the published law: made again by their command, as wide as theory says."""

import subprocess
import sys

import numpy as np
import pytest

from scaling_law import JointLaw, published_design
from studies.paper.draws import make_draws, noise_level

DESIGN = published_design()[:3]


@pytest.fixture(scope="module")
def published():
    return JointLaw.published()


def test_the_command_makes_the_shipped_draws_again(published, tmp_path):
    target = tmp_path / "draws.npy"
    command = [sys.executable, "-m", "studies.paper.draws", str(target), "--draws", "4"]
    subprocess.run(command, check=True, capture_output=True)
    again = published.replace(draws=np.load(target))
    # E_max may differ between machines, the losses may not
    np.testing.assert_allclose(again.loss_draws(*DESIGN), published.loss_draws(*DESIGN)[:4], rtol=0, atol=1e-6)
    other = published.replace(draws=make_draws(2, seed=1))
    assert np.abs(other.loss_draws(*DESIGN) - published.loss_draws(*DESIGN)[:2]).max() > 1e-4


def test_the_spread_at_the_runs_is_that_of_least_squares(published):
    """Over the runs the variance of a fit is σ² p/n on average; the draws lie about the law, and so do intervals."""
    losses, law = published.loss_draws(*DESIGN), published.loss(*DESIGN)
    expected = noise_level() * np.sqrt(len(published.coefficients) / len(law))
    assert np.sqrt(losses.var(axis=0).mean()) == pytest.approx(expected, rel=0.05)
    low, high = np.quantile(losses, [0.025, 0.975], axis=0)
    assert np.all((low < law) & (law < high))
    assert 0.003 < np.median(high - low) < 0.006
    assert noise_level() == pytest.approx(0.0062 * np.sqrt(270 / 259))


def test_draws_travel_with_the_published_law(published, tmp_path):
    published.save_pretrained(tmp_path)
    loaded = JointLaw.from_pretrained(tmp_path)
    assert loaded == published
    np.testing.assert_array_equal(loaded.draws, published.draws)
    assert loaded.conditions == published.conditions
    assert "not the authors'" in loaded.conditions.draws
    np.testing.assert_allclose(published.to_chinchilla(8).loss_draws(1e9, 1e10, 8), published.loss_draws(1e9, 1e10, 8))


def test_draws_belong_to_their_coefficients(published):
    assert published.replace(a=40.0).draws is None
    assert published.replace(a=published.a, conditions=None).draws.shape == (1000, 11)
    assert published.replace(a=40.0, draws=published.draws).draws.shape == (1000, 11)
    assert JointLaw.published(rounded=True).draws is None
