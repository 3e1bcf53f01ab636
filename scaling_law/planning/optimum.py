"""The best model for a budget: compute-optimal in closed form, and under memory and inference limits.

    minimise L(N_act, D, E)   subject to   6 N_act D + 2 N_act D_inf = F,   N_total + KV cache ≤ M

For a fixed E the loss is convex in ln N_act and every size grows with d_model: the optimum is the compute optimum
where it fits, else the largest model that fits, and the best architecture that exists is one of its two neighbours.
Ludziejewski et al. 2025 (arXiv 2502.05172), Section "Compute and Memory Optimality".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike

from hub.base.errors import InputError, literal
from hub.base.fields import reads
from hub.base.notices import Notice
from hub.base.units import format_count, format_experts, format_flops
from scaling_law.answer.answer import Answer, span
from scaling_law.formulas import Formula
from scaling_law.formulas.law import has_optimum, positive
from scaling_law.planning.budget import Budget
from scaling_law.planning.limits import Limits, of_law
from scaling_law.planning.minimiser import choose_inner, minima
from scaling_law.planning.question import LimitFields
from scaling_law.size.architecture import EXPERT_VARIABLES, affordable_tokens
from scaling_law.size.arrays import BoolArray, Columns, FloatArray, Intervals, Variables
from scaling_law.size.ladder import ROUNDING, Ladder

if TYPE_CHECKING:
    from typing_extensions import Unpack

# From d_model to N_act, D, E and the law's other variables, and what is to be least, such as the loss.
Models = Callable[[Any], tuple[Variables, FloatArray]]
# Share of the loss, per factor e of the width, by which the smaller of two equal models is better.
TIE = 1e-13
# Up to this many E, each gets a sentence of its own.
MAX_REASONS = 6
# Widths below the smallest model that are tried where it is the best.
SMALLER = 33


def parse_positive(name: str, values: ArrayLike, least: float = 0.0) -> FloatArray:
    """Read one or several positive numbers, at least `least`."""
    array = positive(name, values, least)
    if not array.size:
        raise InputError(f"{name}={literal(values)} must be one number or a list of them")
    return array


def parse_experts(law: Formula, experts: Any, limits: Limits | None = None) -> FloatArray:
    """Read the E to answer for: numbers, text such as "1,2,4-8", or None for the law's own.

    Of a family they are asked for as numbers of routed experts.
    """
    family = limits and limits.like
    if experts is None:
        experts = law.default_experts()
        experts = family.list_experts(experts) if family else experts
    counts = parse_positive("experts", experts, 1.0)
    return family.read_experts(counts) if family else counts


class ComputeOptimum(Answer):
    """Compute-optimal configurations: `flops`, `experts`, `n_active`, `tokens`, `tokens_per_parameter`, `loss`.

    Arrays of shape flops.shape + experts.shape.
    """

    @property
    def verdict(self) -> str:
        size = span(self.n_active, format_count)
        tokens = span(self.tokens, format_count)
        loss = span(self.loss, "{:.3f}".format)
        return f"{span(self.flops, format_flops)} FLOPs: {size} active parameters on {tokens} tokens, loss {loss}"


@reads
def compute_optimal(
    law: Formula, flops: ArrayLike, experts: ArrayLike | None = None, *, force: bool = False
) -> ComputeOptimum:
    """Find the compute-optimal N_act, D and loss for each E and budget: arrays of flops.shape + experts.shape.

    ValueError where the law has no optimum; ExtrapolationError for an answer beyond the range guard, unless
    `force`.
    """
    budget_flops = parse_positive("flops", flops)
    e = parse_experts(law, experts)
    budget_flops = budget_flops.reshape(budget_flops.shape + (1,) * e.ndim)
    budget = Budget.each(budget_flops)
    limits = Limits.of(law)
    optimum = optimal_widths(law, budget, e, limits)
    refuse_no_optimum(law, e, optimum.exists)
    variables = budget.models(law, optimum.free, e, limits)
    check = law.check(**variables)
    check.refuse(force)
    # Numbers, where one budget and one E were asked for.
    n_active = variables["n_active"][()]
    tokens = variables["tokens"][()]
    columns = {
        "flops": budget_flops,
        "experts": e,
        "n_active": n_active,
        "tokens": tokens,
        "tokens_per_parameter": tokens / n_active,
        "loss": law.loss(**variables),
    }
    return ComputeOptimum(columns=columns, check=check)


def chinchilla_optimum(m: Any, mu: Any, n: Any, nu: Any, budget: Any) -> tuple[Any, Any]:
    """Return (N, D) that minimise m N^μ + n D^ν with N D = budget; broadcasts. Needs m, n > 0 and μ, ν < 0.

    The paper (Section "Compute Optimality") prints G = (μm / νn)^(−1/(μ+ν)) for positive exponents.
    """
    log_budget = np.log(budget)
    log_n = nu / (mu + nu) * log_budget - np.log(mu * m / (nu * n)) / (mu + nu)
    return np.exp(log_n), np.exp(log_budget - log_n)


@dataclass(frozen=True)
class BestModels:
    """The best models for several questions at once, E on the last axis; the loss is infinite where none is.

    `variables` are N_act, D, E and the law's others.
    """

    d_model: FloatArray
    loss: FloatArray
    variables: Columns

    @property
    def fits(self) -> BoolArray:
        """True where there is a model."""
        return np.isfinite(self.loss)

    @property
    def n_active(self) -> FloatArray:
        return self.variables["n_active"]

    @property
    def tokens(self) -> FloatArray:
        return self.variables["tokens"]

    @property
    def experts(self) -> FloatArray:
        return self.variables["experts"]

    def take(self, find: Callable[[FloatArray], FloatArray]) -> BestModels:
        """Return the models that `find` makes of each array."""
        variables = {name: find(values) for name, values in self.variables.items()}
        return BestModels(find(self.d_model), find(self.loss), variables)

    def replaced(self, where: BoolArray, substitutes: BestModels) -> BestModels:
        """Return these models, with others in some places."""
        variables = {}
        for name, values in self.variables.items():
            variables[name] = np.where(where, substitutes.variables[name], values)
        return BestModels(
            d_model=np.where(where, substitutes.d_model, self.d_model),
            loss=np.where(where, substitutes.loss, self.loss),
            variables=variables,
        )

    def only(self, where: BoolArray) -> BestModels:
        """Return these models, and none in all other places."""
        return replace(self, loss=np.where(where, self.loss, np.inf))

    def with_gaps(self) -> BestModels:
        """Return NaN where there is no model."""
        return self.take(lambda values: np.where(self.fits, values, np.nan))


@dataclass(frozen=True)
class WidthOptimum(BestModels):
    """The optimum of each E within limits.

    `exists`: E has an optimum, which `fits` if d_model = 64 does; `truncated`: a limit, not compute, decides the size.
    `free` is the d_model of the optimum without limits, which may be below 64.
    """

    exists: BoolArray
    truncated: BoolArray
    free: FloatArray


def optimal_widths(
    law: Formula,
    budget: Budget,
    experts: ArrayLike,
    limits: Limits,
    integral: bool = False,
    coefficients: Any = None,
) -> WidthOptimum:
    """Find the constrained optimum; budget and `experts` broadcast. ValueError where no E has one; no range check.

    In closed form where the law is m N^μ + n D^ν + c for each E, FLOPs are spent, and no token is repeated or served,
    else by a search along the widths that the budget can train. Under `coefficients` instead of the law's own, which
    broadcast too, such as draws [n_coefficients, n_draws, 1], no E may have one.
    """
    e = np.asarray(experts, float)
    refuse_other_variables(law, limits, e)
    if budget.cluster is not None:
        budget.refuse_too_short(float(e.min()), limits)
    columns = law.columns if coefficients is None else coefficients
    budgets = np.asarray(budget.flops)
    shape = np.broadcast_shapes(e.shape, budgets.shape, np.shape(columns[0]))
    e = np.broadcast_to(e, shape)

    models = models_at_budget(law, columns, e, budget, limits)
    limit = limits.width_limit(e)
    ladder = limits.ladder
    # A family's own vocabulary is not that of which the law counts N.
    has_other_costs = budget.cluster or limits.inference_tokens or limits.like
    spends_flops_on_new_tokens = not (has_other_costs or limits.unique_tokens)
    if law.form.is_chinchilla and spends_flops_on_new_tokens:
        terms = law.chinchilla_of(columns, e)
        m, mu, n, nu = (np.where(has_optimum(terms), term, np.nan) for term in terms)
        product = affordable_tokens(cast(float, budget.flops), 1.0)
        # Draws may be far off.
        with np.errstate(all="ignore"):
            n_active, _ = chinchilla_optimum(m, mu, n, nu, product)
        free = np.asarray(ladder.width_of_active(n_active))
        optimum = _choose_minimum(models, free, free[None], limit, ladder, integral)
    else:
        # What few unique tokens call for may lie below the widths that are searched.
        closed: bool | BoolArray = False
        if limits.unique_tokens:
            closed = np.isfinite(_called_for(law, columns, e, limits))
        find = find_rung if integral else find_optimum
        optimum = find(models, budget.widths(limits), limit, ladder, closed)
    if coefficients is None and not optimum.exists.any():
        refuse_no_optimum(law, e, optimum.exists)
    return optimum


def models_at_budget(
    law: Formula, coefficients: Any, experts: ArrayLike, budget: Budget, limits: Limits, trusted: bool = False
) -> Models:
    """Make a function of the width: variables and loss of models that spend the budget, NaN without a token.

    Where they must be `trusted`, D is less if the region ends before, and both are NaN where no model is.
    """

    def models(d_model: FloatArray) -> tuple[Variables, FloatArray]:
        variables = budget.models(law, d_model, experts, limits)
        tokens = variables["tokens"]
        if trusted:
            fewest, most = tokens_trusted(law, variables, limits)
            tokens = np.minimum(tokens, most)
            tokens = np.where(tokens >= fewest, tokens, np.nan)
        variables["tokens"] = tokens
        # Serving may leave less than no token.
        with np.errstate(all="ignore"):
            loss = limits.loss(law, coefficients, variables)
        if limits.unique_tokens:
            # The smaller of models is preferred that endless epochs make equal.
            loss = loss * (1.0 + TIE * np.log(d_model))
        return variables, np.where(tokens > 0, loss, np.nan)

    return models


def tokens_trusted(law: Formula, variables: Variables, limits: Limits) -> Intervals:
    """Return the fewest and the most D with which models are trusted, NaN where none is; `variables` may have more."""
    tokens = np.where(np.isfinite(variables["tokens"]) & (variables["tokens"] > 0), variables["tokens"], np.nan)
    check = limits.check(law, {**variables, "tokens": tokens})
    return check.trusted_tokens()


def find_rung(
    models: Models, widths: Intervals, limit: FloatArray, ladder: Ladder, closed: bool | BoolArray = False
) -> WidthOptimum:
    """Find the best of all models that exist, and of those within the `limit`, up to the larger of the `widths`.

    There is no optimum where the largest of them is the best, nor where the best is smaller than any, unless `closed`.
    """
    rungs = ladder.rungs(float(np.max(widths[1])))
    endless = np.full(limit.shape, np.inf)
    best = choose_among(models, rungs, endless)
    free = best.d_model
    is_smallest = free == ladder.smallest
    if is_smallest.any():
        smaller = np.geomspace(widths[0], ladder.smallest, SMALLER)[:-1]
        below = choose_among(models, smaller, endless)
        free = np.where(is_smallest & (below.loss < best.loss), below.d_model, free)
    is_largest = free == rungs[-1]
    is_least = (free == widths[0]) & ~np.asarray(closed)
    exists = best.fits & ~is_largest & ~is_least
    most = limit * (1 + ROUNDING)
    if np.any(best.d_model > most):
        best = choose_among(models, rungs, most)
    return WidthOptimum(
        **vars(best.only(exists)), exists=exists, truncated=free > most, free=np.where(exists, free, np.nan)
    )


def choose_among(models: Models, widths: FloatArray, most: FloatArray) -> BestModels:
    """Choose the best of the same widths for each model, up to `most` of it."""
    column = widths.reshape(-1, *[1] * most.ndim)
    every_width = np.broadcast_to(column, (len(widths), *most.shape))
    return choose_width(models, every_width, every_width <= most)


def find_optimum(
    models: Models, widths: Intervals, limit: FloatArray, ladder: Ladder, closed: bool | BoolArray = False
) -> WidthOptimum:
    """Find the optimum between two `widths`, which may be fractional: of any model, and of those within the `limit`.

    Where `closed`, it may be the least of the widths.
    """

    def value(x: FloatArray) -> FloatArray:
        return models(np.exp(x))[1]

    def search(least_width: Any, largest_width: Any) -> tuple[FloatArray, FloatArray]:
        """Find the optimum between two widths, NaN where it is one of them, and all minima in between."""
        low = np.broadcast_to(np.log(least_width), limit.shape)
        high = np.broadcast_to(np.log(largest_width), limit.shape)
        x, y = minima(value, low, high)
        return np.exp(choose_inner(x, y, low, high, closed)), np.exp(x)

    smallest = ladder.smallest
    free, _ = search(*widths)
    candidates = free[None]
    if not np.all((free >= smallest) & (free <= limit)):
        _, candidates = search(smallest, np.clip(limit, smallest, np.maximum(widths[1], smallest)))
    return _choose_minimum(models, free, candidates, limit, ladder)


def _choose_minimum(
    models: Models,
    free: FloatArray,
    candidates: FloatArray,
    limit: FloatArray,
    ladder: Ladder,
    integral: bool = False,
) -> WidthOptimum:
    """Choose the best of the candidates [k, ...] below the limit; with `integral`, of the models next to each."""
    smallest = ladder.smallest
    exists = np.isfinite(free)
    fits = exists & (limit >= smallest * (1 - ROUNDING))
    widths = np.maximum(np.minimum(np.where(exists, candidates, smallest), limit), smallest)
    if integral:
        most, _ = ladder.beside(limit)
        widths = np.minimum(np.concatenate(ladder.beside(widths)), most)
    best = choose_width(models, widths, fits)
    return WidthOptimum(**vars(best), exists=exists, truncated=free > limit, free=free)


def choose_width(models: Models, widths: FloatArray, allowed: Any) -> BestModels:
    """Choose the best of the allowed widths [k, ...]."""
    variables, loss = models(widths)
    loss = np.where(allowed & ~np.isnan(loss), loss, np.inf)
    best = np.argmin(loss, axis=0)[None]

    def take_best(values: FloatArray) -> FloatArray:
        return np.asarray(np.take_along_axis(np.broadcast_to(values, loss.shape), best, 0)[0])

    return BestModels(widths, loss, variables).take(take_best)


def refuse_other_variables(law: Formula, limits: Limits, experts: FloatArray) -> None:
    """Raise ValueError for a variable that an architecture does not have, and for experts outside the law."""
    if law.form.is_chinchilla:
        law.chinchilla_coefficients(experts)
    elif not {*law.variables} & EXPERT_VARIABLES:
        sparse = experts[experts != 1]
        if sparse.size:
            first = float(sparse.flat[0])
            raise InputError(f"experts={first:g}: the {law.name} law holds for dense models only, E = 1")
    of_law(law, limits.variables(limits.ladder.smallest, 1.0, 1e20))


def optimum_draws(
    law: Formula,
    flops: ArrayLike,
    experts: ArrayLike | None = None,
    *,
    force: bool = False,
    **limits: Unpack[LimitFields],
) -> WidthOptimum:
    """Find the optimum under every draw: arrays [n_draws, E], NaN where a draw has none.

    ValueError without draws; ExtrapolationError where the law's own optimum for one of these E lies beyond the
    range guard, unless `force`.
    """
    draws = law.columns_of_draws(1)
    model_limits = Limits.of(law, **limits)
    e = np.atleast_1d(parse_experts(law, experts, model_limits))
    budget = Budget.each(positive("flops", flops))

    def find(coefficients: Any) -> WidthOptimum:
        optimum = optimal_widths(law, budget, e, model_limits, coefficients=coefficients)
        return replace(optimum, **vars(optimum.with_gaps()))

    optimum_of_law = find(law.columns)
    law.check(optimum_of_law.n_active, optimum_of_law.tokens, e).refuse(force)
    return find(draws)


def drawn_losses(
    law: Formula,
    budget: Budget,
    models: BestModels,
    limits: Limits,
    most_tokens: ArrayLike = np.inf,
) -> FloatArray | None:
    """Return losses of these models, [n_draws, n], under draws of law and throughput; None without any draws.

    The draws of the two are independent: whichever has fewer is repeated. Those of a law have the error of
    extrapolation. Faster steps train on `most_tokens` at most.
    """
    has_drawn_steps = budget.cluster is not None and budget.cluster.throughput.draws is not None
    if law.draws is None and not has_drawn_steps:
        return None
    coefficients = coefficients_of(law) if law.draws is None else law.columns_of_draws(1)
    variables = models.variables
    if budget.cluster is not None and has_drawn_steps:
        tokens = budget.tokens(models.d_model, models.experts, limits, with_draws=True)
        draw = np.arange(max(len(tokens), coefficients.shape[1]))
        variables = {**variables, "tokens": np.minimum(tokens[draw % len(tokens)], most_tokens)}
        coefficients = coefficients[:, draw % coefficients.shape[1]]
    losses = limits.loss(law, coefficients, variables)
    return losses if law.draws is None else limits.drawn_losses(law, losses, variables)


def coefficients_of(law: Formula) -> FloatArray:
    """Return the law's coefficients and those of its draws, [n_coefficients, 1 + n_draws, 1]."""
    rows = np.array([law.columns])
    if law.draws is not None:
        rows = np.concatenate([rows, law.draws])
    return np.asarray(rows.T[..., None])


def why_no_optimum(law: Formula, experts: float) -> str:
    """Say why an E has no optimum: "the loss does not fall with D (exponent +0.012)"."""
    if not law.form.is_chinchilla:
        return "its loss has no minimum along the budget"
    _, mu, _, nu = (float(coefficient) for coefficient in law.chinchilla_coefficients(experts))
    exponents = {"N_act": mu, "D": nu}
    rising = [f"{name} (exponent {exponent:+.3g})" for name, exponent in exponents.items() if exponent >= 0]
    return f"the loss does not fall with {' or with '.join(rising) or 'N_act and D'}"


def list_experts(experts: Iterable[float]) -> str:
    """Write the E, with commas between them."""
    return ", ".join(format_experts(experts))


def explain_undiscounted(law: Formula, experts: ArrayLike, limits: Limits) -> list[str]:
    """Name the E for which `unique_tokens` discount tokens alone, as the law has no compute optimum there."""
    if limits.unique_tokens is None:
        return []
    e = np.atleast_1d(np.asarray(experts, float))
    without = e[np.isnan(_called_for(law, law.columns, e, limits))]
    if not without.size:
        return []
    names = list_experts(without.tolist())
    return [f"E = {names}: without a compute optimum, repeated tokens are discounted but excess parameters are not"]


def _called_for(law: Formula, coefficients: Any, experts: FloatArray, limits: Limits) -> FloatArray:
    """Find the N_act that the unique tokens call for at each E, NaN where the law has no compute optimum."""
    at = limits.variables(limits.ladder.smallest, experts, 1.0)
    return limits.size_called_for(law, coefficients, at, limits.unique_tokens)


def explain_left_out(reasons: Mapping[float, str]) -> list[str]:
    """Write a sentence for each E without an optimum, or one for all of them."""
    groups = _group_reasons(reasons)
    verb = "is" if len(groups) == len(reasons) else "are"
    notices: list[str] = []
    for names, reason in groups:
        notice = Notice(f"E = {names} {verb} left out: {reason}", "left out", f"E = {names}")
        notices.append(notice)
    return notices


def _group_reasons(reasons: Mapping[float, str]) -> list[tuple[str, str]]:
    """Pair each E with its reason; many E, or E of one reason, go together with the reason of the first."""
    if len(reasons) > MAX_REASONS or len({*reasons.values()}) == 1 < len(reasons):
        first = next(iter(reasons))
        return [(list_experts(reasons), f"{reasons[first]} at E = {first:.5g}, likewise at the others")]
    return [(f"{e:g}", reason) for e, reason in reasons.items()]


def reasons_without(law: Formula, experts: FloatArray, exists: BoolArray) -> dict[float, str]:
    """Return E → why it has no optimum, for those where none `exists`."""
    without = np.unique(np.broadcast_to(experts, exists.shape)[~exists])
    return {e: why_no_optimum(law, e) for e in without.tolist()}


def refuse_no_optimum(law: Formula, experts: FloatArray, exists: BoolArray) -> None:
    """Raise InputError for the E without an optimum."""
    if exists.all():
        return
    groups = _group_reasons(reasons_without(law, experts, exists))
    reasons = "; ".join(f"E = {names}: {reason}" for names, reason in groups)
    claim = f"this law has no compute optimum for {'some' if exists.any() else 'any'} of these experts"
    raise InputError(f"{claim}: {reasons}; its `loss` is still defined")
