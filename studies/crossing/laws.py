"""Laws asked where experts begin to pay, as published and fitted to the sweep, beside what was measured.

Errors of laws are in nats per byte; D is in bytes, which are the tokens of these models. Predictions are written down
before the runs, for sizes and E that no fit has seen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

import hub  # lazy
from hub.base.errors import InputError
from scaling_law import (
    Architecture,
    Backtest,
    Bootstrap,
    FitResult,
    JointLaw,
    Law,
    Runs,
    backtest,
    errors_of,
    fit,
    forecast,
    load_runs,
)
from scaling_law.fitting import finite
from scaling_law.planning import find_crossovers
from studies.common import LEVEL, FloatArray, Value, check_texts, rms, write_once
from studies.crossing.cells import BEYOND, Cells, Gap, gaps_of, ratio_of, with_precision
from studies.crossing.records import (
    BLOCKS,
    EXPERTS,
    HEAD,
    VOCABULARY,
    WIDTHS,
    Sweep,
    nominal,
    read_sweep,
)

FOLDER = Path(__file__).parent
RECORDS = FOLDER / "runs.jsonl"
# Records of models that read pieces of a BPE vocabulary, by later code and with dense twins.
PIECES = FOLDER / "pieces.jsonl"
PREDICTIONS = FOLDER / "predictions"
LEDGER = PREDICTIONS / "ledger"
DRAWS = 200
SEED = 0
# Seeds scatter by more than the paper's threshold of 0.01, and a cell is a mean.
HUBER = 0.05
# Coefficients that stay as published: free, they leave hardly a coefficient determined.
KEPT = ("gamma", "zeta", "e_start", "e_max")
SIGNS = ("alpha", "beta", "delta", "gamma", "omega", "zeta")
FREE = tuple(name for name in SIGNS if name not in KEPT)
PUBLISHED = "published law"
FITTED = "law fitted to the sweep"
PRIOR = "fit with the published law as a prior"
BENT = "fit with κ"
# The E of which most seeds were trained.
MAIN = 8
# The least number of crossings that says how far a law is off.
LEAST = 3
# The D, in bytes, at which losses are forecast.
FORECAST_AT = (5e5, 1e6, 2e6, 4e6, 8e6)


def published() -> JointLaw:
    """Return the published law without its draws."""
    return JointLaw.published().replace(draws=None)


def fit_joint(runs: Runs) -> FitResult[Any]:
    """Fit the joint law with the published values of `KEPT`, from the optimum on the cells, which are few."""
    start = _fit_weighted(Cells.of(runs).table(), "joint", fixed=_published_values()).law
    return _fit_weighted(with_precision(runs), "joint", fixed=_published_values(), starts=[start])


def fit_with_prior(runs: Runs) -> FitResult[Any]:
    """Fit the joint law with all coefficients free, under the published law as a prior."""
    prior = JointLaw.published()
    return _fit_weighted(with_precision(runs), "joint", prior=prior, starts=[prior])


def fit_with_kappa(runs: Runs) -> FitResult[Any]:
    """Fit as `fit_joint` does, with κ, which bends the term in D with E."""
    fixed = {**_published_values(), "q": 1.0}
    return _fit_weighted(with_precision(runs), "crossing", fixed=fixed)


def _published_values() -> dict[str, float]:
    """Return the published values of `KEPT`."""
    coefficients = published().coefficients
    return {name: coefficients[name] for name in KEPT}


def _fit_weighted(runs: Runs, kind: str, **options: Any) -> FitResult[Any]:
    """Weight each run by the scatter of its kind and D, which makes it a fit to the cells' means."""
    return fit(runs, kind, huber_delta=HUBER, weights="precision", **options)


def _forecaster(fit_law: Callable[[Runs], FitResult[Any]]) -> Callable[[Runs, Runs], FloatArray]:
    """Return a function that fits a law to runs and predicts the losses of cells."""

    def forecast_cells(runs: Runs, cells: Runs) -> FloatArray:
        return np.asarray(cells.loss + errors_of(fit_law(runs).law, cells))

    return forecast_cells


FORECASTERS = {
    FITTED: _forecaster(fit_joint),
    PRIOR: _forecaster(fit_with_prior),
    BENT: _forecaster(fit_with_kappa),
}


@dataclass(frozen=True)
class Results:
    """Everything that the page shows of a sweep, computed when it is asked for.

    `draws` of the fitted law are made from trunks resampled.
    """

    sweep: Sweep
    draws: int = DRAWS

    @cached_property
    def cells(self) -> Runs:
        """One run for each cell of the sweep."""
        return Cells.of(self.sweep.runs).table()

    @cached_property
    def all_gaps(self) -> list[Gap]:
        """The gaps measured, those of predicted sizes and E included."""
        return gaps_of(self.sweep.counted)

    @cached_property
    def gaps(self) -> list[Gap]:
        """The gaps of the sizes and E of the sweep."""
        return [gap for gap in self.all_gaps if gap.d_model in WIDTHS and gap.experts in EXPERTS]

    def of(self, experts: int) -> list[Gap]:
        """Return the gaps of one E."""
        return [gap for gap in self.gaps if gap.experts == experts]

    @cached_property
    def experts(self) -> list[int]:
        """The E measured, the one of most seeds first."""
        return sorted({gap.experts for gap in self.gaps}, key=lambda e: (e != MAIN, e))

    @cached_property
    def joint_fit(self) -> FitResult[Any]:
        """The joint law fitted to the sweep."""
        return fit_joint(self.sweep.runs)

    @cached_property
    def prior_fit(self) -> FitResult[Any]:
        """The joint law fitted under the published law as a prior."""
        return fit_with_prior(self.sweep.runs)

    @cached_property
    def kappa_fit(self) -> FitResult[Any]:
        """The law with κ fitted to the sweep."""
        return fit_with_kappa(self.sweep.runs)

    @cached_property
    def bootstrap(self) -> Bootstrap:
        """The fitted law's bootstrap, trunks resampled."""
        return self.joint_fit.bootstrap(self.draws, SEED)

    @cached_property
    def laws(self) -> dict[str, Law]:
        """The published and the fitted law by name."""
        return {PUBLISHED: published(), FITTED: self.joint_fit.law}

    # ------------------------------------------------------------------ crossings

    @property
    def search_range(self) -> tuple[float, float]:
        """The D between which laws are searched for a crossing."""
        tokens = self.sweep.runs.tokens
        return float(tokens.min() / BEYOND), float(tokens.max() * BEYOND)

    def break_even(self, law: Law, n_active: Any, experts: Any) -> FloatArray:
        """Return the D from which on experts pay; 0 or infinite where that lies beyond what is searched."""
        answer = law.speedup(experts, n_active=n_active, between=self.search_range, force=True)
        return np.reshape([row["tokens"] for row in answer.rows], np.shape(n_active))

    def lateness(self, law: Law, experts: int) -> Value:
        """Return the law's crossings over those measured, their geometric mean over the sizes of one E."""
        drawn_logs = []
        logs = []
        for gap in self.of(experts):
            predicted = np.clip(self.break_even(law, gap.n_active, experts), *self.search_range)
            drawn_logs.append(np.log(predicted / gap.clip(gap.drawn_crossings)))
            logs.append(np.log(predicted / gap.clip(gap.crossing)))
        low, high = np.quantile(np.mean(drawn_logs, axis=0), LEVEL)
        return float(np.exp(np.mean(logs))), float(np.exp(low)), float(np.exp(high))

    def trend(self, few: int = 2, many: int = MAIN) -> tuple[Value, float, float]:
        """Return D*(few) / D*(many), the geometric mean over sizes.

        Returns:
            The ratio as measured, that by the published law, and the p that both agree.
        """
        measured, draws = ratio_of(self._pairs(few, many))
        predicted = self.trend_of(published(), few, many)
        share_below = float((draws <= predicted).mean())
        return measured, predicted, 2 * min(share_below, 1 - share_below)

    def trend_of(self, law: Law, few: int = 2, many: int = MAIN) -> float:
        """Return D*(few) / D*(many) by a law, over the sizes measured at both."""
        n_active = [gap.n_active for gap, _ in self._pairs(few, many)]
        tokens_few = np.clip(self.break_even(law, n_active, few), *self.search_range)
        tokens_many = np.clip(self.break_even(law, n_active, many), *self.search_range)
        return float(np.exp(np.log(tokens_few / tokens_many).mean()))

    def _pairs(self, few: int, many: int) -> list[tuple[Gap, Gap]]:
        """Return the gaps of two E at each size that has both."""
        gap_of_size = {gap.d_model: gap for gap in self.of(many)}
        return [(gap, gap_of_size[gap.d_model]) for gap in self.of(few) if gap.d_model in gap_of_size]

    @cached_property
    def pieces(self) -> list[tuple[Gap, Gap]]:
        """The gap of each size and E that was trained on pieces of a BPE vocabulary, and that in bytes."""
        records = hub.load_records(PIECES)
        check_texts(records)
        runs = load_runs([{**record.to_dict(), "tokens": nominal(record.tokens)} for record in records])
        bytewise = {(gap.d_model, gap.experts): gap for gap in self.gaps}
        return [(gap, bytewise[gap.d_model, gap.experts]) for gap in gaps_of(runs)]

    # ------------------------------------------------------------------ errors

    @cached_property
    def errors(self) -> FloatArray:
        """Errors of the fitted law on the cells, nats per byte."""
        return errors_of(self.joint_fit.law, self.cells)

    @cached_property
    def gap_errors(self) -> tuple[float, float, int]:
        """The RMS of the measured gaps, how far the published ones miss them (RMSE), and how many there are."""
        law = published()
        measured = np.concatenate([gap.mean for gap in self.gaps])
        predictions = []
        for gap in self.gaps:
            loss = law.loss(gap.n_active, gap.tokens, gap.experts)
            predictions.append(loss - law.loss(gap.n_active, gap.tokens, 1))
        return rms(measured), rms(np.concatenate(predictions) - measured), len(measured)

    @cached_property
    def held_out(self) -> dict[str, Backtest]:
        """Cells forecast by the fit to the other runs: those of the largest size, and the longest of each model."""
        return {
            "largest size": self._without(lambda runs: runs.n_active == runs.n_active.max()),
            "longest runs": self._without(longest_of_each),
        }

    @cached_property
    def left_out(self) -> dict[str, float]:
        """RMSE on the cells of each model in turn, forecast from the runs of the others."""
        models = sorted({*zip(self.cells.n_active, self.cells.experts, strict=True)})

        def is_of(model: tuple[float, float]) -> Callable[[Runs], Any]:
            return lambda runs: (runs.n_active == model[0]) & (runs.experts == model[1])

        tests = [self._without(is_of(model)) for model in models]
        errors = {}
        for name in FORECASTERS:
            errors[name] = rms(np.concatenate([test.laws[name].errors for test in tests]))
        return errors

    def _without(self, is_held_out: Callable[[Runs], Any]) -> Backtest:
        """Forecast the cells that are held out from the runs that are not."""
        runs = self.sweep.runs
        train = runs.subset(~is_held_out(runs))
        test = self.cells.subset(is_held_out(self.cells))
        return backtest(train, test, FORECASTERS)


def longest_of_each(runs: Runs) -> Any:
    """Mark the runs [n] with the most tokens of their N and E."""
    sizes_and_experts = np.stack([runs.n_active, runs.experts])
    model = np.unique(sizes_and_experts, axis=1, return_inverse=True)[1].ravel()
    most_tokens = np.zeros(model.max() + 1)
    np.maximum.at(most_tokens, model, runs.tokens)
    return runs.tokens == most_tokens[model]


# ------------------------------------------------------------------ predictions


def predict(names: Iterable[str]) -> list[Path]:
    """Write down, once, where experts begin to pay for models (d_model:E) not trained yet, and their losses.

    Raises FileExistsError if there is such a prediction, and InputError for a size and E that are fitted, or measured
    already.
    """
    results = Results(read_sweep(RECORDS))
    models = [tuple(map(int, name.split(":"))) for name in names]
    measured = {(gap.d_model, gap.experts) for gap in results.all_gaps}
    for d_model, e in models:
        if (d_model in WIDTHS and e in EXPERTS) or (d_model, e) in measured:
            raise InputError(f"d_model={d_model}, experts={e}: fitted or measured already; predict another model")
    fields = {
        "runs": len(results.sweep.runs),
        "sha256": hashlib.sha256(RECORDS.read_bytes()).hexdigest(),
        "between": results.search_range,
        "laws": {name: law.coefficients for name, law in results.laws.items()},
        "models": [prediction(results, *model) for model in models],
    }
    label = "-".join(f"{d_model}x{e}" for d_model, e in models)
    written = [write_once(PREDICTIONS / f"{date.today()}-{label}.json", "crossing_prediction", fields)]
    level = LEVEL[1] - LEVEL[0]
    rows = forecast(results.sweep.runs, _forecast_points(models), level=level).rows
    for i, row in enumerate(rows):
        record = {**row, "level": level, "registered": f"{date.today()}"}
        written.append(write_once(LEDGER / f"{date.today()}-{label}-{i}.json", "forecast", record))
    return written


def _forecast_points(models: Iterable[tuple[int, ...]]) -> list[dict[str, Any]]:
    """Return each model and its dense twin, once, at every D of `FORECAST_AT`."""
    twins: dict[tuple[int, int], None] = {}
    for d_model, experts in models:
        twins[d_model, 1] = None
        twins[d_model, experts] = None
    points = []
    for d_model, experts in twins:
        for tokens in FORECAST_AT:
            points.append({"n_active": _size(d_model), "tokens": tokens, "experts": experts})
    return points


def prediction(results: Results, d_model: int, experts: int) -> dict[str, Any]:
    """Predict the crossing of a model by the laws; 0 is below the D searched, None above it.

    The interval covers how the fit moves with other trunks, and how far the crossings measured so far, of the same E
    where there are enough, lie from its own.
    """
    n_active = _size(d_model)
    crossings = {}
    for name, law in results.laws.items():
        crossings[name] = finite(float(results.break_even(law, n_active, experts)))
    law = results.bootstrap.law
    draws = find_crossovers(law.loss_draws, np.array(n_active), np.array(experts), results.search_range)
    ratios = _ratios_to_measured(results, experts)
    if len(ratios) >= LEAST:
        draws = np.outer(draws, 1.0 / ratios).ravel()
    low, high = np.quantile(draws, LEVEL, method="nearest")
    return {
        "d_model": d_model,
        "experts": experts,
        "n_active": n_active,
        "interval": (crossings[FITTED], finite(low), finite(high)),
        "others": {PUBLISHED: crossings[PUBLISHED]},
    }


def _ratios_to_measured(results: Results, experts: int) -> FloatArray:
    """Return the fitted law's crossings over those measured, of the same E where there are enough; finite and > 0."""
    gaps = [gap for gap in results.gaps if gap.bracketed]
    gaps_of_experts = [gap for gap in gaps if gap.experts == experts]
    if len(gaps_of_experts) >= LEAST:
        gaps = gaps_of_experts
    law = results.laws[FITTED]
    ratios = np.array([results.break_even(law, gap.n_active, gap.experts) / gap.crossing for gap in gaps])
    return ratios[np.isfinite(ratios) & (ratios > 0)]


def holds(model: dict[str, Any], gap: Gap) -> bool:
    """Return whether the crossing measured can lie inside the interval predicted."""
    low, high = (np.inf if end is None else end for end in model["interval"][1:])
    return bool(low <= np.clip(gap.crossing, *gap.between) <= high)


def _size(d_model: int) -> int:
    """Return the active parameters of a model of the sweep, whatever its E."""
    return Architecture(d_model, 1, BLOCKS, d_model // HEAD, VOCABULARY).n_active
