"""Which run to train next: the runs that, for a FLOP budget, most reduce the variance of a named answer.

Bayesian linear design: the answer ψ and the ln L of candidate runs have a covariance C over the draws of a fitted law.

    Var(ψ | runs S measured with noise σ) = Var ψ − C_ψS (C_SS + σ² I)⁻¹ C_Sψ   to first order

Runs are chosen greedily by reduction per FLOP, then by reduction alone, and exchanged where that helps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from hub.base.errors import InputError, given
from hub.base.inputs import reads
from hub.base.tables import Table, literal
from hub.base.units import format_count, format_flops
from scaling_law.formulas import Formula
from scaling_law.formulas.answers import ArrayAnswer, plain_fields
from scaling_law.formulas.conditions import Conditions, ExtrapolationError, measured_support_of
from scaling_law.formulas.law import one_positive, positive
from scaling_law.planning.budget import Budget
from scaling_law.planning.limits import Limits, of_law
from scaling_law.planning.optimum import compute_optimal, optimal_widths
from scaling_law.planning.question import LimitFields, Quantity
from scaling_law.size.architecture import HEAD_DIM, VOCAB_SIZE, Architecture, training_flops
from scaling_law.size.arrays import FloatArray
from scaling_law.size.recipe import PAPER

if TYPE_CHECKING:
    from typing_extensions import Unpack

Target = Callable[[Formula], float]
# Runs that a budget affords at least, by default.
LEAST_RUNS = 4


def log_optimal_parameters(flops: float, experts: float = 1) -> Target:
    """The answer ln N_opt at a budget."""
    return lambda law: float(np.log(compute_optimal(law, flops, experts).n_active))  # refused beyond the guard


def predicted_loss(
    n_active: float | None = None, tokens: float | None = None, experts: float | None = None, **variables: float
) -> Target:
    """The answer "loss of this model", nats per token; `variables` are the law's others."""

    def ask(law: Formula) -> float:
        law.check(n_active, tokens, experts, **variables).refuse()
        return float(law.loss(n_active, tokens, experts, **variables))

    return ask


def advantage(flops: float, one: float, other: float, **limits: Unpack[LimitFields]) -> Target:
    """How much lower the best loss with `one` number of experts is than with `other`, under `Limits`."""
    Limits.of(**limits)  # bad input ends here

    def ask(law: Formula) -> float:
        within, e, budget = Limits.of(law, **limits), np.array([one, other], float), Budget.of(flops)
        optimum = optimal_widths(law, budget, e, within)
        law.check(**budget.models(law, optimum.d_model, e, within)).refuse()
        return float(optimum.loss[1] - optimum.loss[0])

    return ask


@dataclass(frozen=True)
class Candidates:
    """Runs that could be trained, as columns [n]: architectures, parameters, tokens, E and training FLOPs."""

    architectures: tuple[Architecture, ...]
    tokens: FloatArray

    @property
    def n_active(self) -> FloatArray:
        return np.array([a.n_active for a in self.architectures], float)

    @property
    def experts(self) -> FloatArray:
        return np.array([a.experts for a in self.architectures], float)

    @property
    def flops(self) -> FloatArray:
        return np.asarray(training_flops(self.n_active, self.tokens))

    def variables(self, law: Formula) -> dict[str, FloatArray]:
        """N_act, D, E and the law's other variables, [n]. ValueError for one that an architecture does not have."""
        rows = [a.variables() for a in self.architectures]
        return of_law(law, {name: np.array([row[name] for row in rows]) for name in rows[0]} | {"tokens": self.tokens})

    def past_warmup(self, warmup_tokens: float, is_given: bool = True) -> Candidates:
        """Those whose warm-up, `is_given` or that of the fitted runs, ends before their decay begins.

        ValueError if none does.
        """
        if not (np.isfinite(warmup_tokens) and warmup_tokens >= 0):
            raise InputError(f"warmup_tokens={literal(warmup_tokens)} must be finite and not negative")
        kept = np.flatnonzero((1.0 - PAPER.decay_fraction) * self.tokens >= warmup_tokens)
        if not len(kept):
            needed = format_count(warmup_tokens / (1.0 - PAPER.decay_fraction))
            size = format_count(warmup_tokens)
            warmup = f"warmup_tokens={size}" if is_given else f"the fitted runs warm up over {size} tokens"
            raise InputError(f"{warmup}: no candidate run has the {needed} tokens that warm-up and decay take")
        return Candidates(tuple(self.architectures[i] for i in kept), self.tokens[kept])


class Unaffordable(InputError):
    """No candidate run is as cheap as asked for; `none` says so without the name of the limit."""

    def __init__(self, message: str, none: str):
        super().__init__(message)
        self.none = none


def candidate_grid(
    max_run_flops: float,
    experts: Sequence[int] = PAPER.experts,
    widths: Sequence[int] | None = None,
    tokens_per_parameter: tuple[float, float] = (0.5, 80.0),
    vocab_size: int = VOCAB_SIZE,
) -> Candidates:
    """Architectures of the d / 64 rule with token counts in factors of 2, none above `max_run_flops` by itself.

    Unaffordable if each is.
    """
    positive("max_run_flops", max_run_flops)
    low, high = tokens_per_parameter
    if not 0 < low < high:
        raise InputError(f"tokens_per_parameter={tokens_per_parameter!r} must be two increasing positive numbers")
    runs, cheapest = list[tuple[Architecture, float]](), np.inf
    for width in widths or [HEAD_DIM * k for k in (4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48)]:
        for e in experts:
            a = Architecture(width, e, vocab_size=vocab_size)
            start = 2.0 ** np.ceil(np.log2(low * a.n_active))
            counts = start * 2.0 ** np.arange(0, np.ceil(np.log2(high / low)))
            cheapest = min(cheapest, a.training_flops(float(start)))
            runs += [(a, float(t)) for t in counts if t <= high * a.n_active and a.training_flops(t) <= max_run_flops]
    if not runs:
        none = f"affords none of the candidate runs, the cheapest of which takes {format_flops(cheapest)} FLOPs"
        raise Unaffordable(f"max_run_flops={max_run_flops:g} {none}", none)
    return Candidates(tuple(a for a, _ in runs), np.array([t for _, t in runs]))


def budget_grid(flops: float, max_run_flops: float | None = None, **grid: Any) -> Candidates:
    """`candidate_grid` for a budget, of which one run may take a quarter unless `max_run_flops` says how much."""
    if max_run_flops is not None:
        return candidate_grid(max_run_flops, **grid)
    try:
        return candidate_grid(flops / LEAST_RUNS, **grid)
    except Unaffordable as error:
        raise InputError(f"flops={flops:g}: a quarter of it, the most for one run, {error.none}") from None


@dataclass(frozen=True)
class Design(ArrayAnswer):
    """Chosen runs (indices into the candidates, most useful first) and how much they should narrow the answer.

    `deviation_before` and `deviation_after` are standard deviations of the answer; `flops` is the cost of all chosen
    runs, each trained separately; `warmup_tokens` None if the warm-up is unknown.
    """

    candidates: Candidates
    chosen: tuple[int, ...]
    deviation_before: float
    deviation_after: float
    flops: float
    warmup_tokens: float | None = None

    @property
    def trusted(self) -> bool:
        """Whether the answer and the chosen runs, which will be measured, lie within the law's range guard."""
        return not self.notes and super().trusted

    @property
    def verdict(self) -> str:
        runs = f"{len(self.chosen)} run{'s' * (len(self.chosen) != 1)}, {format_flops(self.flops)} FLOPs"
        change = f"{self.deviation_before:.4g} → {self.deviation_after:.4g}"
        return f"{runs}: standard deviation of the answer {change}"

    def runs(self) -> list[tuple[Architecture, float]]:
        """(architecture, tokens) of each chosen run."""
        return [(self.candidates.architectures[i], float(self.candidates.tokens[i])) for i in self.chosen]

    def to_rows(self) -> list[dict[str, Any]]:
        """One dict of plain values for each run: the architecture, its sizes, tokens and training FLOPs."""
        names = ("vocab_size", "n_active", "n_total")
        return [
            a.shape | {n: getattr(a, n) for n in names} | {"tokens": t, "training_flops": a.training_flops(t)}
            for a, t in self.runs()
        ]

    def facts(self) -> dict[str, Any]:
        return plain_fields(self, "candidates", "chosen", "check", "notes")

    def summary(self) -> Table:
        note = "warm-up unknown: runs may be shorter than it"
        if self.warmup_tokens is not None:
            note = f"each longer than its warm-up of {format_count(self.warmup_tokens)} tokens"
        names = ("d_model", "experts", "n_active", "tokens", "training_flops")
        rows = [{name: row[name] for name in names} for row in self.to_rows()]
        return Table.of(rows, title=self.verdict, notes=[note], warnings=self.warnings)


@reads
def next_runs(
    law: Formula,
    answer: Target,
    flops: Quantity,
    candidates: Candidates | None = None,
    *,
    noise: float | None = None,
    max_runs: int = 24,
    warmup_tokens: float | None = None,
    force: bool = False,
) -> Design:
    """The runs to train with a budget of `flops` so that `answer` becomes most certain.

    Args:
        law: a fitted law with at least 30 draws (`result.bootstrap(...).law`).
        answer: any function of a law, such as `log_optimal_parameters(1e22)`.
        candidates: default `budget_grid(flops)` with the law's vocabulary.
        noise: standard deviation of ln L of one run; default the law's RMSE over the mean predicted loss.
        warmup_tokens: default that of the fitted runs, where their records say it. No run is proposed whose decay
            (its last fifth) would begin before the warm-up ends; 0 allows all.

    ValueError for a budget that affords no candidate, too few draws, and an answer that most draws do not have;
    ExtrapolationError for one of this module's answers that lies beyond the law's range guard, unless `force`.
    """
    budget = one_positive("flops", flops)
    if not isinstance(max_runs, int) or max_runs < 1:
        raise InputError(f"max_runs={max_runs!r} must be a whole number of at least 1")
    if law.draws is None or len(law.draws) < 30:
        raise InputError("the law needs at least 30 draws: fit it and call result.bootstrap(...)")
    is_given = warmup_tokens is not None
    if warmup_tokens is None and law.conditions is not None:
        warmup_tokens = law.conditions.warmup_tokens
    candidates = candidates or budget_grid(budget, vocab_size=law.vocab_size)
    candidates = candidates.past_warmup(warmup_tokens or 0.0, is_given)
    columns = candidates.variables(law)
    if noise is None:
        if law.conditions is None or not law.conditions.rmse:
            said = " must be given, the standard deviation of ln L: this law has no recorded RMSE"
            raise InputError(given("noise", None), said)
        noise = law.conditions.rmse / float(np.mean(law.loss(**columns)))
    noise = one_positive("noise", noise)
    notes: tuple[str, ...] = ()
    try:
        answer(law)
    except ExtrapolationError as error:
        if not force:
            raise
        notes = (f"the answer is {error}",)
    # A law without an optimum may have draws that have one.
    except ValueError:
        pass
    values, losses = _ensemble(law, answer, columns)
    everything = np.column_stack([losses, values])
    covariance = everything.T @ everything / len(everything)
    picks, after = _choose(covariance, candidates.flops, budget, noise, max_runs)
    before, after = np.sqrt([covariance[-1, -1], after]).tolist()
    check, spent = law.check(**{name: values[picks] for name, values in columns.items()}), candidates.flops[picks]
    check = replace(check, support=measured_support_of)
    return Design(candidates, tuple(picks), before, after, float(spent.sum()), warmup_tokens, check=check, notes=notes)


def _ensemble(law: Formula, answer: Target, columns: Mapping[str, FloatArray]) -> tuple[FloatArray, FloatArray]:
    """Centred answers [draws] and log losses [draws, candidates], over the draws that have an answer."""
    assert law.draws is not None
    unguarded = Conditions("a draw", vocab_size=law.vocab_size)  # no ranges: a wild draw is dropped below
    values = np.full(len(law.draws), np.nan)
    for i, draw in enumerate(law.draws):
        with suppress(ValueError):  # a draw without an optimum
            coefficients = dict(zip(law.coefficient_names(), draw.tolist(), strict=True))
            values[i] = answer(law.replace(**coefficients, conditions=unguarded))
    finite = np.isfinite(values)
    off = np.abs(values - np.median(values[finite])) if finite.any() else values
    spread = 1.4826 * np.median(off[finite]) if finite.any() else 0.0
    near = finite & (off <= 5 * spread)  # the long tails would dominate a covariance
    if near.sum() < 20 or not spread > 0:
        raise InputError(f"too few draws: {finite.sum()} have an answer, {near.sum()} without outliers")
    values, losses = values[near], np.log(law.loss_draws(**columns))[near]
    return values - values.mean(), losses - losses.mean(axis=0)


def _choose(
    covariance: FloatArray, cost: FloatArray, budget: float, noise: float, max_runs: int
) -> tuple[list[int], float]:
    """The greedy choice, and the variance after it; `covariance` [n + 1, n + 1]: of ln L, and of the answer last."""

    def measured(prior: FloatArray, run: int) -> FloatArray:
        """The covariance once `run` has been trained too: one Kalman step."""
        return prior - np.outer(prior[:, run], prior[run]) / (prior[run, run] + noise**2)

    def grown(start: Sequence[int], by_cost: bool = False) -> tuple[list[int], float]:
        """Add the best run (per FLOP, or outright) while one fits and helps."""
        runs, posterior = list(start), reduce(measured, start, covariance)
        while len(runs) < max_runs:
            gains = posterior[:-1, -1] ** 2 / (np.maximum(np.diag(posterior)[:-1], 0.0) + noise**2)
            score = np.where(cost <= budget - cost[runs].sum(), gains, 0.0) / (cost if by_cost else 1.0)
            score[runs] = 0.0
            best = int(np.argmax(score))
            if score[best] <= 0 or gains[best] < 1e-3 * posterior[-1, -1]:
                break
            runs.append(best)
            posterior = measured(posterior, best)
        return runs, float(posterior[-1, -1])

    selection, variance = grown(grown([], by_cost=True)[0])
    for run in list(selection):  # drop each in turn and refill the budget, where that helps
        trial, value = grown([other for other in selection if other != run])
        if value < variance * (1 - 1e-6):
            selection, variance = trial, value
    return selection, variance
