"""The laws of other papers, over the variables that each of them counts; `formulas.shelf` has coefficients.

KaplanLaw       L = (a N^−x + b / D)^α_D                                    Kaplan et al. 2020, Eq. 1.5
ClarkLaw        L = a Ê^δ N^(α + γ ln Ê)                                    Clark et al. 2022, Eq. 1
GranularityLaw  L = (g / G^γ + a) / N^α + b / D^β + c                       Krajewski et al. 2024, Eq. 9
SparsityLaw     L = a / N^α + b / D^β + c / ρ^λ + d / (ρ^δ N^γ) + e         Abnar et al. 2025, Eq. 6
SaturationLaw   L = (a / N^α + b / Ê^β + c / D^γ + f) N^(d ln Ê)            Yun et al. 2024, Eq. 4
FiveFactorLaw   L of N, N_a, D, active experts and shared experts           Zhao et al. 2025

A variable's name says how it is counted: `n_total_non_embedding` is all parameters but embedding and head. ρ, the
`density`, is the part of the routed experts that a token uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from typing import Any, ClassVar

from scaling_law.formulas.law import FloatArray, Law, RoutedLaw, register
from scaling_law.formulas.terms import E_HAT, Form, Term


@register
@dataclass(frozen=True, repr=False)
class KaplanLaw(Law):
    """L = ((N_c / N)^(α_N/α_D) + D_c / D)^α_D, with x = α_N / α_D, a = N_c^x and b = D_c (`of` converts).

    N is non-embedding parameters. D is the size of a dataset that may be repeated until early stopping, so that 6 N D
    is not the compute spent.
    """

    name: ClassVar[str] = "kaplan"
    formula: ClassVar[str] = "L = (a·N^−x + b/D)^α_D"
    form: ClassVar[Form] = Form(
        (Term("a", {"n_active_non_embedding": "-x"}), Term("b", {"tokens": -1.0})), outer="alpha_d"
    )

    a: float
    x: float
    b: float
    alpha_d: float

    @classmethod
    def of(cls, alpha_n: float, alpha_d: float, n_c: float, d_c: float) -> KaplanLaw:
        """From the coefficients as the paper prints them."""
        return cls(n_c ** (alpha_n / alpha_d), alpha_n / alpha_d, d_c, alpha_d)


@register
@dataclass(frozen=True, repr=False)
class ClarkLaw(RoutedLaw):
    """RoutedLaw as Clark et al. count: N without embedding and head. D is that of the runs."""

    name: ClassVar[str] = "clark"
    form: ClassVar[Form] = Form(
        (Term("a", {"n_active_non_embedding": "alpha", "e_hat": "delta", "e_hat*n_active_non_embedding": "gamma"}),),
        (E_HAT,),
    )

    @classmethod
    def of(cls, a: float, b: float, c: float, d: float, e_start: float, e_max: float) -> ClarkLaw:
        """From log₁₀ L = a log₁₀ N + b log₁₀ Ê + c log₁₀ N log₁₀ Ê + d, as the paper prints it."""
        return cls(10.0**d, a, b, c / log(10.0), e_start, e_max)


@register
@dataclass(frozen=True, repr=False)
class GranularityLaw(Law):
    """The law of fine-grained experts, G = d_ff / d_expert, for the E of its runs; N is total."""

    name: ClassVar[str] = "granularity"
    formula: ClassVar[str] = "L = (g/G^γ + a)/N^α + b/D^β + c"
    form: ClassVar[Form] = Form(
        (
            Term("g", {"granularity": "-gamma", "n_total_non_embedding": "-alpha"}),
            Term("a", {"n_total_non_embedding": "-alpha"}),
            Term("b", {"tokens": "-beta"}),
            Term("c"),
        )
    )

    g: float
    gamma: float
    a: float
    alpha: float
    b: float
    beta: float
    c: float

    def default_experts(self) -> Any:
        low, high = self.conditions.fitted_limits().get("E", (0.0, 1.0)) if self.conditions else (0.0, 1.0)
        return (low,) if low == high else super().default_experts()


@register
@dataclass(frozen=True, repr=False)
class SparsityLaw(Law):
    """The law of sparse models: ρ = 1 − S is the density, N is all parameters. Its λ is negative."""

    name: ClassVar[str] = "sparsity"
    formula: ClassVar[str] = "L = a/N^α + b/D^β + c/ρ^λ + d/(ρ^δ·N^γ) + e"
    form: ClassVar[Form] = Form(
        (
            Term("a", {"n_total": "-alpha"}),
            Term("b", {"tokens": "-beta"}),
            Term("c", {"density": "-lambda_"}),
            Term("d", {"density": "-delta", "n_total": "-gamma"}),
            Term("e"),
        )
    )

    a: float
    alpha: float
    b: float
    beta: float
    c: float
    lambda_: float
    d: float
    delta: float
    gamma: float
    e: float


@register
@dataclass(frozen=True, repr=False)
class SaturationLaw(Law):
    """Data and saturating experts, with one interaction of size and experts: d is a coefficient of every term."""

    name: ClassVar[str] = "saturation"
    formula: ClassVar[str] = "L = (a/N^α + b/Ê^β + c/D^γ + f)·N^(d ln Ê)"
    form: ClassVar[Form] = Form(
        (
            Term("a", {"n_active_non_embedding": "-alpha", "e_hat*n_active_non_embedding": "d"}),
            Term("b", {"e_hat": "-beta", "e_hat*n_active_non_embedding": "d"}),
            Term("c", {"tokens": "-gamma", "e_hat*n_active_non_embedding": "d"}),
            Term("f", {"e_hat*n_active_non_embedding": "d"}),
        ),
        (E_HAT,),
    )

    a: float
    alpha: float
    b: float
    beta: float
    c: float
    gamma: float
    f: float
    d: float
    e_start: float
    e_max: float


@register
@dataclass(frozen=True, repr=False)
class FiveFactorLaw(Law):
    """L = (e G + f/G + m S² + n S) (N^−α + k N_a^−α + h N_a/N) + a N^−α + b D^−β + c N_a^−α + ε.

    G is the number of active experts, shared ones included, and S the shared part of them. It is no sum of positive
    terms: it can be asked but not fitted.
    """

    name: ClassVar[str] = "five_factor"
    formula: ClassVar[str] = "L = (eG + f/G + mS² + nS)·(1/N^α + k/N_a^α + h·N_a/N) + a/N^α + b/D^β + c/N_a^α + ε"
    form: ClassVar[Form] = Form((), reads=("n_total", "n_active", "tokens", "active_experts", "shared_ratio"))

    e: float
    f: float
    m: float
    n: float
    k: float
    h: float
    a: float
    alpha: float
    b: float
    beta: float
    c: float
    epsilon: float

    @classmethod
    def evaluate(cls, coefficients: Any, inputs: Mapping[str, FloatArray]) -> Any:
        e, f, m, n, k, h, a, alpha, b, beta, c, epsilon = coefficients
        total, active, tokens, g, s = (inputs[name] for name in cls.form.reads)
        by_total, by_active = total**-alpha, active**-alpha
        of_design = (e * g + f / g + m * s**2 + n * s) * (by_total + k * by_active + h * active / total)
        return of_design + a * by_total + b * tokens**-beta + c * by_active + epsilon
