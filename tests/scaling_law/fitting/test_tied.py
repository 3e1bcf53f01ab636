"""Coefficients tied to each other: in the fit, its status, its bootstrap and its file."""

import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from scaling_law import ChinchillaLaw, JointLaw, Law, Runs, fit
from scaling_law.commands.cli import app

TRUTH = ChinchillaLaw(m=200.0, mu=-0.3, n=400.0, nu=-0.3, c=1.7)


def runs_of(law, count=120, noise=0.003, experts=(1.0,)):
    rng = np.random.default_rng(0)
    n = 10 ** rng.uniform(7.9, 9.9, count)
    d, e = n * 10 ** rng.uniform(0, 1.8, count), rng.choice(experts, count)
    return Runs.from_columns(n, d, e, law.loss(n, d, e) + rng.normal(0, noise, count))


RUNS = runs_of(TRUTH)


@pytest.fixture(scope="module")
def tied():
    return fit(RUNS, "chinchilla", fixed={"mu": "nu"})


def test_tied_exponents_are_equal_and_either_may_lead(tied):
    other = fit(RUNS, "chinchilla", fixed={"nu": "mu"})
    assert tied.law.mu == tied.law.nu == pytest.approx(TRUTH.mu, abs=0.003)
    assert other.law.coefficients == pytest.approx(tied.law.coefficients, rel=1e-7)
    assert other.objective == pytest.approx(tied.objective, rel=1e-9)


def test_the_tied_fit_is_the_best_of_all_with_equal_exponents(tied):
    """Slow and obviously correct: both fixed at each of many values."""
    values = np.linspace(tied.law.mu - 0.002, tied.law.mu + 0.002, 9)
    objectives = [fit(RUNS, "chinchilla", fixed={"mu": x, "nu": x}, starts=[tied.law]).objective for x in values]
    assert min(objectives) == objectives[4] == pytest.approx(tied.objective, rel=1e-9)
    assert fit(RUNS, "chinchilla").objective < tied.objective


def test_the_optimum_of_equal_exponents_grows_as_the_root_of_compute(tied):
    small, large = (tied.law.compute_optimal(flops, force=True) for flops in (1e20, 1e24))
    assert large.n_active / small.n_active == pytest.approx(100.0)
    assert large.tokens / small.tokens == pytest.approx(100.0)


def test_status_counts_one_coefficient_and_names_the_tie(tied):
    assert tied.fitted == ["m", "n", "nu", "c"]
    errors = tied.status.standard_errors
    assert errors["mu"] == errors["nu"] < fit(RUNS, "chinchilla").status.standard_errors["mu"]
    assert tied.status.verdict.endswith("all coefficients determined; mu = nu")
    row = next(row for row in tied.to_rows() if row["coefficient"] == "mu")
    assert (row["tied_to"], row["fixed"], row["determined"], row["at_bound"]) == ("nu", False, True, False)


def test_draws_keep_the_tie_and_scatter_as_the_standard_error_says(tied):
    draws = tied.bootstrap(100).draws
    assert np.array_equal(draws[:, 1], draws[:, 3])
    assert draws[:, 1].std() == pytest.approx(tied.status.standard_errors["mu"], rel=0.5)


def test_saved_laws_say_what_was_tied(tied, tmp_path):
    tied.law.save_pretrained(tmp_path)
    conditions = Law.from_pretrained(tmp_path).conditions
    assert conditions.objective["tied"] == {"mu": "nu"}
    assert conditions.status.endswith("mu = nu")
    assert "tied" not in fit(RUNS, "chinchilla").law.conditions.objective


def test_gradients_of_tied_coefficients_are_those_of_finite_differences():
    runs = runs_of(JointLaw.published(), experts=(1.0, 4.0, 16.0))
    problem = fit(runs, fixed={"alpha": "beta"}, starts=[JointLaw.published()]).problem
    theta = problem.objective.from_coefficients(JointLaw.published().coefficients)
    at = problem.objective.evaluate(theta[None])
    steps = 1e-6 * np.eye(len(theta))
    up, down = (problem.objective.evaluate(theta + sign * steps).cost for sign in (1.0, -1.0))
    np.testing.assert_allclose(at.gradient[0], (up - down) / 2e-6, rtol=1e-5, atol=1e-9)


def test_a_joint_law_ties_exponents_beside_interactions():
    runs = runs_of(JointLaw.published(), experts=(1.0, 4.0, 16.0))
    result = fit(runs, fixed={"alpha": "beta"}, starts=[JointLaw.published()])
    free = fit(runs, starts=[JointLaw.published()])
    assert result.law.alpha == result.law.beta
    assert free.objective <= result.objective < 10 * free.objective


def test_a_prior_keeps_the_tie():
    mode = fit(RUNS, "chinchilla", fixed={"mu": "nu"}, prior="public")
    draws = mode.bootstrap(10).draws
    assert mode.law.mu == mode.law.nu
    assert np.array_equal(draws[:, 1], draws[:, 3])


def test_a_tie_to_a_number_fixes_both():
    assert fit(RUNS, "chinchilla", fixed={"mu": "nu", "nu": -0.5}).law.mu == -0.5
    assert fit(RUNS, "chinchilla", fixed={"mu": "-0.5", "nu": "mu"}).law.nu == -0.5


REFUSED = [
    ({"fixed": {"mu": "c"}}, "fixed: mu='c' must be a number or nu"),
    ({"fixed": {"c": "m"}}, "fixed: c='m' must be a number"),
    ({"fixed": {"mu": "nu", "nu": "mu"}}, "fixed: mu='nu' goes in a circle: mu = nu = mu"),
    ({"fixed": {"mu": "mu"}}, "fixed: mu='mu' goes in a circle: mu = mu"),
    ({"fixed": {"mu": "alpha"}}, "fixed: mu='alpha' must be a number, or one of m, mu, n, nu, c"),
    ({"fixed": {"alpha": "mu"}}, "fixed: coefficient 'alpha' is unknown"),
    (
        {"fixed": {"mu": "nu"}, "bounds": {"mu": (-1, 0)}},
        "fixed: mu='nu' ties it, so bounds cannot hold mu, too: bound nu",
    ),
]


@pytest.mark.parametrize(("options", "reason"), REFUSED, ids=[reason[:40] for _, reason in REFUSED])
def test_ties_that_cannot_be_are_refused(options, reason):
    with pytest.raises(ValueError, match=re.escape(reason)):
        fit(RUNS, "chinchilla", **options)


def test_the_shell_ties_too(tmp_path):
    path = tmp_path / "runs.csv"
    columns = (RUNS.n_active, RUNS.tokens, RUNS.experts, RUNS.loss)
    np.savetxt(path, np.transpose(columns), delimiter=",", header="n_active,tokens,experts,eval_loss", comments="")
    words = ["fit", str(path), "--kind", "chinchilla", "--fix", "mu=nu", "--fix", "c=1.7", "--json"]
    answer = json.loads(CliRunner().invoke(app, words).stdout)
    assert answer["coefficients"]["mu"] == answer["coefficients"]["nu"]
    assert answer["coefficients"]["c"] == 1.7
    assert answer["settings"]["tied"] == {"mu": "nu"}
