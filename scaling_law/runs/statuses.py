"""Statuses of runs, as W&B, MLflow, ClearML, SLURM and others call them, in the words of run records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from scaling_law.runs.rows import Row, is_missing, row_name

# Statuses of run records.
RECORDED = ("final", "intermediate", "diverged")
COLUMNS = ("status", "Status", "State", "state")
_WORDS = {
    "final": "final finished completed complete done success succeeded published",
    "failed": "failed crashed killed cancelled canceled aborted stopped error timeout preempted oom out_of_memory",
    "running": "running pending queued scheduled in_progress created active starting preempting requeued",
}
# Runs of a status that a message names.
_MOST = 3


def status_of(word: Any) -> str:
    """Return a status as run records have it: final, running or failed; other words stay, and none is final."""
    if is_missing(word) or word == "":
        return "final"

    text = str(word).strip()
    normalized = text.lower().replace(" ", "_")
    for status, words in _WORDS.items():
        if normalized in words.split():
            return status
    return text


def status_column(rows: Sequence[Row]) -> str | None:
    """Find the column of a table that says how each run ended: `status`, or one of `COLUMNS` with no other words."""
    for column in COLUMNS:
        words = {str(row[column]) for row in rows if not is_missing(row.get(column))}
        if column == "status" and any(column in row for row in rows):
            return column
        if words and all(status_of(word) in _WORDS for word in words):
            return column
    return None


def describe_left_out(rows: Sequence[Row], places: Iterable[int], column: str) -> str:
    """Name in one line the runs at these places, which are left out for their status; "" for none."""
    names_by_word: dict[str, list[str]] = {}
    for i in places:
        names_by_word.setdefault(str(rows[i][column]), []).append(row_name(i, rows[i]))
    if not names_by_word:
        return ""

    counts = Counter({word: len(names) for word, names in names_by_word.items()})
    phrases = []
    for word, count in counts.most_common():
        names = ", ".join(names_by_word[word][:_MOST])
        ellipsis = ", …" if count > _MOST else ""
        phrases.append(f"{word} ({count}: {names}{ellipsis})")
    total = counts.total()
    plural = "s" if total > 1 else ""
    return f"{total} run{plural}: {column} is {', '.join(phrases)}"
