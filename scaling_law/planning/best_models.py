"""Which model for this budget: one row for each number of experts, with intervals, and which E can be told apart.

The optimum itself is `planning.optimum`'s (Ludziejewski et al. 2025, Section "Compute and Memory Optimality"); here
it gets its memory, its learning rate, its interval and its range check. Intervals and comparisons hold the models of
the rows fixed and ask every draw of the law for their losses, so that they exist for draws without an optimum, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hub.plain.units import format_bytes, format_count
from scaling_law.fitting.learning_rate import LearningRateLaw
from scaling_law.laws.conditions import UNGUARDED, refuse_extrapolation
from scaling_law.planning.constraints import Constraints
from scaling_law.planning.optimal_table import OptimalRow, OptimalTable, percentile_interval
from scaling_law.planning.optimum import WidthOptimum, asked_experts, optimal_widths, positive, why_no_optimum
from scaling_law.size.architecture import (
    HEAD_DIM,
    Architecture,
    active_parameters,
    affordable_tokens,
    inference_flops,
    total_parameters,
    training_flops,
)

if TYPE_CHECKING:
    from scaling_law.laws import ChinchillaForm

FloatArray = NDArray[np.float64]


def best_models(
    law: ChinchillaForm,
    flops: Any,
    experts: ArrayLike | None,
    constraints: Constraints,
    integral: bool = False,
    learning_rate_law: LearningRateLaw | None = None,
    force: bool = False,
) -> OptimalTable:
    """The answer of `law.optimal`, where the arguments and the errors are explained."""
    if np.ndim(flops):
        budgets = np.asarray(flops).tolist()
        raise ValueError(f"flops={budgets!r}: optimal takes one budget; ask once for each, or compute_optimal for all")
    budget = float(positive("flops", flops))
    columns = _experts(law, experts, integral)
    found = optimal_widths(law, budget, columns, constraints, integral)
    if not found.fits.any():
        raise ValueError(_nothing_fits(budget, columns[found.exists], constraints))
    shown = [int(i) for i in np.flatnonzero(found.fits)]
    at = found.n_active[shown], found.tokens[shown], columns[shown]
    trusted = np.broadcast_to(~np.asarray(law.beyond_guard(*at), bool), len(shown))
    if not trusted.any():
        refuse_extrapolation(law.conditions, *at, force)
    draws = law.loss_draws(*at) if law.draws is not None else None
    rates = learning_rate_law or LearningRateLaw.published()
    rows = tuple(
        _row(
            law,
            found,
            i,
            float(columns[i]),
            constraints,
            rates,
            integral,
            bool(ok),
            None if draws is None else percentile_interval(draws[:, k]),
        )
        for k, (i, ok) in enumerate(zip(shown, trusted, strict=True))
    )
    do_not_fit = tuple(float(e) for e in columns[found.exists & ~found.fits])
    without = {float(e): why_no_optimum(law, float(e)) for e in columns[~found.exists]}
    notes = (
        *([UNGUARDED] if law.conditions is None or law.conditions.overall is None else []),
        *_smallest_width(found, shown, columns, constraints),
    )
    title = law.conditions.provenance if law.conditions else "fitted law"
    error = law.conditions.rmse if law.conditions else None
    return OptimalTable(
        rows, budget, constraints, integral, do_not_fit, title, without, force, error, draws, notes=notes
    )


def _experts(law: ChinchillaForm, experts: ArrayLike | None, integral: bool) -> FloatArray:
    columns = np.atleast_1d(asked_experts(law, experts))
    if columns.ndim != 1 or not columns.size:
        raise ValueError(f"experts={columns.tolist()!r} must be one number or a list of them")
    if integral and np.any(columns != np.round(columns)):
        raise ValueError(f"experts={columns.tolist()!r}: integral=True needs whole numbers")
    return columns


def _row(
    law: ChinchillaForm,
    found: WidthOptimum,
    i: int,
    experts: float,
    constraints: Constraints,
    rates: LearningRateLaw,
    integral: bool,
    trusted: bool,
    interval: tuple[float, float] | None,
) -> OptimalRow:
    d, n, tokens = float(found.d_model[i]), float(found.n_active[i]), float(found.tokens[i])
    vocab = constraints.vocab_size
    unguarded = law.conditions is None or law.conditions.overall is None  # said once, for the table
    counted = float(rates.counted_parameters(d, vocab_size=vocab))
    warnings = [*([] if unguarded else law.warnings(n, tokens, experts)), *rates.warnings_at(counted, experts)]
    return OptimalRow(
        experts=experts,
        d_model=d,
        n_active=n,
        n_total=float(total_parameters(d, experts, vocab_size=vocab)),
        tokens=tokens,
        tokens_per_parameter=tokens / n,
        weight_bytes=float(constraints.weight_bytes(d, experts)),
        kv_cache_bytes=float(constraints.kv_bytes(d)),
        training_flops=float(training_flops(n, tokens)),
        inference_flops=float(inference_flops(n, constraints.inference_tokens)),
        loss=float(found.loss[i]),
        loss_interval=interval,
        learning_rate=float(rates.at(counted, experts)),
        limited_by="memory" if found.truncated[i] else ("compute" if found.free[i] >= HEAD_DIM else "smallest"),
        warnings=tuple(dict.fromkeys(warnings)),
        trusted=trusted,
        architecture=Architecture(round(d), int(experts), vocab_size=vocab) if integral else None,
    )


def _smallest_width(found: WidthOptimum, shown: list[int], columns: FloatArray, constraints: Constraints) -> list[str]:
    """A note where the optimum is smaller than any model that is counted: often another vocabulary is meant."""
    small = [i for i in shown if found.free[i] < HEAD_DIM]
    if not small:
        return []
    smallest = format_count(float(active_parameters(HEAD_DIM, vocab_size=constraints.vocab_size)))
    own = ", ".join(f"{e:g}" for e in columns[small])
    return [
        f"E = {own}: the compute optimum is smaller than d_model {HEAD_DIM} with a vocabulary of "
        f"{constraints.vocab_size:,} (N_act {smallest}), which is taken instead; vocab_size (--vocab-size) sets it"
    ]


def _nothing_fits(flops: float, experts: FloatArray, constraints: Constraints) -> str:
    e = float(experts.min())
    memory = float(constraints.weight_bytes(HEAD_DIM, e) + constraints.kv_bytes(HEAD_DIM))
    parameters = float(total_parameters(HEAD_DIM, e, vocab_size=constraints.vocab_size))
    message = (
        f"nothing fits: the smallest model (d_model {HEAD_DIM}, E = {e:g}) has {format_count(parameters)} parameters"
    )
    message += f" and needs at least {format_bytes(memory)} ({memory:.0f} bytes) with its KV cache"
    smallest = active_parameters(HEAD_DIM, vocab_size=constraints.vocab_size)
    if affordable_tokens(flops, smallest, constraints.inference_tokens) <= 0:
        needed = float(inference_flops(smallest, constraints.inference_tokens))
        message = (
            f"nothing fits: inference_tokens={constraints.inference_tokens:g} alone cost at least {needed:.3g} FLOPs,"
        )
        message += f" which leaves nothing of flops={flops:g} for training"
    return message
