"""N with embeddings or without: what the count costs on public sets that know both, and what backtests choose.

The cuts are those of the list. The population of laws is without the lab of a set; the rest of the stack ships so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from scaling_law import Runs
from scaling_law.fitting.prior import POPULATION, read_population
from scaling_law.forecasting.counting import BODY, WITH, WITHOUT, choose_count, count_without, with_both_counts
from scaling_law.forecasting.forecasters import BASE, PUBLISHED, forecasters
from scaling_law.forecasting.stack import gather, read_defaults, stack
from studies.common import Page, Part
from studies.forecasts.methods import Forecast, by_lab
from studies.forecasts.splits import Split, splits_of
from studies.forecasts.stacking import prior_without


@dataclass(frozen=True)
class CountedCell:
    """RMSE on the held-out runs of a split and the share in their 90 % intervals, by count, and the count chosen."""

    split: Split
    rmse: Mapping[str, float]
    inside: Mapping[str, float]
    n_count: str


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
    n_count, _ = choose_count([evidence])
    rmse = {}
    inside = {}
    for count, evidence_of_count in evidence.items():
        stacked = stack(evidence_of_count, read_defaults())
        forecast = Forecast(stacked.log_loss, stacked.spread)
        rmse[count] = forecast.rmse(held_out.loss)
        inside[count] = float(forecast.inside(held_out.loss).mean())
    return CountedCell(split, rmse, inside, n_count)


def counts(cells: Sequence[CountedCell]) -> Iterator[Part]:
    """List for each set what the count without embeddings, and the count chosen, cost against that with them."""
    yield "set", "cuts", "chosen without", "without over with", "chosen over with", "in 90 %, with", "in 90 %, chosen"
    names = dict.fromkeys(cell.split.set for cell in cells)
    for name in names:
        yield name, *_costs([cell for cell in cells if cell.split.set == name])
    yield "all", *_costs(cells)


def _costs(cells: Sequence[CountedCell]) -> Iterator[str]:
    yield str(len(cells))
    yield str(sum(cell.n_count == WITHOUT for cell in cells))
    without = [(cell.split.lab, cell.rmse[WITHOUT] / cell.rmse[WITH]) for cell in cells]
    chosen = [(cell.split.lab, cell.rmse[cell.n_count] / cell.rmse[WITH]) for cell in cells]
    yield f"{by_lab(without):.2f}"
    yield f"{by_lab(chosen):.2f}"
    yield f"{np.mean([cell.inside[WITH] for cell in cells]):.0%}"
    yield f"{np.mean([cell.inside[cell.n_count] for cell in cells]):.0%}"


def count_cells(cells: Sequence[CountedCell]) -> Iterator[Part]:
    """List every cut."""
    yield "set", "cut", "with", "without", "chosen", "in 90 %, with", "in 90 %, without"
    for cell in cells:
        errors = [f"{cell.rmse[count]:.4f}" for count in (WITH, WITHOUT)]
        shares = [f"{cell.inside[count]:.0%}" for count in (WITH, WITHOUT)]
        yield cell.split.set, cell.split.cut, *errors, cell.n_count.partition(" ")[0], *shares


def write(tables: Mapping[str, Runs], page: Path) -> list[Path]:
    """Fill the section of the page."""
    return PAGE.write(page, ask(tables))


PAGE = Page(ask, blocks=(counts,), tables=(count_cells,))
