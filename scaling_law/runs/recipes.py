"""What runs were trained with besides what laws ask for: their recipe. A law describes runs of one.

Learning rates, batches and tokens are tuned for each model, and are no part of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from hub.base.errors import InputError, given, unknown
from hub.base.tables import enumerated
from scaling_law.runs.rows import Row, RunsError, flattened, is_missing, names_of

# Column of the recipe → the columns of a table that may hold it, nested fields by the names of runs.parquet. The first
# that all rows have is read, else the first that any has.
_HELD_BY = {
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
COLUMNS = tuple(_HELD_BY)
HOLDERS = frozenset(name for holders in (_HELD_BY, *_HELD_BY.values()) for name in holders)
# Digits of a fingerprint that are shown.
_DIGITS = 8
_MOST = 4  # values of a column that an error shows

Recipe = Mapping[str, tuple[str | None, ...]]  # the value of each run in each column; None is not known


def recipe_of(rows: Sequence[Row]) -> Recipe:
    """The recipes of n rows: each column of `COLUMNS` that a row tells, [n]."""
    flat, columns = [flattened(row) for row in rows], {}
    present = {*names_of(flat)}
    for name, holders in _HELD_BY.items():
        told = {held: sum(not is_missing(row.get(held)) for row in flat) for held in holders if held in present}
        if most := [held for held in told if told[held] == len(flat)] or [held for held in told if told[held]]:
            columns[name] = tuple(_value(name, most[0], row) for row in flat)
    return {name: values for name, values in columns.items() if any(values)}


def differences(recipe: Recipe, law_has: Collection[str] = ()) -> dict[str, list[str]]:
    """Columns in which recipes differ, but for the variables of a law, and their values; unknown ones do not count."""
    values = {name: sorted({v for v in told if v}) for name, told in recipe.items() if name not in law_has}
    return {name: told for name, told in values.items() if len(told) > 1}


def names_mixed(mix: str | Collection[str]) -> set[str]:
    """List the columns in which runs may differ."""
    return {mix} - {""} if isinstance(mix, str) else {*mix}


def check_mix(
    recipe: Recipe, law_has: Collection[str], mix: str | Collection[str], source: str, columns: Collection[str] = ()
) -> None:
    """RunsError, in one line, if recipes differ in more than the columns `mix`; ValueError for one there is not.

    `columns` are others of the runs that `mix` may name.
    """
    agreed = names_mixed(mix)
    for name in sorted(agreed - {*COLUMNS, *columns}):
        raise InputError(unknown("mix=", name, (*COLUMNS, *columns)))
    if mixed := {name: values for name, values in differences(recipe, law_has).items() if name not in agreed}:
        first, (value, *_) = next(iter(mixed.items()))
        names = tuple(sorted({*mixed, *agreed}))
        raise RunsError(
            f"{source}: the runs differ in {in_words(mixed)}; choose with ",
            given("where", f"{first} = {value}"),
            ", or fit them as one with ",
            given("mix", names, in_shell=f"--mix {','.join(names)}"),
        )


def in_words(mixed: Mapping[str, Sequence[str]]) -> str:
    """The differing columns in words: `optimizer (adamw, muon) and sequence_length (256, 512)`."""
    phrases = [
        f"{name} ({', '.join(values[:_MOST])}{', …' if len(values) > _MOST else ''})" for name, values in mixed.items()
    ]
    return enumerated(phrases)


def _value(name: str, held: str, row: Row) -> str | None:
    """The value as one word, which a filter can name."""
    value = row.get(held)
    if is_missing(value):
        return None
    if held.endswith("_fingerprint"):
        digits = str(value).rpartition(":")[2][:_DIGITS]
        identity = row.get(f"{name}_id")
        return digits if is_missing(identity) else f"{identity}@{digits}"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).lower() if name == "optimizer" else str(value)
