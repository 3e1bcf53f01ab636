"""The kinds of laws, over the variables that each of them counts; the shelf has coefficients.

A variable's name says how it is counted: `n_total_non_embedding` is all parameters but embedding and head. ρ, the
`density`, is the share of the routed experts that a token uses.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import log
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from hub.base.errors import InputError
from hub.base.units import format_experts
from scaling_law.formulas import published
from scaling_law.formulas.conditions import RangeCheck
from scaling_law.formulas.law import ChinchillaForm, Values, numbers, positive
from scaling_law.formulas.terms import E_HAT, Form, Term, expert_transform
from scaling_law.law import Law, register
from scaling_law.planning.optimum import optimum_draws
from scaling_law.size.arrays import Columns

# Terms in N and in D with experts, which several laws share.
_SIZE = Term("a", {"n_active": "alpha", "e_hat": "delta", "n_active*e_hat": "gamma"})
_DATA = Term("b", {"tokens": "beta", "e_hat": "omega", "tokens*e_hat": "zeta"})


@register
@dataclass(frozen=True, repr=False)
class ChinchillaLaw(ChinchillaForm, Law):
    """L = m N^μ + n D^ν + c with μ, ν < 0, for one E, which questions may leave out. Ludziejewski et al. 2025, Eq. 2.

    `experts=None` means the E of the fitted runs if they share one, else dense models.
    """

    name: ClassVar[str] = "chinchilla"
    formula: ClassVar[str] = "L = m·N^μ + n·D^ν + c"
    form: ClassVar[Form] = Form((Term("m", {"n_active": "mu"}), Term("n", {"tokens": "nu"}), Term("c")))

    m: float
    mu: float
    n: float
    nu: float
    c: float
    experts: float | None = None

    @classmethod
    def of(cls, a: float, alpha: float, b: float, beta: float, e: float) -> ChinchillaLaw:
        """Convert E + A / N^α + B / D^β, as Hoffmann et al. write it."""
        return cls(a, -alpha, b, -beta, e)

    def default_experts(self) -> float:
        """Return the E for which the law holds."""
        if self.experts is not None:
            return self.experts
        run_experts = self.conditions.experts if self.conditions else ()
        return run_experts[0] if len(run_experts) == 1 else 1.0

    def warnings(
        self,
        n_active: Values = None,
        tokens: Values = None,
        experts: Values = None,
        **variables: Values,
    ) -> list[str]:
        """Say how far these models lie outside the runs, and for which E the law does not hold."""
        sentences = super().warnings(n_active, tokens, experts, **variables)
        own_experts = self.default_experts()
        requested = numbers("experts", own_experts if experts is None else experts)
        different = [e for e in np.unique(requested).tolist() if e != own_experts]
        if different:
            holds = f"this Chinchilla law holds for E = {own_experts:g}"
            sentences.append(f"{holds}: its loss for E = {', '.join(format_experts(different))} is the same")
        return sentences

    def check(
        self,
        n_active: Values = None,
        tokens: Values = None,
        experts: Values = None,
        **variables: Values,
    ) -> RangeCheck:
        """Check how far these models lie from the runs. E left out means the law's own."""
        if experts is None:
            experts = self.default_experts()
        return super().check(n_active, tokens, experts, **variables)

    def chinchilla_coefficients(self, experts: ArrayLike) -> tuple[Any, Any, Any, Any]:
        """Return (m, μ, n, ν) for each of `experts`. ValueError for another E than the law's own."""
        e = positive("experts", experts, 1.0)
        own_experts = self.default_experts()
        different = e[e != own_experts]
        if different.size:
            raise InputError(f"experts={different.flat[0]:g}: this Chinchilla law holds for E = {own_experts:g} only")
        return super().chinchilla_coefficients(e)

    @classmethod
    def chinchilla_of(cls, coefficients: Any, experts: ArrayLike) -> tuple[Any, Any, Any, Any]:
        """Return (m, μ, n, ν) of these coefficients in the shape of `experts`."""
        m, mu, n, nu = (np.broadcast_arrays(value, experts)[0] for value in coefficients[:4])
        return m, mu, n, nu


@register
@dataclass(frozen=True, repr=False)
class JointLaw(ChinchillaForm, Law):
    """L = a Ê^δ N^(α + γ ln Ê) + b Ê^ω D^(β + ζ ln Ê) + c (Ludziejewski et al. 2025, Eq. 5); `published` is theirs."""

    name: ClassVar[str] = "joint"
    formula: ClassVar[str] = "L = a·Ê^δ·N^(α + γ ln Ê) + b·Ê^ω·D^(β + ζ ln Ê) + c"
    form: ClassVar[Form] = Form((_SIZE, _DATA, Term("c")), (E_HAT,))

    a: float
    alpha: float
    delta: float
    gamma: float
    b: float
    beta: float
    omega: float
    zeta: float
    e_start: float
    e_max: float
    c: float

    @classmethod
    @lru_cache(maxsize=2)
    def published(cls, rounded: bool = False) -> JointLaw:
        """Return the paper's law: coefficients recovered at full precision, or (`rounded`) as its table prints them.

        Only the recovered law has draws: this package's, not the authors' (see `studies.paper.draws`).
        """
        coefficients: Any = published.PRINTED if rounded else published.RECOVERED
        law = cls(**coefficients, conditions=published.conditions(rounded))
        if rounded:
            return law
        draws = np.load(published.DRAWS_FILE, allow_pickle=False)
        return law.replace(draws=draws)

    optimum_draws = optimum_draws

    @classmethod
    def chinchilla_of(cls, coefficients: Any, experts: ArrayLike) -> tuple[Any, Any, Any, Any]:
        """Return (m, μ, n, ν) of these coefficients, or draws, at E; they broadcast."""
        a, alpha, delta, gamma, b, beta, omega, zeta, e_start, e_max = coefficients[:10]
        e_hat = expert_transform(experts, e_start, e_max)
        log_e = np.log(e_hat)
        m = a * e_hat**delta
        mu = alpha + gamma * log_e
        n = b * e_hat**omega
        nu = beta + zeta * log_e
        return m, mu, n, nu

    def to_chinchilla(self, experts: float) -> ChinchillaLaw:
        """Convert the law for one E to a Chinchilla law, with the same conditions."""
        m, mu, n, nu = map(float, self.chinchilla_coefficients(experts))
        law = ChinchillaLaw(
            m,
            mu,
            n,
            nu,
            self.c,
            experts=float(experts),
            conditions=self.conditions,
            repetition=self.repetition,
        )
        if self.draws is None:
            return law
        columns = [*self.chinchilla_of(self.draws.T, float(experts)), self.draws[:, 10]]
        return law.replace(draws=np.stack(columns, axis=-1))


@register
@dataclass(frozen=True, repr=False)
class CrossingLaw(Law):
    """The joint law with κ, which makes the D from which experts pay depend on E, and the q of `InteractionLaw`.

    With κ = 0 and q = 1 it is the joint law, in which all E cross the dense model at nearly the same D.
    """

    name: ClassVar[str] = "crossing"
    formula: ClassVar[str] = "L = (a·Ê^δ·N^(α + γ ln Ê) + b·Ê^(ω + κ ln Ê)·D^(β + ζ ln Ê))^q + c"
    form: ClassVar[Form] = Form(
        (_SIZE, Term("b", {**_DATA.slopes, "e_hat*e_hat": "kappa"}), Term("c")), (E_HAT,), outer="q"
    )

    a: float
    alpha: float
    delta: float
    gamma: float
    b: float
    beta: float
    omega: float
    kappa: float
    zeta: float
    e_start: float
    e_max: float
    q: float
    c: float


@register
@dataclass(frozen=True, repr=False)
class LadderLaw(Law):
    """A power of the compute 6 N D above a constant, for models of one ratio D / N."""

    name: ClassVar[str] = "ladder"
    formula: ClassVar[str] = "L = a·(N·D)^−α + c"
    form: ClassVar[Form] = Form((Term("a", {"n_active": "-alpha", "tokens": "-alpha"}), Term("c")))

    a: float
    alpha: float
    c: float


@register
@dataclass(frozen=True, repr=False)
class InteractionLaw(Law):
    """`L = ((A / N^α)^(1/q) + (B / D^β)^(1/q))^q + c`, which `of` converts; q = 1 is Chinchilla's law.

    The smaller q is, the more the larger of the two shortages dominates.
    """

    name: ClassVar[str] = "interaction"
    formula: ClassVar[str] = "L = (a·N^−x + b·D^−y)^q + c"
    form: ClassVar[Form] = Form((Term("a", {"n_active": "-x"}), Term("b", {"tokens": "-y"}), Term("c")), outer="q")

    a: float
    x: float
    b: float
    y: float
    q: float
    c: float

    @classmethod
    def of(cls, a: float, alpha: float, b: float, beta: float, q: float, c: float) -> InteractionLaw:
        """Convert A, α, B and β: a = A^(1/q), x = α / q, b = B^(1/q), y = β / q."""
        return cls(a ** (1 / q), alpha / q, b ** (1 / q), beta / q, q, c)


@register
@dataclass(frozen=True, repr=False)
class RoutedLaw(Law):
    """Clark et al.'s law for runs of one dataset size: L = a Ê^δ N^(α + γ ln Ê). D may be left out as None."""

    name: ClassVar[str] = "routed"
    formula: ClassVar[str] = "L = a·Ê^δ·N^(α + γ ln Ê)"
    form: ClassVar[Form] = Form((_SIZE,), (E_HAT,))

    a: float
    alpha: float
    delta: float
    gamma: float
    e_start: float
    e_max: float


@register
@dataclass(frozen=True, repr=False)
class KaplanLaw(Law):
    """Kaplan et al. 2020, Eq. 1.5: L = ((N_c / N)^(α_N/α_D) + D_c / D)^α_D (`of` converts).

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
        """Convert what the paper prints: x = α_N / α_D, a = N_c^x and b = D_c."""
        return cls(n_c ** (alpha_n / alpha_d), alpha_n / alpha_d, d_c, alpha_d)


@register
@dataclass(frozen=True, repr=False)
class ClarkLaw(RoutedLaw):
    """RoutedLaw as Clark et al. 2022 (Eq. 1) count: N without embedding and head, for the D of their runs."""

    name: ClassVar[str] = "clark"
    form: ClassVar[Form] = Form(
        (Term("a", {"n_active_non_embedding": "alpha", "e_hat": "delta", "e_hat*n_active_non_embedding": "gamma"}),),
        (E_HAT,),
    )

    @classmethod
    def of(cls, a: float, b: float, c: float, d: float, e_start: float, e_max: float) -> ClarkLaw:
        """Convert log₁₀ L = a log₁₀ N + b log₁₀ Ê + c log₁₀ N log₁₀ Ê + d, as the paper prints it."""
        return cls(10.0**d, a, b, c / log(10.0), e_start, e_max)


@register
@dataclass(frozen=True, repr=False)
class GranularityLaw(Law):
    """Fine-grained experts, G = d_ff / d_expert, for the E of its runs; N is total. Krajewski et al. 2024, Eq. 9."""

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


@register
@dataclass(frozen=True, repr=False)
class SparsityLaw(Law):
    """The law of sparse models: ρ = 1 − S is the density, N is all parameters. Its λ < 0. Abnar et al. 2025, Eq. 6."""

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
    """Data and saturating experts; d, of size and experts, is a coefficient of every term. Yun et al. 2024, Eq. 4."""

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
    """Five factors: G is the number of active experts, shared included, S the shared fraction. Zhao et al. 2025.

    It is not a sum of positive terms: it can be asked but not fitted.
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
    def evaluate(cls, coefficients: Any, inputs: Columns) -> Any:
        """Compute the loss for coefficients in the order of the fields; nothing is checked."""
        e, f, m, n, k, h, a, alpha, b, beta, c, epsilon = coefficients
        total, active, tokens, g, s = (inputs[name] for name in cls.form.reads)
        total_power = total**-alpha
        active_power = active**-alpha
        design = e * g + f / g + m * s**2 + n * s
        design_loss = design * (total_power + k * active_power + h * active / total)
        return design_loss + a * total_power + b * tokens**-beta + c * active_power + epsilon
