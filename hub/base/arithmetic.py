"""Arithmetic in text, "(nume * moeh + sed) / (topk * moeh + sed)", evaluated on named numbers and never run as code.

A name that is no identifier stands in backticks, as in pandas: "`Training FLOP` / (6 * `Model Size`)".
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from hub.base.errors import InputError

_Arithmetic = TypeVar("_Arithmetic", bound="Arithmetic")
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
class Arithmetic:
    """An expression of numbers: `names` are those it needs, by the name that `value` has for each."""

    value: Callable[[Mapping[str, float]], float]
    names: Mapping[str, str]

    @classmethod
    def parse(cls: type[_Arithmetic], text: str) -> _Arithmetic:
        """ValueError for anything but names, numbers, operators and the few functions."""
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


def _compiled(node: ast.expr) -> Callable[[Mapping[str, float]], float]:
    """The function of named values that an expression is. ValueError for a part of it that is not arithmetic."""
    parts: list[ast.expr]
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            # A plain float keeps powers cheap.
            return lambda values: float(value)
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
