"""The tables of docs/studies/demo_runs.md: the demo's sweep with several seeds, each run and each model left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import hub  # lazy
from hub import RunRecord
from hub.base.units import format_ends, parse_count
from scaling_law import FitResult, JointLaw, Law, Runs, fit, load_runs
from studies.common import FloatArray, Page, Part, gather, pooled_covariance, rms
from studies.demo_runs.crossings import crossings_of
from studies.demo_runs.left_out import OTHER_E, OTHER_TOKENS, LeftOut, leave_out_each, left_out_table
from training.demo.scales import FULL, fit_law

FOLDER = Path(__file__).parent
RECORDS = FOLDER / "runs.jsonl"
SWEEP = "demo"
# The sweep was chosen, among several, by what a law without a prior predicted with this seed.
CHOSEN_ON = 0
DEMO = "under the public prior"
FIXED = "four coefficients as published"


def fit_with_published(runs: Runs) -> FitResult[Law]:
    """Fit the joint law without a prior; what two numbers of experts cannot identify is as published."""
    coefficients = JointLaw.published().coefficients
    fixed = {name: coefficients[name] for name in ("gamma", "zeta", "e_start", "e_max")}
    # Without some of its models a sweep identifies even less.
    return fit(runs, fixed=fixed, allow_unidentifiable=True)


FITS: dict[str, Callable[[Runs], FitResult[Law]]] = {DEMO: fit_law, FIXED: fit_with_published}


@dataclass(frozen=True)
class Seed:
    """The sweep of one seed: its runs that count for the law, and what was left out of each fit, by run and by model.

    `longest` is the place of the run that the demo leaves out, the longest of the largest MoE; `crossings` are by the
    law of the other runs.
    """

    seed: int
    runs: Runs
    left_out: Mapping[str, Sequence[LeftOut]]
    longest: int
    crossings: Sequence[tuple[str, str, str, str]]


@dataclass(frozen=True)
class Results:
    """The sweeps of all seeds."""

    seeds: Sequence[Seed]

    @property
    def new_seeds(self) -> list[Seed]:
        """The seeds that nobody had looked at when the sweep was chosen."""
        return [seed for seed in self.seeds if seed.seed != CHOSEN_ON]

    def left_out(self, fit_name: str) -> list[LeftOut]:
        """Join what was left out of a fit over the new seeds: by run, and by model."""
        pairs = [seed.left_out[fit_name] for seed in self.new_seeds]
        return [LeftOut.concatenate(sweeps) for sweeps in zip(*pairs, strict=True)]

    @property
    def scatter(self) -> float:
        """The standard deviation of a run's loss over seeds, pooled over the runs that count, nats per byte."""
        first = self.seeds[0].runs
        groups = []
        for i in range(len(first)):
            losses = [seed.runs.loss[_place_of(seed.runs, first, i)] for seed in self.seeds]
            groups.append(np.array(losses)[:, None])
        covariance, _ = pooled_covariance(groups)
        return float(np.sqrt(covariance[0, 0]))


def _place_of(runs: Runs, first: Runs, i: int) -> int:
    """Return the place of the run of another seed that has the size, E and tokens of run i."""
    is_equal = (runs.n_active == first.n_active[i]) & (runs.experts == first.experts[i])
    return int(np.flatnonzero(is_equal & (runs.tokens == first.tokens[i]))[0])


def read() -> Results:
    """Read the records, and fit the law without each run and each model of every seed."""
    records_by_seed: dict[int, list[RunRecord]] = {}
    for record in hub.load_records(RECORDS):
        records_by_seed.setdefault(record.seed or 0, []).append(record)
    return Results([_read_seed(seed, records) for seed, records in sorted(records_by_seed.items())])


def _read_seed(seed: int, records: Sequence[RunRecord]) -> Seed:
    runs = load_runs(records, where=FULL.where)
    left_out = {}
    for name, fit_runs in FITS.items():
        left_out[name] = [*leave_out_each(runs, fit_runs, FULL.draws)]
    longest = int(np.lexsort((runs.tokens, runs.n_active, runs.experts))[-1])
    is_fitted = np.arange(len(runs)) != longest
    law = fit_law(runs.subset(is_fitted)).bootstrap(FULL.draws).law
    return Seed(seed, runs, left_out, longest, crossings_of(records, law))


def take(runs: Sequence[Path]) -> list[Path]:
    """Collect the records of the demo's sweep from these files and folders."""
    return [gather(runs, RECORDS, lambda record: record.sweep == SWEEP)]


# ------------------------------------------------------------------ blocks


def left_out(r: Results) -> Iterator[Part]:
    """Compare the demo's law with predictions without one, over the new seeds."""
    table = left_out_table(r.left_out(DEMO))
    yield tuple(table.header)
    yield from map(tuple, table.rows)


def fits(r: Results) -> Iterator[Part]:
    """List the errors and intervals of the demo's fit, under the public prior, and of one without a prior."""
    yield "left out", "fit", "median", "RMS", "95 % holds"
    for name in FITS:
        for predictions in r.left_out(name):
            errors = predictions.errors
            yield predictions.unit, name, _median(errors), _rms(errors), _covered(predictions)


def seeds(r: Results) -> Iterator[Part]:
    """List the errors of each seed, and what is predicted for the run that the demo leaves out."""
    yield "seed", "each run, RMS", "each model, RMS", "longest run", "law (95 %)", "dense model", "at half the tokens"
    for seed in r.seeds:
        i = seed.longest
        by_run, by_model = seed.left_out[DEMO]
        low, high = format_ends(by_run.low[i], by_run.high[i])
        law = f"{by_run.law[i]:.3f} ({low} to {high})"
        neighbours = [f"{by_run.without_law[name][i]:.3f}" for name in (OTHER_E, OTHER_TOKENS)]
        errors = [_rms(by_run.errors), _rms(by_model.errors)]
        yield seed.seed, *errors, f"{by_run.loss[i]:.3f}", law, *neighbours


def crossings(r: Results) -> Iterator[Part]:
    """List the crossovers of each seed: measured, and by the law fitted."""
    yield "seed", "model", "measured", "law fitted", "95 %"
    for seed in r.seeds:
        for row in seed.crossings:
            yield seed.seed, *row


def values(r: Results) -> Mapping[str, str]:
    """Return the numbers of the page's sentences."""
    by_run, by_model = r.left_out(DEMO)
    run_without_prior, model_without_prior = r.left_out(FIXED)
    is_smallest = np.concatenate([_is_smallest_dense(seed.runs) for seed in r.new_seeds])
    intervals = []
    for seed in r.seeds:
        intervals += [row[3] for row in seed.crossings]
    n_open = intervals.count("anywhere")
    numbers = {
        "count": str(len(by_run.loss)),
        "scatter": f"{r.scatter:.3f}",
        "anywhere": f"{n_open} of {len(intervals)}",
        "fixed-smallest": f"{rms(model_without_prior.errors[is_smallest]):.2f}",
        "fixed-others": _rms(model_without_prior.errors[~is_smallest]),
    }
    numbers.update(_errors_of("run", by_run, run_without_prior))
    numbers.update(_errors_of("model", by_model, model_without_prior))
    return numbers


def _errors_of(unit: str, predictions: LeftOut, without_prior: LeftOut) -> dict[str, str]:
    """Name the errors of what was left out of the demo's fit, and of one without a prior."""
    *nearest, plane = [_rms(comparison.without_law) for comparison in predictions.comparisons()]
    numbers = {
        "errors": _rms(predictions.errors),
        "held": _covered(predictions),
        "fixed": _rms(without_prior.errors),
        "fixed-held": _covered(without_prior),
        "plane": plane,
        "nearest": f"{min(nearest)} to {max(nearest)}",
    }
    return {f"{unit}-{name}": number for name, number in numbers.items()}


def _rms(errors: FloatArray) -> str:
    return f"{rms(errors):.3f}"


def _median(errors: FloatArray) -> str:
    return f"{np.median(np.abs(errors)):.3f}"


def _covered(predictions: LeftOut) -> str:
    return f"{predictions.n_covered} of {len(predictions.loss)}"


def _is_smallest_dense(runs: Runs) -> NDArray[np.bool_]:
    return (runs.experts == 1) & (runs.n_active == runs.n_active.min())


def is_closer_for_runs(r: Results) -> bool:
    """Return whether the law predicts runs left out better than anything that needs no law."""
    comparisons = r.left_out(DEMO)[0].comparisons()
    return all(rms(comparison.law) < rms(comparison.without_law) for comparison in comparisons)


def is_level_for_models(r: Results) -> bool:
    """Return whether the law and a plane predict models left out about as well."""
    *_, plane = r.left_out(DEMO)[1].comparisons()
    return 0.8 < rms(plane.law) / rms(plane.without_law) < 1.25


def is_far_without_prior(r: Results) -> bool:
    """Return whether without a prior the nearest runs and a plane predict models left out better than the law."""
    comparisons = r.left_out(FIXED)[1].comparisons()
    return all(rms(comparison.law) > rms(comparison.without_law) for comparison in comparisons)


def has_narrow_crossovers(r: Results) -> bool:
    """Return whether the measured crossovers of a size lie within a factor of 1.5 over seeds."""
    tokens_by_model: dict[object, list[float]] = {}
    for seed in r.seeds:
        for row in seed.crossings:
            tokens = parse_count(row[1])
            tokens_by_model.setdefault(row[0], []).append(tokens)
    return all(max(crossovers) < 1.5 * min(crossovers) for crossovers in tokens_by_model.values())


CLAIMS = {
    "the law is closest of all for runs": is_closer_for_runs,
    "it is level with a plane for models": is_level_for_models,
    "without a prior it is farther off than all for models": is_far_without_prior,
    "crossovers lie within a factor of 1.5 over seeds": has_narrow_crossovers,
}
PAGE = Page(read, blocks=(left_out, fits, seeds, crossings), values=values, claims=CLAIMS)
