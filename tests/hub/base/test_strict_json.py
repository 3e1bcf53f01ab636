"""Strict JSON, and files that say their format and version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub import RecordError
from hub.base import strict_json


def test_a_file_says_what_it_is_and_keeps_what_it_is_not_known_for(tmp_path: Path) -> None:
    path = strict_json.write(tmp_path / "law.json", "law", 2, {"a": 0.1, "later": [1]})
    assert strict_json.read(path, "law", 2) == {"format": "law", "version": 2, "a": 0.1, "later": [1]}
    assert strict_json.read(path, "law", 3)["version"] == 2, "an older version is read"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"format": "law", "version": 3}, "version is 3, this version of the package reads up to 2: update"),
        ({"format": "law", "version": "1"}, "version is '1', allowed are 1 to 2"),
        ({"format": "plan", "version": 1}, "format is 'plan', allowed is 'law'"),
        ([], "format is None"),
    ],
)
def test_another_file_is_refused_by_name(tmp_path: Path, fields: object, reason: str) -> None:
    (tmp_path / "x.json").write_text(json.dumps(fields))
    with pytest.raises(RecordError, match=reason) as caught:
        strict_json.read(tmp_path / "x.json", "law", 2)
    assert "x.json" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": NaN}', "NaN is not a JSON number"),
        ('{"a": 1e999}', "outside the range"),
        ('{"a": ' + "9" * 5000 + "}", "5000 digits"),
        ('{"a": 1, "a": 2}', "'a' occurs twice"),
        ("[" * 100_000, "nested deeper"),
        ("[" * 30 + "]" * 30, "nested deeper"),
        ('{"a": 1,}', "not valid JSON"),
        ("", "not valid JSON"),
        (b"\xff\xfe", "not UTF-8"),
        (b" " * (strict_json.MAX_RECORD_BYTES + 1), "allowed are at most"),
    ],
)
def test_json_that_is_not_strict_is_refused(text: str | bytes, reason: str) -> None:
    with pytest.raises(RecordError, match=reason) as caught:
        strict_json.loads(text, what="runs.jsonl line 3")
    assert str(caught.value).startswith("runs.jsonl line 3: ")
    assert len(str(caught.value)) < 300


LEAVES = st.none() | st.booleans() | st.text() | st.integers(-(10**30) + 1, 10**30 - 1)
FINITE = LEAVES | st.floats(allow_nan=False, allow_infinity=False)


@given(st.recursive(FINITE, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12))
def test_what_is_within_bounds_is_read_as_json_reads_it(value: Any) -> None:
    text = json.dumps(value)
    assert strict_json.loads(text, what="x") == strict_json.loads(text.encode(), what="x") == json.loads(text)


@pytest.mark.parametrize("wrap", ["{}", "[1, {}]", '{{"a": [{}], "b": 1}}', '{{"a": {{"b": {}}}}}'])
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("1e999", "outside the range of a double"),
        ("-1e400", "outside the range of a double"),
        ("9" * 400 + ".0", "outside the range of a double"),
        ("NaN", "NaN is not a JSON number"),
        ("-" + "1" * 31, "an integer of 31 digits"),
        ('{"c": 1, "d": 2, "c": 3}', "the field 'c' occurs twice"),
        ("[" * 17 + "]" * 17, "nested deeper than 16"),
        ('{"a":' * 16 + "[]" + "}" * 16, "nested deeper than 16"),
    ],
)
def test_what_is_out_of_bounds_is_refused_wherever_it_stands(wrap: str, value: str, reason: str) -> None:
    with pytest.raises(RecordError, match=f"^x: .*{reason}"):
        strict_json.loads(wrap.format(value), what="x")
