# ruff: noqa: E402
"""A fit from all starts to 270 runs of the paper's sizes: this package beside scipy's L-BFGS-B.

    python -m benchmarks.fit_speed [--peer-starts 60]

Both minimise the same objective (Huber 0.01 on ln L, summed; E_start and E_max free) with analytic gradients on the
same runs: the sizes of the paper's listing, losses of the published law with noise of 0.006 nats. The peer gets a
tolerance at which it reaches the optimum from its better starts, starts drawn evenly from ours, and the same
centred coordinates; its time for all of them is the mean time of a start times their number. Bound: the matrix
products alone of as many predictions, gradients and curvatures as the fit evaluates, in its first stage by ten of its
batches.
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
from scaling_law.fitting.fitting import HELD, FitResult
from scaling_law.fitting.problem import BATCH, Problem, make_problem, start_points
from scaling_law.size.recipe import published_design

# The summed objective is of order 1e-3: the peer's tolerances, which must be tight, are meant for order one.
PEER_SCALE = 1e3
PEER_OPTIONS = {"maxiter": 20_000, "maxfun": 40_000, "ftol": 1e-15, "gtol": 1e-12, "maxcor": 20}


def synthetic_runs() -> Runs:
    """Return the paper's 270 sizes with losses of the published law and Gaussian noise of 0.006 nats."""
    design = published_design()
    loss = JointLaw.published().loss(design.n_active, design.tokens, design.experts)
    noise = np.random.default_rng(0).normal(0.0, 0.006, len(loss))
    return Runs.from_columns(design.n_active, design.tokens, design.experts, loss + noise, design.trunk)


def minimise_with_scipy(problem: Problem, theta: np.ndarray) -> tuple[float, float]:
    """Return the seconds and the objective of one start of L-BFGS-B."""

    def value_and_gradient(point: np.ndarray) -> tuple[float, np.ndarray]:
        residual, jacobian = problem.objective.linearise_at(point)
        size = np.abs(residual)
        inner = np.minimum(size, problem.settings.huber_delta)
        slope = problem.objective.weight * inner
        value = float(slope @ (size - 0.5 * inner))
        return PEER_SCALE * value, PEER_SCALE * (slope * np.sign(residual)) @ jacobian

    bounds = list(zip(problem.lower, problem.upper, strict=True))
    started = time.perf_counter()
    solution = minimize(value_and_gradient, theta, jac=True, method="L-BFGS-B", bounds=bounds, options=PEER_OPTIONS)
    return time.perf_counter() - started, float(solution.fun) / PEER_SCALE


def count_evaluations(problem: Problem, theta: np.ndarray, **options: Any) -> int:
    """Count how many times the solver evaluates a start, over all starts."""
    counts = []
    evaluate = problem.objective.evaluate

    def evaluate_and_count(points: np.ndarray, *arguments: Any, **keywords: Any) -> Any:
        counts.append(len(points))
        return evaluate(points, *arguments, **keywords)

    with mock.patch.object(problem.objective, "evaluate", evaluate_and_count):
        problem.solve(theta, **options)
    return sum(counts)


def bound(problem: Problem, theta: np.ndarray, result: FitResult) -> float:
    """Measure the seconds that the fit's matrix products alone take.

    In the first stage the starts of a batch share a design [n, 4] for each of the two terms with E, in the second each
    start has a Jacobian [n, p] of its own.
    """
    batch_size = min(BATCH, len(theta))
    n_finalists = result.status.n_released
    normal = np.random.default_rng(0).normal
    n, p = len(problem.objective.target), problem.objective.size
    coefficients = normal(size=(batch_size, 4))
    slopes = normal(size=(batch_size, n))
    design = normal(size=(n, 4))
    pairs = normal(size=(n, 16))
    jacobian = normal(size=(n_finalists, n, p))
    residual = normal(size=(n_finalists, n, 1))

    def first_stage() -> None:
        for _ in range(2):
            # The prediction and the gradient.
            coefficients @ design.T
            slopes @ design
        # Blocks of the curvature.
        for products in (pairs, pairs, pairs, design, design):
            slopes @ products

    def second_stage() -> None:
        np.matmul(jacobian.swapaxes(1, 2), residual)
        np.matmul(jacobian.swapaxes(1, 2), jacobian)

    seconds = in_turns({"first": first_stage, "second": second_stage}, 5)
    first_evaluations = _evaluations_of_a_start(problem, theta) * len(theta)
    second_evaluations = count_evaluations(problem, result.finalists.theta, max_iterations=1000, tolerance=1e-12)
    return seconds["first"] / batch_size * first_evaluations + seconds["second"] / n_finalists * second_evaluations


def _evaluations_of_a_start(problem: Problem, starts: np.ndarray) -> float:
    """Return the mean number of evaluations of a start in the first stage, by ten of its batches."""
    batches = [starts[i : i + BATCH] for i in range(0, len(starts), BATCH)]
    batches = [batch for batch in batches if np.ptp(batch[:, -2:], 0).max() == 0]
    sample = batches[:: max(1, len(batches) // 10)]
    evaluations = sum(count_evaluations(problem, batch, **HELD) for batch in sample)
    return evaluations / sum(map(len, sample))


def compare(report: Report, runs: Runs, peer_starts: int) -> None:
    """Add one row for the time and one for the objective that was reached."""
    started = time.perf_counter()
    ours = fit(runs, progress=True)
    seconds = time.perf_counter() - started
    problem = make_problem(runs, "joint")
    theta = start_points(problem)
    sample = np.linspace(0, len(theta) - 1, peer_starts + 2).astype(int)[1:-1]
    peer_seconds, objectives = np.transpose([minimise_with_scipy(problem, theta[i]) for i in sample])
    peer = (f"L-BFGS-B from as many starts, by {peer_starts} of them", float(peer_seconds.mean()) * len(theta))
    products = ("its matrix products alone", bound(problem, theta, ours))
    report.add(f"the default starts: {len(theta):,} starts on {len(runs)} runs", seconds, "s", peer, products)
    reached = np.mean(objectives <= ours.objective * (1 + 1e-3))
    note = f"{ours.status.n_agree} of our best {ours.status.n_released} starts reach it, {reached:.0%} of the peer's"
    best_of_peer = (f"L-BFGS-B, the best of {peer_starts}", float(objectives.min()))
    report.add("the default starts: objective reached", ours.objective, "", best_of_peer, note=note)


def under_a_prior(report: Report, runs: Runs) -> None:
    """Add the time of a fit with the published law as its prior, beside one without."""
    law = JointLaw.published()
    peer = "the same without one"
    seconds = in_turns({peer: lambda: fit(runs), "ours": lambda: fit(runs, prior=law)}, 3)
    report.add_of(seconds, f"the default starts, with a prior, on {len(runs)} runs", peer)


@benchmark({"--peer-starts": (12, 3)})
def main(report: Report, options: Options) -> None:
    runs = synthetic_runs()
    compare(report, runs, options.peer_starts)
    under_a_prior(report, runs)


if __name__ == "__main__":
    main()
