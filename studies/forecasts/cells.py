"""What the library forecasts on the list of splits, and three designs beside it, as numbers: cells.csv.

A lab left out is not in the population of laws behind its own forecasts, nor in what says how wide these are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from scaling_law import Prior, Runs
from scaling_law.fitting.posterior import DEPENDENCE, MISFIT, posterior
from scaling_law.fitting.prior import OTHER_CORPUS, POPULATION
from scaling_law.forecasting.forecast import DRAWS, ONE_SIGMA, distances
from studies.common import read_csv, rows_of, write_csv
from studies.forecasts.members import estimate, read_population
from studies.forecasts.methods import Forecast, fit_fresh
from studies.forecasts.splits import Split, splits_of

RECORDS = Path(__file__).with_name("cells.csv")


@dataclass(frozen=True)
class Cell:
    """A split: RMSE in nats of the fresh forms (0 where not determined) and of four designs, and what intervals hold.

    `chosen` is the fresh form that rolling origins choose, `stack` the error of `forecast` before 29 November,
    `additive` that of 29 November, whose misfit had functions of N and of D alone, `plain` that of a law fitted under
    the prior, without misfit; ln L is `plain_bias` above it in the mean, and `plain_inside` runs lie in its 90 %
    intervals. `forecast` is the library's, 0 where the set's table was not at hand. `inside_*` of the `runs_*`
    furthest out in C, N or D lie in its 90 % intervals.
    """

    set: str
    lab: str
    cut: str
    fitted: int
    held_out: int
    chinchilla: float
    interaction: float
    chosen: str
    stack: float
    additive: float
    plain: float
    plain_bias: float
    plain_inside: int
    forecast: float
    runs_c: int
    inside_c: int
    runs_n: int
    inside_n: int
    runs_d: int
    inside_d: int

    @property
    def fresh(self) -> dict[str, float]:
        """The errors of the fresh forms that the runs determine."""
        errors = {"chinchilla": self.chinchilla, "interaction": self.interaction}
        return {form: error for form, error in errors.items() if error}

    def over_chosen(self, error: float) -> float:
        """Return an error over that of the form chosen."""
        return error / self.fresh[self.chosen]

    def over_better(self, error: float) -> float:
        """Return an error over that of the better form in hindsight."""
        return error / min(self.fresh.values())

    @property
    def inside(self) -> int:
        """The runs that lie in their 90 % intervals."""
        return self.inside_c + self.inside_n + self.inside_d

    @property
    def held(self) -> dict[str, tuple[int, int]]:
        """The runs furthest out in each direction, and those of them in their intervals."""
        return {
            "C": (self.runs_c, self.inside_c),
            "N": (self.runs_n, self.inside_n),
            "D": (self.runs_d, self.inside_d),
        }


def take(tables: Mapping[str, Runs]) -> Path:
    """Forecast the splits of these sets again; the errors of the two designs before stay what they were."""
    cells = {(cell.set, cell.cut): replace(cell, forecast=0.0) for cell in read()}
    for split in splits_of(tables):
        train, held_out = divide(split, tables)
        cells[split.set, split.cut] = make_cell(split, train, held_out, cells[split.set, split.cut])
    return write_csv(RECORDS, rows_of(cells.values(), Cell))


def divide(split: Split, tables: Mapping[str, Runs]) -> tuple[Runs, Runs]:
    """Return the fitted runs of a split, as of one E, and the held-out ones."""
    train, held_out = split.divide(tables[split.set])
    return as_one_e(train), held_out


def as_one_e(runs: Runs) -> Runs:
    """Return the runs as of dense models."""
    return replace(runs, experts=np.ones(len(runs)))


def make_cell(split: Split, train: Runs, held_out: Runs, before: Cell) -> Cell:
    """Forecast the held-out runs of a split, with the errors of two designs from the record before."""
    fresh, chosen = fit_fresh(train, held_out)
    prior = prior_without((split.lab,))
    plain = fit_under(train, held_out, prior)
    forecast = forecast_runs(train, held_out, prior, MISFIT, DEPENDENCE)
    return Cell(
        split.set,
        split.lab,
        split.cut,
        len(train),
        len(held_out),
        round(fresh.get("chinchilla", 0.0), 4),
        round(fresh.get("interaction", 0.0), 4),
        chosen,
        before.stack,
        before.additive,
        round(plain.rmse(held_out.loss), 4),
        round(float(np.mean(np.log(held_out.loss) - plain.log_loss)), 4),
        int(plain.inside(held_out.loss).sum()),
        round(forecast.rmse(held_out.loss), 4),
        *count_inside(train, held_out, forecast),
    )


def count_inside(train: Runs, held_out: Runs, forecast: Forecast) -> list[int]:
    """Return the number of runs furthest out in C and of those in their 90 % intervals, and the same for N and D."""
    inside = forecast.inside(held_out.loss)
    furthest = np.argmax(distances(train, held_out), axis=0)
    counts = []
    for direction in range(3):
        counts += [int(np.sum(furthest == direction)), int(np.sum(inside[furthest == direction]))]
    return counts


def forecast_runs(train: Runs, held_out: Runs, prior: Prior, misfit: float, dependence: float) -> Forecast:
    """Forecast as the library does, with slopes of a misfit of this scale and so many runs worth one."""
    law = posterior(train, prior, "interaction", misfit=misfit, dependence=dependence)
    draws, _ = law.forecast(held_out, DRAWS)
    low, log_loss, high = np.quantile(draws, (ONE_SIGMA[0], 0.5, ONE_SIGMA[1]), axis=0)
    return Forecast(log_loss, np.hypot(0.5 * (high - low), law.noise))


def fit_under(train: Runs, held_out: Runs, prior: Prior) -> Forecast:
    """Forecast by the law of greatest posterior density, as a fit under the prior does, without misfit."""
    law_posterior = posterior(train, prior, "interaction", dependence=DEPENDENCE)
    draws, _ = law_posterior.forecast(held_out, DRAWS)
    low, high = np.quantile(draws, ONE_SIGMA, axis=0)
    log_loss = np.log(law_posterior.law.loss(held_out.n_active, held_out.tokens))
    return Forecast(log_loss, np.hypot(0.5 * (high - low), law_posterior.noise))


def prior_without(labs: Collection[str]) -> Prior:
    """Estimate the population of the other labs, in other units, as `forecast` takes it."""
    members, settings, *_ = read_population(POPULATION)
    return estimate([member for member in members if member.lab not in labs], **settings).in_units(*OTHER_CORPUS)


def read(path: Path = RECORDS) -> list[Cell]:
    """Read the records."""
    return read_csv(path, Cell)
