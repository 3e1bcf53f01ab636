"""The effective speed-up of measured runs over a baseline's ladder, on each evaluation set by itself.

    L(C) = L∞ + A C^−α  through the baseline's runs;   factor = the C at which L(C) is a run's loss, over what it spent

Every set has an L∞ of its own, fitted or pinned. The interval holds the factors that the lack of fit cannot tell
apart: Student's t of n − k degrees of freedom, for the ladder's error and the scatter of the run itself
(marin-community/marin, issue 8096).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from scipy.stats import t as student

from hub.base.errors import InputError, unknown
from hub.base.inputs import reads
from hub.base.tables import Table
from hub.base.types import Fields
from scaling_law.answer.answer import ResultTable
from scaling_law.answer.columns import tabulate
from scaling_law.fitting.fitting import errors_of, fit
from scaling_law.formulas.law import check_level
from scaling_law.law import Law
from scaling_law.planning.minimiser import first_below
from scaling_law.runs.loading import load_runs
from scaling_law.runs.table import Runs
from scaling_law.size.arrays import FloatArray

# The furthest ln of the factor.
FURTHEST = 20.0


@dataclass(frozen=True, repr=False)
class MeasuredSpeedup(ResultTable):
    """A row for each evaluation set and run: how many times its FLOPs the baseline needs for its loss.

    `low` to `high` holds `level` of the factors; infinite, or 0, where the ladder cannot be told from the run's loss.
    `lack_of_fit` is the standard deviation of ln L about the ladder.
    """

    rows: tuple[Fields, ...]
    level: float

    def to_rows(self) -> list[Fields]:
        """Return one row for each evaluation set and run."""
        return [dict(row) for row in self.rows]

    def summary(self) -> Table:
        notes = [f"low to high: {self.level:.0%}, with the lack of fit of the baseline's ladder"]
        return tabulate(self.to_rows(), title="Times its FLOPs that the baseline needs for a run's loss", notes=notes)


@reads
def measured_speedup(
    baseline: Any,
    runs: Any,
    losses: str | Sequence[str] | None = None,
    asymptotes: Mapping[str, float] | None = None,
    *,
    level: float = 0.9,
) -> MeasuredSpeedup:
    """Compute how many times the FLOPs of measured runs a baseline needs for their losses, on each evaluation set.

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
    loss = losses[0] if losses else None
    baseline = baseline if isinstance(baseline, Runs) else load_runs(baseline, loss)
    runs = runs if isinstance(runs, Runs) else load_runs(runs, loss)
    names = tuple(losses or (baseline.loss_name,))
    pins = dict(asymptotes or {})
    for name in pins.keys() - {*names}:
        raise InputError(unknown("asymptotes: evaluation set ", name, names))
    rows: list[Fields] = []
    for name in names:
        ladder = _fit_ladder(name, baseline, pins.get(name))
        rows += _compare(name, ladder, runs, level)
    return MeasuredSpeedup(tuple(rows), level)


@dataclass(frozen=True)
class _Ladder:
    """L(C) through the baseline's runs on one evaluation set.

    `covariance` [k, k] of ln A, α and, if it is fitted, L∞ is per unit of `variance`, that of ln L about the ladder,
    which has `freedom` degrees of freedom.
    """

    law: Law
    covariance: FloatArray
    variance: float
    freedom: int


def _evaluate_ladder(
    law: Law,
    n_fitted: int,
    log_flops: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Return the loss c + a (C / 6)^−α, and the derivatives of its logarithm by ln a, α and, if it is fitted, c."""
    a, alpha, c = law.coefficients.values()
    x = log_flops - np.log(6.0)
    power = a * np.exp(-alpha * x)
    loss = power + c
    slopes = np.stack([power, -power * x, np.ones_like(x)], axis=-1)
    return loss, slopes[..., :n_fitted] / loss[..., None]


def _fit_ladder(
    name: str,
    baseline: Runs,
    pin: float | None,
) -> _Ladder:
    """Fit a ladder to the baseline's runs on an evaluation set, with its asymptote pinned or not."""
    baseline = replace(baseline, loss=baseline.positive(name), recipe={})
    n_fitted = 3 if pin is None else 2
    freedom = len(baseline) - n_fitted
    if freedom < 1:
        raise InputError(
            f"{name}: {len(baseline)} runs of the baseline leave no lack of fit; {n_fitted + 1} are needed"
        )
    fixed = {} if pin is None else {"c": pin}
    # A threshold far above all residuals makes this least squares.
    law = fit(baseline, "ladder", fixed=fixed, huber_delta=1e3).law
    _, design = _evaluate_ladder(law, n_fitted, np.log(baseline.flops))
    squares = np.log1p(errors_of(law, baseline) / baseline.loss) ** 2
    return _Ladder(
        law=law,
        covariance=np.asarray(np.linalg.pinv(design.T @ design), float),
        variance=squares.sum() / freedom,
        freedom=freedom,
    )


def _compare(
    name: str,
    ladder: _Ladder,
    runs: Runs,
    level: float,
) -> Iterator[Fields]:
    """Yield a row for each run: its factor and the interval of it, on this evaluation set."""
    a, alpha, c = ladder.law.coefficients.values()
    quantile = student.ppf(0.5 + level / 2, ladder.freedom)
    for run, log_flops, loss in zip(runs.run_id, np.log(runs.flops), runs.positive(name), strict=True):
        flops = float(np.exp(log_flops))
        factor = np.inf
        if loss > c:
            factor = 6.0 * (a / (loss - c)) ** (1.0 / alpha) / np.exp(log_flops)
        margin = partial(_margin, ladder, quantile, log_flops, loss)
        yield {
            "set": name,
            "run": run,
            "flops": flops,
            "loss": float(loss),
            "factor": float(factor),
            "low": _find_limit(margin, float(np.log(factor)), -1.0),
            "high": _find_limit(margin, float(np.log(factor)), 1.0),
            "asymptote": c,
            "exponent": alpha,
            "lack_of_fit": float(np.sqrt(ladder.variance)),
        }


def _margin(
    ladder: _Ladder,
    quantile: float,
    log_flops: float,
    loss: float,
    log_factor: FloatArray,
) -> FloatArray:
    """Return a number above 0 where the ladder's loss is the run's, as far as can be told."""
    ladder_loss, slopes = _evaluate_ladder(ladder.law, len(ladder.covariance), log_flops + log_factor)
    leverage = np.einsum("...p,pq,...q->...", slopes, ladder.covariance, slopes)
    error = np.sqrt(ladder.variance * (1.0 + leverage))
    return np.asarray(quantile * error - np.abs(np.log(ladder_loss / loss)))


def _find_limit(
    margin: Callable[[FloatArray], FloatArray],
    log_factor: float,
    side: float,
) -> float:
    """Find the factor at which the margin falls to 0 on one side; 0 or infinite where it does not."""
    start = float(np.clip(log_factor, -FURTHEST, FURTHEST))
    longest = np.array(2.0 * FURTHEST)
    distance = float(first_below(lambda x: margin(start + side * x), np.array(0.0), longest))
    is_endless = np.isnan(distance) or log_factor == side * np.inf
    return float(np.exp(side * np.inf if is_endless else start + side * distance))
