"""The command `promote`: two tables, one table with two filters, JSON, a figure."""

import json

import pytest

from tests.guides import ROOT
from tests.scaling_law.forecasting.test_promote import runs_of

SWEEP = ROOT / "studies" / "crossing" / "runs.jsonl"


@pytest.fixture
def tables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, gain in (("base", 1.0), ("variant", 2.0)):
        runs_of(gain).to_pandas().to_csv(f"{name}.csv", index=False)


def test_two_tables_give_a_verdict_json_and_a_figure(shell, tables):
    result = shell("promote", "base.csv", "variant.csv", "--figure", "gap.png")
    assert result.exit_code == 0, result.output
    assert result.output.startswith("promote: ")
    assert "wrote gap.png" in result.output
    answer = json.loads(shell("promote", "base.csv", "variant.csv", "--beyond", "30", "--json").output)
    assert answer["decision"] == "promote"
    assert answer["rows"][-1]["at"] == "30 × C"


def test_one_table_is_divided_by_filters(shell):
    words = ("--where", "sweep = crossing, tokens <= 1M", "--baseline-where", "experts = 1")
    answer = json.loads(shell("promote", SWEEP, *words, "--variant-where", "experts = 8", "--json").output)
    assert answer["decision"] == "drop"
    assert answer["cells"][0]["runs"] > 2
