"""The numbers of docs/studies/promote.md: is a variant ahead at the largest size, as said from the smaller ones?

    python -m studies promote --runs FOLDER     from public tables: cases.csv, and the prior that the library ships
    python -m studies promote                   the page from cases.csv

All that a case is forecast with is learnt from pairs of other laboratories.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize

from hub.base import strict_json
from hub.base.errors import InputError
from scaling_law.figures import drawing
from scaling_law.forecasting.promote import DECIDED
from scaling_law.forecasting.trends import (
    DEFAULTS,
    FORMAT,
    RATE_BY_BATCH,
    VERSION,
    Cells,
    TrendPrior,
    fit_slopes,
    noise_variances,
    predict_gaps,
)
from studies.common import FloatArray, Page, Part, read_csv, rows_of, write_csv
from studies.promote.pairs import CELL, CUTS, HERE, LIST, TIE, Pair, read_pairs

CASES = HERE / "cases.csv"
# The cells nearest to the target that a case is judged by; more say nothing further and cost time.
NEAREST = 10
# Cases of a set and cut that a prior is learnt from.
LEARNT_FROM = 6
# The score of a prior is ln P(sign), and this times the log density of the gap.
DENSITY = 0.3
# The start and the centre of what is learnt, with standard deviations: of ln, or of the number itself where it may be
# negative.
START = TrendPrior(
    level=0.02,
    trend=0.005,
    transient=0.01,
    drift=0.002,
    noise=0.0015,
    fade=0.1,
    decay=0.6,
    rate_n=-0.002,
    rate_d=-0.002,
    slope=0.05,
    slope_scatter=0.02,
)
WIDTHS = {
    "level": 2.0,
    "trend": 2.0,
    "transient": 1.5,
    "drift": 2.0,
    "noise": 1.5,
    "fade": 0.2,
    "decay": 0.3,
    "rate_n": 0.003,
    "rate_d": 0.003,
}
IN_LOGARITHMS = (
    "level",
    "trend",
    "transient",
    "drift",
    "noise",
    "decay",
)
ITERATIONS = 15
# Widths of what a stratum may learn of its own, relative to those of what all cases teach.
STRATUM_WIDTH = 0.25
RESAMPLES = 500
# Bounds of |gap| within which the sign is right equally often.
GAP_BINS = (0.001, 0.003, 0.01, 0.03)
SHOWN_LEVELS = (
    0.5,
    0.6,
    0.7,
    0.8,
    0.9,
    1.0,
)


class Case(NamedTuple):
    """A pair under a cut: what is seen, and ln N, ln D [1, 2] and the gap of the target."""

    pair: Pair
    cut: str
    cells: Cells
    point: FloatArray
    target: float

    @property
    def is_tie(self) -> bool:
        """True if nobody could tell who won at the target."""
        return abs(self.target) < TIE


@dataclass(frozen=True)
class Judged:
    """A line of cases.csv: gaps in ln loss, and the probability that the variant is ahead at the target."""

    stratum: str
    lab: str
    set: str
    baseline: str
    variant: str
    cut: str
    times_beyond: float
    gap_seen: float
    gap_target: float
    ahead: float
    ahead_without_settings: float
    ahead_by_stratum: float

    @property
    def is_ahead(self) -> bool:
        """True if the variant is ahead at the target."""
        return self.gap_target > 0

    @property
    def decides(self) -> bool:
        """True if the forecast is sure enough to decide."""
        return max(self.ahead, 1.0 - self.ahead) >= DECIDED

    @property
    def misses(self) -> bool:
        """True if the more probable sign is wrong."""
        return (self.ahead > 0.5) != self.is_ahead

    @property
    def sign_misses(self) -> bool:
        """True if the sign at the largest size seen is wrong."""
        return (self.gap_seen > 0) != self.is_ahead


def cases_of(pairs: Sequence[Pair]) -> list[Case]:
    """Return the cases of pairs."""
    cases = []
    for pair in pairs:
        for cut in CUTS:
            visible = pair.seen(cut).tail(NEAREST)
            if not len(visible):
                continue
            sizes = np.log(visible[list(CELL)].to_numpy(float))
            target = pair.target
            cells = Cells(
                sizes=sizes - sizes[-1],
                gaps=visible.gap.to_numpy(float),
                runs=np.ones(len(visible)),
                excess_rate=float(target.log_rate - RATE_BY_BATCH * target.log_batch),
            )
            point = np.log(target[list(CELL)].to_numpy(float)) - sizes[-1]
            cases.append(Case(pair, cut, cells, point[None], float(target.gap)))
    return cases


# ------------------------------------------------------------------ the prior


def _subset(cases: Sequence[Case]) -> list[Case]:
    """Draw at most `LEARNT_FROM` cases of each set and cut."""
    generator = np.random.default_rng(0)
    groups: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        groups.setdefault((case.pair.set, case.cut), []).append(case)
    subset = []
    for group in groups.values():
        for place in sorted(generator.permutation(len(group))[:LEARNT_FROM]):
            subset.append(group[place])
    return subset


class Batch(NamedTuple):
    """Cases with equally many cells, as arrays whose first axis is the case."""

    cells: Cells
    points: FloatArray
    targets: FloatArray
    weights: FloatArray


def _batches(cases: Sequence[Case]) -> list[Batch]:
    """Gather cases by their number of cells; each set of n cases counts as √n."""
    sizes = Counter(case.pair.set for case in cases)
    groups: dict[int, list[Case]] = {}
    for case in cases:
        groups.setdefault(len(case.cells.gaps), []).append(case)
    batches = []
    for group in groups.values():
        columns: dict[str, Any] = {}
        for name in ("sizes", "gaps", "runs", "excess_rate"):
            columns[name] = np.array([getattr(case.cells, name) for case in group])
        points = np.array([case.point for case in group])
        targets = np.array([case.target for case in group])
        weights = np.array([sizes[case.pair.set] ** -0.5 for case in group])
        batches.append(Batch(Cells(**columns), points, targets, weights))
    return batches


def _score(prior: TrendPrior, batch: Batch) -> float:
    """Return the log scores of the signs at the targets, and of the gaps."""
    gaps = predict_gaps(prior, batch.cells, batch.points)
    deviations = np.sqrt(gaps.deviations[..., 0] ** 2 + noise_variances(prior))
    z = (batch.targets[:, None] - gaps.means[..., 0]) / deviations
    densities = (gaps.weights * np.exp(-0.5 * z**2) / deviations).sum(axis=1)
    scores = DENSITY * np.log(np.maximum(densities, 1e-12))
    ahead = gaps.probability()[:, 0]
    right = np.where(batch.targets > 0, ahead, 1.0 - ahead)
    is_tie = np.abs(batch.targets) < TIE
    scores += np.where(is_tie, 0.0, np.log(np.maximum(right, 1e-4)))
    return float(batch.weights @ scores)


def learn(cases: Sequence[Case], start: TrendPrior = START, width: float = 1.0) -> TrendPrior:
    """Learn a prior from cases: the best log score, not many `WIDTHS` times `width` from the start."""
    cases = _subset(cases)
    batches = _batches(cases)

    def loss(steps: FloatArray) -> float:
        prior = _move(start, width * steps)
        return float(0.5 * steps @ steps - sum(_score(prior, batch) for batch in batches))

    no_steps = np.zeros(len(WIDTHS))
    optimum = minimize(loss, no_steps, method="L-BFGS-B", options={"maxiter": ITERATIONS, "eps": 1e-3})
    return _move(start, width * optimum.x)


def _move(start: TrendPrior, steps: FloatArray) -> TrendPrior:
    """Return a prior moved by these steps, in units of `WIDTHS`."""
    values = asdict(start)
    for (name, width), step in zip(WIDTHS.items(), steps, strict=True):
        if name in IN_LOGARITHMS:
            values[name] = float(values[name] * np.exp(width * step))
        else:
            values[name] = float(values[name] + width * step)
    return TrendPrior(**values)


def _baseline_slopes(pairs: Sequence[Pair]) -> tuple[float, float]:
    """Return mean and scatter of how ln L of baselines falls with ln N and ln D, each set once."""
    wide = replace(START, slope_scatter=0.2)
    slopes = {}
    for pair in pairs:
        sizes = np.log(pair.cells[list(CELL)].to_numpy(float))
        if len(sizes) > 3:
            pair_slopes, _ = fit_slopes(wide, sizes - sizes[-1], np.log(pair.cells.base_loss.to_numpy(float)))
            slopes[pair.set] = pair_slopes.mean()
    values = np.array([*slopes.values()])
    return float(np.median(values)), float(np.std(values))


def take(paths: list[Path]) -> list[Path]:
    """Read the public tables below a folder, forecast every case without its laboratory, and ship the prior of all."""
    cases = cases_of(read_pairs(paths[0]))
    n_listed = len(LIST.read_text(encoding="utf-8").splitlines()) - 1
    if n_listed != len(cases):
        raise InputError(f"{len(cases)} cases, but {LIST.name} lists {n_listed}")
    judged = []
    for lab in sorted({case.pair.lab for case in cases}):
        others = [case for case in cases if case.pair.lab != lab]
        prior = learn(others)
        priors = {}
        for stratum in {case.pair.stratum for case in others}:
            others_of_stratum = [case for case in others if case.pair.stratum == stratum]
            priors[stratum] = learn(others_of_stratum, prior, STRATUM_WIDTH)
        for case in cases:
            if case.pair.lab == lab and not case.is_tie:
                judged.append(_judge(prior, priors.get(case.pair.stratum, prior), case))
    slope, scatter = _baseline_slopes([case.pair for case in _subset(cases)])
    prior = replace(learn(cases), slope=slope, slope_scatter=scatter)
    source = "studies/promote: pairs of public and own runs"
    shipped = strict_json.write(DEFAULTS, FORMAT, VERSION, {"source": source, "prior": asdict(prior)})
    return [write_csv(CASES, rows_of(judged, Judged)), shipped]


def _judge(prior: TrendPrior, prior_of_stratum: TrendPrior, case: Case) -> Judged:
    """Forecast a case, with what is known of learning rates and batches and without it, and by its stratum's prior."""
    pair = case.pair
    ahead = predict_gaps(prior, case.cells, case.point).probability()[0]
    plain_cells = case.cells._replace(excess_rate=0.0)
    plain_ahead = predict_gaps(prior, plain_cells, case.point).probability()[0]
    ahead_by_stratum = predict_gaps(prior_of_stratum, case.cells, case.point).probability()[0]
    return Judged(
        stratum=pair.stratum,
        lab=pair.lab,
        set=pair.set,
        baseline=pair.baseline,
        variant=pair.variant,
        cut=case.cut,
        times_beyond=_shorten(np.exp(case.point.sum())),
        gap_seen=_shorten(case.cells.gaps[-1]),
        gap_target=_shorten(case.target),
        ahead=_shorten(ahead),
        ahead_without_settings=_shorten(plain_ahead),
        ahead_by_stratum=_shorten(ahead_by_stratum),
    )


def _shorten(number: float) -> float:
    """Round a number to the digits of the list."""
    return float(f"{number:.4g}")


# ------------------------------------------------------------------ the page


@dataclass(frozen=True)
class Results:
    """The judged cases."""

    cases: Sequence[Judged]

    @cached_property
    def without_settings(self) -> list[Judged]:
        """The cases as forecast without learning rates and batches."""
        return [replace(case, ahead=case.ahead_without_settings) for case in self.cases]

    @cached_property
    def by_stratum(self) -> list[Judged]:
        """The cases as forecast by a prior of their stratum."""
        return [replace(case, ahead=case.ahead_by_stratum) for case in self.cases]

    @cached_property
    def labs(self) -> list[str]:
        """The laboratories."""
        return sorted({case.lab for case in self.cases})


def read() -> Results:
    """Read the judged cases."""
    return Results(read_csv(CASES, Judged))


def brier(cases: Sequence[Judged]) -> float:
    """Return the mean squared error of the probabilities."""
    return float(np.mean([(case.ahead - case.is_ahead) ** 2 for case in cases]))


def sign_brier(cases: Sequence[Judged], others: Sequence[Judged]) -> float:
    """Return the mean squared error of the sign's frequency by the size of the gap, as in other cases."""
    bins, is_right = _bins_of(others)
    n_bins = len(GAP_BINS) + 1
    # One case more on either side keeps frequencies off 0 and 1.
    frequencies = (np.bincount(bins, is_right, n_bins) + 1) / (np.bincount(bins, minlength=n_bins) + 2)
    bins, is_right = _bins_of(cases)
    return float(np.mean((frequencies[bins] - is_right) ** 2))


def _bins_of(cases: Sequence[Judged]) -> tuple[Any, Any]:
    """Return the bin of each case's gap, and whether the sign is right."""
    gaps = np.array([case.gap_seen for case in cases])
    is_right = np.array([not case.sign_misses for case in cases])
    return np.digitize(np.abs(gaps), GAP_BINS), is_right


def sign_brier_by_lab(cases: Sequence[Judged]) -> float:
    """Return the same with frequencies from other laboratories."""
    total = 0.0
    for lab in {case.lab for case in cases}:
        cases_of_lab = [case for case in cases if case.lab == lab]
        others = [case for case in cases if case.lab != lab]
        total += len(cases_of_lab) * sign_brier(cases_of_lab, others)
    return total / len(cases)


class Score(NamedTuple):
    """Counts of cases, of misses of the sign and of the forecast among the decided ones, and Brier scores."""

    cases: int
    decided: int
    sign_misses: int
    misses: int
    brier: float

    @property
    def gone(self) -> float:
        """Share of the sign's misses that are gone; NaN without one."""
        return 1.0 - self.misses / self.sign_misses if self.sign_misses else np.nan


def score(cases: Sequence[Judged]) -> Score:
    """Score cases."""
    decided = [case for case in cases if case.decides]
    sign_misses = sum(case.sign_misses for case in decided)
    misses = sum(case.misses for case in decided)
    return Score(len(cases), len(decided), sign_misses, misses, brier(cases))


def interval_by_lab(r: Results, statistic: Callable[[list[Judged]], float]) -> tuple[float, float]:
    """Return the 90 % interval of a statistic over resampled laboratories."""
    generator = np.random.default_rng(0)
    by_lab = {lab: [case for case in r.cases if case.lab == lab] for lab in r.labs}
    values = []
    for _ in range(RESAMPLES):
        sample: list[Judged] = []
        for lab in generator.choice(r.labs, len(r.labs)):
            sample += by_lab[lab]
        values.append(statistic(sample))
    low, high = np.nanquantile(values, [0.05, 0.95])
    return float(low), float(high)


def select(cases: Sequence[Judged], stratum: str) -> list[Judged]:
    """Return the cases of a stratum."""
    return [case for case in cases if case.stratum == stratum]


def scores(r: Results) -> Iterator[Part]:
    """Lay out the scores of all cases, and of strata, laboratories and cuts."""
    yield "cases", "n", "decided", "misses of the sign", "of `promote`", "Brier score"
    groups: dict[str, Sequence[Judged]] = {"all": r.cases}
    groups["all, settings unknown"] = r.without_settings
    groups["all, a prior for each stratum"] = r.by_stratum
    groups["recipes, a prior for each stratum"] = select(r.by_stratum, "recipes")
    groups["all but Step Law's"] = [case for case in r.cases if case.lab != "stepfun"]
    for name in ("stratum", "lab", "cut"):
        for value in sorted({getattr(case, name) for case in r.cases}):
            groups[f"{name}: {value}"] = [case for case in r.cases if getattr(case, name) == value]
    for name, cases in groups.items():
        row = score(cases)
        yield name, row.cases, f"{row.decided / row.cases:.0%}", row.sign_misses, row.misses, f"{row.brier:.3f}"


def values(r: Results) -> dict[str, str]:
    """Return the numbers in the page's sentences."""
    row = score(r.cases)
    unset = score(r.without_settings)
    rest = score([case for case in r.cases if case.lab != "stepfun"])
    by_stratum = score(r.by_stratum)
    recipes = score(select(r.cases, "recipes"))
    recipes_by_stratum = score(select(r.by_stratum, "recipes"))
    recipe_labs = Counter(case.lab for case in select(r.cases, "recipes"))
    gone = interval_by_lab(r, lambda cases: score(cases).gone)
    decided = interval_by_lab(r, lambda cases: score(cases).decided / len(cases))
    gain = interval_by_lab(r, lambda cases: sign_brier(cases, cases) - brier(cases))
    return {
        "cases": str(row.cases),
        "pairs": str(len({(case.set, case.baseline, case.variant) for case in r.cases})),
        "decided": f"{row.decided / row.cases:.0%} ({decided[0]:.0%} to {decided[1]:.0%})",
        "sign-misses": str(row.sign_misses),
        "misses": str(row.misses),
        "gone": f"{row.gone:.0%}",
        "gone-low": f"{gone[0]:.0%}",
        "gone-high": f"{gone[1]:.0%}",
        "brier": f"{row.brier:.3f}",
        "sign-brier": f"{sign_brier_by_lab(r.cases):.3f}",
        "own-brier": f"{sign_brier(r.cases, r.cases):.3f}",
        "gain": f"{gain[0]:+.3f} to {gain[1]:+.3f}",
        "rest-sign": str(rest.sign_misses),
        "rest-misses": str(rest.misses),
        "rest-gone": f"{rest.gone:.0%}",
        "recipe-misses": str(recipes.misses),
        "recipe-others": str(recipes.cases - recipe_labs["tel_aviv"]),
        "stratum-brier": f"{by_stratum.brier:.3f}",
        "stratum-misses": str(by_stratum.misses),
        "stratum-recipe-misses": str(recipes_by_stratum.misses),
        "unset-decided": f"{unset.decided / unset.cases:.0%}",
        "unset-gone": f"{unset.gone:.0%}",
    }


def promote_calibration(r: Results) -> Any:
    """Draw how often the more probable side won, by its probability."""
    ax = drawing.axes_or_new(None, 5.2, 4.2)
    sure = np.array([max(case.ahead, 1.0 - case.ahead) for case in r.cases])
    is_right = np.array([not case.misses for case in r.cases])
    for low, high in pairwise(SHOWN_LEVELS):
        in_bin = (sure >= low) & (sure < high + (high == 1.0))
        size = 3 + in_bin.sum() ** 0.5 / 2
        ax.plot(sure[in_bin].mean(), is_right[in_bin].mean(), "o", color="#0072B2", markersize=size)
    ax.plot([0.5, 1.0], [0.5, 1.0], color="0.6", linewidth=0.8)
    ax.axvline(DECIDED, color="0.6", linestyle=":", linewidth=0.8)
    ax.set(xlabel="probability of the more probable side", ylabel="share of cases in which it won")
    return ax


CLAIMS = {
    "at least 60 % are decided": lambda r: score(r.cases).decided >= 0.6 * len(r.cases),
    "at least a third of the sign's misses are gone": lambda r: score(r.cases).gone >= 1 / 3,
    "the Brier score is better than the sign's": lambda r: brier(r.cases) < sign_brier(r.cases, r.cases),
    "without Step Law's, at least a third are gone": lambda r: (
        score([case for case in r.cases if case.lab != "stepfun"]).gone >= 1 / 3
    ),
    "recipes get worse": lambda r: score(select(r.cases, "recipes")).misses > 0,
    "a prior for each stratum has no better Brier score": lambda r: brier(r.by_stratum) > brier(r.cases),
    "other laboratories may gain no misses": lambda r: interval_by_lab(r, lambda cases: score(cases).gone)[0] < 0,
}

PAGE = Page(
    read=read,
    blocks=(scores,),
    figures=(promote_calibration,),
    values=values,
    claims=CLAIMS,
)
