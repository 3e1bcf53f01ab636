"""Settings in which runs of equal N, D and E differ, and with them their losses: one law would blend such runs.

Losses are compared within cells, the runs of equal N, D and E. A column tells the runs of cells apart if it explains
their differences of ln L by far more than seeds do, with effects that all cells share: the mean of each of its values,
or a parabola in its logarithm whose lowest point may move with N and D, as that of a learning rate. So neither a seed
nor an id of runs explains anything, however well each fits the runs of one cell.
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
RUNS = 4096  # that are looked at, in whole cells
MOST = 4  # columns that are named
WILD = 6.0, 0.1  # ln L farther from its cell than this many usual spreads, or this, counts as so far: it diverged
ALIKE = 1.1  # residual variances closer than this are of columns that say the same
OUTCOME = 0.95  # rank correlation with the loss, over all runs and within cells, of what is measured, not set
SHOWN, OTHERS = 3, 4  # values that a message lists, and further ones that a filter does
# What is measured and never set, and names of runs
_MEASURED = re.compile(
    r"(?i)(?<![a-z])(loss|ppl|perplexity|bpb|bpc|nll|ce|acc|accuracy|score|error|grad_?norm|mfu|t?flops?|throughput|time"
    r"|timestamp|created|date|seconds?|secs?|minutes?|hours?|runtime|duration|memory|spikes|skipped|drop_rate|seeds?"
    r"|(run|exp|experiment|trial|job|row|hyper|wandb)_?(id|name)s?|uuid|index|unnamed|budget|cost|max_over_mean"
    r"|tokens_per_second|grid_runs|at_edge|regret|n_(total|active)\w*|param\w*|\w+_param\w*)(?![a-z])|^id$|^name$"
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
        """The filters of `load_runs` that choose one value, with the runs that have no counterpart if they are few."""
        field = self.name if re.fullmatch(r"\w+", self.name) else f"`{self.name}`"
        others = self.others if len(self.others) <= OTHERS else ()
        filters = []
        for value in self.values[:SHOWN]:
            several = others or " " in value
            filters.append(f"{field} in {{{', '.join((value, *others))}}}" if several else f"{field} = {value}")
        return tuple(filters)

    @property
    def advice(self) -> str:
        """What to type to choose runs of one value."""
        if self.numeric and len(self.values) > LEVELS:
            return f"--best-of {self.name} if it was tuned"
        choice = "choose with " + " or ".join(f'--where "{text}"' for text in self.filters)
        if self.numeric and len(self.values) > 2:
            return f"{choice}, or --best-of {self.name} if it was tuned"
        return choice


@dataclass(frozen=True)
class Blend:
    """What tells runs of equal N, D and E apart, the best explanation first, and how far their losses differ, nats.

    `spread` of ln L is what the settings explain. `harmful`: no answer of a law that blends these runs is trusted.
    """

    settings: tuple[Setting, ...]
    nats: float
    spread: float

    @property
    def harmful(self) -> bool:
        return self.spread > HARMFUL

    def __str__(self) -> str:
        """A sentence with what to type."""
        far = f"runs of equal N, D and E differ in loss by up to {self.nats:.2g} nats"
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
    """The place of each value ≥ 0 among the distinct ones [n], ascending; values within `same` are one.

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
    """What tells runs of equal n_active, tokens and experts (`sizes`) apart; None where their losses differ little.

    `numbers` and `texts` are columns [n] of the table, of which `checked` are looked at elsewhere. Runs may differ in
    the columns `known`: variables of the law, and what the user agreed to.
    """
    keys = [places(sizes["n_active"], SAME_SIZE), places(sizes["tokens"]), codes_of(sizes["experts"])]
    all_columns: dict[str, Any] = {**texts, **numbers}
    keys += [codes_of(all_columns[name]) for name in known if name in all_columns]
    cells = _Cells.of(np.unique(np.column_stack(keys), axis=0, return_inverse=True)[1].ravel(), np.log(loss), sizes)
    if cells is None:
        return None
    excluded = {*checked, *known}
    columns = {name: c for name, c in all_columns.items() if name not in excluded and not _MEASURED.search(name)}
    candidates: list[_Candidate] = []
    for name, column in columns.items():
        candidates += cells.candidates(name, column)
    chosen, spread = cells.explained_by(candidates)
    if not chosen and cells.spread < UNEXPLAINED:
        return None
    settings = tuple(cells.setting(candidate, columns[candidate.name]) for candidate in chosen)
    return Blend(settings, cells.nats(loss), spread)


@dataclass(frozen=True)
class _Candidate:
    """A column with the features [m, k] by which it may explain the losses, and its codes [m]."""

    name: str
    numeric: bool
    features: FloatArray
    codes: NDArray[np.intp]

    @property
    def rank(self) -> tuple[bool, bool, int]:
        """Where it stands among columns that explain the same: texts, what is usually tuned, few values first."""
        return self.numeric, _TUNED.search(self.name) is None, int(self.codes.max())


class _Trial(NamedTuple):
    """The variance of ln L that a column leaves, the chance that it does nothing, and the spread that it explains."""

    variance: float
    chance: float
    spread: float


@dataclass(frozen=True)
class _Cells:
    """The runs [m] of cells of several runs: their rows in the table, cells, ln L less its mean, and ln N and ln D.

    `ranks` are those of the losses of all runs, `spread` is the usual one of ln L within cells, whatever a few do.
    """

    rows: NDArray[np.intp]
    cell: NDArray[np.intp]
    y: FloatArray
    log_n: FloatArray
    log_d: FloatArray
    ranks: FloatArray
    spread: float

    @classmethod
    def of(cls, cell: NDArray[np.intp], log_loss: FloatArray, sizes: Mapping[str, FloatArray]) -> _Cells | None:
        """The cells of several runs, or a sample of them; None where losses within cells hardly differ."""
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
        return cls(rows, codes, y, logs[0], logs[1], _ranks(log_loss), float(spread))

    def nats(self, loss: FloatArray) -> float:
        """The largest difference of losses in a cell."""
        low, high = np.full((2, self.cell.max() + 1), np.inf)
        np.minimum.at(low, self.cell, loss[self.rows])
        np.minimum.at(high, self.cell, -loss[self.rows])
        return float(np.max(-high - low))

    def candidates(self, name: str, column: Any) -> list[_Candidate]:
        """How a column may explain the losses: by the means of its values, by a curve, or not at all."""
        numeric = isinstance(column, np.ndarray)
        values = column[self.rows] if numeric else np.zeros(0)
        codes = codes_of(column)
        few = codes.max() < min(LEVELS, len(codes) / 2)
        levels, codes = np.unique(codes[self.rows], return_inverse=True)
        if not self._varies(codes).any():
            return []
        candidates = []
        if few:
            features = _centred(np.eye(len(levels))[codes], self.cell)
            candidates.append(_Candidate(name, numeric, features[:, 1:], codes))
        if numeric and len(levels) > 2 and np.isfinite(values).all() and not self._is_outcome(column):
            x = _centred(np.log(values) if values.min() > 0 else values, self.cell)
            x /= max(float(np.sqrt(np.mean(x**2))), 1e-300)
            shifts = [x * (logs - logs.mean()) for logs in (self.log_n, self.log_d)]
            features = np.column_stack([x, x**2, *(shift for shift in shifts if np.ptp(shift) > 0)])
            candidates.append(_Candidate(name, numeric, _centred(features, self.cell), codes))
        return candidates

    def _varies(self, codes: NDArray[np.intp]) -> NDArray[np.bool_]:
        """The cells in which a column with these codes [m] has several values."""
        low = np.full(self.cell.max() + 1, len(codes))
        high = np.zeros_like(low)
        np.minimum.at(low, self.cell, codes)
        np.maximum.at(high, self.cell, codes)
        return low < high

    def _is_outcome(self, column: FloatArray) -> bool:
        """Whether a column goes with the loss within cells as it does over all runs, so that it was measured."""
        ranks = _ranks(column)
        overall = np.corrcoef(ranks, self.ranks)[0, 1]
        own = _centred(ranks[self.rows], self.cell)
        losses = _centred(self.ranks[self.rows], self.cell)
        if np.ptp(own) == 0 or np.ptp(losses) == 0:
            return False
        within = np.corrcoef(own, losses)[0, 1]
        return bool(min(abs(overall), np.sign(overall) * within) > OUTCOME)

    def explained_by(self, candidates: Sequence[_Candidate]) -> tuple[list[_Candidate], float]:
        """The columns that explain the losses, one after the other, the best first; and the spread that they explain.

        The spread is that of the column that explains most, over the runs in whose cells it varies.
        """
        chosen: list[_Candidate] = []
        explained = 0.0
        base, count = np.zeros((len(self.y), 0)), max(len(candidates), 1)
        while len(chosen) < MOST:
            trials = [self._trial(base, candidate) for candidate in candidates]
            good = [i for i, trial in enumerate(trials) if trial.chance < CHANCE / count and trial.spread > LEAST]
            if not good:
                break
            least = min(trials[i].variance for i in good)
            alike = [i for i in good if trials[i].variance <= ALIKE * least]
            first = min(alike, key=lambda i: candidates[i].rank)
            best, explained = candidates[first], max(explained, trials[first].spread)
            chosen.append(best)
            base = np.column_stack([base, best.features])
            candidates = [candidate for candidate in candidates if candidate.name != best.name]
        return chosen, explained

    def _trial(self, base: FloatArray, candidate: _Candidate) -> _Trial:
        """What a further column explains.

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
        runs = int(self._varies(candidate.codes)[self.cell].sum())
        return _Trial(float(variance), chance, float(np.sqrt(max(before - after, 0.0) / runs)))

    def setting(self, candidate: _Candidate, column: Any) -> Setting:
        """A candidate as it is named to the user."""
        told = [None if _is_nan(value) else value for value in column]
        rows = self.rows[self._varies(candidate.codes)[self.cell]]
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
    """The place of each value of a column [n] among the distinct ones; missing ones are a value."""
    if isinstance(column, np.ndarray):
        return np.unique(column, return_inverse=True)[1].ravel()
    return np.unique(["" if value is None else f"={value}" for value in column], return_inverse=True)[1].ravel()


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and value != value


def _word(value: Any) -> str:
    """A value as a filter takes it."""
    if isinstance(value, str):
        return value
    return f"{value:g}" if float(f"{value:g}") == value else repr(float(value))


def _ranks(values: FloatArray) -> FloatArray:
    return np.unique(values, return_inverse=True)[1].ravel().astype(float)


def _centred(values: FloatArray, cell: NDArray[np.intp]) -> FloatArray:
    """Values [m] or [m, k] less their mean in their cell."""
    counts = np.bincount(cell)
    if values.ndim == 1:
        return values - (np.bincount(cell, values) / counts)[cell]
    return np.column_stack([_centred(column, cell) for column in values.T])


def _unexplained(y: FloatArray, features: FloatArray) -> tuple[float, int]:
    """The sum of squares of y [m] that no combination of the features [m, k] explains, and their rank."""
    if not features.shape[1]:
        return float(y @ y), 0
    solution, _, rank, _ = np.linalg.lstsq(features, y, rcond=1e-9)
    return float(np.sum((y - features @ solution) ** 2)), int(rank)
