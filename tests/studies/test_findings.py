"""The paper's findings hold for its law, and fail where experts do harm."""

import numpy as np
import pytest

from scaling_law import JointLaw
from scaling_law.size import active_parameters, width_of_total
from studies.paper.findings import Finding, better_in_memory, better_with_experts, find_all, gain_in_memory

PAPER = JointLaw.published()


def scatter(law, deviation=1e-4, draws=40):
    """Give the law draws that scatter about it, as a bootstrap leaves them."""
    values = np.array(list(law.coefficients.values()))
    noise = np.random.default_rng(0).normal(0.0, deviation, (draws, len(values)))
    return law.replace(draws=values * (1 + noise))


@pytest.mark.parametrize("flops", [1e19, 1e21, 1e23])
def test_the_papers_law_has_the_papers_findings(flops):
    for finding in find_all(scatter(PAPER), budgets=(flops,), experts=(1, 2, 4, 8)):
        assert finding.verdict == "confirmed", finding
        assert finding.share == 1.0


def test_a_law_in_which_experts_do_harm_reverses_them():
    values = PAPER.coefficients | {"delta": 0.2, "gamma": 0.0, "omega": 0.2, "zeta": 0.0}
    law = scatter(JointLaw(**values))
    for experts in (2, 8):
        assert better_with_experts(law, 1e20, experts).verdict == "reversed"
        assert better_in_memory(law, 1e20, experts).share == 0.0


def test_a_draw_without_an_optimum_counts_for_neither_side():
    """A draw whose loss rises with N has no best size."""
    law = scatter(PAPER)
    draws = law.draws.copy()
    draws[:20, list(PAPER.coefficients).index("alpha")] = 0.5
    finding = better_with_experts(law.replace(draws=draws), 1e20, 8)
    assert finding.share == pytest.approx(0.75)
    assert finding.verdict == "open"


def test_the_gain_is_the_difference_of_the_two_losses():
    law, flops = scatter(PAPER, deviation=0.0, draws=2), 1e20
    dense = PAPER.compute_optimal(flops, 1.0)
    n = active_parameters(width_of_total(dense.n_active, 4))
    for tokens, times_tokens in ((flops / 6 / n, False), (4 * dense.tokens, True)):
        expected = float(dense.loss - PAPER.loss(n, tokens, 4))
        assert gain_in_memory(law, flops, 4, times_tokens=times_tokens) == pytest.approx([expected] * 2)
    with pytest.raises(ValueError, match="no draws"):
        better_with_experts(PAPER.replace(draws=None), flops, 8)


def test_the_verdict_is_that_of_a_two_sided_interval():
    verdicts = [Finding("", "", share, "").verdict for share in (1.0, 0.975, 0.97, 0.03, 0.025)]
    assert verdicts == ["confirmed", "confirmed", "open", "open", "reversed"]
