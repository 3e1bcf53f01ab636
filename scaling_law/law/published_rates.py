"""Published laws of the peak learning rate and the batch: data of the literature, evaluated."""

from __future__ import annotations

from numpy.typing import ArrayLike

from hub.base.errors import InputError
from scaling_law.formulas.conditions import RangeCheck, rate_guard_of
from scaling_law.formulas.law import positive
from scaling_law.formulas.literature import power_law
from scaling_law.law.shelf import SHELF, entry
from scaling_law.size.arrays import FloatArray

ANSWERS = "learning rate, batch"


def published_rates(name: str, *, force: bool = False, **variables: ArrayLike) -> dict[str, FloatArray]:
    """Return the peak `learning_rate` and `batch_tokens` that a published law gives; `variables` broadcast.

    ValueError for a law that gives no rates, for missing and unknown variables, and for values that are not positive
    and finite; ExtrapolationError beyond the range guard, unless `force`.
    """
    law = entry(name)
    if law.answers != ANSWERS or law.coefficients is None:
        names = ", ".join(entry_name for entry_name, row in SHELF.items() if row.answers == ANSWERS)
        raise InputError(f"law={name!r} gives {law.answers}, no rates; there are {names}")
    if {*variables} != {*law.variables}:
        inputs = ", ".join(variables) or "nothing"
        raise InputError(f"{name} depends on {', '.join(law.variables)}, not on {inputs}")
    values = {variable: positive(variable, value) for variable, value in variables.items()}
    check = RangeCheck(law.conditions, law.variables, values, rate_guard_of, trusts_guard=True)
    check.refuse(force)
    return {
        "learning_rate": power_law(law.coefficients["learning_rate"], values),
        "batch_tokens": power_law(law.coefficients["batch_tokens"], values),
    }
