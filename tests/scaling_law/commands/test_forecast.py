"""The commands of the guide on forecasts, run as they stand there, and what the shell refuses."""

import json
import shlex

import pytest

from scaling_law import stack_laws
from tests.guides import DOCS, command_lines
from tests.scaling_law.forecasting.test_forecast import sweep


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sweep().to_pandas().to_csv("runs.csv", index=False)
    return tmp_path


def test_the_guide_forecasts_and_saves(shell, runs):
    lines = [line for line in command_lines(DOCS / "fitting.md") if line.startswith("scaling-law forecast")]
    first, second, _ = [shlex.split(line)[1:] for line in lines]
    answer = json.loads(shell(*first, "--json").output)
    assert 1.8 < answer["rows"][0]["low"] < answer["rows"][0]["loss"] < answer["rows"][0]["high"] < 2.4
    assert {law["law"] for law in answer["laws"]} >= {"chinchilla", "prior"}
    result = shell(*second)
    assert result.exit_code == 0, result.output
    assert (runs / "fan.png").exists()
    saved = json.loads((runs / "forecasts" / "4B-300B.json").read_text())
    assert saved["made"].startswith("20")
    assert saved["library"].startswith("joint-moe-scaling-laws ")
    assert saved["rows"][0].keys() >= {"n_active", "tokens", "experts", "loss", "low", "high"}
    assert "a forecast is not changed" in shell(*second).stderr


def test_the_stack_is_a_law_for_other_commands(shell, runs):
    written = shell("forecast", "runs.csv", "-o", "our-stack").output
    assert "weight" in written
    assert "wrote our-stack/scaling_law.json" in written
    best = json.loads(shell("optimal", "--law", "our-stack", "--flops", "1e21", "--json").output)["rows"][0]
    law = stack_laws(sweep())
    assert best["loss"] == pytest.approx(law.optimal("1e21").best.loss)
    plan = json.loads(shell("plan", "--law", "our-stack", "--flops", "1e21", "--experts", "1", "--json").output)
    assert plan["loss"] == pytest.approx(best["loss"], abs=0.01)


def test_warnings_are_in_one_line_unless_all_are_wanted(shell, runs):
    words = ("forecast", "runs.csv", "--n-active", "1e12", "--tokens", "1e14", "--kinds", "prior")
    assert shell(*words).output.count("⚠") == 1
    assert "--verbose has all" in shell(*words).output
    assert shell(*words, "--verbose").output.count("⚠") > 1


def test_far_beyond_the_runs_it_is_not_trusted(shell, runs):
    far = shell("forecast", "runs.csv", "--n-active", "1e15", "--tokens", "1e18", "--kinds", "prior")
    assert far.exit_code == 1
    assert "not trusted" in far.output
    assert "do not act" in far.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("runs.csv", "--n-active", "2B"), "tokens must be given"),
        (("runs.csv", "--n-active", "2B", "-o", "x"), "-o writes a law for any model"),
    ],
)
def test_what_is_missing_is_said(shell, runs, words, message):
    result = shell("forecast", *words)
    assert result.exit_code == 2
    assert message in result.stderr
