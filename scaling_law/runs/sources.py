"""Where tables of runs are read from: DataFrames, records, JSON lines, Parquet, release folders, the Hub."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from hub.plain.strict_json import SCHEMA_VERSION
from scaling_law.runs.table import RunsError

OnInvalid = Literal["raise", "skip"]

INDEX_NAMES = ("runs.jsonl", "runs.parquet")


class Table(NamedTuple):
    """Rows as mappings, the source's name for messages and provenance, and what was left out (`on_invalid="skip"`).

    `dataset` and `commit` are those of an index on the Hub.
    """

    rows: Sequence[Mapping[str, Any]]
    name: str
    problems: tuple[str, ...] = ()
    dataset: str | None = None
    commit: str | None = None


def read_table(source: Any, revision: str | None = None, on_invalid: OnInvalid = "raise") -> Table:
    """The rows of any supported source.

    Raises:
        RunsError: there is no such source, or rows that cannot be read, unless they are skipped.
        HubError: the Hub does not have it, or cannot be reached.
    """
    if isinstance(source, (str, Path)):
        return _from_location(str(source), revision, on_invalid)
    if revision is not None:
        raise RunsError(f"revision={revision!r} is allowed with a dataset on the Hub only")
    if hasattr(source, "to_dict") and hasattr(source, "columns"):
        return Table([_without_nan(row) for row in source.to_dict("records")], "DataFrame")
    if isinstance(source, Iterable):
        return Table([_mapping(i, row) for i, row in enumerate(source)], "rows")
    raise TypeError(f"runs cannot be read from a {type(source).__name__}")


def read_rows(source: Any) -> tuple[Sequence[Mapping[str, Any]], str]:
    """The rows of any supported source as mappings, and its name."""
    table = read_table(source)
    return table.rows, table.name


def _from_location(location: str, revision: str | None, on_invalid: OnInvalid) -> Table:
    from hub.release.sources import repository

    path = Path(location.removeprefix("file:"))
    if not location.startswith("hf://") and path.exists():
        if revision is not None:
            raise RunsError(f"{location}: revision={revision!r} is allowed with a dataset on the Hub only")
        return _from_path(path, location, on_invalid)
    reference = None if location.startswith("file:") else repository(location)
    if reference is None:
        raise RunsError(f"{location}: no such file or folder, and not a dataset on the Hub of the form org/sweep-runs")
    name = f"{reference.name.removesuffix('-runs')}-runs{f'@{reference.revision}' if reference.revision else ''}"
    return _from_hub(f"hf://{reference.organisation}/{name}", revision, on_invalid)


def _from_hub(location: str, revision: str | None, on_invalid: OnInvalid) -> Table:
    from hub.release.sources import load_pinned

    problems: list[str] = []
    loaded = load_pinned(location, revision=revision, on_invalid=on_invalid, problems=problems)
    name = location.removeprefix("hf://") if revision is None or "@" in location else f"{location[5:]}@{revision}"
    if loaded.commit is not None and not name.endswith(loaded.commit):
        name += f" ({loaded.commit[:12]})" if "@" in name else f"@{loaded.commit[:12]}"
    rows = [record.model_dump() for record in loaded.records]
    return Table(rows, name, tuple(problems), loaded.dataset, loaded.commit)


def _from_path(path: Path, location: str, on_invalid: OnInvalid) -> Table:
    problems: list[str] = []
    if path.is_file():
        return Table(_from_file(path, on_invalid, problems), path.name, tuple(problems))
    index = _index_in(path)
    if index is not None:
        return Table(_from_file(index, on_invalid, problems), path.name or location, tuple(problems))
    from hub.plain.errors import FilesError
    from hub.release.sources import load_records

    try:
        records = load_records(path, on_invalid=on_invalid, problems=problems)
    except FilesError as error:
        raise RunsError(str(error)) from None
    return Table([record.model_dump() for record in records], path.name or location, tuple(problems))


def _index_in(folder: Path) -> Path | None:
    """The index file of a folder, or of the one sweep of a release folder; None if it has none."""
    for place in (folder, folder / "main"):
        for name in INDEX_NAMES:
            if (place / name).is_file():
                return place / name
    sweeps = sorted(p for p in folder.glob("datasets/*-runs/main") if any((p / n).is_file() for n in INDEX_NAMES))
    if len(sweeps) > 1:
        names = ", ".join(str(p.relative_to(folder)) for p in sweeps)
        raise RunsError(f"{folder}: several sweeps ({names}); name one of these folders")
    return _index_in(sweeps[0]) if sweeps else None


def _from_file(path: Path, on_invalid: OnInvalid, problems: list[str]) -> list[Mapping[str, Any]]:
    if path.suffix in (".jsonl", ".ndjson"):
        return _json_lines(path, on_invalid, problems)
    if path.suffix == ".parquet":
        import pyarrow.parquet

        return list(pyarrow.parquet.read_table(path).to_pylist())
    if path.suffix == ".csv":
        return _csv_rows(path)
    raise RunsError(f"{path.name}: not a table of runs; .jsonl, .parquet or .csv is read")


def _json_lines(path: Path, on_invalid: OnInvalid, problems: list[str]) -> list[Mapping[str, Any]]:
    rows: list[Mapping[str, Any]] = []
    for i, line in enumerate(path.read_bytes().split(b"\n")):
        if not line.strip():
            continue
        try:
            rows.append(_json_line(path, i, line))
        except RunsError as error:
            if on_invalid == "raise":
                raise
            problems.append(str(error))
    return rows


def _csv_rows(path: Path) -> list[Mapping[str, Any]]:
    """Numbers where a cell reads as one, None where it is empty, text otherwise."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        rows: list[Mapping[str, Any]] = []
        for row in reader:
            if None in row:
                raise RunsError(f"{path.name}: line {reader.line_num} has more columns than the first line")
            rows.append({name: _cell(text) for name, text in row.items()})
    return rows


def _cell(text: str | None) -> str | float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return text


def _json_line(path: Path, i: int, line: bytes) -> Mapping[str, Any]:
    try:
        row = json.loads(line)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise RunsError(f"{path.name}: line {i + 1} is not valid JSON ({error})") from None
    if not isinstance(row, dict):
        raise RunsError(f"{path.name}: line {i + 1} is not an object")
    version = row.get("schema_version", SCHEMA_VERSION)
    if isinstance(version, (int, float)) and version > SCHEMA_VERSION:
        raise RunsError(
            f"{path.name}: line {i + 1} (run {row.get('run_id')}): schema_version is {version}, "
            f"this version reads up to {SCHEMA_VERSION}: update the package"
        )
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
