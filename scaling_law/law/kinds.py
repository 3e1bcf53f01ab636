"""The kinds of laws: those that know more than their form are classes, the others are made of the files of `formulas`.

A variable's name says how it is counted: `n_total_non_embedding` is all parameters but embedding and head. ρ, the
`density`, is the share of the routed experts that a token uses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from hub.base.errors import InputError
from hub.base.units import format_experts
from scaling_law.formulas.conditions import Conditions
from scaling_law.formulas.files import DRAWS_FILE, FORMS, PUBLISHED, ROWS
from scaling_law.formulas.law import Values, one_positive, positive
from scaling_law.formulas.terms import Form
from scaling_law.law.base import LAWS, Law, LawT, register, register_form
from scaling_law.planning.optimum import optimum_draws
from scaling_law.size.arrays import Columns


def packaged(kind: type[LawT]) -> type[LawT]:
    """Register a class of the package, as a decorator, with the form that the file of its name has, if any."""
    file = FORMS.get(kind.name)
    if file is not None:
        kind.form = Form.from_dict(file["form"])
        kind.formula = file["formula"]
    kind.is_packaged = True
    return register(kind)


@packaged
@dataclass(frozen=True, repr=False)
class ChinchillaLaw(Law):
    """L = m N^μ + n D^ν + c with μ, ν < 0, for one E, which questions may leave out. Ludziejewski et al. 2025, Eq. 2.

    Hoffmann et al.'s E + A / N^α + B / D^β is `ChinchillaLaw(A, -α, B, -β, E)`. `experts=None` means the E of the
    fitted runs if they share one, else dense models.
    """

    name: ClassVar[str] = "chinchilla"

    m: float
    mu: float
    n: float
    nu: float
    c: float
    experts: float | None = None

    def default_experts(self) -> float:
        """Return the E for which the law holds."""
        if self.experts is not None:
            return self.experts
        run_experts = self.conditions.experts if self.conditions else ()
        return run_experts[0] if len(run_experts) == 1 else 1.0

    def _experts_left_out(self) -> float:
        return self.default_experts()

    def warnings(self, *sizes: Values, **variables: Values) -> list[str]:
        """Say how far these models lie outside the runs, and for which E the law does not hold."""
        check = self.check(*sizes, **variables)
        own_experts = self.default_experts()
        different = [e for e in np.unique(check.at["experts"]).tolist() if e != own_experts]
        if not different:
            return [*check.warnings]
        holds = f"this Chinchilla law holds for E = {own_experts:g}"
        return [*check.warnings, f"{holds}: its loss for E = {', '.join(format_experts(different))} is the same"]

    def chinchilla_coefficients(self, experts: ArrayLike) -> tuple[Any, Any, Any, Any]:
        """Return (m, μ, n, ν) for each of `experts`. ValueError for another E than the law's own."""
        e = positive("experts", experts, 1.0)
        own_experts = self.default_experts()
        different = e[e != own_experts]
        if different.size:
            raise InputError(f"experts={different.flat[0]:g}: this Chinchilla law holds for E = {own_experts:g} only")
        return super().chinchilla_coefficients(e)


@packaged
@dataclass(frozen=True, repr=False)
class JointLaw(Law):
    """L = a Ê^δ N^(α + γ ln Ê) + b Ê^ω D^(β + ζ ln Ê) + c (Ludziejewski et al. 2025, Eq. 5); `published` is theirs."""

    name: ClassVar[str] = "joint"

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

        Only the recovered law has draws: this package's, not the authors' (see `studies.paper.draws`). Its losses
        differ from the printed one's by up to 0.0026 nats.
        """
        row = ROWS[PUBLISHED]
        conditions = Conditions.from_dict(row["conditions"])
        if rounded:
            provenance = conditions.provenance.replace("recovered", "printed")
            return cls(**row["printed"], conditions=replace(conditions, provenance=provenance, draws=None))
        draws = np.load(DRAWS_FILE, allow_pickle=False)
        return cls(**row["coefficients"], conditions=conditions, draws=draws)

    def to_chinchilla(self, experts: float) -> ChinchillaLaw:
        """Convert the law for one E to a Chinchilla law, with the same conditions."""
        e = one_positive("experts", experts, 1.0)
        m, mu, n, nu = map(float, self.chinchilla_coefficients(e))
        draws = None
        if self.draws is not None:
            draws = np.stack([*self.chinchilla_of(self.draws.T, e), self.draws[:, -1]], axis=-1)
        shared: Any = {"conditions": self.conditions, "repetition": self.repetition}
        return ChinchillaLaw(m, mu, n, nu, self.c, experts=e, draws=draws, **shared)

    optimum_draws = optimum_draws


@packaged
@dataclass(frozen=True, repr=False)
class RoutedLaw(Law):
    """Clark et al.'s law for runs of one dataset size: L = a Ê^δ N^(α + γ ln Ê). D may be left out as None."""

    name: ClassVar[str] = "routed"

    a: float
    alpha: float
    delta: float
    gamma: float
    e_start: float
    e_max: float


@packaged
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


for name, file in FORMS.items():
    if name not in LAWS:
        register_form(name, file).is_packaged = True
