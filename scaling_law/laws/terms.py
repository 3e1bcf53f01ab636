"""The terms that a law is a sum of; its values, its fit and its starts follow from them.

    term = exp( p + s x + (q + r x) ln Ê )        x = ln N, ln D or ln E

e^p is the size, s the slope, q the dependence on experts, r the interaction; those a term lacks are 0. Ê grows from
Ê(1) = E_start and saturates at E_max (Ludziejewski et al. 2025, Eq. 3, after Clark et al. 2022):

    1/Ê = 1 / (E − 1 + (1/E_start − 1/E_max)⁻¹) + 1/E_max
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
TRANSFORM = ("e_start", "e_max")  # coefficients of Ê, in every law that has it
VARIABLES = ("n_active", "tokens", "experts")
CONSTANT, SIZE, SLOPE, BY_EXPERTS, INTERACTION = "constant", "size", "slope", "by_experts", "interaction"


@dataclass(frozen=True)
class Term:
    """A power of `variable` (None: a constant), with or without Ê.

    The coefficients are (constant,), (size, slope) or (size, slope, by experts, interaction). The first is positive
    and fitted as its logarithm.
    """

    variable: str | None
    coefficients: tuple[str, ...]
    experts: bool = False

    def __post_init__(self) -> None:
        if self.variable is not None and self.variable not in VARIABLES:
            raise ValueError(f"variable={self.variable!r} must be one of {list(VARIABLES)}, or None")
        if self.variable is None and self.experts:
            raise ValueError(f"a constant term ({', '.join(self.coefficients)}) cannot have experts=True")
        if len(self.coefficients) != len(self.roles):
            raise ValueError(f"coefficients={self.coefficients!r} must be {len(self.roles)}: {', '.join(self.roles)}")

    @property
    def roles(self) -> tuple[str, ...]:
        if self.variable is None:
            return (CONSTANT,)
        return (SIZE, SLOPE, BY_EXPERTS, INTERACTION) if self.experts else (SIZE, SLOPE)


def roles(terms: Sequence[Term]) -> dict[str, str]:
    """Name → role of every coefficient, without those of Ê. ValueError for a name twice, or for two constants."""
    names = [name for term in terms for name in term.coefficients]
    if len({*names, *TRANSFORM}) < len(names) + len(TRANSFORM) or sum(not term.variable for term in terms) > 1:
        raise ValueError(f"terms: the coefficients {names} must have names of their own, with one constant at most")
    return {name: role for term in terms for name, role in zip(term.coefficients, term.roles, strict=True)}


def has_transform(terms: Sequence[Term]) -> bool:
    """Whether Ê occurs."""
    return any(term.experts for term in terms)


def positive_coefficients(terms: Sequence[Term]) -> frozenset[str]:
    """The coefficients that are fitted as their logarithms."""
    return frozenset(term.coefficients[0] for term in terms)


def coefficients_of(terms: Sequence[Term]) -> tuple[str, ...]:
    """The names of all coefficients, those of Ê last."""
    return (*roles(terms), *(TRANSFORM if has_transform(terms) else ()))


def evaluate_terms(terms: Sequence[Term], values: Mapping[str, Any], inputs: Mapping[str, FloatArray]) -> Any:
    """The sum of the terms at `inputs` (n_active, tokens, experts); coefficients and inputs broadcast."""
    log_e: Any = 0.0
    if has_transform(terms):
        log_e = np.log(expert_transform(inputs["experts"], *(values[name] for name in TRANSFORM)))
    total: Any = 0.0
    for term in terms:
        own = [values[name] for name in term.coefficients]
        x = np.log(inputs[term.variable]) if term.variable else 0.0
        if term.experts:
            total = total + own[0] * np.exp(own[2] * log_e + (own[1] + own[3] * log_e) * x)
        else:
            total = total + (own[0] * np.exp(own[1] * x) if term.variable else own[0])
    return total


def expert_transform(experts: ArrayLike, e_start: ArrayLike, e_max: ArrayLike) -> Any:
    """Ê, broadcasting over its arguments. Needs E ≥ 1 and 1 < e_start < e_max (not checked here)."""
    inner, top = _inner(experts, e_start, e_max), np.asarray(e_max, float)
    return inner * top / (inner + top)


def log_expert_transform_gradient(experts: ArrayLike, e_start: ArrayLike, e_max: ArrayLike) -> tuple[Any, Any, Any]:
    """ln Ê and its derivatives by E_start and E_max (each broadcast)."""
    start, top = np.asarray(e_start, float), np.asarray(e_max, float)
    inner, offset = _inner(experts, start, top), start * top / (top - start)
    by_inner = 1.0 / inner - 1.0 / (inner + top)  # d ln Ê / d inner
    # offset = s t / (t − s): its derivatives are (offset/s)² and −(offset/t)²
    by_start = by_inner * (offset / start) ** 2
    by_max = -by_inner * (offset / top) ** 2 + 1.0 / top - 1.0 / (inner + top)
    return np.log(inner) + np.log(top) - np.log(inner + top), by_start, by_max


def _inner(experts: ArrayLike, e_start: ArrayLike, e_max: ArrayLike) -> Any:
    """E − 1 + (1/E_start − 1/E_max)⁻¹."""
    start, top = np.asarray(e_start, float), np.asarray(e_max, float)
    return np.asarray(experts, float) - 1.0 + start * top / (top - start)
