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
from scaling_law.forecasting import ledger
from scaling_law.planning import drawn_break_even
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
RECORDS, PREDICTIONS = FOLDER / "runs.jsonl", FOLDER / "predictions"
PIECES = FOLDER / "pieces.jsonl"  # of models that read pieces of a BPE vocabulary, by later code and with dense twins
LEDGER = PREDICTIONS / "ledger"
DRAWS, SEED = 200, 0
HUBER = 0.05  # seeds scatter by more than the paper's threshold of 0.01, and a cell is a mean
KEPT = ("gamma", "zeta", "e_start", "e_max")  # as published: free, they leave hardly a coefficient determined
SIGNS = ("alpha", "beta", "delta", "gamma", "omega", "zeta")
FREE = tuple(name for name in SIGNS if name not in KEPT)
PUBLISHED, FITTED = "published law", "law fitted to the sweep"
PRIOR, BENT = "fit with the published law as a prior", "fit with κ"
MAIN = 8  # the E of which most seeds were trained
LEAST = 3  # crossings that say how far a law is off
FORECAST_AT = (5e5, 1e6, 2e6, 4e6, 8e6)  # bytes
STACKED = ("chinchilla", "prior", "prior by compute", "joint")  # not the published law: its losses have another unit


def published() -> JointLaw:
    return JointLaw.published().replace(draws=None)


def fitted_to(runs: Runs) -> FitResult[Any]:
    """The joint law with the published values of `KEPT`, started from the optimum on the cells, which are few."""
    held = {name: published().coefficients[name] for name in KEPT}
    start = _fitted(Cells.of(runs).table(), "joint", fixed=held).law
    return _fitted(with_precision(runs), "joint", fixed=held, starts=[start])


def moved_to(runs: Runs) -> FitResult[Any]:
    """The same with all coefficients free, under the published law as a prior."""
    return _fitted(with_precision(runs), "joint", prior=JointLaw.published(), starts=[JointLaw.published()])


def bent_to(runs: Runs) -> FitResult[Any]:
    """The same as `fitted_to` with κ, which bends the term in D with E."""
    held = {name: published().coefficients[name] for name in KEPT} | {"q": 1.0}
    return _fitted(with_precision(runs), "crossing", fixed=held, starts="scaled")


def _fitted(runs: Runs, kind: str, **options: Any) -> FitResult[Any]:
    """A run is weighted by the scatter of its kind and D, which makes it a fit to the cells' means."""
    return fit(runs, kind, huber_delta=HUBER, weights="precision", **options)


def _forecaster(fitted: Callable[[Runs], FitResult[Any]]) -> Callable[[Runs, Runs], FloatArray]:
    return lambda runs, cells: np.asarray(cells.loss + errors_of(fitted(runs).law, cells))


FORECASTERS = {FITTED: _forecaster(fitted_to), PRIOR: _forecaster(moved_to), BENT: _forecaster(bent_to)}


@dataclass(frozen=True)
class Results:
    """Everything that the page shows of a sweep, computed when it is asked for."""

    sweep: Sweep
    draws: int = DRAWS  # of the fitted law, from trunks resampled

    @cached_property
    def cells(self) -> Runs:
        return Cells.of(self.sweep.runs).table()

    @cached_property
    def all_gaps(self) -> list[Gap]:
        """Those of predicted sizes and E included."""
        return gaps_of(self.sweep.counted)

    @cached_property
    def gaps(self) -> list[Gap]:
        return [gap for gap in self.all_gaps if gap.d_model in WIDTHS and gap.experts in EXPERTS]

    def of(self, experts: int) -> list[Gap]:
        return [gap for gap in self.gaps if gap.experts == experts]

    @cached_property
    def experts(self) -> list[int]:
        """Those measured, the one of most seeds first."""
        return sorted({gap.experts for gap in self.gaps}, key=lambda e: (e != MAIN, e))

    @cached_property
    def fitted(self) -> FitResult[Any]:
        return fitted_to(self.sweep.runs)

    @cached_property
    def moved(self) -> FitResult[Any]:
        return moved_to(self.sweep.runs)

    @cached_property
    def bent(self) -> FitResult[Any]:
        return bent_to(self.sweep.runs)

    @cached_property
    def drawn(self) -> Bootstrap:
        """Trunks resampled."""
        return self.fitted.bootstrap(self.draws, SEED)

    @cached_property
    def laws(self) -> dict[str, Law]:
        return {PUBLISHED: published(), FITTED: self.fitted.law}

    # ------------------------------------------------------------------ crossings

    @property
    def between(self) -> tuple[float, float]:
        """The D in which laws are searched for a crossing."""
        tokens = self.sweep.runs.tokens
        return float(tokens.min() / BEYOND), float(tokens.max() * BEYOND)

    def asked(self, law: Law, n_active: Any, experts: Any) -> FloatArray:
        """The D from which on experts pay; 0 or infinite where that lies beyond what is searched."""
        return law.break_even(n_active, experts, between=self.between, force=True).tokens

    def lateness(self, law: Law, experts: int) -> Value:
        """The law's crossings over those measured, their geometric mean over the sizes of one E."""
        every = [(np.clip(self.asked(law, g.n_active, experts), *self.between), g) for g in self.of(experts)]
        low, high = np.quantile(np.mean([np.log(said / g.counted(g.drawn)) for said, g in every], axis=0), LEVEL)
        value = np.mean([np.log(said / g.counted(g.crossing)) for said, g in every])
        return float(np.exp(value)), float(np.exp(low)), float(np.exp(high))

    def trend(self, one: int = 2, two: int = MAIN) -> tuple[Value, float, float]:
        """D*(one) / D*(two), the geometric mean over sizes: measured, by the published law, and p that both agree."""
        measured, drawn = ratio_of((a, b) for a in self.of(one) for b in self.of(two) if a.d_model == b.d_model)
        said = self.trend_of(published(), one, two)
        below = float((drawn <= said).mean())
        return measured, said, 2 * min(below, 1 - below)

    def trend_of(self, law: Law, one: int = 2, two: int = MAIN) -> float:
        """The same by a law, over the sizes measured at both."""
        n = [a.n_active for a in self.of(one) for b in self.of(two) if a.d_model == b.d_model]
        asked = [np.clip(self.asked(law, n, e), *self.between) for e in (one, two)]
        return float(np.exp(np.log(asked[0] / asked[1]).mean()))

    @cached_property
    def pieces(self) -> list[tuple[Gap, Gap]]:
        """The gap of each size and E that was trained on pieces of a BPE vocabulary, and that in bytes."""
        records = hub.load_records(PIECES)
        check_texts(records)
        runs = load_runs([record.to_dict() | {"tokens": nominal(record.tokens)} for record in records])
        bytewise = {(gap.d_model, gap.experts): gap for gap in self.gaps}
        return [(gap, bytewise[gap.d_model, gap.experts]) for gap in gaps_of(runs)]

    # ------------------------------------------------------------------ errors

    @cached_property
    def errors(self) -> FloatArray:
        """Errors of the fitted law on the cells, nats per byte."""
        return errors_of(self.fitted.law, self.cells)

    @cached_property
    def gap_errors(self) -> tuple[float, float, int]:
        """RMS of the measured gaps, how far the published ones miss them (RMSE), and how many there are."""
        measured = np.concatenate([gap.mean for gap in self.gaps])
        law = published()
        said = [law.loss(g.n_active, g.tokens, g.experts) - law.loss(g.n_active, g.tokens, 1) for g in self.gaps]
        return rms(measured), rms(np.concatenate(said) - measured), len(measured)

    @cached_property
    def held_out(self) -> dict[str, Backtest]:
        """Cells forecast by the fit to the other runs: those of the largest size, and the longest of each model."""
        parts = {"largest size": lambda r: r.n_active == r.n_active.max(), "longest runs": longest_of_each}
        return {what: self._without(part) for what, part in parts.items()}

    @cached_property
    def left_out(self) -> dict[str, float]:
        """RMSE on the cells of each model in turn, forecast from the runs of the others."""
        models = sorted({*zip(self.cells.n_active, self.cells.experts, strict=True)})

        def is_of(model: tuple[float, float]) -> Callable[[Runs], Any]:
            return lambda runs: (runs.n_active == model[0]) & (runs.experts == model[1])

        tests = [self._without(is_of(model)) for model in models]
        return {name: rms(np.concatenate([test.laws[name].errors for test in tests])) for name in FORECASTERS}

    def _without(self, part: Callable[[Runs], Any]) -> Backtest:
        runs, cells = self.sweep.runs, self.cells
        return backtest(runs.subset(~part(runs)), cells.subset(part(cells)), FORECASTERS)


def longest_of_each(runs: Runs) -> Any:
    """Whether each run has the most tokens of its N and E."""
    model = np.unique(np.stack([runs.n_active, runs.experts]), axis=1, return_inverse=True)[1].ravel()
    most = np.zeros(model.max() + 1)
    np.maximum.at(most, model, runs.tokens)
    return runs.tokens == most[model]


# ------------------------------------------------------------------ predictions


def predict(asked: Iterable[str]) -> list[Path]:
    """Write down, once, where experts begin to pay for models (d_model:E) not trained yet, and their losses.

    FileExistsError if there is such a prediction; ValueError for a size and E that are fitted, or measured already.
    """
    results, models = Results(read_sweep(RECORDS)), [tuple(map(int, model.split(":"))) for model in asked]
    for d_model, e in models:
        if (d_model in WIDTHS and e in EXPERTS) or (d_model, e) in {(g.d_model, g.experts) for g in results.all_gaps}:
            raise InputError(f"d_model={d_model}, experts={e}: fitted or measured already; predict another model")
    fields = {
        "runs": len(results.sweep.runs),
        "sha256": hashlib.sha256(RECORDS.read_bytes()).hexdigest(),
        "between": results.between,
        "laws": {name: law.coefficients for name, law in results.laws.items()},
        "models": [prediction(results, *model) for model in models],
    }
    path = PREDICTIONS / f"{date.today()}-{'-'.join(f'{d}x{e}' for d, e in models)}.json"
    twins = dict.fromkeys((d_model, e) for d_model, experts in models for e in (1, experts))
    points = [{"n_active": _size(d), "tokens": tokens, "experts": e} for d, e in twins for tokens in FORECAST_AT]
    level = LEVEL[1] - LEVEL[0]
    written = [write_once(path, "crossing_prediction", fields)]
    rows = forecast(results.sweep.runs, points, kinds=STACKED, level=level).rows
    return written + [LEDGER / f"{name}.json" for name in ledger.register(LEDGER, rows, level, results.sweep.runs)]


def prediction(results: Results, d_model: int, experts: int) -> dict[str, Any]:
    """The crossing of a model by the laws; 0 is below the D searched, None above it.

    The interval covers how the fit moves with other trunks, and how far the crossings measured so far, of the same E
    where there are enough, lie from its own.
    """
    n_active = _size(d_model)
    said = {name: finite(float(results.asked(law, n_active, experts))) for name, law in results.laws.items()}
    drawn = drawn_break_even(results.drawn.law, n_active, experts, results.between)
    bracketed = [gap for gap in results.gaps if gap.bracketed]
    same = [gap for gap in bracketed if gap.experts == experts]
    bracketed = same if len(same) >= LEAST else bracketed
    ratios = np.array([results.asked(results.laws[FITTED], g.n_active, g.experts) / g.crossing for g in bracketed])
    ratios = ratios[np.isfinite(ratios) & (ratios > 0)]
    if len(ratios) >= LEAST:
        drawn = np.outer(drawn, 1.0 / ratios).ravel()
    interval = said[FITTED], *map(finite, np.quantile(drawn, LEVEL, method="nearest"))
    model = {"d_model": d_model, "experts": experts, "n_active": n_active}
    return model | {"interval": interval, "others": {PUBLISHED: said[PUBLISHED]}}


def holds(model: dict[str, Any], gap: Gap) -> bool:
    """Whether the crossing measured can lie inside the interval predicted."""
    low, high = (np.inf if end is None else end for end in model["interval"][1:])
    return bool(low <= np.clip(gap.crossing, *gap.between) <= high)


def _size(d_model: int) -> int:
    """Active parameters of a model of the sweep, whatever its E."""
    return Architecture(d_model, 1, BLOCKS, d_model // HEAD, VOCABULARY).n_active
