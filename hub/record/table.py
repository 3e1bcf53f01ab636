"""A sweep's run records as a table: `runs.jsonl` (one record per line) and `runs.parquet` (one row per record).

The JSON lines are the truth: a record is there exactly as in its `run.json`. The parquet file is for viewers, pandas
and DuckDB: nested fields become columns with a prefix (`schedule_horizon_tokens`, `dataset_id`), fields without fixed
names (`versions`, `weights_sha256`, the batch ramp, and everything the schema does not know) are JSON text. Both are
read back to the same records. Without pyarrow (the extra `parquet`) only the JSON lines are written.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel

from hub.plain import atomic, strict_json
from hub.plain.errors import FilesError, RecordError, redacted
from hub.record.run_record import RunRecord, type_of

if TYPE_CHECKING:
    import pyarrow

JSONL_NAME = "runs.jsonl"
PARQUET_NAME = "runs.parquet"
MAX_FILE_BYTES = 512 * 1024 * 1024
MAX_ROWS = 1_000_000
_UNKNOWN_FIELDS = "unknown_fields"  # the column for what the schema does not know
_MAX_SHOWN = 20

OnInvalid = Literal["raise", "skip"]


def read_records(
    path: str | Path, *, on_invalid: OnInvalid = "raise", problems: list[str] | None = None
) -> list[RunRecord]:
    """Read run records from a `.jsonl`, `.parquet` or `.json` file, or from a folder that has one of them.

    In a folder, `runs.jsonl` is preferred, then `runs.parquet`, then `run.json`.

    Args:
        path: the file or folder.
        on_invalid: "raise" reports all broken rows in one error; "skip" leaves them out.
        problems: with "skip", one message per row left out is appended here.

    Raises:
        RecordError: broken rows (the first 20 with reasons), or the file is larger than `MAX_FILE_BYTES`.
        FilesError: there is no such file, or its name has none of the endings.
    """
    file = _records_file(Path(path))
    size = file.stat().st_size
    if size > MAX_FILE_BYTES:
        raise RecordError(f"{file.name}: {size:,} bytes, allowed are at most {MAX_FILE_BYTES:,}")
    if file.suffix == ".json":
        return [RunRecord.load(file)]
    return parse_records(file.read_bytes(), name=file.name, on_invalid=on_invalid, problems=problems)


def parse_records(
    content: bytes, *, name: str, on_invalid: OnInvalid = "raise", problems: list[str] | None = None
) -> list[RunRecord]:
    """Parse the bytes of a `.jsonl` or `.parquet` file called `name`; see `read_records`."""
    if on_invalid not in ("raise", "skip"):
        raise ValueError(f'on_invalid is {on_invalid!r}, allowed are "raise" and "skip"')
    rows: Iterator[tuple[str, Any]] = (_jsonl_rows if name.endswith(".jsonl") else _parquet_rows)(content, name)
    records: list[RunRecord] = []
    broken: list[str] = []
    for count, (what, row) in enumerate(rows):
        if count >= MAX_ROWS:
            raise RecordError(f"{name}: more than {MAX_ROWS:,} rows")
        try:
            fields = strict_json.loads(row, what=what) if isinstance(row, bytes) else _unflattened(row, what)
            records.append(RunRecord.from_dict(fields, what=what))
        except RecordError as error:
            broken.append(str(error))
    if broken and on_invalid == "raise":
        more = f"\n… and {len(broken) - _MAX_SHOWN} more" if len(broken) > _MAX_SHOWN else ""
        head = f"{name}: {len(broken)} of {len(broken) + len(records)} rows are not valid run records"
        raise RecordError("\n".join([head, *broken[:_MAX_SHOWN]]) + more)
    if problems is not None:
        problems.extend(broken)
    return records


@dataclass(frozen=True)
class UnreadableRow:
    """A line of `runs.jsonl` that this version cannot read: as it is, why, and which run it names, if any."""

    line: bytes
    reason: str
    run_id: str | None
    branch: str | None
    newer: bool  # it says that a later version of the schema wrote it


def split_rows(content: bytes, name: str = JSONL_NAME) -> tuple[list[RunRecord], list[UnreadableRow]]:
    """The records of JSON lines, and the lines that are none, each list in the file's order."""
    records, unreadable = [], []
    for what, line in _jsonl_rows(content, name):
        fields: Any = None
        try:
            fields = strict_json.loads(line, what=what)
            records.append(RunRecord.from_dict(fields, what=what))
        except RecordError as error:
            named = fields if isinstance(fields, dict) else {}
            run_id, branch = (_text(named.get(key)) for key in ("run_id", "branch"))
            version = named.get("schema_version")
            newer = isinstance(version, int) and version > strict_json.SCHEMA_VERSION
            unreadable.append(UnreadableRow(line, str(error), run_id, branch, newer))
    return records, unreadable


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def write_records(records: Iterable[RunRecord], folder: str | Path) -> tuple[Path, Path]:
    """Write `runs.parquet` and `runs.jsonl` into `folder`, each atomically, the JSON lines (the truth) last.

    Returns:
        The paths of the JSON lines and of the parquet file, which is removed where pyarrow is not installed.
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

    None without pyarrow: an index then has no parquet file, rather than an old one.
    """
    if viewer_file() != PARQUET_NAME:
        return None
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.Table.from_pylist([_flattened(record.to_dict()) for record in records], schema=_arrow_schema())
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def _records_file(path: Path) -> Path:
    if path.is_dir():
        for name in (JSONL_NAME, PARQUET_NAME, "run.json"):
            if (path / name).is_file():
                return path / name
        raise FilesError(f"the folder {os.fspath(path)} has neither {JSONL_NAME} nor {PARQUET_NAME} nor run.json")
    if path.suffix not in (".jsonl", ".parquet", ".json"):
        raise FilesError(f"{os.fspath(path)}: allowed are a folder, a .jsonl, a .parquet and a .json file")
    if not path.is_file():
        raise FilesError(f"there is no file {os.fspath(path)}")
    return path


def _jsonl_rows(content: bytes, name: str) -> Iterator[tuple[str, bytes]]:
    for number, line in enumerate(content.split(b"\n"), start=1):
        if line.strip():
            yield f"{name} line {number}", line


def _parquet_rows(content: bytes, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(io.BytesIO(content))
        expanded = sum(file.metadata.row_group(i).total_byte_size for i in range(file.metadata.num_row_groups))
        if expanded > MAX_FILE_BYTES or file.metadata.num_rows > MAX_ROWS:
            raise RecordError(
                f"{name}: {expanded:,} bytes in {file.metadata.num_rows:,} rows when expanded, too large"
            )
        number = 0
        for batch in file.iter_batches(batch_size=1024):
            for row in batch.to_pylist():
                number += 1
                yield f"{name} row {number}", row
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        if isinstance(error, RecordError):
            raise
        raise RecordError(f"{name}: not a readable parquet file ({redacted(str(error))[:200]})") from None


def _parts() -> dict[str, type[BaseModel]]:
    """The record's fields that are objects with fixed names."""
    fields = RunRecord.model_fields.items()
    return {
        name: field.annotation
        for name, field in fields
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
    }


def _columns() -> dict[tuple[str, ...], str]:
    """Path in the record -> name of the column, in the schema's order."""
    parts = _parts()
    result: dict[tuple[str, ...], str] = {}
    for name in RunRecord.model_fields:
        if name in parts:
            result.update({(name, inner): f"{name}_{inner}" for inner in parts[name].model_fields})
        else:
            result[(name,)] = name
    return result


def _arrow_schema() -> pyarrow.Schema:
    import pyarrow

    parts, types = _parts(), {bool: pyarrow.bool_(), int: pyarrow.int64(), float: pyarrow.float64()}
    fields = []
    for path, column in _columns().items():
        model = parts[path[0]] if len(path) == 2 else RunRecord
        kind = type_of(model.model_fields[path[-1]].annotation)
        fields.append(pyarrow.field(column, types.get(kind, pyarrow.string())))  # lists and objects are JSON text
    return pyarrow.schema([*fields, pyarrow.field(_UNKNOWN_FIELDS, pyarrow.string())])


def _flattened(fields: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    unknown = {name: value for name, value in fields.items() if name not in RunRecord.model_fields}
    for name, model in _parts().items():
        inner = {key: value for key, value in fields[name].items() if key not in model.model_fields}
        if inner:
            unknown[name] = inner
    for path, column in _columns().items():
        value = fields[path[0]] if len(path) == 1 else fields[path[0]][path[1]]
        row[column] = strict_json.dumps(value) if isinstance(value, (dict, list)) else value
    row[_UNKNOWN_FIELDS] = strict_json.dumps(unknown) if unknown else None
    return row


def _unflattened(row: dict[str, Any], what: str) -> dict[str, Any]:
    row = dict(row)
    unknown = _parsed(row.pop(_UNKNOWN_FIELDS, None), what, _UNKNOWN_FIELDS) or {}
    fields: dict[str, Any] = {}
    for path, column in _columns().items():
        if column not in row:
            continue
        value = row.pop(column)
        if path[-1] in ("versions", "weights_sha256", "batch_ramp"):
            value = _parsed(value, what, column)
        if len(path) == 1:
            fields[path[0]] = value
        else:
            fields.setdefault(path[0], {})[path[1]] = value
    if not isinstance(unknown, dict):
        raise RecordError(f"{what}: {_UNKNOWN_FIELDS}: allowed is an object as JSON text")
    for name, value in unknown.items():
        if name in fields and isinstance(fields[name], dict) and isinstance(value, dict):
            fields[name] = {**value, **fields[name]}
        else:
            fields.setdefault(name, value)
    return {**row, **fields}


def _parsed(value: Any, what: str, column: str) -> Any:
    return strict_json.loads(value, what=f"{what}, {column}") if isinstance(value, str) else value
