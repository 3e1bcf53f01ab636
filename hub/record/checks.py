"""Checks on values of a run record that pydantic's types do not express.

Texts: no access token, no path of a machine, no e-mail address (`check_texts`). Numbers: whole numbers written as
floats are accepted, booleans and texts are not (`number`). numpy scalars become Python numbers (`plain`).
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


def plain(value: Any, depth: int = _MAX_DEPTH) -> Any:
    """Turn numpy scalars, tuples and models into plain JSON values, and refuse everything that JSON does not have."""
    if value is None or isinstance(value, (str, bool, int, float)):
        # Subclasses (numpy's float64 is a float) are reduced to the plain type, so that they serialise alike.
        return next((kind(value) for kind in (bool, int, float, str) if isinstance(value, kind)), None)
    if depth == 0:
        raise ValueError(f"nested deeper than {_MAX_DEPTH} levels")
    if hasattr(value, "model_dump"):
        value = value.model_dump()
    if isinstance(value, dict):
        if len(value) > _MAX_ITEMS:
            raise ValueError(f"an object with {len(value)} entries, allowed are {_MAX_ITEMS}")
        if not all(isinstance(key, str) for key in value):
            raise ValueError("field names must be strings")
        return {key: plain(item, depth - 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        if len(value) > _MAX_ITEMS:
            raise ValueError(f"a list with {len(value)} entries, allowed are {_MAX_ITEMS}")
        return [plain(item, depth - 1) for item in value]
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return plain(value.item(), 1)
    raise ValueError(f"a value of type {type(value).__name__}, allowed are numbers, texts, lists, objects and null")


def check_texts(value: Any, name: str = "") -> None:
    """Refuse a record that holds a secret, a path of a machine, an e-mail address, or a number that is not finite.

    Raises:
        ValueError: names the field and the reason; a secret itself is not repeated.
    """
    if isinstance(value, str):
        _check_text(value, name)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name}: {value} is not a finite number, write null instead")
    elif isinstance(value, int) and abs(value) >= 10**30:
        raise ValueError(f"{name}: an integer of more than 30 digits")
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_text(key, f"{name}.{key[:40]}".lstrip(".") + " (the field's name)")
            check_texts(item, f"{name}.{key[:80]}".lstrip("."))
    elif isinstance(value, (list, tuple)):
        for position, item in enumerate(value):
            check_texts(item, f"{name}[{position}]")


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
