"""Rates of GPUs fitted to public runs, and how far they miss the runs of labs that were left out.

The parameters of `scaling_law.machine.efficiency`, by robust least squares on ln seconds of a token. Rows of one cell
(a lab, model, GPU and precision) share its weight, and a lab's weight grows with the root of its cells: many timings
by one lab are one code base. A weak prior holds what few rows say anything of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares, nnls

from scaling_law import Throughput
from scaling_law.machine import GPUS, Efficiency
from scaling_law.machine.efficiency import PARAMETERS, SMALL, TERMS, rates
from scaling_law.machine.layout import MEGATRON, Layouts
from scaling_law.size import BatchRamp, RampStage, draw_normal
from studies.common import FloatArray
from studies.hours.runs import BATCH_UNKNOWN, Timed, seconds

# The prior, in the order of PARAMETERS.
CENTRE = np.array([*np.log([1.6, 1.0, 60.0, 60.0, 0.6, 0.45]), -0.3, 0.04, 0.06])
WIDTH = np.array([0.3, 0.7, 1.0, 1.0, 0.2, 0.2, 0.3, 0.05, 0.05])
# The deviation of ln seconds beyond which a row counts less.
NOISE = 0.25


class Table:
    """The columns [n] of rows that the fit reads.

    With `batch` tokens, where none are published, rows are predicted with the fastest layout of an engine.
    """

    def __init__(self, rows: Sequence[Timed], batch: float | None = None) -> None:
        sheets = [GPUS[row.gpu] for row in rows]
        work_of_rows = []
        for row in rows:
            work = row.work
            work_of_rows.append([float(work[term]) for term in TERMS])
        self.work = np.array(work_of_rows).T
        self.gpu = np.array([[sheet.peak_flops, sheet.bandwidth] for sheet in sheets]).T
        flags = []
        for row in rows:
            is_balanced = row.routing == "forced" or (row.kind == "run" and row.routed_blocks > 0)
            flags.append((row.precision == "fp8", row.precision == "fp4", is_balanced))
        self.flags = np.array(flags, float).T
        nodes = [max(row.gpus / sheet.node, 1.0) for row, sheet in zip(rows, sheets, strict=True)]
        self.ln_nodes = np.log(nodes)
        self.is_whole_run = np.array([row.kind == "run" for row in rows], float)
        self.ln_seconds = np.log(seconds(rows))
        self.weight = weights(rows)
        layouts = [fastest_layout(row, batch) if batch else (1.0, 0.0) for row in rows]
        self.compute_factor, self.sending_seconds = np.array(layouts).T
        sizes = np.array([row.n_multiplied for row in rows])
        self.smallness = np.log(np.maximum(SMALL / sizes, 1.0))

    def terms(self, parameters: FloatArray) -> FloatArray:
        """Compute the seconds of a token by `TERMS`, [4, n], without a layout."""
        return np.array(rates(parameters, *self.gpu, *self.flags)) * self.work

    def predict(self, parameters: FloatArray) -> FloatArray:
        """Predict ln seconds of a token on one GPU."""
        growth, overhead = parameters[[PARAMETERS.index("growth"), PARAMETERS.index("overhead")]]
        step_seconds = self.terms(parameters).sum(axis=0)
        computing_seconds = step_seconds * self.compute_factor * np.exp(growth * self.ln_nodes)
        slowest = np.maximum(computing_seconds, self.sending_seconds)
        return np.asarray(np.log(slowest) + overhead * self.is_whole_run * self.ln_nodes)


@cache
def fastest_layout(row: Timed, batch: float) -> tuple[float, float]:
    """Find the fastest layout of a Megatron-like engine, by the rates of the prior, which no row decides.

    Returns:
        The factor by which it multiplies compute, and the seconds that it sends for a token. (1, 0) where a layout is
        published or the heads are unknown.
    """
    if row.has_layout or not row.n_heads:
        return 1.0, 0.0
    gpu = GPUS[row.gpu]
    prior = Efficiency(CENTRE, np.zeros((9, 9)), np.zeros(5), 0, 0)
    throughput = Throughput(
        gpu.name,
        seconds=prior.seconds(gpu, row.precision),
        is_assumed=True,
        node=gpu.node,
        growth=prior.growth,
        precision=row.precision,
        memory_bytes=gpu.memory_bytes,
    )
    sequences = row.batch(batch)
    ramp = BatchRamp([RampStage(0, sequences)], row.sequence_length)
    layouts = Layouts(row.gpus, throughput, ramp, MEGATRON)
    placement = layouts.place(row.architecture)
    # The memory of a GPU of the table is known.
    assert placement is not None
    computing, sending = (sum(side.values()) for side in placement.sides)
    compute_factor = computing / layouts.compute(row.architecture, sequences)
    return float(compute_factor), sending * row.gpus / (sequences * row.sequence_length)


def weights(rows: Sequence[Timed]) -> FloatArray:
    """Return the root weights of the rows, [n]."""
    rows_of_cell = Counter(row.cell for row in rows)
    cells_of_lab = Counter(lab for lab, *_ in rows_of_cell)
    return np.array([rows_of_cell[row.cell] ** -0.5 * cells_of_lab[row.lab] ** -0.25 for row in rows])


def fit_rates(rows: Sequence[Timed]) -> tuple[FloatArray, FloatArray]:
    """Fit the parameters [9], and return them with their covariance [9, 9]."""
    return _fit_rates(tuple(rows))


# Leaving out two labs asks for the same fit twice, once for either order.
@cache
def _fit_rates(rows: tuple[Timed, ...]) -> tuple[FloatArray, FloatArray]:
    return solve(Table(rows), CENTRE, WIDTH)


def solve(table: Table, centre: FloatArray, width: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Fit the parameters of a table under a prior, and return them with their covariance."""

    def residuals(parameters: Any) -> FloatArray:
        errors = (table.predict(parameters) - table.ln_seconds) * table.weight / NOISE
        return np.concatenate([errors, (parameters - centre) / width])

    solution = least_squares(residuals, centre, loss="soft_l1")
    return solution.x, np.linalg.inv(solution.jac.T @ solution.jac)


def misses(rows: Sequence[Timed]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Predict each row by the fit to the other labs.

    Returns:
        ln(predicted / published) of each row [n], its `shares` [n, 5], and the standard deviation of ln seconds by
        the covariance of that fit [n].
    """
    error = np.empty(len(rows))
    width = np.empty(len(rows))
    row_shares = np.empty((len(rows), 5))
    for is_of_lab in of_labs(rows):
        parameters, covariance = fit_rates([*compress(rows, ~is_of_lab)])
        table = Table([*compress(rows, is_of_lab)], BATCH_UNKNOWN)
        draws = draw_normal(parameters, covariance, 200)
        error[is_of_lab] = table.predict(parameters) - table.ln_seconds
        width[is_of_lab] = np.std([table.predict(draw) for draw in draws], axis=0)
        row_shares[is_of_lab] = shares(table, parameters)
    return error, row_shares, width


def leave_labs_out(rows: Sequence[Timed]) -> tuple[FloatArray, FloatArray]:
    """Predict each row by the fit to the other labs.

    Returns:
        ln(predicted / published) [n] and the standard deviation foreseen [n], which holds the covariance of that fit
        and the spread between those labs.
    """
    error, row_shares, width = misses(rows)
    for is_of_lab in of_labs(rows):
        between = spreads([*compress(rows, ~is_of_lab)])
        spread_between_labs = np.sqrt(row_shares[is_of_lab] ** 2 @ between**2)
        width[is_of_lab] = np.hypot(width[is_of_lab], spread_between_labs)
    return error, width


def of_labs(rows: Sequence[Timed]) -> list[NDArray[np.bool_]]:
    """Return the masks [n] of each lab's rows."""
    labs = np.array([row.lab for row in rows])
    return [labs == lab for lab in np.unique(labs)]


def shares(table: Table, parameters: FloatArray) -> FloatArray:
    """Return what varies with a lab, [n, 5]: all, activations and what experts add, by their part of the seconds.

    Then ln(`SMALL` / parameters) of smaller models, and 1 for a whole run.
    """
    seconds_of_terms = table.terms(parameters)
    _, routed_flops, activations, routing = seconds_of_terms / seconds_of_terms.sum(axis=0)
    columns = [
        np.ones(len(activations)),
        activations,
        routed_flops + routing,
        table.smallness,
        table.is_whole_run,
    ]
    return np.stack(columns, axis=1)


def spreads(rows: Sequence[Timed]) -> FloatArray:
    """Estimate the standard deviations [5] of ln seconds between labs, one for each of `shares`.

    Their squares, times the squared shares, are nearest to the squared misses.
    """
    error, row_shares, _ = misses(rows)
    weight = weights(rows)
    variances, _ = nnls(row_shares**2 * weight[:, None], error**2 * weight)
    return np.asarray(np.sqrt(variances))


def efficiency_of(rows: Sequence[Timed]) -> Efficiency:
    """Fit all rows, as the library ships it."""
    parameters, covariance = fit_rates(rows)
    labs = {row.lab for row in rows}
    return Efficiency(parameters, covariance, spreads(rows), len(rows), len(labs))
