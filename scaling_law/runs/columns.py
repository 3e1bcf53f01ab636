"""Columns made of others: "(nume * moeh + sed) / (topk * moeh + sed)", evaluated row by row and never run as code.

A column is a source column's name, an arithmetic expression, a number, or a function of the row. In an expression, a
column whose name is no identifier stands in backticks, as in pandas: "`Training FLOP` / (6 * `Model Size`)".
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hub.base.errors import InputError, unknown
from hub.base.tables import literal
from hub.base.units import UNKNOWN
from scaling_law.runs.rows import Row, RunsError, is_missing, label, number

Column = str | float | Callable[[Row], Any]
# Our name → what the paper, our own tables and cards call it. N is none of them: other labs count it in other ways.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "n_active": ("N_act", "N_active", "Active", "Active parameters"),
    "n_total": ("N_total", "Total"),
    "tokens": ("D", "Tokens", "tokens D", "Training tokens"),
    "experts": ("E", "Experts"),
    "eval_loss": ("Held-out loss",),
    "run_id": ("Run",),
    "status": ("Status",),
}
_INPUTS = ("n_active", "tokens", "experts")
COUNTS = (*_INPUTS, "n_total", "n_active_non_embedding", "n_total_non_embedding")
_OPERATORS: dict[type[ast.AST], Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: math.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_FUNCTIONS: dict[str, Callable[..., float]] = {
    **{name: getattr(math, name) for name in ("log", "log2", "log10", "exp", "sqrt", "floor", "ceil")},
    **{"abs": abs, "round": round, "min": min, "max": max},
}
_ALLOWED = f"columns, numbers, + - * / **, parentheses and {', '.join(_FUNCTIONS)}"


@dataclass(frozen=True)
class Expression:
    """An arithmetic expression over columns: `columns` are those it needs, by the name that its value has."""

    value: Callable[[Mapping[str, float]], float]
    columns: Mapping[str, str]

    @classmethod
    def parse(cls, text: str) -> Expression:
        """ValueError for anything but columns, numbers, operators and the few functions."""
        quoted = re.findall(r"`([^`]+)`", text)
        plain = text
        for i, name in enumerate(quoted):
            plain = plain.replace(f"`{name}`", f" _column{i} ")
        try:
            tree = ast.parse(plain.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise InputError(f"allowed are {_ALLOWED}") from None
        called = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node not in called}
        return cls(
            _compiled(tree), {name: name for name in names} | {f"_column{i}": name for i, name in enumerate(quoted)}
        )

    def __call__(self, row: Row) -> float | None:
        """Its value for a row; None where an operand is missing. ValueError for one that is no number."""
        values = {}
        for name, column in self.columns.items():
            if is_missing(row.get(column)):
                return None
            if (value := number(row[column])) is None:
                raise InputError(f"{column}={literal(row[column])} is not a number")
            values[name] = value
        return self.value(values)


def aliases_of(present: Collection[str]) -> dict[str, str]:
    """Our names that a table with these columns lacks, and the column that has each by another name.

    The one column that ends in a size's name after a dot or slash has it: model.experts, train/tokens.
    """
    aliases = {name: next((alias for alias in others if alias in present), None) for name, others in ALIASES.items()}
    for name in (*_INPUTS, "n_total", "d_model", "n_blocks", "n_heads", "vocab_size"):
        inner = [column for column in present if re.split(r"[./]", column)[-1] == name]
        aliases[name] = aliases.get(name) or (inner[0] if len(inner) == 1 else None)
    return {name: alias for name, alias in aliases.items() if alias is not None and name not in present}


def with_counts(row: Row) -> Row:
    """The row with sizes, tokens and experts that are texts, such as "80M", as numbers; "–" is missing."""
    texts = {name: row[name] for name in COUNTS if isinstance(row.get(name), str)}
    values = {name: None if text.strip() == UNKNOWN else number(text) or text for name, text in texts.items()}
    return {**row, **values} if values else row


def with_columns(rows: Sequence[Row], columns: Mapping[str, Column], origin: str) -> tuple[list[Row], dict[int, str]]:
    """The rows with these columns, and what is wrong with the rows where one cannot be computed.

    Columns are made in order, so that later ones may use earlier ones. RunsError for an expression that cannot be read
    and for a column that the table does not have.
    """
    extended, failed = [dict(row) for row in rows], dict[int, str]()
    present = {name for row in rows for name in row}
    for name, column in columns.items():
        definition = f"column {name}={getattr(column, '__name__', None) or literal(column)}"
        evaluate = _function(column, present, f"{origin}: {definition}")
        for i, row in enumerate(extended):
            try:
                row[name] = evaluate(row)
            except (ValueError, ArithmeticError, TypeError, LookupError) as error:
                row[name] = None
                failed.setdefault(i, f"{label(i, row)}: {definition}: {error or type(error).__name__}")
        present.add(name)
    return [*extended], failed


def _function(column: Column, present: set[str], what: str) -> Callable[[Row], Any]:
    if callable(column):
        return column
    if not isinstance(column, str):
        if number(column) is None:
            raise RunsError(f"{what}: must be a column, an expression, a number or a function of the row")
        return lambda row: column
    if column in present:
        return lambda row: row.get(column)
    available = f"there are: {', '.join(sorted(present))}"
    try:
        expression = Expression.parse(column)
    except ValueError as error:
        raise RunsError(f"{what}: neither a column nor an expression ({error}); {available}") from None
    if missing := sorted(set(expression.columns.values()) - present):
        raise RunsError(f"{what}: {unknown('column ', missing[0], sorted(present))}")
    return expression


def _compiled(node: ast.expr) -> Callable[[Mapping[str, float]], float]:
    """The function of named values that an expression is. ValueError for a part of it that is not arithmetic."""
    parts: list[ast.expr]
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return lambda values: float(value)  # so that powers stay cheap
        case ast.Name(id=name):
            return lambda values: values[name]
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            function, parts = _OPERATORS[type(op)], [operand]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            function, parts = _OPERATORS[type(op)], [left, right]
        case ast.Call(func=ast.Name(id=name), args=[*parts], keywords=[]) if name in _FUNCTIONS and parts:
            function = _FUNCTIONS[name]
        case _:
            raise InputError(f"{ast.unparse(node)!r} is not arithmetic; allowed are {_ALLOWED}")
    arguments = list(map(_compiled, parts))
    return lambda values: float(function(*(argument(values) for argument in arguments)))
