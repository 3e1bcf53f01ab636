"""Results that are columns of equal shape: as rows, as a table for a terminal of any width, as HTML, as a frame."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from hub.plain.display import html
from hub.plain.units import format_bytes, format_count

if TYPE_CHECKING:
    import pandas
    from rich.console import Console, ConsoleOptions, RenderResult

SHOWN = 60  # rows that a terminal or a notebook shows
PADDING = 3  # columns of the terminal that a border and two spaces take


class ResultTable:
    """What results with one value for each question share.

    A subclass gives `_columns` and, in `_question`, those that say what was asked; it may give `warnings`.
    """

    _question: ClassVar[tuple[str, ...]] = ("flops", "experts")

    @property
    def warnings(self) -> tuple[str, ...]:
        """How far the answers extrapolate, the worst of each quantity."""
        return ()

    def _columns(self) -> dict[str, Any]:
        """Name → array; all broadcast to one shape."""
        raise NotImplementedError

    def to_rows(self) -> list[dict[str, Any]]:
        """One dict of plain values for each question, in the order of the arrays."""
        names, columns = zip(*self._columns().items(), strict=True)
        lists = [np.ravel(column).tolist() for column in np.broadcast_arrays(*columns)]
        return [dict(zip(names, row, strict=True)) for row in zip(*lists, strict=True)]

    def to_dataframe(self) -> pandas.DataFrame:
        """One line for each question (pandas)."""
        import pandas

        return pandas.DataFrame(self.to_rows())

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        rows = self.to_rows()
        cells = [{LABELS.get(k, k): _cell(k, v) for k, v in row.items()} for row in rows[:SHOWN]]
        styles = ["" if row.get("trusted", True) else "dim" for row in rows[:SHOWN]]
        asked = [name for name in self._question if name == "experts" or len({row[name] for row in rows}) > 1]
        yield Stacked(cells, [LABELS.get(name, name) for name in asked], FIRST, styles)
        if len(rows) > SHOWN:
            yield Text(f"… {len(rows) - SHOWN:,} more rows: to_dataframe() has all", style="dim")
        for warning in self.warnings:
            yield Text(f"⚠ {warning}", style="yellow")

    def _repr_html_(self) -> str:
        return html(self)


LABELS = {
    "experts": "E",
    "n_active": "N_act",
    "n_total": "N_total",
    "tokens_per_parameter": "D/N",
    "memory_bytes": "memory",
    "flops": "FLOPs",
    "trusted": "mark",
    "token_ratio": "tokens to match",
    "dense_n": "dense N",
    "dense_tokens": "dense D",
    "dense_loss": "dense loss",
}
FIRST = ("FLOPs", "N_act", "tokens", "loss", "memory", "mark")  # what a narrow terminal shows above the rest
NONE = {"flops": "not reached", "memory_bytes": ""}  # what infinity means there
_BYTES: Callable[[float], str] = format_bytes
FORMATS: dict[str, Callable[[Any], str]] = {
    "experts": "{:g}".format,
    "flops": "{:.3g}".format,
    "token_ratio": "{:.3g}".format,
    "gain": "{:+.4f}".format,
    "dense_loss": "{:.4f}".format,
    "memory_bytes": _BYTES,
    "loss": "{:.4f}".format,
    "tokens_per_parameter": lambda ratio: f"{ratio:.3g}" if ratio < 1e3 else format_count(ratio),
    "trusted": lambda trusted: "" if trusted else "not trusted",
}


def _cell(name: str, value: Any) -> str:
    if isinstance(value, float) and not np.isfinite(value):
        return NONE.get(name, "∞") if np.isinf(value) else ""
    if name in FORMATS:
        return FORMATS[name](value)
    return format_count(value) if isinstance(value, (int, float)) else str(value)


@dataclass(frozen=True)
class Stacked:
    """A table, or in a terminal too narrow for it several below each other: nothing is cut or left out.

    Columns without any text are not shown; the column "mark" has no header.

    Args:
        cells: name → text for each row, all with the same names.
        keys: the columns that name a row, repeated in every table.
        first: the columns that the first table has at least, besides the keys.
        styles: of the rows, if any.
    """

    cells: Sequence[Mapping[str, str]]
    keys: Sequence[str]
    first: Sequence[str] = ()
    styles: Sequence[str] = ()
    title: str | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.table import Table

        names = [name for name in (self.cells[0] if self.cells else ()) if any(row[name] for row in self.cells)]
        wide = {name: PADDING + max(len(name), *(len(row[name]) for row in self.cells)) for name in names}
        keys = [name for name in self.keys if name in names]
        title = self.title
        for block in _blocks(names, wide, keys, options.max_width, self.first):
            table = Table(title=title, title_justify="left", title_style="bold", header_style="bold")
            title = None
            for name in block:
                table.add_column("" if name == "mark" else name, justify="right", no_wrap=True)
            for row, style in zip(self.cells, self.styles or [""] * len(self.cells), strict=True):
                table.add_row(*(row[name] for name in block), style=style)
            yield table


def _blocks(
    names: list[str], wide: Mapping[str, int], keys: list[str], width: int, first: Sequence[str]
) -> list[list[str]]:
    """The names in groups of at most `width` columns, each in the order of `names` and with the keys."""
    if 1 + sum(wide.values()) <= width:
        return [names]
    groups, taken = [], [name for name in names if name in first and name not in keys]
    for name in (name for name in names if name not in keys and name not in first):
        if taken and 1 + sum(wide[n] for n in (*keys, *taken, name)) > width:
            groups.append(taken)
            taken = []
        taken.append(name)
    groups.append(taken)
    return [[name for name in names if name in keys or name in group] for group in groups]
