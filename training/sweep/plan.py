"""The cost of a sweep before it runs: FLOPs, tokens, time, memory, disk, and the savings of shared trunks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from hub.base.tables import Summarised, Table
from hub.base.types import Fields, Strings
from hub.base.units import format_bytes, format_count, format_flops
from scaling_law.machine.layout import DoesNotFit, Placement
from scaling_law.machine.memory import saved_bytes
from scaling_law.planning.budget import Cluster
from scaling_law.planning.question import ClusterFields
from scaling_law.size.architecture import GRADIENT_BYTES
from training.configuration.schedule import Branch
from training.run.checkpoint import most_at_a_time
from training.run.model import check_rate
from training.sweep.file import Sweep, SweepRun
from training.sweep.status import State, format_seconds, measured_flops_per_second, state, trained_tokens

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Bytes per parameter of a finished model in fp32.
MODEL_BYTES = 4.0
LEFT_OUT = "activations, logits, 16-bit copies under autocast, buffers of communication, and the allocator's reserve"
_SUMS = ("tokens", "training_flops", "separate_tokens", "separate_flops", "disk_bytes")


@dataclass(frozen=True)
class RunPlan:
    """One trunk with its branches.

    Attributes:
        vocab_assumed: the tokenizer is not on this machine, and sizes are those with GPT-2's vocabulary.
        tokens, training_flops: of the trunk to the last branch point and of every decay.
        separate_tokens, separate_flops: of the same branches as runs of their own.
        capacity_group_tokens: that capacity and balance loss are counted over; None where nothing is routed.
        memory_bytes: per device: at the peak of a step, if the GPUs are known; else fp32 weights, gradients and
            the optimizer's state, and what `LEFT_OUT` names comes on top.
        disk_bytes: at most, for checkpoints and finished models.
        seconds: to train all of it; None where no speed is known, and infinite where it does not fit the GPUs.
        placement: the layout and micro-batch that these rest on; None without GPUs that are known.
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
    branches: tuple[Branch, ...]
    tokens: int
    training_flops: float
    separate_tokens: int
    separate_flops: float
    capacity_group_tokens: int | None
    memory_bytes: float
    disk_bytes: float
    seconds: float | None
    state: State
    share_done: float
    placement: Placement | None = None

    @classmethod
    def of(cls, run: SweepRun, placement: Placement | None, seconds: float | None) -> RunPlan:
        """Plan a run that takes so many seconds, laid out so, or else whole on each device."""
        arch = run.architecture
        separate_tokens = sum(branch.tokens for branch in run.branches)
        models = len(run.branches) + len(run.arguments.run.release_tokens)
        checkpoint_bytes = saved_bytes(arch.n_total, arch.n_total_non_embedding, run.arguments.optimizer.name)
        state_bytes = checkpoint_bytes + GRADIENT_BYTES * arch.n_total
        disk_bytes = most_at_a_time(run.branches) * checkpoint_bytes + models * MODEL_BYTES * arch.n_total
        return cls(
            name=run.name,
            **arch.shape,
            vocab_size=arch.vocab_size,
            vocab_assumed=run.vocab_size is None,
            n_active=arch.n_active,
            n_total=arch.n_total,
            branches=tuple(run.branches),
            tokens=run.target_tokens,
            training_flops=run.cost,
            separate_tokens=separate_tokens,
            separate_flops=arch.training_flops(separate_tokens),
            capacity_group_tokens=run.arguments.model.capacity_group_tokens if arch.experts > 1 else None,
            memory_bytes=placement.memory.total if placement else state_bytes,
            disk_bytes=disk_bytes,
            seconds=seconds,
            state=state(run),
            share_done=trained_tokens(run) / run.target_tokens,
            placement=placement,
        )


@dataclass(frozen=True, repr=False)
class SweepPlan(Summarised):
    """Runs of a sweep and their sums. `timed_by` says what their seconds rest on: None where they are unknown."""

    sweep: str
    runs: tuple[RunPlan, ...]
    timed_by: str | None
    cost: float | None

    def total(self, quantity: str) -> float:
        """Add up tokens, training_flops, separate_tokens, separate_flops or disk_bytes of the runs."""
        return sum(getattr(run, quantity) for run in self.runs)

    @property
    def seconds(self) -> float | None:
        """Time of all runs one after the other; divide by the number of simultaneous runs."""
        return self.total("seconds") if self.timed_by else None

    @property
    def saved(self) -> float:
        """Share of the FLOPs that shared trunks save."""
        return 1 - self.total("training_flops") / self.total("separate_flops")

    def to_dict(self) -> Fields:
        """Return plain JSON values."""
        return {
            **asdict(self),
            **{name: self.total(name) for name in _SUMS},
            "seconds": self.seconds,
            "saved": self.saved,
            "memory_leaves_out": LEFT_OUT,
        }

    def summary(self) -> Table:
        """Tabulate the runs: parameters, branches, FLOPs, time, memory and disk, with the sums below."""
        branches = sum(len(run.branches) for run in self.runs)
        total = (
            "total",
            "",
            "",
            str(branches),
            format_count(self.total("tokens")),
            format_flops(self.total("training_flops")),
            format_seconds(self.seconds),
            "",
            format_bytes(self.total("disk_bytes")),
            "",
        )
        return Table(
            ("run", "N_act", "N_total", "branches", "tokens trained", "FLOPs", "time", "memory", "disk", "state"),
            [_table_row(run) for run in self.runs],
            title=f"sweep {self.sweep}: {len(self.runs)} trunks",
            total=total,
            notes=self.notes(),
        )

    def notes(self) -> list[str]:
        """Explain the numbers."""
        flops = format_flops(self.total("training_flops"))
        separate = format_flops(self.total("separate_flops"))
        notes = [
            f"shared trunks save {self.saved:.0%} of the FLOPs of separate runs ({flops} instead of {separate})",
            self._note_of_time(),
        ]
        too_large = [run.name for run in self.runs if run.seconds == math.inf]
        if too_large:
            notes.append(f"do not fit these GPUs: {', '.join(too_large)}")
        groups = sorted({run.capacity_group_tokens for run in self.runs if run.capacity_group_tokens})
        if len(groups) > 1:
            sizes = ", ".join(f"{group:,}" for group in groups)
            notes.append(f"capacity groups: {sizes} tokens; set model.capacity_group_tokens to compare runs")
        if any(run.vocab_assumed for run in self.runs):
            notes.append("sizes: with GPT-2's vocabulary, since a tokenizer is not on this machine")
        if any(run.placement for run in self.runs):
            return [*notes, "memory: at the peak of a step, in the fastest layout of those that fit"]
        return [*notes, f"memory: fp32 weights, gradients and the optimizer's state, unsharded; without {LEFT_OUT}"]

    def _note_of_time(self) -> str:
        if not self.timed_by:
            return "time: unknown until a run has been timed; pass --gpu and --gpus, or --throughput, to estimate it"
        has_cost = self.cost is not None and self.cost != math.inf
        cost = f"; cost: {self.cost:,.0f}" if has_cost else ""
        return f"time: {self.timed_by}, one run at a time{cost}"


def _table_row(run: RunPlan) -> Strings:
    progress = f" {run.share_done:.0%}" if 0 < run.share_done < 1 else ""
    return (
        run.name,
        format_count(run.n_active),
        format_count(run.n_total),
        ", ".join(format_count(branch.target_tokens) for branch in run.branches),
        format_count(run.tokens),
        format_flops(run.training_flops),
        format_seconds(run.seconds),
        str(run.placement) if run.placement else format_bytes(run.memory_bytes),
        format_bytes(run.disk_bytes),
        run.state + progress,
    )


def plan_sweep(sweep: Sweep, **gpus: Unpack[ClusterFields]) -> SweepPlan:
    """Plan a sweep whose runs train on these GPUs, one at a time; without any, at the speed measured in it.

    Args:
        sweep: what to plan.
        gpus: `gpu`, `gpus`, `throughput`, `mfu`, `precision` and `price`, as `law.optimal` takes them.

    ValueError names a field and what is allowed, as where GPUs cannot share a batch, or a law has no learning rate.
    """
    for run in sweep.runs:
        check_rate(run.arguments, run.architecture)
    layouts: Sequence[tuple[Placement | None, float | None]] = [(None, None)] * len(sweep.runs)
    timed_by: str | None = None
    cost: float | None = None
    if any(value is not None for value in gpus.values()):
        cluster = Cluster.of(**gpus)
        layouts = [_estimate_seconds(run, cluster) for run in sweep.runs]
        timed_by = str(cluster)
        cost = cluster.cost(sum(seconds or 0.0 for _, seconds in layouts))
    else:
        speed = measured_flops_per_second(sweep)
        if speed:
            layouts = [(None, run.cost / speed) for run in sweep.runs]
            timed_by = f"{format_flops(speed)} FLOP/s, measured in this sweep"
    plans = [RunPlan.of(run, *layout) for run, layout in zip(sweep.runs, layouts, strict=True)]
    return SweepPlan(sweep.name, tuple(plans), timed_by, cost)


def _estimate_seconds(run: SweepRun, cluster: Cluster) -> tuple[Placement | None, float]:
    """Find the layout of a run and its seconds, to the trunk's last branch point and of every decay.

    The seconds are infinite where no layout fits.
    """
    # `train.py` rounds no batch up.
    cluster = cluster.with_ramp(run.arguments.batch_ramp())
    try:
        placement = cluster.place(run.architecture)
    except DoesNotFit:
        return None, math.inf
    tokens = [(branch.branch_point_tokens, branch.tokens) for branch in run.branches]
    branch_points, run_ends = cluster.seconds(run.architecture, tokens).T
    return placement, float(branch_points.max() + (run_ends - branch_points).sum())
