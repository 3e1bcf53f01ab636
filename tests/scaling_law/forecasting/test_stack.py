"""Weights of laws: on the simplex, one law is itself, and the interval grows with distance."""

import dataclasses

import numpy as np
import pytest

from scaling_law import Backtest, HeldOut, Runs
from scaling_law.forecasting.forecasters import BASE, Prediction
from scaling_law.forecasting.stack import (
    COMPONENTS,
    Defaults,
    Evidence,
    moments_of,
    read_defaults,
    simplex,
    stack,
)

SIZE = len(BASE)
EQUAL = Defaults(
    np.tile(np.eye(SIZE) + 0.2, (3, 1, 1)), np.array([1, 1, 1, 1e-4, 1e-4, 1e-4, 1]), np.ones(3), cuts=4.0
)


def evidence(errors=None, names=BASE, ahead=(0.0, 1.0, 3.0), left_out=None) -> Evidence:
    """Laws 1 % apart in ln L, each with an error of 0.01 and a noise of 0.005; one cut with these errors [J, n]."""
    steps, nothing = np.zeros(len(ahead)), np.zeros(len(ahead))
    predictions = {
        name: Prediction(np.log(2.0) + 0.01 * i + steps, nothing + 0.01, nothing + 0.005)
        for i, name in enumerate(names)
    }
    backtests = ()
    if errors is not None:
        n_active = 1e8 * np.exp(np.linspace(0.5, 2.5, np.shape(errors)[1]))
        train = Runs.from_columns(1e8, 1e9, 1, 3.0)
        test = Runs.from_columns(n_active, 1e9, 1, 2.5)
        laws = {name: HeldOut(np.asarray(row, float)) for name, row in zip(names, errors, strict=True)}
        backtests = (Backtest(train, test, laws, {}),)
    beyond = np.stack([ahead, np.full(len(ahead), -1.0), np.full(len(ahead), -1.0)])
    return Evidence(beyond, predictions, {name: name for name in names}, backtests, left_out or {})


def test_weights_minimise_the_squared_error_on_the_simplex():
    rng = np.random.default_rng(0)
    for _ in range(20):
        matrix = moments_of(rng.standard_normal((5, 8)) + rng.standard_normal(8))
        w = simplex(matrix)
        assert w.min() >= 0
        assert w.sum() == pytest.approx(1)
        others = rng.dirichlet(np.full(5, 0.5), 500)
        assert w @ matrix @ w <= np.einsum("ij,jk,ik->i", others, matrix, others).min() + 1e-9


def test_independent_errors_weigh_by_their_inverse_squares():
    np.testing.assert_allclose(simplex(np.diag([1.0, 2.0, 4.0])), np.array([4, 2, 1]) / 7, rtol=1e-6)


def test_a_stack_of_one_law_is_that_law():
    stacked = stack(evidence([[0.02, 0.03]], BASE[2:3]), EQUAL)
    np.testing.assert_allclose(stacked.log_loss, np.log(2.0))
    assert stacked.laws[BASE[2]][1].tolist() == [1, 1, 1]


def test_without_a_cut_the_usual_errors_decide():
    squares = np.array([1.0, 4.0, 1.0, 4.0, 2.0, 1.0])
    unsure = evidence()
    said = {name: dataclasses.replace(law, error=law.error + 1.0) for name, law in unsure.predictions.items()}
    moments = np.tile(np.diag(squares), (3, 1, 1))
    laws = stack(dataclasses.replace(unsure, predictions=said), dataclasses.replace(EQUAL, moments=moments)).laws
    expected = 1 / squares / np.sum(1 / squares)
    # The fresh fit counts as one cut beside the four of the public sets.
    expected = 0.8 * expected
    expected[0] += 0.2
    assert [laws[name][1, 0] for name in BASE] == pytest.approx(expected)
    assert np.isnan(laws[BASE[0]][2]).all()


def test_the_law_that_forecasts_within_the_runs_has_the_weight():
    rng = np.random.default_rng(1)
    errors = rng.standard_normal((SIZE, 12)) * np.array([0.1, 0.1, 0.001, 0.1, 0.1, 0.1])[:, None]
    laws = stack(evidence(errors), dataclasses.replace(EQUAL, cuts=1e-3)).laws
    assert laws[BASE[2]][1].min() > 0.95
    assert laws[BASE[2]][2].max() < 0.01


def test_the_interval_grows_with_distance_with_disagreement_and_with_errors_at_the_cuts():
    spread = stack(evidence(), EQUAL).spread
    assert spread[0] < spread[1] < spread[2]
    alone = stack(evidence(names=BASE[:1]), EQUAL).spread
    assert (spread > alone).all()
    good, bad = (stack(evidence(np.full((SIZE, 3), size)), EQUAL).spread for size in (0.001, 0.1))
    assert (bad > good).all()


def test_a_law_that_few_cuts_determine_is_not_weighed():
    errors = np.full((SIZE, 3), 0.01)
    errors[0] = np.nan
    laws = stack(evidence(errors), EQUAL).laws
    assert laws[BASE[0]][1].tolist() == [0, 0, 0]
    assert sum(laws[name][1, 0] for name in BASE[1:]) == pytest.approx(1)


def test_a_law_far_off_at_the_cuts_widens_nothing():
    """A published law whose losses have another unit: a weight of 1 % of ±10 in ln L would be an interval of ±1."""
    rng = np.random.default_rng(2)
    errors = rng.standard_normal((SIZE, 12)) * np.array([0.02, 0.8, 0.02, 0.02, 0.02, 0.02])[:, None]
    wild = evidence(errors)
    far = {**wild.predictions, BASE[1]: Prediction(np.full(3, -5.0), np.full(3, 10.0), np.full(3, 10.0))}
    stacked = stack(dataclasses.replace(wild, predictions=far), dataclasses.replace(EQUAL, cuts=1.0))
    assert stacked.laws[BASE[1]][1].tolist() == [0, 0, 0]
    assert stacked.laws[BASE[1]][2, 0] == pytest.approx(np.sqrt(np.mean(errors[1] ** 2)))
    assert stacked.spread[0] < 0.03


def test_nothing_to_weigh_says_why():
    with pytest.raises(ValueError, match="no law can forecast point 1 from these runs: joint: one run"):
        stack(evidence(names=(), left_out={"joint": "one run"}), EQUAL)


def test_cuts_like_the_point_count_most():
    """One law is right where runs are larger, the other where they see more tokens."""
    n_active, tokens = np.array([1e9, 1.1e9, 1e8, 1e8]), np.array([1e9, 1e9, 1e10, 1.1e10])
    train = Runs.from_columns(1e8, 1e9, 1, 3.0)
    test = Runs.from_columns(n_active, tokens, 1, 2.5)
    right = [0.001, -0.001, 0.1, -0.1]
    laws = {BASE[2]: HeldOut(np.array(right)), BASE[3]: HeldOut(np.array(right[::-1]))}
    backtests = (Backtest(train, test, laws, {}),)
    beyond = np.log([[10.0, 10.0], [10.0, 1.0], [1.0, 10.0]])
    asked = dataclasses.replace(evidence(names=BASE[2:4], ahead=(0.0, 0.0)), beyond=beyond, backtests=backtests)
    weights = stack(asked, dataclasses.replace(EQUAL, cuts=0.01)).laws[BASE[2]][1]
    assert weights[0] > 0.6
    assert weights[1] < 0.4


def test_no_prior_pulls_a_fresh_fit_out_of_its_interval():
    """A prior that errs least at the cuts says 0.5 more than a fresh fit of a standard error of 0.03."""
    rng = np.random.default_rng(3)
    errors = rng.standard_normal((2, 12)) * np.array([[0.015], [0.005]])
    pair = evidence(errors, names=(BASE[0], "prior"), ahead=(0.5,))
    fresh = Prediction(np.zeros(1), np.full(1, 0.03), np.full(1, 0.04))
    prior = Prediction(fresh.log_loss + 0.5, np.zeros(1), np.zeros(1))
    pulled = dataclasses.replace(pair, predictions={BASE[0]: fresh, "prior": prior})
    stacked = stack(pulled, EQUAL)
    # The fresh fit then counts as one cut more, beside one within the runs and four of the public sets.
    counted = 5 / 6
    np.testing.assert_allclose(stacked.log_loss, counted * 1.6449 * 0.05)
    weights = [law[1, 0] for law in stacked.laws.values()]
    assert sum(weights) == pytest.approx(1)
    assert weights[1] == pytest.approx(counted * 1.6449 * 0.05 / 0.5)
    # A fit that says nothing of its error holds nothing.
    silent = {**pulled.predictions, BASE[0]: dataclasses.replace(fresh, error=np.zeros(1))}
    assert stack(dataclasses.replace(pulled, predictions=silent), EQUAL).log_loss[0] > 2 * 1.6449 * 0.05


def test_the_interval_is_as_wide_as_its_direction_and_its_parts_say():
    along = np.log([[10.0, 10.0], [10.0, 1.0], [1.0, 10.0]])
    asked = dataclasses.replace(evidence(ahead=(0.0, 0.0)), beyond=along)
    widths = np.array([1.0, 2.0, 3.0])
    stacked = stack(asked, dataclasses.replace(EQUAL, widths=widths))
    # Both lie as far in C as in one other direction; the first of equals counts.
    variance = EQUAL.variances @ stacked.components + 1e-8
    np.testing.assert_allclose(stacked.spread, np.sqrt(variance))
    assert stacked.components.shape == (len(COMPONENTS), 2)
    further = dataclasses.replace(asked, beyond=along + np.array([[0.0], [0.1], [0.1]]))
    np.testing.assert_allclose(
        stack(further, dataclasses.replace(EQUAL, widths=widths)).spread[1] / stack(further, EQUAL).spread[1], 3.0
    )


@pytest.mark.parametrize("ulps", [-2, 2])
def test_of_equally_far_directions_the_first_counts_whichever_rounds_higher(ulps):
    along = np.log([[10.0], [10.0], [1.0]])
    along[1] *= 1 + ulps * np.finfo(float).eps
    asked = dataclasses.replace(evidence(ahead=(0.0,)), beyond=along)
    widened = dataclasses.replace(EQUAL, widths=np.array([1.0, 2.0, 3.0]))
    assert stack(asked, widened).spread == pytest.approx(stack(asked, EQUAL).spread, rel=1e-9)


def test_the_defaults_shipped_are_products_of_errors():
    shipped = read_defaults()
    assert shipped.moments.shape == (3, SIZE, SIZE)
    for matrix in shipped.moments:
        np.testing.assert_allclose(matrix, matrix.T)
        assert np.linalg.eigvalsh(matrix).min() > 0
    assert shipped.variances.shape == (len(COMPONENTS),)
    assert shipped.variances.min() >= 0
    assert (shipped.widths > 0.3).all()
    assert (shipped.widths < 3).all()
