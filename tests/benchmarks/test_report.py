"""The benchmarks' common part: rows, their file, the page made of it. What they measure is not tested."""

import importlib
import json
import os
import re
import sys
from argparse import Namespace
from unittest import mock

import pytest

from benchmarks import render
from benchmarks.gpu.cases import PARTS
from benchmarks.report import ROOT, Report

SHARED = ("__init__", "report")
# These have no rows of their own.
PAGES = {"render": {"--results"}, "every_class": set(), "batches": {"--data"}, "paths": {"--list"}}
SCRIPTS = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if path.stem not in SHARED)


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_explains_itself(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with mock.patch.dict(os.environ), pytest.raises(SystemExit) as stopped:
        importlib.import_module(f"benchmarks.{name}").main()
    out = capsys.readouterr().out
    assert not stopped.value.code
    assert f"python -m benchmarks.{name}" in out
    options = PAGES.get(name, {"--json", "--fast"})
    assert options <= set(out.replace(",", " ").split())


def test_every_benchmark_and_part_of_the_gpu_kit_has_a_target_and_a_section():
    listed = dict(re.findall(r"^(BENCHMARKS|GPU_PARTS) := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(listed["BENCHMARKS"].split()) == render.load(render.RESULTS).keys() == set(SCRIPTS) - {*PAGES}
    places = re.findall(r"<!-- gpu (\w+) -->", render.PAGE.read_text(encoding="utf-8"))
    assert listed["GPU_PARTS"].split() == places == [*PARTS]


@pytest.fixture
def results(tmp_path):
    """A folder with what a report writes."""
    file = tmp_path / "results" / "query_speed.json"
    options = Namespace(rounds=3, folder=tmp_path / "data", json=file, fast=True)
    report = Report("query_speed", options)
    report.add("a | b", 0.002, "s", peer=("scipy", 0.006), bound=("numpy", 0.001), note="checked")
    report.add("speed", 46_252_845.4, "tokens/s", peer=("scipy", 23_126_422.7))
    report.add("share", 0.5, "%")
    report.skipped.append("the other half: needs a file")
    report.finish()
    return tmp_path / "results"


def test_a_report_is_read_back_and_rendered(results):
    (result,) = render.load(results)["query_speed"]
    assert result["machine"]["cores"] >= 1
    assert result["versions"]["python"]
    assert result["settings"] == {"rounds": 3, "folder": "data"}  # of a path the last part only
    text = rendered(results)
    assert "| a \\| b | 2 ms | scipy | 6 ms | 3× | numpy | 1 ms | 2× | checked |" in text
    assert "| speed | 46,252,845 tokens/s | scipy | 23,126,423 tokens/s | 2× |" in text
    assert "| share | 0.5 % |  |  |  |  |  |  |  |" in text
    assert "Skipped: the other half: needs a file." in text


def test_results_of_two_machines_are_told_apart(results):
    result = json.loads((results / "query_speed.json").read_text())
    result["machine"]["gpu"] = "1 x NVIDIA H200"
    (results / "query_speed-h200.json").write_text(json.dumps(result))
    text = rendered(results)
    assert text.count("| share | 0.5 % |") == 2
    assert text.count("GPU: 1 x NVIDIA H200") == 1


def rendered(results):
    page = results.parent / "page" / "benchmarks.md"
    render.write(page, results)
    return page.read_text(encoding="utf-8")


def test_the_page_is_what_the_results_give(tmp_path):
    render.write(tmp_path / "benchmarks.md")
    for path in (tmp_path / "benchmarks.md", *(tmp_path / "tables").iterdir()):
        assert path.read_bytes() == (render.PAGE.parent / path.relative_to(tmp_path)).read_bytes(), (
            "docs/benchmarks.md differs from benchmarks/results: run python -m benchmarks.render"
        )


def test_a_long_table_is_a_file_and_its_ranges(results, tmp_path):
    result = json.loads((results / "query_speed.json").read_text())
    rows = [
        result["rows"][0] | {"name": f"train {kind}, model {i}", "ratio": 0.5 + i} for kind in "ab" for i in range(7)
    ]
    text = render.section(result | {"rows": rows}, tmp_path / "tables")
    assert "| train b | scipy | 7 | 0.5× to 6.5× |" in text
    assert "[All 14 rows](tables/query_speed.csv)." in text
    header, *lines = (tmp_path / "tables" / "query_speed.csv").read_text().splitlines()
    assert (header.split(",")[1], len(lines)) == ("measured", 14)
