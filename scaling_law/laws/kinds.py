"""The kinds of laws, as frozen objects with one interface.

JointLaw      L = a Ê^δ N^(α + γ ln Ê) + b Ê^ω D^(β + ζ ln Ê) + c      Ludziejewski et al. 2025, Eq. 5
ChinchillaLaw L = m N^μ + n D^ν + c                                     Eq. 2, exponents negative
RoutedLaw     L = a Ê^δ N^(α + γ ln Ê)                                  Clark et al. 2022, Eq. 3 of the paper
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from scaling_law.laws.conditions import GUARD
from scaling_law.laws.law import Law, checked_experts, register
from scaling_law.laws.terms import Term, expert_transform
from scaling_law.size.recipe import PAPER

if TYPE_CHECKING:
    from scaling_law import law_methods


class ChinchillaForm(Law):
    """A law that is m N^μ + n D^ν + c for each E, and so has optima.

    A subclass has a coefficient `c` and defines `chinchilla_coefficients`.
    """

    if TYPE_CHECKING:  # bound by `scaling_law.law_methods`, as those of Law
        compute_optimal = law_methods.compute_optimal
        optimal = law_methods.optimal

    def chinchilla_coefficients(self, experts: ArrayLike) -> tuple[Any, Any, Any, Any]:
        """(m, μ, n, ν) for each E of `experts`, as arrays of its shape. ValueError for an E outside the law."""
        raise NotImplementedError

    def default_experts(self) -> Any:
        """The expert counts of a question that names none: the paper's, within the range guard."""
        limits = self.conditions.fitted_limits().get("E") if self.conditions else None
        low, high = limits or (1.0, PAPER.experts[-1])
        return tuple(float(e) for e in PAPER.experts if low / GUARD["E"] <= e <= high * GUARD["E"])

    @property
    def irreducible_loss(self) -> float:
        """c, nats per token."""
        return self.coefficients["c"]


@register
@dataclass(frozen=True, repr=False)
class ChinchillaLaw(ChinchillaForm):
    """L = m N^μ + n D^ν + c with μ, ν < 0, for one number of experts.

    `experts` is that number; None means the one E of the fitted runs if there is only one, else dense models. The
    loss does not depend on E, which every question may leave out.
    """

    name: ClassVar[str] = "chinchilla"
    formula: ClassVar[str] = "L = m·N^μ + n·D^ν + c"
    terms: ClassVar[tuple[Term, ...]] = (
        Term("n_active", ("m", "mu")),
        Term("tokens", ("n", "nu")),
        Term(None, ("c",)),
    )

    m: float
    mu: float
    n: float
    nu: float
    c: float
    experts: float | None = None

    def default_experts(self) -> float:
        """The one E that this law holds for."""
        own = self.conditions.experts if self.conditions else ()
        return self.experts if self.experts is not None else (own[0] if len(own) == 1 else 1.0)

    def warnings(self, n_active: ArrayLike, tokens: ArrayLike, experts: ArrayLike | None = None) -> list[str]:
        own = self.default_experts()
        asked = np.unique(np.asarray(own if experts is None else experts, float))
        found = super().warnings(n_active, tokens, own if experts is None else experts)
        if others := [f"{e:g}" for e in asked.tolist() if e != own]:
            found.append(
                f"this Chinchilla law holds for E = {own:g}: its loss for E = {', '.join(others)} is the same"
            )
        return found

    def chinchilla_coefficients(self, experts: ArrayLike) -> tuple[Any, Any, Any, Any]:
        e, own = checked_experts(experts), self.default_experts()
        if np.any(e != own):
            raise ValueError(f"experts={float(e[e != own].flat[0]):g}: this Chinchilla law holds for E = {own:g} only")
        m, mu, n, nu = (np.full(e.shape, value) for value in (self.m, self.mu, self.n, self.nu))
        return m, mu, n, nu


@register
@dataclass(frozen=True, repr=False)
class JointLaw(ChinchillaForm):
    """The joint law of dense and MoE models. `JointLaw.published()` is the paper's."""

    name: ClassVar[str] = "joint"
    formula: ClassVar[str] = "L = a·Ê^δ·N^(α + γ ln Ê) + b·Ê^ω·D^(β + ζ ln Ê) + c"
    terms: ClassVar[tuple[Term, ...]] = (
        Term("n_active", ("a", "alpha", "delta", "gamma"), experts=True),
        Term("tokens", ("b", "beta", "omega", "zeta"), experts=True),
        Term(None, ("c",)),
    )

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

    if TYPE_CHECKING:  # bound by `scaling_law.law_methods`
        optimum_draws = law_methods.optimum_draws

        @classmethod
        def published(cls, rounded: bool = False) -> JointLaw: ...

    def chinchilla_coefficients(self, experts: ArrayLike) -> tuple[Any, Any, Any, Any]:
        """(m, μ, n, ν) for each E of `experts`, as arrays of its shape."""
        return joint_to_chinchilla(tuple(self.coefficients.values()), checked_experts(experts))

    def to_chinchilla(self, experts: float) -> ChinchillaLaw:
        """This law for one number of experts, in closed form, with the same conditions."""
        m, mu, n, nu = self.chinchilla_coefficients(experts)
        law = ChinchillaLaw(float(m), float(mu), float(n), float(nu), self.c, experts=float(experts))
        if self.draws is not None:
            columns = [*joint_to_chinchilla(self.draws.T, float(experts)), self.draws[:, 10]]
            law = law.replace(draws=np.stack(columns, axis=-1))
        return law.replace(conditions=self.conditions)


def joint_to_chinchilla(coefficients: Any, experts: ArrayLike) -> tuple[Any, Any, Any, Any]:
    """(m, μ, n, ν) of a joint law's coefficients (in the order of JointLaw) at `experts`; broadcasts."""
    a, alpha, delta, gamma, b, beta, omega, zeta, e_start, e_max = coefficients[:10]
    e_hat = expert_transform(experts, e_start, e_max)
    log_e = np.log(e_hat)
    return a * e_hat**delta, alpha + gamma * log_e, b * e_hat**omega, beta + zeta * log_e


@register
@dataclass(frozen=True, repr=False)
class RoutedLaw(Law):
    """Clark et al.'s law for runs of one dataset size: L = a Ê^δ N^(α + γ ln Ê). D may be left out as None."""

    name: ClassVar[str] = "routed"
    formula: ClassVar[str] = "L = a·Ê^δ·N^(α + γ ln Ê)"
    terms: ClassVar[tuple[Term, ...]] = (Term("n_active", ("a", "alpha", "delta", "gamma"), experts=True),)

    a: float
    alpha: float
    delta: float
    gamma: float
    e_start: float
    e_max: float
