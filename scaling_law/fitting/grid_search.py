"""The first stage of a fit: every start, in chunks, with E_start and E_max held."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from scaling_law.fitting.solver import Solutions, minimise
from scaling_law.fitting.workers import map_in_processes

if TYPE_CHECKING:
    from scaling_law.fitting.objective import Evaluation
    from scaling_law.fitting.problem import Problem

FloatArray = NDArray[np.float64]
CHUNK = 256  # starts per batch: arrays of 256 × runs stay in the processor's cache


def run_starts(problem: Problem, theta: FloatArray, *, workers: int | None = 1, progress: bool = False) -> Solutions:
    """Solve from each θ [S, p] with (E_start, E_max) held where it starts; lowest objective first."""
    chunks = chunks_of(problem, theta)
    found: list[Solutions | None] = [None] * len(chunks)
    with _progress_bar(len(theta), progress) as advance:
        for i, solutions in map_in_processes(solve_chunk, problem, chunks, workers):
            found[i] = solutions
            advance(len(chunks[i]))
    return joined([part for part in found if part is not None]).sorted()


def chunks_of(problem: Problem, theta: FloatArray) -> list[FloatArray]:
    """Batches of at most CHUNK starts; all of a batch share E_start and E_max."""
    groups = [theta]
    if problem.objective.has_transform:
        pairs, index = np.unique(theta[:, -2:], axis=0, return_inverse=True)
        groups = [theta[index.ravel() == i] for i in range(len(pairs))]
    return [group[i : i + CHUNK] for group in groups for i in range(0, len(group), CHUNK)]


def solve_chunk(problem: Problem, theta: FloatArray) -> Solutions:
    """One batch of starts, all with the same E_start and E_max."""
    lower, upper = problem.lower.copy(), problem.upper.copy()
    if problem.objective.has_transform:
        lower[-2:] = upper[-2:] = theta[0, -2:]

    def evaluate(points: FloatArray, rows: NDArray[np.int64]) -> Evaluation:
        return problem.objective.evaluate(points, fixed_transform=True)

    return minimise(evaluate, theta, lower, upper, floor=problem.floor, max_iterations=60, tolerance=1e-4)


def joined(parts: list[Solutions]) -> Solutions:
    """Batches one after the other."""
    return Solutions(
        np.concatenate([p.theta for p in parts]),
        np.concatenate([p.cost for p in parts]),
        np.concatenate([p.converged for p in parts]),
        np.concatenate([p.iterations for p in parts]),
    )


@contextmanager
def _progress_bar(total: int, shown: bool) -> Iterator[Callable[[int], None]]:
    """A function that advances a bar on stderr, or nothing."""
    if not shown:
        yield lambda steps: None
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (*Progress.get_default_columns()[:3], MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("starts", total=total)
        yield lambda steps: progress.advance(task, steps)
