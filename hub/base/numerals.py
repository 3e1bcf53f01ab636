"""Numbers as spreadsheets write them: decimal commas, and thousands between commas, points, spaces or apostrophes.

"3,78" can only be 3.78, and "1,234,567" only 1234567, but "3,784" is 3.784 or 3784. What a cell leaves open, the other
cells of its column settle, else those of the other columns. Where nothing does, the cell stays a text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from hub.base.errors import InputError

Cell = str | float | None

# A number with one mark before its decimals and the other one between thousands. A letter may follow, as in 1,5B.
_FORM = r"[+-]?(?=[.,]?\d)(\d*{0}?\d*([eE][+-]?\d+)?|[1-9]\d{{0,2}}({1}\d{{3}})+({0}\d*)?)(\s?[A-Za-z])?"
_NUMBERS = {".": re.compile(_FORM.format("[.]", ",")), ",": re.compile(_FORM.format(",", "[.]"))}
_SPACED = re.compile(r"([+-]?\d{1,3}([ _'’\u00a0\u202f])\d{3}(?:\2\d{3})*)([.,]\d*)?(\s?[A-Za-z])?")
_STARTS = tuple("0123456789+-.,")
# Texts that stand for a missing number in a column.
_MISSING = ("", "-", "–", "—", "na", "n/a", "#n/a", "null", "none")


def read_cells(columns: Sequence[Sequence[str]]) -> list[list[Cell]]:
    """Read the cells of each column as numbers, None where they are empty, and texts where they are no numbers.

    InputError for a number with one point among decimal commas, which may be a thousand.
    """
    numbers_by_column = [_read_python_numbers(cells) for cells in columns]
    other_columns = [cells for cells, numbers in zip(columns, numbers_by_column, strict=True) if numbers is None]
    marks: set[str | None] = set()
    if any("," in cell for cell in chain.from_iterable(other_columns)):
        marks = _decimal_marks(chain.from_iterable(columns))
    table_mark = marks.pop() if len(marks) == 1 else None
    # Numbers as Python writes them are read again only where their points may not be decimal.
    return [
        _read_column(cells, table_mark) if numbers is None or table_mark == "," else numbers
        for cells, numbers in zip(columns, numbers_by_column, strict=True)
    ]


def why_no_number(value: Any) -> str:
    """Say why a value that was to be a number is none, as the end of a sentence that begins with it."""
    readings = _readings(value) if isinstance(value, str) and "," in value else {}
    if len(readings) == 2:
        return f"is {readings[',']} or {readings['.']}: write one of the two"
    if "," in readings:
        return "has a decimal comma: write a decimal point"
    return "has commas: write it without them" if readings else "is not a number"


def _read_python_numbers(cells: Sequence[str]) -> list[Cell] | None:
    """Read cells of which each is empty or a number as Python writes it; None if one is neither."""
    try:
        return [float(text) if text else None for text in cells]
    except ValueError:
        return None


def _readings(text: str) -> Mapping[str, str]:
    """Read a number by the mark before its decimals, as Python writes it: by both marks where both are possible.

    It has no blanks around it, nor those and apostrophes between groups of three digits.
    """
    text = text.strip().replace("−", "-")
    # Most texts are no numbers, which this tells fast.
    if not text.startswith(_STARTS):
        return {}
    spaced = _SPACED.fullmatch(text)
    if spaced:
        text = text.replace(spaced[2], "")
    readings = {}
    if _NUMBERS["."].fullmatch(text):
        readings["."] = text.replace(",", "")
    if _NUMBERS[","].fullmatch(text):
        readings[","] = text.replace(".", "").replace(",", ".")
    return readings


def _decimal_marks(cells: Iterable[str]) -> set[str | None]:
    """Find the marks before decimals in those numbers that can be read in one way only."""
    marks: set[str | None] = set()
    for cell in cells:
        readings = _readings(cell) if "," in cell or "." in cell else {}
        if len(readings) == 1:
            marks.update(readings)
    return marks


def _read_column(cells: Sequence[str], table_mark: str | None) -> list[Cell]:
    """Read the cells of a column, whose decimals come after the mark that it shows, else after that of the table."""
    marks = _decimal_marks(cells) or {table_mark}
    mark = marks.pop() if len(marks) == 1 else None
    readings_by_cell = {cell: _readings(cell) for cell in cells}
    missing = _MISSING if any(readings_by_cell.values()) else ("",)
    # Points after which there cannot be decimals stand between thousands, and so may all others.
    points_are_thousands = any("." in cell and [*readings_by_cell[cell]] == [","] for cell in cells)
    values: list[Cell] = []
    for cell in cells:
        readings = readings_by_cell[cell]
        is_open = len(readings) == 2 and "." in cell
        if cell.strip().lower() in missing:
            values.append(None)
        elif is_open and mark == "," and not points_are_thousands:
            choices = f"{readings['.']} or {readings[',']}"
            raise InputError(f"{cell.strip()!r} among decimal commas is {choices}: write one of the two")
        elif mark is None and "," in cell:
            values.append(_read_number_or_text(cell))
        else:
            values.append(_read_number_or_text(readings.get(mark or ".", cell)))
    return values


def _read_number_or_text(text: str) -> Cell:
    try:
        return float(text)
    except ValueError:
        return text.strip() or None
