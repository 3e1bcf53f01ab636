"""What public pairs of models measured of the fields of a design that laws ignore: `docs/studies/anatomy.md`.

Nothing shifts a loss. Where a law ignores a field, its losses err by as much as that field was measured to be worth.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from hub.base import strict_json
from hub.base.types import Fields
from scaling_law.formulas.extrapolation import normal_scores
from scaling_law.size.arrays import FloatArray

DESIGNS = Path(__file__).with_name("designs.json")
FORMAT = "designs"
VERSION = 1
# The fields of a design: between which values they are as in the paper's models, and the variables of laws that tell
# others apart. A first block that is dense, as in laboratories whose gains the law predicts, is as good as none.
USUAL = {"granularity": (1.0, 1.0), "shared_ratio": (0.0, 0.0), "routed_share": (0.9, 1.0)}
SEEN_BY = {
    "granularity": {"granularity", "active_experts", "experts_per_token"},
    "shared_ratio": {"shared_ratio", "density", "experts_per_token"},
    "routed_share": set(),
}
# Part of a field by which a shape may differ from those that were measured.
SHAPE = 0.02
# The row of normal scores that the error of a design takes: those before it are of extrapolation.
ROW = 16


@cache
def _read() -> Fields:
    return strict_json.read(DESIGNS, FORMAT, VERSION)


def read_findings() -> Fields:
    """Return the fields of designs, each with its `finding` in words and the `spread` of ln L."""
    fields: Fields = _read()["fields"]
    return fields


def find_most_experts(design: Fields) -> float:
    """Return the most E that pairs of models of this shape carry beyond a law's runs; 0 where none do."""
    carried = _read()["experts"]
    if not carried["trusted"] or not design:
        return 0.0
    for name, value in design.items():
        low, high = carried[name]
        if not low * (1 - SHAPE) <= value <= high * (1 + SHAPE):
            return 0.0
    return float(carried["most"])


def find_ignored(design: Fields, variables: Collection[str]) -> Fields:
    """Return the fields in which a design differs from the paper's, and that a law of these variables ignores."""
    ignored = {}
    for name, value in design.items():
        low, high = USUAL[name]
        if not low <= value <= high and SEEN_BY[name].isdisjoint(variables):
            ignored[name] = value
    return ignored


def draw_design_factors(ignored: Iterable[str], experts: Any, count: int) -> FloatArray | float:
    """Return factors on the losses of `count` draws, [count, ...], of models with these E; dense ones have no error.

    Models of one design err alike.
    """
    spread = float(np.sqrt(sum(read_findings()[name]["spread"] ** 2 for name in ignored)))
    if not spread:
        return 1.0
    e = np.asarray(experts)
    scores = normal_scores(count, ROW + 1)[ROW].reshape(-1, *[1] * e.ndim)
    return np.exp(np.where(e > 1, spread * scores, 0.0))
