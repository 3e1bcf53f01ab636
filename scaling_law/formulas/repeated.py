"""Repeated data and excess parameters: what they are worth (Muennighoff et al. 2023, arXiv 2305.16264, Section 3).

    D' = U + U R* (1 − exp(−R / R*))     R = max(D / U − 1, 0)

U of the D tokens are unique and R is how often they are repeated, so that D' ≤ (1 + R*) U. Any law takes D' for
D; N' is the same for parameters, of which U_N are as many as U unique tokens call for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hub.base.errors import InputError

# Fitted on 182 runs of up to 9e9 parameters and 500 epochs: README of huggingface/datablations, "Parametric Fit"
R_STAR_TOKENS, R_STAR_PARAMETERS = 15.387756, 5.309743


def effective_tokens(tokens: ArrayLike, unique_tokens: ArrayLike, r_star: float = R_STAR_TOKENS) -> Any:
    """D' for D tokens of which `unique_tokens` are unique (D itself up to one epoch); broadcasts.

    With R_STAR_PARAMETERS as `r_star`, N' for N parameters and U_N. ValueError for values that are not positive.
    """
    for field, value in (("tokens", tokens), ("unique_tokens", unique_tokens), ("r_star", r_star)):
        if (wrong := (array := np.asarray(value))[~(array > 0)]).size:
            raise InputError(f"{field}={wrong.flat[0]:g} must be positive")
    unique = np.asarray(unique_tokens)
    repeats = np.maximum(np.asarray(tokens) / unique - 1.0, 0.0)
    return np.minimum(tokens, unique) + unique * (r_star * -np.expm1(-repeats / r_star))


def tokens_worth(effective: ArrayLike, unique_tokens: ArrayLike, r_star: float = R_STAR_TOKENS) -> Any:
    """D whose D' is `effective`, the inverse of `effective_tokens`; infinite where no number of epochs is worth it."""
    repeated = np.maximum(np.asarray(effective) / np.asarray(unique_tokens) - 1.0, 0.0)
    with np.errstate(divide="ignore"):
        repeats = -r_star * np.log1p(-np.minimum(repeated / r_star, 1.0))
    return np.minimum(effective, unique_tokens) + np.asarray(unique_tokens) * repeats
