"""Fit a law to runs: all starts at once, then the best ones to the optimum.

The objective is that of Ludziejewski et al. 2025, Appendix "Fit Details" (`fitting.objective`), as a sum over
runs: the mean with usual tolerances stops early. Two stages, because E_start and E_max make the surface rough:
every start first runs with both fixed where it starts; then the best are released. The result is deterministic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scaling_law.fitting.fit_result import FitResult, FitStatus, errors_of
from scaling_law.fitting.identifiability import design_problems, examine
from scaling_law.fitting.outliers import MOST, Outliers, find_outliers
from scaling_law.fitting.problem import Problem, make_problem, start_points
from scaling_law.fitting.solver import Solutions, shown
from scaling_law.laws import Law
from scaling_law.laws.conditions import Conditions
from scaling_law.runs.table import Runs, load_runs

FloatArray = NDArray[np.float64]
AGREEMENT = 1e-6  # starts within this relative distance of the best objective agree with it
HELD: dict[str, Any] = {"hold_transform": True, "max_iterations": 60, "tolerance": 1e-4}  # of the first stage
BATCH = 128  # starts solved together: arrays of 128 × runs stay in the processor's cache


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
    outliers: Literal["keep", "set_aside"] = "keep",
    loss: str | None = None,
    trunks: str = "auto",
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
        fixed: coefficients fixed at given values, such as {"e_max": 256.0}.
        bounds: closed intervals for coefficients, such as {"c": (1.0, 1.8), "e_max": (64, None)}; None leaves an end
            as it is without bounds: 0 < c ≤ the lowest loss, 1.01 ≤ E_start ≤ 101, 1 ≤ E_max − E_start ≤ 1e5, the
            rest far outside anything sensible. Where E_max is bounded, E_start stays below its lower end.
        starts: "scaled" (a few hundred, laid around the data), "paper" (its full grid), or laws to start from.
        release: how many of the best starts go on to the second stage, where E_start and E_max move (None: 256 of
            the paper's grid, 64 of the scaled one).
        outliers: runs that lie far from the law the others follow (`fitting.outliers`) are named in the status.
            "keep" fits them too; "set_aside" fits without them and records that in the law's conditions. If more than
            30 % of the runs are outliers, the law or the table is wrong: all are kept, with a warning.
        loss: the column of losses, as in `load_runs`.
        trunks: which runs share a trunk: "auto", "run" or the name of a column, as in `load_runs`.
        progress: show a progress bar.
        allow_unidentifiable: fit although the design cannot determine all coefficients (the status then names them).

    Raises ValueError for settings that are out of range and for runs that cannot determine the law, RunsError (a
    ValueError) for a table that cannot be read.
    """
    if outliers not in ("keep", "set_aside"):
        raise ValueError(f"outliers={outliers!r} must be 'keep' or 'set_aside'")
    if release is not None and (isinstance(release, bool) or not isinstance(release, int) or release < 1):
        raise ValueError(f"release={release!r} must be an integer of at least 1, or None")
    table = _table(runs, loss, trunks)
    problem = make_problem(table, law, huber_delta, weights, l2, fixed or {}, bounds or {}, starts)
    warnings = _design_warnings(table, problem, allow_unidentifiable)
    theta = start_points(problem, starts)
    search: dict[str, Any] = {"n_starts": len(theta)}
    if isinstance(starts, str):
        theta = _first_stage(problem, theta, progress).theta[: release or (256 if starts == "paper" else 64)]
    final = Solutions.sorted(problem.solve(theta, max_iterations=1000, tolerance=1e-12))
    found = find_outliers(problem, final.theta[0])
    if found.too_many:
        count = f"{int(found.suspicious.sum())} of {int(problem.used.sum())} runs"
        warnings.append(
            f"{count} lie far from the law that fits the others; more than {MOST:.0%} are no outliers, and all runs "
            "were kept: check the table and the form of the law"
        )
    elif outliers == "set_aside":
        problem = problem.without(found.suspicious)
        theta = np.vstack([found.theta, final.theta[1:]])
        final = Solutions.sorted(problem.solve(theta, max_iterations=1000, tolerance=1e-12))
    search |= _named(table, found, set_aside=outliers == "set_aside") | {"warnings": tuple(warnings)}
    return describe(table, problem, final, search)


def _first_stage(problem: Problem, theta: FloatArray, progress: bool) -> Solutions:
    """From each θ [S, p] with E_start and E_max fixed where it starts, in batches that share both."""
    groups = [theta]
    if problem.objective.has_transform:
        pairs, index = np.unique(theta[:, -2:], axis=0, return_inverse=True)
        groups = [theta[index.ravel() == i] for i in range(len(pairs))]
    batches = [group[i : i + BATCH] for group in groups for i in range(0, len(group), BATCH)]
    return Solutions.sorted(*(problem.solve(batch, **HELD) for batch in shown(batches, "starts", progress)))


def _table(runs: Any, loss: str | None, trunks: str) -> Runs:
    """The table of runs. `loss` and `trunks` belong to `load_runs`; a loaded table accepts what agrees with it."""
    if not isinstance(trunks, str):
        raise ValueError(f"trunks={trunks!r} must be 'auto', 'run' or the name of a column")
    if not isinstance(runs, Runs):
        return load_runs(runs, loss, trunks=trunks)
    if loss not in (None, runs.loss_name):
        raise ValueError(f"loss={loss!r}: these runs were loaded with {runs.loss_name}; pass loss to load_runs")
    if trunks not in ("auto", "run"):
        raise ValueError(f"trunks={trunks!r}: these runs are loaded already; pass trunks to load_runs")
    return runs.each_its_own_trunk() if trunks == "run" else runs


def _design_warnings(runs: Runs, problem: Problem, allow_unidentifiable: bool) -> list[str]:
    """What this design cannot determine; ValueError unless that is allowed."""
    settings = problem.settings
    free = {name for name in problem.objective.names if name not in settings.fixed}
    problems = design_problems(settings.law, problem.columns, free)
    if problems and not allow_unidentifiable:
        advice = "fix coefficients (fixed={...}), fit another law, or pass allow_unidentifiable=True"
        raise ValueError(f"{runs.source}: {'; '.join(problems)}. {advice[0].upper()}{advice[1:]}")
    reach = dict(zip(problem.objective.names, np.exp(problem.lower), strict=True))
    for name in problem.objective.constants:
        below = int(np.sum(runs.loss <= reach[name]))
        if below:
            problems.append(f"the constant {name} ≥ {reach[name]:g} is above the loss of {below} of {len(runs)} runs")
    return problems


def _named(runs: Runs, found: Outliers, set_aside: bool) -> dict[str, tuple[Any, ...]]:
    """The outliers for the status, the farthest first; none if there are too many."""
    rows = np.zeros(0, int) if found.too_many else np.flatnonzero(found.suspicious)
    rows = rows[np.argsort(-np.abs(found.deviation[rows]), kind="stable")]
    names = tuple(runs.run_id[i] for i in rows)
    nats = runs.loss[rows] * -np.expm1(-found.deviation[rows])
    return {"suspicious": names, "deviations": tuple(nats.tolist()), "set_aside": names if set_aside else ()}


def describe(runs: Runs, problem: Problem, final: Solutions, search: Mapping[str, Any], chosen: int = 0) -> FitResult:
    """The result whose law is the finished start number `chosen` (they are sorted: 0 is the lowest objective).

    `search` holds the fields of FitStatus that are the same whichever is chosen: n_starts, warnings, the outliers.
    """
    theta, best = final.theta[chosen], float(final.cost[chosen])
    objective, free = problem.objective, problem.free(theta)
    at_bound = ~free & (problem.lower < problem.upper)
    condition_number, standard_errors, undetermined = examine(objective, theta, free)
    used = runs.subset(problem.used)
    law = objective.make_law(theta)
    rmse = float(np.sqrt(np.mean(errors_of(law, used) ** 2)))
    status = FitStatus(
        converged=bool(final.converged[chosen]),
        n_released=len(final.cost),
        n_agree=int(np.sum(np.abs(final.cost - best) <= best * AGREEMENT + 10.0 * problem.floor)),
        bounds_hit=tuple(name for name, hit in zip(objective.names, at_bound, strict=True) if hit),
        condition_number=condition_number,
        standard_errors=standard_errors,
        logarithmic=tuple(name for name in objective.names if name in objective.positive),
        undetermined=undetermined,
        n_trunks=used.n_trunks,
        trunk_source=used.trunk_source,
        **search,
    )
    aside = f"; {len(status.set_aside)} of {len(runs)} runs set aside as outliers" if status.set_aside else ""
    chosen_by = f", where {runs.where}" if runs.where else ""
    conditions = Conditions(
        provenance=f"fitted on {runs.source}{chosen_by} ({runs.loss_name}){aside}",
        objective=problem.settings.to_dict(),
        n_runs=len(used),
        rmse=rmse,
        ranges=used.ranges(),
        status=status.verdict,
        dataset=runs.dataset,
        commit=runs.commit,
        trunks=status.n_trunks,
        trunk_source=status.trunk_source,
        set_aside=status.set_aside,
        warmup_tokens=used.warmup_tokens,
        vocab_size=used.vocab_size,
        where=runs.where,
    )
    return FitResult(law.replace(conditions=conditions), best, rmse, status, runs, problem, theta, final)
