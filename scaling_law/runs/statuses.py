"""Statuses of runs, as trackers and schedulers call them in words or flags, in the words of run records."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from scaling_law.runs.rows import Row, is_missing, names_in, row_name

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
# Names of columns that say it in words, and of flags → what True means. False is the contrary of it.
_NAMES = ("status", "state")
_FLAGS = {
    "final": "finished completed complete done success successful succeeded ended final closed",
    "failed": "failed crashed errored killed aborted cancelled canceled preempted interrupted oom diverged trashed "
    "deleted",
    "running": "active running pending alive ongoing incomplete unfinished",
}
# Words before these names: hasCrashed, sys/state, TrainingJobStatus. Other columns have words before them that may
# speak of something else, such as the state of an optimizer.
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

    text = str(word).strip()
    # CANCELLED by 1000, InProgress, JOB_STATE_FAILED.
    normalized = "_".join(_words_of(text.partition(" by ")[0])).removeprefix("job_").removeprefix("state_")
    return _meaning(normalized, _WORDS) or text


def _words_of(name: str) -> list[str]:
    """Split a name into words in lower case, at signs and where a capital follows: hasCrashed, sys/state."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|[\W_]+", " ", name).lower().split()


def _meaning(word: str, vocabulary: dict[str, str]) -> str | None:
    """Return the status for which a vocabulary has this word."""
    return next((status for status, words in vocabulary.items() if word in words.split()), None)


def status_columns(rows: Sequence[Row]) -> list[str]:
    """Find the columns of a table that say how each run ended, in words or as flags; records have `status` alone."""
    if any("schema_version" in row for row in rows):
        return ["status"]
    columns = []
    for column in names_in(rows):
        *owners, last = _words_of(column) or [""]
        is_flag = _meaning(last, _FLAGS) is not None
        if not (is_flag or last in _NAMES) or not {*owners} <= {*_OWNERS.split()}:
            continue
        words = {str(row[column]).strip() for row in rows if not is_missing(row.get(column))} - {""}
        known_words = {word for word in words if status_of(word) in _WORDS}
        is_in_words = last in _NAMES and bool(words) and 2 * len(known_words) >= len(words)
        if column == "status" or is_in_words or (is_flag and _are_flags(words)):
            columns.append(column)
    return columns


def _are_flags(words: Iterable[str]) -> bool:
    """Return whether the words of a column are all true or false; numbers are only where both occur."""
    texts = {word.lower() for word in words}
    truths = {_TRUTHS.get(text) for text in texts}
    has_words = not texts.isdisjoint({"true", "false", "yes", "no"})
    return None not in truths and (has_words or len(truths) > 1)


def read_status(row: Row, columns: Iterable[str]) -> tuple[str, str]:
    """Return the column that says that a run is not final, and its status; else the last column, and that."""
    ending = ("status", "final")
    for column in columns:
        cell = row.get(column)
        meaning = _meaning(_words_of(column)[-1], _FLAGS)
        truth = _TRUTHS.get(str(cell).strip().lower())
        status = "final" if is_missing(cell) else str(cell)
        if meaning == "final" and truth is not None:
            status = "final" if truth else "running"
        elif meaning is not None and truth is not None:
            status = meaning if truth else "final"
        ending = (column, status)
        if status_of(status) != "final":
            break
    return ending


def describe_left_out(rows: Sequence[Row], places: Iterable[int], columns: Sequence[str]) -> str:
    """Name in one line the runs at these places, which are left out for their status; "" for none."""
    names_by_word: dict[tuple[str, str], list[str]] = {}
    for i in places:
        column, _ = read_status(rows[i], columns)
        word = (column, str(rows[i].get(column)))
        names_by_word.setdefault(word, []).append(row_name(i, rows[i]))
    if not names_by_word:
        return ""

    counts = Counter({word: len(names) for word, names in names_by_word.items()})
    phrases = []
    topic = ""
    for (column, word), count in counts.most_common():
        names = ", ".join(names_by_word[column, word][:_MOST])
        ellipsis = ", …" if count > _MOST else ""
        subject = "" if column == topic else f"{column} is "
        topic = column
        phrases.append(f"{subject}{word} ({count}: {names}{ellipsis})")
    total = counts.total()
    plural = "s" if total > 1 else ""
    return f"{total} run{plural}: {', '.join(phrases)}"
