"""How sure an optimum is: the constrained optimum of every draw of a law."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scaling_law.laws import JointLaw
from scaling_law.planning.constraints import Constraints
from scaling_law.planning.optimum import optimal_widths

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class OptimumUncertainty:
    """The optimum under each draw of a law; arrays [n_draws, E], NaN where a draw has no optimum.

    `best_share` says for each E in what part of the draws it is the best (ties go to the smaller E).
    """

    experts: FloatArray
    n_active: FloatArray
    tokens: FloatArray
    loss: FloatArray
    best_share: FloatArray

    def interval(self, quantity: Literal["n_active", "tokens", "loss"], level: float = 0.95) -> tuple[Any, Any]:
        """(low, high), one for each E, over the draws that have an optimum there; NaN where none has."""
        if quantity not in ("n_active", "tokens", "loss"):
            raise ValueError(f"quantity={quantity!r} must be 'n_active', 'tokens' or 'loss'")
        columns = [column[np.isfinite(column)] for column in getattr(self, quantity).T]
        shares = [0.5 - level / 2, 0.5 + level / 2]
        ends = [np.quantile(column, shares) if column.size else (np.nan, np.nan) for column in columns]
        low, high = np.array(ends).T
        return low, high


def optimum_uncertainty(
    law: JointLaw, flops: float, experts: ArrayLike = (1, 2, 4, 8, 16, 32), **limits: Any
) -> OptimumUncertainty:
    """The constrained optimum of every draw of `law` (which must have draws); `limits` as in `Constraints`."""
    if law.draws is None:
        raise ValueError("this law has no draws: fit it and call result.bootstrap(...)")
    columns, constraints = np.atleast_1d(np.asarray(experts, float)), Constraints.of(law, **limits)
    shape = (len(law.draws), len(columns))
    n_active, tokens, loss = (np.full(shape, np.nan) for _ in range(3))
    for i, draw in enumerate(law.draws):
        try:
            found = optimal_widths(type(law)(*draw), flops, columns, constraints)
        except ValueError:  # a draw whose loss falls with both N and D for none of these E
            continue
        for values, column in ((n_active, found.n_active), (tokens, found.tokens), (loss, found.loss)):
            values[i] = np.where(found.fits, column, np.nan)
    known = np.isfinite(loss).any(axis=1)
    best = np.nanargmin(loss[known], axis=1) if known.any() else np.zeros(0, int)
    share = np.bincount(best, minlength=len(columns)) / max(len(law.draws), 1)
    return OptimumUncertainty(columns, n_active, tokens, loss, share)
