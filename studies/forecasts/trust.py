"""The table of docs/answers.md that says how far answers are trusted: made of the file that the library reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scaling_law.formulas.conditions import evidence
from studies.common import Page, Part

ANSWERS = Path(__file__).parents[2] / "docs" / "answers.md"


def read() -> Sequence[Mapping[str, Any]]:
    """Return the rows of the trusted region."""
    return evidence()["trusted"]


def trusted(rows: Sequence[Mapping[str, Any]]) -> Iterator[Part]:
    """List how far outside the ranges of the fitted runs each quantity is trusted, and the page that says so."""
    yield "quantity", "from", "to", "of", "because", "row of its page"
    for row in rows:
        yield (
            row["quantity"],
            _factor(row["below"], "÷"),
            _factor(row["above"], "×"),
            row["of"],
            row["because"],
            f"{row['page']}: {row['row']}",
        )


def _factor(times: float, sign: str) -> str:
    return "the range" if times == 1 else f"{sign}{times:g}"


PAGE = Page(read, blocks=(trusted,))
