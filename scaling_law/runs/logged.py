"""What runs logged, as one row each: their settings, and of every metric the value at the end of the run."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from hub.base.errors import InputError, given
from scaling_law.runs.rows import Row, is_loss, is_missing, leaves, names_in, number
from scaling_law.runs.trunks import RATES

Final = Literal["last", "minimum", "smoothed"]
SAID = {"last": "last logged", "minimum": "least logged", "smoothed": "mean of the last 5 % logged"}
TAIL = 0.05
RUNS = ("run_id", "run", "run_name", "Name", "name")  # columns that name a run
STEPS = ("step", "Step", "_step", "global_step", "iteration", "iter")  # columns that count a run's lines


def check_final(final: str) -> None:
    """Raise InputError for another rule than there is."""
    if final not in SAID:
        raise InputError(given("final", final), f" must be one of {', '.join(SAID)}")


def final_values(
    logged: Mapping[str, Sequence[float]], final: Final, losses: Collection[str] = ()
) -> dict[str, float]:
    """Find where each metric ends: as `final` says for `losses` and names that end in "loss", else at its last."""
    return {
        name: final_value(values, final if is_loss(name) or name in losses else "last")
        for name, values in logged.items()
    }


def final_value(logged: Sequence[float], final: Final) -> float:
    """Take the last of the values, the least that is a number, or the mean of the last 5 %, NaN without bounds."""
    if final == "last":
        return logged[-1]
    if final == "minimum":
        return min((value for value in logged if not math.isnan(value)), default=math.nan)
    tail = logged[-max(1, round(TAIL * len(logged))) :]
    return math.fsum(tail) / len(tail) if all(map(math.isfinite, tail)) else math.nan


def row_of(
    config: Mapping[str, Any], metrics: Mapping[str, Any], identity: tuple[str, str], status: str
) -> dict[str, Any]:
    """Make a run's row. A metric hides a configured value of its name, which may only be a plan."""
    numbers = {name: value for name, value in metrics.items() if number(value) is not None}
    settings = {name: value for name, value in leaves(config) if name not in numbers and not _is_private(name)}
    row = {name: number(value) for name, value in numbers.items()} | settings
    return row | {"run_id": identity[0], "id": identity[1], "status": status}


def _is_private(name: str) -> bool:
    return any(part.startswith("_") for part in name.split("."))


def lines_by_run(rows: Sequence[Row], name: str = "") -> dict[Any, list[int]] | None:
    """Find the rows of each run in a table of steps, in the order of the steps; None for a table of another kind.

    Such a table has a column of `STEPS`, and runs with rows of several steps. One that names no runs is of another
    kind, unless all of it is a run with this `name`.
    """
    present = names_in(rows)
    step = next((column for column in STEPS if column in present), None)
    named = next((column for column in RUNS if column in present), None)
    if step is None or (named is None and not name):
        return None
    at = [number(row.get(step)) for row in rows]
    groups: dict[Any, list[int]] = {}
    for i, row in enumerate(rows):
        run = name if named is None else row.get(named)
        if is_missing(run) or at[i] is None:
            return None
        groups.setdefault(run, []).append(i)
    for lines in groups.values():
        lines.sort(key=lambda i: at[i] or 0.0)
    if not varies(rows, groups, step):
        return None
    if named != "run_id" and any(varies(rows, groups, setting) for setting in ("seed", *RATES)):
        return None  # a name that several runs share
    return groups


def varies(rows: Sequence[Row], groups: Mapping[Any, Sequence[int]], column: str) -> bool:
    """Tell whether a column has several values within one run."""
    return any(len({number(rows[i].get(column)) for i in lines} - {None}) > 1 for lines in groups.values())


def end_of(
    rows: Sequence[Row], name: Any, lines: Sequence[int], final: Final, losses: Collection[str]
) -> dict[str, Any]:
    """Join the rows of one run into a single one: of each column the last value, of losses that of `final`."""
    values: dict[str, list[Any]] = {}
    for i in lines:
        for column, value in rows[i].items():
            if value is not None:
                values.setdefault(column, []).append(value)
    row: dict[str, Any] = {}
    for column, told in values.items():
        logged = [x for x in map(number, told) if x is not None]
        if logged and (is_loss(column) or column in losses):
            row[column] = final_value(logged, final)
        else:
            row[column] = next((value for value in reversed(told) if not is_missing(value)), told[-1])
    return row | {"run_id": str(name)}
