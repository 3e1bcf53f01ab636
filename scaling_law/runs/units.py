"""Units of a table of runs: parameters, tokens, and nats per token. Impossible units are refused, odd ones warned of.

Losses are compared with other labs' laws: at equal N, D and E, nats per token of natural language differ by less
than 30 % between corpora and tokenizers, and bits per byte and perplexities from them by a factor of two to ten.
"""

from __future__ import annotations

import re
from itertools import product

import numpy as np

from hub.base.notices import Notice
from hub.base.units import format_count
from scaling_law.formulas.files import published_loss
from scaling_law.runs.rows import RunsError, is_loss
from scaling_law.size.arrays import BoolArray, Columns, FloatArray, IntArray

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
# Columns that are no losses in nats: perplexities and bits.
_PERPLEXITY = re.compile(r"(?i)(?<![a-z])(ppl|perplexity)(?![a-z])")
_ACCURACY = re.compile(
    r"(?i)(?<![a-z])(acc|accuracy|exact[_ ]?match|f1|pass@\w+|mc[12]|rouge\w*|bleu|win[_ ]?rate|auroc)"
    r"(?![a-z0-9])(?![^,]*(loss|error|stderr))"
)
# Mean of the values of larger runs over that of smaller ones above which values up to 1 are accuracies.
RISING = 1.01
_BITS = re.compile(r"(?i)(?<![a-z])(bpb|bpc|bpt|bits)(?![a-z])")

# The columns n_active, tokens and experts [n].
Sizes = Columns


def is_metric(name: str) -> bool:
    """Return whether a column is named as a loss or another measure of a model."""
    return is_loss(name) or any(pattern.search(name) for pattern in (_PERPLEXITY, _BITS, _ACCURACY))


def unit_problems(sizes: Sizes, loss: FloatArray, loss_name: str, trunk: IntArray | None) -> list[str]:
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

    has_wrong_loss = (loss > MOST_NATS) | (_PERPLEXITY.search(loss_name) is not None)
    for i in np.flatnonzero(~has_wrong_sizes & has_wrong_loss).tolist():
        problems[i] = f"{loss_name}={loss[i]:g} is not a loss in nats per token; {_suggest_logarithm(loss_name)}"

    return problems


def check_no_accuracy(
    sizes: Sizes,
    loss: FloatArray,
    loss_name: str,
    source: str,
) -> None:
    """Raise RunsError for accuracies: they are named so, or all lie in 0…1 and rise with compute."""
    reason = "an accuracy by its name"
    if _ACCURACY.search(loss_name) is None:
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
    sizes: Sizes,
    loss: FloatArray,
    loss_name: str,
    vocab_size: int | None,
    has_shapes: bool,
) -> tuple[str, ...]:
    """Describe units of runs that are possible but odd; `has_shapes` if N was checked against the models' shapes."""
    if not len(loss) or (vocab_size is not None and vocab_size < BYTES):
        return ()
    if _BITS.search(loss_name):
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


def _deviation(sizes: Sizes, loss: FloatArray) -> float:
    """Compute ln of the loss over that of other labs' laws, the median of the runs."""
    deviations = np.log(loss / published_loss(**sizes))
    return float(np.median(deviations))


def _is_too_short(sizes: Sizes, trunk: IntArray | None) -> BoolArray:
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


def _suggest_units(sizes: Sizes, loss: FloatArray) -> str:
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
