"""How long a training step takes on one device model: measured (`python -m training.throughput`), or assumed.

    seconds = Σ_k c_k work_k,  c_k >= 0

with the work of one device in one step (`TERMS`). An MoE takes longer than a dense model of its FLOPs because it also
reads and casts more weights for every micro-batch, updates more of them, and moves its tokens to the experts. A file
says what it was measured on, and its error on shapes left out of the fit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hub.base import strict_json
from hub.base.errors import InputError
from scaling_law.machine.gpus import MEASURED_MFU, TYPICAL_MFU, named_gpu
from scaling_law.size.architecture import VOCAB_SIZE, Architecture, variables_of_width
from scaling_law.size.recipe import PAPER

FORMAT, VERSION = "throughput", 1

TERMS: dict[str, str] = {
    "steps": "1",
    "blocks": "passes through a block: blocks × micro-batches",
    "flops": "FLOPs, three exact forward passes (`Architecture.forward_flops`)",
    "routed_flops": "the FLOPs of models with experts, once more",
    "activations": "elements between operations: tokens × blocks × d_model",
    "routing": "elements sent to experts: tokens × routed blocks × experts per token × d_model",
    "weights": "parameters for every micro-batch: N_total × micro-batches",
    "update": "parameters for every step: N_total",
}


@dataclass(frozen=True)
class ModelWork:
    """What of a model decides its step time, arrays of one shape or numbers, by token where not said otherwise.

    Attributes:
        weights: that a token is multiplied with, router and head included, embedding not.
        attention: elements of attention's scores and values by position of the context, of all blocks.
        activations: elements that a block hands on, of all blocks.
        routed: elements that are sent to experts, of all blocks; 0 for a dense model.
        n_total: all parameters of the model.
        n_active: of them what one token uses, embedding included; only to say what lies outside the measured range.
        n_blocks: blocks of the model.
    """

    weights: Any
    attention: Any
    activations: Any
    routed: Any
    n_total: Any
    n_active: Any
    n_blocks: Any

    @classmethod
    def of(cls, model: Architecture | Sequence[Architecture]) -> ModelWork:
        """Work of one architecture (numbers) or of several (arrays)."""
        if not isinstance(model, Architecture):
            each = [asdict(cls.of(one)) for one in model]
            return cls(**{name: np.array([one[name] for one in each], float) for name in each[0]})
        a, scores = model, model.forward_flops(1.0) - model.forward_flops()
        return cls(
            weights=a.forward_flops() / 2,
            attention=scores / 2,
            activations=float(a.blocks * a.d_model),
            routed=float(a.routed_blocks * a.experts_per_token * a.d_model if a.experts > 1 else 0),
            n_total=float(a.n_total),
            n_active=float(a.n_active),
            n_blocks=float(a.blocks),
        )

    @classmethod
    def by_width(
        cls, d_model: ArrayLike, experts: ArrayLike, vocab_size: float = VOCAB_SIZE, **parts: Any
    ) -> ModelWork:
        """Work under the d / 64 rule; broadcasts, d_model may be fractional; `parts` as for `variables_of_width`."""
        sizes = variables_of_width(d_model, experts, vocab_size=vocab_size, **parts)
        d, e = np.broadcast_arrays(np.asarray(d_model), np.asarray(experts))
        blocks, has_experts = d / 64, e > 1
        router = np.where(has_experts, blocks * d * e * sizes["granularity"], 0.0)
        return cls(
            weights=sizes["n_active_non_embedding"] + router + d * vocab_size,
            attention=2 * blocks * d,
            activations=blocks * d,
            routed=np.where(has_experts, blocks * d * sizes["experts_per_token"], 0.0),
            n_total=sizes["n_total"],
            n_active=sizes["n_active"] + 0.0 * e,
            n_blocks=blocks,
        )

    def in_step(
        self, tokens_per_step: ArrayLike, micro_batch_tokens: ArrayLike | None, sequence_length: int, devices: int
    ) -> dict[str, Any]:
        """The work of one device in one step, by the names of `TERMS`. Without micro-batches all is one pass."""
        tokens = np.asarray(tokens_per_step, float) / devices
        micro_batches = 1.0 if micro_batch_tokens is None else np.maximum(1.0, tokens / np.asarray(micro_batch_tokens))
        flops = 6.0 * tokens * (self.weights + sequence_length * self.attention)
        return {
            "steps": 1.0 + 0.0 * flops,
            "blocks": self.n_blocks * micro_batches,
            "flops": flops,
            "routed_flops": np.where(np.asarray(self.routed) > 0, flops, 0.0),
            "activations": tokens * self.activations,
            "routing": tokens * self.routed,
            "weights": self.n_total * micro_batches,
            "update": self.n_total,
        }


Model = Architecture | Sequence[Architecture] | ModelWork


class Measurement(NamedTuple):
    """Seconds of a step of `tokens_per_step` tokens, and bytes at the peak of one device (None: unknown)."""

    architecture: Architecture
    sequence_length: int
    tokens_per_step: int
    micro_batch_tokens: int
    step_seconds: float
    memory_bytes: float | None = None


@dataclass(frozen=True)
class Throughput:
    """Step times of one device model, at one precision.

    Attributes:
        device: its name, as the driver or the data sheet has it.
        precision: "bf16" or "fp32", that of the autocast.
        seconds: per unit of work, for some of `TERMS`; the rest takes none.
        devices: how many shared the steps that were measured, as data parallel processes.
        draws: of `seconds`, [n_draws, len(seconds)], for intervals; None if there are none.
        micro_batch_tokens: of the measurements, taken where a question names none; None where it does not matter.
        sequence_length: likewise.
        settings: what else decides the speed, such as compile and gradient_checkpointing.
        memory_bytes: of one device; None if unknown.
        error: rms of ln(predicted / measured) for shapes left out of the fit; None if nothing was left out.
        measurements: what it was fitted to.
        source: where it is from.
        is_assumed: not measured: from a data sheet and a table of MFUs.
    """

    device: str
    precision: str
    seconds: Mapping[str, float]
    devices: int = 1
    draws: NDArray[np.float64] | None = field(default=None, compare=False, repr=False)
    micro_batch_tokens: int | None = None
    sequence_length: int = PAPER.sequence_length
    settings: Mapping[str, Any] = field(default_factory=dict)
    memory_bytes: float | None = None
    error: float | None = None
    measurements: tuple[Measurement, ...] = field(default=(), repr=False)
    source: str = ""
    is_assumed: bool = False

    def __post_init__(self) -> None:
        if not (isinstance(self.device, str) and self.device):
            raise InputError(f"device={self.device!r} must be a name")
        if unknown := set(self.seconds) - set(TERMS):
            raise InputError(f"seconds: {sorted(unknown)[0]!r} is none of {', '.join(TERMS)}")
        if wrong := [name for name, value in self.seconds.items() if not 0 <= value < math.inf]:
            raise InputError(f"seconds of {wrong[0]}={self.seconds[wrong[0]]!r} must be finite and at least 0")
        if not any(self.seconds.values()):
            raise InputError("seconds: all are 0; at least one must be positive")
        if not (isinstance(self.devices, int) and self.devices >= 1):
            raise InputError(f"devices={self.devices!r} must be a whole number of at least 1")
        if self.draws is not None and (self.draws.ndim != 2 or self.draws.shape[1] != len(self.seconds)):
            raise InputError(f"draws have shape {self.draws.shape}; [n, {len(self.seconds)}] is needed")

    # -- asking

    def step_seconds(
        self,
        model: Model,
        tokens_per_step: ArrayLike,
        *,
        micro_batch_tokens: ArrayLike | None = None,
        sequence_length: int | None = None,
        devices: int | None = None,
    ) -> Any:
        """Seconds of a step of `tokens_per_step` tokens, shared by `devices` (default: as measured); broadcasts.

        `micro_batch_tokens` are those of one device and pass. Other numbers of devices than were measured are taken to
        share the tokens evenly at no cost: gradients travel as in the measurements. ValueError unless all is positive.
        """
        work = self._work(model, tokens_per_step, micro_batch_tokens, sequence_length, devices)
        seconds = sum(value * work[name] for name, value in self.seconds.items())
        return float(seconds) if np.ndim(seconds) == 0 else seconds

    def step_seconds_draws(self, model: Model, tokens_per_step: ArrayLike, **batch: Any) -> NDArray[np.float64]:
        """`step_seconds` under each of the draws, [n_draws, ...]. ValueError if there are none."""
        if self.draws is None:
            raise InputError(
                f"the throughput of {self.device} has no draws: its step times are not fitted to measurements"
            )
        work = self._work(model, tokens_per_step, **batch)
        terms = np.stack(np.broadcast_arrays(*(np.asarray(work[name], float) for name in self.seconds)))
        return np.tensordot(self.draws, terms, axes=1)

    def tokens_per_second(self, model: Model, tokens_per_step: ArrayLike, **batch: Any) -> Any:
        """Tokens per second of all devices together; arguments as of `step_seconds`."""
        return np.asarray(tokens_per_step) / self.step_seconds(model, tokens_per_step, **batch)

    def warnings(self, model: Model, devices: int | None = None) -> tuple[str, ...]:
        """How far these models, and this number of devices, lie outside what was measured."""
        if self.is_assumed:
            return (f"step times on {self.device} are assumed, not measured: {self.source}",)
        notes = []
        if devices is not None and devices != self.devices:
            notes.append(
                f"step times were measured on {self.devices} devices; {devices} are taken to share them evenly"
            )
        if self.measurements:
            work, seen = _work_of(model), ModelWork.of([m.architecture for m in self.measurements])
            for name, size in {"active": "n_active", "total": "n_total"}.items():
                most, largest = float(np.max(getattr(work, size))), float(np.max(getattr(seen, size)))
                if most > 1.01 * largest:
                    notes.append(f"{most:.3g} {name} parameters are {most / largest:.3g}x the largest that was timed")
        return tuple(notes)

    def _work(
        self,
        model: Model,
        tokens_per_step: ArrayLike,
        micro_batch_tokens: ArrayLike | None = None,
        sequence_length: int | None = None,
        devices: int | None = None,
    ) -> dict[str, Any]:
        micro = self.micro_batch_tokens if micro_batch_tokens is None else micro_batch_tokens
        length = self.sequence_length if sequence_length is None else sequence_length
        count = self.devices if devices is None else devices
        batch = {"tokens_per_step": tokens_per_step, "micro_batch_tokens": micro, "sequence_length": length}
        for name, value in (batch | {"devices": count}).items():
            if value is not None and not np.all(np.asarray(value) > 0):
                raise InputError(f"{name}={value!r} must be positive")
        return _work_of(model).in_step(tokens_per_step, micro, length, count)

    # -- where it is from

    @classmethod
    def assumed(
        cls, gpu: str = "h100", devices: int = 1, mfu: float | tuple[float, float] | None = None
    ) -> Throughput:
        """Assume step times from a data sheet and an MFU: one number, (dense, MoE), or what others measured.

        Of the measured pairs (`gpus.MEASURED_MFU`) the middle one is taken, and all are draws. ValueError for a GPU
        that is not listed, and for an MFU outside (0, 1], or higher with experts than without.
        """
        sheet, pairs = named_gpu(gpu), [(m.dense, m.moe) for m in MEASURED_MFU]
        pair = (mfu, mfu) if isinstance(mfu, (int, float)) else mfu or (TYPICAL_MFU.dense, TYPICAL_MFU.moe)
        if not 0 < pair[1] <= pair[0] <= 1:
            raise InputError(f"mfu={mfu!r} must be above 0 and at most 1, with experts no higher than without")

        def rates(dense: float, moe: float) -> tuple[float, float]:
            return 1 / (sheet.peak_flops * dense), (1 / moe - 1 / dense) / sheet.peak_flops

        said = f"MFU {pair[0]:.1%} dense, {pair[1]:.1%} with experts"
        return cls(
            device=sheet.name,
            precision="bf16",
            seconds=dict(zip(("flops", "routed_flops"), rates(*pair), strict=True)),
            devices=devices,
            draws=np.array([rates(*each) for each in pairs]) if mfu is None else None,
            memory_bytes=sheet.memory_bytes,
            source=f"{said} ({TYPICAL_MFU.source if mfu is None else 'given'}) of {sheet.peak_flops:.4g} FLOP/s",
            is_assumed=True,
        )

    # -- files

    def save(self, path: str | Path) -> Path:
        """Write a throughput.json, atomically; returns its path."""
        plain = {name: value for name, value in vars(self).items() if name not in ("draws", "measurements")}
        plain |= {"seconds": dict(self.seconds), "settings": dict(self.settings)}
        plain["measurements"] = [m._asdict() | {"architecture": m.architecture.to_dict()} for m in self.measurements]
        plain["draws"] = None if self.draws is None else self.draws.tolist()
        return strict_json.write(path, FORMAT, VERSION, plain)

    @classmethod
    def from_file(cls, path: str | Path, device: str | None = None) -> Throughput:
        """What `save` wrote. RecordError for another file or version, ValueError for one of another `device`."""
        data = strict_json.read(path, FORMAT, VERSION)
        values = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        try:
            if values.get("draws") is not None:
                values["draws"] = np.array(values["draws"], float)
            values["measurements"] = tuple(
                Measurement(**(each | {"architecture": Architecture(**each["architecture"])}))
                for each in values.get("measurements", ())
            )
            throughput = cls(**values)
        except (TypeError, ValueError, KeyError) as error:
            raise strict_json.RecordError(f"{path}: {error}") from None
        if device not in (None, throughput.device):
            raise strict_json.RecordError(f"{path}: was measured on {throughput.device!r}, not on {device!r}")
        return throughput


def _work_of(model: Model) -> ModelWork:
    return model if isinstance(model, ModelWork) else ModelWork.of(model)
