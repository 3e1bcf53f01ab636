"""N with embeddings or without: what the count costs on public sets that know both, and what weighing both gives.

The cuts are those of the list. The population of laws is without the lab of a set; the rest of the stack ships so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from scaling_law import Runs
from scaling_law.fitting.prior import POPULATION
from scaling_law.forecasting.counting import (
    BODY,
    WITH,
    WITHOUT,
    count_without,
    mix_counts,
    weigh_counts,
    with_both_counts,
)
from scaling_law.forecasting.forecasters import BASE, PUBLISHED, forecasters
from scaling_law.forecasting.stack import gather, read_defaults, stack
from studies.common import Page, Part
from studies.forecasts.members import read_population
from studies.forecasts.methods import Forecast, by_lab
from studies.forecasts.splits import Split, splits_of
from studies.forecasts.stacking import prior_without

# Both counts, weighed by their backtests, as `forecast` does.
BOTH = "both"


@dataclass(frozen=True)
class CountedCell:
    """RMSE on the held-out runs of a split and the share in their 90 % intervals, by count.

    `weight` is that of laws without embeddings where both counts are weighed.
    """

    split: Split
    rmse: Mapping[str, float]
    inside: Mapping[str, float]
    weight: float


def ask(tables: Mapping[str, Runs]) -> list[CountedCell]:
    """Forecast the splits of the sets that know both counts, with either."""
    both = {name: with_both_counts(runs) for name, runs in tables.items()}
    known = {name: runs for name, runs in both.items() if BODY in runs}
    return [_ask_split(split, known[split.set]) for split in splits_of(known)]


def _ask_split(split: Split, runs: Runs) -> CountedCell:
    members, settings, *_ = read_population(POPULATION)
    plain_runs = runs.without_settings({BODY})
    train, held_out = split.divide(replace(plain_runs, experts=np.ones(len(runs))))
    laws = forecasters(train, 1.0, prior_without(members, settings, split.lab), BASE)
    del laws[PUBLISHED]
    evidence = {
        WITH: gather(train, held_out, laws),
        WITHOUT: gather(train, held_out, count_without(laws)),
    }
    weights = weigh_counts([evidence]) or {WITH: 1.0}
    answers = {count: stack(evidence_of_count, read_defaults()) for count, evidence_of_count in evidence.items()}
    answers[BOTH] = mix_counts(answers, weights)
    rmse = {}
    inside = {}
    for count, stacked in answers.items():
        forecast = Forecast(stacked.log_loss, stacked.spread)
        rmse[count] = forecast.rmse(held_out.loss)
        inside[count] = float(forecast.inside(held_out.loss).mean())
    return CountedCell(split, rmse, inside, weights.get(WITHOUT, 0.0))


def counts(cells: Sequence[CountedCell]) -> Iterator[Part]:
    """List for each set what N without embeddings, and laws of both, cost against N with embeddings."""
    columns = ("without over with", "both over with", "in 90 %, with", "in 90 %, without", "in 90 %, both")
    yield "set", "cuts", "weight of without", *columns
    names = dict.fromkeys(cell.split.set for cell in cells)
    for name in names:
        yield name, *_costs([cell for cell in cells if cell.split.set == name])
    yield "all", *_costs(cells)


def _costs(cells: Sequence[CountedCell]) -> Iterator[str]:
    yield str(len(cells))
    yield f"{np.mean([cell.weight for cell in cells]):.0%}"
    for count in (WITHOUT, BOTH):
        ratios = [(cell.split.lab, cell.rmse[count] / cell.rmse[WITH]) for cell in cells]
        yield f"{by_lab(ratios):.2f}"
    for count in (WITH, WITHOUT, BOTH):
        yield f"{np.mean([cell.inside[count] for cell in cells]):.0%}"


def count_cells(cells: Sequence[CountedCell]) -> Iterator[Part]:
    """List every cut."""
    yield "set", "cut", "with", "without", "both", "in 90 %, with", "in 90 %, without", "in 90 %, both"
    for cell in cells:
        errors = [f"{rmse:.4f}" for rmse in cell.rmse.values()]
        shares = [f"{inside:.0%}" for inside in cell.inside.values()]
        yield cell.split.set, cell.split.cut, *errors, *shares


def write(tables: Mapping[str, Runs], page: Path) -> list[Path]:
    """Fill the section of the page."""
    return PAGE.write(page, ask(tables))


PAGE = Page(ask, blocks=(counts,), tables=(count_cells,))
