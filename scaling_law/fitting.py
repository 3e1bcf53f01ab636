"""Fit a law to runs: all starts at once, the best of them finished to the optimum, and an honest status.

The objective is that of Ludziejewski et al. 2025, Appendix "Fit Details" (`scaling_law.objective`), as a sum over
runs: the mean with usual tolerances stops early. Two stages, because E_start and E_max make the surface rough:
every start first runs with both held where it starts; then the best are released. The result is deterministic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scaling_law.conditions import Conditions
from scaling_law.fit_result import FitResult, FitStatus
from scaling_law.identifiability import design_problems, examine
from scaling_law.laws import Law
from scaling_law.problem import Problem, make_problem, start_points
from scaling_law.runs import Runs, load_runs
from scaling_law.solver import Solutions

FloatArray = NDArray[np.float64]
AGREEMENT = 1e-6  # starts within this relative distance of the best objective agree with it
# A run is an outlier beyond this many robust standard deviations and this many Huber thresholds; and if more than this
# part of the runs were outliers, the law would be at fault, not the runs.
OUTLIER_SIGMAS, OUTLIER_DELTAS, OUTLIER_PART = 8.0, 5.0, 0.1


def fit(
    runs: Any,
    law: str = "joint",
    *,
    huber_delta: float = 0.01,
    weights: Literal["inverse_loss"] | ArrayLike | None = None,
    l2: float = 0.0,
    fixed: Mapping[str, float] | None = None,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    starts: Literal["scaled", "paper"] | Sequence[Law] = "scaled",
    release: int | None = None,
    outliers: Literal["set_aside", "keep"] = "set_aside",
    workers: int | None = 1,
    progress: bool = False,
    allow_unidentifiable: bool = False,
) -> FitResult:
    """Fit `law` to `runs` (a Runs, or anything `load_runs` reads).

    Args:
        law: "joint", "chinchilla", "routed", or the name of another registered law.
        huber_delta: threshold of the Huber loss on ln L (the paper's 0.01).
        weights: row weights [n]; "inverse_loss" is the paper's underweighting of underperforming runs, read as weights
            proportional to 1 / loss (lowest loss: weight 1); None for equal weights.
        l2: weight decay on the summed objective, in the law's parameters (logarithms for a, b, c). The paper states
            1e-5, which moves the answer far along its flat directions; 0 is the default.
        fixed: coefficients held at given values, such as {"e_max": 256.0}.
        bounds: closed intervals for coefficients. E_max cannot be bounded (it can be fixed). Without bounds only
            c > 0 and 1.01 ≤ E_start ≤ 101, 1 ≤ E_max − E_start ≤ 1e5 limit the fit.
        starts: "scaled" (a few hundred, laid around the data), "paper" (its full grid), or laws to start from.
        release: how many of the best starts go on to the second stage, where E_start and E_max move (None: 256 of
            the paper's grid, 64 of the scaled one).
        outliers: "set_aside" refits without runs that lie far off (beyond 8 robust standard deviations and 5 Huber
            thresholds: diverged runs), and names them in the status; the Huber loss alone is moved by their number.
            More than a tenth of such runs is no matter of outliers, and all are kept. "keep" keeps every run.
        workers: processes for the first stage (None: one per core). More than one pays for the paper's grid only.
        progress: show a progress bar.
        allow_unidentifiable: fit although the design cannot determine all coefficients (the status then names them).

    Raises ValueError for settings that are out of range and for runs that cannot determine the law.
    """
    from scaling_law.grid_search import run_starts

    table = runs if isinstance(runs, Runs) else load_runs(runs)
    problem = make_problem(table, law, huber_delta, weights, l2, fixed or {}, bounds or {}, starts)
    free = {name for name in problem.objective.names if name not in problem.settings.fixed}
    problems = design_problems(law, problem.columns, free)
    if problems and not allow_unidentifiable:
        advice = "fix coefficients (fixed={...}), fit another law, or pass allow_unidentifiable=True"
        raise ValueError(f"{table.source}: {'; '.join(problems)}. {advice[0].upper()}{advice[1:]}")
    if outliers not in ("set_aside", "keep"):
        raise ValueError(f"outliers={outliers!r} must be 'set_aside' or 'keep'")
    theta = start_points(problem, starts)
    n_starts = len(theta)
    release = (256 if starts == "paper" else 64) if release is None else max(1, release)
    if isinstance(starts, str):
        theta = run_starts(problem, theta, workers=workers, progress=progress).theta[:release]
    final = problem.solve(theta, max_iterations=1000, tolerance=1e-12).sorted()
    given = problem.objective.weight
    for _ in range(5 if outliers == "set_aside" else 0):
        weight = np.where(find_outliers(problem, final.theta[0], given), 0.0, given)
        if np.array_equal(weight, problem.objective.weight):
            break
        problem.objective.weight = weight
        final = problem.solve(final.theta, max_iterations=1000, tolerance=1e-12).sorted()
    aside = (given > 0) & (problem.objective.weight == 0)
    return describe(table, problem, final, 0, n_starts, problems, aside)


def find_outliers(problem: Problem, theta: FloatArray, weight: FloatArray) -> NDArray[np.bool_]:
    """Which runs [n] of positive weight lie too far off to belong to the law θ; none if they are too many."""
    residual = np.abs(problem.objective.residuals(theta[None])[0])
    used = weight > 0
    sigma = 1.4826 * float(np.median(residual[used]))
    far = used & (residual > max(OUTLIER_SIGMAS * sigma, OUTLIER_DELTAS * problem.objective.huber_delta))
    return far if far.sum() <= OUTLIER_PART * used.sum() else np.zeros_like(far)


def describe(
    runs: Runs,
    problem: Problem,
    final: Solutions,
    chosen: int,
    n_starts: int,
    warnings: Sequence[str],
    aside: NDArray[np.bool_],
) -> FitResult:
    """The result whose law is the finished start number `chosen` (they are sorted: 0 is the lowest objective)."""
    theta, best = final.theta[chosen], float(final.cost[chosen])
    objective, settings = problem.objective, problem.settings
    held = problem.lower == problem.upper
    span = 1e-9 * np.maximum(1.0, np.abs(theta))
    at_bound = ~held & ((theta <= problem.lower + span) | (theta >= problem.upper - span))
    seen = examine(objective, theta, ~held & ~at_bound)
    status = FitStatus(
        converged=bool(final.converged[chosen]),
        n_starts=n_starts,
        n_released=len(final.cost),
        n_agree=int(np.sum(np.abs(final.cost - best) <= best * AGREEMENT + 10.0 * problem.floor)),
        bounds_hit=tuple(name for name, hit in zip(objective.names, at_bound, strict=True) if hit),
        condition_number=seen.condition_number,
        standard_errors=seen.standard_errors,
        logarithmic=tuple(name for name in objective.names if name in objective.positive),
        undetermined=seen.undetermined,
        set_aside=tuple(name for name, out in zip(runs.run_id, aside, strict=True) if out),
        warnings=tuple(warnings),
    )
    law = objective.make_law(theta)
    used = runs.subset(objective.weight > 0)
    rmse = float(np.sqrt(np.mean((law.loss(used.n_active, used.tokens, used.experts) - used.loss) ** 2)))
    conditions = Conditions(
        provenance=f"fitted on {runs.source} ({runs.loss_name})",
        objective=settings.to_dict(),
        n_runs=len(used),
        rmse=rmse,
        ranges=used.ranges(),
        status=status.verdict,
        dataset=runs.dataset,
        commit=runs.commit,
    )
    return FitResult(law.replace(conditions=conditions), best, rmse, status, runs, problem, theta, final)
