"""The effective speed-up of measured runs over a baseline's ladder, on each evaluation set by itself.

    L(C) = L∞ + A C^−α  through the baseline's runs;   factor = the C at which L(C) is a run's loss, over what it spent

Every set has an L∞ of its own, fitted or pinned. The interval holds the factors that the lack of fit cannot tell
apart: Student's t of n − k degrees of freedom, for the ladder's error and the scatter of the run itself
(marin-community/marin, issue 8096).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.stats import t as student

from hub.base.errors import InputError, unknown
from hub.base.fields import reads
from hub.base.types import Fields
from scaling_law.answer.answer import columns_of, rows_of
from scaling_law.fitting.fitting import fit
from scaling_law.planning.minimiser import first_below
from scaling_law.planning.question import Level
from scaling_law.planning.speedup import Speedup
from scaling_law.runs.loading import load_runs
from scaling_law.runs.table import Runs
from scaling_law.size.arrays import FloatArray

# The furthest ln of the factor.
FURTHEST = 20.0


@reads
def speedup(
    runs: Any,
    baseline: Any,
    losses: str | Sequence[str] | None = None,
    asymptotes: Mapping[str, float] | None = None,
    *,
    level: Level = 0.9,
) -> Speedup:
    """Compute how many times the FLOPs of measured runs a baseline needs for their losses, on each evaluation set.

    `law.speedup` does so for models by a law. A row's `factor` is infinite, or 0, where the ladder cannot be told
    from the run's loss; `lack_of_fit` is the standard deviation of ln L about the ladder.

    Args:
        runs: those that are compared; a Runs, or anything `load_runs` reads.
        baseline: its best runs of several budgets, with the same columns.
        losses: columns of both, one for each evaluation set; None: the loss of the tables.
        asymptotes: L∞ of sets where it is pinned; elsewhere it is fitted, which needs one run more.
        level: of the intervals.

    ValueError for unknown columns, asymptotes that are not below the baseline's losses, and baselines of too few runs.
    """
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
        rows += _compare(name, runs, baseline, pins.get(name), level)
    return Speedup(
        columns=columns_of(rows),
        claim=f"Times the FLOPs of a run that the baseline needs for its loss, with the {level:.0%} interval",
        match="flops",
        check=None,
    )


def _compare(name: str, runs: Runs, baseline: Runs, pin: float | None, level: float) -> list[Fields]:
    """Fit a ladder to the baseline on an evaluation set, and make a row for each run."""
    baseline = replace(baseline, loss=baseline.positive(name), recipe={})
    n_fitted = 3 if pin is None else 2
    freedom = len(baseline) - n_fitted
    if freedom < 1:
        raise InputError(
            f"{name}: {len(baseline)} runs of the baseline leave no lack of fit; {n_fitted + 1} are needed"
        )
    fixed = {} if pin is None else {"c": pin}
    # A threshold far above all residuals makes this least squares.
    result = fit(baseline, "ladder", fixed=fixed, huber_delta=1e3)
    objective = result.problem.objective
    is_fitted = ~np.isin(objective.names, [*fixed])
    residual, jacobian = objective.linearise_at(result.theta)
    design = jacobian[:, is_fitted]
    covariance = np.linalg.pinv(design.T @ design)
    variance = residual @ residual / freedom
    quantile = student.ppf(0.5 + level / 2, freedom)
    loss = runs.positive(name)
    a, alpha, c = result.law.columns
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.where(loss > c, 6.0 * (a / (loss - c)) ** (1.0 / alpha) / runs.flops, np.inf)
    start = np.clip(np.log(factor), -FURTHEST, FURTHEST)

    def margin(log_factor: FloatArray) -> FloatArray:
        """Return a number above 0 where the ladder's loss is that of the runs, as far as can be told."""
        inputs = {"n_active": runs.n_active, "tokens": runs.tokens * np.exp(log_factor), "loss": loss}
        columns = {name: np.broadcast_to(values, log_factor.shape).ravel() for name, values in inputs.items()}
        distance, jacobian = replace(objective, columns=columns).linearise_at(result.theta)
        slopes = jacobian[:, is_fitted]
        leverage = np.einsum("np,pq,nq->n", slopes, covariance, slopes)
        margins = quantile * np.sqrt(variance * (1.0 + leverage)) - np.abs(distance)
        return np.asarray(margins.reshape(log_factor.shape))

    def find_limit(side: float) -> FloatArray:
        """Find the factors at which the margin falls to 0 on one side; 0 or infinite where it does not."""
        longest = np.full(len(loss), 2.0 * FURTHEST)
        distance = first_below(lambda x: margin(start + side * x), 0.0 * longest, longest)
        is_endless = np.isnan(distance) | (np.log(factor) == side * np.inf)
        return np.exp(np.where(is_endless, side * np.inf, start + side * distance))

    columns = {
        "set": name,
        "run": runs.run_id,
        "flops": runs.flops,
        "loss": loss,
        "factor": factor,
        "low": find_limit(-1.0),
        "high": find_limit(1.0),
        "asymptote": c,
        "exponent": alpha,
        "lack_of_fit": np.sqrt(variance),
    }
    return rows_of(columns)
