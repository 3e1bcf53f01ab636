"""A prior over laws: without runs it is the prior, with many the fit; the population takes errors off the spread."""

import dataclasses
import json
from itertools import pairwise

import numpy as np
import pytest

from hub.base.errors import InputError
from hub.base.tables import as_text
from scaling_law import ChinchillaLaw, JointLaw, Prior, Runs, errors_of, fit, prior, published
from scaling_law.fitting import rms
from scaling_law.fitting.penalty import Coordinates, Penalty, natural_of
from scaling_law.fitting.posterior import posterior
from scaling_law.fitting.prior import CHINCHILLA, INTERACTION_SPREAD, POPULATION, for_kind, law_of
from scaling_law.law import LAWS
from scaling_law.law.base import register_form
from studies.forecasts.members import (
    Member,
    estimate,
    member_of,
    read_population,
    terms_of_experts,
    vague_of_experts,
)
from tests.scaling_law.synthetic import interaction_law, synthetic_runs

MEAN = np.array([-1.0, -1.1, -1.05, -1.0, 0.6])
USUAL = Prior(MEAN, np.diag([0.3, 0.3, 0.2, 0.2, 0.1]) ** 2, noise=0.01)
TRUTH = law_of(CHINCHILLA.natural(MEAN + np.array([0.3, -0.3, -0.2, 0.2, 0.1])))
JOINT = JointLaw.published()
FAR = {"n_active": 7e10, "tokens": 1e12}


def measured(count: int, seed: int = 0, noise: float = 0.01, law: ChinchillaLaw = TRUTH) -> Runs:
    rng = np.random.default_rng(seed)
    n, d = np.exp(rng.uniform(np.log(5e7), np.log(2e9), count)), np.exp(rng.uniform(np.log(1e9), np.log(5e10), count))
    return Runs.from_columns(n, d, 1.0, law.loss(n, d) * np.exp(noise * rng.standard_normal(count)), "run")


@pytest.mark.parametrize("dof", [4.0, np.inf])
def test_the_gradient_is_that_of_the_cost(dof):
    penalty = Penalty(MEAN, np.linalg.inv(USUAL.covariance), dof, 2e-4, 1.0, CHINCHILLA)
    at = CHINCHILLA.natural(MEAN[None] + 0.3)
    _, gradient, curvature = penalty.evaluate(at)
    steps = 1e-6 * np.eye(5)
    ends = [penalty.evaluate(at + sign * steps)[0] for sign in (1, -1)]
    np.testing.assert_allclose((ends[0] - ends[1]) / 2e-6, gradient[0], rtol=1e-4)
    assert np.linalg.eigvalsh(curvature[0]).min() > -1e-12


@pytest.mark.parametrize(("deviations", "pull"), [(0.0, 1.0), (3.0, 9 / 49)])
def test_a_prior_with_heavy_tails_is_its_own_covariance_in_the_middle_and_wider_far_out(deviations, pull):
    """Of 4 degrees of freedom and 5 coordinates: (4 + 5) / (4 + 5 · 3²) at three deviations of each, and at most 1."""
    precision = np.linalg.inv(USUAL.covariance)
    penalty = Penalty(MEAN, precision, 4.0, 2e-4, 1.0, CHINCHILLA)
    root = penalty.root(CHINCHILLA.natural(MEAN + deviations * np.sqrt(np.diag(USUAL.covariance))))
    np.testing.assert_allclose(root @ root.T, pull * precision, rtol=1e-9, atol=1e-9)


def test_the_population_serves_interaction_laws_with_an_open_q():
    interacting = for_kind(USUAL, "interaction")
    at = {"n_active": [1e8, 1e10], "tokens": [1e9, 1e12]}
    np.testing.assert_allclose(interacting.law.loss(**at), USUAL.law.loss(**at))
    draws = np.random.default_rng(0).multivariate_normal(interacting.mean, interacting.covariance, 4000)
    laws = [law_of(natural, "interaction") for natural in interacting.coordinates.natural(draws)]
    q = np.array([law.q for law in laws])
    assert np.log(q).std() == pytest.approx(INTERACTION_SPREAD, rel=0.05)
    alpha = np.log([law.x * law.q for law in laws])  # α and β are spread as Chinchilla's, whatever q is
    assert (alpha.mean(), alpha.std()) == pytest.approx((MEAN[2], 0.2), abs=0.02)
    assert abs(np.corrcoef(alpha, np.log(q))[0, 1]) < 0.05
    truth = interaction_law(400.0, 0.33, 410.0, 0.28, 0.4, 1.7)
    n, d = (values.ravel() for values in np.meshgrid(np.geomspace(5e7, 2e9, 8), np.geomspace(1e9, 5e10, 8)))
    runs = Runs.from_columns(
        n, d, 1.0, truth.loss(n, d) * np.exp(0.003 * np.random.default_rng(1).standard_normal(64))
    )
    assert fit(runs, "interaction", prior=USUAL).law.q == pytest.approx(0.4, rel=0.3)


def test_the_population_serves_a_form_with_further_terms():
    terms = {"a": {"n_active": "-alpha"}, "b": {"tokens": "beta"}, "g": {"experts": "-delta"}, "c": {}}
    kind = register_form("further", {"form": {"terms": terms}})
    law = for_kind(USUAL, kind.name).law
    LAWS.pop(kind.name)
    m, mu, n, nu, c = USUAL.law.coefficients.values()
    assert law.coefficients == pytest.approx(
        {"a": m, "alpha": -mu, "b": n, "beta": nu, "g": 0.4, "delta": 0.0, "c": c}
    )


def test_from_the_prior_to_the_fit_as_the_prior_widens():
    runs = measured(12)
    fresh = np.log(fit(runs, "chinchilla").law.loss(**FAR))
    grown = [dataclasses.replace(USUAL, covariance=USUAL.covariance * factor) for factor in 10.0 ** np.arange(-6, 7)]
    distances = [abs(np.log(posterior(runs, each, "chinchilla").law.loss(**FAR)) - fresh) for each in grown]
    assert distances[0] == pytest.approx(abs(np.log(USUAL.law.loss(**FAR)) - fresh), rel=0.05)
    assert distances[-1] < 0.002
    assert all(later <= earlier + 1e-4 for earlier, later in pairwise(distances))


def test_a_fit_is_the_mode_of_the_posterior():
    runs = measured(12)
    np.testing.assert_allclose(
        list(fit(runs, "chinchilla", prior=USUAL).law.coefficients.values()),
        list(posterior(runs, USUAL, "chinchilla").law.coefficients.values()),
        rtol=1e-3,
    )


def test_intervals_know_the_prior():
    runs = measured(12)
    result = fit(runs, "chinchilla", prior=USUAL)
    draws = result.bootstrap(50)
    assert draws.converged.all()
    assert result.problem.settings.to_dict()["prior"] == "given"
    low, high = draws.interval("c")
    assert low < result.law.c < high
    fresh_low, fresh_high = fit(runs, "chinchilla").bootstrap(50).interval("c")
    assert high - low < fresh_high - fresh_low


def test_draws_of_a_posterior_cover_the_truth():
    hits = []
    for seed in range(40):
        truth = law_of(
            CHINCHILLA.natural(
                MEAN + np.linalg.cholesky(USUAL.covariance) @ np.random.default_rng(seed).normal(size=5)
            )
        )
        law = posterior(measured(12, seed, law=truth), USUAL, "chinchilla").draw(200)
        low, high = np.quantile(law.loss_draws(**FAR), [0.05, 0.95])
        hits.append(low < truth.loss(**FAR) < high)
    assert 0.75 <= np.mean(hits) <= 0.99


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
        law = law_of(CHINCHILLA.natural(MEAN + np.linalg.cholesky(USUAL.covariance) @ rng.normal(size=5)))
        for i in range(sets if lab == 0 else 1):
            runs = measured(40, 100 * lab + i, 0.005, law)
            found.append(member_of(runs, f"{lab}-{i}", f"lab{lab}", source="made", licence="none"))
    return found


@pytest.fixture(scope="module")
def members():
    return lab_laws()


def test_the_population_is_found_and_its_members_errors_are_not_in_its_spread(members):
    found = estimate(members, 0.0, np.inf, 1.0)
    spread, truth = np.sqrt(np.diag(found.covariance)), np.sqrt(np.diag(USUAL.covariance))
    np.testing.assert_allclose(found.mean, MEAN, atol=0.12)
    np.testing.assert_allclose(spread, truth, rtol=0.35)
    naive = np.std([np.linalg.solve(m.precision, m.pull) for m in members], axis=0)
    assert np.abs(spread / truth - 1).mean() < np.abs(naive / truth - 1).mean()


def test_sets_of_one_lab_share_its_weight(members):
    one, many = (estimate(labs, 0.5, np.inf, 1.0).mean for labs in (members[:8], lab_laws(8, 6)))
    assert np.abs(one - many).max() < 0.03


def test_shrinkage_leaves_the_variances_and_drops_the_covariances(members):
    whole = estimate(members[:20], 1.0, 4.0, 1.0).covariance
    np.testing.assert_allclose(whole, np.diag(np.diag(whole)), atol=1e-12)


def test_the_public_population_is_of_labs_with_sources():
    members = read_population(POPULATION)[0]
    assert len({member.lab for member in members}) >= 9
    assert all(member.source and member.licence for member in members)
    assert set(prior("public").sources) == {member.name for member in members}
    assert fit(measured(12), "chinchilla", prior="public").law.coefficients


def test_the_population_that_ships_is_estimated_from_its_members():
    members, settings, members_of_experts, _ = read_population(POPULATION)
    population = estimate(members, **settings)
    experts = terms_of_experts(members_of_experts, population)
    shipped = prior("public", experts="pooled")
    for ours, theirs in ((shipped, population), (shipped.experts, experts)):
        np.testing.assert_allclose(ours.mean, theirs.mean, rtol=1e-9)
        np.testing.assert_allclose(ours.covariance, theirs.covariance, rtol=1e-9, atol=1e-10)
        assert (ours.dof, ours.sources) == (theirs.dof, theirs.sources)
        assert ours.noise == pytest.approx(theirs.noise, rel=1e-9)
        assert (ours.kind, ours.coordinates.names) == (theirs.kind, theirs.coordinates.names)


# ------------------------------------------------------------------ the terms of E

ABOUT = vague_of_experts()
OF_E = ABOUT.coordinates.names[5:]


def member_of_experts(lab: str, shift: float, terms: tuple[str, ...] = OF_E) -> Member:
    """A member that is sure of these terms of E, each this far above the published law's."""
    places = [ABOUT.coordinates.names.index(term) for term in terms]
    precision = np.diag(np.full(len(terms), 1e8))
    rows = tuple(map(tuple, precision.tolist()))
    return Member(
        lab, lab, "made", "none", 40, 0.01, tuple(precision @ (ABOUT.mean[places] + shift)), rows, terms=terms
    )


def pooled(*members: Member) -> np.ndarray:
    return terms_of_experts(members, USUAL).mean[5:] - ABOUT.mean[5:]


def test_pooled_terms_of_experts_lie_between_the_labs():
    low, middle, high = (member_of_experts(str(shift), shift) for shift in (-0.02, 0.0, 0.04))
    assert (pooled(low, middle, high) > -0.02).all()
    assert (pooled(low, middle, high) < 0.04).all()
    np.testing.assert_allclose(
        pooled(low, low, high), pooled(low, high), atol=1e-9
    )  # two sets of a lab share its weight
    np.testing.assert_allclose(pooled(low), -0.02, atol=1e-4)


def test_a_member_says_nothing_of_terms_that_its_design_cannot_tell():
    whole, part = member_of_experts("one", 0.0), member_of_experts("two", 0.1, ("delta", "gamma"))
    moved = dict(zip(OF_E, pooled(whole, part), strict=True))
    assert all((moved[name] > 0.01) == (name in part.terms) for name in OF_E)
    spread = dict(zip(OF_E, np.diag(terms_of_experts([part], USUAL).covariance)[5:], strict=True))
    assert spread["omega"] > 10 * spread["delta"]  # nobody says anything of it


def test_runs_of_a_full_design_tell_the_terms_of_experts():
    truth = JOINT.replace(delta=JOINT.delta + 0.1, zeta=JOINT.zeta + 0.01)
    n, d, e = (v.ravel() for v in np.meshgrid([2e8, 1e9, 4e9], [4e9, 2e10, 2e11], [1, 4, 32, 256]))
    loss = truth.loss(n, d, e) * np.exp(0.001 * np.random.default_rng(0).standard_normal(len(n)))
    runs = Runs.from_columns(n, d, e, loss, "run")
    member = member_of(runs, "full", "lab", OF_E, ABOUT, source="made", licence="none")
    weak = np.linalg.inv(ABOUT.covariance[5:, 5:])
    spread = np.linalg.inv(np.array(member.precision) + weak)
    off = spread @ (np.array(member.pull) + weak @ ABOUT.mean[5:])
    off -= ABOUT.coordinates.of_natural(natural_of(truth.form, truth.coefficients))[5:]
    assert (np.abs(off) < 3 * np.sqrt(np.diag(spread))).all()
    one_d = member_of(runs.subset(runs.tokens == 2e10), "one D", "lab", OF_E, ABOUT, source="made", licence="none")
    assert one_d.precision[0][0] < 0.2 * member.precision[0][0]


def test_without_a_run_that_says_otherwise_a_joint_fit_has_the_pooled_terms():
    public = prior("public", experts="pooled")
    law = for_kind(public, "joint").law
    runs = Runs.from_columns(1e9, 2e10, 1.0, law.loss(1e9, 2e10, 1.0))
    moved, usual = (fit(runs, "joint", prior=each, starts=[law]) for each in (public, "public"))
    assert moved.law.loss(**MOE) == pytest.approx(law.loss(**MOE), rel=1e-4)
    assert moved.law.loss(**MOE) != pytest.approx(usual.law.loss(**MOE), rel=1e-3)


def test_labs_are_left_out_of_the_terms_of_experts():
    *_, members, usual = read_population(POPULATION)
    assert {member.lab for member in members} == {"ideas", "deepmind", "marin", "stepfun"}
    assert all(member.source and member.licence for member in members)
    for lab in ("deepmind", "marin", "stepfun", "ideas"):
        others = [member for member in members if member.lab != lab]
        rest = terms_of_experts(others, prior())
        assert {*rest.sources} == {member.name for member in others}
        assert not np.allclose(rest.mean[5:], prior("public", experts="pooled").experts.mean[5:], atol=1e-4)
    assert (prior("public").experts is None) == (usual == "published")
    assert "terms of E of clark" in for_kind(dataclasses.replace(prior(), experts=rest), "joint").sources[-1]
    nobody = for_kind(dataclasses.replace(prior(), experts=terms_of_experts([], prior())), "joint")
    assert nobody.sources[-1] == "terms of E of no lab"
    assert np.sqrt(nobody.covariance[5, 5]) > 0.4


# ------------------------------------------------------------------ one law, and laws of any kind


def dense_runs(law, sigma=0.004, seed=0, experts=1.0):
    """15 runs of a laboratory: five sizes on three numbers of tokens."""
    n, d = (v.ravel() for v in np.meshgrid([2e8, 3e8, 4.5e8, 7e8, 1e9], [4e9, 2e10, 1e11], indexing="ij"))
    noise = np.random.default_rng(seed).normal(0, sigma, len(n))
    return Runs.from_columns(n, d, experts, law.loss(n, d, experts) + noise, source="dense.csv")


MOE = {"n_active": [1e9, 3e8], "tokens": [2e10, 1e11], "experts": [8, 32]}
ON_SHELF = ("ludziejewski", "chinchilla", "clark_sbase", "kaplan", "krajewski", "abnar")


@pytest.mark.parametrize("law", [published(name) for name in ON_SHELF], ids=ON_SHELF)
def test_coordinates_of_any_law_are_those_of_its_coefficients(law):
    coordinates, natural = Coordinates.of(law.form, law.coefficients), natural_of(law.form, law.coefficients)
    x = coordinates.of_natural(natural)
    assert law_of(coordinates.natural(x), law.name).coefficients == pytest.approx(law.coefficients, rel=1e-9)
    steps = 1e-6 * np.eye(len(x))
    slopes = (coordinates.of_natural(natural + steps) - coordinates.of_natural(natural - steps)).T / 2e-6
    np.testing.assert_allclose(coordinates.jacobian(natural), slopes, rtol=1e-4, atol=1e-6)


def test_the_first_coordinates_of_a_joint_law_are_those_of_its_dense_models():
    m, mu, n, nu = (float(v) for v in JOINT.chinchilla_coefficients(1.0))
    dense = CHINCHILLA.of_natural(natural_of(ChinchillaLaw.form, {"m": m, "mu": mu, "n": n, "nu": nu, "c": JOINT.c}))
    np.testing.assert_allclose(prior(JOINT).mean[:5], dense, rtol=1e-9)
    public, joint = prior(), fit(dense_runs(JOINT), prior="public", starts=[JOINT])
    assert joint.problem.objective.penalty.mean[:5] == pytest.approx(public.mean)
    assert joint.problem.objective.penalty.mean[5:] == pytest.approx(prior(JOINT).mean[5:])


def test_coordinates_go_on_smoothly_where_an_exponent_has_no_logarithm():
    natural = natural_of(ChinchillaLaw.form, {"m": 10.0, "mu": -1e-3, "n": 10.0, "nu": 0.2, "c": 1.0})
    steps = 1e-6 * np.eye(5)
    ends = [CHINCHILLA.of_natural(natural + sign * steps) for sign in (1, -1)]
    np.testing.assert_allclose((ends[0] - ends[1]).T / 2e-6, CHINCHILLA.jacobian(natural), rtol=1e-2)
    np.testing.assert_allclose(CHINCHILLA.natural(CHINCHILLA.of_natural(natural)), natural, rtol=1e-9)


def test_a_law_without_draws_is_surer_of_itself_than_of_other_labs():
    with_draws, without = prior(JOINT), prior(JOINT.replace(draws=None))
    assert np.linalg.eigvalsh(with_draws.covariance - without.covariance).min() > -1e-9
    np.testing.assert_allclose(with_draws.mean, without.mean)
    assert "its draws and the spread between labs" in with_draws.sources[0]
    assert "no draws and the spread between labs" in without.sources[0]
    spread = np.sqrt(np.diag(without.covariance))
    assert (spread[:5] >= np.sqrt(np.diag(prior().covariance))).all()
    assert spread[5:].min() > 0.003


# Another corpus, where the irreducible loss is 0.36 nats lower.
OTHER = JOINT.replace(c=1.0)


@pytest.fixture(scope="module")
def other_fit():
    return fit(dense_runs(OTHER), prior=JOINT)


def test_dense_runs_of_another_corpus_move_the_law_and_leave_it_the_terms_of_experts(other_fit):
    result = other_fit
    assert result.rmse < 0.006
    assert result.law.loss(**MOE) == pytest.approx(OTHER.loss(**MOE), abs=0.03)
    assert "All runs have experts=1" in result.status.messages[0]
    assert "Not determined by these runs, so as in the prior from Ludziejewski" in result.status.messages[-1]
    assert result.status.standard_errors["gamma"] == pytest.approx(0.007, abs=0.003)
    coefficients = {line.split("│")[1].strip(): line for line in as_text(result).splitlines() if "│" in line}
    assert "from the prior" in coefficients["gamma"]
    assert "from your runs" in coefficients["beta"]
    assert "from the prior: " in result.status.verdict
    with pytest.raises(ValueError, match="not identifiable"):
        fit(dense_runs(OTHER))


def test_many_runs_of_another_law_give_its_fit():
    truth = JOINT.replace(alpha=-0.25, a=120.0, beta=-0.2, b=60.0, c=1.6)
    runs = synthetic_runs(law=truth)
    fresh = fit(runs, starts=[truth])
    for law in (JOINT, "public"):
        moved = fit(runs, prior=law, starts=[JOINT])
        assert rms(errors_of(moved.law, runs)) < 1.01 * fresh.rmse
        assert moved.law.loss(3e9, 1e11, 16) == pytest.approx(fresh.law.loss(3e9, 1e11, 16), abs=0.01)


def test_runs_pull_a_law_from_the_prior_steadily():
    truth = JOINT.replace(alpha=-0.25, a=120.0, beta=-0.2, b=60.0, c=1.6)
    runs, far = synthetic_runs(law=truth), (3e9, 1e11, 1)
    order = np.random.default_rng(0).permutation(len(runs))
    parts = [runs.take(order[:count]) for count in (1, 6, 40, len(runs))]
    laws = [fit(part, prior=JOINT, starts=[JOINT]).law for part in parts]
    errors = [abs(law.loss(*far) - truth.loss(*far)) for law in laws]
    assert abs(JOINT.loss(*far) - truth.loss(*far)) > errors[0] > errors[1] > errors[2] > errors[3]


def test_the_price_of_a_wrong_prior_is_bounded(paper_runs, paper_fit):
    """Exponents and levels many standard deviations off cost a sixth of the error of a fresh fit, and no more."""
    wrong = JOINT.replace(alpha=-0.6, beta=-0.6, a=4e5, b=4e6, c=0.6, draws=None)
    moved = fit(paper_runs, prior=wrong)
    assert rms(errors_of(moved.law, paper_runs)) < 1.2 * paper_fit.rmse
    assert moved.law.loss(3e9, 1e11, 16) == pytest.approx(JOINT.loss(3e9, 1e11, 16), abs=0.02)


@pytest.mark.parametrize("law", [JOINT, JOINT.replace(draws=None)], ids=["with draws", "without"])
def test_intervals_hold_what_the_runs_left_open(law):
    """Where the truth is one of the law's draws on another corpus: 90 % intervals of a loss at E = 16."""
    rng, at, hits = np.random.default_rng(0), (1e9, 2e10, 16), []
    for seed in range(20):
        truth = JointLaw(**dict(zip(JOINT.coefficients, JOINT.draws[rng.integers(1000)], strict=True)))
        truth = truth.replace(c=truth.c - 0.3)
        drawn = fit(dense_runs(truth, 0.005, seed), prior=law, starts=[law]).bootstrap(100, seed=seed)
        low, high = drawn.prediction_interval(*at, level=0.9)
        hits.append(low < truth.loss(*at) < high)
    assert np.mean(hits) >= 0.8


def test_the_law_says_under_which_prior_it_was_fitted(other_fit, tmp_path):
    other_fit.law.save_pretrained(tmp_path)
    conditions = JointLaw.from_pretrained(tmp_path).conditions
    assert "fitted on dense.csv, under a prior from Ludziejewski et al. 2025" in conditions.provenance
    assert conditions.objective["prior"] in conditions.provenance
    assert conditions.n_runs == 15
    assert conditions.overall.tokens == (4e9, 1e11)
    assert conditions.experts == (1,)
    assert conditions.prior_limits == JOINT.conditions.fitted_limits()
    assert conditions.known_limits()["D"] == (5e8, 1e11)
    limits = fit(dense_runs(JOINT), "chinchilla", prior=published("chinchilla")).law.conditions.known_limits()
    assert (limits["N_act"], limits["D"]) == ((70e6, 16e9), (4e9, 5e11))


def test_a_law_under_a_prior_is_trusted_as_far_as_its_own_runs_support(tmp_path):
    """The published law has E up to 32 and 80B tokens, the runs E = 1 and 8, and 600M parameters."""
    sizes = [1e8, 3e8, 6e8]
    n, d, e = (values.ravel() for values in np.meshgrid(sizes, [2e9, 8e9, 3e10], [1.0, 8.0]))
    runs = Runs.from_columns(n, d, e, JOINT.loss(n, d, e) + 0.1, "run")
    fit(runs, prior=JOINT, starts=[JOINT]).law.save_pretrained(tmp_path)
    law = JointLaw.from_pretrained(tmp_path)
    assert law.conditions.overall.n_active == (1e8, 6e8)
    assert [*law.default_experts()] == [1, 2, 4, 8, 16, 32]

    check = law.check(6e8, 3e10, [1.0, 8.0, 32.0])
    assert [*check.trusted] == [True, True, False]
    assert not check.beyond.any()
    assert not law.optimal(1e20)[32].trusted
    assert law.optimal(1e20).best.experts <= 8
    # The guard reaches as far as that of the prior.
    assert not law.check(1e9, 2e10, 100.0).beyond
    assert law.check(1e9, 2e10, 200.0).beyond


def test_a_law_of_an_earlier_version_with_joined_ranges_loads_and_is_not_trusted(tmp_path):
    """Ranges of its runs and of its prior's were one, so what its own runs cover is unknown."""
    law = fit(dense_runs(JOINT), prior=JOINT, starts=[JOINT]).law
    path = law.save_pretrained(tmp_path)
    data = json.loads(path.read_text())
    del data["conditions"]["prior_limits"]
    data["conditions"]["ranges"] = JOINT.conditions.to_dict()["ranges"]
    path.write_text(json.dumps(data))

    old = JointLaw.from_pretrained(tmp_path)
    assert old.loss(1e9, 2e10, 8) == law.loss(1e9, 2e10, 8)
    check = old.check(1e9, 2e10, 8)
    assert not check.trusted
    assert not check.beyond
    assert "fit it again" in check.warnings[-2]


def test_any_kind_of_law_can_be_a_prior():
    law = published("abnar")
    n, d, density = (v.ravel() for v in np.meshgrid([1e9, 3e9, 9e9], [1e10, 4e10, 2e11], [0.1, 0.5]))
    loss = law.replace(e=law.e + 0.2).loss(tokens=d, n_total=n, density=density)
    runs = Runs.from_columns(n, d, 1 / density, loss, "run", columns={"n_total": n, "density": density})
    moved = fit(runs, law.name, prior=law)
    assert moved.rmse < 0.003
    assert moved.law.conditions.known_limits()["density"] == (0.05, 1.0)


def test_a_bad_run_among_few_is_named_and_a_lone_one_is_not():
    """Leverage counts the prior: a lone run does not predict itself."""
    few = dense_runs(JOINT).take(np.arange(0, 15, 2))
    assert fit(few, prior=JOINT, starts=[JOINT]).status.suspicious == ()
    off = dataclasses.replace(few, loss=few.loss + 0.6 * (np.arange(len(few)) == 3))
    status = fit(off, prior=JOINT, starts=[JOINT]).status
    assert status.suspicious == (few.run_id[3],)
    assert status.deviations[0] == pytest.approx(0.6, abs=0.1)
    assert fit(off.take([3]), prior=JOINT, starts=[JOINT]).status.suspicious == ()


def test_a_published_law_is_a_prior_by_its_name():
    runs = measured(12)
    by_name = fit(runs, "chinchilla", prior="chinchilla")
    assert by_name.law.coefficients == fit(runs, "chinchilla", prior=published("chinchilla")).law.coefficients
    with pytest.raises(InputError, match=r"prior='publishd' must be 'public', .* laws may be named, as 'published'"):
        prior("publishd")
