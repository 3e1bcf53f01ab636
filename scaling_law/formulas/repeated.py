"""Repeated data and excess parameters, and how much they count (Muennighoff et al. 2023, arXiv 2305.16264, Section 3).

    D' = U_D + U_D R*_D (1 − exp(−R_D / R*_D))     R_D = D / U_D − 1     U_D = min(D, unique tokens)
    N' = U_N + U_N R*_N (1 − exp(−R_N / R*_N))     R_N = N / U_N − 1     U_N = min(N, N_opt(U_D))

N_opt(U_D) is the size for which U_D tokens are compute-optimal by the same law. `Formula.effective` replaces D
by D' ≤ (1 + R*_D) U_D and N by N' in any law.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hub.base.errors import InputError
from scaling_law.formulas.roots import find_root
from scaling_law.size.arrays import FloatArray

# Fitted on 182 runs of up to 9e9 parameters and 500 epochs: README of huggingface/datablations, "Parametric Fit"
R_STAR_TOKENS = 15.387756
R_STAR_PARAMETERS = 5.309743

# A function of the ln of a size, which returns the variables of models of this size except tokens.
Models = Callable[[FloatArray], Mapping[str, Any]]
# N_opt is searched between −LOG_SIZES and LOG_SIZES, as the ln of a size.
LOG_SIZES = 45.0
# The step in the ln of a size over which a slope is taken: its error is below 1e-7 of the size.
STEP = 3e-4
# A share of the loss; a smaller change over a step is rounding.
FLAT = 1e-12


@dataclass(frozen=True)
class Repetition:
    """R*_D of repeated `tokens` and R*_N of excess `parameters`; by default those of Muennighoff et al. 2023."""

    tokens: float = R_STAR_TOKENS
    parameters: float = R_STAR_PARAMETERS

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_number or not 0 < value < np.inf:
                raise InputError(f"repetition: {field.name}={value!r} must be positive and finite")

    def __str__(self) -> str:
        return f"repeated data with R*_D = {self.tokens:.4g}, R*_N = {self.parameters:.4g}"


def effective_tokens(tokens: ArrayLike, unique_tokens: ArrayLike, r_star: float = R_STAR_TOKENS) -> Any:
    """Compute D' for D tokens of which `unique_tokens` are unique (D itself up to one epoch); broadcasts.

    With R_STAR_PARAMETERS as `r_star`, N' for N parameters and U_N. ValueError for values that are not positive.
    """
    for name, value in (("tokens", tokens), ("unique_tokens", unique_tokens), ("r_star", r_star)):
        array = np.asarray(value)
        invalid = array[~(array > 0)]
        if invalid.size:
            raise InputError(f"{name}={invalid.flat[0]:g} must be positive")
    return saturate(tokens, unique_tokens, r_star)


def saturate(value: ArrayLike, unit: ArrayLike, r_star: ArrayLike) -> Any:
    """Count what exceeds the `unit` less, by exp(−excess / r_star units); broadcasts, nothing is checked."""
    unique = np.asarray(unit)
    repeats = np.maximum(np.asarray(value) / unique - 1.0, 0.0)
    return np.minimum(value, unique) + unique * (r_star * -np.expm1(-repeats / r_star))


def tokens_worth(effective: ArrayLike, unique_tokens: ArrayLike, r_star: float = R_STAR_TOKENS) -> Any:
    """Invert `effective_tokens`: return the D whose D' is `effective`, infinite where no number of epochs suffices."""
    unique = np.asarray(unique_tokens)
    excess = np.maximum(np.asarray(effective) / unique - 1.0, 0.0)
    with np.errstate(divide="ignore"):
        repeats = -r_star * np.log1p(-np.minimum(excess / r_star, 1.0))
    return np.minimum(effective, unique_tokens) + unique * repeats


def slope_along_flops(
    loss: Callable[[Mapping[str, Any]], Any], models: Models, size: str, tokens: FloatArray, x: FloatArray
) -> FloatArray:
    """Return the change of the loss, relative to it, over a step in ln size `x` at the same 6·N·D."""
    n = models(x)[size]
    smaller = models(x - STEP)
    larger = models(x + STEP)
    loss_below = loss({**smaller, "tokens": tokens * (n / smaller[size])})
    loss_above = loss({**larger, "tokens": tokens * (n / larger[size])})
    return np.asarray((loss_above - loss_below) / loss_below)


def size_called_for(
    loss: Callable[[Mapping[str, Any]], Any], models: Models, size: str, tokens: FloatArray
) -> FloatArray:
    """Find N_opt, the `size` of the `models` for which these tokens are compute-optimal, NaN where there is none.

    At N_opt the loss of models that spend the same 6·N·D stops falling with the size.
    """

    def slope(x: FloatArray) -> FloatArray:
        return slope_along_flops(loss, models, size, tokens, x)

    low = np.full(np.shape(tokens), -LOG_SIZES)
    high = np.full(np.shape(tokens), LOG_SIZES)
    # Far from the runs of the law its values may overflow.
    with np.errstate(all="ignore"):
        has_minimum = (slope(low) < -FLAT) & (slope(high) > FLAT)
        size_at_minimum = models(find_root(slope, low, high))[size]
        return np.where(has_minimum, size_at_minimum, np.nan)
