"""Calibration: few coefficients where few runs tell no more, errors that are held out, honest conditions."""

import numpy as np
import pytest

from hub.base.tables import as_text
from scaling_law import ChinchillaLaw, JointLaw, RoutedLaw, Runs, calibrate, fit, published
from scaling_law.fitting.calibration import Candidate, candidate_sets, choose
from tests.scaling_law.synthetic import synthetic_runs

PUBLISHED = JointLaw.published()


def dense_runs(law, sigma=0.004, seed=0):
    """15 dense runs of a laboratory: five sizes on three numbers of tokens."""
    n, d = (v.ravel() for v in np.meshgrid([2e8, 3e8, 4.5e8, 7e8, 1e9], [4e9, 2e10, 1e11], indexing="ij"))
    noise = np.random.default_rng(seed).normal(0, sigma, len(n))
    return Runs.from_columns(n, d, 1, law.loss(n, d, 1) + noise, source="dense.csv")


@pytest.fixture(scope="module")
def other_corpus():
    """Where the irreducible loss is 0.36 nats lower."""
    return PUBLISHED.replace(c=1.0)


@pytest.fixture(scope="module")
def calibrated(other_corpus):
    return calibrate(PUBLISHED, dense_runs(other_corpus))


def test_a_constant_that_cannot_fall_far_enough_is_a_candidate_at_its_bound():
    """Runs far below the published law: no c > 0 reaches them, and nothing is left to examine."""
    n, d = (v.ravel() for v in np.meshgrid([5e4, 1e5, 2e5], [1e6, 4e6, 1.6e7]))
    runs = Runs.from_columns(n, d, 1, PUBLISHED.loss(n, d, 1) / 4)
    found = calibrate(PUBLISHED, runs, candidates=[["c"], ["a", "b", "c"]])
    assert found.candidates[1].undetermined == ("c",)
    assert found.chosen.refitted == ("a", "b", "c")


def test_the_constant_alone_moves_to_another_corpus(calibrated, other_corpus):
    assert calibrated.chosen.refitted == ("c",)
    assert calibrated.law.c == pytest.approx(1.0, abs=0.005)
    assert {**calibrated.law.coefficients, "c": PUBLISHED.c} == PUBLISHED.coefficients
    experts = ([1e9, 3e8], [2e10, 1e11], [8, 32])
    assert calibrated.law.loss(*experts) == pytest.approx(other_corpus.loss(*experts), abs=0.005)
    by_name = {c.name: c.rmse for c in calibrated.candidates}
    assert by_name["published law"] == pytest.approx(0.3637, abs=0.005)
    assert calibrated.chosen.rmse < 0.006 < by_name["mean of the other runs"]
    assert "fresh fit" not in by_name
    assert "all runs have experts=1: delta, omega are not identifiable" in calibrated.warnings[0]


@pytest.mark.parametrize("seed", range(3))
def test_other_exponents_are_found_where_the_runs_show_them(seed):
    truth = PUBLISHED.replace(alpha=-0.25, a=120.0, beta=-0.2, b=60.0, c=1.6)
    found = calibrate(PUBLISHED, synthetic_runs(law=truth, seed=seed))
    assert {"alpha", "beta"} <= {*found.chosen.refitted}
    fresh = next(c for c in found.candidates if c.name == "fresh fit")
    assert found.chosen.rmse == pytest.approx(fresh.rmse, rel=0.05)
    constant = next(c for c in found.candidates if c.refitted == ("c",))
    assert constant.rmse > 3 * found.chosen.rmse


def test_held_out_errors_are_those_of_fits_without_the_group(calibrated):
    runs = calibrated.fit.runs
    for candidate in calibrated.candidates[1:3]:
        held = {k: v for k, v in PUBLISHED.coefficients.items() if k not in candidate.refitted}
        for size in np.unique(runs.n_active):
            left_out = runs.n_active == size
            own = fit(runs.subset(~left_out), fixed=held, starts=[PUBLISHED])
            np.testing.assert_allclose(candidate.errors[left_out], own.errors_on(runs.subset(left_out)), atol=1e-6)
    mean = calibrated.candidates[-1]
    others = runs.n_active != runs.n_active[4]
    assert mean.errors[4] == pytest.approx(runs.loss[others].mean() - runs.loss[4])


def test_no_refit_has_seen_the_runs_that_judge_it(other_corpus):
    """Candidates that interpolate all runs, in whose flat directions a refit could rest where it began."""
    n, e = np.repeat([2e8, 4e8, 8e8, 1.6e9], 3), np.repeat([45.0, 20.0, 5.0, 2.0], 3)
    d = np.tile([2e9, 8e9, 3e10], 4)
    odd = 0.1 * (n == 4e8)  # a model that the others cannot foresee
    runs = Runs.from_columns(n, d, e, other_corpus.loss(n, d, e) + odd)
    every = calibrate(PUBLISHED, runs).candidates
    assert all(rms > 0.05 for c in every for rms in [float(np.sqrt(np.mean(c.errors[n == 4e8] ** 2)))])


def test_the_smallest_set_within_one_standard_error_is_chosen():
    group = np.arange(4)
    few = Candidate("few", ("c",), np.sqrt([1.0, 2.0, 1.0, 2.0]))
    within = Candidate("more", ("b", "c"), np.sqrt([2.0, 0.5, 1.5, 1.0]))  # better by 1 ± 1.8
    beyond = Candidate("more", ("b", "c"), np.sqrt([0.9, 1.8, 0.9, 1.7]))  # better in every group
    assert choose([few, within], group) is few
    assert choose([few, beyond], group) is beyond
    assert choose([few, Candidate("open", ("b", "c"), np.zeros(4), undetermined=("b",))], group) is few


def test_draws_of_the_published_law_widen_the_intervals(calibrated, other_corpus):
    drawn = calibrated.bootstrap(300)
    names = list(PUBLISHED.coefficients)
    rest = [i for i, name in enumerate(names) if name != "c"]
    published = {tuple(row) for row in PUBLISHED.draws[:, rest].round(6)}
    assert {tuple(row) for row in drawn.draws[:, rest].round(6)} <= published
    without = calibrate(PUBLISHED.replace(draws=None), calibrated.fit.runs).bootstrap(300)
    assert np.ptp(without.draws[:, rest], axis=0) == pytest.approx(0, abs=1e-9)
    at = (1e9, 2e10, 16)
    wide, narrow = (np.diff(b.prediction_interval(*at))[0] for b in (drawn, without))
    assert wide > 1.5 * narrow
    low, high = drawn.prediction_interval(*at, level=0.99)
    assert low < other_corpus.loss(*at) < high
    assert drawn.law.conditions.draws.startswith("bootstrap of the calibration")
    assert drawn.converged.all()


def test_intervals_hold_what_the_published_runs_left_open():
    """Where the truth is one of the published law's draws on another corpus: 90 % intervals of a loss at E = 16."""
    n, d = dense_runs(PUBLISHED).n_active, dense_runs(PUBLISHED).tokens
    rng, at, hits = np.random.default_rng(0), (1e9, 2e10, 16), []
    for seed in range(30):
        truth = JointLaw(*PUBLISHED.draws[rng.integers(1000)])
        truth = truth.replace(c=truth.c - 0.3)
        runs = Runs.from_columns(n, d, 1, truth.loss(n, d, 1) + rng.normal(0, 0.005, len(n)))
        for law in (PUBLISHED, PUBLISHED.replace(draws=None)):
            drawn = calibrate(law, runs, candidates=[["c"]]).bootstrap(100, seed=seed)
            low, high = drawn.prediction_interval(*at, level=0.9)
            hits.append(low < truth.loss(*at) < high)
    assert np.mean(hits[::2]) > 0.8
    assert np.mean(hits[1::2]) < 0.6


def test_the_law_says_what_it_was_calibrated_on(calibrated, tmp_path):
    calibrated.law.save_pretrained(tmp_path)
    law = JointLaw.from_pretrained(tmp_path)
    assert law == calibrated.law
    known = law.conditions
    assert known.provenance.startswith("Ludziejewski et al. 2025, recovered coefficients; calibrated on dense.csv")
    assert known.provenance.endswith("c refitted")
    assert known.objective["refitted"] == ["c"]
    assert known.objective["fixed"]["alpha"] == PUBLISHED.alpha
    assert known.objective["held_out_rmse"] == calibrated.chosen.rmse
    assert known.n_runs == 15
    assert known.overall.tokens == (5e8, 1e11)  # of the published runs and these
    assert known.experts == PUBLISHED.conditions.experts
    assert law.warnings(1e9, 2e10, 8) == PUBLISHED.warnings(1e9, 2e10, 8)


def test_results_show_every_candidate(calibrated):
    text = as_text(calibrated)
    assert "held out: each of 5 groups in turn, runs of equal n_active, experts" in text
    assert "chosen" in text
    assert len(calibrated.to_dataframe()) == len(calibrated.candidates) == 5
    assert calibrated.to_dict()["refitted"] == ["c"]
    assert calibrated.to_dict()["left_out"][0]["why"] == "all runs have experts=1: delta, omega are not identifiable"


@pytest.mark.parametrize(
    ("law", "sets"),
    [
        (JointLaw, ["c", "a b", "alpha beta", "delta omega", "gamma zeta", "e_start e_max"]),
        (ChinchillaLaw, ["c", "m n", "mu nu"]),
        (RoutedLaw, ["a", "alpha", "delta", "gamma", "e_start e_max"]),
    ],
)
def test_candidates_follow_from_the_form(law, sets):
    nested = [()] + [{name for words in sets[: i + 1] for name in words.split()} for i in range(len(sets))]
    assert [{*found} for found in candidate_sets(law.form)] == nested[1:]


def test_a_law_of_one_model_is_judged_by_its_tokens():
    truth = ChinchillaLaw(m=400.0, mu=-0.3, n=400.0, nu=-0.28, c=1.7)
    d = np.geomspace(1e9, 1e11, 6)
    noise = np.random.default_rng(0).normal(0, 0.003, 6)
    runs = Runs.from_columns(1e9, d, 1, truth.replace(c=2.0).loss(1e9, d) + noise)
    found = calibrate(truth, runs)
    assert found.groups == "runs of equal tokens"
    assert found.n_groups == 6
    assert found.chosen.refitted == ("c",)
    assert found.law.c == pytest.approx(2.0, abs=0.005)


def test_untuned_runs_bound_a_calibration(other_corpus):
    runs = dense_runs(other_corpus)
    untuned = runs.tokens == 2e10
    runs = Runs.from_columns(runs.n_active, runs.tokens, 1, runs.loss + 0.2 * untuned)
    found = calibrate(PUBLISHED, runs, one_sided=untuned)
    assert found.law.c == pytest.approx(1.0, abs=0.005)
    assert len(found.chosen.errors) == 10
    assert calibrate(PUBLISHED, runs, candidates=[["c"]]).law.c > 1.01


def test_a_law_of_the_shelf_keeps_its_limits(other_corpus):
    """It has ranges, but no runs; another law's draws and E are not its own."""
    law = published("chinchilla")
    runs = dense_runs(law.replace(c=1.4))
    known = calibrate(law, runs, candidates=[["c"]]).law.conditions
    assert known.provenance.startswith("Hoffmann et al. 2022")
    assert known.fitted_limits()["N_act"] == (70e6, 16e9)
    assert known.fitted_limits()["D"] == (4e9, 5e11)
    assert known.draws is None
    every = calibrate(law, runs, candidates=[law.coefficient_names()]).law.conditions
    assert every.fitted_limits()["N_act"] == (2e8, 1e9)
    assert every.provenance.endswith("all coefficients refitted")


def test_any_form_can_be_calibrated():
    law = published("abnar")
    n, d, density = (v.ravel() for v in np.meshgrid([1e9, 3e9, 9e9], [1e10, 4e10, 2e11], [0.1, 0.5]))
    loss = law.replace(e=law.e + 0.2).loss(tokens=d, n_total=n, density=density)
    loss = loss + np.random.default_rng(0).normal(0, 0.003, len(n))
    runs = Runs.from_columns(n, d, 1 / density, loss, "run", columns={"n_total": n, "density": density})
    found = calibrate(law, runs)
    assert found.chosen.refitted == ("e",)
    assert found.law.e == pytest.approx(law.e + 0.2, abs=0.003)
    assert found.groups == "runs of equal n_total, density"
    assert found.law.conditions.fitted_limits()["density"] == (0.05, 1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"groups": "experts"}, "groups='experts': 1 group of runs of equal experts; two are needed"),
        ({"groups": "team"}, "numeric column 'team' is unknown"),
        ({"candidates": [["kappa"]]}, "candidates: coefficient 'kappa' is unknown.* a, alpha"),
        ({"candidates": ["c"]}, "candidates: 'c' must be a set"),
        ({"candidates": [[]]}, r"candidates: \[\] must be a set"),
        ({"candidates": [["delta", "c"]]}, "dense.csv: no candidate can be fitted: all runs have experts=1: delta"),
        ({"huber_delta": 0}, "huber_delta=0"),
        ({"one_sided": [True]}, "one_sided must be 15 values"),
    ],
)
def test_bad_questions_are_named(calibrated, options, message):
    with pytest.raises(ValueError, match=message):
        calibrate(PUBLISHED, calibrated.fit.runs, **options)


def test_what_predicts_no_loss_cannot_be_calibrated(calibrated):
    with pytest.raises(ValueError, match="must be a law that predicts a loss"):
        calibrate(published("ling"), calibrated.fit.runs)
    with pytest.raises(ValueError, match="kind='five_factor' is not a sum of terms"):
        calibrate(published("hunyuan"), calibrated.fit.runs)
