"""Other models of a step that were tried: what each adds to the rates, and how far it misses labs that are left out.

A trial multiplies the seconds of some terms by exp of coefficients times columns of the rows, which a prior holds near
no difference, or counts what experts receive over the links of a node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress
from typing import NamedTuple

import numpy as np

from scaling_law.machine import GPUS
from scaling_law.machine.efficiency import TERMS
from studies.common import FloatArray
from studies.hours.fit import CENTRE, WIDTH, Table, of_labs, solve
from studies.hours.runs import BATCH_UNKNOWN, Timed

EXPERTS = ("routed_flops", "routing")
# The deviation of ln seconds that the prior gives a coefficient.
PRIOR = 0.3
# GPUs whose links are cut to 400 GB/s in both directions.
CUT_LINKS = ("A800", "H800")
# Experts narrower than this part of d_model are fine.
FINE = 0.5
# Bytes of an element that is sent to an expert and back, forward and backward, in bf16.
SENT_BYTES = 8.0


class Trial(NamedTuple):
    """One change: the columns of a row, the terms that they multiply, and bytes that each routed element sends."""

    name: str
    columns: Callable[[Timed], tuple[float, ...]]
    terms: tuple[str, ...] = EXPERTS
    sent_bytes: float = 0.0


def no_columns(row: Timed) -> tuple[float, ...]:
    """Return no column."""
    return ()


def kind_of_experts(row: Timed) -> tuple[float, ...]:
    """Mark experts of which a token takes one, and fine ones."""
    is_top_1 = row.routed_blocks > 0 and row.experts_per_token == 1
    is_fine = 0 < row.d_expert < FINE * row.d_model
    return float(is_top_1), float(is_fine)


def granularity(row: Timed) -> tuple[float, ...]:
    """Return ln(d_model / width of an expert), 0 where that is unknown."""
    if row.d_expert == 0:
        return (0.0,)
    return (float(np.log(row.d_model / row.d_expert)),)


def has_cut_links(row: Timed) -> tuple[float, ...]:
    """Mark GPUs whose links are cut."""
    return (float(row.gpu in CUT_LINKS),)


TRIALS = (
    Trial("none", no_columns),
    Trial("top-1 and fine experts, a factor each", kind_of_experts),
    Trial("experts by the power of d_model over their width", granularity),
    Trial("H800, a factor on what experts add", has_cut_links),
    Trial("H800, a factor on all", has_cut_links, TERMS),
    Trial("what experts receive, by the links of a node besides", no_columns, sent_bytes=SENT_BYTES),
)


class TrialTable(Table):
    """The columns of rows under a trial; parameters go on with its coefficients."""

    def __init__(self, rows: Sequence[Timed], trial: Trial, batch: float | None = None) -> None:
        super().__init__(rows, batch)
        self.columns = np.array([trial.columns(row) for row in rows])
        self.is_scaled = np.array([name in trial.terms for name in TERMS])
        links = np.array([GPUS[row.gpu].link for row in rows])
        self.sending = trial.sent_bytes * self.work[TERMS.index("routing")] / links

    def terms(self, parameters: FloatArray) -> FloatArray:
        """Compute the seconds of a token by `TERMS`, [4, n]."""
        seconds = super().terms(parameters)
        factor = np.exp(self.columns @ parameters[len(CENTRE) :])
        seconds[self.is_scaled] *= factor
        seconds[TERMS.index("routing")] += self.sending
        return seconds


def misses_of(rows: Sequence[Timed], trial: Trial) -> FloatArray:
    """Predict each row by the fit of a trial to the other labs, as ln(predicted / published) [n]."""
    count = len(trial.columns(rows[0]))
    centre = np.concatenate([CENTRE, np.zeros(count)])
    width = np.concatenate([WIDTH, np.full(count, PRIOR)])
    error = np.empty(len(rows))
    for is_of_lab in of_labs(rows):
        parameters, _ = solve(TrialTable([*compress(rows, ~is_of_lab)], trial), centre, width)
        table = TrialTable([*compress(rows, is_of_lab)], trial, BATCH_UNKNOWN)
        error[is_of_lab] = table.predict(parameters) - table.ln_seconds
    return error
