"""Which runs share a trunk, and so are not independent: by a column of the table, or by what the runs have in common.

A trunk is trained once at a constant rate, and each measurement branches off it for its decay (warmup-stable-decay).
Branches of one trunk share weights and data order up to their branch points, so a bootstrap draws whole trunks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Row = Mapping[str, Any]
OWN = "each run its own trunk"
SIZES = ("n_active", "experts", "n_total", "d_model", "n_blocks", "n_heads", "vocab_size", "sequence_length")
RATES = ("learning_rate", "peak_learning_rate", "lr", "batch_size", "global_batch_size", "bs", "weight_decay")
SETTINGS = ("seed", *RATES, "optimizer", "precision", "dataset", "tokenizer", "sweep")


def trunks_of(rows: Sequence[Row], rule: str = "auto") -> tuple[list[str], str]:
    """The trunk of each row, and how it was found.

    Args:
        rule: "auto": the column `trunk`; else the end of the chain of `parent_run_id`; and where the table has neither
            column, rows that agree in every column of SIZES and SETTINGS that the table has. Rows that differ in seed,
            shape, learning rate or batch cannot be of one trunk; rows that agree need not be, but taking them for one
            makes intervals wider, never too narrow. "run": each row is its own. Or the name of a column.

    Raises ValueError for a column that is not there or has no value in some row.
    """
    present = {name for row in rows for name in row}
    if rule == "run":
        return [f"row {i}" for i in range(len(rows))], OWN
    if rule == "auto" and not {"trunk", "parent_run_id"} & present:
        keys = [name for name in (*SIZES, *SETTINGS) if name in present]
        return [repr([row.get(name) for name in keys]) for row in rows], f"runs of equal {', '.join(keys)}"
    if rule == "parent_run_id" or (rule == "auto" and "trunk" not in present):
        return _chains(rows), "column parent_run_id"
    if rule == "auto":
        chains = _chains(rows)
        given = [row.get("trunk") for row in rows]
        return [c if t is None else f"trunk {t}" for c, t in zip(chains, given, strict=True)], "column trunk"
    if rule not in present:
        raise ValueError(f"trunks={rule!r} must be 'auto', 'run' or a column: {', '.join(sorted(present))}")
    values = [row.get(rule) for row in rows]
    empty = [i for i, value in enumerate(values) if value is None or value != value]
    if empty:
        raise ValueError(f"trunks={rule!r}: row {empty[0]} has no value in this column")
    return [repr(value) for value in values], f"column {rule}"


def _chains(rows: Sequence[Row]) -> list[str]:
    """The end of each row's chain of parents; a row without a parent is its own."""
    parents = {str(row["run_id"]): row.get("parent_run_id") for row in rows if row.get("run_id")}
    found = []
    for i, row in enumerate(rows):
        name, visited = str(row.get("run_id") or f"row-{i}"), set()
        parent = row.get("parent_run_id")
        while isinstance(parent, str) and parent and parent not in visited:
            name = parent
            visited.add(parent)
            parent = parents.get(name)
        found.append(f"run {name}")
    return found


def cluster_columns(
    trunk: ArrayLike | str | None, n_active: NDArray[np.float64], experts: NDArray[np.float64]
) -> tuple[NDArray[np.int64], str]:
    """Cluster ids from 0 on, [n], and how they were found, for runs that are columns [n]; `trunk` as in Runs."""
    trunk = "auto" if trunk is None else trunk
    if isinstance(trunk, str):
        if trunk not in ("auto", "run"):
            raise ValueError(f"trunk={trunk!r} must be 'auto', 'run' or one id for each run")
        if trunk == "run":
            return np.arange(len(n_active)), OWN
        keys = np.column_stack([n_active, experts])
        return np.unique(keys, axis=0, return_inverse=True)[1].ravel(), "runs of equal n_active, experts"
    return np.unique(np.asarray(trunk), return_inverse=True)[1].ravel(), "given"
