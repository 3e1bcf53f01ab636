"""Batch ramp, learning rate and branch points as pure functions of the step (Ludziejewski et al. 2025, section 4.1).

Nothing here keeps state, so nothing here can be restored wrongly: the step count alone says how many tokens have been
seen, how large the next batch is and what the learning rate is.

A *run* of D tokens warms up linearly, stays at the peak, and decays linearly to zero over its last `decay_fraction`.
Runs of one size that differ only in D are equal until the shortest begins to decay, so they share a *trunk* at
constant learning rate, and each D is a *branch* that leaves the trunk where its decay begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class RampStage:
    """From `from_tokens` training tokens on, a global batch has `sequences` sequences."""

    from_tokens: int
    sequences: int


class BatchRamp:
    """The global batch size as a function of the step.

    Stage boundaries are given in tokens and rounded down to whole steps by adding up the stages' lengths in
    (fractional) steps, which is how the authors' runs count: 128 sequences of 512 tokens to 0.5B tokens, 256 to 1B and
    512 from there on change at steps 7629 and 11444. So the second stage ends 13,824 tokens after 1B, and a run of 1B
    tokens has 11443 steps.
    """

    def __init__(self, stages: list[RampStage], sequence_length: int):
        if not stages:
            raise ValueError("batch_ramp: got no stage; give at least one, such as '0:512'")
        starts = [stage.from_tokens for stage in stages]
        if starts[0] != 0:
            raise ValueError(f"batch_ramp: the first stage starts at {starts[0]} tokens; it must start at 0")
        if any(later <= earlier for earlier, later in pairwise(starts)):
            raise ValueError(f"batch_ramp: stages start at {starts} tokens; each must start after the one before")
        if any(stage.sequences < 1 for stage in stages):
            raise ValueError(f"batch_ramp: sequences {[s.sequences for s in stages]}; each must be at least 1")
        self.stages = tuple(stages)
        self.sequence_length = sequence_length
        # (first step, sequences seen before it) of every stage
        self._starts: list[tuple[int, int]] = [(0, 0)]
        exact_steps = 0.0
        for stage, following in pairwise(stages):
            exact_steps += (following.from_tokens - stage.from_tokens) / (stage.sequences * sequence_length)
            first_step, seen = self._starts[-1]
            self._starts.append((int(exact_steps), seen + (int(exact_steps) - first_step) * stage.sequences))

    def _stage_of_step(self, step: int) -> int:
        return max(i for i, (first_step, _) in enumerate(self._starts) if first_step <= step)

    def sequences(self, step: int) -> int:
        """Sequences in the global batch of this step."""
        return self.stages[self._stage_of_step(step)].sequences

    def position(self, step: int) -> int:
        """Sequences seen before this step: where its batch begins in the data order."""
        stage = self._stage_of_step(step)
        first_step, seen = self._starts[stage]
        return seen + (step - first_step) * self.stages[stage].sequences

    def tokens(self, step: int) -> int:
        """Training tokens seen before this step."""
        return self.position(step) * self.sequence_length

    def steps(self, tokens: float) -> int:
        """Whole steps that fit into this many tokens: the largest n with tokens(n) <= tokens."""
        # Rounded: a share of a token count, such as 0.8 * 40960, may come out just under the whole number it is.
        sequences = int(round(tokens, 3) // self.sequence_length)
        first_step, seen, stage = max(
            (first_step, seen, i) for i, (first_step, seen) in enumerate(self._starts) if seen <= sequences
        )
        return first_step + (sequences - seen) // self.stages[stage].sequences


@dataclass(frozen=True)
class Branch:
    """One run of a trunk: where it leaves the trunk, where it ends, and its name and true token count."""

    target_tokens: int  # as asked for
    decay_step: int  # the first step of the decay; the trunk is shared before it
    end_step: int
    branch_point_tokens: int  # seen before decay_step
    tokens: int  # seen at the end: whole steps, at most target_tokens


@dataclass(frozen=True)
class Schedule:
    """Learning rate, batch and length of a run, all from the step alone.

    Args:
        ramp: the batch ramp.
        warmup_tokens: tokens of linear warm-up; the first step has learning rate 0, as in the authors' runs.
        decay_fraction: the share of a run's tokens over which the rate goes linearly to 0, in (0, 1).
        peak: the constant learning rate between them.
    """

    ramp: BatchRamp
    warmup_tokens: int
    decay_fraction: float
    peak: float

    def branch(self, target_tokens: int) -> Branch:
        """Where a run of `target_tokens` tokens leaves the trunk and where it ends.

        Raises:
            ValueError: fewer than two steps fit, or the decay would begin before the warm-up is over.
        """
        end_step = self.ramp.steps(target_tokens)
        if end_step < 2:
            raise ValueError(
                f"schedule.tokens: {target_tokens} tokens are {end_step} steps; at least 2 steps of "
                f"{self.ramp.sequences(0) * self.ramp.sequence_length} tokens are needed"
            )
        tokens = self.ramp.tokens(end_step)
        decay_step = min(self.ramp.steps(tokens * (1 - self.decay_fraction)), end_step - 1)
        branch_point_tokens = self.ramp.tokens(decay_step)
        if branch_point_tokens < self.warmup_tokens:
            raise ValueError(
                f"schedule.warmup_tokens: {self.warmup_tokens} tokens of warm-up end after the decay of the run of "
                f"{target_tokens} tokens begins ({branch_point_tokens}); allowed are at most {branch_point_tokens}"
            )
        return Branch(target_tokens, decay_step, end_step, branch_point_tokens, tokens)

    def learning_rate(self, step: int, branch: Branch | None = None) -> float:
        """Learning rate of the update made at this step; without a branch, that of the trunk.

        In a decay of n steps the last update has rate peak / n, not 0: the paper's runs execute one more step, whose
        rate is 0 and which therefore changes nothing.
        """
        tokens = self.ramp.tokens(step)
        if tokens < self.warmup_tokens:
            return self.peak * tokens / self.warmup_tokens
        if branch is None or step < branch.decay_step:
            return self.peak
        decay_tokens = branch.tokens - branch.branch_point_tokens
        return self.peak * max(branch.tokens - tokens, 0) / decay_tokens
