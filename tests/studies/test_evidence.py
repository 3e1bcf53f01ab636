"""docs/studies/evidence.md: its numbers are those of studies/evidence/*.json, and points are derived as it says."""

import json
from dataclasses import replace

import numpy as np
import pytest

from scaling_law import JointLaw, Runs
from studies.crossing.laws import longest_of_each
from studies.evidence import study
from studies.evidence.forecasts import JOINT, MEAN, REFIT, Question, join_tables
from studies.evidence.points import cell_means, derive, read_source, read_sources
from studies.evidence.study import Evidence, choices_of, gains_of
from tests.guides import ROOT
from tests.scaling_law.runs.test_readers import DENSE, step_law_moe, write
from tests.scaling_law.runs.test_readers import MOE as MOE_COLUMNS

POINTS = ROOT / "studies" / "evidence"
LAW = JointLaw.published()


@pytest.fixture(scope="module")
def evidence():
    return Evidence(read_sources(POINTS))


def test_the_sentences_of_the_page_hold(evidence):
    """What the hand-written prose says without numbers."""
    assert study.PAGE.refuted(evidence) == []
    (gain, *_), (*_, published) = evidence.refitted[45.0]
    assert gain > 0 > published
    step, marin, chinchilla = evidence.slopes.values()
    assert step.tokens[1] < step.published[1] < step.tokens[2]
    assert marin.tokens[2] < marin.published[1]
    assert chinchilla.tokens[2] < chinchilla.published[1]


def with_losses(name, change):
    """The sources, where the losses of each table of one are those that `change` makes of its runs."""
    sources = read_sources(POINTS)
    tables = {table: replace(runs, loss=change(runs)) for table, runs in sources[name].tables.items()}
    return sources | {name: replace(sources[name], tables=tables)}


def raised(by, where):
    return lambda runs: runs.loss + np.where(where(runs), by, 0.0)


def of_the_law(runs, noise=0.01):
    """With noise whose 95 % intervals contain the truth; those of one draw in twenty do not."""
    n = runs.columns.get("n_active_non_embedding", runs.n_active)
    return LAW.loss(n, runs.tokens, runs.experts) + np.random.default_rng(1).normal(0, noise, len(runs))


def spoiled(runs):
    """Half a nat worse at each size that the law would have chosen."""
    predicted = LAW.loss(runs["n_active_non_embedding"], runs.tokens, runs.experts)
    least = [predicted[runs["budget"] == budget].min() for budget in runs["budget"]]
    return runs.loss + 0.5 * (predicted == least)


def largest_best(runs):
    most = [runs.n_active[runs["budget"] == budget].max() for budget in runs["budget"]]
    return runs.loss - (runs.n_active == most)


MOE = raised(1.0, lambda r: r.experts > 1)


@pytest.mark.parametrize(
    ("claim", "source", "change"),
    [
        ("MoE gains carry over: by each router and count of N the error is less than half of the gain", "clark", MOE),
        ("losses of MoE models carry over", "step_law", raised(0.1, lambda r: r.experts > 1)),
        ("long runs are forecast too high", "epoch", raised(1.0, lambda r: r.tokens > 30e9)),
        ("an MoE beats its dense twin in all pairs", "clark", raised(1.0, lambda r: r.experts == 2)),
        ("experts gain less the larger the model", "clark", MOE),
        (
            "experts gain less the larger the model",
            "clark",
            raised(-1, lambda r: (r.experts > 1) & (r.n_active > 1e9)),
        ),
        ("each doubling gains less", "clark", raised(-0.1, lambda r: r.experts == 512)),
        ("one law forecasts both", "step_law", raised(0.1, lambda r: r.experts > 1)),
        ("but not refitted to few shapes", "step_law", of_the_law),
        ("sizes are too large at most budgets", "marin", largest_best),
        ("at little cost: less than forecasts are off", "marin", spoiled),
        ("exponents do not hold on Chinchilla's corpus", "epoch", of_the_law),
    ],
)
def test_each_verdict_can_come_out_the_other_way(claim, source, change):
    assert not study.CLAIMS[claim](Evidence(with_losses(source, change), resamples=30))


def test_dense_losses_are_judged_by_the_errors_that_are_kept(evidence):
    """Of eight experiments, from `isoflops.csv` of another lab."""
    other = Evidence(evidence.sources)
    other.__dict__["isoflop"] = {"constant": 0.05, "fresh": 0.04}
    assert not study.CLAIMS["losses of dense models do not"](other)


def law_runs(shift=0.0, experts=(1, 4, 16)):
    n, d, e = (v.ravel() for v in np.meshgrid([1e8, 3e8, 1e9], [2e9, 8e9, 3e10, 1e11], experts))
    sizes = {"n_active_non_embedding": 0.8 * n, "n_total": n * e, "n_total_non_embedding": 0.8 * n * e}
    losses = LAW.loss(0.8 * n, d, e) + shift
    return Runs.from_columns(n, d, e, losses, "run", columns=sizes | {"density": 1 / e, "d_model": np.sqrt(n)})


def test_the_true_law_moved_by_a_constant_forecasts_without_error():
    runs = law_runs(shift=0.3)
    laws = Question("a lab", "MoE", runs.subset(runs.experts == 1), runs.subset(runs.experts > 1)).laws
    assert laws[JOINT].rmse < 1e-12
    assert laws[MEAN].rmse > 0.05
    assert REFIT not in laws  # dense runs alone
    assert sorted(runs.tokens[longest_of_each(runs)]) == [1e11] * 9


def test_gains_are_differences_of_runs_with_equal_size_and_tokens():
    found = gains_of("a lab", law_runs(shift=0.3))
    assert len(found.measured) == 24
    np.testing.assert_allclose(found.predicted, found.measured, atol=1e-12)
    assert np.abs(found.predicted_with - found.measured).max() > 1e-3
    alone = law_runs().subset(law_runs().experts > 1)
    np.testing.assert_array_equal(np.unique(gains_of("a lab", alone).experts), [16])


def test_the_regret_of_a_choice_is_the_measured_loss_over_the_best():
    n = np.array([1e8, 2e8, 4e8, 8e8])
    runs = Runs.from_columns(n, 1e20 / 6 / n, 1, [3.0, 2.9, 2.95, 3.1], "run")
    predicted = LAW.loss(runs.n_active, runs.tokens, 1)
    (choice,) = choices_of(runs, np.full(4, 1e20))
    at = int(np.argmin(predicted))
    assert (choice.best, choice.chosen, choice.regret) == (2e8, n[at], pytest.approx(runs.loss[at] - 2.9))


def test_dense_runs_have_one_expert_that_all_use():
    runs = join_tables(law_runs(experts=(1,)), law_runs(experts=(4,)))
    assert set(runs["density"]) == {1.0, 0.25}
    assert set(runs["granularity"][:12]) == {1.0}
    assert np.isnan(runs["granularity"][12:]).all()


def test_transcribed_sizes_count_both_embeddings(evidence):
    for source, vocabulary in (("marin_ladder", 16_384), ("marin_experts", 128_256)):
        for runs in evidence.sources[source].tables.values():
            embeddings = 2 * vocabulary * runs["d_model"]
            np.testing.assert_allclose(runs.n_active - runs["n_active_non_embedding"], embeddings, rtol=1e-4)
            assert (runs["n_total"] >= runs.n_active).all()


def test_cell_means_are_geometric():
    runs = Runs.from_columns([1.1e9, 1.2e9, 4e9], [1e10, 1.1e10, 1e10], 1, [3.0, 2.9, 2.5], "run")
    found = cell_means(runs, factor=2.0)
    np.testing.assert_allclose(found.loss, [np.sqrt(3.0 * 2.9), 2.5])
    np.testing.assert_allclose(found["grid_runs"], [2, 1])


def test_points_survive_the_file_and_the_tables_do_not(tmp_path):
    """A grid of Step Law's format gives one point for each model, with its source; missing values stay missing."""
    data, points = tmp_path / "data", tmp_path / "points"
    (data / "deep").mkdir(parents=True)
    points.mkdir()
    grid = [(lr, bs, 2.6 + np.log(lr / 3e-3) ** 2 + bs / 1e6) for lr in (1e-3, 3e-3, 9e-3) for bs in (64, 128)]
    shape, size = (960, 9368, 15, 7), (4e9, 214_663_680, 18.6)
    dense = [(*shape, lr, bs, round(4e9 / bs / 2048), 2.7, loss, f"{lr}-{bs}", *size) for lr, bs, loss in grid]
    write(data / "deep" / "dense_lr_bs_loss.csv", DENSE, *dense)
    write(data / "deep" / "moe_lr_bs_loss.csv", MOE_COLUMNS, *(step_law_moe(1, 8, 352, 352, *one) for one in grid))
    assert derive(data, points) == [points / "step_law.json"]
    found = read_source(points / "step_law.json")
    assert (len(found["dense"]), len(found["moe"])) == (1, 1)
    assert found["moe"]["learning_rate"] == 3e-3
    assert found["moe"].experts == pytest.approx((8 * 352 + 352) / (352 + 352))
    assert "32a8f4cc" in found.place
    with pytest.raises(FileNotFoundError, match=r"none of curves\.csv\.gz, dense_lr_bs_loss\.csv"):
        derive(points, points)


def test_dense_experiments_are_forecast_at_their_largest_budgets(tmp_path):
    """The largest quarter of eight, of losses that are the law's and a constant."""
    rows = [(n, c / 6 / n, c) for c in np.geomspace(1e18, 1e21, 8) for n in np.geomspace(1e8, 2e9, 5)]
    losses = [("a", *row, float(LAW.loss(*row[:2], 1)) + 0.3, False) for row in rows]
    write(tmp_path / "isoflops.csv", "experiment,params,tokens,budget,loss,outlier", *losses)
    (path,) = derive(tmp_path, tmp_path)
    errors = json.loads(path.read_text())
    assert (errors["experiment"], errors["train"], errors["test"]) == (["a"], [30], [10])
    assert errors["constant"][0] < 1e-9
    assert errors["fresh"][0] < 1e-2
