"""Which runs share a trunk.

A trunk trains at a constant rate, and each measurement branches off it for its decay. Branches of one trunk share
weights and data up to the branch point, so a bootstrap must resample them together, as one cluster.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hub.base.errors import given, unknown
from scaling_law.runs.rows import Row, RunsError, is_missing, names_of

OWN, EQUAL_SIZE = "each run its own trunk", "runs of equal n_active, experts"  # how trunks were found
SIZES = ("n_active", "experts", "n_total", "d_model", "n_blocks", "n_heads", "vocab_size", "sequence_length")
RATES = ("learning_rate", "peak_learning_rate", "lr", "batch_size", "global_batch_size", "batch", "bs", "weight_decay")
SETTINGS = ("seed", *RATES, "optimizer", "precision", "dataset", "tokenizer", "sweep")


def trunks_of(rows: Sequence[Row], rule: str, origin: str) -> tuple[list[str], str]:
    """The trunk of each row, and how it was found. RunsError for a column that is missing or has gaps.

    "auto" takes the column `trunk`, else the end of the chain of `parent_run_id`, else `run_id` where a run has
    several rows, its checkpoints; a table with none of these joins rows that agree in all its columns of SIZES and
    SETTINGS. Such rows need not share a trunk, but joining them can only widen the intervals. "run" makes each row its
    own trunk; any other rule names a column.
    """
    present = {*names_of(rows)}
    if rule == "run":
        return [f"row {i}" for i in range(len(rows))], OWN
    if rule == "auto" and not {"trunk", "parent_run_id"} & present and _has_checkpoints(rows, present):
        return [repr(row.get("run_id") or f"row {i}") for i, row in enumerate(rows)], "checkpoints of one run_id"
    if rule == "auto" and not {"trunk", "parent_run_id"} & present:
        keys = [name for name in (*SIZES, *SETTINGS) if name in present]
        return [repr([row.get(name) for name in keys]) for row in rows], f"runs of equal {', '.join(keys)}"
    if rule == "parent_run_id" or (rule == "auto" and "trunk" not in present):
        return _chains(rows), "column parent_run_id"
    if rule == "auto":
        named = [None if row.get("trunk") is None else f"trunk {row['trunk']}" for row in rows]
        return [trunk or chain for trunk, chain in zip(named, _chains(rows), strict=True)], "column trunk"
    if rule not in present:
        raise RunsError(f"{origin}: ", unknown("trunks=", rule, ["auto", "run", *sorted(present)]))
    if empty := [i for i, row in enumerate(rows) if is_missing(row.get(rule))]:
        raise RunsError(f"{origin}: ", given("trunks", rule), f": row {empty[0]} has no value in this column")
    return [repr(row[rule]) for row in rows], f"column {rule}"


def _has_checkpoints(rows: Sequence[Row], present: Collection[str]) -> bool:
    """Tell whether a run stands in several rows: after different tokens, or else rows are duplicates."""
    names = [repr(row["run_id"]) for row in rows if row.get("run_id")] if "run_id" in present else []
    return len({*names}) < len(names)


def _chains(rows: Sequence[Row]) -> list[str]:
    """The end of each row's chain of parents."""
    parents = {str(row["run_id"]): row.get("parent_run_id") for row in rows if row.get("run_id")}
    ends = []
    for i, row in enumerate(rows):
        name, visited = str(row.get("run_id") or f"row-{i}"), set()
        parent = row.get("parent_run_id")
        while isinstance(parent, str) and parent and parent not in visited:
            name = parent
            visited.add(parent)
            parent = parents.get(name)
        ends.append(f"run {name}")
    return ends
