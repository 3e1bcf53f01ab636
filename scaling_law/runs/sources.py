"""Where rows of runs are read from: tables, trackers, and the logs that runs left."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from scaling_law.runs.logged import Final, chart_rows
from scaling_law.runs.rows import RunsError, read_rows
from scaling_law.runs.run_logs import log_rows
from scaling_law.runs.trackers import is_tracker, tracker_rows

if TYPE_CHECKING:
    from hub import LoadedRows

Kind = Literal["table", "tracker", "logs", "chart"]
CURVE = {"Wall time", "Step", "Value"}
# Words about a source where columns are missing.
LACKS = {
    "chart": " (a chart of W&B, step by run: its table of runs, or wandb:ENTITY/PROJECT, has their sizes, too)",
}


def read_source(
    source: Any,
    final: Final = "last",
    losses: Collection[str] = (),
    revision: str | None = None,
    problems: list[str] | None = None,
    config: str | None = None,
) -> tuple[LoadedRows, Kind]:
    """Read the rows of any source that `load_runs` takes, and return its kind; all but tables have one row for a run.

    A list `problems` gets the rows that were left out. Errors are those of `read_rows`, `tracker_rows` and `log_rows`.
    """
    if is_tracker(source):
        return tracker_rows(source, final, losses), "tracker"
    if isinstance(source, (str, Path)):
        logs = log_rows(source, final, losses)
        if logs is not None:
            return logs, "logs"

    table = read_rows(source, revision, problems, config)
    if table.rows and set(table.rows[0]) == CURVE:
        raise RunsError(f"{table.name}: a curve that TensorBoard exports: name the folder of its event files instead")
    chart = chart_rows(table.rows, final, losses)
    return (table, "table") if chart is None else (replace(table, rows=chart), "chart")
