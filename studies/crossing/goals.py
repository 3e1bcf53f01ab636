"""The goals that were set before the sweep, what came of them, and why those that were missed were."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hub.plain.units import UNKNOWN, format_count
from scaling_law import errors_of
from studies.common import listed, rms
from studies.crossing.gaps import Gap
from studies.crossing.laws import FREE, KEPT, SIGNS, Results
from studies.crossing.prediction import Prediction, Predictions
from studies.crossing.words import interval_in_words, measured_in_words

RMSE, HELD_OUT = 0.008, 0.02  # nats per byte


@dataclass(frozen=True)
class Goal:
    """What was wanted and what came; `met` is None where the runs do not say yet."""

    name: str
    wanted: str
    found: str = UNKNOWN
    met: bool | None = None
    why: str = ""


def goals_of(results: Results, predictions: Predictions | None) -> Iterator[Goal]:
    """In the order of the page."""
    yield from _of_the_fit(results)
    yield from _of_held_out_cells(results)
    yield _of_signs(results)
    yield from _of_predictions(results, predictions)


def _of_the_fit(results: Results) -> Iterator[Goal]:
    rmse, seeds = results.rmse, results.scatter.pooled
    goals = (
        ("RMSE of the joint law on the cells", f"< {RMSE} nats", f"{rmse:.4f}", RMSE),
        ("the same, against seeds", "< 2 × their scatter", f"{rmse:.4f} against 2 × {seeds:.4f}", 2 * seeds),
    )
    for name, wanted, found, limit in goals:
        if results.fitted is None or np.isnan(limit):
            yield Goal(name, wanted)
        else:
            why = f"{rmse / limit:.2g} times the goal. {_where_it_errs(results)}"
            yield Goal(name, wanted, found, rmse < limit, why)


def _where_it_errs(results: Results) -> str:
    assert results.fitted is not None
    cells, errors = results.cells, errors_of(results.fitted.law, results.cells)
    by_tokens = {t: rms(errors[cells.tokens == t]) for t in np.unique(cells.tokens)}
    parts = listed(f"{format_count(t)} {error:.4f}" for t, error in by_tokens.items())
    return f"The scatter of seeds alone would leave {results.rmse_of_seeds:.4f}; by D the RMSE is {parts}."


def _of_held_out_cells(results: Results) -> Iterator[Goal]:
    found = {part.what: part for part in results.held_out}
    for what in ("largest size", "longest runs"):
        goal = f"RMSE on the {what}, held out", f"< {HELD_OUT} nats"
        if (part := found.get(what)) is None:
            yield Goal(*goal)
        else:
            rmse, bias = rms(part.errors), part.errors.mean()
            why = (
                f"{rmse / HELD_OUT:.2g} times the goal. The scatter of seeds alone would leave {part.of_seeds:.4f}; "
                f"predicted minus observed is {bias:+.4f} on average."
            )
            yield Goal(*goal, f"{rmse:.4f} on {len(part.errors)} cells", rmse < HELD_OUT, why)


def _of_signs(results: Results) -> Goal:
    goal = f"signs of {listed(SIGNS)}", "all determined"
    if results.drawn is None:
        return Goal(*goal)
    intervals = {name: results.drawn.interval(name) for name in FREE}
    sure = [name for name, (low, high) in intervals.items() if low > 0 or high < 0]
    vague = [
        f"{name} (95 % interval {low:.3g} to {high:.3g})"
        for name, (low, high) in intervals.items()
        if name not in sure
    ]
    vague += [f"{name} (kept as published)" for name in SIGNS if name in KEPT]
    why = f"Not determined: {listed(vague)}."
    return Goal(*goal, f"{len(sure)} of {len(SIGNS)}: {listed(sure)}", len(sure) == len(SIGNS), why)


def _of_predictions(results: Results, predictions: Predictions | None) -> Iterator[Goal]:
    if predictions is None:
        yield Goal("two crossings, predicted before training", "inside the 95 % interval")
        return
    measured = {(gap.d_model, gap.experts): gap for gap in results.all_gaps}
    for model in predictions.models:
        name = f"crossing of d_model {model.d_model}, E = {model.experts}, predicted before training"
        wanted = interval_in_words(model.interval, predictions.between)
        gap = measured.get((model.d_model, model.experts))
        if gap is None:
            yield Goal(name, wanted)
        else:
            yield Goal(name, wanted, measured_in_words(gap), model.holds(gap), _outside(model, gap))


def _outside(model: Prediction, gap: Gap) -> str:
    """How far the crossing lies from the interval, and whether its own interval reaches into it."""
    _, low, high = (np.inf if end is None else end for end in model.interval)
    value, earliest, latest = gap.crossing
    end, ratio = ("lower", value / low) if value < low else ("upper", value / high)
    far = f", {ratio:.2g} times its {end} end" if 0 < ratio < np.inf else ""
    touching = "reaches into it" if earliest <= high and latest >= low else "does not touch it"
    own = "" if np.isnan(earliest) else f"; the measurement's own interval {touching}"
    return f"Outside the interval{far}{own}."
