"""Training's state between steps: position, recent losses, skipped steps and spikes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

import torch

from training.configuration.schedule import Branch
from training.run.step import Session, StepResult

_SPIKE_WINDOW = 128  # steps to compare with
# Least losses before anything is called a spike.
_SPIKE_LEAST = 16
_SPIKE_DEVIATIONS = 6.0
# Factor for normally distributed values.
_MAD_TO_DEVIATION = 1.4826
# Where all losses are nearly equal, a small rise is no spike: least share of the median.
_LEAST_DEVIATION = 0.002
_TIMED = 64  # last steps whose times are kept


@dataclass
class Progress:
    """The position of training; with a checkpoint's tensors, all that is needed to resume."""

    step: int = 0  # updates made; the schedule turns it into tokens, batch size and learning rate
    wall_seconds: float = 0.0  # spent training, over all resumes
    window_steps: int = 0  # sums over the last share of a branch, for its final training loss and routing
    window_loss: float = 0.0
    window_routed: list[list[float]] | None = None
    window_dropped: float = 0.0
    # Steps whose loss or gradient was not finite.
    skipped_steps: list[int] = field(default_factory=list)
    skipped_in_a_row: int = 0
    # Losses of finite steps; a spike lies far above them.
    recent_losses: list[float] = field(default_factory=list)
    recent_seconds: list[float] = field(default_factory=list)  # wall seconds of the last steps
    spikes: list[int] = field(default_factory=list)
    environment: dict[str, list[str]] = field(default_factory=dict)  # `describe_environment` of all starts

    def add_environment(self, environment: Mapping[str, str]) -> None:
        """Add what the environment of this start sets to that of the starts before."""
        for name, value in environment.items():
            values = self.environment.setdefault(name, [])
            if value not in values:
                values.append(value)

    def spent(self, wall_seconds: float) -> None:
        """Add a step's time, given the run's total so far."""
        seconds = wall_seconds - self.wall_seconds
        self.wall_seconds, self.recent_seconds = wall_seconds, [*self.recent_seconds, seconds][-_TIMED:]


def count(session: Session, progress: Progress, result: StepResult, branch: Branch | None) -> None:
    """Add a step to the progress: skipped, or its loss with those before it and, at a branch's end, to its window."""
    step = progress.step
    progress.step += 1
    if not result.is_finite:
        progress.skipped_steps.append(step)
        progress.skipped_in_a_row += 1
        return
    progress.skipped_in_a_row = 0
    result.is_spike = is_spike(progress.recent_losses, result.loss)
    if result.is_spike:
        progress.spikes.append(step)
    progress.recent_losses = [*progress.recent_losses, result.loss][-_SPIKE_WINDOW:]
    if branch is None:
        return
    window = session.schedule.ramp.steps(branch.tokens * (1 - session.arguments.run.train_loss_window))
    if step < min(window, branch.end_step - 1):  # the window has at least one step
        return
    progress.window_steps += 1
    progress.window_loss += result.loss
    if result.tokens_per_expert is not None:
        routed = session.total(result.tokens_per_expert)
        before = torch.tensor(progress.window_routed or 0.0, dtype=routed.dtype, device=routed.device)
        progress.window_routed = (before + routed).tolist()
        progress.window_dropped += session.total(result.dropped_tokens).sum().item()


def is_spike(before: list[float], loss: float) -> bool:
    """Whether `loss` lies far above those before: above their median, in units of their median absolute deviation.

    So earlier spikes do not hide later ones, and the steep fall at the start of training is no spike.
    """
    if len(before) < _SPIKE_LEAST:
        return False
    middle = median(before)
    deviation = _MAD_TO_DEVIATION * median(abs(value - middle) for value in before)
    return loss > middle + _SPIKE_DEVIATIONS * max(deviation, _LEAST_DEVIATION * middle)
