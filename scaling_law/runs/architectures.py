"""Sizes of runs: of any class of models in the terms that laws share, and checked against the formulas of ours.

A run record of another class than ours has the routed experts in `experts`, and the E of laws in `experts_equivalent`.
"""

from __future__ import annotations

from collections.abc import Sequence

from scaling_law.runs.rows import Row, is_missing, number, whole
from scaling_law.size.architecture import VOCAB_SIZE, Architecture, active_parameters

COUNT_TOLERANCE = 0.02  # recorded sizes may count norms and routers, which the formulas leave out


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
    try:
        a = _architecture(row)
    except ValueError:  # said where sizes are checked
        return row
    return {**row, **{name: value for name, value in a.variables().items() if is_missing(row.get(name))}} if a else row


def with_size(row: Row) -> Row:
    """The row with n_active computed where it has d_model and n_blocks instead."""
    if not is_missing(row.get("n_active")):
        return row
    vocabulary = {"vocab_size": VOCAB_SIZE} if is_missing(row.get("vocab_size")) else {}
    shape = whole({**row, **vocabulary}, "d_model", "n_blocks", "vocab_size")
    return {**row, "n_active": float(active_parameters(*shape))} if shape else row


def size_problem(row: Row) -> str | None:
    """How recorded sizes contradict the formulas; None if they agree, or if the row tells no shape of our class."""
    try:
        expected = None if is_of_a_class(row) else _architecture(row)
    except ValueError as error:
        return str(error)
    for name in ("n_active", "n_total") if expected else ():
        value, formula = number(row.get(name)), getattr(expected, name)
        if value is not None and abs(value - formula) > COUNT_TOLERANCE * formula:
            return f"{name}={value:.0f} contradicts d_model, n_blocks, experts and vocab_size ({formula})"
    return None


def _architecture(row: Row) -> Architecture | None:
    """Our model of this shape, if the row tells one. ValueError for a shape that there is not."""
    shape = whole(row, "d_model", "experts", "n_blocks", "n_heads", "vocab_size")
    return Architecture(*shape) if shape else None
