"""What a sweep will cost before it is run: FLOPs, tokens, time, memory, disk, and what sharing trunks saves."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from hub.plain.units import format_bytes, format_count
from scaling_law.size.architecture import ADAM_BYTES, GRADIENT_BYTES
from training.sweep.file import Sweep, SweepRun
from training.sweep.state import format_seconds, measured_flops_per_second, state, trained_tokens

MODEL_BYTES = 4.0  # per parameter of a finished model: fp32
LEFT_OUT = "activations, logits, 16-bit copies under autocast, buffers of communication, and the allocator's reserve"


@dataclass(frozen=True)
class BranchPlan:
    """One measurement of a trunk. Tokens as trained (whole steps) and as asked for; it leaves the trunk at a point."""

    target_tokens: int
    tokens: int
    steps: int
    branch_point_tokens: int


@dataclass(frozen=True)
class RunPlan:
    """One trunk with its branches.

    Attributes:
        tokens, training_flops: of the trunk to the last branch point and of every decay.
        separate_tokens, separate_flops: of the same branches as runs of their own.
        capacity_group_tokens: that capacity and balance loss are counted over; None where nothing is routed.
        memory_bytes: per device: fp32 weights, gradients and AdamW's moments; what `LEFT_OUT` names comes on top.
        disk_bytes: at most, while it runs: the checkpoint of every branch point, the newest and one being written,
            and the finished models.
        vocab_assumed: the tokenizer is not at hand, and sizes are those with GPT-2's vocabulary.
        seconds: to train all of it; None where no speed is known.
    """

    name: str
    d_model: int
    n_blocks: int
    n_heads: int
    experts: int
    vocab_size: int
    vocab_assumed: bool
    n_active: int
    n_total: int
    branches: tuple[BranchPlan, ...]
    tokens: int
    training_flops: float
    separate_tokens: int
    separate_flops: float
    capacity_group_tokens: int | None
    memory_bytes: float
    disk_bytes: float
    seconds: float | None
    state: str
    share_done: float


@dataclass(frozen=True)
class SweepPlan:
    """The runs of a sweep and their sums.

    Attributes:
        flops_per_second: of one run, on all of its devices together; None where unknown.
        speed_source: where that number is from.
        seconds: of all runs one after the other; divide by the runs at a time.
        shards: devices that a model is cut up over.
    """

    sweep: str
    runs: tuple[RunPlan, ...]
    flops_per_second: float | None
    speed_source: Literal["given", "measured", "unknown"]
    shards: int
    tokens: int
    training_flops: float
    separate_tokens: int
    separate_flops: float
    disk_bytes: float
    seconds: float | None

    @property
    def saved(self) -> float:
        """Share of the FLOPs that shared trunks save."""
        return 1 - self.training_flops / self.separate_flops

    def to_dict(self) -> dict:
        """Plain JSON values."""
        return asdict(self) | {"saved": self.saved, "memory_leaves_out": LEFT_OUT}


def plan_sweep(sweep: Sweep, flops_per_second: float | None = None, shards: int = 1) -> SweepPlan:
    """The plan of a sweep.

    Args:
        flops_per_second: sustained FLOP/s of one run (peak of its devices times the MFU); without it, what the
            finished or running runs of this sweep have shown.
        shards: devices that weights, gradients and moments are cut up over (FSDP); 1 for one device or DDP.
    """
    measured = None if flops_per_second else measured_flops_per_second(sweep)
    source: Literal["given", "measured", "unknown"] = (
        "given" if flops_per_second else "measured" if measured else "unknown"
    )
    speed = flops_per_second or measured
    runs = tuple(_plan(run, speed, shards) for run in sweep.runs)
    return SweepPlan(
        sweep=sweep.name,
        runs=runs,
        flops_per_second=speed,
        speed_source=source,
        shards=shards,
        tokens=sum(run.tokens for run in runs),
        training_flops=sum(run.training_flops for run in runs),
        separate_tokens=sum(run.separate_tokens for run in runs),
        separate_flops=sum(run.separate_flops for run in runs),
        disk_bytes=sum(run.disk_bytes for run in runs),
        seconds=sum(run.training_flops for run in runs) / speed if speed else None,
    )


def _plan(run: SweepRun, speed: float | None, shards: int) -> RunPlan:
    arch = run.architecture
    checkpoints = len({branch.decay_step for branch in run.branches}) + 2
    checkpoint_bytes = ADAM_BYTES * arch.n_total
    return RunPlan(
        name=run.name,
        d_model=arch.d_model,
        n_blocks=arch.blocks,
        n_heads=arch.heads,
        experts=arch.experts,
        vocab_size=arch.vocab_size,
        vocab_assumed=run.assumes_vocabulary,
        n_active=arch.n_active,
        n_total=arch.n_total,
        branches=tuple(
            BranchPlan(branch.target_tokens, branch.tokens, branch.end_step, branch.branch_point_tokens)
            for branch in run.branches
        ),
        tokens=run.target_tokens,
        training_flops=run.cost,
        separate_tokens=run.separate_tokens,
        separate_flops=arch.training_flops(run.separate_tokens),
        capacity_group_tokens=run.arguments.model.capacity_group_tokens if arch.experts > 1 else None,
        memory_bytes=(ADAM_BYTES + GRADIENT_BYTES) * arch.n_total / shards,
        disk_bytes=checkpoints * checkpoint_bytes + MODEL_BYTES * arch.n_total * len(run.branches),
        seconds=run.cost / speed if speed else None,
        state=state(run),
        share_done=trained_tokens(run) / run.target_tokens,
    )


def plan_table(sweep: Sweep, plan: SweepPlan | None = None):
    """A rich table of the runs: parameters, branches, FLOPs, time, memory and disk, with the sums below."""
    from rich.table import Table

    plan = plan or plan_sweep(sweep)
    table = Table(title=f"sweep {plan.sweep}: {len(plan.runs)} trunks", show_footer=True, caption=_caption(plan))
    columns = {
        "run": "total",
        "N_act": "",
        "N_total": "",
        "branches (tokens)": str(sum(len(run.branches) for run in plan.runs)),
        "tokens trained": format_count(plan.tokens),
        "FLOPs": f"{plan.training_flops:.3g}",
        "time": "unknown" if plan.seconds is None else format_seconds(plan.seconds),
        "memory": "",
        "disk": format_bytes(plan.disk_bytes),
        "state": "",
    }
    for heading, total in columns.items():
        left = heading == "run"
        # a narrow terminal folds numbers: cut short they would mislead
        table.add_column(heading, total, justify="left" if left else "right", no_wrap=left, overflow="fold")
    for run in plan.runs:
        begun = run.state in ("waiting", "running") and run.share_done
        table.add_row(
            run.name,
            format_count(run.n_active),
            format_count(run.n_total),
            ", ".join(format_count(branch.target_tokens) for branch in run.branches),
            format_count(run.tokens),
            f"{run.training_flops:.3g}",
            "unknown" if run.seconds is None else format_seconds(run.seconds),
            format_bytes(run.memory_bytes),
            format_bytes(run.disk_bytes),
            run.state + (f" {run.share_done:.0%}" if begun else ""),
        )
    return table


def _caption(plan: SweepPlan) -> str:
    saved = f"trunks shared by branches save {plan.saved:.0%} of the FLOPs of separate runs "
    lines = [f"{saved}({plan.training_flops:.3g} instead of {plan.separate_flops:.3g})"]
    if plan.flops_per_second:
        lines.append(f"time: at {plan.flops_per_second:.3g} FLOP/s for a run ({plan.speed_source}), one run at a time")
    else:
        lines.append("time: unknown before a run has shown its speed; or give --flops-per-second")
    groups = sorted({run.capacity_group_tokens for run in plan.runs if run.capacity_group_tokens})
    if len(groups) > 1:
        sizes = ", ".join(f"{group:,}" for group in groups)
        lines.append(f"capacity groups: {sizes} tokens; set model.capacity_group_tokens for runs that compare")
    if any(run.vocab_assumed for run in plan.runs):
        lines.append("sizes: with GPT-2's vocabulary, since a tokenizer is not at hand")
    lines.append(f"memory: fp32 weights, gradients and AdamW on each of {plan.shards} devices, without {LEFT_OUT}")
    return "\n".join(lines)
