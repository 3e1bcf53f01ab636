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
from scaling_law.machine.efficiency import SMALL, TERMS, rates
from scaling_law.machine.layout import MEGATRON, Layouts
from scaling_law.size import BatchRamp, RampStage
from studies.common import FloatArray
from studies.hours.runs import BATCH_UNKNOWN, Timed, seconds

CENTRE = np.array([*np.log([1.6, 1.0, 60.0, 60.0, 0.6, 0.45]), -0.3, 0.04, 0.06])  # in the order of PARAMETERS
WIDTH = np.array([0.3, 0.7, 1.0, 1.0, 0.2, 0.2, 0.3, 0.05, 0.05])
NOISE = 0.25  # of ln seconds, beyond which a row counts less


class Table:
    """What the fit reads of rows, as arrays [n].

    With `batch` tokens, where none are published, rows are predicted with the layout that is `searched`.
    """

    def __init__(self, rows: Sequence[Timed], batch: float | None = None) -> None:
        sheets = [GPUS[row.gpu] for row in rows]
        self.work = np.array([[float(row.work[term]) for term in TERMS] for row in rows]).T
        self.gpu = np.array([[sheet.peak_flops, sheet.bandwidth] for sheet in sheets]).T
        flags = [(row.precision == "fp8", row.precision == "fp4", row.routing == "forced") for row in rows]
        self.flags = np.array(flags, float).T
        nodes = [max(row.gpus / sheet.node, 1.0) for row, sheet in zip(rows, sheets, strict=True)]
        self.nodes, self.whole = np.log(nodes), np.array([row.kind == "run" for row in rows], float)
        self.seconds, self.weight = np.log(seconds(rows)), weights(rows)
        self.slower, self.sent = np.array([searched(row, batch) if batch else (1.0, 0.0) for row in rows]).T
        self.small = np.log(np.maximum(SMALL / np.array([row.n_multiplied for row in rows]), 1.0))

    def predicted(self, parameters: FloatArray) -> FloatArray:
        """ln seconds of a token on one GPU."""
        *_, growth, overhead = parameters
        terms = rates(parameters, *self.gpu, *self.flags)
        steps = sum(rate * work for rate, work in zip(terms, self.work, strict=True))
        steps = np.maximum(steps * self.slower * np.exp(growth * self.nodes), self.sent)
        return np.asarray(np.log(steps) + overhead * self.whole * self.nodes)


@cache
def searched(row: Timed, batch: float) -> tuple[float, float]:
    """What the fastest layout of a Megatron-like engine multiplies compute by, and sends for a token, in seconds.

    Found by the rates of the prior, which no row decides. (1, 0) where a layout is published or the heads are unknown.
    """
    if row.has_layout or not row.n_heads:
        return 1.0, 0.0
    gpu, fit = GPUS[row.gpu], Efficiency(CENTRE, np.zeros((9, 9)), np.zeros(5), 0, 0)
    about: dict[str, Any] = {"is_assumed": True, "node": gpu.node, "growth": fit.growth}
    about |= {"precision": row.precision, "memory_bytes": gpu.memory_bytes}
    throughput = Throughput(gpu.name, seconds=fit.seconds(gpu, row.precision), **about)
    sequences = row.batch(batch)
    layouts = Layouts(row.gpus, throughput, BatchRamp([RampStage(0, sequences)], row.sequence_length), MEGATRON)
    placed = layouts.place(row.architecture)
    assert placed is not None  # the memory of a listed GPU is known
    computing, sending = (sum(side.values()) for side in placed.sides)
    slower = computing / layouts.compute(row.architecture, sequences)
    return float(slower), sending * row.gpus / (sequences * row.sequence_length)


def weights(rows: Sequence[Timed]) -> FloatArray:
    """Root weights of the rows, [n]."""
    in_cell = Counter(row.cell for row in rows)
    cells = Counter(lab for lab, *_ in in_cell)
    return np.array([in_cell[row.cell] ** -0.5 * cells[row.lab] ** -0.25 for row in rows])


def fitted(rows: Sequence[Timed]) -> tuple[FloatArray, FloatArray]:
    """The parameters [9] and their covariance [9, 9]."""
    return _fitted(tuple(rows))


# Leaving out two labs asks for the same fit twice, once for either order.
@cache
def _fitted(rows: tuple[Timed, ...]) -> tuple[FloatArray, FloatArray]:
    table = Table(rows)

    def residuals(parameters: Any) -> FloatArray:
        off = (table.predicted(parameters) - table.seconds) * table.weight / NOISE
        return np.concatenate([off, (parameters - CENTRE) / WIDTH])

    solution = least_squares(residuals, CENTRE, loss="soft_l1")
    return solution.x, np.linalg.inv(solution.jac.T @ solution.jac)


def misses(rows: Sequence[Timed]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """ln(predicted / published) of each row by the fit to the other labs, [n], with `shares` [n, 5].

    The third are standard deviations of ln seconds by that fit's covariance, [n].
    """
    error, width, parts = np.empty(len(rows)), np.empty(len(rows)), np.empty((len(rows), 5))
    for out in of_labs(rows):
        parameters, covariance = fitted([*compress(rows, ~out)])
        table = Table([*compress(rows, out)], BATCH_UNKNOWN)
        drawn = np.random.default_rng(0).multivariate_normal(parameters, covariance, 200)
        error[out] = table.predicted(parameters) - table.seconds
        width[out] = np.std([table.predicted(p) for p in drawn], axis=0)
        parts[out] = shares(table, parameters)
    return error, parts, width


def left_out(rows: Sequence[Timed]) -> tuple[FloatArray, FloatArray]:
    """ln(predicted / published) of each row by the fit to the other labs, [n], and the standard deviation foreseen.

    It holds the covariance of that fit and the spread between those labs.
    """
    error, parts, width = misses(rows)
    for out in of_labs(rows):
        between = spreads([*compress(rows, ~out)])
        width[out] = np.hypot(width[out], np.sqrt(parts[out] ** 2 @ between**2))
    return error, width


def of_labs(rows: Sequence[Timed]) -> list[NDArray[np.bool_]]:
    """Masks [n] of each lab's rows."""
    labs = np.array([row.lab for row in rows])
    return [labs == lab for lab in np.unique(labs)]


def shares(table: Table, parameters: FloatArray) -> FloatArray:
    """What varies with a lab, [n, 5]: all, activations and what experts add, by their part of the seconds.

    Then ln(`SMALL` / parameters) of smaller models, and 1 for a whole run.
    """
    parts = np.array(rates(parameters, *table.gpu, *table.flags)) * table.work
    _, routed_flops, activations, routing = parts / parts.sum(axis=0)
    return np.stack([np.ones(len(activations)), activations, routed_flops + routing, table.small, table.whole], axis=1)


def spreads(rows: Sequence[Timed]) -> FloatArray:
    """Standard deviations [5] of ln seconds between labs: of all terms together, and more of some, as in `shares`.

    Those whose squares, times the squared shares, are nearest to the squared misses.
    """
    (error, parts, _), weight = misses(rows), weights(rows)
    return np.asarray(np.sqrt(nnls(parts**2 * weight[:, None], error**2 * weight)[0]))


def efficiency_of(rows: Sequence[Timed]) -> Efficiency:
    """The fit to all rows, as the library ships it."""
    parameters, covariance = fitted(rows)
    cells = {row.cell for row in rows}
    return Efficiency(parameters, covariance, spreads(rows), len(rows), len({lab for lab, *_ in cells}))
