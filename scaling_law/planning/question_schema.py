"""A question as JSON Schema, for programs that check or write one before they ask."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

from scaling_law.planning.question import FIELD_TYPES, FIELDS

# Types of Python → their name in JSON; a field of any type takes what `experts` does.
_JSON_TYPES = {float: "number", int: "integer", bool: "boolean", str: "string", Path: "string"}
_ANY_TYPES = ["number", "string", "array"]
# A question has exactly one of these.
_BUDGETS = ("flops", "hours", "money")


def question_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a question: an object whose members are keywords of `law.optimal`.

    `law.optimal(**question)` answers it, as do `scaling-law optimal` with the members as options, and the explorer's
    API and MCP server with the members as texts.
    """
    properties = {}
    for name, field in FIELDS.items():
        properties[name] = {
            "description": field.help.replace("--", ""),
            "type": _types_in_json(FIELD_TYPES[name]),
        }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Question",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "oneOf": [{"required": [name]} for name in _BUDGETS],
    }


def _types_in_json(hint: Any) -> list[str]:
    """List the JSON types of a type, without that of None, which leaves a field out."""
    if hint is Any:
        return _ANY_TYPES
    names: list[str] = []
    for member in get_args(hint) or (hint,):
        name = "array" if get_args(member) else _JSON_TYPES.get(member)
        if name is not None and name not in names:
            names.append(name)
    return names
