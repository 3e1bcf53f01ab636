"""The laws that forecast a sweep's runs as one law, which `optimal`, `plan` and all other questions can ask."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from hub.base.inputs import as_it_is, reads, whole
from scaling_law.fitting.fitting import errors_of
from scaling_law.fitting.holdout import rms
from scaling_law.fitting.prior import Prior
from scaling_law.fitting.repetition import REPEATED, UNIQUE, with_unique_tokens
from scaling_law.forecasting.forecast import learnt, read_table, table_of
from scaling_law.forecasting.forecasters import LADDER, PUBLISHED, VARIABLES, forecasters, gain_of_experts, have
from scaling_law.forecasting.repetition import count_worth, fit_worth
from scaling_law.forecasting.stack import gather, stack
from scaling_law.formulas.law import one_positive
from scaling_law.law import JointLaw, StackLaw
from scaling_law.planning.question import Quantity
from scaling_law.runs.recipes import check_mix, names_mixed

AHEAD = 10.0  # times the largest run's FLOPs, unless said
DRAWS = 400


@reads(seed=whole(), prior=as_it_is)
def stack_laws(
    runs: Any,
    flops: Quantity | None = None,
    *,
    prior: Prior | Literal["public"] | None = "public",
    kinds: str | Collection[str] | None = None,
    seed: int = 0,
    mix: str | Collection[str] = (),
    unique_tokens: str | ArrayLike | None = None,
    epochs: str | ArrayLike | None = None,
) -> StackLaw:
    """The laws that `runs` support as one law, weighed as `forecast` weighs them for a model of this budget.

    Args:
        flops: of training, at which it will be asked (None: ten times the largest run's).
        runs, prior, kinds, seed, mix, unique_tokens, epochs: as in `forecast`.

    Laws of one E alone and ladders are left out; where the runs have several E, Chinchilla laws are of all runs, moved
    to dense by the published gain. Its draws hold the errors of the laws and their disagreement; what `forecast` adds
    for the noise of a new run and for distance they do not. ValueError and RunsError as `forecast`.
    """
    table = read_table(runs)
    check_mix(table.recipe, (), mix, table.source, (*table.columns, *table.texts))
    if counted := not (unique_tokens is None and epochs is None):
        table = with_unique_tokens(table, unique_tokens, epochs)
    doubts, _ = table.doubts({*REPEATED, *names_mixed(mix)})
    table, repetition = table.without_settings(VARIABLES | {UNIQUE}), None
    in_units, defaults, _ = learnt(prior, table)
    measured = table
    if counted:
        of_worth = fit_worth(table, in_units).law
        table, repetition = count_worth(of_worth, table), of_worth.repetition
    largest = int(np.argmax(table.flops))
    ahead = AHEAD if flops is None else one_positive("flops", flops) / float(table.flops[largest])
    usual = float(table.experts[largest])
    at = usual if have(table, usual).all() else 1.0
    dense = replace(table, experts=np.full(len(table), at), loss=table.loss / gain_of_experts(table, at))
    of_models = {name: table[name][[largest]] for name in ("n_active", "tokens", "experts", *table.columns)}
    of_models |= {name: of_models[name] * np.sqrt(ahead) for name in ("n_active", "tokens")}
    candidates = forecasters(table, at, in_units, kinds, seed, alone=False)
    below_zero = JointLaw.published().c < errors_of(JointLaw.published(), table).mean()  # once it is moved
    unfit = (LADDER, PUBLISHED) if below_zero else (LADDER,)
    candidates = {name: law for name, law in candidates.items() if not name.startswith(unfit)}
    evidence = gather(table, table_of(of_models), candidates)
    weights = {name: float(of_law[1, 0]) for name, of_law in stack(evidence, defaults).laws.items()}
    laws = {
        name: (candidates[name].law(dense if "moved" in name else table), weight)
        for name, weight in weights.items()
        if weight > 0
    }
    told = ", ".join(f"{weight:.2f} {name}" for name, weight in weights.items() if weight >= 0.005)
    law = StackLaw.of(laws, DRAWS, seed, experts=at, repetition=repetition)
    thinned = f"; {table.thinned}" if table.thinned else ""
    conditions = measured.conditions(
        f"stacked on {table.source} ({table.loss_name}){thinned}: {told}",
        rmse=rms(errors_of(law, measured)),
        doubts=doubts,
    )
    return law.replace(conditions=conditions)
