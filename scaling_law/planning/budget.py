"""Budgets of compute, time and money: made once from what a user types, and the tokens that models get for them.

A run passes through the stages of its batch ramp, with `Throughput.step_seconds` for each step, on GPUs that share
them evenly. In the same hours a slower model sees fewer FLOPs, so the best E is not that of a FLOP budget.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from hub.base.errors import InputError, given, unknown
from hub.base.units import format_flops
from scaling_law.formulas import Formula
from scaling_law.formulas.law import one_positive
from scaling_law.machine.gpus import find_gpu, named_gpu
from scaling_law.machine.layout import ENGINES, TRAIN_PY, Layouts
from scaling_law.machine.throughput import Model, ModelWork, Throughput
from scaling_law.planning.limits import Limits, of_law
from scaling_law.planning.question import BudgetFields, ClusterFields, LimitFields, Quantity, QuestionFields, pick
from scaling_law.size.architecture import (
    HEAD_DIM,
    Architecture,
    inference_flops,
    training_flops,
    width_of_active,
)
from scaling_law.size.arrays import FloatArray
from scaling_law.size.recipe import PAPER, BatchRamp, RampStage
from scaling_law.size.widths import Widths

if TYPE_CHECKING:
    from typing_extensions import Unpack

WIDTHS = (1.0, 2e6)  # d_model that are searched where no budget of FLOPs limits them


def shared_ramp(gpus: int) -> tuple[RampStage, ...]:
    """The paper's batches rounded up to what GPUs share, so that one micro-batch of many sequences divides all."""
    first = -(-PAPER.batch_ramp[0].sequences // gpus) * gpus
    return tuple(replace(stage, sequences=-(-stage.sequences // first) * first) for stage in PAPER.batch_ramp)


@dataclass(frozen=True)
class Cluster(Layouts):
    """GPUs that train a model together, and how long they take; `price` is per GPU-hour, in any currency.

    ValueError names the field, the value and what is allowed.
    """

    price: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.gpus, bool) or not isinstance(self.gpus, int) or self.gpus < 1:
            raise InputError(f"gpus={self.gpus!r} must be a whole number of at least 1")
        if self.price is not None:
            object.__setattr__(self, "price", one_positive("price", self.price))

    @classmethod
    def of(
        cls,
        batch_ramp: Sequence[RampStage] | BatchRamp = PAPER.batch_ramp,
        sequence_length: int = PAPER.sequence_length,
        **fields: Unpack[ClusterFields],
    ) -> Cluster:
        """GPUs with assumed or measured step times; the paper's batches become those of `shared_ramp`."""
        gpus, gpu, price = fields.get("gpus"), fields.get("gpu"), fields.get("price")
        mfu, precision = fields.get("mfu"), fields.get("precision")
        measured = fields.get("throughput")
        if measured is not None:
            throughput = measured if isinstance(measured, Throughput) else Throughput.from_file(measured)
            named = given("throughput", throughput.device if throughput is measured else str(measured))
            if mfu is not None:
                raise InputError(given("mfu", mfu), ": ", named, " has measured step times; give one of the two")
            if precision not in (None, throughput.precision):
                raise InputError(
                    given("precision", precision), ": ", named, f" was measured in {throughput.precision}"
                )
            if gpu is not None and find_gpu(throughput.device) != named_gpu(gpu):
                raise InputError(named, f" was measured on {throughput.device!r}, not on ", given("gpu", gpu))
        elif gpu is None:
            of_what = () if mfu is None else (given("mfu", mfu), " is that of a GPU: ")
            wanted = ' must be given, such as "h100", or throughput, measured step times'
            raise InputError(*of_what, given("gpu", None), wanted)
        else:
            throughput = Throughput.assumed(gpu, mfu=mfu, precision=precision or "bf16")
        if gpus is None:
            of_what = () if price is None else (given("price", price), " is per GPU-hour: ")
            raise InputError(*of_what, given("gpus", None), " must be given, the number of GPUs that train")
        engine = fields.get("engine") or TRAIN_PY
        if engine not in ENGINES:
            raise InputError(unknown("engine=", engine, ENGINES))
        if engine != TRAIN_PY and not throughput.is_assumed:
            raise InputError(given("engine", engine), ": measured step times are of their own engine; give a gpu")
        ramp = batch_ramp if isinstance(batch_ramp, BatchRamp) else BatchRamp(batch_ramp, sequence_length)
        if ramp.stages == PAPER.batch_ramp and isinstance(gpus, int) and gpus > 0:
            ramp = BatchRamp(shared_ramp(gpus), ramp.sequence_length)
        return cls(gpus, throughput, ramp, engine, price=cast(Any, price))

    @property
    def hardware(self) -> str:
        return f"{self.gpus} × {self.throughput.device}"

    def __str__(self) -> str:
        parts = [self.throughput.precision]
        if self.throughput.is_assumed:
            parts.append("assumed")
        if self.engine != TRAIN_PY:
            parts.append(self.engine)
        return f"{self.hardware} ({', '.join(parts)})"

    def warnings(self, model: Model) -> tuple[str, ...]:
        """What step times and batches are worth for these models."""
        batches, stages = self.batches, self.ramp.stages
        notes = self.throughput.warnings(model, self.gpus, max(batches) * self.ramp.sequence_length / self.gpus)
        if stages != PAPER.batch_ramp and stages == shared_ramp(self.gpus):
            said = ", ".join(map(str, batches))
            notes += (f"batches of {said} sequences, which {self.gpus} GPUs can share, instead of the paper's",)
        return notes

    def tokens(self, model: Architecture | Widths, seconds: float, drawn: bool = False) -> FloatArray:
        """Tokens that models see in the time, 0 where they do not fit; `drawn`: under each draw, [n_draws, ...]."""
        tokens, left = np.array(0.0), np.array(float(seconds))
        for per_token, start, end in self._stages(model, drawn):
            seen = np.minimum(np.maximum(left, 0.0) / per_token, end - start)
            tokens, left = tokens + seen, left - seen * np.where(np.isfinite(per_token), per_token, 0.0)
        return tokens

    def seconds(self, model: Architecture | Widths, tokens: Any, drawn: bool = False) -> FloatArray:
        """Seconds that models take for the tokens, infinite where they do not fit; `drawn` as of `tokens`."""
        tokens, seconds = np.asarray(tokens, float), np.array(0.0)
        for per_token, start, end in self._stages(model, drawn):
            # The draws are of one model.
            if drawn and per_token.ndim == 1:
                per_token = per_token.reshape(-1, *([1] * tokens.ndim))
            part = np.clip(tokens - start, 0.0, end - start)
            with np.errstate(invalid="ignore"):  # no tokens of a model that does not fit
                seconds = seconds + np.where(part > 0, per_token * part, np.where(np.isnan(part), np.nan, 0.0))
        return seconds

    def cost(self, seconds: Any) -> Any:
        """GPU-hours times their price; None without a price."""
        return None if self.price is None else self.price * self.gpus * seconds / 3600.0

    def _stages(self, model: Architecture | Widths, drawn: bool) -> Iterator[tuple[FloatArray, float, float]]:
        """Yield (seconds per token, first token, last token) of each stage of the ramp."""
        work, ends = ModelWork.of(model), [*(float(stage.from_tokens) for stage in self.ramp.stages), np.inf]
        # Measured steps have their micro-batch and their communication in them.
        steps = self.steps(model) if self.throughput.is_assumed else None
        whole = self.throughput.overhead_of(self.gpus) / self.ramp.sequence_length
        for k, (sequences, (start, end)) in enumerate(zip(self.batches, pairwise(ends), strict=True)):
            seconds = np.asarray(self.compute(work, sequences, drawn))
            if steps is not None:
                seconds = np.maximum(steps.slowdown[k] * seconds, steps.communication[k])
                seconds = np.where(steps.fits, seconds, np.inf)
            yield whole * seconds / sequences, start, end

    def to_dict(self) -> dict[str, Any]:
        t = self.throughput
        times = {"precision": t.precision, "source": t.source, "is_assumed": t.is_assumed, "error": t.error}
        named = {"gpus": self.gpus, "gpu": t.device, "price": self.price, "batches": [*self.batches]}
        named["engine"] = self.engine
        return named | {"throughput": times}


@dataclass(frozen=True)
class Budget:
    """FLOPs of training and inference, or wall-clock hours of training on a cluster; `Budget.of` reads what is typed.

    ValueError unless it is one of the two.
    """

    flops: float | None = None
    hours: float | None = None
    cluster: Cluster | None = None

    def __post_init__(self) -> None:
        if (self.flops is None) == (self.hours is None) or (self.hours is None) != (self.cluster is None):
            said = ": give flops, or hours with a cluster"
            raise InputError(given("flops", self.flops), ", ", given("hours", self.hours), said)

    @classmethod
    def each(cls, flops: FloatArray) -> Budget:
        """Budgets of an array of FLOPs, which searches go over at once."""
        return cls(cast(float, flops))

    @classmethod
    def of(
        cls, flops: Quantity | None = None, batch_ramp: BatchRamp | None = None, **fields: Unpack[BudgetFields]
    ) -> Budget:
        """Read FLOPs, hours or money. ValueError unless exactly one of the three is given, with what it needs."""
        hours, money = fields.get("hours"), fields.get("money")
        budgets = {"flops": flops, "hours": hours, "money": money}
        if sum(value is not None for value in budgets.values()) != 1:
            said = [part for name, value in budgets.items() for part in (", ", given(name, value))]
            raise InputError(*said[1:], ": give exactly one of them")
        if flops is not None:
            if surplus := [name for name, value in fields.items() if value is not None]:
                raise InputError(f"{surplus[0]} goes with hours or money, not with ", given("flops", flops))
            return cls(one_positive("flops", flops))
        cluster = Cluster.of(batch_ramp or PAPER.batch_ramp, **pick(ClusterFields, fields))
        if money is None:
            return cls(None, one_positive("hours", cast(Quantity, hours)), cluster)
        if cluster.price is None:
            raise InputError(f"money={money!r} needs a price, per GPU-hour")
        return cls(None, one_positive("money", money) / (cluster.price * cluster.gpus), cluster)

    @property
    def money(self) -> float | None:
        """What the hours cost; None without a price."""
        return None if self.cluster is None else self.cluster.cost(self.seconds)

    @property
    def seconds(self) -> float:
        """Infinite for a budget of FLOPs."""
        return float("inf") if self.hours is None else 3600.0 * self.hours

    def variables(self, d_model: Any, experts: Any, limits: Limits) -> dict[str, Any]:
        """What a law may depend on, for models of these widths that spend the budget; broadcasts."""
        if self.cluster is None:
            return limits.variables(d_model, experts, self.flops)
        tokens = self.cluster.tokens(limits.widths(d_model, experts), self.seconds)
        return limits.variables(d_model, experts, 1.0) | {"tokens": tokens}

    def models(self, law: Formula, d_model: Any, experts: Any, limits: Limits) -> dict[str, Any]:
        """N_act, D, E and the law's other variables, for models of these widths that spend the budget; broadcasts."""
        return of_law(law, self.variables(d_model, experts, limits))

    def widths(self, limits: Limits) -> tuple[Any, Any]:
        """The d_model between which its models are searched: up to where FLOPs leave one training token."""
        if self.cluster is not None:
            return WIDTHS
        least = max(float(training_flops(1.0, 1.0)), float(inference_flops(1.0, limits.inference_tokens)))
        return WIDTHS[0], width_of_active(np.divide(cast(float, self.flops), least), limits.vocab_size)

    def refuse_too_short(self, experts: float, limits: Limits) -> None:
        """Raise ValueError where the hours end before the first step of the smallest model, or are to serve, too."""
        refuse_served(limits)
        assert self.cluster is not None
        first = self.cluster.ramp.last_batch_tokens(0)
        step = float(self.cluster.seconds(limits.widths(HEAD_DIM, experts), float(first)))
        if step == np.inf:  # say what is missing
            self.cluster.place(limits.architecture(HEAD_DIM, math.ceil(experts)))
        if step > self.seconds:
            smallest = f"the smallest model (d_model {HEAD_DIM}, E = {experts:g}) takes {step:.3g} s on {self.cluster}"
            raise InputError(f"hours={self.hours:g} is less than one training step: {smallest}")

    def __str__(self) -> str:
        if self.flops is not None:
            return f"{format_flops(self.flops)} FLOPs"
        text, cost = f"{self.hours:.3g} hours on {self.cluster}", self.money
        if cost is None or self.cluster is None:
            return text
        amount = f"{cost:,.0f}" if cost >= 100 else f"{cost:.3g}"
        return f"{text}, which cost {amount} at {self.cluster.price:g} per GPU-hour"

    def to_dict(self) -> dict[str, Any]:
        if self.cluster is None:
            return {"flops": self.flops}
        return {"hours": self.hours, "money": self.money, **self.cluster.to_dict()}


def refuse_served(limits: Limits) -> None:
    """Raise ValueError for served tokens, in a question of hours."""
    if served := limits.inference_tokens:
        raise InputError(f"inference_tokens={served:g} cost FLOPs: give a budget of flops, not of hours")


def read_costs(law: Formula, **fields: Unpack[QuestionFields]) -> tuple[Cluster | None, Limits]:
    """The GPUs of a question whose answer is its budget, None for one of FLOPs, and its limits."""
    limits, of_cluster = _read_limits(law, fields), pick(ClusterFields, fields)
    for name in ("hours", "money"):
        if (value := fields.get(name)) is not None:
            raise InputError(f"{name}={value!r} is a budget, which this question solves for: leave it out")
    named = any(value is not None for value in of_cluster.values())
    return Cluster.of(**of_cluster) if named else None, limits


def read_question(
    law: Formula, flops: Quantity | None, batch_ramp: BatchRamp | None = None, **fields: Unpack[QuestionFields]
) -> tuple[Budget, Limits]:
    """The budget and the limits of a question to a law. TypeError, as of any function, for another keyword."""
    limits = _read_limits(law, fields)
    return Budget.of(flops, batch_ramp, **pick(BudgetFields, fields)), limits


def _read_limits(law: Formula, fields: Mapping[str, Any]) -> Limits:
    for name in fields:
        if name not in (names := sorted(QuestionFields.__annotations__)):
            raise TypeError(unknown("keyword of a question ", name, names))
    return Limits.of(law, **pick(LimitFields, fields))
