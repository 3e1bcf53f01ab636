"""One model on more and more GPUs: memory, communication in a step, and which of them limits the speed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from hub.base.errors import InputError
from hub.base.inputs import reads
from hub.base.tables import Table
from hub.base.units import format_bytes, format_count
from scaling_law.formulas.answers import Answer
from scaling_law.machine.communication import Sent, all_to_all_bytes, communication
from scaling_law.machine.gpus import Gpu, named_gpu
from scaling_law.machine.layout import DoesNotFit, Placement
from scaling_law.machine.throughput import Throughput
from scaling_law.planning.budget import Cluster
from scaling_law.size.architecture import Architecture
from scaling_law.size.recipe import PAPER, BatchRamp, RampStage


@dataclass(frozen=True)
class ScaleOutRow:
    """A model on `gpus` GPUs. Bytes and seconds are of one GPU and one step; None where no layout fits.

    `placement` is the fastest layout that `train.py` can run, and `megatron` that of engines which also have tensor,
    pipeline and context parallelism. A step takes the longer of `compute_seconds` and `communication_seconds`, at the
    full speed of the links. `mfu_limit`: the MFU at which communication alone fills the step. `expert_parallel_*`: of
    experts divided among all GPUs.
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
    bottleneck: str | None = None
    moved_by: str = "more GPUs, or a smaller model"
    megatron: Placement | None = None
    megatron_step_seconds: float | None = None
    megatron_mfu: float | None = None


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
    other = None if row.megatron is None else row.megatron.faster_than(placed)
    return {
        "GPUs": str(row.gpus),
        "memory": "does not fit" if memory is None else format_bytes(memory.total),
        "model state": "" if memory is None else format_bytes(memory.weights + memory.gradients + memory.optimizer),
        "train.py": "" if placed is None else placed.ways,
        "micro-batch": "" if placed is None else f"{row.passes} × {placed.micro_batch_sequences}",
        "communication": cell(row.communication_seconds, "{:.2g} s"),
        "compute": cell(row.compute_seconds, "{:.2g} s"),
        "MFU": cell(row.mfu, "{:.1%}"),
        "at most": cell(row.mfu_limit and min(row.mfu_limit, 1.0), "{:.0%}"),
        "limited by": row.bottleneck or row.limited_by,
        "moved by": row.moved_by,
        "Megatron-like": f"{other.ways}, MFU {row.megatron_mfu:.1%}" if other else "",
    }


@reads
def scale_out(
    architecture: Architecture,
    gpus: int | Sequence[int] = (8, 64),
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
    if not (counts := [gpus] if isinstance(gpus, int) else [*gpus]):
        raise InputError(f"gpus={gpus!r} must be one number or several")
    sheet, ramp = named_gpu(gpu), BatchRamp((RampStage(0, batch_sequences),), sequence_length)
    throughput = Throughput.assumed(gpu, mfu=mfu, precision=precision or "bf16")
    rows = (_row(architecture, Cluster(count, throughput, ramp), sheet) for count in counts)
    return ScaleOut(architecture, sheet.name, batch_sequences * sequence_length, tuple(rows), check=None)


def _row(a: Architecture, cluster: Cluster, sheet: Gpu) -> ScaleOutRow:
    gpus, tokens = cluster.gpus, cluster.ramp.last_batch_tokens(0)
    sent = Sent(all_to_all_bytes(a, tokens / gpus, gpus), gpus, is_ring=False)
    ideal = a.training_flops(tokens, context=cluster.ramp.sequence_length) / (gpus * sheet.peak_flops)
    row = ScaleOutRow(gpus, float(sent.received), float(sent.seconds(sheet)))
    if other := _placed(a, cluster.elsewhere):
        step = other.step_seconds
        row = replace(row, megatron=other, megatron_step_seconds=step, megatron_mfu=ideal / step)
    if (placed := _placed(a, cluster)) is None:
        return row
    passes = cluster.batches[0] // (placed.dp * placed.fsdp * placed.micro_batch_sequences)
    traffic = communication(a, placed.sharding, placed, passes, tokens / gpus, reshard=placed.reshard)
    received = {name: float(each.received) for name, each in traffic.items()}
    step, (computing, exchange) = placed.step_seconds, (sum(side.values()) for side in placed.sides)
    return replace(
        row,
        placement=placed,
        passes=passes,
        all_gather_bytes=received.get("all-gather", 0.0),
        reduce_bytes=received.get("reduce-scatter", 0.0) + received.get("all-reduce", 0.0),
        compute_seconds=computing,
        communication_seconds=exchange,
        step_seconds=step,
        mfu=ideal / step,
        mfu_limit=ideal / exchange if exchange else None,
        limited_by="communication" if exchange > computing else "compute",
        bottleneck=placed.bottleneck,
        moved_by=placed.moved_by,
    )


def _placed(a: Architecture, cluster: Cluster | None) -> Placement | None:
    with suppress(DoesNotFit):
        return None if cluster is None else cluster.place(a)
    return None
