"""Runs that no fit sees, and the errors of laws on them.

`hold_out` divides runs: the extreme ones, as laws are asked about larger models than the runs have, each run, or each
model. What laws forecast of held-out runs is a `Backtest`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, NamedTuple

import numpy as np

from hub.base.errors import InputError, given, reason_of
from hub.base.fields import Field, reads
from hub.base.tables import column_name
from hub.base.types import Fields
from scaling_law.answer.answer import ResultTable
from scaling_law.fitting.fitting import errors_of, fit, rms
from scaling_law.law import Law
from scaling_law.runs.table import Runs
from scaling_law.size.arrays import FloatArray, Interval

# Predicts the losses of the second table of runs from the first.
Forecaster = Callable[[Runs, Runs], FloatArray]

EXTREMES = ("loss", "n_active", "flops", "tokens")
# Each run, or each model, is held out by itself.
EACH = ("run", "model")
RESAMPLES = 2000
SEED = 0
LEVEL = (0.025, 0.975)


class Split(NamedTuple):
    """Runs to fit, and held-out runs to forecast."""

    train: Runs
    test: Runs


@reads
def hold_out(
    runs: Runs,
    by: str = "flops",
    test: Annotated[int, Field(ge=1)] = 30,
) -> list[Split]:
    """Divide the runs into those to fit and those held out.

    Args:
        by: "loss" holds out the runs of lowest loss; "n_active", "flops", "tokens" or a numeric column, such as the
            time of each run, those of largest values. "run" makes a split for each run, "model" one for each n_active
            and E.
        test: how many extreme runs are held out.

    Raises:
        InputError: no run is left to fit, or runs have no value of this column.
    """
    if by in EACH:
        columns = [np.arange(len(runs))] if by == "run" else [runs.n_active, runs.experts]
        models, index = np.unique(np.stack(columns), axis=1, return_inverse=True)
        masks = [index.ravel() == model for model in range(models.shape[1])]
    else:
        values = _read_order(runs, by)
        masks = [np.argsort(np.argsort(values if by == "loss" else -values, kind="stable")) < test]
    if masks[0].all():
        raise InputError(given("by", by, in_shell=f"--split {by}"), f" must leave some of the {len(runs)} runs to fit")
    return [Split(runs.subset(~is_test), runs.subset(is_test)) for is_test in masks]


def _read_order(runs: Runs, by: str) -> FloatArray:
    """Return the values that order the runs, [n]."""
    if by in EXTREMES:
        return np.asarray(getattr(runs, by))
    by = column_name(by, runs.columns)
    option = given("by", by, in_shell=f"--split {by}")
    if by not in runs.columns:
        columns = ", ".join(map(repr, (*EACH, *EXTREMES, *runs.columns)))
        raise InputError(option, f" must be a numeric column of the runs: {columns}")
    missing = np.flatnonzero(np.isnan(runs.columns[by]))
    if missing.size:
        raise InputError(option, f": {missing.size} runs have no value, first {runs.run_id[missing[0]]!r}")
    return runs.columns[by]


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
    def interval(self) -> Interval:
        """The 95 % interval of the RMSE over resampled held-out runs."""
        count = len(self.errors)
        resamples = np.random.default_rng(SEED).integers(count, size=(RESAMPLES, count))
        rmse = np.sqrt((self.errors[resamples] ** 2).mean(axis=1))
        low, high = np.quantile(rmse, LEVEL)
        return float(low), float(high)


@dataclass(frozen=True, repr=False)
class Backtest(ResultTable):
    """Errors of laws that forecast the runs `test` from the runs `train`.

    `left_out` says why a law has no forecast.
    """

    train: Runs
    test: Runs
    laws: Mapping[str, HeldOut]
    left_out: Mapping[str, str]

    def to_rows(self) -> list[Fields]:
        """Return one row for each law that has a forecast."""
        rows = []
        for name, held_out in self.laws.items():
            low, high = held_out.interval
            row = {
                "law": name,
                "rmse": held_out.rmse,
                "rmse_low": low,
                "rmse_high": high,
                "bias": held_out.bias,
            }
            rows.append(row)
        return rows

    def to_dict(self) -> Fields:
        runs = {"train": len(self.train), "test": len(self.test)}
        return {"runs": runs, "laws": self.to_rows(), "left_out": dict(self.left_out)}

    def _headline(self) -> str:
        return f"{len(self.test)} runs forecast from {len(self.train)}, nats"

    def _footnotes(self) -> list[str]:
        return [f"{name}: {reason}" for name, reason in self.left_out.items()]


@reads
def backtest(
    train: Runs,
    test: Runs,
    laws: Mapping[str, Law | str | Forecaster],
) -> Backtest:
    """Forecast the held-out runs `test` from the runs `train` by each of `laws`, under their names.

    A law moves by one constant, its mean error on `train`, since losses of different corpora and tokenizers differ by
    more than a law's form says. A text is a kind of law, fitted to `train`. A function of (train, test) returns the
    losses itself. A law that these runs cannot determine (ValueError) is left out.

    Raises:
        InputError: one of the tables is empty.
    """
    return backtest_splits(train, [Split(train, test)], laws)


def _make_forecaster(law: Law | str | Forecaster) -> Forecaster:
    if isinstance(law, Law):
        return lambda train, test: test.loss + errors_of(law, test) - errors_of(law, train).mean()
    if isinstance(law, str):
        return lambda train, test: test.loss + fit(train, law).errors_on(test)
    if not callable(law):
        raise InputError(f"laws: {law!r} must be a law, the name of a kind, or a function of (train, test)")
    return law


def backtest_splits(
    runs: Runs,
    splits: Sequence[Split],
    laws: Mapping[str, Law | str | Forecaster],
) -> Backtest:
    """Forecast the held-out runs of every split, and join the errors of laws that have a forecast of each."""
    for train, test in splits:
        if not (len(train) and len(test)):
            raise InputError(f"train has {len(train)} runs and test {len(test)}: both need at least one")
    forecasters = {name: _make_forecaster(law) for name, law in laws.items()}
    laws_held_out: dict[str, HeldOut] = {}
    left_out: dict[str, str] = {}
    for name, forecast in forecasters.items():
        try:
            errors = [np.asarray(forecast(train, test) - test.loss) for train, test in splits]
        except ValueError as error:
            left_out[name] = reason_of(error)
        else:
            laws_held_out[name] = HeldOut(np.concatenate(errors))
    if len(splits) == 1:
        return Backtest(*splits[0], laws_held_out, left_out)
    row_of_run = {name: row for row, name in enumerate(runs.run_id)}
    rows = [row_of_run[name] for split in splits for name in split.test.run_id]
    return Backtest(runs, runs.take(np.array(rows)), laws_held_out, left_out)
