"""Fit a law to runs, by the objective of Ludziejewski et al. 2025, Appendix "Fit Details", summed over runs.

The mean would stop early at usual tolerances. E_start and E_max make the surface rough: every start first runs with
both fixed, then the best are released. Deterministic.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hub.base.errors import InputError, given
from hub.base.fields import UNREAD, Field, Positive, Whole, reads
from hub.base.notices import Notice
from hub.base.progress import progress_line
from hub.base.tables import Table, Tables
from hub.base.types import Fields, Strings
from scaling_law.answer.answer import Answer, Listed, columns_of
from scaling_law.figures.law_figures import predicted_against_observed
from scaling_law.fitting.diagnostics import (
    UNIQUE,
    Outliers,
    design_problems,
    examine,
    find_outliers,
    omitted_variables,
)
from scaling_law.fitting.objective import FitSettings
from scaling_law.fitting.posterior import under
from scaling_law.fitting.prior import Prior, read_prior
from scaling_law.fitting.problem import Problem, make_problem, start_points, variables_of
from scaling_law.fitting.repetition import (
    REPEATED,
    RepetitionFit,
    fit_repetition,
    repeated,
    with_unique_tokens,
)
from scaling_law.fitting.solver import Solutions
from scaling_law.fitting.uncertainty import Bootstrap, bootstrap
from scaling_law.formulas.repeated import Repetition
from scaling_law.law import Law
from scaling_law.runs.loading import load_runs
from scaling_law.runs.rows import RunsError
from scaling_law.runs.settings import check_mix, differences, in_words
from scaling_law.runs.table import Runs
from scaling_law.runs.thinning import with_few_checkpoints
from scaling_law.size.architecture import DESIGN_VARIABLES
from scaling_law.size.arrays import BoolArray, FloatArray, IntArray, Interval

LawT_co = TypeVar("LawT_co", bound=Law, covariant=True)
# Starts within this relative distance of the best objective agree with it.
AGREEMENT = 1e-6
# Options of the first stage.
HELD: Fields = {"hold_transform": True, "max_iterations": 60, "tolerance": 1e-4}
LEAVE_OUT = "outliers: set_aside leaves them out"
# Starts that enter the second stage.
RELEASED = 64
# Starts are searched on at most this many runs; the best `FINALISTS` end on all runs.
SEARCHED = 1024
FINALISTS = 8


@dataclass(frozen=True, repr=False)
class FitStatus(Listed):
    """Convergence and identifiability of a fit: `n_agree` of the `n_released` best starts reached the best objective.

    `standard_errors` are of the logarithm for the `logarithmic` coefficients (a, b, c), of the logarithm of the
    `distances` for parameters of transforms ("e_max − e_start"), absolute for the rest; with a `prior`, they count it,
    and coefficients at a bound as open. `suspicious` runs lie far from the law of the others, the farthest first;
    `deviations` is their loss minus that of the fit without them, nats per token. `omitted`, `doubts`: as of
    Conditions. `blended`: the runs differ so much in settings that no answer of their law is to be trusted.
    `repetition`: what R* rest on, in sentences. `tied` coefficients equal the one they name.
    """

    converged: bool
    n_starts: int
    n_released: int
    n_agree: int
    bounds_hit: Strings
    condition_number: float
    standard_errors: Mapping[str, float]
    undetermined: Strings
    logarithmic: Strings = ()
    distances: Mapping[str, str] = field(default_factory=dict)
    suspicious: Strings = ()
    deviations: tuple[float, ...] = ()
    set_aside: Strings = ()
    n_trunks: int | None = None
    trunk_source: str | None = None
    warnings: Strings = ()
    omitted: Strings = ()
    prior: str = ""
    doubts: Strings = ()
    blended: bool = False
    repetition: Strings = ()
    tied: Mapping[str, str] = field(default_factory=dict)

    @property
    def trusted(self) -> bool:
        """True if the optimum is reached, one law describes the runs, and these or a prior determine it."""
        return self.converged and not self.blended and (self.determines_any or bool(self.prior))

    @property
    def open_coefficients(self) -> Strings:
        """The coefficients that the runs do not determine, or that lie at a bound."""
        return tuple(dict.fromkeys(self.undetermined + self.bounds_hit))

    @property
    def determines_any(self) -> bool:
        """True if the runs determine one coefficient at least, or none was fitted."""
        n_fitted = len({*self.standard_errors, *self.bounds_hit})
        return not n_fitted or len(self.open_coefficients) < n_fitted

    @property
    def verdict(self) -> str:
        """The convergence, and what the runs determine, since convergence says little of what they leave open."""
        agreement = f"{self.n_agree} of the {self.n_released} best of {self.n_starts} starts agree"
        if self.converged and not self.determines_any:
            source = "all coefficients from the prior" if self.prior else "no coefficient determined by the runs"
            return f"{source}; {agreement}"
        state = "converged" if self.converged else "NOT converged"
        determination = "all coefficients determined"
        if self.open_coefficients:
            source = "from the prior" if self.prior else "not determined by the runs"
            determination = f"{source}: {', '.join(self.open_coefficients)}"
        ties = "".join(f"; {name} = {leader}" for name, leader in self.tied.items())
        return f"{state}, {agreement}; {determination}{ties}"

    @property
    def messages(self) -> Strings:
        """The status as sentences, most important first."""
        return tuple(self._sentences())

    def _sentences(self) -> Iterator[str]:
        if not self.converged:
            yield Notice("The best start did not converge: the optimum is not reached.", "not converged")
        if not self.determines_any and not self.prior:
            advice = "a prior (public) adds what other labs' runs say"
            yield Notice(f"These runs determine no coefficient: {advice}.", advice)
        yield from map(_as_sentence, (*self.doubts, *self.omitted, *self.warnings))
        if self.n_agree < max(2, self.n_released // 10) and self.n_released > 1:
            subject = f"only {self.n_agree} of {self.n_released} starts reached the best objective"
            yield Notice(f"{subject.capitalize()}.", subject)
        if self.suspicious:
            yield self._list_suspicious()
        if self.bounds_hit:
            # The table says so, too, as of coefficients that are not determined.
            yield Notice(f"At a bound, so not determined by these runs: {', '.join(self.bounds_hit)}.")
        if self.undetermined:
            errors = [f"{name} ({self.error_in_words(name)})" for name in self.undetermined]
            source = f", so as in the prior from {self.prior}" if self.prior else ""
            yield Notice(f"Not determined by these runs{source}: {', '.join(errors)}.")
        if not self.prior and self.open_coefficients:
            advice = "bootstrap before extrapolating"
            reason = "These coefficients are not identifiable from the runs"
            sentence = f"{reason}. Trust predictions inside the fitted range; {advice}."
            yield Notice(sentence, f"not identifiable, {advice}")
        yield from self.repetition

    def _list_suspicious(self) -> str:
        """List the first ten suspicious runs with their deviations in a sentence."""
        count = len(self.suspicious)
        subject = "1 run lies" if count == 1 else f"{count} runs lie"
        fate = "set aside" if self.set_aside else f"still fitted; {LEAVE_OUT}"
        pairs = zip(self.suspicious[:10], self.deviations, strict=False)
        names = ", ".join(f"{name} ({nats:+.3g} nats)" for name, nats in pairs)
        ellipsis = ", …" if count > 10 else ""
        sentence = f"{subject} far from the law of the others ({fate}): {names}{ellipsis}."
        return Notice(sentence, say_far_away(self.suspicious))

    def error_in_words(self, name: str) -> str:
        """Format the standard error of a coefficient, as a factor where it is that of a logarithm."""
        error = self.standard_errors[name]
        if not np.isfinite(error):
            return "not determined at all"
        if name not in self.logarithmic and name not in self.distances:
            return f"± {error:.2g}"
        distance = f" of {self.distances[name]}" if name in self.distances else ""
        if error >= np.log(1e6):
            return f"more than ×÷ 1e6{distance}"
        return f"×÷ {np.exp(error):.3g}{distance}"

    def to_dict(self) -> Fields:
        """Return the status as plain JSON values, None for infinite numbers."""
        errors = {name: finite(error) for name, error in self.standard_errors.items()}
        return {
            **asdict(self),
            "standard_errors": errors,
            "condition_number": finite(self.condition_number),
            "verdict": self.verdict,
            "messages": list(self.messages),
        }

    def _headline(self) -> str:
        return self.verdict

    def __str__(self) -> str:
        return self.verdict


@dataclass(frozen=True, repr=False)
class FitResult(Answer, Generic[LawT_co]):
    """A fitted law with what it was fitted on.

    `objective` sums Huber losses on ln L over the runs `used`, `rmse` is theirs in nats per token, `finalists` are all
    starts of the second stage, and `repetition` has R*_D and R*_N of a fit with `unique_tokens`.
    """

    law: LawT_co
    objective: float
    rmse: float
    status: FitStatus
    runs: Runs
    problem: Problem
    theta: FloatArray
    finalists: Solutions
    repetition: RepetitionFit | None = None

    @property
    def verdict(self) -> str:
        count = int(self.used.sum())
        return f"{self.law.name} law of {count} runs: RMSE {self.rmse:.4f} nats, {self.status.verdict}"

    @property
    def trusted(self) -> bool:
        """True if the optimum is reached, one law describes the runs, and these or a prior determine it."""
        return self.status.trusted

    @property
    def used(self) -> BoolArray:
        """Runs [n] of positive weight that were not set aside."""
        return self.problem.used

    @property
    def fitted(self) -> list[str]:
        """The coefficients that the fit moved; those tied to them go along."""
        return self.problem.settings.fitted(self.law.coefficients)

    @property
    def residuals(self) -> FloatArray:
        """Predicted minus observed loss of every run, nats per token, [n]."""
        return errors_of(self.law, self.runs)

    def errors_on(self, runs: Runs) -> FloatArray:
        """Return predicted minus observed loss of other runs, nats per token, [n]."""
        return errors_of(self.law, runs)

    def rmse_by_experts(self) -> dict[float, float]:
        """Return the RMSE for each E, nats per token."""
        return {e: rms(errors) for e, errors in self._errors_by_experts().items()}

    def bias_by_experts(self) -> dict[float, float]:
        """Return the mean of predicted minus observed for each E."""
        return {e: float(errors.mean()) for e, errors in self._errors_by_experts().items()}

    def _errors_by_experts(self) -> dict[float, FloatArray]:
        errors = self.residuals[self.used]
        experts = self.runs.experts[self.used]
        return {float(e): errors[experts == e] for e in np.unique(experts)}

    @reads
    def bootstrap(
        self,
        n_resamples: Annotated[int, Field(ge=2)] = 1000,
        seed: Whole = 0,
        progress: bool = False,
    ) -> Bootstrap:
        """Refit to resampled trunks, from the optimum; under a prior, each with a mean drawn from it."""
        return bootstrap(self.law, self.problem, self.theta, self.runs, n_resamples, seed, progress)

    def facts(self) -> Fields:
        facts: Fields = {
            "law": self.law.name,
            "coefficients": self.law.coefficients,
            "objective": self.objective,
            "rmse": self.rmse,
            "runs": int(self.used.sum()),
            "source": self.runs.source,
            "loss": self.runs.loss_name,
            "vocab_size": self.runs.vocab_size,
            "settings": self.problem.settings.to_dict(),
            "rmse_by_experts": {f"{e:g}": value for e, value in self.rmse_by_experts().items()},
            "status": self.status.to_dict(),
        }
        if self.repetition is not None:
            facts["repetition"] = asdict(self.repetition)
        return facts

    def _lines(self) -> str:
        """Return the verdict, the formula, and how many runs of which table were fitted."""
        status = self.status
        count = f"{int(self.used.sum())} runs of {status.n_trunks} trunks ({status.trunk_source})"
        if status.set_aside:
            count += f", {len(status.set_aside)} set aside"
        vocabulary = f", vocabulary {self.runs.vocab_size:,}" if self.runs.vocab_size else ""
        source = f"{count} from {self.runs.source}, {self.runs.loss_name}{vocabulary}"
        return f"{self.verdict}\n{self.law.formula}\n{source}; objective {self.objective:.6g}"

    def _cells(self) -> list[Fields]:
        """Show the coefficients with their standard errors, and where the value of each is from."""
        status = self.status
        cells = []
        for row in self.rows:
            name = row["coefficient"]
            source = ""
            if row["tied_to"]:
                source = f"= {row['tied_to']}"
            elif row["at_bound"]:
                source = "at a bound"
            elif row["fixed"]:
                source = "fixed"
            elif not row["determined"]:
                source = "from the prior" if status.prior else "not determined"
            elif status.prior:
                source = "from your runs"
            error = status.error_in_words(name) if name in status.standard_errors else ""
            cells.append({"": name, "value": f"{row['value']:.5g}", "standard error": error, " ": source})
        return cells

    def summary(self) -> Tables:
        """Show the coefficients, and the errors for each E."""
        rows = []
        for e, errors in self._errors_by_experts().items():
            cells = {"E": f"{e:g}", "runs": len(errors), "RMSE": f"{rms(errors):.4f}"}
            rows.append({**cells, "mean error": f"{errors.mean():+.4f}"})
        return Tables((super().summary(), Table.of(rows, title="Errors per number of experts (nats)")))

    def figure(self, axes: Any = None) -> NDArray[Any]:
        """Plot predicted against observed losses, with the errors below."""
        return predicted_against_observed(self, axes)


def _list_coefficients(
    law: Law,
    settings: FitSettings,
    status: FitStatus,
    repetition: RepetitionFit | None,
) -> list[Fields]:
    """Return one row per coefficient; the standard error is NaN where it is fixed or at a bound."""
    vague = {*status.open_coefficients}
    values = dict(law.coefficients)
    if repetition is not None:
        values.update(repetition.coefficients)
        vague.update(repetition.undetermined)
    rows = []
    for name, value in values.items():
        leader = settings.tied.get(name)
        row = {
            "coefficient": name,
            "value": value,
            "standard_error": status.standard_errors.get(name, float("nan")),
            "of_logarithm": name in status.logarithmic,
            "fixed": name in settings.fixed,
            "tied_to": leader,
            "at_bound": name in status.bounds_hit,
            "determined": name not in settings.fixed and (leader or name) not in vague,
        }
        rows.append(row)
    return rows


def _as_sentence(text: str) -> str:
    """Write a warning as a sentence; a notice keeps its short form."""
    sentence = f"{text[0].upper()}{text[1:]}."
    return Notice(sentence, text.topic) if isinstance(text, Notice) else sentence


def finite(value: float) -> float | None:
    """Return a number that JSON can hold; None for an infinite one and NaN."""
    return float(value) if np.isfinite(value) else None


def rms(errors: FloatArray) -> float:
    """Compute the root mean square; NaN of nothing."""
    return float(np.sqrt(np.mean(errors**2))) if len(errors) else float("nan")


@reads
def errors_of(law: Law, runs: Runs) -> FloatArray:
    """Return predicted minus observed loss, nats per token, [n].

    RunsError for a variable of the law that the runs lack.
    """
    variables = variables_of(runs, law)
    if law.repetition is not None and UNIQUE in runs:
        variables = (*variables, UNIQUE)
    return np.asarray(law.loss(**{name: runs.column(name) for name in variables}) - runs.loss)


@reads
def fit(
    runs: Any,
    kind: Annotated[str | Path | Law | type[Law], UNREAD] = "joint",
    *,
    huber_delta: Positive = 0.01,
    weights: str | ArrayLike | None = None,
    fixed: Mapping[str, float | str] | None = None,
    bounds: Mapping[str, Interval] | None = None,
    starts: Sequence[Law] | None = None,
    outliers: Literal["keep", "set_aside"] = "keep",
    progress: bool = False,
    mix: str | Collection[str] = (),
    allow_unidentifiable: bool = False,
    prior: Annotated[Prior | Law | str | None, UNREAD] = None,
    unique_tokens: str | ArrayLike | None = None,
) -> FitResult[Law]:
    """Fit a law of this `kind` to `runs` (a Runs, or anything `load_runs` reads).

    Args:
        kind: "joint", "chinchilla", "routed", or the name of another registered kind of law, its class, or the file of
            its form.
        huber_delta: threshold of the Huber loss on ln L (the paper's 0.01).
        weights: of the runs [n] or the name of a column of them, such as squared inverse standard errors; None for
            equal ones. "inverse_loss" reads the paper's underweighting of underperforming runs as weights
            proportional to 1 / loss (lowest loss: 1).
        fixed: values such as {"e_max": 256.0}, and ties such as {"alpha": "beta"}: two exponents that stay equal.
        bounds: closed intervals such as {"c": (1.0, 1.8), "e_max": (64, None)}; None keeps the default end:
            0 < c ≤ the lowest loss, 1.01 ≤ E_start ≤ 101, 1 ≤ E_max − E_start ≤ 1e5, the rest very wide. E_start stays
            below the lower bound of E_max.
        starts: laws to start from (None: a few hundred starts around the data).
        outliers: "keep" fits runs far from the law of the others (`fitting.diagnostics`), "set_aside" leaves them out
            and records it in the law's conditions. Beyond 30 % of the runs, all are kept, with a warning.
        mix: columns in which the runs may differ, such as ("optimizer",), besides the law's own.
        allow_unidentifiable: fit although the design cannot determine all coefficients.
        prior: for the posterior mode, with the noise of the runs estimated: "public" (a law like those of other labs;
            the terms of E of a joint law are like the published one's), a law of this kind or its name ("published"),
            which another corpus and recipe move as labs differ, or what `scaling_law.prior` returns. Few runs, of one
            size even, then determine a law.
        unique_tokens: of which the tokens of each run are repetitions: a column, or numbers. Repeated tokens and
            excess parameters then count as what they are worth, with R*_D and R*_N moved from the published ones as
            far as the runs tell (`result.repetition`; docs/fit_options.md#repeated-data).

    ValueError for settings out of range and runs that cannot determine the law; RunsError for an unreadable table and
    for runs of several recipes.
    """
    table = runs if isinstance(runs, Runs) else load_runs(runs)
    if not len(table):
        raise RunsError(f"{table.source}: no runs")
    if unique_tokens is not None:
        table = with_unique_tokens(table, unique_tokens)
    # Of a curve with many checkpoints a few are fitted, with their weights.
    count = len(table)
    table, rows = with_few_checkpoints(table)
    weights = _select_rows(rows, weights, count)

    problem = make_problem(table, kind, huber_delta, weights, fixed, bounds, starts)
    variables = problem.objective.form.variables
    agreed = check_mix(table.recipe, variables, mix, table.source, (*table.columns, *table.texts))
    warnings = _check_design(table, problem, allow_unidentifiable or prior is not None)
    law_prior = None
    if prior is not None:
        law_prior, notes = read_prior(prior, table)
        warnings.extend(notes)
    minimum = _find_minimum(problem, starts, law_prior, None if unique_tokens is None else table[UNIQUE], progress)
    far_runs = find_outliers(minimum.problem, minimum.solutions.theta[0])
    if far_runs.warning:
        warnings.append(far_runs.warning)
    elif outliers == "set_aside":
        minimum = minimum.without(far_runs)

    # Repeated tokens are said apart, with the option that counts them.
    doubts, blended = table.doubts({*variables, *DESIGN_VARIABLES, *REPEATED, *agreed})
    suspicious, deviations = _rank_suspicious(table, far_runs)
    result = describe(
        table,
        minimum,
        doubts=doubts,
        blended=blended,
        suspicious=suspicious,
        deviations=deviations,
        warnings=(*warnings, *([table.thinned] if table.thinned else [])),
        set_aside=suspicious if outliers == "set_aside" else (),
    )
    return result if law_prior is None else _name_prior_limits(result, law_prior)


@dataclass(frozen=True)
class _Minimum:
    """A problem with its solutions, the best first, how many starts were searched, and R* where they were fitted."""

    problem: Problem
    solutions: Solutions
    n_starts: int
    repetition: RepetitionFit | None = None

    def without(self, outliers: Outliers) -> _Minimum:
        """Fit again without the suspicious runs."""
        problem = self.problem.without(outliers.suspicious)
        solutions = _polish(problem, np.vstack([outliers.theta, self.solutions.theta[1:]]))
        return replace(self, problem=problem, solutions=solutions)


def _find_minimum(
    problem: Problem,
    starts: Sequence[Law] | None,
    law_prior: Prior | None,
    unique_tokens: FloatArray | None,
    progress: bool,
) -> _Minimum:
    """Minimise from the starts, under a prior where there is one, and with R* where tokens repeat."""
    if unique_tokens is not None:
        problem = repeated(problem, unique_tokens, Repetition(), counts_sizes=False)
    theta = start_points(problem, starts)
    if law_prior is not None:
        problem, theta = under(law_prior, problem, theta)
    solutions = _search(problem, theta, progress) if starts is None else _polish(problem, theta)
    if unique_tokens is None:
        return _Minimum(problem, solutions, len(theta))
    problem, best, repetition = fit_repetition(problem, solutions.theta[0])
    solutions = _polish(problem, np.vstack([best, solutions.theta[1:FINALISTS]]))
    return _Minimum(problem, solutions, len(theta), repetition)


def say_far_away(names: Sequence[str]) -> str:
    """Name the first runs that lie far from the law of the others, in few words."""
    ellipsis = ", …" if len(names) > 3 else ""
    verb = "lies" if len(names) == 1 else "lie"
    return f"run {', '.join(names[:3])}{ellipsis} {verb} far from the law of the others"


def _name_prior_limits(result: FitResult[Law], law_prior: Prior) -> FitResult[Law]:
    """Record the ranges of the runs behind a prior: a law under it answers there, too, but is trusted on its own."""
    conditions = result.law.conditions
    if law_prior.conditions is None or conditions is None:
        return result
    limits = law_prior.conditions.known_limits()
    return replace(result, law=result.law.replace(conditions=replace(conditions, prior_limits=limits or None)))


def _rank_suspicious(runs: Runs, outliers: Outliers) -> tuple[Strings, tuple[float, ...]]:
    """Return the names of suspicious runs, the farthest first, and how far they deviate, nats."""
    rows = np.flatnonzero(outliers.suspicious)
    rows = rows[np.argsort(-np.abs(outliers.deviation[rows]), kind="stable")]
    nats = runs.loss[rows] * -np.expm1(-outliers.deviation[rows])
    return tuple(runs.run_id[i] for i in rows), tuple(nats.tolist())


def _select_rows(
    rows: IntArray,
    values: Any,
    count: int,
) -> Any:
    """Select the rows of a setting that has a value for each of `count` runs; leave any other as it is."""
    is_list = isinstance(values, (Sequence, np.ndarray)) and not isinstance(values, str)
    has_each = is_list and getattr(values, "ndim", 1) == 1 and len(values) == count
    return np.asarray(values)[rows] if has_each else values


def _polish(problem: Problem, theta: FloatArray) -> Solutions:
    """Solve from each θ [S, p] to a tight tolerance, with all parameters released."""
    batches = _split_batches(problem, theta)
    return Solutions.sorted(*(problem.solve(batch, max_iterations=1000, tolerance=1e-12) for batch in batches))


def _search(
    problem: Problem,
    theta: FloatArray,
    progress: bool,
) -> Solutions:
    """Find the best of the starts θ [S, p], released after a first stage with E_start and E_max held.

    Of many runs, a sample is searched first.
    """
    sample = problem.sample(SEARCHED)
    final = _polish(sample, _first_stage(sample, theta, progress).theta[:RELEASED])
    return final if sample is problem else _polish(problem, final.theta[:FINALISTS])


def _first_stage(
    problem: Problem,
    theta: FloatArray,
    progress: bool,
) -> Solutions:
    """Solve from each θ [S, p] with E_start and E_max held, in batches that share both."""
    groups = [theta]
    if problem.objective.form.parameters:
        transforms = theta[:, problem.objective.first_transform :]
        distinct, index = np.unique(transforms, axis=0, return_inverse=True)
        groups = [theta[index.ravel() == i] for i in range(len(distinct))]
    solutions: list[Solutions] = []
    with progress_line("fit", len(theta), "starts", progress) as advance:
        for group in groups:
            for batch in _split_batches(problem, group):
                solutions.append(problem.solve(batch, **HELD))
                best = min(float(solution.cost.min()) for solution in solutions)
                advance(len(batch), f"objective {best:.4g}")
    return Solutions.sorted(*solutions)


def _split_batches(problem: Problem, theta: FloatArray) -> list[FloatArray]:
    return [theta[i : i + problem.batch] for i in range(0, len(theta), problem.batch)]


def _check_design(
    runs: Runs,
    problem: Problem,
    allow_unidentifiable: bool,
) -> list[str]:
    """Say what this design cannot determine; ValueError unless that is allowed."""
    objective = problem.objective
    problems = design_problems(problem)
    if problems and not allow_unidentifiable:
        name = objective.names[0]
        fix = given("fixed", {name: "…"}, in_shell=f"--fix {name}=…")
        unchecked = given("allow_unidentifiable", True)
        reason = f"{runs.source}: {'; '.join(problems)}. Fix coefficients ("
        raise InputError(reason, fix, "), fit another law, or pass ", unchecked)
    for name, low in zip(objective.names, np.exp(problem.lower), strict=True):
        n_below = int(np.sum(runs.loss <= low))
        if name in objective.form.constants and n_below:
            problems.append(f"the constant {name} ≥ {low:g} is above the loss of {n_below} of {len(runs)} runs")
    return problems


def describe(runs: Runs, minimum: _Minimum, **search: Any) -> FitResult[Law]:
    """Make the result of the best solution; `search` holds further fields of the FitStatus."""
    problem = minimum.problem
    theta = minimum.solutions.theta[0]
    law = problem.objective.make_law(theta)
    errors = errors_of(law, runs)
    rmse = rms(errors[problem.used])
    fitted_runs = runs.subset(problem.used)
    search.update(n_trunks=fitted_runs.n_trunks, trunk_source=fitted_runs.trunk_source)
    status = _make_status(runs, minimum, errors, **search)
    conditions = fitted_runs.conditions(
        _provenance(runs, problem, law, status),
        objective=problem.settings.to_dict(),
        rmse=rmse,
        status=status.verdict,
        trunks=status.n_trunks,
        trunk_source=status.trunk_source,
        set_aside=status.set_aside,
        warmup_tokens=fitted_runs.warmup_tokens,
        variables=_ranges_of(fitted_runs, law) or None,
        omitted=status.omitted,
        doubts=status.doubts,
    )
    return FitResult(
        law=law.replace(conditions=conditions),
        objective=float(minimum.solutions.cost[0]),
        rmse=rmse,
        status=status,
        runs=runs,
        problem=problem,
        theta=theta,
        finalists=minimum.solutions,
        repetition=minimum.repetition,
        columns=columns_of(_list_coefficients(law, problem.settings, status, minimum.repetition)),
        check=None,
        notes=status.messages,
    )


def _make_status(runs: Runs, minimum: _Minimum, errors: FloatArray, **search: Any) -> FitStatus:
    """Say how the best solution was reached, and what the runs tell of its coefficients."""
    problem = minimum.problem
    objective = problem.objective
    theta = minimum.solutions.theta[0]
    cost = minimum.solutions.cost
    free = problem.free(theta)
    is_at_bound = ~free & (problem.lower < problem.upper)
    condition_number, standard_errors, undetermined = examine(objective, theta, free, is_at_bound)
    logarithmic = [name for name in objective.names if name in objective.form.positive]
    if minimum.repetition is not None:
        standard_errors.update(minimum.repetition.standard_errors)
        logarithmic += minimum.repetition.standard_errors
    return FitStatus(
        converged=bool(minimum.solutions.converged[0]),
        n_starts=minimum.n_starts,
        n_released=len(cost),
        n_agree=int(np.sum(cost - cost[0] <= cost[0] * AGREEMENT + 10.0 * problem.floor)),
        bounds_hit=tuple(name for name, hit in zip(objective.names, is_at_bound, strict=True) if hit),
        condition_number=condition_number,
        standard_errors=standard_errors,
        logarithmic=tuple(logarithmic),
        distances=objective.distances,
        undetermined=undetermined,
        omitted=omitted_variables(problem, theta, runs, errors),
        prior=problem.settings.prior,
        repetition=minimum.repetition.messages if minimum.repetition else (),
        tied=problem.settings.tied,
        **search,
    )


def _ranges_of(runs: Runs, law: Law) -> dict[str, Interval]:
    """Return the ranges of the law's variables beside N, D and E, and of epochs where the law counts them."""
    columns = {name: runs.column(name) for name in sorted({*law.form.variables} - {"n_active", "tokens", "experts"})}
    if law.repetition is not None:
        columns["epochs"] = np.maximum(runs.tokens / runs[UNIQUE], 1.0)
    return {name: (float(values.min()), float(values.max())) for name, values in columns.items()}


def _provenance(
    runs: Runs,
    problem: Problem,
    law: Law,
    status: FitStatus,
) -> str:
    """Say on which of the runs the law was fitted, and how these were read."""
    mixed = differences(runs.subset(problem.used).recipe, law.form.variables)
    remarks = {
        ", where": runs.where,
        ", read with": runs.read_as,
        ";": runs.thinned,
        ", under a prior from": problem.settings.prior,
        ", mixing runs that differ in": in_words(mixed),
    }
    provenance = f"fitted on {runs.source}"
    provenance += "".join(f"{words} {remark}" for words, remark in remarks.items() if remark)
    provenance += f" ({runs.loss_name})"
    if status.set_aside:
        provenance += f"; {len(status.set_aside)} of {len(runs)} runs set aside as outliers"
    return provenance
