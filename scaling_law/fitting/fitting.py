"""Fit a law to runs, by the objective of Ludziejewski et al. 2025, Appendix "Fit Details", summed over runs.

The mean would stop early at usual tolerances. E_start and E_max make the surface rough: every start first runs with
both fixed, then the best are released. Deterministic.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hub.base.errors import InputError, given
from hub.base.inputs import as_it_is, reads, whole
from hub.base.progress import progress_line
from hub.base.tables import Table
from scaling_law.figures.law_figures import predicted_against_observed
from scaling_law.fitting.diagnostics import MOST, design_problems, examine, find_outliers, omitted_variables
from scaling_law.fitting.holdout import Forecaster, Ranking, backtest_at_cuts, rank_kinds, rms
from scaling_law.fitting.prior import Prior, read_prior, under
from scaling_law.fitting.problem import BATCH, Problem, make_problem, start_points, variables_of
from scaling_law.fitting.repetition import (
    REPEATED,
    UNIQUE,
    RepetitionFit,
    fit_repetition,
    repeated,
    unexplained_repetition,
    with_unique_tokens,
)
from scaling_law.fitting.solver import Solutions
from scaling_law.fitting.uncertainty import Bootstrap, bootstrap
from scaling_law.formulas.answers import Answer
from scaling_law.formulas.conditions import join_limits
from scaling_law.formulas.law import check_count
from scaling_law.formulas.repeated import Repetition
from scaling_law.law import LAWS, Law
from scaling_law.runs.loading import load_runs
from scaling_law.runs.recipes import check_mix, differences, in_words, names_mixed
from scaling_law.runs.rows import RunsError
from scaling_law.runs.table import Runs
from scaling_law.runs.thinning import rows_of_curves, with_few_checkpoints
from scaling_law.size.architecture import DESIGN_VARIABLES
from scaling_law.size.arrays import FloatArray

if TYPE_CHECKING:
    from rich.console import RenderableType

LawT_co = TypeVar("LawT_co", bound=Law, covariant=True)
AGREEMENT = 1e-6  # starts within this relative distance of the best objective agree with it
# Options of the first stage.
HELD: dict[str, Any] = {"hold_transform": True, "max_iterations": 60, "tolerance": 1e-4}
LEAVE_OUT = 'outliers="set_aside" leaves them out'
ALL = "all"  # kinds of laws
NO_CUT = "no cut of compute leaves six runs of three sizes below it"
SEARCHED = 1024  # runs, at most, that starts are searched on; the best `FINALISTS` end on all runs
FINALISTS = 8
MANY = 1000  # starts, of which those that share a basin are solved once


@dataclass(frozen=True)
class FitStatus:
    """Convergence and identifiability of a fit: `n_agree` of the `n_released` best starts reached the best objective.

    `standard_errors` are of the logarithm for the `logarithmic` coefficients (a, b, c), of the logarithm of the
    `distances` for parameters of transforms ("e_max − e_start"), absolute for the rest; with a `prior`, they count it.
    `suspicious` runs lie far from the law of the others, the farthest first; `deviations` is their loss minus that of
    the fit without them, nats per token. `omitted`, `doubts`: as of Conditions. `blended`: the runs differ so much in
    settings that no answer of their law is to be trusted. `repetition`: what R* rest on, in sentences. `tied`
    coefficients equal the one they name.
    """

    converged: bool
    n_starts: int
    n_released: int
    n_agree: int
    bounds_hit: tuple[str, ...]
    condition_number: float
    standard_errors: Mapping[str, float]
    undetermined: tuple[str, ...]
    logarithmic: tuple[str, ...] = ()
    distances: Mapping[str, str] = field(default_factory=dict)
    suspicious: tuple[str, ...] = ()
    deviations: tuple[float, ...] = ()
    set_aside: tuple[str, ...] = ()
    n_trunks: int | None = None
    trunk_source: str | None = None
    warnings: tuple[str, ...] = ()
    omitted: tuple[str, ...] = ()
    prior: str = ""
    doubts: tuple[str, ...] = ()
    blended: bool = False
    repetition: tuple[str, ...] = ()
    tied: Mapping[str, str] = field(default_factory=dict)

    @property
    def trusted(self) -> bool:
        """Whether the optimum is reached, of runs that one law describes."""
        return self.converged and not self.blended

    @property
    def verdict(self) -> str:
        state = "converged" if self.converged else "NOT converged"
        agreement = f"{self.n_agree} of the {self.n_released} best of {self.n_starts} starts agree"
        vague = ", ".join(dict.fromkeys(self.undetermined + self.bounds_hit))
        open_to = "left to the prior" if self.prior else "not determined by the data"
        rest = f"{open_to}: {vague}" if vague else "all coefficients determined"
        ties = "".join(f"; {name} = {leader}" for name, leader in self.tied.items())
        return f"{state}, {agreement}; {rest}{ties}"

    @property
    def messages(self) -> tuple[str, ...]:
        """The status as sentences, most important first."""
        sentences = [] if self.converged else ["The best start did not converge: the optimum is not reached."]
        sentences += [f"{text[0].upper()}{text[1:]}." for text in (*self.doubts, *self.omitted, *self.warnings)]
        if self.n_agree < max(2, self.n_released // 10) and self.n_released > 1:
            sentences.append(f"Only {self.n_agree} of {self.n_released} starts reached the best objective.")
        if self.suspicious:
            pairs = zip(self.suspicious[:10], self.deviations, strict=False)
            names = ", ".join(f"{name} ({nats:+.3g} nats)" for name, nats in pairs)
            count = "1 run lies" if len(self.suspicious) == 1 else f"{len(self.suspicious)} runs lie"
            fate = "set aside" if self.set_aside else f"still fitted; {LEAVE_OUT}"
            more = ", …" if len(self.suspicious) > 10 else ""
            sentences.append(f"{count} far from the law of the others ({fate}): {names}{more}.")
        if self.bounds_hit:
            sentences.append(f"At a bound, so not determined by these runs: {', '.join(self.bounds_hit)}.")
        if self.undetermined:
            each = [f"{name} ({self.error_in_words(name)})" for name in self.undetermined]
            so = f", so as in the prior from {self.prior}" if self.prior else ""
            sentences.append(f"Not determined by these runs{so}: {', '.join(each)}.")
        if not self.prior and (self.bounds_hit or self.undetermined):
            sentences.append(
                "These coefficients are not identifiable from the runs. Trust predictions inside the fitted range; "
                "bootstrap before extrapolating."
            )
        return (*sentences, *self.repetition)

    def error_in_words(self, name: str) -> str:
        error = self.standard_errors[name]
        if not np.isfinite(error):
            return "not determined at all"
        if name not in self.logarithmic and name not in self.distances:
            return f"± {error:.2g}"
        what = f" of {self.distances[name]}" if name in self.distances else ""
        return f"×÷ {np.exp(error):.3g}{what}" if error < np.log(1e6) else f"more than ×÷ 1e6{what}"

    def to_dict(self) -> dict[str, Any]:
        """Infinite numbers become None."""
        return asdict(self) | {
            "standard_errors": {name: finite(error) for name, error in self.standard_errors.items()},
            "condition_number": finite(self.condition_number),
            "verdict": self.verdict,
            "messages": list(self.messages),
        }

    def __str__(self) -> str:
        return self.verdict


@dataclass(frozen=True, repr=False)
class FitResult(Answer, Generic[LawT_co]):
    """A fitted law with what it was fitted on.

    `objective` sums Huber losses on ln L over the runs `used`, `rmse` (nats per token) covers those that are
    `measured`, `finalists` are all starts of the second stage, `kinds` ranks the kinds of `fit(kind="all")`, and
    `repetition` has R*_D and R*_N of a fit with `unique_tokens`.
    """

    law: LawT_co
    objective: float
    rmse: float
    status: FitStatus
    runs: Runs
    problem: Problem
    theta: FloatArray
    finalists: Solutions
    kinds: Ranking | None = None
    repetition: RepetitionFit | None = None

    @property
    def verdict(self) -> str:
        state = "converged" if self.status.converged else "NOT converged"
        return f"{self.law.name} law of {int(self.used.sum())} runs: RMSE {self.rmse:.4f} nats, {state}"

    @property
    def rows(self) -> tuple[dict[str, Any], ...]:
        """One for each coefficient."""
        return tuple(self.to_rows())

    @property
    def trusted(self) -> bool:
        """Whether the optimum is reached, of runs that one law describes."""
        return self.status.trusted

    @property
    def warnings(self) -> tuple[str, ...]:
        return self.status.messages

    @property
    def used(self) -> NDArray[np.bool_]:
        """Runs [n] of positive weight that were not set aside."""
        return self.problem.used

    @property
    def measured(self) -> NDArray[np.bool_]:
        """The runs [n] used that are no upper bounds."""
        return self.problem.measured

    @property
    def fitted(self) -> list[str]:
        """The coefficients that the fit moved; those tied to them go along."""
        settings = self.problem.settings
        return [name for name in self.law.coefficients if name not in settings.fixed and name not in settings.tied]

    @property
    def residuals(self) -> FloatArray:
        """Predicted minus observed loss of every run, nats per token, [n]."""
        return errors_of(self.law, self.runs)

    def errors_on(self, runs: Runs) -> FloatArray:
        return errors_of(self.law, runs)

    def rmse_by_experts(self) -> dict[float, float]:
        return {e: rms(errors) for e, errors in self._errors_by_experts().items()}

    def bias_by_experts(self) -> dict[float, float]:
        """Mean of predicted minus observed for each E."""
        return {e: float(errors.mean()) for e, errors in self._errors_by_experts().items()}

    def _errors_by_experts(self) -> dict[float, FloatArray]:
        errors, experts = self.residuals[self.measured], self.runs.experts[self.measured]
        return {float(e): errors[experts == e] for e in np.unique(experts)}

    @reads(n_resamples=whole(2), seed=whole())
    def bootstrap(self, n_resamples: int = 1000, seed: int = 0, progress: bool = False) -> Bootstrap:
        """Refits to resampled trunks, from the optimum; under a prior, each with a mean drawn from it."""
        return bootstrap(self.law, self.problem, self.theta, self.runs, n_resamples, seed, progress)

    def facts(self) -> dict[str, Any]:
        return (
            {
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
            | ({"kinds": self.kinds.to_dict()} if self.kinds else {})
            | self._facts_of_repetition()
        )

    def _facts_of_repetition(self) -> dict[str, Any]:
        return {} if self.repetition is None else {"repetition": asdict(self.repetition)}

    def to_rows(self) -> list[dict[str, Any]]:
        """One row per coefficient; the standard error is NaN where it is fixed or at a bound."""
        status, settings, values = self.status, self.problem.settings, self.law.coefficients
        fixed = {*settings.fixed}
        vague = {*status.undetermined, *status.bounds_hit}
        if self.repetition is not None:
            values = values | self.repetition.coefficients
            fixed |= {*self.repetition.coefficients} - {*self.repetition.errors}
        return [
            {
                "coefficient": name,
                "value": value,
                "standard_error": status.standard_errors.get(name, float("nan")),
                "of_logarithm": name in status.logarithmic,
                "fixed": name in fixed,
                "tied_to": settings.tied.get(name),
                "at_bound": name in status.bounds_hit,
                "determined": name not in fixed and settings.tied.get(name, name) not in vague,
            }
            for name, value in values.items()
        ]

    def summary(self) -> RenderableType:  # type: ignore[override]
        from rich.console import Group
        from rich.text import Text

        status = self.status
        count = f"{int(self.used.sum())} runs of {status.n_trunks} trunks ({status.trunk_source})"
        bounds = int((self.used & ~self.measured).sum())
        aside = f", {len(status.set_aside)} set aside" if status.set_aside else ""
        aside += f", {bounds} as upper bounds" if bounds else ""
        vocabulary = f", vocabulary {self.runs.vocab_size:,}" if self.runs.vocab_size else ""
        head = Text(f"{self.verdict}\n")
        head.append(f"{self.law.formula}\n", style="bold")
        head.append(f"{count}{aside} from {self.runs.source}, {self.runs.loss_name}{vocabulary}; ")
        head.append(f"objective {self.objective:.6g}")
        rows, styles = [], []
        for row in self.to_rows():
            name, doubtful = row["coefficient"], not (row["determined"] or row["fixed"])
            error = status.error_in_words(name) if status.standard_errors.get(name) else ""
            vague = "left to the prior" if status.prior else "not determined"
            note = "at a bound" if row["at_bound"] else vague if doubtful else ""
            note = f"= {row['tied_to']}" if row["tied_to"] else note
            rows.append((name, f"{row['value']:.5g}", "fixed" if row["fixed"] else error, note))
            styles.append("yellow" if doubtful else "")
        coefficients = Table(("", "value", "standard error", ""), rows, title="Coefficients", styles=styles)
        by_experts = Table(
            ("E", "runs", "RMSE", "mean error"),
            [
                (f"{e:g}", len(errors), f"{rms(errors):.4f}", f"{errors.mean():+.4f}")
                for e, errors in self._errors_by_experts().items()
            ],
            title="Errors per number of experts (nats)",
            notes=[status.verdict],
            warnings=status.messages,
        )
        return Group(head, *([self.kinds.summary()] if self.kinds else []), coefficients, by_experts)

    def figure(self, axes: Any = None) -> NDArray[Any]:
        """Predicted against observed losses, with the errors below."""
        return predicted_against_observed(self, axes)

    def __repr__(self) -> str:
        return f"FitResult({self.law!r}, rmse={self.rmse:.4g}, objective={self.objective:.6g}, {self.status.verdict})"


def finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


@reads
def errors_of(law: Law, runs: Runs) -> FloatArray:
    """Predicted minus observed loss, nats per token, [n]. RunsError for a variable of the law that the runs lack."""
    variables = variables_of(runs, law)
    if law.repetition is not None and UNIQUE in runs:
        variables = (*variables, UNIQUE)
    return np.asarray(law.loss(**{name: runs.column(name) for name in variables}) - runs.loss)


@reads(prior=as_it_is)
def fit(
    runs: Any,
    kind: str = "joint",
    *,
    huber_delta: float = 0.01,
    weights: str | ArrayLike | None = None,
    l2: float = 0.0,
    fixed: Mapping[str, float | str] | None = None,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    starts: Literal["scaled", "paper"] | Sequence[Law] = "scaled",
    release: int | None = None,
    outliers: Literal["keep", "set_aside"] = "keep",
    one_sided: str | ArrayLike | None = None,
    loss: str | None = None,
    trunks: str = "auto",
    progress: bool = False,
    mix: str | Collection[str] = (),
    allow_unidentifiable: bool = False,
    prior: Prior | Law | Literal["public"] | None = None,
    unique_tokens: str | ArrayLike | None = None,
    epochs: str | ArrayLike | None = None,
) -> FitResult[Law]:
    """Fit a law of this `kind` to `runs` (a Runs, or anything `load_runs` reads).

    Args:
        kind: "joint", "chinchilla", "routed", or the name of another registered kind of law; or "all" for the kind
            that forecasts best within the runs, fitted below several cuts of compute (`result.kinds` ranks them).
        huber_delta: threshold of the Huber loss on ln L (the paper's 0.01).
        weights: of the runs [n] or the name of a column of them, such as squared inverse standard errors; None for
            equal ones. "inverse_loss" reads the paper's underweighting of underperforming runs as weights
            proportional to 1 / loss (lowest loss: 1).
        l2: weight decay on the summed objective, in the law's parameters (logarithms for a, b, c). The paper's 1e-5
            moves the answer far along its flat directions.
        fixed: values such as {"e_max": 256.0}, and ties such as {"alpha": "beta"}: two exponents that stay equal.
        bounds: closed intervals such as {"c": (1.0, 1.8), "e_max": (64, None)}; None keeps the default end:
            0 < c ≤ the lowest loss, 1.01 ≤ E_start ≤ 101, 1 ≤ E_max − E_start ≤ 1e5, the rest very wide. E_start stays
            below the lower bound of E_max.
        starts: "scaled" (a few hundred around the data), "paper" (its full grid), or laws to start from.
        release: how many starts enter the second stage (None: 256 of the paper's grid, 64 of the scaled one).
        outliers: "keep" fits runs far from the law of the others (`fitting.diagnostics`), "set_aside" leaves them out
            and records it in the law's conditions. Beyond 30 % of the runs, all are kept, with a warning.
        one_sided: runs that bound the law from above, such as runs that were not tuned: booleans [n], or a column of 1
            for them and 0 for the others. A prediction below such a loss costs nothing.
        loss, trunks: as in `load_runs`.
        mix: columns in which the runs may differ, such as ("optimizer",), besides the law's own.
        allow_unidentifiable: fit although the design cannot determine all coefficients.
        prior: for the posterior mode, with the noise of the runs estimated: "public" (a law like those of other labs;
            the terms of E of a joint law are like the published one's), a law of this kind, which another corpus and
            recipe move as labs differ, or what `scaling_law.prior` returns. Few runs, of one size even, then
            determine a law.
        unique_tokens: of which the tokens of each run are repetitions, or instead their `epochs`, tokens over unique
            ones: a column, or numbers. Repeated tokens and excess parameters then count as what they are worth, with
            R*_D and R*_N fitted where the runs tell them, else as published (`result.repetition`;
            docs/fitting.md#repeated-data).

    ValueError for settings out of range and runs that cannot determine the law; RunsError for an unreadable table and
    for runs of several recipes.
    """
    table, counted = as_table(runs, loss, trunks), not (unique_tokens is None and epochs is None)
    if counted:
        table = with_unique_tokens(table, unique_tokens, epochs)
    if kind == ALL:
        robust: dict[str, Any] = {"huber_delta": huber_delta, "weights": weights, "l2": l2, "one_sided": one_sided}
        search: dict[str, Any] = {"fixed": fixed, "bounds": bounds, "starts": starts, "release": release}
        options = robust | search | {"outliers": outliers, "mix": mix, "prior": prior}
        options |= {"unique_tokens": UNIQUE if counted else None}
        return _best_kind(table, options | {"allow_unidentifiable": allow_unidentifiable})
    if outliers not in ("keep", "set_aside"):
        raise InputError(f"outliers={outliers!r} must be 'keep' or 'set_aside'")
    if release is not None:
        check_count("release", release, 1)
    rows = rows_of_curves(table)
    n_rows = len(table)
    table = with_few_checkpoints(table, rows)
    weights, one_sided = (_at(rows, values, n_rows) for values in (weights, one_sided))
    problem = make_problem(table, kind, huber_delta, weights, l2, fixed, bounds, starts, one_sided)
    variables = problem.objective.form.variables
    check_mix(table.recipe, variables, mix, table.source, (*table.columns, *table.texts))
    # Repeated tokens are said apart, with the option that counts them.
    doubts, blended = table.doubts({*variables, *DESIGN_VARIABLES, *REPEATED, *names_mixed(mix)})
    if counted:
        problem = repeated(problem, table[UNIQUE], Repetition())
    warnings = _design_warnings(table, problem, allow_unidentifiable or prior is not None)
    warnings += [table.thinned] if table.thinned else []
    theta = start_points(problem, starts)
    if prior is not None:
        prior = read_prior(prior)
        problem, theta = under(prior, problem, theta)
    search = {"n_starts": len(theta), "prior": problem.settings.prior, "doubts": doubts, "blended": blended}
    if isinstance(starts, str):
        final = _searched(problem, theta, release or (256 if starts == "paper" else 64), progress)
    else:
        final = _released(problem, theta)
    repetition = None
    if counted:
        others = final.theta[1:]
        problem, final, repetition = fit_repetition(problem, table[UNIQUE], final.theta[0])
        final = Solutions.sorted(final, _released(problem, others)) if len(others) else final
    far = find_outliers(problem, final.theta[0])
    if far.too_many:
        count = f"{int(far.suspicious.sum())} of {int(problem.used.sum())} runs"
        warnings.append(
            f"{count} lie far from the law that fits the others; with more than {MOST:.0%} none is set aside: "
            "check the table and the form of the law"
        )
    elif outliers == "set_aside":
        problem = problem.without(far.suspicious)
        final = _released(problem, np.vstack([far.theta, final.theta[1:]]))
    rows = np.zeros(0, int) if far.too_many else np.flatnonzero(far.suspicious)
    rows = rows[np.argsort(-np.abs(far.deviation[rows]), kind="stable")]  # the farthest first
    names = tuple(table.run_id[i] for i in rows)
    nats = table.loss[rows] * -np.expm1(-far.deviation[rows])
    search |= {"suspicious": names, "deviations": tuple(nats.tolist()), "warnings": tuple(warnings)}
    search["set_aside"] = names if outliers == "set_aside" else ()
    result = _counted(describe(table, problem, final, search), repetition)
    before, after = prior.conditions if prior is not None else None, result.law.conditions
    if before is None or after is None:
        return result
    return replace(result, law=result.law.replace(conditions=replace(after, **join_limits(before, after))))


def _counted(result: FitResult[Law], repetition: RepetitionFit | None) -> FitResult[Law]:
    """The result with R*_D and R*_N in its status and conditions, where tokens are counted as what they are worth."""
    if repetition is None:
        return result
    status, conditions = result.status, result.law.conditions
    # Every fit has conditions.
    assert conditions is not None
    status = replace(
        status,
        standard_errors={**status.standard_errors, **repetition.errors},
        logarithmic=(*status.logarithmic, *repetition.errors),
        bounds_hit=(*status.bounds_hit, *repetition.at_bound),
        repetition=repetition.messages,
    )
    used = result.runs.subset(result.used)
    epochs = np.maximum(used.tokens / used[UNIQUE], 1.0)
    spans = {**(conditions.variables or {}), "epochs": (float(epochs.min()), float(epochs.max()))}
    law = result.law.replace(conditions=replace(conditions, variables=spans, status=status.verdict))
    return replace(result, law=law, status=status, repetition=repetition)


def _at(rows: NDArray[np.intp], values: Any, count: int) -> Any:
    """Take the rows of a setting that has a value for each of `count` runs."""
    is_list = isinstance(values, (Sequence, np.ndarray)) and not isinstance(values, str)
    has_each = is_list and getattr(values, "ndim", 1) == 1 and len(values) == count
    return np.asarray(values)[rows] if has_each else values


def _best_kind(runs: Runs, options: Mapping[str, Any]) -> FitResult[Law]:
    """The fit of the kind that rolling origin ranks first. ValueError where no cut leaves enough runs below it."""
    single = {name: options[name] for name in ("fixed", "bounds") if options[name]}
    single |= {name: options[name] for name in ("weights", "one_sided") if not isinstance(options[name], str | None)}
    single |= {} if isinstance(options["starts"], str) else {"starts": options["starts"]}
    if single:
        raise InputError(
            f"{next(iter(single))}: cannot go with ",
            given("kind", "all"),
            ", which takes columns by name and no coefficients",
        )
    results, left_out = dict[str, FitResult[Law]](), dict[str, str]()
    for name, law in LAWS.items():
        try:
            if law.form.terms:
                results[name] = fit(runs, name, **options)
        except ValueError as error:
            left_out[name] = str(error)

    # The fit to all runs is near those to some of them.
    def make_forecaster(result: FitResult[Law]) -> Forecaster:
        def forecast(train: Runs, test: Runs) -> FloatArray:
            refit = fit(train, result.law.name, **{**options, "starts": [result.law]})
            return refit.errors_on(test) + test.loss

        return forecast

    if not results:
        raise InputError(f"{runs.source}: no kind fits: {'; '.join(f'{k}: {why}' for k, why in left_out.items())}")
    backtests = backtest_at_cuts(runs, {name: make_forecaster(result) for name, result in results.items()})
    ranking = rank_kinds(backtests, [*results], left_out)
    if not ranking.cuts:
        raise InputError(f"{runs.source}: {NO_CUT}, so kind='all' cannot rank: {', '.join(results)} fit; name one")
    return replace(results[ranking.kinds[0]], kinds=ranking)


def _released(problem: Problem, theta: FloatArray) -> Solutions:
    parts = (problem.solve(batch, max_iterations=1000, tolerance=1e-12) for batch in _batches(problem, theta))
    return Solutions.sorted(*parts)


def _agree(final: Solutions, problem: Problem) -> int:
    """How many starts reached the lowest objective."""
    best = float(final.cost.min())
    return int(np.sum(np.abs(final.cost - best) <= best * AGREEMENT + 10.0 * problem.floor))


def _searched(problem: Problem, theta: FloatArray, release: int, progress: bool) -> Solutions:
    """The best of the starts θ [S, p] on all runs, of many runs after a search on a sample of them."""
    sample = problem.sample(SEARCHED)
    final = _two_stages(sample, theta, release, progress)
    return final if sample is problem else _released(problem, final.theta[:FINALISTS])


def _two_stages(problem: Problem, theta: FloatArray, release: int, progress: bool) -> Solutions:
    """The best of the starts θ [S, p], released after a first stage with E_start and E_max held."""
    distinct = distinct_starts(problem, theta)
    held = _first_stage(problem, theta[distinct], progress)
    final = _released(problem, held.theta[:release])
    if distinct.all() or 2 * _agree(final, problem) >= len(final.cost):
        return final
    # too many minima to leave any start out
    held = Solutions.sorted(held, _first_stage(problem, theta[~distinct], progress))
    return _released(problem, held.theta[:release])


def _first_stage(problem: Problem, theta: FloatArray, progress: bool) -> Solutions:
    """Solve from each θ [S, p] with E_start and E_max held, in batches that share both."""
    groups = [theta]
    if problem.objective.n_transform:
        shared, index = np.unique(theta[:, problem.objective.first_transform :], axis=0, return_inverse=True)
        groups = [theta[index.ravel() == i] for i in range(len(shared))]
    parts: list[Solutions] = []
    with progress_line("fit", len(theta), "starts", progress) as advance:
        for batch in (batch for group in groups for batch in _batches(problem, group)):
            parts.append(problem.solve(batch, **HELD))
            advance(len(batch), f"objective {min(float(part.cost.min()) for part in parts):.4g}")
    return Solutions.sorted(*parts)


def _batches(problem: Problem, theta: FloatArray) -> list[FloatArray]:
    return [theta[i : i + problem.batch] for i in range(0, len(theta), problem.batch)]


def distinct_starts(problem: Problem, theta: FloatArray) -> NDArray[np.bool_]:
    """Which of many starts θ [S, p] that share E_start and E_max may end elsewhere than the best; of few, all.

    Each takes one step, without which starts far up in the box see one basin only, and the lowest are solved. A start
    shares the basin of the best of these if the objective falls at each quarter of the straight way from its step
    there.
    """
    if len(theta) <= MANY or np.ptp(theta[:, problem.objective.first_transform :], axis=0).any():
        return np.ones(len(theta), bool)
    steps = [problem.solve(batch, **HELD | {"max_iterations": 1}) for batch in _batches(problem, theta)]
    points, last = (np.concatenate([getattr(part, name) for part in steps]) for name in ("theta", "cost"))
    lowest = np.argsort(last, kind="stable")[:BATCH]
    best = Solutions.sorted(problem.solve(theta[lowest], **HELD))
    falls = last >= best.cost[0]
    for part in (0.25, 0.5, 0.75):
        way = points + part * (best.theta[0] - points)
        cost = np.concatenate(
            [problem.objective.evaluate(p, hold_transform=True).cost for p in _batches(problem, way)]
        )
        falls &= cost <= last
        last = cost
    falls[lowest] = False  # the best itself, and others for it to agree with
    return ~falls


def as_table(runs: Any, loss: str | None, trunks: str) -> Runs:
    """The runs, of which there must be some; `loss` and `trunks` of a loaded table are those it was loaded with."""
    if not isinstance(trunks, str):
        raise InputError(f"trunks={trunks!r} must be 'auto', 'run' or the name of a column")
    if not isinstance(runs, Runs):
        return load_runs(runs, loss, trunks=trunks)
    if loss not in (None, runs.loss_name):
        raise InputError(f"loss={loss!r}: these runs were loaded with {runs.loss_name}; pass loss to load_runs")
    if trunks not in ("auto", "run"):
        raise InputError(f"trunks={trunks!r}: these runs are loaded already; pass trunks to load_runs")
    if not len(runs):
        raise RunsError(f"{runs.source}: no runs")
    return runs.each_its_own_trunk() if trunks == "run" else runs


def _design_warnings(runs: Runs, problem: Problem, allow_unidentifiable: bool) -> list[str]:
    """What this design cannot determine; ValueError unless that is allowed."""
    problems = design_problems(problem)
    if problems and not allow_unidentifiable:
        fix = given("fixed", {problem.objective.names[0]: "…"}, in_shell=f"--fix {problem.objective.names[0]}=…")
        unchecked = given("allow_unidentifiable", True)
        said = f"{runs.source}: {'; '.join(problems)}. Fix coefficients ("
        raise InputError(said, fix, "), fit another law, or pass ", unchecked)
    for name, low in zip(problem.objective.names, np.exp(problem.lower), strict=True):
        below = int(np.sum(runs.loss <= low)) if name in problem.objective.constants else 0
        if below:
            problems.append(f"the constant {name} ≥ {low:g} is above the loss of {below} of {len(runs)} runs")
    return problems


def describe(
    runs: Runs, problem: Problem, final: Solutions, search: Mapping[str, Any], chosen: int = 0
) -> FitResult[Law]:
    """The result of finished start `chosen` (0: the best); `search` holds the FitStatus fields all starts share."""
    theta, best = final.theta[chosen], float(final.cost[chosen])
    objective, free = problem.objective, problem.free(theta)
    at_bound = ~free & (problem.lower < problem.upper)
    condition_number, standard_errors, undetermined = examine(objective, theta, free)
    used = runs.subset(problem.used)
    law = objective.make_law(theta)
    errors = errors_of(law, runs)
    rmse = rms(errors[problem.measured])
    status = FitStatus(
        converged=bool(final.converged[chosen]),
        n_released=len(final.cost),
        n_agree=_agree(final, problem),
        bounds_hit=tuple(name for name, hit in zip(objective.names, at_bound, strict=True) if hit),
        condition_number=condition_number,
        standard_errors=standard_errors,
        logarithmic=tuple(name for name in objective.names if name in objective.positive),
        distances=objective.distances,
        undetermined=undetermined,
        n_trunks=used.n_trunks,
        trunk_source=used.trunk_source,
        omitted=(*omitted_variables(problem, theta, runs, errors), *unexplained_repetition(problem, theta, runs)),
        tied=problem.settings.tied,
        **search,
    )
    aside = f"; {len(status.set_aside)} of {len(runs)} runs set aside as outliers" if status.set_aside else ""
    bounds = int((problem.used & ~problem.measured).sum())
    aside += f"; {bounds} of {len(runs)} runs as upper bounds" if bounds else ""
    selection = f", where {runs.where}" if runs.where else ""
    selection += f", read with {runs.read_as}" if runs.read_as else ""
    selection += f"; {runs.thinned}" if runs.thinned else ""
    selection += f", under a prior from {problem.settings.prior}" if problem.settings.prior else ""
    spans = {n: used.column(n) for n in sorted({*law.form.variables} - {"n_active", "tokens", "experts"})}
    mixed = differences(used.recipe, law.form.variables)
    selection += f", mixing runs that differ in {in_words(mixed)}" if mixed else ""
    conditions = used.conditions(
        f"fitted on {runs.source}{selection} ({runs.loss_name}){aside}",
        objective=problem.settings.to_dict(),
        rmse=rmse,
        status=status.verdict,
        trunks=status.n_trunks,
        trunk_source=status.trunk_source,
        set_aside=status.set_aside,
        warmup_tokens=used.warmup_tokens,
        variables={name: (float(values.min()), float(values.max())) for name, values in spans.items()} or None,
        omitted=status.omitted,
        doubts=status.doubts,
    )
    fitted = law.replace(conditions=conditions)
    return FitResult(fitted, best, rmse, status, runs, problem, theta, final, check=None)
