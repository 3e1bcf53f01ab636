"""The laws that the package brings, as data: a file of `laws/` for each publication, and for each form of no paper's.

A file has the `form` of its law, the coefficients of one law or several (`laws`, whose fields stand before those of
the file), the `conditions` or `ranges` of their runs, their `source`, and how they count: `parameters`, `flops`,
`corpus`, `tokenizer`, `loss`. It is the format of `scaling_law.json`, in which users save theirs. `printed` has the
coefficients as the paper prints them, where it writes the form differently.

Ludziejewski et al. 2025 (arXiv 2502.05172) print four decimals; the LaTeX source of their table of per-E Chinchilla
coefficients holds sixteen digits. The joint law solved from those 24 numbers, the default, reproduces each to 5e-9. It
rounds to the printed law except for E_start (printed 2.0732, recovered 2.0830) and the seventh digit of E_max.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hub.base import strict_json
from hub.base.types import Fields
from scaling_law.formulas.terms import Form
from scaling_law.size.arrays import FloatArray, Variables

FORMAT = "scaling_law"
VERSION = 1
FOLDER = Path(__file__).with_name("laws")
# What a law answers unless its row says otherwise.
LOSS = "loss"
# The law of the paper, and its draws [1000, 11], made by `studies.paper.draws`.
PUBLISHED = "ludziejewski"
DRAWS_FILE = Path(__file__).with_name("published_draws.npy")

# The file of each form, by the name of its laws.
FORMS: dict[str, Fields] = {}
# The rows of all published laws by their names; `answers` says what each gives, `law` the form of losses.
ROWS: dict[str, Fields] = {}
for _path in sorted(FOLDER.glob("*.json")):
    _file = strict_json.read(_path, FORMAT, VERSION)
    if "form" in _file:
        FORMS[_file["law"]] = _file
    for _name, _fields in _file.get("laws", {}).items():
        ROWS[_name] = {"answers": LOSS, **_file, **_fields, "name": _name}
        if ROWS[_name]["answers"] != LOSS:
            ROWS[_name].pop("law", None)


def published_loss(n_active: ArrayLike, tokens: ArrayLike, experts: ArrayLike) -> Any:
    """Compute the loss of the recovered law, as `JointLaw.published().loss` does, for rooms that know no laws."""
    row = ROWS[PUBLISHED]
    form = Form.from_dict(FORMS[row["law"]]["form"])
    sizes = {"n_active": n_active, "tokens": tokens, "experts": experts}
    return form.evaluate(row["coefficients"], {name: np.asarray(values, float) for name, values in sizes.items()})


def power_law(coefficients: Mapping[str, float], variables: Variables) -> FloatArray:
    """Evaluate floor + scale · Π (variable / unit)^exponent, whose exponents stand under the variables' names."""
    unit = coefficients.get("unit", 1.0)
    value: Any = coefficients["scale"]
    for name, exponent in coefficients.items():
        if name not in ("scale", "unit", "floor"):
            value = value * (np.asarray(variables[name], float) / unit) ** exponent
    return np.asarray(coefficients.get("floor", 0.0) + value)
