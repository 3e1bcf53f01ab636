"""What runs logged, as one row each: their settings, and the final value of every metric."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hub.base.types import Fields
from scaling_law.runs.rows import Row, flatten, is_loss, is_missing, names_of, number
from scaling_law.runs.trunks import RATES

Final = Literal["last", "minimum", "smoothed"]
# Each rule in words.
RULES = {"last": "last logged", "minimum": "least logged", "smoothed": "mean of the last 5 % logged"}
# Share of the values that a smoothed one averages.
TAIL = 0.05
# Columns that name a run, and columns that count its lines.
RUNS = ("run_id", "run", "run_name", "Name", "name")
STEPS = ("step", "Step", "_step", "global_step", "iteration", "iter")
# Columns that a chart may have instead of steps, and those with the bounds of its buckets.
TIMES = ("Relative Time", "Wall Time")
BOUNDS = ("__MIN", "__MAX")


def collect(lines: Iterable[Row]) -> dict[str, list[Any]]:
    """Collect the values of each column, one for each line, None where it has none; a column of none is left out."""
    all_lines = [*lines]
    logged = {}

    for name in names_of(all_lines):
        values = [line.get(name) for line in all_lines]
        if values != [None] * len(values):
            logged[name] = values

    return logged


@dataclass(frozen=True)
class End:
    """The rule by which the final value of a column is found: of losses `final`, else the last that there is.

    Losses are columns whose name ends in "loss", and `losses`. A list `histories` gets all that each run logged, in
    the order of the rows that are made of it.
    """

    final: Final
    losses: Collection[str] = ()
    histories: list[Mapping[str, Sequence[Any]]] | None = None

    def needs_history(self, name: str) -> bool:
        """Return whether the last value of a column does not tell its final one."""
        return self.final != "last" and (is_loss(name) or name in self.losses)

    def __call__(self, logged: Mapping[str, Sequence[Any]]) -> Fields:
        """Find the final value of each column of a run."""
        if self.histories is not None:
            self.histories.append(logged)

        row: Fields = {}

        for name, cells in logged.items():
            row[name] = next((value for value in reversed(cells) if not is_missing(value)), cells[-1])
            if is_loss(name) or name in self.losses:
                numbers = [x for x in map(number, cells) if x is not None]
                if numbers:
                    row[name] = final_value(numbers, self.final)

        return row


def final_value(logged: Sequence[float], final: Final) -> float:
    """Take the last of the values, the least that is a number, or the mean of the last 5 %, NaN without bounds."""
    if final == "last":
        return logged[-1]

    if final == "minimum":
        return min((value for value in logged if not math.isnan(value)), default=math.nan)

    tail = logged[-max(1, round(TAIL * len(logged))) :]

    return math.fsum(tail) / len(tail) if all(map(math.isfinite, tail)) else math.nan


def row_of(name: str, metrics: Row, settings: Row, status: str, key: str = "", group: str | None = None) -> Fields:
    """Make the row of a run with these final metrics, which hide settings of their names that may only be plans.

    The tracker has the run under the `key`, and shows it in the `group`.
    """
    row: Fields = {}

    for metric, value in metrics.items():
        x = number(value)
        if x is not None:
            row[metric] = x

    for field, value in flatten(settings).items():
        # Fields of trackers begin with an underscore, at any depth.
        if not f".{field}".count("._"):
            row.setdefault(field, value)

    row.update(run_id=name, id=key or name, status=status)
    if group:
        row.setdefault("group", group)

    return row


def places_by_run(rows: Sequence[Row], name: str | None = None) -> dict[Any, list[int]]:
    """Group the places of rows by the run that they name; without a column of names, all are of the run `name`."""
    present = names_of(rows)
    column = next((column for column in RUNS if column in present), None)
    places: dict[Any, list[int]] = {}

    for i, row in enumerate(rows):
        places.setdefault(row.get(column) if column else name, []).append(i)

    return places


def lines_by_run(rows: Sequence[Row], name: str | None = None) -> dict[Any, list[int]] | None:
    """Find the rows of each run in a table of steps, in the order of the steps; None for any other table.

    A table of steps has a column of `STEPS`, and runs with rows of several steps. If it does not name runs, it must be
    a single run with this `name`.
    """
    present = names_of(rows)
    step_column = next((column for column in STEPS if column in present), "")
    groups = places_by_run(rows, name)
    steps = [number(row.get(step_column)) for row in rows]
    if None in steps or any(map(is_missing, groups)):
        return None

    for lines in groups.values():
        lines.sort(key=lambda i: steps[i] or 0.0)

    # Several runs may share a name that is no id.
    shared = () if "run_id" in present else ("seed", *RATES)
    if not varies(rows, groups, step_column) or any(varies(rows, groups, setting) for setting in shared):
        return None

    return groups


def varies(rows: Sequence[Row], groups: Mapping[Any, Sequence[int]], column: str) -> bool:
    """Return whether a column has several values within one run."""
    for lines in groups.values():
        values = {number(rows[i].get(column)) for i in lines}
        if len(values - {None}) > 1:
            return True

    return False


def chart_rows(rows: Sequence[Row], end: End) -> list[Row] | None:
    """Make one row for each run of a chart's export, with columns for steps and "RUN - METRIC"; None for others.

    Besides, a chart has the bounds of buckets, which are ignored, a metric of several runs, or an axis of steps.
    """
    axis, *columns = names_of(rows) or [""]
    series = {name: name.rpartition(" - ") for name in columns if not name.endswith(BOUNDS)}
    metrics = {metric for _, _, metric in series.values()}
    is_bounded = len(series) < len(columns)
    has_axis = axis in STEPS or axis.startswith(TIMES)
    are_runs = bool(series) and all(run for run, _, _ in series.values())
    if not are_runs or not (is_bounded or has_axis or len(metrics) < len(series)):
        return None

    runs: dict[str, list[Row]] = {}

    for row in rows:
        for name, (run, _, metric) in series.items():
            if number(row.get(name)) is not None:
                line = {metric: number(row[name]), "step" if axis == "Step" else axis: number(row.get(axis))}
                runs.setdefault(run, []).append(line)

    return [{**end(collect(lines)), "run_id": run} for run, lines in runs.items()]
