"""Columns made of others: "(nume * moeh + sed) / (topk * moeh + sed)", evaluated row by row and never run as code.

A column is a source column's name, an arithmetic expression, a number ("300M"), a number in a text ("N from name"), or
a function of the row. In an expression, a column whose name is no identifier stands in backticks
(`hub.base.arithmetic`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hub.base.arithmetic import QUOTING, Arithmetic
from hub.base.errors import InputError, literal, unknown
from hub.base.numerals import why_no_number
from hub.base.tables import column_name
from hub.base.units import UNKNOWN
from scaling_law.runs.rows import Row, RunsError, is_missing, label, names_of, number

Column = str | float | Callable[[Row], Any]
# Our name → what the paper, our own tables and cards call it; num_input_tokens_seen is of transformers' Trainer. N is
# none of them, because other labs count it in other ways. What begins with a dot is the last word of a nested field's
# name, after a dot or slash, as trackers have it: model.experts, train/tokens.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "n_active": ("N_act", "N_active", "Active", "Active parameters", ".n_active"),
    "n_total": ("N_total", "Total", ".n_total"),
    "tokens": ("D", "Tokens", "tokens D", "Training tokens", "num_input_tokens_seen", ".tokens"),
    "experts": ("E", "Experts", ".experts", ".num_experts"),
    "eval_loss": ("Held-out loss",),
    "run_id": ("Run",),
    "status": ("Status",),
    "d_model": (".d_model",),
    "n_blocks": (".n_blocks",),
    "n_heads": (".n_heads",),
    "vocab_size": (".vocab_size",),
}
INPUTS = ("n_active", "tokens", "experts")
COUNTS = (*INPUTS, "n_total", "n_active_non_embedding", "n_total_non_embedding")
# Names of columns with which transformers' num_experts is no E, but the routed experts.
EXPERTS_PER_TOKEN = r".*experts_per_tok(en)?|.*active_experts|.*experts_active|.*top_?k"
# A number in a name: 1000000, 1e6, 190M, 1.3b, and 1p3b.
_NUMBER = r"(\d+(?:[.p]\d+)?(?:[eE][+-]?\d+)?[kKmMbBtT]?)"
_IN_TEXT = re.compile(r"(.+?)\s+from\s+(.+)")


class Expression(Arithmetic):
    """An arithmetic expression over columns."""

    def __call__(self, row: Row) -> float | None:
        """Evaluate it for a row; None where an operand is missing. ValueError for one that is no number."""
        values = {}
        for name, column in self.names.items():
            cell = row.get(column)
            if is_missing(cell):
                return None
            value = number(cell)
            if value is None:
                raise InputError(f"{column}={literal(cell)} {why_no_number(cell)}")
            values[name] = value

        return self.value(values)


def aliases_of(present: Collection[str]) -> dict[str, str]:
    """Find our names that a table with these columns lacks, and the column with another name for each."""
    columns_by_spelling: dict[str, list[str]] = {}
    for column in present:
        last_word = re.split(r"[./]", column)[-1]
        columns_by_spelling.setdefault(column, []).append(column)
        columns_by_spelling.setdefault(f".{last_word}", []).append(column)
    if any(re.fullmatch(EXPERTS_PER_TOKEN, spelling) for spelling in columns_by_spelling):
        columns_by_spelling.pop(".num_experts", None)

    aliases = {}
    for name, spellings in ALIASES.items():
        matches = [columns_by_spelling[spelling] for spelling in spellings if spelling in columns_by_spelling]
        # Of several columns none is taken.
        if name not in present and matches and len(matches[0]) == 1:
            aliases[name] = matches[0][0]

    return aliases


def with_counts(row: Row) -> Row:
    """Read sizes, tokens and experts that are texts, such as "80M", as numbers; "–" is missing."""
    values: dict[str, Any] = {}

    for name in COUNTS:
        text = row.get(name)
        if isinstance(text, str):
            values[name] = None if text.strip() == UNKNOWN else number(text) or text

    return {**row, **values} if values else row


def with_columns(rows: Sequence[Row], columns: Mapping[str, Column], origin: str) -> tuple[list[Row], dict[int, str]]:
    """Add these columns to the rows; return the rows, and the problem of each row where a column cannot be computed.

    Columns are made in order, so that later ones may use earlier ones. RunsError for an expression that cannot be read
    and for a column that the table does not have.
    """
    extended = [dict(row) for row in rows]
    failed: dict[int, str] = {}
    present = {*names_of(rows)}

    for name, column in columns.items():
        formula = getattr(column, "__name__", None) or literal(column)
        definition = f"column {name}={formula}"
        evaluate = _function(column, present, f"{origin}: {definition}")
        for i, row in enumerate(extended):
            try:
                row[name] = evaluate(row)
            except (ValueError, ArithmeticError, TypeError, LookupError) as error:
                row[name] = None
                problem = f"{label(i, row)}: {definition}: {error or type(error).__name__}"
                failed.setdefault(i, problem)
        present.add(name)

    return [*extended], failed


def _function(column: Column, present: set[str], place: str) -> Callable[[Row], Any]:
    """Return the function that computes a column of a row; an error begins with the `place` of the column."""
    if callable(column):
        return column

    if isinstance(column, str):
        column = column_name(column, present)
        if column in present:
            return lambda row: row.get(column)

    constant = number(column)
    if constant is not None and math.isfinite(constant):
        return lambda row: constant

    if not isinstance(column, str):
        raise RunsError(f"{place}: must be a column, an expression, a number or a function of the row")

    in_text = _IN_TEXT.fullmatch(column)
    if in_text:
        return _number_in(in_text[1], in_text[2], present, place)

    try:
        expression = Expression.parse(column)
    except ValueError as error:
        available = ", ".join(sorted(present))
        raise RunsError(f"{place}: neither a column nor an expression ({error}); there are: {available}") from None

    names = {name: column_name(operand, present) for name, operand in expression.names.items()}
    expression = replace(expression, names=names)
    missing = sorted(set(names.values()) - present)
    if missing:
        raise RunsError(f"{place}: {unknown('column ', missing[0], sorted(present))}; {QUOTING}")

    return expression


def _number_in(
    pattern: str,
    source: str,
    present: Collection[str],
    place: str,
) -> Callable[[Row], float]:
    """Return a function that reads a number in a text, such as a run's name.

    It stands in the place of {} in the pattern, or else after it: "N" and "{}xC" in N1000000-5xC.
    """
    source = column_name(source.strip("`"), present)
    if source == "name" and source not in present:
        source = "run_id"

    if source not in present:
        raise RunsError(f"{place}: ", unknown("column ", source, sorted(present)))

    before, has_place, after = pattern.partition("{}")
    separator = "" if has_place else r"[\W_]?"
    start = "(?<![A-Za-z0-9.])" if before[:1].isalnum() or not before else ""
    end = "" if after else "(?![A-Za-z0-9])"
    expression = re.compile(f"{start}{re.escape(before)}{separator}{_NUMBER}{re.escape(after)}{end}")

    def read(row: Row) -> float:
        text = row.get(source)
        match = expression.search(str(text))
        value = match and number(match[1].replace("p", "."))
        if value is None:
            raise InputError(f"{source}={literal(text)} has no number there")
        return value

    return read
