"""The batch of a run by published laws: the best, of least loss, and the critical one, above which tokens count less.

Labs fit them to runs below 1e21 FLOPs and disagree by a factor of ten above; `outside` says how far a run lies beyond
theirs. Step Law's, in the tokens alone, is nearest to the batches of 12 published runs (docs/rates.md#batch).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from hub.base.units import format_count
from scaling_law.formulas.literature import power_law, read_literature
from scaling_law.size.architecture import training_flops
from scaling_law.size.recipe import PAPER, ROWS, BatchRamp

# What a published law answers, and the batch that it means.
BATCHES = {"learning rate, batch": "best", "critical batch": "critical"}
DEFAULT_LAW = "step_law"
# Other sources of a batch: the question, and the recipe of the paper.
GIVEN = "given"
OF_PAPER = "paper"
# Tokens of a sequence in runs larger than the paper's.
LONG_SEQUENCE = 4096


@dataclass(frozen=True)
class PublishedBatch:
    """Tokens of a batch by a published law; `batch` is "best" or "critical".

    `outside`: how many times the run lies beyond the runs of the law, in the variables that the batch depends on; 1
    within, None where their range is not known.
    """

    law: str
    batch: str
    batch_tokens: float
    source: str
    outside: float | None


def published_batches(flops: float, tokens: float, loss: float) -> tuple[PublishedBatch, ...]:
    """Return the batches that published laws give a run of so many training FLOPs and tokens, with its final loss."""
    variables = {"flops": flops, "tokens": tokens, "loss": loss}
    batches = []
    for row in _batch_laws():
        coefficients = row["coefficients"]["batch_tokens"]
        reference = cite(row["name"])
        if row.get("arxiv"):
            reference += f", arXiv {row['arxiv']}"
        batches.append(
            PublishedBatch(
                law=row["name"],
                batch=BATCHES[row["answers"]],
                batch_tokens=float(power_law(coefficients, variables)),
                source=f"{reference}: {row['part']}",
                outside=_distance(row.get("ranges", {}), coefficients, variables),
            )
        )
    return tuple(batches)


def batch_of(tokens: float, law: str = DEFAULT_LAW) -> float:
    """Return the tokens of the best batch by a law that depends on the tokens of a run alone."""
    (row,) = (row for row in _batch_laws() if row["name"] == law)
    return float(power_law(row["coefficients"]["batch_tokens"], {"tokens": tokens}))


@cache
def largest_paper_run() -> float:
    """Return the training FLOPs of the paper's largest run."""
    return max(float(training_flops(row.architecture.n_active, 1e9 * max(row.tokens))) for row in ROWS)


def usual_batch(flops: float, tokens: float) -> tuple[int, str]:
    """Return the last batch of a run that names none, in tokens, and where it comes from.

    It is the paper's up to its largest run; above, that of a published law, in sequences of 4,096 tokens.
    """
    if flops <= largest_paper_run():
        ramp = BatchRamp(PAPER.batch_ramp, PAPER.sequence_length)
        return ramp.last_batch_tokens(tokens), OF_PAPER
    sequences = round_sequences(batch_of(tokens) / LONG_SEQUENCE)
    return sequences * LONG_SEQUENCE, DEFAULT_LAW


def round_sequences(count: float) -> int:
    """Round a number of sequences to 4 to 7 times a power of two, which micro-batches divide well."""
    if count < 1:
        return 1
    step = max(1, 2 ** (math.floor(math.log2(count)) - 2))
    return step * max(1, round(count / step))


def cite(source: str) -> str:
    """Write where a batch comes from, a published law by its authors and year."""
    if source == OF_PAPER:
        return "the paper's"
    for row in _batch_laws():
        if row["name"] == source:
            return f"{row['authors']} {row['year']}"
    return source


def describe_batches(batches: tuple[PublishedBatch, ...]) -> str:
    """Write the ranges of published batches: "best 1.1M (Step Law 2025) to 7.2M (Tian et al. 2025), critical …"."""
    phrases = []
    for kind in dict.fromkeys(BATCHES.values()):
        ordered = sorted((batch for batch in batches if batch.batch == kind), key=lambda batch: batch.batch_tokens)
        ends = [f"{format_count(batch.batch_tokens)} ({cite(batch.law)})" for batch in (ordered[0], ordered[-1])]
        phrases.append(f"{kind} {' to '.join(ends)}")
    return ", ".join(phrases)


@cache
def _batch_laws() -> tuple[dict[str, Any], ...]:
    return tuple(row for row in read_literature() if row.get("answers") in BATCHES)


def _distance(ranges: Mapping[str, Any], coefficients: Mapping[str, float], variables: Mapping[str, float]) -> Any:
    """Return how many times the variables of the batch lie beyond the ranges of a law."""
    factors = [1.0]
    for name, (low, high) in ranges.items():
        if name in coefficients:
            factors += [low / variables[name], variables[name] / high]
    return max(factors) if len(factors) > 1 else None
