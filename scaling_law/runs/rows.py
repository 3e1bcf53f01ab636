"""Rows of a table of runs, from any source: run records, other labs' files, mappings, a DataFrame."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

import hub  # lazy: its rooms are imported when runs are read
from hub.base.errors import FilesError, RecordError, given
from hub.base.units import parse_count
from scaling_law.size.arrays import FloatArray

if TYPE_CHECKING:
    from hub import LoadedRows

Row = Mapping[str, Any]
SKIP = given("on_invalid", "skip", in_shell="--skip-invalid")


class RunsError(RecordError, FilesError):
    """The table of runs is not usable; the message names row, field and value."""


def read_rows(source: Any, revision: str | None = None, problems: list[str] | None = None) -> LoadedRows:
    """Read the rows of any source that `load_runs` takes, as mappings; a list `problems` gets what was left out."""
    if isinstance(source, (str, Path)):
        try:
            table = hub.load_rows(source, revision=revision, problems=problems)
        except (RecordError, FilesError) as error:
            hint = ("\n", SKIP, " leaves them out") if "\n" in str(error) else ()
            raise RunsError(*error.args, *hint) from None
    elif revision is not None:
        raise RunsError(given("revision", revision), " is allowed with a dataset on the Hub only")
    elif hasattr(source, "to_dict") and hasattr(source, "columns"):
        rows = [{str(k): None if is_missing(v) else v for k, v in row.items()} for row in source.to_dict("records")]
        table = hub.LoadedRows(rows, "DataFrame")
    elif isinstance(source, Iterable) and getattr(source, "ndim", None) != 0:
        table = hub.LoadedRows(list(source), "rows")
    else:
        raise RunsError(f"runs cannot be read from a {type(source).__name__}: give a file, a DataFrame or rows")
    return replace(table, rows=[_mapping(i, row) for i, row in enumerate(table.rows)])


def _mapping(i: int, row: Any) -> Row:
    if isinstance(row, Mapping):
        if dict in map(type, row.values()) and "schema_version" not in row:
            return {**row, **dict(leaves(row))}
        return row
    if hasattr(row, "model_dump"):
        return cast(Row, row.model_dump())
    raise RunsError(f"row {i}: a {type(row).__name__} is neither a mapping nor a run record")


def leaves(fields: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """List the texts and numbers inside nested objects, each named by the fields that lead to it, joined by dots."""
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{name}.")
        elif isinstance(value, (str, int, float)):
            yield f"{prefix}{name}", value


def names_in(rows: Sequence[Row]) -> list[str]:
    """List the columns of a table in their order; of nested objects those of the values inside."""
    names = list(dict.fromkeys(chain.from_iterable(rows)))
    outer = {name.partition(".")[0] for name in names if "." in name}
    objects = {name for name in outer.intersection(names) if any(isinstance(row.get(name), Mapping) for row in rows)}
    return [name for name in names if name not in objects]


def row_name(i: int, row: Row) -> str:
    """Its run_id, else its place in the table."""
    name = row.get("run_id")
    return name if isinstance(name, str) and name else f"row-{i}"


def is_loss(name: str) -> bool:
    """Whether a column is named as a loss: eval_loss, train/loss."""
    return re.search(r"(^|[\W_])loss$", name.lower()) is not None


def label(i: int, row: Row) -> str:
    """How an error names a row."""
    return f"row {i} ({row_name(i, row)})"


def names_of(rows: Iterable[Row]) -> list[str]:
    """List the columns that any row has, in the order in which they first appear.

    Most rows of a table have the same columns, so that few sets of names are looked into.
    """
    headers = dict.fromkeys(map(tuple, rows))
    return list(dict.fromkeys(name for header in headers for name in header))


def is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and value != value)


def number(value: Any) -> float | None:
    """The value as a float, a text such as "80M", too; None for anything else, booleans included."""
    if type(value) is float:  # nearly all cells of a large table
        return value
    if isinstance(value, bool) or value is None:
        return None
    try:
        return float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return None
    except (TypeError, ValueError):
        with suppress(ValueError):
            return parse_count(value) if isinstance(value, str) else None
        return None


def whole(row: Row, *names: str) -> list[int] | None:
    """These fields as integers of at least 1; None unless all of them are."""
    integers = []
    for name in names:
        value = number(row.get(name))
        if value is None or value < 1 or not value.is_integer():
            return None
        integers.append(int(value))
    return integers


def numeric_columns(rows: Sequence[Row]) -> dict[str, FloatArray]:
    """The columns [n] in which every given value is a number, NaN where a row has none.

    The fields of a nested object become columns with its name before theirs, such as `schedule_warmup_tokens`, as in
    runs.parquet. Booleans and texts are no numbers.
    """
    flat = [flattened(row) for row in rows]
    columns = {}
    for name in names_of(flat):
        values = [row.get(name) for row in flat]
        kinds = {type(value) for value in values if value is not None}
        if kinds and all(issubclass(kind, (int, float, np.number)) and kind is not bool for kind in kinds):
            column = np.array([np.nan if value is None else number(value) for value in values], float)
            if not np.isnan(column).all():
                columns[name] = column
    return columns


def text_columns(rows: Sequence[Row], numeric: Collection[str]) -> dict[str, tuple[str | None, ...]]:
    """Collect the columns [n] that are not `numeric` and tell groups of rows apart, None where a row has no value.

    Names of single rows tell no groups apart: at least half of the values of a column occur twice. Nested objects are
    flattened as for `numeric_columns`; lists and booleans are texts.
    """
    flat = [flattened(row) for row in rows]
    columns = {}
    for name in dict.fromkeys(name for row in flat for name in row):
        if name in numeric:
            continue
        values = tuple(None if is_missing(row.get(name)) else str(row[name]) for row in flat)
        if 1 < len({*values}) <= max(2, len(values) // 2):
            columns[name] = values
    return columns


def flattened(row: Row) -> Row:
    """Make the fields of nested objects columns, such as `optimizer_name`; deeper ones keep their dots."""
    if dict not in map(type, row.values()):
        return row
    nested = {name: value for name, value in row.items() if isinstance(value, dict)}
    if not nested:
        return row
    parts = {f"{name}_{key}": inner for name, value in nested.items() for key, inner in value.items()}
    dotted = {f"{name}.{key}" for name, value in nested.items() for key in value}
    return {name: value for name, value in row.items() if name not in nested and name not in dotted} | parts
