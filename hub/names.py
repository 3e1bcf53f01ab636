"""How releases are named, so that a person finds a run and a program never guesses.

One model repository per (sweep, size, number of experts): `demo-d256-E8`. One branch per run, named by its trained
tokens and seed: `tokens002.0B-seed0`; an intermediate checkpoint has its step in front:
`step0001000-tokens002.0B-seed0`. The index of a sweep is the data set repository `demo-runs`.
"""

from __future__ import annotations

from .errors import RecordError
from .records import RunRecord

_UNITS = (("B", 10**9, 10**8), ("M", 10**6, 10**5), ("K", 10**3, 0))  # letter, tokens, used from this many tokens on
_MAX_RELATIVE_ROUNDING = 1e-3


def repo_name(record: RunRecord) -> str:
    """The name of the run's model repository, without organisation."""
    return f"{record.sweep}-{size_name(record.d_model, record.experts, record.n_blocks, record.n_heads)}"


def size_name(d_model: int, experts: int, n_blocks: int, n_heads: int) -> str:
    """Such as d512-E8; with blocks and heads, as in d1408-b21-h11-E8, where they are not d_model / 64."""
    on_rule = 64 * n_blocks == 64 * n_heads == d_model
    return f"d{d_model}{'' if on_rule else f'-b{n_blocks}-h{n_heads}'}-E{experts}"


def index_name(sweep: str) -> str:
    """The name of the data set repository with the index of a sweep."""
    return f"{sweep}-runs"


def branch_name(record: RunRecord) -> str:
    """The name of the run's branch.

    Tokens are written in billions from 0.1B on, in millions from 0.1M on, else in thousands, with three digits before
    the point and at least one after it, so that names with one unit sort by size (up to 999.9B). When one decimal
    would change the number by 0.1 % or more, it gets as many decimals as it needs (`tokens002.04B`): runs of one size
    and seed share a name only if their token counts agree within about 0.1 %.
    """
    base = final_branch_name(record.tokens, record.seed)
    return f"step{record.steps:07d}-{base}" if record.status == "intermediate" else base


def final_branch_name(tokens: int, seed: int | None) -> str:
    """The branch name of a final run of that many tokens, for a caller that has no record yet."""
    if seed is None:
        return f"tokens{formatted_tokens(tokens)}"
    if seed < 0:
        raise RecordError(f"seed is {seed}, allowed in a branch name is a number from 0 on")
    return f"tokens{formatted_tokens(tokens)}-seed{seed}"


def formatted_tokens(tokens: int) -> str:
    """A token count as in branch names: 2_000_000_000 -> "002.0B", 1_500_000 -> "001.5M", 12_288 -> "012.288K"."""
    letter, size, _ = next(unit for unit in _UNITS if tokens >= unit[2])
    value = tokens / size
    decimals = 1
    while decimals < 9 and abs(round(value, decimals) - value) >= _MAX_RELATIVE_ROUNDING * value and tokens:
        decimals += 1
    return f"{value:0{4 + decimals}.{decimals}f}{letter}"
