"""One model on more and more GPUs: memory, communication in a step, and which of them limits the speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hub.base.errors import InputError
from hub.base.tables import Table
from hub.base.units import format_bytes, format_count
from scaling_law.formulas.answers import Answer
from scaling_law.machine.communication import NVLINK, all_to_all_bytes, all_to_all_seconds, communication
from scaling_law.machine.gpus import find_gpu, named_gpu
from scaling_law.machine.throughput import Throughput
from scaling_law.planning.budget import Cluster
from scaling_law.planning.placement import Placement, fits, place
from scaling_law.size.architecture import Architecture
from scaling_law.size.recipe import PAPER, BatchRamp, RampStage


@dataclass(frozen=True)
class ScaleOutRow:
    """A model on `gpus` GPUs. Bytes and seconds are of one GPU and one step; None where nothing fits.

    `compute_seconds` are at the MFU assumed, `communication_seconds` at the full speed of the links; compute hides
    communication at best. `mfu_limit`: at which communication alone takes the whole step. `expected_mfu`: the MFU
    assumed, or less where communication takes longer than such a step. `expert_parallel_*`: of sending tokens to
    experts instead of gathering the experts' weights.
    """

    gpus: int
    compute_seconds: float
    mfu: float
    expert_parallel_bytes: float
    expert_parallel_seconds: float
    placement: Placement | None = None
    passes: int | None = None
    all_gather_bytes: float | None = None
    reduce_bytes: float | None = None
    communication_seconds: float | None = None
    mfu_limit: float | None = None
    expected_mfu: float | None = None
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
        "compute": f"{row.compute_seconds:.2g} s",
        "MFU": cell(row.expected_mfu, "{:.1%}"),
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
) -> ScaleOut:
    """This model on each number of GPUs, with the largest micro-batch that fits; MFU as for `Throughput.assumed`.

    ValueError for an unlisted GPU, and for GPUs that cannot share the batch equally.
    """
    sheet, ramp = named_gpu(gpu), BatchRamp((RampStage(0, batch_sequences),), sequence_length)
    if (link := next((speed for name, speed in NVLINK.items() if find_gpu(name) == sheet), None)) is None:
        raise InputError(f"gpu={gpu!r}: link speed unknown; give one of {', '.join(NVLINK)}")
    throughput = Throughput.assumed(gpu, mfu=mfu)
    rows = (_row(architecture, Cluster(count, throughput, ramp=ramp), sheet.peak_flops, link) for count in gpus)
    return ScaleOut(architecture, sheet.name, batch_sequences * sequence_length, tuple(rows), check=None)


def _row(a: Architecture, cluster: Cluster, peak_flops: float, link: float) -> ScaleOutRow:
    (stage,), length, gpus = cluster.ramp.stages, cluster.ramp.sequence_length, cluster.gpus
    tokens = stage.sequences * length
    seconds = float(cluster.throughput.step_seconds(a, tokens, sequence_length=length, devices=gpus))
    ideal = a.training_flops(tokens, context=length) / (gpus * peak_flops)
    mfu, sent = ideal / seconds, all_to_all_bytes(a, tokens / gpus, gpus)
    row = ScaleOutRow(gpus, seconds, mfu, sent, all_to_all_seconds(sent, gpus, link))
    placed = place(a, cluster) if fits(a, cluster) else None
    if placed is None:
        return row
    passes = stage.sequences // (gpus * placed.micro_batch_sequences)
    traffic = communication(a, placed.sharding, gpus, passes)
    limit = ideal / slowest if (slowest := traffic.seconds(gpus, link)) else None
    return replace(
        row,
        placement=placed,
        passes=passes,
        all_gather_bytes=traffic.all_gather,
        reduce_bytes=traffic.reduce_scatter + traffic.all_reduce,
        communication_seconds=slowest,
        mfu_limit=limit,
        expected_mfu=min(mfu, limit or 1.0),
        limited_by="communication" if limit is not None and limit < mfu else "compute",
    )
