"""Two large MoE models of Marin, forecast from the small runs that were there before them: heroes.csv.

Losses are Paloma macro losses in nats per token, from texts of github.com/marin-community/marin: the anchors and the
loss of 67B-A2B from issue 6044 (comment of 14 August 2026), 129B-A16B from issue 4697 (model of 13 April, loss of 20
May). N counts both embeddings, as on the rest of the page. Runs of one forecast are as of one E.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scaling_law import Runs
from scaling_law.fitting.posterior import DEPENDENCE, MISFIT
from studies.common import Part, read_csv, rows_of, write_csv
from studies.forecasts.cells import as_one_e, forecast_runs, prior_without
from studies.forecasts.methods import NORMAL
from studies.forecasts.sets import LLAMA3

RECORDS = Path(__file__).with_name("heroes.csv")
LAB = "marin"
# Width, active parameters without embeddings, tokens and loss of the three anchors of 67B-A2B, and of the model.
ANCHORS = (
    (512, 18.9e6, 75.3e9, 3.2373),
    (768, 55.1e6, 220.3e9, 2.9538),
    (1024, 135.6e6, 542.4e9, 2.7515),
)
MARIN_67B = (2560, 1.98e9, 8.02e12, 2.256)
# 48 blocks of width 5,120, top-4 of 64; its tokens follow from its budget of 1e23 FLOPs, counted as its grid's.
MARIN_129B = (5120, 14.6e9, 1e23, 2.234)


@dataclass(frozen=True)
class Hero:
    """The measured and the forecast loss of a model, nats, with an interval of 90 %.

    Its compute is `times_beyond` that of the largest run fitted.
    """

    model: str
    fitted_on: str
    fitted: int
    times_beyond: float
    measured: float
    forecast: float
    low: float
    high: float

    @property
    def is_inside(self) -> bool:
        """True if the measured loss lies in the interval."""
        return self.low <= self.measured <= self.high


def take(tables: Mapping[str, Runs]) -> list[Path]:
    """Forecast the models whose small runs are at hand; the records of the others stay."""
    anchors = runs_of(ANCHORS)
    target = runs_of([MARIN_67B])
    small_runs = {("67B-A2B", "three anchors"): (anchors, target)}
    if "marin_overtraining" in tables:
        grid = tables["marin_overtraining"]
        n_active, tokens, loss = (np.append(anchors[name], grid[name]) for name in ("n_active", "tokens", "loss"))
        small_runs["67B-A2B", "anchors and a grid"] = (Runs.from_columns(n_active, tokens, 1.0, loss), target)
    if "marin_v16" in tables:
        grid = tables["marin_v16"]
        small_runs["129B-A16B", "isoFLOP grid"] = (grid, runs_of([_with_tokens(MARIN_129B, grid)]))

    heroes = {(hero.model, hero.fitted_on): hero for hero in read()}
    prior = prior_without((LAB,))
    for (model, fitted_on), (runs, hero) in small_runs.items():
        forecast = forecast_runs(as_one_e(runs), hero, prior, MISFIT, DEPENDENCE)
        log_loss = float(forecast.log_loss[0])
        width = NORMAL * float(forecast.spread[0])
        low, middle, high = np.round(np.exp(log_loss + width * np.array([-1, 0, 1])), 3).tolist()
        beyond = round(float(hero.flops[0] / runs.flops.max()))
        measured = float(hero.loss[0])
        heroes[model, fitted_on] = Hero(model, fitted_on, len(runs), beyond, measured, middle, low, high)
    return [write_csv(RECORDS, rows_of(heroes.values(), Hero))]


def runs_of(models: Sequence[tuple[float, ...]]) -> Runs:
    """Make runs of widths, active parameters without embeddings, tokens and losses."""
    width, n_active, tokens, loss = np.array(models, float).T
    n_active = n_active + 2 * LLAMA3 * width
    return Runs.from_columns(n_active, tokens, 1.0, loss)


def _with_tokens(model: tuple[float, float, float, float], grid: Runs) -> tuple[float, float, float, float]:
    """Replace the budget by its tokens, with the FLOPs per parameter and token of the grid's largest model."""
    width, n_active, budget, loss = model
    largest = int(np.argmax(grid.n_active))
    flops_per_parameter = grid["flops_per_token"][largest] / grid["n_active_non_embedding"][largest]
    return width, n_active, budget / (flops_per_parameter * n_active), loss


def read() -> list[Hero]:
    """Read the records."""
    return read_csv(RECORDS, Hero)


def heroes(records: Sequence[Hero]) -> Iterator[Part]:
    """List what was forecast and measured."""
    yield "model", "fitted on", "runs", "× their largest compute", "measured", "forecast", "90 %", ""
    for hero in records:
        interval = f"{hero.low:.3f} to {hero.high:.3f}"
        verdict = "inside" if hero.is_inside else "outside"
        forecast = f"{hero.forecast:.3f}"
        yield (
            hero.model,
            hero.fitted_on,
            hero.fitted,
            f"{hero.times_beyond:,.0f}",
            f"{hero.measured:.3f}",
            forecast,
            interval,
            verdict,
        )
