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

MEAN = "mean of the fitted runs"
JOINT = "ludziejewski"
PRIOR = "ludziejewski as the prior of a fit"
WITH = "ludziejewski, N with embeddings"
REFIT = "refitted"
NO_E = "Chinchilla law without E, refitted"
OTHERS = ("chinchilla", "besiroglu", "muennighoff", "kaplan", "abnar", "hunyuan", "krajewski", "clark_sbase")
DENSE = {"density": 1.0, "granularity": 1.0, "shared_ratio": 0.0, "routed_experts": 1.0, "experts_per_token": 1.0}
SIZES = ("n_active_non_embedding", "n_total", "n_total_non_embedding")
# Where all runs have the same tokens: 1/D is nothing.
NO_TOKENS = {"n": 1.0, "nu": -1.0}


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
        """The name in the page's tables."""
        return f"{self.source}: {self.held_out}"

    @cached_property
    def laws(self) -> Mapping[str, HeldOut]:
        """The forecast of each law; without the laws that these runs cannot determine."""
        forecasters: Mapping[str, Any] = {
            JOINT: published(JOINT),
            PRIOR: _forecast_with_prior,
            REFIT: self.refit,
            NO_E: self._forecast_without_experts,
            MEAN: _forecast_mean,
        }
        forecasts = backtest(without_embeddings(self.train), without_embeddings(self.test), forecasters).laws
        published_laws = {WITH: published(JOINT), **{law: published(law) for law in OTHERS}}
        return {**forecasts, **backtest(self.train, self.test, published_laws).laws}

    def _forecast_without_experts(self, train: Runs, test: Runs) -> FloatArray:
        fixed = NO_TOKENS if self.refit == "routed" else None
        return losses_of(fit(as_dense(train), "chinchilla", fixed=fixed).law, test)


def _forecast_with_prior(train: Runs, test: Runs) -> FloatArray:
    return losses_of(fit(train, prior=JointLaw.published()).law, test)


def _forecast_mean(train: Runs, test: Runs) -> FloatArray:
    return np.full(len(test), train.loss.mean())


def losses_of(law: Law, runs: Runs) -> FloatArray:
    """Return the losses that a law predicts for runs."""
    return np.asarray(runs.loss + errors_of(law, runs))


def join_tables(*tables: Runs) -> Runs:
    """Join tables into one with what laws ask for, NaN where unknown; a dense model is one expert that all use."""
    columns = {}
    for name in (*SIZES, *DENSE):
        columns[name] = np.concatenate([_column(runs, name) for runs in tables])
    columns["active_experts"] = columns["experts_per_token"] / (1.0 - columns["shared_ratio"])
    n, d, e, losses = (
        np.concatenate([runs[name] for runs in tables]) for name in ("n_active", "tokens", "experts", "loss")
    )
    return Runs.from_columns(n, d, e, losses, "run", source=tables[0].source, columns=columns)


def _column(runs: Runs, name: str) -> FloatArray:
    """Return a column of runs; dense runs have the sizes and shares that follow from being dense."""
    values = runs.columns.get(name, np.full(len(runs), np.nan))
    if np.any(runs.experts > 1):
        is_unknown_of_dense = (runs.experts == 1) & np.isnan(values)
        return np.where(is_unknown_of_dense, DENSE.get(name, np.nan), values)
    if name in DENSE:
        return np.full(len(runs), DENSE[name])
    size = runs.n_active if name == "n_total" else runs.columns.get("n_active_non_embedding", values)
    return np.where(np.isnan(values), size, values)


def without_embeddings(runs: Runs) -> Runs:
    """Count N without embedding and head, where that is known of all runs."""
    size = runs.columns.get("n_active_non_embedding", np.array([np.nan]))
    if np.isnan(size).any():
        return runs
    return replace(runs, n_active=size)


def as_dense(runs: Runs) -> Runs:
    """Return the runs as if each were dense."""
    return replace(runs, experts=np.ones(len(runs)))


def pair_with_fewest(runs: Runs) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the rows of the runs with a run of the fewest experts of equal N and D, and the rows of these."""
    has_fewest = runs.experts == runs.experts.min()
    has_same_size = runs.n_active[:, None] == runs.n_active
    has_same_tokens = np.isclose(runs.tokens[:, None], runs.tokens, rtol=0.01)
    is_reference = has_same_size & has_same_tokens & has_fewest
    rows = np.flatnonzero(~has_fewest & is_reference.any(axis=1))
    return rows, is_reference[rows].argmax(axis=1)


def questions(sources: Mapping[str, Source]) -> list[Question]:
    """Return all questions, in the order of the page."""
    return [
        *_step_law_questions(sources["step_law"]),
        *_isoflop_questions(sources["marin"]),
        *_ladder_questions(sources["marin_ladder"]),
        *_chinchilla_questions(sources["epoch"]),
        *_clark_questions(sources["clark"]),
    ]


def _step_law_questions(source: Source) -> list[Question]:
    runs = join_tables(source["dense"], source["moe"])
    return [
        _question("Step Law", "all MoE models", runs, runs.experts > 1),
        _question("Step Law", "longest run of each model", runs, longest_of_each(runs)),
        _question("Step Law", "largest models (above 1B)", runs, runs.n_active > 1e9),
        _question("Step Law", "sparsest model (E = 45)", runs, runs.experts == 45),
        _question("Step Law", "another E (4.5)", runs, runs.experts == 4.5),
    ]


def _isoflop_questions(source: Source) -> list[Question]:
    runs = join_tables(source["isoflop"])
    return [
        _question("Marin, isoFLOP", "budgets from 1e20", runs, source["isoflop"]["budget"] >= 0.99e20),
        _question("Marin, isoFLOP", "widths from 2,048", runs, source["isoflop"]["d_model"] >= 2048),
        _question("Marin, isoFLOP", "runs above 50B tokens", runs, runs.tokens > 50e9),
    ]


def _ladder_questions(source: Source) -> list[Question]:
    runs = join_tables(source["dense"], source["moe"])
    return [_question("Marin, ladder", "all MoE models", runs, runs.experts > 1)]


def _chinchilla_questions(source: Source) -> list[Question]:
    runs = join_tables(source["dense"])
    return [
        _question("Chinchilla", "models above 5B", runs, runs.n_active > 5e9),
        _question("Chinchilla", "runs above 30B tokens", runs, runs.tokens > 30e9),
    ]


def _clark_questions(source: Source) -> list[Question]:
    runs = source["S-Base"]
    return [
        _question("Clark et al., S-Base", "largest models (1.3B)", runs, runs.n_active > 1e9, "routed"),
        _question("Clark et al., S-Base", "sparsest (E from 256)", runs, runs.experts >= 256, "routed"),
        _question("Clark et al., S-Base", "another E (32)", runs, runs.experts == 32, "routed"),
    ]


def _question(source: str, held_out: str, runs: Runs, test: NDArray[np.bool_], refit: str = "joint") -> Question:
    return Question(source, held_out, runs.subset(~test), runs.subset(test), refit)
