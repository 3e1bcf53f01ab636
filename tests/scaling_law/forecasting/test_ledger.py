"""A ledger keeps forecasts as they were made, takes one score for each, and counts the hits."""

# ruff: noqa: F811 (fixtures are imported)
import json

import numpy as np
import pytest

from hub.store.transport import Transport
from scaling_law.forecasting.ledger import hash_of, read_ledger, register, score
from tests.hub.conftest import hub_cache, loopback, online  # noqa: F401
from tests.hub.loopback import TOKEN
from tests.scaling_law.forecasting.test_forecast import sweep

ROWS = [
    {"n_active": n, "tokens": 1e11, "experts": 1.0, "flops": 1.0, "loss": 2.2, "low": 2.1, "high": 2.3, "more": 1}
    for n in (1e9, 2e9)
]


@pytest.fixture
def ledger(tmp_path):
    register(tmp_path / "ours", ROWS, 0.9, sweep())
    return tmp_path / "ours"


def test_a_ledger_on_the_hub_is_registered_listed_and_scored(loopback, monkeypatch):
    def transport(endpoint, token, **options):
        return Transport(endpoint or loopback.endpoint, token or TOKEN, **options)

    monkeypatch.setattr("hub.store.hub.Transport", transport)
    one, two = register("hf://org/forecasts", ROWS, 0.9, sweep())
    score("hf://org/forecasts", one, 2.25)
    kept = read_ledger("hf://org/forecasts")
    assert {row["name"]: row["measured"] for row in kept.rows} == {one: 2.25, two: None}
    with pytest.raises(ValueError, match="registered already"):
        register("hf://org/forecasts", ROWS, 0.9, sweep())


def test_a_forecast_is_kept_with_date_version_and_hash_of_its_runs(ledger):
    one, two = read_ledger(ledger).rows
    assert (one["loss"], one["level"], one["runs"]) == (2.2, 0.9, 15)
    assert one["runs_sha256"] == hash_of(sweep().take(np.arange(15)[::-1]))
    assert one["registered"][:10] == one["name"][:10]
    assert {one["n_active"], two["n_active"]} == {1e9, 2e9}
    assert one["measured"] is None
    assert read_ledger(ledger).verdict == "2 forecasts, 0 scored"
    assert "more" not in one


def test_scores_count_hits_once(ledger):
    one, two = (row["name"] for row in read_ledger(ledger).rows)
    score(ledger, one, 2.25)
    score(ledger, two, 2.05)
    assert read_ledger(ledger).verdict == "2 forecasts, 2 scored: 1 inside their interval of 90%"
    assert (
        "OUTSIDE" in str(read_ledger(ledger).to_dataframe()) or "OUTSIDE" in read_ledger(ledger).summary().markdown()
    )
    with pytest.raises(ValueError, match=r"scored already, with 2\.25"):
        score(ledger, one, 2.2)


def test_a_forecast_is_not_made_twice_and_an_unknown_one_not_scored(ledger):
    with pytest.raises(ValueError, match="registered already"):
        register(ledger, ROWS, 0.9, sweep())
    with pytest.raises(ValueError, match="is unknown"):
        score(ledger, "2026-01-01-00000000", 2.2)
    with pytest.raises(ValueError, match="positive loss"):
        score(ledger, read_ledger(ledger).rows[0]["name"], -1)
    with pytest.raises(ValueError, match="no forecasts there"):
        read_ledger(ledger / "none")


def test_a_file_of_something_else_is_refused(ledger):
    (ledger / "other.json").write_text(json.dumps({"format": "scaling_law", "version": 1}))
    with pytest.raises(ValueError, match="format is 'scaling_law'"):
        read_ledger(ledger)
