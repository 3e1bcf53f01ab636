"""The laws that forecast a sweep's runs as one law, which `optimal`, `plan` and all other questions can ask."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from hub.base.fields import UNREAD, Whole, reads
from scaling_law.fitting.diagnostics import UNIQUE
from scaling_law.fitting.fitting import errors_of
from scaling_law.fitting.holdout import rms
from scaling_law.fitting.prior import Prior
from scaling_law.fitting.repetition import REPEATED, count_worth, with_unique_tokens
from scaling_law.forecasting.forecast import read_table, table_of, update_prior
from scaling_law.forecasting.forecasters import (
    LADDER,
    PUBLISHED,
    columns_of_laws,
    forecasters,
    gain_of_experts,
    match_experts,
)
from scaling_law.forecasting.repetition import fit_worth
from scaling_law.forecasting.stack import gather, stack
from scaling_law.formulas.law import one_positive
from scaling_law.law import JointLaw, StackLaw
from scaling_law.planning.question import Flops
from scaling_law.runs.recipes import check_mix, names_mixed
from scaling_law.runs.table import Runs
from scaling_law.size.arrays import first_largest

# The law is asked at this many times the largest run's FLOPs, unless a budget is given.
AHEAD = 10.0
DRAWS = 400


@reads
def stack_laws(
    runs: Any,
    flops: Flops | None = None,
    *,
    prior: Annotated[Prior | Literal["public"] | None, UNREAD] = "public",
    kinds: str | Collection[str] | None = None,
    seed: Whole = 0,
    mix: str | Collection[str] = (),
    unique_tokens: str | ArrayLike | None = None,
) -> StackLaw:
    """Stack the laws that `runs` support into one law, weighed as `forecast` weighs them for a model of this budget.

    Args:
        flops: of training, at which it will be asked (None: ten times the largest run's).
        runs, prior, kinds, seed, mix, unique_tokens: as in `forecast`.

    Its N is `n_active`, however else runs count it. Laws of one E alone and ladders are left out; where the runs have
    several E, Chinchilla laws are of all runs, moved to dense by the published gain. Its draws hold the errors of the
    laws and their disagreement; what `forecast` adds for the noise of a new run and for distance they do not.
    ValueError and RunsError as `forecast`.
    """
    table = read_table(runs)
    check_mix(table.recipe, (), mix, table.source, (*table.columns, *table.texts))
    counts_repetition = unique_tokens is not None
    if counts_repetition:
        table = with_unique_tokens(table, unique_tokens)
    doubts, _ = table.doubts({*REPEATED, *names_mixed(mix)})
    table = table.without_settings(columns_of_laws() | {UNIQUE})
    prior_in_units, defaults, _ = update_prior(prior, table)
    # Laws are fitted to tokens and sizes as what they are worth, if that is counted.
    fitted_table = table
    repetition = None
    if counts_repetition:
        worth_law = fit_worth(table, prior_in_units).law
        fitted_table = count_worth(worth_law, table)
        repetition = worth_law.repetition

    largest = int(first_largest(fitted_table.flops))
    ahead = AHEAD
    if flops is not None:
        ahead = one_positive("flops", flops) / float(fitted_table.flops[largest])
    experts_of_largest = float(fitted_table.experts[largest])
    experts = experts_of_largest if match_experts(fitted_table, experts_of_largest).all() else 1.0
    candidates = forecasters(fitted_table, experts, prior_in_units, kinds, seed, alone=False)
    silent_laws = _silent_laws(fitted_table)
    candidates = {name: law for name, law in candidates.items() if not name.startswith(silent_laws)}
    evidence = gather(fitted_table, _scale_up(fitted_table, largest, ahead), candidates)
    weights = {name: float(values[1, 0]) for name, values in stack(evidence, defaults).laws.items()}
    dense_table = replace(
        fitted_table,
        experts=np.full(len(table), experts),
        loss=fitted_table.loss / gain_of_experts(fitted_table, experts),
    )
    laws = {}
    for name, weight in weights.items():
        if weight > 0:
            laws[name] = (candidates[name].law(dense_table if "moved" in name else fitted_table), weight)
    law = StackLaw.of(laws, DRAWS, seed, experts=experts, repetition=repetition)

    shares = ", ".join(f"{weight:.2f} {name}" for name, weight in weights.items() if weight >= 0.005)
    thinned = f"; {table.thinned}" if table.thinned else ""
    conditions = table.conditions(
        f"stacked on {table.source} ({table.loss_name}){thinned}: {shares}",
        rmse=rms(errors_of(law, table)),
        doubts=doubts,
    )
    return law.replace(conditions=conditions)


def _silent_laws(runs: Runs) -> tuple[str, ...]:
    """Return the names with which laws begin that cannot be asked about any model."""
    published = JointLaw.published()
    # The published law is moved by its mean error, which may leave a constant below zero.
    if published.c < errors_of(published, runs).mean():
        return (LADDER, PUBLISHED)
    return (LADDER,)


def _scale_up(
    runs: Runs,
    row: int,
    factor: float,
) -> Runs:
    """Return a model of `factor` times the FLOPs of a run, with N and D grown alike."""
    columns = {name: runs[name][[row]] for name in ("n_active", "tokens", "experts", *runs.columns)}
    for name in ("n_active", "tokens"):
        columns[name] = columns[name] * np.sqrt(factor)
    return table_of(columns)
