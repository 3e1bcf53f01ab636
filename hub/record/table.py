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
from typing import Any, NamedTuple

from pydantic import BaseModel

from hub.base import strict_json
from hub.base.errors import FilesError, NewerError, RecordError, redact
from hub.base.types import Fields
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
# The column for fields that the schema does not know.
_UNKNOWN_FIELDS = "unknown_fields"
# Reasons that an error repeats.
_MAX_REASONS = 20


@dataclass(frozen=True)
class UnreadableRow:
    """A row that this version cannot read: its line (of JSON lines), the reason, and the run that it names, if any."""

    line: bytes
    reason: str
    run_id: str | None
    branch: str | None
    # Whether its version says that a later schema wrote it.
    newer: bool


@dataclass(frozen=True)
class LoadedRows:
    """The rows of a table of runs, and their source."""

    # Run records, and mappings for rows of somebody else's table.
    rows: list[Any]
    # Name of the source, for messages and provenance.
    name: str
    # An index on the Hub, which has the same rows at `commit`.
    dataset: str | None = None
    commit: str | None = None


def require_readable(
    records: list[Any], unreadable: list[UnreadableRow], name: str, problems: list[str] | None = None
) -> list[Any]:
    """Return the records; raise RecordError with the reasons of the unreadable rows, or add those to `problems`."""
    reasons = [row.reason for row in unreadable]
    if problems is not None:
        problems.extend(reasons)
    elif reasons:
        row_count = len(reasons) + len(records)
        lines = [f"{name}: {len(reasons)} of {row_count} rows are not valid run records", *reasons[:_MAX_REASONS]]
        if len(reasons) > _MAX_REASONS:
            lines.append(f"… and {len(reasons) - _MAX_REASONS} more")
        raise RecordError("\n".join(lines))
    return records


def split_rows(
    content: bytes, name: str = JSONL_NAME, *, foreign: bool = False
) -> tuple[list[Any], list[UnreadableRow]]:
    """Read the records of a table's bytes, and its unreadable rows, each list in the table's order.

    The ending of `name` says which format: `.parquet`, or JSON lines; with `foreign` also text tables (`.csv`, `.tsv`,
    `.txt`) and JSON of any shape (`hub.record.foreign`), and rows without a `schema_version` are somebody else's and
    stay mappings. Raises RecordError if the whole file cannot be read, and FilesError for parquet without pyarrow.
    """
    records: list[Any] = []
    unreadable: list[UnreadableRow] = []
    suffix = Path(name).suffix.lower()
    # A reader yields rows, each as a mapping or as the bytes of its JSON.
    read_rows: Callable[[bytes, str], Iterator[tuple[str, Any]]] = json_rows if foreign else _json_lines
    if suffix == ".parquet":
        read_rows = _parquet_rows
    elif suffix in TEXT_SUFFIXES:
        read_rows = csv_rows
    for count, (label, row) in enumerate(read_rows(content, name)):
        if count >= MAX_ROWS:
            raise RecordError(f"{name}: more than {MAX_ROWS:,} rows")
        fields: Any = row
        try:
            if isinstance(row, bytes):
                fields = strict_json.loads(row, what=label, finite=not foreign)
            if foreign and isinstance(fields, dict) and "schema_version" not in fields:
                records.append(fields)
                continue
            nested = _unflatten(row, label) if isinstance(row, dict) else fields
            records.append(RunRecord.from_dict(nested, what=label))
        except RecordError as error:
            line = row if isinstance(row, bytes) else b""
            row_fields = fields if isinstance(fields, dict) else {}
            texts = {name: value for name, value in row_fields.items() if isinstance(value, str)}
            is_newer = isinstance(error, NewerError)
            unreadable.append(UnreadableRow(line, str(error), texts.get("run_id"), texts.get("branch"), is_newer))
    return records, unreadable


def viewer_file() -> str:
    """Name the file of an index written here that viewers should read: parquet where pyarrow is installed."""
    return PARQUET_NAME if find_spec("pyarrow") else JSONL_NAME


def to_jsonl(records: Iterable[RunRecord]) -> bytes:
    """Write the records as JSON lines, UTF-8."""
    return "".join(record.to_json() + "\n" for record in records).encode()


def to_parquet(records: Iterable[RunRecord]) -> bytes | None:
    """Write the records as a parquet file with the schema's columns, also for columns that are null throughout.

    Returns None without pyarrow, with a warning: an index then has no parquet file, rather than an old one.
    """
    if viewer_file() != PARQUET_NAME:
        logger.warning("%s is not written: %s", PARQUET_NAME, NO_PYARROW)
        return None
    import pyarrow
    import pyarrow.parquet

    # Lists and objects are JSON text.
    types = {bool: pyarrow.bool_(), int: pyarrow.int64(), float: pyarrow.float64()}
    columns = [(name, types.get(column.value_type, pyarrow.string())) for name, column in _columns().items()]
    schema = pyarrow.schema([*columns, (_UNKNOWN_FIELDS, pyarrow.string())])
    rows = [_flatten(record.to_dict()) for record in records]
    table = pyarrow.Table.from_pylist(rows, schema=schema)
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def _json_lines(content: bytes, name: str) -> Iterator[tuple[str, bytes]]:
    for number, line in enumerate(content.split(b"\n"), start=1):
        if line.strip():
            yield f"{name} line {number}", line


def _parquet_rows(content: bytes, name: str) -> Iterator[tuple[str, Fields]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise FilesError(f"{name}: {NO_PYARROW}") from None
    try:
        file = pyarrow.parquet.ParquetFile(io.BytesIO(content))
        metadata = file.metadata
        row_count = metadata.num_rows
        expanded_bytes = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
        if expanded_bytes > MAX_FILE_BYTES or row_count > MAX_ROWS:
            raise RecordError(f"{name}: {expanded_bytes:,} bytes in {row_count:,} rows when expanded, too large")
        batches = (batch.to_pylist() for batch in file.iter_batches(batch_size=1024))
        for number, row in enumerate(itertools.chain.from_iterable(batches), start=1):
            yield f"{name} row {number}", row
    except (pyarrow.ArrowException, OSError) as error:
        raise RecordError(f"{name}: not a readable parquet file ({redact(str(error))[:200]})") from None


class _Column(NamedTuple):
    """The place of a column's values: a field `key` of the record, or of its object `parent`; and their type."""

    parent: str | None
    key: str
    value_type: type


@cache
def _columns() -> dict[str, _Column]:
    """Return the columns by name, in the schema's order."""
    columns: dict[str, _Column] = {}
    for name, field in RunRecord.model_fields.items():
        value_type = type_of(field.annotation)
        if not issubclass(value_type, BaseModel):
            columns[name] = _Column(None, name, value_type)
            continue
        for key, inner_field in value_type.model_fields.items():
            columns[f"{name}_{key}"] = _Column(name, key, type_of(inner_field.annotation))
    return columns


def _flatten(fields: Fields) -> Fields:
    """Lay the fields of a record into a row; they are emptied meanwhile."""
    row: Fields = {}
    for name, column in _columns().items():
        source = fields[column.parent] if column.parent else fields
        value = source.pop(column.key, None)
        row[name] = strict_json.dumps(value) if isinstance(value, (dict, list)) else value
    unknown = {name: value for name, value in fields.items() if value or name not in RunRecord.model_fields}
    row[_UNKNOWN_FIELDS] = strict_json.dumps(unknown) if unknown else None
    return row


def _unflatten(row: Fields, label: str) -> Fields:
    """Restore the fields of a record from a row; columns of somebody else's stay beside them."""
    row = dict(row)
    unknown = _parse_json(row.pop(_UNKNOWN_FIELDS, None), label, _UNKNOWN_FIELDS) or {}
    if not isinstance(unknown, dict):
        raise RecordError(f"{label}: {_UNKNOWN_FIELDS}: allowed is an object as JSON text")
    fields: Fields = {}
    for name, column in _columns().items():
        if name not in row:
            continue
        value = row.pop(name)
        if column.value_type in (dict, tuple):
            value = _parse_json(value, label, name)
        target = fields.setdefault(column.parent, {}) if column.parent else fields
        target[column.key] = value
    for name, value in unknown.items():
        if isinstance(fields.get(name), dict) and isinstance(value, dict):
            fields[name] = {**value, **fields[name]}
        else:
            fields.setdefault(name, value)
    return {**row, **fields}


def _parse_json(value: Any, label: str, column: str) -> Any:
    return strict_json.loads(value, what=f"{label}, {column}") if isinstance(value, str) else value
