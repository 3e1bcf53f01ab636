"""Forecasts of runs that no fit has seen, and of what experts gain, by published laws and by refits.

Losses of different corpora and tokenizers differ by more than a law's form says. So a published law is moved by one
constant, its mean error on the fitted runs, and nothing else of it is refitted. A gain is a difference of losses of
one corpus: there nothing is refitted at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaling_law import FitResult, JointLaw, Runs, errors_of, fit, published
from studies.common import FloatArray, rms
from studies.evidence.points import Source

RESAMPLES, SEED = 2000, 0
MEAN, JOINT, FREED = "mean of the fitted runs", "ludziejewski", "ludziejewski, a, b and c refitted"
WITH = "ludziejewski, N with embeddings"
REFIT, PER_E, NO_E = "refitted", "Chinchilla law per E, refitted", "Chinchilla law without E, refitted"
OTHERS = ("chinchilla", "besiroglu", "muennighoff", "kaplan", "abnar", "hunyuan", "krajewski", "clark_sbase")
BARE = {f"{law}, N without embeddings": law for law in ("chinchilla", "besiroglu", "muennighoff")}
DENSE = {"density": 1.0, "granularity": 1.0, "shared_ratio": 0.0, "routed_experts": 1.0, "experts_per_token": 1.0}
SIZES = ("n_active_non_embedding", "n_total", "n_total_non_embedding")
NO_TOKENS = {"n": 1.0, "nu": -1.0}  # where all runs have the same tokens: 1/D is nothing


@dataclass(frozen=True)
class Forecast:
    """Predicted minus observed loss of the held-out runs [n], nats per token."""

    errors: FloatArray

    @property
    def rmse(self) -> float:
        return rms(self.errors)

    @property
    def bias(self) -> float:
        return float(self.errors.mean())

    @cached_property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the RMSE over resampled held-out runs."""
        drawn = np.random.default_rng(SEED).integers(len(self.errors), size=(RESAMPLES, len(self.errors)))
        low, high = np.quantile(np.sqrt((self.errors[drawn] ** 2).mean(axis=1)), [0.025, 0.975])
        return float(low), float(high)


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

    def ask(self, law: str) -> Forecast | None:
        """What `law` forecasts: a name of the shelf or of a refit; None where these runs cannot determine it.

        Laws of other papers get N as each counts it, but for those of `BARE`; these, the joint law and refits get it
        without embeddings where known.
        """
        asked = self if law in (WITH, *OTHERS) else replace(self, train=counted(self.train), test=counted(self.test))
        try:
            return Forecast(_FORECASTERS[law](asked) if law in _FORECASTERS else moved(BARE.get(law, law), asked))
        except ValueError:
            return None


def moved(law: str, question: Question) -> FloatArray:
    """Errors of a published law, moved by its mean error on the fitted runs."""
    shift = errors_of(published(law), question.train).mean()
    return errors_of(published(law), question.test) - shift


def _mean(question: Question) -> FloatArray:
    return question.train.loss.mean() - question.test.loss


def scales_refitted(runs: Runs) -> FitResult[Any]:
    """The published joint law with a, b and c refitted, as `calibrate` does."""
    law = JointLaw.published()
    held = {name: value for name, value in law.coefficients.items() if name not in ("a", "b", "c")}
    return fit(runs, "joint", fixed=held, starts=[law])


def _freed(question: Question) -> FloatArray:
    return scales_refitted(question.train).errors_on(question.test)


def _refitted(question: Question) -> FloatArray:
    return fit(question.train, question.refit).errors_on(question.test)


def _per_experts(question: Question) -> FloatArray:
    """ValueError where an E has too few fitted runs for a law of its own."""
    errors = np.empty(len(question.test))
    for e in np.unique(question.test.experts):
        own = question.train.subset(question.train.experts == e)
        if not len(own):
            raise ValueError(f"experts={e:g}: no run is fitted")
        held = question.test.experts == e
        errors[held] = _chinchilla(own, question.refit).errors_on(question.test.subset(held))
    return errors


def _without_experts(question: Question) -> FloatArray:
    return _chinchilla(as_dense(question.train), question.refit).errors_on(as_dense(question.test))


def _chinchilla(runs: Runs, refit: str) -> FitResult[Any]:
    return fit(runs, "chinchilla", fixed=NO_TOKENS if refit == "routed" else None)


_FORECASTERS: Mapping[str, Callable[[Question], FloatArray]] = {
    MEAN: _mean,
    WITH: lambda question: moved(JOINT, question),
    FREED: _freed,
    REFIT: _refitted,
    PER_E: _per_experts,
    NO_E: _without_experts,
}


# ------------------------------------------------------------------ tables of runs


def joined(*tables: Runs) -> Runs:
    """One table of all runs with what laws ask for, NaN where unknown; a dense model is one expert that all use."""
    columns = {name: np.concatenate([_known(runs, name) for runs in tables]) for name in (*SIZES, *DENSE)}
    columns["active_experts"] = columns["experts_per_token"] / (1.0 - columns["shared_ratio"])
    n, d, e, losses = (
        np.concatenate([runs[name] for runs in tables]) for name in ("n_active", "tokens", "experts", "loss")
    )
    return Runs.from_columns(n, d, e, losses, "run", source=tables[0].source, columns=columns)


def _known(runs: Runs, name: str) -> FloatArray:
    own = runs.columns.get(name, np.full(len(runs), np.nan))
    if np.any(runs.experts > 1):
        return np.where((runs.experts == 1) & np.isnan(own), DENSE.get(name, np.nan), own)
    if name in DENSE:
        return np.full(len(runs), DENSE[name])
    size = runs.n_active if name == "n_total" else runs.columns.get("n_active_non_embedding", own)
    return np.where(np.isnan(own), size, own)


def counted(runs: Runs) -> Runs:
    """The runs with N counted without embedding and head, where that is known of all."""
    size = runs.columns.get("n_active_non_embedding", np.array([np.nan]))
    return runs if np.isnan(size).any() else replace(runs, n_active=size)


def as_dense(runs: Runs) -> Runs:
    """The runs as if each were dense."""
    return replace(runs, experts=np.ones(len(runs)))


# ------------------------------------------------------------------ what is asked of each source


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


def longest_of_each(runs: Runs) -> NDArray[np.bool_]:
    """The run of most tokens of each N and E, [n]."""
    model = np.unique(np.stack([runs.n_active, runs.experts]), axis=1, return_inverse=True)[1].ravel()
    most = np.zeros(model.max() + 1)
    np.maximum.at(most, model, runs.tokens)
    return np.asarray(runs.tokens == most[model])
