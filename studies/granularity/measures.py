"""Losses of the contenders by D and seed, and of each against the one that it is compared with.

Both of a pair have the same seed, and so the same text in the same order. The relative difference of a comparison is
the mean over its seeds; pairs of one D scatter alike, so their variance is pooled over comparisons, and a standard
error is that deviation over √seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

import hub  # lazy
from hub import RecordError, RunRecord
from studies.common import FloatArray, pooled_covariance
from studies.crossing.records import check_texts, nominal, read_sweep
from studies.granularity.contenders import ALL, CONTENDERS, D_MODEL, DENSE, OURS, TOKENS, TOP_1, Contender

SWEEP = "granularity"  # the runs that count; grids of rates have other names
Run = tuple[str, float, int]  # contender, D, seed


@dataclass(frozen=True)
class Measures:
    """Held-out losses of each contender [seeds, k] at the k D of `TOKENS`, nats per byte, NaN where there is no run.

    `grids` are the losses by learning rate where several were tried, for Muon of its matrices.
    """

    losses: Mapping[str, FloatArray]
    grids: Mapping[Run, Mapping[float, float]]

    @cached_property
    def pairs(self) -> dict[str, FloatArray]:
        """Each contender's losses over those of the one that it is compared with, minus 1, [seeds, k]."""
        return {c.name: self.losses[c.name] / self.losses[c.against] - 1.0 for c in CONTENDERS}

    @cached_property
    def scatter(self) -> tuple[FloatArray, FloatArray]:
        """Standard deviation of the relative difference of a single pair at each of `TOKENS`, and its freedom."""
        covariance, freedom = pooled_covariance([*self.pairs.values()])
        return np.sqrt(np.diag(covariance)), freedom

    @cached_property
    def differences(self) -> dict[str, FloatArray]:
        """Mean, standard error and number of each comparison's pairs, [3, k]; NaN without a pair or repeated seeds."""
        counts = {name: np.isfinite(pairs).sum(axis=0).astype(float) for name, pairs in self.pairs.items()}
        with np.errstate(divide="ignore", invalid="ignore"):
            return {
                name: np.stack([np.nansum(self.pairs[name], axis=0) / n, self.scatter[0] / np.sqrt(n), n])
                for name, n in counts.items()
            }


def read_measures(path: Path, crossing: Path) -> Measures:
    """Measures from the records of this experiment and, for our dense and top-1 models by AdamW, from the crossing's.

    RecordError for a run of no contender, and for runs on another held-out text.
    """
    records, theirs = hub.load_records(path), hub.load_records(crossing)
    check_texts([*records, *theirs])
    runs, tried = _of_the_crossing(theirs), dict[Run, dict[float, float]]()
    for record in records:
        run = _contender_of(record).name, nominal(record.tokens), record.seed or 0
        rate = record.optimizer.muon_learning_rate or record.schedule.peak_learning_rate
        tried.setdefault(run, {})[rate] = loss = float(record.eval_loss or np.nan)
        if record.sweep == SWEEP and run[1] in TOKENS:
            runs[run] = loss
    seeds = 1 + max(seed for *_, seed in runs)
    losses = {name: np.full((seeds, len(TOKENS)), np.nan) for name in ALL}
    for (name, tokens, seed), loss in runs.items():
        losses[name][seed, TOKENS.index(tokens)] = loss
    return Measures(
        losses, {run: dict(sorted(rates.items())) for run, rates in sorted(tried.items()) if len(rates) > 1}
    )


def _contender_of(record: RunRecord) -> Contender:
    """The contender with the class, experts and optimizer of the record."""
    for contender in ALL.values():
        a, ours = contender.architecture, contender.model_type is OURS
        shape = (a.experts, *((None,) * 3 if ours else (a.experts_per_token, a.d_expert, a.shared_experts)))
        expected = (contender.model_type, contender.optimizer, D_MODEL, *shape)
        fine = (record.experts, record.experts_per_token, record.d_expert, record.shared_experts)
        if expected == (record.model_type, record.optimizer.name, record.d_model, *fine):
            return contender
    raise RecordError(f"{record.run_id}: a model or an optimizer of no comparison")


def _of_the_crossing(records: Iterable[RunRecord]) -> dict[Run, float]:
    """Losses of the runs that count there."""
    runs = read_sweep([*records]).counted
    names = {1: DENSE, 8: TOP_1}
    kept = runs.subset((runs["d_model"] == D_MODEL) & np.isin(runs.experts, [*names]) & np.isin(runs.tokens, TOKENS))
    columns = kept.experts.astype(int), kept.tokens, kept["seed"].astype(int), kept.loss
    return {(names[e], float(t), int(s)): float(loss) for e, t, s, loss in zip(*columns, strict=True)}
