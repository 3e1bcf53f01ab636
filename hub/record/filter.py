"""The one language in which runs, and the paper's configurations, are chosen: `D <= 500K, E in {1, 8}, final`.

Terms are joined by commas or `and`, and all must hold. A term is a field, a comparison (=, !=, <, <=, >, >= or
`in {…}`) and a value; a status alone means that status. Fields have the records' names or the paper's letters. A name
with other signs than dots, slashes and hyphens stands in backticks, and a value with blanks in double quotes.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, get_args

from hub.base.errors import RecordError, unknown
from hub.base.tables import column_name
from hub.base.units import parse_count
from hub.record.run_record import RunRecord, Status, type_of

LETTERS = {"E": "experts", "D": "tokens", "N": "n_active", "N_act": "n_active", "N_total": "n_total", "d": "d_model"}
# A number with a suffix may be as far from a count as the name of a branch.
TOLERANCE = 1e-3
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
# What an error says of a term that is no condition.
_ALLOWED = "is not a condition; write a field and a comparison, such as D >= 1B, E in {1, 8} or E != 4"
_SYMBOLS = {"==": "=", "≥": ">=", "≤": "<=", "≠": "!="}
_TERM = re.compile(
    r"""\s*(?:`(?P<quoted>[^`]+)`|(?P<name>\w[\w./-]*))\s*
        (?: (?P<symbol>[=<>!≤≥≠]+)\s*(?:"(?P<text>[^"]*)"|(?P<value>[^\s,{}]+)) | in\s*\{(?P<values>[^{}]*)\} )?
        \s*(?:,|\band\b|$)""",
    re.VERBOSE,
)

Fields = Mapping[str, Any]
Test = Callable[[Fields], bool]

_TYPES = {name: type_of(field.annotation) for name, field in RunRecord.model_fields.items()}
NUMBERS = tuple(name for name, value_type in _TYPES.items() if value_type in (int, float))
TEXTS = tuple(name for name, value_type in _TYPES.items() if value_type is str)


def parse_filter(where: str, numbers: Collection[str] = NUMBERS, texts: Collection[str] = TEXTS) -> Test:
    """Make a filter a test of a mapping from field to value; one without terms keeps everything.

    A number with a suffix stands for every value within 0.1 % of it, the precision at which runs are named: a run of
    999,424 tokens, which is called 1M, fulfils `D = 1M`, `D >= 1M` and `D <= 1M`, and not `D > 1M`. A number without
    suffix is exact. A value that is null fulfils no term.

    `numbers` and `texts` are the fields that may be asked for. Raises RecordError for a term that cannot be read.
    """
    tests = []
    position = 0

    while where[position:].strip():
        match = _TERM.match(where, position)
        if match is None:
            raise RecordError(f"filter term {where[position:].strip()!r} {_ALLOWED}")

        tests.append(_parse_term(match, numbers, texts))
        position = match.end()

    return lambda fields: all(test(fields) for test in tests)


def select(records: Iterable[RunRecord], where: str | None = None) -> list[RunRecord]:
    """Return the records that a filter keeps, e.g. "E=8, D >= 1B, final"; see `parse_filter`. None keeps all."""
    test = parse_filter(where or "")
    return [record for record in records if test(vars(record))]


def _parse_term(match: re.Match[str], numbers: Collection[str], texts: Collection[str]) -> Test:
    term = match[0].strip(" ,")
    name = match["quoted"] or match["name"]
    name = column_name(LETTERS.get(name, name), (*numbers, *texts))
    symbol = _SYMBOLS.get(match["symbol"] or "", match["symbol"])
    words = [match["value"] if match["text"] is None else match["text"]]
    if match["values"] is not None:
        symbol = "="
        words = [word.strip(' "') for word in match["values"].split(",")]
    elif symbol is None and name in get_args(Status) and "status" in texts:
        # A status alone stands for `status = …`.
        words = [name]
        symbol = "="
        name = "status"

    if name not in (*numbers, *texts):
        letters = [letter for letter, field in LETTERS.items() if field in numbers]
        raise RecordError(f"filter term {term!r}: {unknown('field ', name, [*letters, *numbers, *texts])}")

    if symbol not in (_COMPARISONS if name in numbers else ("=", "!=")):
        raise RecordError(f"filter term {term!r} {_ALLOWED}")

    comparison = _COMPARISONS[symbol]
    # A value, and how far from it a number may be that is called so.
    bounds: list[tuple[Any, float]] = []

    for word in words:
        try:
            value = parse_count(word, name) if name in numbers else word
        except ValueError as error:
            raise RecordError(f"filter term {term!r}: {error}") from None

        bounds.append((value, TOLERANCE if name in numbers and word[-1:].isalpha() else 0.0))

    def test(fields: Fields) -> bool:
        value = fields.get(name)
        return value is not None and any(_compare(value, comparison, *bound) for bound in bounds)

    return test


def _compare(value: Any, comparison: Callable[[Any, Any], bool], bound: Any, tolerance: float) -> bool:
    is_close = tolerance > 0 and abs(value - bound) <= tolerance * bound
    return comparison(bound if is_close else value, bound)
