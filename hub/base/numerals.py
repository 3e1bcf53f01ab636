"""Numbers as spreadsheets write them: decimal commas, and thousands between commas, points, spaces or apostrophes.

"3,78" can only be 3.78, and "1,234,567" only 1234567, but "3,784" is 3.784 or 3784. What a cell leaves open, the other
cells of its column settle, else those of the other columns. Where nothing does, the cell stays a text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from hub.base.errors import InputError

Cell = str | float | None

_NUMBER = re.compile(r"([+-]?)(\d[\d.,]*|[.,]\d+)([eE][+-]?\d+)?(\s?[A-Za-z])?")
_SPACED = re.compile(r"([+-]?\d{1,3}([ _'’\u00a0\u202f])\d{3}(?:\2\d{3})*)([.,]\d*)?(\s?[A-Za-z])?")
# Three digits after one mark are decimals, or the mark stands after thousands.
_OPEN = re.compile(r"[1-9]\d{0,2}[.,]\d{3}")
_THOUSANDS_BY_COMMA = re.compile(r"[1-9]\d{0,2}(,\d{3})+(\.\d*)?")
_THOUSANDS_BY_POINT = re.compile(r"[1-9]\d{0,2}(\.\d{3})+(,\d*)?")
_STARTS = tuple("0123456789+-−.,")
# Texts that stand for a missing number in a column.
_MISSING = ("", "-", "–", "—", "na", "n/a", "#n/a", "null", "none")


def read_cells(columns: Sequence[Sequence[str]]) -> list[list[Cell]]:
    """Read the cells of each column as numbers, None where they are empty, and texts where they are no numbers.

    InputError for a number with one point among decimal commas, which may be a thousand.
    """
    python_numbers = [_read_python_numbers(cells) for cells in columns]
    marks: set[str] = set()
    for cells, values in zip(columns, python_numbers, strict=True):
        if values is None and any("," in cell for cell in cells):
            marks = set().union(*map(_decimal_marks, columns))
            break
    table_mark = marks.pop() if len(marks) == 1 else None
    # Numbers as Python writes them are read again only where their points may not be decimal.
    return [
        _read_column(cells, table_mark) if values is None or table_mark == "," else values
        for cells, values in zip(columns, python_numbers, strict=True)
    ]


def why_no_number(value: Any) -> str:
    """Say why a value that was to be a number is none, as the end of a sentence that begins with it."""
    text = _strip_spaces(value) if isinstance(value, str) else ""
    mark = _decimal_mark(text)
    if mark is None or "," not in text:
        return "is not a number"
    if mark == "":
        return f"is {text.replace(',', '.')} or {text.replace(',', '')}: write one of the two"
    return "has a decimal comma: write a decimal point" if mark == "," else "has commas: write it without them"


def _read_python_numbers(cells: Sequence[str]) -> list[Cell] | None:
    """Read cells of which each is empty or a number as Python writes it; None if one is neither."""
    try:
        return [float(text) if text else None for text in cells]
    except ValueError:
        return None


def _read_column(cells: Sequence[str], table_mark: str | None) -> list[Cell]:
    """Read the cells of a column, whose decimals come after the mark that it shows, else after that of the table."""
    if not any(cell.startswith(_STARTS) for cell in cells):
        return [_read_number_or_text(cell) for cell in cells]
    mark = table_mark
    column_marks = _decimal_marks(cells)
    if column_marks:
        mark = column_marks.pop() if len(column_marks) == 1 else None
    points_are_thousands = mark == "," and any(map(_shows_thousands, cells))
    has_numbers = any(_decimal_mark(_strip_spaces(text)) is not None for text in cells)
    values: list[Cell] = []
    for cell in cells:
        text = _strip_spaces(cell)
        if not text or (has_numbers and text.lower() in _MISSING):
            values.append(None)
        elif _decimal_mark(text) is None or (mark is None and "," in text):
            values.append(_read_number_or_text(cell))
        elif mark != ",":
            values.append(_read_number_or_text(text.replace(",", "")))
        elif _OPEN.fullmatch(text) and "." in text and not points_are_thousands:
            raise InputError(
                f"{text!r} among decimal commas is {text} or {text.replace('.', '')}: write one of the two"
            )
        else:
            values.append(_read_number_or_text(text.replace(".", "").replace(",", ".")))
    return values


def _read_number_or_text(text: str) -> Cell:
    try:
        return float(text)
    except ValueError:
        return text.strip() or None


def _strip_spaces(text: str) -> str:
    """Strip a text of blanks around it, and of those and apostrophes between groups of three digits."""
    text = text.strip().replace("−", "-")
    match = _SPACED.fullmatch(text)
    return text.replace(match[2], "") if match else text


def _shows_thousands(text: str) -> bool:
    """Tell whether points in a number can only stand between thousands."""
    return text.count(".") > 1 or ("." in text and "," in text)


def _decimal_marks(texts: Iterable[str]) -> set[str]:
    """Find the marks that can only stand before decimals, of all numbers among the texts."""
    marks = {_decimal_mark(_strip_spaces(text)) for text in texts if "," in text or "." in text}
    return {mark for mark in marks if mark}


def _decimal_mark(text: str) -> str | None:
    """Find the mark that can only stand before the decimals of a number, even if it has none; "" if either can.

    None for a text that is no number. A letter may follow, as in 1,5B.
    """
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    digits = match[2]
    exponent = match[3]
    mark_count = digits.count(",") + digits.count(".")
    if mark_count == 0 or (mark_count == 1 and not exponent and _OPEN.fullmatch(digits)):
        return ""
    if mark_count == 1:
        return "," if "," in digits else "."
    if _THOUSANDS_BY_COMMA.fullmatch(digits):
        return "."
    return "," if _THOUSANDS_BY_POINT.fullmatch(digits) else None
