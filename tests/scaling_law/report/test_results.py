"""Findings hold for the paper's law and fail where experts do harm; isoFLOP profiles are silent outside the runs."""

import numpy as np
import pytest

from scaling_law import JointLaw, Runs
from scaling_law.fitting.learning_rate import LearningRateGrid
from scaling_law.planning.matched import drawn_gain
from scaling_law.report import results as findings
from scaling_law.report.results import Finding, isoflop_profiles, repeat_scatter
from scaling_law.size.architecture import active_parameters, width_of_total
from tests.scaling_law.fitting.test_learning_rate import rows as learning_rate_rows

PAPER = JointLaw.published()


def drawn(law, scatter=1e-4, draws=40):
    """The law with draws that scatter about it, as a bootstrap leaves them."""
    values = np.array(list(law.coefficients.values()))
    noise = np.random.default_rng(0).normal(0.0, scatter, (draws, len(values)))
    return law.replace(draws=values * (1 + noise))


def every(law, flops):
    yield findings.more_tokens_per_parameter(law, flops, (1, 2, 4, 8))
    for e in (2, 4, 8):
        yield findings.better_with_experts(law, flops, e)
        yield findings.better_in_memory(law, flops, e)
        yield findings.better_in_memory(law, flops, e, times_tokens=True)


@pytest.mark.parametrize("flops", [1e19, 1e21, 1e23])
def test_the_papers_law_has_the_papers_findings(flops):
    for finding in every(drawn(PAPER), flops):
        assert finding.verdict == "confirmed", finding
        assert finding.share == 1.0


def test_a_law_in_which_experts_do_harm_has_the_opposite():
    values = PAPER.coefficients | {"delta": 0.2, "gamma": 0.0, "omega": 0.2, "zeta": 0.0}
    law = drawn(JointLaw(**values))
    for e in (2, 8):
        assert findings.better_with_experts(law, 1e20, e).verdict == "not confirmed: the opposite holds"
        assert findings.better_in_memory(law, 1e20, e).share == 0.0


def test_draws_without_an_optimum_are_on_neither_side():
    """A draw whose loss rises with N has no best size; it must not count for a finding."""
    law = drawn(PAPER)
    draws = law.draws.copy()
    draws[:20, list(PAPER.coefficients).index("alpha")] = 0.5
    finding = findings.better_with_experts(law.replace(draws=draws), 1e20, 8)
    assert finding.share == pytest.approx(0.75)
    assert finding.verdict == "cannot be decided"


def test_the_gain_is_the_difference_of_the_two_losses():
    law, flops = drawn(PAPER, scatter=0.0, draws=2), 1e20
    dense = PAPER.compute_optimal(flops, 1.0)
    n = active_parameters(width_of_total(dense.n_active, 4))
    for tokens, times in ((flops / 6 / n, False), (4 * dense.tokens, True)):
        expected = float(dense.loss - PAPER.loss(n, tokens, 4))
        assert drawn_gain(law, flops, 4, times_tokens=times) == pytest.approx([expected] * 2)
    with pytest.raises(ValueError, match="no draws"):
        findings.better_with_experts(PAPER.replace(draws=None), flops, 8)


def test_the_sign_of_the_learning_rate_has_the_error_of_the_fit():
    """The grid's law has slope -0.2 in E exactly; with scatter in its best rates the sign is no longer sure."""
    exact = findings.lower_learning_rate(LearningRateGrid.load(learning_rate_rows()))
    assert exact.verdict == "confirmed"
    rows = list(learning_rate_rows())
    for i, row in enumerate(rows):
        row["schedule"] = {"peak_learning_rate": row["schedule"]["peak_learning_rate"] * (3 if i % 8 < 4 else 1)}
    scattered = findings.lower_learning_rate(LearningRateGrid.load(rows))
    assert scattered.verdict == "cannot be decided"
    with pytest.raises(ValueError, match="at least four"):
        findings.lower_learning_rate(LearningRateGrid.load(learning_rate_rows(((64, 1), (128, 1), (64, 8)))))


def test_the_verdict_is_that_of_a_two_sided_interval():
    verdicts = [Finding("", "", share, "").verdict for share in (1.0, 0.975, 0.97, 0.03, 0.025)]
    opposite = "not confirmed: the opposite holds"
    assert verdicts == ["confirmed", "confirmed", "cannot be decided", "cannot be decided", opposite]


def grid(sizes, tokens, experts=(1.0, 8.0)):
    n, d, e = (v.ravel() for v in np.meshgrid(sizes, tokens, experts, indexing="ij"))
    return Runs.from_columns(n, d, e, PAPER.loss(n, d, e))


def test_the_best_size_is_that_of_the_law_that_made_the_runs():
    flops = 1e20
    truth = PAPER.compute_optimal(flops, (1.0, 8.0))
    around = float(np.sqrt(truth.n_active[0] * truth.n_active[1]))
    runs = grid(around * 1.6 ** np.arange(-3, 4), np.geomspace(1e9, 1e12, 12))
    profiles = isoflop_profiles(runs, flops)
    assert [p.experts for p in profiles] == [1.0, 8.0]
    for profile, n, loss in zip(profiles, truth.n_active, truth.loss, strict=True):
        assert not profile.at_edge
        assert profile.best_n_active == pytest.approx(n, rel=0.05)  # the profile is no parabola, but nearly
        assert profile.best_loss == pytest.approx(loss, abs=1e-3)
        tokens = flops / 6 / profile.n_active
        assert profile.loss == pytest.approx(PAPER.loss(profile.n_active, tokens, profile.experts), abs=1e-3)


def test_a_size_counts_only_where_the_budget_lies_between_its_runs():
    runs = grid([1e8, 1e9], [1e9, 4e9], experts=(1.0,))
    (profile,) = isoflop_profiles(runs, 6 * 1e8 * 2e9)  # 200M tokens for the large one: none of its runs is so short
    assert profile.n_active.tolist() == [1e8]
    assert isoflop_profiles(runs, 1e30) == []
    (exact,) = isoflop_profiles(runs, 6 * 1e9 * 4e9)  # at the end of the runs it is the run itself
    assert exact.loss[0] == PAPER.loss(1e9, 4e9, 1.0)
    (lowest,) = isoflop_profiles(grid([1e8, 2e8, 4e8], np.geomspace(1e9, 1e12, 8), experts=(1.0,)), 1e21)
    assert (lowest.at_edge, lowest.best_n_active) == (True, 4e8)


def test_seeds_are_averaged_and_their_scatter_pooled():
    losses = [3.0, 3.2, 2.0, 2.1, 2.2, 1.5]
    tokens = [1e9, 1e9, 2e9, 2e9, 2e9, 4e9]
    runs = Runs.from_columns(1e8, tokens, 1.0, losses)
    deviation, freedom = repeat_scatter(runs)
    assert freedom == 3
    assert deviation == pytest.approx(np.sqrt((2 * 0.1**2 + 2 * 0.1**2) / 3))
    (profile,) = isoflop_profiles(runs, 6 * 1e8 * 2e9)
    assert profile.loss[0] == pytest.approx(2.1)
    deviation, freedom = repeat_scatter(grid([1e8], [1e9, 2e9]))  # no repeats
    assert (np.isnan(deviation), freedom) == (True, 0)
