"""How long a training step takes on one device model: measured (`python -m training.throughput`), or assumed.

    seconds = Σ_k c_k work_k,  c_k >= 0

with the work of one device in one step (`TERMS`): an MoE takes longer than a dense model of its FLOPs because it also
reads, casts and updates more weights, and moves its tokens to the experts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hub.base import strict_json
from hub.base.errors import InputError
from hub.base.inputs import LARGEST, as_it_is, numbers_of, optional, reads
from hub.base.tables import literal
from scaling_law.machine.efficiency import SMALL, published_runs
from scaling_law.machine.gpus import SHEET, named_gpu
from scaling_law.size.architecture import Architecture, Span
from scaling_law.size.missing import refuse_none
from scaling_law.size.recipe import PAPER
from scaling_law.size.widths import Widths

FORMAT, VERSION = "throughput", 1
DRAWN = ("draws", "small_draws")  # fields that are arrays
OUTSIDE = 2.0  # times a vocabulary or a batch beyond those that were timed, at which it is named
SHAPES = {"vocab_size": ("a vocabulary", OUTSIDE), "d_model": ("a d_model", 1.0), "experts": ("E", 1.0)}  # likewise

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


@dataclass(frozen=True)
class ModelWork:
    """What of a model decides its step time, arrays of one shape or numbers, by token where not said otherwise.

    Attributes:
        weights: that a token is multiplied with, router and head included, embedding not.
        attention: elements of attention's scores and values by position of the context, of all blocks that attend to
            every position.
        activations: elements that a block hands on, of all blocks.
        routed: elements that are sent to experts, of all blocks; 0 for a dense model.
        n_total: all parameters of the model.
        n_active: of them what one token uses, embedding included; only to say what lies outside the measured range.
        n_blocks: blocks of the model.
        bounded: pairs of a span of other blocks (windows, selections, states) and its elements by entry.
    """

    weights: Any
    attention: Any
    activations: Any
    routed: Any
    n_total: Any
    n_active: Any
    n_blocks: Any
    bounded: tuple[tuple[Span, Any], ...] = ()

    @classmethod
    def of(cls, model: Architecture | Widths | Sequence[Architecture]) -> ModelWork:
        """Work of one architecture (numbers), or of several (arrays)."""
        refuse_none("model", model)
        if isinstance(model, Sequence) and not isinstance(model, str):
            each = [cls.of(one) for one in model]
            if not each:
                raise InputError("model=[] must be an Architecture, or several")
            names = [f.name for f in fields(cls) if f.name != "bounded"]
            numbers = {name: np.array([getattr(work, name) for work in each]) for name in names}
            of_model = np.eye(len(each))  # elements of one model alone
            bounded = [(span, of_model[i] * size) for i, work in enumerate(each) for span, size in work.bounded]
            return cls(**numbers, bounded=tuple(bounded))
        if not hasattr(model, "forward_flops"):
            raise InputError(f"model={model!r} must be an Architecture, or several")
        a = model
        products = [(Span(1), 2.0 * a.blocks * a.d_model)] if isinstance(a, Widths) else _products(a)
        sent = a.routed_blocks * a.experts_per_token * a.d_model
        return cls(
            weights=a.forward_flops() / 2,
            attention=sum(size for span, size in products if span.sees_all),
            activations=1.0 * a.blocks * a.d_model,
            routed=1.0 * np.where(np.asarray(a.experts) > 1, sent, 0.0),
            n_total=1.0 * a.n_total,
            n_active=1.0 * a.n_active,
            n_blocks=1.0 * a.blocks,
            bounded=tuple((span, size) for span, size in products if not span.sees_all),
        )

    def in_step(
        self, tokens_per_step: ArrayLike, micro_batch_tokens: ArrayLike | None, sequence_length: int, devices: int
    ) -> dict[str, Any]:
        """The work of one device in one step, by the names of `TERMS`. Without micro-batches all is one pass."""
        tokens = np.asarray(tokens_per_step, float) / devices
        micro_batches = 1.0 if micro_batch_tokens is None else np.maximum(1.0, tokens / np.asarray(micro_batch_tokens))
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
            "weights": self.n_total * micro_batches,
            "update": self.n_total,
        }


def _products(a: Architecture) -> list[tuple[Span, float]]:
    """Pair each span with the elements of one of its entries, of all its blocks."""
    return [(span, 1.0 * span.blocks * (span.multiplied or 0)) for span in a.all_spans]


Model = Architecture | Widths | Sequence[Architecture] | ModelWork


class Measurement(NamedTuple):
    """Seconds of a step of `tokens_per_step` tokens, and bytes at the peak of one device (None: unknown)."""

    architecture: Architecture
    sequence_length: int
    tokens_per_step: int
    micro_batch_tokens: int
    step_seconds: float
    memory_bytes: float | None = None


@reads
@dataclass(frozen=True)
class Throughput:
    """Step times of one device model, at one precision.

    Attributes:
        device: its name, as the driver or the data sheet has it.
        precision: "bf16" or "fp32", that of the autocast; "fp8" or "fp4" only where assumed.
        seconds: per unit of work, for some of `TERMS`; the rest takes none.
        devices: how many shared the steps that were measured, as data parallel processes.
        draws: of `seconds`, [n_draws, len(seconds)], for intervals; None if there are none.
        small_draws: with them, of the power of `SMALL` / weights in the seconds of smaller models, [n_draws], or None.
        micro_batch_tokens: of the measurements, taken where a question names none; None where it does not matter.
        sequence_length: likewise.
        settings: what else decides the speed, such as compile and gradient_checkpointing.
        memory_bytes: of one device; None if unknown.
        error: rms of ln(predicted / measured) for shapes left out of the fit; None if nothing was left out.
        measurements: what it was fitted to.
        source: where it is from.
        is_assumed: not measured: from a data sheet and public runs, or a given MFU.
        node, growth, overhead: of more than `node` devices, seconds of a step grow with the number of nodes to the
            power of `growth`, and a whole run takes that number to the power of `overhead` times its steps.
    """

    device: str
    precision: str
    seconds: Mapping[str, float]
    devices: int = 1
    draws: NDArray[np.float64] | None = field(default=None, compare=False, repr=False)
    small_draws: NDArray[np.float64] | None = field(default=None, compare=False, repr=False)
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

    @reads(tokens_per_step=numbers_of, micro_batch_tokens=optional(numbers_of))
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
        seconds = sum(value * work[name] for name, value in self.seconds.items()) * self._nodes(devices) ** self.growth
        return float(seconds) if np.ndim(seconds) == 0 else seconds

    def step_seconds_draws(self, model: Model, tokens_per_step: ArrayLike, **batch: Any) -> NDArray[np.float64]:
        """`step_seconds` under each of the draws, [n_draws, ...]. ValueError if there are none."""
        if self.draws is None:
            raise InputError(
                f"the throughput of {self.device} has no draws: its step times are not fitted to measurements"
            )
        work = self._work(model, tokens_per_step, **batch)
        terms = np.stack(np.broadcast_arrays(*(np.asarray(work[name], float) for name in self.seconds)))
        seconds = np.tensordot(self.draws, terms, axes=1) * self._nodes(batch.get("devices")) ** self.growth
        if self.small_draws is None:
            return np.asarray(seconds)
        below = np.log(np.maximum(SMALL / np.broadcast_to(_work_of(model).weights, terms.shape[1:]), 1.0))
        return np.asarray(seconds * np.exp(np.multiply.outer(self.small_draws, below)))

    def warnings(
        self, model: Model, devices: int | None = None, tokens_per_step: float | None = None
    ) -> tuple[str, ...]:
        """How far these models, this number of devices and a step's tokens on each lie outside what was measured."""
        if self.is_assumed:
            wider = (
                "" if self.draws is None else "; they are of other code than train.py, and intervals are wider for it"
            )
            other = "" if self.precision == "bf16" else f"; train.py has no {self.precision}: other engines take them"
            return (f"step times on {self.device} are assumed, not measured: {self.source}{wider}{other}",)
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
            for name, (said, factor) in SHAPES.items():
                timed = [getattr(m.architecture, name) for m in self.measurements]
                notes += _outside(said, timed, getattr(model, name, None), factor)
            tokens = [m.tokens_per_step / self.devices for m in self.measurements]
            notes += _outside("tokens of a step on one device", tokens, tokens_per_step, OUTSIDE)
        return tuple(notes)

    def overhead_of(self, devices: int) -> float:
        """How many times the seconds of its steps a whole run on these devices takes."""
        return float(self._nodes(devices) ** self.overhead)

    def _nodes(self, devices: int | None) -> float:
        return max(1.0, (self.devices if devices is None else devices) / self.node)

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
            if value is not None and not np.all((np.asarray(value) >= 1 / LARGEST) & (np.asarray(value) <= LARGEST)):
                raise InputError(f"{name}={literal(value)} must be positive and finite")
        return _work_of(model).in_step(tokens_per_step, micro, length, count)

    # -- where it is from

    @classmethod
    @reads(gpu=as_it_is, mfu=as_it_is)
    def assumed(
        cls,
        gpu: str = "h100",
        devices: int = 1,
        mfu: float | tuple[float, float] | None = None,
        precision: str = "bf16",
    ) -> Throughput:
        """Estimate step times from a data sheet and rates of public runs (`efficiency`), or from an MFU that is given.

        `mfu` is one number, or (dense, MoE). ValueError for a GPU that is not listed, a precision that it does not
        have, and an MFU outside (0, 1], or higher with experts than without.
        """
        sheet = named_gpu(gpu)
        if precision not in sheet.precisions:
            raise InputError(f"precision={precision!r}: {sheet.name} computes in {', '.join(sheet.precisions)}")
        about: dict[str, Any] = {"device": sheet.name, "devices": devices, "memory_bytes": sheet.memory_bytes}
        about |= {"is_assumed": True, "node": sheet.node, "precision": precision}
        if mfu is None:
            fit = published_runs()
            return cls(
                **about,
                seconds=fit.seconds(sheet, precision),
                draws=fit.draws(sheet, precision),
                small_draws=fit.small_draws,
                growth=fit.growth,
                overhead=fit.overhead,
                source=f"rates of {fit.runs} public runs and benchmarks of {fit.labs} labs, by {sheet.basis}",
            )
        given = tuple(mfu) if isinstance(mfu, (tuple, list)) else (mfu, mfu)
        if len(given) != 2 or not all(isinstance(one, (int, float)) and 0 < one <= 1 for one in given):
            raise InputError(f"mfu={mfu!r} must be above 0 and at most 1, or two such numbers, (dense, with experts)")
        if (dense := given[0]) < (moe := given[1]):
            raise InputError(f"mfu={mfu!r} must be no higher with experts than without")
        rates = {"flops": 1 / (sheet.peak_flops * dense), "routed_flops": (1 / moe - 1 / dense) / sheet.peak_flops}
        said = f"MFU {dense:.1%} dense, {moe:.1%} with experts (given) of {sheet.peak_flops:.4g} FLOP/s"
        said += "" if sheet.basis == SHEET else f", by {sheet.basis}"
        return cls(**about, seconds=rates, source=said)

    # -- files

    def save(self, path: str | Path) -> Path:
        """Write a throughput.json, atomically; returns its path."""
        plain = {
            name: value.tolist() if name in DRAWN and value is not None else value
            for name, value in vars(self).items()
        }
        plain |= {"seconds": dict(self.seconds), "settings": dict(self.settings)}
        plain["measurements"] = [m._asdict() | {"architecture": m.architecture.to_dict()} for m in self.measurements]
        return strict_json.write(path, FORMAT, VERSION, plain)

    @classmethod
    def from_file(cls, path: str | Path, device: str | None = None) -> Throughput:
        """What `save` wrote. RecordError for another file or version, ValueError for one of another `device`."""
        data = strict_json.read(path, FORMAT, VERSION)
        values = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        try:
            values |= {name: np.array(values[name], float) for name in DRAWN if values.get(name) is not None}
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


def _outside(name: str, timed: Sequence[float], values: Any, factor: float) -> list[str]:
    """A note where one of the values (None: unknown) is more than `factor` times outside of those that were timed."""
    low, high = min(timed), max(timed)
    outside = [v for v in np.ravel(values) if v is not None and not low / factor <= v <= factor * high]
    spanned = " to ".join(dict.fromkeys(f"{end:,.0f}" for end in (low, high)))
    return [f"{name} ({outside[-1]:,.0f}) outside those that were timed, {spanned}"] if outside else []
