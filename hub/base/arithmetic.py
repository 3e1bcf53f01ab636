"""Arithmetic in text, "(nume * moeh + sed) / (topk * moeh + sed)", evaluated on named numbers and never run as code.

A name that is no identifier, nor several joined by dots, stands in backticks, as in pandas: "`Training FLOP` / 6".
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
    "log": math.log,
    "log2": math.log2,
    "log10": math.log10,
    "exp": math.exp,
    "sqrt": math.sqrt,
    "floor": math.floor,
    "ceil": math.ceil,
    "abs": abs,
    "round": round,
    "min": min,
    "max": max,
}
# A name in backticks, or one of a nested field, such as train.steps.
_DOTTED = re.compile(r"(`[^`]*`)|\b([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)")
QUOTING = "a name with other signs than dots stands in backticks"
_ALLOWED = f"columns, numbers, + - * / **, parentheses and {', '.join(_FUNCTIONS)}; {QUOTING}"


@dataclass(frozen=True)
class Arithmetic:
    """An expression of numbers: `names` are those that it needs, by the name that `value` has for each."""

    value: Callable[[Mapping[str, float]], float]
    names: Mapping[str, str]

    @classmethod
    def parse(cls: type[_Arithmetic], text: str) -> _Arithmetic:
        """Read an expression. ValueError for anything but names, numbers, operators and the few functions."""
        text = _DOTTED.sub(lambda match: f"`{match[2]}`" if match[2] else match[0], text)
        quoted_names = re.findall(r"`([^`]+)`", text)
        source = text
        for i, name in enumerate(quoted_names):
            source = source.replace(f"`{name}`", f" _column{i} ")
        try:
            tree = ast.parse(source.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise InputError(f"allowed are {_ALLOWED}") from None
        functions = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
        identifiers = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node not in functions}
        names = {name: name for name in identifiers}
        for i, name in enumerate(quoted_names):
            names[f"_column{i}"] = name
        return cls(_compile(tree), names)


def _compile(node: ast.expr) -> Callable[[Mapping[str, float]], float]:
    """Turn an expression into a function of named values. ValueError for a term of it that is not arithmetic."""
    operands: list[ast.expr]
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            # A plain float keeps powers cheap.
            return lambda values: float(value)
        case ast.Name(id=name):
            return lambda values: values[name]
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            function = _OPERATORS[type(op)]
            operands = [operand]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            function = _OPERATORS[type(op)]
            operands = [left, right]
        case ast.Call(func=ast.Name(id=name), args=[*operands], keywords=[]) if name in _FUNCTIONS and operands:
            function = _FUNCTIONS[name]
        case _:
            raise InputError(f"{ast.unparse(node)!r} is not arithmetic; allowed are {_ALLOWED}")
    arguments = list(map(_compile, operands))
    return lambda values: float(function(*(argument(values) for argument in arguments)))
