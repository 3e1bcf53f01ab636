"""Choosing runs within a budget: `next_runs` beside other designs, by what the chosen runs tell of larger ones.

    python -m benchmarks.next_runs --scalebench FOLDER [--seeds 5] [--hold-outs 20]      # or BENCH_SCALEBENCH=FOLDER
    python -m benchmarks.next_runs --sets "our sweep hold-outs" "our sweep without public prior"

FOLDER holds farseer.csv and data_constrained.csv of ScaleBench (arXiv 2604.22753; github.com/PlanarG/active-sl, MIT,
data CC-BY-4.0), which are not shipped here; our own sweep is. A design may spend 1, 5 or 10 % of the FLOPs of all
candidates. Whatever it chooses, one forecaster predicts the runs that are judged: an interaction law (a joint law if
there are experts) under the public prior without the laboratory of the runs, which weigh by their compute; one of the
laws of `forecast`. The value is 1 − R² on the judged runs, R² cut at −1 as ScaleBench does.

`next_runs` starts from the prior alone and refits after an eighth, a quarter and half of the budget. Each time it
plans for all that remains and trains the cheapest runs of the plan. D- and V-optimal designs begin with the cheapest
runs, then take the run of the largest gain per FLOP^0.4, under a vague prior and equal noise. Hold-outs: seven of the
tenth of largest compute, at random, with candidates up to 0.6 times the compute of the smallest of these. Regret: at
the largest judged compute, how far the size that these runs call best lies above the lowest loss, by the law of all
runs; in percent of that loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas
from numpy.typing import NDArray

from benchmarks.report import ROOT, Options, Report, benchmark
from scaling_law import Law, Runs, load_runs
from scaling_law.fitting.penalty import values_of
from scaling_law.fitting.posterior import DEPENDENCE, posterior
from scaling_law.fitting.prior import POPULATION, Prior, for_kind, vague
from scaling_law.fitting.repetition import count_worth
from scaling_law.forecasting.forecast import fit_worth
from scaling_law.formulas.repeated import Repetition
from scaling_law.planning.design import next_runs, predicted_loss
from studies.forecasts.members import (
    estimate,
    read_population,
    terms_of_experts,
    vague_of_experts,
)

FloatArray = NDArray[np.float64]
Places = NDArray[np.intp]
BUDGETS = (0.01, 0.05, 0.1)
# Parts of the budget after which `next_runs` refits.
STAGES = (1 / 8, 1 / 4, 1 / 2, 1.0)
# Standard deviations of ln loss and ln D for another unit of the loss and another tokenizer.
OTHER_UNIT = (1.0, 0.3)
DRAWS = 300
MAX_RUNS = 64
# D- and V-optimal designs: the cheapest runs for each coefficient and the share of all FLOPs that these may take, the
# power of FLOPs by which a gain is divided, and runs between two fits.
FIRST_RUNS = 2.5
FIRST_FLOPS = 0.02
COST_POWER = 0.4
REFIT = 10
# The share of largest runs, how many of them are held out, and the largest candidate relative to the smallest of
# these.
LARGEST = 0.1
HELD_OUT = 7
GAP = 0.6
# Sizes among which the best is looked for, relative to the median judged one.
SIZES = np.geomspace(1 / 30, 30, 400)
# R² that the authors of ScaleBench report for their method on their split (their Table 2).
FARSEER = "Farseer"
HOLD_OUTS = "Farseer hold-outs"
REPEATED = "data-constrained"
OWN = "our sweep hold-outs"
OWN_ALONE = "our sweep without public prior"
SETS = (FARSEER, HOLD_OUTS, REPEATED, OWN, OWN_ALONE)
AUTHORS = {FARSEER: (0.60, 0.88, 0.93), REPEATED: (0.73, 0.85, 0.86)}


@dataclass(frozen=True)
class Pool:
    """Candidates with the losses that they would show, and the runs that are judged.

    `population` is the prior of dense laws, `prior` that of the law that forecasts; `repeats`: tokens repeat.
    """

    candidates: Runs
    judged: Runs
    population: Prior
    prior: Prior
    repeats: bool = False

    @property
    def flops(self) -> FloatArray:
        """The FLOPs of each candidate."""
        return self.candidates.flops

    def as_designed(self) -> tuple[Runs, Runs]:
        """Return candidates and judged runs as a design sees them: repetition counts as published."""
        if not self.repeats:
            return self.candidates, self.judged
        law = self.population.law.replace(repetition=Repetition())
        return count_worth(law, self.candidates), count_worth(law, self.judged)

    def fit(self, runs: Runs) -> tuple[Law, Runs]:
        """Return the law of these runs, weighed by compute, and the judged runs as it counts repeated tokens."""
        judged = self.judged
        weights = runs.flops / runs.flops.max()
        if self.repeats:
            law = fit_worth(runs, self.population).law
            runs = count_worth(law, runs)
            judged = count_worth(law, judged)
        return posterior(runs, self.prior, self.prior.kind, weights=weights).law, judged

    def every_run(self) -> Runs:
        """Return candidates and judged runs together."""
        columns = {}
        for name in self.candidates.names:
            values = np.append(self.candidates[name], self.judged[name])
            if np.isfinite(values).all():
                columns[name] = values
        return Runs.from_columns(
            columns.pop("n_active"),
            columns.pop("tokens"),
            columns.pop("experts"),
            columns.pop("loss"),
            trunk="run",
            columns=columns,
        )


# ------------------------------------------------------------------ designs

# A design chooses candidates of a pool for a share of their FLOPs, with a seed.
DesignOf = Callable[[Pool, float, int], Places]


def choose_next_runs(pool: Pool, share: float, seed: int) -> Places:
    """Choose by `next_runs`, in stages; what the runs of a stage show decides the next.

    Each stage plans for all of the budget that remains, and trains the cheapest runs of its plan.
    """
    runs, judged = pool.as_designed()
    variables = [*pool.prior.law.variables]
    ask = predicted_loss(**{name: judged.column(name) for name in variables})
    budget = share * pool.flops.sum()
    selection: list[int] = []
    law = draw_from_prior(pool.prior, seed)
    noise = pool.prior.noise
    for stage in STAGES:
        spent = pool.flops[selection].sum()
        remaining = budget - spent
        is_affordable = pool.flops <= remaining
        places = np.setdiff1d(np.flatnonzero(is_affordable), selection)
        if not len(places):
            continue
        cost = pool.flops[places]
        table = {name: runs.column(name)[places] for name in variables}
        table["flops"] = cost
        # The noise of small runs is larger, as their weights say, and runs share what the law cannot fit.
        largest = pool.flops[selection or places].max()
        variance_ratio = DEPENDENCE * largest / cost
        design = next_runs(
            law,
            ask,
            remaining,
            table,
            noise=noise * np.sqrt(variance_ratio),
            max_runs=MAX_RUNS,
            warmup_tokens=0,
            force=True,
        )
        by_cost = sorted(design.chosen, key=lambda index: cost[index])
        total = spent + np.cumsum(cost[by_cost])
        # At least one; rounding takes no run off the last stage.
        count = max(1, int(np.sum(total <= stage * budget * (1 + 1e-9))))
        selection += places[by_cost[:count]].tolist()
        selected_runs = runs.take(np.array(selection))
        selected_cost = pool.flops[selection]
        weights = selected_cost / selected_cost.max()
        fitted_law = posterior(selected_runs, pool.prior, pool.prior.kind, weights=weights, dependence=DEPENDENCE)
        law = fitted_law.draw(DRAWS, seed)
        noise = fitted_law.noise
    return np.array(selection)


def draw_from_prior(prior: Prior, seed: int) -> Law:
    """Return the law of the prior's mean with draws of the prior."""
    rng = np.random.default_rng(seed)
    points = rng.multivariate_normal(prior.mean, prior.covariance, DRAWS)
    natural = np.array([prior.coordinates.natural(point) for point in points])
    return with_draws(prior.law, natural)


def with_draws(law: Law, natural: FloatArray) -> Law:
    """Give a law the draws of these natural coordinates, [draws, k]."""
    values = values_of(law.form, natural)
    columns = [values[name] for name in law.coefficient_names()]
    draws = np.stack(columns, axis=1)
    return law.replace(draws=draws)


def optimal(of_judged: bool) -> DesignOf:
    """Make the V-optimal design, of the variances of the judged runs, or else the D-optimal one."""

    def choose(pool: Pool, share: float, seed: int) -> Places:
        runs, judged = pool.as_designed()
        prior = vague_prior(pool.prior.kind)
        cost = pool.flops
        budget = share * cost.sum()
        order = np.argsort(cost)
        first_flops = min(FIRST_FLOPS * cost.sum(), budget)
        first_count = round(FIRST_RUNS * len(prior.mean))
        is_first = np.cumsum(cost[order]) <= first_flops
        selection = order[is_first][:first_count].tolist()
        batch_size = REFIT
        while batch_size == REFIT:
            selected_runs = runs.take(np.array(selection))
            fitted_law = posterior(selected_runs, prior, prior.kind)
            covariance = covariance_of(fitted_law.draw(DRAWS, seed), runs, judged)
            batch = choose_batch(covariance, selection, cost, budget, fitted_law.noise, of_judged)
            selection += batch
            batch_size = len(batch)
        return np.array(selection)

    return choose


def covariance_of(law: Law, runs: Runs, judged: Runs) -> FloatArray:
    """Return the covariance of ln L of candidates and judged runs over the draws."""
    losses = [draw_losses(law, runs), draw_losses(law, judged)]
    log_losses = np.log(np.hstack(losses))
    return np.cov(log_losses.T)


def choose_batch(
    covariance: FloatArray,
    selection: Sequence[int],
    cost: FloatArray,
    budget: float,
    noise: float,
    of_judged: bool,
) -> list[int]:
    """Choose the next runs of a D- or V-optimal design, up to `REFIT`, within the budget that remains."""
    n = len(cost)
    batch: list[int] = []
    for _ in range(REFIT):
        unavailable = [*selection, *batch]
        remaining = budget - cost[unavailable].sum()
        variances = np.maximum(np.diag(covariance)[:n], 0.0)
        observed = variances + noise**2
        gains = np.log(observed / noise**2)
        if of_judged:
            squares = covariance[:n, n:] ** 2
            gains = squares.sum(axis=1) / observed
        scores = gains / cost**COST_POWER
        scores[cost > remaining] = 0.0
        scores[unavailable] = 0.0
        best = int(np.argmax(scores))
        if scores[best] <= 0:
            break
        batch.append(best)
        column = covariance[:, best]
        covariance = covariance - np.outer(column, column) / observed[best]
    return batch


def draw_losses(law: Law, runs: Runs) -> FloatArray:
    """Return the losses of the runs under each draw, [draws, n]."""
    variables = {name: runs.column(name) for name in law.variables}
    return law.replace(conditions=None).loss_draws(**variables)


def choose_at_random(pool: Pool, share: float, seed: int) -> Places:
    """Choose runs at random, of those that still fit."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(pool.candidates))
    return take_in_order(pool, share, order)


def choose_cheapest(pool: Pool, share: float, seed: int) -> Places:
    """Choose the cheapest runs."""
    order = np.argsort(pool.flops, kind="stable")
    return take_in_order(pool, share, order)


def take_in_order(pool: Pool, share: float, order: Places) -> Places:
    """Take runs in this order, each that still fits."""
    remaining = share * pool.flops.sum()
    selection = []
    for i in order:
        if pool.flops[i] <= remaining:
            selection.append(int(i))
            remaining -= pool.flops[i]
    return np.array(selection)


OURS = "next_runs"
PEER = "V-optimal"
DESIGNS: dict[str, DesignOf] = {
    OURS: choose_next_runs,
    PEER: optimal(of_judged=True),
    "D-optimal": optimal(of_judged=False),
    "random": choose_at_random,
    "cheapest first": choose_cheapest,
}


# ------------------------------------------------------------------ data


def population_without(*labs: str) -> Prior:
    """Return the public population without these laboratories, for a loss of any unit."""
    members, settings, members_of_experts, _ = read_population(POPULATION)
    of_dense = [member for member in members if member.lab not in labs]
    population = estimate(of_dense, **settings)
    of_experts = [member for member in members_of_experts if member.lab not in labs]
    experts = terms_of_experts(of_experts, population)
    return replace(population.in_units(*OTHER_UNIT), experts=experts)


def vague_prior(kind: str) -> Prior:
    """Return a prior of laws of a kind that knows no other runs, for a loss of any unit."""
    prior = vague_of_experts() if kind == "joint" else for_kind(vague(), kind)
    return prior.in_units(*OTHER_UNIT)


def read_table(path: Path) -> tuple[Runs, NDArray[np.bool_]]:
    """Read a table of ScaleBench without its duplicates; the second marks the rows that are judged."""
    table = pandas.read_csv(path).drop(columns="group").drop_duplicates()
    table = table.rename(columns={"N": "n_active", "params": "n_active", "D": "tokens"})
    table["experts"] = 1
    is_judged = table.pop("split").to_numpy() == "test"
    runs = load_runs(table, loss="loss", trunks="run")
    return runs, is_judged


def hold_out(runs: Runs, seed: int) -> tuple[Runs, Runs]:
    """Split runs into candidates and some of the largest runs, at random."""
    order = np.argsort(runs.flops)
    largest = order[-round(LARGEST * len(runs)) :]
    rng = np.random.default_rng(seed)
    judged = rng.choice(largest, HELD_OUT, replace=False)
    smallest = runs.flops[judged].min()
    is_candidate = runs.flops <= GAP * smallest
    return runs.subset(is_candidate), runs.take(judged)


def own_runs() -> Runs:
    """Return the runs of our own sweep at the rates of its law, not those that searched for rates."""
    path = ROOT / "studies" / "crossing" / "runs.jsonl"
    return load_runs(path, where="sweep = crossing", trunks="run")


def pools(name: str, folder: Path | None, n_hold_outs: int) -> list[Pool]:
    """Return the pools of a set: one split, or several; none without the tables of ScaleBench that it needs."""
    if name in (OWN, OWN_ALONE):
        runs = own_runs()
        population = population_without()
        prior = for_kind(population, "joint") if name == OWN else vague_prior("joint")
        splits = [hold_out(runs, seed) for seed in range(max(1, n_hold_outs // 4))]
        return [Pool(*split, population, prior) for split in splits]
    if folder is None:
        return []
    repeats = name == REPEATED
    runs, is_judged = read_table(folder / ("data_constrained.csv" if repeats else "farseer.csv"))
    population = population_without("stepfun")
    prior = for_kind(population, "interaction")
    if name == HOLD_OUTS:
        splits = [hold_out(runs, seed) for seed in range(n_hold_outs)]
        return [Pool(*split, population, prior) for split in splits]
    candidates = runs.subset(~is_judged)
    judged = runs.subset(is_judged)
    return [Pool(candidates, judged, population, prior, repeats)]


# ------------------------------------------------------------------ scores


def score(pool: Pool, reference: Law, selection: Places) -> tuple[float, float]:
    """Return R², cut at −1, and the regret in percent of the lowest loss, by the `reference` law of all runs."""
    runs = pool.candidates.take(selection)
    law, judged = pool.fit(runs)
    variables = {name: judged.column(name) for name in law.variables}
    errors = law.loss(**variables) - judged.loss
    deviations = judged.loss - judged.loss.mean()
    r_squared = 1.0 - float((errors**2).sum() / (deviations**2).sum())

    sizes = np.median(pool.judged.n_active) * SIZES
    largest = pool.judged.flops.max()
    models = {"n_active": sizes, "tokens": largest / (6.0 * sizes)}
    if "experts" in law.variables:
        models["experts"] = np.full(len(sizes), np.median(pool.judged.experts))
    losses = reference.loss(**models)
    best = int(np.argmin(law.loss(**models)))
    regret = float(losses[best] / losses.min() - 1.0)
    return max(r_squared, -1.0), 100 * regret


def measure(
    pools_of_set: Sequence[Pool], references: Sequence[Law], design: str, share: float, seeds: int
) -> tuple[float, float, float]:
    """Return mean R², mean regret and the mean number of runs of a design over pools and, at random, over seeds."""
    n_seeds = max(1, seeds // len(pools_of_set)) if design == "random" else 1
    results = []
    for i, (pool, reference) in enumerate(zip(pools_of_set, references, strict=True)):
        for seed in range(n_seeds):
            selection = DESIGNS[design](pool, share, 1000 * i + seed)
            r_squared, regret = score(pool, reference, selection)
            results.append((r_squared, regret, len(selection)))
    r_squared, regret, count = np.mean(results, axis=0).tolist()
    return r_squared, regret, count


@benchmark(
    {
        "--scalebench": (Path, None),
        "--sets": (SETS, SETS),
        "--seeds": (5, 2, "random designs"),
        "--hold-outs": (20, 1, "random splits of Farseer; a quarter as many of our sweep, at least one"),
    }
)
def main(report: Report, options: Options) -> None:
    if options.scalebench is None and not {OWN, OWN_ALONE}.issuperset(options.sets):
        report.skipped.append("Farseer and repeated data: need the tables of ScaleBench (BENCH_SCALEBENCH=FOLDER)")
    for name in options.sets:
        pools_of_set = pools(name, options.scalebench, options.hold_outs)
        if not pools_of_set:
            continue
        references = [pool.fit(pool.every_run())[0] for pool in pools_of_set]
        for i, share in enumerate(BUDGETS):
            results: dict[str, tuple[float, float, float]] = {}
            for design in DESIGNS:
                results[design] = measure(pools_of_set, references, design, share, options.seeds)
            reported = AUTHORS[name][i] if name in AUTHORS else None
            add_row(report, f"{name}, {share:.0%}", results, reported)


def add_row(
    report: Report,
    name: str,
    results: dict[str, tuple[float, float, float]],
    reported: float | None,
) -> None:
    """Add a row of R², regret and number of runs by design; `reported` is the R² of the authors' method."""
    r_squared, _, count = results[OURS]
    peer_r_squared, _, _ = results[PEER]
    comparisons = []
    regrets = []
    for design, (value, regret, _) in results.items():
        regrets.append(f"{regret:.2f}")
        if design != OURS:
            comparisons.append(f"{design} {value:.2f}")
    if reported is not None:
        comparisons.append(f"authors' {reported:.2f}")
    note = f"R² {r_squared:.2f} ({count:.0f} runs); {', '.join(comparisons)}; regrets {', '.join(regrets)} %"
    peer = (PEER, 1 - peer_r_squared)
    report.add(name, 1 - r_squared, "", peer, note=note)
    print(f"{name}: {note}", flush=True)


if __name__ == "__main__":
    main()
