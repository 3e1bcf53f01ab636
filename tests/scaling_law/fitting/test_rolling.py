"""Kinds of laws ranked by what they forecast above cuts within the runs."""

import numpy as np
import pytest

from scaling_law import Runs, fit
from scaling_law.fitting.rolling import Fold, Ranking, rolling_origin
from scaling_law.law import InteractionLaw
from tests.scaling_law.synthetic import synthetic_runs

LAW = InteractionLaw.of(a=400.0, alpha=0.33, b=410.0, beta=0.28, q=0.3, c=1.7)


def sweep(law=LAW, noise=0.001):
    n, ratio = (values.ravel() for values in np.meshgrid(np.geomspace(5e7, 8e8, 6), [2, 7, 20, 60, 180]))
    losses = law.loss(n, ratio * n) * np.exp(noise * np.random.default_rng(0).standard_normal(len(n)))
    return Runs.from_columns(n, ratio * n, 1.0, losses, "run")


@pytest.fixture(scope="module")
def ranked():
    return fit(sweep(), kind="all")


def test_the_kind_that_made_the_runs_forecasts_best(ranked):
    assert ranked.law.name == ranked.kinds.kinds[0] == "interaction"
    assert fit(sweep(), kind="interaction").law == ranked.law
    assert [*ranked.kinds.rmse] == sorted(ranked.kinds.rmse)
    assert ranked.kinds.rmse[0] < 0.3 * ranked.kinds.rmse[ranked.kinds.kinds.index("chinchilla")]


def test_runs_of_several_experts_want_a_law_that_has_them():
    several = synthetic_runs(sigma=0.002).take(np.arange(0, 270, 3))
    assert fit(several, kind="all").law.name in ("joint", "crossing")


def test_kinds_that_the_runs_cannot_determine_say_why(ranked):
    assert "experts=1" in ranked.kinds.left_out["joint"]
    assert "n_total" in ranked.kinds.left_out["sparsity"]
    assert "five_factor" not in {*ranked.kinds.kinds, *ranked.kinds.left_out}
    assert "left out: joint" in str(ranked.kinds.summary().notes)
    assert ranked.to_dict()["kinds"]["rows"][0]["kind"] == "interaction"


def test_a_fold_is_a_fit_below_a_cut(ranked):
    runs = sweep()
    folds = rolling_origin(
        runs, {"chinchilla": lambda below, above: above.loss + fit(below, "chinchilla").errors_on(above)}
    )
    assert len(folds) == ranked.kinds.cuts
    below = runs.flops <= runs.flops.max() / 10**0.25
    expected = fit(runs.subset(below), "chinchilla").errors_on(runs.subset(~below))
    np.testing.assert_allclose(folds[0].errors["chinchilla"], expected, rtol=1e-6)
    pooled = np.concatenate([fold.errors["chinchilla"] for fold in folds])
    place = ranked.kinds.kinds.index("chinchilla")
    assert ranked.kinds.rmse[place] == pytest.approx(np.sqrt(np.mean(pooled**2)), rel=1e-3)


def test_a_kind_that_most_cuts_do_not_determine_is_not_ranked():
    errors = [
        {"a": np.full(2, 0.1), "b": np.full(2, value), "c": np.full(2, np.nan)} for value in (0.01, np.nan, 0.02)
    ]
    whys = [{"c": "few"}, {"b": "one size", "c": "few"}, {"c": "few"}]
    folds = [Fold(np.ones(2), np.full(2, 2.0), *pair) for pair in zip(errors, whys, strict=True)]
    ranking = Ranking.of(folds, ["a", "b", "c"], {"d": "no column"})
    assert (ranking.kinds, ranking.failed, ranking.cuts, ranking.held_out) == (("b", "a"), (1, 0), 2, 4)
    assert ranking.left_out == {"d": "no column", "c": "most cuts do not determine it: few"}
