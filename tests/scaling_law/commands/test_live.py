"""The command `live`: a log, JSON, what is missing; and `forecast`, which names it."""

import json

from tests.scaling_law.forecasting.test_running import lines_of, write_csv


def test_the_command_answers_and_forecast_names_it(tmp_path, shell, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "log.csv", lines_of()[0])
    words = ("live", "log.csv", "--n-active", "200M", "--tokens", "4B", "--law", "chinchilla")
    result = shell(*words)
    assert result.exit_code == 0, result.output
    assert result.output.startswith("log: 50% of 4B tokens, final loss")
    assert json.loads(shell(*words, "--json").output)["rows"][0]["share"] == 0.5
    asked = shell("live", "log.csv")
    assert asked.exit_code == 2
    assert "--n-active" in asked.output
    assert "--tokens" in asked.output
    wrong = shell("forecast", "log.csv")
    assert wrong.exit_code == 2
    assert "scaling-law live log.csv" in " ".join(wrong.output.split())
