"""docs/studies/models.md: its tables and figure are those of models.json, its code runs, and sources are asked for."""

import json

import pytest

from studies.models.study import ENTRIES, models, models_beside_the_law, models_predictions, read_entries
from tests.guides import DOCS, run_python

PAGE = DOCS / "studies" / "models.md"


def test_the_code_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_python(PAGE)


def test_models_that_are_trained_beyond_the_guard_are_refused():
    """Qwen3 0.6B: 36T tokens on 0.6B parameters."""
    descriptions = {entry.name: entry.description for entry in read_entries(ENTRIES)}
    small = descriptions["Qwen3 0.6B"].prediction
    assert small.tokens / descriptions["Qwen3 0.6B"].architecture.n_active > 10_000
    assert (small.beyond_guard, small.optimum) == (True, None)
    large = descriptions["DeepSeek-V3"]
    assert (large.prediction.beyond_guard, large.trusted) == (False, False)  # 6,200 times the compute of the runs


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": None}, "'A': lacks source"),
        ({"tokens": "1T"}, "'A': tokens and tokens_source go together"),
    ],
)
def test_a_model_without_its_sources_is_refused(changes, message, tmp_path):
    entry = json.loads(ENTRIES.read_text())["models"][0]
    entry = {"name": "A", "config": entry["config"], "source": "https://example.org"} | changes
    path = tmp_path / "models.json"
    path.write_text(json.dumps({"models": [{name: value for name, value in entry.items() if value is not None}]}))
    with pytest.raises(ValueError, match=message):
        read_entries(path)


def test_tables_and_figure_have_every_model():
    entries = read_entries(ENTRIES)
    rows = {row[0]: row for row in models(entries)}
    assert len(rows) == len(entries) + 1
    assert rows["Qwen3 0.6B"][1:3] == (595_984_384, 595_984_384)
    told = {row[0]: row for row in models_predictions(entries)}
    assert told["Qwen3 0.6B"][3:] == ("",) * 5  # refused
    assert len(told) - 1 == sum(line.get_zorder() == 3 for line in models_beside_the_law(entries).get_lines())
