"""Held-out runs are the extreme ones, and laws are compared by what they forecast of them."""

import dataclasses

import numpy as np
import pytest

from scaling_law import JointLaw, Runs, backtest, fit, hold_out
from scaling_law.fitting.holdout import backtest_splits
from tests.scaling_law.synthetic import interaction_law

LAW = JointLaw.published()
DENSE = interaction_law(a=400.0, alpha=0.33, b=410.0, beta=0.28, q=0.3, c=1.7)

# -- hold_out


@pytest.mark.parametrize("by", ["loss", "n_active", "flops", "tokens"])
def test_held_out_runs_are_the_extreme_ones(paper_runs, by):
    ((train, test),) = hold_out(paper_runs, by, test=12)
    assert (len(train), len(test)) == (258, 12)
    assert sorted([*train.run_id, *test.run_id]) == sorted(paper_runs.run_id)
    sign = -1 if by == "loss" else 1
    assert (sign * getattr(train, by)).max() <= (sign * getattr(test, by)).min()


def test_a_column_holds_out_its_largest_values():
    n = np.array([1e8, 2e8, 3e8, 4e8])
    time = [2026.3, 2026.1, 2026.4, 2026.2]
    runs = Runs.from_columns(n, 2e9, 1, LAW.loss(n, 2e9, 1), "run", columns={"time": time})
    assert hold_out(runs, "time", test=1)[0].test.n_active == [3e8]
    partly = dataclasses.replace(runs, columns={"time": [2026.3, np.nan, 2026.4, np.nan]})
    with pytest.raises(ValueError, match=r"^by='time': 2 runs have no value, first 'row-1'$"):
        hold_out(partly, "time", test=1)


def test_each_run_and_each_model_is_held_out_by_itself():
    runs = grid(shift=0.3)
    by_run, by_model = hold_out(runs, "run"), hold_out(runs, "model")
    assert [*np.concatenate([part.test.run_id for part in by_run])] == [*runs.run_id]
    assert len(by_model) == 9
    for train, test in by_model:
        models = [{*zip(part.n_active, part.experts, strict=True)} for part in (train, test)]
        assert len(models[1]) == 1
        assert not models[0] & models[1]
    noisy = dataclasses.replace(runs, loss=runs.loss + 1e-3 * np.arange(len(runs)))
    mean = lambda train, test: np.full(len(test), train.loss.mean())  # noqa: E731
    unfit = lambda train, test: fit(train.take(np.arange(2)), "chinchilla")  # noqa: E731
    joined = backtest_splits(noisy, hold_out(noisy, "model"), {"law": LAW, "mean": mean, "unfit": unfit})
    assert sorted(joined.test.run_id) == sorted(noisy.run_id)
    assert joined.left_out.keys() == {"unfit"}
    means = [noisy.loss[noisy.run_id.index(name)] for name in joined.test.run_id]
    np.testing.assert_allclose(joined.laws["mean"].errors + means, mean_of_others(noisy, joined.test), rtol=1e-12)


def mean_of_others(runs, tests):
    """The mean loss of the runs of other models, for each run of `tests`."""
    means = []
    for n, e in zip(tests.n_active, tests.experts, strict=True):
        means.append(runs.loss[(runs.n_active != n) | (runs.experts != e)].mean())
    return means


# -- backtest


def grid(experts=(1, 4, 16), shift=0.3):
    n, d, e = (v.ravel() for v in np.meshgrid([1e8, 3e8, 1e9], [2e9, 8e9, 3e10, 1e11], experts))
    return Runs.from_columns(n, d, e, LAW.loss(n, d, e) + shift, "run")


def test_a_law_moves_by_one_constant_and_a_kind_is_fitted():
    runs = grid()
    train = runs.subset(runs.tokens < 1e11)
    test = runs.subset(runs.tokens == 1e11)
    mean = lambda train, test: np.full(len(test), train.loss.mean())  # noqa: E731
    forecasts = backtest(train, test, {"published": LAW, "fresh": "joint", "mean": mean})
    assert forecasts.laws["published"].rmse < 1e-12
    assert forecasts.laws["fresh"].rmse < 1e-3
    assert forecasts.laws["mean"].bias > 0.1
    low, high = forecasts.laws["mean"].interval
    assert low < forecasts.laws["mean"].rmse < high
    assert [row["law"] for row in forecasts.to_rows()] == ["published", "fresh", "mean"]
    assert forecasts.to_dict()["runs"] == {"train": 27, "test": 9}


def test_a_law_that_these_runs_cannot_determine_is_left_out():
    runs = grid()
    train = runs.subset(runs.experts == 1)
    test = runs.subset(runs.experts > 1)
    forecasts = backtest(train, test, {"law": LAW, "fresh": "joint"})
    assert [*forecasts.laws] == ["law"]
    assert [*forecasts.left_out] == ["fresh"]
    assert "fresh: " in str(forecasts.summary().notes)
