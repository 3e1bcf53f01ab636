"""The best rate of each model and batch of a grid, from parabolas of one curvature."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from hub.base.errors import InputError
from scaling_law.rates.surface import SAME, Rows, SettingsGrid
from studies.common import FloatArray


class BestRates(NamedTuple):
    """Best rates [n] of a grid: ln LR of `model` at ln `batch` (tokens), with its standard error.

    `curvature` is that of the loss in ln LR, `noise` the scatter of losses about the parabolas, nats.
    """

    model: Rows
    batch: FloatArray
    ln_rate: FloatArray
    error: FloatArray
    curvature: float
    noise: float


def best_rates(grid: SettingsGrid, within: float = 0.03) -> BestRates:
    """Find the best rate at each batch whose best run is `within` nats of its model's, from runs near that run.

    Near are the runs `within` nats of it. Their losses are parabolas in ln LR of one curvature. A batch with one
    such run, or whose minimum lies outside of its runs, is left out. InputError where no curvature is determined.
    """
    batch_step = np.zeros(len(grid.loss))
    if grid.batch is not None:
        batch_step = np.round(np.log(grid.batch) / SAME)
    # A cell of the grid is a model at a batch.
    cells, cell = np.unique(np.stack([grid.model, batch_step]), axis=1, return_inverse=True)
    n_cells = cells.shape[1]
    model = cells[0].astype(np.intp)
    ln_batch = cells[1] * SAME

    least_loss = np.full(n_cells, np.inf)
    np.minimum.at(least_loss, cell, grid.loss)
    is_tuned = least_loss <= grid.loss[grid.best[model]] + within
    is_near = grid.loss <= least_loss[cell] + within
    rows = np.flatnonzero(is_tuned[cell] & is_near)
    fit = _fit_parabolas(grid.ln_rate[rows], grid.loss[rows], cell[rows], n_cells)
    low = np.array([grid.ln_rate[cell == i].min() for i in range(n_cells)])
    high = np.array([grid.ln_rate[cell == i].max() for i in range(n_cells)])

    is_inside = (low <= fit.minimum) & (fit.minimum <= high)
    selected = (fit.runs > 1) & is_inside
    return BestRates(
        model=model[selected],
        batch=ln_batch[selected],
        ln_rate=fit.minimum[selected],
        error=fit.noise / (fit.curvature * np.sqrt(fit.squares[selected])),
        curvature=fit.curvature,
        noise=fit.noise,
    )


class _Parabolas(NamedTuple):
    """Parabolas of one `curvature` through the losses of cells, with their `minimum` [cells] in ln LR.

    A cell has `runs` [cells], whose ln LR have the sum of `squares` [cells] about their mean.
    """

    minimum: FloatArray
    runs: Rows
    squares: FloatArray
    curvature: float
    noise: float


def _fit_parabolas(
    ln_rate: FloatArray,
    loss: FloatArray,
    cell: Rows,
    n_cells: int,
) -> _Parabolas:
    """Fit a parabola in ln LR to the runs of each cell. InputError where no curvature is determined."""
    runs = np.bincount(cell, minlength=n_cells)
    centre = np.bincount(cell, ln_rate, n_cells) / np.maximum(runs, 1)
    x = ln_rate - centre[cell]
    indicators = np.eye(n_cells)[cell]
    design = np.column_stack([x**2 / 2, indicators, indicators * x[:, None]])
    solution, _, rank, _ = np.linalg.lstsq(design, loss, rcond=None)
    curvature = float(solution[0])
    freedom = len(loss) - rank
    if freedom < 1 or curvature <= 0:
        raise InputError("no minimum of the loss over learning rates; more rates or a larger `within` may have one")
    noise = float(np.linalg.norm(loss - design @ solution)) / math.sqrt(freedom)
    return _Parabolas(
        minimum=centre - solution[1 + n_cells :] / curvature,
        runs=runs,
        squares=np.asarray(np.bincount(cell, x**2, n_cells), float),
        curvature=curvature,
        noise=noise,
    )
