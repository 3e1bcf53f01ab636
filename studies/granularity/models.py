"""What is compared, and what laws and runs say of each comparison.

Models have the same active parameters, and but for the dense one the same total. Both of a pair have the same seed,
and so the same text in the same order. The relative difference of a comparison is the mean over its seeds; pairs of
one D scatter alike, so their variance is pooled over comparisons, and a standard error is that deviation over √seeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

import hub  # lazy
from hub import RecordError, RunRecord
from scaling_law import Architecture, Law, PublishedLaw, laws
from scaling_law.law.describe import unknown_parts
from studies.common import LEVEL, FloatArray, check_texts, pooled_covariance
from studies.crossing.records import BLOCKS, HEAD, VOCABULARY, nominal, read_sweep

D_MODEL, WIDTH = 32, 3 * 32  # of the feed-forward that is active
TOKENS = (1e6, 2e6, 4e6)
SWEEP = "granularity"  # the runs that count; grids of rates have other names
OURS, ROUTED, SHARED = None, "qwen3_moe", "qwen2_moe"  # as `size.model_sections` chooses classes
EITHER = "dots1"  # with or without shared experts, and otherwise the same; balanced by bias
SAME = "takes both for the same model"


@dataclass(frozen=True)
class Contender:
    """A model with its optimizer, and the name of the contender that it is compared with."""

    name: str
    against: str
    architecture: Architecture
    model_type: str | None = OURS
    optimizer: str = "adamw"


def _split(parts: int, shared: int = 0) -> Architecture:
    """E = 8 with each expert split into `parts`, of which as many are active, `shared` of them always."""
    return Architecture(
        *(D_MODEL, 8 * parts - shared, BLOCKS, D_MODEL // HEAD, VOCABULARY),
        experts_per_token=parts - shared,
        d_expert=WIDTH // parts,
        shared_experts=shared,
    )


DENSE, TOP_1, BRIDGE, HALVES, EIGHTHS = "dense", "8, top-1", "8, top-1, Qwen3", "16 halves, top-2", "64 eighths, top-8"
UNSHARED, ONE_SHARED = f"{EIGHTHS}, dots1", "63 eighths, top-7, and 1 shared, dots1"
_DENSE, _TOP_1 = Architecture(D_MODEL, 1, BLOCKS, D_MODEL // HEAD, VOCABULARY), _split(1)

CONTENDERS = (
    Contender(DENSE, TOP_1, _DENSE),
    Contender(BRIDGE, TOP_1, _TOP_1, ROUTED),
    Contender(HALVES, BRIDGE, _split(2), ROUTED),
    Contender(EIGHTHS, BRIDGE, _split(8), ROUTED),
    Contender("15 halves, top-1, and 1 shared", HALVES, _split(2, shared=1), SHARED),
    Contender(UNSHARED, EIGHTHS, _split(8), EITHER),
    Contender(ONE_SHARED, UNSHARED, _split(8, shared=1), EITHER),
    Contender("dense, Muon", DENSE, _DENSE, optimizer="muon"),
    Contender("8, top-1, Muon", TOP_1, _TOP_1, optimizer="muon"),
)
ALL = {contender.name: contender for contender in (Contender(TOP_1, "", _TOP_1), *CONTENDERS)}


# ------------------------------------------------------------------ what laws say


@dataclass(frozen=True)
class Prediction:
    """What one law says of one comparison at D `tokens`.

    `ratio` is the loss over that of the model compared with, which does not depend on the unit, `low` to `high` its
    95 % interval (None: the law has none). `leverage`, of laws that have no loss, is how many times the compute the
    other model needs for the same loss. Both are None where the law cannot say, and `why` says why.
    """

    law: str
    contender: str
    tokens: float
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    leverage: float | None = None
    why: str = ""

    @property
    def is_ahead(self) -> bool:
        """Whether the law has the contender ahead."""
        return self.ratio < 1.0 if self.ratio is not None else (self.leverage or 0.0) > 1.0


def predictions() -> list[Prediction]:
    """Every law of the shelf that answers a loss or a leverage, on every comparison."""
    shelf = [law for law in laws().entries if law.answers in ("loss", "leverage")]
    return [_said(law, contender, tokens) for law in shelf for contender in CONTENDERS for tokens in TOKENS]


def _said(entry: PublishedLaw, contender: Contender, tokens: float) -> Prediction:
    other, said = ALL[contender.against], Prediction(entry.name, contender.name, tokens)
    if contender.optimizer != other.optimizer:
        return replace(said, why="has no optimizer among its variables")
    if not entry.published:
        return replace(said, why="its coefficients are not public")
    pair = (contender.architecture, other.architecture)
    if entry.answers == "leverage":
        assert entry.coefficients is not None
        one, two = (_leverage(entry.coefficients, architecture, tokens) for architecture in pair)
        return replace(said, why=SAME) if one == two else replace(said, leverage=one / two)
    law = entry.law()
    if why := _cannot_say(law, *pair):
        return replace(said, why=why)
    every = [architecture.variables() | {"tokens": tokens} for architecture in pair]
    first, second = ({name: variables[name] for name in law.variables} for variables in every)
    said = replace(said, ratio=float(law.loss(**first) / law.loss(**second)))
    if law.draws is None:
        return said
    low, high = map(float, np.quantile(law.loss_draws(**first) / law.loss_draws(**second), LEVEL))
    return replace(said, low=low, high=high)


def _cannot_say(law: Law, one: Architecture, two: Architecture) -> str:
    """Why a law has no ratio of these two; "" if it has."""
    if unknown := unknown_parts(one, law) or unknown_parts(two, law):
        return f"ignores {', '.join(unknown)}"
    first, second = ({name: a.variables().get(name) for name in law.variables} for a in (one, two))
    if first == second:
        return SAME
    low, high = law.conditions.fitted_limits().get("E", (0.0, 1.0)) if law.conditions else (0.0, 1.0)
    if low == high and one.experts_equivalent != two.experts_equivalent:
        return f"was fitted at E = {low:g} alone"
    return ""


def _leverage(coefficients: Mapping[str, float], a: Architecture, tokens: float) -> float:
    """Return the leverage over a dense model; FLOPs are those without embeddings, and G = 2 d_model / d_expert."""
    if a.experts == 1:
        return 1.0
    flops = 6.0 * a.n_active_non_embedding * tokens
    granularity = 2.0 * a.d_model / a.d_expert
    return float(efficiency_leverage(coefficients, 1.0 / a.experts_equivalent, granularity, flops))


def efficiency_leverage(
    coefficients: Mapping[str, float], activation_ratio: ArrayLike, granularity: ArrayLike, flops: ArrayLike
) -> FloatArray:
    """Return the compute of a dense model over that of the MoE of equal loss (Tian et al. 2025, Eq. 13); broadcasts.

    EL = Â^(α + γ (log₂ G)² + β log₂ G) with α = a + d log₁₀ C and 1/Â = 1/(A + (1/A_start − 1/A_max)⁻¹) + 1/A_max, for
    the active part A of the experts and C non-embedding FLOPs. The paper states no bases of the logarithms; only these
    give both EL > 7 at A = 3.1 %, G = 12, C = 1e22 and a best G of about 12, as it prints.
    """
    a_start, a_max = coefficients["a_start"], coefficients["a_max"]
    inner = np.asarray(activation_ratio, float) + 1.0 / (1.0 / a_start - 1.0 / a_max)
    log_a = -np.log(1.0 / inner + 1.0 / a_max)
    log_g = np.log2(granularity)
    alpha = coefficients["a"] + coefficients["d"] * np.log10(flops)
    return np.asarray(np.exp(log_a * (alpha + coefficients["gamma"] * log_g**2 + coefficients["beta"] * log_g)))


# ------------------------------------------------------------------ what was measured


@dataclass(frozen=True)
class Measures:
    """Held-out losses of each contender [seeds, k] at the D of `TOKENS`, nats per byte, NaN where there is no run."""

    losses: Mapping[str, FloatArray]

    @cached_property
    def pairs(self) -> dict[str, FloatArray]:
        """Each contender's losses over those of the one that it is compared with, minus 1, [seeds, k]."""
        return {c.name: self.losses[c.name] / self.losses[c.against] - 1.0 for c in CONTENDERS}

    @cached_property
    def scatter(self) -> tuple[FloatArray, FloatArray]:
        """Standard deviation of the relative difference of a single pair at each of `TOKENS`, and its freedom."""
        covariance, freedom = pooled_covariance([*self.pairs.values()])
        return np.sqrt(np.diag(covariance)), freedom

    @cached_property
    def differences(self) -> dict[str, FloatArray]:
        """Mean, standard error and number of each comparison's pairs, [3, k]; NaN without a pair or repeated seeds."""
        counts = {name: np.isfinite(pairs).sum(axis=0).astype(float) for name, pairs in self.pairs.items()}
        with np.errstate(divide="ignore", invalid="ignore"):
            return {
                name: np.stack([np.nansum(self.pairs[name], axis=0) / n, self.scatter[0] / np.sqrt(n), n])
                for name, n in counts.items()
            }


def read_measures(path: Path, crossing: Path) -> Measures:
    """Measures from the records of this experiment and, for our dense and top-1 models by AdamW, from the crossing's.

    RecordError for a run of no contender, and for runs on another held-out text.
    """
    records, theirs = hub.load_records(path), hub.load_records(crossing)
    check_texts([*records, *theirs])
    own = read_sweep(theirs).counted
    rows = [
        ({1: DENSE, 8: TOP_1}[int(e)], t, int(seed), loss)
        for d, e, t, seed, loss in zip(own["d_model"], own.experts, own.tokens, own["seed"], own.loss, strict=True)
        if d == D_MODEL and e in (1, 8)
    ]
    named = [(_contender_of(record).name, record) for record in records]
    rows += [
        (name, nominal(record.tokens), record.seed or 0, float(record.eval_loss or np.nan))
        for name, record in named
        if record.sweep == SWEEP
    ]
    losses = {name: np.full((1 + max(seed for *_, seed, _ in rows), len(TOKENS)), np.nan) for name in ALL}
    for name, tokens, seed, loss in rows:
        if tokens in TOKENS:
            losses[name][seed, TOKENS.index(tokens)] = loss
    return Measures(losses)


def _contender_of(record: RunRecord) -> Contender:
    """The contender with the class, experts and optimizer of the record."""
    for contender in ALL.values():
        a, ours = contender.architecture, contender.model_type is OURS
        shape = (a.experts, *((None,) * 3 if ours else (a.experts_per_token, a.d_expert, a.shared_experts)))
        expected = (contender.model_type, contender.optimizer, D_MODEL, *shape)
        fine = (record.experts, record.experts_per_token, record.d_expert, record.shared_experts)
        if expected == (record.model_type, record.optimizer.name, record.d_model, *fine):
            return contender
    raise RecordError(f"{record.run_id}: a model or an optimizer of no comparison")
