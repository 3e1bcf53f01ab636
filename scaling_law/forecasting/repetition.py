"""Forecasts from runs that repeat tokens: laws see tokens and sizes as what they are worth.

One law, Chinchilla's with Muennighoff's terms on all runs, says what that is; then any law forecasts from it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scaling_law.fitting.fitting import FitResult, fit
from scaling_law.fitting.prior import Prior
from scaling_law.fitting.repetition import UNIQUE, unexplained_repetition
from scaling_law.forecasting.forecasters import gain_of_experts
from scaling_law.law import Law
from scaling_law.runs.table import Runs
from scaling_law.size.architecture import is_parameters


def dense(runs: Runs) -> Runs:
    """Make dense runs of these, of any recipe, by the published gain of experts."""
    return replace(runs, experts=np.ones(len(runs)), loss=runs.loss / gain_of_experts(runs), recipe={})


def fit_worth(runs: Runs, prior: Prior | None) -> FitResult[Law]:
    """Fit the law that says what repeated tokens and excess parameters of these runs are worth."""
    return fit(dense(runs), "chinchilla", unique_tokens=UNIQUE, prior=prior)


def count_worth(law: Law, runs: Runs) -> Runs:
    """Count tokens and sizes as what they are worth; tokens without a number of unique ones are unique."""
    unique = runs.columns.get(UNIQUE, runs.tokens)
    sizes = {name: values for name, values in runs.columns.items() if is_parameters(name)}
    variables = {"n_active": runs.n_active, **sizes, "tokens": runs.tokens, "experts": np.ones(len(runs))}
    effective = law.effective(law.columns, variables, unique)
    columns = dict(runs.columns)
    for name in sizes:
        columns[name] = effective[name]
    return replace(runs, n_active=effective["n_active"], tokens=effective["tokens"], columns=columns)


def say_repetition(runs: Runs) -> tuple[str, ...]:
    """Say, with what to type, that the runs repeat tokens and their losses depend on it."""
    if not {UNIQUE, "epochs"} & {*runs.columns}:
        return ()
    try:
        result = fit(dense(runs), "chinchilla")
    except ValueError:
        return ()
    return unexplained_repetition(result.problem, result.theta, runs)
