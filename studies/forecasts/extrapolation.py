"""The error of a law by its distance from the runs, and what intervals hold without and with it.

`misses.csv` has the miss of a fresh Chinchilla law on each held-out run of the list of splits, and of a routed law on
the largest models of Clark et al., where many E share N and D. From these follow the numbers of the library's rule
(`scaling_law.formulas.extrapolation`), and the coverage of intervals on labs that are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

from hub.base import strict_json
from scaling_law import Runs, fit
from scaling_law.forecasting.forecast import ONE_SIGMA
from scaling_law.formulas.conditions import EVIDENCE, FORMAT, VERSION, RangeCheck, evidence
from studies.common import FloatArray, Page, Part, read_csv, rows_of, write_csv
from studies.evidence.forecasts import as_dense, without_embeddings
from studies.evidence.points import read_source
from studies.forecasts.splits import CUT_NAMES, splits_of

FOLDER = Path(__file__).parent
MISSES = FOLDER / "misses.csv"
CLARK = FOLDER.parent / "evidence" / "clark.json"
ROUTERS = ("S-Base", "RL-R", "Hash")
ROUTED = "Clark et al., "
# The largest models of Clark et al. that are held out lie above these parts of the largest.
DIVISORS = (3, 10)
DIGITS = 4
RESAMPLES = 100
DIRECTIONS = ("N_act", "D", "C", "D/N")
# Half the widths of 90 and 95 % intervals, in standard deviations.
NORMAL = (1.6449, 1.96)
# Where the logarithms of the variances start, and their limits.
START = -9.0
LIMITS = (-18.0, 0.0)


@dataclass(frozen=True)
class Miss:
    """The miss of ln L on a held-out run, and how far (ln) it lies outside the fitted N, D, C and D/N.

    `spread` is the standard deviation of ln L by the law's draws and a run's own scatter.
    """

    set: str
    lab: str
    cut: str
    experts: float
    size: float
    tokens: float
    compute: float
    ratio: float
    miss: float
    spread: float


def misses_of(tables: Mapping[str, Runs]) -> Iterator[Miss]:
    """Yield the misses of Chinchilla laws fitted below each cut of the list, each set as of one E."""
    for split in splits_of(tables):
        train, held_out = split.divide(tables[split.set])
        dense = as_dense(train)
        try:
            result = fit(dense, "chinchilla")
        # Some sets are too few for a law.
        except ValueError:
            continue
        bare_law = result.bootstrap(RESAMPLES).law.replace(conditions=None)
        log_draws = np.log(np.maximum(bare_law.loss_draws(held_out.n_active, held_out.tokens), 1e-9))
        low, high = np.quantile(log_draws, ONE_SIGMA, axis=0)
        residuals = result.problem.objective.residuals(result.theta[None])[0]
        noise = np.sqrt((residuals**2).sum() / max(len(dense) - len(result.fitted), 1))
        spread = np.hypot(0.5 * (high - low), noise)
        errors = np.log(held_out.loss / result.law.loss(held_out.n_active, held_out.tokens))
        yield from _misses(split.set, split.lab, split.cut, dense, held_out, errors, spread)
    for router, divisor in product(ROUTERS, DIVISORS):
        runs = without_embeddings(read_source(CLARK)[router])
        is_held_out = runs.n_active > runs.n_active.max() / divisor
        train = runs.subset(~is_held_out)
        held_out = runs.subset(is_held_out)
        routed = fit(train, "routed").law
        errors = np.log(held_out.loss / routed.loss(n_active=held_out.n_active, experts=held_out.experts))
        yield from _misses(ROUTED + router, "deepmind", f"N/{divisor}", train, held_out, errors, np.zeros(len(errors)))


def _misses(
    name: str, lab: str, cut: str, train: Runs, held_out: Runs, errors: FloatArray, spread: FloatArray
) -> Iterator[Miss]:
    variables = {"n_active": held_out.n_active, "tokens": held_out.tokens}
    check = RangeCheck(train.conditions(name), (), variables)
    distances = check.distances(DIRECTIONS)
    columns = (held_out.experts, *distances.values(), errors, spread)
    for row in zip(*columns, strict=True):
        if np.all(np.isfinite(row)):
            yield Miss(name, lab, cut, *(round(float(value), DIGITS) for value in row))


@dataclass(frozen=True)
class Misses:
    """All misses, and the rule that follows from them."""

    rows: Sequence[Miss]

    @cached_property
    def of_one_e(self) -> list[Miss]:
        """The misses on the sets of the list."""
        return [row for row in self.rows if not row.set.startswith(ROUTED)]

    @cached_property
    def growth(self) -> FloatArray:
        """The standard deviation of ln L for each e-fold outside, of `DIRECTIONS`: from all labs."""
        return grow(self.of_one_e)

    @cached_property
    def left_out(self) -> FloatArray:
        """The standard deviation of each miss of the list by what the other labs say, [n]."""
        deviations = np.zeros(len(self.of_one_e))
        labs = np.array([row.lab for row in self.of_one_e])
        for lab in sorted({*labs.tolist()}):
            growth = grow([row for row in self.of_one_e if row.lab != lab])
            deviations[labs == lab] = deviations_of([row for row in self.of_one_e if row.lab == lab], growth)
        return deviations

    @cached_property
    def groups(self) -> list[Group]:
        """The groups of models of Clark et al. that share N and D."""
        groups: dict[tuple[str, str, float], list[Miss]] = {}
        for row in self.rows:
            if row.set.startswith(ROUTED):
                groups.setdefault((row.set, row.cut, row.size), []).append(row)
        return [Group(tuple(rows)) for rows in groups.values() if len(rows) > 2 and rows[0].size > 0]

    @cached_property
    def per_doubling(self) -> float:
        """The error that a doubling of E adds, over that which all E share by the rule."""
        slopes = np.array([group.line[1] for group in self.groups])
        deviations = np.array([deviations_of(group.rows[:1], self.growth)[0] for group in self.groups])
        return float(np.sqrt(np.sum(slopes**2) / np.sum(deviations**2)))


@dataclass(frozen=True)
class Group:
    """Misses on models that differ in E alone."""

    rows: tuple[Miss, ...]

    @cached_property
    def line(self) -> tuple[float, float]:
        """The miss at E = 1, and what each doubling adds."""
        slope, start = np.polyfit(np.log2([row.experts for row in self.rows]), [row.miss for row in self.rows], 1)
        return float(start), float(slope)

    @property
    def shared(self) -> float:
        """The part of the mean square that all E share."""
        misses = np.array([row.miss for row in self.rows])
        return float(misses.mean() ** 2 / np.mean(misses**2))


def _distances(rows: Sequence[Miss]) -> FloatArray:
    """Return how far outside the misses lie, [4, n]."""
    return np.array([(row.size, row.tokens, row.compute, row.ratio) for row in rows]).T


def deviations_of(rows: Sequence[Miss], growth: FloatArray) -> FloatArray:
    """Return the standard deviation of ln L by extrapolation at each miss, [n]."""
    return np.asarray(np.sqrt(growth**2 @ _distances(rows) ** 2))


def grow(rows: Sequence[Miss]) -> FloatArray:
    """Fit the standard deviation per e-fold in each direction [4] by maximum likelihood; labs weigh equally."""
    squares = _distances(rows) ** 2
    base = np.array([row.spread for row in rows]) ** 2
    misses = np.array([row.miss for row in rows]) ** 2
    weights = weights_of(rows)

    def score(log_variances: FloatArray) -> tuple[float, FloatArray]:
        variances = np.exp(log_variances)
        total = base + variances @ squares + 1e-8
        slope = 0.5 * weights * (1.0 - misses / total) / total
        value = weights @ (0.5 * np.log(total) + 0.5 * misses / total)
        return float(value), variances * (squares @ slope)

    start = np.full(len(DIRECTIONS), START)
    options = {"ftol": 1e-14, "gtol": 1e-9, "maxiter": 1000}
    solution = minimize(score, start, jac=True, method="L-BFGS-B", bounds=[LIMITS] * len(start), options=options)
    return np.asarray(np.exp(0.5 * solution.x))


def weights_of(rows: Sequence[Miss]) -> FloatArray:
    """Return the weight of each miss: labs weigh equally, and so do the cells of a lab and their runs."""
    cells: dict[str, dict[tuple[str, str], int]] = {}
    for row in rows:
        counts = cells.setdefault(row.lab, {})
        counts[row.set, row.cut] = counts.get((row.set, row.cut), 0) + 1
    weights = []
    for row in rows:
        counts = cells[row.lab]
        weights.append(1.0 / len(cells) / len(counts) / counts[row.set, row.cut])
    return np.array(weights)


def extrapolation(misses: Misses) -> Iterator[Part]:
    """List the share of held-out runs in intervals without and with the error of extrapolation."""
    yield "cut", "runs", "labs", "RMS", "90 %, draws", "95 %, draws", "90 %, with it", "95 %, with it"
    rows = misses.of_one_e
    errors = np.abs([row.miss for row in rows])
    spread = np.array([row.spread for row in rows])
    totals = (spread, np.hypot(spread, misses.left_out))
    labs = np.array([row.lab for row in rows])
    cuts = np.array([row.cut for row in rows])
    equal = weights_of(rows)
    everything = np.full(len(rows), 1.0 / len(rows))
    selections = [(cut, np.where(cuts == cut, everything, 0.0)) for cut in CUT_NAMES]
    for name, weights in (*selections, ("all", everything), ("all, labs equally", equal)):
        weights = weights / weights.sum()
        shares = [weights @ (errors <= width * total) for total, width in product(totals, NORMAL)]
        is_counted = weights > 0
        yield (
            name,
            int(is_counted.sum()),
            len({*labs[is_counted].tolist()}),
            f"{np.sqrt(weights @ errors**2):.3f}",
            *(f"{share:.0%}" for share in shares),
        )


def growth(misses: Misses) -> Iterator[Part]:
    """List the standard deviations of the rule, and how they change with the lab that is left out."""
    yield "ln L for each factor of e outside", *DIRECTIONS
    yield "all labs", *(f"{value:.4f}" for value in misses.growth)
    labs = sorted({row.lab for row in misses.of_one_e})
    without = []
    for lab in labs:
        without.append(grow([row for row in misses.of_one_e if row.lab != lab]))
    spans = zip(np.min(without, axis=0), np.max(without, axis=0), strict=True)
    yield "one lab left out", *(f"{low:.4f} to {high:.4f}" for low, high in spans)


def shared(misses: Misses) -> Iterator[Part]:
    """List the misses on models that differ in E alone, and how much of them all E share."""
    yield "set", "cut", "N outside", "E", "miss at E = 1", "each doubling adds", "shared"
    for group in misses.groups:
        first = group.rows[0]
        experts = [row.experts for row in group.rows]
        start, slope = group.line
        yield (
            first.set,
            first.cut,
            f"×{np.exp(first.size):.1f}",
            f"{min(experts):g} to {max(experts):g}",
            f"{start:+.3f}",
            f"{slope:+.4f}",
            f"{group.shared:.0%}",
        )


def read() -> Misses:
    """Read the misses."""
    return Misses(read_csv(MISSES, Miss))


def write_misses(tables: Mapping[str, Runs]) -> Path:
    """Write the misses of the public tables."""
    return write_csv(MISSES, rows_of(misses_of(tables), Miss))


def write_rule(misses: Misses, path: Path = EVIDENCE) -> Path:
    """Write the numbers of the rule into the file that the library reads."""
    data = dict(evidence())
    rule = rule_of(misses)
    data["extrapolation"] = {**data["extrapolation"], **rule}
    fields = {name: value for name, value in data.items() if name not in ("format", "version")}
    return strict_json.write(path, FORMAT, VERSION, fields)


def rule_of(misses: Misses) -> dict[str, object]:
    """Return the numbers of the rule, to two digits."""
    deviations = [float(f"{value:.2g}") for value in misses.growth]
    return {
        "growth": dict(zip(DIRECTIONS, deviations, strict=True)),
        "per_doubling": float(f"{misses.per_doubling:.2g}"),
    }


PAGE = Page(read, blocks=(extrapolation, growth, shared))
