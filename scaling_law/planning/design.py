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
# d_model of candidate runs, by default.
WIDTHS = tuple(HEAD_DIM * blocks for blocks in (4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48))
# Draws that a law must have, and that must have an answer without being outliers.
LEAST_DRAWS = 30
LEAST_ANSWERS = 20
# Deviations from the median beyond which an answer is an outlier.
OUTLIER = 5
# Share of the variance below which a further run is not worth training.
LEAST_GAIN = 1e-3


def log_optimal_parameters(flops: float, experts: float = 1) -> Target:
    """Ask for ln N_opt at a budget; refused beyond the range guard."""
    return lambda law: float(np.log(compute_optimal(law, flops, experts).n_active))


def predicted_loss(
    n_active: float | None = None, tokens: float | None = None, experts: float | None = None, **variables: float
) -> Target:
    """Ask for the loss of a model in nats per token; `variables` are the law's others."""

    def ask(law: Formula) -> float:
        law.check(n_active, tokens, experts, **variables).refuse()
        return float(law.loss(n_active, tokens, experts, **variables))

    return ask


def advantage(flops: float, experts: float, baseline: float, **limits: Unpack[LimitFields]) -> Target:
    """Ask how much lower the best loss is with `experts` than with `baseline` experts, under `Limits`."""
    # Refuse bad input before the first law is asked.
    Limits.of(**limits)
    compared = np.array([experts, baseline], float)

    def ask(law: Formula) -> float:
        budget = Budget.of(flops)
        of_law_limits = Limits.of(law, **limits)
        optimum = optimal_widths(law, budget, compared, of_law_limits)
        law.check(**budget.models(law, optimum.d_model, compared, of_law_limits)).refuse()
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
        """Return N_act, D, E and the law's other variables, [n]. ValueError for one that an architecture lacks."""
        rows = [a.variables() for a in self.architectures]
        columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
        columns["tokens"] = self.tokens
        return of_law(law, columns)

    def past_warmup(self, warmup_tokens: float, is_given: bool = True) -> Candidates:
        """Return the runs whose warm-up, `is_given` or that of the fitted runs, ends before their decay begins.

        ValueError if none does.
        """
        if not (np.isfinite(warmup_tokens) and warmup_tokens >= 0):
            raise InputError(f"warmup_tokens={literal(warmup_tokens)} must be finite and not negative")
        decay_start = 1.0 - PAPER.decay_fraction
        places = np.flatnonzero(decay_start * self.tokens >= warmup_tokens)
        if not len(places):
            tokens = format_count(warmup_tokens / decay_start)
            size = format_count(warmup_tokens)
            warmup = f"warmup_tokens={size}" if is_given else f"the fitted runs warm up over {size} tokens"
            raise InputError(f"{warmup}: no candidate run has the {tokens} tokens that warm-up and decay take")
        return Candidates(tuple(self.architectures[i] for i in places), self.tokens[places])


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
    architectures: list[Architecture] = []
    counts: list[float] = []
    cheapest = np.inf
    doublings = 2.0 ** np.arange(0, np.ceil(np.log2(high / low)))
    for width in widths or WIDTHS:
        for e in experts:
            a = Architecture(width, e, vocab_size=vocab_size)
            fewest = 2.0 ** np.ceil(np.log2(low * a.n_active))
            cheapest = min(cheapest, a.training_flops(float(fewest)))
            for tokens in (fewest * doublings).tolist():
                if tokens <= high * a.n_active and a.training_flops(tokens) <= max_run_flops:
                    architectures.append(a)
                    counts.append(tokens)
    if not architectures:
        none = f"affords none of the candidate runs, the cheapest of which takes {format_flops(cheapest)} FLOPs"
        raise Unaffordable(f"max_run_flops={max_run_flops:g} {none}", none)
    return Candidates(tuple(architectures), np.array(counts))


def budget_grid(flops: float, max_run_flops: float | None = None, **grid: Any) -> Candidates:
    """Make the `candidate_grid` of a budget, of which one run may take a quarter unless `max_run_flops` says more."""
    if max_run_flops is not None:
        return candidate_grid(max_run_flops, **grid)
    try:
        return candidate_grid(flops / LEAST_RUNS, **grid)
    except Unaffordable as error:
        raise InputError(f"flops={flops:g}: a quarter of it, the most for one run, {error.none}") from None


@dataclass(frozen=True, repr=False)
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
        """True if the answer and the chosen runs, which will be measured, lie within the law's range guard."""
        return not self.notes and super().trusted

    @property
    def verdict(self) -> str:
        plural = "" if len(self.chosen) == 1 else "s"
        runs = f"{len(self.chosen)} run{plural}, {format_flops(self.flops)} FLOPs"
        change = f"{self.deviation_before:.4g} → {self.deviation_after:.4g}"
        return f"{runs}: standard deviation of the answer {change}"

    def runs(self) -> list[tuple[Architecture, float]]:
        """Return (architecture, tokens) of each chosen run."""
        return [(self.candidates.architectures[i], float(self.candidates.tokens[i])) for i in self.chosen]

    def to_rows(self) -> list[dict[str, Any]]:
        """Return one dict of plain values for each run: the architecture, its sizes, tokens and training FLOPs."""
        rows = []
        for architecture, tokens in self.runs():
            rows.append(
                {
                    **architecture.shape,
                    "vocab_size": architecture.vocab_size,
                    "n_active": architecture.n_active,
                    "n_total": architecture.n_total,
                    "tokens": tokens,
                    "training_flops": architecture.training_flops(tokens),
                }
            )
        return rows

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
    """Choose the runs to train with a budget of `flops` so that `answer` becomes most certain.

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
    if law.draws is None or len(law.draws) < LEAST_DRAWS:
        raise InputError(f"the law needs at least {LEAST_DRAWS} draws: bootstrap its fit")
    is_given = warmup_tokens is not None
    if warmup_tokens is None and law.conditions is not None:
        warmup_tokens = law.conditions.warmup_tokens
    candidates = candidates or budget_grid(budget, vocab_size=law.vocab_size)
    candidates = candidates.past_warmup(warmup_tokens or 0.0, is_given)
    columns = candidates.variables(law)
    noise = _noise_of(law, columns) if noise is None else one_positive("noise", noise)
    notes = _check_answer(law, answer, force)
    answers, losses = _ensemble(law, answer, columns)
    draws = np.column_stack([losses, answers])
    covariance = draws.T @ draws / len(draws)
    runs, variance = _choose(covariance, candidates.flops, budget, noise, max_runs)
    deviation_before, deviation_after = np.sqrt([covariance[-1, -1], variance]).tolist()
    check = law.check(**{name: values[runs] for name, values in columns.items()})
    return Design(
        candidates=candidates,
        chosen=tuple(runs),
        deviation_before=deviation_before,
        deviation_after=deviation_after,
        flops=float(candidates.flops[runs].sum()),
        warmup_tokens=warmup_tokens,
        check=replace(check, support=measured_support_of),
        notes=notes,
    )


def _noise_of(law: Formula, columns: Mapping[str, FloatArray]) -> float:
    """Return the law's RMSE over the mean predicted loss: the standard deviation of ln L of one run."""
    if law.conditions is None or not law.conditions.rmse:
        reason = " must be given, the standard deviation of ln L: this law has no recorded RMSE"
        raise InputError(given("noise", None), reason)
    return one_positive("noise", law.conditions.rmse / float(np.mean(law.loss(**columns))))


def _check_answer(law: Formula, answer: Target, force: bool) -> tuple[str, ...]:
    """Say how far outside the law's range the answer lies. ExtrapolationError beyond the guard, unless `force`."""
    try:
        answer(law)
    except ExtrapolationError as error:
        if not force:
            raise
        return (f"the answer is {error}",)
    # A law without an optimum may have draws that have one.
    except ValueError:
        pass
    return ()


def _ensemble(law: Formula, answer: Target, columns: Mapping[str, FloatArray]) -> tuple[FloatArray, FloatArray]:
    """Return centred answers [draws] and log losses [draws, candidates], over the draws that have an answer."""
    assert law.draws is not None
    # Without ranges nothing is refused: a wild draw is dropped below.
    unguarded = Conditions("a draw", vocab_size=law.vocab_size)
    answers = np.full(len(law.draws), np.nan)
    for i, draw in enumerate(law.draws):
        coefficients = dict(zip(law.coefficient_names(), draw.tolist(), strict=True))
        # A draw may have no optimum.
        with suppress(ValueError):
            answers[i] = answer(law.replace(**coefficients, conditions=unguarded))
    is_finite = np.isfinite(answers)
    deviations = np.abs(answers - np.median(answers[is_finite])) if is_finite.any() else answers
    spread = 1.4826 * np.median(deviations[is_finite]) if is_finite.any() else 0.0
    # Long tails would dominate a covariance.
    is_usable = is_finite & (deviations <= OUTLIER * spread)
    if is_usable.sum() < LEAST_ANSWERS or not spread > 0:
        raise InputError(f"too few draws: {is_finite.sum()} have an answer, {is_usable.sum()} without outliers")
    answers = answers[is_usable]
    losses = np.log(law.loss_draws(**columns))[is_usable]
    return answers - answers.mean(), losses - losses.mean(axis=0)


def _choose(
    covariance: FloatArray, cost: FloatArray, budget: float, noise: float, max_runs: int
) -> tuple[list[int], float]:
    """Choose runs greedily; `covariance` [n + 1, n + 1] is that of ln L, and of the answer last.

    Returns the runs, most useful first, and the variance of the answer after them.
    """

    def condition(prior: FloatArray, run: int) -> FloatArray:
        """Return the covariance once `run` has been trained too: one Kalman step."""
        return prior - np.outer(prior[:, run], prior[run]) / (prior[run, run] + noise**2)

    def extend(start: Sequence[int], by_cost: bool = False) -> tuple[list[int], float]:
        """Add the best run (per FLOP, or outright) while one fits and helps."""
        runs = list(start)
        posterior = reduce(condition, start, covariance)
        while len(runs) < max_runs:
            variances = np.maximum(np.diag(posterior)[:-1], 0.0)
            gains = posterior[:-1, -1] ** 2 / (variances + noise**2)
            scores = np.where(cost <= budget - cost[runs].sum(), gains, 0.0) / (cost if by_cost else 1.0)
            scores[runs] = 0.0
            best = int(np.argmax(scores))
            if scores[best] <= 0 or gains[best] < LEAST_GAIN * posterior[-1, -1]:
                break
            runs.append(best)
            posterior = condition(posterior, best)
        return runs, float(posterior[-1, -1])

    cheap_runs, _ = extend([], by_cost=True)
    selection, variance = extend(cheap_runs)
    # Drop each in turn and refill the budget, where that helps.
    for dropped in list(selection):
        trial, trial_variance = extend([run for run in selection if run != dropped])
        if trial_variance < variance * (1 - 1e-6):
            selection = trial
            variance = trial_variance
    return selection, variance
