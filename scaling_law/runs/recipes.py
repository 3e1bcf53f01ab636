"""The recipe of runs: what they were trained with besides what laws ask for. A law describes runs of one recipe.

Learning rates, batches and tokens are tuned for each model, and are no part of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from hub.base.errors import InputError, given, unknown
from hub.base.fields import parse_names
from hub.base.tables import column_name, join_words
from scaling_law.runs.rows import Row, RunsError, first_words, is_missing, names_of

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
COLUMNS = tuple(_HOLDERS)
HOLDERS = frozenset(_HOLDERS).union(*_HOLDERS.values())
# Digits of a fingerprint that are shown.
_DIGITS = 8
# Values of a column that an error shows.
_MOST = 4

# The value of each run in each column; None is not known.
Recipe = Mapping[str, tuple[str | None, ...]]


def recipe_of(rows: Sequence[Row]) -> Recipe:
    """Read the recipes of n rows: each column of `COLUMNS` in which a row has a value, [n]."""
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
            recipe[name] = tuple(_word(name, column, row) for row in rows)
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
    agreed = {column_name(name, (*COLUMNS, *columns)) for name in parse_names(mix, "mix")}
    for name in sorted(agreed - {*COLUMNS, *columns}):
        raise InputError(unknown("mix=", name, (*COLUMNS, *columns)))
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
    return join_words([f"{name} ({first_words(values, _MOST)})" for name, values in mixed.items()])


def _word(name: str, column: str, row: Row) -> str | None:
    """Write the value as one word, which a filter can name."""
    value = row.get(column)
    if is_missing(value):
        return None
    if column.endswith("fingerprint"):
        digits = str(value).rpartition(":")[2][:_DIGITS]
        identity = row.get(column.replace("fingerprint", "id"))
        return digits if is_missing(identity) else f"{identity}@{digits}"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).lower() if name == "optimizer" else str(value)
