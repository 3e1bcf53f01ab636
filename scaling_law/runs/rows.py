"""Rows of a table of runs, from any source: run records, other labs' files, mappings, a DataFrame."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
# Names of columns that are no losses in nats: perplexities, accuracies and bits.
PERPLEXITY = re.compile(r"(?i)(?<![a-z])(ppl|perplexity)(?![a-z])")
ACCURACY = re.compile(
    r"(?i)(?<![a-z])(acc|accuracy|exact[_ ]?match|f1|pass@\w+|mc[12]|rouge\w*|bleu|win[_ ]?rate|auroc)"
    r"(?![a-z0-9])(?![^,]*(loss|error|stderr))"
)
BITS = re.compile(r"(?i)(?<![a-z])(bpb|bpc|bpt|bits)(?![a-z])")


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
    elif hasattr(source, "to_dict") and hasattr(source, "columns"):
        rows = []
        for row in source.to_dict("records"):
            rows.append({str(name): None if is_missing(value) else value for name, value in row.items()})
        table = hub.LoadedRows(rows, "DataFrame")
    elif isinstance(source, Iterable) and getattr(source, "ndim", None) != 0:
        table = hub.LoadedRows(list(source), "rows")
    else:
        raise RunsError(f"runs cannot be read from a {type(source).__name__}: give a file, a DataFrame or rows")
    return replace(table, rows=[_flat_row(i, row) for i, row in enumerate(table.rows)])


def _flat_row(i: int, row: Any) -> Row:
    """Return a row as a mapping, with columns for the fields inside nested objects.

    A record's are named as in runs.parquet, `schedule_warmup_tokens`, and those of other rows are joined by dots.
    """
    if hasattr(row, "model_dump"):
        row = row.model_dump()
    if not isinstance(row, Mapping):
        raise RunsError(f"row {i}: a {type(row).__name__} is neither a mapping nor a run record")
    if dict not in map(type, row.values()):
        return row
    return flatten(row, "_" if "schema_version" in row else ".")


def flatten(fields: Mapping[str, Any], sign: str = ".") -> dict[str, Any]:
    """Return the values inside nested objects, each named by the fields that lead to it, joined by a sign."""
    flat = {}
    for name, value in fields.items():
        if isinstance(value, dict):
            for inner_name, inner_value in flatten(value, sign).items():
                flat[f"{name}{sign}{inner_name}"] = inner_value
        else:
            flat[name] = value
    return flat


def row_name(i: int, row: Row) -> str:
    """Return the run_id of a row, else its place in the table."""
    name = row.get("run_id")
    return name if isinstance(name, str) and name else f"row-{i}"


def is_loss(name: str) -> bool:
    """Return whether a column is named as a loss: eval_loss, train/loss."""
    return re.search(r"(^|[\W_])loss$", name.lower()) is not None


def is_metric(name: str) -> bool:
    """Return whether a column is named as a loss or another measure of a model."""
    return is_loss(name) or any(pattern.search(name) for pattern in (PERPLEXITY, BITS, ACCURACY))


def label(i: int, row: Row) -> str:
    """Name a row in an error."""
    return f"row {i} ({row_name(i, row)})"


def first_words(words: Sequence[str], most: int) -> str:
    """List the first of several words, with an ellipsis for the rest."""
    ellipsis = ", …" if len(words) > most else ""
    return ", ".join(words[:most]) + ellipsis


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


def columns_of(rows: Sequence[Row]) -> tuple[dict[str, FloatArray], dict[str, tuple[str | None, ...]]]:
    """Collect the columns [n] in which every value is a number, NaN where a row has none, and the columns of words.

    Words tell groups of rows apart, and names of single rows do not: at least half of the values of a column occur
    twice. Lists and booleans are words; None stands where a row has no value.
    """
    numbers: dict[str, FloatArray] = {}
    texts = {}
    for name in names_of(rows):
        cells = [row.get(name) for row in rows]
        kinds = {*map(type, cells)} - {type(None)}
        if not kinds:
            continue
        if bool not in kinds and all(issubclass(kind, (int, float, np.number)) for kind in kinds):
            # An array reads floats by itself, and None as NaN.
            values = cells if kinds == {float} else [number(cell) for cell in cells]
            column = np.array(values, float)
            if not np.isnan(column).all():
                numbers[name] = column
            continue
        words = tuple(None if is_missing(cell) else str(cell) for cell in cells)
        if 1 < len({*words}) <= max(2, len(words) // 2):
            texts[name] = words
    return numbers, texts
