"""Settings in which runs differ besides N, D and E: those of their recipe, and those that their losses tell.

The recipe is what runs were trained with besides what laws ask for, and a law describes runs of one recipe. Learning
rates, batches and tokens are tuned for each model, and are no part of it.

Runs of equal N, D and E may differ in other settings, and with them in their losses: one law would blend such runs.
Losses are compared within cells, the runs of equal N, D and E. A column matters if the differences of ln L within the
cells follow its values by far more than seeds do: an F test of a mean for each value, which may change with ln N. What
is set takes values that recur. So neither an id nor a measurement tells runs apart, nor does a seed, whose values have
no effect that all cells share. Where no runs are equal, words are tested beside a smooth surface in N, D and E.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hub.base.errors import InputError, given, unknown
from hub.base.fields import parse_names
from hub.base.tables import column_name, join_words
from hub.base.types import Fields, Strings
from scaling_law.runs.rows import Row, RunsError, first_words, is_metric, is_missing, names_of
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
# Where no runs are equal: the least spread of ln L about a surface in N, D and E that a column of words explains.
SMOOTH = 0.03
# Probability that a column without effect is named.
CHANCE = 1e-3
# Most values of a column, and the largest sample of runs, in whole cells.
LEVELS = 64
RUNS = 4096
# A run that lies farther than this from its cell diverged, and counts as so far: usual spreads, and ln L.
WILD_SPREADS = 6.0
WILD_LOSS = 0.1
# Columns whose residual variances differ by less than this factor explain the same.
ALIKE = 1.5
# Columns and values that a message names, and values without a counterpart that a filter keeps.
MOST = 4
LISTED = 3
UNPAIRED = 4
# What values cannot have that stand in the braces of a filter.
NO_WORD = re.compile("[,{}]")
# Column of the recipe → the columns of a table that may hold it, nested fields by the names of runs.parquet. The first
# that all rows have is read, else the first that any has.
_HOLDERS = {
    "optimizer": ("optimizer_name", "optimizer"),
    # In a table without records it may be tuned.
    "weight_decay": ("optimizer_weight_decay",),
    "weight_decay_on": ("optimizer_weight_decay_on", "weight_decay_on"),
    "vocab_size": ("vocab_size",),
    "sequence_length": ("sequence_length",),
    "dataset": ("dataset_fingerprint", "dataset_id", "dataset"),
    "tokenizer": ("tokenizer_fingerprint", "tokenizer_id", "tokenizer"),
    "precision": ("precision",),
    "initialization": ("initialization",),
    "final_norm": ("final_norm",),
}
RECIPE = tuple(_HOLDERS)
HOLDERS = frozenset(_HOLDERS).union(*_HOLDERS.values())
# Digits of a fingerprint that are shown.
DIGITS = 8

# The value of each run in each column; None is not known.
Recipe = Mapping[str, tuple[str | None, ...]]


# ------------------------------------------------------------------ recipes


def recipe_of(rows: Sequence[Row]) -> Recipe:
    """Read the recipes of n rows: each column of `RECIPE` in which a row has a value, [n]."""
    present = names_of(rows)
    recipe = {}
    for name, holders in _HOLDERS.items():
        counts = {}
        for holder in holders:
            column = column_name(holder, present)
            if column in present:
                counts[column] = sum(not is_missing(row.get(column)) for row in rows)
        counts = {column: count for column, count in counts.items() if count}
        if counts:
            column = max(counts, key=lambda column: counts[column] == len(rows))
            recipe[name] = tuple(_recorded_word(name, column, row) for row in rows)
    return recipe


def differences(recipe: Recipe, law_has: Collection[str] = ()) -> dict[str, list[str]]:
    """List the columns in which recipes differ, with their values.

    The variables that the law has do not count, nor do unknown values.
    """
    mixed = {}
    for name, values in recipe.items():
        distinct = sorted({value for value in values if value})
        if len(distinct) > 1 and name not in law_has:
            mixed[name] = distinct
    return mixed


def check_mix(
    recipe: Recipe,
    law_has: Collection[str],
    mix: str | Collection[str],
    source: str,
    columns: Collection[str] = (),
) -> set[str]:
    """Return the columns that `mix` names, in which runs may differ; RunsError, in one line, if recipes do in others.

    `columns` are others of the runs that `mix` may name. ValueError for an unknown one.
    """
    agreed = {column_name(name, (*RECIPE, *columns)) for name in parse_names(mix, "mix")}
    for name in sorted(agreed - {*RECIPE, *columns}):
        raise InputError(unknown("mix=", name, (*RECIPE, *columns)))
    mixed = differences(recipe, {*law_has, *agreed})
    if mixed:
        first, values = next(iter(mixed.items()))
        names = tuple(sorted({*mixed, *agreed}))
        raise RunsError(
            f"{source}: the runs differ in {in_words(mixed)}; choose with ",
            given("where", f"{first} = {values[0]}"),
            ", or fit them as one with ",
            given("mix", names, in_shell=f"--mix {','.join(names)}"),
        )
    return agreed


def in_words(mixed: Mapping[str, Sequence[str]]) -> str:
    """Write the differing columns in words: `optimizer (adamw, muon) and sequence_length (256, 512)`."""
    return join_words([f"{name} ({first_words(values, MOST)})" for name, values in mixed.items()])


def _recorded_word(name: str, column: str, row: Row) -> str | None:
    """Write the value as one word, which a filter can name."""
    value = row.get(column)
    if is_missing(value):
        return None
    if column.endswith("fingerprint"):
        digits = str(value).rpartition(":")[2][:DIGITS]
        identity = row.get(column.replace("fingerprint", "id"))
        return digits if is_missing(identity) else f"{identity}@{digits}"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).lower() if name == "optimizer" else str(value)


# ------------------------------------------------------------------ what losses tell


@dataclass(frozen=True)
class Setting:
    """A column that tells runs of equal N, D and E apart.

    `values` occur together in a cell, the most frequent first; `unpaired` values are of runs without a counterpart.
    Numbers of more than two values may have been tuned, and then the run of least loss is the right one.
    """

    name: str
    values: Strings
    unpaired: Strings
    tuned: bool

    def __str__(self) -> str:
        return self.name if self.tuned else f"{self.name} ({first_words(self.values, LISTED)})"

    @property
    def filters(self) -> Strings:
        """Filters that choose one value each, with the runs that have no counterpart if they are few."""
        field = self.name if re.fullmatch(r"\w+", self.name) else f"`{self.name}`"
        unpaired: Strings = ()
        if len(self.unpaired) <= UNPAIRED and not NO_WORD.search("".join(self.unpaired)):
            unpaired = self.unpaired
        filters = []
        for value in self.values[:LISTED]:
            if NO_WORD.search(value):
                continue
            if unpaired or " " in value:
                filters.append(f"{field} in {{{', '.join((value, *unpaired))}}}")
            else:
                filters.append(f"{field} = {value}")
        return tuple(filters)


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

        advice = []

        for setting in self.settings:
            if setting.filters and not setting.tuned:
                advice.append("choose with " + " or ".join(f'--where "{text}"' for text in setting.filters))

        tuned = ",".join(setting.name for setting in self.settings if setting.tuned)
        if tuned:
            advice.append(f"take the best run of each model, as a law describes tuned runs, with --best-of {tuned}")

        names = ",".join(setting.name for setting in self.settings)
        advice.append(f"or keep them together with --mix {names} (in Python where=, best_of and mix=)")
        settings = join_words([str(setting) for setting in self.settings])
        verb = "tells" if len(self.settings) == 1 else "tell"

        return f"{difference}: {settings} {verb} them apart, and one law blends them; {'; '.join(advice)}"


def places(values: FloatArray, tolerance: float = SAME) -> IntArray:
    """Number the distinct values ≥ 0 of a column [n] in ascending order; those within the tolerance are equal."""
    distinct, index = np.unique(values, return_inverse=True)
    ranks = []
    rank = -1
    limit = -1.0

    for value in distinct.tolist():
        if value > limit:
            rank += 1
            limit = value * (1 + tolerance)

        ranks.append(rank)

    return np.array(ranks, np.intp)[index.ravel()]


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
    keys = [places(sizes["n_active"], SAME_SIZE), places(sizes["tokens"]), codes_of(sizes["experts"])]
    keys += [codes_of(all_columns[name]) for name in agreed if name in all_columns]
    columns = {}

    for name, column in all_columns.items():
        # A number for half of the runs or more was measured, or numbers them.
        recurs = codes_of(column).max() < min(LEVELS, max(2, len(loss) // 2))
        if recurs and name not in checked and name not in agreed and not is_metric(name):
            columns[name] = column

    blend = _compare(cells_of(keys), loss, sizes, columns, LEAST)
    if blend is None:
        words = {name: column for name, column in columns.items() if name in texts}
        blend = _compare(np.zeros(len(loss), np.intp), loss, sizes, words, SMOOTH, equal=False)
    return blend


class _Trial(NamedTuple):
    """A column's codes [m] and features [m, k], the variance of ln L that it leaves, and the spread that it explains.

    The spread is that of the runs in whose cells the column varies.
    """

    name: str
    codes: IntArray
    features: FloatArray
    variance: float
    spread: float

    def determines(self, trial: _Trial) -> bool:
        """Return whether each value of this column goes with one value of another column, which has fewer."""
        pairs = cells_of([self.codes, trial.codes])
        return bool(trial.codes.max() < self.codes.max() == pairs.max())


def _compare(
    cell: IntArray, loss: FloatArray, sizes: Columns, columns: Mapping[str, Any], least: float, equal: bool = True
) -> Blend | None:
    """Choose columns that explain the losses within cells, one after the other, the best first; None if none is.

    A column such as a group of runs, which combines several others, comes after these. Of many runs a sample of whole
    cells is looked at. Where runs are not equal, a quadratic in ln N, ln D and ln E explains a part of the losses.
    """
    rng = np.random.default_rng(0)
    order = np.lexsort([rng.permutation(len(cell)), rng.permutation(cell.max() + 1)[cell]])
    is_shared = np.bincount(cell)[cell] > 1
    rows = np.sort(order[is_shared[order]][:RUNS])
    cell = codes_of(cell[rows])
    y = _centred(np.log(loss[rows]), cell)
    if y @ y <= len(y) * SEEDS**2:
        return None

    # The median absolute deviation, as a standard deviation; each cell's mean took a degree of freedom.
    freedom = len(y) - cell.max() - 1
    usual_spread = 1.4826 * np.median(np.abs(y)) * np.sqrt(len(y) / freedom)
    limit = max(WILD_SPREADS * usual_spread, WILD_LOSS)
    y = _centred(np.clip(y, -limit, limit), cell)

    logs = np.log(np.column_stack([*sizes.values()])[rows])
    logs -= logs.mean(axis=0)
    first, second = np.triu_indices(logs.shape[1])
    base = np.zeros((len(y), 0))
    if not equal:
        base = _centred(np.column_stack([logs, logs[:, first] * logs[:, second]]), cell)

    settings: list[Setting] = []
    spread = 0.0
    inner_cell = cell
    while len(settings) < MOST:
        trials = []
        for name, column in columns.items():
            codes = codes_of(codes_of(column)[rows])
            if _varies(codes, inner_cell).any():
                trials.append(_try_column(name, codes, y, base, cell, logs[:, :1], CHANCE / len(columns)))
        significant = [trial for trial in trials if trial.spread > least]
        coarse = [trial for trial in significant if not any(map(trial.determines, significant))]
        if not coarse:
            break

        lowest = min(trial.variance for trial in coarse)
        alike = [trial for trial in coarse if trial.variance <= ALIKE * lowest]
        # Texts come before numbers, which may be codes of theirs.
        best = min(alike, key=lambda trial: (isinstance(columns[trial.name], np.ndarray), trial.codes.max()))
        settings.append(_describe(best.name, columns[best.name], rows[_varies(best.codes, cell)]))
        spread = max(spread, best.spread)
        base = np.column_stack([base, best.features])
        inner_cell = cells_of([inner_cell, best.codes])
        columns = {name: column for name, column in columns.items() if name != best.name}

    if not settings and not (equal and usual_spread > UNEXPLAINED):
        return None
    nats = 2 * spread * np.median(loss)
    if equal:
        nats = max(np.ptp(loss[rows[cell == i]]) for i in range(cell.max() + 1))
    return Blend(tuple(settings), float(nats), spread, equal)


def _try_column(
    name: str, codes: IntArray, y: FloatArray, base: FloatArray, cell: IntArray, log_n: FloatArray, chance: float
) -> _Trial:
    """Test what the means of a column's values, which may change with ln N, explain beside a base: a spread, or 0.

    Seeds are a part of the variance, which would be too small where a few runs agree by chance.
    """
    from scipy.special import fdtrc

    means = np.eye(codes.max() + 1)[codes][:, 1:]
    features = _centred(np.column_stack([means, means * log_n]), cell)
    before, rank = unexplained(y, base)
    after, larger = unexplained(y, np.column_stack([base, features]))
    added = larger - rank
    spare = len(y) - cell.max() - 1 - larger + PRIOR_RUNS
    variance = (after + PRIOR_RUNS * SEEDS**2) / max(spare, 1)

    spread = 0.0
    if added and spare >= PRIOR_RUNS and fdtrc(added, spare, (before - after) / added / variance) < chance:
        spread = float(np.sqrt((before - after) / _varies(codes, cell).sum()))
    return _Trial(name, codes, features, variance, spread)


def _describe(name: str, column: Any, rows: IntArray) -> Setting:
    """Describe a column, which varies in these rows, to the user."""
    counts = Counter(column[row] for row in rows if not is_missing(column[row]))
    values = [value for value, _ in counts.most_common()]
    unpaired = sorted({value for value in column if not is_missing(value)} - {*counts})
    tuned = isinstance(column, np.ndarray) and len(counts) > 2
    return Setting(name, tuple(map(_word, values)), tuple(map(_word, unpaired)), tuned)


def codes_of(column: Any) -> IntArray:
    """Number the distinct values of a column [n]; a missing one is a value."""
    if not isinstance(column, np.ndarray):
        column = np.array(["" if value is None else value for value in column])

    return np.unique(column, return_inverse=True)[1].ravel()


def cells_of(codes: Sequence[IntArray]) -> IntArray:
    """Number the distinct combinations of codes [n]."""
    cell = np.zeros(len(codes[0]), np.intp)

    for column in codes:
        cell = codes_of(cell * (column.max() + 1) + column)

    return cell


def _varies(codes: IntArray, cell: IntArray) -> BoolArray:
    """Find the runs [m] in whose cells a column with these codes has several values."""
    pairs = np.unique([cell, codes], axis=1)[0]
    return np.bincount(pairs)[cell] > 1


def _word(value: Any) -> str:
    """Write a value as a filter takes it."""
    if isinstance(value, str):
        return value

    word = f"{value:g}"

    return word if float(word) == value else repr(float(value))


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
