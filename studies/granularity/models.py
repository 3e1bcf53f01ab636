"""The models that are compared, and what laws and runs say of each comparison.

Models have the same active parameters, and but for the dense one the same total. Both of a pair have the same seed,
and so the same text in the same order. The relative difference of a comparison is the mean over its seeds; pairs of
one D scatter alike, so their variance is pooled over comparisons, and a standard error is that deviation over √seeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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

D_MODEL = 32
# The width of the feed-forward that is active.
WIDTH = 3 * D_MODEL
TOKENS = (1e6, 2e6, 4e6)
# The sweep of the runs that count; grids of rates have other names.
SWEEP = "granularity"
# Model types, as `size.model_sections` chooses classes.
OURS = None
ROUTED = "qwen3_moe"
SHARED = "qwen2_moe"
# A class with or without shared experts, and otherwise the same; balanced by bias.
EITHER = "dots1"
SAME = "takes both for the same model"


@dataclass(frozen=True)
class Contender:
    """A model with its optimizer, and the name of the contender that it is compared with."""

    name: str
    against: str
    architecture: Architecture
    model_type: str | None = OURS
    optimizer: str = "adamw"


def _split_experts(pieces: int, shared: int = 0) -> Architecture:
    """Split each of 8 experts into pieces, and make as many of all pieces active, `shared` of them always."""
    return Architecture(
        D_MODEL,
        8 * pieces - shared,
        BLOCKS,
        D_MODEL // HEAD,
        VOCABULARY,
        experts_per_token=pieces - shared,
        d_expert=WIDTH // pieces,
        shared_experts=shared,
    )


DENSE = "dense"
TOP_1 = "8, top-1"
BRIDGE = "8, top-1, Qwen3"
HALVES = "16 halves, top-2"
EIGHTHS = "64 eighths, top-8"
UNSHARED = f"{EIGHTHS}, dots1"
ONE_SHARED = "63 eighths, top-7, and 1 shared, dots1"
_DENSE = Architecture(D_MODEL, 1, BLOCKS, D_MODEL // HEAD, VOCABULARY)
_TOP_1 = _split_experts(1)

CONTENDERS = (
    Contender(DENSE, TOP_1, _DENSE),
    Contender(BRIDGE, TOP_1, _TOP_1, ROUTED),
    Contender(HALVES, BRIDGE, _split_experts(2), ROUTED),
    Contender(EIGHTHS, BRIDGE, _split_experts(8), ROUTED),
    Contender("15 halves, top-1, and 1 shared", HALVES, _split_experts(2, shared=1), SHARED),
    Contender(UNSHARED, EIGHTHS, _split_experts(8), EITHER),
    Contender(ONE_SHARED, UNSHARED, _split_experts(8, shared=1), EITHER),
    Contender("dense, Muon", DENSE, _DENSE, optimizer="muon"),
    Contender("8, top-1, Muon", TOP_1, _TOP_1, optimizer="muon"),
)
ALL = {contender.name: contender for contender in (Contender(TOP_1, "", _TOP_1), *CONTENDERS)}


# ------------------------------------------------------------------ what laws say


@dataclass(frozen=True)
class Prediction:
    """The answer of one law to one comparison at D `tokens`.

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
        """True if the law has the contender ahead."""
        if self.ratio is not None:
            return self.ratio < 1.0
        return (self.leverage or 0.0) > 1.0


def predictions() -> list[Prediction]:
    """Ask every law of the shelf that answers a loss or a leverage about every comparison."""
    rows = []
    for law in laws().entries:
        if law.answers not in ("loss", "leverage"):
            continue
        for contender in CONTENDERS:
            rows += [_predict(law, contender, tokens) for tokens in TOKENS]
    return rows


def _predict(entry: PublishedLaw, contender: Contender, tokens: float) -> Prediction:
    """Ask a published law about a comparison at one D."""
    reference = ALL[contender.against]
    unknown = Prediction(entry.name, contender.name, tokens)
    if contender.optimizer != reference.optimizer:
        return replace(unknown, why="has no optimizer among its variables")
    if not entry.published:
        return replace(unknown, why="its coefficients are not public")
    if entry.answers == "leverage":
        assert entry.coefficients is not None
        leverage = _leverage(entry.coefficients, contender.architecture, tokens)
        reference_leverage = _leverage(entry.coefficients, reference.architecture, tokens)
        if leverage == reference_leverage:
            return replace(unknown, why=SAME)
        return replace(unknown, leverage=leverage / reference_leverage)
    law = entry.law()
    why = _why_no_ratio(law, contender.architecture, reference.architecture)
    if why:
        return replace(unknown, why=why)
    inputs = _law_inputs(law, contender.architecture, tokens)
    reference_inputs = _law_inputs(law, reference.architecture, tokens)
    prediction = replace(unknown, ratio=float(law.loss(**inputs) / law.loss(**reference_inputs)))
    if law.draws is None:
        return prediction
    # The predictions were made of the coefficients alone.
    refits = law.replace(conditions=None)
    draws = refits.loss_draws(**inputs) / refits.loss_draws(**reference_inputs)
    low, high = map(float, np.quantile(draws, LEVEL))
    return replace(prediction, low=low, high=high)


def _law_inputs(law: Law, architecture: Architecture, tokens: float) -> dict[str, float]:
    """Return the variables of a law for a model trained on so many tokens."""
    variables = {**architecture.variables(), "tokens": tokens}
    return {name: variables[name] for name in law.variables}


def _why_no_ratio(law: Law, contender: Architecture, reference: Architecture) -> str:
    """Return why a law has no ratio of these two; "" if it has."""
    unknown = unknown_parts(contender, law) or unknown_parts(reference, law)
    if unknown:
        return f"ignores {', '.join(unknown)}"
    variables = contender.variables()
    reference_variables = reference.variables()
    if all(variables.get(name) == reference_variables.get(name) for name in law.variables):
        return SAME
    low, high = (0.0, 1.0)
    if law.conditions:
        low, high = law.conditions.fitted_limits().get("E", (0.0, 1.0))
    if low == high and contender.experts_equivalent != reference.experts_equivalent:
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
    a_start = coefficients["a_start"]
    a_max = coefficients["a_max"]
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
        """The standard deviation of the relative difference of a single pair at each of `TOKENS`, and its freedom."""
        covariance, freedom = pooled_covariance([*self.pairs.values()])
        return np.sqrt(np.diag(covariance)), freedom

    @cached_property
    def differences(self) -> dict[str, FloatArray]:
        """Mean, standard error and number of each comparison's pairs, [3, k]; NaN without a pair or repeated seeds."""
        deviation, _ = self.scatter
        differences = {}
        for name, pairs in self.pairs.items():
            n_pairs = np.isfinite(pairs).sum(axis=0).astype(float)
            with np.errstate(divide="ignore", invalid="ignore"):
                mean = np.nansum(pairs, axis=0) / n_pairs
                error = deviation / np.sqrt(n_pairs)
            differences[name] = np.stack([mean, error, n_pairs])
        return differences


def read_measures(path: Path, crossing: Path) -> Measures:
    """Read the measures from the records of this experiment; our dense and top-1 models by AdamW are the crossing's.

    Raises RecordError for a run of no contender, and for runs on another held-out text.
    """
    records = hub.load_records(path)
    crossing_records = hub.load_records(crossing)
    check_texts([*records, *crossing_records])
    rows = [*_crossing_losses(crossing_records), *_own_losses(records)]
    n_seeds = 1 + max(seed for _, _, seed, _ in rows)
    losses = {name: np.full((n_seeds, len(TOKENS)), np.nan) for name in ALL}
    for name, tokens, seed, loss in rows:
        if tokens in TOKENS:
            losses[name][seed, TOKENS.index(tokens)] = loss
    return Measures(losses)


def _crossing_losses(records: list[RunRecord]) -> Iterator[tuple[str, float, int, float]]:
    """Yield contender, D, seed and loss of the crossing's dense and top-1 models of our width."""
    runs = read_sweep(records).counted
    names = {1: DENSE, 8: TOP_1}
    columns = (runs["d_model"], runs.experts, runs.tokens, runs["seed"], runs.loss)
    for d_model, experts, tokens, seed, loss in zip(*columns, strict=True):
        if d_model == D_MODEL and experts in names:
            yield names[int(experts)], tokens, int(seed), loss


def _own_losses(records: list[RunRecord]) -> Iterator[tuple[str, float, int, float]]:
    """Yield contender, D, seed and loss of the runs that count; runs of grids need a contender, too."""
    for record in records:
        contender = _contender_of(record)
        if record.sweep == SWEEP:
            loss = float(record.eval_loss or np.nan)
            yield contender.name, nominal(record.tokens), record.seed or 0, loss


def _contender_of(record: RunRecord) -> Contender:
    """Return the contender with the class, experts and optimizer of the record."""
    class_and_optimizer = (record.model_type, record.optimizer.name, record.d_model, record.experts)
    fine_experts = (record.experts_per_token, record.d_expert, record.shared_experts)
    for contender in ALL.values():
        a = contender.architecture
        expected = (contender.model_type, contender.optimizer, D_MODEL, a.experts)
        # Records of our class have no fine experts.
        expected_experts: tuple[int | None, ...] = (None, None, None)
        if contender.model_type is not OURS:
            expected_experts = (a.experts_per_token, a.d_expert, a.shared_experts)
        if class_and_optimizer == expected and fine_experts == expected_experts:
            return contender
    raise RecordError(f"{record.run_id}: a model or an optimizer of no comparison")
