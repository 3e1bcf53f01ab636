"""Tables of runs that others wrote, as text: CSV in any of its dialects, and JSON in any of its shapes.

Rows come out as mappings with the names of the file; `hub.record.table` checks those that are run records.
"""

from __future__ import annotations

import ast
import codecs
import csv
import io
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hub.base import strict_json
from hub.base.errors import InputError, RecordError, redact
from hub.base.numerals import read_cells
from hub.base.types import Fields
from hub.record.run_record import RunRecord

DELIMITERS = ",;\t|"
# Columns stand between spaces if so many first lines have equally many, and no delimiter.
SAMPLE_LINES = 50
# Lines above the header: comments, empty ones, and that in which Excel names the delimiter.
_PREFACE = re.compile(r'# |\s*$|"?sep=.')
_BOMS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
# The first bytes of files that are not text → what the file is, and what to do about it.
_BINARY = {
    b"PK\x03\x04": "a zip archive or a workbook of Excel: save the table as CSV",
    b"\xd0\xcf\x11\xe0": "a workbook of Excel: save the table as CSV",
    b"\x1f\x8b": "compressed by gzip: let its name end in .gz",
    b"PAR1": "a parquet file: let its name end in .parquet",
    b"SQLite format 3": "an SQLite database: name a project of trackio as trackio:PROJECT, or save the table as CSV",
    b"version https://git-lfs": "a pointer of Git LFS, not the file: git lfs pull fetches it",
    b"<!DOCTYPE": "a web page: download the raw file",
    b"<html": "a web page: download the raw file",
}


def decode_text(content: bytes, name: str) -> str:
    """Decode a file: UTF-8, or UTF-16 as Excel and PowerShell write it. RecordError says what else it is."""
    for signature, advice in _BINARY.items():
        if content.startswith(signature):
            raise RecordError(f"{name}: {advice}")

    encoding = next((encoding for mark, encoding in _BOMS.items() if content.startswith(mark)), "utf-8")
    # UTF-16 without a mark: one of the two bytes of an ASCII character is zero.
    if b"\0" in content[:2]:
        encoding = "utf-16-le" if content[1:2] == b"\0" else "utf-16-be"

    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        raise RecordError(
            f"{name}: neither UTF-8 nor UTF-16 text ({error.reason} at byte {error.start}); save it as UTF-8"
        ) from None


# ------------------------------------------------------------------ CSV


def csv_rows(content: bytes, name: str) -> Iterator[tuple[str, Fields]]:
    """Read the rows of a table with any of the `DELIMITERS`: numbers, None where a cell is empty, texts, and objects.

    Lines `# …` at the top are comments, and Excel's `sep=;` names the delimiter. RecordError for rows that are longer
    than the first line, and for names that occur twice.
    """
    table = _read_csv(content, name)
    header = [text.strip() for text in table[0]] if table else []
    _check_shape(table, header, name)
    columns = []

    # Rows may be shorter than the header.
    for text, *cells in itertools.zip_longest(*table, fillvalue=""):
        if text.strip():
            columns.append(cells)

    try:
        values = read_cells(columns)
    except InputError as error:
        raise RecordError(f"{name}: {error}") from None

    names = [*filter(None, header)]
    rows = zip(*map(_parse_objects, values), strict=True)

    for number, row in enumerate(rows, start=1):
        yield f"{name} row {number}", dict(zip(names, row, strict=True))


def _read_csv(content: bytes, name: str) -> list[list[str]]:
    """Read the rows of texts, the header first; rows without text are left out."""
    lines = io.StringIO(decode_text(content, name), newline="").readlines()
    preface = list(itertools.takewhile(_PREFACE.match, lines))
    lines = lines[len(preface) :]
    unquoted_header = re.sub('"[^"]*"', "", "".join(lines[:1]))
    # A table of one column has no delimiter.
    delimiter = max(DELIMITERS, key=unquoted_header.count)
    widths = {len(line.split()) for line in lines[:SAMPLE_LINES]}
    if delimiter not in unquoted_header and len(widths) == 1 and widths != {1}:
        delimiter = " "
        lines = [line.strip(" ") for line in lines]
    excel_line = re.search(r'^"?sep=(.)', "".join(preface), re.MULTILINE)
    if excel_line:
        delimiter = excel_line[1]

    try:
        reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=True)
        # Spreadsheets end in rows of empty cells.
        return [row for row in reader if "".join(row).strip()]
    except csv.Error as error:
        raise RecordError(f"{name}: not a readable CSV file ({redact(str(error))[:200]})") from None


def _check_shape(table: list[list[str]], header: list[str], name: str) -> None:
    """Raise RecordError for a column name that occurs twice, or a row that is longer than the header."""
    for text in header:
        if text and header.count(text) > 1:
            raise RecordError(f"{name}: the column {text!r} occurs twice")

    for number, row in enumerate(table[1:], start=1):
        if len(row) > len(header) and "".join(row[len(header) :]).strip():
            raise RecordError(
                f"{name}: row {number} has more columns than the first line; a decimal comma needs quotes"
            )


def _parse_objects(cells: list[Any]) -> list[Any]:
    """Turn cells of a column that hold an object, in JSON or as Python writes it, into that object."""
    if not any(isinstance(cell, str) and cell.startswith("{") for cell in cells):
        return cells

    return [_parse_object(cell) if isinstance(cell, str) else cell for cell in cells]


def _parse_object(cell: str) -> Any:
    for parse in (json.loads, ast.literal_eval):
        try:
            value = parse(cell)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue

        return value if isinstance(value, dict) else cell

    return cell


# ------------------------------------------------------------------ JSON


def json_rows(content: bytes, name: str) -> Iterator[tuple[str, Any]]:
    """Read rows of JSON: lines; a list of rows, or one under a key; {name: row}; {column: values}, as of pandas.

    NaN and infinities are read, so that the row that has one can be named. RecordError for an object of none of these
    shapes.
    """
    text = decode_text(content, name)
    try:
        value = strict_json.loads(text, what=name, max_bytes=len(text), finite=False)
    except RecordError as error:
        # Lines are several values, and the first of them may be broken.
        if name.endswith(".json") and "Extra data" not in str(error):
            raise

        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                yield f"{name} line {number}", line.encode()
        return

    for number, row in enumerate(_rows_in(value, name), start=1):
        yield f"{name} row {number}", row


_SHAPES = (
    "no table of runs; allowed are a list of rows, {name: row}, {column: [values]}, one of these under a key, "
    "and a row in each line"
)


def _rows_in(value: Any, name: str) -> list[Any]:
    """Read the rows of a JSON value, which says how it is laid out by its shape alone."""
    rows = _read_shape(value)
    if isinstance(value, list) and (rows or not any(isinstance(row, list) for row in value)):
        return rows or value

    if not isinstance(value, dict):
        raise RecordError(f"{name}: {_SHAPES}")

    if "schema_version" in value:
        return [value]

    if {"results", "config", "versions"} <= {*value}:
        # Of lm-evaluation-harness, without the settings of its tasks.
        return [{name: value.get(name) for name in ("results", "config", "model_name", "date")}]

    tables = _tables_in(value)
    if rows is not None and not (len(value) == 1 and tables):
        return rows

    if len(tables) == 1:
        return _rows_in(next(iter(tables.values())), name)

    if tables and all(isinstance(table, list) and "step" in table[0] for table in tables.values()):
        # Step logs of runs, by the names of the runs.
        rows = []
        for run_id, log in tables.items():
            rows += [{"run_id": run_id, **line} for line in log]
        return rows

    if tables:
        raise RecordError(f"{name}: several tables ({', '.join(tables)}): leave one of them in the file")

    if any(isinstance(item, list) for item in value.values()):
        raise RecordError(f"{name}: an object with {', '.join(value)}: {_SHAPES}")

    return [value] if value else []


def _tables_in(value: Fields) -> Fields:
    """Find the tables under the keys of an object, else the objects that hold one, however deep."""
    tables = {key: item for key, item in value.items() if _read_shape(item)}
    return tables or {key: item for key, item in value.items() if isinstance(item, dict) and _tables_in(item)}


def _read_shape(value: Any) -> list[Any] | None:
    """Read a list of rows, a grid under its names, columns, or objects that have fields in common; None for others."""
    match value:
        case [[*names], *grid] | {"columns": [*names], "data": [*grid]} if _is_grid(names, grid):
            return [dict(zip(names, row, strict=True)) for row in grid]
        case [*rows] if {*map(type, rows)} == {dict}:
            return rows
        case dict() if {*map(type, value.values())} == {dict}:
            return _rows_by_name(value)
        case dict():
            return _rows_of_columns(value)

    return None


def _is_grid(names: list[Any], grid: list[Any]) -> bool:
    """Tell whether these are names, and under them lists of as many values."""
    are_rows = all(isinstance(row, list) and len(row) == len(names) for row in grid)
    return are_rows and {*map(type, names)} == {str}


def _rows_of_columns(value: Fields) -> list[Any] | None:
    """Read lists of one length, beside values that hold for all rows."""
    lists = [item for item in value.values() if isinstance(item, list)]
    scalars = [item for item in value.values() if not isinstance(item, list)]
    has_parts = not {dict, list}.isdisjoint(map(type, itertools.chain(scalars, *lists)))
    if has_parts or len({*map(len, lists)}) != 1:
        return None

    columns = [item if isinstance(item, list) else [item] * len(lists[0]) for item in value.values()]

    return [dict(zip(value, row, strict=True)) for row in zip(*columns, strict=True)]


def _rows_by_name(value: Mapping[str, Fields]) -> list[Any] | None:
    """Read the rows of {name: row}; of {column: {name: value}} if the names of fields stand outside."""
    if not set.intersection(*map(set, value.values())):
        return None

    rows = value
    inner_names = dict.fromkeys(itertools.chain.from_iterable(value.values()))
    is_numbered = all(map(str.isdigit, inner_names))
    if is_numbered or (_has_fields(value) and not _has_fields(inner_names)):
        rows = {name: {} for name in inner_names}
        for column, cells in value.items():
            for name, row in rows.items():
                row[column] = cells.get(name)

    if all(map(str.isdigit, rows)):
        return list(rows.values())

    return [{"run_id": name, **row} for name, row in rows.items()]


def _has_fields(names: Iterable[str]) -> bool:
    """Tell whether some of the names are fields of runs: those of records, and losses."""
    return any(name in RunRecord.model_fields or name.lower().endswith("loss") for name in names)
