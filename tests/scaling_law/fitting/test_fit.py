"""The fit: its objective, its derivatives, that it reaches the optimum, and that its status tells the truth."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize

from hub.base.tables import as_text
from scaling_law import JointLaw, Runs, fit, load_runs
from scaling_law.fitting.problem import make_problem
from tests.conftest import sweep
from tests.scaling_law.clark import clark_runs
from tests.scaling_law.synthetic import TINY_LAW, checked_gradient, tiny_fit


def huber_sum(law, runs, delta=0.01):
    """The objective, written down once more without any of the fit's code."""
    r = np.abs(np.log(law.loss(runs.n_active, runs.tokens, runs.experts)) - np.log(runs.loss))
    return float(np.sum(np.where(r <= delta, 0.5 * r**2, delta * (r - 0.5 * delta))))


def test_gradient_within_bounds_of_e_max(paper_runs):
    objective = make_problem(paper_runs, "joint", bounds={"e_max": (20.0, 300.0)}).objective
    theta = np.random.default_rng(1).normal(0, 0.3, (4, objective.size))
    theta[:, -2:] = objective.from_coefficients(JointLaw.published().coefficients)[-2:]  # E_start stays below E_max
    checked_gradient(objective, theta, rtol=1e-6)


def test_sums_over_runs_agree_with_the_jacobian(paper_runs):
    objective = make_problem(paper_runs, "joint").objective
    theta = np.random.default_rng(2).normal(0, 0.3, (5, objective.size))
    theta[:, -2:] = theta[0, -2:]
    plain = objective.evaluate(theta)
    quick = replace(objective, held_theta=theta[:1]).evaluate(theta)
    np.testing.assert_allclose(quick.cost, plain.cost, rtol=1e-12)
    np.testing.assert_allclose(quick.gradient[:, :-2], plain.gradient[:, :-2], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(quick.curvature[:, :-2, :-2], plain.curvature[:, :-2, :-2], rtol=1e-9, atol=1e-12)


def test_noisy_runs_reach_an_optimum_that_scipy_cannot_better(paper_runs, paper_fit):
    """L-BFGS-B with the analytic gradient, from the fit's optimum and from the truth."""
    objective = paper_fit.problem.objective
    assert paper_fit.objective == pytest.approx(huber_sum(paper_fit.law, paper_runs), rel=1e-9)
    assert paper_fit.objective < huber_sum(JointLaw.published(), paper_runs)

    def value(theta):
        at = objective.evaluate(theta[None])
        return at.cost[0] * 1e3, at.gradient[0] * 1e3

    truth = objective.from_coefficients(JointLaw.published().coefficients)
    bounds = list(zip(paper_fit.problem.lower, paper_fit.problem.upper, strict=True))
    for start in (paper_fit.theta, truth):
        found = minimize(
            value, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 5000, "ftol": 1e-15}
        )
        assert found.fun / 1e3 > paper_fit.objective * (1 - 1e-7)


def test_fit_of_the_papers_design(paper_fit):
    assert paper_fit.verdict == (
        "joint law of 270 runs: RMSE 0.0059 nats, converged, 64 of the 64 best of 720 starts agree; "
        "not determined by the runs: e_max"
    )
    assert paper_fit.to_dict()["runs"] == 270
    assert paper_fit.status.n_agree == paper_fit.status.n_released == 64
    assert max(abs(b) for b in paper_fit.bias_by_experts().values()) < 0.003
    assert sum(n for n in paper_fit.rmse_by_experts().values()) > 0
    assert paper_fit.law.conditions.n_runs == 270
    assert {r.experts for r in paper_fit.law.conditions.ranges} == {None, 1, 2, 4, 8, 16, 32}


@pytest.mark.parametrize("seed", sweep(range(4), [0]))
def test_tiny_sweeps_fit_without_fuss(seed):
    result = tiny_fit(seed)
    runs = result.runs
    assert result.status.converged
    assert result.objective <= huber_sum(JointLaw(**TINY_LAW), runs)
    vague = {*result.status.undetermined, *result.status.bounds_hit}
    assert "e_max" in vague
    assert any("ot determined by these runs" in message for message in result.status.messages)
    truth = JointLaw(**TINY_LAW).loss(runs.n_active, runs.tokens, runs.experts)
    assert np.sqrt(np.mean((result.law.loss(runs.n_active, runs.tokens, runs.experts) / truth - 1) ** 2)) < 0.01


def noisy_runs(constant, seed):
    """Twelve dense runs of a law with an exponent of N of −0.2, and with noise of 1 %."""
    noise = np.random.default_rng(seed)
    rows = []
    for n_active in (1e7, 3e7, 1e8):
        for tokens in (1e8, 3e8, 1e9, 3e9):
            loss = 60.0 * n_active**-0.2 + 300.0 * tokens**-0.27 + constant
            eval_loss = loss * np.exp(0.01 * noise.normal())
            rows.append({"n_active": n_active, "tokens": tokens, "experts": 1, "eval_loss": eval_loss})
    return load_runs(rows)


def test_a_constant_at_its_bound_determines_no_exponent():
    """The runs do not tell the constant, so half of the fits end on its bound, with an exponent far off."""
    errors = []
    for seed in range(12):
        result = fit(noisy_runs(0.5, seed), "chinchilla")
        if result.status.bounds_hit != ("c",):
            continue
        assert "c" not in result.status.standard_errors
        errors.append((result.law.coefficients["mu"] + 0.2) / result.status.standard_errors["mu"])
    assert len(errors) >= 4
    assert np.max(np.abs(errors)) < 2.0


def test_whether_a_fit_ends_on_a_bound_or_just_inside_says_the_same():
    runs = noisy_runs(0.5, 3)
    inside = fit(runs, "chinchilla")
    assert not inside.status.bounds_hit
    near = {"c": (None, inside.law.coefficients["c"] * 0.999)}
    at_bound = fit(runs, "chinchilla", bounds=near, starts=[inside.law])
    assert at_bound.status.bounds_hit == ("c",)
    errors = {name: inside.status.standard_errors[name] for name in ("m", "mu", "n", "nu")}
    assert at_bound.status.standard_errors == pytest.approx(errors, rel=0.02)
    assert {*at_bound.status.undetermined} == {*inside.status.undetermined} - {"c"}


def test_what_is_tied_to_a_coefficient_at_a_bound_is_at_it_too(paper_runs, paper_fit):
    law = paper_fit.law.replace(beta=paper_fit.law.alpha)
    tied = fit(paper_runs, fixed={"beta": "alpha"}, bounds={"alpha": (-0.1, 0.0)}, starts=[law])
    assert "alpha" in tied.status.bounds_hit
    assert {"alpha", "beta"}.isdisjoint(tied.status.standard_errors)
    assert {"alpha", "beta"}.isdisjoint(tied.status.undetermined)


def test_fixed_and_bounded_coefficients(paper_runs, paper_fit):
    held = fit(paper_runs, fixed={"e_max": 256.0, "gamma": 0.01})
    assert (held.law.e_max, held.law.gamma) == (256.0, pytest.approx(0.01))
    assert held.objective >= paper_fit.objective
    assert held.status.converged
    bounded = fit(paper_runs, bounds={"c": (1.0, 1.3), "e_start": (1.5, 2.5)})
    assert 1.0 <= bounded.law.c <= 1.3 + 1e-12
    assert "c" in bounded.status.bounds_hit
    free = fit(paper_runs, bounds={"alpha": (-1.0, 0.0)}, starts=[JointLaw.published()])
    assert free.objective == pytest.approx(paper_fit.objective, rel=1e-6)


def test_e_max_is_bounded_like_the_others(paper_runs, paper_fit):
    """The free fit puts E_max elsewhere; inside the bounds the optimum is that of E_max fixed there."""
    free = paper_fit.law.e_max
    wide = fit(paper_runs, bounds={"e_max": (0.5 * free, 2 * free)}, starts=[paper_fit.law])
    assert wide.objective == pytest.approx(paper_fit.objective, rel=1e-9)
    assert wide.law.e_max == pytest.approx(free, rel=1e-2)
    open_end = fit(paper_runs, bounds={"e_max": (1.5 * free, None)}, starts=[paper_fit.law])
    assert open_end.law.e_max == pytest.approx(1.5 * free)


@pytest.mark.parametrize(("low", "high", "end"), sweep([(1.5, 3.0, 1.5), (None, 0.5, 0.5)], [(1.5, 3.0, 1.5)]))
def test_e_max_ends_at_the_bound_before_the_free_fit(paper_runs, paper_fit, low, high, end):
    """Bounds are multiples of the free fit's E_max, the lowest of them 10."""
    free = paper_fit.law.e_max
    low, high, end = 10.0 if low is None else low * free, high * free, end * free
    bounded = fit(paper_runs, bounds={"e_max": (low, high)}, starts=[paper_fit.law])
    held = fit(paper_runs, fixed={"e_max": end})
    assert bounded.status.converged
    assert "e_max" in bounded.status.bounds_hit
    assert bounded.law.e_max == pytest.approx(end)
    assert bounded.objective == pytest.approx(held.objective, rel=1e-6)
    draws = bounded.bootstrap(5).draws[:, bounded.law.coefficient_names().index("e_max")]
    assert np.all((draws >= low * (1 - 1e-9)) & (draws <= high * (1 + 1e-9)))


def test_settings_with_an_obvious_meaning(paper_runs, paper_fit, tmp_path):
    start = {"starts": [paper_fit.law]}
    both = fit(paper_runs, fixed={"c": 1.2}, bounds={"c": (1.0, 1.3)}, **start)
    assert both.law.c == pytest.approx(1.2)
    same = fit(paper_runs, bounds={"c": (1.2, 1.2)}, **start)
    assert same.problem.settings.fixed == {"c": 1.2}
    positive = fit(paper_runs, bounds={"c": (0, 9.0), "alpha": (None, 0.0)}, **start)
    assert positive.objective == pytest.approx(paper_fit.objective, rel=1e-6)
    saved = JointLaw.from_pretrained(positive.law.save_pretrained(tmp_path))
    assert saved.conditions.objective["bounds"] == {"c": [None, 9.0], "alpha": [None, 0.0]}
    above = fit(paper_runs, fixed={"c": 2.4}, **start)
    assert any(message.startswith("The constant c ≥ 2.4 is above the loss of ") for message in above.status.messages)


def test_underweighting(paper_runs, paper_fit):
    weights = paper_runs.loss.min() / paper_runs.loss
    start = {"starts": [paper_fit.law]}
    named, given = (fit(paper_runs, weights=each, **start) for each in ("inverse_loss", weights))
    assert named.law == given.law
    assert named.problem.settings.weights == "inverse_loss"
    table = replace(paper_runs, columns={"precision": weights})
    column = fit(table, weights="precision", **start)
    assert column.law == given.law
    assert column.law.conditions.objective["weights"] == "precision"


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (lambda r: r.experts == 4, r"experts=4: delta, e_max, e_start, gamma, omega, zeta are not identifiable"),
        (lambda r: r.n_active == r.n_active[0], r"all runs have n_active="),
        (lambda r: r.tokens == 1e9, r"all runs have tokens=1e\+09: beta, zeta"),
        (lambda r: np.arange(len(r)) < 7, r"7 runs cannot determine 11 coefficients"),
    ],
)
@pytest.mark.parametrize("starts", sweep([None, [JointLaw.published()]], [[JointLaw.published()]]))
def test_designs_that_determine_nothing_are_refused(paper_runs, mask, message, starts):
    part = paper_runs.subset(mask(paper_runs))
    with pytest.raises(ValueError, match=message):
        fit(part)
    result = fit(part, allow_unidentifiable=True, starts=starts)
    assert result.status.undetermined
    assert result.status.warnings
    without_end = not np.all(np.isfinite([*result.status.standard_errors.values()]))
    assert ("not determined at all" in " ".join(as_text(result, 200).split())) == without_end


def test_single_ratio_is_refused(published):
    n = np.geomspace(1e8, 1e9, 8)
    runs = Runs.from_columns(n, 20 * n, 1, published.loss(n, 20 * n, 1))
    with pytest.raises(ValueError, match="tokens/n_active=20: m, mu, n, nu cannot be told apart"):
        fit(runs, "chinchilla")


def test_one_number_of_experts_fits_with_the_rest_fixed(paper_runs):
    names = ("delta", "gamma", "omega", "zeta")
    fixed = dict.fromkeys(names, 0.0) | {"e_start": 2.0, "e_max": 256.0}
    part = paper_runs.subset(paper_runs.experts == 1)
    joint, single = fit(part, fixed=fixed), fit(part, "chinchilla")
    assert joint.objective == pytest.approx(single.objective, rel=1e-6)


@pytest.mark.parametrize(
    ("router", "count", "log10_form", "transform", "error"),
    [
        ("S-Base", 58, (-0.0830, -0.1180, 0.00992, 1.1136), (2.0746, 238.7), 1.042e-5),
        ("RL-R", 59, (-0.0827, -0.1234, 0.01123, 1.1070), (1.7219, 470.05), 1.043e-5),
        ("Hash", 56, (-0.0874, -0.1384, 0.01264, 1.1595), (4.2688, 427.3), 8.89e-6),
    ],
)
def test_known_optima_are_reached(router, count, log10_form, transform, error):
    """The routed law on the public runs of Clark et al. 2022: the optima that two other optimisers found."""
    runs = clark_runs(router)
    result = fit(runs, "routed", huber_delta=10.0)  # a threshold this wide is least squares
    law = result.law
    assert len(runs) == count
    assert result.status.converged
    assert 2 * result.objective / count / np.log(10) ** 2 <= error * (1 + 4e-4)
    found = (law.alpha, law.delta, law.gamma * np.log(10), np.log10(law.a))
    assert found == pytest.approx(log10_form, abs=6e-5)
    assert (law.e_start, law.e_max) == pytest.approx(transform, rel=3e-4)


def test_no_headline_says_converged_where_nothing_is_determined():
    """Twelve runs of one size leave all coefficients open: the fit says so, and is trusted under a prior only.

    There they tell the term of D alone.
    """
    n, d = np.full(12, 1e8), np.geomspace(1e9, 8e9, 12)
    truth = JointLaw.published()
    runs = Runs.from_columns(
        n, d, np.ones(12), truth.loss(n, d, 1) * (1 + 0.02 * np.sin(np.arange(12.0))), trunk="run"
    )
    alone = fit(runs, "chinchilla", allow_unidentifiable=True)
    assert alone.status.converged
    assert {*alone.status.open_coefficients} == {*alone.fitted}
    assert not alone.trusted
    assert not alone.status.determines_any
    for text in (alone.verdict, alone.status.verdict, alone.law.conditions.status):
        assert "converged" not in text
    under_prior = fit(runs, "chinchilla", prior="public")
    assert under_prior.trusted
    assert {"m", "mu", "c"} <= {*under_prior.status.open_coefficients} < {*under_prior.fitted}
    assert under_prior.verdict.endswith("; from the prior: m, mu, nu, c")
    assert any("determine no coefficient" in warning for warning in alone.warnings)
