# ruff: noqa: E402
"""The paper's grid of 19,683 starts on 270 runs: this package beside scipy's L-BFGS-B.

    python -m benchmarks.fit_speed [--peer-starts 60]

Both minimise the same objective (Huber 0.01 on ln L, summed; E_start and E_max free) with analytic gradients on the
same runs: the sizes of the paper's listing, losses of the published law with noise of 0.006 nats. The peer gets a
tolerance at which it reaches the optimum from its better starts, starts drawn evenly from the grid, and the same
centred coordinates; its time for a grid is the mean time of a start times their number. Bound: the matrix products
alone of as many predictions, gradients and curvatures as the fit evaluates, in its first stage by ten of its batches.
"""

from __future__ import annotations

import os
import time
from typing import Any
from unittest import mock

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import numpy as np  # the thread limits above must come first
from scipy.optimize import minimize

from benchmarks.report import Options, Report, benchmark, in_turns
from scaling_law import JointLaw, Runs, fit
from scaling_law.fitting.fitting import BATCH, HELD, FitResult, distinct_starts
from scaling_law.fitting.problem import Problem, make_problem, start_points
from scaling_law.size.recipe import published_design


def synthetic_runs() -> Runs:
    """The paper's 270 sizes with losses of the published law and Gaussian noise of 0.006 nats."""
    design = published_design()
    loss = JointLaw.published().loss(design.n_active, design.tokens, design.experts)
    noise = np.random.default_rng(0).normal(0.0, 0.006, len(loss))
    return Runs.from_columns(design.n_active, design.tokens, design.experts, loss + noise, design.trunk)


def peer(problem: Problem, theta: np.ndarray) -> tuple[float, float]:
    """Seconds and objective of one start of L-BFGS-B."""
    scale = 1e3  # the summed objective is of order 1e-3: its tolerances, which must be tight, are meant for order one

    def value(point: np.ndarray) -> tuple[float, np.ndarray]:
        residual, jacobian = problem.objective.linearise_at(point)
        size = np.abs(residual)
        inner = np.minimum(size, problem.objective.huber_delta)
        slope = problem.objective.weight * inner
        return scale * float(slope @ (size - 0.5 * inner)), scale * (slope * np.sign(residual)) @ jacobian

    bounds = list(zip(problem.lower, problem.upper, strict=True))
    options = {"maxiter": 20_000, "maxfun": 40_000, "ftol": 1e-15, "gtol": 1e-12, "maxcor": 20}
    began = time.perf_counter()
    found = minimize(value, theta, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return time.perf_counter() - began, float(found.fun) / scale


def evaluations(problem: Problem, theta: np.ndarray, **options: Any) -> int:
    """How many times the solver evaluates a start, over all starts."""
    counts = []
    evaluate = problem.objective.evaluate

    def counted(points: np.ndarray, *arguments: Any, **keywords: Any) -> Any:
        counts.append(len(points))
        return evaluate(points, *arguments, **keywords)

    with mock.patch.object(problem.objective, "evaluate", counted):
        problem.solve(theta, **options)
    return sum(counts)


def bound(problem: Problem, theta: np.ndarray, result: FitResult) -> float:
    """Seconds that the fit's matrix products alone take.

    In the first stage the starts of a batch share a design [n, 4] for each of the two terms with E, in the second each
    start has a Jacobian [n, p] of its own.
    """
    theta = theta[distinct_starts(problem, theta)]
    batches = [theta[i : i + BATCH] for i in range(0, len(theta), BATCH)]
    batches = [batch for batch in batches if np.ptp(batch[:, -2:], 0).max() == 0]
    some = batches[:: max(1, len(batches) // 10)]
    steps = sum(evaluations(problem, batch, **HELD) for batch in some) / sum(map(len, some))
    draw, n, p = np.random.default_rng(0).normal, len(problem.objective.target), problem.objective.size
    size, released = min(BATCH, len(theta)), result.status.n_released
    own, by_run, design, pairs = draw(size=(size, 4)), draw(size=(size, n)), draw(size=(n, 4)), draw(size=(n, 16))
    jacobian, residual = draw(size=(released, n, p)), draw(size=(released, n, 1))

    def first() -> None:
        for _ in range(2):
            own @ design.T  # the prediction
            by_run @ design  # the gradient
        for second in (pairs, pairs, pairs, design, design):  # blocks of the curvature
            by_run @ second

    def second() -> None:
        np.matmul(jacobian.swapaxes(1, 2), residual)
        np.matmul(jacobian.swapaxes(1, 2), jacobian)

    spent = in_turns({"first": first, "second": second}, 5)
    again = evaluations(problem, result.finalists.theta, max_iterations=1000, tolerance=1e-12)
    return spent["first"] / size * steps * len(theta) + spent["second"] / released * again


def compare(report: Report, name: str, runs: Runs, starts: str, peer_starts: int) -> None:
    """One row for the time and one for the objective that was reached."""
    began = time.perf_counter()
    ours = fit(runs, starts=starts, progress=True)
    seconds = time.perf_counter() - began
    problem = make_problem(runs, "joint", starts=starts)
    theta = start_points(problem, starts)
    chosen = np.linspace(0, len(theta) - 1, peer_starts + 2).astype(int)[1:-1]
    spent, objectives = np.transpose([peer(problem, theta[i]) for i in chosen])
    theirs = (f"L-BFGS-B from as many starts, by {peer_starts} of them", float(spent.mean()) * len(theta))
    least = ("its matrix products alone", bound(problem, theta, ours))
    report.add(f"{name}: {len(theta):,} starts on {len(runs)} runs", seconds, "s", theirs, least)
    reached = np.mean(objectives <= ours.objective * (1 + 1e-3))
    agreed = f"{ours.status.n_agree} of our best {ours.status.n_released} starts reach it, {reached:.0%} of the peer's"
    best = (f"L-BFGS-B, the best of {peer_starts}", float(objectives.min()))
    report.add(f"{name}: objective reached", ours.objective, "", best, note=agreed)


def under_a_prior(report: Report, runs: Runs) -> None:
    """The time of a fit with the published law as its prior, beside one without."""
    law = JointLaw.published()
    spent = in_turns({"the same without one": lambda: fit(runs), "ours": lambda: fit(runs, prior=law)}, 3)
    report.add_of(spent, f"the default starts, with a prior, on {len(runs)} runs", "the same without one")


@benchmark({"--peer-starts": (12, 3)})
def main(report: Report, options: Options) -> None:
    runs = synthetic_runs()
    compare(report, "the default starts", runs, "scaled", options.peer_starts)
    under_a_prior(report, runs)
    if not options.fast:
        compare(report, "the paper's grid", runs, "paper", options.peer_starts)


if __name__ == "__main__":
    main()
