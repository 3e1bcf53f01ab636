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

WIDTHS, EXPERTS = (32, 48, 64, 96, 128), (1, 2, 4, 8, 16)  # of the sweep; others are predicted, never fitted
TOKENS = (1e6, 2e6, 4e6, 8e6, 16e6, 32e6)
BLOCKS, HEAD, VOCABULARY, SEQUENCE, BATCH = 3, 16, 257, 256, 8
RECIPE = {"n_blocks": BLOCKS, "vocab_size": VOCABULARY, "sequence_length": SEQUENCE, "precision": "fp32"}
SHORTEST, TUNED_AT, GRID = 5e5, 4e6, "rates"
WINDOW = 1.5 * 1.01  # the step of the grids, and rounding


@dataclass(frozen=True)
class Rate:
    """The peak learning rate of one size and E, that of most runs.

    `tried` maps the grid's rates to mean losses at 4M, nats per byte; `checked` those at `longer`, the longest D
    beyond at which several rates were trained (0: there is none). `tuned` is the best of a grid of several.
    """

    d_model: int
    experts: int
    used: float
    tried: Mapping[float, float]
    longer: float
    checked: Mapping[float, float]

    @property
    def tuned(self) -> float | None:
        return min(self.tried, key=lambda rate: self.tried[rate]) if len(self.tried) > 1 else None


@dataclass(frozen=True)
class Sweep:
    """The runs that count, and how many do not, by the reason; tokens are nominal, before rounding to batches."""

    counted: Runs
    rates: Sequence[Rate]
    left_out: Mapping[str, int]

    @cached_property
    def runs(self) -> Runs:
        """Those that laws are fitted to: of at least 1M tokens, and not of the sizes and E that are predicted."""
        fitted = np.isin(self.counted["d_model"], WIDTHS) & np.isin(self.counted.experts, EXPERTS)
        return self.counted.subset(fitted & (self.counted.tokens >= TOKENS[0]))


def read_sweep(records: str | Path | Sequence[RunRecord]) -> Sweep:
    """The runs that count. RecordError if none does, or if their texts or tokenizers differ."""
    every = hub.load_records(records) if isinstance(records, (str, Path)) else list(records)
    reasons = [_reason(record) for record in every]
    sound = [record for record, reason in zip(every, reasons, strict=True) if not reason]
    if not sound:
        raise RecordError(f"no run of this sweep counts: {dict(Counter(reasons))}")
    check_texts(sound)
    distinct = _once(sound)
    runs = load_runs(distinct)
    rates = _rates(runs)
    used = {(rate.d_model, rate.experts): rate.used for rate in rates}
    models = zip(runs["d_model"].tolist(), runs.experts.tolist(), strict=True)
    tuned = np.isclose(runs["learning_rate"], [used[int(d), int(e)] for d, e in models], rtol=1e-6)
    left_out = Counter(filter(None, reasons))
    left_out["of another learning rate"] = int((~tuned).sum())
    left_out["trained twice"] = len(sound) - len(distinct)
    return Sweep(runs.subset(tuned), rates, {reason: count for reason, count in left_out.items() if count})


def nominal(tokens: float) -> float:
    """The number of tokens that was asked for: 999,424 is 1M."""
    return float(f"{tokens:.2g}")


def _reason(record: RunRecord) -> str:
    """Why a run does not count, whatever its rate; "" if it does."""
    other = [name for name, value in RECIPE.items() if getattr(record, name) != value]
    batches = {stage.sequences for stage in record.schedule.batch_ramp}
    if record.status != "final" or record.eval_loss is None:
        return "not finished"
    if other or record.n_heads * HEAD != record.d_model or batches != {BATCH} or record.final_norm is False:
        return "of another recipe"
    if record.drop_rate or record.capacity_factor:
        return "not dropless"
    return f"shorter than {format_count(SHORTEST)} tokens" if nominal(record.tokens) < SHORTEST else ""


def _once(records: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """One row for each size, E, D, seed and rate, that of the trunk with most runs: some of the grids' (`of_grid`)
    are trained again.
    """
    branches = Counter(record.parent_run_id for record in records)
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for record in sorted(records, key=lambda r: -branches[r.parent_run_id]):
        settings = {"tokens": nominal(record.tokens), "learning_rate": record.schedule.peak_learning_rate}
        key = record.d_model, record.experts, record.seed, *settings.values()
        row = rows.setdefault(key, record.to_dict() | settings | {"of_grid": 0.0})
        row["of_grid"] = max(row["of_grid"], float(record.sweep.startswith(GRID)))
    return [*rows.values()]


def _rates(runs: Runs) -> list[Rate]:
    """Rates of every size and E, ascending. RecordError for one more than a step from the best of its grid."""
    rates = []
    for d, e in sorted({*zip(runs["d_model"].astype(int).tolist(), runs.experts.astype(int).tolist(), strict=True)}):
        model = runs.subset((runs["d_model"] == d) & (runs.experts == e))
        values, counts = np.unique(model["learning_rate"], return_counts=True)
        grid = _tried(model.subset((model["of_grid"] == 1) & (model.tokens == TUNED_AT)))
        later = [(float(t), _tried(model.subset(model.tokens == t))) for t in np.unique(model.tokens) if t > TUNED_AT]
        longer, checked = next(((t, tried) for t, tried in reversed(later) if len(tried) > 1), (0.0, {}))
        rates.append(rate := Rate(d, e, float(values[counts.argmax()]), grid, longer, checked))
        if rate.tuned and abs(math.log(rate.used / rate.tuned)) > math.log(WINDOW):
            raise RecordError(
                f"d_model={d}, experts={e}: most runs have a learning rate of {rate.used:g}, "
                f"more than a factor of 1.5 from {rate.tuned:g}, the best of the grid"
            )
    return rates


def _tried(model: Runs) -> dict[float, float]:
    """Rate → mean loss over the seeds that all the rates have."""
    rates = model["learning_rate"]
    seeds = [{*model["seed"][rates == rate].tolist()} for rate in np.unique(rates)]
    shared = np.isin(model["seed"], [*set.intersection(*seeds)] if seeds else [])
    return {float(rate): float(model.loss[shared & (rates == rate)].mean()) for rate in np.unique(rates[shared])}
