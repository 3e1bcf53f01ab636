"""Move a published law to another corpus and recipe with few runs: refit few of its coefficients, keep the rest.

Candidates refit coefficients by what they are to the law: the constant, then the scales, the slopes, and so on. Each
is judged on models that it was not fitted to. The smallest set wins whose squared error exceeds the least by no more
than one standard error of that difference (the one-standard-error rule of Breiman et al. 1984, "Classification and
Regression Trees", paired by group): few runs hardly tell candidates apart, and what is not refitted carries over to
models that they lack.

The rest stay at the published values; their draws, if any, widen the intervals. As a prior inside the objective, the
draws would bend the law along its flat directions to absorb what differs between the corpora.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hub.base.errors import InputError, unknown
from hub.base.tables import ResultTable, Table
from scaling_law.fitting.diagnostics import design_problems
from scaling_law.fitting.fitting import LEAVE_OUT, FitResult, as_table, errors_of, finite, fit, rms
from scaling_law.fitting.problem import Problem, make_problem
from scaling_law.fitting.uncertainty import Bootstrap
from scaling_law.formulas.conditions import Conditions, joined_limits
from scaling_law.formulas.terms import BY_DESIGN, CONSTANT, INTERACTION, OUTER, SIZE, SLOPE, TRANSFORM, Form
from scaling_law.law import Law
from scaling_law.runs.recipes import check_mix
from scaling_law.runs.table import Runs
from scaling_law.size.arrays import FloatArray

Names = tuple[str, ...]
LEVELS = ((CONSTANT,), (SIZE,), (SLOPE, OUTER), (BY_DESIGN,), (INTERACTION,), (TRANSFORM,))  # refitted in this order


@dataclass(frozen=True)
class Candidate:
    """A way to predict runs of models that were left out, with predicted minus observed loss of each run, [n].

    `undetermined` are refitted coefficients that all the runs together leave open, or push to a bound.
    """

    name: str
    refitted: Names
    errors: FloatArray
    undetermined: Names = ()

    @property
    def rmse(self) -> float:
        """Nats per token."""
        return rms(self.errors)


@dataclass(frozen=True, repr=False)
class Calibration(ResultTable):
    """A published law with some coefficients refitted, `fit`, and what else could have predicted the same runs.

    `candidates` are the published law, calibrated ones, a fresh fit of all coefficients (where the runs allow it) and
    the mean loss. `left_out` are the sets of coefficients that the runs cannot determine, and why.
    """

    published: Law
    fit: FitResult
    chosen: Candidate
    candidates: tuple[Candidate, ...]
    groups: str
    n_groups: int
    left_out: Mapping[Names, str]

    @property
    def law(self) -> Law:
        return self.fit.law

    def bootstrap(self, n_resamples: int = 1000, seed: int = 0, progress: bool = False) -> Bootstrap:
        """Refits to resampled trunks; what is not refitted comes from the published law's draws, if it has any."""
        return self.fit.bootstrap(n_resamples, seed, progress, held=self.published.draws)

    @property
    def warnings(self) -> Names:
        sentences = []
        for names, why in list(self.left_out.items())[:1]:
            more = f", nor {len(self.left_out) - 1} other sets" if len(self.left_out) > 1 else ""
            sentences.append(f"These runs cannot determine {', '.join(names)} together{more}: {why}.")
        better = [c.name for c in self.candidates if not c.refitted and c.rmse < self.chosen.rmse]
        sentences += [f"Held-out runs are predicted better by the {name}." for name in better]
        sentences += [m.replace(LEAVE_OUT, "calibrate without those that are wrong") for m in self.fit.status.messages]
        return tuple(sentences)

    def to_rows(self) -> list[dict[str, Any]]:
        """One row for each candidate."""
        return [
            {
                "candidate": c.name,
                "refitted": ", ".join(c.refitted),
                "rmse": c.rmse,
                "undetermined": ", ".join(c.undetermined),
                "chosen": c is self.chosen,
            }
            for c in self.candidates
        ]

    def to_dict(self) -> dict[str, Any]:
        return {
            "refitted": list(self.chosen.refitted),
            "groups": self.groups,
            "n_groups": self.n_groups,
            "held_out": self.to_rows(),
            "left_out": [{"refitted": list(names), "why": why} for names, why in self.left_out.items()],
            "fit": self.fit.to_dict(),
        }

    def summary(self) -> Table:
        rows = self.to_rows()
        notes = ["chosen" if r["chosen"] else "not determined" if r["undetermined"] else "" for r in rows]
        values = ", ".join(f"{name} = {self.law.coefficients[name]:.5g}" for name in self.chosen.refitted)
        conditions = self.law.conditions
        return Table(
            ("", "refitted", "held out", ""),
            [(r["candidate"], r["refitted"], f"{r['rmse']:.4f}", n) for r, n in zip(rows, notes, strict=True)],
            title="Calibration: RMSE in nats",
            first=("refitted", "held out", ""),
            styles=["bold" if r["chosen"] else "" for r in rows],
            notes=[
                f"held out: each of {self.n_groups} groups in turn, {self.groups}",
                f"{conditions.provenance if conditions else self.law.name}: {values}; RMSE {self.fit.rmse:.4f}",
            ],
            warnings=self.warnings,
        )

    def __repr__(self) -> str:
        names = ", ".join(self.chosen.refitted)
        return f"Calibration({self.law!r}, refitted: {names}, held-out RMSE {self.chosen.rmse:.4g})"


def calibrate(
    law: Law,
    runs: Any,
    *,
    groups: str = "auto",
    candidates: Sequence[Collection[str]] | None = None,
    huber_delta: float = 0.01,
    weights: str | ArrayLike | None = None,
    one_sided: str | ArrayLike | None = None,
    loss: str | None = None,
    trunks: str = "auto",
    mix: str | Collection[str] = (),
) -> Calibration:
    """Refit as few coefficients of `law` as predict the runs (a Runs, or anything `load_runs` reads).

    Args:
        groups: which runs are left out together: "auto" (those of one model, that is, of equal variables of the law
            but for tokens; of equal tokens if there is one model only), "trunk", or the name of a column.
        candidates: the sets of coefficients to choose from, the smallest first. None: the constant, and then also
            scales, slopes (and an outer exponent), exponents of the design, interactions, transforms.
        huber_delta, weights, one_sided, loss, trunks, mix: as in `fit`.

    The law's conditions name the runs, the coefficients refitted and the law that the rest are from; its ranges are
    those of both laws' runs together. ValueError for a law that cannot be fitted, fewer than two groups, unknown
    coefficients, and runs that determine none of the candidates.
    """
    if not isinstance(law, Law):
        raise InputError(f"law={law!r} must be a law that predicts a loss")
    table = as_table(runs, loss, trunks)
    settings: dict[str, Any] = {"huber_delta": huber_delta, "weights": weights, "one_sided": one_sided}
    measured = _problem(table, law, {}, **settings).measured
    check_mix(table.recipe, law.form.variables, mix, table.source)
    group, rule = group_of(table, law, groups)
    if (n_groups := len(np.unique(group[measured]))) < 2:
        raise InputError(f"groups={groups!r}: {n_groups} group of {rule}; two are needed to leave one out")
    everything = law.coefficient_names()
    sets = [_ordered(law, names) for names in (candidate_sets(law.form) if candidates is None else candidates)]
    results, left_out = _fits(table, law, dict.fromkeys([*sets, everything]), settings, mix)
    if not results.keys() & {*sets}:
        raise InputError(f"{table.source}: no candidate can be fitted: {'; '.join(left_out.values())}")
    tried = {}
    for names, result in results.items():
        name = "fresh fit" if names == everything else "calibrated"
        vague = tuple(dict.fromkeys((*result.status.undetermined, *result.status.bounds_hit)))
        tried[names] = Candidate(name, names, _held_out(result, law, group)[measured], vague)
    best = choose([tried[names] for names in sets if names in tried], group[measured])
    untouched = Candidate("published law", (), errors_of(law, table)[measured])
    mean = Candidate("mean of the other runs", (), _errors_of_mean(table.loss[measured], group[measured]))
    return Calibration(
        published=law,
        fit=_described(law, results[best.refitted], best, rule),
        chosen=best,
        candidates=(untouched, *tried.values(), mean),
        groups=rule,
        n_groups=n_groups,
        left_out=left_out,
    )


def candidate_sets(form: Form) -> list[Names]:
    """Nested sets of coefficients, each with those of one more level of `LEVELS` that the form has."""
    sets: list[Names] = [()]
    for level in LEVELS:
        if added := tuple(name for name in form.coefficients if form.roles[name] in level):
            sets.append((*sets[-1], *added))
    return sets[1:]


def group_of(runs: Runs, law: Law, rule: str) -> tuple[NDArray[np.int64], str]:
    """The group of each run [n], and what makes a group, in words."""
    names = [rule]
    if rule == "auto":
        model = [name for name in law.form.variables if name != "tokens"]
        names = model if any(np.ptp(runs.column(name)) > 0 for name in model) else ["tokens"]
    columns = [runs.trunk if name == "trunk" else runs.column(name) for name in names]
    group = np.unique(np.stack(columns), axis=1, return_inverse=True)[1].ravel()
    return group, f"runs of equal {', '.join(names)}"


def choose(candidates: Sequence[Candidate], group: NDArray[np.int64]) -> Candidate:
    """The first candidate that is not worse than the best by more than a standard error of the difference.

    Candidates with undetermined coefficients are left out, unless all have some.
    """
    candidates = [candidate for candidate in candidates if not candidate.undetermined] or candidates
    totals = [np.bincount(group, candidate.errors**2)[np.unique(group)] for candidate in candidates]
    best = min(totals, key=np.sum)
    excess = [total - best for total in totals]
    near = [bool(e.sum() <= np.sqrt(len(e)) * e.std(ddof=1)) for e in excess]
    return candidates[near.index(True)]


def _ordered(law: Law, names: Collection[str]) -> Names:
    """The names in the law's order."""
    coefficients = law.coefficient_names()
    if isinstance(names, str) or not names:
        raise InputError(
            f"candidates: {names!r} must be a set of coefficients of the {law.name} law: {', '.join(coefficients)}"
        )
    for name in names:
        if name not in coefficients:
            raise InputError(unknown("candidates: coefficient ", name, coefficients))
    return tuple(name for name in coefficients if name in names)


def _fits(
    runs: Runs, law: Law, sets: Iterable[Names], settings: Mapping[str, Any], mix: str | Collection[str]
) -> tuple[dict[Names, FitResult], dict[Names, str]]:
    """The fits of the sets that the runs can determine, and why they cannot determine the others."""
    fits, left_out = dict[Names, FitResult](), dict[Names, str]()
    for names in sets:
        held = {name: value for name, value in law.coefficients.items() if name not in names}
        if why := design_problems(_problem(runs, law, held, **settings)):
            left_out[names] = "; ".join(why)
        else:
            fits[names] = fit(runs, law.name, fixed=held, starts=[law] if held else "scaled", mix=mix, **settings)
    return fits, left_out


def _problem(
    runs: Runs, law: Law, held: Mapping[str, float], huber_delta: float, weights: Any, one_sided: Any
) -> Problem:
    return make_problem(runs, law.name, huber_delta, weights, 0.0, held, {}, "scaled", one_sided)


def _held_out(result: FitResult, law: Law, group: NDArray[np.int64]) -> FloatArray:
    """Predicted minus observed loss [n], nats per token, of each run by the refit without its group.

    Refits start from the published law: in directions that they leave open, the fit to all runs would tell on them.
    """
    problem = result.problem
    distinct, index = np.unique(group, return_inverse=True)
    weight = problem.objective.weight * (group != distinct[:, None])
    start = np.tile(problem.objective.from_coefficients(law.coefficients), (len(weight), 1))
    theta = problem.solve(start, weight, max_iterations=1000, tolerance=1e-10).theta
    residual = problem.objective.residuals(theta)[index, np.arange(len(group))]
    return np.asarray(result.runs.loss * np.expm1(residual))


def _errors_of_mean(losses: FloatArray, group: NDArray[np.int64]) -> FloatArray:
    """Mean loss of the other groups minus the loss of each run, [n]."""
    others = group != group[:, None]
    return others @ losses / others.sum(axis=1) - losses


def _described(law: Law, result: FitResult, choice: Candidate, rule: str) -> FitResult:
    """The fit with its law as a calibrated one: a copy of the published, with conditions that say so."""
    original, fitted = law.conditions or Conditions(f"a {law.name} law"), result.law.conditions
    assert fitted is not None  # set by `fit`
    names, on = choice.refitted, fitted.provenance.removeprefix("fitted on ")
    draws = None
    if len(names) == len(law.coefficients):
        what, limits = "all coefficients refitted", {}
    else:
        what, limits = f"{', '.join(names)} refitted", joined_limits(original, fitted)
        limits["omitted"] = tuple(dict.fromkeys((*original.omitted, *fitted.omitted)))
        if law.draws is not None:
            draws = "bootstrap of the calibration, with the other coefficients from draws of the law before it"
    conditions = replace(
        fitted,
        provenance=f"{original.provenance}; calibrated on {on}: {what}",
        objective={**fitted.objective, "refitted": list(names), "held_out_rmse": finite(choice.rmse), "groups": rule},
        draws=draws,
        **limits,
    )
    return replace(result, law=law.replace(**result.law.coefficients, conditions=conditions, draws=None))
