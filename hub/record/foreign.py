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
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from hub.base import strict_json
from hub.base.errors import InputError, RecordError, redacted
from hub.base.numerals import read_cells
from hub.record.run_record import RunRecord

DELIMITERS = ",;\t|"
# The part of a table by which its delimiter is told.
SAMPLE_LINES, SAMPLE_LENGTH = 50, 20_000
_BOMS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_BINARY = {  # how files begin that are no text → what they are, and what to do about it
    b"PK\x03\x04": "a zip archive or a workbook of Excel: save the table as CSV",
    b"\xd0\xcf\x11\xe0": "a workbook of Excel: save the table as CSV",
    b"\x1f\x8b": "compressed by gzip: let its name end in .gz",
    b"PAR1": "a parquet file: let its name end in .parquet",
    b"SQLite format 3": "an SQLite database: name a project of trackio as trackio:PROJECT, or save the table as CSV",
    b"version https://git-lfs": "a pointer of Git LFS, not the file: git lfs pull fetches it",
    b"<!DOCTYPE": "a web page: download the raw file",
    b"<html": "a web page: download the raw file",
}


def text_of(content: bytes, name: str) -> str:
    """Decode a file: UTF-8, or UTF-16 as Excel and PowerShell write it. RecordError says what else it is."""
    for start, what in _BINARY.items():
        if content.startswith(start):
            raise RecordError(f"{name}: {what}")
    encoding = next((encoding for bom, encoding in _BOMS.items() if content.startswith(bom)), "utf-8")
    if encoding == "utf-8" and b"\0" in content[:2]:
        encoding = "utf-16-le" if content[1:2] == b"\0" else "utf-16-be"
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        reason = f"{error.reason} at byte {error.start}"
        raise RecordError(f"{name}: neither UTF-8 nor UTF-16 text ({reason}); save it as UTF-8") from None


# ------------------------------------------------------------------ CSV


def csv_rows(content: bytes, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Read the rows of a table with any of the `DELIMITERS`: numbers, None where a cell is empty, texts, and objects.

    Lines `# …` at the top are comments, and Excel's `sep=;` names the delimiter. RecordError for rows that are longer
    than the first line, and for names that occur twice.
    """
    lines = io.StringIO(text_of(content, name), newline="").readlines()
    lines = [*itertools.dropwhile(lambda line: line.startswith("# ") or not line.strip(), lines)]
    stated = re.fullmatch(r'"?sep=(.)"?\s*', lines[0]) if lines else None
    if stated:
        lines = lines[1:]
    delimiter = stated[1] if stated else delimiter_of(lines[:SAMPLE_LINES])
    try:
        stripped = [line.strip(" ") for line in lines] if delimiter == " " else lines
        reader = csv.reader(stripped, delimiter=delimiter, skipinitialspace=True)
        table = [row for row in reader if any(map(str.strip, row))]  # spreadsheets end in rows of empty cells
    except csv.Error as error:
        raise RecordError(f"{name}: not a readable CSV file ({redacted(str(error))[:200]})") from None
    header = [text.strip() for text in table[0]] if table else []
    named = [at for at, text in enumerate(header) if text]
    names = [header[at] for at in named]
    twice = [text for text in names if names.count(text) > 1]
    if twice:
        raise RecordError(f"{name}: the column {twice[0]!r} occurs twice")
    for number, row in enumerate(table[1:], start=1):
        if any(text.strip() for text in row[len(header) :]):
            hint = "; a decimal comma needs quotes, or another delimiter" if delimiter == "," else ""
            raise RecordError(f"{name}: row {number} has more columns than the first line{hint}")
    columns = [*itertools.zip_longest(*table[1:], fillvalue="")] if len(table) > 1 else [()] * len(header)
    columns += [("",) * (len(table) - 1)] * (len(header) - len(columns))
    try:
        values = read_cells([columns[at] for at in named])
    except InputError as error:
        raise RecordError(f"{name}: {error}") from None
    for number, cells in enumerate(zip(*map(_with_objects, values), strict=True), start=1):
        yield f"{name} row {number}", dict(zip(names, cells, strict=True))


def delimiter_of(lines: Sequence[str]) -> str:
    """Find the delimiter of a table with these first lines: blanks, too; a comma where there is one column only."""
    header = lines[0] if lines else ""
    widths = {len(line.split()) for line in lines if line.strip()}
    if not any(delimiter in header for delimiter in DELIMITERS) and len(widths) == 1:
        return " " if widths != {1} else ","
    sample = "".join(lines)[:SAMPLE_LENGTH].rpartition("\n")[0] or header
    try:
        delimiter = csv.Sniffer().sniff(sample, DELIMITERS).delimiter
    except csv.Error:
        delimiter = ","
    return delimiter if delimiter in header else max(DELIMITERS, key=header.count)


def _with_objects(cells: list[Any]) -> list[Any]:
    """Turn cells of a column that hold an object, in JSON or as Python writes it, into that object."""
    if str not in map(type, cells) or not any(isinstance(cell, str) and cell.startswith("{") for cell in cells):
        return cells
    return [_object(cell) if isinstance(cell, str) else cell for cell in cells]


def _object(cell: str) -> Any:
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
    text = text_of(content, name)
    try:
        value = None if _is_of_lines(text) else strict_json.loads(text, what=name, max_bytes=len(text), finite=False)
    except RecordError:
        if name.endswith(".json"):
            raise
        # The first line is broken.
        value = None
    if value is None:
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                yield f"{name} line {number}", line.encode()
        return
    for number, row in enumerate(_rows_in(value, name), start=1):
        yield f"{name} row {number}", row


def _is_of_lines(text: str) -> bool:
    """Tell whether the first of several lines is an object, and so each is a row."""
    first, _, rest = text.lstrip().partition("\n")
    if not rest.strip():
        return not first
    try:
        return isinstance(json.loads(first), dict)
    except ValueError:
        return False


_SHAPES = "no table of runs; allowed are a list of rows, {name: row}, {column: [values]}, one of these under a key, "
_SHAPES += "and a row in each line"


def _rows_in(value: Any, name: str) -> list[Any]:
    """Read the rows of a JSON value, which says how it is laid out by its shape alone."""
    if isinstance(value, list) and not any(isinstance(row, list) for row in value):
        return value
    if isinstance(value, list) and _is_grid(value):
        return [dict(zip(value[0], row, strict=True)) for row in value[1:]]
    if not isinstance(value, dict):
        raise RecordError(f"{name}: {_SHAPES}")
    if not value or "schema_version" in value:
        return [value] if value else []
    names, cells = value.get("columns"), value.get("data")
    if isinstance(names, list) and isinstance(cells, list) and _is_grid([names, *cells]):
        return [dict(zip(names, row, strict=True)) for row in cells]
    if _is_of_columns(value):
        return _rows_of_columns(value)
    inner = next(iter(value.values()))
    if _is_by_name(value) and not (len(value) == 1 and _holds_table(inner)):
        return _rows_by_name(value)
    tables = {key: part for key, part in value.items() if _is_table(part)}
    tables = tables or {key: part for key, part in value.items() if _holds_table(part)}
    if len(tables) == 1:
        return _rows_in(next(iter(tables.values())), name)
    if tables and all(isinstance(part, list) and "step" in part[0] for part in tables.values()):
        return [{"run_id": key, **line} for key, part in tables.items() for line in _rows_in(part, name)]
    if tables:
        raise RecordError(f"{name}: several tables ({', '.join(tables)}): leave one of them in the file")
    if any(isinstance(part, list) for part in value.values()):
        raise RecordError(f"{name}: an object with {', '.join(value)}: {_SHAPES}")
    return [value]


def _is_table(value: Any) -> bool:
    """Tell whether a value under a key is a table: rows, columns, or objects that have fields in common."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(row, dict) for row in value)
    return isinstance(value, dict) and (_is_by_name(value) or _is_of_columns(value))


def _holds_table(value: Any) -> bool:
    """Tell whether a value is a table, or has one under a key, however deep."""
    return _is_table(value) or (isinstance(value, dict) and any(map(_holds_table, value.values())))


def _is_by_name(value: Mapping[str, Any]) -> bool:
    """Tell whether an object holds objects that have fields in common."""
    rows = list(value.values())
    return bool(rows) and all(isinstance(row, dict) for row in rows) and bool(set.intersection(*map(set, rows)))


def _is_grid(value: list[Any]) -> bool:
    """Tell whether a list holds rows as lists, under one of names."""
    if not all(isinstance(row, list) and len(row) == len(value[0]) for row in value):
        return False
    return all(isinstance(cell, str) for cell in value[0])


def _is_of_columns(value: Mapping[str, Any]) -> bool:
    """Tell whether an object holds lists of one length, beside values that hold for all rows."""
    lists = [part for part in value.values() if isinstance(part, list)]
    if not lists or any(isinstance(part, dict) for part in value.values()):
        return False
    of_values = not any(isinstance(item, (dict, list)) for part in lists for item in part)
    return of_values and len(set(map(len, lists))) == 1


def _rows_of_columns(value: Mapping[str, Any]) -> list[Any]:
    length = next(len(part) for part in value.values() if isinstance(part, list))
    columns = [part if isinstance(part, list) else [part] * length for part in value.values()]
    return [dict(zip(value, cells, strict=True)) for cells in zip(*columns, strict=True)]


def _rows_by_name(value: Mapping[str, dict[str, Any]]) -> list[Any]:
    """Read the rows of {name: row}; of {column: {name: value}} if the names of fields stand outside."""
    inner = dict.fromkeys(key for row in value.values() for key in row)
    is_numbered = all(key.isdigit() for key in inner) and bool(inner)
    if is_numbered or (_has_fields(value) and not _has_fields(inner)):
        rows = {key: {column: cells.get(key) for column, cells in value.items()} for key in inner}
    else:
        rows = dict(value)
    if all(key.isdigit() for key in rows):
        return [*rows.values()]
    return [row if "run_id" in row else {"run_id": key, **row} for key, row in rows.items()]


def _has_fields(names: Collection[str]) -> bool:
    """Tell whether some of the names are fields of runs: those of records, and losses."""
    return any(name in RunRecord.model_fields or name.lower().endswith("loss") for name in names)
