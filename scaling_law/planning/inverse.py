"""Inverse questions: the cheapest budget and the least memory that reach a loss, and the FLOPs an MoE saves.

The best loss falls with the budget and with the memory (Ludziejewski et al. 2025), so each answer is one root. Where
a law or step times have no closed form, it is the least cost over sizes of the tokens that reach the loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import numpy as np
from numpy.typing import ArrayLike

from hub.base.errors import InputError
from hub.base.units import format_bytes, format_count, format_flops
from scaling_law.formulas import ChinchillaForm, Formula
from scaling_law.formulas.answers import ArrayAnswer
from scaling_law.formulas.conditions import RangeCheck
from scaling_law.formulas.law import positive
from scaling_law.planning.budget import Cluster, QuestionFields, read_costs, read_question, work_of
from scaling_law.planning.hours import WIDTHS, best_widths
from scaling_law.planning.limits import Limits, Quantity
from scaling_law.planning.optimum import (
    asked_experts,
    compute_optimal,
    has_optimum,
    left_out,
    loss_of_variables,
    model_variables,
    optimal_widths,
    refuse_other_variables,
    root,
    why_no_optimum,
)
from scaling_law.planning.search import cheapest_width, coefficients_of, flops_of, tokens_needed
from scaling_law.size.architecture import HEAD_DIM, total_parameters, training_flops
from scaling_law.size.arrays import FloatArray

if TYPE_CHECKING:
    from typing_extensions import Unpack

FLOPS_RANGE = (1.0, 1e40)  # of budgets that are searched


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
        names = (f.name for f in fields(self) if f.name not in ("notes", "check", "least"))
        columns = {name: value for name in names if (value := getattr(self, name)) is not None}
        return columns | {"trusted": cast(RangeCheck, self.check).trusted}


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
    if flops is None and question.get("hours") is None and question.get("money") is None:
        return cheapest_budget(law, loss, experts, force=force, **question)
    return smallest_memory(law, flops, loss, experts, force=force, **question)


def cheapest_budget(
    law: Formula,
    loss: ArrayLike,
    experts: ArrayLike | None = None,
    *,
    force: bool = False,
    **question: Unpack[QuestionFields],
) -> Reached:
    """Least FLOPs whose best model with E experts reaches `loss`, for each E (None: `law.default_experts()`).

    A `gpu` or `throughput` asks for the fewest hours on `gpus` GPUs, and their price, as in `law.optimal`.
    ExtrapolationError where all answers for a loss are beyond the guard, unless `force`.
    """
    cluster, limits = read_costs(law, **question)
    target, e = positive("loss", loss), asked_experts(law, experts)
    target = target.reshape(target.shape + (1,) * e.ndim)
    if cluster is None and isinstance(law, ChinchillaForm):
        flops, width = _least_flops(law, target, e, limits)
    else:
        flops, width = _least_cost(law, target, e, limits, cluster)
    return _reached(law, target, e, flops, width, limits, force, cluster, "hours" if cluster else "flops")


def _least_flops(
    law: ChinchillaForm, target: FloatArray, e: FloatArray, limits: Limits
) -> tuple[FloatArray, FloatArray]:
    """The budgets, and the widths of their best models; NaN where none reaches the target."""

    def excess(log_flops: FloatArray, target: FloatArray, e: FloatArray) -> FloatArray:
        return optimal_widths(law, np.exp(log_flops), e, limits).loss - target

    flops = np.exp(root(excess, *np.log(FLOPS_RANGE), target, e))
    finite = np.isfinite(flops)
    optimum = optimal_widths(law, np.where(finite, flops, 1e20), np.broadcast_to(e, finite.shape), limits)
    return flops, np.where(finite, optimum.d_model, np.nan)


def _least_cost(
    law: Formula, target: FloatArray, e: FloatArray, limits: Limits, cluster: Cluster | None
) -> tuple[FloatArray, FloatArray]:
    """Search the least FLOPs of any law, or the fewest hours on a cluster; returns what `_least_flops` does."""
    for name in ("inference_tokens", "unique_tokens"):
        if value := getattr(limits, name):
            raise InputError(f"{name}={value:g} needs a Chinchilla or joint law and a budget in FLOPs")
    refuse_other_variables(law, limits, e)
    experts, loss = (np.reshape(v, (-1, 1)) for v in np.broadcast_arrays(e, target))

    def seconds_of(d_model: FloatArray, _: Mapping[str, Any], tokens: FloatArray) -> FloatArray:
        assert cluster is not None
        return cluster.seconds(work_of(d_model, experts, limits), tokens)

    problem = (law, coefficients_of(law)[:, :1], loss, experts, limits)
    cost = flops_of if cluster is None else seconds_of
    free, limit = cheapest_width(*problem, cost, WIDTHS), limits.width_limit(experts)
    width = free
    if not np.all((free >= HEAD_DIM) & (free <= limit)):
        width = cheapest_width(*problem, cost, (HEAD_DIM, np.clip(limit, HEAD_DIM, WIDTHS[1])), ends=True)
    width = np.where(limit < HEAD_DIM * (1 - 1e-12), np.nan, width)
    variables = limits.variables(width, experts, 1.0)
    flops = training_flops(variables["n_active"], tokens_needed(*problem[:3], variables))
    shape = np.broadcast_shapes(e.shape, target.shape)
    finite = np.isfinite(flops) & np.isfinite(free)
    return tuple(np.where(finite, values, np.nan).reshape(shape) for values in (flops, width))  # type: ignore[return-value]


def flop_savings(
    law: Formula, flops: ArrayLike, experts: ArrayLike | None = None, *, force: bool = False
) -> FloatArray:
    """Part of the dense compute-optimal budget that an MoE of equal loss saves: flops.shape + experts.shape.

    ExtrapolationError where one of the models lies beyond the range guard, unless `force`.
    """
    budget, e = positive("flops", flops), asked_experts(law, experts)
    dense = compute_optimal(law, budget, 1.0, force=force).loss
    cheapest = cheapest_budget(law, dense, e, force=True)
    cast(RangeCheck, cheapest.check).refuse(force)
    return np.asarray(1.0 - cheapest.flops / budget.reshape(budget.shape + (1,) * e.ndim))


def smallest_memory(
    law: Formula,
    flops: Quantity | None,
    loss: ArrayLike,
    experts: ArrayLike | None = None,
    *,
    force: bool = False,
    **question: Unpack[QuestionFields],
) -> Reached:
    """The least memory (weights and KV cache, bytes) with which a budget reaches `loss`; else as `cheapest_budget`.

    The budget is of `flops`, or (`flops` None) of hours or money, as in `law.optimal`.
    """
    budget, limits = read_question(law, flops, **question)
    if limits.memory is not None:
        raise InputError("memory is what this question solves for: leave it out")
    target, e = float(positive("loss", loss)), np.atleast_1d(asked_experts(law, experts))

    def excess(width: FloatArray, e: FloatArray) -> FloatArray:
        variables = budget.variables(width, e, limits)
        variables["tokens"] = np.maximum(variables["tokens"], 1e-300)
        return np.asarray(loss_of_variables(law, variables, limits)) - target

    best = best_widths(law, budget, e, limits)
    smallest = np.full(e.shape, float(HEAD_DIM))
    width = root(excess, smallest, np.maximum(best.d_model, HEAD_DIM), e)
    width = np.where(excess(smallest, e) <= 0, smallest, width)
    width = np.where(best.fits & (best.loss <= target), width, np.nan)
    models = budget.variables(width, e, limits)
    spent = training_flops(models["n_active"], models["tokens"]) if budget.flops is None else budget.flops
    return _reached(
        law,
        np.asarray(target),
        e,
        np.broadcast_to(spent, e.shape),
        width,
        limits,
        force,
        budget.cluster,
        "memory_bytes",
    )


def _reached(
    law: Formula,
    target: FloatArray,
    experts: FloatArray,
    flops: FloatArray,
    width: FloatArray,
    limits: Limits,
    force: bool,
    cluster: Cluster | None,
    least: Literal["flops", "hours", "memory_bytes"],
) -> Reached:
    """The models of these widths (NaN: none) and budgets, checked against the law's range."""
    at = model_variables(law, width, experts, np.where(np.isnan(width), np.nan, flops), limits)
    n_active, tokens = at["n_active"], at["tokens"]
    memory = limits.weight_bytes(width, experts) + limits.kv_bytes(width)
    axes = tuple(range(width.ndim - experts.ndim, width.ndim))
    reachable = np.isfinite(width)
    check = law.check(**at | {"experts": np.where(reachable, at["experts"], np.nan)})  # E for which there is a model
    lost = reachable & ~(reachable & ~check.beyond).any(axis=axes, keepdims=True)  # no E is left for this loss
    if lost.any():
        law.check(**{name: values[lost] for name, values in at.items()}).refuse(force)
    exists = has_optimum(law.chinchilla_coefficients(experts)) if isinstance(law, ChinchillaForm) else experts > 0
    notes = left_out({e: why_no_optimum(law, e) for e in np.unique(experts[~exists]).tolist()})
    if np.any(reachable & check.beyond):
        notes.append("rows marked not trusted are too far outside the fitted range to act on")
    n_total = total_parameters(width, experts, vocab_size=limits.vocab_size)
    spent, memory = (np.where(reachable, values, np.inf) for values in (flops, memory))
    sizes = (n_active, n_total, tokens, tokens / n_active)
    timed: dict[str, Any] = {}
    if cluster is not None:
        notes += cluster.warnings(work_of(width[reachable], at["experts"][reachable], limits))
        seconds = np.where(reachable, cluster.seconds(work_of(width, experts, limits), tokens), np.inf)
        timed = {"hours": seconds / 3600.0, "money": cluster.cost(seconds)}
    return Reached(target, experts, spent, memory, *sizes, least, check=check, notes=tuple(notes), **timed)
