"""Laws asked where experts begin to pay, as published and fitted to the sweep, beside what was measured.

Errors of laws are in nats per byte; D is in bytes, which are the tokens of these models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from scaling_law import Backtest, Bootstrap, FitResult, JointLaw, Law, Runs, backtest, errors_of, fit
from studies.common import LEVEL, FloatArray, rms
from studies.crossing.cells import Cells, Gap, gaps_of, with_precision
from studies.crossing.forms import HUBER, KEPT, Forms, published
from studies.crossing.records import EXPERTS, WIDTHS, Sweep

DRAWS, SEED = 200, 0
BEYOND = 4.0  # laws are asked, and crossings counted, this many times beyond the D measured
SIGNS = ("alpha", "beta", "delta", "gamma", "omega", "zeta")
FREE = tuple(name for name in SIGNS if name not in KEPT)
PUBLISHED, FITTED = "published law", "law fitted to the sweep"
PRIOR, SCALES = "fit with the published law as a prior", "a, b and c refitted"
MAIN = 8  # the E of which most seeds were trained
Value = tuple[float, float, float]  # with the ends of its 95 % interval


def fitted_to(runs: Runs) -> FitResult[Any]:
    """The joint law with the published values of `KEPT`, started from the optimum on the cells, which are few."""
    held = {name: published().coefficients[name] for name in KEPT}
    return _fitted(with_precision(runs), fixed=held, starts=[_fitted(Cells.of(runs).table(), fixed=held).law])


def moved_to(runs: Runs) -> FitResult[Any]:
    """The same with all coefficients free, under the published law as a prior."""
    return _fitted(with_precision(runs), prior=JointLaw.published(), starts=[JointLaw.published()])


def scales_of(runs: Runs) -> FitResult[Any]:
    """The same with the published values of all coefficients but a, b and c."""
    held = {name: value for name, value in published().coefficients.items() if name not in ("a", "b", "c")}
    return _fitted(with_precision(runs), fixed=held, starts=[published()])


def _fitted(runs: Runs, **options: Any) -> FitResult[Any]:
    """A run is weighted by the scatter of its kind and D, which makes it a fit to the cells' means."""
    return fit(runs, "joint", huber_delta=HUBER, weights="precision", **options)


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

    # ------------------------------------------------------------------ laws

    @cached_property
    def fitted(self) -> FitResult[Any]:
        return fitted_to(self.sweep.runs)

    @cached_property
    def moved(self) -> FitResult[Any]:
        return moved_to(self.sweep.runs)

    @cached_property
    def drawn(self) -> Bootstrap:
        """Trunks resampled."""
        return self.fitted.bootstrap(self.draws, SEED)

    @cached_property
    def laws(self) -> dict[str, Law]:
        return {PUBLISHED: published(), FITTED: self.fitted.law}

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
        drawn = [said / counted(gap, gap.drawn) for said, gap in every]
        return geometric([said / counted(gap, gap.crossing) for said, gap in every], drawn)

    def trend(self, one: int = 2, two: int = MAIN) -> tuple[Value, float, float]:
        """D*(one) / D*(two), the geometric mean over sizes: measured, by the published law, and p that both agree."""
        pairs = [(a, b) for a in self.of(one) for b in self.of(two) if a.d_model == b.d_model]
        drawn = [counted(a, a.drawn) / counted(b, b.drawn) for a, b in pairs]
        measured = geometric([counted(a, a.crossing) / counted(b, b.crossing) for a, b in pairs], drawn)
        n = np.array([a.n_active for a, _ in pairs])
        said = float(np.exp(np.log(self.asked(published(), n, one) / self.asked(published(), n, two)).mean()))
        below = float((np.exp(np.mean(np.log(drawn), axis=0)) <= said).mean())
        return measured, said, 2 * min(below, 1 - below)

    @cached_property
    def forms(self) -> Forms:
        return Forms(self.sweep.runs, self.cells)

    def trend_of(self, law: Law, one: int = 2, two: int = MAIN) -> float:
        """D*(one) / D*(two) by a law, the geometric mean over the sizes measured at both."""
        n = [a.n_active for a in self.of(one) for b in self.of(two) if a.d_model == b.d_model]
        asked = [np.clip(self.asked(law, n, e), *self.between) for e in (one, two)]
        return float(np.exp(np.log(asked[0] / asked[1]).mean()))

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
        runs, cells = self.sweep.runs, self.cells
        parts = {"largest size": lambda r: r.n_active == r.n_active.max(), "longest runs": longest_of_each}
        return {
            what: backtest(runs.subset(~part(runs)), cells.subset(part(cells)), FORECASTERS)
            for what, part in parts.items()
        }

    @cached_property
    def left_out(self) -> dict[str, float]:
        """RMSE on the cells of each model in turn, forecast from the runs of the others."""
        runs, cells = self.sweep.runs, self.cells
        tests = []
        for n, e in sorted({*zip(cells.n_active, cells.experts, strict=True)}):
            held, test = ((part.n_active == n) & (part.experts == e) for part in (runs, cells))
            tests.append(backtest(runs.subset(~held), cells.subset(test), FORECASTERS))
        return {name: rms(np.concatenate([test.laws[name].errors for test in tests])) for name in FORECASTERS}


def counted(gap: Gap, crossing: FloatArray | float) -> FloatArray:
    """Crossings beyond the D measured count as `BEYOND` times beyond the nearest."""
    return np.clip(crossing, gap.tokens[0] / BEYOND, gap.tokens[-1] * BEYOND)


def longest_of_each(runs: Runs) -> Any:
    """Whether each run has the most tokens of its N and E."""
    model = np.unique(np.stack([runs.n_active, runs.experts]), axis=1, return_inverse=True)[1].ravel()
    most = np.zeros(model.max() + 1)
    np.maximum.at(most, model, runs.tokens)
    return runs.tokens == most[model]


def _forecaster(fitted: Callable[[Runs], FitResult[Any]]) -> Callable[[Runs, Runs], FloatArray]:
    return lambda runs, cells: np.asarray(fitted(runs).law.loss(cells.n_active, cells.tokens, cells.experts))


FORECASTERS = {FITTED: _forecaster(fitted_to), PRIOR: _forecaster(moved_to), SCALES: _forecaster(scales_of)}


def geometric(values: Sequence[Any], drawn: Sequence[Any]) -> Value:
    """The geometric mean of the values, with the interval of the same mean over draws."""
    low, high = np.quantile(np.mean(np.log(drawn), axis=0), LEVEL)
    return tuple(map(float, np.exp([np.mean(np.log(values)), low, high])))  # type: ignore[return-value]
