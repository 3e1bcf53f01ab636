"""Layouts of a model on GPUs: the fastest step of those that fit, over what an engine can do.

Layouts have every micro-batch that divides the batch, activations kept or recomputed, and the parallelism of
`ENGINES`. A step takes

    max(compute, communication),  compute = seconds of its work × 4/3 where activations are recomputed
                                            × (1 + bubble) × (longest stage / mean stage)

It is the longer of the two and not their sum, because the rates of `efficiency` include what the layouts of published
runs did not hide (docs/studies/hours.md). Steps that were measured have their communication in them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from hub.base.errors import InputError
from hub.base.units import format_bytes, format_count
from scaling_law.machine.communication import DEGREES, Degrees, bubble, communication
from scaling_law.machine.efficiency import MEGATRON, TRAIN_PY
from scaling_law.machine.gpus import find_gpu
from scaling_law.machine.memory import (
    MOMENT_BYTES,
    SHARDINGS,
    WEIGHT_BYTES,
    Sharding,
    TrainingMemory,
    training_memory,
)
from scaling_law.machine.throughput import Model, Throughput
from scaling_law.size.architecture import Architecture
from scaling_law.size.arrays import FloatArray, IntArray, first_smallest
from scaling_law.size.recipe import PAPER, BatchRamp
from scaling_law.size.widths import Sized

# The batch of GPUs for which none is named: the paper's last.
PAPER_BATCH = partial(BatchRamp.constant, PAPER.batch_ramp[-1].sequences, PAPER.sequence_length)
# Bytes of a GPU for CUDA's context, NCCL and fragmentation.
RESERVED = 2e9
# Share of the least state by which rounding may lower it.
ROUNDED = 1 - 1e-9
# A step that computes the forward pass twice takes this many times its FLOPs.
RECOMPUTED = 4 / 3
# Shardings and degrees of each engine beside FSDP2 and HSDP; "megatron" stands for engines with all of them.
ENGINES: Mapping[str, frozenset[str]] = {
    TRAIN_PY: frozenset({"ddp", "ep"}),
    MEGATRON: frozenset({"ddp", "zero1", "ep", "tp", "pp", "cp"}),
}
# Degrees by which GPUs share one model's work.
WITHIN = ("tp", "pp", "ep", "cp")
# Tokens of a sequence that a GPU keeps under context parallelism, because fewer hide no ring of keys.
LEAST_CONTEXT = 2048
# Most stages of a pipeline.
MOST_STAGES = 16
COMPUTING = ("compute", "recomputation", "bubble")
# Changes that move a bottleneck, by the operation that limits a step.
MOVED_BY = {
    "compute": "more GPUs, a larger batch or fewer FLOPs",
    "recomputation": "more GPUs or more memory, which keep activations,",
    "bubble": "a larger batch, or fewer stages",
    "all-gather": "a larger batch, or fewer GPUs",
    "reduce-scatter": "a larger batch, or fewer GPUs",
    "all-reduce": "a larger batch, or fewer GPUs",
    "tensor all-reduce": "less tensor parallelism",
    "all-to-all": "expert parallelism within a node, or fewer active experts",
    "context ring": "less context parallelism, or fewer key-value heads",
    "pipeline": "fewer stages",
}


class DoesNotFit(InputError):
    """A model whose training takes more memory than the GPUs have."""


@dataclass(frozen=True)
class Option(Degrees):
    """A way to train: sequences of a micro-batch, how the state is sharded, and how many GPUs share what.

    With "zero1" and "ddp", `dp` GPUs share only batches. The fields of a `_Group` are arrays.
    """

    micro_batch_sequences: Any
    sharding: Sharding
    gradient_checkpointing: Any
    reshard: Any = True

    def beside(self, dimensions: int) -> Option:
        """Append axes of length 1 to the arrays of a `_Group`, which then broadcast with models of so many."""
        arrays: dict[str, Any] = {}
        for name in ARRAYS:
            values = getattr(self, name)
            arrays[name] = values.reshape(values.shape + (1,) * dimensions)
        return replace(self, **arrays)

    @property
    def ways(self) -> str:
        """All but the micro-batch, in words."""
        phrases = []
        if self.sharding == "ddp":
            phrases.append("DDP")
        elif self.sharding == "zero1":
            phrases.append("distributed optimizer")
        elif self.sharding == "fsdp2":
            phrases.append(f"HSDP {self.dp} × {self.fsdp}" if self.dp > 1 else "FSDP2")
        if not self.reshard:
            phrases.append("weights not resharded")
        for name in WITHIN:
            degree = getattr(self, name)
            if degree > 1:
                phrases.append(f"{name.upper()} {degree}")
        if self.gradient_checkpointing:
            phrases.append("gradient checkpointing")
        return ", ".join(phrases)

    def __str__(self) -> str:
        size = self.micro_batch_sequences
        plural = "s" if size > 1 else ""
        micro_batches = f"micro-batches of {size} sequence{plural}"
        return f"{micro_batches}, {self.ways}" if self.ways else micro_batches


# Fields of an option that are numbers.
ARRAYS = (*DEGREES, "micro_batch_sequences", "gradient_checkpointing", "reshard")


@dataclass(frozen=True)
class Placement(Option):
    """The way in which one model is trained, with the memory of each GPU at the peak of a step.

    `seconds` are those of a step in the largest batch, by their cause: compute, recomputation, bubble, and each
    operation of `communication`.
    """

    memory: TrainingMemory = field(kw_only=True)
    seconds: Mapping[str, float] = field(kw_only=True)

    @property
    def sides(self) -> tuple[dict[str, float], dict[str, float]]:
        """Seconds by cause: those of computing, and those of sending, which runs beside it."""
        computing = {name: self.seconds[name] for name in COMPUTING if name in self.seconds}
        sending = {name: value for name, value in self.seconds.items() if name not in computing}
        return computing, sending

    @property
    def step_seconds(self) -> float:
        return max(sum(side.values()) for side in self.sides)

    @property
    def limit(self) -> str:
        longer = max(self.sides, key=lambda side: sum(side.values()))
        return max(longer, key=lambda name: longer[name])

    @property
    def bottleneck(self) -> str:
        """The cause that limits the step: "all-to-all, 38 % of the step"."""
        percent = 100 * self.seconds[self.limit] / self.step_seconds
        return f"{self.limit}, {percent:.0f} % of the step"

    @property
    def moved_by(self) -> str:
        return MOVED_BY[self.limit]

    @property
    def advice(self) -> str:
        percent = f"{100 * self.seconds[self.limit] / self.step_seconds:.0f} % of step time"
        if self.limit == "compute":
            return f"Compute-bound ({percent}): {self.moved_by} would shorten the run."
        return f"Limited by {self.limit} ({percent}): {self.moved_by} would shorten it."

    def __str__(self) -> str:
        return f"{format_bytes(self.memory.total)} of each GPU, {super().__str__()}"


class GpuShare(NamedTuple):
    """One GPU's work in a step, numbers or arrays: tokens of its passes, and the GPUs that share the parameters.

    `is_sharded`: by FSDP2.
    """

    micro_batch_tokens: Any
    shards: Any
    is_sharded: Any


class Costs(NamedTuple):
    """Costs of n options for models of a shape, [n, ...], or of the fastest that fits, [...].

    `compute`: seconds of work, which `slowdown` multiplies for recomputed and idle work; `exchange`: of what GPUs send
    each other. Options that cannot divide a model take infinite memory.
    """

    compute: FloatArray
    slowdown: FloatArray
    exchange: FloatArray
    memory_bytes: FloatArray

    @property
    def seconds(self) -> Any:
        """The longer of computing and sending."""
        return np.maximum(self.slowdown * self.compute, self.exchange)

    def choose(self, option: Any) -> Costs:
        """Return the costs of one of the options for each model."""
        return Costs(*(_choose(values, option) for values in self))


@dataclass(frozen=True)
class Steps:
    """The fastest option that `fits` models of a shape, [...], with its costs in each stage of the batch ramp.

    `least`: bytes of each GPU that the smallest option takes. `gpu_shares` are what a GPU does of a step in each
    stage, in micro-batches that divide those of the option.
    """

    option: Any
    gpu_shares: tuple[GpuShare, ...]
    costs: tuple[Costs, ...]
    fits: Any
    least: Any


@dataclass(frozen=True)
class Layouts:
    """GPUs that share the batches of a ramp: their speed and memory, and the engine whose layouts are searched."""

    gpus: int
    throughput: Throughput
    ramp: BatchRamp = field(default_factory=PAPER_BATCH, repr=False)
    engine: str = field(default=TRAIN_PY, repr=False)

    @property
    def batches(self) -> tuple[int, ...]:
        """Sequences of a batch, of each stage."""
        return tuple(stage.sequences for stage in self.ramp.stages)

    @property
    def available(self) -> float:
        """Bytes of each GPU; infinite if unknown."""
        memory = self.throughput.memory_bytes
        if memory is None:
            return math.inf
        return memory - (RESERVED if find_gpu(self.throughput.device) else 0.0)

    def options(self) -> list[Option]:
        """List every way, the preferred first at equal speed. ValueError if GPUs cannot share a batch equally."""
        return self._candidates().options

    def _candidates(self) -> _Candidates:
        """Return the options and their groups."""
        most_cp = max(1, self.ramp.sequence_length // LEAST_CONTEXT)
        shared = math.gcd(*self.batches)
        largest = max(self.batches)
        candidates = _candidate_layouts(self.engine, self.gpus, shared, largest, self.throughput.node, most_cp)
        if not candidates.options:
            batches = ", ".join(map(str, self.batches))
            allowed = f"each must be a multiple of {self.gpus}"
            raise InputError(f"gpus={self.gpus} cannot share batches of {batches} sequences equally: {allowed}")
        return candidates

    def _passes(self, option: Option, batch: int) -> Any:
        """Count the micro-batches of each GPU in a batch."""
        return batch // (option.micro_batch_sequences * option.dp * option.fsdp)

    def memory(self, model: Sized, option: Option) -> TrainingMemory:
        """Compute the memory of each GPU in the largest batch."""
        devices = option.cp * option.fsdp
        if option.sharding in ("ddp", "zero1"):
            devices = devices * option.dp
        return training_memory(
            model,
            option.micro_batch_sequences,
            self.ramp.sequence_length,
            passes=self._passes(option, max(self.batches)),
            precision="fp32" if self.throughput.precision == "fp32" else "bf16",
            gradient_checkpointing=option.gradient_checkpointing,
            sharding=option.sharding,
            devices=devices,
            on_cpu=find_gpu(self.throughput.device) is None,
            reshard=option.reshard,
            **{name: getattr(option, name) for name in WITHIN},
        )

    def communication(self, model: Sized, option: Option, batch: int) -> dict[str, Any]:
        """Estimate the least seconds of each operation in a step of `batch` sequences.

        Empty if step times were measured, because they already include it.
        """
        sheet = find_gpu(self.throughput.device)
        if sheet is None or not self.throughput.is_assumed:
            return {}
        traffic = communication(
            model,
            option.sharding,
            option,
            self._passes(option, batch),
            batch * self.ramp.sequence_length / self.gpus,
            reshard=option.reshard,
            recompute=option.gradient_checkpointing,
        )
        return {name: operation.seconds(sheet) for name, operation in traffic.items()}

    def compute(self, model: Model, batch: int, gpu_share: GpuShare | None = None, with_draws: bool = False) -> Any:
        """Compute the seconds of work in a step of `batch` sequences; `with_draws`: one value for each draw.

        `gpu_share` is what a GPU does; None for one pass of all parameters, or as was measured.
        """
        step = self.throughput.step_seconds_draws if with_draws else self.throughput.step_seconds
        length = self.ramp.sequence_length
        shared: dict[str, Any] = {}
        if gpu_share is not None and self.throughput.is_assumed:
            shared = gpu_share._asdict()
        return step(model, batch * length, sequence_length=length, devices=self.gpus, **shared)

    def gpu_share(self, option: Option) -> GpuShare:
        """Return what a GPU does of a step in this option."""
        within = option.tp * option.pp
        shards = option.fsdp if option.sharding == "fsdp2" else 1
        tokens = option.micro_batch_sequences * self.ramp.sequence_length
        return GpuShare(tokens / (within * option.cp), within * option.cp * shards, option.sharding == "fsdp2")

    def steps(self, model: Sized) -> Steps:
        """Find the fastest steps of these models in the largest batch, of options that fit."""
        options = [self._candidates().in_batch(batch) for batch in self.batches]
        costs = list(map(partial(self._costs, model), options, self.batches))
        largest = costs[int(np.argmax(self.batches))]
        seconds = np.where(largest.memory_bytes <= self.available, largest.seconds, np.inf)
        best = first_smallest(seconds)
        gpu_shares = []
        for of_stage in options:
            shares_of_groups = [self.gpu_share(group.option) for group in of_stage.groups]
            columns = zip(*shares_of_groups, strict=True)
            gpu_shares.append(GpuShare(*(of_stage.join(values)[best] for values in columns)))
        return Steps(
            option=best,
            gpu_shares=tuple(gpu_shares),
            costs=tuple(of_stage.choose(best) for of_stage in costs),
            fits=np.isfinite(_choose(seconds, best)),
            least=largest.memory_bytes.min(0),
        )

    def _costs(self, model: Sized, candidates: _Candidates, batch: int) -> Costs:
        """Compute the costs of each option in a batch, a group at a time."""
        shape = np.shape(model.n_total)
        costs = Costs(*(np.empty((len(candidates.options), *shape)) for _ in Costs._fields))
        for group in candidates.groups:
            option = group.option.beside(len(shape))
            seconds = self.communication(model, option, batch)
            idle = 1 + bubble(option.pp, self._passes(option, batch))
            costs_of_group = Costs(
                compute=self.compute(model, batch, self.gpu_share(option)),
                slowdown=idle * _slowdown(model, option),
                exchange=sum(seconds.values()),
                memory_bytes=np.where(_is_divisible(model, option), self.memory(model, option).total, np.inf),
            )
            for values, values_of_group in zip(costs, costs_of_group, strict=True):
                values[group.rows] = values_of_group
        return costs

    def may_fit(self, model: Sized) -> Any:
        """Find the models whose weights and moments alone fit, shared by all GPUs; no layout trains the others."""
        least_state = (WEIGHT_BYTES + MOMENT_BYTES) * model.n_total / self.gpus
        return least_state * ROUNDED <= self.available

    def fits(self, model: Sized) -> Any:
        """Find which models can be trained, as far as memory is known. ValueError for batches that are not shared."""
        if self.throughput.memory_bytes is None:
            return np.full(np.shape(model.n_total), True)
        return self.steps(model).fits

    def place(self, architecture: Architecture) -> Placement | None:
        """Find the fastest way that fits, None if memory is unknown. DoesNotFit says how much is missing."""
        if self.throughput.memory_bytes is None:
            return None
        options = self.options()
        steps = self.steps(architecture)
        if not steps.fits:
            size = f"d_model {architecture.d_model}, E = {architecture.experts}"
            raise DoesNotFit(
                f"{size} ({format_count(architecture.n_total)} parameters) cannot be trained on {self.gpus} × "
                f"{self.throughput.device}: it needs {format_bytes(float(steps.least))} on each GPU, which has "
                f"{format_bytes(self.available)} free; give more gpus, or limit the model (max_parameters, experts)"
            )
        option = options[int(steps.option)]
        return Placement(
            **vars(option),
            memory=self.memory(architecture, option),
            seconds=self._seconds(architecture, option),
        )

    def _seconds(self, architecture: Architecture, option: Option) -> dict[str, float]:
        """Split a step in the largest batch into the seconds of each cause."""
        batch = max(self.batches)
        compute = float(self.compute(architecture, batch, self.gpu_share(option)))
        idle = float(bubble(option.pp, self._passes(option, batch)))
        slowdown = float(_slowdown(architecture, option))
        recomputed = RECOMPUTED if option.gradient_checkpointing else 1.0
        uneven_stages = slowdown / recomputed
        seconds = {
            "compute": compute * uneven_stages,
            "recomputation": compute * (slowdown - uneven_stages),
            "bubble": compute * slowdown * idle,
        }
        for name, value in self.communication(architecture, option, batch).items():
            seconds[name] = float(value)
        return {name: value for name, value in seconds.items() if value}


class _Group(NamedTuple):
    """All options of one sharding, as one whose fields are arrays; `rows` are their places among all options.

    Each row has the same degrees and micro-batches in the same order, of which most costs are computed once.
    """

    option: Option
    rows: IntArray


class _Candidates(NamedTuple):
    """All options of an engine, the preferred first, and in groups."""

    options: list[Option]
    groups: list[_Group]

    def in_batch(self, batch: int) -> _Candidates:
        """Return the options in a batch, with the largest micro-batches that divide theirs and its shares."""
        groups = []
        for option, rows in self.groups:
            sizes = np.gcd(option.micro_batch_sequences, batch // (option.dp * option.fsdp))
            groups.append(_Group(replace(option, micro_batch_sequences=sizes), rows))
        return self._replace(groups=groups)

    def join(self, values: Sequence[Any]) -> Any:
        """Join the values of each group, [options]."""
        joined = np.empty(len(self.options))
        for group, values_of_group in zip(self.groups, values, strict=True):
            joined[group.rows] = values_of_group
        return joined


def _choose(values: FloatArray, option: Any) -> FloatArray:
    """Take the values [n, ...] of one of the n options for each model."""
    return np.take_along_axis(values, option[None], axis=0)[0]


def _slowdown(model: Sized, option: Option) -> Any:
    """Compute the factor on the compute of recomputing, and of stages of unequal length."""
    pp = np.asarray(option.pp)
    longest_over_mean = np.where(pp > 1, np.ceil(model.blocks / pp) * pp / model.blocks, 1.0)
    return np.where(option.gradient_checkpointing, RECOMPUTED, 1.0) * longest_over_mean


def _is_divisible(model: Sized, option: Option) -> Any:
    """Find the models whose experts, heads and blocks divide so; fractional widths always do."""
    heads = np.asarray(model.heads)
    divides_heads = (heads % option.tp == 0) | (heads != np.round(heads))
    divides_experts = (np.asarray(model.experts) % option.ep == 0) | (np.asarray(option.ep) == 1)
    divides_blocks = (np.asarray(option.pp) == 1) | (np.asarray(model.blocks) >= option.pp)
    return divides_experts & divides_heads & divides_blocks


def _divisors(number: int) -> list[int]:
    """List the divisors of a number, the largest first."""
    small = [k for k in range(1, math.isqrt(number) + 1) if number % k == 0]
    return sorted({*small, *(number // k for k in small)}, reverse=True)


def _powers(most: int) -> Iterator[int]:
    return (2**k for k in range(int(most).bit_length()))


@lru_cache(maxsize=256)
def _candidate_layouts(engine: str, gpus: int, shared: int, largest: int, node: int, most_cp: int) -> _Candidates:
    """List options of GPUs whose batches are multiples of `shared` sequences, the simplest and largest first.

    Their micro-batches are of the `largest` batch.
    """
    features = ENGINES[engine]
    options: list[Option] = []
    degrees = product(
        _powers(min(node, gpus) if "tp" in features else 1),
        _powers(min(MOST_STAGES, gpus) if "pp" in features else 1),
        _powers(most_cp if "cp" in features else 1),
    )
    for tp, pp, cp in degrees:
        replicas, unused = divmod(gpus, tp * pp * cp)
        if unused or shared % replicas:
            continue
        sequences = largest // replicas
        sizes = _divisors(sequences)
        for shape in _shardings(features, replicas, replicas * cp == 1, node):
            if shape["sharding"] == "fsdp2" and tp * pp > 1:
                continue
            # GPUs among which experts can be divided.
            sharers = {"none": 1, "ddp": 1, "zero1": replicas}.get(shape["sharding"], shape.get("fsdp", 1)) * cp
            for recompute, size, ep in product((False, True), sizes, _powers(sharers if "ep" in features else 1)):
                if sharers % ep == 0:
                    option = Option(size, gradient_checkpointing=recompute, tp=tp, pp=pp, ep=ep, cp=cp, **shape)
                    options.append(option)

    def rank(option: Option) -> tuple[int, ...]:
        within = option.tp * option.pp * option.cp
        return option.gradient_checkpointing, within, option.ep > 1, -option.micro_batch_sequences

    options.sort(key=rank)
    return _group_options(options)


def _group_options(options: list[Option]) -> _Candidates:
    """Group options by their sharding, in a row for each way to keep activations and weights."""
    groups = []
    for sharding in SHARDINGS:
        rows: dict[Any, list[int]] = {}
        for row, option in enumerate(options):
            if option.sharding == sharding:
                rows.setdefault((option.gradient_checkpointing, option.reshard), []).append(row)
        if rows:
            table = np.array([*rows.values()])
            arrays = {name: _without_repeats(options, table, name) for name in ARRAYS}
            groups.append(_Group(Option(sharding=sharding, **arrays), table))
    return _Candidates(options, groups)


def _without_repeats(options: list[Option], table: IntArray, name: str) -> Any:
    """Return a field of the options of a table, once along an axis where it is the same."""
    values = np.array([getattr(options[row], name) for row in table.flat]).reshape(table.shape)
    for axis in (0, 1):
        first = values.take([0], axis)
        if (values == first).all():
            values = first
    return values


def _shardings(features: frozenset[str], replicas: int, is_alone: bool, node: int) -> list[dict[str, Any]]:
    """List how GPUs that share batches may hold the state, the simplest first; HSDP shards within nodes."""
    if is_alone:
        return [{"sharding": "none"}]
    ways = [way for way in ("ddp", "zero1") if way in features]
    shardings: list[dict[str, Any]] = [{"sharding": way, "dp": replicas} for way in ways]
    groups = [1]
    if replicas > node and replicas % node == 0:
        groups.append(replicas // node)
    for dp, reshard in product(groups, (True, False)):
        shardings.append({"sharding": "fsdp2", "dp": dp, "fsdp": replicas // dp, "reshard": reshard})
    return shardings
