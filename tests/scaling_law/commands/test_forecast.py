"""The commands of the guide on forecasts, run as they stand there, and what the shell refuses."""

import json
import shlex

import pytest

from tests.guides import DOCS, command_lines
from tests.scaling_law.forecasting.test_forecast import sweep

pytestmark = pytest.mark.usefixtures("shared_searches")


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sweep().to_pandas().to_csv("runs.csv", index=False)
    return tmp_path


def test_the_guide_forecasts_and_saves(shell, runs):
    lines = [line for line in command_lines(DOCS / "fitting.md") if line.startswith("scaling-law forecast")]
    first, second = [shlex.split(line)[1:] for line in lines]
    answer = json.loads(shell(*first, "--json").output)
    assert 1.8 < answer["rows"][0]["low"] < answer["rows"][0]["loss"] < answer["rows"][0]["high"] < 2.4
    assert answer["kind"] == "interaction"
    result = shell(*second)
    assert result.exit_code == 0, result.output
    assert (runs / "fan.png").exists()
    saved = json.loads((runs / "forecasts" / "4B-300B.json").read_text())
    assert saved["made"].startswith("20")
    assert saved["library"].startswith("joint-moe-scaling-laws ")
    assert saved["rows"][0].keys() >= {"n_active", "tokens", "experts", "loss", "low", "high"}
    assert "a forecast is not changed" in shell(*second).stderr


def test_a_law_under_the_same_prior_is_one_for_other_commands(shell, runs):
    fitted = shell("fit", "runs.csv", "--kind", "chinchilla", "--prior", "public", "--bootstrap", "100", "-o", "ours")
    assert fitted.exit_code == 0, fitted.output
    model = ("--n-active", "2B", "--tokens", "200B", "--json")
    row = json.loads(shell("loss", "--law", "ours", *model).output)["rows"][0]
    answer = json.loads(shell("forecast", "runs.csv", *model).output)["rows"][0]
    assert answer["low"] < row["loss"] < answer["high"]


def test_warnings_are_in_one_line_unless_all_are_wanted(shell, runs):
    words = ("forecast", "runs.csv", "--n-active", "1e12", "--tokens", "1e14")
    assert shell(*words).output.count("⚠") == 1
    assert "--verbose has all" in shell(*words).output
    assert shell(*words, "--verbose").output.count("⚠") > 1


def test_far_beyond_the_runs_it_is_not_trusted(shell, runs):
    far = shell("forecast", "runs.csv", "--n-active", "1e15", "--tokens", "1e18")
    assert far.exit_code == 1
    assert "not trusted" in far.output
    assert "do not act" in far.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("runs.csv", "--n-active", "2B"), "tokens must be given"),
        (("runs.csv", "--n-active", "2B", "--tokens", "1T", "--kind", "chinchila"), "did you mean 'chinchilla'"),
    ],
)
def test_what_is_missing_is_said(shell, runs, words, message):
    result = shell("forecast", *words)
    assert result.exit_code == 2
    assert message in result.stderr
