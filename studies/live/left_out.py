"""Forecasts by constants that were chosen on the curves of one model alone, and judged on those of the other.

The constants that one model can show are chosen one after the other, each from a grid that does not know the shipped
value, by the mean log probability of final losses. Scatters between models are kept: one model shows none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from scipy.stats import t as student

from hub.base.tables import Part
from scaling_law.forecasting import live as constants_of_live
from scaling_law.forecasting import schedules as constants_of_schedules
from studies.live.schedules import ALONE, ONE, SHARES, Judged, Run, coverage, judge, rms_percent

# Where constants are, and their grids; a search begins in the middle of each.
GRIDS = {
    "PROGRESS_POWER": (0.5, 0.667, 0.8),
    "LAG": (60.0, 120.0, 240.0, 480.0),
    "GAP": (0.03, 0.045, 0.06),
    "MISFIT": (0.0002, 0.0004, 0.0008),
    "SEEDS": (0.002, 0.004, 0.008),
}
SEARCHED_SHARES = (0.5, 0.9)
SHIPPED = "both (as shipped)"


class LeftOut(NamedTuple):
    """Forecasts of one model's runs by constants that were chosen on `chosen_on`."""

    chosen_on: str
    model: str
    constants: Mapping[str, float]
    judged: Sequence[Judged]


def judge_left_out(runs: Sequence[Run]) -> Iterator[LeftOut]:
    """Judge each model by the shipped constants, and by those that the other one's runs choose."""
    models = sorted({run.model for run in runs})
    for model in models:
        runs_of_model = [run for run in runs if run.model == model]
        other_runs = [run for run in runs if run.model != model]
        yield LeftOut(SHIPPED, model, {}, _judge(runs_of_model, {}, SHARES))
        constants = choose(other_runs)
        yield LeftOut(other_runs[0].model, model, constants, _judge(runs_of_model, constants, SHARES))


def choose(runs: Sequence[Run]) -> dict[str, float]:
    """Choose constants on the curves of a model, one after the other."""
    constants = {name: grid[len(grid) // 2] for name, grid in GRIDS.items()}
    best = _score(runs, constants)
    for name, grid in GRIDS.items():
        for value in grid:
            candidate = {**constants, name: value}
            if candidate == constants:
                continue
            score = _score(runs, candidate)
            if score > best:
                best = score
                constants = candidate
    return constants


def _score(runs: Sequence[Run], constants: Mapping[str, float]) -> float:
    """Return the mean log probability of final losses, in which each way and share counts the same."""
    judged = _judge(runs, constants, SEARCHED_SHARES)
    means = []
    for way in (ALONE, ONE):
        for share in SEARCHED_SHARES:
            rows = [row for row in judged if row.finished == way and row.share == share]
            spreads = np.array([row.estimate.spread for row in rows])
            errors = np.array([row.error for row in rows])
            freedom = np.array([row.estimate.freedom for row in rows])
            means.append(np.mean(student.logpdf(errors / spreads, freedom) - np.log(spreads)))
    return float(np.mean(means))


def _judge(runs: Sequence[Run], constants: Mapping[str, float], shares: Sequence[float]) -> list[Judged]:
    """Forecast runs with these constants, without a finished run and with one."""
    with _changed(constants):
        return [*judge(runs, (ALONE, ONE), shares)]


@contextmanager
def _changed(constants: Mapping[str, float]) -> Iterator[None]:
    """Change constants of the library for a while."""
    before = []
    for name, value in constants.items():
        module = constants_of_schedules if hasattr(constants_of_schedules, name) else constants_of_live
        before.append((module, name, getattr(module, name)))
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def summarize(results: Sequence[LeftOut]) -> Iterator[Part]:
    """List errors and coverage with one finished run, by the model on which constants were chosen."""
    yield "errors on", "constants chosen on", *(f"at {share:.0%}" for share in SHARES), "90 % holds", *GRIDS
    for result in results:
        rows = [row for row in result.judged if row.finished == ONE]
        cells = [f"{error_at(result, share):.2f}%" for share in SHARES]
        chosen = [_shown(result.constants.get(name)) for name in GRIDS]
        yield result.model, result.chosen_on, *cells, f"{coverage(rows):.0%}", *chosen


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def error_at(result: LeftOut, share: float) -> float:
    """Return the RMS error at a share with one finished run, in percent."""
    errors = [row.error for row in result.judged if row.finished == ONE and row.share == share]
    return rms_percent(errors)
