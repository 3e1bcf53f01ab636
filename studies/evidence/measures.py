"""What else other labs' runs say of the published joint law: the gain of experts, sizes it would choose, its slopes.

Differences of losses of one corpus need no constant: the law is asked as published. N counts no embeddings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np

from scaling_law import HeldOut, JointLaw, Law, Runs, errors_of, fit, published
from studies.common import LEVEL, FloatArray, rms
from studies.evidence.forecasts import as_dense, counted, joined, scales_refitted

REFITS = 200  # of resampled runs
AT = 5e8, 1e10  # N_act and D of the gains that refits see
Value = tuple[float, float, float]  # with the ends of its 95 % interval


@dataclass(frozen=True)
class Gains:
    """Losses of MoE models minus that of the model of fewest experts with equal N and D, [n], nats per token.

    `predicted` are those of the joint law as published, `predicted_with` with embeddings in N.
    """

    source: str
    experts: FloatArray
    n_active: FloatArray
    measured: FloatArray
    predicted: FloatArray
    predicted_with: FloatArray

    @property
    def errors(self) -> HeldOut:
        return HeldOut(self.predicted - self.measured)

    @property
    def errors_with(self) -> HeldOut:
        return HeldOut(self.predicted_with - self.measured)


def gains(source: str, runs: Runs) -> Gains:
    """Gains of every run whose N and D a run of the fewest experts shares."""
    law = JointLaw.published()
    losses = [law.loss(r.n_active, r.tokens, r.experts) for r in (counted(runs), runs)]
    few = runs.experts == runs.experts.min()
    same = (runs.n_active[:, None] == runs.n_active) & np.isclose(runs.tokens[:, None], runs.tokens, rtol=0.01) & few
    pairs = np.flatnonzero(~few & same.any(axis=1))
    reference = same[pairs].argmax(axis=1)
    differences = [values[pairs] - values[reference] for values in (runs.loss, *losses)]
    return Gains(source, runs.experts[pairs], runs.n_active[pairs], *differences)


def matched_losses(tables: Iterable[Runs]) -> FloatArray:
    """Losses of MoE models minus those of dense ones of equal N_total (10 %) that saw at most 1/E of their tokens."""
    differences = [np.empty(0)]
    for one, other in product(map(joined, tables), repeat=2):  # a dense run may be in several tables
        moe, dense = one.subset(one.experts > 1), other.subset(other.experts == 1)
        same = np.isclose(moe["n_total"][:, None], dense["n_total"], rtol=0.1)
        matched = same & (moe.tokens[:, None] >= moe.experts[:, None] * dense.tokens)
        differences.append((moe.loss[:, None] - dense.loss)[matched])
    return np.concatenate(differences)


@dataclass(frozen=True)
class Choice:
    """The run of one budget that a law would have trained, and what that costs: its loss minus the least, nats."""

    flops: float
    n_runs: int
    best: float
    chosen: float
    regret: float


def choices(law: str, runs: Runs, flops: FloatArray) -> list[Choice]:
    """The sizes (N_act) of the best and of the chosen run, for each budget [n] with at least four runs."""
    picks = []
    for budget in np.unique(flops):
        part = runs.subset(flops == budget)
        if len(part) >= 4:
            best, picked = int(np.argmin(part.loss)), int(np.argmin(errors_of(published(law), part) + part.loss))
            regret = float(part.loss[picked] - part.loss[best])
            picks.append(Choice(float(budget), len(part), part.n_active[best], part.n_active[picked], regret))
    return picks


# ------------------------------------------------------------------ what a refit leaves open


@dataclass(frozen=True)
class Refits:
    """RMSE on Step Law's points by what was fitted to them, and what experts gain over dense at `AT`.

    `gain` maps each E of the MoE models to two (value, low, high): of the joint law refitted, and as published.
    """

    rmse: Mapping[str, float]
    gain: Mapping[float, tuple[Value, Value]]


def refits(dense: Runs, moe: Runs, n_resamples: int = REFITS) -> Refits:
    """What Step Law's tuned points say of experts, N without embeddings."""
    routed, law = counted(joined(moe)), JointLaw.published()
    points = counted(joined(dense, moe))
    joint = fit(points, "joint")
    drawn = joint.bootstrap(n_resamples).law
    errors = errors_of(law, points)
    rmse = {
        "joint": joint.rmse,
        "freed": scales_refitted(points).rmse,
        "moved": rms(errors - errors.mean()),
        "moe": fit(as_dense(routed), "chinchilla").rmse,
    }
    return Refits(rmse, {float(e): (_gain(drawn, e), _gain(law, e)) for e in np.unique(routed.experts)})


def _gain(law: Law, experts: float) -> Value:
    """Loss at this E minus that of the dense model, with its 95 % interval over the law's draws."""
    value = float(law.loss(*AT, experts) - law.loss(*AT, 1.0))
    drawn = law.loss_draws(*AT, experts) - law.loss_draws(*AT, 1.0)
    low, high = np.quantile(drawn[np.isfinite(drawn)], LEVEL)
    return value, float(low), float(high)


@dataclass(frozen=True)
class Slopes:
    """Exponents of N and D of a Chinchilla law fitted to runs of one E, (value, low, high), and the published ones."""

    source: str
    experts: float
    n_runs: int
    size: Value
    tokens: Value
    published: tuple[float, float]


def slopes(source: str, runs: Runs, n_resamples: int = REFITS) -> Slopes:
    """Slopes of runs of about one E; the published law is taken at their mean E."""
    experts = float(np.round(runs.experts.mean()))
    fitted = fit(as_dense(counted(runs)), "chinchilla")
    drawn, coefficients = fitted.bootstrap(n_resamples), fitted.law.coefficients
    _, mu, _, nu = JointLaw.published().chinchilla_coefficients(experts)
    size, tokens = ((coefficients[name], *drawn.interval(name)) for name in ("mu", "nu"))
    return Slopes(source, experts, len(runs), size, tokens, (float(mu), float(nu)))
