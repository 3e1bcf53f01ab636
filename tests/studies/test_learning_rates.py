"""docs/studies/learning_rates.md: labs that were made are found again, and folds of laws that are known."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scaling_law import LearningRateLaw
from scaling_law.rates.law import PUBLIC_FILE
from studies.learning_rates import study
from studies.learning_rates.population import (
    BATCH_SCATTER,
    CENTRE,
    SCATTER,
    Population,
    estimate,
    law_of,
    member_of,
    with_one_model,
)
from studies.learning_rates.sets import SETS, Rates, read_sets

LEVEL, WITHIN = np.eye(5)[0], np.hypot(SCATTER, BATCH_SCATTER)
TRUE, SPREAD = np.array([-6.4, -0.5, -0.3, -0.1, 0.45]), np.array([0.6, 0.15, 0.1, 0.1, 0.05])


def lab(coefficients, seed=0, models=25, noise=0.05, scatter=WITHIN):
    rng = np.random.default_rng(seed)
    variables = CENTRE + rng.normal(0, 1.2, (models, 4))
    ln_rate = (
        coefficients[0] + (variables - CENTRE) @ coefficients[1:] + rng.normal(0, np.hypot(noise, scatter), models)
    )
    return Rates(variables, ln_rate, np.full(models, noise), np.arange(models, dtype=float), 0.03)


@pytest.fixture(scope="module")
def labs():
    rng = np.random.default_rng(5)
    return {f"lab{i}": TRUE + SPREAD * rng.standard_normal(5) for i in range(40)}


def members(labs):
    return [member_of(name, name, lab(own, seed), 0.0) for seed, (name, own) in enumerate(labs.items())]


def test_mean_spread_and_labs_are_found(labs):
    p = estimate(members(labs))
    assert np.all(np.abs(p.mean - TRUE) < 4 * np.sqrt(np.diag(p.covariance)))
    np.testing.assert_allclose(np.log(p.spread / SPREAD), 0, atol=0.45)
    errors = np.array([(p.labs[name][0] - own) / np.sqrt(np.diag(p.labs[name][1])) for name, own in labs.items()])
    assert 0.8 < np.sqrt(np.mean(errors**2)) < 1.2  # as large as their covariances say


def test_what_a_lab_does_not_vary_it_takes_from_the_others(labs):
    dense = lab(np.array([-5.0, -0.2, 0.4, -0.3, 0.4]))
    dense.variables[:, 1] = 0.0
    ln_rate = -5.0 + (dense.variables - CENTRE) @ np.array([-0.2, 0.4, -0.3, 0.4])
    p = estimate([*members(labs), member_of("dense", "dense", dense._replace(ln_rate=ln_rate), 0.0)])
    own, covariance = p.labs["dense"]
    assert own == pytest.approx([-5.0, -0.2, p.mean[2], -0.3, 0.4], abs=0.05)
    assert covariance[2, 2] == pytest.approx(p.spread[2] ** 2 + p.covariance[2, 2], rel=0.1)


def test_one_tuned_model_sets_the_level_and_hardly_an_exponent(labs):
    p = estimate(members(labs))
    rates = lab(TRUE + 2.0 * LEVEL, noise=1e-6, scatter=0)
    own = with_one_model(p, rates, 3.0)
    assert own[1:] == pytest.approx(p.mean[1:], abs=0.1)
    x = rates.variables[3] - CENTRE
    assert own[0] + x @ own[1:] == pytest.approx(rates.ln_rate[3], abs=0.05)


def test_a_law_of_centred_coefficients_says_the_same():
    law = law_of(TRUE, np.diag(SPREAD**2))
    at = np.exp(CENTRE + np.array([1.0, 2.0, -1.0, 0.5]))
    assert np.log(law.at(*at)) == pytest.approx(TRUE @ [1, 1.0, 2.0, -1.0, 0.5])
    low, high = law.interval_at(*at)
    assert np.log(high / low) == pytest.approx(2 * 1.96 * np.sqrt(SPREAD**2 @ [1, 1, 4, 1, 0.25]), rel=1e-3)


def test_a_fold_of_the_right_law_costs_nothing_and_of_a_wrong_one_its_parabola(labs):
    one = lab(TRUE, noise=1e-9, scatter=0)
    exact = Population(TRUE, 1e-6 * np.eye(5), SPREAD, {"a": None, "b": None})
    paper = LearningRateLaw(float(TRUE[0] + 1.0 + 0.5 * CENTRE[0]), -0.5, 0.0, "paper")
    fold = study.fold(one, exact, paper)
    assert fold["rms"]["another lab"] == pytest.approx(0, abs=1e-6)
    assert fold["held"] == 1
    assert fold["rms"]["paper"] > 0.5
    assert fold["regret"] == {}  # no runs
    other = replace(exact, mean=TRUE + 0.5 * LEVEL)
    assert fold["alone"] == {"with D": pytest.approx(0.05, abs=0.03), "without D": pytest.approx(0.12, abs=0.05)}
    off = study.fold(one, other, paper)
    assert off["rms"]["another lab"] == pytest.approx(0.5)
    assert off["rms"]["one model"] < 0.2


def test_tables_that_ship_are_read_and_missing_ones_named(tmp_path):
    rates = {one.name: one.rates({}) for one in SETS if isinstance(one.file, Path)}
    assert np.exp(rates["epfl"].ln_rate) == pytest.approx([1.35e-3, 1.14e-3, 1.06e-3, 0.97e-3], rel=0.01)
    assert rates["epfl"].grid.size.shape == (4,)
    assert len(rates["marin_adamw"].ln_rate) == 8
    assert np.all((np.exp(rates["marin_adamw"].ln_rate) > 4e-3) & (np.exp(rates["marin_adamw"].ln_rate) < 16e-3))
    with pytest.raises(FileNotFoundError, match=r"dense_lr_bs_loss.csv \(.*; lingle_best_rates.csv"):
        read_sets(tmp_path)


def test_the_librarys_laws_are_those_of_the_members(tmp_path, monkeypatch):
    """To the last digit, on every processor: the spreads are rounded to what the optimiser determines."""
    shipped = json.loads(PUBLIC_FILE.read_text())["laws"]
    monkeypatch.setattr(study, "PUBLIC_FILE", tmp_path / "laws.json")
    again = json.loads(study.ship(study.read_results()).read_text())["laws"]
    assert again == shipped


def test_each_verdict_of_the_page_holds_and_can_come_out_the_other_way():
    """With labs whose levels are one and whose rates rise with N, and with the methods' errors turned."""
    results = study.read_results()
    assert study.PAGE.refuted(results) == []
    turned = json.loads(json.dumps(results.folds))
    for row in turned.values():
        row["regret"] = dict(zip(row["regret"], [2.0, 3.0, 1.0][: len(row["regret"])], strict=True))
        row["rms"]["one model"] = 0.1
        row["alone"] = dict.fromkeys(row["alone"], 1.0)
    rising = {f"lab{i}": np.array([-6.4, 0.5, -0.3, -0.1, 0.45]) for i in range(4)} | {"ludziejewski": TRUE}
    other = study.Results(members(rising), turned)
    assert study.PAGE.refuted(other) == [*study.CLAIMS]
