"""The error of a law outside the ranges of its runs, as backtests of other labs' laws measured it.

Draws of coefficients say how far other runs of the same sizes would move a law. They do not say how far its form is
wrong further out: 90 % intervals of draws alone hold 66 % of the runs above a cut (docs/studies/forecasts.md). So
outside, ln L errs by

    Σ_v σ_v (x_v z_v + τ log2(E / E_least) y_v w_v)

over N_act, D, C and D/N, where z and w are standard normal. x_v is the ln of how far v lies outside the range of all
runs, y_v outside that of the runs of the same E (as `RangeCheck` counts it); both are 0 inside. Models of one answer
share z and w. So the first term hardly moves a comparison of models that lie equally far out, and the second moves it
by as many doublings as their E are apart. σ and τ are in `EVIDENCE`. Draws of a posterior under a prior have no
further error: their width was set by other labs' held-out runs.
"""

from __future__ import annotations

from functools import cache
from statistics import NormalDist
from typing import Any

import numpy as np

from scaling_law.formulas.conditions import POSTERIOR, RangeCheck, evidence
from scaling_law.size.arrays import FloatArray


@cache
def normal_scores(count: int, rows: int) -> FloatArray:
    """Return the same quantiles of the normal distribution in orders of their own, [rows, count]."""
    normal = NormalDist()
    quantiles = [normal.inv_cdf((i + 0.5) / count) for i in range(count)]
    scores = np.array([np.random.default_rng(row).permutation(quantiles) for row in range(rows)])
    scores.setflags(write=False)
    return scores


def log_errors(check: RangeCheck, count: int, dimensions: int) -> Any:
    """Return the errors of ln L in each of `count` draws, [count, ...]; 0.0 if there are none.

    Models have so many `dimensions`; a variable may also differ between draws, along a first axis.
    """
    if check.conditions.draws == POSTERIOR:
        return 0.0
    data = evidence()["extrapolation"]
    deviations = data["growth"]
    shared_distances = check.distances(deviations)
    own_distances = check.distances(deviations, of_same_experts=True)
    per_doubling = data["per_doubling"] * check.doublings
    scores = normal_scores(count, 2 * len(deviations)).reshape(len(deviations), 2, count, *[1] * dimensions)
    errors: Any = 0.0
    for (name, deviation), (shared_score, own_score) in zip(deviations.items(), scores, strict=True):
        # The ranges of the same E are no wider than those of all runs.
        if np.any(own_distances.get(name, 0.0)):
            shared = shared_distances[name] * shared_score
            own_error = own_distances[name] * per_doubling * own_score
            errors = errors + deviation * (shared + own_error)
    return errors
