"""Settings in which runs of equal N, D and E differ, and with them their losses: one law would blend such runs.

Losses are compared within cells, the runs of equal N, D and E. A column tells the runs of cells apart if it explains
their differences of ln L by far more than seeds do, with effects that all cells share: a mean of each of its values,
which may change with N, or a parabola in its logarithm whose lowest point may move with N and D, as that of a learning
rate. So neither a seed nor an id of runs explains anything, however well each fits the runs of one cell. Where no runs
are equal, words are tested beside a smooth surface in N, D and E.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hub.base.tables import join_words
from hub.base.types import Fields, Strings
from scaling_law.runs.rows import is_missing
from scaling_law.size.arrays import BoolArray, Columns, FloatArray, IntArray

# Two D within this factor are equal, because a batch times its steps is never exactly D, and two N within the next.
SAME = 0.01
SAME_SIZE = 1e-3
# Spread of ln L between seeds that is taken for granted, as if it had been seen in so many runs.
SEEDS = 0.004
PRIOR_RUNS = 4.0
# A column is named if it explains this spread of ln L; above the next, no answer is trusted.
LEAST = 0.005
HARMFUL = 0.01
# A spread of ln L within cells that a message reports although no column explains it.
UNEXPLAINED = 0.03
# Probability that a column without effect is named.
CHANCE = 1e-3
# Columns of at most so many values are compared by the means of their values.
LEVELS = 24
# Largest sample of runs, in whole cells.
RUNS = 4096
# Columns that a message names.
MOST = 4
# A run that lies farther than this from its cell diverged, and counts as so far: usual spreads, and ln L.
WILD_SPREADS = 6.0
WILD_LOSS = 0.1
# Columns whose residual variances differ by less than this factor explain the same.
ALIKE = 1.5
# Where no runs are equal: the least spread of ln L about a surface in N, D and E that a column of words explains.
SMOOTH = 0.03
# A column was measured, not set, if this share of its values is distinct, and its rank correlation with the loss is
# above the next over all runs, and above the last within cells.
DISTINCT = 0.9
CORRELATION = 0.8
CORRELATION_IN_CELLS = 0.3
# Values that a message lists, and values without a counterpart that a filter keeps.
LISTED = 3
UNPAIRED = 4
# A value with one of these cannot stand in the braces of a filter.
_SYNTAX = re.compile("[,{}]")
# Columns that are measured and never set, and names of runs.
_MEASURED = re.compile(
    r"(?i)(?<![a-z])(loss|ppl|perplexity|bpb|bpc|nll|ce|acc|accuracy|score|error|grad_?norm|mfu|t?flops?|throughput|time"
    r"|timestamp|created|date|seconds?|secs?|minutes?|hours?|runtime|duration|memory|spikes|skipped|drop_rate|seeds?"
    r"|(run|exp|experiment|trial|job|row|hyper|wandb)_?(id|name)s?|uuid|index|unnamed|budget|cost|max_over_mean"
    r"|tokens_per_second|grid_runs|at_edge|regret|n_(total|active)\w*|param\w*|\w+_param\w*)(?![a-z])"
    r"|^(id|name|run|trial|job|rep|repeat|replicate)$"
)
# Columns that are usually tuned.
_TUNED = re.compile(
    r"(?i)(?<![a-z])(lr|learning_?rates?|bs|batch(_?size)?|wd|weight_?decay|warm_?up|beta_?\d?|momentum|clip|dropout)"
    r"(?![a-z])"
)


@dataclass(frozen=True)
class Setting:
    """A column that tells runs of equal N, D and E apart.

    `values` occur together in a cell, the most frequent first; `unpaired` values are of runs without a counterpart.
    `tuned`: the column is usually tuned, so that the run of least loss is the right one. `numeric`: it may be.
    """

    name: str
    values: Strings
    unpaired: Strings
    tuned: bool
    numeric: bool

    def __str__(self) -> str:
        if self.tuned:
            return self.name
        ellipsis = ", …" if len(self.values) > LISTED else ""
        return f"{self.name} ({', '.join(self.values[:LISTED])}{ellipsis})"

    @property
    def filters(self) -> Strings:
        """Filters that choose one value each, with the runs that have no counterpart if they are few."""
        field = self.name if re.fullmatch(r"\w+", self.name) else f"`{self.name}`"

        unpaired = self.unpaired
        if len(unpaired) > UNPAIRED or _SYNTAX.search("".join(unpaired)):
            unpaired = ()

        filters = []
        for value in self.values:
            if _SYNTAX.search(value):
                continue
            if unpaired or " " in value:
                filters.append(f"{field} in {{{', '.join((value, *unpaired))}}}")
            else:
                filters.append(f"{field} = {value}")
        return tuple(filters[:LISTED])

    @property
    def advice(self) -> str:
        """Words that say what to type to choose runs of one value."""
        if (self.numeric and len(self.values) > LEVELS) or not self.filters:
            return f"--best-of {self.name} if it was tuned"

        choice = "choose with " + " or ".join(f'--where "{text}"' for text in self.filters)
        if self.numeric and len(self.values) > 2:
            return f"{choice}, or --best-of {self.name} if it was tuned"
        return choice


@dataclass(frozen=True)
class Blend:
    """Settings that tell runs of equal N, D and E apart, the best first, and how far their losses differ, nats.

    `spread` of ln L is what the settings explain. `harmful`: no answer of a law that blends these runs is trusted.
    Where no runs are `equal`, those of similar N and D are compared, and the difference is a typical one.
    """

    settings: tuple[Setting, ...]
    nats: float
    spread: float
    equal: bool = True

    @property
    def harmful(self) -> bool:
        return self.spread > HARMFUL

    def __str__(self) -> str:
        """Write one sentence that also says what to type."""
        difference = f"runs of equal N, D and E differ in loss by up to {self.nats:.2g} nats"
        if not self.equal:
            difference = f"runs of similar N and D differ in loss by about {self.nats:.2g} nats"
        if not self.settings:
            return f"{difference}, and no column of the table tells them apart"

        settings = join_words([str(setting) for setting in self.settings])
        verb = "tells" if len(self.settings) == 1 else "tell"

        advice = [setting.advice for setting in self.settings if not setting.tuned]
        tuned = ",".join(setting.name for setting in self.settings if setting.tuned)
        if tuned:
            advice.append(f"take the best run of each model, as a law describes tuned runs, with --best-of {tuned}")
        names = ",".join(setting.name for setting in self.settings)
        advice.append(f"or keep them together with --mix {names} (in Python where=, best_of and mix=)")
        return f"{difference}: {settings} {verb} them apart, and one law blends them; {'; '.join(advice)}"


def places(values: FloatArray, tolerance: float = SAME) -> IntArray:
    """Number the distinct values ≥ 0 of a column [n] in ascending order; values within the tolerance are equal.

    Chains of close values, as the steps of a learning curve, are cut into pieces of the tolerance.
    """
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    is_far = ordered[1:] > ordered[:-1] * (1 + tolerance)
    chain = np.concatenate([[0], np.cumsum(is_far)])

    first = ordered[np.searchsorted(chain, chain)]
    last = ordered[np.searchsorted(chain, chain, side="right") - 1]
    is_long = last > first * (1 + 2 * tolerance)
    distance = np.log(ordered[is_long] / first[is_long])
    pieces = np.zeros(len(order))
    pieces[is_long] = np.floor(distance / np.log1p(tolerance))

    steps = (np.diff(chain) != 0) | (np.diff(pieces) != 0)
    ranks = np.empty(len(order), np.intp)
    ranks[order] = np.concatenate([[0], np.cumsum(steps)])
    return ranks


def find_blend(
    sizes: Columns,
    loss: FloatArray,
    numbers: Columns,
    texts: Mapping[str, Sequence[str | None]],
    checked: Collection[str] = (),
    agreed: Collection[str] = (),
) -> Blend | None:
    """Find what tells runs of equal n_active, tokens and experts (`sizes`) apart; None if losses differ little.

    Args:
        numbers, texts: further columns [n] of the table.
        checked: columns in which the caller refuses differences.
        agreed: columns in which runs may differ: variables of the law, and columns that the user agreed to mix.
    """
    if len(loss) < 2:
        return None
    all_columns: Fields = {**texts, **numbers}
    keys = [
        places(sizes["n_active"], SAME_SIZE),
        places(sizes["tokens"]),
        codes_of(sizes["experts"]),
    ]
    for name in agreed:
        if name in all_columns:
            keys.append(codes_of(all_columns[name]))

    columns = {}
    for name, column in all_columns.items():
        if name in checked or name in agreed or _MEASURED.search(name):
            continue
        columns[name] = column

    log_loss = np.log(loss)
    cells = _Cells.of(cells_of(keys), log_loss, sizes)
    if cells is not None:
        settings, spread = cells.explain(columns)
        if settings or cells.spread > UNEXPLAINED:
            return Blend(settings, cells.largest_difference(loss), spread)

    # No runs are equal: only words are looked at, beside a smooth surface.
    words = {name: column for name, column in columns.items() if name in texts}
    settings, spread = _Cells.around_surface(log_loss, sizes).explain(words, SMOOTH)
    if not settings:
        return None
    typical_difference = 2 * spread * float(np.median(loss))
    return Blend(settings, typical_difference, spread, equal=False)


@dataclass(frozen=True)
class _Candidate:
    """A column with the features [m, k] by which it may explain the losses, and its codes [m]."""

    name: str
    numeric: bool
    features: FloatArray
    codes: IntArray

    @property
    def rank(self) -> tuple[bool, bool, int]:
        """Rank of columns that explain the same: texts, columns that are usually tuned, and few values first."""
        is_untuned = _TUNED.search(self.name) is None
        return self.numeric, is_untuned, int(self.codes.max())

    def determines(self, column: _Candidate) -> bool:
        """Return whether each value of this column goes with one value of another column, which has fewer."""
        pairs = cells_of([self.codes, column.codes])
        last = self.codes.max()
        return bool(column.codes.max() < last and pairs.max() == last)


class _Trial(NamedTuple):
    """The variance of ln L that a column leaves, the chance that it does nothing, and the spread that it explains."""

    variance: float
    chance: float
    spread: float


class _Choice(NamedTuple):
    """Columns that explain the losses, the variance of ln L that they leave, and the spread that they explain."""

    columns: list[_Candidate]
    variance: float
    spread: float


@dataclass(frozen=True)
class _Cells:
    """The runs [m] of cells of several runs: their rows in the table, cells, ln L less its mean, and ln N and ln D.

    `ranks` rank the losses of all runs. `spread` is a robust standard deviation of ln L within cells. `base` [m, k]
    are features that explain losses without any column.
    """

    rows: IntArray
    cell: IntArray
    y: FloatArray
    log_n: FloatArray
    log_d: FloatArray
    ranks: FloatArray
    spread: float
    base: FloatArray

    @classmethod
    def of(cls, cell: IntArray, log_loss: FloatArray, sizes: Mapping[str, FloatArray]) -> _Cells | None:
        """Make the cells of several runs, or a sample of them; None where losses within cells hardly differ."""
        counts = np.bincount(cell)
        shared_cells = np.flatnonzero(counts > 1)
        order = np.random.default_rng(0).permutation(shared_cells)
        runs_until = np.cumsum(counts[order])
        sample = order[runs_until <= max(RUNS, counts.max())]
        rows = np.flatnonzero(np.isin(cell, sample))
        if not len(rows):
            return None

        codes = codes_of(cell[rows])
        y = _centred(log_loss[rows], codes)
        if np.sqrt(np.mean(y**2)) < SEEDS:
            return None

        # The median absolute deviation, as a standard deviation; each cell's mean took a degree of freedom.
        freedom = len(y) - codes.max() - 1
        deviation = np.median(np.abs(y))
        spread = 1.4826 * deviation * np.sqrt(len(y) / freedom)
        limit = max(WILD_SPREADS * spread, WILD_LOSS)
        return cls(
            rows=rows,
            cell=codes,
            y=_centred(np.clip(y, -limit, limit), codes),
            log_n=np.log(sizes["n_active"][rows]),
            log_d=np.log(sizes["tokens"][rows]),
            ranks=_ranks(log_loss),
            spread=float(spread),
            base=np.zeros((len(y), 0)),
        )

    @classmethod
    def around_surface(cls, log_loss: FloatArray, sizes: Columns) -> _Cells:
        """Make one cell of all runs, or of a sample, in which a quadratic in ln N, ln D and ln E is the base."""
        order = np.random.default_rng(0).permutation(len(log_loss))
        rows = np.sort(order[:RUNS])
        cell = np.zeros(len(rows), np.intp)
        n = _centred(np.log(sizes["n_active"][rows]), cell)
        d = _centred(np.log(sizes["tokens"][rows]), cell)
        e = _centred(np.log(sizes["experts"][rows]), cell)

        squares = [n * n, n * d, d * d, e * e, n * e, d * e]
        surface = np.column_stack([n, d, e, *squares])
        y = _centred(log_loss[rows], cell)
        return cls(
            rows=rows,
            cell=cell,
            y=y,
            log_n=n,
            log_d=d,
            ranks=_ranks(log_loss),
            spread=float(np.std(y)),
            base=_centred(surface, cell),
        )

    def largest_difference(self, loss: FloatArray) -> float:
        """Measure the largest difference of losses in a cell, nats."""
        lowest = np.full(self.cell.max() + 1, np.inf)
        highest = np.full(self.cell.max() + 1, -np.inf)
        np.minimum.at(lowest, self.cell, loss[self.rows])
        np.maximum.at(highest, self.cell, loss[self.rows])
        return float(np.max(highest - lowest))

    def explain(self, columns: Mapping[str, Any], least: float = LEAST) -> tuple[tuple[Setting, ...], float]:
        """Choose columns that explain the losses, one after the other, the best first; and the spread they explain.

        The spread is that of the column that explains most, over the runs in whose cells it varies. A column such as a
        group of runs, which combines several others, gives way to these.
        """
        candidates: list[_Candidate] = []
        for name, column in columns.items():
            candidates += self._candidates(name, column)

        choice = self._choose(candidates, least)
        choice = self._without_groups(choice, candidates, least)
        settings = [self._setting(candidate, columns[candidate.name]) for candidate in choice.columns]
        return tuple(settings), choice.spread

    def _without_groups(self, choice: _Choice, candidates: Sequence[_Candidate], least: float) -> _Choice:
        """Choose again without a column of words that determines others, if these explain about as much."""
        for group in choice.columns:
            if group.numeric:
                continue
            finer = [candidate for candidate in candidates if candidate.name != group.name]
            if any(group.determines(candidate) for candidate in finer):
                alternative = self._choose(finer, least)
                if alternative.variance - choice.variance < LEAST**2:
                    return alternative
        return choice

    def _candidates(self, name: str, column: Any) -> list[_Candidate]:
        """List how a column may explain the losses: by the means of its values, by a curve, or not at all."""
        numeric = isinstance(column, np.ndarray)
        codes = codes_of(column)
        # Whole numbers that no two runs share are names of runs.
        is_unique = codes.max() == len(codes) - 1
        if numeric and is_unique and (column % 1 == 0).all():
            return []
        has_few_values = codes.max() < min(LEVELS, len(codes) / 2)
        levels, codes = np.unique(codes[self.rows], return_inverse=True)
        if not _varies(codes, self.cell).any():
            return []

        features = self._means(codes, len(levels)) if has_few_values else []
        if numeric and len(levels) > 2:
            values = column[self.rows]
            if np.isfinite(values).all() and not self._is_outcome(column):
                features.append(self._curve(values))
        return [_Candidate(name, numeric, _centred(feature, self.cell), codes) for feature in features]

    def _means(self, codes: IntArray, count: int) -> list[FloatArray]:
        """Build features by which each value has a mean [m, count − 1], and with a slope in ln N for each mean."""
        means = np.eye(count)[codes][:, 1:]
        centred_n = self.log_n - self.log_n.mean()
        slopes = means * centred_n[:, None]
        return [means, np.column_stack([means, slopes])]

    def _curve(self, values: FloatArray) -> FloatArray:
        """Build features [m, k] of a parabola whose lowest point may move with N and D."""
        if values.min() > 0:
            values = np.log(values)
        x = _centred(values, self.cell)
        scale = float(np.sqrt(np.mean(x**2)))
        x /= max(scale, 1e-300)
        features = [x, x**2]
        for logs in (self.log_n, self.log_d):
            shift = x * (logs - logs.mean())
            if np.ptp(shift) > 0:
                features.append(shift)
        return np.column_stack(features)

    def _is_outcome(self, column: FloatArray) -> bool:
        """Return whether a column follows the loss within cells as it does over all runs, so that it was measured."""
        ranks = _ranks(column)
        if ranks.max() + 1 < DISTINCT * len(ranks):
            return False

        overall = np.corrcoef(ranks, self.ranks)[0, 1]
        ranks_in_cells = _centred(ranks[self.rows], self.cell)
        losses_in_cells = _centred(self.ranks[self.rows], self.cell)
        if np.ptp(ranks_in_cells) == 0 or np.ptp(losses_in_cells) == 0:
            return False
        within = np.corrcoef(ranks_in_cells, losses_in_cells)[0, 1]
        agrees = np.sign(overall) * within > CORRELATION_IN_CELLS
        return bool(abs(overall) > CORRELATION and agrees)

    def _choose(self, candidates: Sequence[_Candidate], least: float) -> _Choice:
        """Choose columns as `explain`, whether or not one is a group of others."""
        columns: list[_Candidate] = []
        variance = np.inf
        spread = 0.0
        base = self.base
        cell = self.cell
        chance = CHANCE / max(len(candidates), 1)
        while len(columns) < MOST:
            trials = [self._trial(base, candidate) for candidate in candidates]
            significant = []
            for i, trial in enumerate(trials):
                if trial.chance < chance and trial.spread > least:
                    significant.append(i)
            if not significant:
                break

            lowest = min(trials[i].variance for i in significant)
            alike = [i for i in significant if trials[i].variance <= ALIKE * lowest]
            first = min(alike, key=lambda i: candidates[i].rank)
            best = candidates[first]
            variance = trials[first].variance
            spread = max(spread, trials[first].spread)
            columns.append(best)

            base = np.column_stack([base, best.features])
            cell = cells_of([cell, best.codes])
            candidates = [
                candidate
                for candidate in candidates
                if candidate.name != best.name and _varies(candidate.codes, cell).any()
            ]
        return _Choice(columns, variance, spread)

    def _trial(self, base: FloatArray, candidate: _Candidate) -> _Trial:
        """Test what a further column explains.

        Seeds are a part of the variance, which would be too small where a few runs agree by chance.
        """
        from scipy.special import fdtrc

        before, rank = unexplained(self.y, base)
        after, larger = unexplained(self.y, np.column_stack([base, candidate.features]))

        cells = self.cell.max() + 1
        spare = len(self.y) - cells - larger + PRIOR_RUNS
        variance = (after + PRIOR_RUNS * SEEDS**2) / spare
        added = larger - rank
        if not added or spare < PRIOR_RUNS:
            return _Trial(np.inf, 1.0, 0.0)

        chance = float(fdtrc(added, spare, (before - after) / added / variance))
        is_varied = _varies(candidate.codes, self.cell)[self.cell]
        spread = np.sqrt(max(before - after, 0.0) / int(is_varied.sum()))
        return _Trial(float(variance), chance, float(spread))

    def _setting(self, candidate: _Candidate, column: Any) -> Setting:
        """Describe a candidate to the user."""
        values = [None if is_missing(value) else value for value in column]
        is_varied = _varies(candidate.codes, self.cell)[self.cell]
        rows = self.rows[is_varied].tolist()

        counts = Counter(values[row] for row in rows if values[row] is not None)
        unpaired = {value for value in values if value is not None} - {*counts}
        is_scale = candidate.numeric and len(counts) > 1
        paired = sorted(counts) if is_scale else sorted(counts, key=lambda value: -counts[value])
        return Setting(
            candidate.name,
            tuple(map(_word, paired)),
            tuple(map(_word, sorted(unpaired))),
            tuned=is_scale and _TUNED.search(candidate.name) is not None,
            numeric=candidate.numeric,
        )


def codes_of(column: Any) -> IntArray:
    """Number the distinct values of a column [n]; a missing one is a value."""
    if isinstance(column, np.ndarray):
        return np.unique(column, return_inverse=True)[1].ravel()
    numbers: dict[Any, int] = {}
    codes = [numbers.setdefault(value, len(numbers)) for value in column]
    return np.array(codes, np.intp)


def cells_of(codes: Sequence[IntArray]) -> IntArray:
    """Number the distinct combinations of codes [n]."""
    cell = np.zeros(len(codes[0]), np.intp)
    for column in codes:
        cell = codes_of(cell * (column.max() + 1) + column)
    return cell


def _varies(codes: IntArray, cell: IntArray) -> BoolArray:
    """Find the cells in which a column with these codes [m] has several values."""
    lowest = np.full(cell.max() + 1, codes.max() + 1)
    highest = np.zeros_like(lowest)
    np.minimum.at(lowest, cell, codes)
    np.maximum.at(highest, cell, codes)
    return lowest < highest


def _word(value: Any) -> str:
    """Write a value as a filter takes it."""
    if isinstance(value, str):
        return value
    word = f"{value:g}"
    return word if float(word) == value else repr(float(value))


def _ranks(values: FloatArray) -> FloatArray:
    return codes_of(values).astype(float)


def _centred(values: FloatArray, cell: IntArray) -> FloatArray:
    """Subtract from values [m] or [m, k] their mean in their cell."""
    if values.ndim == 1:
        means = np.bincount(cell, values) / np.bincount(cell)
        return values - means[cell]
    return np.column_stack([_centred(column, cell) for column in values.T])


def unexplained(
    y: FloatArray,
    features: FloatArray,
    tolerance: float = 1e-9,
) -> tuple[float, int]:
    """Compute the sum of squares of y [m] that no combination of the features [m, k] explains, and their rank."""
    if not features.shape[1]:
        return float(y @ y), 0
    scaled = features / np.maximum(np.linalg.norm(features, axis=0), 1e-300)
    solution, _, rank, _ = np.linalg.lstsq(scaled, y, rcond=tolerance)
    return float(np.sum((y - scaled @ solution) ** 2)), int(rank)
