"""Where an MoE overtakes the dense model: the root of the difference of two losses."""

import numpy as np
import pytest
from scipy.optimize import brentq

from scaling_law import JointLaw
from scaling_law.planning import find_crossing

LAW = JointLaw.published()


def crossings(n_active, experts=None, **question):
    return [row["tokens"] for row in LAW.speedup(experts, n_active=n_active, **question).rows]


def test_both_models_have_the_same_loss_at_the_crossover():
    answer = LAW.speedup([2, 8, 32], n_active=[1e8, 1e9])
    for row in answer.rows:
        n, e = row["n_active"], row["experts"]
        root = brentq(lambda x, n=n, e=e: LAW.loss(n, np.exp(x), e) - LAW.loss(n, np.exp(x), 1), *np.log([1e7, 1e11]))
        assert row["tokens"] == pytest.approx(np.exp(root), rel=1e-3)
        assert row["tokens_low"] < row["tokens"] < row["tokens_high"]
    small, large = np.reshape(crossings([1e8, 1e9], [2, 8, 32]), (2, 3))
    assert np.all(large > small)


def test_the_range_of_tokens_is_searched_and_no_more():
    assert crossings(1e9, 8, between=(1e9, 1e10)) == [0.0]
    assert crossings(1e9, 8, between=(1e7, 1e8)) == [np.inf]


def test_a_law_of_which_nothing_is_drawn_has_no_interval():
    assert np.isnan(LAW.replace(draws=None).speedup(8, n_active=1e9).rows[0]["tokens_low"])


def test_the_dense_model_is_not_compared_with_itself():
    assert [row["experts"] for row in LAW.speedup(n_active=1e9).rows] == [2, 4, 8, 16, 32]


@pytest.mark.parametrize(
    ("gaps", "tokens"),
    [
        ([-1, -1, -2], 0.0),
        ([1, 1, 0.5], np.inf),
        ([2, 1, -1], np.exp(1.5)),
        ([1, -1, -3], np.exp(0.5)),
        ([-1, 3, -1], np.exp(1.75)),  # the last time
        ([1, 0, -1], np.exp(1.0)),
    ],
)
def test_the_last_change_of_sign_counts(gaps, tokens):
    answer = find_crossing(np.array([0.0, 1.0, 2.0]), np.array([gaps, gaps], float))
    np.testing.assert_allclose(answer, [tokens] * 2)
