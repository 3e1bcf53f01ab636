"""Forms in which the crossing may depend on E, fitted to the sweep, and what they do to the paper's own range.

`crossing` is the joint law with κ, which bends the term in D with E, and q, the exponent of the interaction form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from scaling_law import FitResult, JointLaw, Law, Runs, errors_of, fit, published_design
from scaling_law.fitting.rolling import rolling_origin
from studies.common import FloatArray, rms
from studies.crossing.cells import with_precision

HUBER = 0.05  # seeds scatter by more than the paper's threshold of 0.01, and a cell is a mean
KEPT = ("gamma", "zeta", "e_start", "e_max")  # as published: free, they leave hardly a coefficient determined
JOINT, BENT, POWERED, BOTH = "joint law", "with κ", "with q", "with both"
HELD: dict[str, dict[str, float]] = {
    JOINT: {"kappa": 0.0, "q": 1.0},
    BENT: {"q": 1.0},
    POWERED: {"kappa": 0.0},
    BOTH: {},
}
PAPER_MODEL = 1e9  # active parameters, at which the paper's crossings are compared


def published() -> JointLaw:
    return JointLaw.published().replace(draws=None)


@dataclass(frozen=True, eq=False)
class Forms:
    """Fits of each form to the runs of the sweep, with the published values of `KEPT`, as for the page's joint law."""

    runs: Runs
    cells: Runs

    @cached_property
    def fits(self) -> dict[str, FitResult[Any]]:
        return {name: self._fitted(name, self.runs) for name in HELD}

    @property
    def laws(self) -> dict[str, Law]:
        return {name: result.law for name, result in self.fits.items()}

    def _fitted(self, name: str, runs: Runs, starts: Any = "scaled") -> FitResult[Any]:
        held = {kept: published().coefficients[kept] for kept in KEPT} | HELD[name]
        options: dict[str, Any] = {"huber_delta": HUBER, "weights": "precision", "fixed": held, "starts": starts}
        return fit(with_precision(runs), "crossing", **options)

    def again(self, name: str) -> Callable[[Runs, Runs], FloatArray]:
        """Losses of other runs from a fit to some, started at the one to all."""

        def losses(runs: Runs, others: Runs) -> FloatArray:
            return self._fitted(name, runs, [self.laws[name]]).errors_on(others) + others.loss

        return losses

    def on_cells(self, name: str) -> float:
        """RMSE."""
        return rms(errors_of(self.laws[name], self.cells))

    @cached_property
    def left_out(self) -> dict[str, float]:
        """RMSE on the cells of each model in turn, forecast from the runs of the others."""
        runs, cells, errors = self.runs, self.cells, dict[str, list[FloatArray]]()
        for n, e in sorted({*zip(cells.n_active, cells.experts, strict=True)}):
            held, test = ((part.n_active == n) & (part.experts == e) for part in (runs, cells))
            for name in HELD:
                tested = cells.subset(test)
                errors.setdefault(name, []).append(self.again(name)(runs.subset(~held), tested) - tested.loss)
        return {name: rms(np.concatenate(parts)) for name, parts in errors.items()}

    @cached_property
    def forecasts(self) -> dict[str, list[float]]:
        """RMSE on the runs above each of several cuts of compute, forecast from those below."""
        folds = rolling_origin(self.runs, {name: self.again(name) for name in HELD})
        return {name: [rms(fold.errors[name]) for fold in folds] for name in HELD}

    @cached_property
    def in_the_paper(self) -> tuple[float, float, dict[int, tuple[float, float]]]:
        """The sweep's κ in the paper's range: the published losses on its runs refitted with κ held and all else free.

        RMSE of the refit; of κ put into the published law as it is; D* of models of 1B by both laws, for each E.
        """
        design, law, kappa = published_design(), published(), self.laws[BENT].coefficients["kappa"]
        sizes = design.n_active, design.tokens, design.experts
        runs = Runs.from_columns(*sizes, law.loss(*sizes), design.trunk)
        refit = fit(runs, "crossing", fixed={"kappa": kappa, "q": 1.0})
        bent = refit.law.replace(**{**law.coefficients, "kappa": kappa, "q": 1.0})
        stars = {
            e: tuple(float(one.break_even(PAPER_MODEL, e, force=True).tokens) for one in (law, refit.law))
            for e in (2, 32)
        }
        return refit.rmse, rms(errors_of(bent, runs)), stars  # type: ignore[return-value]
