"""One model on more and more GPUs: memory, layout, what limits the speed of a step, and hours and cost of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, cast

from hub.base.errors import InputError, given
from hub.base.fields import field, reads
from hub.base.tables import join_words
from hub.base.types import Fields, Strings
from hub.base.units import format_amount, format_bytes, format_count
from scaling_law.answer.answer import Answer, Row, columns_of
from scaling_law.answer.columns import format_interval
from scaling_law.formulas.law import percentile_interval
from scaling_law.machine.communication import Sent, all_to_all_bytes, communication
from scaling_law.machine.gpus import Gpu, named_gpu
from scaling_law.machine.layout import DoesNotFit
from scaling_law.planning.budget import Cluster
from scaling_law.planning.question import (
    GPU_FORMS,
    Batch,
    Counts,
    EngineName,
    Length,
    Mfu,
    Precision,
    Price,
    RunFields,
    RunTokens,
)
from scaling_law.size.architecture import Architecture
from scaling_law.size.missing import refuse_none
from scaling_law.size.model_configs import Model, read_model
from scaling_law.size.recipe import PAPER

# Sequences of a step of a model that is read, without a batch or the tokens of a run, and tokens of each: those that
# are usual of released ones.
READ_SEQUENCES = 1024
# Tokens of a run where none are given: of the shortest that ends with the paper's last batch.
TOKENS = PAPER.batch_ramp[-1].from_tokens + 1
READ_LENGTH = 4096
# Columns of a row that are None where no layout fits.
OF_LAYOUT: Strings = (
    "placement",
    "passes",
    "all_gather_bytes",
    "reduce_bytes",
    "compute_seconds",
    "communication_seconds",
    "step_seconds",
    "mfu",
    "mfu_limit",
    "bottleneck",
    "tokens_per_second",
    "hours",
    "hours_interval",
    "money",
)
# Columns of a printed row, in their order; those without a value are left out.
SHOWN: Strings = (
    "gpus",
    "memory",
    "model state",
    "layout",
    "micro-batch",
    "communication_seconds",
    "compute_seconds",
    "hours",
    "cost",
    "mfu",
    "mfu_limit",
    "bottleneck",
    "moved_by",
)


class ScaleOutRow(Row):
    """A model on `gpus` GPUs, which share batches of `batch_tokens`.

    Bytes and seconds are of one GPU and one step; None where no layout fits: those that the model state and the passes
    exchange (`all_gather_bytes`, `reduce_bytes`), and `tokens_per_second`, `step_seconds` and `mfu`.

    `placement` is the fastest layout that the engine can run. A step takes the longer of `compute_seconds` and
    `communication_seconds`, at the full speed of the links. `mfu_limit`: the MFU at which communication fills the
    step. `expert_parallel_*`: of experts divided among all GPUs. `hours` and `money` are of a run of the tokens that
    were given, with the 95 % interval of step times. `least_bytes`: of each GPU, in the layout that takes fewest.
    """


@dataclass(frozen=True, eq=False, repr=False)
class ScaleOut(Answer):
    """One row for each number of GPUs, in the order asked for; `model` is the name of one that was read.

    `tokens` are those of a run, `price` is per GPU-hour; None where they were not given.
    """

    _row: ClassVar[type[Row]] = ScaleOutRow

    architecture: Architecture
    gpu: str
    batch_tokens: int
    sequence_length: int
    model: str | None
    tokens: float | None
    price: float | None

    @property
    def verdict(self) -> str:
        size = f"{format_count(self.architecture.n_total)} parameters"
        timed = [row for row in self.rows if row.hours is not None]
        if not timed:
            return f"{size}: {self._limits}"
        spans = ", ".join(f"{format_amount(row.hours)} hours on {row.gpus} GPUs" for row in timed)
        return f"{size}, {format_count(self.tokens)} tokens: {spans}; {self._limits}"

    @property
    def _limits(self) -> str:
        """The limits of the rows, in words."""
        limits = list(dict.fromkeys(row.limited_by for row in self.rows))
        if len(limits) == 1:
            return f"limited by {limits[0]}"
        places = []
        for limit in limits:
            gpus = [str(row.gpus) for row in self.rows if row.limited_by == limit]
            places.append(f"by {limit} on {join_words(gpus)}")
        return f"limited {', '.join(places)} GPUs"

    def _lines(self) -> str:
        a = self.architecture
        name = f"{self.model}: " if self.model else ""
        experts = f"E = {a.experts}" if a.experts_per_token == 1 else f"{a.experts_per_token} of {a.experts} experts"
        size = f"{format_count(a.n_active)} active of {format_count(a.n_total)} parameters"
        largest = max(row.batch_tokens for row in self.rows)
        batches = f"{self.batch_tokens:,}" if largest == self.batch_tokens else f"{self.batch_tokens:,} to {largest:,}"
        batch = f"batches of {batches} tokens, sequences of {self.sequence_length:,}, on {self.gpu}"
        model = f"{name}d_model {a.d_model}, {a.blocks} blocks, {experts}: {size}; {batch}"
        return f"{self.verdict}\n{model}"

    def _cells(self) -> list[Fields]:
        rows = []
        for row in self.rows:
            cells = Row(row, bottleneck=row.bottleneck or row.limited_by)
            placement = row.placement
            if placement is None:
                cells["memory"] = f"{format_bytes(row.least_bytes)}: does not fit"
            else:
                memory = placement.memory
                cells["memory"] = format_bytes(memory.total)
                cells["model state"] = format_bytes(memory.weights + memory.gradients + memory.optimizer)
                cells["layout"] = placement.ways
                cells["micro-batch"] = f"{row.passes} × {placement.micro_batch_sequences}"
            if row.hours is not None:
                interval = "" if row.hours_interval is None else f" ({format_interval(row.hours_interval)})"
                cells["hours"] = f"{format_amount(row.hours)}{interval}"
            if row.money is not None:
                cells["cost"] = format_amount(row.money)
            rows.append(cells.cells(*SHOWN))
        return rows


@reads
def scale_out(
    model: Architecture | str | Path | Any,
    gpus: Annotated[Counts, field("How many, to compare. [default: 8,64]")] = (8, 64),
    gpu: Annotated[str, field(GPU_FORMS)] = "h100",
    *,
    tokens: Annotated[RunTokens | None, field("Tokens of a run, for its hours: 1T.")] = None,
    price: Price = None,
    batch: Annotated[
        Batch | None,
        field(
            "Tokens of a step: 4M. [default: as in plan; of a model that is read, without --tokens, "
            f"{READ_SEQUENCES} × 4k]",
            rare=True,
        ),
    ] = None,
    sequence_length: Annotated[
        Length | None,
        field(f"Tokens of a sequence: 4k. [default: as in plan; of a model that is read {READ_LENGTH}]", rare=True),
    ] = None,
    mfu: Mfu = None,
    precision: Precision = None,
    revision: Annotated[str | None, field("Branch, tag or commit.")] = None,
    engine: EngineName = None,
) -> ScaleOut:
    """Lay a model out on each number of GPUs as its steps are fastest; `mfu`, `precision`: `Throughput.assumed`.

    Args:
        model: an `Architecture`; or "org/model" on the Hub, a folder, a config.json, a mapping or a configuration of
            transformers, of which nothing but config.json is read.
        tokens: of a run, 1e12 or "1T", for hours; with a `price` per GPU-hour for its cost, too.
        batch, sequence_length: tokens of a step, "4M", and of a sequence, "4k". None: those of `optimal` and `plan`
            for this model and its tokens, and without these the paper's last batch, 262,144; a model that is read
            has sequences of 4,096, and without tokens 1,024 of them.
        engine: whose layouts are searched: "train.py", or "megatron", which also has tensor, pipeline and context
            parallelism and a distributed optimizer.

    ValueError for an unlisted GPU, and for GPUs that cannot share the batch equally; of a model that cannot be read as
    of `size.model_configs.read_model`.
    """
    counts = [int(count) if float(count).is_integer() else count for count in gpus]
    if not counts:
        raise InputError(f"gpus={gpus!r} must be one number or several")
    if price is not None and tokens is None:
        raise InputError(f"price={price:g} is per GPU-hour: ", given("tokens", None), " must be given, those of a run")
    refuse_none("model", model)
    source: Model | None = None
    if isinstance(model, Architecture):
        architecture = model
    else:
        source = read_model(model, revision)
        architecture = source.architecture
        sequence_length = READ_LENGTH if sequence_length is None else sequence_length
        if batch is None and tokens is None:
            batch = READ_SEQUENCES * READ_LENGTH
    sheet = named_gpu(gpu)
    run_tokens = cast(float | None, tokens)
    run: RunFields = {"batch": batch, "sequence_length": sequence_length}
    clusters = []
    for count in counts:
        cluster = Cluster.of(
            run,
            gpus=count,
            gpu=gpu,
            mfu=mfu,
            precision=precision,
            engine=engine,
            price=price,
        )
        clusters.append(cluster.of_run(architecture, run_tokens or TOKENS))
    rows = [_make_row(architecture, cluster, sheet, run_tokens) for cluster in clusters]
    return ScaleOut(
        architecture=architecture,
        gpu=sheet.name,
        columns=columns_of(rows),
        batch_tokens=min(row["batch_tokens"] for row in rows),
        sequence_length=clusters[0].ramp.sequence_length,
        model=None if source is None else source.name,
        tokens=run_tokens,
        price=clusters[0].price,
        notes=_explain(source, clusters[0], architecture),
        check=None,
    )


def _explain(source: Model | None, cluster: Cluster, architecture: Architecture) -> Strings:
    """Say what the numbers rest on, for a model that was read."""
    if source is None:
        return ()
    notes = [*source.warnings, *source.notes]
    notes.append(
        "memory is counted as for train.py's own class, the only one for which it was compared with an allocator"
    )
    return (*notes, *cluster.throughput.warnings(architecture))


def _make_row(a: Architecture, cluster: Cluster, sheet: Gpu, run_tokens: float | None) -> Fields:
    """Lay the model out on these GPUs: the fastest layout, what it exchanges, and the hours of a run."""
    gpus = cluster.gpus
    tokens = max(cluster.batches) * cluster.ramp.sequence_length
    exchange = Sent(all_to_all_bytes(a, tokens / gpus, gpus), gpus, is_ring=False)
    row: Fields = {
        **dict.fromkeys(OF_LAYOUT),
        "gpus": gpus,
        "batch_tokens": tokens,
        "expert_parallel_bytes": float(exchange.received),
        "expert_parallel_seconds": float(exchange.seconds(sheet)),
        "least_bytes": float(cluster.steps(a).least),
        "limited_by": "memory",
        "moved_by": "more GPUs, or a smaller model",
    }
    try:
        placement = cluster.place(a)
    except DoesNotFit:
        return row
    # The memory of an assumed GPU is known.
    assert placement is not None
    ideal = a.training_flops(tokens, context=cluster.ramp.sequence_length) / (gpus * sheet.peak_flops)
    passes = max(cluster.batches) // (placement.dp * placement.fsdp * placement.micro_batch_sequences)
    traffic = communication(a, placement.sharding, placement, passes, tokens / gpus, reshard=placement.reshard)
    received = {name: float(collective.received) for name, collective in traffic.items()}
    compute_seconds, communication_seconds = (sum(side.values()) for side in placement.sides)
    if run_tokens is not None:
        seconds = float(cluster.seconds(a, run_tokens))
        row["hours"] = seconds / 3600
        row["money"] = cluster.cost(seconds)
        if cluster.throughput.draws is not None:
            row["hours_interval"] = percentile_interval(cluster.seconds(a, run_tokens, drawn=True) / 3600)
    return {
        **row,
        "placement": placement,
        "passes": passes,
        "all_gather_bytes": received.get("all-gather", 0.0),
        "reduce_bytes": received.get("reduce-scatter", 0.0) + received.get("all-reduce", 0.0),
        "compute_seconds": compute_seconds,
        "communication_seconds": communication_seconds,
        "step_seconds": placement.step_seconds,
        "mfu": ideal / placement.step_seconds,
        "mfu_limit": ideal / communication_seconds if communication_seconds else None,
        "limited_by": "communication" if communication_seconds > compute_seconds else "compute",
        "bottleneck": placement.bottleneck,
        "moved_by": placement.moved_by,
        "tokens_per_second": tokens / placement.step_seconds,
    }
