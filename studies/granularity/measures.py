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
from studies.common import FloatArray
from studies.crossing.gaps import Scatter
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

    def at(self, tokens: float) -> tuple[float, float] | None:
        """(mean, standard error); None where nothing was measured."""
        found = np.flatnonzero(self.tokens == tokens)
        return (float(self.mean[found[0]]), float(self.error[found[0]])) if len(found) else None


@dataclass(frozen=True)
class Measures:
    """What the page shows: losses by contender, and by (contender, D, seed, rate), of Muon's matrices its own."""

    losses: Mapping[str, Losses]
    tried: Mapping[tuple[str, float, int, float], float]

    @property
    def grids(self) -> dict[tuple[str, float, int], dict[float, float]]:
        """(contender, D, seed) → rate → loss, where several rates were tried."""
        found: dict[tuple[str, float, int], dict[float, float]] = {}
        for (*run, rate), loss in sorted(self.tried.items()):
            found.setdefault(tuple(run), {})[rate] = loss  # type: ignore[arg-type]
        return {run: rates for run, rates in found.items() if len(rates) > 1}

    @cached_property
    def scatter(self) -> Scatter:
        """Of the relative difference of a single pair, by D."""
        tokens = np.array(TOKENS)
        squares, freedom = np.zeros((2, len(tokens)))
        for contender in CONTENDERS:
            for i, t in enumerate(TOKENS):
                if len(values := self._pairs(contender, t)) > 1:
                    squares[i] += float(((values - values.mean()) ** 2).sum())
                    freedom[i] += len(values) - 1
        deviation = np.sqrt(np.divide(squares, freedom, out=np.full(len(tokens), np.nan), where=freedom > 0))
        return Scatter(tokens, deviation, freedom)

    @cached_property
    def differences(self) -> tuple[Difference, ...]:
        """Of every contender that was measured beside the other one."""
        found = []
        for contender in CONTENDERS:
            pairs = {t: values for t in TOKENS if len(values := self._pairs(contender, t))}
            if pairs:
                tokens, counts = np.array([*pairs]), np.array([len(values) for values in pairs.values()], float)
                means = np.array([values.mean() for values in pairs.values()])
                found.append(Difference(contender, tokens, counts, means, self.scatter.at(tokens) / np.sqrt(counts)))
        return tuple(found)

    def _pairs(self, contender: Contender, tokens: float) -> FloatArray:
        """Relative differences, one for each seed that both have."""
        one, two = (self.losses.get(name, {}).get(tokens, {}) for name in (contender.name, contender.against))
        return np.array([one[seed] / two[seed] - 1.0 for seed in sorted({*one} & {*two})])


def read_measures(own: Path, crossing: Path) -> Measures:
    """From the records of this experiment and, for our dense and top-1 models by AdamW, those of the crossing.

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
    """By class, experts and optimizer."""
    for contender in ALL.values():
        a, ours = contender.architecture, contender.model_type is OURS
        shape = (a.experts, *((None,) * 3 if ours else (a.experts_per_token, a.d_expert, a.shared_experts)))
        asked = (contender.model_type, contender.optimizer, D_MODEL, *shape)
        fine = (record.experts, record.experts_per_token, record.d_expert, record.shared_experts)
        if asked == (record.model_type, record.optimizer.name, record.d_model, *fine):
            return contender
    raise RecordError(f"{record.run_id}: a model or an optimizer of no comparison")


def _of_the_crossing(records: Iterable[RunRecord]) -> list[tuple[str, float, int, float]]:
    """Name, D, seed and loss of the runs that count there."""
    runs = read_sweep([*records]).counted
    names = {1: "dense", 8: "8, top-1"}
    kept = runs.subset((runs["d_model"] == D_MODEL) & np.isin(runs.experts, [*names]) & np.isin(runs.tokens, TOKENS))
    columns = kept.experts.astype(int), kept.tokens, kept["seed"].astype(int), kept.loss
    return [(names[e], float(t), int(s), float(loss)) for e, t, s, loss in zip(*columns, strict=True)]
