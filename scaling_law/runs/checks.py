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
from scaling_law.runs.rows import SKIP, FloatArray, Row, RunsError, is_missing, label, number
from scaling_law.runs.settings import codes_of
from scaling_law.runs.units import check_no_accuracy, unit_problems
from scaling_law.size.arrays import merge_rounded

# Least factors in tokens, and in loss, by which a longer run of a model lies above a shorter one and is not noise.
LEAST_STEP = 1.2
LEAST_RISE = 1.005
# The largest share of such runs that are taken for mistakes.
MOST_RISING = 0.2
# Unusable rows that an error lists.
LISTED = 8
# Fields by which a filter can leave out a single row.
_NAMES = ("id", "run_id")


def check_rows(
    rows: Sequence[Row],
    places: Iterable[int],
    loss: str,
    origin: str,
    *,
    measured: str,
    trunk: Sequence[Any] | None = None,
    settings: Sequence[str] = (),
    failed: Mapping[int, str] | None = None,
    check_ids: bool = False,
    check_sizes: bool = False,
    is_step_log: bool = False,
    problems: list[str] | None = None,
) -> tuple[list[int], list[str]]:
    """Return which of the rows at these places can be used, and notes on run records that repeat another sweep's.

    Rows of equal N, D, E and loss are duplicates unless they differ in one of the `settings`. RunsError lists unusable
    rows, unless a list of `problems` takes them and other rows can be used.

    Args:
        measured: the source's name for the loss, which says more of its unit than ours.
        trunk: tells checkpoints, which may have few tokens; None if trunks are not known.
        failed: problems of single rows that are known already.
        check_ids: a run_id may stand in several rows only as the checkpoints of one model, after different tokens.
        check_sizes: the sizes of a row must not contradict its shape.
        is_step_log: the rows of a run are its steps, which the advice for duplicates takes into account.
    """
    found_problems: list[str] = []
    notes: list[str] = []
    sound: list[int] = []
    duplicates = _Duplicates(rows, settings, check_ids, is_step_log)
    for i in places:
        row = rows[i]
        values = {name: number(row.get(name)) for name in (*INPUTS, loss)}
        problem = _bad_numbers(row, values)
        if not problem and check_sizes:
            problem = size_problem(row) or ""
        if not problem:
            problem, note = duplicates.check(i, values)
            if note:
                notes.append(note)
                continue
        if problem:
            problem = message(f"{label(i, row)}: ", problem)
        problem = (failed or {}).get(i, problem)
        if problem:
            found_problems.append(problem)
        else:
            sound.append(i)

    sound_rows = [rows[i] for i in sound]
    sizes, losses = arrays_of(sound_rows, loss)
    check_no_accuracy(sizes, losses, measured, origin)
    clusters = None if trunk is None else codes_of([trunk[i] for i in sound])
    usable = []
    for i, problem in zip(sound, unit_problems(sizes, losses, measured, clusters), strict=True):
        # The units of a run record are those of its schema, however short the run.
        if problem and "schema_version" not in rows[i]:
            found_problems.append(f"{label(i, rows[i])}: {problem}")
        else:
            usable.append(i)
    if problems is not None:
        problems += found_problems
    listed = problems or found_problems
    if not usable or (found_problems and problems is None):
        raise RunsError(_describe_unusable(origin, listed, skippable=bool(usable)))
    return usable, notes


def arrays_of(rows: Sequence[Row], loss: str) -> tuple[dict[str, FloatArray], FloatArray]:
    """Return the sizes of rows [n] as laws need them, and their losses [n]."""
    sizes = {name: merge_rounded(np.array([number(row[name]) for row in rows], float)) for name in INPUTS}
    return sizes, np.array([number(row[loss]) for row in rows], float)


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
    checkpoint_of: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    names: set[tuple[str, str]] = field(default_factory=set)

    def check(self, i: int, values: Mapping[str, float | None]) -> tuple[str, str]:
        """Name the earlier row that this one repeats, and remember this one; else "".

        The second text is a note: the same run trained in two sweeps gives the same loss to the last bit, and counts
        once.
        """
        row = self.rows[i]
        known = [*values.values(), *map(row.get, self.settings)]
        # NaN, which may be any number, is a value of this row alone.
        key = [i if is_missing(value) and value is not None else value for value in known]
        keys = [("N, D, E and loss", repr(key)), *self._run_keys(row, values)]
        problem = ""
        shared = next((key for key in keys if key in self.place_of), None)
        if shared is not None:
            first = self.place_of[shared]
            first_row = self.rows[first]
            first_label = label(first, first_row)
            sweeps = {row.get("sweep"), first_row.get("sweep")}
            if "schema_version" in row and len(sweeps) == 2 and None not in sweeps:
                return "", f"{label(i, row)}: the same run as {first_label}, trained in two sweeps"
            problem = message(f"duplicate of {first_label} (same {shared[0]}", *self._hint(row, shared[0]), ")")

        self.place_of.update(dict.fromkeys(keys, i))
        self.names.update((name, repr(row.get(name))) for name in _NAMES)
        return problem, ""

    def _run_keys(self, row: Row, values: Mapping[str, float | None]) -> list[tuple[str, Any]]:
        """Return a key that only one row of a run may have, because checkpoints share the model and differ in tokens.

        Rows of another model under the same name get the key of the first one, and so are duplicates.
        """
        if not self.check_ids or not row.get("run_id"):
            return []
        name = repr(row["run_id"])
        checkpoint = (name, values["n_active"], values["experts"], values["tokens"])
        first = self.checkpoint_of.setdefault(name, checkpoint)
        return [("run_id", checkpoint if checkpoint[:3] == first[:3] else first)]

    def _hint(self, row: Row, shared: str) -> tuple[str, ...]:
        """Say what to type to leave out the duplicate, as parts of a message."""
        if self.is_step_log:
            return "; ", given("final", "last", in_shell="--final last"), " takes the last of each run"
        for name in _NAMES:
            if name != shared and row.get(name) and (name, repr(row[name])) not in self.names:
                return "; ", given("where", f"{name} != {row[name]}"), " leaves this one out"
        return ()


def _describe_unusable(origin: str, problems: Sequence[str], skippable: bool) -> Message:
    """Write the error of a table with unusable rows, which lists the first of them."""
    texts = [f"{origin}: {len(problems)} unusable row(s)"]
    if skippable:
        texts += [", which ", SKIP, " leaves out"]
    for line in problems[:LISTED]:
        texts += ["\n  ", line]
    if len(problems) > LISTED:
        texts.append(f"\n  … and {len(problems) - LISTED} more")
    return message(*texts)
