"""Sizes of runs of any class of models in the terms that laws share, and their check against the formulas of ours.

A run record of another class than ours has the routed experts in `experts`, and the E of laws in `experts_equivalent`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from scaling_law.runs.rows import Row, is_missing, number, whole
from scaling_law.size.architecture import VOCAB_SIZE, Architecture, active_parameters

# Recorded sizes may count norms and routers, which the formulas leave out.
COUNT_TOLERANCE = 0.02
# Many runs of a table are of one shape.
_build = lru_cache(maxsize=1024)(Architecture)


def is_of_a_class(row: Row) -> bool:
    """Return whether a row is of another model class than ours, whose sizes do not follow from its width."""
    return not is_missing(row.get("experts_equivalent"))


def in_terms_of_laws(rows: Sequence[Row]) -> list[Row]:
    """Give rows `experts` as laws mean it; where one is of another class, all get what laws ask about it."""
    if not any(map(is_of_a_class, rows)):
        return list(rows)
    return [_convert_class(row) if is_of_a_class(row) else _convert_ours(row) for row in rows]


def _convert_class(row: Row) -> Row:
    """Convert a row of another class: `experts` becomes the E of laws."""
    converted = dict(row)
    converted["experts"] = row["experts_equivalent"]
    converted["routed_experts"] = row["experts"]
    routed = number(row.get("experts_per_token"))
    shared = number(row.get("shared_experts"))
    density = number(row.get("density"))
    if routed is not None and shared is not None and density is not None:
        converted["active_experts"] = routed + shared
        converted["sparsity"] = 1 - density
    return converted


def _convert_ours(row: Row) -> Row:
    """Add the variables of laws that a row of our class lacks."""
    try:
        architecture = _architecture(row)
    # `size_problem` reports a shape that there is not.
    except ValueError:
        return row
    if architecture is None:
        return row

    converted = dict(row)
    for name, value in architecture.variables().items():
        if is_missing(row.get(name)):
            converted[name] = value
    return converted


def with_size(row: Row) -> Row:
    """Compute n_active where a row has d_model and n_blocks instead."""
    if not is_missing(row.get("n_active")):
        return row
    fields = dict(row)
    if is_missing(row.get("vocab_size")):
        fields["vocab_size"] = VOCAB_SIZE
    shape = whole(fields, "d_model", "n_blocks", "vocab_size")
    if shape is None:
        return row
    return {**row, "n_active": float(active_parameters(*shape))}


def size_problem(row: Row) -> str | None:
    """Say how recorded sizes contradict the formulas; None if they agree, or if the row has no shape of our class."""
    try:
        expected = None if is_of_a_class(row) else _architecture(row)
    except ValueError as error:
        return str(error)
    if expected is None:
        return None
    for name in ("n_active", "n_total"):
        value = number(row.get(name))
        formula = getattr(expected, name)
        if value is not None and abs(value - formula) > COUNT_TOLERANCE * formula:
            return f"{name}={value:.0f} contradicts d_model, n_blocks, experts and vocab_size ({formula})"
    return None


def _architecture(row: Row) -> Architecture | None:
    """Build our model of the row's shape, if it has one. ValueError for a shape that there is not."""
    shape = whole(row, "d_model", "experts", "n_blocks", "n_heads", "vocab_size")
    return _build(*shape) if shape else None
