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

import numpy as np

from hub.base.units import format_count
from scaling_law.formulas.files import ROWS, power_law
from scaling_law.size.architecture import training_flops
from scaling_law.size.recipe import PAPER, published_design

# What a published law answers, and the batch that it means.
BATCHES = {"learning rate, batch": "best", "critical batch": "critical"}
DEFAULT_LAW = "step_law"
# Other sources of a batch: the question, and the recipe of the paper.
GIVEN = "given"
OF_PAPER = "paper"
# Tokens of a sequence of models larger than the paper's.
LONG_SEQUENCE = 4096
# Share by which a width that exists may miss its parameters by rounding.
ROUNDING = 1e-9
_paper_runs = cache(published_design)


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
    for row in ROWS.values():
        if row["answers"] not in BATCHES:
            continue
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


def batch_of(tokens: Any) -> Any:
    """Return the tokens of the best batch by `DEFAULT_LAW`, which depends on the tokens of a run alone; broadcasts."""
    return power_law(_default_coefficients(), {"tokens": np.asarray(tokens, float)})


@cache
def largest_paper_run() -> float:
    """Return the training FLOPs of the paper's largest run."""
    runs = _paper_runs()
    return float(training_flops(runs.n_active, runs.tokens).max())


@cache
def largest_paper_model() -> int:
    """Return the active parameters of the paper's largest model."""
    return int(_paper_runs().n_active.max())


def usual_length(n_active: Any) -> Any:
    """Return the tokens of a sequence of models where the question names none: longer above the paper's largest.

    It depends on the model alone, so that a longer run of one model never costs it tokens.
    """
    is_larger = np.asarray(n_active) > (1 + ROUNDING) * largest_paper_model()
    return np.where(is_larger, LONG_SEQUENCE, PAPER.sequence_length)


def usual_tokens(n_active: Any, tokens: Any) -> Any:
    """Return about how many tokens a batch has where the question names none; broadcasts.

    It is that with which the paper's ramp ends after these tokens, and above the FLOPs of its largest run that of a
    published law, if larger. It never falls as tokens are added.
    """
    of_paper: Any = 0
    for stage in PAPER.batch_ramp:
        is_later = np.asarray(tokens) > stage.from_tokens
        of_paper = np.where(is_later, stage.sequences * PAPER.sequence_length, of_paper)
    is_larger = training_flops(n_active, tokens) > largest_paper_run()
    return np.where(is_larger, np.maximum(of_paper, batch_of(tokens)), of_paper)


def first_tokens(n_active: Any, batch_tokens: Any) -> Any:
    """Return the tokens above which a run's usual batch has at least so many; broadcasts."""
    coefficients = _default_coefficients()
    share = np.asarray(batch_tokens) / coefficients["scale"]
    by_law = coefficients.get("unit", 1.0) * share ** (1.0 / coefficients["tokens"])
    first = np.maximum(by_law, largest_paper_run() / training_flops(n_active, 1.0))
    for stage in reversed(PAPER.batch_ramp):
        is_enough = np.asarray(batch_tokens) <= stage.sequences * PAPER.sequence_length
        first = np.where(is_enough, np.minimum(first, stage.from_tokens), first)
    return first


def round_batch(tokens: Any, length: Any, gpus: int = 1, needs_sequence: bool = True) -> Any:
    """Round a batch to sequences that GPUs share: the odd factor of their number times a power of two; broadcasts.

    A larger batch then has every micro-batch of a smaller one.
    """
    odd = gpus // (gpus & -gpus)
    doublings = np.round(np.log2(np.asarray(tokens) / (np.asarray(length) * odd)))
    return np.maximum(odd * 2.0 ** np.maximum(doublings, 0.0), gpus if needs_sequence else odd)


def usual_batch(n_active: float, tokens: float) -> tuple[int, str]:
    """Return the tokens of the batch of one run that names none, and where it comes from."""
    length = int(usual_length(n_active))
    sequences = int(round_batch(usual_tokens(n_active, tokens), length))
    return sequences * length, source_of_batch(n_active, tokens)


def source_of_batch(n_active: float, tokens: float) -> str:
    """Return where the usual batch of a run comes from: the paper or a published law."""
    return DEFAULT_LAW if float(training_flops(n_active, tokens)) > largest_paper_run() else OF_PAPER


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
    row = ROWS.get(source)
    return f"{row['authors']} {row['year']}" if row else source


def describe_batches(batches: tuple[PublishedBatch, ...]) -> str:
    """Write the ranges of published batches: "best 1.1M (Step Law 2025) to 7.2M (Tian et al. 2025), critical …"."""
    phrases = []
    for kind in dict.fromkeys(BATCHES.values()):
        ordered = sorted((batch for batch in batches if batch.batch == kind), key=lambda batch: batch.batch_tokens)
        extremes = [f"{format_count(batch.batch_tokens)} ({cite(batch.law)})" for batch in (ordered[0], ordered[-1])]
        phrases.append(f"{kind} {' to '.join(extremes)}")
    return ", ".join(phrases)


def _default_coefficients() -> Mapping[str, float]:
    """Return the coefficients of the batch by `DEFAULT_LAW`."""
    coefficients: Mapping[str, float] = ROWS[DEFAULT_LAW]["coefficients"]["batch_tokens"]
    return coefficients


def _distance(ranges: Mapping[str, Any], coefficients: Mapping[str, float], variables: Mapping[str, float]) -> Any:
    """Return how many times the variables of the batch lie beyond the ranges of a law."""
    factors = [1.0]
    for name, (low, high) in ranges.items():
        if name in coefficients:
            factors += [low / variables[name], variables[name] / high]
    return max(factors) if len(factors) > 1 else None
