"""Checks on values of a run record that pydantic's types do not express.

All values (`plain`): plain JSON, finite numbers, and no text with an access token, a path of a machine or an e-mail
address. Numbers (`number`): whole numbers written as floats are accepted, booleans and texts are not.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import Any

from hub.plain.errors import contains_token, redacted

MAX_TEXT = 4000  # characters of one text in an unknown field
_MAX_ITEMS = 4096  # entries of one list or object
_MAX_DEPTH = 12

# An absolute path at the start of a text or after a separator: /a/b, ~/a, C:\a, \\host\a, file:/a. "tokens/s",
# "and/or" and "https://host/x" are none of these.
_PATH = re.compile(
    r"""^/[^\s/] | (?:^|[\s"'=:;,(\[<>|])(?:/[^\s/]+/[^\s] | ~[A-Za-z0-9_-]*/) | (?<![A-Za-z])[A-Za-z]:[\\/]
    | \\\\[A-Za-z0-9] | \bfile:/""",
    re.VERBOSE,
)
# Starts at a word's beginning and is bounded, so that a long text costs no more than its length.
_EMAIL = re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})*\.[A-Za-z]{2}")


def number(value: Any) -> Any:
    """Accept real numbers only: no booleans, no texts that happen to hold digits."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("must be a number")
    return value


def plain(value: Any, name: str = "", depth: int = _MAX_DEPTH) -> Any:
    """The value as plain JSON values: numpy scalars become Python's, tuples lists, models objects.

    Raises:
        ValueError: something that JSON does not have, a number that is not finite, a text with a secret, a path of a
            machine or an e-mail address. The field is named; a secret itself is not repeated.
    """
    if value is None or value is True or value is False:
        return value
    if type(value) is not str and getattr(value, "shape", None) == () and hasattr(value, "item"):
        return plain(value.item(), name, depth)  # of numpy, whose float64 is a float, too
    if isinstance(value, str):
        if problem := _problem_of(value):
            raise ValueError(f"{redacted(name)}: {problem}")
        return str(value)
    if isinstance(value, (int, float)):
        if not abs(value) < 10**30 and not (isinstance(value, float) and math.isfinite(value)):
            raise ValueError(f"{name}: {str(value)[:40]} is not a finite number of at most 30 digits; null is allowed")
        return value
    if depth == 0:
        raise ValueError(f"{name}: nested deeper than {_MAX_DEPTH} levels")
    if hasattr(value, "model_dump"):
        value = value.model_dump()
    if not isinstance(value, (dict, list, tuple)):
        kind = type(value).__name__
        raise ValueError(f"{name}: a value of type {kind}, allowed are numbers, texts, lists, objects and null")
    if len(value) > _MAX_ITEMS:
        raise ValueError(f"{name}: {len(value)} entries, allowed are {_MAX_ITEMS}")
    if not isinstance(value, dict):
        return [plain(item, f"{name}[{position}]", depth - 1) for position, item in enumerate(value)]
    inner = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise ValueError(f"{name}: field names must be strings")
        if problem := _problem_of(key):
            raise ValueError(f"{redacted(f'{name}.{key[:40]}')} (the field's name): {problem}".lstrip("."))
        inner[key] = plain(item, f"{name}.{key[:80]}" if name else key[:80], depth - 1)
    return inner


@lru_cache(maxsize=4096)  # most texts of a table are those of its other rows
def _problem_of(text: str) -> str | None:
    if len(text) > MAX_TEXT:
        return f"a text of {len(text):,} characters, allowed are {MAX_TEXT:,}"
    if contains_token(text):
        return "holds what looks like an access token; a record must not have one"
    if _PATH.search(text):
        return f"{text[:80]!r} holds an absolute path; a record names files relative to nothing"
    if _EMAIL.search(text):
        return f"{text[:80]!r} holds an e-mail address; a record names no person"
    if any(0xD800 <= ord(character) <= 0xDFFF for character in text):
        return "holds half a surrogate pair, which is not a text that UTF-8 can write"
    return None
