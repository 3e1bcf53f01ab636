"""Checks of rows before a law is fitted on them: their numbers, their sizes, and that none is a duplicate."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hub.base.errors import Message, given, message
from hub.base.inputs import LARGEST
from hub.base.notices import Notice
from hub.base.numerals import why_no_number
from hub.base.tables import literal
from scaling_law.formulas.law import SMALLEST
from scaling_law.runs.architectures import size_problem
from scaling_law.runs.columns import INPUTS
from scaling_law.runs.rows import SKIP, FloatArray, Row, label, number

# Least factors in tokens, and in loss, by which a longer run of a model lies above a shorter one and is not noise.
LEAST_STEP = 1.2
LEAST_RISE = 1.005
# The largest share of such runs that are taken for mistakes.
MOST_RISING = 0.2
# Unusable rows that an error lists.
LISTED = 8
# Fields by which a filter can leave out a single row.
_NAMES = ("id", "run_id")


def row_problems(
    rows: Sequence[Row],
    places: Iterable[int],
    loss: str,
    settings: Sequence[str],
    *,
    check_ids: bool = False,
    check_sizes: bool = False,
    is_step_log: bool = False,
) -> list[str]:
    """Describe the problem of each row at these places, "" for a sound row.

    Rows of equal N, D, E and loss are duplicates unless they differ in one of the `settings`.

    Args:
        check_ids: a run_id may stand in several rows only as the checkpoints of one model, after different tokens.
        check_sizes: the sizes of a row must not contradict its shape.
        is_step_log: the rows of a run are its steps, which the advice for duplicates takes into account.
    """
    duplicates = _Duplicates(rows, settings, check_ids, is_step_log)
    problems: list[str] = []
    for i in places:
        row = rows[i]
        values = {name: number(row.get(name)) for name in (*INPUTS, loss)}

        problem = _bad_numbers(row, values)
        if not problem and check_sizes:
            problem = size_problem(row) or ""
        if not problem:
            problem = duplicates.check(i, values)
        problems.append(message(f"{label(i, row)}: ", problem) if problem else "")
    return problems


def find_rising_runs(
    sizes: Mapping[str, FloatArray],
    loss: FloatArray,
    names: Sequence[str],
) -> list[Notice]:
    """Warn of runs [n] whose loss lies above that of a shorter run of the same model.

    None are named where they are many: such runs differ in more than N, D and E.
    """
    order = np.lexsort([sizes["tokens"], sizes["experts"], sizes["n_active"]])
    # Of each run to the one before it.
    ratios = {}
    for name, values in {**sizes, "loss": loss}.items():
        ordered = values[order]
        ratios[name] = ordered[1:] / ordered[:-1]
    is_same_model = (ratios["n_active"] == 1) & (ratios["experts"] == 1)
    is_longer = is_same_model & (ratios["tokens"] >= LEAST_STEP)
    is_rising = is_longer & (ratios["loss"] > LEAST_RISE)
    if is_rising.sum() > MOST_RISING * len(loss):
        return []
    notices = []
    for place in np.flatnonzero(is_rising):
        shorter = order[place]
        longer = order[place + 1]
        topic = f"run {names[longer]} lies above {names[shorter]}, a shorter run of its model"
        notices.append(Notice(f"{topic} ({loss[longer]:.4g} and {loss[shorter]:.4g}): check both", topic))
    return notices


def repeated_runs(
    rows: Sequence[Row],
    places: Iterable[int],
    loss: str,
    settings: Sequence[str],
) -> dict[int, str]:
    """Describe the run records that repeat a run of another sweep, by their place.

    The same run trained in two sweeps gives the same loss to the last bit, and counts once.
    """
    first_places: dict[str, int] = {}
    notes: dict[int, str] = {}
    for i in places:
        row = rows[i]
        if row.get("schema_version") is None or row.get("sweep") is None:
            continue
        names = (*INPUTS, loss, *settings)
        key = repr([row.get(name) for name in names])
        first = first_places.setdefault(key, i)
        if row["sweep"] != rows[first]["sweep"]:
            notes[i] = f"{label(i, row)}: the same run as {label(first, rows[first])}, trained in two sweeps"
    return notes


def _bad_numbers(row: Row, values: Mapping[str, float | None]) -> str:
    """Describe the values that a law needs and cannot use; "" if all are usable."""
    problems = []
    for name, value in values.items():
        if value is None or not SMALLEST <= value <= LARGEST or (name == "experts" and value < 1):
            cell = row.get(name)
            problems.append(f"{name}={literal(cell)} {_number_problem(name, cell)}")
    return "; ".join(problems)


def _number_problem(name: str, cell: Any) -> str:
    value = number(cell)
    if value is None and isinstance(cell, str):
        return why_no_number(cell)

    size = value or 0.0
    if 0 < size < SMALLEST or LARGEST < size < math.inf:
        return f"must lie between {SMALLEST:g} and {LARGEST:g}"
    if name == "experts":
        return "must be at least 1"
    return "must be positive and finite"


@dataclass
class _Duplicates:
    """The rows that were checked, by keys that no two rows may share.

    A key has the name of the shared fields and their values, such as ("run_id", ("r1", 8e7, 4.0, 1e9)).
    """

    rows: Sequence[Row]
    settings: Sequence[str]
    check_ids: bool
    is_step_log: bool
    place_of: dict[tuple[str, Any], int] = field(default_factory=dict)
    # The first model and tokens under each run_id.
    checkpoint_of: dict[Any, tuple[Any, ...]] = field(default_factory=dict)
    names: set[tuple[str, str]] = field(default_factory=set)

    def check(self, i: int, values: Mapping[str, float | None]) -> str:
        """Name the earlier row that this one repeats, "" if none, and remember this one."""
        row = self.rows[i]
        keys = self._keys(row, values)

        problem = ""
        shared = next((key for key in keys if key in self.place_of), None)
        if shared is not None:
            first = self.place_of[shared]
            hint = self._hint(row, shared[0])
            problem = message(f"duplicate of {label(first, self.rows[first])} (same {shared[0]}", *hint, ")")

        for key in keys:
            self.place_of[key] = i
        for name in _NAMES:
            self.names.add((name, repr(row.get(name))))
        return problem

    def _keys(self, row: Row, values: Mapping[str, float | None]) -> list[tuple[str, Any]]:
        settings = [row.get(name) for name in self.settings]
        if self.check_ids:
            # Cells of files may be lists, which are no keys.
            settings = [repr(setting) for setting in settings]
        keys: list[tuple[str, Any]] = [("N, D, E and loss", (*values.values(), *settings))]
        if self.check_ids and row.get("run_id"):
            keys.append(("run_id", self._checkpoint(row, values)))
        return keys

    def _checkpoint(self, row: Row, values: Mapping[str, float | None]) -> tuple[Any, ...]:
        """Return a key that only one row of a run may have, because checkpoints share the model and differ in tokens.

        Rows of another model under the same name get the key of the first one, and so are duplicates.
        """
        name = row["run_id"]
        if not isinstance(name, (str, float, int)):
            name = repr(name)
        checkpoint = (name, values["n_active"], values["experts"], values["tokens"])
        first = self.checkpoint_of.setdefault(name, checkpoint)
        return checkpoint if checkpoint[:3] == first[:3] else first

    def _hint(self, row: Row, shared: str) -> tuple[str, ...]:
        """Say what to type to leave out the duplicate, as parts of a message."""
        if self.is_step_log:
            return "; ", given("final", "last", in_shell="--final last"), " takes the last of each run"
        for name in _NAMES:
            if name != shared and row.get(name) and (name, repr(row[name])) not in self.names:
                return "; ", given("where", f"{name} != {row[name]}"), " leaves this one out"
        return ()


def unusable_rows(origin: str, problems: Iterable[str], *, skippable: bool = False) -> Message:
    """Write the error of a table with unusable rows, which lists the first of them."""
    lines = [problem for problem in problems if problem]
    texts = [f"{origin}: {len(lines)} unusable row(s)"]
    if skippable:
        texts += [", which ", SKIP, " leaves out"]
    for line in lines[:LISTED]:
        texts += ["\n  ", line]
    if len(lines) > LISTED:
        texts.append(f"\n  … and {len(lines) - LISTED} more")
    return message(*texts)
