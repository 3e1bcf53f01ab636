"""Which run to train next: the runs that, for a FLOP budget, most reduce the variance of a named answer.

Bayesian linear design: the answer ψ and the ln L of candidate runs have a covariance C over the draws of a fitted law.

    Var(ψ | runs S measured with noise σ) = Var ψ − C_ψS (C_SS + diag σ²)⁻¹ C_Sψ   to first order

Of an answer of several numbers, such as the losses of several models, the sum of their variances counts
(V-optimality). Runs are chosen greedily by reduction per FLOP, then by reduction alone, and exchanged where that
helps. Under a prior the draws are those of the posterior, so this is the predictive variance at the target; as several
runs count as one in that posterior, so do new runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, cast

import numpy as np
from numpy.typing import ArrayLike

from hub.base.errors import InputError, given, literal
from hub.base.fields import Field, reads
from hub.base.types import Fields, Strings
from hub.base.units import format_count, format_flops
from scaling_law.answer.answer import Answer, columns_of
from scaling_law.formulas import Formula
from scaling_law.formulas.conditions import DEPENDENCE, POSTERIOR, Conditions, ExtrapolationError
from scaling_law.formulas.law import Values, check_shapes, positive
from scaling_law.planning.budget import Budget
from scaling_law.planning.limits import Limits, of_law
from scaling_law.planning.optimum import compute_optimal, optimal_widths, parse_experts
from scaling_law.planning.question import Count, LimitFields
from scaling_law.size.architecture import HEAD_DIM, VOCAB_SIZE, Architecture, training_flops
from scaling_law.size.arrays import BoolArray, Columns, FloatArray, IntArray, Variables
from scaling_law.size.family import Family
from scaling_law.size.recipe import PAPER

if TYPE_CHECKING:
    from typing_extensions import Unpack

# One number, or several in an array [k].
Target = Callable[[Formula], ArrayLike]
# Runs that a budget affords at least, by default.
LEAST_RUNS = 4
# d_model of candidate runs, by default.
WIDTHS = tuple(HEAD_DIM * blocks for blocks in (4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48))
# Draws that a law must have, and that must have an answer without being outliers.
LEAST_DRAWS = 30
LEAST_ANSWERS = 20
# Deviations from the median beyond which an answer is an outlier.
OUTLIER = 5
# Factor by which N_act and D/N of a proposed run may lie below the least of the fitted runs: that up to which answers
# are trusted at other D/N (`evidence`).
SMALLER = 3.0
# Share of the variance below which a further run is not worth training.
LEAST_GAIN = 1e-3
MODEL = ("n_active", "tokens", "experts")
# Columns of a chosen run of a grid, and those of any run that are whole numbers.
OF_GRID = ("d_model", "n_blocks", "n_heads", "experts", "vocab_size", "n_active", "n_total", "tokens")
WHOLE = {"row", "n_blocks", "n_heads", "vocab_size", "routed_experts"}


def log_optimal_parameters(flops: float, experts: float = 1) -> Target:
    """Ask for ln N_opt at a budget; refused beyond the range guard."""
    return lambda law: float(np.log(compute_optimal(law, flops, experts).n_active))


def predicted_loss(
    n_active: Values = None, tokens: Values = None, experts: Values = None, **variables: Values
) -> Target:
    """Ask for the loss of a model in nats per token, or of several in arrays; `variables` are the law's others."""

    def ask(law: Formula) -> FloatArray:
        law.check(n_active, tokens, experts, **variables).refuse()
        return np.asarray(law.loss(n_active, tokens, experts, **variables), float)

    return ask


def advantage(flops: float, experts: float, baseline: float, **limits: Unpack[LimitFields]) -> Target:
    """Ask how much lower the best loss is with `experts` than with `baseline` experts, under `Limits`.

    With `like` both are numbers of routed experts.
    """
    # Refuse bad input before the first law is asked.
    Limits.of(**limits)

    def ask(law: Formula) -> float:
        budget = Budget.of(flops)
        of_law_limits = Limits.of(law, **limits)
        compared = parse_experts(law, [experts, baseline], of_law_limits)
        optimum = optimal_widths(law, budget, compared, of_law_limits)
        law.check(**budget.models(law, optimum.d_model, compared, of_law_limits)).refuse()
        return float(optimum.loss[1] - optimum.loss[0])

    return ask


@dataclass(frozen=True)
class Candidates:
    """Runs that could be trained, as columns [n]: N_act, tokens, E, a law's other variables, and `flops` if not 6·N·D.

    Those of a grid have `architectures`, those of a table the `names` of its rows.
    """

    columns: Columns
    architectures: tuple[Architecture, ...] = ()
    names: Strings = ()

    @classmethod
    def of(cls, table: Any) -> Candidates:
        """Read candidates from a DataFrame, a list of rows, columns by name, or runs that exist already.

        ValueError for a table without N_act and tokens, and for values that are not positive numbers.
        """
        if isinstance(table, Candidates):
            return table
        if isinstance(table, Mapping):
            columns = dict(table)
        elif hasattr(table, "n_active") and hasattr(table, "run_id"):
            # `Runs` hold three columns beside the others.
            columns = {name: getattr(table, name) for name in (*MODEL, "run_id")} | dict(table.columns)
        else:
            rows = table.to_dict("records") if hasattr(table, "to_dict") else list(table)
            columns = {name: [row.get(name) for row in rows] for name in (rows[0] if rows else ())}
        return cls._of_columns(columns)

    @classmethod
    def _of_columns(cls, columns: Variables) -> Candidates:
        """Check the columns that are numbers; the others, which no law reads, are left out."""
        for name in ("n_active", "tokens"):
            if name not in columns:
                present = ", ".join(map(str, columns)) or "no columns"
                raise InputError(f"candidates: {name} is needed for each run; the table has {present}")
        arrays = {name: np.atleast_1d(positive(f"candidates: {name}", columns[name])) for name in MODEL[:2]}
        arrays["experts"] = np.atleast_1d(positive("candidates: experts", columns.get("experts", 1.0), 1.0))
        for name, values in columns.items():
            if name in arrays:
                continue
            with suppress(TypeError, ValueError):
                arrays[name] = np.atleast_1d(np.asarray(values, float))
        check_shapes(arrays)
        arrays = dict(zip(arrays, np.broadcast_arrays(*arrays.values()), strict=True))
        if not arrays["tokens"].size:
            raise InputError("candidates: the table has no rows")
        arrays["row"] = np.arange(arrays["tokens"].size, dtype=float)
        return cls(arrays, names=tuple(map(str, columns.get("run_id", ()))))

    @property
    def n_active(self) -> FloatArray:
        return self.columns["n_active"]

    @property
    def experts(self) -> FloatArray:
        return self.columns["experts"]

    @property
    def tokens(self) -> FloatArray:
        return self.columns["tokens"]

    @property
    def flops(self) -> FloatArray:
        if "flops" in self.columns:
            return positive("candidates: flops", self.columns["flops"])
        return np.asarray(training_flops(self.n_active, self.tokens))

    def variables(self, law: Formula) -> dict[str, FloatArray]:
        """Return N_act, D, E and the law's other variables, [n]. ValueError for one that is missing."""
        if self.architectures:
            return of_law(law, self.columns)
        names = [*MODEL, *law.variables]
        if law.repetition is not None and "unique_tokens" in self.columns:
            names.append("unique_tokens")
        variables: dict[str, FloatArray] = {}
        for name in dict.fromkeys(names):
            if name not in self.columns:
                raise InputError(f"candidates: the {law.name} law depends on {name}, which the table does not have")
            variables[name] = positive(f"candidates: {name}", self.columns[name])
        return variables

    def take(self, places: ArrayLike) -> Candidates:
        """Return the candidates at these places, in their order."""
        rows = np.asarray(places, int)
        return Candidates(
            {name: values[rows] for name, values in self.columns.items()},
            tuple(self.architectures[i] for i in rows) if self.architectures else (),
            tuple(self.names[i] for i in rows) if self.names else (),
        )

    def rows(self) -> Fields:
        """Return the columns of an answer: sizes, tokens and training FLOPs, or those of the table."""
        columns: Fields = {"run_id": list(self.names)} if self.names else {}
        names = OF_GRID if self.architectures else self.columns
        columns.update({name: self.columns[name] for name in names})
        routed_experts = self.columns.get("routed_experts", self.experts)
        if np.any(routed_experts != self.experts):
            columns["routed_experts"] = routed_experts
        for name in WHOLE & columns.keys():
            columns[name] = columns[name].astype(int)
        return {**columns, "training_flops": self.flops}

    def past_warmup(self, warmup_tokens: float, is_given: bool = True) -> IntArray:
        """Find the runs whose warm-up, `is_given` or that of the fitted runs, ends before their decay begins.

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
        return places

    def near(self, conditions: Conditions | None) -> BoolArray:
        """Mark the runs whose N_act and D/N are at least a third of the least of the fitted runs, if known.

        ValueError if there are none.
        """
        limits = conditions.fitted_limits() if conditions else {}
        is_near = np.full(len(self.tokens), True)
        bounds = []
        for name, values in (("N_act", self.n_active), ("D/N", self.tokens / self.n_active)):
            if name in limits:
                least = limits[name][0] / SMALLER
                is_near &= values >= least * (1 - 1e-9)
                bounds.append(f"{name} ≥ {format_count(least)}")
        if not is_near.any():
            few = f"none that is long enough has {' and '.join(bounds)}, a third of the least of the fitted runs"
            raise InputError(f"candidates: {few}")
        return is_near


class Unaffordable(InputError):
    """No candidate run is as cheap as asked for; `none` says so without the name of the limit."""

    def __init__(self, message: str, none: str):
        super().__init__(message)
        self.none = none


def candidate_grid(
    max_run_flops: float,
    experts: Sequence[float] | None = None,
    widths: Sequence[int] | None = None,
    tokens_per_parameter: tuple[float, float] = (0.5, 80.0),
    vocab_size: int = VOCAB_SIZE,
    like: Any = None,
) -> Candidates:
    """Architectures of the d / 64 rule with token counts in factors of 2, none above `max_run_flops` by itself.

    Of a family `like`, `experts` are its routed ones, and `vocab_size` is that with which laws count N; a run costs
    6 N D with the family's own. Unaffordable if each is.
    """
    positive("max_run_flops", max_run_flops)
    low, high = tokens_per_parameter
    if not 0 < low < high:
        raise InputError(f"tokens_per_parameter={tokens_per_parameter!r} must be two increasing positive numbers")
    architectures: list[Architecture] = []
    rows: list[Fields] = []
    cheapest = np.inf
    doublings = 2.0 ** np.arange(0, np.ceil(np.log2(high / low)))
    for a, variables in _list_models(experts, widths, vocab_size, like):
        fewest = 2.0 ** np.ceil(np.log2(low * a.n_active))
        cheapest = min(cheapest, a.training_flops(float(fewest)))
        for tokens in (fewest * doublings).tolist():
            flops = a.training_flops(tokens)
            if tokens <= high * a.n_active and flops <= max_run_flops:
                architectures.append(a)
                rows.append({**variables, "tokens": tokens, "flops": flops})
    if not architectures:
        none = f"affords none of the candidate runs, the cheapest of which takes {format_flops(cheapest)} FLOPs"
        raise Unaffordable(f"max_run_flops={max_run_flops:g} {none}", none)
    columns = {name: np.array(values) for name, values in columns_of(rows).items()}
    return Candidates(columns, tuple(architectures))


def _list_models(
    experts: Sequence[float] | None, widths: Sequence[int] | None, vocab_size: int, like: Any
) -> list[tuple[Architecture, Fields]]:
    """Pair the models of a grid with the variables of laws, which count N with this vocabulary."""
    if like is None:
        sizes = product(widths or WIDTHS, PAPER.experts if experts is None else experts)
        models = [Architecture(width, cast(int, e), vocab_size=vocab_size) for width, e in sizes]
        return [(a, a.variables()) for a in models]
    family = Family.read(like).with_vocabulary(None, vocab_size)
    if widths is None:
        widths = np.intersect1d(WIDTHS, family.rungs(WIDTHS[-1])).tolist()
    pairs = []
    for a in family.models(widths, family.list_experts(PAPER.experts) if experts is None else experts):
        variables: Fields = {**a.variables(), **family.variables(a.d_model, a.experts_equivalent)}
        pairs.append((a, variables))
    return pairs


def budget_grid(flops: float, max_run_flops: float | None = None, **grid: Any) -> Candidates:
    """Make the `candidate_grid` of a budget, of which one run may take a quarter unless `max_run_flops` says more."""
    if max_run_flops is not None:
        return candidate_grid(max_run_flops, **grid)
    try:
        return candidate_grid(flops / LEAST_RUNS, **grid)
    except Unaffordable as error:
        raise InputError(f"flops={flops:g}: a quarter of it, the most for one run, {error.none}") from None


@dataclass(frozen=True, eq=False, repr=False)
class Design(Answer):
    """Chosen runs, the most useful first, with sizes, tokens and training FLOPs; those of a table with its columns.

    `chosen` are indices into the `candidates`. `deviation_before` and `deviation_after` are standard deviations of the
    answer; `flops` is the cost of all chosen runs, each trained separately; `warmup_tokens` None if the warm-up is
    unknown.
    """

    candidates: Candidates = field(repr=False)
    chosen: tuple[int, ...] = field(repr=False)
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
        """Return (architecture, tokens) of each chosen run. ValueError for rows of a table, which have none."""
        chosen = self.candidates.take(self.chosen)
        if not chosen.architectures:
            raise InputError("the candidates are rows of a table, which have no architectures: see `rows`")
        return list(zip(chosen.architectures, chosen.tokens.tolist(), strict=True))

    def _footnotes(self) -> list[str]:
        if self.warmup_tokens is None:
            return ["warm-up unknown: runs may be shorter than it"]
        return [f"each longer than its warm-up of {format_count(self.warmup_tokens)} tokens"]

    def _cells(self) -> list[Fields]:
        shape = ("d_model",) if self.candidates.architectures else ("run_id", "row")
        names = (*shape, "routed_experts", "experts", "n_active", "tokens", "training_flops")
        cells = []
        for row in self.rows:
            cells.append({name: row[name] for name in names if name in row})
        return cells


@reads
def next_runs(
    law: Formula,
    answer: Target,
    flops: Count,
    candidates: Any = None,
    *,
    noise: ArrayLike | None = None,
    max_runs: Annotated[int, Field(ge=1)] = 24,
    warmup_tokens: float | None = None,
    force: bool = False,
) -> Design:
    """Choose the runs to train with a budget of `flops` so that `answer` becomes most certain.

    Args:
        law: a fitted law with at least 30 draws (`result.bootstrap(...).law`): resamples, or under a prior those of
            the posterior.
        answer: any function of a law, such as `log_optimal_parameters(1e22)`, or one that returns several numbers,
            such as `predicted_loss` of several models: the sum of their variances is reduced.
        candidates: what may be trained: a table (a DataFrame, rows, columns by name, or Runs) of N_act, D, E, the
            law's other variables and, where it is not 6·N·D, `flops`; or Candidates. Default `budget_grid(flops)` with
            the law's vocabulary.
        noise: standard deviation of ln L of one run, or of each candidate [n]; default the law's RMSE over the mean
            predicted loss, under a prior times √8, since 8 runs count as one in the posterior.
        warmup_tokens: default that of the fitted runs, where their records say it. No run is proposed whose decay
            (its last fifth) would begin before the warm-up ends; 0 allows all.

    Nor is a run proposed with less than a third of the least N_act or D/N of the fitted runs, where the law knows it.

    ValueError for a budget that affords no candidate, too few draws, and an answer that most draws do not have;
    ExtrapolationError for one of this module's answers that lies beyond the law's range guard, unless `force`.
    """
    budget = cast(float, flops)
    if law.draws is None or len(law.draws) < LEAST_DRAWS:
        raise InputError(f"the law needs at least {LEAST_DRAWS} draws: bootstrap its fit")
    is_given = warmup_tokens is not None
    if warmup_tokens is None and law.conditions is not None:
        warmup_tokens = law.conditions.warmup_tokens
    if candidates is None:
        candidates = budget_grid(budget, vocab_size=law.vocab_size)
    every_candidate = Candidates.of(candidates)
    places = every_candidate.past_warmup(warmup_tokens or 0.0, is_given)
    places = places[every_candidate.take(places).near(law.conditions)]
    candidates = every_candidate.take(places)
    columns = candidates.variables(law)
    noises = _noise_of(law, columns) if noise is None else _read_noise(noise, len(every_candidate.tokens))[places]
    notes = _check_answer(law, answer, force)
    answers, losses = _ensemble(law, answer, columns)
    draws = np.column_stack([losses, answers])
    covariance = draws.T @ draws / len(draws)
    runs, variance = _choose(covariance, candidates.flops, budget, noises, max_runs)
    n_answers = answers.shape[1]
    variance_before = float(np.diag(covariance)[-n_answers:].sum())
    deviation_before, deviation_after = np.sqrt(np.array([variance_before, variance]) / n_answers).tolist()
    check = law.check(**{name: values[runs] for name, values in columns.items()})
    conditions = check.conditions and check.conditions.with_prior()
    return Design(
        columns=candidates.take(runs).rows(),
        candidates=candidates,
        chosen=tuple(runs),
        deviation_before=deviation_before,
        deviation_after=deviation_after,
        flops=float(candidates.flops[runs].sum()),
        warmup_tokens=warmup_tokens,
        check=replace(check, conditions=conditions, trusts_guard=True),
        notes=notes,
    )


def _noise_of(law: Formula, columns: Columns) -> FloatArray:
    """Return the law's RMSE over the mean predicted loss: the standard deviation of ln L of each run [n].

    Runs of a posterior share what the law misses, so a new run tells less than its own noise lets expect.
    """
    if law.conditions is None or not law.conditions.rmse:
        reason = " must be given, the standard deviation of ln L: this law has no recorded RMSE"
        raise InputError(given("noise", None), reason)
    noise = law.conditions.rmse / float(np.mean(law.loss(**columns)))
    if law.conditions.draws == POSTERIOR:
        noise *= np.sqrt(DEPENDENCE)
    return _read_noise(noise, len(columns["tokens"]))


def _read_noise(noise: ArrayLike, count: int) -> FloatArray:
    """Read the standard deviation of ln L, one for all or one for each of the candidates, as an array [count]."""
    values = positive("noise", noise)
    if values.shape not in ((), (count,)):
        raise InputError(f"noise must be one number, or one for each of the {count} candidates, not {values.size}")
    return np.broadcast_to(values, (count,))


def _check_answer(law: Formula, answer: Target, force: bool) -> Strings:
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


def _ensemble(law: Formula, answer: Target, columns: Columns) -> tuple[FloatArray, FloatArray]:
    """Return centred answers [draws, k] and log losses [draws, candidates], over the draws that have an answer."""
    assert law.draws is not None
    # Without ranges nothing is refused: a wild draw is dropped below.
    unguarded = Conditions("a draw", vocab_size=law.vocab_size)
    rows: dict[int, FloatArray] = {}
    for i, draw in enumerate(law.draws):
        coefficients = dict(zip(law.coefficient_names(), draw.tolist(), strict=True))
        # A draw may have no optimum.
        with suppress(ValueError):
            rows[i] = np.ravel(np.asarray(answer(law.replace(**coefficients, conditions=unguarded)), float))
    size = max((row.size for row in rows.values()), default=1)
    answers = np.full((len(law.draws), size), np.nan)
    for i, row in rows.items():
        answers[i] = row
    is_finite = np.isfinite(answers).all(axis=1)
    is_usable = is_finite & _near_the_median(answers, is_finite)
    if is_usable.sum() < LEAST_ANSWERS:
        raise InputError(f"too few draws: {is_finite.sum()} have an answer, {is_usable.sum()} without outliers")
    answers = answers[is_usable]
    losses = np.log(law.replace(conditions=None).loss_draws(**columns))[is_usable]
    return answers - answers.mean(axis=0), losses - losses.mean(axis=0)


def _near_the_median(answers: FloatArray, is_finite: BoolArray) -> BoolArray:
    """Mark the draws [draws] none of whose answers [draws, k] is an outlier; long tails would dominate a covariance.

    No draw is near where the answers do not differ.
    """
    if not is_finite.any():
        return is_finite
    deviations = np.abs(answers - np.median(answers[is_finite], axis=0))
    spread = 1.4826 * np.median(deviations[is_finite], axis=0)
    return np.asarray((deviations <= OUTLIER * spread).all(axis=1) & (spread > 0).all())


def _choose(
    covariance: FloatArray, cost: FloatArray, budget: float, noise: FloatArray, max_runs: int
) -> tuple[list[int], float]:
    """Choose runs greedily; `covariance` [n + k, n + k] is that of ln L, and of the k answers last.

    Returns the runs, most useful first, and the sum of the variances of the answers after them.
    """
    n = len(cost)

    def extend(start: Sequence[int], by_cost: bool = False) -> tuple[list[int], float]:
        """Add the best run (per FLOP, or outright) while one fits and helps."""
        posterior = _Posterior(covariance, n, noise)
        for run in start:
            posterior.condition(run)
        runs = list(start)
        while len(runs) < max_runs:
            gains = posterior.gains()
            scores = np.where(cost <= budget - cost[runs].sum(), gains, 0.0) / (cost if by_cost else 1.0)
            scores[runs] = 0.0
            best = int(np.argmax(scores))
            if scores[best] <= 0 or gains[best] < LEAST_GAIN * posterior.variance:
                break
            runs.append(best)
            posterior.condition(best)
        return runs, posterior.variance

    cheap_runs, _ = extend([], by_cost=True)
    selection, variance = extend(cheap_runs)
    # Drop each in turn and refill the budget, where that helps.
    for dropped in list(selection):
        trial, trial_variance = extend([run for run in selection if run != dropped])
        if trial_variance < variance * (1 - 1e-6):
            selection = trial
            variance = trial_variance
    return selection, variance


class _Posterior:
    """The covariance of the ln L of n runs and of the answers, once some runs have been trained.

    Each run takes the product of a column with itself off the covariance: a Kalman step. Only these columns are kept.
    """

    def __init__(self, covariance: FloatArray, n: int, noise: FloatArray) -> None:
        self.covariance = covariance
        self.noise_variances = noise**2
        self.n = n
        self.columns = np.empty((len(covariance), 0))
        self.variances = np.diag(covariance).copy()
        self.with_answers = covariance[:n, n:].copy()

    @property
    def variance(self) -> float:
        """The sum of the variances of the answers."""
        return float(self.variances[self.n :].sum())

    def gains(self) -> FloatArray:
        """Return by how much each run would reduce the variances of the answers, [n]."""
        scatter = np.maximum(self.variances[: self.n], 0.0) + self.noise_variances
        return np.asarray((self.with_answers**2).sum(axis=1) / scatter)

    def condition(self, run: int) -> None:
        """Train one more run."""
        column = self.covariance[:, run] - self.columns @ self.columns[run]
        column = column / np.sqrt(column[run] + self.noise_variances[run])
        self.columns = np.column_stack([self.columns, column])
        self.variances = self.variances - column**2
        self.with_answers = self.with_answers - np.outer(column[: self.n], column[self.n :])
