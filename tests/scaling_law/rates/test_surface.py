"""The learning-rate law of a whole grid: what made the runs is found again, with intervals that hold it."""

import json
import math
import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from typer.testing import CliRunner

from scaling_law import LearningRateLaw, Runs, fit_learning_rate
from scaling_law.commands.cli import app
from scaling_law.rates.surface import SettingsGrid
from scaling_law.runs.rows import RunsError
from studies.learning_rates.best_rates import best_rates

TUNED = {"intercept": 4.6, "slope_n": -0.7, "slope_e": -0.45, "slope_d": 0.14}  # ln LR at the best batch
BATCH = {"intercept": 5.0, "slope_n": -0.25, "slope_e": 0.0, "slope_d": 0.53}  # ln of the best batch
CURVATURE = np.array([[0.024, -0.01], [-0.01, 0.024]])
MODELS = tuple(product((2e8, 5e8, 1.2e9), (1, 4, 16), (2e9, 2e10)))
RATES, BATCHES = 2.0 ** np.arange(-14, -5), 2.0 ** np.arange(15, 23)


def at(law, n, e, d):
    return (
        law["intercept"] + law["slope_n"] * math.log(n) + law["slope_e"] * math.log(e) + law["slope_d"] * math.log(d)
    )


def grid(models=MODELS, noise=0.0, seed=0, batches=BATCHES, shift=0.0):
    """Every model at every rate and batch; `shift` scatters the optima of the models, `noise` the losses, nats."""
    rng, rows = np.random.default_rng(seed), []
    for n, e, d in models:
        moved = rng.normal(0, shift, 2)
        for rate, batch in product(RATES, batches):
            away = np.log([rate, batch]) - [at(TUNED, n, e, d), at(BATCH, n, e, d)] - moved
            loss = 2 + 30 * n**-0.2 + 40 * d**-0.2 + away @ CURVATURE @ away / 2 + rng.normal(0, noise)
            rows.append((n, d, e, loss, rate, batch))
    n, d, e, loss, rate, batch = np.array(rows).T
    columns = {"learning_rate": rate, "batch_tokens": batch, "n_active_non_embedding": n}
    return Runs.from_columns(n, d, e, loss, trunk="run", columns=columns)


def coefficients(law):
    return {name: getattr(law, name) for name in TUNED}


def test_the_optimum_and_the_curvature_are_found():
    fitted = fit_learning_rate(grid(), ["tokens"], reading="paper", draws=0)
    assert coefficients(fitted.law) == pytest.approx(TUNED, abs=1e-6)
    found = {name: fitted.coefficients[f"best_batch.{name}"] for name in BATCH}
    assert found == pytest.approx(BATCH, abs=1e-6)
    np.testing.assert_allclose(fitted.curvature, CURVATURE, rtol=1e-6)
    assert fitted.rmse == pytest.approx(0, abs=1e-9)
    assert fitted.runs < len(grid())  # those far from the best are left out
    assert (fitted.law.reading, fitted.law.slope_batch, fitted.law.batch_range) == ("paper", 0.0, None)
    assert fitted.law.tokens_range == pytest.approx((2e9, 2e10))
    assert fitted.law.n_range == pytest.approx((2e8, 1.2e9))


def test_a_grid_is_of_one_recipe_unless_the_user_mixes():
    runs = grid()
    mixed = replace(runs, recipe={"optimizer": tuple(["adamw", "muon"] * len(runs))[: len(runs)]})
    settings = {"reading": "paper", "draws": 0}
    with pytest.raises(RunsError, match=r"the runs differ in optimizer \(adamw, muon\)"):
        fit_learning_rate(mixed, **settings)
    assert coefficients(fit_learning_rate(mixed, mix="optimizer", **settings).law) == coefficients(
        fit_learning_rate(runs, **settings).law
    )


def test_at_a_batch_the_rate_follows_the_ridge():
    """Of ½ h11 x² + h12 x b + ½ h22 b² the least x at a given b is -h12 / h11 b."""
    law = fit_learning_rate(grid(), reading="paper", draws=0).law
    slope = -CURVATURE[0, 1] / CURVATURE[0, 0]
    assert law.slope_batch == pytest.approx(slope, abs=1e-6)
    n, e, d = MODELS[3]
    best = math.exp(at(BATCH, n, e, d))
    assert law.at(n, e, d, best) == pytest.approx(math.exp(at(TUNED, n, e, d)), rel=1e-5)
    assert law.at(n, e, d, 4 * best) == pytest.approx(math.exp(at(TUNED, n, e, d)) * 4**slope, rel=1e-5)
    low, high = law.batch_range
    assert BATCHES[0] <= low < high <= BATCHES[-1]


def test_two_tables_are_one_grid_whose_models_stay_apart():
    dense, sparse = (grid([model for model in MODELS if (model[1] == 1) == is_dense]) for is_dense in (True, False))
    one, two = (fit_learning_rate(runs, reading="paper", draws=0) for runs in (grid(), [dense, sparse]))
    assert coefficients(two.law) == pytest.approx(coefficients(one.law), abs=1e-8)


def test_intervals_of_the_bootstrap_hold_the_truth():
    """Over 40 grids with scattered optima and noise, 95 % intervals hold each slope at least 32 times."""
    held = dict.fromkeys(("slope_n", "slope_e", "slope_d"), 0)
    widths, widths_of_rate = [], []
    for seed in range(40):
        runs = grid(noise=0.002, seed=seed, shift=0.1)
        fitted = fit_learning_rate(runs, ["tokens"], reading="paper", draws=200)
        for name in held:
            low, high = fitted.intervals()[name]
            held[name] += low <= TUNED[name] <= high
        widths.append(high - low)
        law, at_one = fitted.law, (5e8, 4.0, 2e9)
        low, high = np.log(law.interval_at(*at_one))
        widths_of_rate.append(high - low)
    assert min(held.values()) >= 32, held
    assert 0.1 < np.median(widths_of_rate) < 0.5  # models scatter by 0.1, and this is a corner
    assert np.median(widths) < 0.2


def test_diverged_runs_do_not_matter():
    runs = grid()
    diverged = replace(runs, loss=np.where(runs["learning_rate"] > 0.01, 11.0, runs.loss))
    fitted = fit_learning_rate(diverged, ["tokens"], reading="paper", draws=0)
    assert coefficients(fitted.law) == pytest.approx(TUNED, abs=1e-6)


def test_the_regret_is_what_a_wrong_rate_costs_at_the_best_batch():
    runs = grid(MODELS[:1], batches=BATCHES)
    table = SettingsGrid.of([runs], "paper")
    best = table.best[0]
    for factor, outside in ((2.0, False), (2.0**20, True)):
        law = LearningRateLaw(float(table.ln_rate[best]) + math.log(factor), 0.0, 0.0, "paper")
        own = np.isclose(runs["batch_tokens"], runs["batch_tokens"][best])
        worse = runs.loss[own & np.isclose(runs["learning_rate"], runs["learning_rate"][best] * factor)]
        regret = table.regret(law, 0)
        assert math.isnan(regret) if outside else regret == pytest.approx(worse.item() - runs.loss[best])


def test_best_rates_of_batches_are_on_the_ridge_with_errors_that_cover():
    """For 10 grids of noisy losses: at each batch that is not far worse than the best, the least rate given it."""
    slope, covered = -CURVATURE[0, 1] / CURVATURE[0, 0], []
    for seed in range(10):
        table = SettingsGrid.of([grid(noise=0.002, seed=seed)], "paper")
        best = best_rates(table)
        assert best.curvature == pytest.approx(CURVATURE[0, 0], rel=0.15)
        assert best.noise == pytest.approx(0.002, rel=0.25)
        assert 1 < len(best.model) / len(MODELS) < len(BATCHES)  # those far from the best batch are left out
        for model, batch, rate, error in zip(best.model, best.batch, best.ln_rate, best.error, strict=True):
            n, e, d = MODELS[model]
            truth = at(TUNED, n, e, d) + slope * (batch - at(BATCH, n, e, d))
            covered.append(abs(rate - truth) < 2 * error + 0.01)  # batches are told to 1 %
    assert 0.9 < np.mean(covered) < 1


def test_the_expected_regret_is_that_of_models_left_out():
    exact, scattered = (fit_learning_rate(grid(shift=s), ["tokens"], reading="paper", draws=0) for s in (0, 0.5))
    assert exact.regrets.shape == (len(MODELS),)
    assert exact.law.regret < 0.003  # the spacing of the grid, read linearly between its runs
    assert scattered.law.regret > 2 * exact.law.regret
    assert scattered.law.regret == pytest.approx(math.sqrt(np.nanmean(scattered.regrets**2)))


def test_without_batches_that_vary_the_rate_alone_is_fitted():
    one = grid(batches=BATCHES[4:5])
    fitted = fit_learning_rate(one, ["tokens"], reading="paper", draws=0)
    assert fitted.curvature.shape == (1, 1)
    assert not any("best_batch" in name for name in fitted.coefficients)
    slope = -CURVATURE[0, 1] / CURVATURE[0, 0]  # the ridge, followed to this batch
    assert fitted.law.slope_d == pytest.approx(TUNED["slope_d"] - slope * BATCH["slope_d"], abs=1e-6)
    dense = fit_learning_rate(one.subset(one.experts == 1), [], reading="paper", draws=0).law
    assert (dense.slope_e, dense.slope_d) == (0.0, 0.0)


def test_the_shell_fits_a_public_table_of_settings(tmp_path):
    """In the format of Step Law's dense table, whose N has no embeddings."""
    runs = grid([model for model in MODELS if model[1] == 1])
    lines = ["h,ffnh,numh,numl,lr,bs,ti,loss,smooth loss,exp_name,D,N"]
    for i in range(len(runs)):
        rate, batch = runs["learning_rate"][i], runs["batch_tokens"][i]
        steps = round(runs.tokens[i] / batch)
        loss, n = runs.loss[i], runs.n_active[i]
        lines.append(
            f"1024,4096,16,16,{rate},{batch / 2048:.0f},{steps},{loss},{loss},run{i},{runs.tokens[i]:.0f},{n:.0f}"
        )
    (tmp_path / "dense.csv").write_text("\n".join(lines) + "\n")
    law, shell = tmp_path / "law.json", CliRunner()
    asked = ["learning-rate", str(tmp_path / "dense.csv"), "--format", "step_law", "--reading", "paper"]
    shown = shell.invoke(app, [*asked, "--with", "tokens,batch", "-o", str(law)])
    assert shown.exit_code == 0, shown.output
    assert "expected to cost" in shown.output
    table, _ = fit_learning_rate(runs, ["tokens", "batch"], reading="paper").summary().members
    assert table.header == ("N", "E", "D", "best of the grid", "law", "loss it costs")
    assert re.fullmatch(r"[\d.]+M 1 [\d.]+B [\d.e-]+ [\d.e-]+ [+-]0\.\d{4}", " ".join(table.rows[0]))
    assert LearningRateLaw.load(law).slope_batch == pytest.approx(10 / 24, abs=1e-3)
    answer = json.loads(shell.invoke(app, [*asked, "--with", "tokens", "--json"]).output)
    assert answer["law"]["slope_d"] == pytest.approx(TUNED["slope_d"], abs=1e-2)
    assert answer["intervals"]["slope_n"][0] <= answer["law"]["slope_n"] <= answer["intervals"]["slope_n"][1]
    neither = json.loads(shell.invoke(app, [*asked, "--json"]).output)
    assert (neither["law"]["slope_d"], neither["law"]["slope_batch"]) == (0.0, 0.0)
