"""Forecasts by hand, means over labs, and the fresh fits beside which forecasts are judged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scaling_law import Runs, backtest, fit, published
from studies.common import FloatArray, rms

CONSTANT = "one constant"
# The published joint law moves by its mean error.
BY_HAND = {CONSTANT: published("ludziejewski")}
# The forms that are fitted to the runs alone.
FRESH = ("chinchilla", "interaction")
# Errors below this, in nats, are counted as this: the runs of no set scatter less about a law.
SEEDS = 0.003
# Half the width of a 90 % interval in standard errors.
NORMAL = 1.6449
# A fresh form is chosen by its errors above cuts so many times below the largest compute, N or D.
CUTS_EACH_WAY = (
    *(("flops", divisor) for divisor in (2.0, 5.0, 12.0, 30.0)),
    *(("n_active", divisor) for divisor in (2.0, 5.0)),
    *(("tokens", divisor) for divisor in (2.0, 5.0)),
)
# A cut needs this many runs and sizes below it.
MIN_RUNS = 6
MIN_SIZES = 3


@dataclass(frozen=True)
class Forecast:
    """ln L of the held-out runs [n] and its spread [n]."""

    log_loss: FloatArray
    spread: FloatArray

    def rmse(self, loss: FloatArray) -> float:
        """Return the RMSE in nats, at least the noise of seeds."""
        return max(rms(np.exp(self.log_loss) - loss), SEEDS)

    def inside(self, loss: FloatArray) -> FloatArray:
        """Mark the runs in their 90 % intervals, [n]."""
        return np.asarray(np.abs(np.log(loss) - self.log_loss) <= NORMAL * self.spread)


def fit_fresh(train: Runs, held_out: Runs) -> tuple[dict[str, float], str]:
    """Return the RMSE of each fresh form that the runs determine, and the one that is better at cuts within them."""
    errors = {}
    for kind in FRESH:
        try:
            law = fit(train, kind).law
        except ValueError:
            continue
        errors[kind] = max(rms(law.loss(held_out.n_active, held_out.tokens) - held_out.loss), SEEDS)
    return errors, choose_fresh(train, errors)


def choose_fresh(runs: Runs, forms: Mapping[str, float]) -> str:
    """Return the form of least error at the cuts within the runs; the first where no cut determines all."""
    squares: dict[str, list[FloatArray]] = {form: [] for form in forms}
    masks: dict[bytes, NDArray[np.bool_]] = {}
    for quantity, divisor in CUTS_EACH_WAY:
        values = getattr(runs, quantity)
        is_below = values <= values.max() / divisor * (1 + 1e-9)
        # Two cuts with the same runs below them are one.
        masks.setdefault(is_below.tobytes(), is_below)
    for is_below in masks.values():
        below = runs.subset(is_below)
        if is_below.all() or len(below) < MIN_RUNS or below.n_sizes < MIN_SIZES:
            continue
        laws = backtest(below, runs.subset(~is_below), {form: form for form in forms}).laws
        if len(laws) == len(forms):
            for form in forms:
                squares[form].append(laws[form].errors ** 2)
    if not any(squares.values()):
        return next(iter(forms), "")
    return min(forms, key=lambda form: float(np.concatenate(squares[form]).mean()))


def by_lab(values: Iterable[tuple[str, float]]) -> float:
    """Return the geometric mean within labs, then over labs; NaN of nothing."""
    logs: dict[str, list[float]] = {}
    for lab, value in values:
        logs.setdefault(lab, []).append(np.log(value))
    if not logs:
        return float("nan")
    return float(np.exp(np.mean([np.mean(logs_of_lab) for logs_of_lab in logs.values()])))
