"""Checks on values of a run record that pydantic's types do not express.

All values (`plain`): plain JSON, finite numbers, and no text with an access token, a path of a machine or an e-mail
address. Numbers (`number`): whole numbers written as floats are accepted, booleans and texts are not.
"""

from __future__ import annotations

import math
import re
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
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()  # numpy's float64 is a float, too
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        _check_text(value, name)
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
        _check_text(key, f"{name}.{key[:40]}".lstrip(".") + " (the field's name)")
        inner[key] = plain(item, f"{name}.{key[:80]}".lstrip("."), depth - 1)
    return inner


def _check_text(text: str, name: str) -> None:
    if len(text) > MAX_TEXT:
        raise ValueError(f"{name}: a text of {len(text):,} characters, allowed are {MAX_TEXT:,}")
    if contains_token(text):
        raise ValueError(f"{redacted(name)}: holds what looks like an access token; a record must not have one")
    if _PATH.search(text):
        raise ValueError(f"{name}: {text[:80]!r} holds an absolute path; a record names files relative to nothing")
    if _EMAIL.search(text):
        raise ValueError(f"{name}: {text[:80]!r} holds an e-mail address; a record names no person")
    if any(0xD800 <= ord(character) <= 0xDFFF for character in text):
        raise ValueError(f"{name}: holds half a surrogate pair, which is not a text that UTF-8 can write")
