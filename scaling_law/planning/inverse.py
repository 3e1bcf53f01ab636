"""Inverse questions: the cheapest budget and the least memory that reach a loss.

The cheapest budget is the least cost, over sizes, of the tokens that reach the loss; the least memory is that of the
smallest model that reaches it within the budget.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike
from typing_extensions import Unpack

from hub.base.errors import InputError, given
from hub.base.fields import NUMBERS, field, reads
from hub.base.notices import Notice, about
from hub.base.tables import cell
from hub.base.types import Fields, Strings
from hub.base.units import bracket_interval, format_count, format_rough
from scaling_law.answer.answer import Answer, Row
from scaling_law.answer.columns import COLUMNS
from scaling_law.formulas import Formula
from scaling_law.formulas.conditions import RangeCheck
from scaling_law.formulas.law import has_optimum, percentile_interval
from scaling_law.formulas.repeated import Repetition, tokens_worth
from scaling_law.formulas.roots import find_root
from scaling_law.planning.budget import (
    Budget,
    Cluster,
    read_costs,
    read_question,
    refuse_served,
)
from scaling_law.planning.limits import WIDTHS, Limits, explain_ignored_design, of_law
from scaling_law.planning.minimiser import first_below
from scaling_law.planning.optimum import (
    BestModels,
    Models,
    choose_width,
    drawn_losses,
    explain_left_out,
    explain_undiscounted,
    find_optimum,
    models_at_budget,
    optimal_widths,
    parse_experts,
    parse_positive,
    reasons_without,
    refuse_no_optimum,
    refuse_other_variables,
    tokens_trusted,
)
from scaling_law.planning.question import BudgetFlops, Force, QuestionFields, SeveralExperts
from scaling_law.planning.trusted import choose_trusted, find_trusted
from scaling_law.size.architecture import name_size
from scaling_law.size.arrays import BoolArray, FloatArray, Interval, Variables

# Parameters or tokens whose terms are nothing beside an asymptote.
ENDLESS = 1e100
# Tokens with which no model reaches a loss.
FEWEST = 1e-3
# Steps of the secant method, which a law with one power of D takes two of.
SECANTS = 60
# What is minimised.
Least = Literal["flops", "hours", "memory_bytes"]


@dataclass(frozen=True, eq=False, repr=False)
class Reached(Answer):
    """The model that reaches each loss with each E at least cost; arrays of shape loss.shape + experts.shape.

    Columns are `loss`, `experts`, `flops`, `memory_bytes`, `n_active`, `n_total`, `tokens`, `tokens_per_parameter`,
    `hours`, `money`, `loss_interval`, `hours_interval` and `trusted`. `flops` are of training and inference,
    `memory_bytes` of weights and KV cache: infinite where no model reaches the loss, and its sizes NaN. `least` is
    what was minimised. `hours` and `money` are those of training, where step times and a price are known. Intervals
    (low, high) hold 95 %, one for each row, None where no model reaches the loss and without draws: that of a run's
    loss, by the law and, within a budget of hours, step times; that of its hours, by the step times.
    """

    _question: ClassVar[Strings] = ("loss", "experts")

    least: Least = dataclasses.field(repr=False)

    @cached_property
    def bests(self) -> tuple[int, ...]:
        """The place of the best row of each loss that is reached: the cheapest of the rows that are compared.

        Compared are trusted rows; where a loss has none, those within the range guard, or else all.
        """
        cost = np.where(np.isfinite(self.n_active), self.columns[self.least], np.inf).ravel()
        ranks = (cost, self.check.beyond.ravel(), ~self.check.trusted.ravel())
        best_places: dict[float, int] = {}
        for place in np.lexsort(ranks).tolist():
            if np.isfinite(cost[place]):
                best_places.setdefault(self.rows[place].loss, place)
        return tuple(sorted(best_places.values()))

    @property
    def best(self) -> Row | None:
        """The best row for the first loss; None if none reaches it."""
        bests = [self.rows[place] for place in self.bests]
        return next((row for row in bests if row.loss == self.rows[0].loss), None)

    @property
    def trusted(self) -> bool:
        """True if the best row is trusted, or no model reaches the loss."""
        return self.best is None or bool(self.best.trusted)

    @property
    def warnings(self) -> Strings:
        """The notes, and how far the best row of each loss extrapolates."""
        warnings = list(self.notes)
        for place in self.bests:
            row = self.rows[place]
            name = f"E = {row.experts:.5g}"
            if self.loss.size > 1:
                name = f"loss {row.loss:g}, {name}"
            check = self.check.row(np.unravel_index(place, self.n_active.shape))
            warnings += [about(name, warning) for warning in check.warnings]
        return tuple(warnings)

    @property
    def verdict(self) -> str:
        best = self.best
        if best is None:
            return f"no model reaches loss {self.rows[0].loss:.3f}"
        loss = f"loss {best.loss:.3f}{bracket_interval(best.loss_interval)}"
        name, _, size = name_size(best.experts, best.n_active, best.n_total).partition(": ")
        model = "a dense model" if name == "dense" else name
        tokens = f"{format_count(best.tokens)} tokens"
        text = f"{loss} takes at least {self._cost(best)}, with {model} ({size}, {tokens})"
        if not best.trusted:
            return f"{text}; not trusted"
        rows = [row for row in self.rows if row.loss == best.loss]
        cheapest = min(rows, key=lambda row: float(row[self.least]))
        if cheapest[self.least] < best[self.least]:
            text += f"; E = {cheapest.experts:.5g} would take {self._cost(cheapest)}, but is not trusted"
        return text

    def _cost(self, row: Row) -> str:
        """Say what a row costs."""
        text = cell(row[self.least], COLUMNS[self.least])
        if self.least == "flops":
            return f"{text} FLOPs"
        if self.least == "memory_bytes":
            return f"{text} of memory"
        interval = " ({} to {})".format(*map(format_rough, row.hours_interval)) if row.hours_interval else ""
        return f"{text} hours{interval}"

    def _cells(self) -> list[Fields]:
        """Return the rows without what is the same in all: the loss that was asked for, and the limit of memory."""
        names = [*self.columns]
        for name in ("loss", "memory_bytes"):
            texts = {cell(row[name], COLUMNS[name]) for row in self.rows}
            if len(texts) == 1 < len(self.rows):
                names.remove(name)
        return [row.cells(*names) for row in self.rows]


@reads
def reach(
    law: Formula,
    loss: Annotated[ArrayLike, NUMBERS, field("The loss to reach, nats per token: 2.2.")],
    experts: SeveralExperts = None,
    *,
    flops: Annotated[BudgetFlops, field("With a budget: the least memory that reaches the loss within it.")] = None,
    force: Force = False,
    **question: Unpack[QuestionFields],
) -> Reached:
    """Find the cheapest budget whose best model reaches `loss`, or the least memory that does within a budget.

    One answer for each E (None: the law's own). The budget is of `flops`, hours or money, as in `optimal`; with a
    `gpu` or `throughput` and no budget, the answer is the fewest hours on `gpus` GPUs, and their price.
    ExtrapolationError where all answers for a loss are beyond the guard, unless `force`.
    """
    has_budget = any(value is not None for value in (flops, question.get("hours"), question.get("money")))
    budget = None
    if has_budget:
        budget, limits = read_question(law, flops, **question)
        cluster = budget.cluster
    else:
        cluster, limits = read_costs(law, **question)
    e = parse_experts(law, experts, limits)
    target = parse_positive("loss", loss)
    target = target.reshape(target.shape + (1,) * e.ndim)
    least: Least = "memory_bytes"
    if budget is None:
        least = "hours" if cluster else "flops"
    losses, each_e = np.broadcast_arrays(target, e)

    def find(trusted: bool) -> BestModels:
        if budget is None:
            return _find_cheapest(law, losses, each_e, cluster, limits, trusted).with_gaps()
        return _find_smallest(law, target, e, budget, limits, trusted).with_gaps()

    models = find(trusted=False)
    check = limits.check(law, models.variables)
    if not (force or check.unknown or check.trusted.all()):
        trusted = find(trusted=True)
        models = models.replaced(trusted.fits, trusted)
    is_reached = models.fits
    d_model = models.d_model
    tokens = models.tokens
    variables = {**models.variables, "experts": each_e}
    check = _check_range(law, variables, is_reached, e.ndim, limits, force)

    sizes = limits.widths(d_model, e)
    needed_flops = np.where(is_reached, limits.flops(d_model, e, tokens), np.inf)
    notes = _explain(law, e, limits, check, is_reached)
    reached = models.take(lambda values: values[is_reached])
    drawn_loss = drawn_losses(law, budget or Budget.each(needed_flops), reached, limits)
    columns: Fields = {
        "loss": target,
        **limits.routed_column(e),
        "experts": e,
        "flops": needed_flops,
        "memory_bytes": np.where(is_reached, limits.memory_bytes(d_model, e), np.inf),
        "n_active": sizes.n_active,
        "n_total": sizes.n_total,
        "tokens": tokens,
        "tokens_per_parameter": tokens / sizes.n_active,
    }
    drawn_hours = None
    if cluster is not None:
        seconds = np.where(is_reached, cluster.seconds(sizes, tokens), np.inf)
        columns["hours"] = seconds / 3600.0
        if cluster.price is not None:
            columns["money"] = cluster.cost(seconds)
    if cluster is not None and is_reached.any():
        cheapest = int(np.argmin(needed_flops))
        model = limits.widths(d_model.flat[cheapest], variables["experts"].flat[cheapest])
        notes += cluster.warnings(model, tokens.flat[cheapest])
        if cluster.throughput.draws is not None:
            drawn_hours = cluster.seconds(sizes.at(is_reached), tokens[is_reached], drawn=True) / 3600.0
    columns["loss_interval"] = _intervals(drawn_loss, is_reached)
    if cluster is not None:
        columns["hours_interval"] = _intervals(drawn_hours, is_reached)
    # The remark stands at the end.
    columns["trusted"] = check.trusted
    return Reached(columns=columns, least=least, check=check, notes=tuple(notes))


def _intervals(draws: FloatArray | None, is_reached: BoolArray) -> list[Interval | None]:
    """Return the 95 % interval of draws [n_draws, runs] for each model that is reached, None elsewhere."""
    intervals: list[Interval | None] = [None] * is_reached.size
    if draws is not None:
        for place, values in zip(np.flatnonzero(is_reached), draws.T, strict=True):
            intervals[place] = percentile_interval(values)
    return intervals


def _find_cheapest(
    law: Formula, losses: FloatArray, experts: FloatArray, cluster: Cluster | None, limits: Limits, trusted: bool
) -> BestModels:
    """Find the models of fewest FLOPs, or of fewest hours on a cluster; of the `trusted` ones, or of all."""
    refuse_other_variables(law, limits, experts)
    exists = _has_optimum(law, experts)
    if not exists.any():
        refuse_no_optimum(law, experts, exists)
    if cluster is not None:
        refuse_served(limits)
    models = reaching(law, law.columns, losses, experts, limits, cluster, trusted)
    if trusted:
        return choose_trusted(models, law, experts, limits).only(exists)
    limit = limits.width_limit(experts)
    smallest = limits.ladder.smallest
    optimum = find_optimum(models, WIDTHS, limit, limits.ladder)
    # The smallest model is the cheapest one where the optimum would be smaller still.
    least = choose_width(models, np.full((1, *losses.shape), smallest), exists & (limit >= smallest))
    return least.replaced(optimum.fits, optimum)


def _find_smallest(
    law: Formula, losses: FloatArray, experts: FloatArray, budget: Budget, limits: Limits, trusted: bool
) -> BestModels:
    """Find the smallest models that reach the loss within the budget: of the `trusted` ones, or of all."""
    if limits.memory is not None:
        raise InputError(given("memory"), " is what this question solves for: leave it out")
    models = models_at_budget(law, law.columns, experts, budget, limits, trusted)
    best: BestModels = optimal_widths(law, budget, experts, limits)
    if trusted:
        best = find_trusted(law, budget, experts, limits, integral=False)
    width = _smallest_width(models, losses, best, limits)
    return choose_width(models, width[None], True)


def _smallest_width(models: Models, losses: FloatArray, best: BestModels, limits: Limits) -> FloatArray:
    """Return the least width whose model reaches each loss, which the best model does if any; NaN where none does."""

    def excess(log_width: FloatArray) -> FloatArray:
        return np.asarray(models(np.exp(log_width))[1] - losses)

    smallest = limits.ladder.smallest
    largest = np.maximum(best.d_model, smallest) + 0.0 * losses
    width = np.exp(first_below(excess, np.full(largest.shape, np.log(smallest)), np.log(largest)))
    # The best model itself may be the only one that reaches it.
    width = np.where(np.isnan(width) & (best.loss <= losses), best.d_model, width)
    return np.where(best.fits, width, np.nan)


def _check_range(
    law: Formula, variables: Variables, is_reached: Any, axes_of_experts: int, limits: Limits, force: bool
) -> RangeCheck:
    """Check the models that there are. ExtrapolationError where all for one loss are beyond the guard."""
    experts = np.where(is_reached, variables["experts"], np.nan)
    check = limits.check(law, {**variables, "experts": experts})
    axes = tuple(range(is_reached.ndim - axes_of_experts, is_reached.ndim))
    has_answer = (is_reached & ~check.beyond).any(axis=axes, keepdims=True)
    is_lost = is_reached & ~has_answer
    if is_lost.any():
        lost = {name: values[is_lost] for name, values in variables.items()}
        limits.check(law, lost).refuse(force)
    return check


def _explain(law: Formula, experts: FloatArray, limits: Limits, check: RangeCheck, is_reached: Any) -> list[str]:
    """Say which E have no answer, and what the answers rest on."""
    exists = _has_optimum(law, experts)
    notes = explain_left_out(reasons_without(law, experts, exists))
    notes += explain_undiscounted(law, experts[exists], limits)
    notes += explain_ignored_design(law, limits)
    if np.any(is_reached & ~check.trusted) and not check.unknown:
        sentence = "rows marked not trusted lie further outside the fitted range than backtests support"
        notes.append(Notice(sentence))
    return notes


def floor(law: Formula, coefficients: Any, variables: Variables) -> FloatArray:
    """Compute the loss of models with endless tokens under each row of coefficients, [1 + n_draws, ...]."""
    with np.errstate(all="ignore"):
        return np.asarray(law.evaluate(coefficients, {**variables, "tokens": np.array(ENDLESS)}), float)


def tokens_needed(
    law: Formula, coefficients: Any, loss: FloatArray, variables: Variables, limits: Limits
) -> FloatArray:
    """Find the training tokens with which models reach `loss`; infinite where none suffice. All broadcast."""
    if limits.unique_tokens is not None:
        return _repeated_tokens_needed(law, coefficients, loss, variables, limits)
    least_loss = floor(law, coefficients, variables)
    gap = loss - least_loss

    def excess(log_tokens: Any) -> FloatArray:
        reached = law.evaluate(coefficients, {**variables, "tokens": np.exp(log_tokens)})
        return np.asarray(np.log((reached - least_loss) / gap))

    # By secants: ln(L − floor) is a straight line in ln D for a law with one power of D.
    with np.errstate(all="ignore"):
        previous: Any = np.log(1e9)
        current = np.full(gap.shape, np.log(1e12))
        previous_excess = excess(previous)
        current_excess = excess(current)
        for _ in range(SECANTS):
            step = current_excess * (current - previous) / (current_excess - previous_excess)
            step = np.where(np.isfinite(step), step, 0.0)
            previous = current
            previous_excess = current_excess
            current = current - step
            if not np.any(np.abs(step) > 1e-12):
                break
            current_excess = excess(current)
    return np.where(gap > 0, np.exp(current), np.inf)


def _repeated_tokens_needed(
    law: Formula, coefficients: Any, loss: FloatArray, variables: Variables, limits: Limits
) -> FloatArray:
    """Answer `tokens_needed` where tokens repeat, by the logarithm of what they are worth: it has an end."""
    unique = limits.unique_tokens or np.inf
    r_star = (law.repetition or Repetition()).tokens

    def tokens(log_worth: FloatArray) -> FloatArray:
        return np.asarray(tokens_worth(np.exp(log_worth), unique, r_star))

    def excess(log_worth: FloatArray) -> FloatArray:
        return np.log(limits.loss(law, coefficients, {**variables, "tokens": tokens(log_worth)}) / loss)

    shape = np.broadcast_shapes(*map(np.shape, (*variables.values(), *coefficients, loss)))
    low = np.full(shape, np.log(FEWEST))
    high = np.full(shape, np.log(unique * (1.0 + r_star)))
    # Some models never reach the loss.
    with np.errstate(all="ignore"):
        log_worth = find_root(excess, low, high)
        return np.where(np.isnan(log_worth), np.inf, tokens(log_worth))


def reaching(
    law: Formula,
    coefficients: Any,
    loss: FloatArray,
    experts: Any,
    limits: Limits,
    cluster: Cluster | None = None,
    trusted: bool = False,
) -> Models:
    """Make a function of the width: variables and ln cost of the models that reach `loss`, in FLOPs or in seconds.

    Where they must be `trusted`, the cost of others is NaN.
    """

    def models(d_model: FloatArray) -> tuple[Variables, FloatArray]:
        variables = limits.variables(d_model, experts, 1.0)
        tokens = tokens_needed(law, coefficients, loss, variables, limits)
        variables = of_law(law, {**variables, "tokens": tokens})
        if cluster is not None:
            cost = cluster.seconds(limits.widths(d_model, experts), tokens)
        else:
            cost = limits.flops(d_model, experts, tokens)
        if trusted:
            fewest, most = tokens_trusted(law, variables, limits)
            cost = np.where((tokens >= fewest) & (tokens <= most), cost, np.nan)
        return variables, np.log(cost)

    return models


def _has_optimum(law: Formula, experts: FloatArray) -> BoolArray:
    """Say which E have an optimum, as far as their coefficients tell."""
    if law.form.is_chinchilla:
        return has_optimum(law.chinchilla_coefficients(experts))
    return experts > 0
