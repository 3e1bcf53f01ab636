"""Tables for a terminal of any width, a notebook, a Markdown page and a pipe; a quantity looks the same everywhere."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar

from hub.base.markdown import escaped
from hub.base.units import UNKNOWN, format_bytes, format_count, format_flops

if TYPE_CHECKING:
    import pandas
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

# A part of a Markdown page: a row of its table, or a paragraph below.
Part = tuple[object, ...] | str
PIPE_WIDTH = 160  # columns where there is no terminal: tables in a file or a pipe are not cut to one
_SHOWN = 60  # rows that a terminal or a notebook shows of a `ResultTable`
_PADDING = 3  # columns of the terminal that a border and two spaces take
_TEXT_WIDTH = 40  # a column of longer texts is folded before a table is split

_CAPTION = '<caption style="text-align:left;white-space:pre">{}</caption>'


def _ends(form: Callable[[Any], str]) -> Callable[[tuple[float, float]], str]:
    """The format of an interval."""
    return lambda ends: "…".join("∞" if math.isinf(end) else form(end) for end in ends)


_LOSS, _TIMES = "{:.4f}".format, "{:.3g}".format
_FIELDS: dict[str, tuple[str, Callable[[Any], str]]] = {  # field → its label and format
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
    **{name: (name, _TIMES) for name in ("× FLOPs", "× tokens", "× hours")},
    **{f"{name}_interval": ("95 %", _ends(_TIMES)) for name in ("compute", "data", "time")},
    "loss_interval": ("95 %", _ends(_LOSS)),
    "epochs": ("epochs", _TIMES),
    "unique_tokens": ("unique tokens", format_count),
    "weight_bytes": ("weights", format_bytes),
    "kv_cache_bytes": ("KV cache", format_bytes),
    "learning_rate": ("peak LR", "{:.2e}".format),
    "limited_by": ("limited by", str),
    **{name: (name, _LOSS) for name in ("behind", "at equal FLOPs")},
    **{name: (name, _TIMES) for name in ("GPU-s per M", "price per M")},
    "wins": ("wins", "{:.0%}".format),
    "memory_bytes": ("memory", format_bytes),
    **{name: (name, _LOSS) for name in ("loss", "eval_loss", "train_loss", "rmse")},
    "trusted": ("", lambda trusted: "" if trusted else "not trusted"),
    "gain": ("gain", "{:+.4f}".format),
    "token_ratio": ("tokens to match", "{:.3g}".format),
    "dense_n": ("dense N", format_count),
    "dense_tokens": ("dense D", format_count),
    "dense_loss": ("dense loss", _LOSS),
}
_FORMATS = {name: formatted for field, (label, formatted) in _FIELDS.items() for name in (field, label) if name}
_INFINITE = {"flops": "not reached", "memory_bytes": ""}


def cell(name: str, value: object) -> str:
    """The text of a value in the column `name`; a text is shown as it is, None as "–", a NaN as nothing."""
    if value is None or isinstance(value, str):
        return UNKNOWN if value is None else str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return _INFINITE.get(name, "∞" if value > 0 else "-∞") if math.isinf(value) else ""
    if name in _FORMATS:
        return _FORMATS[name](value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _label(name: str) -> str:
    return _FIELDS[name][0] if name in _FIELDS else name


@dataclass(frozen=True)
class Table:
    """Rows of cells under a header; without a header the first column names what the others hold.

    A terminal too narrow for a table gets it in parts, below each other, with nothing cut. Each part repeats `keys`,
    the columns that tell rows apart (default: the first); the first part also has those of `first`. `styles` are
    rich's, one for each row; `total` is a last row, set apart.
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

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, object]], **options: Any) -> Table:
        """Build a table from mappings of field to value with the same fields; columns without text are left out."""
        names = list(rows[0]) if rows else []
        cells = [[cell(name, row[name]) for name in names] for row in rows]
        nonempty = [i for i in range(len(names)) if any(row[i] for row in cells)]
        return cls([_label(names[i]) for i in nonempty], [[row[i] for i in nonempty] for row in cells], **options)

    def markdown(self) -> str:
        """A pipe table. The header is trusted text, every cell is escaped."""
        columns = self._columns()
        lines = ["| " + " | ".join(column.name for column in columns) + " |"]
        lines.append("|" + "|".join("---:" if column.of_numbers else "---" for column in columns) + "|")
        rows = zip(*(column.texts for column in columns), strict=True)
        return "\n".join([*lines, *("| " + " | ".join(map(escaped, row)) + " |" for row in rows)])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich import box
        from rich.table import Table as Grid
        from rich.text import Text

        columns = self._columns()
        # The title is as wide as the terminal; a narrow table would fold its own.
        if self.title:
            yield Text(self.title, style="bold")
        frame = {"box": box.HEAVY_HEAD} if self.header else {"box": None, "show_header": False, "padding": (0, 2)}
        for part in self._parts(columns, options.max_width):
            # A table that does not fit folds numbers and keys, too.
            fits = _width(part) <= options.max_width
            grid = Grid(header_style="bold", **frame)
            for column in part:
                justify: Any = "right" if column.of_numbers else "left"
                style = "bold" if column is columns[0] and not self.header else ""
                whole = fits and (column.of_numbers or column.is_key)
                grid.add_column(Text(column.name), justify=justify, style=style, no_wrap=whole, overflow="fold")
            for at, row in enumerate(zip(*(column.texts for column in part), strict=True)):
                if self.total and at == len(self.rows):
                    grid.add_section()
                grid.add_row(*map(Text, row), style=self.styles[at] if at < len(self.styles) else "")
            yield grid
        yield from (Text(note, style="dim") for note in self.notes)
        yield from (Text(f"⚠ {warning}", style="yellow") for warning in self.warnings)

    def _repr_html_(self) -> str:
        """One `<table>`, in the colours and the font of the page that shows it."""
        from rich.style import Style

        columns = self._columns()
        looks = [Style.parse(style).get_html_style() for style in self.styles]
        looks += [""] * (len(self.rows) - len(looks)) + (["border-top:1px solid"] if self.total else [])
        rows = [_html_row("td", [c.texts[at] for c in columns], columns, look) for at, look in enumerate(looks)]
        head = [_html_row("th", [c.name for c in columns], columns)] if self.header else []
        title = [_CAPTION.format(escape(self.title))] if self.title else []
        below = [f"<p><small>{escape(note)}</small></p>" for note in self.notes]
        below += [f"<p>⚠ {escape(warning)}</p>" for warning in self.warnings]
        table = ["<table>", *title, *head, *rows, "</table>"]
        return "\n".join(['<div style="overflow-x:auto">', *table, *below, "</div>"])

    def _columns(self) -> list[_Column]:
        rows = [*self.rows, *([self.total] if self.total else [])]
        columns = []
        for i, name in enumerate(self.header or [""] * len(rows[0] if rows else ())):
            texts = [cell(name, row[i]) for row in rows]
            told = [text for text in texts if text.strip(f"+-{UNKNOWN}")]
            digits = sum(text.lstrip("+-±×∞")[:1].isdigit() for text in told)
            is_key = i == 0 if self.keys is None or not self.header else name in self.keys
            columns.append(_Column(name, texts, bool(self.header) and digits > len(told) / 2, is_key))
        return columns

    def _parts(self, columns: list[_Column], width: int) -> list[list[_Column]]:
        """The columns in groups of at most `width`, each in their order and with the keys."""
        if not self.header or _width(columns) <= width:
            return [columns]
        keys = [column for column in columns if column.is_key]
        others = sorted((c for c in columns if not c.is_key), key=lambda column: column.name not in self.first)
        parts: list[list[_Column]] = [[]]
        for column in others:
            if parts[-1] and column.name not in self.first and _width([*keys, *parts[-1], column]) > width:
                parts.append([])
            parts[-1].append(column)
        return [[column for column in columns if column in keys or column in part] for part in parts]


@dataclass(frozen=True, eq=False)
class _Column:
    """A column as it is drawn; one of numbers has a digit first in most of its cells."""

    name: str
    texts: list[str]
    of_numbers: bool
    is_key: bool


def _html_row(kind: str, texts: Sequence[str], columns: Sequence[_Column], look: str = "") -> str:
    cells = []
    for text, column in zip(texts, columns, strict=True):
        align = f"text-align:{'right' if column.of_numbers else 'left'}"
        cells.append(f'<{kind} style="{align};white-space:pre-line">{escape(text)}</{kind}>')
    return f'<tr style="{look}">{"".join(cells)}</tr>' if look else f"<tr>{''.join(cells)}</tr>"


def _width(columns: Sequence[_Column]) -> int:
    """The width in terminal columns, with borders and with long texts folded."""
    total = 1
    for column in columns:
        longest = max(map(len, [column.name, *column.texts]))
        total += _PADDING + (longest if column.of_numbers or column.is_key else min(longest, _TEXT_WIDTH))
    return total


def rows_of(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One dict of plain values for each element of the columns, which broadcast."""
    import numpy as np

    lists = [np.ravel(column).tolist() for column in np.broadcast_arrays(*columns.values())]
    return [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]


class Summarised:
    """A result whose `summary()` is what rich prints of it, and what a notebook shows."""

    def summary(self) -> RenderableType:
        raise NotImplementedError

    def __rich__(self) -> RenderableType:
        return self.summary()

    def _repr_html_(self) -> str:
        return html(self.summary())


class ResultTable(Summarised):
    """The base of results with one value per question; `_question` names the columns that identify a question."""

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
        return rows_of(self._columns())

    def to_dataframe(self) -> pandas.DataFrame:
        """One line for each question (pandas)."""
        import pandas

        return pandas.DataFrame(self.to_rows())

    def summary(self) -> Table:
        rows = self.to_rows()
        keys = [name for name in self._question if name == "experts" or len({row[name] for row in rows}) > 1]
        more = len(rows) - _SHOWN
        return Table.of(
            rows[:_SHOWN],
            keys=list(map(_label, keys)),
            first=("FLOPs", "N_act", "tokens", "loss", "memory", ""),
            styles=["" if row.get("trusted", True) else "dim" for row in rows[:_SHOWN]],
            notes=[f"… {more:,} more rows: to_dataframe() has all"] if more > 0 else (),
            warnings=self.warnings,
        )


def show(value: Any, as_json: bool, renderable: Any) -> None:
    """Print `value` as JSON on stdout (`--json`; what is not finite as null), or the renderable for a reader."""
    if not as_json:
        return print_table(renderable)
    from pydantic_core import to_json

    print(to_json(value, indent=1, inf_nan_mode="null", fallback=lambda array: array.tolist()).decode())


def print_table(renderable: Any) -> None:
    """Print what rich renders on stdout; a file or a pipe has no width that a table must be cut to.

    A text is printed as it is: no colours for its numbers, and no markup in what a name or a path says.
    """
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = max(console.width, PIPE_WIDTH)
    console.print(renderable)


def as_text(renderable: RenderableType, width: int = PIPE_WIDTH) -> str:
    """The text that rich prints, without colours."""
    return _recorded(renderable, width).export_text().rstrip()


def html(renderable: RenderableType, width: int = 120) -> str:
    """HTML for `_repr_html_`: tables as tables, the rest as rich prints it. Text is escaped: names add no markup."""
    from rich.console import Group

    if isinstance(renderable, Group):
        return "\n".join(html(part, width) for part in renderable.renderables)
    if hasattr(renderable, "_repr_html_"):
        return str(renderable._repr_html_())
    # Box-drawing characters join only where the font is monospaced and the lines have no gap between them.
    page = '<pre style="white-space:pre;overflow-x:auto;line-height:1.2;font-family:monospace">{code}</pre>'
    return _recorded(renderable, width).export_html(inline_styles=True, code_format=page)


def _recorded(renderable: RenderableType, width: int) -> Console:
    from rich.console import Console

    console = Console(record=True, file=io.StringIO(), width=width, force_terminal=True, color_system="truecolor")
    console.print(renderable)
    return console


def markdown_of(parts: Iterable[Part]) -> str:
    """A table of the tuples, the header first, and then the texts, a paragraph each."""
    every = list(parts)
    rows, texts = [p for p in every if not isinstance(p, str)], [p for p in every if isinstance(p, str)]
    return "\n\n".join([*([Table(list(map(str, rows[0])), rows[1:]).markdown()] if rows else []), *texts])


def enumerated(words: Sequence[str], last: str = "and") -> str:
    """Words joined as in a sentence: a, b and c."""
    return f" {last} ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def literal(value: Any) -> str:
    """`repr` of a value as Python writes it, also where it comes from numpy: 0.5, not np.float64(0.5)."""
    return repr(value.tolist() if hasattr(value, "tolist") else value)
