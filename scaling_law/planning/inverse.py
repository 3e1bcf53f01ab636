"""Inverse questions: the cheapest budget and the least memory that reach a loss, and the FLOPs an MoE saves.

The cheapest budget is the least cost, over sizes, of the tokens that reach the loss; the least memory is that of the
smallest model that reaches it within the budget.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hub.base.errors import InputError
from hub.base.inputs import reads
from hub.base.units import format_bytes, format_count, format_flops
from scaling_law.formulas import ChinchillaForm, Formula
from scaling_law.formulas.answers import ArrayAnswer
from scaling_law.formulas.conditions import RangeCheck
from scaling_law.formulas.law import has_optimum
from scaling_law.formulas.repeated import Repetition, tokens_worth
from scaling_law.formulas.roots import find_root
from scaling_law.planning.budget import (
    WIDTHS,
    Budget,
    Cluster,
    read_costs,
    read_question,
    refuse_served,
)
from scaling_law.planning.limits import Limits
from scaling_law.planning.minimiser import first_below
from scaling_law.planning.optimum import (
    Models,
    compute_optimal,
    explain_left_out,
    explain_no_optimum,
    explain_undiscounted,
    find_optimum,
    models_at_budget,
    optimal_widths,
    parse_experts,
    parse_positive,
    refuse_other_variables,
    why_no_optimum,
)
from scaling_law.planning.question import Quantity, QuestionFields
from scaling_law.size.architecture import HEAD_DIM, inference_flops, total_parameters, training_flops
from scaling_law.size.arrays import FloatArray

if TYPE_CHECKING:
    from typing_extensions import Unpack

ENDLESS = 1e100  # parameters or tokens whose terms are nothing beside an asymptote
FEWEST = 1e-3  # tokens, with which no model reaches a loss


@dataclass(frozen=True)
class Reached(ArrayAnswer):
    """The model that reaches each loss with each E at least cost; arrays of shape loss.shape + experts.shape.

    `flops` are of training and inference, `memory_bytes` of weights and KV cache: infinite where no model reaches the
    loss, and its sizes NaN. `least` is what was minimised. `hours` and `money` are those of training, None without
    step times or a price.
    """

    _question: ClassVar[tuple[str, ...]] = ("loss", "experts")

    loss: FloatArray
    experts: FloatArray
    flops: FloatArray
    memory_bytes: FloatArray
    n_active: FloatArray
    n_total: FloatArray
    tokens: FloatArray
    tokens_per_parameter: FloatArray
    least: Literal["flops", "hours", "memory_bytes"]
    hours: FloatArray | None = None
    money: FloatArray | None = None

    @cached_property
    def bests(self) -> tuple[int, ...]:
        """The place of the best row of each loss that is reached: the cheapest of the rows that are compared.

        Compared are trusted rows; where a loss has none, those within the range guard, or else all.
        """
        check = cast(RangeCheck, self.check)
        costs = np.broadcast_to(getattr(self, self.least), self.n_active.shape).reshape(self.loss.size, -1)
        costs = np.where(np.isfinite(self.n_active).reshape(costs.shape), costs, np.inf)
        worth = (check.trusted, ~check.beyond, np.array(True))
        masks = [np.broadcast_to(mask, self.n_active.shape).reshape(costs.shape) for mask in worth]
        places = []
        for i, row in enumerate(costs):
            reached = (np.where(mask[i], row, np.inf) for mask in masks)
            compared = next((values for values in reached if np.isfinite(values).any()), None)
            if compared is not None:
                places.append(i * len(row) + int(np.argmin(compared)))
        return tuple(places)

    @property
    def best(self) -> dict[str, Any] | None:
        """The best row for the first loss; None if none reaches it."""
        rows = [row for row in map(self.rows.__getitem__, self.bests) if row["loss"] == np.ravel(self.loss)[0]]
        return rows[0] if rows else None

    @property
    def trusted(self) -> bool:
        """Whether the best row is trusted, or no model reaches the loss."""
        return self.best is None or bool(self.best["trusted"])

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was noticed, and how far the best row of each loss extrapolates."""
        sentences = list(self.notes)
        for place in self.bests:
            row = self.rows[place]
            name = f"loss {row['loss']:g}, " * (self.loss.size > 1) + f"E = {row['experts']:g}"
            check = cast(RangeCheck, self.check).row(np.unravel_index(place, self.n_active.shape))
            sentences += [f"{name}: {warning}" for warning in check.warnings]
        return tuple(sentences)

    @property
    def verdict(self) -> str:
        if (best := self.best) is None:
            return f"no model reaches loss {np.ravel(self.loss)[0]:.3f}"
        size = f"E = {best['experts']:g} of {format_count(best['n_total'])} parameters"
        cost, tokens = self._cost(best), format_count(best["tokens"])
        text = f"loss {best['loss']:.3f} takes {cost} at least: {size}, {tokens} tokens"
        if not best["trusted"]:
            return f"{text}; not trusted"
        rows = [row for row in self.rows if row["loss"] == best["loss"]]
        cheapest = min(rows, key=lambda row: float(row[self.least]))
        if cheapest[self.least] < best[self.least]:
            text += f"; E = {cheapest['experts']:g} takes {self._cost(cheapest)}, but is not trusted"
        return text

    def _cost(self, row: Mapping[str, Any]) -> str:
        """What a row costs, in words."""
        value = row[self.least]
        costs = {"flops": f"{format_flops(value)} FLOPs", "hours": f"{value:.3g} hours"}
        return costs.get(self.least) or f"{format_bytes(value)} of memory"

    def _columns(self) -> dict[str, Any]:
        return super()._columns() | {"trusted": cast(RangeCheck, self.check).trusted}


@reads
def reach(
    law: Formula,
    loss: ArrayLike,
    experts: ArrayLike | None = None,
    *,
    flops: Quantity | None = None,
    force: bool = False,
    **question: Unpack[QuestionFields],
) -> Reached:
    """The cheapest budget whose best model with E experts reaches `loss`, for each E (None: the law's own); or,
    given a budget, the least memory (weights and KV cache) with which it does.

    The budget is of `flops`, hours or money, as in `optimal`; with a `gpu` or `throughput` and no budget, the
    answer is the fewest hours on `gpus` GPUs, and their price. ExtrapolationError where all answers for a loss
    are beyond the guard, unless `force`.
    """
    target, e = parse_positive("loss", loss), parse_experts(law, experts)
    target = target.reshape(target.shape + (1,) * e.ndim)
    losses, each = np.broadcast_arrays(target, e)
    coefficients = tuple(law.coefficients.values())
    if flops is None and question.get("hours") is None and question.get("money") is None:
        cluster, limits = read_costs(law, **question)
        least: Literal["flops", "hours", "memory_bytes"] = "hours" if cluster else "flops"
        refuse_other_variables(law, limits, e)
        if not (exists := _with_optimum(law, e)).any():
            raise InputError(explain_no_optimum(law, e, exists))
        if cluster is not None:
            refuse_served(limits)
        models = reaching(law, coefficients, losses, each, limits, cluster)
        optimum = find_optimum(models, WIDTHS, limit := limits.width_limit(each))
        n_active, tokens, cost = models(np.full(losses.shape, HEAD_DIM))  # is cheapest where d_model 1 would be
        smallest = ~optimum.fits & exists & (limit >= HEAD_DIM) & np.isfinite(cost)
        n_active, tokens = np.where(smallest, (n_active, tokens), (optimum.n_active, optimum.tokens))
        spent = flops_of(n_active, tokens, limits)
        width = np.where(optimum.fits, optimum.d_model, np.where(smallest, HEAD_DIM, np.nan))
    else:
        budget, limits = read_question(law, flops, **question)
        cluster, least = budget.cluster, "memory_bytes"
        if limits.memory is not None:
            raise InputError("memory is what this question solves for: leave it out")
        best, models = optimal_widths(law, budget, e, limits), models_at_budget(law, coefficients, e, budget, limits)
        low, high = np.full(losses.shape, float(HEAD_DIM)), np.maximum(best.d_model, HEAD_DIM) + 0.0 * losses
        width = np.exp(first_below(lambda x: models(np.exp(x))[2] - losses, np.log(low), np.log(high)))
        width = np.where(np.isnan(width) & (best.loss <= losses), best.d_model, width)
        width = np.where(best.fits, width, np.nan)
        trained = budget.variables(width, e, limits)
        spent = np.asarray(budget.flops or training_flops(trained["n_active"], trained["tokens"]))
    reachable = np.isfinite(width)
    at = Budget.each(np.where(reachable, spent, np.nan)).models(law, width, e, limits)
    n_active, tokens = at["n_active"], at["tokens"]
    repeated: dict[str, Any] = {"unique_tokens": limits.unique_tokens}
    named = np.where(reachable, at["experts"], np.nan)  # E for which there is a model
    check = law.check(**at | repeated | {"experts": named})
    axes = tuple(range(width.ndim - e.ndim, width.ndim))
    lost = reachable & ~(reachable & ~check.beyond).any(axis=axes, keepdims=True)  # no E is left for this loss
    if lost.any():
        law.check(**{name: values[lost] for name, values in at.items()}, **repeated).refuse(force)
    without = np.unique(e[~_with_optimum(law, e)]).tolist()
    notes = explain_left_out({e: why_no_optimum(law, e) for e in without})
    notes += explain_undiscounted(law, e[_with_optimum(law, e)], limits)
    if np.any(reachable & ~check.trusted) and not check.unknown:
        notes.append("rows marked not trusted lie further outside the fitted range than backtests support")
    n_total = total_parameters(width, e, vocab_size=limits.vocab_size)
    spent, memory = (np.where(reachable, v, np.inf) for v in (spent, limits.memory_bytes(width, e)))
    sizes, timed = (n_active, n_total, tokens, tokens / n_active), dict[str, Any]()
    if cluster is not None:
        notes += cluster.warnings(limits.widths(width[reachable], at["experts"][reachable]))
        seconds = np.where(reachable, cluster.seconds(limits.widths(width, e), tokens), np.inf)
        timed = {"hours": seconds / 3600.0, "money": cluster.cost(seconds)}
    return Reached(target, e, spent, memory, *sizes, least, check=check, notes=tuple(notes), **timed)


def floor(law: Formula, coefficients: Any, variables: Mapping[str, Any]) -> FloatArray:
    """The loss of models with endless tokens under each row of coefficients, [1 + n_draws, ...]."""
    with np.errstate(all="ignore"):
        return np.asarray(law.evaluate(coefficients, {**variables, "tokens": np.array(ENDLESS)}), float)


def tokens_needed(
    law: Formula, coefficients: Any, loss: FloatArray, variables: Mapping[str, Any], limits: Limits
) -> FloatArray:
    """Training tokens with which models reach `loss`; infinite where none suffice. All broadcast."""
    if limits.unique_tokens is not None:
        return _repeated_tokens_needed(law, coefficients, loss, variables, limits)
    least_loss = floor(law, coefficients, variables)
    gap = loss - least_loss

    def excess(x: Any) -> FloatArray:
        reached = law.evaluate(coefficients, {**variables, "tokens": np.exp(x)})
        return np.asarray(np.log((reached - least_loss) / gap))

    with np.errstate(all="ignore"):  # secants: ln(L − floor) is a straight line in ln D for a law with one power of D
        last, x = np.log(1e9), np.full(gap.shape, np.log(1e12))
        y_last, y = excess(last), excess(x)
        for _ in range(60):
            step = y * (x - last) / (y - y_last)
            step = np.where(np.isfinite(step), step, 0.0)
            last, y_last, x = x, y, x - step
            if not np.any(np.abs(step) > 1e-12):
                break
            y = excess(x)
    return np.where(gap > 0, np.exp(x), np.inf)


def _repeated_tokens_needed(
    law: Formula, coefficients: Any, loss: FloatArray, variables: Mapping[str, Any], limits: Limits
) -> FloatArray:
    """Answer `tokens_needed` where tokens repeat, by the logarithm of what they are worth: it has an end."""
    unique, r_star = limits.unique_tokens or np.inf, (law.repetition or Repetition()).tokens

    def tokens(x: FloatArray) -> FloatArray:
        return np.asarray(tokens_worth(np.exp(x), unique, r_star))

    def excess(x: FloatArray) -> FloatArray:
        return np.log(limits.loss(law, coefficients, {**variables, "tokens": tokens(x)}) / loss)

    every = (*variables.values(), *coefficients, loss)
    low = np.full(np.broadcast_shapes(*map(np.shape, every)), np.log(FEWEST))
    high = np.full(low.shape, np.log(unique * (1.0 + r_star)))
    # Some models never reach the loss.
    with np.errstate(all="ignore"):
        x = find_root(excess, low, high)
        return np.where(np.isnan(x), np.inf, tokens(x))


def reaching(
    law: Formula, coefficients: Any, loss: FloatArray, experts: Any, limits: Limits, cluster: Cluster | None = None
) -> Models:
    """N_act, D and the logarithm of the cost of models that reach `loss`, by width: FLOPs, or seconds on a cluster."""

    def models(d_model: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        at = limits.variables(d_model, experts, 1.0)
        tokens = tokens_needed(law, coefficients, loss, at, limits)
        if cluster is not None:
            return at["n_active"], tokens, np.log(cluster.seconds(limits.widths(d_model, experts), tokens))
        return at["n_active"], tokens, np.log(flops_of(at["n_active"], tokens, limits))

    return models


def flops_of(n_active: FloatArray, tokens: FloatArray, limits: Limits) -> FloatArray:
    """6 N_act D + 2 N_act D_inf."""
    return np.asarray(training_flops(n_active, tokens) + inference_flops(n_active, limits.inference_tokens))


def flop_savings(
    law: Formula, flops: ArrayLike, experts: ArrayLike | None = None, *, force: bool = False
) -> FloatArray:
    """Part of the dense compute-optimal budget that an MoE of equal loss saves: flops.shape + experts.shape.

    ExtrapolationError where one of the models lies beyond the range guard, unless `force`.
    """
    budget, e = parse_positive("flops", flops), parse_experts(law, experts)
    dense = compute_optimal(law, budget, 1.0, force=force).loss
    cheapest = reach(law, dense, e, force=True)
    cast(RangeCheck, cheapest.check).refuse(force)
    return np.asarray(1.0 - cheapest.flops / budget.reshape(budget.shape + (1,) * e.ndim))


def _with_optimum(law: Formula, experts: FloatArray) -> NDArray[np.bool_]:
    """Which E have an optimum, as far as their coefficients tell."""
    return has_optimum(law.chinchilla_coefficients(experts)) if isinstance(law, ChinchillaForm) else experts > 0
