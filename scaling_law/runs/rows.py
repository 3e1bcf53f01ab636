"""Rows of a table of runs, from any source: run records, other labs' files, mappings, a DataFrame."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

# Lazy: the rooms of hub are imported when runs are read.
import hub
from hub.base.errors import FilesError, RecordError, given
from hub.base.units import parse_count
from scaling_law.size.arrays import FloatArray

if TYPE_CHECKING:
    from hub import LoadedRows

Row = Mapping[str, Any]
SKIP = given("on_invalid", "skip", in_shell="--skip-invalid")


class RunsError(RecordError, FilesError):
    """The table of runs is not usable; the message names row, field and value."""


def read_rows(
    source: Any,
    revision: str | None = None,
    problems: list[str] | None = None,
    config: str | None = None,
) -> LoadedRows:
    """Read the rows of any source that `load_runs` takes, as mappings; a list `problems` gets what was left out."""
    if isinstance(source, (str, Path)):
        try:
            table = hub.load_rows(source, revision=revision, problems=problems, config=config)
        except (RecordError, FilesError) as error:
            hint = ("\n", SKIP, " leaves them out") if "\n" in str(error) else ()
            raise RunsError(*error.args, *hint) from None
    elif revision is not None or config is not None:
        option = given("revision", revision) if config is None else given("config", config)
        raise RunsError(option, " is allowed with a dataset on the Hub only")
    elif hasattr(source, "to_dict") and hasattr(source, "columns"):
        rows = []
        for row in source.to_dict("records"):
            rows.append({str(name): None if is_missing(value) else value for name, value in row.items()})
        table = hub.LoadedRows(rows, "DataFrame")
    elif isinstance(source, Iterable) and getattr(source, "ndim", None) != 0:
        table = hub.LoadedRows(list(source), "rows")
    else:
        raise RunsError(f"runs cannot be read from a {type(source).__name__}: give a file, a DataFrame or rows")
    return replace(table, rows=[_mapping(i, row) for i, row in enumerate(table.rows)])


def _mapping(i: int, row: Any) -> Row:
    """Return a row as a mapping; values inside nested objects get columns, too."""
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
    """List the columns of a table in their order, with the values inside nested objects instead of the objects."""
    names = names_of(rows)

    outer = {name.partition(".")[0] for name in names if "." in name}
    objects = set()
    for name in outer.intersection(names):
        if any(isinstance(row.get(name), Mapping) for row in rows):
            objects.add(name)
    return [name for name in names if name not in objects]


def row_name(i: int, row: Row) -> str:
    """Return the run_id of a row, else its place in the table."""
    name = row.get("run_id")
    return name if isinstance(name, str) and name else f"row-{i}"


def is_loss(name: str) -> bool:
    """Return whether a column is named as a loss: eval_loss, train/loss."""
    return re.search(r"(^|[\W_])loss$", name.lower()) is not None


def label(i: int, row: Row) -> str:
    """Name a row in an error."""
    return f"row {i} ({row_name(i, row)})"


def names_of(rows: Iterable[Row]) -> list[str]:
    """List the columns that any row has, in the order in which they first appear.

    Most rows of a table have the same columns, so that only few sets of names are merged.
    """
    headers = dict.fromkeys(map(tuple, rows))
    return list(dict.fromkeys(chain.from_iterable(headers)))


def is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and value != value)


def number(value: Any) -> float | None:
    """Read a value as a float, a text such as "80M", too; None for anything else, booleans included."""
    # First, because nearly all cells of a large table are floats.
    if type(value) is float:
        return value
    if isinstance(value, bool) or value is None:
        return None
    try:
        return float(value)
    # A whole number of hundreds of digits.
    except OverflowError:
        return None
    except (TypeError, ValueError):
        if not isinstance(value, str):
            return None
    try:
        return parse_count(value)
    except ValueError:
        return None


def whole(row: Row, *names: str) -> list[int] | None:
    """Read these fields as integers of at least 1; None unless all of them are."""
    integers = []
    for name in names:
        value = number(row.get(name))
        if value is None or value < 1 or not value.is_integer():
            return None
        integers.append(int(value))
    return integers


def numeric_columns(rows: Sequence[Row]) -> dict[str, FloatArray]:
    """Collect the columns [n] in which every value is a number, NaN where a row has none.

    The fields of a nested object become columns with its name before theirs, such as `schedule_warmup_tokens`, as in
    runs.parquet. Booleans and texts are no numbers.
    """
    flat = [flatten(row) for row in rows]
    columns = {}
    for name in names_of(flat):
        values = [row.get(name) for row in flat]
        kinds = {type(value) for value in values if value is not None}
        are_numbers = all(issubclass(kind, (int, float, np.number)) for kind in kinds)
        if not kinds or bool in kinds or not are_numbers:
            continue

        column = np.array([np.nan if value is None else number(value) for value in values], float)
        if not np.isnan(column).all():
            columns[name] = column
    return columns


def text_columns(rows: Sequence[Row], numeric: Collection[str]) -> dict[str, tuple[str | None, ...]]:
    """Collect the columns [n] that are not `numeric` and tell groups of rows apart, None where a row has no value.

    Names of single rows tell no groups apart: at least half of the values of a column occur twice. Nested objects are
    flattened as for `numeric_columns`; lists and booleans are texts.
    """
    flat = [flatten(row) for row in rows]
    columns = {}
    for name in names_of(flat):
        if name in numeric:
            continue
        values = tuple(None if is_missing(row.get(name)) else str(row[name]) for row in flat)
        if 1 < len({*values}) <= max(2, len(values) // 2):
            columns[name] = values
    return columns


def flatten(row: Row) -> Row:
    """Make the fields of nested objects columns, such as `optimizer_name`; deeper ones keep their dots."""
    if dict not in map(type, row.values()):
        return row
    fields: dict[str, Any] = {}
    replaced = set()
    for name, value in row.items():
        if isinstance(value, dict):
            replaced.add(name)
            for key, inner in value.items():
                fields[f"{name}_{key}"] = inner
                replaced.add(f"{name}.{key}")

    flat = {name: value for name, value in row.items() if name not in replaced}
    flat.update(fields)
    return flat
