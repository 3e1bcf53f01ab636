"""Untuned runs as upper bounds: they cost nothing above the law, and pull it down where they lie below."""

from dataclasses import replace

import numpy as np
import pytest

from hub.base.tables import as_text
from scaling_law import JointLaw, fit
from scaling_law.fitting.problem import make_problem
from tests.scaling_law.synthetic import checked_gradient, synthetic_runs

LAW = JointLaw.published()
FAR = (1e9, 2e10, 8)


@pytest.fixture(scope="module")
def untuned(paper_runs):
    """Which of the paper's runs are untuned: half of them."""
    return np.random.default_rng(3).random(len(paper_runs)) < 0.5


@pytest.fixture(scope="module")
def half_tuned(paper_runs, untuned):
    """The runs with the untuned ones 0 to 0.3 nats worse."""
    worse = np.random.default_rng(4).uniform(0, 0.3, len(paper_runs)) * untuned
    return replace(paper_runs, loss=paper_runs.loss + worse, columns={"untuned": untuned})


@pytest.fixture(scope="module")
def bounded(half_tuned):
    return fit(half_tuned, one_sided="untuned", starts=[LAW])


def test_objective_counts_untuned_runs_only_below_the_law(half_tuned, untuned):
    """Of a law 0.05 nats above the tuned runs, so that residuals lie on both sides of the threshold."""
    objective, law = make_problem(half_tuned, "joint", one_sided=untuned).objective, LAW.replace(c=LAW.c + 0.05)
    r = np.log(law.loss(half_tuned.n_active, half_tuned.tokens, half_tuned.experts)) - np.log(half_tuned.loss)
    size = np.where(untuned, np.maximum(r, 0.0), np.abs(r))
    expected = np.sum(np.where(size <= 0.01, 0.5 * size**2, 0.01 * (size - 0.005)))
    at = objective.evaluate(objective.from_coefficients(law.coefficients)[None])
    assert at.cost[0] == pytest.approx(expected, rel=1e-12)
    assert 0.8 < (r[untuned] < 0).mean() < 0.95


@pytest.mark.parametrize("hold_transform", [False, True])
def test_gradient_against_finite_differences(half_tuned, untuned, hold_transform):
    objective = make_problem(half_tuned, "joint", l2=1e-3, one_sided=untuned).objective
    theta = objective.from_coefficients(LAW.coefficients) + np.random.default_rng(1).normal(0, 0.02, (4, 11))
    theta[:, -2:] = theta[0, -2:]
    checked_gradient(objective, theta, rtol=1e-5, hold_transform=hold_transform)


def test_the_law_of_the_tuned_runs_is_recovered(half_tuned, bounded, published, paper_fit):
    at = (half_tuned.n_active, half_tuned.tokens, half_tuned.experts)
    truth = published.loss(*at)
    two_sided = fit(half_tuned, starts=[LAW])
    assert np.abs(bounded.law.loss(*at) - truth).mean() < 0.004
    assert np.abs(two_sided.law.loss(*at) - truth).mean() > 0.03
    assert bounded.status.converged
    assert bounded.rmse == pytest.approx(paper_fit.rmse, abs=6e-4)


def test_bounds_inform_where_no_run_was_tuned(published):
    """Tuned runs are small; untuned large ones, hardly worse than tuned, keep the law from lying above them."""
    runs = synthetic_runs(sigma=0.01, seed=8)
    large = runs.flops > np.quantile(runs.flops, 0.7)
    at = (runs.n_active[large], runs.tokens[large], runs.experts[large])
    high = replace(runs, loss=runs.loss + 0.002 * large)
    low_c = {"fixed": {"c": 1.6}, "starts": [LAW]}  # a wrong constant, which bends the law up at large sizes
    alone, with_bounds = fit(high.subset(~large), **low_c), fit(high, one_sided=large, **low_c)
    above = [float(np.maximum(r.law.loss(*at) - published.loss(*at), 0).max()) for r in (alone, with_bounds)]
    assert above[1] < 0.7 * above[0]


def test_idle_bounds_are_no_outliers_but_a_run_below_the_law_is(half_tuned, bounded, untuned):
    assert bounded.status.suspicious == ()
    assert bounded.status.warnings == ()
    i = int(np.flatnonzero(untuned)[5])
    loss = half_tuned.loss.copy()
    loss[i] = LAW.loss(half_tuned.n_active[i], half_tuned.tokens[i], half_tuned.experts[i]) - 0.4
    result = fit(replace(half_tuned, loss=loss), one_sided=untuned, outliers="set_aside", starts=[LAW])
    assert result.status.set_aside == (f"row-{i}",)
    assert result.used.sum() == 269


def test_scatter_of_new_runs_and_errors_are_those_of_the_tuned(bounded, untuned, paper_fit):
    drawn = bounded.bootstrap(60)
    assert len(drawn.log_residuals) == bounded.measured.sum() == (~untuned).sum()
    low, high = drawn.prediction_interval(*FAR, kind="prediction")
    wide, narrow = paper_fit.bootstrap(60).prediction_interval(*FAR, kind="prediction")
    assert high - low == pytest.approx(narrow - wide, rel=0.5)
    assert max(bounded.rmse_by_experts().values()) < 0.01


def test_bounds_are_recorded(bounded, half_tuned, untuned, tmp_path):
    count = int(untuned.sum())
    bounded.law.save_pretrained(tmp_path)
    known = JointLaw.from_pretrained(tmp_path).conditions
    assert known.objective["one_sided"] == count
    assert f"{count} of 270 runs as upper bounds" in known.provenance
    assert f"{count} as upper bounds" in as_text(bounded)
    assert bounded.law == fit(half_tuned, one_sided=untuned, starts=[LAW]).law
    assert "one_sided" not in fit(half_tuned, starts=[LAW]).law.conditions.objective
