"""Forecasts from runs that repeat tokens: laws see tokens and sizes as what they are worth.

One law, Chinchilla's with Muennighoff's terms on all runs, says what that is; then any law forecasts from it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scaling_law.fitting.diagnostics import UNIQUE
from scaling_law.fitting.fitting import FitResult, fit
from scaling_law.fitting.prior import Prior
from scaling_law.fitting.repetition import REPEATED
from scaling_law.law import JointLaw, Law
from scaling_law.runs.table import Runs


def dense(runs: Runs) -> Runs:
    """Make dense runs of these, of any recipe, by the published gain of experts."""
    law = JointLaw.published()
    loss = law.loss(runs.n_active, runs.tokens, runs.experts)
    gain = loss / law.loss(runs.n_active, runs.tokens, 1.0)
    return replace(runs, experts=np.ones(len(runs)), loss=runs.loss / gain, recipe={})


def fit_worth(runs: Runs, prior: Prior | None) -> FitResult[Law]:
    """Fit the law that says what repeated tokens and excess parameters of these runs are worth."""
    return fit(dense(runs), "chinchilla", unique_tokens=UNIQUE, prior=prior)


def say_repetition(runs: Runs) -> tuple[str, ...]:
    """Say, with what to type, that the runs repeat tokens and their losses depend on it."""
    if not {*REPEATED} & {*runs.columns}:
        return ()
    try:
        result = fit(dense(runs), "chinchilla")
    except ValueError:
        return ()
    return tuple(text for text in result.status.omitted if UNIQUE in text)
