"""The best model for a budget: compute-optimal in closed form, and under memory and inference limits.

    minimise L(N_act, D, E)   subject to   6 N_act D + 2 N_act D_inf = F,   N_total + KV cache ≤ M

For a fixed E the loss is convex in ln N_act and every size grows with d_model: the optimum is the compute optimum
where it fits, else the largest model that fits, and the best architecture that exists is one of its two neighbours.
Ludziejewski et al. 2025 (arXiv 2502.05172), Section "Compute and Memory Optimality".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hub.base.errors import InputError
from hub.base.units import format_count, format_flops, listed_experts, parse_experts
from scaling_law.formulas import ChinchillaForm, Formula
from scaling_law.formulas.answers import ArrayAnswer, span
from scaling_law.formulas.law import positive
from scaling_law.planning.limits import LimitFields, Limits
from scaling_law.planning.minimiser import least, minima
from scaling_law.size.architecture import (
    EXPERT_VARIABLES,
    HEAD_DIM,
    active_parameters,
    affordable_tokens,
    inference_flops,
    training_flops,
    width_of_active,
)
from scaling_law.size.arrays import FloatArray

if TYPE_CHECKING:
    from typing_extensions import Unpack

MOST_REASONS = 6  # E of which each has a sentence of its own


def asked_experts(law: Formula, experts: Any) -> FloatArray:
    """The expert counts to answer for: numbers, text such as "1,2,4-8", or None for the law's own."""
    if isinstance(experts, str):
        return np.array(parse_experts(experts), float)
    try:
        return np.asarray(law.default_experts() if experts is None else experts, float)
    except (TypeError, ValueError):
        raise InputError(f"experts={experts!r} must be numbers of at least 1, or text such as '1,2,4-8'") from None


@dataclass(frozen=True)
class ComputeOptimum(ArrayAnswer):
    """Compute-optimal configurations; arrays of shape flops.shape + experts.shape (parameters, tokens, nats)."""

    flops: FloatArray
    experts: FloatArray
    n_active: FloatArray
    tokens: FloatArray
    loss: FloatArray

    @property
    def verdict(self) -> str:
        size, tokens, loss = (
            span(self.n_active, format_count),
            span(self.tokens, format_count),
            span(self.loss, "{:.3f}".format),
        )
        return f"{span(self.flops, format_flops)} FLOPs: {size} active parameters on {tokens} tokens, loss {loss}"

    def _columns(self) -> dict[str, Any]:
        flops = self.flops.reshape(self.flops.shape + (1,) * self.experts.ndim)
        columns = {"flops": flops, "experts": self.experts, "n_active": self.n_active, "tokens": self.tokens}
        return columns | {"tokens_per_parameter": self.tokens / self.n_active, "loss": self.loss}


def compute_optimal(
    law: Formula, flops: ArrayLike, experts: ArrayLike | None = None, *, force: bool = False
) -> ComputeOptimum:
    """Answer `Law.compute_optimal`."""
    budget = positive("flops", flops)
    e = asked_experts(law, experts)
    expanded, limits = budget.reshape(budget.shape + (1,) * e.ndim), Limits.of(law)
    if isinstance(law, ChinchillaForm):
        coefficients = law.chinchilla_coefficients(e)
        if not np.all(has_optimum(coefficients)):
            raise InputError(no_optimum(law, e))
        n_active, tokens = chinchilla_optimum(*coefficients, affordable_tokens(expanded, 1.0))
        at = {"n_active": n_active, "tokens": tokens, "experts": e}
    else:
        grid, experts_of = np.broadcast_arrays(expanded, e)
        optimum = searched_widths(law, grid, experts_of, limits)
        if not optimum.exists.all():
            raise InputError(f"this {law.name} law has no compute optimum for some of these experts and budgets")
        at = model_variables(law, optimum.free, e, expanded, limits)
    (check := law.check(**at)).refuse(force)
    return ComputeOptimum(budget, e, at["n_active"], at["tokens"], law.loss(**at), check=check)


def model_variables(law: Formula, d_model: Any, experts: Any, flops: Any, limits: Limits) -> dict[str, Any]:
    """N_act, D, E and the law's other variables, for models of these widths that spend the budget."""
    return of_law(law, limits.variables(d_model, experts, flops))


def of_law(law: Formula, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Pick N_act, D, E and the law's other variables, broadcast to one shape."""
    names = dict.fromkeys(("n_active", "tokens", "experts", *law.variables))
    return dict(zip(names, np.broadcast_arrays(*(variables[name] for name in names)), strict=True))


def chinchilla_optimum(m: Any, mu: Any, n: Any, nu: Any, budget: Any) -> tuple[Any, Any]:
    """(N, D) minimising m N^μ + n D^ν with N D = budget; broadcasts. Needs m, n > 0 and μ, ν < 0.

    The paper (Section "Compute Optimality") prints G = (μm / νn)^(−1/(μ+ν)) for positive exponents.
    """
    log_budget = np.log(budget)
    log_n = nu / (mu + nu) * log_budget - np.log(mu * m / (nu * n)) / (mu + nu)
    return np.exp(log_n), np.exp(log_budget - log_n)


@dataclass(frozen=True)
class WidthOptimum:
    """The optimum as arrays that broadcast over budgets and E.

    `exists`: E has an optimum; `fits`: and d_model = 64 fits (elsewhere the loss is infinite); `truncated`: a limit,
    not compute, decides the size. `free` is the d_model of the optimum without limits, which may be below 64.
    """

    d_model: FloatArray
    n_active: FloatArray
    tokens: FloatArray
    loss: FloatArray
    truncated: NDArray[np.bool_]
    fits: NDArray[np.bool_]
    exists: NDArray[np.bool_]
    free: FloatArray


def optimal_widths(
    law: Formula, flops: ArrayLike, experts: ArrayLike, limits: Limits, integral: bool = False
) -> WidthOptimum:
    """The constrained optimum, `flops` and `experts` broadcast; no range check. ValueError where no E has one.

    In closed form where the law is m N^μ + n D^ν + c for each E and no token is repeated or served, else by a search
    along the widths that the budget can train.
    """
    budget, e = np.broadcast_arrays(positive("flops", flops), np.asarray(experts, float))
    if not isinstance(law, ChinchillaForm) or limits.unique_tokens is not None:
        return searched_widths(law, budget, e, limits, integral)
    coefficients = law.chinchilla_coefficients(e)
    if not has_optimum(coefficients).any():
        raise InputError(no_optimum(law, e))
    return widths_of(coefficients, law.irreducible_loss, budget, e, limits, integral)


def searched_widths(
    law: Formula, budget: FloatArray, e: FloatArray, limits: Limits, integral: bool = False
) -> WidthOptimum:
    """Search the constrained optimum of a law of any form, as `optimal_widths` returns it."""

    def loss_of(d: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        variables = limits.variables(d, e, budget)
        loss = np.where(variables["tokens"] > 0, loss_of_variables(law, variables, limits), np.nan)
        return variables["n_active"], variables["tokens"], loss

    refuse_other_variables(law, limits, e)
    optimum = searched(loss_of, (1.0, widest(budget, limits)), e, limits, integral)
    if not optimum.exists.any():
        raise InputError(f"this {law.name} law has no minimum along the budget for any of these experts")
    return optimum


def widest(budget: FloatArray, limits: Limits) -> FloatArray:
    """The d_model for which each budget leaves one training token."""
    served = inference_flops(1.0, limits.inference_tokens)
    with np.errstate(divide="ignore"):
        n_active = np.minimum(budget / training_flops(1.0, 1.0), budget / served)
    return np.asarray(width_of_active(n_active, limits.vocab_size))


def searched(
    loss_of: Callable[[FloatArray], tuple[FloatArray, FloatArray, FloatArray]],
    widths: tuple[Any, Any],
    e: FloatArray,
    limits: Limits,
    integral: bool,
) -> WidthOptimum:
    """The optimum of any losses: the best of their minima between two `widths`, and of those within the limits.

    `loss_of(d_model)` gives N_act, D and the loss, as in `settled`. An E whose loss is monotonic has none.
    """

    def loss_at(x: FloatArray) -> FloatArray:
        return loss_of(np.exp(x))[2]

    low, high = (np.broadcast_to(np.log(end), e.shape) for end in widths)
    free = np.exp(least(loss_at, low, high))
    limit, within = limits.width_limit(e), free[None]
    if integral or not np.all((free >= HEAD_DIM) & (free <= limit)):
        largest = np.clip(limit, HEAD_DIM, np.maximum(widths[1], HEAD_DIM))
        within = np.exp(minima(loss_at, np.log(HEAD_DIM), np.log(largest))[0])
    return settled(loss_of, free, within, e, np.isfinite(free), limits, integral)


def loss_of_variables(law: Formula, variables: Mapping[str, Any], limits: Limits) -> Any:
    """The loss, repeated tokens counted for what they are worth; nothing is checked."""
    return law.evaluate(tuple(law.coefficients.values()), limits.worth(variables))


def refuse_other_variables(law: Formula, limits: Limits, experts: FloatArray) -> None:
    """Raise ValueError for a variable that an architecture does not have, and for experts outside the law."""
    if isinstance(law, ChinchillaForm):
        law.chinchilla_coefficients(experts)
    elif not {*law.variables} & EXPERT_VARIABLES and (others := experts[experts != 1]).size:
        raise InputError(f"experts={float(others.flat[0]):g}: the {law.name} law holds for dense models only, E = 1")
    variables = limits.variables(float(HEAD_DIM), 1.0, 1e20)
    if unknown := [name for name in law.variables if name not in variables]:
        other = f"{unknown[0]}, which an Architecture does not have; it has {', '.join(variables)}"
        raise InputError(f"the {law.name} law depends on {other}")


def widths_of(
    coefficients: tuple[Any, Any, Any, Any],
    constant: Any,
    budget: FloatArray,
    e: FloatArray,
    limits: Limits,
    integral: bool = False,
) -> WidthOptimum:
    """The constrained optimum for the (m, μ, n, ν) and c of any number of laws; all broadcast.

    Served tokens have no closed form: the widths are searched.
    """
    exists = has_optimum(coefficients)
    m, mu, n, nu = (np.where(exists, c, np.nan) for c in coefficients)

    def loss_at(d: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        n_active = active_parameters(d, vocab_size=limits.vocab_size)
        tokens = affordable_tokens(budget, n_active, limits.inference_tokens)
        return n_active, tokens, m * n_active**mu + n * np.where(tokens > 0, tokens, np.nan) ** nu + constant

    if limits.inference_tokens:
        widths, every = (1.0, widest(budget, limits)), np.broadcast_to(e, exists.shape)
        return searched(loss_at, widths, every, limits, integral)
    n_active, _ = chinchilla_optimum(m, mu, n, nu, affordable_tokens(budget, 1.0))
    free = np.asarray(width_of_active(n_active, limits.vocab_size))
    return settled(loss_at, free, free[None], e, exists, limits, integral)


def settled(
    loss_of: Callable[[FloatArray], tuple[FloatArray, FloatArray, FloatArray]],
    free: FloatArray,
    within: FloatArray,
    e: FloatArray,
    exists: NDArray[np.bool_],
    limits: Limits,
    integral: bool,
) -> WidthOptimum:
    """The best of the minima `within` the limits, [k, ...], or (`integral`) of the models that exist beside each.

    `loss_of(d_model)` gives N_act, D and the loss. A minimum beyond a limit stands for that limit.
    """
    limit = limits.width_limit(e)
    fits = exists & (limit >= HEAD_DIM * (1 - 1e-12))
    widths = np.maximum(np.minimum(np.where(exists, within, HEAD_DIM), limit), HEAD_DIM)
    if integral:
        most = np.maximum(np.floor(limit * (1 + 1e-12) / HEAD_DIM), 1)
        blocks = np.maximum(np.floor(widths / HEAD_DIM), 1)
        widths = HEAD_DIM * np.minimum(np.concatenate([blocks, blocks + 1]), most)
    with np.errstate(all="ignore"):  # of tokens below 0
        n_active, tokens, loss = loss_of(widths)
    loss = np.where((tokens > 0) & fits & ~np.isnan(loss), loss, np.inf)
    every, best = (widths, n_active, tokens, loss), np.argmin(loss, axis=0)[None]
    width, n_active, tokens, loss = (np.take_along_axis(np.broadcast_to(v, loss.shape), best, 0)[0] for v in every)
    return WidthOptimum(width, n_active, tokens, loss, free > limit, np.isfinite(loss), exists, free)


def optimum_draws(
    law: ChinchillaForm,
    flops: ArrayLike,
    experts: ArrayLike | None = None,
    *,
    force: bool = False,
    **limits: Unpack[LimitFields],
) -> WidthOptimum:
    """The optimum under every draw: arrays [n_draws, E], NaN where a draw has none.

    ValueError without draws; ExtrapolationError where the law's own optimum for one of these E lies beyond the range
    guard, unless `force`.
    """
    columns, e = _draws(law), np.atleast_1d(asked_experts(law, experts))
    within = Limits.of(law, **limits)
    if within.unique_tokens is not None:
        raise InputError(f"unique_tokens={within.unique_tokens:g}: optimum_draws does not support repeated tokens")
    budget, coefficients = positive("flops", flops), law.chinchilla_coefficients(e)
    with np.errstate(all="ignore"):  # in draws without an optimum
        drawn = widths_of(law.chinchilla_of(columns, e), columns[-1], budget, e, within)
        optimum = widths_of(coefficients, law.irreducible_loss, budget, e, within)
    n_active, tokens = (np.where(optimum.fits, values, np.nan) for values in (optimum.n_active, optimum.tokens))
    law.check(n_active, tokens, e).refuse(force)
    names = ("d_model", "n_active", "tokens", "loss")
    return replace(drawn, **{name: np.where(drawn.fits, getattr(drawn, name), np.nan) for name in names})


def drawn_optimum(
    law: ChinchillaForm, flops: ArrayLike, experts: ArrayLike
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The compute-optimal N_act, D and loss of every draw, [n_draws, E], NaN for none; or one E at several budgets."""
    columns, e = _draws(law), np.atleast_1d(np.asarray(experts, float))
    with np.errstate(all="ignore"):  # in draws without an optimum
        coefficients = law.chinchilla_of(columns, e)
        n_active, tokens = chinchilla_optimum(*coefficients, affordable_tokens(flops, 1.0))
        loss = law.evaluate(columns, {"n_active": n_active, "tokens": tokens, "experts": e})
    n_active, tokens, loss = (np.where(has_optimum(coefficients), v, np.nan) for v in (n_active, tokens, loss))
    return n_active, tokens, loss


def _draws(law: ChinchillaForm) -> FloatArray:
    """The coefficients of the draws, [coefficients, n_draws, 1]."""
    if law.draws is None:
        raise InputError("this law has no draws: fit it and call result.bootstrap(...)")
    return law.draws.T[..., None]


def root(function: Callable[..., FloatArray], low: FloatArray, high: FloatArray, *arguments: Any) -> FloatArray:
    """Where function(x, *arguments) is 0 between `low` and `high`, elementwise; NaN where its sign does not change."""
    from scipy.optimize import elementwise

    with np.errstate(all="ignore"):
        solution = elementwise.find_root(lambda x, *a: np.clip(function(x, *a), -1, 1), (low, high), args=arguments)
    return np.where(solution.success, solution.x, np.nan)


def has_optimum(coefficients: tuple[Any, Any, Any, Any]) -> NDArray[np.bool_]:
    """Whether the loss falls with both N and D, for each E of the coefficients (m, μ, n, ν)."""
    m, mu, n, nu = (np.asarray(c) for c in coefficients)
    return np.asarray((mu < 0) & (nu < 0) & (m > 0) & (n > 0))


def why_no_optimum(law: Formula, experts: float) -> str:
    """Why an E has none: "its loss rises with D (exponent +0.012)" where `has_optimum` is False."""
    if not isinstance(law, ChinchillaForm):
        return "its loss has no minimum along the budget"
    _, mu, _, nu = (float(c) for c in law.chinchilla_coefficients(experts))
    rising = [f"{name} (exponent {power:+.3g})" for name, power in (("N_act", mu), ("D", nu)) if power >= 0]
    return f"the loss does not fall with {' or with '.join(rising) or 'N_act and D'}"


def left_out(reasons: Mapping[float, str]) -> list[str]:
    """A sentence for each E without an optimum; one for all of many, with the reason of the first."""
    if len(reasons) > MOST_REASONS:
        first = next(iter(reasons))
        names = ", ".join(listed_experts(reasons))
        return [f"E = {names} are left out: {reasons[first]} at E = {first:g}, likewise at the others"]
    return [f"E = {e:g} is left out: {reason}" for e, reason in reasons.items()]


def no_optimum(law: ChinchillaForm, experts: ArrayLike) -> str:
    """Say why a law has no optimum."""
    distinct = np.unique(np.asarray(experts, float))
    without = distinct[~has_optimum(law.chinchilla_coefficients(distinct))].tolist()
    reasons = "; ".join(f"E = {e:g}: {why_no_optimum(law, e)}" for e in without[:MOST_REASONS])
    reasons += f"; and {len(without) - MOST_REASONS} more" if len(without) > MOST_REASONS else ""
    which = "any" if len(without) == len(distinct) else "some"
    return f"this law has no compute optimum for {which} of these experts: {reasons}; its `loss` is still defined"
