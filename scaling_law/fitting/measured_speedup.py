"""Effective speed-up of measured runs over a baseline's ladder, on each evaluation set by itself.

    L(C) = L∞ + A C^−α  through the baseline's runs;   factor = the C at which L(C) is a run's loss, over what it spent

Every set has an L∞ of its own, fitted or pinned. The interval holds the factors that the lack of fit cannot tell
apart: Student's t of n − k degrees of freedom, for the ladder's error and the scatter of the run itself
(marin-community/marin, issue 8096).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.stats import t as student

from hub.base.errors import InputError, unknown
from hub.base.inputs import reads
from hub.base.tables import ResultTable, Table
from scaling_law.fitting.fitting import errors_of, fit
from scaling_law.formulas.law import check_level
from scaling_law.planning.minimiser import first_below
from scaling_law.runs.loading import load_runs
from scaling_law.runs.table import Runs
from scaling_law.size.arrays import FloatArray

# The furthest ln of the factor.
FURTHEST = 20.0


@dataclass(frozen=True)
class MeasuredSpeedup(ResultTable):
    """A row for each evaluation set and run: how many times its FLOPs the baseline needs for its loss.

    `low` to `high` holds `level` of the factors; infinite, or 0, where the ladder cannot be told from the run's loss.
    `lack_of_fit` is the standard deviation of ln L about the ladder.
    """

    rows: tuple[dict[str, Any], ...]
    level: float

    def to_rows(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self.rows]

    def summary(self) -> Table:
        notes = [f"low to high: {self.level:.0%}, with the lack of fit of the baseline's ladder"]
        return Table.of(self.to_rows(), title="Times its FLOPs that the baseline needs for a run's loss", notes=notes)


@reads
def measured_speedup(
    baseline: Any,
    runs: Any,
    losses: str | Sequence[str] | None = None,
    asymptotes: Mapping[str, float] | None = None,
    *,
    level: float = 0.9,
) -> MeasuredSpeedup:
    """How many times the FLOPs of measured runs a baseline needs for their losses, on each evaluation set.

    Args:
        baseline: its best runs of several budgets; a Runs, or anything `load_runs` reads.
        runs: those that are compared, with the same columns.
        losses: columns of both, one for each evaluation set; None: the loss of the tables.
        asymptotes: L∞ of sets where it is pinned; elsewhere it is fitted, which needs one run more.
        level: of the intervals.

    ValueError for unknown columns, asymptotes that are not below the baseline's losses, and baselines of too few runs.
    """
    check_level(level)
    losses = [losses] if isinstance(losses, str) else losses
    one, two = (t if isinstance(t, Runs) else load_runs(t, losses[0] if losses else None) for t in (baseline, runs))
    names, pins = tuple(losses or (one.loss_name,)), dict(asymptotes or {})
    for name in pins.keys() - {*names}:
        raise InputError(unknown("asymptotes: evaluation set ", name, names))
    rows = (row for name in names for row in _on_set(name, one, two, pins.get(name), level))
    return MeasuredSpeedup(tuple(rows), level)


def _on_set(name: str, baseline: Runs, runs: Runs, pin: float | None, level: float) -> Iterator[dict[str, Any]]:
    baseline, runs = (replace(table, loss=table.positive(name), recipe={}) for table in (baseline, runs))
    k = 3 if pin is None else 2
    if len(baseline) <= k:
        raise InputError(f"{name}: {len(baseline)} runs of the baseline leave no lack of fit; {k + 1} are needed")
    law = fit(baseline, "ladder", fixed={} if pin is None else {"c": pin}, huber_delta=1e3).law  # least squares
    a, alpha, c = law.coefficients.values()

    def ladder(log_flops: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The loss, and the derivatives of ln L by ln A, α and, if it is fitted, L∞, [..., k]."""
        x = log_flops - np.log(6.0)
        power = a * np.exp(-alpha * x)
        return power + c, np.stack([power, -power * x, np.ones_like(x)], axis=-1)[..., :k] / (power + c)[..., None]

    design = ladder(np.log(baseline.flops))[1]
    squares = np.log1p(errors_of(law, baseline) / baseline.loss) ** 2
    covariance, variance = np.linalg.pinv(design.T @ design), squares.sum() / (len(baseline) - k)
    reach = student.ppf(0.5 + level / 2, len(baseline) - k)
    for run, flops, loss in zip(runs.run_id, np.log(runs.flops), runs.loss, strict=True):

        def inside(log_factor: FloatArray, flops: float = flops, loss: float = loss) -> FloatArray:
            """Above 0 where the ladder's loss is the run's, as far as can be told."""
            at, by = ladder(flops + log_factor)
            error = np.sqrt(variance * (1.0 + np.einsum("...p,pq,...q->...", by, covariance, by)))
            return np.asarray(reach * error - np.abs(np.log(at / loss)))

        factor = 6.0 * (a / (loss - c)) ** (1.0 / alpha) / np.exp(flops) if loss > c else np.inf
        row = {"set": name, "run": run, "flops": float(np.exp(flops)), "loss": float(loss), "factor": float(factor)}
        row |= {end: _end(inside, float(np.log(factor)), side) for end, side in (("low", -1.0), ("high", 1.0))}
        yield row | {"asymptote": c, "exponent": alpha, "lack_of_fit": float(np.sqrt(variance))}


def _end(inside: Callable[[FloatArray], FloatArray], log_factor: float, side: float) -> float:
    """Where factors end that are `inside`, on one side; 0 or infinite where they do not."""
    start = float(np.clip(log_factor, -FURTHEST, FURTHEST))
    way = float(first_below(lambda x: inside(start + side * x), np.array(0.0), np.array(2.0 * FURTHEST)))
    endless = np.isnan(way) or log_factor == side * np.inf
    return float(np.exp(side * np.inf if endless else start + side * way))
