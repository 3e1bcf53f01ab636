"""Crossovers of the demo's runs: the tokens at which an MoE overtakes the dense model of equal active parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hub import RunRecord
from hub.base.units import format_count
from scaling_law import Law
from scaling_law.planning import find_crossing


def losses_by_size(records: Sequence[RunRecord]) -> dict[tuple[int, int], dict[int, RunRecord]]:
    """Group the records by (d_model, E), and by their configured tokens."""
    by_size: dict[tuple[int, int], dict[int, RunRecord]] = {}
    for record in sorted(records, key=lambda record: (record.d_model, record.experts)):
        runs = by_size.setdefault((record.d_model, record.experts), {})
        runs[record.schedule.horizon_tokens] = record
    return by_size


@dataclass(frozen=True)
class Gaps:
    """Losses of E experts minus those of the dense model of equal N_act, by tokens; nats per byte."""

    d_model: int
    n_active: int
    experts: int
    gaps: dict[int, float]

    @classmethod
    def of(cls, records: Sequence[RunRecord]) -> list[Gaps]:
        """Compute the gaps of every size with experts."""
        sizes = losses_by_size(records)
        all_gaps = []
        for (d_model, experts), runs in sizes.items():
            if experts == 1:
                continue
            dense_runs = sizes.get((d_model, 1), {})
            gaps = {}
            for tokens in sorted({*runs} & {*dense_runs}):
                loss = runs[tokens].eval_loss
                dense_loss = dense_runs[tokens].eval_loss
                if loss is not None and dense_loss is not None:
                    gaps[tokens] = loss - dense_loss
            if gaps:
                all_gaps.append(cls(d_model, runs[min(gaps)].n_active, experts, gaps))
        return all_gaps

    @property
    def crossing(self) -> str:
        """Crossover token count D*, interpolated in the logarithm of tokens."""
        tokens = find_crossing(np.log([*self.gaps]), np.array([*self.gaps.values()]))
        return format_crossing(float(tokens), (min(self.gaps), max(self.gaps)))


def format_crossing(tokens: float, between: tuple[float, float]) -> str:
    """Format a crossing; `find_crossing` gives 0 and infinity for a crossing that is not `between` these tokens."""
    if 0 < tokens < np.inf:
        return format_count(tokens)
    return f"after {format_count(between[1])}" if tokens else f"before {format_count(between[0])}"


def format_interval(low: float, high: float, between: tuple[float, float]) -> str:
    """Format the interval of a crossing that is sought `between` these tokens."""
    if low == 0 and high == np.inf:
        return "anywhere"
    return f"{format_crossing(low, between)} to {format_crossing(high, between)}"


def crossings_of(records: Sequence[RunRecord], law: Law) -> list[tuple[str, str, str, str]]:
    """List the model, the measured crossover, and the law's with its 95 % interval, for each size with experts."""
    all_gaps = Gaps.of(records)
    span = (float(min(min(gaps.gaps) for gaps in all_gaps)), float(max(max(gaps.gaps) for gaps in all_gaps)))
    rows = []
    for gaps in all_gaps:
        (by_law,) = law.speedup(gaps.experts, n_active=gaps.n_active, between=span, force=True).rows
        name = f"d_model {gaps.d_model}, E = {gaps.experts}"
        tokens = format_crossing(by_law["tokens"], span)
        interval = format_interval(by_law["tokens_low"], by_law["tokens_high"], span)
        rows.append((name, gaps.crossing, tokens, interval))
    return rows
