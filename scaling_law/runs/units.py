"""Units of a table of runs: parameters, tokens, and nats per token. What cannot be is refused, what is odd is said.

Other labs' laws are the yardstick of losses: at equal N, D and E, nats per token of natural language differ by less
than 30 % between corpora and tokenizers, and bits per byte and perplexities from them by a factor of two to ten.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hub.base.units import format_count
from scaling_law.formulas.published import published_loss
from scaling_law.size.arrays import FloatArray

# Least parameters of a language model.
FEWEST_PARAMETERS = 1000.0
FEW_PARAMETERS = 1e6  # fewer than any model has whose vocabulary is not of bytes
# Least tokens for each parameter at the end of a run.
FEWEST_TOKENS = 0.1
MOST_TOKENS = 1e6
# Tokens for each parameter in the middle of a design that reaches below the fewest.
USUAL_TOKENS = 0.3
# Largest step in tokens per parameter by which such a design gets there.
STEP = 10.0
CURVE = 10  # points of one size, at least, that are taken for a learning curve
# Largest factor from a curve's first D to its last.
LONGEST_CURVE = 1e5
MOST_NATS = 20.0  # a uniform guess over 500 million tokens
ODD_LOSS = 0.35  # ln of the loss over that of other labs' laws, the median of the runs
BYTES = 1000  # tokens of a vocabulary below this are about bytes, whose losses are lower
# Units, as they are typed.
UNITS = {1.0: "1", 1e3: "1e3", 1e6: "1e6", 1e9: "1e9", 1e12: "1e12"}
_PERPLEXITY = re.compile(r"(?i)(?<![a-z])(ppl|perplexity)(?![a-z])")
_BITS = re.compile(r"(?i)(?<![a-z])(bpb|bpc|bpt|bits)(?![a-z])")

Sizes = Mapping[str, FloatArray]  # n_active, tokens and experts [n]


def unit_problems(sizes: Sizes, loss: FloatArray, loss_name: str, trunk: NDArray[np.int64] | None) -> list[str]:
    """Say why the numbers of each run [n] cannot be in parameters, tokens and nats per token; "" if they can.

    `trunk` [n] is that of each run, None where it is not known: checkpoints may have few tokens.
    """
    problems = [""] * len(loss)
    ratio = sizes["tokens"] / sizes["n_active"]
    tiny = sizes["n_active"] < FEWEST_PARAMETERS
    units = tiny | _too_short(sizes, trunk) | (ratio > MOST_TOKENS)
    hint = _mapping({name: values[units] for name, values in sizes.items()}, loss[units]) if units.any() else ""
    for i in np.flatnonzero(units).tolist():
        what = f"n_active={sizes['n_active'][i]:g}" if tiny[i] else f"{ratio[i]:.3g} tokens per parameter"
        problems[i] = f"{what}, in other units? {hint}"
    other_kind = (loss > MOST_NATS) | (_PERPLEXITY.search(loss_name) is not None)
    for i in np.flatnonzero(~units & other_kind).tolist():
        problems[i] = f"{loss_name}={loss[i]:g} is no loss in nats per token; {_of_perplexity(loss_name)}"
    return problems


def unit_warnings(
    sizes: Sizes, loss: FloatArray, loss_name: str, vocab_size: int | None, counted: bool
) -> tuple[str, ...]:
    """Say what is odd about the units of runs, though it can be; `counted` if N was checked against their shapes."""
    if not len(loss) or (vocab_size is not None and vocab_size < BYTES):
        return ()
    if _BITS.search(loss_name):
        return (f"the losses are {loss_name}, not nats per token, and so is what a law of them predicts",)
    largest = float(sizes["n_active"].max())
    if largest < FEW_PARAMETERS:
        count = format_count(largest)
        said = f"no model has more than {count} parameters: n_active may be in thousands or millions"
        return () if counted else (said,)
    off = _off(sizes, loss)
    if abs(off) < ODD_LOSS:
        return ()
    like = "as bits per byte or character are, or another kind of data"
    if off > 0:
        like = "as losses in bits are, or another kind of data"
    if off > 0 and loss.min() > 1.0 and abs(_off(sizes, np.log(loss))) < ODD_LOSS:
        like = f"as perplexities are; {_of_perplexity(loss_name)}"
    return (f"the losses ({loss_name}) are ×{np.exp(off):.2g} what other labs' laws say at these sizes, {like}",)


def _off(sizes: Sizes, loss: FloatArray) -> float:
    """Compute ln of the loss over that of other labs' laws, the median of the runs."""
    return float(np.median(np.log(loss / published_loss(**sizes))))


def _too_short(sizes: Sizes, trunk: NDArray[np.int64] | None) -> NDArray[np.bool_]:
    """Find the runs [n] of too few tokens, but for checkpoints and designs that reach so far down step by step."""
    tokens = sizes["tokens"]
    ratio = tokens / sizes["n_active"]
    few = ratio < FEWEST_TOKENS
    if not few.any():
        return few
    if np.median(ratio) >= USUAL_TOKENS:
        ordered = np.sort(ratio)
        gaps = ordered[:-1][ordered[1:] > STEP * ordered[:-1]]
        few &= ratio <= gaps[gaps < FEWEST_TOKENS].max(initial=0.0)
    # A learning curve starts with few tokens: what counts is where it ends.
    if trunk is None:
        rows = np.column_stack([sizes["n_active"], sizes["experts"]])
        run = np.unique(rows, axis=0, return_inverse=True)[1].ravel()
    else:
        run = np.unique(trunk, return_inverse=True)[1].ravel()
    last = np.zeros(len(tokens))
    np.maximum.at(last, run, tokens)
    last = last[run]
    long_enough = last >= FEWEST_TOKENS * sizes["n_active"]
    if trunk is None:
        long_enough &= (np.bincount(run)[run] >= CURVE) & (last <= LONGEST_CURVE * tokens)
    return few & ~long_enough


def _mapping(sizes: Sizes, loss: FloatArray) -> str:
    """Say what to type for N and D in the units with which other labs' laws come nearest to the losses."""
    best: tuple[float, float, float] = (np.inf, 1.0, 1.0)
    for n_unit, d_unit in product(UNITS, UNITS):
        n_active = sizes["n_active"] * n_unit
        tokens = sizes["tokens"] * d_unit
        if n_active.min() < FEWEST_PARAMETERS or not FEWEST_TOKENS <= np.median(tokens / n_active) <= MOST_TOKENS:
            continue
        off = abs(_off({**sizes, "n_active": n_active, "tokens": tokens}, loss))
        best = min(best, (off, n_unit, d_unit))
    units: Mapping[str, Any] = {"n_active": best[1], "tokens": best[2]}
    mapped = {name: f"{name} * {UNITS[unit]}" for name, unit in units.items() if unit > 1}
    if not mapped:
        return "Map n_active and tokens with --column, in Python columns"
    typed = " ".join(f'--column "{name} = {text}"' for name, text in mapped.items())
    return f"Map them, e.g. {typed}, in Python columns {mapped}"


def _of_perplexity(name: str) -> str:
    """Say what to type for perplexities."""
    column = name if name.isidentifier() else f"`{name}`"
    return f'a perplexity is mapped by --column "loss = log({column})", in Python columns {{"loss": "log({column})"}}'
