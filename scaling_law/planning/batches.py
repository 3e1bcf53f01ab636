"""The batches of runs: what a user asks for, in whole sequences that GPUs share, and else functions of the run.

Without a batch it is constant: that with which the paper's ramp ends, 65,536 tokens up to 262,144, and in a run of
more FLOPs than the paper's largest that of a published law (`rates.batch`), each rounded to a power of two times what
GPUs share. Models larger than the paper's have sequences of 4,096 tokens. Neither depends on a budget, so more hours
never train a model on fewer tokens.

A batch of tokens that is asked for is rounded to sequences that micro-batches divide well: for each GPU 4 to 7 times a
power of two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from typing_extensions import Unpack

from hub.base.errors import InputError, given
from hub.base.fields import Field, reads
from hub.base.notices import Notice
from hub.base.types import Strings
from scaling_law.planning.question import RunFields
from scaling_law.rates.batch import (
    GIVEN,
    first_tokens,
    round_batch,
    round_sequences,
    source_of_batch,
    usual_length,
    usual_tokens,
)
from scaling_law.size.arrays import FloatArray
from scaling_law.size.recipe import PAPER, BatchRamp, RampStage

# More tokens than any run sees.
MOST_TOKENS = 1e18
# Share of its tokens by which a run is shorter than the first with a larger batch.
BEFORE = 1e-9


@dataclass(frozen=True)
class BatchRule:
    """The batch and sequence length of every run: what a question says, and by model and tokens what it leaves open.

    `batch` is tokens or stages, `length` tokens of a sequence; None is open, and `ramp` is all that is asked for.
    `gpus` share a batch equally; unless `needs_sequence` they may share sequences, too.
    """

    gpus: int = 1
    needs_sequence: bool = True
    batch: float | tuple[RampStage, ...] | None = None
    length: int | None = None
    ramp: BatchRamp | None = None

    @classmethod
    @reads
    def of(
        cls, gpus: Annotated[int, Field(ge=1)] = 1, needs_sequence: bool = True, **fields: Unpack[RunFields]
    ) -> BatchRule:
        """Read what a question says: a number of tokens, stages of a ramp, the text of either, or a `BatchRamp`.

        InputError names the field, the value and what is allowed.
        """
        batch: Any = fields.get("batch")
        length: Any = fields.get("sequence_length")
        if isinstance(batch, BatchRamp):
            if length not in (None, batch.sequence_length):
                own_length = f"; this batch has sequences of {batch.sequence_length} tokens"
                raise InputError(given("sequence_length", length), own_length)
            return cls(gpus, needs_sequence, ramp=batch)
        rule = cls(gpus, needs_sequence, batch, length)
        # A batch of too few tokens is refused here.
        shortest = rule.run(1.0, 1.0)
        is_open = length is None or batch is None
        return rule if is_open else cls(gpus, needs_sequence, ramp=shortest)

    @property
    def is_given(self) -> bool:
        """Whether the question says the batch."""
        return self.ramp is not None or self.batch is not None

    def lengths(self, n_active: Any) -> Any:
        """Return the tokens of a sequence of each model."""
        length = self.length if self.ramp is None else self.ramp.sequence_length
        if length is not None:
            return np.full(np.shape(n_active), length)
        lengths = usual_length(n_active)
        if isinstance(self.batch, float) and self.needs_sequence:
            # A batch too small for longer sequences on every GPU has the paper's.
            return np.where(self.batch >= self.gpus * lengths, lengths, PAPER.sequence_length)
        return lengths

    def sequences(self, n_active: Any, tokens: Any) -> FloatArray:
        """Return the sequences of the usual batch of each run, which never falls as tokens are added.

        All are 0 where the question says the batch.
        """
        if self.is_given:
            return np.zeros(np.broadcast_shapes(np.shape(n_active), np.shape(tokens)))
        counts = np.clip(np.nan_to_num(tokens), 1.0, MOST_TOKENS)
        batch_tokens = usual_tokens(n_active, counts)
        return np.asarray(round_batch(batch_tokens, self.lengths(n_active), self.gpus, self.needs_sequence))

    def first_tokens(self, n_active: Any, sequences: FloatArray) -> FloatArray:
        """Return the tokens of the shortest runs with these usual batches."""
        # Batches are rounded in their logarithm.
        first = first_tokens(n_active, sequences * self.lengths(n_active) / np.sqrt(2.0))
        least = self.sequences(n_active, np.ones(np.shape(n_active)))
        return np.where(sequences > least, first, 0.0)

    def run(self, n_active: float, tokens: float) -> BatchRamp:
        """Return the batches of one run."""
        if self.ramp is not None:
            return self.ramp
        length = int(self.lengths(n_active))
        if isinstance(self.batch, tuple):
            return BatchRamp(self.batch, length)
        if self.batch is None:
            return BatchRamp.constant(int(self.sequences(n_active, tokens)), length)
        least = length * self.gpus if self.needs_sequence else length
        if self.batch < least:
            sharers = f" for each of {self.gpus} GPUs" if least > length else ""
            least_batch = f"{least:,} tokens, one sequence of {length:,}{sharers}"
            raise InputError(f"batch={self.batch:g} must be at least {least_batch}")
        unit = self.gpus if self.batch >= length * self.gpus else 1
        share = self.batch / (length * unit)
        sequences = int(share) if share.is_integer() else round_sequences(share)
        return BatchRamp.constant(unit * sequences, length)

    def source(self, n_active: float, tokens: float) -> str:
        """Return where the batch of a run comes from."""
        return GIVEN if self.is_given else source_of_batch(n_active, tokens)

    def notes(self, n_active: float, tokens: float) -> Strings:
        """Say that a batch is larger than usual because every GPU has a sequence of it."""
        if self.is_given:
            return ()
        (stage,) = self.run(n_active, tokens).stages
        sequences = float(usual_tokens(n_active, tokens)) / int(self.lengths(n_active))
        if stage.sequences < 2 * sequences:
            return ()
        batches = f"batches of {stage.sequences:,} sequences"
        return (Notice(f"{batches}, which {self.gpus} GPUs can share, instead of {sequences:,.0f}", batches),)
