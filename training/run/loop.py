"""The training loop: from a step to a step, on a trunk or on one of its branches.

One global batch is one update. Its loss and z-loss are means over all its tokens. Its balance loss, a product of two
means, is the mean over its capacity groups, in which tokens also compete for the experts' places. A micro-batch holds
whole groups, so loss, gradient and drops do not depend on how the batch is cut into micro-batches and spread over
processes, beyond the rounding of sums in another order.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch

from training.configuration.schedule import Branch, Schedule
from training.data.training_data import TrainingData
from training.run import spikes
from training.run.checkpoint import Progress
from training.run.distributed import any_process, full_tensor, sum_over_processes


class Diverged(RuntimeError):
    """Loss or gradient was not finite for too many steps in a row."""

    def __init__(self, message: str, progress: Progress):
        super().__init__(message)
        self.progress = progress


class Interrupted(RuntimeError):
    """A signal asked for a stop; a checkpoint of the last step was saved."""


@dataclass
class Session:
    """What stays the same over the trunk and its branches."""

    accelerator: object
    model: torch.nn.Module  # prepared
    optimizer: torch.optim.Optimizer  # prepared
    data: TrainingData
    schedule: Schedule
    gradient_clip: float
    balance_loss: float
    z_loss: float
    max_skipped_steps: int
    train_loss_window: float
    stop_requested: Callable[[], bool]
    before_step: Callable[[int], None] = lambda step: None  # the profiler, if there is one


@dataclass
class StepResult:
    """Sums of one step over its micro-batches, on the device; shapes as in the model's `routing`.

    Only `loss` and `gradient_norm` are read from the device at every step, in one go.
    """

    lm_loss: torch.Tensor  # this process's part of the loss
    balance_loss: torch.Tensor  # unscaled, summed over layers, mean over capacity groups
    z_loss: torch.Tensor
    tokens_per_expert: torch.Tensor | None = None  # (layers, experts), before dropping; None for a dense model
    dropped_tokens: torch.Tensor | None = None  # (layers,)
    router_entropy: torch.Tensor | None = None  # (layers,), mean over micro-batches, nats
    loss: float = math.nan  # cross-entropy, mean over the tokens of the global batch
    gradient_norm: float = math.nan  # of all processes' parameters, before clipping
    is_spike: bool = False

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.gradient_norm)


def train(
    session: Session,
    progress: Progress,
    end_step: int,
    branch: Branch | None,
    on_step: Callable[[Progress, StepResult, float], None],
    save: Callable[[Progress], None],
    checkpoint_seconds: float,
) -> None:
    """Train until `end_step` updates are made; `progress` is moved along in place.

    Args:
        branch: the branch whose decay is followed; None on the trunk.
        on_step: called after every update with the progress, the step's sums and its learning rate.
        save: writes a checkpoint; called every `checkpoint_seconds`, but not at `end_step` (the caller does).

    Raises:
        Diverged: after `session.max_skipped_steps` non-finite steps in a row.
        Interrupted: when a stop was requested, after saving.
    """
    session.model.train()
    window = LossWindow(session, branch)
    started, before, saved_at = time.monotonic(), progress.wall_seconds, time.monotonic()
    while progress.step < end_step:
        session.before_step(progress.step)
        rate = session.schedule.learning_rate(progress.step, branch)
        result = train_step(session, progress.step, rate)
        if result.is_finite:
            window.add(progress, result)
            progress.skipped_in_a_row = 0
            result.is_spike = spikes.add(progress, result.loss)
        else:
            progress.skipped_steps.append(progress.step)
            progress.skipped_in_a_row += 1
        progress.step += 1
        progress.wall_seconds = before + time.monotonic() - started
        on_step(progress, result, rate)
        if progress.skipped_in_a_row >= session.max_skipped_steps:
            in_a_row = f"{progress.skipped_in_a_row} steps in a row were not finite"
            raise Diverged(f"{in_a_row}, the last at {progress.step - 1}", progress)
        if progress.step == end_step:
            break
        # A stop asked of any process stops all after the same step; clocks differ, so the main process's one decides.
        due = session.accelerator.is_main_process and time.monotonic() - saved_at >= checkpoint_seconds
        stop, due = any_process(session.accelerator, session.stop_requested(), due)
        if stop or due:
            save(progress)
        if stop:
            raise Interrupted(f"stopped after step {progress.step}; the checkpoint is saved")
        if due:
            saved_at = time.monotonic()


def train_step(session: Session, step: int, rate: float) -> StepResult:
    """One update from one global batch; one whose loss or gradient is not finite is not taken."""
    accelerator, schedule = session.accelerator, session.schedule
    world, rank = accelerator.num_processes, accelerator.process_index
    sequences = schedule.ramp.sequences(step)
    tokens = sequences * session.data.sequence_length
    n_micro = sequences // session.data.micro_batch_sequences
    own = range(rank, n_micro, world)
    batches = session.data.micro_batches(schedule.ramp.position(step), sequences, rank, world, accelerator.device)

    result = StepResult(*(torch.zeros((), device=accelerator.device) for _ in range(3)))
    for j, (inputs, targets) in zip(own, batches, strict=True):
        # Gradients are exchanged once a step, with the last micro-batch. (Accelerate's own accumulation keeps a phase
        # counter that goes wrong when the number of micro-batches changes along the batch ramp.)
        with nullcontext() if j == own[-1] else accelerator.no_sync(session.model):
            with accelerator.autocast():
                # Without logits the cross-entropy is computed in chunks, and [tokens, vocabulary] is never held.
                out = session.model(
                    input_ids=inputs,
                    shift_labels=targets,
                    num_items_in_batch=tokens,
                    use_cache=False,
                    output_logits=False,
                )
            auxiliary = session.balance_loss * out.balance_loss + session.z_loss * out.z_loss
            # The gradient is averaged over processes, so a process's part of a mean is multiplied by their number.
            accelerator.backward((out.lm_loss + auxiliary / n_micro) * world)
        _add(result, out, n_micro)

    for group in session.optimizer.param_groups:
        group["lr"] = rate
    limit = session.gradient_clip or math.inf
    norm = full_tensor(accelerator.clip_grad_norm_(session.model.parameters(), limit))
    loss = sum_over_processes(accelerator, result.lm_loss)
    result.loss, result.gradient_norm = torch.stack([loss, norm.to(loss)]).tolist()
    if result.is_finite:
        session.optimizer.step()
    session.optimizer.zero_grad(set_to_none=True)
    return result


def _add(result: StepResult, out, n_micro: int) -> None:
    result.lm_loss += out.lm_loss.detach()
    result.balance_loss += out.balance_loss.detach() / n_micro
    result.z_loss += out.z_loss.detach() / n_micro
    if out.routing is None:
        return
    routing = out.routing
    if result.tokens_per_expert is None:
        result.tokens_per_expert = torch.zeros_like(routing.tokens_per_expert, dtype=torch.float64)
        result.dropped_tokens = torch.zeros_like(routing.dropped_tokens, dtype=torch.float64)
        result.router_entropy = torch.zeros_like(routing.router_entropy, dtype=torch.float64)
    result.tokens_per_expert += routing.tokens_per_expert
    result.dropped_tokens += routing.dropped_tokens
    result.router_entropy += routing.router_entropy / n_micro


@dataclass
class LossWindow:
    """Sums over the last share of a branch's tokens, from which the final training loss and routing are reported."""

    session: Session
    branch: Branch | None

    def starts_at(self) -> int:
        """First step of the window: at least one step is in it."""
        ramp = self.session.schedule.ramp
        first = ramp.steps(self.branch.tokens * (1 - self.session.train_loss_window))
        return min(first, self.branch.end_step - 1)

    def add(self, progress: Progress, result: StepResult) -> None:
        if self.branch is None or progress.step < self.starts_at():
            return
        accelerator = self.session.accelerator
        progress.window_steps += 1
        progress.window_loss += result.loss
        if result.tokens_per_expert is not None:
            routed = sum_over_processes(accelerator, result.tokens_per_expert)
            before = torch.tensor(progress.window_routed or 0.0, dtype=routed.dtype, device=routed.device)
            progress.window_routed = (before + routed).tolist()
            progress.window_dropped += sum_over_processes(accelerator, result.dropped_tokens).sum().item()
