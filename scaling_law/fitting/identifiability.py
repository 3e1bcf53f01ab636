"""Identifiability: which coefficients the runs determine, with what standard errors.

Before a fit, from the design of the runs (`design_problems`): one number of experts cannot show the effect of E, one
ratio D/N cannot separate the two powers. After it, from the Jacobian at the optimum (`examine`): flat directions, and
coefficients whose standard error is too large to be useful (`RESOLUTION`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from scaling_law.fitting.objective import Objective
from scaling_law.laws import LAWS
from scaling_law.laws.terms import BY_EXPERTS, CONSTANT, INTERACTION, SIZE, SLOPE, TRANSFORM, roles

FloatArray = NDArray[np.float64]

# The standard error up to which a coefficient counts as determined: exponents and interactions absolutely; factors by
# their logarithm (1: a factor e); E_start and E_max by ln(E_start − 1) and ln(E_max − E_start).
RESOLUTION = {SLOPE: 0.05, BY_EXPERTS: 0.5, INTERACTION: 0.03, SIZE: 1.0, CONSTANT: 0.7}
TRANSFORM_RESOLUTION = 0.7
RANK_TOLERANCE = 1e-7  # singular values this much below the largest count as zero


def examine(
    objective: Objective, theta: FloatArray, free: NDArray[np.bool_]
) -> tuple[float, dict[str, float], tuple[str, ...]]:
    """From the Jacobian at θ [p] over the `free` parameters: condition number, standard errors, what is undetermined.

    The Jacobian is centred and its columns are scaled. Standard errors are those of the logarithm for a, b, c, of
    ln(E_start − 1) and ln(E_max − E_start) (ln(E_max − 1) where E_max is bounded), else absolute; infinite for
    directions that the runs do not see.
    """
    names = [name for name, is_free in zip(objective.names, free, strict=True) if is_free]
    residual, jacobian = (part[0] for part in objective.linearised(theta[None]))
    influence = objective.influence(residual)
    jacobian = jacobian[:, free] * np.sqrt(influence)[:, None]
    scale = np.linalg.norm(jacobian, axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    _, singular, rotation = np.linalg.svd(jacobian / scale, full_matrices=True)
    singular = np.concatenate([singular, np.zeros(len(names) - len(singular))])
    seen = singular > RANK_TOLERANCE * max(singular[0], 1e-300)
    spare = int(np.sum(objective.weight > 0)) - len(names)
    variance = float(influence @ residual**2 / spare) if spare > 0 else np.inf
    # to the law's own coordinates: rows of `back` are parameters, columns are singular directions
    back = objective.natural_jacobian()[np.ix_(free, free)] @ (rotation.T / scale[:, None])
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = np.sqrt(variance * np.sum((back[:, seen] / singular[seen]) ** 2, axis=1))
    unseen = np.linalg.norm(back[:, ~seen], axis=1) > 1e-6 * np.linalg.norm(back, axis=1)
    errors = np.where(unseen, np.inf, errors)
    condition = float(singular[0] / singular[-1]) if singular[-1] > 0 else float("inf")
    table = {name: float(error) for name, error in zip(names, errors, strict=True)}
    limits = {name: RESOLUTION[role] for name, role in roles(objective.terms).items()}
    vague = tuple(name for name, error in table.items() if not error <= limits.get(name, TRANSFORM_RESOLUTION))
    return condition, table, vague


def describe_error(name: str, error: float, positive: Collection[str]) -> str:
    """A standard error in words: ×÷ for what is fitted as a logarithm (those `positive`, and Ê's), ± for the rest."""
    if not np.isfinite(error):
        return "not determined at all"
    if name in positive or name in TRANSFORM:
        what = {"e_start": " of e_start − 1", "e_max": " of e_max − e_start"}.get(name, "")
        factor = f"×÷ {np.exp(error):.3g}" if error < np.log(1e6) else "more than ×÷ 1e6"
        return f"{factor}{what}"
    return f"± {error:.2g}"


def design_problems(law: str, columns: Mapping[str, FloatArray], free: set[str]) -> list[str]:
    """Why the design of the runs cannot determine all the free coefficients of `law`; empty if it can."""
    found = []
    if len(columns["loss"]) < len(free):
        found.append(
            f"{len(columns['loss'])} runs cannot determine {len(free)} coefficients ({', '.join(sorted(free))})"
        )
    terms = LAWS[law].terms
    role = roles(terms)
    about_experts = sorted(name for name in free if role.get(name, BY_EXPERTS) in (BY_EXPERTS, INTERACTION))
    experts = np.unique(columns["experts"])
    if len(experts) == 1 and about_experts:
        found.append(f"all runs have experts={experts[0]:g}: {', '.join(about_experts)} are not identifiable")
    for term in terms:
        hit = sorted(name for name in free & {*term.coefficients} if role[name] in (SLOPE, INTERACTION))
        if term.variable and hit and np.ptp(np.log(columns[term.variable])) < 1e-6:
            value = columns[term.variable][0]
            found.append(f"all runs have {term.variable}={value:g}: {', '.join(hit)} are not identifiable")
    ratio = np.log(columns["tokens"] / columns["n_active"])
    powers = [term for term in terms if term.variable in ("n_active", "tokens")]
    both = sorted(name for term in powers for name in free & {*term.coefficients} if role[name] in (SIZE, SLOPE))
    if len({term.variable for term in powers}) == 2 and len(ratio) > 1 and np.ptp(ratio) < 0.02 and both:
        value = np.exp(ratio.mean())
        found.append(f"all runs have tokens/n_active={value:.3g}: {', '.join(both)} cannot be told apart")
    return found
