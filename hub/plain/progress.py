"""The one progress line of everything that takes long: what, how far, a loss or objective, the rate, the time left.

Drawn by rich on a terminal and in a notebook; a file or a pipe gets no bars.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hub.plain.units import format_count

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

Advance = Callable[[float, str], None]  # by how much; what is said beside the bar


def progress_bars(console: Console | None = None) -> Progress:
    """Bars of tasks with the fields `detail`, the text beside a bar, and `unit`, which is counted; "": no rate.

    A line stays whole on a terminal of 80 columns. `console`: default that of stderr.
    """
    from rich import progress
    from rich.console import Console
    from rich.table import Column
    from rich.text import Text

    class Rate(progress.ProgressColumn):
        def render(self, task: progress.Task) -> Text:
            unit = task.fields["unit"]
            return Text(format_rate(task.finished_speed or task.speed, unit) if unit else "")

    whole = Column(no_wrap=True)
    columns = (
        progress.TextColumn("{task.description}", table_column=whole.copy()),
        progress.BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=4)),
        progress.TaskProgressColumn(table_column=whole.copy()),
        progress.TextColumn("{task.fields[detail]}", table_column=whole.copy()),
        Rate(table_column=whole.copy()),
        progress.TimeRemainingColumn(compact=True, table_column=whole.copy()),
    )
    where = console or Console(stderr=True)
    hidden = not (where.is_terminal or where.is_jupyter)
    return progress.Progress(*columns, console=where, transient=True, expand=True, disable=hidden)


@contextmanager
def progress_line(
    what: str, total: float, unit: str, shown: bool = True, console: Console | None = None
) -> Iterator[Advance]:
    """One such line for a `total` of `unit`; the value advances it. Nothing, and no rich, unless `shown`."""
    if not shown:
        yield lambda steps, detail: None
        return
    with progress_bars(console) as display:
        task = display.add_task(what, total=total, detail="", unit=unit)

        def advance(steps: float, detail: str) -> None:
            display.update(task, advance=steps, detail=detail)

        yield advance


def format_rate(per_second: float | None, unit: str) -> str:
    """12.3K tokens/s, or 4.5 runs/min where less than one is done in a second; nothing while it is unknown."""
    if not per_second:
        return ""
    return f"{format_count(per_second)} {unit}/s" if per_second >= 1 else f"{format_count(60 * per_second)} {unit}/min"
