"""Which N a law is asked with where a vocabulary is not that of its runs: losses of other laboratories, none refitted.

Every table gets a constant of its own, since corpora differ; what is left is how well the law orders sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from scaling_law import JointLaw, Runs
from studies.anatomy.estimate import COUNTS
from studies.anatomy.pairs import DEEPMIND, EVIDENCE, MARIN, ROUTERS, STEPFUN, joined_runs, variables_of_runs
from studies.common import FloatArray, rms
from studies.evidence.points import read_sources

# The fewest sizes of a budget among which a law chooses.
FEWEST_SIZES = 3


class CountError(NamedTuple):
    """RMS errors of losses by laboratory, in nats, and the mean regret of the sizes that the law picks of budgets."""

    name: str
    errors: dict[str, float]
    regret: float


def count_errors() -> Iterator[CountError]:
    """Yield the errors of the joint law with each count of N."""
    sources = read_sources(EVIDENCE)
    marin = sources["marin"]["isoflop"]
    ladder = sources["marin_ladder"]
    laboratories = {
        DEEPMIND: [sources["clark"][router] for router in ROUTERS],
        MARIN: [marin, sources["marin_experts"]["experts"], ladder["dense"], ladder["moe"]],
        STEPFUN: [sources["step_law"]["dense"], sources["step_law"]["moe"]],
    }
    for count in COUNTS:
        errors = {}
        for name, tables in laboratories.items():
            residuals = [_residuals(joined_runs(table), count) for table in tables]
            # Tables count alike.
            errors[name] = rms(np.array(list(map(rms, residuals))))
        yield CountError(count, errors, float(np.mean(list(_regrets(marin, count)))))


def _predicted(runs: Runs, count: str) -> FloatArray:
    """Return the losses of runs by the joint law as published."""
    side = variables_of_runs(runs, slice(None))
    return np.asarray(JointLaw.published().loss(COUNTS[count](side), runs.tokens, runs.experts))


def _residuals(runs: Runs, count: str) -> FloatArray:
    residuals = runs.loss - _predicted(runs, count)
    return np.asarray(residuals - residuals.mean())


def _regrets(table: Runs, count: str) -> Iterator[float]:
    """Yield what the size that the law picks of each budget loses beside the best of it."""
    runs = joined_runs(table)
    predicted = _predicted(runs, count)
    budgets = table["budget"]
    for budget in np.unique(budgets):
        rows = np.flatnonzero(budgets == budget)
        if len(rows) >= FEWEST_SIZES:
            yield float(runs.loss[rows][np.argmin(predicted[rows])] - runs.loss[rows].min())
