"""The registry of columns: label, format, unit and meaning of each quantity, from `columns.json`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hub.base import strict_json
from hub.base.tables import Column, Table
from hub.base.units import format_bytes, format_count, format_ends, format_flops, format_rough

REGISTRY = Path(__file__).with_name("columns.json")
FORMAT = "columns"
VERSION = 1


def format_interval(bounds: tuple[float, float]) -> str:
    """Write an interval of factors or hours with the digits that draws determine; an end may be infinite."""
    return "…".join("∞" if math.isinf(bound) else format_rough(bound) for bound in bounds)


# Formats that have a name; the others are format specifications, such as ".4f", or ".2g s" with a unit.
FORMS: dict[str, Callable[[Any], str]] = {
    "text": str,
    "count": format_count,
    "flops": format_flops,
    "bytes": format_bytes,
    "factors": format_interval,
    "share": lambda share: f"{min(share, 1.0):.0%}",
    "ends": lambda bounds: "{:.2f} to {:.2f}".format(*bounds),
    "signed": lambda bounds: "{:+.4f} to {:+.4f}".format(*bounds),
    "losses": lambda bounds: "…".join(format_ends(*bounds)),
    "trust": lambda is_trusted: "" if is_trusted else "not trusted",
}


COLUMNS: dict[str, Column] = {}
for _name, _row in strict_json.read(REGISTRY, FORMAT, VERSION)["columns"].items():
    _form = _row.pop("form")
    if _form not in FORMS:
        _digits, _, _unit = _form.partition(" ")
        FORMS[_form] = f"{{:{_digits}}} {_unit}".rstrip().format
    COLUMNS[_name] = Column(form=FORMS[_form], **_row)


def label(name: str) -> str:
    """Return the label of a column; one that is not registered has its name."""
    return COLUMNS[name].label if name in COLUMNS else name


def tabulate(rows: Sequence[Mapping[str, object]], **options: Any) -> Table:
    """Lay out rows with the labels and formats of the registry."""
    return Table.of(rows, COLUMNS, **options)
