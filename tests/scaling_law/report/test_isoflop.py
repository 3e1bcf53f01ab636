"""What runs say at a budget without a law: exact where the truth is known, and silent outside the runs."""

import numpy as np
import pytest

from scaling_law import JointLaw, Runs
from scaling_law.report.results import isoflop_profiles, repeat_scatter

LAW = JointLaw.published()


def grid(sizes, tokens, experts=(1.0, 8.0), noise=0.0):
    n, d, e = (v.ravel() for v in np.meshgrid(sizes, tokens, experts, indexing="ij"))
    scatter = np.random.default_rng(0).normal(0.0, noise, len(n)) if noise else 0.0
    return Runs.from_columns(n, d, e, LAW.loss(n, d, e) + scatter)


def test_the_best_size_is_that_of_the_law_that_made_the_runs():
    flops = 1e20
    truth = LAW.compute_optimal(flops, (1.0, 8.0))
    around = float(np.sqrt(truth.n_active[0] * truth.n_active[1]))
    runs = grid(around * 1.6 ** np.arange(-3, 4), np.geomspace(1e9, 1e12, 12))
    profiles = isoflop_profiles(runs, flops)
    assert [p.experts for p in profiles] == [1.0, 8.0]
    for profile, n, loss in zip(profiles, truth.n_active, truth.loss, strict=True):
        assert not profile.at_edge
        assert profile.best_n_active == pytest.approx(n, rel=0.05)  # the profile is no parabola, but nearly
        assert profile.best_loss == pytest.approx(loss, abs=1e-3)
        assert profile.tokens == pytest.approx(flops / 6 / profile.n_active)
        assert profile.loss == pytest.approx(LAW.loss(profile.n_active, profile.tokens, profile.experts), abs=1e-3)


def test_a_size_counts_only_where_the_budget_lies_between_its_runs():
    runs = grid([1e8, 1e9], [1e9, 4e9], experts=(1.0,))
    (profile,) = isoflop_profiles(runs, 6 * 1e8 * 2e9)  # 200M tokens for the large one: none of its runs is so short
    assert profile.n_active.tolist() == [1e8]
    assert profile.at_edge
    assert isoflop_profiles(runs, 1e30) == []
    (exact,) = isoflop_profiles(runs, 6 * 1e9 * 4e9)  # at the end of the runs it is the run itself
    assert exact.loss[0] == LAW.loss(1e9, 4e9, 1.0)


def test_the_lowest_size_at_an_end_is_said():
    runs = grid([1e8, 2e8, 4e8], np.geomspace(1e9, 1e12, 8), experts=(1.0,))
    (profile,) = isoflop_profiles(runs, 1e21)
    assert profile.at_edge
    assert profile.best_n_active == 4e8


def test_seeds_are_averaged_and_their_scatter_pooled():
    losses = [3.0, 3.2, 2.0, 2.1, 2.2, 1.5]
    tokens = [1e9, 1e9, 2e9, 2e9, 2e9, 4e9]
    runs = Runs.from_columns(1e8, tokens, 1.0, losses)
    deviation, freedom = repeat_scatter(runs)
    assert freedom == 3
    assert deviation == pytest.approx(np.sqrt((2 * 0.1**2 + 2 * 0.1**2) / 3))
    (profile,) = isoflop_profiles(runs, 6 * 1e8 * 2e9)
    assert profile.loss[0] == pytest.approx(2.1)


def test_without_repeats_there_is_no_scatter_to_know():
    deviation, freedom = repeat_scatter(grid([1e8], [1e9, 2e9]))
    assert np.isnan(deviation)
    assert freedom == 0
