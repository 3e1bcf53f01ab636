"""The transform Ê of the number of experts, shared by every law.

Ludziejewski et al. 2025 (arXiv 2502.05172), Eq. 3, after Clark et al. 2022:

    1/Ê = 1 / (E − 1 + (1/E_start − 1/E_max)⁻¹) + 1/E_max

so that Ê(1) = E_start, Ê grows with E and saturates at E_max.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike


def expert_transform(experts: ArrayLike, e_start: ArrayLike, e_max: ArrayLike) -> Any:
    """Ê, broadcasting over its arguments. Needs E ≥ 1 and 1 < e_start < e_max (not checked here)."""
    inner = np.asarray(experts, float) - 1.0 + _offset(e_start, e_max)
    return inner * np.asarray(e_max, float) / (inner + np.asarray(e_max, float))


def log_expert_transform_gradient(
    experts: ArrayLike, e_start: ArrayLike, e_max: ArrayLike
) -> tuple[Any, Any, Any, Any]:
    """ln Ê and its derivatives by E, E_start and E_max (each broadcast)."""
    start, top = np.asarray(e_start, float), np.asarray(e_max, float)
    offset = _offset(start, top)
    inner = np.asarray(experts, float) - 1.0 + offset
    log_e_hat = np.log(inner) + np.log(top) - np.log(inner + top)
    by_inner = 1.0 / inner - 1.0 / (inner + top)  # d ln Ê / d inner
    # offset = s t / (t − s): its derivatives are (offset/s)² and −(offset/t)²
    by_start = by_inner * (offset / start) ** 2
    by_max = -by_inner * (offset / top) ** 2 + 1.0 / top - 1.0 / (inner + top)
    return log_e_hat, by_inner, by_start, by_max


def _offset(e_start: ArrayLike, e_max: ArrayLike) -> Any:
    start, top = np.asarray(e_start, float), np.asarray(e_max, float)
    return start * top / (top - start)
