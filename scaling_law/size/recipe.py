"""The paper's runs (Ludziejewski et al. 2025): recipe, sizes and token counts, without losses.

`PAPER` is Section "Model Hyperparameters", with the values of both text and code where they differ, and the source of
all defaults. `ROWS` is Appendix "Experiments Listing": 53 rows, 270 runs.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hub.base.errors import InputError
from hub.base.units import parse_count
from scaling_law.size.architecture import Architecture
from scaling_law.size.arrays import FloatArray, IntArray

# Of one batch: far more than any run has, and few enough to list the ways to cut it.
MOST_SEQUENCES = 10**10


@dataclass(frozen=True)
class RampStage:
    """Global batch of `sequences` sequences from `from_tokens` training tokens on."""

    from_tokens: int
    sequences: int


def parse_stages(texts: Sequence[str], field: str = "batch_ramp") -> tuple[RampStage, ...]:
    """Read stages of a batch ramp, such as "0:128" and "0.5B:256": from so many tokens on, so many sequences."""
    stages = []
    for text in texts:
        start, colon, sequences = text.partition(":")
        try:
            counts = (parse_count(start), parse_count(sequences))
        except ValueError:
            counts = (math.nan, math.nan)
        if not (colon and all(count.is_integer() for count in counts)):
            example = "it must be stages from_tokens:sequences, such as 0:128 0.5B:256"
            raise InputError(f"{field}: {[*texts]}; {example}")
        stages.append(RampStage(*map(int, counts)))
    return tuple(stages)


class BatchRamp:
    """The global batch size as a function of the step, for sequences of `sequence_length` tokens (section 4.1).

    As in the authors' runs, stage lengths add up in fractional steps, and a boundary is the sum rounded down: 128
    sequences of 512 tokens to 0.5B tokens, 256 to 1B, then 512 change at steps 7629 and 11444.
    """

    def __init__(self, stages: Sequence[RampStage], sequence_length: int) -> None:
        if not stages:
            raise InputError("batch_ramp: no stages; give at least one, such as '0:512'")
        starts = [stage.from_tokens for stage in stages]
        if starts[0] != 0:
            raise InputError(f"batch_ramp: the first stage starts at {starts[0]} tokens; it must start at 0")
        if any(later <= earlier for earlier, later in pairwise(starts)):
            raise InputError(f"batch_ramp: stages start at {starts} tokens; each must start after the one before")
        if sequence_length < 1:
            raise InputError(f"sequence_length={sequence_length!r} must be at least 1")
        if not all(1 <= stage.sequences <= MOST_SEQUENCES for stage in stages):
            sizes = [stage.sequences for stage in stages]
            raise InputError(f"batch_ramp: sequences {sizes}; each must be at least 1 and at most 1e10")
        self.stages = tuple(stages)
        self.sequence_length = sequence_length
        # First step of every stage, and the sequences before it.
        self._starts: list[tuple[int, int]] = [(0, 0)]
        exact_steps = 0.0
        for stage, following in pairwise(stages):
            tokens = following.from_tokens - stage.from_tokens
            exact_steps += tokens / (stage.sequences * sequence_length)
            first_step, sequences = self._starts[-1]
            steps = int(exact_steps) - first_step
            self._starts.append((int(exact_steps), sequences + steps * stage.sequences))

    @classmethod
    def constant(cls, sequences: int, sequence_length: int) -> BatchRamp:
        """Make the batch of a run that has no ramp."""
        return cls((RampStage(0, sequences),), sequence_length)

    def _stage_of_step(self, step: int) -> int:
        """Return the number of the stage in which a step lies."""
        return bisect_right(self._starts, step, key=itemgetter(0)) - 1

    def sequences(self, step: int) -> int:
        return self.stages[self._stage_of_step(step)].sequences

    def position(self, step: int) -> int:
        """Count the sequences before this step: the place where its batch begins in the data order."""
        stage = self._stage_of_step(step)
        first_step, sequences = self._starts[stage]
        return sequences + (step - first_step) * self.stages[stage].sequences

    def tokens(self, step: int) -> int:
        """Count the training tokens before this step."""
        return self.position(step) * self.sequence_length

    def steps(self, tokens: float) -> int:
        """Find the largest n with tokens(n) <= tokens."""
        # A share such as 0.8 * 40960 may come out just under a whole number.
        sequences = int(round(tokens, 3) // self.sequence_length)
        stage = bisect_right(self._starts, sequences, key=itemgetter(1)) - 1
        first_step, before = self._starts[stage]
        return first_step + (sequences - before) // self.stages[stage].sequences

    def last_batch_tokens(self, tokens: float) -> int:
        """Count the tokens of the last batch of a run of `tokens` tokens."""
        last_step = max(0, self.steps(tokens) - 1)
        return self.sequences(last_step) * self.sequence_length


@dataclass(frozen=True)
class Recipe:
    """A training recipe, with balance and z-loss summed over layers.

    `learning_rate` holds (intercept, slope of ln N, slope of ln E) of the peak rate, as the runs used it ("code") and
    as the text prints it ("paper").
    """

    sequence_length: int = 512
    batch_ramp: tuple[RampStage, ...] = (RampStage(0, 128), RampStage(500_000_000, 256), RampStage(1_000_000_000, 512))
    warmup_tokens: int = 130_000_000
    decay_fraction: float = 0.2
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    decay_all: bool = True
    gradient_clip: float = 0.1
    capacity_factor: float = 1.0
    balance_loss: float = 0.01
    z_loss: float = 0.001
    dataset: str = "HuggingFaceFW/fineweb-edu"
    tokenizer: str = "openai-community/gpt2"
    experts: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    learning_rate: dict[str, tuple[float, float, float]] = field(
        default_factory=lambda: {"code": (8.391640956, -0.8121798244, -0.25), "paper": (8.39, -0.81, -0.25)}
    )


PAPER = Recipe()


class Row(NamedTuple):
    """One line of the listing as printed, tokens in billions; eight have heads of 128 dimensions (blocks ≠ heads)."""

    n_total: str
    n_heads: int
    n_blocks: int
    d_model: int
    n_active: str
    experts: int
    tokens: tuple[float, ...]

    @property
    def architecture(self) -> Architecture:
        return Architecture(self.d_model, self.experts, self.n_blocks, self.n_heads)


# Each line of the file has the fields of a row in their order.
_LISTING = json.loads(Path(__file__).with_name("paper_runs.json").read_text(encoding="utf-8"))
ROWS = tuple(Row._make([*sizes, tuple(tokens)]) for *sizes, tokens in _LISTING)


class Design(NamedTuple):
    """Columns of one entry per run; runs of one model share a trunk."""

    n_active: FloatArray
    tokens: FloatArray
    experts: FloatArray
    trunk: IntArray


def published_design() -> Design:
    """List the 270 runs of the paper."""
    trunks: dict[Architecture, int] = {}
    rows = []
    for row in ROWS:
        architecture = row.architecture
        trunk = trunks.setdefault(architecture, len(trunks))
        for billions in row.tokens:
            rows.append((architecture.n_active, billions * 1e9, row.experts, trunk))
    n_active, tokens, experts, trunk_ids = np.array(rows, float).T
    return Design(n_active, tokens, experts, trunk_ids.astype(int))
