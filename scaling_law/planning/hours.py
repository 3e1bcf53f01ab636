"""Budgets of time and money: the tokens that a model gets for them, and the model that makes the most of them.

A run passes through the stages of its batch ramp, with `Throughput.step_seconds` for each step, on GPUs that share
them evenly. In the same hours a slower model sees fewer FLOPs, so the best E is not that of a FLOP budget.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaling_law.formulas import Law
from scaling_law.planning.optimum import (
    Constraints,
    WidthOptimum,
    loss_of_variables,
    model_variables,
    of_law,
    optimal_widths,
    positive,
    refuse_other_variables,
    searched,
)
from scaling_law.planning.search import coefficients_of
from scaling_law.size.architecture import HEAD_DIM
from scaling_law.size.recipe import PAPER, BatchRamp
from scaling_law.size.throughput import ModelWork, Throughput

FloatArray = NDArray[np.float64]
WIDTHS = (2.0, 2e6)  # d_model that are searched


@dataclass(frozen=True)
class Cluster:
    """GPUs that train a model together, and how fast; `price` is per GPU-hour, in any currency.

    ValueError names the field, the value and what is allowed.
    """

    gpus: int
    throughput: Throughput
    price: float | None = None
    ramp: BatchRamp = field(default=BatchRamp(PAPER.batch_ramp, PAPER.sequence_length), repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.gpus, bool) or not isinstance(self.gpus, int) or self.gpus < 1:
            raise ValueError(f"gpus={self.gpus!r} must be a whole number of at least 1")
        if self.price is not None:
            object.__setattr__(self, "price", float(positive("price", self.price)))

    @classmethod
    def of(cls, gpus: Any, throughput: Any, price: Any = None, ramp: BatchRamp | None = None) -> Cluster:
        """`throughput`: one, the path of a throughput.json, or the name of a GPU, whose MFU is then assumed."""
        if gpus is None:
            given = "" if price is None else f"price={price!r} is per GPU-hour: "
            raise ValueError(f"{given}gpus=None must be given, the number of GPUs that train")
        if throughput is None:
            raise ValueError('throughput=None must be given: "h100", a throughput.json, or a Throughput')
        if isinstance(throughput, (str, Path)):
            is_file = str(throughput).endswith(".json")
            throughput = Throughput.from_file(throughput) if is_file else Throughput.assumed(str(throughput))
        return cls(gpus, throughput, price, **({} if ramp is None else {"ramp": ramp}))

    @property
    def hardware(self) -> str:
        return f"{self.gpus} × {self.throughput.device}"

    def __str__(self) -> str:
        return f"{self.hardware} ({self.throughput.precision}{', assumed' if self.throughput.is_assumed else ''})"

    def tokens(self, work: ModelWork, seconds: float, drawn: bool = False) -> FloatArray:
        """That models see in the time; `drawn`: under each draw of the throughput, [n_draws, ...]."""
        tokens, left = np.array(0.0), np.array(float(seconds))
        for per_token, start, end in self._stages(work, drawn):
            seen = np.minimum(np.maximum(left, 0.0) / per_token, end - start)
            tokens, left = tokens + seen, left - seen * per_token
        return tokens

    def seconds(self, work: ModelWork, tokens: Any, drawn: bool = False) -> FloatArray:
        """That models take for the tokens; `drawn`: under each draw of the throughput, [n_draws, ...]."""
        tokens, seconds = np.asarray(tokens, float), np.array(0.0)
        for per_token, start, end in self._stages(work, drawn):
            if drawn and per_token.ndim == 1:  # of one model
                per_token = per_token.reshape(-1, *([1] * tokens.ndim))
            seconds = seconds + per_token * np.clip(tokens - start, 0.0, end - start)
        return seconds

    def cost(self, seconds: Any) -> Any:
        """GPU-hours times their price; None without a price."""
        return None if self.price is None else self.price * self.gpus * seconds / 3600.0

    def _stages(self, work: ModelWork, drawn: bool) -> Iterator[tuple[FloatArray, float, float]]:
        """Of each stage of the ramp the seconds per token, and the tokens from and to which it lasts."""
        step = self.throughput.step_seconds_draws if drawn else self.throughput.step_seconds
        length = self.ramp.sequence_length
        ends = [*(float(stage.from_tokens) for stage in self.ramp.stages), np.inf]
        for stage, (start, end) in zip(self.ramp.stages, pairwise(ends), strict=True):
            batch = stage.sequences * length
            yield np.asarray(step(work, batch, sequence_length=length, devices=self.gpus)) / batch, start, end

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        t = self.throughput
        known = {"device": t.device, "precision": t.precision, "source": t.source, "is_assumed": t.is_assumed}
        return {"gpus": self.gpus, "price": self.price, "throughput": known | {"error": t.error}}


@dataclass(frozen=True)
class TimeBudget:
    """Wall-clock hours on a cluster."""

    hours: float
    cluster: Cluster

    @property
    def seconds(self) -> float:
        return 3600.0 * self.hours

    @property
    def money(self) -> float | None:
        """What the hours cost; None without a price."""
        cost = self.cluster.cost(self.seconds)
        return None if cost is None else float(cost)

    @classmethod
    def of(
        cls,
        flops: Any,
        hours: Any,
        money: Any,
        gpus: Any = None,
        throughput: Any = None,
        price: Any = None,
        ramp: BatchRamp | None = None,
    ) -> TimeBudget | None:
        """None for a budget of FLOPs. ValueError unless exactly one of the three is given, with what it needs."""
        given = {"flops": flops, "hours": hours, "money": money}
        if sum(value is not None for value in given.values()) != 1:
            said = ", ".join(f"{name}={value!r}" for name, value in given.items())
            raise ValueError(f"{said}: give exactly one of them")
        if flops is not None:
            for name, value in {"gpus": gpus, "price": price, "throughput": throughput}.items():
                if value is not None:
                    raise ValueError(f"{name} goes with hours or money, not with flops={flops!r}")
            return None
        cluster = Cluster.of(gpus, throughput, price, ramp)
        if money is None:
            return cls(float(positive("hours", hours)), cluster)
        if cluster.price is None:
            raise ValueError(f"money={money!r} needs a price, per GPU-hour")
        return cls(float(positive("money", money)) / (cluster.price * cluster.gpus), cluster)

    def __str__(self) -> str:
        text = f"{self.hours:.3g} hours on {self.cluster}"
        if self.money is None:
            return text
        cost = f"{self.money:,.0f}" if self.money >= 100 else f"{self.money:.3g}"
        return f"{text}, which cost {cost} at {self.cluster.price:g} per GPU-hour"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"hours": self.hours, "money": self.money, **self.cluster.to_dict()}

    def variables(self, d_model: Any, experts: Any, constraints: Constraints) -> dict[str, Any]:
        """What a law may depend on, for models of these widths that train so long; broadcasts."""
        found = constraints.variables(d_model, experts, 1.0)
        return found | {"tokens": self.cluster.tokens(work_of(d_model, experts, constraints), self.seconds)}


Budget = float | TimeBudget  # FLOPs of training and inference, or hours of training


def best_widths(
    law: Law, budget: Budget, e: FloatArray, constraints: Constraints, integral: bool = False
) -> WidthOptimum:
    """The best model for each E, [n], for a budget of either kind. ValueError where none has an optimum."""
    if isinstance(budget, TimeBudget):
        return widths_in_time(law, budget, e, constraints, integral)
    return optimal_widths(law, budget, e, constraints, integral)


def models_of(law: Law, d_model: Any, experts: Any, budget: Budget, constraints: Constraints) -> dict[str, Any]:
    """N_act, D, E and the law's other variables, for models of these widths that spend the budget; broadcasts."""
    if isinstance(budget, TimeBudget):
        return of_law(law, budget.variables(d_model, experts, constraints))
    return model_variables(law, d_model, experts, budget, constraints)


def work_of(d_model: Any, experts: Any, constraints: Constraints) -> ModelWork:
    """What decides the step time of models under the d / 64 rule; broadcasts."""
    parts = {"granularity": constraints.granularity, "shared_ratio": constraints.shared_ratio}
    return ModelWork.by_width(d_model, experts, constraints.vocab_size, **parts)


def widths_in_time(
    law: Law, time: TimeBudget, e: FloatArray, constraints: Constraints, integral: bool = False
) -> WidthOptimum:
    """The best model for each E, [n], in the time and within the limits. ValueError where not one step is done."""
    refuse_other_variables(law, constraints, e)
    if constraints.inference_tokens:
        served = constraints.inference_tokens
        raise ValueError(f"inference_tokens={served:g} cost FLOPs: they go with a budget of flops, not of hours")
    refuse_less_than_a_step(time, float(e.min()), constraints)

    def loss_of(d: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        variables = time.variables(d, e, constraints)
        return variables["n_active"], variables["tokens"], np.asarray(loss_of_variables(law, variables, constraints))

    optimum = searched(loss_of, WIDTHS, e, constraints, integral)
    if not optimum.exists.any():
        raise ValueError(f"this {law.name} law has no minimum in {time.hours:g} hours for any of these experts")
    return optimum


def refuse_less_than_a_step(time: TimeBudget, experts: float, constraints: Constraints) -> None:
    """ValueError where the smallest model takes longer for its first step."""
    first = time.cluster.ramp.last_batch_tokens(0)
    step = float(time.cluster.seconds(work_of(float(HEAD_DIM), experts, constraints), float(first)))
    if step > time.seconds:
        smallest = f"the smallest model (d_model {HEAD_DIM}, E = {experts:g})"
        raise ValueError(f"hours={time.hours:g} are no step: {smallest} takes {step:.3g} s for one on {time.cluster}")


def drawn_losses(
    law: Law, budget: Budget, at: Mapping[str, Any], d_model: FloatArray, constraints: Constraints
) -> FloatArray | None:
    """Losses of these models, [n_draws, n], where law and throughput are drawn together; None without any draws.

    The draws of the two are independent: whichever has fewer is repeated.
    """
    if not isinstance(budget, TimeBudget) or budget.cluster.throughput.draws is None:
        return None if law.draws is None else law.loss_draws(**constraints.worth(at))
    work = work_of(d_model, at["experts"], constraints)
    tokens = budget.cluster.tokens(work, budget.seconds, drawn=True)
    coefficients = coefficients_of(law)[:, 1:] if law.draws is not None else coefficients_of(law)
    n = max(len(tokens), coefficients.shape[1])
    drawn = {**at, "tokens": tokens[np.arange(n) % len(tokens)]}
    columns = coefficients[:, np.arange(n) % coefficients.shape[1]]
    return np.asarray(law.evaluate(columns, constraints.worth(drawn)))
