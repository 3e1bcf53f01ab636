"""Which run to train next: the runs that, for a FLOP budget, most reduce the variance of a named answer.

Bayesian linear design: the answer ψ and the ln L of candidate runs have a covariance C over the draws of a fitted law.

    Var(ψ | runs S measured with noise σ) = Var ψ − C_ψS (C_SS + diag σ²)⁻¹ C_Sψ   to first order

Of an answer of several numbers, such as the losses of several models, the sum of their variances counts
(V-optimality). Runs are chosen greedily by reduction per FLOP, then by reduction alone, and exchanged where that
helps. Under a prior the draws are those of the posterior, so this is the predictive variance at the target; as several
runs count as one in that posterior, so do new runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, cast

import numpy as np
from numpy.typing import ArrayLike

from hub.base.errors import InputError, given
from hub.base.fields import Field, NotNegative, reads
from hub.base.types import Fields, Strings
from hub.base.units import format_count, format_flops
from scaling_law.answer.answer import Answer, Row, columns_of
from scaling_law.formulas import Formula
from scaling_law.formulas.conditions import DEPENDENCE, POSTERIOR, Conditions, ExtrapolationError
from scaling_law.formulas.law import Values, check_shapes, positive
from scaling_law.planning.budget import Budget
from scaling_law.planning.limits import Limits, of_law
from scaling_law.planning.optimum import compute_optimal, optimal_widths, parse_experts
from scaling_law.planning.question import Count, LimitFields
from scaling_law.runs.table import Runs
from scaling_law.size.architecture import HEAD_DIM, VOCAB_SIZE, Architecture, training_flops
from scaling_law.size.arrays import BoolArray, Columns, FloatArray, IntArray
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
OF_GRID = (
    "d_model",
    "n_blocks",
    "n_heads",
    "experts",
    "vocab_size",
    "n_active",
    "n_total",
    "tokens",
    "training_flops",
    "architecture",
)
# Columns of a printed row, in their order; those without a value are left out.
SHOWN = ("run_id", "row", "d_model", "routed_experts", "experts", "n_active", "tokens", "training_flops")
WHOLE = {"n_blocks", "n_heads", "vocab_size", "routed_experts"}
# Columns of a table of candidates that are no numbers.
OF_A_RUN = ("run_id", "architecture")


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
        law.check(**optimum.variables).refuse()
        return float(optimum.loss[1] - optimum.loss[0])

    return ask


def read_candidates(table: Any) -> Fields:
    """Read runs that could be trained from a DataFrame, a list of rows, columns by name, or runs that exist already.

    Returns columns [n]: N_act, tokens, E, every other that is numbers, `training_flops` (the table's `flops`, else
    6·N·D), and the `run_id` and `architecture` of runs that have one. ValueError for a table without N_act and tokens,
    and for values that are not positive numbers.
    """
    if isinstance(table, Runs):
        columns = {name: getattr(table, name) for name in (*MODEL, "run_id")}
        columns.update(table.columns)
    elif hasattr(table, "items"):
        columns = dict(table.items())
    else:
        rows = list(table)
        columns = {name: [row.get(name) for row in rows] for name in (rows[0] if rows else ())}
    for name in ("n_active", "tokens"):
        if name not in columns:
            present = ", ".join(map(str, columns)) or "no columns"
            raise InputError(f"candidates: {name} is needed for each run; the table has {present}")
    arrays = {name: np.atleast_1d(positive(f"candidates: {name}", columns[name])) for name in MODEL[:2]}
    arrays["experts"] = np.atleast_1d(positive("candidates: experts", columns.get("experts", 1.0), 1.0))
    for name, values in columns.items():
        if name in OF_A_RUN:
            arrays[name] = np.asarray(values, object)
        elif name not in arrays:
            # Texts and other values, which no law reads, are left out.
            with suppress(TypeError, ValueError):
                arrays[name] = np.atleast_1d(np.asarray(values, float))
    arrays["training_flops"] = np.asarray(training_flops(arrays["n_active"], arrays["tokens"]))
    if "flops" in arrays:
        arrays["training_flops"] = positive("candidates: flops", arrays["flops"])
    check_shapes(arrays)
    arrays = dict(zip(arrays, np.broadcast_arrays(*arrays.values()), strict=True))
    if not arrays["tokens"].size:
        raise InputError("candidates: the table has no rows")
    return arrays


def _variables(law: Formula, candidates: Columns) -> Fields:
    """Return N_act, D, E and the law's other variables, [n]. ValueError for one that is missing."""
    variables = of_law(law, candidates)
    if law.repetition is not None and "unique_tokens" in candidates:
        variables["unique_tokens"] = candidates["unique_tokens"]
    if "architecture" not in candidates:
        for name, values in variables.items():
            positive(f"candidates: {name}", values)
    return variables


def _find_trainable(
    candidates: Columns, conditions: Conditions | None, warmup_tokens: float, is_given: bool
) -> tuple[IntArray, list[str]]:
    """Find the runs whose warm-up ends before their decay begins, and that are not far below the fitted ones.

    The warm-up `is_given` or that of the fitted runs. N_act and D/N are at least a third of the least of these, where
    the law knows them. Also returns how many runs are left out, and why. ValueError if none is left.
    """
    n_active = candidates["n_active"]
    tokens = candidates["tokens"]
    decay_start = 1.0 - PAPER.decay_fraction
    is_long = decay_start * tokens >= warmup_tokens
    if not is_long.any():
        least_tokens = format_count(warmup_tokens / decay_start)
        size = format_count(warmup_tokens)
        warmup = f"warmup_tokens={size}" if is_given else f"the fitted runs warm up over {size} tokens"
        raise InputError(f"{warmup}: no candidate run has the {least_tokens} tokens that warm-up and decay take")
    limits = conditions.fitted_limits() if conditions else {}
    bounds = []
    is_trainable = is_long
    for name, values in (("N_act", n_active), ("D/N", tokens / n_active)):
        if name in limits:
            least = limits[name][0] / SMALLER
            is_trainable = is_trainable & (values >= least * (1 - 1e-9))
            bounds.append(f"{name} ≥ {format_count(least)}")
    large = f"{' and '.join(bounds)}, a third of the least of the fitted runs"
    if not is_trainable.any():
        raise InputError(f"candidates: none that is long enough has {large}")
    reasons = []
    n_short = int(np.sum(~is_long))
    n_small = int(np.sum(is_long & ~is_trainable))
    if n_short:
        reasons.append(f"{n_short} too short for warm-up and decay")
    if n_small:
        reasons.append(f"{n_small} without {large}")
    return np.flatnonzero(is_trainable), reasons


def candidate_grid(
    max_run_flops: float,
    experts: ArrayLike | None = None,
    widths: Sequence[int] | None = None,
    tokens_per_parameter: tuple[float, float] = (0.5, 80.0),
    vocab_size: int = VOCAB_SIZE,
    like: Any = None,
) -> Fields:
    """List architectures of the d / 64 rule with token counts in factors of 2, as columns that `next_runs` reads.

    None takes more than `max_run_flops` by itself. Of a family `like`, `experts` are its routed ones, and `vocab_size`
    is that with which laws count N; a run costs 6 N D with the family's own. ValueError if all are too expensive.
    """
    positive("max_run_flops", max_run_flops)
    low, high = tokens_per_parameter
    if not 0 < low < high:
        raise InputError(f"tokens_per_parameter={tokens_per_parameter!r} must be two increasing positive numbers")
    rows: list[Fields] = []
    cheapest = np.inf
    doublings = 2.0 ** np.arange(0, np.ceil(np.log2(high / low)))
    for a, variables in _list_models(experts, widths, vocab_size, like):
        fewest = 2.0 ** np.ceil(np.log2(low * a.n_active))
        cheapest = min(cheapest, a.training_flops(float(fewest)))
        for tokens in (fewest * doublings).tolist():
            flops = a.training_flops(tokens)
            if tokens <= high * a.n_active and flops <= max_run_flops:
                rows.append({**variables, "tokens": tokens, "flops": flops, "architecture": a})
    if not rows:
        none = f"affords none of the candidate runs, the cheapest of which takes {format_flops(cheapest)} FLOPs"
        raise InputError(f"max_run_flops={max_run_flops:g} {none}; by default it is a quarter of the budget")
    return {name: np.array(values) for name, values in columns_of(rows).items()}


def _list_models(
    experts: ArrayLike | None, widths: Sequence[int] | None, vocab_size: int, like: Any
) -> list[tuple[Architecture, Fields]]:
    """Pair the models of a grid with the variables of laws, which count N with this vocabulary."""
    if like is None:
        counts = np.atleast_1d(PAPER.experts if experts is None else experts).tolist()
        models = [Architecture(width, e, vocab_size=vocab_size) for width, e in product(widths or WIDTHS, counts)]
        return [(a, a.variables()) for a in models]
    family = Family.read(like).with_vocabulary(None, vocab_size)
    if widths is None:
        widths = np.intersect1d(WIDTHS, family.rungs(WIDTHS[-1])).tolist()
    if experts is None:
        experts = family.list_experts(PAPER.experts)
    pairs = []
    for a in family.models(widths, np.atleast_1d(experts)):
        variables: Fields = {**a.variables(), **family.variables(a.d_model, a.experts_equivalent)}
        pairs.append((a, variables))
    return pairs


class DesignRow(Row):
    """A chosen run; of a grid with its `architecture`."""

    _hidden = ("architecture",)


@dataclass(frozen=True, eq=False, repr=False)
class Design(Answer):
    """Chosen runs, the most useful first, with sizes, tokens and training FLOPs; those of a table with its columns.

    `chosen` are their places among the candidates. `deviation_before` and `deviation_after` are standard deviations of
    the answer; `flops` is the cost of all chosen runs, each trained separately; `warmup_tokens` None if the warm-up is
    unknown. `left_out` says how many candidates of a table are not proposed, and why.
    """

    _row: ClassVar[type[Row]] = DesignRow

    chosen: tuple[int, ...] = field(repr=False)
    deviation_before: float
    deviation_after: float
    flops: float
    warmup_tokens: float | None = None
    left_out: str = field(default="", repr=False)

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

    def _footnotes(self) -> list[str]:
        warmup = "warm-up unknown: runs may be shorter than it"
        if self.warmup_tokens is not None:
            warmup = f"each longer than its warm-up of {format_count(self.warmup_tokens)} tokens"
        return [warmup, self.left_out] if self.left_out else [warmup]

    def _cells(self) -> list[Fields]:
        return [row.cells(*SHOWN) for row in self.rows]


@reads
def next_runs(
    law: Formula,
    answer: Target,
    flops: Count,
    candidates: Any = None,
    *,
    noise: ArrayLike | None = None,
    max_runs: Annotated[int, Field(ge=1)] = 24,
    warmup_tokens: NotNegative | None = None,
    force: bool = False,
) -> Design:
    """Choose the runs to train with a budget of `flops` so that `answer` becomes most certain.

    Args:
        law: a fitted law with at least 30 draws (`result.bootstrap(...).law`): resamples, or under a prior those of
            the posterior.
        answer: any function of a law, such as `log_optimal_parameters(1e22)`, or one that returns several numbers,
            such as `predicted_loss` of several models: the sum of their variances is reduced.
        candidates: what may be trained: a table (a DataFrame, rows, columns by name, or Runs) of N_act, D, E, the
            law's other variables and, where it is not 6·N·D, `flops`. Default: `candidate_grid(flops / 4)` with the
            law's vocabulary.
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
        candidates = candidate_grid(budget / LEAST_RUNS, vocab_size=law.vocab_size)
    every_candidate = read_candidates(candidates)
    places, reasons = _find_trainable(every_candidate, law.conditions, warmup_tokens or 0.0, is_given)
    count = len(every_candidate["tokens"])
    left_out = ""
    # A grid has sizes for any law.
    if reasons and "architecture" not in every_candidate:
        left_out = f"{count - len(places)} of {count} candidates left out: {'; '.join(reasons)}"
    candidates = {name: values[places] for name, values in every_candidate.items()}
    columns = _variables(law, candidates)
    noises = _read_noise(noise, count, law, columns)[places]
    notes = _check_answer(law, answer, force)
    answers, losses = _ensemble(law, answer, columns)
    draws = np.column_stack([losses, answers])
    covariance = draws.T @ draws / len(draws)
    runs, variance = _choose(covariance, candidates["training_flops"], budget, noises, max_runs)
    n_answers = answers.shape[1]
    variance_before = float(np.diag(covariance)[-n_answers:].sum())
    deviation_before, deviation_after = np.sqrt(np.array([variance_before, variance]) / n_answers).tolist()
    check = law.check(**{name: values[runs] for name, values in columns.items()})
    return Design(
        columns=_columns(candidates, places, runs),
        chosen=tuple(places[runs].tolist()),
        deviation_before=deviation_before,
        deviation_after=deviation_after,
        flops=float(candidates["training_flops"][runs].sum()),
        warmup_tokens=warmup_tokens,
        left_out=left_out,
        check=replace(check, conditions=check.conditions.with_prior(), trusts_guard=True),
        notes=notes,
    )


def _columns(candidates: Columns, places: IntArray, runs: list[int]) -> Fields:
    """Return the columns of an answer: sizes, tokens and training FLOPs, or those of the table."""
    names = OF_GRID if "architecture" in candidates else candidates
    columns: Fields = {name: candidates[name][runs] for name in names}
    if "architecture" not in candidates:
        columns["row"] = places[runs]
    if np.any(candidates.get("routed_experts", candidates["experts"]) != candidates["experts"]):
        columns["routed_experts"] = candidates["routed_experts"][runs]
    for name in WHOLE & columns.keys():
        columns[name] = columns[name].astype(int)
    return columns


def _read_noise(noise: ArrayLike | None, count: int, law: Formula, columns: Columns) -> FloatArray:
    """Read the standard deviation of ln L, one for all or one for each of the candidates, as an array [count].

    By default it is the law's RMSE over the mean loss that it predicts for the runs of these columns. Runs of a
    posterior share what the law misses, so a new run tells less than its own noise lets expect.
    """
    if noise is None:
        if law.conditions is None or not law.conditions.rmse:
            reason = " must be given, the standard deviation of ln L: this law has no recorded RMSE"
            raise InputError(given("noise", None), reason)
        noise = law.conditions.rmse / float(np.mean(law.loss(**columns)))
        if law.conditions.draws == POSTERIOR:
            noise *= np.sqrt(DEPENDENCE)
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
    rows: list[FloatArray] = []
    for draw in law.draws:
        coefficients = dict(zip(law.coefficient_names(), draw.tolist(), strict=True))
        try:
            rows.append(np.ravel(np.asarray(answer(law.replace(**coefficients, conditions=unguarded)), float)))
        # A draw may have no optimum.
        except ValueError:
            rows.append(np.array([np.nan]))
    answers = np.stack(np.broadcast_arrays(*rows))
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
    noise_variances = noise**2

    def extend(start: Sequence[int], by_cost: bool = False) -> tuple[list[int], float]:
        """Train the runs of the start, then the best (per FLOP, or outright) while one fits and helps.

        Each run takes the product of a column with itself off the covariance: a Kalman step.
        """
        columns = np.empty((len(covariance), 0))
        variances = np.diag(covariance)
        with_answers = covariance[:n, n:]
        runs: list[int] = []
        while len(runs) < max_runs:
            if len(runs) < len(start):
                run = start[len(runs)]
            else:
                gains = (with_answers**2).sum(axis=1) / (np.maximum(variances[:n], 0.0) + noise_variances)
                scores = np.where(cost <= budget - cost[runs].sum(), gains, 0.0) / (cost if by_cost else 1.0)
                scores[runs] = 0.0
                run = int(np.argmax(scores))
                if scores[run] <= 0 or gains[run] < LEAST_GAIN * variances[n:].sum():
                    break
            column = covariance[:, run] - columns @ columns[run]
            column = column / np.sqrt(column[run] + noise_variances[run])
            columns = np.column_stack([columns, column])
            variances = variances - column**2
            with_answers = with_answers - np.outer(column[:n], column[n:])
            runs.append(run)
        return runs, float(variances[n:].sum())

    cheap_runs, _ = extend([], by_cost=True)
    selection, variance = extend(cheap_runs)
    # Drop each in turn and refill the budget, where that helps.
    for dropped in list(selection):
        trial, trial_variance = extend([run for run in selection if run != dropped])
        if trial_variance < variance * (1 - 1e-6):
            selection = trial
            variance = trial_variance
    return selection, variance
