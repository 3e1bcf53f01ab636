"""The crossing of models that read pieces of a BPE vocabulary: is it a number of tokens, or an amount of text?

Sequences and batches are those of the sweep: an update has as many tokens. These models were trained by later code, in
another order of the text, with dense partners of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import hub  # lazy
from hub import RunRecord
from scaling_law import load_runs
from studies.crossing.cells import Gap, gaps_of
from studies.crossing.laws import Value, counted, geometric
from studies.crossing.records import check_texts, nominal

PIECES = Path(__file__).parent / "pieces.jsonl"
# All of the text, cut by the tokenizer of 1,024 pieces that was trained on its first half
BYTES_PER_PIECE = 46_086_265 / 16_600_853


@dataclass(frozen=True)
class Pieces:
    """The gaps of the models in `PIECES` beside those that the sweep measured in bytes."""

    bytewise: Sequence[Gap]

    @cached_property
    def records(self) -> list[RunRecord]:
        return hub.load_records(PIECES)

    @cached_property
    def pairs(self) -> list[tuple[Gap, Gap]]:
        """The gap of each size and E in pieces, and in bytes."""
        check_texts(self.records)
        runs = load_runs([record.to_dict() | {"tokens": nominal(record.tokens)} for record in self.records])
        bytewise = {(gap.d_model, gap.experts): gap for gap in self.bytewise}
        return [(gap, bytewise[gap.d_model, gap.experts]) for gap in gaps_of(runs)]

    @cached_property
    def in_tokens(self) -> Value:
        """D* in pieces over D* in bytes, as numbers of tokens: the mean over sizes; 1 if tokens decide."""
        drawn = [counted(a, a.drawn) / counted(b, b.drawn) for a, b in self.pairs]
        return geometric([counted(a, a.crossing) / counted(b, b.crossing) for a, b in self.pairs], drawn)

    @property
    def in_bytes(self) -> Value:
        """The same of amounts of text: 1 if bytes decide."""
        value, low, high = (BYTES_PER_PIECE * ratio for ratio in self.in_tokens)
        return value, low, high
