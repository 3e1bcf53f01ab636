"""Answers of columns, and what they share with other results: rows, data frames, tables and JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from hub.base.tables import Summarised, Table, cell
from hub.base.types import Fields, Strings
from scaling_law.answer.columns import COLUMNS, label, tabulate

if TYPE_CHECKING:
    import pandas

# Rows of an answer that a terminal or a notebook shows.
MOST_ROWS = 60
# Columns of counts, which are integers where they are whole.
COUNTS = ("routed_experts", "experts", "d_model", "n_active", "n_total", "tokens")


class Listed(Summarised):
    """A result that shows its values, a line each: those that have a value without parts."""

    def _values(self) -> Fields:
        """Return the values by name: of a dataclass those of its fields with `repr=True`."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.repr}  # type: ignore[arg-type]

    def _headline(self) -> str:
        return ""

    def summary(self) -> Table:
        rows = []
        for name, value in self._values().items():
            is_empty = value is None or (isinstance(value, (str, tuple, Mapping)) and not value)
            is_nested = is_dataclass(value) or (isinstance(value, tuple) and isinstance(next(iter(value), 0), tuple))
            if not (is_empty or is_nested):
                rows.append((label(name) or name, _line(name, value)))
        return Table((), rows, title=self._headline() or None)


def _line(name: str, value: object) -> str:
    """Format a value: texts a line each, a mapping by its keys, and two numbers as an interval."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {cell(number)}" for key, number in value.items())
    if not isinstance(value, tuple) or name in COLUMNS:
        return cell(value, COLUMNS.get(name))
    if all(isinstance(text, str) for text in value):
        return "\n".join(value)
    return "{:.3g}…{:.3g}".format(*value) if len(value) == 2 else str(value)


class Row(Listed, dict[str, Any]):
    """A row of an answer: its values by the names of columns, as keys and as attributes.

    As an attribute, a column of the registry that the answer does not have is None.
    """

    # Columns that are no JSON.
    _hidden: ClassVar[Strings] = ()

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        if name in COLUMNS:
            return None
        raise AttributeError(f"no column {name!r}; there are {', '.join(self)}")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self]

    def _values(self) -> Fields:
        return dict(self)

    def cells(self, *names: str) -> Fields:
        """Return the values of these columns as a table shows them: nothing for None."""
        return {name: "" if self.get(name) is None else self[name] for name in names}

    def to_dict(self) -> Fields:
        """Return plain JSON values."""
        return {name: plain(value) for name, value in self.items() if name not in self._hidden}


class ResultTable(Summarised):
    """The base of results of rows; `_question` names the columns that identify a row, `_first` those that decide.

    The most important one is the first. `_details` are shown only where all is.
    """

    _question: ClassVar[Strings] = ("flops", "experts")
    _first: ClassVar[Strings] = ("loss", "", "n_active", "tokens", "d_model", "flops", "memory_bytes")
    _details: ClassVar[Strings] = ()

    @property
    def warnings(self) -> Strings:
        return ()

    def to_rows(self) -> list[Fields]:
        """Return one dict of plain values for each row."""
        raise NotImplementedError

    def to_dataframe(self) -> pandas.DataFrame:
        """Return a data frame (pandas) of the rows."""
        import pandas

        return pandas.DataFrame(self.to_rows())

    def _headline(self) -> str:
        return f"{len(self.to_rows())} rows"

    def _lines(self) -> str:
        """Return the text above the table."""
        return self._headline()

    def _cells(self) -> Sequence[Mapping[str, Any]]:
        """Return the rows as they are printed: texts, or values that their columns format."""
        return self.to_rows()

    def _footnotes(self) -> list[str]:
        """Say below the table what its columns hold."""
        return []

    def _styles(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return the style of each row."""
        return ["" if row.get("trusted", True) else "dim" for row in rows]

    def summary(self) -> Any:
        rows = self._cells()
        # The columns that tell rows apart.
        keys = []
        for name in self._question:
            if rows and name in rows[0] and (name == "experts" or len({row[name] for row in rows}) > 1):
                keys.append(name)
        notes = self._footnotes()
        if len(rows) > MOST_ROWS:
            notes.append(f"… {len(rows) - MOST_ROWS:,} more rows: to_dataframe() has all")
        return tabulate(
            rows[:MOST_ROWS],
            title=self._lines(),
            keys=tuple(map(label, keys)) or None,
            first=tuple(map(label, self._first)),
            details=tuple(map(label, self._details)),
            styles=self._styles(rows),
            notes=notes,
            warnings=self.warnings,
        )


@dataclass(frozen=True, eq=False, repr=False)
class Answer(ResultTable):
    """Columns by name, and what they are worth.

    A column is a list with a value for each row, or an array or a number: these broadcast to the rows. It is an
    attribute, too. `check` is the range check of all models of the answer (`law.check`), None where no law of the loss
    was asked, or several were, each by itself. `notes` are warnings of the question itself. Further fields say what
    holds for all rows, in JSON those with `repr=True`.
    """

    columns: Mapping[str, Any] = field(default_factory=dict, kw_only=True, repr=False)
    check: Any = field(kw_only=True, repr=False)
    notes: Strings = field(default=(), kw_only=True, repr=False)

    # The class of a row.
    _row: ClassVar[type[Row]] = Row
    # Columns that no table shows.
    _unprinted: ClassVar[Strings] = ()

    def __getattr__(self, name: str) -> Any:
        columns = self.__dict__.get("columns", {})
        if name in columns:
            return columns[name]
        raise AttributeError(f"{type(self).__name__} has no {name!r}")

    @cached_property
    def rows(self) -> tuple[Any, ...]:
        return tuple(map(self._row, rows_of(self.columns)))

    def row(self, **values: Any) -> Any:
        """Return the first row with these values; KeyError if there is none."""
        for row in self.rows:
            if all(row[name] == value for name, value in values.items()):
                return row
        (name, value), *_ = values.items()
        raise KeyError(f"no row for {name}={value}; there are {[row[name] for row in self.rows]}")

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
        """True if all that was compared lies as far inside as backtests support (`RangeCheck.trusted`)."""
        return self.check is None or bool(np.all(self.check.trusted))

    @property
    def warnings(self) -> Strings:
        """The notes, and how far the answer extrapolates."""
        return (*self.notes, *(self.check.warnings if self.check else ()))

    def facts(self) -> Fields:
        """Return what the answer says beside its rows, as plain JSON values."""
        return {f.name: plain(getattr(self, f.name)) for f in fields(self) if f.repr}

    def to_rows(self) -> list[Fields]:
        """Return one dict of plain values for each row."""
        return [row.to_dict() for row in self.rows]

    def to_dict(self) -> Fields:
        """Return plain JSON values: what was asked, verdict, rows, best, trusted, warnings."""
        return {
            **self.facts(),
            "verdict": self.verdict,
            "rows": self.to_rows(),
            "best": plain(self.best),
            "trusted": self.trusted,
            "warnings": list(self.warnings),
        }

    def _headline(self) -> str:
        return self.verdict

    def _cells(self) -> Sequence[Mapping[str, Any]]:
        names = [name for name in self.columns if name not in self._unprinted]
        return [row.cells(*names) for row in self.rows]


def rows_of(columns: Mapping[str, Any]) -> list[Fields]:
    """Return one dict of plain values for each row of columns, as of `Answer`; whole counts are integers."""
    lists = [values for values in columns.values() if isinstance(values, list)]
    shapes = [np.shape(values) for values in columns.values() if not isinstance(values, list)]
    shape = np.broadcast_shapes(*shapes) or (max(map(len, lists), default=1),)
    values_by_name = {}
    for name, values in columns.items():
        if not isinstance(values, list):
            values = np.broadcast_to(values, shape).ravel().tolist()
        if name in COUNTS:
            values = [int(x) if isinstance(x, float) and x.is_integer() else x for x in values]
        values_by_name[name] = values
    return [dict(zip(values_by_name, row, strict=True)) for row in zip(*values_by_name.values(), strict=True)]


def columns_of(rows: Sequence[Mapping[str, Any]]) -> Fields:
    """Return the columns of rows with the same names."""
    columns = {}
    for name in rows[0]:
        columns[name] = [row[name] for row in rows]
    return columns


def plain(value: Any) -> Any:
    """Return a value as JSON has it: what has `to_dict` by that, other dataclasses by their fields, keys as text."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {name if isinstance(name, str) else f"{name:g}": plain(inner) for name, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, (tuple, list)) else value


def span(values: Any, form: Callable[[float], str]) -> str:
    """Write one value, or the lowest and the highest of several."""
    low = float(np.min(values))
    high = float(np.max(values))
    return form(low) if low == high else f"{form(low)} to {form(high)}"
