"""Budgets of compute, time and money: made once from what a user types, and the tokens that models get for them.

A run passes through the stages of its batch ramp, with `Throughput.step_seconds` for each step, on GPUs that share
them evenly. In the same hours a slower model sees fewer FLOPs, so the best E is not that of a FLOP budget. Batch and
layout follow from the model and its tokens alone (`BatchRule`): a run that fits in some hours fits in more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
from typing_extensions import Unpack

from hub.base.errors import InputError, given
from hub.base.fields import reads
from hub.base.notices import Notice
from hub.base.types import Fields, Strings
from hub.base.units import format_amount, format_flops
from scaling_law.formulas import Formula
from scaling_law.machine.efficiency import TRAIN_PY, Engine
from scaling_law.machine.gpus import find_gpu, named_gpu
from scaling_law.machine.layout import Layouts
from scaling_law.machine.serving import seconds_of_token
from scaling_law.machine.throughput import ModelWork, Throughput
from scaling_law.planning.batches import BEFORE, BatchRule
from scaling_law.planning.limits import WIDTHS, Limits, of_law
from scaling_law.planning.question import (
    BudgetFields,
    BudgetFlops,
    ClusterFields,
    LimitFields,
    QuestionFields,
    RunFields,
    pick,
    refuse,
)
from scaling_law.size.architecture import inference_flops, training_flops
from scaling_law.size.arrays import FloatArray, Intervals, Variables
from scaling_law.size.recipe import BatchRamp
from scaling_law.size.widths import Sized, Widths


@dataclass(frozen=True)
class Cluster(Layouts):
    """GPUs that train a model together, and how long they take; `price` is per GPU-hour, in any currency.

    By `rule` every model has the batches of its own; without one, all have those of the `ramp`. ValueError names the
    field, the value and what is allowed.
    """

    price: float | None = None
    rule: BatchRule = field(default=cast(BatchRule, None), repr=False)

    def __post_init__(self) -> None:
        if self.rule is None:
            object.__setattr__(self, "rule", BatchRule(ramp=self.ramp))

    @classmethod
    @reads
    def of(cls, run: Mapping[str, Any] | None = None, **fields: Unpack[ClusterFields]) -> Cluster:
        """Read GPUs with assumed or measured step times, and the batches of a `run` that they share."""
        engine = fields.get("engine") or TRAIN_PY
        throughput = _read_throughput(fields, engine)
        gpus = fields.get("gpus")
        price = fields.get("price")
        if gpus is None:
            reason = () if price is None else (given("price", price), " is per GPU-hour: ")
            raise InputError(*reason, given("gpus", None), " must be given, the number of GPUs that train")
        if engine != TRAIN_PY and not throughput.is_assumed:
            raise InputError(given("engine", engine), ": measured step times are of their own engine; give a gpu")
        rule = BatchRule.of(gpus, needs_sequence=engine == TRAIN_PY, **(run or {}))
        return cls(gpus, throughput, rule.run(1.0, 1.0), engine, price=cast(Any, price), rule=rule)

    def with_ramp(self, ramp: BatchRamp) -> Cluster:
        """Return the GPUs that train all models in these batches."""
        return replace(self, ramp=ramp, rule=BatchRule(ramp=ramp))

    def of_run(self, model: Sized, tokens: float) -> Cluster:
        """Return the GPUs that train all models in the batches of this run."""
        return self.with_ramp(self.rule.run(float(model.n_active), float(tokens)))

    @property
    def hardware(self) -> str:
        return f"{self.gpus} × {self.throughput.device}"

    def __str__(self) -> str:
        attributes = [self.throughput.precision]
        if self.throughput.is_assumed:
            attributes.append("assumed")
        if self.engine != TRAIN_PY:
            attributes.append(self.engine)
        return f"{self.hardware} ({', '.join(attributes)})"

    def warnings(self, model: Sized, tokens: float) -> Strings:
        """Say what step times and batches are worth for a run."""
        run = self.of_run(model, tokens)
        largest_batch = max(run.batches) * run.ramp.sequence_length
        warnings = self.throughput.warnings(model, self.gpus, largest_batch / self.gpus)
        warnings += self.rule.notes(float(model.n_active), float(tokens))
        if len(run.batches) > 1:
            constant = run.with_ramp(BatchRamp.constant(max(run.batches), run.ramp.sequence_length))
            slower = float(run.seconds(model, tokens) / constant.seconds(model, tokens)) - 1.0
            text = f"the batch ramp takes {slower:.1%} longer than {max(run.batches):,} sequences throughout"
            warnings += (Notice(text, f"the ramp takes {slower:.1%} longer"),)
        return warnings

    def tokens(self, model: Sized, seconds: Any, drawn: bool = False) -> FloatArray:
        """Return the most tokens that models see in the time, all in one or each in its own, 0 where they do not fit.

        Under each draw of the step times, [n_draws, ...], where `drawn`.
        """
        tokens = self._most_tokens(model, seconds)
        if not drawn:
            return tokens
        times = np.broadcast_to(seconds, tokens.shape)
        return self._of_each_run(
            model, tokens, lambda run, models, _, places: run._tokens_of_ramp(models, times[places], True)
        )

    def seconds(self, model: Sized, tokens: Any, drawn: bool = False) -> FloatArray:
        """Return the seconds that models take, infinite where they do not fit; `drawn` as of `tokens`."""
        return self._of_each_run(
            model, tokens, lambda run, models, counts, _: run._seconds_of_ramp(models, counts, drawn)
        )

    def fits_run(self, model: Sized, tokens: Any) -> Any:
        """Find which models can be trained on these tokens, as of `fits`."""
        return self._of_each_run(model, tokens, lambda run, models, *_: run.fits(models)) > 0

    def describe_layout(self, model: Sized, tokens: float) -> str:
        """Describe how GPUs share one run; nothing where step times were measured."""
        if not self.throughput.is_assumed:
            return ""
        run = self.of_run(model, tokens)
        steps = run.steps(model)
        if not steps.fits:
            return ""
        option = run.options()[int(steps.option)]
        ways = option.ways or "one GPU"
        # The rates of FSDP2 are those of blocks that are not compiled.
        return f"{ways}, compiled" if self.engine == TRAIN_PY and option.sharding != "fsdp2" else ways

    def mfu(self, model: Sized, tokens: Any, seconds: Any) -> Any:
        """Return the MFU of steps that train on the tokens in these seconds of a run; None for a GPU without a peak.

        Its FLOPs count attention and no recomputation, as in `scale_out`.
        """
        sheet = find_gpu(self.throughput.device)
        if sheet is None:
            return None
        length = self.rule.lengths(model.n_active)
        work = ModelWork.of(model).in_step(1.0, None, length, self.gpus)
        in_steps = np.asarray(seconds) / self.throughput.overhead_of(self.gpus)
        return tokens * work["flops"] / (in_steps * sheet.peak_flops)

    def _most_tokens(self, model: Sized, seconds: Any) -> FloatArray:
        """Find the longest runs that end in time, each in the batch of its own tokens.

        From more tokens than any layout trains, it goes down the batches to the first with which a run of its tokens
        ends in time. Where even the shortest run in the next larger batch takes too long, a run ends just before it.
        """
        overhead = self.throughput.overhead_of(self.gpus)
        length = self.rule.lengths(model.n_active)
        least = overhead * self.throughput.least_seconds(model, length, self.gpus)
        # Rounding may make a step shorter than its least.
        most = np.asarray(seconds / least * (1 + BEFORE), float)
        times = np.broadcast_to(seconds, most.shape)
        tokens = np.zeros(most.shape)
        searched = tokens < np.inf
        if self.throughput.is_assumed:
            searched = searched & self.may_fit(model)
        while searched.any():
            trained = self._of_each_run(
                model, most, lambda run, models, _, places: run._tokens_of_ramp(models, times[places]), searched
            )
            tokens = np.where(searched, np.minimum(trained, most), tokens)
            first = self.rule.first_tokens(model.n_active, self.rule.sequences(model.n_active, most))
            searched = searched & (trained < first)
            most = np.where(searched, first * (1 - BEFORE), most)
        return tokens

    def _of_each_run(
        self,
        model: Sized,
        tokens: Any,
        evaluate: Callable[[Cluster, Any, FloatArray, Any], FloatArray],
        where: Any = True,
    ) -> FloatArray:
        """Evaluate some models and their tokens in the batches of each run; axes of draws come before theirs.

        `evaluate` also gets the places of these models among all.
        """
        tokens = np.asarray(tokens, float)
        shape = np.broadcast_shapes(tokens.shape, np.shape(model.n_total))
        n_active = np.broadcast_to(model.n_active, shape)
        counts = np.broadcast_to(tokens, shape)
        if self.rule.ramp is not None or not counts.size:
            return evaluate(self, model, tokens, ...)
        if not shape:
            return evaluate(self.of_run(model, float(tokens)), model, tokens, ...)
        lengths = self.rule.lengths(n_active)
        runs = np.stack([lengths, self.rule.sequences(n_active, counts)])
        values: Any = None
        is_asked = np.broadcast_to(where, shape)
        for run in np.unique(runs[:, is_asked], axis=1).T:
            is_run = runs == run.reshape(2, *[1] * len(shape))
            places = is_asked & is_run.all(axis=0)
            models = model
            if isinstance(model, Widths) and np.ndim(model.n_total):
                models = model.at(places)
            cluster = self.with_ramp(self.rule.run(n_active[places][0], counts[places][0]))
            values_of_run = np.asarray(evaluate(cluster, models, counts[places], places))
            if values is None:
                values = np.zeros((*values_of_run.shape[:-1], *shape))
            values[..., places] = values_of_run
        return np.asarray(values)

    def _tokens_of_ramp(self, model: Sized, seconds: Any, with_draws: bool = False) -> FloatArray:
        """Return the tokens that models see in the time in the batches of the ramp."""
        tokens = np.array(0.0)
        remaining = np.asarray(seconds, float)
        for per_token, start, end in self._stages(model, with_draws):
            stage_tokens = np.minimum(np.maximum(remaining, 0.0) / per_token, end - start)
            tokens = tokens + stage_tokens
            remaining = remaining - stage_tokens * np.where(np.isfinite(per_token), per_token, 0.0)
        return tokens

    def _seconds_of_ramp(self, model: Sized, tokens: FloatArray, with_draws: bool) -> FloatArray:
        """Return the seconds that models take in the batches of the ramp."""
        seconds = np.array(0.0)
        for per_token, start, end in self._stages(model, with_draws):
            # The draws are of one model.
            if with_draws and per_token.ndim == 1:
                per_token = per_token.reshape(-1, *([1] * tokens.ndim))
            stage_tokens = np.clip(tokens - start, 0.0, end - start)
            unused = np.where(np.isnan(stage_tokens), np.nan, 0.0)
            # No tokens of a model that does not fit take no time.
            with np.errstate(invalid="ignore"):
                seconds = seconds + np.where(stage_tokens > 0, per_token * stage_tokens, unused)
        return seconds

    def cost(self, seconds: Any) -> Any:
        """Return GPU-hours times their price; None without a price."""
        return None if self.price is None else self.price * self.gpus * seconds / 3600.0

    def _stages(self, model: Sized, with_draws: bool) -> Iterator[tuple[FloatArray, float, float]]:
        """Yield (seconds per token, first token, last token) of each stage of the ramp."""
        work = ModelWork.of(model)
        boundaries = [*(float(stage.from_tokens) for stage in self.ramp.stages), np.inf]
        # Measured steps have their micro-batch and their communication in them.
        steps = self.steps(model) if self.throughput.is_assumed else None
        overhead = self.throughput.overhead_of(self.gpus)
        for k, (sequences, (start, end)) in enumerate(zip(self.batches, pairwise(boundaries), strict=True)):
            if steps is None:
                seconds = np.asarray(self.compute(work, sequences, with_draws=with_draws))
            else:
                costs = steps.costs[k]
                if with_draws:
                    compute = self.compute(work, sequences, steps.gpu_shares[k], with_draws=True)
                    # What a lab takes longer or shorter for is drawn alike for the links, which no run has measured
                    # apart.
                    costs = costs._replace(compute=compute, exchange=costs.exchange * (compute / costs.compute))
                seconds = np.where(steps.fits, costs.seconds, np.inf)
            yield overhead / self.ramp.sequence_length * seconds / sequences, start, end

    def to_dict(self) -> Fields:
        throughput = self.throughput
        return {
            "gpus": self.gpus,
            "gpu": throughput.device,
            "price": self.price,
            "batches": [*self.batches],
            "engine": self.engine,
            "throughput": {
                "precision": throughput.precision,
                "source": throughput.source,
                "is_assumed": throughput.is_assumed,
                "error": throughput.error,
            },
        }


def _read_throughput(fields: ClusterFields, engine: Engine) -> Throughput:
    """Read the step times of the GPUs that a question names: measured ones, or those assumed for their model."""
    gpu = fields.get("gpu")
    mfu = fields.get("mfu")
    measured = fields.get("throughput")
    if measured is not None:
        return _read_measured(measured, fields)
    if gpu is None:
        reason = () if mfu is None else (given("mfu", mfu), " is that of a GPU: ")
        needed = ' must be given, such as "h100", or '
        raise InputError(*reason, given("gpu", None), needed, given("throughput", None), ", measured step times")
    return Throughput.assumed(gpu, mfu=mfu, precision=fields.get("precision"), engine=engine)


def _read_measured(measured: Throughput | str | Path, fields: ClusterFields) -> Throughput:
    """Read measured step times. InputError for another field that contradicts them."""
    throughput = measured if isinstance(measured, Throughput) else Throughput.from_file(measured)
    source = given("throughput", throughput.device if throughput is measured else str(measured))
    refuse(fields, ("mfu", "precision"), ": ", source, " has measured step times; give one of the two")
    gpu = fields.get("gpu")
    if gpu is not None and find_gpu(throughput.device) != named_gpu(gpu):
        raise InputError(source, f" was measured on {throughput.device!r}, not on ", given("gpu", gpu))
    return throughput


@dataclass(frozen=True)
class Budget:
    """FLOPs of training and inference, or wall-clock hours on a cluster; `Budget.of` reads what is typed.

    With a `decode_batch` the cluster also serves in these hours, each GPU so many sequences at once. ValueError unless
    it is one of the two.
    """

    flops: float | None = None
    hours: float | None = None
    cluster: Cluster | None = None
    rule: BatchRule = field(default=BatchRule(), compare=False, repr=False)
    decode_batch: float | None = None

    def __post_init__(self) -> None:
        is_one_budget = (self.flops is None) != (self.hours is None)
        if not is_one_budget or (self.hours is None) != (self.cluster is None):
            advice = ": give flops, or hours with a cluster"
            raise InputError(given("flops", self.flops), ", ", given("hours", self.hours), advice)

    @classmethod
    def each(cls, flops: FloatArray) -> Budget:
        """Make budgets of an array of FLOPs, which searches go over at once."""
        return cls(cast(float, flops))

    @classmethod
    @reads
    def of(cls, flops: BudgetFlops = None, **fields: Unpack[BudgetFields]) -> Budget:
        """Read FLOPs, hours or money. ValueError unless exactly one of the three is given, with what it needs."""
        hours = fields.get("hours")
        money = fields.get("money")
        if sum(value is not None for value in (flops, hours, money)) != 1:
            budgets = [given("flops", flops), ", ", given("hours", hours), ", ", given("money", money)]
            raise InputError(*budgets, ": give exactly one of them")
        run = pick(RunFields, fields)
        if flops is not None:
            of_flops = given("flops", flops)
            refuse(fields, ClusterFields.__annotations__, " goes with hours or money, not with ", of_flops)
            return cls(cast(float, flops), rule=BatchRule.of(**run))
        cluster = Cluster.of(run, **pick(ClusterFields, fields))
        if money is None:
            return cls(None, cast(float, hours), cluster, cluster.rule)
        if cluster.price is None:
            raise InputError(f"money={money!r} needs a price, per GPU-hour")
        hours = cast(float, money) / (cluster.price * cluster.gpus)
        return cls(None, hours, cluster, cluster.rule)

    @property
    def money(self) -> float | None:
        """The cost of the hours; None without a price."""
        return None if self.cluster is None else self.cluster.cost(self.seconds)

    @property
    def seconds(self) -> float:
        """Infinite for a budget of FLOPs."""
        return float("inf") if self.hours is None else 3600.0 * self.hours

    def tokens(self, d_model: Any, experts: Any, limits: Limits, with_draws: bool = False) -> FloatArray:
        """Return the most tokens that models see in the hours that serving leaves.

        With draws [n_draws, ...] of the step times.
        """
        assert self.cluster is not None
        seconds = self.seconds - self.serving_seconds(d_model, experts, limits)
        models = limits.widths(d_model, experts)
        tokens = self.cluster.tokens(models, np.where(seconds > 0, seconds, 1.0), with_draws)
        return np.where(seconds > 0, tokens, 0.0)

    def serving_seconds(self, d_model: Any, experts: Any, limits: Limits) -> FloatArray:
        """Return the seconds in which the GPUs, each by itself, generate the tokens served; broadcasts."""
        if self.cluster is None or self.decode_batch is None or not limits.inference_tokens:
            return np.array(0.0)
        gpu = named_gpu(self.cluster.throughput.device)
        models = limits.widths(d_model, experts)
        cache = limits.kv_bytes(d_model)
        seconds = seconds_of_token(models, gpu, self.decode_batch, cache, limits.bytes_per_parameter)
        return np.asarray(limits.inference_tokens * seconds / self.cluster.gpus)

    def costs(self, d_model: Any, experts: Any, tokens: Any, limits: Limits) -> tuple[FloatArray, FloatArray]:
        """Return what models spend on training and on the tokens served, FLOPs or seconds; broadcasts."""
        models = limits.widths(d_model, experts)
        if self.cluster is not None:
            return self.cluster.seconds(models, tokens), self.serving_seconds(d_model, experts, limits)
        return training_flops(models.n_active, tokens), inference_flops(models.n_active, limits.inference_tokens)

    def models(self, law: Formula, d_model: Any, experts: Any, limits: Limits) -> Fields:
        """Return N_act, D, E and the law's other variables, for models that spend the budget; broadcasts."""
        if self.cluster is None:
            return of_law(law, limits.variables(d_model, experts, self.flops))
        return limits.models(law, d_model, experts, self.tokens(d_model, experts, limits))

    def share_spent(self, d_model: Any, variables: Variables, limits: Limits) -> FloatArray:
        """Return the share of the budget that models of these widths and variables spend; broadcasts."""
        training, serving = self.costs(d_model, variables["experts"], variables["tokens"], limits)
        total = self.seconds if self.flops is None else self.flops
        return np.asarray((training + serving) / total)

    def widths(self, limits: Limits) -> Intervals:
        """Return the d_model between which its models are searched: up to where FLOPs leave one training token."""
        if self.cluster is not None:
            return WIDTHS
        training = float(training_flops(1.0, 1.0))
        inference = float(inference_flops(1.0, limits.inference_tokens))
        largest = np.divide(cast(float, self.flops), max(training, inference))
        return WIDTHS[0], limits.ladder.width_of_active(largest)

    def refuse_too_short(self, experts: float, limits: Limits) -> None:
        """Raise ValueError where the hours end before the first step of the smallest model."""
        assert self.cluster is not None
        if self.decode_batch is None:
            refuse_served(limits, ", or decode_batch, the sequences that each GPU serves at once")
        smallest = limits.ladder.smallest
        smallest_model = limits.widths(smallest, experts)
        run = self.cluster.of_run(smallest_model, 1.0)
        step = float(run.seconds(smallest_model, float(run.ramp.last_batch_tokens(0))))
        if step == np.inf:
            # This raises an error that says what is missing.
            run.place(limits.architecture(smallest, math.ceil(experts)))
        serving = float(self.serving_seconds(smallest, experts, limits))
        if step + serving <= self.seconds:
            return
        takes = f"the smallest model (d_model {smallest:g}, E = {experts:.5g}) takes {step:.3g} s on {self.cluster}"
        if serving:
            takes += f", and {serving / 3600:.3g} h to serve inference_tokens={limits.inference_tokens:g}"
        raise InputError(f"hours={self.hours:g} are too few for one training step: {takes}")

    def __str__(self) -> str:
        if self.flops is not None:
            return f"{format_flops(self.flops)} FLOPs"
        text = f"{self.hours:.3g} hours on {self.cluster}"
        cost = self.money
        if cost is None or self.cluster is None:
            return text
        return f"{text}, which cost {format_amount(cost)} at {self.cluster.price:g} per GPU-hour"

    def to_dict(self) -> Fields:
        if self.cluster is None:
            return {"flops": self.flops}
        return {"hours": self.hours, "money": self.money, **self.cluster.to_dict()}


def refuse_served(limits: Limits, alternative: str = "") -> None:
    """Raise ValueError for served tokens, in a question of hours."""
    if limits.inference_tokens:
        advice = f"give a budget of flops, not of hours{alternative}"
        raise InputError(f"inference_tokens={limits.inference_tokens:g} cost FLOPs: {advice}")


def read_gpus(fields: QuestionFields, count: int | None = None) -> Cluster | None:
    """Read the GPUs that a question names, `count` of them where it does not say; None where it names none."""
    cluster_fields = pick(ClusterFields, fields)
    if all(value is None for value in cluster_fields.values()):
        return None
    if cluster_fields.get("gpus") is None:
        cluster_fields["gpus"] = count
    return Cluster.of(pick(RunFields, fields), **cluster_fields)


def read_costs(law: Formula, **fields: Unpack[QuestionFields]) -> tuple[Cluster | None, Limits]:
    """Read the GPUs of a question whose answer is its budget, None for one of FLOPs, and its limits."""
    limits = Limits.of(law, **pick(LimitFields, fields))
    refuse(fields, ("hours", "money"), " is a budget, which this question solves for: leave it out")
    cluster = read_gpus(fields)
    if cluster is None:
        run = pick(RunFields, fields)
        refuse(run, run, " decides hours: it goes with gpus and a gpu or throughput")
    return cluster, limits


def read_question(law: Formula, flops: float | str | None, **fields: Unpack[QuestionFields]) -> tuple[Budget, Limits]:
    """Read the budget and the limits of a question."""
    limits = Limits.of(law, **pick(LimitFields, fields))
    return Budget.of(flops, **pick(BudgetFields, fields)), limits
