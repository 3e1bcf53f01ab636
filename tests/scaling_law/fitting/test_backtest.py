"""Forecasts of held-out runs: what was put in comes out, and laws that runs cannot determine are left out."""

import numpy as np

from scaling_law import JointLaw, Runs, backtest

LAW = JointLaw.published()


def runs(experts=(1, 4, 16), shift=0.3):
    n, d, e = (v.ravel() for v in np.meshgrid([1e8, 3e8, 1e9], [2e9, 8e9, 3e10, 1e11], experts))
    return Runs.from_columns(n, d, e, LAW.loss(n, d, e) + shift, "run")


def test_a_law_moves_by_one_constant_and_a_kind_is_fitted():
    every = runs()
    train, test = every.subset(every.tokens < 1e11), every.subset(every.tokens == 1e11)
    mean = lambda train, test: np.full(len(test), train.loss.mean())  # noqa: E731
    found = backtest(train, test, {"published": LAW, "fresh": "joint", "mean": mean})
    assert found.laws["published"].rmse < 1e-12
    assert found.laws["fresh"].rmse < 1e-3
    assert found.laws["mean"].bias > 0.1
    low, high = found.laws["mean"].interval
    assert low < found.laws["mean"].rmse < high
    assert [row["law"] for row in found.to_rows()] == ["published", "fresh", "mean"]
    assert found.to_dict()["runs"] == {"train": 27, "test": 9}


def test_a_law_that_these_runs_cannot_determine_is_left_out():
    every = runs()
    found = backtest(every.subset(every.experts == 1), every.subset(every.experts > 1), {"law": LAW, "fresh": "joint"})
    assert [*found.laws] == ["law"]
    assert [*found.left_out] == ["fresh"]
    assert "fresh: " in str(found.summary().notes)
