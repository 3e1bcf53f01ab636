"""Which runs of the sweep count, by rules that were written before any fit, but for the one of 0.5M tokens.

One recipe: 3 blocks, heads of 16, byte vocabulary, sequences of 256, batches of 8, dropless, fp32. At least 1M tokens:
488 steps, the warm-up 5 % of them; runs of 0.5M, added where the first crossings lay at 1M, bracket crossings and are
never fitted. One peak learning rate for each size and E, that of most runs, which must lie within one step, a factor
of 1.5, of the best of a grid at 4M tokens (of sweeps named rates, by the means over the seeds that all rates share).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

import hub  # lazy
from hub import RecordError, RunRecord
from hub.base.units import format_count
from scaling_law import Runs, load_runs
from studies.common import check_texts

# The sizes and E of the sweep; others are predicted, never fitted.
WIDTHS = (32, 48, 64, 96, 128)
EXPERTS = (1, 2, 4, 8, 16)
TOKENS = (1e6, 2e6, 4e6, 8e6, 16e6, 32e6)
BLOCKS = 3
HEAD = 16
VOCABULARY = 257
SEQUENCE = 256
BATCH = 8
RECIPE = {"n_blocks": BLOCKS, "vocab_size": VOCABULARY, "sequence_length": SEQUENCE, "precision": "fp32"}
SHORTEST = 5e5
TUNED_AT = 4e6
GRID = "rates"
# The step of the grids, and rounding.
WINDOW = 1.5 * 1.01


@dataclass(frozen=True)
class Rate:
    """The peak learning rate of one size and E, that of most runs.

    `losses_by_rate` maps the grid's rates to mean losses at 4M, nats per byte; `longer_losses` those at `longer`, the
    longest D beyond at which several rates were trained (0: there is none). `tuned` is the best of a grid of several.
    """

    d_model: int
    experts: int
    used: float
    losses_by_rate: Mapping[float, float]
    longer: float
    longer_losses: Mapping[float, float]

    @property
    def tuned(self) -> float | None:
        """The rate of least loss at 4M; None without a grid."""
        if len(self.losses_by_rate) < 2:
            return None
        return min(self.losses_by_rate, key=lambda rate: self.losses_by_rate[rate])


@dataclass(frozen=True)
class Sweep:
    """The runs that count, and how many do not, by the reason; tokens are nominal, before rounding to batches."""

    counted: Runs
    rates: Sequence[Rate]
    left_out: Mapping[str, int]

    @cached_property
    def runs(self) -> Runs:
        """The runs that laws are fitted to: of at least 1M tokens, and not of the sizes and E that are predicted."""
        is_in_sweep = np.isin(self.counted["d_model"], WIDTHS) & np.isin(self.counted.experts, EXPERTS)
        return self.counted.subset(is_in_sweep & (self.counted.tokens >= TOKENS[0]))


def read_sweep(records: str | Path | Sequence[RunRecord]) -> Sweep:
    """Select the runs that count. Raises RecordError if none does, or if their texts or tokenizers differ."""
    all_records = hub.load_records(records) if isinstance(records, (str, Path)) else list(records)
    reasons = [_reason(record) for record in all_records]
    sound = [record for record, reason in zip(all_records, reasons, strict=True) if not reason]
    if not sound:
        raise RecordError(f"no run of this sweep counts: {dict(Counter(reasons))}")
    check_texts(sound)
    rows = _distinct_rows(sound)
    runs = load_runs(rows)
    rates = _rates(runs)
    has_rate_of_model = _has_rate_of_model(runs, rates)
    left_out = Counter(filter(None, reasons))
    left_out["of another learning rate"] = int((~has_rate_of_model).sum())
    left_out["trained twice"] = len(sound) - len(rows)
    left_out_by_reason = {reason: count for reason, count in left_out.items() if count}
    return Sweep(runs.subset(has_rate_of_model), rates, left_out_by_reason)


def nominal(tokens: float) -> float:
    """Return the number of tokens that was asked for: 999,424 is 1M."""
    return float(f"{tokens:.2g}")


def _reason(record: RunRecord) -> str:
    """Return why a run does not count, apart from its rate; "" if it does."""
    differing_fields = [name for name, value in RECIPE.items() if getattr(record, name) != value]
    batches = {stage.sequences for stage in record.schedule.batch_ramp}
    if record.status != "final" or record.eval_loss is None:
        return "not finished"
    if differing_fields or record.n_heads * HEAD != record.d_model or batches != {BATCH} or record.final_norm is False:
        return "of another recipe"
    if record.drop_rate or record.capacity_factor:
        return "not dropless"
    if nominal(record.tokens) < SHORTEST:
        return f"shorter than {format_count(SHORTEST)} tokens"
    return ""


def _distinct_rows(records: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """Return one row for each size, E, D, seed and rate, that of the trunk with most runs.

    Some runs of the grids (`of_grid`) are trained again in the sweep.
    """
    branches = Counter(record.parent_run_id for record in records)
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for record in sorted(records, key=lambda r: -branches[r.parent_run_id]):
        tokens = nominal(record.tokens)
        rate = record.schedule.peak_learning_rate
        key = (record.d_model, record.experts, record.seed, tokens, rate)
        if key not in rows:
            rows[key] = {**record.to_dict(), "tokens": tokens, "learning_rate": rate, "of_grid": 0.0}
        rows[key]["of_grid"] = max(rows[key]["of_grid"], float(record.sweep.startswith(GRID)))
    return [*rows.values()]


def _has_rate_of_model(runs: Runs, rates: Sequence[Rate]) -> np.ndarray:
    """Mark the runs [n] that were trained with the rate of their size and E."""
    rate_of_model = {(rate.d_model, rate.experts): rate.used for rate in rates}
    models = zip(runs["d_model"].tolist(), runs.experts.tolist(), strict=True)
    expected = [rate_of_model[int(d_model), int(experts)] for d_model, experts in models]
    return np.isclose(runs["learning_rate"], expected, rtol=1e-6)


def _rates(runs: Runs) -> list[Rate]:
    """Return the rate of every size and E, ascending.

    Raises RecordError for a rate more than a step from the best of its grid.
    """
    widths = runs["d_model"].astype(int).tolist()
    experts = runs.experts.astype(int).tolist()
    models = sorted({*zip(widths, experts, strict=True)})
    return [_rate_of(runs, d_model, e) for d_model, e in models]


def _rate_of(runs: Runs, d_model: int, experts: int) -> Rate:
    """Return the rate of most runs of a size and E, with the losses of its grids."""
    model = runs.subset((runs["d_model"] == d_model) & (runs.experts == experts))
    values, counts = np.unique(model["learning_rate"], return_counts=True)
    grid = _losses_by_rate(model.subset((model["of_grid"] == 1) & (model.tokens == TUNED_AT)))
    longer, longer_losses = _longest_grid(model)
    rate = Rate(d_model, experts, float(values[counts.argmax()]), grid, longer, longer_losses)
    if rate.tuned and abs(math.log(rate.used / rate.tuned)) > math.log(WINDOW):
        raise RecordError(
            f"d_model={d_model}, experts={experts}: most runs have a learning rate of {rate.used:g}, "
            f"more than a factor of 1.5 from {rate.tuned:g}, the best of the grid"
        )
    return rate


def _longest_grid(model: Runs) -> tuple[float, dict[float, float]]:
    """Return the longest D beyond 4M at which several rates were trained, and their losses; 0 if there is none."""
    for tokens in np.unique(model.tokens)[::-1]:
        if tokens <= TUNED_AT:
            break
        losses = _losses_by_rate(model.subset(model.tokens == tokens))
        if len(losses) > 1:
            return float(tokens), losses
    return 0.0, {}


def _losses_by_rate(model: Runs) -> dict[float, float]:
    """Map each rate to its mean loss over the seeds that all the rates have."""
    rates = model["learning_rate"]
    seeds_of_rates = [{*model["seed"][rates == rate].tolist()} for rate in np.unique(rates)]
    shared_seeds = [*set.intersection(*seeds_of_rates)] if seeds_of_rates else []
    is_shared = np.isin(model["seed"], shared_seeds)
    losses = {}
    for rate in np.unique(rates[is_shared]):
        losses[float(rate)] = float(model.loss[is_shared & (rates == rate)].mean())
    return losses
