# ruff: noqa: E402
"""The paper's grid of 19,683 starts on 270 runs: this package beside scipy's L-BFGS-B.

    python benchmarks/fit_speed.py                 # the whole grid here, 12 starts there: about a minute
    python benchmarks/fit_speed.py --peer-starts 60 --workers 1

Both minimise the same objective (Huber 0.01 on ln L, summed; E_start and E_max free) with analytic gradients on the
same
runs: the sizes of the paper's listing, losses of the published law with noise of 0.006 nats. The peer gets a tolerance
at which it reaches the optimum from its better starts (ftol 1e-15, with the objective scaled to order one; looser ones
stop early), starts drawn evenly from the grid, in the same centred coordinates, and one process. Its time for the grid
is the mean time of a start times 19,683; a peer that used all cores perfectly would need that divided by their number,
which is the ratio printed last.
"""

from __future__ import annotations

import argparse
import os
import time

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import numpy as np  # the thread limits above must come first
from rich.console import Console
from rich.table import Table
from scipy.optimize import minimize

from scaling_law import JointLaw, Runs, fit
from scaling_law.listing import published_design
from scaling_law.problem import Problem, make_problem, start_points
from scaling_law.workers import available_cores


def synthetic_runs(sigma: float, seed: int) -> Runs:
    """The paper's 270 sizes with losses of the published law and Gaussian noise (nats)."""
    design = published_design()
    loss = JointLaw.published().loss(design.n_active, design.tokens, design.experts)
    noise = np.random.default_rng(seed).normal(0.0, sigma, len(loss))
    return Runs.from_columns(design.n_active, design.tokens, design.experts, loss + noise, design.trunk)


def peer(problem: Problem, theta: np.ndarray) -> tuple[float, float]:
    """Seconds and objective of one start of L-BFGS-B."""
    scale = 1e3  # the summed objective is of order 1e-3: its tolerances are meant for order one

    def value(point: np.ndarray) -> tuple[float, np.ndarray]:
        at = problem.objective.value_and_gradient(point[None])
        return scale * at[0][0], scale * at[1][0]

    bounds = list(zip(problem.lower, problem.upper, strict=True))
    options = {"maxiter": 20_000, "maxfun": 40_000, "ftol": 1e-15, "gtol": 1e-12, "maxcor": 20}
    began = time.perf_counter()
    found = minimize(value, theta, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return time.perf_counter() - began, float(found.fun) / scale


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-starts", type=int, default=12)
    parser.add_argument("--workers", type=int, default=available_cores())
    parser.add_argument("--sigma", type=float, default=0.006)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    runs = synthetic_runs(arguments.sigma, arguments.seed)

    began = time.perf_counter()
    ours = fit(runs, starts="paper", workers=arguments.workers, progress=True)
    seconds = time.perf_counter() - began

    problem = make_problem(runs, "joint", 0.01, None, 0.0, {}, {}, "paper")
    theta = start_points(problem, "paper")
    chosen = np.linspace(0, len(theta) - 1, arguments.peer_starts + 2).astype(int)[1:-1]
    results = np.array([peer(problem, theta[i]) for i in chosen])
    reached = np.mean(results[:, 1] <= ours.objective * (1 + 1e-3))
    grid = float(results[:, 0].mean()) * len(theta)

    console = Console()
    table = Table(title=f"{len(theta):,} starts, {len(runs)} runs", title_justify="left")
    for name in ("", "wall time", "objective", "starts at the best objective"):
        table.add_column(name, justify="right")
    agree = f"{ours.status.n_agree} of the best {ours.status.n_released}"
    table.add_row(f"scaling_law, {arguments.workers} processes", f"{seconds:.1f} s", f"{ours.objective:.9g}", agree)
    peer_time = f"{grid / 3600:.2f} h (×{results[:, 0].mean():.3f} s)"
    best = f"{results[:, 1].min():.9g}"
    table.add_row(f"L-BFGS-B, {len(chosen)} starts", peer_time, best, f"{reached:.0%}")
    console.print(table)
    shared = grid / seconds / arguments.workers
    console.print(f"ratio: ×{grid / seconds:,.0f}; against a peer on {arguments.workers} cores: ×{shared:,.0f}")
    console.print(f"objective, ours / best of the peer: {ours.objective / results[:, 1].min():.9f}")


if __name__ == "__main__":
    main()
