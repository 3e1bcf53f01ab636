"""Splits, errors on each part, and the separate Chinchilla laws beside the joint one."""

import numpy as np
import pytest

from scaling_law import split
from scaling_law.fitting.splits import compare, select_by_rmse


@pytest.mark.parametrize("by", ["loss", "n_active", "flops", "tokens"])
def test_held_out_runs_are_the_extreme_ones(paper_runs, by):
    parts = split(paper_runs, by, validation=30, test=12)
    assert (len(parts.train), len(parts.validation), len(parts.test)) == (228, 30, 12)
    names = [*parts.train.run_id, *parts.validation.run_id, *parts.test.run_id]
    assert sorted(names) == sorted(paper_runs.run_id)
    sign = -1 if by == "loss" else 1
    values = [sign * getattr(p, by) for p in (parts.train, parts.validation, parts.test)]
    assert values[0].max() <= values[1].min()
    assert values[1].max() <= values[2].min()


def test_errors_are_those_of_the_noise(paper_runs):
    """As in the paper: separate laws fit the training runs a little better, and extrapolate no better."""
    found = compare(split(paper_runs, "loss", validation=30, test=10))
    joint, separate = found.rmse["joint"], found.rmse["separate"]
    assert separate["train"] < joint["train"] < 0.0066
    assert set(joint) == {"train", "validation", "test"}
    assert joint["validation"] < 0.009
    assert found.largest["joint"]["validation"] < 0.03
    assert found.left_out == ()
    assert found.joint.law.conditions.n_runs == 230


def test_the_test_part_never_matters(paper_runs):
    parts = split(paper_runs, validation=30, test=10)
    one = compare(parts, select="rmse")
    shuffled = parts.test.subset(np.arange(len(parts.test)) < 3)
    other = compare(type(parts)(parts.train, parts.validation, shuffled, parts.by), select="rmse")
    assert one.joint.law == other.joint.law
    assert one.rmse["joint"]["validation"] == other.rmse["joint"]["validation"]


def test_selection_by_validation_takes_the_best_score(paper_fit, paper_runs):
    chosen = select_by_rmse(paper_fit, paper_runs.subset(paper_runs.loss < 2.6))
    assert chosen.objective >= paper_fit.objective
    assert chosen.law.loss(1e9, 2e10, 8) == pytest.approx(paper_fit.law.loss(1e9, 2e10, 8), abs=1e-3)


def test_experts_that_cannot_be_fitted_are_named(paper_runs):
    few = paper_runs.subset((paper_runs.experts < 32) | (np.arange(len(paper_runs)) < 3))
    found = compare(split(few, "loss", validation=10))
    assert found.left_out == (32.0,)
