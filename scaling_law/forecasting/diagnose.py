"""Is a run as fast as it should be? `diagnose`: its MFU beside what is expected of it, and beside public runs.

Expected is the speed by the rates of public runs (`scaling_law.machine.efficiency`), and `machine/speeds.json` has
each public run with its speed over what the other runs lead to expect. A run is low where fewer than `SLOW` of the
public runs of like size are as slow by that measure (docs/studies/diagnose.md). Norms of gradients and the balance of
experts are not judged: public runs do not report them, or force them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from hub.base import strict_json
from hub.base.errors import InputError, given
from hub.base.fields import Field, Names, field, reads
from hub.base.types import Fields, Strings
from scaling_law.answer.answer import Answer, columns_of
from scaling_law.forecasting.running import read_curves
from scaling_law.formulas.law import percentile_interval
from scaling_law.law.shelf import choose_law
from scaling_law.machine import ModelWork, published_runs
from scaling_law.machine.communication import DEGREES
from scaling_law.machine.gpus import Gpu, named_gpu, read_pairs
from scaling_law.planning.limits import of_law
from scaling_law.planning.question import GPU_FORMS, Count, Length, Tokens
from scaling_law.runs.rows import whole
from scaling_law.size.architecture import Architecture
from scaling_law.size.model_configs import read_model

SPEEDS = Path(__file__).parents[1] / "machine" / "speeds.json"
FORMAT = "speeds"
VERSION = 1
Decision = Literal["normal", "low", "cannot say"]
# Public runs of like size that a run is compared with, and the share of them that is slow.
LIKE = 60
SLOW = 0.08
# Nothing is said further than this factor from the runs, of which the few at each end do not count.
OUTSIDE = 2.0
FEW = 5
# Public runs that are shown.
SHOWN = 5
# The multiple of which a vocabulary is for fast kernels, and tokens of a GPU and step below which it waits.
MULTIPLE = 64
FEW_TOKENS = 8192
# Peaks of each precision over that in bf16, on which every MFU is based.
PEAKS = {"bf16": 1.0, "fp8": 2.0, "fp4": 4.0}


class PublicRun(NamedTuple):
    """A public run.

    `weights` are the parameters that multiply a token, and `relative_speed` is its speed over that which the other
    runs lead to expect.
    """

    name: str
    gpu: str
    gpus: int
    precision: str
    has_experts: bool
    weights: float
    mfu: float
    relative_speed: float
    source: str


@dataclass(frozen=True, repr=False)
class Diagnosis(Answer):
    """A run's speed beside that of public runs: `rows` are those nearest to it in size.

    `decision` is "normal", "low" or "cannot say", for which `reason` says why. `expected_mfu` follows from the rates
    of public runs; 90 % of runs of like size would have one from `expected_low` to `expected_high`. `slower` and
    `lower_mfu` are the shares of them that were slower than that lets expect by as much, and that had a lower MFU.
    `causes` are usual ones of a low speed. `law_loss` and `peers_loss` are the losses of a law and of other runs at
    the tokens of `loss`.
    """

    _first = ("name", "mfu", "relative_speed", "gpus", "gpu")
    _details = ("weights",)

    decision: Decision
    mfu: float
    expected_mfu: float
    expected_low: float | None = None
    expected_high: float | None = None
    slower: float | None = None
    lower_mfu: float | None = None
    reason: str = ""
    causes: Strings = ()
    loss: float | None = None
    law_loss: float | None = None
    peers_loss: float | None = None

    @property
    def trusted(self) -> bool:
        return self.decision == "normal"

    @property
    def verdict(self) -> str:
        speed = f"{self.mfu:.1%} MFU, where {self.expected_mfu:.1%} is expected"
        if self.decision == "cannot say":
            text = f"cannot say: {self.reason}; {speed}"
        else:
            text = f"{self.decision}: {speed} ({self.expected_low:.1%} to {self.expected_high:.1%})"
            text += f"; {self.slower:.0%} of public runs of like size are slower by that measure"
        references = {"the law's": self.law_loss, "that of its peers": self.peers_loss}
        for of_what, loss in references.items():
            if self.loss is not None and loss is not None:
                text += f"; its loss is {self.loss / loss - 1:+.1%} off {of_what} ({loss:.3f}) at these tokens"
        return text

    def _cells(self) -> list[Fields]:
        names = ("name", "gpu", "gpus", "precision", "weights", "mfu", "relative_speed")
        return [row.cells(*names) for row in self.rows]

    def _footnotes(self) -> list[str]:
        notes = ["rows: the public runs nearest in size; speed: theirs over that which the other runs lead to expect"]
        if self.law_loss is not None:
            notes.append("the law's loss is for its corpus, tokenizer and recipe, not the run's")
        return notes

    @property
    def warnings(self) -> Strings:
        return (*self.notes, *(f"usual cause: {cause}" for cause in self.causes))


@reads
def diagnose(
    model: Any,
    *,
    tokens_per_second: Annotated[Count, field("Tokens per second of all GPUs together: 98K.")],
    gpu: Annotated[str, field(GPU_FORMS)],
    gpus: Annotated[int, Field(ge=1), field("GPUs that train together.")] = 1,
    layout: Annotated[str | None, field("How they share the model: tp=8,pp=4,ep=8.")] = None,
    precision: Annotated[Literal["bf16", "fp8", "fp4"], field("bf16, fp8 or fp4.")] = "bf16",
    sequence_length: Annotated[Length, field("Tokens of a sequence: 4k is 4,096.")] = 4096,
    batch: Annotated[Tokens | None, field("Tokens of a step: 4M.")] = None,
    loss: Annotated[float | None, Field(gt=0), field("Training loss now, in nats per token.")] = None,
    tokens: Annotated[Tokens | None, field("With --loss: the tokens trained so far: 12B.")] = None,
    law: Annotated[Any, field("With --loss: a law of this corpus, its name or folder.")] = None,
    peers: Annotated[Names, field("With --loss: logs of other runs of this model: a.csv,b.csv.")] = (),
) -> Diagnosis:
    """Say whether a run is as fast as public runs lead to expect: normal, low with usual causes, or cannot say.

    Args:
        model: an `Architecture`, the name of a released model (qwen3-30b-a3b), a folder, a config.json or org/model.

    InputError for a speed beyond the GPUs' peak, and a layout of more GPUs than there are.
    """
    architecture = model if isinstance(model, Architecture) else read_model(model).architecture
    device = named_gpu(gpu)
    speed: Any = tokens_per_second
    work = ModelWork.of(architecture)
    has_experts = bool(np.any(work.routed > 0))
    per_token = work.in_step(1.0, None, sequence_length, 1)
    mfu = float(per_token["flops"]) * speed / gpus / device.peak_flops
    if mfu > PEAKS[precision]:
        beyond = f" is {mfu:.1f} times the peak of {gpus} × {device.name} in bf16"
        raise InputError(given("tokens_per_second", tokens_per_second), beyond)
    expected_speed = gpus / published_runs().step_seconds(per_token, device, gpus, precision)
    relative_speed = speed / expected_speed
    facts: Fields = {
        "mfu": mfu,
        "expected_mfu": mfu / relative_speed,
        **_losses(architecture, loss, tokens, law, peers),
    }
    runs = [run for run in public_runs() if run.has_experts == has_experts]
    nearest = sorted(runs, key=lambda run: abs(np.log(run.weights / work.weights)))[:LIKE]
    answer: Fields = {"columns": columns_of([run._asdict() for run in nearest[:SHOWN]]), "check": None}
    reason = _reason_not_to_say(device, float(work.weights), runs)
    if reason:
        return Diagnosis("cannot say", reason=reason, **facts, **answer)
    speeds = np.array([run.relative_speed for run in nearest])
    slower = float(np.mean(speeds < relative_speed))
    decision: Decision = "low" if slower < SLOW else "normal"
    degrees = _read_layout(layout, gpus)
    low, high = percentile_interval(speeds * mfu / relative_speed, 0.9)
    return Diagnosis(
        decision,
        **facts,
        **answer,
        expected_low=float(low),
        expected_high=float(high),
        slower=slower,
        lower_mfu=float(np.mean([run.mfu < mfu for run in nearest])),
        causes=_usual_causes(architecture, device, gpus, degrees, batch) if decision == "low" else (),
    )


@cache
def public_runs() -> list[PublicRun]:
    """Read the public runs that are shipped."""
    return [PublicRun(*row) for row in strict_json.read(SPEEDS, FORMAT, VERSION)["runs"]]


def write(runs: Sequence[PublicRun], path: Path = SPEEDS) -> Path:
    """Write the file that `public_runs` reads."""
    return strict_json.write(path, FORMAT, VERSION, {"runs": [list(run) for run in runs]})


def _reason_not_to_say(gpu: Gpu, weights: float, runs: Sequence[PublicRun]) -> str:
    """Say why public runs tell nothing of this model on this GPU; nothing if they do."""
    if gpu.name not in {run.gpu for run in public_runs()}:
        return f"no public run was timed on {gpu.name}"
    sizes = sorted(run.weights for run in runs)
    if not sizes[FEW] / OUTSIDE <= weights <= sizes[-FEW] * OUTSIDE:
        return (
            f"public runs of this type have {sizes[FEW]:.2g} to {sizes[-FEW]:.2g} parameters that a token multiplies"
        )
    return ""


def _read_layout(layout: str | None, gpus: int) -> dict[str, int]:
    """Read degrees of parallelism, "tp=8,pp=4". InputError for others than there are, and for more than the GPUs."""
    fields = read_pairs(layout.strip(", ")) if layout else {}
    degrees = whole(fields, *fields)
    if degrees is None or not {*DEGREES} >= {*fields}:
        raise InputError(given("layout", layout), f" must be degrees of {', '.join(DEGREES)}, as in tp=8,pp=4")
    values = dict(zip(fields, degrees, strict=True))
    if gpus % (values.get("tp", 1) * values.get("pp", 1) * values.get("cp", 1)):
        raise InputError(given("layout", layout), f" does not divide {gpus} GPUs")
    return values


def _usual_causes(architecture: Architecture, gpu: Gpu, gpus: int, degrees: dict[str, int], batch: Any) -> Strings:
    """List usual causes of a low speed, those that the configuration shows first."""
    causes = []
    if architecture.vocab_size % MULTIPLE:
        causes.append(
            f"a vocabulary of {architecture.vocab_size:,}, no multiple of {MULTIPLE}: slow kernels in the head"
        )
    for name in ("tp", "ep"):
        if degrees.get(name, 1) > gpu.node:
            causes.append(f"{name.upper()} {degrees[name]} sends between nodes of {gpu.node} GPUs")
    if degrees.get("pp", 1) > 1:
        causes.append(f"{degrees['pp']} stages idle unless a step has several times as many micro-batches")
    if batch is not None and batch < FEW_TOKENS * gpus:
        causes.append(f"{batch / gpus:,.0f} tokens of a step for each GPU: communication is not hidden")
    if architecture.experts > 1:
        causes.append("experts multiplied one by one, not by a grouped kernel, or tokens sent by all-gather")
    causes.append("activations computed again where memory does not need it; attention without a flash kernel")
    causes.append("waiting for data, logging or checkpoints; a GPU that runs hot or is shared")
    return tuple(causes)


def _losses(
    architecture: Architecture, loss: float | None, tokens: Any, law: Any, peers: Names
) -> dict[str, float | None]:
    """Return a loss beside those of a law and of other runs at the same tokens."""
    if loss is None:
        return {}
    if tokens is None or (law is None and not peers):
        raise InputError(
            given("loss", loss), " needs ", given("tokens"), ", and ", given("law"), " or ", given("peers")
        )
    losses: dict[str, float | None] = {"loss": loss}
    if law is not None:
        formula = choose_law(law, flag="law") if isinstance(law, str) else law
        variables = {**architecture.variables(), "tokens": tokens}
        losses["law_loss"] = float(formula.loss(**of_law(formula, variables)))
    losses_of_peers: list[float] = []
    for peer in peers:
        curves = read_curves(peer, are_finished=True, n_active=architecture.n_active, schedule="constant")
        losses_of_peers += [float(np.interp(tokens, curve.tokens, curve.losses)) for curve in curves]
    if losses_of_peers:
        losses["peers_loss"] = float(np.median(losses_of_peers))
    return losses
