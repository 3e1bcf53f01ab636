"""The batch ramp: batch size and tokens seen as functions of the step (Ludziejewski et al. 2025, section 4.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class RampStage:
    """From `from_tokens` training tokens on, a global batch has `sequences` sequences."""

    from_tokens: int
    sequences: int


class BatchRamp:
    """The global batch size as a function of the step, for sequences of `sequence_length` tokens.

    Stage boundaries are given in tokens and rounded down to whole steps by adding up the stages' lengths in
    (fractional) steps, which is how the authors' runs count: 128 sequences of 512 tokens to 0.5B tokens, 256 to 1B and
    512 from there on change at steps 7629 and 11444. So the second stage ends 13,824 tokens after 1B, and a run of 1B
    tokens has 11443 steps.
    """

    def __init__(self, stages: Sequence[RampStage], sequence_length: int) -> None:
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
