"""Runs that no fit sees, and the errors of laws on them.

Laws are asked about larger models than the runs have, so the extreme runs are held out: `split` holds out one such
part, `backtest_at_cuts` the runs above each of several cuts of compute (rolling origin). What several laws forecast of
held-out runs is a `Backtest`. `fit(runs, kind="all")` ranks kinds of laws by it, and `forecast` weighs laws.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hub.base.errors import InputError, given, reason_of
from hub.base.inputs import reads
from hub.base.tables import Summarised, Table, column_name
from hub.base.types import Fields
from hub.base.units import format_count
from scaling_law.answer.answer import ResultTable
from scaling_law.formulas.law import check_count
from scaling_law.runs.table import Runs
from scaling_law.size.arrays import BoolArray, FloatArray, IntArray, Interval

if TYPE_CHECKING:
    import pandas

# Predicts the losses of the second table of runs from the first.
Forecaster = Callable[[Runs, Runs], FloatArray]

# Directions in which a point may lie furthest beyond the runs.
DIRECTIONS = ("flops", "n_active", "tokens")
EXTREMES = ("loss", "n_active", "flops", "tokens")
RESAMPLES = 2000
SEED = 0
LEVEL = (0.025, 0.975)

# Cuts lie this many times below the largest compute, N or D.
CUTS = tuple(("flops", float(divisor)) for divisor in 10.0 ** (np.arange(1, 9) / 4))
CUTS_EACH_WAY = (
    *(("flops", divisor) for divisor in (2.0, 5.0, 12.0, 30.0)),
    *(("n_active", divisor) for divisor in (2.0, 5.0)),
    *(("tokens", divisor) for divisor in (2.0, 5.0)),
)
# A cut needs this many runs and sizes below it.
MIN_RUNS = 6
MIN_SIZES = 3
# Sizes closer than this in ln N count as one.
SAME_SIZE = 0.05
TINY = 1e-9


@dataclass(frozen=True, repr=False)
class Split(Summarised):
    """Three disjoint tables of runs."""

    train: Runs
    validation: Runs
    test: Runs
    by: str

    @property
    def parts(self) -> dict[str, Runs]:
        return {"train": self.train, "validation": self.validation, "test": self.test}

    def to_dataframe(self) -> pandas.DataFrame:
        """Return one line per run, with its `part`."""
        import pandas

        return pandas.concat([runs.to_pandas().assign(part=name) for name, runs in self.parts.items()])

    def summary(self) -> Table:
        rows = []
        for name, runs in self.parts.items():
            row = (
                name,
                len(runs),
                _format_range(runs.n_active, format_count),
                _format_range(runs.tokens, format_count),
                _format_range(runs.loss, "{:.4f}".format),
            )
            rows.append(row)
        return Table(("part", "runs", "N_act", "D", "loss"), rows, title=f"Split by {self.by}")


def _format_range(values: NDArray[Any], form: Callable[[float], str]) -> str:
    if not len(values):
        return ""
    return f"{form(values.min())}…{form(values.max())}"


@reads
def split(
    runs: Runs,
    by: str = "loss",
    validation: int = 30,
    test: int = 0,
) -> Split:
    """Hold out the `test` most extreme runs, then the next `validation`, and train on the rest.

    The paper (Section "Optimization of Formula Coefficients") selects by the 30 runs that it holds out, a validation
    set; the test part is never selected on.

    Args:
        by: "loss" holds out the lowest losses. "n_active", "flops", "tokens" or a numeric column of the runs, such as
            the time of each, holds out the largest values.

    Raises:
        InputError: no run is left to train on, or runs have no value of this column.
    """
    check_count("validation", validation, 0)
    check_count("test", test, 0)
    values = _read_order(runs, by)
    if validation + test >= len(runs):
        options = (given("validation", validation), ", ", given("test", test))
        raise InputError(*options, f" must leave some of the {len(runs)} runs")
    rank = np.argsort(np.argsort(values if by == "loss" else -values, kind="stable"))
    is_test = rank < test
    is_train = rank >= test + validation
    return Split(runs.subset(is_train), runs.subset(~is_train & ~is_test), runs.subset(is_test), by)


def _read_order(runs: Runs, by: str) -> FloatArray:
    """Return the values that order the runs, [n]."""
    if by in EXTREMES:
        return np.asarray(getattr(runs, by))
    by = column_name(by, runs.columns)
    option = given("by", by, in_shell=f"--split {by}")
    if by not in runs.columns:
        columns = ", ".join(map(repr, (*EXTREMES, *runs.columns)))
        raise InputError(option, f" must be a numeric column of the runs: {columns}")
    missing = np.flatnonzero(np.isnan(runs.columns[by]))
    if missing.size:
        raise InputError(option, f": {missing.size} runs have no value, first {runs.run_id[missing[0]]!r}")
    return runs.columns[by]


def distances(runs: Runs, points: Runs) -> FloatArray:
    """Return ln of how far each point lies beyond the largest run, in each of `DIRECTIONS`, [3, n]."""
    rows = [np.log(getattr(points, name)) - np.log(getattr(runs, name).max()) for name in DIRECTIONS]
    return np.stack(rows)


def rms(errors: FloatArray) -> float:
    """Compute the root mean square; NaN of nothing."""
    return float(np.sqrt(np.mean(errors**2))) if len(errors) else float("nan")


@dataclass(frozen=True, repr=False)
class HeldOut(Summarised):
    """Predicted minus observed loss of the held-out runs [n], nats per token."""

    errors: FloatArray

    @property
    def rmse(self) -> float:
        return rms(self.errors)

    @property
    def bias(self) -> float:
        """The mean error."""
        return float(self.errors.mean())

    @property
    def largest(self) -> float:
        """The largest absolute error; NaN of nothing."""
        return float(np.abs(self.errors).max()) if len(self.errors) else float("nan")

    @cached_property
    def interval(self) -> Interval:
        """The 95 % interval of the RMSE over resampled held-out runs."""
        count = len(self.errors)
        resamples = np.random.default_rng(SEED).integers(count, size=(RESAMPLES, count))
        rmse = np.sqrt((self.errors[resamples] ** 2).mean(axis=1))
        low, high = np.quantile(rmse, LEVEL)
        return float(low), float(high)

    def _headline(self) -> str:
        """Say the RMSE and of how many runs it is."""
        return f"RMSE {self.rmse:.4f} of {len(self.errors)} runs"

    def summary(self) -> Table:
        """Show the errors of the held-out runs, in nats per token."""
        low, high = self.interval
        rows = [
            ("runs", len(self.errors)),
            ("RMSE", f"{self.rmse:.4f}"),
            ("95 %", f"{low:.4f} to {high:.4f}"),
            ("mean error", f"{self.bias:+.4f}"),
            ("largest error", f"{self.largest:.4f}"),
        ]
        return Table((), rows, title=self._headline())


@dataclass(frozen=True, repr=False)
class Backtest(ResultTable):
    """Errors of laws that forecast the runs `test` from the runs `train`.

    `left_out` says why a law has no forecast.
    """

    train: Runs
    test: Runs
    laws: Mapping[str, HeldOut]
    left_out: Mapping[str, str]

    def errors_of(self, names: Sequence[str]) -> FloatArray:
        """Return the errors of these laws [J, n], NaN where a law has no forecast."""
        nothing = np.full(len(self.test), np.nan)
        return np.array([self.laws[name].errors if name in self.laws else nothing for name in names])

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

    def summary(self) -> Table:
        rows = []
        for row in self.to_rows():
            interval = f"{row['rmse_low']:.4f} to {row['rmse_high']:.4f}"
            rows.append((row["law"], f"{row['rmse']:.4f} ({interval})", f"{row['bias']:+.4f}"))
        title = f"{len(self.test)} runs forecast from {len(self.train)}, nats"
        notes = [f"{name}: {reason}" for name, reason in self.left_out.items()]
        return Table(("law", "RMSE (95 %)", "mean error"), rows, title=title, notes=notes)


def evaluate_forecasters(
    train: Runs,
    test: Runs,
    forecasters: Mapping[str, Forecaster],
) -> Backtest:
    """Compare each forecast with the held-out losses; leave out a law that `train` cannot determine (ValueError)."""
    laws: dict[str, HeldOut] = {}
    left_out: dict[str, str] = {}
    for name, forecast in forecasters.items():
        try:
            laws[name] = HeldOut(np.asarray(forecast(train, test) - test.loss))
        except ValueError as error:
            left_out[name] = reason_of(error)
    return Backtest(train, test, laws, left_out)


def backtest_at_cuts(
    runs: Runs,
    forecasters: Mapping[str, Forecaster],
    may_test: Any = True,
    cuts: Sequence[tuple[str, float]] = CUTS,
) -> tuple[Backtest, ...]:
    """Fit each law below each cut, and forecast the runs above it of which `may_test` [runs] is true.

    A cut is a quantity of the runs and how many times below its largest value it lies.
    """
    pairs = [(runs.subset(is_below), runs.subset(~is_below & may_test)) for is_below in _find_cuts(runs, cuts)]
    return tuple(evaluate_forecasters(train, test, forecasters) for train, test in pairs if len(test))


def _find_cuts(runs: Runs, cuts: Sequence[tuple[str, float]]) -> list[BoolArray]:
    """Return a mask of the runs below each cut that leaves enough of them."""
    masks: dict[bytes, BoolArray] = {}
    for quantity, divisor in cuts:
        values = getattr(runs, quantity)
        is_below = values <= values.max() / divisor * (1 + TINY)
        has_enough = is_below.sum() >= MIN_RUNS and count_sizes(runs.subset(is_below)) >= MIN_SIZES
        if has_enough:
            # Two cuts with the same runs below them are one.
            masks.setdefault(is_below.tobytes(), is_below)
    return list(masks.values())


def count_sizes(runs: Runs) -> int:
    """Count the sizes, those within `SAME_SIZE` of each other once."""
    if not len(runs):
        return 0
    log_sizes = np.sort(np.log(runs.n_active))
    return 1 + int(np.sum(np.diff(log_sizes) > SAME_SIZE))


class PooledErrors(NamedTuple):
    """Errors of laws [J, n] over all cuts; of each held-out run its loss, how far out it lies [3, n] and its cut."""

    errors: FloatArray
    loss: FloatArray
    beyond: FloatArray
    cut: FloatArray

    @property
    def cuts(self) -> int:
        """The number of cuts with errors of all laws."""
        return len(np.unique(self.cut))


def pool_errors(backtests: Sequence[Backtest], names: Sequence[str]) -> tuple[IntArray, PooledErrors]:
    """Join the errors of several cuts on the runs that all of the laws forecast.

    Returns the places in `names` of the laws that at least half of the cuts determine (all laws where no law is), and
    their errors.
    """
    errors = [backtest.errors_of(names) for backtest in backtests]
    indices = np.arange(len(names))
    if backtests:
        share = np.mean([np.isfinite(at_cut).any(axis=1) for at_cut in errors], axis=0)
        is_frequent = share >= 0.5
        indices = np.flatnonzero(is_frequent if is_frequent.any() else ~is_frequent)

    columns = [np.zeros((len(indices) + 5, 0))]
    for i, (at_cut, backtest) in enumerate(zip(errors, backtests, strict=True)):
        test = backtest.test
        beyond = distances(backtest.train, test)
        rows = np.vstack([at_cut[indices], beyond, test.loss, np.full(len(test), float(i))])
        columns.append(rows[:, np.isfinite(rows).all(axis=0)])
    pooled = np.hstack(columns)
    return indices, PooledErrors(pooled[:-5], pooled[-2], pooled[-5:-2], pooled[-1])


@dataclass(frozen=True, repr=False)
class Ranking(ResultTable):
    """Kinds of laws, the one that forecasts best within the runs first.

    `rmse` [J] of the held-out runs in nats, at the `cuts` that determine all of these kinds; `failed` [J] says at how
    many others a kind was not determined. `left_out` says why a kind is not ranked.
    """

    kinds: tuple[str, ...]
    rmse: tuple[float, ...]
    failed: tuple[int, ...]
    cuts: int
    held_out: int
    left_out: Mapping[str, str]

    def to_rows(self) -> list[Fields]:
        ranked = zip(self.kinds, self.rmse, self.failed, strict=True)
        return [{"kind": kind, "rmse": rmse, "cuts_failed": failed} for kind, rmse, failed in ranked]

    def to_dict(self) -> Fields:
        return {"rows": self.to_rows(), "cuts": self.cuts, "held_out": self.held_out, "left_out": dict(self.left_out)}

    def summary(self) -> Table:
        rows = [(r["kind"], f"{r['rmse']:.4f}", r["cuts_failed"] or "") for r in self.to_rows()]
        notes = [f"left out: {name}: {reason}" for name, reason in self.left_out.items()]
        title = f"Fitted below {self.cuts} cuts of compute: RMSE above them ({self.held_out} losses, nats)"
        return Table(("kind", "RMSE", "cuts where not determined"), rows, title=title, notes=notes)


def rank_kinds(
    backtests: Sequence[Backtest],
    kinds: Sequence[str],
    left_out: Mapping[str, str],
) -> Ranking:
    """Rank these kinds by their errors at the cuts; `left_out` says why others could not be tested."""
    indices, pooled = pool_errors(backtests, kinds)
    rmse = np.array([rms(errors) for errors in pooled.errors])
    order = np.argsort(rmse, kind="stable")
    ranked = [kinds[indices[rank]] for rank in order]

    reasons = dict(left_out)
    for kind in kinds:
        if kind not in ranked:
            first = next(backtest.left_out[kind] for backtest in backtests if kind in backtest.left_out)
            reasons[kind] = f"most cuts do not determine it: {first}"
    failed = []
    for kind in ranked:
        failed.append(sum(kind in backtest.left_out for backtest in backtests))
    return Ranking(
        kinds=tuple(ranked),
        rmse=tuple(map(float, rmse[order])),
        failed=tuple(failed),
        cuts=pooled.cuts,
        held_out=len(pooled.loss),
        left_out=reasons,
    )
