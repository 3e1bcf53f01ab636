"""How sure an optimum is: the optimum of every draw of a law, without limits in closed form, and under constraints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scaling_law.laws import JointLaw
from scaling_law.laws.kinds import joint_to_chinchilla
from scaling_law.planning.constraints import Constraints, positive
from scaling_law.planning.optimum import chinchilla_optimum, has_optimum, widths_of
from scaling_law.size.architecture import affordable_tokens
from scaling_law.size.recipe import PAPER

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
    law: JointLaw, flops: float, experts: ArrayLike = PAPER.experts, **limits: Any
) -> OptimumUncertainty:
    """The constrained optimum of every draw of `law` (which must have draws); `limits` as in `Constraints`."""
    columns, e = _draws(law), np.atleast_1d(np.asarray(experts, float))
    with np.errstate(all="ignore"):  # in draws without an optimum
        coefficients = joint_to_chinchilla(columns, e)
        found = widths_of(coefficients, columns[-1], positive("flops", flops), e, Constraints.of(law, **limits))
    n_active, tokens, loss = (np.where(found.fits, v, np.nan) for v in (found.n_active, found.tokens, found.loss))
    best = np.nanargmin(loss[found.fits.any(axis=1)], axis=1)
    return OptimumUncertainty(e, n_active, tokens, loss, np.bincount(best, minlength=len(e)) / len(loss))


def drawn_optimum(law: JointLaw, flops: float, experts: ArrayLike) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The compute-optimal N_act, D and loss of every draw of `law`, each [n_draws, E], in closed form.

    NaN for a draw without an optimum. ValueError for a law without draws. `optimum_uncertainty` has widths from 64
    on, and limits.
    """
    columns, e = _draws(law), np.atleast_1d(np.asarray(experts, float))
    with np.errstate(all="ignore"):  # in draws without an optimum
        coefficients = joint_to_chinchilla(columns, e)
        n_active, tokens = chinchilla_optimum(*coefficients, affordable_tokens(flops, 1.0))
        loss = law.evaluate(columns, n_active, tokens, e)
    exists = has_optimum(coefficients)
    n_active, tokens, loss = (np.where(exists, values, np.nan) for values in (n_active, tokens, loss))
    return n_active, tokens, loss


def _draws(law: JointLaw) -> FloatArray:
    """The coefficients of the draws, [coefficients, n_draws, 1]."""
    if law.draws is None:
        raise ValueError("this law has no draws: fit it and call result.bootstrap(...)")
    return law.draws.T[..., None]
