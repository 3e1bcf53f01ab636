"""The error of extrapolation in the draws of losses: none inside, as measured outside, shared by all models."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling_law import Conditions, JointLaw, describe, published
from scaling_law.formulas.conditions import evidence
from scaling_law.formulas.extrapolation import log_errors, normal_scores
from scaling_law.formulas.law import percentile_interval
from tests.scaling_law.configs import SWITCH

LAW = JointLaw.published()
FEW = LAW.replace(draws=LAW.draws[:100])
LARGEST = LAW.conditions.overall
RULE = evidence()["extrapolation"]


def errors_of(n_active, tokens, experts=1.0, law=LAW):
    """The errors of ln L, [n_draws, ...]."""
    shape = np.broadcast_shapes(*map(np.shape, (n_active, tokens, experts)))
    return np.broadcast_to(log_errors(law.check(n_active, tokens, experts), 1000, len(shape)), (1000, *shape))


@given(st.floats(0, 1), st.floats(0, 1), st.sampled_from([1.0, 2.0, 8.0, 32.0]))
def test_inside_the_ranges_losses_have_the_draws_of_the_coefficients_alone(size, data, experts):
    """Also at the same E: nothing is added, to the bit."""
    ranges = next(r for r in LAW.conditions.ranges if r.experts == experts)
    n_active = ranges.n_active[0] ** (1 - size) * ranges.n_active[1] ** size * (1 + 1e-12)
    low = max(ranges.tokens[0], LARGEST.tokens_per_parameter[0] * n_active)
    high = min(ranges.tokens[1], LARGEST.tokens_per_parameter[1] * n_active, LARGEST.training_flops[1] / 6 / n_active)
    tokens = low * (high / low) ** data
    losses = FEW.loss_draws(n_active, tokens * (1 - 1e-12), experts)
    assert np.array_equal(losses, FEW.replace(conditions=None).loss_draws(n_active, tokens * (1 - 1e-12), experts))


def test_the_deviation_grows_from_zero_as_the_backtests_measured():
    """A dense model at 1 to 30 times the largest N, and tokens so that C, N and D/N leave their ranges."""
    factors = np.array([1.0, 1.01, 2.0, 10.0, 30.0])
    n_active, tokens = factors * LARGEST.n_active[1], 2e10
    deviation = errors_of(n_active, tokens).std(axis=0)
    outside = {
        "N_act": factors,
        "C": 6 * n_active * tokens / LARGEST.training_flops[1],
        "D/N": LARGEST.tokens_per_parameter[0] * n_active / tokens,
    }
    # A thousandth outside is inside.
    parts = [RULE["growth"][name] * np.maximum(np.log(times) - 1e-3, 0) for name, times in outside.items()]
    assert deviation == pytest.approx(np.sqrt(np.sum(np.square(parts), axis=0)), rel=0.03, abs=1e-7)
    assert deviation[0] == 0
    assert deviation[1] < 2e-4


@given(st.lists(st.floats(15, 27), min_size=3, max_size=3), st.floats(17, 31))
def test_further_out_is_never_surer(log_sizes, log_tokens):
    """Along N beyond the largest, and likewise in the other direction."""
    sizes = np.sort(np.exp(log_sizes))
    sizes = np.maximum(sizes, LARGEST.n_active[1])
    deviation = errors_of(sizes, 1e10).std(axis=0)
    assert np.all(np.diff(deviation) >= -1e-12)

    tokens = np.exp(log_tokens)
    more_tokens = np.maximum([tokens, 2 * tokens], LARGEST.tokens[1])
    deviation = errors_of(1e9, more_tokens).std(axis=0)
    assert deviation[1] >= deviation[0] - 1e-12


def test_what_e_share_cancels_and_a_doubling_adds_its_part():
    """Dense models err alike; twice the E at the same ranges differs by `per_doubling` of its own deviation."""
    n_active, tokens = 5e9, 1e11
    errors = errors_of(n_active, tokens, np.array([1.0, 1.0, 16.0, 32.0]))
    assert np.array_equal(errors[:, 0], errors[:, 1])
    # Both have runs up to 321M on 16B tokens.
    outside = {
        "N_act": n_active / 3.2103e8,
        "D": tokens / 16e9,
        "C": 6 * n_active * tokens / 5.29508e20,
    }
    parts = [RULE["growth"][name] * np.log(times) for name, times in outside.items()]
    deviation = np.linalg.norm(parts)
    assert (errors[:, 3] - errors[:, 2]).std() == pytest.approx(RULE["per_doubling"] * deviation, rel=0.03)
    assert errors[:, 3].std() > errors[:, 2].std() > errors[:, 0].std()


def test_scores_are_normal_and_hardly_correlated():
    scores = normal_scores(1000, 8)
    assert scores @ scores.T / 1000 == pytest.approx(np.eye(8), abs=0.1)
    assert np.array_equal(np.sort(scores), np.tile(np.sort(scores[0]), (8, 1)))
    assert np.quantile(scores[0], [0.025, 0.5, 0.975]) == pytest.approx([-1.96, 0, 1.96], abs=0.01)


def test_few_draws_have_errors_too():
    law = LAW.replace(draws=LAW.draws[:2])
    losses = law.loss_draws(1e10, 1e12, 1)
    assert np.all(losses != law.replace(conditions=None).loss_draws(1e10, 1e12, 1))


@pytest.fixture(scope="module")
def far():
    """The best model with 8 experts at 19 times the largest compute of the runs."""
    return FEW.optimal(1e22, [8], integral=True).best


def interval_of(n_active, tokens, experts=8.0):
    return percentile_interval(FEW.loss_draws(n_active, float(tokens), experts))


def test_optimal_has_the_interval_of_the_loss(far):
    low, high = far.loss_interval

    assert far.loss_interval == pytest.approx(interval_of(far.n_active, far.tokens), abs=1e-9)
    assert high - low > 0.2


def test_reach_has_the_interval_of_the_loss():
    optimum = FEW.optimal(1e22, [8]).best
    reached = FEW.reach(optimum.loss, [8])

    assert reached.best.loss_interval == pytest.approx(optimum.loss_interval, abs=1e-6)


def test_plan_has_the_interval_of_the_loss():
    plan = FEW.plan(1e22, [8])
    planned = interval_of(plan.architecture.n_active, plan.tokens)

    assert plan.loss_interval == pytest.approx(planned, abs=1e-9)


def test_describe_has_the_interval_of_the_loss():
    described = describe(SWITCH, 1e13, law=FEW).prediction
    model = describe(SWITCH).architecture
    predicted = interval_of(model.n_active, 1e13, model.experts_equivalent)

    assert described.loss_interval == pytest.approx(predicted, abs=1e-9)


def test_a_law_without_ranges_has_no_such_error():
    law = FEW.replace(conditions=None)
    assert np.array_equal(law.replace(conditions=None).loss_draws(1e11, 1e13, 8), law.loss_draws(1e11, 1e13, 8))


def test_a_law_of_all_parameters_errs_with_its_first_size():
    conditions = Conditions("some runs", variables={"n_total": (1e8, 1e10), "D": (1e9, 1e11)})
    law = published("abnar").replace(conditions=conditions)
    check = law.check(tokens=1e11, n_total=np.array([1e9, 1e10 * np.e]), density=0.1)
    deviation = np.std(log_errors(check, 200, 1), axis=0)
    assert deviation == pytest.approx([0, RULE["growth"]["N_act"]], rel=0.01)


def test_intervals_of_a_speedup_cancel_what_both_share():
    """Dense against itself is 1 in every draw, however far out."""
    row = FEW.speedup(1, 1, flops=1e22).rows[1]
    assert row.compute_interval == pytest.approx((1, 1), abs=1e-6)
    of_draws = FEW.replace(conditions=None).speedup(8, 1, flops=1e22).best.compute_interval
    interval = FEW.speedup(8, 1, flops=1e22).best.compute_interval
    assert np.diff(interval) > 3 * np.diff(of_draws)


@pytest.mark.parametrize("shape", [(1,), (2,), (40,), (41, 3), (17, 2, 2)])
@pytest.mark.parametrize("level", [0.95, 0.5, 0.001])
def test_percentiles_are_those_of_numpy(shape, level):
    draws = np.random.default_rng(1).normal(size=shape)
    expected = np.quantile(draws, [0.5 - level / 2, 0.5 + level / 2], axis=0)
    np.testing.assert_allclose(percentile_interval(draws, level), expected, rtol=1e-12)


def test_a_draw_without_a_value_spoils_its_percentiles_alone():
    draws = np.random.default_rng(1).normal(size=(20, 3))
    draws[4, 1] = np.nan
    assert np.isnan(percentile_interval(draws)).tolist() == [[False, True, False]] * 2
