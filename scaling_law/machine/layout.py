"""How a model is laid out on GPUs: the fastest step of those that fit, over what an engine can do.

Every micro-batch that divides the batch, activations kept or recomputed, and the parallelism of `ENGINES`. A step is

    max(compute, communication),  compute = seconds of its work × 4/3 where activations are recomputed
                                            × (1 + bubble) × (longest stage / mean stage)

The longer of the two and not their sum: the rates of `efficiency` have in them what the layouts of published runs did
not hide (docs/studies/hours.md). Steps that were measured have their communication in them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from hub.base.errors import InputError
from hub.base.units import format_bytes, format_count
from scaling_law.machine.communication import Degrees, bubble, communication
from scaling_law.machine.gpus import find_gpu
from scaling_law.machine.memory import Sharding, TrainingMemory, training_memory
from scaling_law.machine.throughput import Model, Throughput
from scaling_law.size.architecture import Architecture
from scaling_law.size.arrays import FloatArray
from scaling_law.size.recipe import PAPER, BatchRamp
from scaling_law.size.widths import Widths

RESERVED = 2e9  # bytes of a GPU for CUDA's context, NCCL and fragmentation
RECOMPUTED = 4 / 3  # FLOPs of a step that computes the forward pass twice
TRAIN_PY, MEGATRON = "train.py", "megatron"
# What each engine can run, of `Option.uses`; "megatron" stands for engines with all of it.
ENGINES: Mapping[str, frozenset[str]] = {
    TRAIN_PY: frozenset({"ddp", "fsdp", "hsdp", "ep"}),
    MEGATRON: frozenset({"ddp", "zero1", "fsdp", "hsdp", "ep", "tp", "pp", "cp"}),
}
WITHIN = ("tp", "pp", "ep", "cp")  # degrees by which GPUs share one model's work
LEAST_CONTEXT = 2048  # tokens of a sequence that a GPU keeps under context parallelism: fewer hide no ring of keys
# Most stages of a pipeline.
MOST_STAGES = 16
# Operations that a step makes once, and not for every micro-batch, by sharding.
ONCE = {"none": (), "fsdp2": (), "ddp": ("all-reduce",), "zero1": ("reduce-scatter", "all-gather")}
COMPUTING = ("compute", "recomputation", "bubble")
# What moves a bottleneck, by the operation that limits a step.
MOVED_BY = {
    "compute": "more GPUs, or fewer FLOPs",
    "recomputation": "more GPUs or memory, which keep activations",
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

    Of "zero1" and "ddp", `dp` GPUs share batches alone. Fields are arrays in `Option.stacked`.
    """

    micro_batch_sequences: Any
    sharding: Sharding
    gradient_checkpointing: Any
    reshard: Any = True

    @property
    def uses(self) -> frozenset[str]:
        """What an engine must have for it, of the names in `ENGINES`."""
        sharded = {"fsdp", "hsdp"} if self.dp > 1 else {"fsdp"}
        ways = sharded if self.sharding == "fsdp2" else {self.sharding} - {"none"}
        return frozenset(ways | {name for name in WITHIN if getattr(self, name) > 1})

    @classmethod
    def stacked(cls, options: list[Option], dimensions: int) -> Option:
        """Options of one sharding as arrays [n, 1, ...], which broadcast with models of so many dimensions."""
        names = [each.name for each in fields(Option) if each.name != "sharding"]
        shape = (-1, *[1] * dimensions)
        arrays: dict[str, Any] = {name: np.array([getattr(o, name) for o in options]).reshape(shape) for name in names}
        return cls(sharding=options[0].sharding, **arrays)

    @property
    def ways(self) -> str:
        """All but the micro-batch, in words."""
        sharded = f"HSDP {self.dp} × {self.fsdp}" if self.dp > 1 else "FSDP2"
        way = {"none": "", "ddp": "DDP", "zero1": "distributed optimizer", "fsdp2": sharded}[self.sharding]
        ways = [way, "" if self.reshard else "weights not resharded"]
        ways += [f"{name.upper()} {getattr(self, name)}" for name in WITHIN if getattr(self, name) > 1]
        return ", ".join(filter(None, [*ways, "gradient checkpointing" * self.gradient_checkpointing]))

    def __str__(self) -> str:
        size = self.micro_batch_sequences
        return ", ".join(filter(None, [f"micro-batches of {size} sequence{'s' * (size > 1)}", self.ways]))


@dataclass(frozen=True)
class Placement(Option):
    """The way in which one model is trained, and what each GPU holds at the peak of a step.

    `seconds` are those of a step in the largest batch, by what takes them: compute, recomputation, bubble, and each
    operation of `communication`.
    """

    memory: TrainingMemory = field(kw_only=True)
    seconds: Mapping[str, float] = field(kw_only=True)

    @property
    def sides(self) -> tuple[dict[str, float], dict[str, float]]:
        """Seconds by part: of computing, and of sending, which runs beside it."""
        of_gpu = {name: self.seconds[name] for name in COMPUTING if name in self.seconds}
        return of_gpu, {name: value for name, value in self.seconds.items() if name not in of_gpu}

    @property
    def step_seconds(self) -> float:
        return max(sum(side.values()) for side in self.sides)

    @property
    def limit(self) -> str:
        longer = max(self.sides, key=lambda side: sum(side.values()))
        return max(longer, key=lambda name: longer[name])

    @property
    def bottleneck(self) -> str:
        """The part that limits the step: "all-to-all, 38 % of the step"."""
        return f"{self.limit}, {100 * self.seconds[self.limit] / self.step_seconds:.0f} % of the step"

    @property
    def moved_by(self) -> str:
        return MOVED_BY[self.limit]

    @property
    def advice(self) -> str:
        return f"{self.bottleneck}; {self.moved_by} would move it"

    def __str__(self) -> str:
        return f"{format_bytes(self.memory.total)} of each GPU, {super().__str__()}"


@dataclass(frozen=True)
class Steps:
    """Seconds of a step in each stage of the batch ramp, [stages, ...], of the fastest option that fits, [...].

    `compute` is times `slowdown` for what is recomputed and idle, infinite where no option `fits`. `least`: bytes of
    each GPU that some option takes.
    """

    option: Any
    slowdown: Any
    communication: FloatArray
    fits: Any
    least: Any


@dataclass(frozen=True)
class Layouts:
    """GPUs that share the batches of a ramp: how fast, how much memory each has, and whose layouts are searched."""

    gpus: int
    throughput: Throughput
    ramp: BatchRamp = field(default=BatchRamp(PAPER.batch_ramp, PAPER.sequence_length), repr=False)
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
        """Every way, in the order of preference at equal speed. ValueError where GPUs cannot share a batch equally."""
        share = math.gcd(*self.batches)
        node, most_cp = self.throughput.node, max(1, self.ramp.sequence_length // LEAST_CONTEXT)
        if not (ways := _ways(self.engine, self.gpus, share, node, most_cp)):
            batches = ", ".join(map(str, self.batches))
            allowed = f"each must be a multiple of {self.gpus}"
            raise InputError(f"gpus={self.gpus} cannot share batches of {batches} sequences equally: {allowed}")
        return ways

    def _passes(self, option: Option, batch: int) -> Any:
        return batch // (option.micro_batch_sequences * option.dp * option.fsdp)

    def memory(self, model: Architecture | Widths, option: Option) -> TrainingMemory:
        """Memory of each GPU in the largest batch."""
        return training_memory(
            model,
            option.micro_batch_sequences,
            self.ramp.sequence_length,
            passes=self._passes(option, max(self.batches)),
            precision="fp32" if self.throughput.precision == "fp32" else "bf16",
            gradient_checkpointing=option.gradient_checkpointing,
            sharding=option.sharding,
            devices=option.cp * option.fsdp * (option.dp if option.sharding in ("ddp", "zero1") else 1),
            on_cpu=find_gpu(self.throughput.device) is None,
            reshard=option.reshard,
            **{name: getattr(option, name) for name in WITHIN},
        )

    def communication(self, model: Architecture | Widths, option: Option, batch: int) -> dict[str, Any]:
        """Least seconds of each operation in a step of `batch` sequences; none where the measured steps have them."""
        sheet = find_gpu(self.throughput.device)
        if sheet is None or not self.throughput.is_assumed:
            return {}
        passes, tokens = self._passes(option, batch), batch * self.ramp.sequence_length / self.gpus
        how = {"reshard": option.reshard, "recompute": option.gradient_checkpointing}
        sent = communication(model, option.sharding, option, passes, tokens, **how)
        return {name: each.seconds(sheet) for name, each in sent.items()}

    def compute(self, model: Model, batch: int, drawn: bool = False) -> Any:
        """Seconds of compute in a step of `batch` sequences; `drawn`: under each draw of the throughput."""
        step = self.throughput.step_seconds_draws if drawn else self.throughput.step_seconds
        length = self.ramp.sequence_length
        return step(model, batch * length, sequence_length=length, devices=self.gpus)

    def steps(self, model: Architecture | Widths) -> Steps:
        """The fastest steps of these models in the largest batch, of options that fit."""
        every, largest = self.options(), max(self.batches)
        compute = np.asarray(self.compute(model, largest))
        slower, once, each, held = (np.empty((len(every), *compute.shape)) for _ in range(4))
        passes, pp = np.array([(self._passes(option, largest), option.pp) for option in every]).T
        for sharding in dict.fromkeys(option.sharding for option in every):
            chosen = [i for i, option in enumerate(every) if option.sharding == sharding]
            ways = Option.stacked([every[i] for i in chosen], compute.ndim)
            sent, of_step = self.communication(model, ways, largest), ONCE[sharding]
            once[chosen] = sum(sent[name] for name in sent if name in of_step)
            each[chosen] = sum(sent[name] for name in sent if name not in of_step)
            held[chosen] = np.where(_divides(model, ways), self.memory(model, ways).total, np.inf)
            slower[chosen] = np.where(held[chosen] <= self.available, _slowdown(model, ways), np.inf)
        idle = 1 + bubble(pp, passes).reshape(-1, *[1] * compute.ndim)
        best = np.argmin(np.maximum(slower * idle * compute, once + each), axis=0)
        slower, once, each = (np.take_along_axis(v, best[None], axis=0)[0] for v in (slower, once, each))
        shares = [batch / largest for batch in self.batches]
        slowdown = np.stack([slower * (1 + bubble(pp[best], passes[best] * share)) for share in shares])
        return Steps(
            best, slowdown, np.stack([once + share * each for share in shares]), np.isfinite(slower), held.min(0)
        )

    def fits(self, model: Architecture | Widths) -> Any:
        """Whether models can be trained, as far as memory is known. ValueError of batches that are not shared."""
        unknown = self.throughput.memory_bytes is None
        return np.full(np.shape(model.n_total), True) if unknown else self.steps(model).fits

    def place(self, architecture: Architecture) -> Placement | None:
        """The fastest way that fits, None if memory is unknown. DoesNotFit says what is missing where none does."""
        if self.throughput.memory_bytes is None:
            return None
        batch, every = max(self.batches), self.options()
        steps = self.steps(architecture)
        if not steps.fits:
            size = f"d_model {architecture.d_model}, E = {architecture.experts}"
            raise DoesNotFit(
                f"{size} ({format_count(architecture.n_total)} parameters) cannot be trained on {self.gpus} × "
                f"{self.throughput.device}: it needs {format_bytes(float(steps.least))} on each GPU, which has "
                f"{format_bytes(self.available)} free; give more gpus, or limit the model (max_parameters, experts)"
            )
        option = every[int(steps.option)]
        compute, idle = float(self.compute(architecture, batch)), float(bubble(option.pp, self._passes(option, batch)))
        stages = float(_slowdown(architecture, option))
        work_alone = stages / (RECOMPUTED if option.gradient_checkpointing else 1.0)
        seconds = {"compute": compute * work_alone, "recomputation": compute * (stages - work_alone)}
        seconds |= {"bubble": compute * stages * idle}
        seconds |= {name: float(value) for name, value in self.communication(architecture, option, batch).items()}
        seconds = {name: value for name, value in seconds.items() if value}
        return Placement(**vars(option), memory=self.memory(architecture, option), seconds=seconds)


def _slowdown(model: Architecture | Widths, option: Option) -> Any:
    """What recomputing, and stages of unequal length, multiply the compute by."""
    pp, recomputed = np.asarray(option.pp), np.where(option.gradient_checkpointing, RECOMPUTED, 1.0)
    return recomputed * np.where(pp > 1, np.ceil(model.blocks / pp) * pp / model.blocks, 1.0)


def _divides(model: Architecture | Widths, option: Option) -> Any:
    """Whether experts, heads and blocks of the models can be divided so; widths between those that exist can."""
    heads = np.asarray(model.heads)
    by_heads = (heads % option.tp == 0) | (heads != np.round(heads))
    by_experts = (np.asarray(model.experts) % option.ep == 0) | (np.asarray(option.ep) == 1)
    return by_experts & by_heads & ((np.asarray(option.pp) == 1) | (np.asarray(model.blocks) >= option.pp))


def _powers(most: int) -> Iterator[int]:
    return (2**k for k in range(int(most).bit_length()))


@lru_cache(maxsize=64)
def _ways(engine: str, gpus: int, share: int, node: int, most_cp: int) -> list[Option]:
    """Options of GPUs that share batches of multiples of `share` sequences; the simplest and largest first."""
    able, ways = ENGINES[engine], list[Option]()
    degrees = product(
        _powers(min(node, gpus) if "tp" in able else 1),
        _powers(min(MOST_STAGES, gpus) if "pp" in able else 1),
        _powers(most_cp if "cp" in able else 1),
    )
    for tp, pp, cp in degrees:
        sharing, rest = divmod(gpus, tp * pp * cp)  # batches
        if rest or share % sharing:
            continue
        sizes = [size for size in range(share // sharing, 0, -1) if share // sharing % size == 0]
        for shape in _shardings(sharing, sharing * cp == 1, node):
            uses = Option(1, gradient_checkpointing=False, **shape).uses
            if not uses <= able or ("fsdp" in uses and tp * pp > 1):
                continue
            among = {"none": 1, "ddp": 1, "zero1": sharing}.get(shape["sharding"], shape.get("fsdp", 1)) * cp
            for recompute, size, ep in product((False, True), sizes, _powers(among if "ep" in able else 1)):
                if among % ep == 0:
                    ways.append(Option(size, gradient_checkpointing=recompute, tp=tp, pp=pp, ep=ep, cp=cp, **shape))

    def rank(way: Option) -> tuple[int, ...]:
        return way.gradient_checkpointing, way.tp * way.pp * way.cp, way.ep > 1, -way.micro_batch_sequences

    return sorted(ways, key=rank)


def _shardings(sharing: int, alone: bool, node: int) -> list[dict[str, Any]]:
    """Ways in which GPUs that share batches may hold the state, the simplest first; HSDP within nodes."""
    if alone:
        return [{"sharding": "none"}]
    replicas = [1, *([sharing // node] if sharing > node and sharing % node == 0 else [])]
    sharded = [{"dp": dp, "fsdp": sharing // dp, "reshard": way} for dp in replicas for way in (True, False)]
    whole: list[dict[str, Any]] = [{"sharding": way, "dp": sharing} for way in ("ddp", "zero1")]
    return [*whole, *({"sharding": "fsdp2"} | way for way in sharded)]
