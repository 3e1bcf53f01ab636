"""One model on more and more GPUs: memory, communication in a step, and which of them limits the speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hub.base.tables import Table
from hub.base.units import format_bytes, format_count
from scaling_law.formulas.answers import Answer
from scaling_law.machine.communication import all_to_all_bytes, all_to_all_seconds, communication
from scaling_law.machine.gpus import Gpu, named_gpu
from scaling_law.machine.layout import DoesNotFit, Placement
from scaling_law.machine.throughput import ModelWork, Throughput
from scaling_law.planning.budget import Cluster
from scaling_law.size.architecture import Architecture
from scaling_law.size.recipe import PAPER, BatchRamp, RampStage


@dataclass(frozen=True)
class ScaleOutRow:
    """A model on `gpus` GPUs. Bytes and seconds are of one GPU and one step; None where no layout fits.

    A step takes the longer of `compute_seconds` and `communication_seconds`, at the full speed of the links.
    `mfu_limit`: the MFU at which communication alone fills the step. `expert_parallel_*`: of sending tokens to experts
    instead of gathering the experts' weights.
    """

    gpus: int
    expert_parallel_bytes: float
    expert_parallel_seconds: float
    placement: Placement | None = None
    passes: int | None = None
    all_gather_bytes: float | None = None
    reduce_bytes: float | None = None
    compute_seconds: float | None = None
    communication_seconds: float | None = None
    step_seconds: float | None = None
    mfu: float | None = None
    mfu_limit: float | None = None
    limited_by: str = "memory"


@dataclass(frozen=True)
class ScaleOut(Answer):
    """One row for each number of GPUs, in the order asked for."""

    architecture: Architecture
    gpu: str
    batch_tokens: int
    rows: tuple[ScaleOutRow, ...]

    @property
    def verdict(self) -> str:
        limits = (f"{row.gpus} by {row.limited_by}" for row in self.rows)
        return f"{format_count(self.architecture.n_total)} parameters on GPUs, limited on {', '.join(limits)}"

    def summary(self) -> Table:
        a = self.architecture
        title = f"d_model {a.d_model}, {a.blocks} blocks, E = {a.experts}: {format_count(a.n_active)} active of "
        title += f"{format_count(a.n_total)} parameters; batches of {self.batch_tokens:,} tokens on {self.gpu}"
        return Table.of([_cells(row) for row in self.rows], title=f"{self.verdict}\n{title}")


def _cells(row: ScaleOutRow) -> dict[str, str]:
    def cell(value: float | None, text: str) -> str:
        return "" if value is None else text.format(value)

    placed = row.placement
    memory = None if placed is None else placed.memory
    return {
        "GPUs": str(row.gpus),
        "memory": "does not fit" if memory is None else format_bytes(memory.total),
        "model state": "" if memory is None else format_bytes(memory.weights + memory.gradients + memory.optimizer),
        "how": "" if placed is None else placed.sharding.upper() + ", recomputed" * placed.gradient_checkpointing,
        "micro-batch": "" if placed is None else f"{row.passes} × {placed.micro_batch_sequences}",
        "all-gather": "" if row.all_gather_bytes is None else format_bytes(row.all_gather_bytes),
        "reduce-scatter": "" if row.reduce_bytes is None else format_bytes(row.reduce_bytes),
        "communication": cell(row.communication_seconds, "{:.2g} s"),
        "compute": cell(row.compute_seconds, "{:.2g} s"),
        "MFU": cell(row.mfu, "{:.1%}"),
        "at most": cell(row.mfu_limit, "{:.0%}"),
        "limited by": row.limited_by,
        "all-to-all instead": format_bytes(row.expert_parallel_bytes) + f", {row.expert_parallel_seconds:.2g} s",
    }


def scale_out(
    architecture: Architecture,
    gpus: Sequence[int] = (8, 64),
    gpu: str = "h100",
    *,
    batch_sequences: int = PAPER.batch_ramp[-1].sequences,
    sequence_length: int = PAPER.sequence_length,
    mfu: float | tuple[float, float] | None = None,
    precision: str | None = None,
) -> ScaleOut:
    """This model on each number of GPUs, laid out as its steps are fastest; `mfu`, `precision`: `Throughput.assumed`.

    ValueError for an unlisted GPU, and for GPUs that cannot share the batch equally.
    """
    sheet, ramp = named_gpu(gpu), BatchRamp((RampStage(0, batch_sequences),), sequence_length)
    throughput = Throughput.assumed(gpu, mfu=mfu, precision=precision or "bf16")
    rows = (_row(architecture, Cluster(count, throughput, ramp=ramp), sheet) for count in gpus)
    return ScaleOut(architecture, sheet.name, batch_sequences * sequence_length, tuple(rows), check=None)


def _row(a: Architecture, cluster: Cluster, sheet: Gpu) -> ScaleOutRow:
    layouts, gpus, tokens = cluster.layouts, cluster.gpus, cluster.ramp.last_batch_tokens(0)
    sent = all_to_all_bytes(a, tokens / gpus, gpus)
    row = ScaleOutRow(gpus, sent, all_to_all_seconds(sent, gpus, sheet))
    try:
        placed = layouts.place(a)
    except DoesNotFit:
        return row
    (batch,) = layouts.batches
    passes = batch // (gpus * placed.micro_batch_sequences)
    traffic = communication(a, placed.sharding, gpus, passes)
    work = ModelWork.of(a)
    step = layouts.steps(work)
    compute, exchange = float(step.slowdown * layouts.compute(work, batch)), float(step.communication[0])
    ideal = a.training_flops(tokens, context=layouts.sequence_length) / (gpus * sheet.peak_flops)
    return replace(
        row,
        placement=placed,
        passes=passes,
        all_gather_bytes=traffic.all_gather,
        reduce_bytes=traffic.reduce_scatter + traffic.all_reduce,
        compute_seconds=compute,
        communication_seconds=exchange,
        step_seconds=max(compute, exchange),
        mfu=ideal / max(compute, exchange),
        mfu_limit=ideal / exchange if exchange else None,
        limited_by="communication" if exchange > compute else "compute",
    )
