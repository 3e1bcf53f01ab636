"""Statuses of runs, as trackers and schedulers call them in words or flags, in the words of run records."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from scaling_law.runs.rows import Row, first_words, is_missing, names_of, row_name

# Statuses of run records.
RECORDED = ("final", "intermediate", "diverged")
_WORDS = {
    "final": "final finished completed complete done success succeeded published inactive idle closed ended",
    "failed": "failed fail failure crashed killed cancelled canceled aborted stopped error errored timeout preempted "
    "oom out_of_memory node_fail boot_fail deadline interrupted died pruned expired revoked not_responding "
    "stopping cancelling canceling cancel_requested partially_succeeded",
    "running": "running pending queued scheduled in_progress created active starting preempting requeued waiting "
    "initializing initialized preparing provisioning suspended paused not_started finalizing completing publishing",
}
# Names of columns of such words, and of flags with what True means in them; False is the contrary.
_NAMES = ("status", "state")
_FLAGS = {
    "final": "finished completed complete done success successful succeeded ended final closed",
    "failed": "failed crashed errored killed aborted cancelled canceled preempted interrupted oom diverged trashed "
    "deleted",
    "running": "active running pending alive ongoing incomplete unfinished",
}
# Words before these names: hasCrashed, sys/state, TrainingJobStatus. Others may speak of something else, such as the
# state of an optimizer.
_OWNERS = (
    "is has was did run runs sys system info meta metadata attributes attrs summary tags job task trial component "
    "experiment training train process primary result life cycle lifecycle "
    "wandb mlflow neptune aim comet clearml sagemaker slurm"
)
_TRUTHS = {"true": True, "yes": True, "1": True, "1.0": True, "false": False, "no": False, "0": False, "0.0": False}
# Runs of a status that a message names.
_MOST = 3


def status_of(word: Any) -> str:
    """Return a status as run records have it: final, running or failed; other words stay, and none is final."""
    if is_missing(word) or word == "":
        return "final"

    return _status_of_text(str(word).strip())


# Cached, since a table has few words.
@lru_cache(maxsize=1024)
def _status_of_text(text: str) -> str:
    """Return the status that a text which is not empty stands for."""
    # CANCELLED by 1000, InProgress, JOB_STATE_FAILED.
    normalized = "_".join(_words_of(text.partition(" by ")[0]))
    normalized = re.sub(r"^((job|trial|state)_)+", "", normalized)
    return _meaning(normalized, _WORDS) or text


def _words_of(name: str) -> list[str]:
    """Split a name into words in lower case, at signs and where a capital follows: hasCrashed, sys/state."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|[\W_]+", " ", name).lower().split()


def _meaning(word: str, vocabulary: Mapping[str, str]) -> str | None:
    """Return the status for which a vocabulary has this word."""
    return next((status for status, words in vocabulary.items() if word in words.split()), None)


def status_columns(rows: Sequence[Row]) -> list[str]:
    """Find the columns of a table that say how each run ended, in words or as flags; records have `status` alone."""
    if any("schema_version" in row for row in rows):
        return ["status"]
    columns = []

    for column in names_of(rows):
        *owners, last = _words_of(column) or [""]
        is_flag = _meaning(last, _FLAGS) is not None
        if not (is_flag or last in _NAMES) or not {*owners} <= {*_OWNERS.split()}:
            continue
        cells = [row.get(column) for row in rows]
        words = {str(cell).strip() for cell in cells if not is_missing(cell)}
        words.discard("")
        statuses = [status_of(_read_cell(column, word)) for word in words]
        count = sum(status in _WORDS for status in statuses)
        # A column of ones may be a count.
        is_known = words != {"1"} and (count == len(words) if is_flag else 2 * count >= len(words))
        if column == "status" or (words and is_known):
            columns.append(column)

    return columns


def _read_cell(column: str, cell: Any) -> str:
    """Return the word in which a cell says how its run ended; a flag is read as what it means in its column."""
    text = "" if is_missing(cell) else str(cell).strip()
    flag = _meaning(_words_of(column)[-1], _FLAGS)
    truth = _TRUTHS.get(text.lower())
    if flag is None or truth is None:
        return text
    contrary = "running" if flag == "final" else "final"
    return flag if truth else contrary


def read_status(row: Row, columns: Sequence[str]) -> tuple[str, str]:
    """Return the first of the columns that says that a run is not final, else the last, and its word."""
    for column in columns:
        word = _read_cell(column, row.get(column))
        if status_of(word) != "final":
            break

    return column, word


def describe_left_out(rows: Sequence[Row], places: Iterable[int], columns: Sequence[str]) -> list[str]:
    """Name in one line the runs at these places, which are left out for their status; no line for none.

    Intermediate and diverged rows of our run records are not mentioned.
    """
    names_by_status: dict[str, list[str]] = {}

    for i in places:
        row = rows[i]
        if row.get("status") not in RECORDED:
            column = read_status(row, columns)[0]
            names_by_status.setdefault(f"{column} is {row.get(column)}", []).append(row_name(i, row))

    phrases = []
    for status, names in sorted(names_by_status.items(), key=lambda item: -len(item[1])):
        phrases.append(f"{status} ({len(names)}: {first_words(names, _MOST)})")

    total = sum(map(len, names_by_status.values()))
    plural = "s" if total > 1 else ""
    return [f"{total} run{plural}: {', '.join(phrases)}"] if phrases else []
