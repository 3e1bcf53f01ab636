"""Training's state between steps: position, recent losses, skipped steps and spikes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

import torch

from training.configuration.schedule import Branch
from training.run.step import Session, StepResult

# Steps to compare with.
_SPIKE_WINDOW = 128
# Least losses before anything is called a spike.
_SPIKE_LEAST = 16
_SPIKE_DEVIATIONS = 6.0
# Factor for normally distributed values.
_MAD_TO_DEVIATION = 1.4826
# Where all losses are nearly equal, a small rise is no spike: least share of the median.
_LEAST_DEVIATION = 0.002
# Last steps whose times stay.
_TIMED = 64


@dataclass
class Progress:
    """The position of training; with a checkpoint's tensors, all that is needed to resume."""

    # Number of updates; the schedule turns it into tokens, batch size and learning rate.
    step: int = 0
    # Time of training, over all resumes.
    wall_seconds: float = 0.0
    # Sums over the last share of a branch, for its final training loss and routing.
    window_steps: int = 0
    window_loss: float = 0.0
    window_routed: list[list[float]] | None = None
    window_dropped: float = 0.0
    # Steps whose loss or gradient was not finite.
    skipped_steps: list[int] = field(default_factory=list)
    skipped_in_a_row: int = 0
    # Losses of finite steps; a spike lies far above them.
    recent_losses: list[float] = field(default_factory=list)
    # Wall seconds of the last steps.
    recent_seconds: list[float] = field(default_factory=list)
    spikes: list[int] = field(default_factory=list)
    # `describe_environment` of all starts.
    environment: dict[str, list[str]] = field(default_factory=dict)

    def add_environment(self, environment: Mapping[str, str]) -> None:
        """Add the settings of this start's environment to those of the starts before."""
        for name, value in environment.items():
            values = self.environment.setdefault(name, [])
            if value not in values:
                values.append(value)

    def add_time(self, wall_seconds: float) -> None:
        """Add a step's time, given the run's total so far."""
        seconds = wall_seconds - self.wall_seconds
        self.wall_seconds = wall_seconds
        self.recent_seconds = [*self.recent_seconds, seconds][-_TIMED:]


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
    # The window has at least one step.
    if step < min(window, branch.end_step - 1):
        return
    progress.window_steps += 1
    progress.window_loss += result.loss
    if result.routing is not None:
        routed = session.total(result.routing.tokens_per_expert)
        before = torch.tensor(progress.window_routed or 0.0, dtype=routed.dtype, device=routed.device)
        progress.window_routed = (before + routed).tolist()
        progress.window_dropped += session.total(result.routing.dropped_tokens).sum().item()


def is_spike(before: list[float], loss: float) -> bool:
    """Return whether `loss` lies far above those before: above their median, in median absolute deviations.

    So earlier spikes do not hide later ones, and the steep fall at the start of training is no spike.
    """
    if len(before) < _SPIKE_LEAST:
        return False
    middle = median(before)
    deviation = _MAD_TO_DEVIATION * median(abs(value - middle) for value in before)
    return loss > middle + _SPIKE_DEVIATIONS * max(deviation, _LEAST_DEVIATION * middle)
