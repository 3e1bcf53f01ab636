"""Laws that forecast: each fits some runs and predicts ln L at points that no run has reached."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hub.base.errors import InputError, unknown
from scaling_law.fitting.fitting import errors_of, fit
from scaling_law.fitting.penalty import values_of
from scaling_law.fitting.prior import Modes, Prior, for_kind, law_of, modes, vague
from scaling_law.forecasting.asymptote import Asymptote, robust_deviation
from scaling_law.law import LAWS, JointLaw, Law, choose_kind
from scaling_law.runs.table import Runs
from scaling_law.size.arrays import BoolArray, FloatArray
from scaling_law.size.draws import draw_normal

CHINCHILLA = "chinchilla"
PUBLISHED = "published"
LADDER = "ladder"
INTERACTION = "interaction"
CONSTANT = "prior of the constant"
PRIOR = "prior"
BY_COMPUTE = "prior by compute"
# Kinds that have E, for runs of several.
OF_EXPERTS = ("joint", "crossing", "sparsity", "saturation")
# The laws whose errors on public sets are shipped.
BASE = (CHINCHILLA, INTERACTION, CONSTANT, PRIOR, BY_COMPUTE, PUBLISHED)
# Resamples of the cluster bootstrap behind the standard errors of a fresh fit.
RESAMPLES = 100
# Runs whose ln D/N differs less are rungs of one ladder.
EQUAL_RATIOS = float(np.log(1.25))
# E closer than this in ln E are one: shared experts and dense blocks blur what is counted.
SAME_EXPERTS = 0.1
OFF_THE_LADDER = "a ladder needs a model of about the tokens per parameter of the runs"


@dataclass(frozen=True)
class Prediction:
    """ln L of a law at the points [n], its standard error [n] and the noise of ln L of one run there [n].

    NaN where the law says nothing; where errors were not asked for, `error` is 0 and `asymptote` None.
    """

    log_loss: FloatArray
    error: FloatArray
    noise: FloatArray
    asymptote: Asymptote | None = None


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
        """Predict the losses at the points, from the runs."""
        return np.exp(self.predict(runs, points, False).log_loss)

    def through(self, change: Callable[[Predict], Predict]) -> Forecaster:
        """Return the forecaster whose predictions are changed."""
        return replace(self, predict=change(self.predict))


def forecasters(
    runs: Runs,
    experts: float,
    prior: Prior | None,
    kinds: Collection[str] | None = None,
    seed: int = 0,
    alone: bool = True,
) -> dict[str, Forecaster]:
    """Return the laws that may forecast a model of `experts` experts from these runs, by name.

    Laws of one E are fitted to the runs of that E (if they may stand `alone`), and to all runs, moved there by the
    published gain of experts, where these are others. `kinds` are names of laws below, or of registered kinds; None
    for all of them, but for the published law where a prior says more of runs of one E. ValueError for another.
    """
    kinds = [kinds] if isinstance(kinds, str) else kinds
    of_one_e = _forecasters_of_one_e(prior, seed)
    of_several = {PUBLISHED: one_constant(JointLaw.published(), seed)}
    if kinds is not None:
        names = dict.fromkeys([*of_one_e, *of_several, *LAWS])
        for kind in kinds:
            if kind not in names and not Path(kind).exists():
                raise InputError(unknown("kinds=", kind, names))
        kinds = [kind if kind in names else choose_kind(kind).name for kind in kinds]
    for kind in kinds or OF_EXPERTS:
        if kind not in of_one_e and kind not in of_several:
            of_several[kind] = fresh(kind, seed)
    if kinds is not None:
        of_one_e = {kind: law for kind, law in of_one_e.items() if kind in kinds}
        of_several = {kind: law for kind, law in of_several.items() if kind in kinds}
    is_matching = match_experts(runs, experts)
    if kinds is None and prior is not None and is_matching.all():
        del of_several[PUBLISHED]
    laws: dict[str, Forecaster] = {}
    if is_matching.all():
        laws.update(of_one_e)
    else:
        for kind, law in of_one_e.items():
            laws[f"{kind}, moved from other E"] = law.through(moved_to_dense)
        if alone and is_matching.any():
            for kind, law in of_one_e.items():
                laws[f"{kind} of E = {experts:.5g}"] = law.through(restrict_to(experts))
    laws.update(of_several)
    return laws


def columns_of_laws() -> frozenset[str]:
    """Return the columns that any registered law reads."""
    return frozenset(name for law in LAWS.values() for name in law.form.variables)


def _forecasters_of_one_e(prior: Prior | None, seed: int) -> dict[str, Forecaster]:
    """Return the laws of runs of one E, by name."""
    laws = {kind: fresh(kind, seed) for kind in (CHINCHILLA, INTERACTION)}
    laws[LADDER] = ladder(seed)
    if prior is None:
        return laws
    of_constant = for_kind(keep_constant(prior), INTERACTION)
    of_all = for_kind(prior, INTERACTION)
    laws[CONSTANT] = from_prior(of_constant, 0.0, CONSTANT)
    laws[PRIOR] = from_prior(of_all, 0.0, PRIOR)
    laws[BY_COMPUTE] = from_prior(of_all, 1.0, BY_COMPUTE)
    return laws


def match_experts(runs: Runs, experts: float) -> BoolArray:
    """Mark the runs that have this E, or one so close that laws need not tell them apart."""
    return np.asarray(np.abs(np.log(runs.experts / experts)) < SAME_EXPERTS)


def keep_constant(prior: Prior) -> Prior:
    """Return a prior that says of Chinchilla laws what this one says of their constants, and next to nothing else."""
    start = vague()
    variances = start.covariance.diagonal().copy()
    variances[-1] = prior.covariance[-1, -1]
    mean = np.append(start.mean[:-1], prior.mean[-1])
    return replace(prior, mean=mean, covariance=np.diag(variances))


def from_prior(
    prior: Prior,
    power: float,
    name: str,
) -> Forecaster:
    """Make a forecaster of the posterior mode of a law; a run's inverse variance grows with this power of compute.

    `name` is that of the law of `BASE`.
    """

    def find_mode(runs: Runs) -> Modes:
        return modes(runs, [prior], (runs.flops / runs.flops.max()) ** power)

    def predict(
        runs: Runs,
        points: Runs,
        errors: bool,
    ) -> Prediction:
        mode = find_mode(runs)
        log_loss, error = mode.losses(points)
        noise = mode.noise[0] * (points.flops / runs.flops.max()) ** (-power / 2)
        asymptote = _asymptote_of_mode(mode, points, error[0]) if errors else None
        return Prediction(log_loss[0], error[0], noise, asymptote)

    def make_law(runs: Runs) -> Law:
        mode = find_mode(runs)
        law = law_of(mode.natural[0], prior.kind)
        natural = draw_normal(mode.natural[0], mode.covariance[0], RESAMPLES)
        draws = values_of(law.form, natural)
        return law.replace(draws=np.stack([draws[name] for name in law.coefficient_names()], axis=1))

    return Forecaster(name, predict, make_law)


def _asymptote_of_mode(mode: Modes, points: Runs, error: FloatArray) -> Asymptote:
    """Return the constant of a law of greatest density, whose errors of ln L at the points are these [n]."""
    form = LAWS[mode.kind].form
    if not form.constants:
        return Asymptote.nothing(len(points))
    name = form.constants[0]
    place = form.coefficients.index(name)
    loss = np.exp(mode.natural[0, place])
    # The constant is fitted as its logarithm.
    log_error = float(np.sqrt(mode.covariance[0, place, place]))
    correlation = mode.covariance_with(name, points)[0] / (log_error * error)
    return Asymptote(
        np.full(len(points), loss),
        np.full(len(points), loss * log_error),
        np.clip(correlation, -1.0, 1.0),
    )


def fresh(kind: str, seed: int = 0) -> Forecaster:
    """Make a forecaster of a law of this kind, fitted to the runs alone.

    Refits to fewer of them start from the first fit.
    """
    first_fit: list[Law] = []

    def predict(
        runs: Runs,
        points: Runs,
        errors: bool,
    ) -> Prediction:
        result = fit(runs, kind, starts=first_fit or None)
        # A Chinchilla fit is quick from all starts.
        if kind != CHINCHILLA and not first_fit:
            first_fit.append(result.law)
        log_residuals = result.problem.objective.residuals(result.theta[None])[0]
        noise = np.sqrt((log_residuals**2).sum() / max(len(runs) - len(result.fitted), 1))
        error = np.zeros(len(points))
        asymptote = None
        if errors and runs.n_trunks > 1:
            law = result.bootstrap(RESAMPLES, seed).law
            losses = law.replace(conditions=None).loss_draws(**_inputs(law, points))
            log_losses = np.log(np.maximum(losses, 1e-9))
            error = robust_deviation(log_losses)
            asymptote = _asymptote_of_draws(law, log_losses)
        log_loss = np.log(result.law.loss(**_inputs(result.law, points)))
        return Prediction(log_loss, error, np.full(len(points), noise), asymptote)

    def make_law(runs: Runs) -> Law:
        result = fit(runs, kind)
        return result.bootstrap(RESAMPLES, seed).law if runs.n_trunks > 1 else result.law

    return Forecaster(kind if kind in BASE else CHINCHILLA, predict, make_law)


def _asymptote_of_draws(law: Law, log_losses: FloatArray) -> Asymptote:
    """Return the constant of a law whose draws of ln L at points are these [r, n]."""
    if not law.form.constants or law.draws is None:
        return Asymptote.nothing(log_losses.shape[1])
    name = law.form.constants[0]
    draws = np.asarray(law.draws)[:, law.coefficient_names().index(name)]
    return Asymptote.of_draws(law.coefficients[name], draws, log_losses)


def one_constant(published: JointLaw, seed: int = 0) -> Forecaster:
    """Make a forecaster of a law as published, moved by its mean error on the runs.

    It says nothing where that leaves no positive loss.
    """

    def predict(
        runs: Runs,
        points: Runs,
        errors: bool,
    ) -> Prediction:
        off = runs.loss - published.loss(**_inputs(published, runs))
        loss = np.asarray(published.loss(**_inputs(published, points))) + off.mean()
        loss = np.where(loss > 0, loss, np.nan)
        noise = (off.std(ddof=1) if len(runs) > 1 else 0.0) / loss
        error = noise / np.sqrt(len(runs))
        # All that is open is its constant.
        asymptote = Asymptote(np.full(len(loss), published.c + off.mean()), error * loss, np.ones(len(loss)))
        return Prediction(np.log(loss), error, noise, asymptote)

    def make_law(runs: Runs) -> Law:
        errors = errors_of(published, runs)
        law = published.replace(c=published.c - errors.mean())
        draws = np.tile([*law.coefficients.values()], (RESAMPLES, 1))
        scatter = errors.std(ddof=1) / np.sqrt(len(runs)) if len(runs) > 1 else 0.0
        c = law.coefficient_names().index("c")
        draws[:, c] += scatter * np.random.default_rng(seed).standard_normal(RESAMPLES)
        return law.replace(draws=draws)

    return Forecaster(PUBLISHED, predict, make_law, "moved by its mean error on these runs, it ends below zero")


def ladder(seed: int = 0) -> Forecaster:
    """Make a forecaster of L = c + A C^−α through runs of one ratio D/N, for points of that ratio.

    ValueError for runs of several ratios.
    """
    any_ratio = fresh(LADDER, seed)

    def predict(
        runs: Runs,
        points: Runs,
        errors: bool,
    ) -> Prediction:
        run_ratios = np.log(runs.tokens / runs.n_active)
        point_ratios = np.log(points.tokens / points.n_active)
        if np.ptp(run_ratios) > EQUAL_RATIOS:
            raise InputError("a ladder needs runs of about equal tokens per parameter")
        is_near = np.abs(point_ratios - run_ratios.mean()) <= EQUAL_RATIOS
        if not is_near.any():
            raise InputError(OFF_THE_LADDER)
        prediction = any_ratio.predict(runs, points, errors)
        return replace(
            prediction,
            log_loss=np.where(is_near, prediction.log_loss, np.nan),
            error=np.where(is_near, prediction.error, np.nan),
            noise=np.where(is_near, prediction.noise, np.nan),
        )

    return replace(any_ratio, predict=predict, silent=OFF_THE_LADDER)


def restrict_to(experts: float) -> Callable[[Predict], Predict]:
    """Return the change to the runs of this E alone."""

    def change(predict: Predict) -> Predict:
        def predict_from_matching(
            runs: Runs,
            points: Runs,
            errors: bool,
        ) -> Prediction:
            is_matching = match_experts(runs, experts)
            if not is_matching.any():
                raise InputError(f"no run has E = {experts:.5g}")
            return predict(runs.subset(is_matching), points, errors)

        return predict_from_matching

    return change


def moved_to_dense(predict: Predict) -> Predict:
    """Predict from dense runs, which the runs become by the ratio of losses that the published joint law gives."""

    def predict_from_dense(
        runs: Runs,
        points: Runs,
        errors: bool,
    ) -> Prediction:
        dense_runs = replace(runs, loss=runs.loss / gain_of_experts(runs))
        prediction = predict(dense_runs, points, errors)
        gain = gain_of_experts(points)
        asymptote = prediction.asymptote.times(gain) if prediction.asymptote else None
        return replace(prediction, log_loss=prediction.log_loss + np.log(gain), asymptote=asymptote)

    return predict_from_dense


def gain_of_experts(points: Runs, experts: float = 1.0) -> FloatArray:
    """Return the loss at a point's E over that at another E, of equal N and D, in the published joint law."""
    law = JointLaw.published()
    loss = law.loss(points.n_active, points.tokens, points.experts)
    return np.asarray(loss / law.loss(points.n_active, points.tokens, experts))


def _inputs(law: Law, points: Runs) -> dict[str, FloatArray]:
    return {name: points.column(name) for name in law.form.variables}
