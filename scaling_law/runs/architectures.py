"""Runs of any class of models in the terms that laws share: what `Architecture.variables` names.

A run record of another class than ours has the routed experts in `experts`, and the E of laws in `experts_equivalent`.
"""

from __future__ import annotations

from collections.abc import Sequence

from scaling_law.runs.rows import Row, is_missing, number, whole
from scaling_law.size.architecture import Architecture


def is_of_a_class(row: Row) -> bool:
    """Whether a row is of another class than ours, whose sizes are not those of its width alone."""
    return not is_missing(row.get("experts_equivalent"))


def in_terms_of_laws(rows: Sequence[Row]) -> list[Row]:
    """The rows with `experts` as laws mean it; where one is of another class, all have what laws ask about it."""
    if not any(map(is_of_a_class, rows)):
        return list(rows)
    return [_of_a_class(row) if is_of_a_class(row) else _of_ours(row) for row in rows]


def _of_a_class(row: Row) -> Row:
    named = {"experts": row["experts_equivalent"], "routed_experts": row["experts"]}
    routed, shared, density = (number(row.get(name)) for name in ("experts_per_token", "shared_experts", "density"))
    if routed is not None and shared is not None and density is not None:
        named |= {"active_experts": routed + shared, "sparsity": 1 - density}
    return {**row, **named}


def _of_ours(row: Row) -> Row:
    shape = whole(row, "d_model", "experts", "n_blocks", "n_heads", "vocab_size")
    try:
        variables = Architecture(*shape).variables() if shape else {}
    except ValueError:  # said where sizes are checked
        return row
    return {**row, **{name: value for name, value in variables.items() if is_missing(row.get(name))}}
