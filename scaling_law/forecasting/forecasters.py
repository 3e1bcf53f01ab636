"""Laws that forecast: each fits some runs and predicts ln L at points that no run has reached."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hub.base.errors import InputError, unknown
from scaling_law.fitting.fitting import errors_of, fit
from scaling_law.fitting.penalty import values_of
from scaling_law.fitting.prior import Modes, Prior, for_kind, law_of, modes
from scaling_law.law import LAWS, Law
from scaling_law.law.kinds import JointLaw
from scaling_law.runs.table import Runs
from scaling_law.size.arrays import FloatArray

CHINCHILLA, PUBLISHED, PRIOR, BY_COMPUTE, LADDER = "chinchilla", "published", "prior", "prior by compute", "ladder"
INTERACTION, I_PRIOR, I_BY_COMPUTE = "interaction", "interaction prior", "interaction prior by compute"
# Powers of compute in the weights of runs.
POWERS = {PRIOR: 0.0, BY_COMPUTE: 1.0, I_PRIOR: 0.0, I_BY_COMPUTE: 1.0}
OF_EXPERTS = ("joint", "crossing", "sparsity", "saturation")  # kinds that have E, for runs of several
VARIABLES = frozenset(name for law in LAWS.values() for name in law.form.variables)  # columns that a law reads
BASE = (CHINCHILLA, PUBLISHED, PRIOR, BY_COMPUTE)  # the laws whose errors on public sets are shipped
# Resamples of the cluster bootstrap behind the standard errors of a fresh fit.
RESAMPLES = 100
EQUAL_RATIOS = float(np.log(1.25))  # runs whose D/N differs less are rungs of one ladder
SAME_EXPERTS = 0.1  # E closer than this in ln E are one: shared experts and dense blocks blur what is counted
OFF_THE_LADDER = "a ladder needs a model of about the tokens per parameter of the runs"
ONE_SIGMA = (0.158655, 0.841345)


@dataclass(frozen=True)
class Prediction:
    """ln L of a law at the points [n], its standard error [n] and the noise of ln L of one run there [n].

    NaN where the law says nothing; `error` is 0 where it was not asked for.
    """

    log_loss: FloatArray
    error: FloatArray
    noise: FloatArray


# Predicts points from runs, with standard errors or without.
Predict = Callable[[Runs, Runs, bool], Prediction]


@dataclass(frozen=True)
class Forecaster:
    """A law that predicts from runs, and the law of `BASE` whose errors it is taken to have before it is tested.

    `law` is the law itself, fitted to runs, with draws. `silent` says why a prediction is NaN.
    """

    like: str
    predict: Predict
    law: Callable[[Runs], Law]
    silent: str = ""

    def losses(self, runs: Runs, points: Runs) -> FloatArray:
        """At the points, from the runs."""
        return np.exp(self.predict(runs, points, False).log_loss)

    def through(self, change: Callable[[Predict], Predict]) -> Forecaster:
        return replace(self, predict=change(self.predict))


def forecasters(
    runs: Runs,
    experts: float,
    prior: Prior | None,
    kinds: Collection[str] | None = None,
    seed: int = 0,
    alone: bool = True,
) -> dict[str, Forecaster]:
    """The laws that may forecast a model of `experts` experts from these runs, by name.

    Laws of one E are fitted to the runs of that E (if they may stand `alone`), and to all runs, moved there by the
    published gain of experts, where these are others. `kinds` are names of laws below, or of registered kinds.
    ValueError for another.
    """
    single = {kind: fresh(kind, seed) for kind in (CHINCHILLA, INTERACTION)} | {LADDER: ladder(seed)}
    if prior is not None:
        for name, power in POWERS.items():
            of_kind = for_kind(prior, INTERACTION) if name.startswith(INTERACTION) else prior
            single[name] = from_prior(of_kind, power, seed)
    several = {PUBLISHED: one_constant(JointLaw.published(), seed)}
    kinds = [kinds] if isinstance(kinds, str) else kinds
    for kind in kinds or OF_EXPERTS:
        if kind not in (*LAWS, *single, *several):
            raise InputError(unknown("kinds=", kind, dict.fromkeys([*single, *several, *LAWS])))
        if kind not in single | several:
            several[kind] = fresh(kind, seed)
    if kinds is not None:
        single, several = ({kind: law for kind, law in laws.items() if kind in kinds} for laws in (single, several))
    matching = have(runs, experts)
    if not matching.all():
        moved = {f"{kind}, moved from other E": law.through(moved_to_dense) for kind, law in single.items()}
        here = {f"{kind} of E = {experts:g}": law.through(of_one(experts)) for kind, law in single.items()}
        single = moved | (here if alone and matching.any() else {})
    return single | several


def have(runs: Runs, experts: float) -> NDArray[np.bool_]:
    """Which runs have this E, or one so close that laws need not tell them apart."""
    return np.asarray(np.abs(np.log(runs.experts / experts)) < SAME_EXPERTS)


def from_prior(prior: Prior, power: float, seed: int = 0) -> Forecaster:
    """The posterior mode of a law; a run's inverse variance grows with this power of its compute."""

    def mode_of(runs: Runs) -> Modes:
        return modes(runs, [prior], (runs.flops / runs.flops.max()) ** power)

    def predict(runs: Runs, points: Runs, errors: bool) -> Prediction:
        mode = mode_of(runs)
        log_loss, error = mode.losses(points)
        return Prediction(log_loss[0], error[0], mode.noise[0] * (points.flops / runs.flops.max()) ** (-power / 2))

    def law(runs: Runs) -> Law:
        mode, rng = mode_of(runs), np.random.default_rng(seed)
        best = law_of(mode.natural[0], prior.kind)
        drawn = values_of(best.form, rng.multivariate_normal(mode.natural[0], mode.covariance[0], RESAMPLES))
        return best.replace(draws=np.stack([drawn[name] for name in best.coefficient_names()], axis=1))

    return Forecaster(BY_COMPUTE if power else PRIOR, predict, law)


def fresh(kind: str, seed: int = 0) -> Forecaster:
    """A law of this kind, fitted to these runs alone; refits to fewer of them start from the first fit."""

    earlier: list[Law] = []

    def predict(runs: Runs, points: Runs, errors: bool) -> Prediction:
        result = fit(runs, kind, starts=earlier[:1] or "scaled")
        # A Chinchilla fit is quick from all starts.
        if kind != CHINCHILLA and not earlier:
            earlier.append(result.law)
        log_residuals = result.problem.objective.residuals(result.theta[None])[0]
        noise = np.sqrt((log_residuals**2).sum() / max(len(runs) - len(result.fitted), 1))
        error = np.zeros(len(points))
        if errors and runs.n_trunks > 1:
            drawn = result.bootstrap(RESAMPLES, seed).law
            values = drawn.loss_draws(**_inputs(drawn, points))
            low, high = np.quantile(np.log(np.maximum(values, 1e-9)), ONE_SIGMA, axis=0)
            error = 0.5 * (high - low)
        return Prediction(np.log(result.law.loss(**_inputs(result.law, points))), error, np.full(len(points), noise))

    def law(runs: Runs) -> Law:
        result = fit(runs, kind)
        return result.bootstrap(RESAMPLES, seed).law if runs.n_trunks > 1 else result.law

    return Forecaster(CHINCHILLA, predict, law)


def one_constant(published: JointLaw, seed: int = 0) -> Forecaster:
    """A law as published, moved by its mean error on the runs; it says nothing where that leaves no positive loss."""

    def predict(runs: Runs, points: Runs, errors: bool) -> Prediction:
        off = runs.loss - published.loss(**_inputs(published, runs))
        loss = np.asarray(published.loss(**_inputs(published, points))) + off.mean()
        loss = np.where(loss > 0, loss, np.nan)
        noise = (off.std(ddof=1) if len(runs) > 1 else 0.0) / loss
        return Prediction(np.log(loss), noise / np.sqrt(len(runs)), noise)

    def law(runs: Runs) -> Law:
        errors = errors_of(published, runs)
        moved = published.replace(c=published.c - errors.mean())
        draws = np.tile([*moved.coefficients.values()], (RESAMPLES, 1))
        scatter = errors.std(ddof=1) / np.sqrt(len(runs)) if len(runs) > 1 else 0.0
        c = moved.coefficient_names().index("c")
        draws[:, c] += scatter * np.random.default_rng(seed).standard_normal(RESAMPLES)
        return moved.replace(draws=draws)

    return Forecaster(PUBLISHED, predict, law, "moved by its mean error on these runs, it ends below zero")


def ladder(seed: int = 0) -> Forecaster:
    """L = c + A C^−α through runs of one ratio D/N, for points of that ratio. ValueError for runs of several."""
    rungs = fresh(LADDER, seed)

    def predict(runs: Runs, points: Runs, errors: bool) -> Prediction:
        of_runs, of_points = (np.log(table.tokens / table.n_active) for table in (runs, points))
        if np.ptp(of_runs) > EQUAL_RATIOS:
            raise InputError("a ladder needs runs of about equal tokens per parameter")
        near = np.abs(of_points - of_runs.mean()) <= EQUAL_RATIOS
        if not near.any():
            raise InputError(OFF_THE_LADDER)
        p = rungs.predict(runs, points, errors)
        return Prediction(*(np.where(near, values, np.nan) for values in (p.log_loss, p.error, p.noise)))

    return replace(rungs, predict=predict, silent=OFF_THE_LADDER)


def of_one(experts: float) -> Callable[[Predict], Predict]:
    """The change to the runs of this E alone."""

    def change(predict: Predict) -> Predict:
        def of_these(runs: Runs, points: Runs, errors: bool) -> Prediction:
            if not (matching := have(runs, experts)).any():
                raise InputError(f"no run has E = {experts:g}")
            return predict(runs.subset(matching), points, errors)

        return of_these

    return change


def moved_to_dense(predict: Predict) -> Predict:
    """The same as of dense runs, which the runs become by the ratio of losses that the published joint law gives."""

    def of_dense(runs: Runs, points: Runs, errors: bool) -> Prediction:
        p = predict(replace(runs, loss=runs.loss / gain_of_experts(runs)), points, errors)
        return replace(p, log_loss=p.log_loss + np.log(gain_of_experts(points)))

    return of_dense


def gain_of_experts(points: Runs, experts: float = 1.0) -> FloatArray:
    """The loss at a point's E over that at another E, of equal N and D, in the published joint law."""
    law, at = JointLaw.published(), (points.n_active, points.tokens)
    return np.asarray(law.loss(*at, points.experts) / law.loss(*at, experts))


def _inputs(law: Law, points: Runs) -> dict[str, FloatArray]:
    return {name: points.column(name) for name in law.form.variables}
