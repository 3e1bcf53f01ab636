"""Runs left out of the fit in turn: what the law of the others predicts for them, and what needs no law.

A single run left out is an anecdote, and if a sweep was designed while looking at it, no test. Each run in turn, and
each model with all runs of its trunk, give an error for every run, none of them chosen. The law is compared with the
runs nearest to each: if it predicts no better than these, it has shown nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hub.base.progress import progress_line
from hub.base.tables import Table
from scaling_law import FitResult, Law, Runs
from studies.common import FloatArray, rms

OTHER_E = "other E, same size and D"
OTHER_SIZE = "next size, same E and D"
OTHER_TOKENS = "same model, next D"
PLANE = "log-linear regression"
# What predicts a run without a law: the loss of the nearest run, or a regression of ln L on ln N, ln D and ln E.
WITHOUT_LAW = (OTHER_E, OTHER_SIZE, OTHER_TOKENS, PLANE)


@dataclass(frozen=True)
class LeftOut:
    """Predictions of runs [n] that a fit has not seen, nats per byte; `unit` is what was left out at a time.

    `low` and `high` are the law's 95 % prediction interval. `without_law` has a prediction for each of `WITHOUT_LAW`,
    NaN where the fit has no such runs.
    """

    unit: str
    run_id: tuple[str, ...]
    loss: FloatArray
    law: FloatArray
    low: FloatArray
    high: FloatArray
    without_law: Mapping[str, FloatArray]

    @classmethod
    def concatenate(cls, sweeps: Sequence[LeftOut]) -> LeftOut:
        """Join what was left out of several sweeps."""
        arrays = {}
        for name in ("loss", "law", "low", "high"):
            arrays[name] = np.concatenate([getattr(sweep, name) for sweep in sweeps])
        without_law = {}
        for name in WITHOUT_LAW:
            without_law[name] = np.concatenate([sweep.without_law[name] for sweep in sweeps])
        run_id = tuple(itertools.chain(*(sweep.run_id for sweep in sweeps)))
        return cls(sweeps[0].unit, run_id, **arrays, without_law=without_law)

    @property
    def errors(self) -> FloatArray:
        """The law's error of each run, predicted minus measured."""
        return self.law - self.loss

    @property
    def n_covered(self) -> int:
        """The number of runs whose interval holds their loss."""
        return int(np.sum((self.low <= self.loss) & (self.loss <= self.high)))

    def comparisons(self) -> Iterator[Comparison]:
        """Compare the law with each prediction without one, over the runs that have it."""
        for name, predictions in self.without_law.items():
            has_both = np.isfinite(predictions)
            if has_both.any():
                errors = np.abs(predictions - self.loss)[has_both]
                yield Comparison(self.unit, name, np.abs(self.errors)[has_both], errors)


class Comparison(NamedTuple):
    """Absolute errors of the law and of a prediction without it, of the same runs [n], nats per byte."""

    unit: str
    name: str
    law: FloatArray
    without_law: FloatArray

    @property
    def n_closer(self) -> int:
        """The number of runs that the law predicts better."""
        return int(np.sum(self.law < self.without_law))


def leave_out_each(
    runs: Runs, fit_law: Callable[[Runs], FitResult[Law]], draws: int, progress: bool = False
) -> Iterator[LeftOut]:
    """Leave out each of the runs in turn, then each model with all runs of its trunk."""
    groups = {"each run": np.arange(len(runs)), "each model": runs.trunk}
    count = sum(len(np.unique(group)) for group in groups.values())
    with progress_line("leaving out", count, "fits", progress) as advance:
        for unit, group in groups.items():
            law = np.zeros(len(runs))
            low = np.zeros(len(runs))
            high = np.zeros(len(runs))
            for member in np.unique(group):
                is_out = group == member
                unseen = runs.subset(is_out)
                result = fit_law(runs.subset(~is_out))
                law[is_out] = unseen.loss + result.errors_on(unseen)
                bootstrap = result.bootstrap(draws)
                low[is_out], high[is_out] = bootstrap.prediction_interval(
                    unseen.n_active, unseen.tokens, unseen.experts, kind="prediction"
                )
                advance(1, unit)
            yield LeftOut(unit, runs.run_id, runs.loss, law, low, high, predict_without_law(runs, group))


def predict_without_law(runs: Runs, group: NDArray[np.intp]) -> dict[str, FloatArray]:
    """Predict each run [n] from the runs of other groups than its own [n].

    The nearest run has another E, another size, or another number of tokens, and is the same otherwise.
    """
    predictions = {name: np.full(len(runs), np.nan) for name in WITHOUT_LAW}
    for i in range(len(runs)):
        is_seen = group != group[i]
        same_size = is_seen & (runs.n_active == runs.n_active[i])
        same_tokens = is_seen & (runs.tokens == runs.tokens[i])
        same_experts = is_seen & (runs.experts == runs.experts[i])
        predictions[OTHER_E][i] = _nearest_loss(runs, runs.experts, i, same_size & same_tokens)
        predictions[OTHER_SIZE][i] = _nearest_loss(runs, runs.n_active, i, same_experts & same_tokens)
        predictions[OTHER_TOKENS][i] = _nearest_loss(runs, runs.tokens, i, same_size & same_experts)

    logarithms = np.log([np.full(len(runs), np.e), runs.n_active, runs.tokens, runs.experts])
    for member in np.unique(group):
        is_out = group == member
        slopes = np.linalg.lstsq(logarithms[:, ~is_out].T, np.log(runs.loss[~is_out]), rcond=None)[0]
        predictions[PLANE][is_out] = np.exp(slopes @ logarithms[:, is_out])
    return predictions


def _nearest_loss(runs: Runs, values: FloatArray, i: int, is_candidate: NDArray[np.bool_]) -> float:
    """Return the loss of the candidate whose value is nearest to that of run i by its ratio; NaN without any."""
    if not is_candidate.any():
        return np.nan
    distances = np.where(is_candidate, np.abs(np.log(values / values[i])), np.inf)
    return float(runs.loss[np.argmin(distances)])


def left_out_table(left_out: Sequence[LeftOut]) -> Table:
    """Tabulate the errors of the law and of each prediction without one, over the runs that have both."""
    rows = []
    notes = []
    for predictions in left_out:
        for comparison in predictions.comparisons():
            errors = [*_median_and_rms(comparison.law), *_median_and_rms(comparison.without_law)]
            closer = f"{comparison.n_closer} of {len(comparison.law)}"
            rows.append([comparison.unit, comparison.name, *errors, closer])
        covered = f"{predictions.n_covered} of {len(predictions.loss)}"
        notes.append(f"With {predictions.unit} left out, 95 % intervals of the law hold {covered} losses.")
    header = ["left out", "compared with", "law: median", "RMS", "other: median", "RMS", "law closer"]
    title = "Errors of runs left out of the fit in turn, nats per byte"
    return Table(header, rows, title=title, keys=("left out", "compared with"), notes=notes)


def _median_and_rms(errors: FloatArray) -> list[str]:
    return [f"{np.median(errors):.3f}", f"{rms(errors):.3f}"]
