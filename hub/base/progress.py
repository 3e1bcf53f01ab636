"""The progress line of every long task: name, share done, a loss or objective, rate, time left.

Drawn by rich on a terminal and in a notebook; a file or a pipe gets a line of text once a minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from hub.base.units import format_count

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, Task

# Takes the progress made and the text beside the bar.
Advance = Callable[[float, str], None]

_LINE_SECONDS = 60.0
# Seconds over which the rate in a line is taken.
_RATE_SECONDS = 600.0
# Longest time left that is shown.
_LONGEST_SECONDS = 1e9


def progress_bars(console: Console | None = None) -> Progress:
    """Make bars of tasks with the fields `detail`, the text beside a bar, and `unit`, which is counted; "": no rate.

    A line stays whole on a terminal of 80 columns. `console` is by default that of stderr. Where it is no terminal,
    all visible tasks together are a line of text once a minute.
    """
    from rich import progress
    from rich.console import Console
    from rich.table import Column
    from rich.text import Text

    class Rate(progress.ProgressColumn):
        def render(self, task: progress.Task) -> Text:
            unit = task.fields["unit"]
            return Text(format_rate(task.finished_speed or task.speed, unit) if unit else "")

    class Lines(progress.Progress):
        """Instead of drawing, write the state of the tasks once a minute, as they go on."""

        def start(self) -> None:
            self._written = time.monotonic()

        def stop(self) -> None:
            pass

        def update(self, *arguments: Any, **fields: Any) -> None:
            super().update(*arguments, **fields)
            tasks = [task for task in self.tasks if task.visible and not task.finished]
            if tasks and time.monotonic() - self._written >= _LINE_SECONDS:
                self._written = time.monotonic()
                self.console.print(Text("; ".join(map(_describe, tasks))), soft_wrap=True)

    unbroken = Column(no_wrap=True)
    columns = (
        progress.TextColumn("{task.description}", table_column=unbroken.copy()),
        progress.BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=4)),
        progress.TaskProgressColumn(table_column=unbroken.copy()),
        progress.TextColumn("{task.fields[detail]}", table_column=unbroken.copy()),
        Rate(table_column=unbroken.copy()),
        progress.TimeRemainingColumn(compact=True, table_column=unbroken.copy()),
    )
    console = console or Console(stderr=True)
    if console.is_terminal or console.is_jupyter:
        return progress.Progress(*columns, console=console, transient=True, expand=True)
    return Lines(console=console, speed_estimate_period=_RATE_SECONDS)


def _describe(task: Task) -> str:
    """Describe a task in words; its first update counts for no rate, since an earlier start may have done that."""
    from rich.text import Text

    name = Text.from_markup(task.description).plain
    unit = task.fields["unit"]
    share = f"{task.completed / task.total:.0%}" if task.total else format_count(task.completed)
    total = f" of {format_count(task.total)}" if task.total and unit else ""
    clauses = [f"{name}: {share}{total} {unit}".rstrip(), task.fields["detail"]]
    if unit:
        clauses.append(format_rate(task.speed, unit))
    seconds = min(task.time_remaining or 0, _LONGEST_SECONDS)
    if seconds:
        clauses.append(f"{timedelta(seconds=seconds)} left")
    return ", ".join(filter(None, clauses))


@contextmanager
def progress_line(
    name: str, total: float | None, unit: str, visible: bool = True, console: Console | None = None, done: int = 0
) -> Iterator[Advance]:
    """Show a progress line for a `total` of `unit` (None: unknown), `done` of which are finished.

    Yields the function that advances it. Draws nothing, and does not import rich, unless `visible`.
    """
    if not visible:
        yield lambda steps, detail: None
        return
    with progress_bars(console) as display:
        task = display.add_task(name, total=total, completed=done, detail="", unit=unit)

        def advance(steps: float, detail: str) -> None:
            display.update(task, advance=steps, detail=detail)

        yield advance


def format_rate(per_second: float | None, unit: str) -> str:
    """Write 12.3K tokens/s, or 4.5 runs/min where less than one is done in a second; nothing while it is unknown."""
    if not per_second:
        return ""
    return f"{format_count(per_second)} {unit}/s" if per_second >= 1 else f"{format_count(60 * per_second)} {unit}/min"
