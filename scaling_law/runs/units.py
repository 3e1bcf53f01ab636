"""Units of a table of runs: parameters, tokens, and nats per token. What cannot be is refused, what is odd is said.

Other labs' laws are the yardstick for losses: at equal N, D and E, nats per token differ by less than 30 % between
corpora and tokenizers of natural language, bits per byte and perplexities by a factor of two to ten.
"""

from __future__ import annotations

import re
from itertools import product

import numpy as np
from numpy.typing import NDArray

from hub.base.units import format_count
from scaling_law.law import JointLaw
from scaling_law.size.arrays import FloatArray

FEWEST_PARAMETERS = 1000.0  # of a language model
FEW_PARAMETERS = 1e6  # that no model of a vocabulary of 50,000 has so few of
FEWEST_TOKENS, MOST_TOKENS = 0.1, 1e6  # for each parameter, at the end of a run
STEP = 10.0  # in tokens per parameter, by which the runs of a design differ at most
CURVE, LONGEST_CURVE = 10, 1e5  # points of one size that are a learning curve, and from its first D to its last
MOST_NATS = 20.0  # a uniform guess over 500 million tokens
ODD_LOSS = 0.35  # ln of the loss over that of other labs' laws, the median of the runs
BYTES = 1000  # a vocabulary below this has tokens of about one byte, in which losses are lower
PREFIXES = {1.0: "", 1e3: "thousands", 1e6: "millions", 1e9: "billions", 1e12: "trillions"}
_PERPLEXITY = re.compile(r"(?i)(?<![a-z])(ppl|perplexity)(?![a-z])")
_BITS = re.compile(r"(?i)(?<![a-z])(bpb|bpc|bpt|bits)(?![a-z])")


def unit_problems(
    n_active: FloatArray, tokens: FloatArray, experts: FloatArray, loss: FloatArray, loss_name: str, curves: FloatArray
) -> list[str]:
    """Why the numbers of each run [n] cannot be in parameters, tokens and nats per token; "" if they can.

    `curves` [n] has the trunk of the runs that are known to share one, NaN for others: checkpoints may have few tokens.
    """
    ratio, problems = tokens / n_active, [""] * len(loss)
    tiny, short = n_active < FEWEST_PARAMETERS, _too_short(n_active, tokens, experts, curves)
    long = ratio > MOST_TOKENS
    units = tiny | short | long
    hint = _mapping(n_active[units], tokens[units], experts[units], loss[units]) if units.any() else ""
    for i in np.flatnonzero(units).tolist():
        what = f"n_active={n_active[i]:g}" if tiny[i] else f"{ratio[i]:.3g} tokens per parameter"
        problems[i] = f"{what}, in other units? {hint}"
    perplexity = _PERPLEXITY.search(loss_name) is not None
    for i in np.flatnonzero(~units & ((loss > MOST_NATS) | perplexity)).tolist():
        problems[i] = f"{loss_name}={loss[i]:g} is no loss in nats per token; {_of_perplexity(loss_name)}"
    return problems


def unit_warnings(
    n_active: FloatArray, tokens: FloatArray, experts: FloatArray, loss: FloatArray, loss_name: str, bytewise: bool
) -> tuple[str, ...]:
    """Sentences on units that are odd, though they can be; `bytewise` if a token is known to be about one byte."""
    if bytewise or not len(loss):
        return ()
    if n_active.max() < FEW_PARAMETERS:
        largest = format_count(float(n_active.max()))
        return (f"no model has more than {largest} parameters: is n_active in thousands or millions?",)
    off = float(np.median(np.log(loss / JointLaw.published().loss(n_active, tokens, experts))))
    if _BITS.search(loss_name):
        return (f"the losses are {loss_name}, not nats per token, and so is what a law of them predicts",)
    if abs(off) < ODD_LOSS:
        return ()
    guess = _of_perplexity(loss_name) if off > 0 else "are they bits per byte or character, or of another kind of data?"
    return (f"the losses ({loss_name}) are ×{np.exp(off):.2g} what other labs' laws say at these sizes: {guess}",)


def _too_short(
    n_active: FloatArray, tokens: FloatArray, experts: FloatArray, curves: FloatArray
) -> NDArray[np.bool_]:
    """The runs [n] of too few tokens, but for checkpoints and for designs that reach so far down step by step."""
    ratio = tokens / n_active
    few = ratio < FEWEST_TOKENS
    if not few.any():
        return few
    if np.median(ratio) >= 1.0:
        ordered = np.sort(ratio)
        gaps = np.flatnonzero(ordered[1:] > STEP * ordered[:-1])
        gaps = gaps[ordered[gaps] < FEWEST_TOKENS]
        few &= ratio <= (ordered[gaps[-1]] if len(gaps) else 0.0)
    # A learning curve starts with few tokens: what counts is where it ends.
    sizes = np.unique(np.column_stack([n_active, experts]), axis=0, return_inverse=True)[1].ravel()
    known = np.isfinite(curves)
    run = np.where(known, sizes.max() + 1 + np.unique(curves, return_inverse=True)[1].ravel(), sizes)
    last, points = np.zeros(run.max() + 1), np.bincount(run)
    np.maximum.at(last, run, tokens)
    curve = known | ((points[run] >= CURVE) & (last[run] <= LONGEST_CURVE * tokens))
    return few & ~(curve & (last[run] >= FEWEST_TOKENS * n_active))


def _mapping(n_active: FloatArray, tokens: FloatArray, experts: FloatArray, loss: FloatArray) -> str:
    """What to type for N and D in the units with which other labs' laws come nearest to the losses."""
    law, best = JointLaw.published(), (np.inf, 1.0, 1.0)
    for n_unit, d_unit in product(list(PREFIXES)[:4], PREFIXES):
        n, d = n_active * n_unit, tokens * d_unit
        ratio = float(np.median(d / n))
        if n.min() < FEWEST_PARAMETERS or not FEWEST_TOKENS <= ratio <= MOST_TOKENS:
            continue
        off = abs(float(np.median(np.log(loss / law.loss(n, d, experts)))))
        best = min(best, (off, n_unit, d_unit))
    units = {"n_active": best[1], "tokens": best[2]}
    mapped = {name: f"{name} * {unit:g}".replace("e+0", "e") for name, unit in units.items() if unit > 1}
    mapped = {name: text.replace("e+", "e") for name, text in mapped.items()} or {"tokens": "tokens * 1e9"}
    typed = " ".join(f'--column "{name} = {text}"' for name, text in mapped.items())
    return f"Map them: {typed}, in Python columns {mapped}"


def _of_perplexity(name: str) -> str:
    column = name if name.isidentifier() else f"`{name}`"
    return f'a perplexity is mapped by --column "loss = log({column})", in Python columns {{"loss": "log({column})"}}'
