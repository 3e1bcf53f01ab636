"""Seconds of a training step on one device model: measured (`python -m training.throughput`), or assumed.

    seconds = Σ_k c_k work_k,  c_k >= 0

with the work of one device in one step (`TERMS`): an MoE takes longer than a dense model of its FLOPs because it also
reads, casts and updates more weights, and moves its tokens to the experts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike

from hub.base import strict_json
from hub.base.errors import InputError, literal
from hub.base.fields import LARGEST, NUMBERS, UNREAD, Field, Positive, reads
from hub.base.notices import Notice
from hub.base.types import Fields
from scaling_law.answer.answer import Listed, plain
from scaling_law.machine.efficiency import SMALL, TRAIN_PY, Engine, rates_of_engine
from scaling_law.machine.gpus import SHEET, named_gpu
from scaling_law.size.architecture import Architecture, Span
from scaling_law.size.arrays import FloatArray
from scaling_law.size.missing import refuse_none
from scaling_law.size.recipe import PAPER
from scaling_law.size.widths import Sized

FORMAT = "throughput"
VERSION = 1
# Fields that are arrays.
ARRAYS = ("draws", "small_draws", "sharded_draws")
# A warning names a vocabulary or a batch that lies this factor beyond those that were timed; likewise other shapes.
OUTSIDE = 2.0
SHAPES = {"vocab_size": ("a vocabulary", OUTSIDE), "d_model": ("a d_model", 1.0), "experts": ("E", 1.0)}

TERMS: dict[str, str] = {
    "steps": "1",
    "blocks": "passes through a block: blocks × micro-batches",
    "flops": "FLOPs, three forward passes (`Architecture.forward_flops`)",
    "routed_flops": "the FLOPs of models with experts, once more",
    "activations": "elements between operations: tokens × blocks × d_model",
    "routing": "elements sent to experts: tokens × routed blocks × experts per token × d_model",
    "weights": "parameters for every micro-batch: N_total × micro-batches",
    "update": "parameters for every step: N_total",
}
# Terms that every token adds to, whatever the batch.
OF_TOKENS = ("flops", "routed_flops", "activations", "routing")


@dataclass(frozen=True)
class ModelWork:
    """Properties of a model that decide its step time, numbers, or arrays of one shape for `Widths`.

    They are by token where a line below does not say more.

    Attributes:
        weights: weights that a token is multiplied with, router and head included, embedding not.
        attention: elements of attention's scores and values by position of the context, of all blocks that attend to
            every position.
        activations: elements that a block hands on, of all blocks.
        routed: elements that are sent to experts, of all blocks; 0 for a dense model.
        n_total: all parameters of the model.
        n_blocks: blocks of the model.
        bounded: pairs of a span of other blocks (windows, selections, states) and its elements by entry.
    """

    weights: Any
    attention: Any
    activations: Any
    routed: Any
    n_total: Any
    n_blocks: Any
    bounded: tuple[tuple[Span, Any], ...] = ()

    @classmethod
    def of(cls, model: Sized) -> ModelWork:
        """Describe an architecture (numbers), or widths (arrays)."""
        refuse_none("model", model)
        if not hasattr(model, "forward_flops"):
            raise InputError(f"model={model!r} must be an Architecture")
        a = model
        routed = a.routed_blocks * a.experts_per_token * a.d_model
        return cls(
            weights=a.forward_flops() / 2,
            attention=sum(size for span, size in a.products if span.sees_all),
            activations=1.0 * a.blocks * a.d_model,
            routed=1.0 * np.where(np.asarray(a.experts) > 1, routed, 0.0),
            n_total=1.0 * a.n_total,
            n_blocks=1.0 * a.blocks,
            bounded=tuple((span, size) for span, size in a.products if not span.sees_all),
        )

    def in_step(
        self,
        tokens_per_step: ArrayLike,
        micro_batch_tokens: ArrayLike | None,
        sequence_length: Any,
        devices: int,
        shards: ArrayLike = 1,
    ) -> Fields:
        """Compute the work of one device in a step, by the names of `TERMS`. Without micro-batches all is one pass.

        `shards` devices share the parameters that each casts and updates.
        """
        tokens = np.asarray(tokens_per_step, float) / devices
        micro_batches: Any = 1.0
        if micro_batch_tokens is not None:
            micro_batches = np.maximum(1.0, tokens / np.asarray(micro_batch_tokens))
        attended = sequence_length * self.attention
        attended = attended + sum(span.entries(sequence_length) * size for span, size in self.bounded)
        flops = 6.0 * tokens * (self.weights + attended)
        return {
            "steps": 1.0 + 0.0 * flops,
            "blocks": self.n_blocks * micro_batches,
            "flops": flops,
            "routed_flops": np.where(np.asarray(self.routed) > 0, flops, 0.0),
            "activations": tokens * self.activations,
            "routing": tokens * self.routed,
            "weights": self.n_total * micro_batches / np.asarray(shards),
            "update": self.n_total / np.asarray(shards),
        }


Model = Sized | ModelWork


@reads
@dataclass(frozen=True)
class Measurement:
    """Seconds of a step of `tokens_per_step` tokens, and bytes at the peak of one device (None: unknown)."""

    architecture: Architecture
    sequence_length: int
    tokens_per_step: int
    micro_batch_tokens: int
    step_seconds: Positive
    memory_bytes: float | None = None


Numbers = Annotated[ArrayLike, NUMBERS]


@reads
@dataclass(frozen=True, repr=False)
class Throughput(Listed):
    """Step times of one device model, at one precision.

    Attributes:
        device: name of the device, as the driver or the data sheet has it.
        precision: "bf16" or "fp32", that of the autocast; "fp8" or "fp4" only if assumed.
        seconds: seconds per unit of work, for some of `TERMS`; the rest takes none.
        devices: data parallel processes that shared the steps that were measured.
        draws: draws of `seconds`, [n_draws, len(seconds)], for intervals; None if there are none.
        small_draws: draws of the power of `SMALL` / weights in the seconds of smaller models, [n_draws], or None.
        micro_batch_tokens: tokens of a pass if a question names none; None if they do not matter.
        sequence_length: tokens of a sequence if a question names none.
        settings: other settings that decide the speed, such as compile and gradient_checkpointing.
        memory_bytes: memory of one device; None if unknown.
        error: rms of ln(predicted / measured) for shapes left out of the fit; None if nothing was left out.
        measurements: the timed steps that it was fitted to.
        source: origin of the numbers, in words.
        is_assumed: true if from a data sheet and public runs or a given MFU, and not measured.
        node, growth, overhead: with more than `node` devices, seconds of a step grow with the number of nodes to the
            power of `growth`, and a whole run takes that number to the power of `overhead` times its steps.
        sharded: how many times as long the work of each term takes under FSDP2; 1 where it says nothing.
        sharded_draws: draws of these factors with those of `seconds`, in its order, or None.
    """

    device: str
    precision: str
    seconds: Mapping[str, float]
    devices: Annotated[int, Field(ge=1)] = 1
    draws: FloatArray | None = field(default=None, compare=False, repr=False)
    small_draws: FloatArray | None = field(default=None, compare=False, repr=False)
    micro_batch_tokens: int | None = None
    sequence_length: int = PAPER.sequence_length
    settings: Mapping[str, Any] = field(default_factory=dict)
    memory_bytes: float | None = None
    error: float | None = None
    measurements: tuple[Measurement, ...] = field(default=(), repr=False)
    source: str = ""
    is_assumed: bool = False
    node: int = 8
    growth: float = 0.0
    overhead: float = 0.0
    sharded: Mapping[str, float] = field(default_factory=dict)
    sharded_draws: FloatArray | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.device:
            raise InputError(f"device={self.device!r} must be a name")
        for name, value in self.seconds.items():
            if name not in TERMS:
                raise InputError(f"seconds: {name!r} is none of {', '.join(TERMS)}")
            if not 0 <= value < math.inf:
                raise InputError(f"seconds of {name}={value!r} must be finite and at least 0")
        if not any(self.seconds.values()):
            raise InputError("seconds: all are 0; at least one must be positive")
        if self.draws is not None and (self.draws.ndim != 2 or self.draws.shape[1] != len(self.seconds)):
            raise InputError(f"draws have shape {self.draws.shape}; [n, {len(self.seconds)}] is needed")

    # -- questions

    @reads
    def step_seconds(
        self,
        model: Annotated[Model, UNREAD],
        tokens_per_step: Numbers,
        *,
        micro_batch_tokens: Numbers | None = None,
        sequence_length: int | None = None,
        devices: int | None = None,
        shards: Numbers = 1,
        is_sharded: Numbers = False,
    ) -> Any:
        """Compute the seconds of a step of `tokens_per_step` tokens, shared by `devices` (default: as measured).

        It broadcasts. `micro_batch_tokens` are tokens of one device and pass; `shards` devices share the parameters
        that each casts and updates; `is_sharded`: by FSDP2. A number of devices that was not
        measured is taken to share the tokens evenly at no cost: gradients travel as in the measurements. ValueError
        unless all numbers are positive.
        """
        work = self._work(
            model,
            tokens_per_step=tokens_per_step,
            micro_batch_tokens=micro_batch_tokens,
            sequence_length=sequence_length,
            devices=devices,
            shards=shards,
        )
        on_one_node: Any = 0.0
        for name, value in self.seconds.items():
            factor = np.where(is_sharded, self.sharded.get(name, 1.0), 1.0)
            on_one_node = on_one_node + value * factor * work[name]
        seconds = on_one_node * self._nodes(devices) ** self.growth
        return float(seconds) if np.ndim(seconds) == 0 else seconds

    def least_seconds(self, model: Model, sequence_length: ArrayLike, devices: int) -> Any:
        """Compute seconds for a token, of a step on these devices, that no batch or layout shortens; broadcasts."""
        work = _work_of(model).in_step(1.0, None, sequence_length, devices)
        least: Any = 0.0
        for name in OF_TOKENS:
            factor = min(1.0, self.sharded.get(name, 1.0))
            least = least + self.seconds.get(name, 0.0) * factor * work[name]
        return least * self._nodes(devices) ** self.growth

    def step_seconds_draws(
        self, model: Model, tokens_per_step: ArrayLike, *, is_sharded: ArrayLike = False, **batch: Any
    ) -> FloatArray:
        """Compute `step_seconds` under each of the draws, [n_draws, ...]. ValueError if there are none."""
        if self.draws is None:
            raise InputError(
                f"the throughput of {self.device} has no draws: its step times are not fitted to measurements"
            )
        work = self._work(model, tokens_per_step=tokens_per_step, **batch)
        amounts = [np.asarray(work[name], float) for name in self.seconds]
        terms = np.stack(np.broadcast_arrays(*amounts))
        seconds = np.tensordot(self.draws, terms, axes=1)
        if self.sharded_draws is not None and np.any(is_sharded):
            seconds = np.where(is_sharded, np.tensordot(self.draws * self.sharded_draws, terms, axes=1), seconds)
        seconds = seconds * self._nodes(batch.get("devices")) ** self.growth
        if self.small_draws is None:
            return np.asarray(seconds)
        weights = np.broadcast_to(_work_of(model).weights, terms.shape[1:])
        log_size = np.log(np.maximum(SMALL / weights, 1.0))
        return np.asarray(seconds * np.exp(np.multiply.outer(self.small_draws, log_size)))

    def warnings(
        self,
        model: Sized,
        devices: int | None = None,
        tokens_per_step: float | None = None,
    ) -> tuple[str, ...]:
        """Say how far models, the number of devices and a step's tokens on each lie outside of what was measured."""
        if self.is_assumed:
            text = f"step times on {self.device} are assumed, not measured: {self.source}"
            if self.precision != "bf16":
                text += f"; train.py has no {self.precision}: other engines take them"
            return (Notice(text, "step times assumed"),)
        notes = []
        if devices is not None and devices != self.devices:
            notes.append(
                f"step times were measured on {self.devices} devices; {devices} are taken to share them evenly"
            )
        if self.measurements:
            notes += self._outside_measurements(model, tokens_per_step)
        return tuple(notes)

    def _outside_measurements(self, model: Sized, tokens_per_step: float | None) -> list[str]:
        """Say which sizes and shapes of models, and which tokens of a step, lie outside of those that were timed."""
        notes = []
        architectures = [measurement.architecture for measurement in self.measurements]
        for name in ("active", "total"):
            most = float(np.max(getattr(model, f"n_{name}")))
            largest = max(getattr(architecture, f"n_{name}") for architecture in architectures)
            if most > 1.01 * largest:
                notes.append(f"{most:.3g} {name} parameters are {most / largest:.3g}x the largest that was timed")
        for name, (words, factor) in SHAPES.items():
            timed_sizes = [getattr(architecture, name) for architecture in architectures]
            notes += _outside(words, timed_sizes, getattr(model, name), factor)
        timed_tokens = [measurement.tokens_per_step / self.devices for measurement in self.measurements]
        return notes + _outside("tokens of a step on one device", timed_tokens, tokens_per_step, OUTSIDE)

    def overhead_of(self, devices: int) -> float:
        """Compute the seconds of a whole run on these devices over those of its steps."""
        return float(self._nodes(devices) ** self.overhead)

    def _nodes(self, devices: int | None) -> float:
        count = self.devices if devices is None else devices
        return max(1.0, count / self.node)

    def _work(self, model: Model, **step: Any) -> Fields:
        """Compute the work of one device in one step. ValueError names what is not positive."""
        for name in ("micro_batch_tokens", "sequence_length", "devices"):
            if step.get(name) is None:
                step[name] = getattr(self, name)
        for name, value in step.items():
            numbers = np.asarray(1.0 if value is None else value)
            if not np.all((numbers >= 1 / LARGEST) & (numbers <= LARGEST)):
                raise InputError(f"{name}={literal(value)} must be positive and finite")
        return _work_of(model).in_step(**step)

    # -- origins

    @classmethod
    @reads
    def assumed(
        cls,
        gpu: Annotated[str, UNREAD] = "h100",
        devices: int = 1,
        mfu: Annotated[float | tuple[float, float] | None, UNREAD] = None,
        precision: str | None = None,
        engine: Engine = TRAIN_PY,
    ) -> Throughput:
        """Estimate step times from a data sheet and the rates of an engine, or from an MFU that is given.

        The rates of "train.py" are of its own steps on an H100 and of PyTorch's FSDP2, those of "megatron" of public
        runs (`efficiency`). `precision` None is bf16, or fp16 of a GPU without it. `mfu` is one number, or (dense,
        MoE). ValueError for a GPU that is not listed, a precision that it does not have, and an MFU outside (0, 1], or
        higher with experts than without.
        """
        sheet = named_gpu(gpu)
        precision = precision or sheet.precisions[0]
        if precision not in sheet.precisions:
            raise InputError(f"precision={precision!r}: {sheet.name} computes in {', '.join(sheet.precisions)}")
        device: Fields = {
            "device": sheet.name,
            "devices": devices,
            "memory_bytes": sheet.memory_bytes,
            "is_assumed": True,
            "node": sheet.node,
            "precision": precision,
        }
        if mfu is None:
            fit = rates_of_engine(engine)
            timings = f"{fit.runs} public runs and benchmarks of {fit.labs} labs, by {sheet.basis}"
            if fit.has_own_terms:
                timings = f"{fit.runs} steps of train.py on an H100 and of torchtitan, by {sheet.basis}"
            return cls(
                **device,
                seconds=fit.seconds(sheet, precision),
                draws=fit.draws(sheet, precision),
                small_draws=fit.small_draws,
                growth=fit.growth,
                overhead=fit.overhead,
                sharded=fit.sharded,
                sharded_draws=fit.sharded_draws,
                source=f"rates of {timings}",
            )
        utilizations = tuple(mfu) if isinstance(mfu, (tuple, list)) else (mfu, mfu)
        are_shares = all(isinstance(value, (int, float)) and 0 < value <= 1 for value in utilizations)
        if len(utilizations) != 2 or not are_shares:
            raise InputError(f"mfu={mfu!r} must be above 0 and at most 1, or two such numbers, (dense, with experts)")
        dense, moe = utilizations
        if dense < moe:
            raise InputError(f"mfu={mfu!r} must be no higher with experts than without")
        seconds = {
            "flops": 1 / (sheet.peak_flops * dense),
            "routed_flops": (1 / moe - 1 / dense) / sheet.peak_flops,
        }
        source = f"MFU {dense:.1%} dense, {moe:.1%} with experts (given) of {sheet.peak_flops:.4g} FLOP/s"
        if sheet.basis != SHEET:
            source += f", by {sheet.basis}"
        return cls(**device, seconds=seconds, source=source)

    # -- files

    def save(self, path: str | Path) -> Path:
        """Write a throughput.json, atomically; returns its path."""
        values = plain(self)
        for name in ARRAYS:
            if values[name] is not None:
                values[name] = values[name].tolist()
        return strict_json.write(path, FORMAT, VERSION, values)

    @classmethod
    def from_file(cls, path: str | Path, device: str | None = None) -> Throughput:
        """Read a file that `save` wrote. RecordError for another file or version, ValueError for another `device`."""
        data = strict_json.read(path, FORMAT, VERSION)
        values = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        try:
            for name in ARRAYS:
                if values.get(name) is not None:
                    values[name] = np.array(values[name], float)
            measurements = []
            for row in values.get("measurements", ()):
                architecture = Architecture(**row["architecture"])
                measurements.append(Measurement(**{**row, "architecture": architecture}))
            values["measurements"] = tuple(measurements)
            throughput = cls(**values)
        except (TypeError, ValueError, KeyError) as error:
            raise strict_json.RecordError(f"{path}: {error}") from None
        if device not in (None, throughput.device):
            raise strict_json.RecordError(f"{path}: was measured on {throughput.device!r}, not on {device!r}")
        return throughput


def _work_of(model: Model) -> ModelWork:
    return model if isinstance(model, ModelWork) else ModelWork.of(model)


def _outside(name: str, timed: Sequence[float], values: Any, factor: float) -> list[str]:
    """Name the last of the values (None: unknown) that lies more than a factor outside of those that were timed."""
    low = min(timed)
    high = max(timed)
    sizes = np.ravel(np.asarray(values, float))
    outside = sizes[(sizes < low / factor) | (sizes > factor * high)]
    if not outside.size:
        return []
    timed_range = " to ".join(dict.fromkeys([f"{low:,.0f}", f"{high:,.0f}"]))
    return [f"{name} ({outside[-1]:,.0f}) outside those that were timed, {timed_range}"]
