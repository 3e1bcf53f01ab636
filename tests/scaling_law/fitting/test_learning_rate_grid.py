"""A grid of learning rates: the best rate of each model, and the law through them, from records alone."""

import json
import math

import numpy as np
import pytest
from typer.testing import CliRunner

from scaling_law import Architecture, LearningRateLaw
from scaling_law.commands.cli import app
from scaling_law.fitting.learning_rate import LearningRateGrid
from scaling_law.runs.table import RunsError

LAW = LearningRateLaw(6.0, -0.8, -0.2)


def rows(models=((64, 1), (128, 1), (64, 8), (128, 8), (128, 4)), factors=(0.35, 0.7, 1.4, 2.8)):
    """Runs whose loss is a parabola in ln LR about the law's rate: the best of a grid is then exactly the law's."""
    for d, experts in models:
        a = Architecture(d, experts, 2, 2, 1024)
        best = LAW.learning_rate(a)
        for factor in factors:
            yield {
                "run_id": f"d{d}-E{experts}-{factor}",
                "status": "final",
                "d_model": d,
                "n_blocks": 2,
                "n_heads": 2,
                "experts": experts,
                "vocab_size": 1024,
                "tokens": 1_000_000,
                "n_active": a.n_active,
                "eval_loss": 4.0 + 0.1 * math.log(factor) ** 2,
                "schedule": {"peak_learning_rate": best * factor},
            }


def test_the_law_through_the_best_rates_is_found_and_checked_on_another_number_of_experts():
    grid = LearningRateGrid.load(rows())
    fitted = grid.fit(experts=(1, 8))
    assert (fitted.intercept, fitted.slope_n, fitted.slope_e) == pytest.approx((6.0, -0.8, -0.2), rel=1e-9)
    assert np.abs(grid.errors(fitted)).max() < 1e-9  # E = 4 too, which was not fitted
    assert fitted.source == "least squares on 4 models"
    assert not any(model.at_edge for model in grid.models)


def test_without_other_experts_the_law_has_no_slope_in_them():
    assert LearningRateGrid.load(rows()).fit(experts=(1,)).slope_e == 0


def test_the_loss_that_a_rate_costs_is_read_between_the_runs():
    model = LearningRateGrid.load(rows()).models[0]
    assert model.loss_at(model.learning_rates[1]) == model.losses[1]
    middle = math.sqrt(model.learning_rates[0] * model.learning_rates[1])
    assert model.loss_at(middle) == pytest.approx((model.losses[0] + model.losses[1]) / 2)
    assert math.isnan(model.loss_at(1.0))


def test_a_best_rate_at_the_end_of_the_grid_is_said():
    (model,) = LearningRateGrid.load(rows([(64, 1)], factors=(2.0, 4.0, 8.0))).models
    assert model.at_edge
    assert model.best == min(model.learning_rates)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schedule": {}}, "d64-E1-0.35 has no schedule.peak_learning_rate"),
        ({"n_heads": None}, "d64-E1-0.35 has no n_heads"),
        ({"status": "diverged"}, "no final runs"),
    ],
)
def test_rows_without_what_a_grid_needs_are_refused(change, message):
    row = next(iter(rows())) | change
    with pytest.raises(RunsError, match=message):
        LearningRateGrid.load([row])


def test_a_rate_that_appears_twice_or_too_few_rates_are_refused():
    row = next(iter(rows()))
    with pytest.raises(RunsError, match="appears twice"):
        LearningRateGrid.load([row, row])
    with pytest.raises(RunsError, match="a grid needs three"):
        LearningRateGrid.load([row]).fit()


def test_the_shell_fits_writes_and_uses_the_law(tmp_path):
    path = tmp_path / "runs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows()))
    law = tmp_path / "rates.json"
    shell = CliRunner()
    shown = shell.invoke(app, ["fit-learning-rate", str(path), "--experts", "1,8", "-o", str(law)])
    assert shown.exit_code == 0
    assert "d128-E4" in shown.output
    asked = ["--d-model", "128", "--experts", "4", "--n-blocks", "2", "--json"]  # the grid's vocabulary is meant
    answer = json.loads(shell.invoke(app, ["learning-rate", "--law", str(law), *asked]).output)
    assert answer["learning_rate"] == pytest.approx(LAW.learning_rate(Architecture(128, 4, 2, 2, 1024)))
    as_json = json.loads(shell.invoke(app, ["fit-learning-rate", str(path), "--json"]).output)
    assert as_json["law"]["slope_n"] == pytest.approx(-0.8)
    assert len(as_json["models"]) == 5
    wrong = shell.invoke(app, ["learning-rate", "--d-model", "64", "--law", str(path)])
    assert wrong.exit_code == 2
    assert "not valid JSON" in wrong.output
