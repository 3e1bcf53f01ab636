"""Trunks: runs that share one are resampled together.

A trunk trains at a constant rate, and each measurement branches off it for its decay. Branches of one trunk share
weights and data up to the branch point, so a bootstrap must resample them together, as one cluster.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from hub.base.errors import given, unknown
from hub.base.fields import LARGEST
from hub.base.tables import column_name
from scaling_law.runs.rows import Row, RunsError, is_missing, names_of

# How trunks were found.
OWN = "each run its own trunk"
# Columns in which the branches of one trunk agree.
SIZES = ("n_active", "experts", "n_total", "d_model", "n_blocks", "n_heads", "vocab_size", "sequence_length")
# Names of what is usually tuned.
LEARNING_RATES = ("learning_rate", "peak_learning_rate", "lr")
BATCHES = ("batch", "batch_size", "global_batch_size", "bs")
RATES = (*LEARNING_RATES, *BATCHES, "weight_decay")
SETTINGS = ("seed", *RATES, "optimizer", "precision", "dataset", "tokenizer", "sweep")


def trunks_of(rows: Sequence[Row], rule: str, origin: str) -> tuple[list[str], str]:
    """Name the trunk of each row, and say how it was found. RunsError for a column that is missing or has gaps.

    "auto" takes the column `trunk`, else the first run in the chain of `parent_run_id`, else `run_id` if a run has
    several rows, its checkpoints. A table with none of these joins rows that agree in all its columns of SIZES and
    SETTINGS: such rows need not share a trunk, but joining them can only widen the intervals. "run" makes each row a
    separate trunk; any other rule is the name of a column.
    """
    if rule == "run":
        return [f"row {i}" for i in range(len(rows))], OWN
    if rule == "parent_run_id":
        return _chains(rows), "column parent_run_id"
    present = {*names_of(rows)}
    if rule == "auto":
        return _guess_trunks(rows, present)
    rule = column_name(rule, present)
    if rule not in present:
        allowed_rules = ["auto", "run", *sorted(present)]
        raise RunsError(f"{origin}: ", unknown("trunks=", rule, allowed_rules))

    for i, row in enumerate(rows):
        if is_missing(row.get(rule)):
            raise RunsError(f"{origin}: ", given("trunks", rule), f": row {i} has no value in this column")

    return [repr(row[rule]) for row in rows], f"column {rule}"


def _guess_trunks(rows: Sequence[Row], present: Collection[str]) -> tuple[list[str], str]:
    """Name the trunks by the rule "auto", from the columns that are `present`."""
    trunks: list[str] = []
    if "trunk" in present:
        trunks = _chains(rows)
        for i, row in enumerate(rows):
            if row.get("trunk") is not None:
                trunks[i] = f"trunk {row['trunk']}"
        return trunks, "column trunk"

    if "parent_run_id" in present:
        return _chains(rows), "column parent_run_id"

    if _has_checkpoints(rows):
        for i, row in enumerate(rows):
            trunks.append(repr(row.get("run_id") or f"row {i}"))
        return trunks, "checkpoints of one run_id"

    keys = [name for name in (*SIZES, *SETTINGS) if name in present]
    for row in rows:
        trunks.append(repr([_without_rounding(row.get(key)) for key in keys]))

    return trunks, f"runs of equal {', '.join(keys)}"


def _without_rounding(value: Any) -> Any:
    """Return the digits of a number that no rounding changes, and any other value as it is."""
    is_printable = isinstance(value, (int, float)) and abs(value) < LARGEST
    return f"{value:.12g}" if is_printable else value


def _has_checkpoints(rows: Sequence[Row]) -> bool:
    """Return whether a run stands in several rows: after different tokens, or else rows are duplicates."""
    names = [repr(row["run_id"]) for row in rows if row.get("run_id")]
    return len({*names}) < len(names)


def _chains(rows: Sequence[Row]) -> list[str]:
    """Find the first run in each row's chain of parents."""
    parents = {}
    for row in rows:
        if row.get("run_id"):
            parents[str(row["run_id"])] = row.get("parent_run_id")
    origins = []
    for i, row in enumerate(rows):
        name = str(row.get("run_id") or f"row-{i}")
        visited = set()
        parent = row.get("parent_run_id")
        while isinstance(parent, str) and parent and parent not in visited:
            name = parent
            visited.add(parent)
            parent = parents.get(name)
        origins.append(f"run {name}")
    return origins
