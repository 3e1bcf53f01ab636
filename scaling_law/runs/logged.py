"""Logs of runs as one row each: the settings, and the final value of every metric."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from hub.base.errors import InputError, given
from hub.base.types import Fields
from scaling_law.runs.rows import Row, is_loss, is_missing, leaves, names_in, number
from scaling_law.runs.trunks import RATES

Final = Literal["last", "minimum", "smoothed"]
# Each rule in words.
RULES = {"last": "last logged", "minimum": "least logged", "smoothed": "mean of the last 5 % logged"}
# Share of the values that a smoothed one averages.
TAIL = 0.05
# Columns that name a run, and columns that count its lines.
RUNS = ("run_id", "run", "run_name", "Name", "name")
STEPS = ("step", "Step", "_step", "global_step", "iteration", "iter")


def check_final(final: str) -> None:
    """Raise InputError for another rule than there is."""
    if final not in RULES:
        raise InputError(given("final", final), f" must be one of {', '.join(RULES)}")


def final_values(
    logged: Mapping[str, Sequence[float]],
    final: Final,
    losses: Collection[str] = (),
) -> dict[str, float]:
    """Find the final value of each metric: by the rule `final` for losses, else the last one.

    Losses are metrics whose name ends in "loss", and `losses`.
    """
    values = {}
    for name, series in logged.items():
        is_loss_name = is_loss(name) or name in losses
        values[name] = final_value(series, final if is_loss_name else "last")
    return values


def final_value(logged: Sequence[float], final: Final) -> float:
    """Take the last of the values, the least that is a number, or the mean of the last 5 %, NaN without bounds."""
    if final == "last":
        return logged[-1]
    if final == "minimum":
        return min((value for value in logged if not math.isnan(value)), default=math.nan)

    tail = logged[-max(1, round(TAIL * len(logged))) :]
    if not all(map(math.isfinite, tail)):
        return math.nan
    return math.fsum(tail) / len(tail)


def row_of(
    config: Mapping[str, Any],
    metrics: Mapping[str, Any],
    identity: tuple[str, str],
    status: str,
    group: str | None = None,
) -> Fields:
    """Make a run's row. A metric hides a configured value of its name, which may only be a plan.

    The `group` under which the tracker shows the run is a column, unless the run has one of that name.
    """
    numbers: Fields = {}
    for name, value in metrics.items():
        if number(value) is not None:
            numbers[name] = number(value)

    row = dict(numbers)
    for name, value in leaves(config):
        if name not in numbers and not _is_private(name):
            row[name] = value
    row["run_id"], row["id"] = identity
    row["status"] = status
    if group:
        row.setdefault("group", group)
    return row


def _is_private(name: str) -> bool:
    return any(field.startswith("_") for field in name.split("."))


def lines_by_run(rows: Sequence[Row], name: str = "") -> dict[Any, list[int]] | None:
    """Find the rows of each run in a table of steps, in the order of the steps; None for any other table.

    A table of steps has a column of `STEPS`, and runs with rows of several steps. If it does not name runs, it must be
    a single run with this `name`.
    """
    present = names_in(rows)
    step_column = next((column for column in STEPS if column in present), None)
    name_column = next((column for column in RUNS if column in present), None)
    if step_column is None or (name_column is None and not name):
        return None

    steps = [number(row.get(step_column)) for row in rows]
    groups: dict[Any, list[int]] = {}
    for i, row in enumerate(rows):
        run = name if name_column is None else row.get(name_column)
        if is_missing(run) or steps[i] is None:
            return None
        groups.setdefault(run, []).append(i)
    for lines in groups.values():
        lines.sort(key=lambda i: steps[i] or 0.0)

    if not varies(rows, groups, step_column):
        return None
    # Several runs may share a name that is no id.
    if name_column != "run_id" and any(varies(rows, groups, setting) for setting in ("seed", *RATES)):
        return None
    return groups


def varies(rows: Sequence[Row], groups: Mapping[Any, Sequence[int]], column: str) -> bool:
    """Return whether a column has several values within one run."""
    for lines in groups.values():
        values = {number(rows[i].get(column)) for i in lines}
        if len(values - {None}) > 1:
            return True
    return False


def end_of(
    rows: Sequence[Row],
    name: Any,
    lines: Sequence[int],
    final: Final,
    losses: Collection[str],
) -> Fields:
    """Join the rows of one run into a single one, with the final loss by the rule `final`, else the last values."""
    values: dict[str, list[Any]] = {}
    for i in lines:
        for column, value in rows[i].items():
            if value is not None:
                values.setdefault(column, []).append(value)

    row: Fields = {}
    for column, cells in values.items():
        logged = [x for x in map(number, cells) if x is not None]
        if logged and (is_loss(column) or column in losses):
            row[column] = final_value(logged, final)
        else:
            present = [value for value in cells if not is_missing(value)]
            row[column] = present[-1] if present else cells[-1]
    row["run_id"] = str(name)
    return row
