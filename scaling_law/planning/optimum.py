"""The best model for a budget: compute-optimal in closed form, and under memory and inference limits.

    minimise L(N_act, D, E)   subject to   6 N_act D + 2 N_act D_inf = F,   N_total + KV cache ≤ M

For a fixed E the loss is convex in ln N_act and every size grows with d_model: the optimum is the compute optimum
where it fits, else the largest model that fits, and the best architecture that exists is one of its two neighbours.
Ludziejewski et al. 2025 (arXiv 2502.05172), Section "Compute and Memory Optimality".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hub.base.errors import InputError
from hub.base.inputs import reads
from hub.base.units import format_count, format_flops, listed_experts
from scaling_law.formulas import ChinchillaForm, Formula
from scaling_law.formulas.answers import ArrayAnswer, span
from scaling_law.formulas.law import has_optimum, numbers, positive
from scaling_law.planning.budget import Budget
from scaling_law.planning.limits import LimitFields, Limits, of_law
from scaling_law.planning.minimiser import least, minima
from scaling_law.size.architecture import (
    EXPERT_VARIABLES,
    HEAD_DIM,
    affordable_tokens,
    width_of_active,
)
from scaling_law.size.arrays import FloatArray

if TYPE_CHECKING:
    from typing_extensions import Unpack

Models = Callable[[Any], tuple[Any, Any, Any]]  # d_model → N_act, D, and what is to be least, such as the loss
TIE = 1e-13  # of the loss, per factor e of the width
MOST_REASONS = 6  # E of which each has a sentence of its own


def asked(name: str, values: ArrayLike) -> FloatArray:
    """What a question asks of several things at once: positive numbers, at least one."""
    if not (array := positive(name, values)).size:
        raise InputError(f"{name}={values!r} must be one number or a list of them")
    return array


def asked_experts(law: Formula, experts: Any) -> FloatArray:
    """The expert counts to answer for: numbers, text such as "1,2,4-8", or None for the law's own."""
    if not (e := numbers("experts", law.default_experts() if experts is None else experts)).size:
        raise InputError(f"experts={experts!r} must be one number or a list of them")
    return positive("experts", e, 1.0)


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
        size, tokens = (span(values, format_count) for values in (self.n_active, self.tokens))
        what = f"{size} active parameters on {tokens} tokens, loss {span(self.loss, '{:.3f}'.format)}"
        return f"{span(self.flops, format_flops)} FLOPs: {what}"

    def _columns(self) -> dict[str, Any]:
        columns = {"flops": self.flops, "experts": self.experts, "n_active": self.n_active, "tokens": self.tokens}
        return columns | {"tokens_per_parameter": self.tokens / self.n_active, "loss": self.loss}


@reads
def compute_optimal(
    law: Formula, flops: ArrayLike, experts: ArrayLike | None = None, *, force: bool = False
) -> ComputeOptimum:
    """Compute-optimal N_act, D and loss for each E and budget: arrays of shape flops.shape + experts.shape.

    ValueError where the law has no optimum; ExtrapolationError for an answer beyond the range guard, unless
    `force`.
    """
    spent, e = asked("flops", flops), asked_experts(law, experts)
    spent = spent.reshape(spent.shape + (1,) * e.ndim)
    at = _without_limits(law, spent, e)
    (check := law.check(**at)).refuse(force)
    n_active, tokens = (at[name][()] for name in ("n_active", "tokens"))  # numbers where one budget and E were asked
    return ComputeOptimum(spent, e, n_active, tokens, law.loss(**at), check=check)


def _without_limits(law: Formula, flops: FloatArray, experts: FloatArray) -> dict[str, Any]:
    """N_act, D, E and the law's other variables at the optimum: where it is a formula, no width is searched."""
    if isinstance(law, ChinchillaForm):
        exists = has_optimum(terms := law.chinchilla_coefficients(experts))
        if exists.all():
            n_active, tokens = chinchilla_optimum(*terms, affordable_tokens(flops, 1.0))
            return {"n_active": n_active, "tokens": tokens, "experts": experts}
    else:
        budget, limits = Budget.each(flops), Limits.of(law)
        optimum = optimal_widths(law, budget, experts, limits)
        exists = optimum.exists
        if exists.all():
            return budget.models(law, optimum.free, experts, limits)
    raise InputError(no_optimum(law, experts, exists))


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
    law: Formula,
    budget: Budget,
    experts: ArrayLike,
    limits: Limits,
    integral: bool = False,
    coefficients: Any = None,
) -> WidthOptimum:
    """The constrained optimum, budget and `experts` broadcast; no range check. ValueError where no E has one.

    In closed form where the law is m N^μ + n D^ν + c for each E, FLOPs are spent, and no token is repeated or served,
    else by a search along the widths that the budget can train. Under `coefficients` instead of the law's own, which
    broadcast too, such as draws [n_coefficients, n_draws, 1], no E may have one.
    """
    e = np.asarray(experts, float)
    refuse_other_variables(law, limits, e)
    if budget.cluster is not None:
        budget.refuse_too_short(float(e.min()), limits)
    columns = tuple(law.coefficients.values()) if coefficients is None else coefficients
    e = np.broadcast_to(e, np.broadcast_shapes(e.shape, np.shape(np.asarray(budget.flops)), np.shape(columns[0])))

    models = spending(law, columns, e, budget, limits)
    limit, served_or_repeated = limits.width_limit(e), limits.inference_tokens or limits.unique_tokens
    if isinstance(law, ChinchillaForm) and budget.cluster is None and not served_or_repeated:
        terms = law.chinchilla_coefficients(e) if coefficients is None else law.chinchilla_of(coefficients, e)
        m, mu, n, nu = (np.where(has_optimum(terms), c, np.nan) for c in terms)
        with np.errstate(all="ignore"):  # in draws that are far off
            n_active, _ = chinchilla_optimum(m, mu, n, nu, affordable_tokens(cast(float, budget.flops), 1.0))
        free = np.asarray(width_of_active(n_active, limits.vocab_size))
        optimum = _settled(models, free, free[None], limit, integral)
    else:
        # What few unique tokens call for may lie below the widths that are searched.
        closed = np.isfinite(_called_for(law, columns, e, limits)) if limits.unique_tokens else False
        optimum = searched(models, budget.widths(limits), limit, integral, closed)
    if coefficients is None and not optimum.exists.any():
        raise InputError(no_optimum(law, e, optimum.exists))
    return optimum


def spending(law: Formula, coefficients: Any, experts: FloatArray, budget: Budget, limits: Limits) -> Models:
    """N_act, D and the loss of models that spend the budget, by width; NaN where it leaves no training token."""

    def models(d_model: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        at = budget.variables(d_model, experts, limits)
        with np.errstate(all="ignore"):  # of tokens below 0
            loss = limits.loss(law, coefficients, at)
        if limits.unique_tokens:  # endless epochs are worth no more: of models of equal loss the smallest is best
            loss = loss * (1.0 + TIE * np.log(d_model))
        return at["n_active"], at["tokens"], np.where(at["tokens"] > 0, loss, np.nan)

    return models


def searched(
    models: Models,
    widths: tuple[Any, Any],
    limit: FloatArray,
    integral: bool = False,
    closed: bool | NDArray[np.bool_] = False,
) -> WidthOptimum:
    """The optimum of any models between two `widths`: the best of their minima, and of those within the `limit`.

    Where `closed`, it may be the least of the widths.
    """

    def value(x: FloatArray) -> FloatArray:
        return models(np.exp(x))[2]

    low, high = (np.broadcast_to(np.log(end), limit.shape) for end in widths)
    free = np.exp(least(value, low, high, closed=closed))
    within = free[None]
    if integral or not np.all((free >= HEAD_DIM) & (free <= limit)):
        largest = np.log(np.clip(limit, HEAD_DIM, np.maximum(widths[1], HEAD_DIM)))
        within = np.exp(minima(value, np.log(HEAD_DIM), largest)[0])
    return _settled(models, free, within, limit, integral)


def _settled(models: Models, free: FloatArray, within: FloatArray, limit: FloatArray, integral: bool) -> WidthOptimum:
    """The best of the minima `within` the limit, [k, ...], or (`integral`) of the models that exist beside each."""
    exists = np.isfinite(free)
    fits = exists & (limit >= HEAD_DIM * (1 - 1e-12))
    widths = np.maximum(np.minimum(np.where(exists, within, HEAD_DIM), limit), HEAD_DIM)
    if integral:
        most = np.maximum(np.floor(limit * (1 + 1e-12) / HEAD_DIM), 1)
        blocks = np.maximum(np.floor(widths / HEAD_DIM), 1)
        widths = HEAD_DIM * np.minimum(np.concatenate([blocks, blocks + 1]), most)
    n_active, tokens, loss = models(widths)
    loss = np.where(fits & ~np.isnan(loss), loss, np.inf)
    every, best = (widths, n_active, tokens, loss), np.argmin(loss, axis=0)[None]
    width, n_active, tokens, loss = (np.take_along_axis(np.broadcast_to(v, loss.shape), best, 0)[0] for v in every)
    return WidthOptimum(width, n_active, tokens, loss, free > limit, np.isfinite(loss), exists, free)


def refuse_other_variables(law: Formula, limits: Limits, experts: FloatArray) -> None:
    """Raise ValueError for a variable that an architecture does not have, and for experts outside the law."""
    if isinstance(law, ChinchillaForm):
        law.chinchilla_coefficients(experts)
    elif not {*law.variables} & EXPERT_VARIABLES and (others := experts[experts != 1]).size:
        raise InputError(f"experts={float(others.flat[0]):g}: the {law.name} law holds for dense models only, E = 1")
    of_law(law, limits.variables(float(HEAD_DIM), 1.0, 1e20))


def optimum_draws(
    law: ChinchillaForm,
    flops: ArrayLike,
    experts: ArrayLike | None = None,
    *,
    force: bool = False,
    **limits: Unpack[LimitFields],
) -> WidthOptimum:
    """`optimal` under every draw: arrays [n_draws, E], NaN where a draw has none.

    ValueError without draws; ExtrapolationError where the law's own optimum for one of these E lies beyond the
    range guard, unless `force`.
    """
    draws, e, within = _draws(law), np.atleast_1d(asked_experts(law, experts)), Limits.of(law, **limits)
    budget, names = Budget.each(positive("flops", flops)), ("d_model", "n_active", "tokens", "loss")

    def optimum(coefficients: Any) -> WidthOptimum:
        every = optimal_widths(law, budget, e, within, coefficients=coefficients)
        return replace(every, **{name: np.where(every.fits, getattr(every, name), np.nan) for name in names})

    fitted = optimum(tuple(law.coefficients.values()))
    law.check(fitted.n_active, fitted.tokens, e).refuse(force)
    return optimum(draws)


def drawn_optimum(
    law: ChinchillaForm, flops: ArrayLike, experts: ArrayLike
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The compute-optimal N_act, D and loss of every draw, [n_draws, E], NaN for none; or one E at several budgets."""
    draws, e, limits = _draws(law), np.atleast_1d(np.asarray(experts, float)), Limits.of(law)
    budget = Budget.each(positive("flops", flops))
    at = budget.models(law, optimal_widths(law, budget, e, limits, coefficients=draws).free, e, limits)
    return at["n_active"], at["tokens"], np.asarray(law.evaluate(draws, at))


def _draws(law: ChinchillaForm) -> FloatArray:
    """The coefficients of the draws, [coefficients, n_draws, 1]."""
    if law.draws is None:
        raise InputError("this law has no draws: fit it and call result.bootstrap(...)")
    return law.draws.T[..., None]


def drawn_losses(
    law: Formula, budget: Budget, at: Mapping[str, Any], d_model: FloatArray, limits: Limits
) -> FloatArray | None:
    """Losses of these models, [n_draws, n], where law and throughput are drawn together; None without any draws.

    The draws of the two are independent: whichever has fewer is repeated.
    """
    if budget.cluster is None or budget.cluster.throughput.draws is None:
        return None if law.draws is None else limits.loss(law, law.columns_of_draws(1), at)
    tokens = budget.cluster.tokens(limits.widths(d_model, at["experts"]), budget.seconds, drawn=True)
    every = coefficients_of(law)
    coefficients = every[:, 1:] if law.draws is not None else every
    i = np.arange(max(len(tokens), coefficients.shape[1]))
    drawn = {**at, "tokens": tokens[i % len(tokens)]}
    return limits.loss(law, coefficients[:, i % coefficients.shape[1]], drawn)


def coefficients_of(law: Formula) -> FloatArray:
    """The law's own coefficients and those of its draws, [n_coefficients, 1 + n_draws, 1]."""
    every = np.array([[*law.coefficients.values()], *(() if law.draws is None else law.draws)])
    return np.asarray(every.T[..., None])


def why_no_optimum(law: Formula, experts: float) -> str:
    """Why an E has no optimum: "the loss does not fall with D (exponent +0.012)"."""
    if not isinstance(law, ChinchillaForm):
        return "its loss has no minimum along the budget"
    _, mu, _, nu = (float(c) for c in law.chinchilla_coefficients(experts))
    rising = [f"{name} (exponent {power:+.3g})" for name, power in (("N_act", mu), ("D", nu)) if power >= 0]
    return f"the loss does not fall with {' or with '.join(rising) or 'N_act and D'}"


def undiscounted(law: Formula, experts: ArrayLike, limits: Limits) -> list[str]:
    """Name the E for which `unique_tokens` discount tokens alone, as the law has no compute optimum there."""
    if limits.unique_tokens is None:
        return []
    e = np.atleast_1d(np.asarray(experts, float))
    without = e[np.isnan(_called_for(law, tuple(law.coefficients.values()), e, limits))]
    if not without.size:
        return []
    names = ", ".join(listed_experts(without.tolist()))
    return [f"E = {names}: without a compute optimum, unique_tokens discount repeated tokens but no excess parameters"]


def _called_for(law: Formula, coefficients: Any, experts: FloatArray, limits: Limits) -> FloatArray:
    """Find the N_act that the unique tokens call for at each E, NaN where the law has no compute optimum."""
    at = limits.variables(float(HEAD_DIM), experts, 1.0)
    return limits.size_called_for(law, coefficients, at, limits.unique_tokens)


def left_out(reasons: Mapping[float, str]) -> list[str]:
    """A sentence for each E without an optimum, or one for all of them."""
    grouped = _grouped(reasons)
    are = "is" if len(grouped) == len(reasons) else "are"
    return [f"E = {names} {are} left out: {reason}" for names, reason in grouped]


def _grouped(reasons: Mapping[float, str]) -> list[tuple[str, str]]:
    """Each E and why it has no optimum; all E that are many or alike together, with the reason of the first."""
    if len(reasons) > MOST_REASONS or len({*reasons.values()}) == 1 < len(reasons):
        first = next(iter(reasons))
        return [(", ".join(listed_experts(reasons)), f"{reasons[first]} at E = {first:g}, likewise at the others")]
    return [(f"{e:g}", reason) for e, reason in reasons.items()]


def no_optimum(law: Formula, experts: ArrayLike, exists: NDArray[np.bool_]) -> str:
    """Say why a law has no optimum for those of the E where none `exists`."""
    without = np.unique(np.broadcast_to(np.asarray(experts, float), exists.shape)[~exists]).tolist()
    reasons = _grouped({e: why_no_optimum(law, e) for e in without})
    said = "; ".join(f"E = {names}: {reason}" for names, reason in reasons)
    which = "some" if exists.any() else "any"
    return f"this law has no compute optimum for {which} of these experts: {said}; its `loss` is still defined"
