"""The batches of a run: what a user asks for, in whole sequences that GPUs share.

Without a batch they are the paper's, 65,536 tokens that grow to 262,144, rounded up to what GPUs share in
micro-batches of one size. A run of more FLOPs than the paper's largest, for which its recipe is not meant, has
sequences of 4,096 tokens in a batch by a published law (`rates.batch`). A batch of tokens is rounded to sequences that
micro-batches divide well: for each GPU 4 to 7 times a power of two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hub.base.errors import InputError, given
from hub.base.units import parse_context
from scaling_law.formulas.law import one_positive
from scaling_law.planning.question import RunFields, parse_field
from scaling_law.rates.batch import (
    DEFAULT_LAW,
    GIVEN,
    LONG_SEQUENCE,
    OF_PAPER,
    batch_of,
    largest_paper_run,
    round_sequences,
)
from scaling_law.size.recipe import PAPER, BatchRamp, RampStage

if TYPE_CHECKING:
    from typing_extensions import Unpack


# More tokens in a sequence than any model reads.
LONGEST_SEQUENCE = 10**9
PAPER_RAMP = BatchRamp(PAPER.batch_ramp, PAPER.sequence_length)


def read_ramp(gpus: Any = 1, needs_sequence: bool = True, **fields: Unpack[RunFields]) -> BatchRamp:
    """Read the batches of a run, and the length of its sequences, for so many GPUs.

    `batch` is a number of tokens, stages of a ramp, or the text of either; a `BatchRamp` is taken as it is. Unless
    `needs_sequence`, GPUs may share sequences, and a batch may have fewer of these than GPUs. InputError names the
    field, the value and what is allowed.
    """
    batch = fields.get("batch")
    length = _read_length(fields.get("sequence_length"))
    if isinstance(batch, BatchRamp):
        if length not in (None, batch.sequence_length):
            own_length = f"; this batch has sequences of {batch.sequence_length} tokens"
            raise InputError(given("sequence_length", length), own_length)
        return batch
    length = PAPER.sequence_length if length is None else length
    # `Cluster` refuses another number of GPUs.
    sharers = gpus if isinstance(gpus, int) and gpus > 0 else 1
    if batch is None:
        return BatchRamp(paper_stages(length, sharers), length)
    value = parse_field("batch", batch) if isinstance(batch, str) else batch
    if isinstance(value, Sequence):
        if not all(isinstance(stage, RampStage) for stage in value):
            raise InputError(given("batch", batch), " must be tokens, such as 4M, or stages such as 0:128,0.5B:256")
        return BatchRamp(tuple(value), length)
    sequences = _round_batch(one_positive("batch", value), length, sharers, needs_sequence)
    return BatchRamp((RampStage(0, sequences),), length)


def recommend_ramp(
    run: RunFields, flops: float, tokens: float, gpus: int = 1, needs_sequence: bool = True
) -> BatchRamp | None:
    """Return the batches of a run larger than the paper's, as far as the question leaves them open; else None."""
    batch = run.get("batch")
    length = _read_length(run.get("sequence_length"))
    if flops <= largest_paper_run() or isinstance(batch, BatchRamp) or None not in (batch, length):
        return None
    length = LONG_SEQUENCE if length is None else length
    if batch is None:
        # Every GPU has a sequence of each step.
        least = length * (gpus if needs_sequence else 1)
        batch = max(batch_of(tokens), float(least))
    return read_ramp(gpus, needs_sequence, sequence_length=length, batch=batch)


def batch_source(run: RunFields, is_recommended: bool) -> str:
    """Return where the batch of a run comes from."""
    if run.get("batch") is not None:
        return GIVEN
    return DEFAULT_LAW if is_recommended else OF_PAPER


def paper_stages(sequence_length: int = PAPER.sequence_length, gpus: int = 1) -> tuple[RampStage, ...]:
    """Return the paper's batches in sequences of this length, rounded up so that one micro-batch divides all."""
    shorter = sequence_length / PAPER.sequence_length
    first_batch = _round_up(PAPER.batch_ramp[0].sequences / shorter, gpus)
    stages = []
    for stage in PAPER.batch_ramp:
        stages.append(RampStage(stage.from_tokens, _round_up(stage.sequences / shorter, first_batch)))
    return tuple(stages)


def _read_length(value: Any) -> int | None:
    """Read the tokens of a sequence: a whole number, or text such as "4k"."""
    if value is None:
        return None
    length = parse_context(value, "sequence_length") if isinstance(value, str) else value
    is_number = isinstance(length, (int, float)) and not isinstance(length, bool)
    if not is_number or not 1 <= length <= LONGEST_SEQUENCE or not float(length).is_integer():
        allowed = f"must be a whole number from 1 to {LONGEST_SEQUENCE:,}, or text such as 4k"
        raise InputError(given("sequence_length", value), f" {allowed}")
    return int(length)


def _round_batch(
    tokens: float,
    length: int,
    gpus: int,
    needs_sequence: bool,
) -> int:
    """Return the sequences of a batch of about so many tokens, a multiple of the GPUs."""
    least = length * gpus if needs_sequence else length
    if tokens < least:
        sharers = f", one sequence of {length:,} for each of {gpus} GPUs" if least > length else ", one sequence"
        raise InputError(f"batch={tokens:g} must be at least {least:,} tokens{sharers}")
    unit = gpus if tokens >= length * gpus else 1
    share = tokens / (length * unit)
    if share.is_integer():
        return int(share) * unit
    return unit * round_sequences(share)


def _round_up(count: float, divisor: int) -> int:
    return math.ceil(count / divisor) * divisor
