"""Tables for a terminal of any width, a notebook, a Markdown page and a pipe; a quantity looks the same everywhere."""

from __future__ import annotations

import io
import math
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar, cast

from hub.base.markdown import escape_markdown
from hub.base.notices import brief_lines
from hub.base.types import Fields, Strings
from hub.base.units import UNKNOWN, format_bytes, format_count, format_ends, format_flops, format_rough

if TYPE_CHECKING:
    import pandas
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

# A part of a Markdown page: a row of its table, or a paragraph below.
Part = tuple[object, ...] | str
# Columns where there is no terminal: tables in a file or a pipe are not cut to one.
PIPE_WIDTH = 160
# Rows of a `ResultTable` that a terminal or a notebook shows.
_MAX_ROWS = 60
# Columns of counts, which are integers where they are whole.
_COUNTS = ("experts", "d_model", "n_active", "n_total", "tokens")
# Columns of the terminal that a border and two spaces take.
_PADDING = 3
# A column of longer texts is folded before a table is split.
_TEXT_WIDTH = 40

_CAPTION = '<caption style="text-align:left;white-space:pre">{}</caption>'


def _interval(form: Callable[[Any], str]) -> Callable[[tuple[float, float]], str]:
    """Return the format of an interval, whose bounds have the format `form`."""

    def format_interval(bounds: tuple[float, float]) -> str:
        return "…".join("∞" if math.isinf(bound) else form(bound) for bound in bounds)

    return format_interval


_LOSS = "{:.4f}".format
_TIMES = "{:.3g}".format
# Label and format of each field.
_FIELDS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "experts": ("E", "{:g}".format),
    "d_model": ("d_model", "{:.0f}".format),
    "n_active": ("N_act", format_count),
    "n_total": ("N_total", format_count),
    "tokens": ("tokens", format_count),
    "tokens_low": ("2.5 %", format_count),
    "tokens_high": ("97.5 %", format_count),
    "tokens_per_parameter": ("D/N", format_count),
    "flops": ("FLOPs", format_flops),
    "training_flops": ("FLOPs", format_flops),
    "× FLOPs": ("× FLOPs", _TIMES),
    "× tokens": ("× tokens", _TIMES),
    "× hours": ("× hours", _TIMES),
    "floor": ("floor", _LOSS),
    "compute_interval": ("95 %", _interval(format_rough)),
    "data_interval": ("95 %", _interval(format_rough)),
    "time_interval": ("95 %", _interval(format_rough)),
    "loss_interval": ("95 %", lambda bounds: "…".join(format_ends(*bounds))),
    "hours_interval": ("95 % of hours", _interval(format_rough)),
    "epochs": ("epochs", _TIMES),
    "unique_tokens": ("unique tokens", format_count),
    "weight_bytes": ("weights", format_bytes),
    "kv_cache_bytes": ("KV cache", format_bytes),
    "hours": ("hours", _TIMES),
    "mfu": ("MFU", "{:.1%}".format),
    "learning_rate": ("peak LR", "{:.2e}".format),
    "limited_by": ("limited by", str),
    "behind": ("behind", _LOSS),
    "at equal FLOPs": ("at equal FLOPs", _LOSS),
    "GPU-s per M": ("GPU-s per M", _TIMES),
    "price per M": ("price per M", _TIMES),
    "wins": ("wins", "{:.0%}".format),
    "memory_bytes": ("memory", format_bytes),
    "loss": ("loss", _LOSS),
    "eval_loss": ("eval_loss", _LOSS),
    "train_loss": ("train_loss", _LOSS),
    "rmse": ("rmse", _LOSS),
    "times_beyond": ("× largest run", _TIMES),
    "share_of_constant": ("share of c", "{:.0%}".format),
    "trusted": ("", lambda is_trusted: "" if is_trusted else "not trusted"),
}
# A column may be named by its field or by the label of it.
_FORMATS = {label: form for label, form in _FIELDS.values() if label}
_FORMATS.update((field, form) for field, (_, form) in _FIELDS.items())
_INFINITE = {"flops": "not reached", "memory_bytes": ""}


def cell(name: str, value: object) -> str:
    """Format a value of the column `name`; a text stays as it is, None is "–" and a NaN nothing."""
    if value is None:
        return UNKNOWN
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float) and math.isnan(value):
        return ""
    if isinstance(value, float) and math.isinf(value):
        return _INFINITE.get(name, "∞" if value > 0 else "-∞")
    if name in _FORMATS:
        return _FORMATS[name](value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _label(name: str) -> str:
    return _FIELDS[name][0] if name in _FIELDS else name


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

    A terminal too narrow for a table gets it in pieces, below each other, with nothing cut. Each piece repeats `keys`,
    the columns that tell rows apart (default: the first); the first piece also has those of `first`. `styles` are
    rich's, one for each row; `total` is a last row, set apart. Warnings that have a short form share a line, which
    says that the others are in `all_warnings`; without it, each is shown in full.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[object]]
    title: str | None = None
    keys: Sequence[str] | None = None
    first: Sequence[str] = ()
    styles: Sequence[str] = ()
    total: Sequence[object] = ()
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()
    all_warnings: str = ".warnings"

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, object]], **options: Any) -> Table:
        """Build a table from mappings of field to value with the same fields; columns without text are left out."""
        names = list(rows[0]) if rows else []
        cells = [[cell(name, row[name]) for name in names] for row in rows]
        nonempty = [i for i in range(len(names)) if any(row[i] for row in cells)]
        header = [_label(names[i]) for i in nonempty]
        return cls(header, [[row[i] for i in nonempty] for row in cells], **options)

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
        for piece in self._split_columns(columns, options.max_width):
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
        for note in self.notes:
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
            lines.append(_html_row("th", self.header, columns))
        for row, style in zip(_rows(columns), styles, strict=False):
            lines.append(_html_row("td", row, columns, style))
        lines.append("</table></div>")
        lines += [f"<p><small>{escape(note)}</small></p>" for note in self.notes]
        shown_warnings = self._shown_warnings()
        lines += [f"<p>⚠ {escape(warning)}</p>" for warning in shown_warnings]
        if len(shown_warnings) < len(self.warnings):
            items = "".join(f"<li>{escape(warning)}</li>" for warning in self.warnings)
            lines.append(f"<details><summary>All warnings</summary><ul>{items}</ul></details>")
        return "\n".join(lines)

    def _columns(self) -> list[_Column]:
        rows = list(self.rows)
        if self.total:
            rows.append(self.total)
        names = self.header
        if not names and rows:
            names = [""] * len(rows[0])
        columns = []
        for i, name in enumerate(names):
            texts = [cell(name, row[i]) for row in rows]
            is_key = i == 0 if self.keys is None or not self.header else name in self.keys
            has_numbers = bool(self.header) and _are_mostly_numbers(texts)
            columns.append(_Column(name, texts, has_numbers, is_key))
        return columns

    def _split_columns(self, columns: list[_Column], width: int) -> list[list[_Column]]:
        """Split the columns into pieces of at most `width`, each in their order and with the keys."""
        if not self.header or _width(columns) <= width:
            return [columns]
        keys = [column for column in columns if column.is_key]
        values = [column for column in columns if not column.is_key]
        values.sort(key=lambda column: column.name not in self.first)
        pieces: list[list[_Column]] = [[]]
        for column in values:
            piece = pieces[-1]
            if piece and column.name not in self.first and _width([*keys, *piece, column]) > width:
                piece = []
                pieces.append(piece)
            piece.append(column)
        return [[column for column in columns if column in keys or column in piece] for piece in pieces]


@dataclass(frozen=True, eq=False)
class _Column:
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


def _rows(columns: Sequence[_Column]) -> list[Strings]:
    return list(zip(*(column.texts for column in columns), strict=True))


def _html_row(tag: str, texts: Sequence[str], columns: Sequence[_Column], row_style: str = "") -> str:
    cells = ""
    for text, column in zip(texts, columns, strict=True):
        align = "right" if column.has_numbers else "left"
        cells += f'<{tag} style="text-align:{align};white-space:pre-line">{escape(text)}</{tag}>'
    return f'<tr style="{row_style}">{cells}</tr>' if row_style else f"<tr>{cells}</tr>"


def _width(columns: Sequence[_Column]) -> int:
    """Return the width in terminal columns, with borders and with long texts folded."""
    total = 1
    for column in columns:
        longest = max(map(len, [column.name, *column.texts]))
        if not column.has_numbers and not column.is_key:
            longest = min(longest, _TEXT_WIDTH)
        total += _PADDING + longest
    return total


def rows_of(columns: Mapping[str, Any]) -> list[Fields]:
    """Return one dict of plain values for each element of the columns, which broadcast; whole counts are integers."""
    import numpy as np

    lists = []
    for name, column in zip(columns, np.broadcast_arrays(*columns.values()), strict=True):
        values = np.ravel(column).tolist()
        lists.append([_whole(value) for value in values] if name in _COUNTS else values)
    return [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]


def _whole(value: Any) -> Any:
    """Return a whole number as an integer, any other value as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


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


class Listed(Summarised):
    """A dataclass that shows its fields, a line each: those with `repr=True` that have a value without parts."""

    def summary(self) -> Table:
        rows = []
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            is_empty = value is None or (isinstance(value, (str, tuple, Mapping)) and not value)
            is_nested = is_dataclass(value) or (isinstance(value, tuple) and isinstance(next(iter(value), 0), tuple))
            if field.repr and not (is_empty or is_nested):
                rows.append((_label(field.name) or field.name, _line(field.name, value)))
        return Table((), rows, title=self._headline() or None)

    def _headline(self) -> str:
        return ""


def _line(name: str, value: object) -> str:
    """Format the value of a field: texts a line each, a mapping by its keys, and two numbers as an interval."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {cell('', number)}" for key, number in value.items())
    if not isinstance(value, tuple) or name in _FORMATS:
        return cell(name, value)
    if all(isinstance(text, str) for text in value):
        return "\n".join(value)
    return _interval(_TIMES)(value) if len(value) == 2 else str(value)


class ResultTable(Summarised):
    """The base of results with one value per question; `_question` names the columns that identify a question."""

    _question: ClassVar[Strings] = ("flops", "experts")

    @property
    def warnings(self) -> Strings:
        """The largest extrapolation of the answers in each quantity."""
        return ()

    def _columns(self) -> Fields:
        """Return the arrays by name; all broadcast to one shape."""
        raise NotImplementedError

    def to_rows(self) -> list[Fields]:
        """Return one dict of plain values for each question, in the order of the arrays."""
        return rows_of(self._columns())

    def _headline(self) -> str:
        return f"{len(self.to_rows())} rows"

    def to_dataframe(self) -> pandas.DataFrame:
        """Return one line for each question (pandas)."""
        import pandas

        return pandas.DataFrame(self.to_rows())

    def summary(self) -> Table:
        rows = self.to_rows()
        keys = []
        for name in self._question:
            values = {row[name] for row in rows}
            if name == "experts" or len(values) > 1:
                keys.append(_label(name))
        notes = []
        if len(rows) > _MAX_ROWS:
            notes.append(f"… {len(rows) - _MAX_ROWS:,} more rows: to_dataframe() has all")
            rows = rows[:_MAX_ROWS]
        return Table.of(
            rows,
            keys=keys,
            first=("FLOPs", "N_act", "tokens", "loss", "memory", ""),
            styles=["" if row.get("trusted", True) else "dim" for row in rows],
            notes=notes,
            warnings=self.warnings,
        )


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


def literal(value: Any) -> str:
    """Write a value as Python does, also where it comes from numpy: 0.5, not np.float64(0.5)."""
    return repr(value.tolist() if hasattr(value, "tolist") else value)
