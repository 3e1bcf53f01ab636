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
from numpy.typing import NDArray

from hub.base.tables import enumerated
from scaling_law.size.arrays import FloatArray

SAME = 0.01  # D closer than this in relative terms are the same: batch times steps is never exactly D
SAME_SIZE = 1e-3  # and N
SEEDS, PRIOR_RUNS = 0.004, 4.0  # spread of ln L between seeds that is taken for granted, as if seen in so many runs
LEAST = 0.005  # spread of ln L that a column explains, below which it is not named
HARMFUL = 0.01  # and above which no answer is trusted
UNEXPLAINED = 0.03  # spread of ln L within cells that is said even though no column explains it
CHANCE = 1e-3  # probability that a column without effect is named
LEVELS = 24  # values, at most, whose means are compared
# Runs that are looked at, in whole cells.
RUNS = 4096
MOST = 4  # columns that are named
WILD = 6.0, 0.1  # ln L farther from its cell than this many usual spreads, or this, counts as so far: it diverged
ALIKE = 1.5  # residual variances closer than this are of columns that say the same
SMOOTH = 0.03  # spread of ln L about a surface in N, D and E that a column of words explains where no runs are equal
# Of what is measured, not set: part of its values that are distinct, rank correlation with the loss over all runs, and
# within cells
OUTCOME = 0.9, 0.8, 0.3
SHOWN, OTHERS = 3, 4  # values that a message lists, and further ones that a filter does
# What is measured and never set, and names of runs
_MEASURED = re.compile(
    r"(?i)(?<![a-z])(loss|ppl|perplexity|bpb|bpc|nll|ce|acc|accuracy|score|error|grad_?norm|mfu|t?flops?|throughput|time"
    r"|timestamp|created|date|seconds?|secs?|minutes?|hours?|runtime|duration|memory|spikes|skipped|drop_rate|seeds?"
    r"|(run|exp|experiment|trial|job|row|hyper|wandb)_?(id|name)s?|uuid|index|unnamed|budget|cost|max_over_mean"
    r"|tokens_per_second|grid_runs|at_edge|regret|n_(total|active)\w*|param\w*|\w+_param\w*)(?![a-z])"
    r"|^(id|name|run|trial|job|rep|repeat|replicate)$"
)
_TUNED = re.compile(
    r"(?i)(?<![a-z])(lr|learning_?rates?|bs|batch(_?size)?|wd|weight_?decay|warm_?up|beta_?\d?|momentum|clip|dropout)"
    r"(?![a-z])"
)


@dataclass(frozen=True)
class Setting:
    """A column that tells runs of equal N, D and E apart.

    `values` are those that occur together in a cell, the most frequent first, and `others` those of further runs.
    `tuned`: the run of least loss is the right one. `numeric`: it may be.
    """

    name: str
    values: tuple[str, ...]
    others: tuple[str, ...]
    tuned: bool
    numeric: bool

    def __str__(self) -> str:
        if self.tuned:
            return self.name
        more = ", …" if len(self.values) > SHOWN else ""
        return f"{self.name} ({', '.join(self.values[:SHOWN])}{more})"

    @property
    def filters(self) -> tuple[str, ...]:
        """Write filters that choose one value, with the runs that have no counterpart if they are few."""
        field = self.name if re.fullmatch(r"\w+", self.name) else f"`{self.name}`"
        others = () if len(self.others) > OTHERS or re.search("[,{}]", "".join(self.others)) else self.others
        filters = []
        for value in [value for value in self.values if not re.search("[,{}]", value)][:SHOWN]:
            several = others or " " in value
            filters.append(f"{field} in {{{', '.join((value, *others))}}}" if several else f"{field} = {value}")
        return tuple(filters)

    @property
    def advice(self) -> str:
        """Say what to type to choose runs of one value."""
        if (self.numeric and len(self.values) > LEVELS) or not self.filters:
            return f"--best-of {self.name} if it was tuned"
        choice = "choose with " + " or ".join(f'--where "{text}"' for text in self.filters)
        if self.numeric and len(self.values) > 2:
            return f"{choice}, or --best-of {self.name} if it was tuned"
        return choice


@dataclass(frozen=True)
class Blend:
    """What tells runs of equal N, D and E apart, the best explanation first, and how far their losses differ, nats.

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
        """Say it in a sentence, with what to type."""
        far = f"runs of equal N, D and E differ in loss by up to {self.nats:.2g} nats"
        if not self.equal:
            far = f"runs of similar N and D differ in loss by about {self.nats:.2g} nats"
        if not self.settings:
            return f"{far}, and no column of the table tells them apart"
        told = enumerated([str(setting) for setting in self.settings])
        verb = "tells" if len(self.settings) == 1 else "tell"
        advice = [setting.advice for setting in self.settings if not setting.tuned]
        tuned = ",".join(setting.name for setting in self.settings if setting.tuned)
        if tuned:
            advice.append(f"take the best run of each model, as a law describes tuned runs, with --best-of {tuned}")
        names = ",".join(setting.name for setting in self.settings)
        advice.append(f"or keep them together with --mix {names} (in Python where=, best_of and mix=)")
        return f"{far}: {told} {verb} them apart, and one law blends them; {'; '.join(advice)}"


def places(values: FloatArray, same: float = SAME) -> NDArray[np.intp]:
    """Number the distinct values ≥ 0 of a column [n] in ascending order; values within `same` are one.

    Chains of close values, as the steps of a learning curve, are cut into pieces of `same`.
    """
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    chain = np.concatenate([[0], np.cumsum(ordered[1:] > ordered[:-1] * (1 + same))])
    first = ordered[np.searchsorted(chain, chain)]
    last = ordered[np.searchsorted(chain, chain, side="right") - 1]
    long = last > first * (1 + 2 * same)
    pieces = np.zeros(len(order))
    pieces[long] = np.floor(np.log(ordered[long] / first[long]) / np.log1p(same))
    steps = (chain[1:] != chain[:-1]) | (pieces[1:] != pieces[:-1])
    ranks = np.empty(len(order), np.intp)
    ranks[order] = np.concatenate([[0], np.cumsum(steps)])
    return ranks


def find_blend(
    sizes: Mapping[str, FloatArray],
    loss: FloatArray,
    numbers: Mapping[str, FloatArray],
    texts: Mapping[str, Sequence[str | None]],
    checked: Collection[str] = (),
    known: Collection[str] = (),
) -> Blend | None:
    """Find what tells runs of equal n_active, tokens and experts (`sizes`) apart; None where losses differ little.

    `numbers` and `texts` are columns [n] of the table, of which `checked` are looked at elsewhere. Runs may differ in
    the columns `known`: variables of the law, and what the user agreed to.
    """
    if len(loss) < 2:
        return None
    keys = [places(sizes["n_active"], SAME_SIZE), places(sizes["tokens"]), codes_of(sizes["experts"])]
    all_columns: dict[str, Any] = {**texts, **numbers}
    keys += [codes_of(all_columns[name]) for name in known if name in all_columns]
    cell = cells_of(keys)
    excluded = {*checked, *known}
    columns = {name: c for name, c in all_columns.items() if name not in excluded and not _MEASURED.search(name)}
    cells = _Cells.of(cell, np.log(loss), sizes)
    if cells is not None:
        chosen, spread = cells.explained_by(columns)
        if chosen or cells.spread > UNEXPLAINED:
            settings = tuple(cells.setting(candidate, columns[candidate.name]) for candidate in chosen)
            return Blend(settings, cells.nats(loss), spread)
    words = {name: column for name, column in columns.items() if name in texts}
    about = _Cells.about_a_surface(np.log(loss), sizes)
    chosen, spread = about.explained_by(words, SMOOTH)
    if not chosen:
        return None
    settings = tuple(about.setting(candidate, columns[candidate.name]) for candidate in chosen)
    return Blend(settings, 2 * spread * float(np.median(loss)), spread, equal=False)


@dataclass(frozen=True)
class _Candidate:
    """A column with the features [m, k] by which it may explain the losses, and its codes [m]."""

    name: str
    numeric: bool
    features: FloatArray
    codes: NDArray[np.intp]

    @property
    def rank(self) -> tuple[bool, bool, int]:
        """Order columns that explain the same: texts, what is usually tuned, few values first."""
        return self.numeric, _TUNED.search(self.name) is None, int(self.codes.max())

    def determines(self, other: _Candidate) -> bool:
        """Tell whether each value of this column goes with one value of another, which has fewer."""
        pairs = cells_of([self.codes, other.codes]).max()
        return other.codes.max() < self.codes.max() and bool(pairs == self.codes.max())


class _Trial(NamedTuple):
    """The variance of ln L that a column leaves, the chance that it does nothing, and the spread that it explains."""

    variance: float
    chance: float
    spread: float


@dataclass(frozen=True)
class _Cells:
    """The runs [m] of cells of several runs: their rows in the table, cells, ln L less its mean, and ln N and ln D.

    `ranks` are those of the losses of all runs, `spread` is the usual one of ln L within cells, whatever a few do, and
    `base` [m, k] explains losses without any column.
    """

    rows: NDArray[np.intp]
    cell: NDArray[np.intp]
    y: FloatArray
    log_n: FloatArray
    log_d: FloatArray
    ranks: FloatArray
    spread: float
    base: FloatArray

    @classmethod
    def of(cls, cell: NDArray[np.intp], log_loss: FloatArray, sizes: Mapping[str, FloatArray]) -> _Cells | None:
        """Make the cells of several runs, or a sample of them; None where losses within cells hardly differ."""
        counts = np.bincount(cell)
        order = np.random.default_rng(0).permutation(np.flatnonzero(counts > 1))
        kept = order[np.cumsum(counts[order]) <= max(RUNS, counts.max())]
        rows = np.flatnonzero(np.isin(cell, kept))
        if not len(rows):
            return None
        codes = np.unique(cell[rows], return_inverse=True)[1].ravel()
        y = _centred(log_loss[rows], codes)
        if np.sqrt(np.mean(y**2)) < SEEDS:
            return None
        spread = 1.4826 * np.median(np.abs(y)) * np.sqrt(len(y) / (len(y) - codes.max() - 1))
        limit = max(WILD[0] * spread, WILD[1])
        y = _centred(np.clip(y, -limit, limit), codes)
        logs = [np.log(sizes[name][rows]) for name in ("n_active", "tokens")]
        return cls(rows, codes, y, logs[0], logs[1], _ranks(log_loss), float(spread), np.zeros((len(y), 0)))

    @classmethod
    def about_a_surface(cls, log_loss: FloatArray, sizes: Mapping[str, FloatArray]) -> _Cells:
        """Make one cell of all runs, or of a sample, in which a quadratic in ln N, ln D and ln E is the base."""
        rows = np.sort(np.random.default_rng(0).permutation(len(log_loss))[:RUNS])
        cell = np.zeros(len(rows), np.intp)
        n, d, e = (_centred(np.log(sizes[name][rows]), cell) for name in ("n_active", "tokens", "experts"))
        surface = np.column_stack([n, d, e, n * n, n * d, d * d, e * e, n * e, d * e])
        y = _centred(log_loss[rows], cell)
        return cls(rows, cell, y, n, d, _ranks(log_loss), float(np.std(y)), _centred(surface, cell))

    def nats(self, loss: FloatArray) -> float:
        """Measure the largest difference of losses in a cell."""
        low, high = np.full((2, self.cell.max() + 1), np.inf)
        np.minimum.at(low, self.cell, loss[self.rows])
        np.minimum.at(high, self.cell, -loss[self.rows])
        return float(np.max(-high - low))

    def candidates(self, name: str, column: Any) -> list[_Candidate]:
        """List how a column may explain the losses: by the means of its values, by a curve, or not at all."""
        numeric = isinstance(column, np.ndarray)
        values = column[self.rows] if numeric else np.zeros(0)
        codes = codes_of(column)
        if numeric and codes.max() == len(codes) - 1 and (column % 1 == 0).all():
            return []  # whole numbers that no two runs share are names of runs
        few = codes.max() < min(LEVELS, len(codes) / 2)
        levels, codes = np.unique(codes[self.rows], return_inverse=True)
        if not _varies(codes, self.cell).any():
            return []
        candidates = []
        if few:
            means = np.eye(len(levels))[codes][:, 1:]
            slopes = means * (self.log_n - self.log_n.mean())[:, None]
            for features in (means, np.column_stack([means, slopes])):
                candidates.append(_Candidate(name, numeric, _centred(features, self.cell), codes))
        if numeric and len(levels) > 2 and np.isfinite(values).all() and not self._is_outcome(column):
            x = _centred(np.log(values) if values.min() > 0 else values, self.cell)
            x /= max(float(np.sqrt(np.mean(x**2))), 1e-300)
            shifts = [x * (logs - logs.mean()) for logs in (self.log_n, self.log_d)]
            features = np.column_stack([x, x**2, *(shift for shift in shifts if np.ptp(shift) > 0)])
            candidates.append(_Candidate(name, numeric, _centred(features, self.cell), codes))
        return candidates

    def _is_outcome(self, column: FloatArray) -> bool:
        """Tell whether a column goes with the loss within cells as it does over all runs, so that it was measured."""
        distinct, over_all, in_cells = OUTCOME
        ranks = _ranks(column)
        if ranks.max() + 1 < distinct * len(ranks):
            return False
        overall = np.corrcoef(ranks, self.ranks)[0, 1]
        own = _centred(ranks[self.rows], self.cell)
        losses = _centred(self.ranks[self.rows], self.cell)
        if np.ptp(own) == 0 or np.ptp(losses) == 0:
            return False
        within = np.corrcoef(own, losses)[0, 1]
        return bool(abs(overall) > over_all and np.sign(overall) * within > in_cells)

    def explained_by(self, columns: Mapping[str, Any], least: float = LEAST) -> tuple[list[_Candidate], float]:
        """Choose columns that explain the losses, one after the other, the best first; and the spread they explain.

        The spread is that of the column that explains most, over the runs in whose cells it varies. A column that says
        what several others say together, as a group of runs does, gives way to these.
        """
        candidates: list[_Candidate] = []
        for name, column in columns.items():
            candidates += self.candidates(name, column)
        chosen, variance, spread = self._chosen(candidates, least)
        for group in [candidate for candidate in chosen if not candidate.numeric]:
            finer = [candidate for candidate in candidates if candidate.name != group.name]
            if any(group.determines(candidate) for candidate in finer):
                others = self._chosen(finer, least)
                if others[1] - variance < LEAST**2:
                    return others[0], others[2]
        return chosen, spread

    def _chosen(self, candidates: Sequence[_Candidate], least: float) -> tuple[list[_Candidate], float, float]:
        """Choose columns as `explained_by`, with the variance that they leave and the spread that they explain."""
        chosen: list[_Candidate] = []
        variance = np.inf
        explained = 0.0
        base = self.base
        cell = self.cell
        chance = CHANCE / max(len(candidates), 1)
        while len(chosen) < MOST:
            trials = [self._trial(base, candidate) for candidate in candidates]
            good = [i for i, trial in enumerate(trials) if trial.chance < chance and trial.spread > least]
            if not good:
                break
            lowest = min(trials[i].variance for i in good)
            alike = [i for i in good if trials[i].variance <= ALIKE * lowest]
            first = min(alike, key=lambda i: candidates[i].rank)
            best = candidates[first]
            variance = trials[first].variance
            explained = max(explained, trials[first].spread)
            chosen.append(best)
            base = np.column_stack([base, best.features])
            cell = cells_of([cell, best.codes])
            candidates = [c for c in candidates if c.name != best.name and _varies(c.codes, cell).any()]
        return chosen, variance, explained

    def _trial(self, base: FloatArray, candidate: _Candidate) -> _Trial:
        """Test what a further column explains.

        Seeds are a part of the variance, which would be too small where a few runs agree by chance.
        """
        from scipy.special import fdtrc

        before, rank = _unexplained(self.y, base)
        after, larger = _unexplained(self.y, np.column_stack([base, candidate.features]))
        spare = len(self.y) - (self.cell.max() + 1) - larger + PRIOR_RUNS
        variance = (after + PRIOR_RUNS * SEEDS**2) / spare
        added = larger - rank
        if not added or spare < PRIOR_RUNS:
            return _Trial(np.inf, 1.0, 0.0)
        chance = float(fdtrc(added, spare, (before - after) / added / variance))
        runs = int(_varies(candidate.codes, self.cell)[self.cell].sum())
        return _Trial(float(variance), chance, float(np.sqrt(max(before - after, 0.0) / runs)))

    def setting(self, candidate: _Candidate, column: Any) -> Setting:
        """Describe a candidate to the user."""
        told = [None if _is_nan(value) else value for value in column]
        rows = self.rows[_varies(candidate.codes, self.cell)[self.cell]]
        together = Counter(told[row] for row in rows.tolist() if told[row] is not None)
        others = {value for value in told if value is not None} - {*together}
        values = sorted(together, key=lambda value: -together[value])
        several = candidate.numeric and len(values) > 1
        return Setting(
            candidate.name,
            tuple(map(_word, sorted(values) if several else values)),
            tuple(map(_word, sorted(others))),
            tuned=several and _TUNED.search(candidate.name) is not None,
            numeric=candidate.numeric,
        )


def codes_of(column: Any) -> NDArray[np.intp]:
    """Number the distinct values of a column [n]; a missing one is a value."""
    if isinstance(column, np.ndarray):
        return np.unique(column, return_inverse=True)[1].ravel()
    numbers: dict[Any, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in column], np.intp)


def cells_of(codes: Sequence[NDArray[np.intp]]) -> NDArray[np.intp]:
    """Number the distinct combinations of codes [n]."""
    cell = np.zeros(len(codes[0]), np.intp)
    for each in codes:
        cell = np.unique(cell * (each.max() + 1) + each, return_inverse=True)[1].ravel()
    return cell


def _varies(codes: NDArray[np.intp], cell: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Find the cells in which a column with these codes [m] has several values."""
    low = np.full(cell.max() + 1, codes.max() + 1)
    high = np.zeros_like(low)
    np.minimum.at(low, cell, codes)
    np.maximum.at(high, cell, codes)
    return low < high


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and value != value


def _word(value: Any) -> str:
    """Write a value as a filter takes it."""
    if isinstance(value, str):
        return value
    return f"{value:g}" if float(f"{value:g}") == value else repr(float(value))


def _ranks(values: FloatArray) -> FloatArray:
    return np.unique(values, return_inverse=True)[1].ravel().astype(float)


def _centred(values: FloatArray, cell: NDArray[np.intp]) -> FloatArray:
    """Subtract from values [m] or [m, k] their mean in their cell."""
    counts = np.bincount(cell)
    if values.ndim == 1:
        return values - (np.bincount(cell, values) / counts)[cell]
    return np.column_stack([_centred(column, cell) for column in values.T])


def _unexplained(y: FloatArray, features: FloatArray) -> tuple[float, int]:
    """Compute the sum of squares of y [m] that no combination of the features [m, k] explains, and their rank."""
    if not features.shape[1]:
        return float(y @ y), 0
    solution, _, rank, _ = np.linalg.lstsq(features, y, rcond=1e-9)
    return float(np.sum((y - features @ solution) ** 2)), int(rank)
