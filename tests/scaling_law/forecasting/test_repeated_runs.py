"""Forecasts from runs that repeat tokens, which count as what they are worth."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from scaling_law import forecast
from scaling_law.commands.cli import app
from tests.scaling_law.fitting.test_repetition import TRUTH, repeated_runs

pytestmark = pytest.mark.usefixtures("shared_searches")

AT = {"n_active": 6e9, "tokens": 8e11}


@pytest.fixture(scope="module")
def runs():
    return repeated_runs(noise=0.003)


def test_models_are_forecast_on_the_tokens_they_repeat(runs):
    asked = [{**AT, "unique_tokens": "20B"}, {**AT, "unique_tokens": "100B"}, AT]
    answer = forecast(runs, asked, unique_tokens="unique_tokens")
    assert [row["unique_tokens"] for row in answer.rows] == [2e10, 1e11, 8e11]
    truth = TRUTH.loss(AT["n_active"], AT["tokens"], unique_tokens=[2e10, 1e11, 8e11])
    for row, loss in zip(answer.rows, truth, strict=True):
        assert row["loss"] == pytest.approx(loss, abs=0.03)
        assert row["low"] < loss < row["high"]
        assert (row["n_active"], row["tokens"]) == (6e9, 8e11)
    assert any(warning.startswith("the law counts repeated data with R*_D = ") for warning in answer.warnings)
    assert np.isfinite(np.array(answer.fans)).all()


def test_runs_that_repeat_are_told_so(runs):
    answer = forecast(runs, AT)
    assert any(
        "epochs varies in the runs but not in this law" in warning and "--unique-tokens" in warning
        for warning in answer.warnings
    )


def test_in_the_shell(runs, tmp_path):
    table = tmp_path / "runs.csv"
    runs.to_pandas().to_csv(table, index=False)
    command = [
        "forecast",
        str(table),
        "--loss",
        "loss",
        "--n-active",
        "6B",
        "--tokens",
        "800B",
        "--kind",
        "chinchilla",
    ]
    repeats = ["--unique-tokens", "unique_tokens", "--at-unique-tokens", "20B"]
    done = CliRunner().invoke(app, [*command, *repeats, "--json"])
    row = json.loads(done.stdout)["rows"][0]
    assert row["unique_tokens"] == 2e10
    assert row["loss"] == pytest.approx(TRUTH.loss(6e9, 8e11, unique_tokens=2e10), abs=0.03)
    alone = CliRunner().invoke(app, [*command, "--at-unique-tokens", "20B"])
    assert alone.exit_code == 2
    assert "--at-unique-tokens goes with --unique-tokens, the column" in alone.output.replace("\n", " ")
