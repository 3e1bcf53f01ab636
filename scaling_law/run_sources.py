"""Where tables of runs are read from: DataFrames, records, JSON lines, Parquet, release folders, the Hub."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from scaling_law.runs import RunsError

INDEX_NAMES = ("runs.jsonl", "runs.parquet")


def read_rows(source: Any) -> tuple[list[Mapping[str, Any]], str]:
    """The rows of any supported source as mappings, and a name of the source for messages and provenance."""
    if isinstance(source, (str, Path)):
        return _from_location(str(source))
    if hasattr(source, "to_dict") and hasattr(source, "columns"):
        return [_without_nan(row) for row in source.to_dict("records")], "DataFrame"
    if isinstance(source, Iterable):
        return [_mapping(i, row) for i, row in enumerate(source)], "rows"
    raise TypeError(f"runs cannot be read from a {type(source).__name__}")


def _from_location(location: str) -> tuple[list[Mapping[str, Any]], str]:
    path = Path(location.removeprefix("file:"))
    if path.is_dir():
        index = _index_in(path)
        return _from_file(index), path.name or location
    if path.is_file():
        return _from_file(path), path.name
    organisation, _, name = location.removeprefix("hf://").partition("/")
    if not organisation or not name or "/" in name or location.startswith(("file:", ".", "/", "~")):
        raise RunsError(f"{location}: no such file or folder, and not a Hub data set of the form org/sweep-runs")
    from hub import load_records

    records = load_records(f"hf://{organisation}/{name.removesuffix('-runs')}-runs")
    return [record.model_dump() for record in records], location


def _index_in(folder: Path) -> Path:
    """The index file of a folder, or of the one sweep of a release folder."""
    for name in INDEX_NAMES:
        if (folder / name).is_file():
            return folder / name
    sweeps = sorted(p for p in folder.glob("datasets/*-runs/main") if any((p / n).is_file() for n in INDEX_NAMES))
    if len(sweeps) > 1:
        names = ", ".join(str(p.relative_to(folder)) for p in sweeps)
        raise RunsError(f"{folder}: several sweeps ({names}); name one of these folders")
    if not sweeps:
        raise RunsError(
            f"{folder}: no {' or '.join(INDEX_NAMES)} in this folder, nor datasets/<sweep>-runs/main below it"
        )
    return _index_in(sweeps[0])


def _from_file(path: Path) -> list[Mapping[str, Any]]:
    if path.suffix in (".jsonl", ".ndjson"):
        return [
            _json_line(path, i, line) for i, line in enumerate(path.read_text("utf-8").splitlines()) if line.strip()
        ]
    if path.suffix == ".parquet":
        import pyarrow.parquet

        return list(pyarrow.parquet.read_table(path).to_pylist())
    if path.suffix == ".csv":
        import pandas

        return [_without_nan(row) for row in pandas.read_csv(path).to_dict("records")]
    raise RunsError(f"{path.name}: not a table of runs; .jsonl, .parquet or .csv is read")


def _json_line(path: Path, i: int, line: str) -> Mapping[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise RunsError(f"{path.name}: line {i + 1} is not valid JSON ({error})") from None
    if not isinstance(row, dict):
        raise RunsError(f"{path.name}: line {i + 1} is not an object")
    return row


def _mapping(i: int, row: Any) -> Mapping[str, Any]:
    if isinstance(row, Mapping):
        return row
    if hasattr(row, "model_dump"):
        dumped: Mapping[str, Any] = row.model_dump()
        return dumped
    raise RunsError(f"row {i}: a {type(row).__name__} is neither a mapping nor a run record")


def _without_nan(row: Mapping[Any, Any]) -> dict[str, Any]:
    """A DataFrame's row, where a missing text is a NaN that must read as missing; numbers keep their NaN."""
    texts = {"run_id", "parent_run_id", "status", "trunk"}
    return {str(k): (None if k in texts and isinstance(v, float) and v != v else v) for k, v in row.items()}
