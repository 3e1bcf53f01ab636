"""The commands of the guide on forecasts, run as they stand there, and what the shell refuses."""

import json
import shlex

import pytest

from tests.guides import DOCS, command_lines
from tests.scaling_law.forecasting.test_forecast import sweep


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sweep().to_pandas().to_csv("runs.csv", index=False)
    return tmp_path


def test_the_guide_forecasts_registers_and_scores(shell, runs):
    lines = [line for line in command_lines(DOCS / "fitting.md") if line.startswith("scaling-law forecast")]
    first, second, third = [shlex.split(line)[1:] for line in lines]
    answer = json.loads(shell(*first, "--json").output)
    assert 1.8 < answer["rows"][0]["low"] < answer["rows"][0]["loss"] < answer["rows"][0]["high"] < 2.4
    assert {law["law"] for law in answer["laws"]} >= {"chinchilla", "prior"}
    result = shell(*second)
    assert result.exit_code == 0, result.output
    assert (runs / "fan.png").exists()
    (record,) = (runs / "our-forecasts").glob("*.json")
    third[-1] = f"{record.stem}={third[-1].partition('=')[2]}"
    assert "1 forecasts, 1 scored" in shell(*third).output
    listed = json.loads(shell("forecast", "--register", "our-forecasts", "--json").output)
    assert listed["rows"][0]["measured"] == float(third[-1].partition("=")[2])


def test_far_beyond_the_runs_it_is_not_trusted(shell, runs):
    far = shell("forecast", "runs.csv", "--n-active", "1e15", "--tokens", "1e18", "--kinds", "prior")
    assert far.exit_code == 1
    assert "not trusted" in far.output
    assert "do not act" in far.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "RUNS to forecast from are needed"),
        (("runs.csv", "--n-active", "2B"), "tokens must be given"),
        (("runs.csv", "--score", "a=2", "--register", "x"), "--score goes with --register and without RUNS"),
        (("--register", "nowhere"), "no forecasts there"),
    ],
)
def test_what_is_missing_is_said(shell, runs, words, message):
    result = shell("forecast", *words)
    assert result.exit_code == 2
    assert message in result.stderr
