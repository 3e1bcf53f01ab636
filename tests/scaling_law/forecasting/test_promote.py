"""Promotion of variants: closed forms where the truth is known, what few runs can show, costs and matching."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from hub.base.errors import InputError
from scaling_law import Runs, promote
from scaling_law.forecasting import trends
from scaling_law.forecasting.promote import DECIDED, SHOWN
from scaling_law.forecasting.trends import Cells, predict_gaps, read_trend_prior

SIZES = np.array([1e8, 3e8, 1e9])


def runs_of(gain=1.0, sizes=SIZES, noise=0.0, seeds=1, seed=0, **columns):
    """Runs at 20 tokens per parameter, each as good as the baseline's with `gain` times the compute."""
    n = np.repeat(np.asarray(sizes, float), seeds)
    loss = 1.7 + 400 * (n * gain**0.5) ** -0.34 + 410 * (20 * n * gain**0.5) ** -0.28
    scatter = np.exp(noise * np.random.default_rng(seed).standard_normal(len(n)))
    return Runs.from_columns(n, 20 * n, 1, loss * scatter, "run", columns=columns)


@pytest.mark.parametrize("gain", [1.1, 1.5, 1 / 1.5])
def test_the_speedup_is_the_factor_of_compute(gain):
    row = promote(runs_of(), runs_of(gain)).rows[0]
    assert np.log(row["speedup"]) == pytest.approx(np.log(gain), rel=0.15)
    assert row["speedup_low"] < gain < row["speedup_high"]


def test_a_clear_win_is_promoted_and_a_clear_loss_dropped():
    assert promote(runs_of(), runs_of(2.0)).decision == "promote"
    assert promote(runs_of(), runs_of(0.5)).decision == "drop"


def test_equal_runs_are_as_probably_ahead_as_behind():
    answer = promote(runs_of(), runs_of())
    assert answer.decision == "undecided"
    assert [row["ahead"] for row in answer.rows] == pytest.approx([0.5] * len(answer.rows))
    assert answer.rows[0]["gap"] == pytest.approx(0.0, abs=1e-12)


def test_exchanging_the_sides_exchanges_the_probabilities():
    base = runs_of(noise=0.002)
    variant = runs_of(1.1, noise=0.002, seed=1)
    there = promote(base, variant).rows
    back = promote(variant, base).rows
    for row, mirrored in zip(there, back, strict=True):
        assert row["ahead"] == pytest.approx(1 - mirrored["ahead"])
        assert row["gap"] == pytest.approx(-mirrored["gap"])


def test_a_win_that_shrinks_to_nothing_is_not_promoted():
    base = runs_of(sizes=[1e8, 2e8, 4e8, 8e8])
    gaps = np.array([0.03, 0.02, 0.01, 0.001])
    answer = promote(base, replace(base, loss=base.loss * np.exp(-gaps)))
    assert answer.rows[0]["gap"] > 0
    assert answer.best["ahead"] < 0.5


def test_one_size_is_said_to_show_no_trend():
    answer = promote(runs_of(sizes=[1e8]), runs_of(1.03, sizes=[1e8]))
    assert sum("the trend with" in warning for warning in answer.warnings) == 2
    assert any("noise of seeds" in warning for warning in answer.warnings)
    wide = answer.rows[-1]
    narrow = answer.rows[0]
    assert wide["gap_high"] - wide["gap_low"] > 3 * (narrow["gap_high"] - narrow["gap_low"])


def test_seeds_are_averaged_and_show_the_noise():
    quiet = promote(runs_of(noise=1e-4, seeds=4), runs_of(1.05, noise=1e-4, seeds=4, seed=1))
    loud = promote(runs_of(noise=0.02, seeds=4), runs_of(1.05, noise=0.02, seeds=4, seed=1))
    assert [cell["runs"] for cell in quiet.cells] == [8, 8, 8]
    assert not any("seeds" in warning for warning in quiet.warnings)
    width = [answer.rows[0]["gap_high"] - answer.rows[0]["gap_low"] for answer in (quiet, loud)]
    assert width[1] > 3 * width[0]


def test_next_runs_are_the_cheapest_that_would_decide():
    answer = promote(runs_of(), runs_of(1.01))
    assert answer.decision == "undecided"
    largest = answer.cells[-1]["flops"]
    assert answer.next_runs["flops"] >= largest
    assert 0.5 < answer.next_runs["decides"] < 1
    assert answer.next_runs["flops"] == pytest.approx(6 * answer.next_runs["n_active"] * answer.next_runs["tokens"])


def test_equal_hours_count_the_measured_speed():
    base = runs_of(tokens_per_second=1e5)
    slower = runs_of(1.5, tokens_per_second=1e5 / 1.5)
    assert promote(base, slower).rows[0]["speedup"] == pytest.approx(1.5, rel=0.15)
    assert promote(base, slower, at_equal="hours").rows[0]["speedup"] == pytest.approx(1.0, abs=0.05)


def test_equal_inference_cost_counts_the_larger_model():
    base = runs_of()
    larger = replace(base, n_active=base.n_active * 1.2)
    answer = promote(base, larger, at_equal="inference")
    assert [cell["cost ratio"] for cell in answer.cells] == pytest.approx([1.2] * 3)
    assert answer.rows[0]["gap"] < 0
    # The training FLOPs differ by as much.
    assert promote(base, larger).cells[0]["cost ratio"] == pytest.approx(1.2)


def test_isoflop_runs_of_other_sizes_match_by_budget():
    budgets = np.repeat([1e18, 1e19], 3)
    n = np.tile([0.5, 1.0, 2.0], 2) * np.sqrt(budgets / 120)
    loss = 1.7 + 400 * n**-0.34 + 410 * (budgets / (6 * n)) ** -0.28
    base = Runs.from_columns(n, budgets / (6 * n), 1, loss, "run")
    other_n = n * 1.4
    variant = Runs.from_columns(other_n, budgets / (6 * other_n), 1, loss * 0.99, "run")
    answer = promote(base, variant)
    assert [cell["flops"] for cell in answer.cells] == pytest.approx([1e18, 1e19])
    assert [cell["gap"] for cell in answer.cells] == pytest.approx([-np.log(0.99)] * 2, rel=1e-3)
    assert sum("equal budgets" in note for note in answer.notes) == 1
    assert not any("partner" in note for note in answer.notes)


def test_a_higher_rate_is_expected_to_lose_unless_its_batch_is_larger():
    base = runs_of(learning_rate=1e-3, batch=256)
    plain = promote(base, runs_of(learning_rate=1e-3, batch=256)).best["ahead"]
    higher = promote(base, runs_of(learning_rate=4e-3, batch=256)).best["ahead"]
    larger = promote(base, runs_of(learning_rate=2e-3, batch=1024)).best["ahead"]
    assert higher < plain
    assert larger == pytest.approx(plain)


def test_rates_tuned_at_each_size_say_nothing_of_the_trend():
    base = runs_of(learning_rate=1e-3)
    tuned = runs_of(learning_rate=np.array([1e-3, 2e-3, 4e-3]))
    assert promote(base, tuned).best["ahead"] == pytest.approx(promote(base, base).best["ahead"])


def test_runs_of_one_size_at_several_rates_are_pointed_out():
    several = runs_of(seeds=2, learning_rate=np.array([1e-3, 4e-3] * 3))
    warnings = promote(several, several).warnings
    assert any("learning_rate" in warning for warning in warnings)


def test_the_mixture_is_the_conditional_normal(monkeypatch):
    """Brute force: one node, one cell, conditional moments of a bivariate normal."""
    prior = read_trend_prior()
    monkeypatch.setattr(trends, "NODES", 1)
    cells = Cells(np.zeros((1, 2)), np.array([0.01]), np.ones(1))
    point = np.array([[1.0, 0.5]])
    gaps = predict_gaps(prior, cells, point)
    joint = trends.covariance(prior, np.vstack([cells.sizes, point]))
    mean = joint[0, 1] / (joint[0, 0] + prior.noise**2) * 0.01
    variance = joint[1, 1] - joint[0, 1] ** 2 / (joint[0, 0] + prior.noise**2)
    assert gaps.mean[0] == pytest.approx(mean)
    assert gaps.probability()[0] == pytest.approx(norm.cdf(mean / np.sqrt(variance)))


def test_probabilities_hold_where_the_prior_is_true():
    """Draw pairs from the prior itself: of those called decided, as many win as was said."""
    prior = read_trend_prior()
    generator = np.random.default_rng(0)
    steps = np.log([0.01, 0.1, 1.0, 10.0])
    sizes = np.column_stack([steps / 2, steps / 2])
    scales, noises, log_weights = trends._scales()
    covariance = trends.covariance(prior, sizes)
    said = []
    won = []
    for node in generator.choice(len(scales), 400, p=np.exp(log_weights)):
        truth = generator.multivariate_normal(np.zeros(4), scales[node] * covariance)
        noise = prior.noise * np.sqrt(noises[node])
        cells = Cells(sizes[:3], truth[:3] + noise * generator.standard_normal(3), np.ones(3))
        ahead = predict_gaps(prior, cells, sizes[3:]).probability()[0]
        said.append(max(ahead, 1 - ahead))
        won.append((ahead > 0.5) == (truth[3] > 0))
    said = np.array(said)
    won = np.array(won)
    decided = said >= DECIDED
    assert decided.mean() > 0.4
    assert won[decided].mean() == pytest.approx(said[decided].mean(), abs=0.05)


def test_the_answer_is_json_and_a_figure():
    answer = promote(runs_of(), runs_of(1.2), beyond=30)
    text = json.dumps(answer.to_dict(), allow_nan=False)
    data = json.loads(text)
    assert data["verdict"].startswith("promote")
    assert [row["at"] for row in data["rows"]] == [
        "the largest run",
        "10 × N",
        "10 × D",
        "10 × C",
        "30 × C",
    ]
    assert answer.figure().get_ylabel()


def test_what_is_odd_about_the_runs_is_said():
    base = runs_of()
    assert any("equal" in note for note in promote(base, base).notes)
    other_loss = replace(runs_of(1.1), loss_name="val_loss")
    assert any("val_loss" in note for note in promote(base, other_loss).notes)
    answer = promote(base, runs_of(1.1, sizes=SIZES[[0, 2]]))
    assert [note for note in answer.notes if "partner" in note] == ["1 of the 3 sizes of the baseline has no partner"]


def test_sizes_further_out_leave_the_nearer_ones_alone():
    base = runs_of(noise=0.002)
    variant = runs_of(1.1, noise=0.002, seed=1)
    near = promote(base, variant, beyond=30).rows
    far = promote(base, variant, beyond=(30, 1000)).rows
    assert near == far[:-1]


def test_a_summary_shows_the_largest_cells():
    sizes = np.geomspace(1e8, 1e9, 15)
    answer = promote(runs_of(sizes=sizes), runs_of(1.1, sizes=sizes))
    cells = answer.summary().members[1]
    assert len(answer.cells) == 15
    assert len(cells.rows) == SHOWN
    assert "15" in cells.title


def test_other_losses_are_read_by_name():
    base = runs_of(dclm=3.0)
    variant = runs_of(dclm=2.9)
    assert promote(base, variant, "dclm").cells[0]["gap"] == pytest.approx(np.log(3.0 / 2.9))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"at_equal": "money"}, "at_equal"),
        ({"at_equal": "hours"}, "tokens_per_second"),
        ({"beyond": 1.0}, "beyond"),
        ({"level": 1.0}, "level"),
        ({"variant": runs_of(sizes=[7e9])}, "equal N and D"),
    ],
)
def test_bad_input_is_named(arguments, message):
    options = {"baseline": runs_of(), "variant": runs_of(1.1)}
    options.update(arguments)
    with pytest.raises((InputError, ValueError), match=message):
        promote(**options)


def test_no_runs_are_refused():
    with pytest.raises(ValueError, match="no "):
        promote([], runs_of())
