"""Forecasts of runs that no fit has seen, by published laws moved by one constant and by refits.

N counts neither embedding nor head for the joint law and refits, where that is known; laws of other papers get N as
each of them counts it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaling_law import HeldOut, JointLaw, Law, Runs, backtest, errors_of, fit, published
from studies.common import FloatArray
from studies.crossing.laws import longest_of_each
from studies.evidence.points import Source

MEAN, JOINT = "mean of the fitted runs", "ludziejewski"
PRIOR, WITH = "ludziejewski as the prior of a fit", "ludziejewski, N with embeddings"
REFIT, NO_E = "refitted", "Chinchilla law without E, refitted"
OTHERS = ("chinchilla", "besiroglu", "muennighoff", "kaplan", "abnar", "hunyuan", "krajewski", "clark_sbase")
DENSE = {"density": 1.0, "granularity": 1.0, "shared_ratio": 0.0, "routed_experts": 1.0, "experts_per_token": 1.0}
SIZES = ("n_active_non_embedding", "n_total", "n_total_non_embedding")
NO_TOKENS = {"n": 1.0, "nu": -1.0}  # where all runs have the same tokens: 1/D is nothing


@dataclass(frozen=True)
class Question:
    """The runs `test` are to be forecast from the runs `train`; `refit` is the form that these can determine."""

    source: str
    held_out: str
    train: Runs
    test: Runs
    refit: str = "joint"

    @property
    def name(self) -> str:
        return f"{self.source}: {self.held_out}"

    @cached_property
    def laws(self) -> Mapping[str, HeldOut]:
        """What each law forecasts; without those that these runs cannot determine."""
        held = NO_TOKENS if self.refit == "routed" else None
        ours: Mapping[str, Any] = {
            JOINT: published(JOINT),
            PRIOR: lambda train, test: losses_of(fit(train, prior=JointLaw.published()).law, test),
            REFIT: self.refit,
            NO_E: lambda train, test: losses_of(fit(as_dense(train), "chinchilla", fixed=held).law, test),
            MEAN: lambda train, test: np.full(len(test), train.loss.mean()),
        }
        theirs = {WITH: published(JOINT), **{law: published(law) for law in OTHERS}}
        bare = backtest(counted(self.train), counted(self.test), ours)
        return {**bare.laws, **backtest(self.train, self.test, theirs).laws}


def losses_of(law: Law, runs: Runs) -> FloatArray:
    return np.asarray(runs.loss + errors_of(law, runs))


def joined(*tables: Runs) -> Runs:
    """One table of all runs with what laws ask for, NaN where unknown; a dense model is one expert that all use."""
    columns = {name: np.concatenate([_column(runs, name) for runs in tables]) for name in (*SIZES, *DENSE)}
    columns["active_experts"] = columns["experts_per_token"] / (1.0 - columns["shared_ratio"])
    n, d, e, losses = (
        np.concatenate([runs[name] for runs in tables]) for name in ("n_active", "tokens", "experts", "loss")
    )
    return Runs.from_columns(n, d, e, losses, "run", source=tables[0].source, columns=columns)


def _column(runs: Runs, name: str) -> FloatArray:
    values = runs.columns.get(name, np.full(len(runs), np.nan))
    if np.any(runs.experts > 1):
        return np.where((runs.experts == 1) & np.isnan(values), DENSE.get(name, np.nan), values)
    if name in DENSE:
        return np.full(len(runs), DENSE[name])
    size = runs.n_active if name == "n_total" else runs.columns.get("n_active_non_embedding", values)
    return np.where(np.isnan(values), size, values)


def counted(runs: Runs) -> Runs:
    """The runs with N counted without embedding and head, where that is known of all."""
    size = runs.columns.get("n_active_non_embedding", np.array([np.nan]))
    return runs if np.isnan(size).any() else replace(runs, n_active=size)


def as_dense(runs: Runs) -> Runs:
    """The runs as if each were dense."""
    return replace(runs, experts=np.ones(len(runs)))


def questions(sources: Mapping[str, Source]) -> list[Question]:
    """All that is held out, in the order of the page."""
    step, marin, ladder, epoch = (sources[name] for name in ("step_law", "marin", "marin_ladder", "epoch"))
    grids, isoflop, dense = joined(step["dense"], step["moe"]), joined(marin["isoflop"]), joined(epoch["dense"])
    routed, both = sources["clark"]["S-Base"], joined(ladder["dense"], ladder["moe"])
    budget, width = marin["isoflop"]["budget"], marin["isoflop"]["d_model"]
    return [
        _question("Step Law", "all MoE models", grids, grids.experts > 1),
        _question("Step Law", "longest run of each model", grids, longest_of_each(grids)),
        _question("Step Law", "largest models (above 1B)", grids, grids.n_active > 1e9),
        _question("Step Law", "sparsest model (E = 45)", grids, grids.experts == 45),
        _question("Step Law", "another E (4.5)", grids, grids.experts == 4.5),
        _question("Marin, isoFLOP", "budgets from 1e20", isoflop, budget >= 0.99e20),
        _question("Marin, isoFLOP", "widths from 2,048", isoflop, width >= 2048),
        _question("Marin, isoFLOP", "runs above 50B tokens", isoflop, isoflop.tokens > 50e9),
        _question("Marin, ladder", "all MoE models", both, both.experts > 1),
        _question("Chinchilla", "models above 5B", dense, dense.n_active > 5e9),
        _question("Chinchilla", "runs above 30B tokens", dense, dense.tokens > 30e9),
        _question("Clark et al., S-Base", "largest models (1.3B)", routed, routed.n_active > 1e9, "routed"),
        _question("Clark et al., S-Base", "sparsest (E from 256)", routed, routed.experts >= 256, "routed"),
        _question("Clark et al., S-Base", "another E (32)", routed, routed.experts == 32, "routed"),
    ]


def _question(source: str, held_out: str, runs: Runs, test: NDArray[np.bool_], refit: str = "joint") -> Question:
    return Question(source, held_out, runs.subset(~test), runs.subset(test), refit)
