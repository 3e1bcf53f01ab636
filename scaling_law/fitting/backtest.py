"""Forecasts of runs that no fit has seen, by several laws side by side.

Losses of different corpora and tokenizers differ by more than a law's form says. So a law that is given whole moves by
one constant, its mean error on the training runs; nothing else of it is refitted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hub.base.errors import InputError
from hub.base.inputs import reads
from hub.base.tables import ResultTable, Table
from scaling_law.fitting.fitting import errors_of, fit, rms
from scaling_law.law import Law
from scaling_law.runs.table import Runs
from scaling_law.size.arrays import FloatArray

Forecaster = Callable[[Runs, Runs], FloatArray]
RESAMPLES, SEED, LEVEL = 2000, 0, (0.025, 0.975)


@dataclass(frozen=True)
class HeldOut:
    """Predicted minus observed loss of the held-out runs [n], nats per token."""

    errors: FloatArray

    @property
    def rmse(self) -> float:
        return rms(self.errors)

    @property
    def bias(self) -> float:
        """The mean error."""
        return float(self.errors.mean())

    @cached_property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the RMSE over resampled held-out runs."""
        drawn = np.random.default_rng(SEED).integers(len(self.errors), size=(RESAMPLES, len(self.errors)))
        low, high = np.quantile(np.sqrt((self.errors[drawn] ** 2).mean(axis=1)), LEVEL)
        return float(low), float(high)


@dataclass(frozen=True, repr=False)
class Backtest(ResultTable):
    """What each law forecasts of the runs `test` from the runs `train`; `left_out` says why a law has no forecast."""

    train: Runs
    test: Runs
    laws: Mapping[str, HeldOut]
    left_out: Mapping[str, str]

    def to_rows(self) -> list[dict[str, Any]]:
        """One row for each law that has a forecast."""
        return [
            {"law": name, "rmse": h.rmse, "rmse_low": h.interval[0], "rmse_high": h.interval[1], "bias": h.bias}
            for name, h in self.laws.items()
        ]

    def to_dict(self) -> dict[str, Any]:
        runs = {"train": len(self.train), "test": len(self.test)}
        return {"runs": runs, "laws": self.to_rows(), "left_out": dict(self.left_out)}

    def summary(self) -> Table:
        rows = [
            (r["law"], f"{r['rmse']:.4f} ({r['rmse_low']:.4f} to {r['rmse_high']:.4f})", f"{r['bias']:+.4f}")
            for r in self.to_rows()
        ]
        title = f"{len(self.test)} runs forecast from {len(self.train)}, nats"
        notes = [f"{name}: {why}" for name, why in self.left_out.items()]
        return Table(("law", "RMSE (95 %)", "mean error"), rows, title=title, notes=notes)


@reads
def backtest(train: Runs, test: Runs, laws: Mapping[str, Law | str | Forecaster]) -> Backtest:
    """Forecast the held-out runs `test` from the runs `train` by each of `laws`, under their names.

    A law moves by one constant; a text is a kind of law, fitted to `train`; a function of (train, test) returns the
    losses itself. A law that these runs cannot determine (ValueError) is left out. ValueError for no run on a side.
    """
    if not (len(train) and len(test)):
        raise InputError(f"train has {len(train)} runs and test {len(test)}: both need at least one")
    forecasts, left_out = {}, {}
    for name, law in laws.items():
        try:
            forecasts[name] = HeldOut(_errors(law, train, test))
        except ValueError as error:
            left_out[name] = str(error)
    return Backtest(train, test, forecasts, left_out)


def _errors(law: Law | str | Forecaster, train: Runs, test: Runs) -> FloatArray:
    if isinstance(law, Law):
        return errors_of(law, test) - errors_of(law, train).mean()
    if isinstance(law, str):
        return fit(train, law).errors_on(test)
    if not callable(law):
        raise InputError(f"laws: {law!r} must be a law, the name of a kind, or a function of (train, test)")
    return np.asarray(law(train, test) - test.loss)
