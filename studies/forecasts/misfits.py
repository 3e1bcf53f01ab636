"""The scale of the misfit and the dependence of runs, chosen for each lab from the others: misfits.csv.

`designs` says what is compared, and by which rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from scipy.stats import norm

from scaling_law import Runs
from studies.common import Part, read_csv, rows_of, write_csv
from studies.forecasts.cells import Cell, count_inside, divide, forecast_runs, prior_without
from studies.forecasts.splits import splits_of

RECORDS = Path(__file__).with_name("misfits.csv")
SCALES = (0.003, 0.006, 0.012, 0.024)
DEPENDENCES = (1.0, 2.0, 4.0, 8.0)
DIRECTIONS = ("C", "N", "D")


@dataclass(frozen=True)
class Misfit:
    """The forecasts of a lab that is not in the population, under one scale of the misfit and one dependence.

    `log_density` is the mean over its held-out runs of ln of the normal density of ln L. `over_chosen` and
    `over_better` are sums over the `cells` of ln of the error over that of a fresh form. `inside_*` of the `runs_*`
    furthest out in C, N or D lie in their 90 % intervals.
    """

    scale: float
    dependence: float
    lab: str
    log_density: float
    cells: int
    over_chosen: float
    over_better: float
    runs_c: int
    inside_c: int
    runs_n: int
    inside_n: int
    runs_d: int
    inside_d: int

    @property
    def setting(self) -> tuple[float, float]:
        """The scale and the dependence."""
        return self.scale, self.dependence

    @property
    def held(self) -> tuple[float, ...]:
        """The shares of runs furthest out in C, N and D that lie in their intervals, NaN where there are none."""
        counts = ((self.runs_c, self.inside_c), (self.runs_n, self.inside_n), (self.runs_d, self.inside_d))
        return tuple(inside / runs if runs else np.nan for runs, inside in counts)


def take(tables: Mapping[str, Runs], cells: Sequence[Cell]) -> Path:
    """Forecast every split of these sets under every setting; the records of other labs stay."""
    cell_of_split = {(cell.set, cell.cut): cell for cell in cells}
    splits = splits_of(tables)
    records = {(record.setting, record.lab): record for record in read()}
    for scale, dependence in product(SCALES, DEPENDENCES):
        for lab in sorted({split.lab for split in splits}):
            prior = prior_without((lab,))
            log_densities = []
            ratios = []
            counts = np.zeros(6, int)
            for split in splits:
                if split.lab != lab:
                    continue
                train, held_out = divide(split, tables)
                forecast = forecast_runs(train, held_out, prior, scale, dependence)
                log_densities.append(norm.logpdf(np.log(held_out.loss), forecast.log_loss, forecast.spread))
                counts += count_inside(train, held_out, forecast)
                cell = cell_of_split[split.set, split.cut]
                if cell.chosen:
                    error = forecast.rmse(held_out.loss)
                    ratios.append(np.log([cell.over_chosen(error), cell.over_better(error)]))
            log_density = round(float(np.concatenate(log_densities).mean()), 3)
            over_chosen, over_better = np.round(np.sum(ratios, axis=0), 3).tolist()
            record = Misfit(
                scale,
                dependence,
                lab,
                log_density,
                len(ratios),
                over_chosen,
                over_better,
                *counts.tolist(),
            )
            records[record.setting, lab] = record
    return write_csv(RECORDS, rows_of(records.values(), Misfit))


def read() -> list[Misfit]:
    """Read the records."""
    return read_csv(RECORDS, Misfit)


def choose(records: Sequence[Misfit], lab: str = "") -> tuple[float, float]:
    """Return the setting under which the runs of the labs other than this one are most probable, labs equally."""
    log_densities: dict[tuple[float, float], list[float]] = {}
    for record in records:
        if record.lab != lab:
            log_densities.setdefault(record.setting, []).append(record.log_density)
    return max(log_densities, key=lambda setting: float(np.mean(log_densities[setting])))


def left_out(records: Sequence[Misfit]) -> list[Misfit]:
    """Return for each lab the record of the setting that the others choose."""
    return [record for record in records if record.setting == choose(records, record.lab)]


def misfits(records: Sequence[Misfit]) -> Iterator[Part]:
    """List for each lab what the others choose and what that gives, and for all labs what all choose."""
    yield (
        "lab",
        "scale",
        "dependence",
        "over the chosen fresh form's",
        "over the better's",
        *(f"in 90 %, {direction}" for direction in DIRECTIONS),
    )
    of_labs = left_out(records)
    for record in of_labs:
        yield record.lab, f"{record.scale:g}", f"{record.dependence:g}", *_cells_of([record])
    yield "all, each by the others", "", "", *_cells_of(of_labs)
    scale, dependence = choose(records)
    of_all = [record for record in records if record.setting == (scale, dependence)]
    yield "all, by all", f"{scale:g}", f"{dependence:g}", *_cells_of(of_all)


def _cells_of(records: Sequence[Misfit]) -> Iterator[str]:
    """Yield the geometric means of two ratios over cells, and what intervals hold, labs weighing equally."""
    n_cells = sum(record.cells for record in records)
    yield f"{np.exp(sum(record.over_chosen for record in records) / n_cells):.3f}"
    yield f"{np.exp(sum(record.over_better for record in records) / n_cells):.3f}"
    for share in np.nanmean([record.held for record in records], axis=0):
        yield f"{share:.1%}"
