"""Checks of rows before a law is fitted on them: their numbers, sizes and units, and that none is a duplicate.

Units are parameters, tokens, and nats per token. Impossible units are refused, odd ones warned of. Losses are compared
with other labs' laws: at equal N, D and E, nats per token of natural language differ by less than 30 % between corpora
and tokenizers, and bits per byte and perplexities from them by a factor of two to ten.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from hub.base.errors import Message, given, literal, message
from hub.base.fields import LARGEST
from hub.base.notices import Notice
from hub.base.numerals import why_no_number
from hub.base.types import Fields
from hub.base.units import format_count
from scaling_law.formulas.files import published_loss
from scaling_law.formulas.law import SMALLEST
from scaling_law.runs.architectures import size_problem
from scaling_law.runs.columns import INPUTS
from scaling_law.runs.rows import ACCURACY, BITS, PERPLEXITY, SKIP, FloatArray, Row, RunsError, label, number
from scaling_law.runs.settings import codes_of
from scaling_law.size.arrays import BoolArray, Columns, IntArray, merge_rounded

# Least factors in tokens, and in loss, by which a longer run of a model lies above a shorter one and is not noise.
LEAST_STEP = 1.2
LEAST_RISE = 1.005
# The largest share of such runs that are taken for mistakes.
MOST_RISING = 0.2
# Unusable rows that an error lists.
LISTED = 8
# Least parameters of a language model, and of one whose vocabulary is not of bytes.
FEWEST_PARAMETERS = 1000.0
FEW_PARAMETERS = 1e6
# Least and most tokens for each parameter at the end of a run.
FEWEST_TOKENS = 0.1
MOST_TOKENS = 1e6
# Tokens for each parameter in the middle of a design that reaches below the fewest.
USUAL_TOKENS = 0.3
# Largest step in tokens per parameter by which such a design gets there.
STEP = 10.0
# Points of one size, at least, that are taken for a learning curve.
CURVE = 10
# Largest factor from a curve's first D to its last.
LONGEST_CURVE = 1e5
# The loss of a uniform guess over 500 million tokens.
MOST_NATS = 20.0
# The median of ln loss − ln of other labs' laws beyond which the losses are odd.
ODD_LOSS = 0.35
# The tokens of a smaller vocabulary are about bytes, whose losses are lower.
BYTES = 1000
# Units, as they are typed.
UNITS = {1.0: "1", 1e3: "1e3", 1e6: "1e6", 1e9: "1e9", 1e12: "1e12"}
# Mean of the values of larger runs over that of smaller ones above which values up to 1 are accuracies.
RISING = 1.01


def check_rows(
    rows: Sequence[Row],
    places: Sequence[int],
    loss: str,
    origin: str,
    *,
    source_loss: str,
    trunk: Any = None,
    settings: Sequence[str] = (),
    failed: Mapping[int, str] | None = None,
    check_ids: bool = False,
    check_sizes: bool = False,
    is_step_log: bool = False,
    problems: list[str] | None = None,
) -> tuple[list[int], list[str]]:
    """Return which of the rows at these places can be used, and notes on run records that repeat another sweep's.

    Rows of equal N, D, E and loss are duplicates unless they differ in one of the `settings`. RunsError lists unusable
    rows, unless a list of `problems` takes them and other rows can be used.

    Args:
        source_loss: the source's name for the loss, which says more of its unit than ours.
        trunk: tells checkpoints, which may have few tokens; None if trunks are not known.
        failed: problems of single rows that are known already.
        check_ids: a run_id may stand in several rows only as the checkpoints of one model, after different tokens.
        check_sizes: the sizes of a row must not contradict its shape.
        is_step_log: the rows of a run are its steps, which the advice for duplicates takes into account.
    """
    problem_at = dict(failed or {})
    candidates = []

    for i in places:
        problem = _bad_numbers(rows[i], loss) or (check_sizes and size_problem(rows[i]))
        if problem:
            problem_at.setdefault(i, message(f"{label(i, rows[i])}: ", problem))
        elif i not in problem_at:
            candidates.append(i)

    notes = _find_repeats(rows, candidates, loss, settings, check_ids, is_step_log, problem_at)

    sound = [i for i in candidates if i not in problem_at and i not in notes]
    sizes, losses = arrays_of([rows[i] for i in sound], loss)
    check_no_accuracy(sizes, losses, source_loss, origin)
    clusters = None if trunk is None else codes_of([trunk[i] for i in sound])

    for i, problem in zip(sound, unit_problems(sizes, losses, source_loss, clusters), strict=True):
        # The units of a run record are those of its schema, however short the run.
        if problem and "schema_version" not in rows[i]:
            problem_at[i] = f"{label(i, rows[i])}: {problem}"

    usable = [i for i in sound if i not in problem_at]
    lines = [problem_at[i] for i in places if i in problem_at]
    if problems is not None:
        problems += lines
        lines = problems

    if not usable or (lines and problems is None):
        raise RunsError(_describe_unusable(origin, lines, skippable=bool(usable)))

    return usable, list(notes.values())


def arrays_of(rows: Sequence[Row], loss: str) -> tuple[Fields, FloatArray]:
    """Return the sizes of rows [n] as laws need them, and their losses [n]."""
    columns = {}
    for name in (*INPUTS, loss):
        columns[name] = np.array([number(row[name]) for row in rows], float)
    sizes: Fields = {name: merge_rounded(columns[name]) for name in INPUTS}
    return sizes, columns[loss]


def find_rising_runs(
    sizes: Mapping[str, FloatArray],
    loss: FloatArray,
    names: Sequence[str],
) -> list[Notice]:
    """Warn of runs [n] whose loss lies above that of a shorter run of the same model.

    None are named where they are many: such runs differ in more than N, D and E.
    """
    order = np.lexsort([sizes["tokens"], sizes["experts"], sizes["n_active"]])
    steps = {name: values[order[1:]] / values[order[:-1]] for name, values in {**sizes, "loss": loss}.items()}
    is_same_model = (steps["n_active"] == 1) & (steps["experts"] == 1)
    is_rising = is_same_model & (steps["tokens"] >= LEAST_STEP) & (steps["loss"] > LEAST_RISE)
    if is_rising.sum() > MOST_RISING * len(loss):
        return []

    notices = []

    for shorter, longer in zip(order[:-1][is_rising], order[1:][is_rising], strict=True):
        topic = f"run {names[longer]} lies above {names[shorter]}, a shorter run of its model"
        notices.append(Notice(f"{topic} ({loss[longer]:.4g} and {loss[shorter]:.4g}): check both", topic))

    return notices


def _bad_numbers(row: Row, loss: str) -> str:
    """Describe the values that a law needs and cannot use; "" if all are usable."""
    problems = []

    for name in (*INPUTS, loss):
        cell = row.get(name)
        value = number(cell)
        if value is None or not SMALLEST <= value <= LARGEST or (name == "experts" and value < 1):
            problems.append(f"{name}={literal(cell)} {_number_problem(name, cell)}")

    return "; ".join(problems)


def _number_problem(name: str, cell: Any) -> str:
    value = number(cell)
    if value is None and isinstance(cell, str):
        return why_no_number(cell)

    size = value or 0.0
    if 0 < size < SMALLEST or LARGEST < size < math.inf:
        return f"must lie between {SMALLEST:g} and {LARGEST:g}"

    if name == "experts":
        return "must be at least 1"

    return "must be positive and finite"


def _find_repeats(
    rows: Sequence[Row],
    places: Sequence[int],
    loss: str,
    settings: Sequence[str],
    check_ids: bool,
    is_step_log: bool,
    problem_at: dict[int, str],
) -> dict[int, str]:
    """Add the problems of rows that repeat an earlier one; return notes on runs that another sweep trained, too.

    The same run trained in two sweeps gives the same loss to the last bit, and counts once. Checkpoints of a run share
    the model and differ in tokens; rows of another model under its name are duplicates of the first.
    """
    losses = {number(rows[i][loss]) for i in places}
    run_ids = {repr(rows[i].get("run_id") or i) for i in places}
    # Most tables repeat nothing.
    if len(losses) == len(run_ids) == len(places):
        return {}

    notes: dict[int, str] = {}
    place_of: dict[tuple[Any, ...], int] = {}
    checkpoint_of: dict[str, tuple[Any, ...]] = {}
    for i in places:
        row = rows[i]
        n_active, tokens, experts, nats = [number(row[name]) for name in (*INPUTS, loss)]
        values = [*map(row.get, settings)]
        # NaN, which may be any number, is a value of this row alone.
        values = [i if isinstance(value, float) and value != value else value for value in values]
        keys = [("N, D, E and loss", n_active, tokens, experts, nats, repr(values))]
        if check_ids and row.get("run_id"):
            checkpoint = ("run_id", repr(row["run_id"]), n_active, experts, tokens)
            first_checkpoint = checkpoint_of.setdefault(checkpoint[1], checkpoint)
            keys.append(checkpoint if first_checkpoint[:-1] == checkpoint[:-1] else first_checkpoint)

        repeated = [key for key in keys if key in place_of]
        for key in keys:
            place_of.setdefault(key, i)
        if not repeated:
            continue

        first = place_of[repeated[0]]
        texts = [f"{label(i, row)}: duplicate of {label(first, rows[first])} (same {repeated[0][0]}"]
        if is_step_log:
            texts += ["; ", given("final", "last", in_shell="--final last"), " takes the last of each run"]
        sweeps = {row.get("sweep"), rows[first].get("sweep")}
        if "schema_version" in row and len(sweeps) == 2 and None not in sweeps:
            notes[i] = f"{label(i, row)}: the same run as {label(first, rows[first])}, trained in two sweeps"
        else:
            problem_at[i] = message(*texts, ")")

    return notes


def _describe_unusable(origin: str, problems: Sequence[str], skippable: bool) -> Message:
    """Write the error of a table with unusable rows, which lists the first of them."""
    texts = [f"{origin}: {len(problems)} unusable row(s)"]
    if skippable:
        texts += [", which ", SKIP, " leaves out"]

    for line in problems[:LISTED]:
        texts += ["\n  ", line]

    if len(problems) > LISTED:
        texts.append(f"\n  … and {len(problems) - LISTED} more")

    return message(*texts)


# ------------------------------------------------------------------ units


def unit_problems(sizes: Columns, loss: FloatArray, loss_name: str, trunk: IntArray | None) -> list[str]:
    """Describe why the numbers of each run [n] cannot be in parameters, tokens and nats per token; "" if they can.

    `trunk` [n] tells checkpoints, which may have few tokens; None if trunks are not known.
    """
    problems = [""] * len(loss)
    ratio = sizes["tokens"] / sizes["n_active"]
    is_tiny = sizes["n_active"] < FEWEST_PARAMETERS
    has_wrong_sizes = is_tiny | _is_too_short(sizes, trunk) | (ratio > MOST_TOKENS)
    if has_wrong_sizes.any():
        wrong_sizes = {name: values[has_wrong_sizes] for name, values in sizes.items()}
        hint = _suggest_units(wrong_sizes, loss[has_wrong_sizes])
        for i in np.flatnonzero(has_wrong_sizes).tolist():
            size = f"{ratio[i]:.3g} tokens per parameter"
            if is_tiny[i]:
                size = f"n_active={sizes['n_active'][i]:g}"
            problems[i] = f"{size}, in other units? {hint}"

    has_wrong_loss = (loss > MOST_NATS) | (PERPLEXITY.search(loss_name) is not None)
    for i in np.flatnonzero(~has_wrong_sizes & has_wrong_loss).tolist():
        problems[i] = f"{loss_name}={loss[i]:g} is not a loss in nats per token; {_suggest_logarithm(loss_name)}"

    return problems


def check_no_accuracy(
    sizes: Columns,
    loss: FloatArray,
    loss_name: str,
    source: str,
) -> None:
    """Raise RunsError for accuracies: they are named so, or all lie in 0…1 and rise with compute."""
    reason = "an accuracy by its name"
    if ACCURACY.search(loss_name) is None:
        middle = len(loss) // 2
        if middle < 2 or loss.max() > 1.0:
            return
        flops = sizes["n_active"] * sizes["tokens"]
        by_compute = loss[np.argsort(flops, kind="stable")]
        of_smaller_runs = by_compute[:middle].mean()
        of_larger_runs = by_compute[middle:].mean()
        if of_larger_runs <= RISING * of_smaller_runs:
            return
        reason = "an accuracy, as it rises with compute"

    advice = "fit a loss of the same runs; its law gives accuracies with --accuracy, in Python accuracy="
    raise RunsError(f"{source}: {loss_name} is {reason}, and no loss in nats per token: {advice}")


def unit_warnings(
    sizes: Columns,
    loss: FloatArray,
    loss_name: str,
    vocab_size: int | None,
    has_shapes: bool,
) -> tuple[str, ...]:
    """Describe units of runs that are possible but odd; `has_shapes` if N was checked against the models' shapes."""
    if not len(loss) or (vocab_size is not None and vocab_size < BYTES):
        return ()
    if BITS.search(loss_name):
        topic = f"the losses are {loss_name}, not nats per token"
        return (Notice(f"{topic}, and so is what a law of them predicts", topic),)

    largest = float(sizes["n_active"].max())
    if largest < FEW_PARAMETERS:
        if has_shapes:
            return ()
        count = format_count(largest)
        topic = f"no model has more than {count} parameters"
        return (Notice(f"{topic}: n_active may be in thousands or millions", topic),)

    deviation = _deviation(sizes, loss)
    if abs(deviation) < ODD_LOSS:
        return ()
    explanation = "as bits per byte or character are, or another kind of data"
    if deviation > 0:
        explanation = "as losses in bits are, or another kind of data"
        if loss.min() > 1.0 and abs(_deviation(sizes, np.log(loss))) < ODD_LOSS:
            explanation = f"as perplexities are; {_suggest_logarithm(loss_name)}"
    factor = f"×{np.exp(deviation):.2g}"
    topic = f"losses {factor} what other labs' laws say"
    sentence = f"the losses ({loss_name}) are {factor} what other labs' laws say at these sizes, {explanation}"
    return (Notice(sentence, topic),)


def _deviation(sizes: Columns, loss: FloatArray) -> float:
    """Compute ln of the loss over that of other labs' laws, the median of the runs."""
    deviations = np.log(loss / published_loss(**sizes))
    return float(np.median(deviations))


def _is_too_short(sizes: Columns, trunk: IntArray | None) -> BoolArray:
    """Find the runs [n] of too few tokens, except checkpoints and designs that reach so far down step by step."""
    tokens = sizes["tokens"]
    ratio = tokens / sizes["n_active"]
    few = ratio < FEWEST_TOKENS
    if not few.any():
        return few

    if np.median(ratio) >= USUAL_TOKENS:
        ordered = np.sort(ratio)
        is_below_gap = ordered[1:] > STEP * ordered[:-1]
        below_gaps = ordered[:-1][is_below_gap]
        too_low = below_gaps[below_gaps < FEWEST_TOKENS]
        few &= ratio <= too_low.max(initial=0.0)

    # A learning curve starts with few tokens: its last point counts.
    if trunk is None:
        rows = np.column_stack([sizes["n_active"], sizes["experts"]])
        run = np.unique(rows, axis=0, return_inverse=True)[1].ravel()
    else:
        run = np.unique(trunk, return_inverse=True)[1].ravel()
    run_tokens = np.zeros(len(tokens))
    np.maximum.at(run_tokens, run, tokens)
    last_tokens = run_tokens[run]
    is_on_curve = last_tokens >= FEWEST_TOKENS * sizes["n_active"]
    if trunk is None:
        points = np.bincount(run)[run]
        is_on_curve &= (points >= CURVE) & (last_tokens <= LONGEST_CURVE * tokens)
    return few & ~is_on_curve


def _suggest_units(sizes: Columns, loss: FloatArray) -> str:
    """Suggest the units of N and D with which other labs' laws come nearest to the losses."""
    best: tuple[float, float, float] = (np.inf, 1.0, 1.0)
    for n_unit, d_unit in product(UNITS, UNITS):
        n_active = sizes["n_active"] * n_unit
        tokens = sizes["tokens"] * d_unit
        ratio = np.median(tokens / n_active)
        if n_active.min() < FEWEST_PARAMETERS or not FEWEST_TOKENS <= ratio <= MOST_TOKENS:
            continue
        scaled = {**sizes, "n_active": n_active, "tokens": tokens}
        deviation = abs(_deviation(scaled, loss))
        best = min(best, (deviation, n_unit, d_unit))

    columns = {}
    for name, unit in zip(("n_active", "tokens"), best[1:], strict=True):
        if unit > 1:
            columns[name] = f"{name} * {UNITS[unit]}"
    if not columns:
        return "Map n_active and tokens with --column, in Python columns"
    options = " ".join(f'--column "{name} = {text}"' for name, text in columns.items())
    return f"Map them, e.g. {options}, in Python columns {columns}"


def _suggest_logarithm(name: str) -> str:
    """Suggest the logarithm for perplexities."""
    column = name if name.isidentifier() else f"`{name}`"
    return f'a perplexity is mapped by --column "loss = log({column})", in Python columns {{"loss": "log({column})"}}'
