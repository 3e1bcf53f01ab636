"""A prior over laws: without runs it is the prior, with many the fit; the population takes errors off the spread."""

import dataclasses
from itertools import pairwise

import numpy as np
import pytest

from scaling_law import ChinchillaLaw, Prior, Runs, fit, prior, profile_interval
from scaling_law.fitting.penalty import Penalty, coordinates, natural_of
from scaling_law.fitting.prior import POPULATION, Member, estimate, law_of, member_of, modes, read_population

MEAN = np.array([-1.0, -1.1, -1.05, -1.0, 0.6])
USUAL = Prior(MEAN, np.diag([0.3, 0.3, 0.2, 0.2, 0.1]) ** 2, noise=0.01)
TRUTH = law_of(natural_of(MEAN + np.array([0.3, -0.3, -0.2, 0.2, 0.1])))
FAR = {"n_active": 7e10, "tokens": 1e12}


def measured(count: int, seed: int = 0, noise: float = 0.01, law: ChinchillaLaw = TRUTH) -> Runs:
    rng = np.random.default_rng(seed)
    n, d = np.exp(rng.uniform(np.log(5e7), np.log(2e9), count)), np.exp(rng.uniform(np.log(1e9), np.log(5e10), count))
    return Runs.from_columns(n, d, 1.0, law.loss(n, d) * np.exp(noise * rng.standard_normal(count)), "run")


def test_coordinates_and_natural_ones_are_inverse():
    np.testing.assert_allclose(coordinates(natural_of(MEAN[None])), MEAN[None], atol=1e-12)


@pytest.mark.parametrize("dof", [4.0, np.inf])
def test_the_gradient_is_that_of_the_cost(dof):
    penalty = Penalty(MEAN[None], np.linalg.inv(USUAL.covariance)[None], np.array([dof]), np.array([2e-4]))
    at = natural_of(MEAN[None] + 0.3)
    _, gradient, curvature = penalty.evaluate(at)
    steps = 1e-6 * np.eye(5)
    ends = [penalty.evaluate(at + sign * steps)[0] for sign in (1, -1)]
    np.testing.assert_allclose((ends[0] - ends[1]) / 2e-6, gradient[0], rtol=1e-4)
    assert np.linalg.eigvalsh(curvature[0]).min() > -1e-12


def test_a_run_that_the_prior_expects_leaves_it_as_it_is():
    law = USUAL.law
    runs = Runs.from_columns(1e9, 2e10, 1.0, law.loss(1e9, 2e10))
    result = fit(runs, "chinchilla", prior=USUAL)
    assert result.law.coefficients == pytest.approx(law.coefficients, rel=1e-6)
    assert result.problem.settings.to_dict()["prior"] == "given"


def test_many_runs_give_the_fit():
    runs = measured(4000)
    with_prior, without = (fit(runs, "chinchilla", prior=p, release=4) for p in (USUAL, None))
    assert with_prior.law.loss(**FAR) == pytest.approx(without.law.loss(**FAR), rel=2e-3)


def test_from_the_prior_to_the_fit_as_the_prior_widens():
    runs = measured(12)
    fresh = np.log(fit(runs, "chinchilla").law.loss(**FAR))
    grown = [dataclasses.replace(USUAL, covariance=USUAL.covariance * factor) for factor in 10.0 ** np.arange(-6, 7)]
    distances = [abs(np.log(law_of(row).loss(**FAR)) - fresh) for row in modes(runs, grown).natural]
    assert distances[0] == pytest.approx(abs(np.log(USUAL.law.loss(**FAR)) - fresh), rel=0.05)
    assert distances[-1] < 0.002
    assert all(later <= earlier + 1e-4 for earlier, later in pairwise(distances))


def test_a_fit_agrees_with_the_batched_modes():
    runs = measured(12)
    np.testing.assert_allclose(
        list(fit(runs, "chinchilla", prior=USUAL).law.coefficients.values()),
        list(law_of(modes(runs, [USUAL]).natural[0]).coefficients.values()),
        rtol=1e-3,
    )


def test_one_size_is_enough_under_a_prior():
    runs = measured(9)
    one_size = dataclasses.replace(runs, n_active=np.full(9, 1e9))
    with pytest.raises(ValueError, match="not identifiable"):
        fit(one_size, "chinchilla")
    assert np.isfinite(fit(one_size, "chinchilla", prior=USUAL).law.loss(**FAR))


def test_intervals_know_the_prior():
    runs = measured(12)
    result = fit(runs, "chinchilla", prior=USUAL)
    assert result.bootstrap(50).converged.all()
    interval = profile_interval(result, "c")
    assert interval.low < result.law.c < interval.high
    fresh = profile_interval(fit(runs, "chinchilla"), "c")
    assert interval.high - interval.low < fresh.high - fresh.low


def test_standard_errors_cover_the_truth():
    errors = []
    for seed in range(40):
        truth = law_of(
            natural_of(MEAN + np.linalg.cholesky(USUAL.covariance) @ np.random.default_rng(seed).normal(size=5))
        )
        found = modes(measured(12, seed, law=truth), [USUAL])
        log_loss, error = found.losses(Runs.from_columns(7e10, 1e12, 1.0, 2.0))
        errors.append(float((log_loss - np.log(truth.loss(**FAR))).item() / error.item()))
    assert 0.75 <= np.mean(np.abs(errors) < 1.645) <= 0.99


def test_a_prior_is_of_chinchilla_laws():
    with pytest.raises(ValueError, match="not of kind='joint'"):
        fit(measured(40), "joint", prior=USUAL, allow_unidentifiable=True)
    with pytest.raises(ValueError, match="must be 'public', a Prior or None"):
        fit(measured(12), "chinchilla", prior="private")
    with pytest.raises(ValueError, match="must be 'public', a Prior or None"):
        fit(measured(12), "chinchilla", prior=0.5)


def test_other_units_widen_the_prior_in_their_direction_alone():
    wide = USUAL.in_units(loss=0.2)
    direction = np.array([1.0, 1.0, 0.0, 0.0, 1.0])
    scaled = measured(40)
    scaled = dataclasses.replace(scaled, loss=scaled.loss * 1.5)
    assert np.trace(wide.covariance - USUAL.covariance) == pytest.approx(3 * 0.04)
    assert direction @ (wide.covariance - USUAL.covariance) @ direction == pytest.approx(9 * 0.04)
    errors = [
        np.abs(fit(scaled, "chinchilla", prior=p).law.loss(**FAR) / 1.5 - TRUTH.loss(**FAR)) for p in (USUAL, wide)
    ]
    assert errors[1] < errors[0] + 0.01


def lab_laws(labs: int = 60, sets: int = 1, seed: int = 0) -> list[Member]:
    """Members whose laws are drawn from `USUAL`; the first lab has `sets`."""
    rng = np.random.default_rng(seed)
    found = []
    for lab in range(labs):
        law = law_of(natural_of(MEAN + np.linalg.cholesky(USUAL.covariance) @ rng.normal(size=5)))
        for i in range(sets if lab == 0 else 1):
            runs = measured(40, 100 * lab + i, 0.005, law)
            found.append(member_of(runs, f"{lab}-{i}", f"lab{lab}", source="made", licence="none"))
    return found


def test_the_population_is_found_and_its_members_errors_are_not_in_its_spread():
    members = lab_laws()
    found = estimate(members, 0.0, np.inf, 1.0)
    spread, truth = np.sqrt(np.diag(found.covariance)), np.sqrt(np.diag(USUAL.covariance))
    np.testing.assert_allclose(found.mean, MEAN, atol=0.12)
    np.testing.assert_allclose(spread, truth, rtol=0.35)
    naive = np.std([np.linalg.solve(m.precision, m.pull) for m in members], axis=0)
    assert np.abs(spread / truth - 1).mean() < np.abs(naive / truth - 1).mean()


def test_sets_of_one_lab_share_its_weight():
    one, many = (estimate(lab_laws(8, sets), 0.5, np.inf, 1.0).mean for sets in (1, 6))
    assert np.abs(one - many).max() < 0.03


def test_shrinkage_leaves_the_variances_and_drops_the_covariances():
    whole = estimate(lab_laws(20), 1.0, 4.0, 1.0).covariance
    np.testing.assert_allclose(whole, np.diag(np.diag(whole)), atol=1e-12)


def test_a_population_needs_two_labs():
    with pytest.raises(ValueError, match="two labs"):
        estimate(lab_laws(1, 3), 0.5, 4.0, 1.0)


def test_the_public_population_leaves_labs_out():
    members, _ = read_population(POPULATION)
    assert len({member.lab for member in members}) >= 9
    assert all(member.source and member.licence for member in members)
    whole, without = prior("public"), prior("public", without="marin")
    marin = {member.name for member in members if member.lab == "marin"}
    assert marin
    assert set(whole.sources) - set(without.sources) == marin
    with pytest.raises(ValueError, match="must be among"):
        prior("public", without="nobody")
    assert fit(measured(12), "chinchilla", prior="public").law.coefficients
