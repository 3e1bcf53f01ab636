"""A sweep's run records as a table: `runs.jsonl` (one record per line) and `runs.parquet` (one row per record).

The JSON lines are the truth. The parquet file, written where pyarrow is installed, is for viewers, pandas and DuckDB:
nested fields become columns with a prefix (`schedule_horizon_tokens`), and fields without fixed names (`versions`, the
batch ramp, everything the schema does not know) are JSON text. Both are read back to the same records.
"""

from __future__ import annotations

import io
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from hub.base import atomic, strict_json
from hub.base.errors import FilesError, RecordError, redacted
from hub.record.foreign import csv_rows, json_rows
from hub.record.run_record import RunRecord, type_of

logger = logging.getLogger(__name__)

JSONL_NAME = "runs.jsonl"
PARQUET_NAME = "runs.parquet"
RECORD_NAME = "run.json"
TEXT_SUFFIXES = (".csv", ".tsv", ".txt")
MAX_FILE_BYTES = 512 * 1024 * 1024
MAX_ROWS = 1_000_000
NO_PYARROW = 'pyarrow is not installed: pip install "joint-moe-scaling-laws[parquet]"'
_UNKNOWN_FIELDS = "unknown_fields"  # the column for what the schema does not know
_MAX_SHOWN = 20


@dataclass(frozen=True)
class UnreadableRow:
    """A row that this version cannot read: its line as it is (of JSON lines), why, and which run it names, if any."""

    line: bytes
    reason: str
    run_id: str | None
    branch: str | None
    newer: bool  # it says that a later version of the schema wrote it


@dataclass(frozen=True)
class LoadedRows:
    """The rows of a table of runs, and where they are from."""

    rows: list[Any]  # run records, and mappings for rows of somebody else's table
    # Name of the source, for messages and provenance.
    name: str
    dataset: str | None = None  # an index on the Hub, which has the same rows at `commit`
    commit: str | None = None


def checked(
    records: list[Any], unreadable: list[UnreadableRow], name: str, problems: list[str] | None = None
) -> list[Any]:
    """The records, once the unreadable rows are raised as one error or added to `problems`."""
    reasons = [row.reason for row in unreadable]
    if problems is not None:
        problems.extend(reasons)
    elif reasons:
        more = f"\n… and {len(reasons) - _MAX_SHOWN} more" if len(reasons) > _MAX_SHOWN else ""
        head = f"{name}: {len(reasons)} of {len(reasons) + len(records)} rows are not valid run records"
        raise RecordError("\n".join([head, *reasons[:_MAX_SHOWN]]) + more)
    return records


def split_rows(
    content: bytes, name: str = JSONL_NAME, *, foreign: bool = False
) -> tuple[list[Any], list[UnreadableRow]]:
    """The records of a table's bytes, and its unreadable rows, each list in the table's order.

    The ending of `name` says which format: `.parquet`, or JSON lines; with `foreign` also text tables (`.csv`, `.tsv`,
    `.txt`) and JSON of any shape (`hub.record.foreign`), and rows without a `schema_version` are somebody else's and
    stay mappings. Raises RecordError if the whole file cannot be read, and FilesError for parquet without pyarrow.
    """
    records: list[Any] = []
    unreadable: list[UnreadableRow] = []
    for count, (what, row) in enumerate(_reader(Path(name).suffix.lower(), foreign)(content, name)):
        if count >= MAX_ROWS:
            raise RecordError(f"{name}: more than {MAX_ROWS:,} rows")
        fields: Any = row
        try:
            if isinstance(row, bytes):
                fields = strict_json.loads(row, what=what, finite=not foreign)
            if foreign and isinstance(fields, dict) and "schema_version" not in fields:
                records.append(fields)
                continue
            nested = _unflattened(row, what) if isinstance(row, dict) else fields
            records.append(RunRecord.from_dict(nested, what=what))
        except RecordError as error:
            named = fields if isinstance(fields, dict) else {}
            texts = {key: value for key, value in named.items() if isinstance(value, str)}
            version = named.get("schema_version")
            newer = isinstance(version, int) and version > strict_json.SCHEMA_VERSION
            line = row if isinstance(row, bytes) else b""
            unreadable.append(UnreadableRow(line, str(error), texts.get("run_id"), texts.get("branch"), newer))
    return records, unreadable


def _reader(suffix: str, foreign: bool) -> Callable[[bytes, str], Iterator[tuple[str, Any]]]:
    """Choose what reads files of this ending: a row each, as a mapping or as the bytes of its JSON."""
    if suffix == ".parquet":
        return _parquet_rows
    if suffix in TEXT_SUFFIXES:
        return csv_rows
    return json_rows if foreign else _json_lines


def write_records(records: Iterable[RunRecord], folder: str | Path) -> tuple[Path, Path]:
    """Write `runs.parquet` and `runs.jsonl` into `folder`, atomically, the JSON lines last; returns both paths.

    Without pyarrow the parquet file is removed.
    """
    listed = list(records)
    jsonl, parquet = Path(folder) / JSONL_NAME, Path(folder) / PARQUET_NAME
    table = to_parquet(listed)
    if table is None:
        parquet.unlink(missing_ok=True)
    else:
        atomic.write_bytes(parquet, table)
    atomic.write_bytes(jsonl, to_jsonl(listed))
    return jsonl, parquet


def viewer_file() -> str:
    """The file of an index written here that viewers should read: parquet where pyarrow is installed."""
    return PARQUET_NAME if find_spec("pyarrow") else JSONL_NAME


def to_jsonl(records: Iterable[RunRecord]) -> bytes:
    """The records as JSON lines, UTF-8."""
    return "".join(record.to_json() + "\n" for record in records).encode()


def to_parquet(records: Iterable[RunRecord]) -> bytes | None:
    """The records as a parquet file with the schema's columns, also for columns that are null throughout.

    None without pyarrow, with a warning: an index then has no parquet file, rather than an old one.
    """
    if viewer_file() != PARQUET_NAME:
        logger.warning("%s is not written: %s", PARQUET_NAME, NO_PYARROW)
        return None
    import pyarrow
    import pyarrow.parquet

    types = {bool: pyarrow.bool_(), int: pyarrow.int64(), float: pyarrow.float64()}  # lists and objects are JSON text
    columns = {column: types.get(kind, pyarrow.string()) for column, (_, kind) in _columns().items()}
    schema = pyarrow.schema([*columns.items(), (_UNKNOWN_FIELDS, pyarrow.string())])
    table = pyarrow.Table.from_pylist([_flattened(record.to_dict()) for record in records], schema=schema)
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def _json_lines(content: bytes, name: str) -> Iterator[tuple[str, bytes]]:
    for number, line in enumerate(content.split(b"\n"), start=1):
        if line.strip():
            yield f"{name} line {number}", line


def _parquet_rows(content: bytes, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise FilesError(f"{name}: {NO_PYARROW}") from None
    try:
        file = pyarrow.parquet.ParquetFile(io.BytesIO(content))
        meta = file.metadata
        expanded = sum(meta.row_group(i).total_byte_size for i in range(meta.num_row_groups))
        if expanded > MAX_FILE_BYTES or meta.num_rows > MAX_ROWS:
            raise RecordError(f"{name}: {expanded:,} bytes in {meta.num_rows:,} rows when expanded, too large")
        batches = (batch.to_pylist() for batch in file.iter_batches(batch_size=1024))
        for number, row in enumerate(itertools.chain.from_iterable(batches), start=1):
            yield f"{name} row {number}", row
    except (pyarrow.ArrowException, OSError) as error:
        raise RecordError(f"{name}: not a readable parquet file ({redacted(str(error))[:200]})") from None


@cache
def _columns() -> dict[str, tuple[tuple[str, ...], type]]:
    """Name of a column -> its path in the record and the type of its values, in the schema's order."""
    columns: dict[str, tuple[tuple[str, ...], type]] = {}
    for name, field in RunRecord.model_fields.items():
        kind = type_of(field.annotation)
        if issubclass(kind, BaseModel):
            inner = {key: type_of(part.annotation) for key, part in kind.model_fields.items()}
            columns |= {f"{name}_{key}": ((name, key), of) for key, of in inner.items()}
        else:
            columns[name] = ((name,), kind)
    return columns


def _flattened(fields: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for column, ((name, *inner), _) in _columns().items():
        value = fields[name].pop(inner[0], None) if inner else fields.pop(name, None)
        row[column] = strict_json.dumps(value) if isinstance(value, (dict, list)) else value
    unknown = {name: value for name, value in fields.items() if value or name not in RunRecord.model_fields}
    row[_UNKNOWN_FIELDS] = strict_json.dumps(unknown) if unknown else None
    return row


def _unflattened(row: dict[str, Any], what: str) -> dict[str, Any]:
    row = dict(row)
    unknown = _parsed(row.pop(_UNKNOWN_FIELDS, None), what, _UNKNOWN_FIELDS) or {}
    if not isinstance(unknown, dict):
        raise RecordError(f"{what}: {_UNKNOWN_FIELDS}: allowed is an object as JSON text")
    fields: dict[str, Any] = {}
    for column, ((name, *inner), kind) in _columns().items():
        if column in row:
            value = row.pop(column)
            part = fields.setdefault(name, {}) if inner else fields
            part[inner[0] if inner else name] = _parsed(value, what, column) if kind in (dict, tuple) else value
    for name, value in unknown.items():
        if isinstance(fields.get(name), dict) and isinstance(value, dict):
            fields[name] = {**value, **fields[name]}
        else:
            fields.setdefault(name, value)
    return {**row, **fields}


def _parsed(value: Any, what: str, column: str) -> Any:
    return strict_json.loads(value, what=f"{what}, {column}") if isinstance(value, str) else value
