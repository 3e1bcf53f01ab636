"""Tables for a terminal of any width, a notebook, a Markdown page and a pipe; a quantity looks the same everywhere."""

from __future__ import annotations

import io
import math
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any, cast

from hub.base.markdown import escape_markdown
from hub.base.notices import brief_lines
from hub.base.types import Fields, Strings
from hub.base.units import UNKNOWN

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

# A part of a Markdown page: a row of its table, or a paragraph below.
Part = tuple[object, ...] | str
# Columns where there is no terminal: tables in a file or a pipe are not cut to one.
PIPE_WIDTH = 160
# What has all warnings, beside a result that is printed.
IN_PYTHON = ".warnings"
# Columns of the terminal that a border and two spaces take.
_PADDING = 3
# A column of longer texts is folded before a table is split.
_TEXT_WIDTH = 24

_CAPTION = '<caption style="text-align:left;white-space:pre">{}</caption>'


@dataclass(frozen=True)
class Column:
    """Label and form of a quantity in a table, the text of an infinite one, its unit, and what it means."""

    label: str
    form: Callable[[Any], str]
    infinite: str = "∞"
    unit: str = ""
    meaning: str = ""

    @property
    def description(self) -> str:
        """The meaning with the unit."""
        return f"{self.meaning} [{self.unit}]" if self.unit else self.meaning


def cell(value: object, column: Column | None = None) -> str:
    """Format a value of a column; a text stays as it is, None is "–" and a NaN nothing."""
    if value is None:
        return UNKNOWN
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float) and math.isnan(value):
        return ""
    if isinstance(value, float) and math.isinf(value):
        infinite = "∞" if column is None else column.infinite
        return infinite if value > 0 else "-∞"
    if column is not None:
        return column.form(value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class Printable:
    """A renderable of rich that `print` shows as rich does; its `repr` is a line."""

    def __str__(self) -> str:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPE_WIDTH
        return as_text(cast("RenderableType", self), width)

    def __repr__(self) -> str:
        headline = " ".join(self._headline().split())
        return f"{type(self).__name__}({headline})"

    def _headline(self) -> str:
        """Say in a few words what this is."""
        return ""


@dataclass(frozen=True, repr=False)
class Table(Printable):
    """Rows of cells under a header; without a header the first column has the names of the values beside it.

    A terminal too narrow for a table shows `keys`, the columns that tell rows apart (default: the first), and of the
    others those that fit, the most important ones of `first` before the rest; a line names those that are left out.
    The columns `details` are left out at any width, and with a column goes the note that begins with its label.
    Without `first`, or where all is shown, the terminal gets the table in pieces, below each other, with nothing cut,
    each with the keys. `styles` are rich's, one for each row; `total` is a last row, set apart. Warnings that have a
    short form share a line. Both lines say that `all_warnings` has the others; without it, everything is shown. A
    notebook shows all columns, and their `meanings` on their heads.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[object]]
    title: str | None = None
    keys: Sequence[str] | None = None
    first: Sequence[str] = ()
    details: Sequence[str] = ()
    styles: Sequence[str] = ()
    total: Sequence[object] = ()
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()
    all_warnings: str = IN_PYTHON
    meanings: Sequence[str] = ()

    @classmethod
    def of(
        cls, rows: Sequence[Mapping[str, object]], columns: Mapping[str, Column] | None = None, **options: Any
    ) -> Table:
        """Build a table from mappings of name to value with the same names; columns without text are left out.

        `columns` has the label and the form of a name, which without one is the label itself.
        """
        columns = columns or {}
        header = []
        meanings = []
        texts_by_column = []
        for name in rows[0] if rows else ():
            column = columns.get(name)
            texts = [cell(row[name], column) for row in rows]
            if any(texts):
                header.append(name if column is None else column.label)
                meanings.append("" if column is None else column.description)
                texts_by_column.append(texts)
        return cls(header, list(zip(*texts_by_column, strict=True)), meanings=meanings, **options)

    def for_shell(self, verbose: bool) -> Table:
        """Return the table as a command shows it: with all warnings in full, or with the option that does so."""
        return replace(self, all_warnings="" if verbose else "--verbose")

    def _shown_warnings(self) -> Sequence[str]:
        return brief_lines(self.warnings, self.all_warnings) if self.all_warnings else self.warnings

    def _headline(self) -> str:
        title = (self.title or "").partition("\n")[0]
        return title or f"{len(self.rows)} rows"

    def markdown(self) -> str:
        """Write a pipe table. The header is trusted text, every cell is escaped."""
        columns = self._columns()
        header = " | ".join(column.name for column in columns)
        rule = "|".join("---:" if column.has_numbers else "---" for column in columns)
        lines = [f"| {header} |", f"|{rule}|"]
        for row in _rows(columns):
            lines.append(f"| {' | '.join(map(escape_markdown, row))} |")
        return "\n".join(lines)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich import box
        from rich.table import Table as Grid
        from rich.text import Text

        columns = self._columns()
        # The title is as wide as the terminal; a narrow table would fold its own.
        if self.title:
            yield Text(self.title, style="bold")
        frame: Fields = {"box": box.HEAVY_HEAD}
        if not self.header:
            frame = {"box": None, "show_header": False, "padding": (0, 2)}
        pieces, names = self._fold_columns(columns, options.max_width)
        for piece in pieces:
            # A table that does not fit folds numbers and keys, too.
            fits = _width(piece) <= options.max_width
            grid = Grid(header_style="bold", **frame)
            for column in piece:
                grid.add_column(
                    Text(column.name),
                    justify="right" if column.has_numbers else "left",
                    style="bold" if column is columns[0] and not self.header else "",
                    no_wrap=fits and (column.has_numbers or column.is_key),
                    overflow="fold",
                )
            for number, row in enumerate(_rows(piece)):
                if self.total and number == len(self.rows):
                    grid.add_section()
                style = self.styles[number] if number < len(self.styles) else ""
                grid.add_row(*map(Text, row), style=style)
            yield grid
        notes = [note for note in self.notes if note.partition(":")[0] not in names]
        if names:
            source = "to_dataframe()" if self.all_warnings == IN_PYTHON else self.all_warnings
            listed_names = ", ".join(names)
            notes.append(f"{source} also has {listed_names}")
        for note in notes:
            yield Text(note, style="dim")
        for warning in self._shown_warnings():
            yield Text(f"⚠ {warning}", style="yellow")

    def _repr_html_(self) -> str:
        """Write one `<table>`, in the colours and the font of the page that shows it."""
        from rich.style import Style

        columns = self._columns()
        styles = [Style.parse(style).get_html_style() for style in self.styles]
        styles += [""] * (len(self.rows) - len(styles))
        if self.total:
            styles.append("border-top:1px solid")
        # What scrolls is reached by the keyboard, too.
        lines = ['<div style="overflow-x:auto" tabindex="0" role="region" aria-label="table">', "<table>"]
        if self.title:
            lines.append(_CAPTION.format(escape(self.title)))
        if self.header:
            lines.append(_html_row("th", self.header, columns, self.meanings))
        for row, style in zip(_rows(columns), styles, strict=False):
            lines.append(_html_row("td", row, columns, (), style))
        lines.append("</table></div>")
        lines += [f"<p><small>{escape(note)}</small></p>" for note in self.notes]
        shown_warnings = self._shown_warnings()
        lines += [f"<p>⚠ {escape(warning)}</p>" for warning in shown_warnings]
        if len(shown_warnings) < len(self.warnings):
            items = "".join(f"<li>{escape(warning)}</li>" for warning in self.warnings)
            lines.append(f"<details><summary>All warnings</summary><ul>{items}</ul></details>")
        return "\n".join(lines)

    def _columns(self) -> list[_DrawnColumn]:
        rows = list(self.rows)
        if self.total:
            rows.append(self.total)
        names = self.header
        if not names and rows:
            names = [""] * len(rows[0])
        columns = []
        for i, name in enumerate(names):
            texts = [cell(row[i]) for row in rows]
            is_key = i == 0 if self.keys is None or not self.header else name in self.keys
            has_numbers = bool(self.header) and _are_mostly_numbers(texts)
            columns.append(_DrawnColumn(name, texts, has_numbers, is_key))
        return columns

    def _fold_columns(self, columns: list[_DrawnColumn], width: int) -> tuple[list[list[_DrawnColumn]], list[str]]:
        """Fold the columns to a width: pieces with the keys, each in the order of the table, and names left out."""
        leaves_out = bool(self.first and self.all_warnings)
        details = self.details if leaves_out else ()
        if not self.header or (not details and _width(columns) <= width):
            return [columns], []

        importance = {name: rank for rank, name in enumerate(self.first)}
        keys = [column for column in columns if column.is_key]
        values = [column for column in columns if not column.is_key]
        values.sort(key=lambda column: importance.get(column.name, len(importance)))
        pieces: list[list[_DrawnColumn]] = [[]]
        left_out = []
        for column in values:
            fits = _width([*keys, *pieces[-1], column]) <= width
            if (fits or not pieces[-1]) and column.name not in details:
                pieces[-1].append(column)
            elif leaves_out:
                left_out.append(column.name)
            else:
                pieces.append([column])

        in_order = []
        for piece in pieces:
            in_order.append([column for column in columns if column in keys or column in piece])
        names = [column.name for column in columns if column.name in left_out]
        return in_order, names


@dataclass(frozen=True, eq=False)
class _DrawnColumn:
    """A column as it is drawn."""

    name: str
    texts: list[str]
    has_numbers: bool
    is_key: bool


def _are_mostly_numbers(texts: Sequence[str]) -> bool:
    """Return whether more than half of the texts begin with a digit, signs and unknown values left out."""
    values = [text for text in texts if text.strip(f"+-{UNKNOWN}")]
    number_count = sum(text.lstrip("+-±×∞")[:1].isdigit() for text in values)
    return number_count > len(values) / 2


def _rows(columns: Sequence[_DrawnColumn]) -> list[Strings]:
    return list(zip(*(column.texts for column in columns), strict=True))


def _html_row(
    tag: str, texts: Sequence[str], columns: Sequence[_DrawnColumn], titles: Sequence[str] = (), row_style: str = ""
) -> str:
    cells = ""
    for text, column, title in zip(texts, columns, titles or [""] * len(texts), strict=True):
        align = "right" if column.has_numbers else "left"
        tooltip = f' title="{escape(title)}"' if title else ""
        cells += f'<{tag}{tooltip} style="text-align:{align};white-space:pre-line">{escape(text)}</{tag}>'
    return f'<tr style="{row_style}">{cells}</tr>' if row_style else f"<tr>{cells}</tr>"


def _width(columns: Sequence[_DrawnColumn]) -> int:
    """Return the width in terminal columns, with borders and with long texts folded."""
    total = 1
    for column in columns:
        longest = max(map(len, [column.name, *column.texts]))
        if not column.has_numbers and not column.is_key:
            longest = min(longest, _TEXT_WIDTH)
        total += _PADDING + longest
    return total


@dataclass(frozen=True, repr=False)
class Tables(Printable):
    """Tables and texts below each other."""

    members: Sequence[RenderableType]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self.members

    def _repr_html_(self) -> str:
        return "\n".join(map(html, self.members))

    def for_shell(self, verbose: bool) -> Tables:
        """Return the tables as a command shows them (`Table.for_shell`)."""
        members = []
        for member in self.members:
            members.append(member.for_shell(verbose) if isinstance(member, (Table, Tables)) else member)
        return Tables(members)

    def _headline(self) -> str:
        return f"{len(self.members)} tables"


class Summarised(Printable):
    """A result that `print`, rich and notebooks show by its `summary()`."""

    def summary(self) -> RenderableType:
        raise NotImplementedError

    def _headline(self) -> str:
        summary = self.summary()
        return summary._headline() if isinstance(summary, Table) else ""

    def __rich__(self) -> RenderableType:
        return self.summary()

    def _repr_html_(self) -> str:
        return html(self.summary())


def show(value: Any, as_json: bool, renderable: Any) -> None:
    """Print `value` as JSON on stdout (numbers that are not finite as null), or the renderable for a reader."""
    if not as_json:
        return print_table(renderable)
    from pydantic_core import to_json

    print(to_json(value, indent=1, inf_nan_mode="null", fallback=lambda array: array.tolist()).decode())


def print_table(renderable: Any, page_width: int | None = None) -> None:
    """Print a text or a renderable of rich on stdout; a file or a pipe has no width that a table must be cut to.

    A text is printed as it is: no colours for its numbers, and no markup in what a name or a path says. No line is
    longer than `page_width` columns, where that is given.
    """
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = max(console.width, PIPE_WIDTH)
    if page_width is not None:
        console.width = min(console.width, page_width)
    console.print(renderable)


def as_text(renderable: RenderableType, width: int = PIPE_WIDTH) -> str:
    """Return the text that rich prints, without colours."""
    return _record(renderable, width).export_text().rstrip()


def html(renderable: RenderableType, width: int = 120) -> str:
    """Write HTML for `_repr_html_`: tables as tables, the rest as rich prints it, with all text escaped."""
    if hasattr(renderable, "_repr_html_"):
        return str(renderable._repr_html_())
    # Box-drawing characters join only where the font is monospaced and the lines have no gap between them.
    page = '<pre style="white-space:pre;overflow-x:auto;line-height:1.2;font-family:monospace">{code}</pre>'
    return _record(renderable, width).export_html(inline_styles=True, code_format=page)


def _record(renderable: RenderableType, width: int) -> Console:
    from rich.console import Console

    console = Console(record=True, file=io.StringIO(), width=width, force_terminal=True, color_system="truecolor")
    console.print(renderable)
    return console


def markdown_of(contents: Iterable[Part]) -> str:
    """Write a table of the tuples, the header first, and then the texts, a paragraph each."""
    rows: list[tuple[object, ...]] = []
    paragraphs: list[str] = []
    for content in contents:
        if isinstance(content, str):
            paragraphs.append(content)
        else:
            rows.append(content)
    if rows:
        header = list(map(str, rows[0]))
        paragraphs.insert(0, Table(header, rows[1:]).markdown())
    return "\n\n".join(paragraphs)


def join_words(words: Sequence[str], last: str = "and") -> str:
    """Join words as in a sentence: a, b and c."""
    head = ", ".join(words[:-1])
    return f" {last} ".join(filter(None, [head, *words[-1:]]))


def column_name(name: str, present: Collection[str]) -> str:
    """Return the column that a name means: nested fields are train.lr in JSON and trackers, train_lr in runs.parquet.

    A name that means no column is returned as it is.
    """
    if name in present:
        return name
    columns = {column.replace(".", "_"): column for column in present}
    return columns.get(name.replace(".", "_"), name)
