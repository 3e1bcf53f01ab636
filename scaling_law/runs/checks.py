"""Checks of rows before a law is fitted on them: their numbers, their sizes, and that none is a duplicate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hub.base.errors import Message, given, literal, message
from hub.base.fields import LARGEST
from hub.base.notices import Notice
from hub.base.numerals import why_no_number
from hub.base.types import Fields
from scaling_law.formulas.law import SMALLEST
from scaling_law.runs.architectures import size_problem
from scaling_law.runs.columns import INPUTS
from scaling_law.runs.rows import SKIP, FloatArray, Row, RunsError, label, number
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


def check_rows(
    rows: Sequence[Row],
    places: Sequence[int],
    loss: str,
    origin: str,
    *,
    source_loss: str,
    trunk: Any = None,
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
        source_loss: the source's name for the loss, which says more of its unit than ours.
        trunk: tells checkpoints, which may have few tokens; None if trunks are not known.
        failed: problems of single rows that are known already.
        check_ids: a run_id may stand in several rows only as the checkpoints of one model, after different tokens.
        check_sizes: the sizes of a row must not contradict its shape.
        is_step_log: the rows of a run are its steps, which the advice for duplicates takes into account.
    """
    problem_at = dict(failed or {})
    candidates = []

    for i in places:
        problem = _bad_numbers(rows[i], loss) or (check_sizes and size_problem(rows[i]))
        if problem:
            problem_at.setdefault(i, message(f"{label(i, rows[i])}: ", problem))
        elif i not in problem_at:
            candidates.append(i)

    notes = _find_repeats(rows, candidates, loss, settings, check_ids, is_step_log, problem_at)

    sound = [i for i in candidates if i not in problem_at and i not in notes]
    sizes, losses = arrays_of([rows[i] for i in sound], loss)
    check_no_accuracy(sizes, losses, source_loss, origin)
    clusters = None if trunk is None else codes_of([trunk[i] for i in sound])

    for i, problem in zip(sound, unit_problems(sizes, losses, source_loss, clusters), strict=True):
        # The units of a run record are those of its schema, however short the run.
        if problem and "schema_version" not in rows[i]:
            problem_at[i] = f"{label(i, rows[i])}: {problem}"

    usable = [i for i in sound if i not in problem_at]
    lines = [problem_at[i] for i in places if i in problem_at]
    if problems is not None:
        problems += lines
        lines = problems

    if not usable or (lines and problems is None):
        raise RunsError(_describe_unusable(origin, lines, skippable=bool(usable)))

    return usable, list(notes.values())


def arrays_of(rows: Sequence[Row], loss: str) -> tuple[Fields, FloatArray]:
    """Return the sizes of rows [n] as laws need them, and their losses [n]."""
    sizes: Fields = {name: merge_rounded(_numbers(rows, name)) for name in INPUTS}
    return sizes, _numbers(rows, loss)


def _numbers(rows: Sequence[Row], name: str) -> FloatArray:
    return np.array([number(row[name]) for row in rows], float)


def find_rising_runs(
    sizes: Mapping[str, FloatArray],
    loss: FloatArray,
    names: Sequence[str],
) -> list[Notice]:
    """Warn of runs [n] whose loss lies above that of a shorter run of the same model.

    None are named where they are many: such runs differ in more than N, D and E.
    """
    order = np.lexsort([sizes["tokens"], sizes["experts"], sizes["n_active"]])
    steps = {name: values[order[1:]] / values[order[:-1]] for name, values in {**sizes, "loss": loss}.items()}
    is_same_model = (steps["n_active"] == 1) & (steps["experts"] == 1)
    is_rising = is_same_model & (steps["tokens"] >= LEAST_STEP) & (steps["loss"] > LEAST_RISE)
    if is_rising.sum() > MOST_RISING * len(loss):
        return []

    notices = []

    for shorter, longer in zip(order[:-1][is_rising], order[1:][is_rising], strict=True):
        topic = f"run {names[longer]} lies above {names[shorter]}, a shorter run of its model"
        notices.append(Notice(f"{topic} ({loss[longer]:.4g} and {loss[shorter]:.4g}): check both", topic))

    return notices


def _bad_numbers(row: Row, loss: str) -> str:
    """Describe the values that a law needs and cannot use; "" if all are usable."""
    problems = []

    for name in (*INPUTS, loss):
        cell = row.get(name)
        value = number(cell)
        if value is None or not SMALLEST <= value <= LARGEST or (name == "experts" and value < 1):
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


def _find_repeats(
    rows: Sequence[Row],
    places: Sequence[int],
    loss: str,
    settings: Sequence[str],
    check_ids: bool,
    is_step_log: bool,
    problem_at: dict[int, str],
) -> dict[int, str]:
    """Add the problems of rows that repeat an earlier one; return notes on runs that another sweep trained, too.

    The same run trained in two sweeps gives the same loss to the last bit, and counts once. Checkpoints of a run share
    the model and differ in tokens; rows of another model under its name are duplicates of the first.
    """
    losses = {number(rows[i][loss]) for i in places}
    run_ids = {repr(rows[i].get("run_id") or i) for i in places}
    # Most tables repeat nothing.
    if len(losses) == len(run_ids) == len(places):
        return {}

    notes: dict[int, str] = {}
    place_of: dict[tuple[Any, ...], int] = {}
    checkpoint_of: dict[str, tuple[Any, ...]] = {}
    for i in places:
        row = rows[i]
        n_active, tokens, experts, nats = [number(row[name]) for name in (*INPUTS, loss)]
        values = [*map(row.get, settings)]
        # NaN, which may be any number, is a value of this row alone.
        values = [i if isinstance(value, float) and value != value else value for value in values]
        keys = [("N, D, E and loss", n_active, tokens, experts, nats, repr(values))]
        if check_ids and row.get("run_id"):
            checkpoint = ("run_id", repr(row["run_id"]), n_active, experts, tokens)
            first_checkpoint = checkpoint_of.setdefault(checkpoint[1], checkpoint)
            keys.append(checkpoint if first_checkpoint[:-1] == checkpoint[:-1] else first_checkpoint)

        repeated = [key for key in keys if key in place_of]
        for key in keys:
            place_of.setdefault(key, i)
        if not repeated:
            continue

        first = place_of[repeated[0]]
        texts = [f"{label(i, row)}: duplicate of {label(first, rows[first])} (same {repeated[0][0]}"]
        if is_step_log:
            texts += ["; ", given("final", "last", in_shell="--final last"), " takes the last of each run"]
        sweeps = {row.get("sweep"), rows[first].get("sweep")}
        if "schema_version" in row and len(sweeps) == 2 and None not in sweeps:
            notes[i] = f"{label(i, row)}: the same run as {label(first, rows[first])}, trained in two sweeps"
        else:
            problem_at[i] = message(*texts, ")")

    return notes


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
