"""Mappings from our columns to those of a table: read from a file, or proposed for a table with other column names."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hub.base import strict_yaml
from hub.base.errors import InputError, given, literal
from hub.base.paths import local_path
from hub.base.types import Strings
from hub.base.units import format_count
from scaling_law.runs.columns import EXPERTS_PER_TOKEN, INPUTS, Column, with_columns
from scaling_law.runs.rows import Row, RunsError, is_missing, label, names_of, number

# Rows that a proposal shows.
SHOWN_ROWS = 3
# Patterns for the names of columns that hold ours, the likeliest first, with underscores between the words.
LOOKS_LIKE: Mapping[str, Strings] = {
    "n_active": (
        r".*activ\w*_param\w*|.*param\w*_activ\w*",
        r"(?!.*(total|expert|embed)).*(params?|parameters?)(_count)?",
        r".*model_size|size|n",
    ),
    "tokens": (r"(?!.*(per_|vocab|val|batch|unique|warm|decay)).*tokens?(_(seen|total|trained|consumed|processed))?",),
    "experts": (r"(?!.*(shared|active|per_)).*experts",),
    "loss": (
        r".*(val|test|held_?out).*(loss|nll)|.*(loss|nll)_(val|eval|test)\w*",
        r".*loss|.*nll|.*cross_entropy",
        r".*(ppl|perplexity)",
    ),
}
# The unit at the end of a column's name: tokens (B), params_M, tokens in billions.
_UNIT = re.compile(r"[\W_]+(?:in[\W_]+)?(m|b|t|million|billion|trillion)s?\W*$", re.IGNORECASE)
_FACTORS = {"m": "1e6", "b": "1e9", "t": "1e12"}


def read_mapping(mapping: Mapping[str, Column] | str | Path) -> dict[str, Column]:
    """Read a mapping from our columns to those of a table, as `columns` of `load_runs`: a dict, or a YAML file of one.

    RunsError for a file that cannot be read, values that are no columns, and two fields of one column.
    """
    place = "mapping"
    fields: Any = mapping
    if isinstance(mapping, (str, Path)):
        place = f"mapping {str(mapping)!r}"
        try:
            fields = strict_yaml.read(local_path(mapping), numbers=True)
        except (OSError, InputError) as error:
            raise RunsError(f"{place} cannot be read: {getattr(error, 'strerror', None) or error}") from None

    if not isinstance(fields, Mapping):
        example = "each line names a column of ours and the table's, as in `loss: summary/val_loss`"
        raise RunsError(f"{place} holds {literal(fields)}: {example}")

    field_of: dict[str, str] = {}
    for name, column in fields.items():
        if not isinstance(name, str):
            raise RunsError(f"{place}: {literal(name)} is not the name of a column")
        if column is None or isinstance(column, (bool, list, dict)):
            raise RunsError(f"{place}: {name}: {literal(column)} is not a column, an expression or a number")
        if isinstance(column, str) and number(column) is None:
            other_field = field_of.setdefault(column, name)
            if other_field != name:
                raise RunsError(f"{place}: {other_field} and {name} are both {column!r}; a column has one field")

    return {**fields}


def propose(rows: Sequence[Row], missing: Sequence[str]) -> dict[str, Column]:
    """Find columns that look like those of ours that are missing; for some there may be none."""
    numeric = []
    for name in names_of(rows):
        cells = [row.get(name) for row in rows]
        values = [number(cell) for cell in cells if not is_missing(cell)]
        # No expression can name a column with a backtick.
        if values and None not in values and "`" not in name:
            numeric.append(name)

    proposal: dict[str, Column] = {}
    for field in missing:
        column = _find(LOOKS_LIKE[field], numeric)
        if column is not None:
            proposal[field] = _as_ours(field, column, numeric)

    return proposal


def describe(rows: Sequence[Row], proposal: Mapping[str, Column], origin: str) -> list[str]:
    """Say what a proposal takes each column for, how it would read the first rows, and what to type; as pieces."""
    resemblances = [f"{column} looks like {name}" for name, column in proposal.items()]
    lines = [f"\n{'; '.join(resemblances)}. Read this way, the table begins"]
    values, _ = with_columns(rows, proposal, origin)
    for i, row in enumerate(values[:SHOWN_ROWS]):
        cells = []
        for name in dict.fromkeys((*INPUTS, *proposal)):
            value = number(row.get(name))
            if value is not None:
                cells.append(f"{name}={value:.4g}" if name == "loss" else f"{name}={format_count(value)}")
        lines.append(f"\n  {label(i, row)}: {', '.join(cells)}")

    # Each option has a line, so that no terminal folds it and all of them can be pasted.
    options = " \\\n  ".join("--column " + shlex.quote(f"{name}={column}") for name, column in proposal.items())
    fields = "".join(f"\n  {name}: {literal(column)}" for name, column in proposal.items())
    say_so = given("columns", {**proposal}, in_shell=f"\n  {options}")
    keep = given("mapping", "mine.yaml", in_shell="--mapping mine.yaml")
    return [*lines, "\nIf this is right, add ", say_so, "\nor save it to a file, ", keep, f", with{fields}"]


def _find(patterns: Strings, columns: Sequence[str]) -> str | None:
    """Find the column of the likeliest name; of several the shortest."""
    for pattern in patterns:
        matches = []
        for column in columns:
            name = re.sub(r"\W+", "_", _UNIT.sub("", column).lower())
            if re.fullmatch(pattern, name):
                matches.append(column)
        if matches:
            return min(matches, key=len)

    return None


def _as_ours(field: str, column: str, columns: Sequence[str]) -> str:
    """Write a column in our terms: single parameters and tokens, E of routed experts, nats of a perplexity."""
    unit = _UNIT.search(column)
    experts_per_token = _find((EXPERTS_PER_TOKEN,), columns)
    if field == "loss":
        return f"log(`{column}`)" if re.search("(ppl|perplexity)$", column, re.IGNORECASE) else column
    if field == "experts" and experts_per_token:
        return f"`{column}` / `{experts_per_token}`"
    return f"`{column}` * {_FACTORS[unit[1][0].lower()]}" if unit else column
