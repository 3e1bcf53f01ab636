"""The gap between a baseline and a variant beyond the sizes at which both were run.

A gap is ln(L_baseline / L_variant), above 0 where the variant is ahead. With x = ln N and y = ln D from the largest
cell on, it is a level, a steady trend in x and y, a transient that dies out with compute, a drift, and noise:

    gap = a (1 − f (x + y)) + t_x x + t_y y + e (1 − exp(−r (x + y))) / r + drift(x + y) + noise

a, t, e and the drift are normal around 0, but that t starts from what a higher learning rate does in the public
pairs; how large each is, and how a gap fades (f), is learnt from pairs of public runs (`trends.json`, written by
studies/promote). Pairs differ: the size of all these and of the noise are unknown factors, averaged over with the
weights that the cells give them. Everything then is a mixture of normal distributions in closed form.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.polynomial.hermite_e import hermegauss

from hub.base import strict_json
from scaling_law.forecasting.normals import Mixture, measure
from scaling_law.size.arrays import FloatArray, first_largest

DEFAULTS = Path(__file__).with_name("trends.json")
FORMAT = "joint-moe-scaling-laws/trends"
VERSION = 1
# Standard deviation of ln of a pair's scale, and of its noise.
SCATTER = 1.0
NODES = 3
# ln of the best learning rate by ln batch: Adam's square-root rule (Malladi et al. 2022, arXiv 2205.10287).
RATE_BY_BATCH = 0.5
# The slope of a ln L falls with N and D by this power: 0.3 of the terms of a law, less the fall of L itself.
POWER = 0.2
# Standard deviations of ln L at the largest cell before any run, and about a baseline's surface.
LEVEL_SCATTER = 100.0
SURFACE_SCATTER = 0.005


@dataclass(frozen=True)
class TrendPrior:
    """Standard deviations of each part of a gap, in ln loss per unit of ln N or ln D, and what is known of settings.

    level: of a gap at the largest cell.
    trend: of its change with ln N and with ln D, each.
    transient: of what dies out with compute, per unit of ln C at the largest cell.
    drift: of its random walk over one unit of ln C.
    noise: of the gap of two single runs.
    fade: f, the part of a gap that is lost with each unit of ln C.
    decay: r, the exponent of C by which a transient dies out.
    rate_n, rate_d: mean change with ln N and ln D for e times the learning rate, beyond what the batch makes best.
    slope: fall of a baseline's ln L with ln N and with ln D, on average over baselines.
    slope_scatter: of that between baselines.
    """

    level: float
    trend: float
    transient: float
    drift: float
    noise: float
    fade: float
    decay: float
    rate_n: float
    rate_d: float
    slope: float
    slope_scatter: float


@cache
def read_trend_prior(path: Path = DEFAULTS) -> TrendPrior:
    """Read the prior that the package ships."""
    data = strict_json.read(path, FORMAT, VERSION)
    return TrendPrior(**data["prior"])


class Cells(NamedTuple):
    """Cells at which both were run: `sizes` [..., n, 2] are ln N and ln D from the largest on, `gaps` [..., n].

    `runs` [..., n] divides the variance of the noise: 1 for one run of each. `excess_rate` [...] is ln of the
    variant's learning rate over the baseline's, beyond `RATE_BY_BATCH` times that of the batches. `seed_variance` is
    that of a gap of single runs, as repeated cells show it, with `seed_freedom` degrees of freedom. Leading axes are
    further pairs.
    """

    sizes: FloatArray
    gaps: FloatArray
    runs: FloatArray
    excess_rate: Any = 0.0
    seed_variance: float = 0.0
    seed_freedom: int = 0


def covariance(
    prior: TrendPrior,
    sizes: FloatArray,
) -> FloatArray:
    """Return the covariance [..., n, n] of gaps at sizes [..., n, 2] without noise, at the usual scale."""
    compute = sizes.sum(axis=-1, keepdims=True)
    level = prior.level * (1.0 - prior.fade * compute)
    transient = prior.transient * -np.expm1(-prior.decay * compute) / prior.decay
    columns = np.concatenate([level, prior.trend * sizes, transient], axis=-1)
    across = np.swapaxes(compute, -1, -2)
    # The drift sets out from the largest cell to either side, independently.
    drift = prior.drift**2 * np.minimum(np.abs(compute), np.abs(across)) * (compute * across > 0)
    return np.asarray(columns @ np.swapaxes(columns, -1, -2) + drift)


def _scales() -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return factors [k] of the variances of a gap and of its noise, and ln of their weights."""
    nodes, weights = hermegauss(NODES)
    factors = np.exp(2 * SCATTER * nodes)
    scale, noise = np.meshgrid(factors, factors)
    log_weights = np.log(np.outer(weights, weights) / weights.sum() ** 2)
    return scale.ravel(), noise.ravel(), log_weights.ravel()


def noise_variances(prior: TrendPrior) -> FloatArray:
    """Return the variances [k] of the noise of a gap of two single runs."""
    return prior.noise**2 * _scales()[1]


def predict_gaps(
    prior: TrendPrior,
    cells: Cells,
    points: FloatArray,
) -> Mixture:
    """Predict gaps at points [..., m, 2], ln N and ln D from the largest cell on, from cells; without their noise."""
    n = cells.gaps.shape[-1]
    sizes = np.concatenate([cells.sizes, points], axis=-2)
    # What a higher learning rate makes of a gap.
    expected = sizes @ (prior.rate_n, prior.rate_d) * np.asarray(cells.excess_rate)[..., None]
    scales, _, log_odds = _scales()
    noises = noise_variances(prior)
    gaps = cells.gaps[..., None, :]
    variances = noises[:, None] / cells.runs[..., None, :]
    seeds = cells.seed_freedom * (np.log(noises) + cells.seed_variance / noises)
    log_odds = log_odds - 0.5 * (n * np.log(noises) + (gaps**2 / variances).sum(axis=-1) + seeds)
    before = Mixture(
        log_odds, expected[..., None, :], scales[:, None, None] * covariance(prior, sizes)[..., None, :, :]
    )
    return before.given(measure(np.eye(n), gaps, variances)).at(slice(n, None))


def fit_slopes(
    prior: TrendPrior,
    sizes: FloatArray,
    log_losses: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Fit how a baseline's ln L falls with ln N and ln D at the largest cell: the two slopes and their covariance.

    `sizes` [n, 2] are ln N and ln D from the largest cell on. Where its runs say little, it falls as other baselines.
    """
    basis = np.column_stack([np.ones(len(sizes)), np.expm1(-POWER * sizes) / POWER])
    largest_loss = log_losses[first_largest(np.exp(sizes.sum(axis=1)))]
    variances = np.array([LEVEL_SCATTER, prior.slope_scatter, prior.slope_scatter]) ** 2
    before = Mixture(np.zeros(()), np.array([largest_loss, prior.slope, prior.slope]), np.diag(variances))
    surface = before.given(measure(basis, log_losses, np.full(len(sizes), SURFACE_SCATTER**2))).at(slice(1, None))
    return surface.means, surface.covariances
