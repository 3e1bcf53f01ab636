"""Inverse questions: the cheapest budget and the least memory that reach a loss, and the FLOPs an MoE saves.

The cheapest budget is the least cost, over sizes, of the tokens that reach the loss; the least memory is that of the
smallest model that reaches it within the budget.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hub.base.errors import InputError
from hub.base.units import format_bytes, format_count, format_flops
from scaling_law.formulas import ChinchillaForm, Formula
from scaling_law.formulas.answers import ArrayAnswer
from scaling_law.formulas.conditions import RangeCheck
from scaling_law.formulas.law import positive
from scaling_law.planning.budget import (
    WIDTHS,
    Budget,
    Cluster,
    QuestionFields,
    read_costs,
    read_question,
    refuse_served,
    work_of,
)
from scaling_law.planning.limits import Limits, Quantity
from scaling_law.planning.minimiser import first_below
from scaling_law.planning.optimum import (
    asked_experts,
    compute_optimal,
    has_optimum,
    left_out,
    no_optimum,
    optimal_widths,
    refuse_other_variables,
    why_no_optimum,
)
from scaling_law.planning.search import cheapest_width, flops_of, tokens_needed
from scaling_law.size.architecture import HEAD_DIM, total_parameters, training_flops
from scaling_law.size.arrays import FloatArray

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True)
class Reached(ArrayAnswer):
    """The model that reaches each loss with each E at least cost; arrays of shape loss.shape + experts.shape.

    `flops` are of training and inference, `memory_bytes` of weights and KV cache: infinite where no model reaches the
    loss, and its sizes NaN. `least` is what was minimised; `notes` say which E are left out, and why.
    `hours` and `money` are those of training, None for a question without step times or a price.
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

    @property
    def best(self) -> dict[str, Any] | None:
        """The cheapest row for the first loss, trusted ones before others; None if none reaches it."""
        rows = [row for row in self.rows if row["loss"] == np.ravel(self.loss)[0] and np.isfinite(row["n_active"])]
        return min(
            [row for row in rows if row["trusted"]] or rows, key=lambda row: float(row[self.least]), default=None
        )

    @property
    def trusted(self) -> bool:
        """Whether the best row is trusted, or no model reaches the loss."""
        return self.best is None or bool(self.best["trusted"])

    @property
    def verdict(self) -> str:
        if (best := self.best) is None:
            return f"no model reaches loss {np.ravel(self.loss)[0]:.3f}"
        words = {"flops": (format_flops, "FLOPs"), "hours": ("{:.3g}".format, "hours")}
        words["memory_bytes"] = (format_bytes, "of memory")
        form, unit = words[self.least]
        size = f"E = {best['experts']:g} of {format_count(best['n_total'])} parameters"
        cost = f"{form(best[self.least])} {unit}"
        return f"loss {best['loss']:.3f} takes {cost} at least: {size}, {format_count(best['tokens'])} tokens"

    def _columns(self) -> dict[str, Any]:
        return super()._columns() | {"trusted": cast(RangeCheck, self.check).trusted}


def reach(
    law: Formula,
    loss: ArrayLike,
    experts: ArrayLike | None = None,
    *,
    flops: Quantity | None = None,
    force: bool = False,
    **question: Unpack[QuestionFields],
) -> Reached:
    """Answer `Law.reach`."""
    target, e = positive("loss", loss), asked_experts(law, experts)
    target = target.reshape(target.shape + (1,) * e.ndim)
    if flops is None and question.get("hours") is None and question.get("money") is None:
        cluster, limits = read_costs(law, **question)
        spent, width = _least_cost(law, target, e, limits, cluster)
        return _reached(law, target, e, spent, width, limits, force, cluster, "hours" if cluster else "flops")
    budget, limits = read_question(law, flops, **question)
    if limits.memory is not None:
        raise InputError("memory is what this question solves for: leave it out")
    width = _least_width(law, target, e, limits, budget)
    models = budget.variables(width, e, limits)
    spent = training_flops(models["n_active"], models["tokens"]) if budget.flops is None else budget.flops
    return _reached(law, target, e, spent, width, limits, force, budget.cluster, "memory_bytes")


def _least_cost(
    law: Formula, target: FloatArray, e: FloatArray, limits: Limits, cluster: Cluster | None
) -> tuple[FloatArray, FloatArray]:
    """The FLOPs and widths of the cheapest models, or the fastest on a cluster; NaN where none reaches the target."""
    refuse_other_variables(law, limits, e)
    if not (exists := _with_optimum(law, e)).any():
        raise InputError(no_optimum(law, e, exists))
    if cluster is not None:
        refuse_served(limits)
    loss, experts = np.broadcast_arrays(target, e)
    problem = (law, tuple(law.coefficients.values()), loss, experts, limits)
    free, limit = cheapest_width(*problem, cluster=cluster), limits.width_limit(experts)
    width = free
    if not np.all((free >= HEAD_DIM) & (free <= limit)):
        largest = np.clip(limit, HEAD_DIM, WIDTHS[1])
        width = cheapest_width(*problem, (HEAD_DIM, largest), cluster, ends=True)
    width = np.where(np.isfinite(free) & (limit >= HEAD_DIM * (1 - 1e-12)), width, np.nan)
    variables = limits.variables(width, experts, 1.0)
    flops = flops_of(variables, tokens_needed(*problem[:3], variables, limits), limits)
    return flops, np.where(np.isfinite(flops), width, np.nan)


def _least_width(law: Formula, target: FloatArray, e: FloatArray, limits: Limits, budget: Budget) -> FloatArray:
    """The least d_model that reaches the target within the budget; NaN where none does."""
    best, target = optimal_widths(law, budget, e, limits), np.broadcast_arrays(target, e)[0]

    def excess(x: FloatArray) -> FloatArray:
        at = budget.variables(np.exp(x), e, limits)
        with np.errstate(all="ignore"):  # of tokens below 0
            loss = law.evaluate(tuple(law.coefficients.values()), limits.worth(at))
        return np.where(at["tokens"] > 0, loss, np.inf) - target

    largest = np.broadcast_to(np.maximum(best.d_model, HEAD_DIM), target.shape)
    width = np.exp(first_below(excess, np.full(target.shape, np.log(HEAD_DIM)), np.log(largest)))
    width = np.where(np.isnan(width) & (best.loss <= target), best.d_model, width)
    return np.where(best.fits, width, np.nan)


def flop_savings(
    law: Formula, flops: ArrayLike, experts: ArrayLike | None = None, *, force: bool = False
) -> FloatArray:
    """Part of the dense compute-optimal budget that an MoE of equal loss saves: flops.shape + experts.shape.

    ExtrapolationError where one of the models lies beyond the range guard, unless `force`.
    """
    budget, e = positive("flops", flops), asked_experts(law, experts)
    dense = compute_optimal(law, budget, 1.0, force=force).loss
    cheapest = reach(law, dense, e, force=True)
    cast(RangeCheck, cheapest.check).refuse(force)
    return np.asarray(1.0 - cheapest.flops / budget.reshape(budget.shape + (1,) * e.ndim))


def _with_optimum(law: Formula, experts: FloatArray) -> NDArray[np.bool_]:
    """Which E have an optimum, as far as their coefficients tell."""
    return has_optimum(law.chinchilla_coefficients(experts)) if isinstance(law, ChinchillaForm) else experts > 0


def _reached(
    law: Formula,
    target: FloatArray,
    experts: FloatArray,
    flops: Any,
    width: FloatArray,
    limits: Limits,
    force: bool,
    cluster: Cluster | None,
    least: Literal["flops", "hours", "memory_bytes"],
) -> Reached:
    """The models of these widths (NaN: none) and budgets, checked against the law's range."""
    reachable = np.isfinite(width)
    at = Budget(np.where(reachable, flops, np.nan)).models(law, width, experts, limits)
    n_active, tokens = at["n_active"], at["tokens"]
    axes = tuple(range(width.ndim - experts.ndim, width.ndim))
    check = law.check(**at | {"experts": np.where(reachable, at["experts"], np.nan)})  # E for which there is a model
    lost = reachable & ~(reachable & ~check.beyond).any(axis=axes, keepdims=True)  # no E is left for this loss
    if lost.any():
        law.check(**{name: values[lost] for name, values in at.items()}).refuse(force)
    without = np.unique(experts[~_with_optimum(law, experts)]).tolist()
    notes = left_out({e: why_no_optimum(law, e) for e in without})
    if np.any(reachable & check.beyond):
        notes.append("rows marked not trusted are too far outside the fitted range to act on")
    n_total = total_parameters(width, experts, vocab_size=limits.vocab_size)
    spent, memory = (np.where(reachable, v, np.inf) for v in (flops, limits.memory_bytes(width, experts)))
    sizes = (n_active, n_total, tokens, tokens / n_active)
    timed: dict[str, Any] = {}
    if cluster is not None:
        notes += cluster.throughput.warnings(work_of(width[reachable], at["experts"][reachable], limits), cluster.gpus)
        seconds = np.where(reachable, cluster.seconds(work_of(width, experts, limits), tokens), np.inf)
        timed = {"hours": seconds / 3600.0, "money": cluster.cost(seconds)}
    return Reached(target, experts, spent, memory, *sizes, least, check=check, notes=tuple(notes), **timed)
