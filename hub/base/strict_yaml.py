"""YAML in which a value is what was typed, and nothing is dropped or replaced in silence.

YAML 1.1 reads `no` as false, `500:16` as 30016 and `010` as 8, keeps the last of two equal keys, and lets tags make
objects. Here an unquoted value is a word as on a command line: only `null`, `true`, `false` and numbers in the form
that Python prints are values, so that `as_typed` gives back the text of every word. All else is text.
"""

from __future__ import annotations

import math
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import yaml

from hub.base.errors import InputError
from hub.base.types import Fields

# Levels of lists and mappings inside each other.
MAX_DEPTH = 32
# Aliases are counted as often as they are used.
MAX_VALUES = 300_000
_WORDS = {"null": None, "true": True, "false": False}
# Other nulls of YAML, some of which are also names of folders.
_OTHER_NULLS = ("~", "Null", "NULL")
_NUMBER = re.compile(r"[-+]?(\d[\d_]*(\.[\d_]*)?|\.\d[\d_]*)([eE][-+]?\d+)?", re.ASCII)
_TAGS = "tag:yaml.org,2002:"


class YamlError(InputError):
    """A text is no YAML, or one in which something is ambiguous; the message names line and field."""

    begins_with_field = False


def read(path: str | Path, numbers: bool = False) -> Any:
    """Read the value in a YAML or JSON file, which is UTF-8; `numbers` as in `loads`.

    Raises YamlError as `loads`, and OSError if the file cannot be read.
    """
    data = Path(path).read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise YamlError(f"it must be UTF-8 text, which it is not from byte {error.start + 1} on") from None
    return loads(text, numbers)


def loads(text: str, numbers: bool = False) -> Any:
    """Return the value of one YAML document, of mappings with text as keys, lists and words.

    With `numbers`, unquoted words are numbers in any decimal form (1.0e-06, 1_000); without, only in the form in which
    Python prints them. `<<` takes over the fields of mappings that the keys beside it do not set.

    Raises:
        YamlError: the text is empty or not YAML, a key occurs twice or is not text, there is a tag, or more nesting or
            values than any file of ours has.
    """
    try:
        document = yaml.compose(text, Loader=yaml.BaseLoader)
    except RecursionError:
        raise YamlError(f"it is nested deeper than {MAX_DEPTH} levels") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = " ".join(filter(None, (error.context, error.problem)))
        hint = "; indent with spaces" if r"'\t'" in problem else ""
        raise YamlError(f"{place}{problem}{hint}") from None
    except yaml.YAMLError as error:
        raise YamlError(" ".join(str(error).split())) from None
    if document is None:
        raise YamlError("it is empty")
    return _Reader(numbers).value(document, [])


def read_word(word: str) -> Any:
    """Return None for null, a bool for true or false, a number in the form in which Python prints it, else the text.

    Raises InputError for YAML's other ways to write null.
    """
    if word in _WORDS:
        return _WORDS[word]
    if word in _OTHER_NULLS:
        raise InputError(f"{word} is ambiguous; write null for the default, or quote it if it is meant as text")
    number = read_number(word)
    if number is None or as_typed(number) != word:
        return word
    return number


def read_number(word: str) -> int | float | None:
    """Return the decimal number that a word is; None if it is none, or not finite."""
    match = _NUMBER.fullmatch(word)
    if match is None:
        return None
    is_integer = match[2] is None and match[3] is None and "." not in word
    # A word may have too many digits for Python, or an underscore in the wrong place.
    with suppress(ValueError):
        number = int(word) if is_integer else float(word)
        return number if is_integer or math.isfinite(number) else None
    return None


def as_typed(value: Any) -> str:
    """Return the text of a word that `loads` or `read_word` read."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


class _Reader:
    """One document, whose values are counted."""

    def __init__(self, numbers: bool):
        self.numbers = numbers
        self.count = 0

    def value(self, node: yaml.Node, path: list[str]) -> Any:
        """Return the value of a node; `path` are the keys that lead to it."""
        self.count += 1
        if len(path) > MAX_DEPTH:
            _refuse(node, path[:3], f"is nested deeper than {MAX_DEPTH} levels, or in itself")
        if self.count > MAX_VALUES:
            _refuse(node, path, f"is beyond {MAX_VALUES:,} values, with those of aliases")
        if node.tag not in (f"{_TAGS}str", f"{_TAGS}seq", f"{_TAGS}map"):
            _refuse(node, path, f"has the tag {node.tag.replace(_TAGS, '!!')}; tags are not read")
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, [*path, str(number)]) for number, item in enumerate(node.value, 1)]
        return self._scalar(node, path) if isinstance(node, yaml.ScalarNode) else self._mapping(node, path)

    def _scalar(self, node: yaml.ScalarNode, path: list[str]) -> Any:
        text = _text(node, path)
        is_quoted = node.style is not None
        if is_quoted:
            return text
        number = read_number(text) if self.numbers else None
        if number is not None:
            return number
        try:
            return read_word(text or "null")
        except InputError as error:
            _refuse(node, path, str(error), ":")

    def _mapping(self, node: yaml.Node, path: list[str]) -> Fields:
        fields: Fields = {}
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != f"{_TAGS}str":
                _refuse(key_node, path, "has a key that is not text")
            name = _text(key_node, path)
            if name in fields:
                _refuse(key_node, [*path, name], f"occurs twice, first in line {lines[name]}")
            lines[name] = key_node.start_mark.line + 1
            fields[name] = self.value(value_node, [*path, name])
        # Mappings whose fields these take over, of which no two may set the same.
        sources = fields.pop("<<", [])
        merged: Fields = {}
        for source in sources if isinstance(sources, list) else [sources]:
            if not isinstance(source, dict):
                _refuse(node, [*path, "<<"], "must be a mapping or a list of them")
            for name, value in source.items():
                if name in merged:
                    _refuse(node, [*path, name], "occurs twice, in two mappings that << merges")
                merged[name] = value
        return {**merged, **fields}


def _text(node: yaml.ScalarNode, path: list[str]) -> str:
    """Return the text of a node, in which JSON may have written one character as two surrogates."""
    try:
        text = node.value.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        _refuse(node, path, "has half of a surrogate pair, which is not a character")
    if "\0" in text:
        _refuse(node, path, "has a character 0, which no text may have")
    return text


def _refuse(node: yaml.Node, path: list[str], problem: str, separator: str = "") -> NoReturn:
    field = ".".join(path) or "the document"
    raise YamlError(f"line {node.start_mark.line + 1}: {field}{separator} {problem}")
