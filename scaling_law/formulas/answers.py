"""What the answers of every law share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import numpy as np

from hub.base.tables import ResultTable, Table
from hub.base.types import Fields, Strings
from scaling_law.formulas.conditions import RangeCheck


@dataclass(frozen=True, repr=False)
class Answer(ResultTable):
    """What every answer has: `rows`, the `best` of them, a `verdict`, and what it is worth.

    `check` is that of all models of the answer (`law.check`), None where no law of the loss was asked, or several
    were, each by itself. `notes` are warnings of the question itself.
    """

    check: RangeCheck | None = field(kw_only=True, repr=False, compare=False)
    notes: Strings = field(default=(), kw_only=True)

    @property
    def verdict(self) -> str:
        """The answer in a sentence: the first line of what is shown."""
        raise NotImplementedError

    @property
    def best(self) -> Any:
        """The row that answers best; None where rows are not compared."""
        return None

    @property
    def trusted(self) -> bool:
        """Whether all that was compared lies as far inside as backtests support (`RangeCheck.trusted`)."""
        return self.check is None or bool(np.all(self.check.trusted))

    @property
    def warnings(self) -> Strings:
        """What was noticed, and how far the answer extrapolates."""
        return (*self.notes, *(self.check.warnings if self.check else ()))

    def facts(self) -> Fields:
        """What the answer says beside its rows, as plain JSON values."""
        return plain_fields(self, "rows", "check", "notes")

    def to_rows(self) -> list[Fields]:
        return [plain(row) for row in self.rows]  # type: ignore[attr-defined]

    def to_dict(self) -> Fields:
        """Plain JSON values: what was asked, verdict, rows, best, trusted, warnings."""
        best = self.best.to_dict() if hasattr(self.best, "to_dict") else self.best
        answer = {"verdict": self.verdict, "rows": self.to_rows(), "best": best, "trusted": self.trusted}
        return self.facts() | answer | {"warnings": list(self.warnings)}

    def _headline(self) -> str:
        return self.verdict


@dataclass(frozen=True, repr=False)
class ArrayAnswer(Answer):
    """An answer whose `rows` are plain values: often arrays that broadcast, the questions one by one."""

    @property
    def rows(self) -> tuple[Fields, ...]:
        return tuple(self.to_rows())

    def facts(self) -> Fields:
        return {}  # its rows say it all

    def _columns(self) -> Fields:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, (np.ndarray, float))}

    def to_rows(self) -> list[Fields]:
        """One dict of plain values for each question, in the order of the arrays."""
        return ResultTable.to_rows(self)

    def summary(self) -> Table:
        return replace(super().summary(), title=self.verdict)


def plain(value: Any) -> Any:
    """A value as JSON has it: what has `to_dict` by that, other dataclasses by their fields, keys as text."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if is_dataclass(value):
        return plain_fields(value)
    if isinstance(value, Mapping):
        return {name if isinstance(name, str) else f"{name:g}": plain(inner) for name, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, (tuple, list)) else value


def plain_fields(value: Any, *without: str) -> Fields:
    """The fields of a dataclass as JSON has them, but for those named."""
    return {f.name: plain(getattr(value, f.name)) for f in fields(value) if f.name not in without}


def span(values: Any, form: Callable[[float], str]) -> str:
    """One value, or the lowest and the highest of several, in words."""
    low, high = float(np.min(values)), float(np.max(values))
    return form(low) if low == high else f"{form(low)} to {form(high)}"
