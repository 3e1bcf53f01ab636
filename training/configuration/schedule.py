"""Learning rate and branch points as pure functions of the step (Ludziejewski et al. 2025, section 4.1).

Runs that differ only in their tokens are equal until the shortest begins to decay. They share a *trunk* at constant
learning rate, and each is a *branch* that leaves it where its decay begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hub.base.errors import InputError
from scaling_law.size.recipe import BatchRamp


@dataclass(frozen=True)
class Branch:
    """One run of a trunk: where it leaves the trunk, where it ends, and its true token count.

    Attributes:
        target_tokens: the configured tokens of the run.
        decay_step: the first step of the decay; the trunk is shared before it.
        end_step: the number of steps.
        branch_point_tokens: tokens trained before `decay_step`.
        tokens: tokens trained at the end: whole steps, at most `target_tokens`.
    """

    target_tokens: int
    decay_step: int
    end_step: int
    branch_point_tokens: int
    tokens: int


@dataclass(frozen=True)
class Schedule:
    """Learning rate, batch and length of a run, all from the step alone.

    The rate rises linearly from 0 over `warmup_tokens`, is `peak`, and falls linearly to 0 over the last
    `decay_fraction` (in (0, 1)) of a run's tokens.
    """

    ramp: BatchRamp
    warmup_tokens: int
    decay_fraction: float
    peak: float

    def branch(self, target_tokens: int) -> Branch:
        """Find where a run of `target_tokens` tokens leaves the trunk and where it ends.

        Raises ValueError if fewer than two steps fit, or the decay would begin before the warm-up is over.
        """
        end_step = self.ramp.steps(target_tokens)
        if end_step < 2:
            step = self.ramp.sequences(0) * self.ramp.sequence_length
            raise InputError(f"schedule.tokens: {target_tokens}; it must be at least 2 steps of {step} tokens")
        tokens = self.ramp.tokens(end_step)
        decay_step = min(self.ramp.steps(tokens * (1 - self.decay_fraction)), end_step - 1)
        branch_point_tokens = self.ramp.tokens(decay_step)
        if branch_point_tokens < self.warmup_tokens:
            raise InputError(
                f"schedule.warmup_tokens: {self.warmup_tokens}; it must be at most {branch_point_tokens}, where the "
                f"decay of the run of {target_tokens} tokens begins"
            )
        return Branch(target_tokens, decay_step, end_step, branch_point_tokens, tokens)

    def learning_rate(self, step: int, branch: Branch | None = None) -> float:
        """Return the learning rate of the update made at this step; without a branch, that of the trunk.

        The last of n decay updates has rate peak / n; the paper's runs make one more step, of rate 0.
        """
        tokens = self.ramp.tokens(step)
        if tokens < self.warmup_tokens:
            return self.peak * tokens / self.warmup_tokens
        if branch is None or step < branch.decay_step:
            return self.peak
        decay_tokens = branch.tokens - branch.branch_point_tokens
        return self.peak * max(branch.tokens - tokens, 0) / decay_tokens


def total_tokens(branches: Sequence[Branch]) -> int:
    """Count the tokens of a trunk with these branches: those up to its last branch point, and those of every decay."""
    trunk = max(branch.branch_point_tokens for branch in branches)
    return trunk + sum(branch.tokens - branch.branch_point_tokens for branch in branches)
