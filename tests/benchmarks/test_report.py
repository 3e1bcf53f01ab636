"""The benchmarks' common part: rows, their file, the page made of it. What they measure is not tested."""

import importlib
import json
import os
import sys
from argparse import Namespace
from pathlib import Path
from unittest import mock

import pytest

from benchmarks import render
from benchmarks.report import ROOT, Report, Row, quotient, settings, shown

SCRIPTS = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if path.stem not in ("__init__", "report"))


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_explains_itself(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with mock.patch.dict(os.environ), pytest.raises(SystemExit) as stopped:
        importlib.import_module(f"benchmarks.{name}").main()
    out = capsys.readouterr().out
    assert not stopped.value.code
    assert f"python -m benchmarks.{name}" in out
    assert "--results" in out if name == "render" else {"--json", "--fast"} <= set(out.replace(",", " ").split())


def test_every_benchmark_is_run_and_has_a_section():
    makefile = (ROOT / "Makefile").read_text()
    (line,) = [line for line in makefile.splitlines() if line.startswith("BENCHMARKS :=")]
    assert set(line.split()[2:]) == render.load(render.RESULTS).keys() == set(SCRIPTS) - {"render"}


def test_ratios_are_how_many_times_as_good():
    assert quotient(2.0, 6.0, "s") == 3.0
    assert quotient(6.0, 2.0, "tokens/s") == 3.0
    assert quotient(2.0, None, "s") is None
    assert quotient(0.0, 1.0, "%") is None
    assert Row("x", 8.0, "s", bound="disk", bound_value=2.0).to_the_bound == 4.0
    assert Row("x", 2.0, "MB/s", bound="disk", bound_value=8.0).to_the_bound == 4.0


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (7200.0, "s", "2 h"),
        (1.5, "s", "1.5 s"),
        (0.0123, "s", "12.3 ms"),
        (2e-6, "s", "2 µs"),
        (46_252_845.4, "tokens/s", "46,252,845 tokens/s"),
        (1.0416e-5, "", "1.0416e-05"),
        (0.0, "%", "0 %"),
        (1234.5, "", "1,234"),
        (0.25, "", "0.25"),
        (999.0, "", "999"),
        (None, "s", ""),
    ],
)
def test_numbers_are_shown_in_units_that_suit_them(value, unit, text):
    assert shown(value, unit) == text


def test_settings_hold_no_path():
    options = Namespace(folder=Path("/somewhere/private/data"), rounds=3, json=Path("/x.json"), fast=False)
    assert settings(options) == {"folder": "data", "rounds": 3}


@pytest.fixture
def results(tmp_path):
    """A folder with what a report writes."""
    report = Report("query_speed", Namespace(rounds=3, json=tmp_path / "results" / "query_speed.json", fast=True))
    report.add("a | b", 0.002, "s", peer=("scipy", 0.006), bound=("numpy", 0.001), note="checked")
    report.add("share", 0.5, "%")
    report.skip("the other half: needs a file")
    report.finish()
    return tmp_path / "results"


def test_a_report_is_read_back_and_rendered(results):
    (result,) = render.load(results)["query_speed"]
    assert result["rows"][0]["ratio"] == pytest.approx(3.0)
    assert result["machine"]["cores"] >= 1
    assert result["versions"]["python"]
    text = render.page(render.load(results))
    assert "| a \\| b | 2 ms | scipy | 6 ms | 3× | numpy | 1 ms | 2× | checked |" in text
    assert "| share | 0.5 % |  |  |  |  |  |  |  |" in text
    assert "Skipped: the other half: needs a file." in text
    assert "19,683 starts" not in text  # not measured


def test_results_of_two_machines_are_told_apart(results):
    result = json.loads((results / "query_speed.json").read_text())
    result["machine"]["gpu"] = "1 x NVIDIA H200"
    (results / "query_speed-h200.json").write_text(json.dumps(result))
    text = render.page(render.load(results))
    assert text.count("| share | 0.5 % |") == 2
    assert text.count("GPU: 1 x NVIDIA H200") == 1


def test_a_file_of_no_benchmark_is_refused(results):
    (results / "other.json").write_text('{"benchmark": "other"}')
    with pytest.raises(ValueError, match=r"other\.json.*'other'"):
        render.load(results)


def test_the_page_is_what_the_results_give():
    assert render.PAGE.read_text(encoding="utf-8") == render.page(render.load(render.RESULTS)), (
        "docs/benchmarks.md differs from benchmarks/results: run python -m benchmarks.render"
    )
