"""The published laws as `literature.json` has them: rows with their source, for the rooms that make laws of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from scaling_law.size.arrays import FloatArray, Variables

LITERATURE = Path(__file__).with_name("literature.json")


def read_literature() -> list[dict[str, Any]]:
    """Read the rows of all laws, each with the fields of its paper."""
    data = json.loads(LITERATURE.read_text(encoding="utf-8"))
    rows = []
    for law in data["laws"]:
        paper = data["papers"].get(law.pop("paper", None), {})
        rows.append({**paper, **law})
    return rows


def power_law(coefficients: Mapping[str, float], variables: Variables) -> FloatArray:
    """Evaluate floor + scale · Π (variable / unit)^exponent, whose exponents stand under the variables' names."""
    unit = coefficients.get("unit", 1.0)
    value: Any = coefficients["scale"]
    for name, exponent in coefficients.items():
        if name not in ("scale", "unit", "floor"):
            value = value * (np.asarray(variables[name], float) / unit) ** exponent
    return np.asarray(coefficients.get("floor", 0.0) + value)
