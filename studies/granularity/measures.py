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
from studies.crossing.records import nominal, read_sweep
from studies.granularity.contenders import ALL, CONTENDERS, D_MODEL, OURS, TOKENS, Contender

SWEEP = "granularity"  # the runs that count; grids of rates have other names
Losses = Mapping[float, Mapping[int, float]]  # D → seed → held-out loss, nats per byte


@dataclass(frozen=True)
class Difference:
    """A contender's loss over the other's, minus 1, at each D [k]: the mean of its `pairs` [k] of seeds.

    `error` is the standard error, NaN where no comparison repeats a seed.
    """

    contender: Contender
    tokens: FloatArray
    pairs: FloatArray
    mean: FloatArray
    error: FloatArray


@dataclass(frozen=True)
class Measures:
    """What the page shows: losses by contender, and by (contender, D, seed, rate), of Muon's matrices its own."""

    losses: Mapping[str, Losses]
    tried: Mapping[tuple[str, float, int, float], float]

    @property
    def grids(self) -> dict[tuple[str, float, int], dict[float, float]]:
        """(contender, D, seed) → rate → loss, where several rates were tried."""
        rates: dict[tuple[str, float, int], dict[float, float]] = {}
        for (name, tokens, seed, rate), loss in sorted(self.tried.items()):
            rates.setdefault((name, tokens, seed), {})[rate] = loss
        return {run: losses for run, losses in rates.items() if len(losses) > 1}

    @cached_property
    def scatter(self) -> tuple[FloatArray, FloatArray]:
        """Standard deviation of the relative difference of a single pair at each of `TOKENS`, and its freedom."""
        covariance, freedom = pooled_covariance([self._pairs(contender) for contender in CONTENDERS])
        return np.sqrt(np.diag(covariance)), freedom

    @cached_property
    def differences(self) -> dict[str, Difference]:
        """Differences of every contender that was measured beside the other one, by its name."""
        differences = {}
        for contender in CONTENDERS:
            pairs = self._pairs(contender)
            n = np.isfinite(pairs).sum(axis=0)
            at, counts = np.flatnonzero(n), n[n > 0].astype(float)
            mean, error = np.nansum(pairs[:, at], axis=0) / counts, self.scatter[0][at] / np.sqrt(counts)
            if len(at):
                differences[contender.name] = Difference(contender, np.array(TOKENS)[at], counts, mean, error)
        return differences

    def _pairs(self, contender: Contender) -> FloatArray:
        """Relative differences [seeds, k], NaN where one of the two is missing."""
        one, two = (self.losses.get(name, {}) for name in (contender.name, contender.against))
        seeds = sorted({seed for by_seed in one.values() for seed in by_seed})
        ratio = [[one.get(t, {}).get(s, np.nan) / two.get(t, {}).get(s, np.nan) - 1.0 for t in TOKENS] for s in seeds]
        return np.array(ratio).reshape(-1, len(TOKENS))


def read_measures(own: Path, crossing: Path) -> Measures:
    """Measures from the records of this experiment and, for our dense and top-1 models by AdamW, from the crossing's.

    RecordError for a run of no contender, and for runs on another held-out text.
    """
    records, theirs = hub.load_records(own), hub.load_records(crossing)
    texts = {(r.dataset.fingerprint, r.tokenizer.fingerprint, r.eval_tokens) for r in (*records, *theirs)}
    if len(texts) > 1:
        raise RecordError(
            f"{own}: losses on {len(texts)} different texts cannot be compared: {sorted(map(str, texts))}"
        )
    losses: dict[str, dict[float, dict[int, float]]] = {name: {} for name in ALL}
    tried: dict[tuple[str, float, int, float], float] = {}
    for record in records:
        name, tokens, loss = _contender_of(record).name, nominal(record.tokens), float(record.eval_loss or np.nan)
        if record.sweep == SWEEP:
            losses[name].setdefault(tokens, {})[record.seed or 0] = loss
        rate = record.optimizer.muon_learning_rate or record.schedule.peak_learning_rate
        tried[name, tokens, record.seed or 0, rate] = loss
    for name, tokens, seed, loss in _of_the_crossing(theirs):
        losses[name].setdefault(tokens, {})[seed] = loss
    return Measures(losses, tried)


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


def _of_the_crossing(records: Iterable[RunRecord]) -> list[tuple[str, float, int, float]]:
    """Name, D, seed and loss of the runs that count there."""
    runs = read_sweep([*records]).counted
    names = {1: "dense", 8: "8, top-1"}
    kept = runs.subset((runs["d_model"] == D_MODEL) & np.isin(runs.experts, [*names]) & np.isin(runs.tokens, TOKENS))
    columns = kept.experts.astype(int), kept.tokens, kept["seed"].astype(int), kept.loss
    return [(names[e], float(t), int(s), float(loss)) for e, t, s, loss in zip(*columns, strict=True)]
