"""The shelf: published laws by name, each with its equation, its source, and how it counts.

>>> from scaling_law import published
>>> published("chinchilla").loss(70e9, 1.4e12)
1.9208...
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hub.base.errors import InputError, unknown
from hub.base.tables import ResultTable, Table
from scaling_law.law.literature import LITERATURE
from scaling_law.law.publication import PublishedLaw

SHELF = {law.name: law for law in LITERATURE}


@dataclass(frozen=True)
class Shelf(ResultTable):
    """The published laws."""

    entries: tuple[PublishedLaw, ...]

    def to_rows(self) -> list[dict[str, Any]]:
        return [entry.to_dict() for entry in self.entries]

    def to_dict(self) -> dict[str, Any]:
        return {"laws": self.to_rows()}

    def summary(self) -> Table:
        header = ("law", "of", "answers", "variables", "corpus", "evidence")
        rows = [
            (
                e.name,
                f"{e.authors} {e.year}",
                e.answers,
                ", ".join(e.variables),
                e.corpus,
                e.evidence if e.make else "form only",
            )
            for e in self.entries
        ]
        notes = [
            "scaling-law compare --laws NAME shows the equation, source and coefficients of a law, and how it counts"
        ]
        return Table(header, rows, notes=notes)


def laws() -> Shelf:
    """All published laws that the toolkit knows."""
    return Shelf(tuple(SHELF.values()))


def published(name: str) -> Any:
    """The published law of this name: a `Law`, or one that answers its own question (`scaling_law.formulas.answers`).

    ValueError for unknown names and for laws whose coefficients are not public.
    """
    return entry(name).law()


def entry(name: str) -> PublishedLaw:
    """The entry of a law. ValueError lists the names on the shelf."""
    if name not in SHELF:
        raise InputError(unknown("law=", name, SHELF))
    return SHELF[name]
