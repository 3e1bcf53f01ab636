"""How releases are named: a model repository per (sweep, size, experts), `demo-d256-E8`, with a branch per run.

A branch has tokens and seed, `tokens002.0B-seed0`, then what departs from the recipe, `-lr0.004`; an intermediate
checkpoint has its step in front, `step0001000-`. The index of a sweep is the dataset repository `demo-runs`.
"""

from __future__ import annotations

import hashlib
import math
import re
from typing import TYPE_CHECKING

from hub.base.errors import RecordError

if TYPE_CHECKING:
    from hub.record.run_record import RunRecord  # pydantic, which a question to a law does without

# Letter, tokens, and used from this many tokens on.
_UNITS = (("B", 10**9, 10**8), ("M", 10**6, 10**5), ("K", 10**3, 0))
_MAX_RELATIVE_ROUNDING = 1e-3
MAX_BRANCH_LENGTH = 120
MAX_ID_LENGTH = 64
# The end of the name of a learning-rate law that a run multiplies.
_SCALED = re.compile(r", times ([0-9][0-9.e-]*)$")
_SIZE_FIELDS = (
    *("d_model", "experts", "n_blocks", "n_heads", "n_kv_heads"),
    *("model_type", "experts_per_token", "d_expert", "shared_experts"),
)
# The learning-rate law of a record whose rate was given.
GIVEN_RATE = "given"


def repo_name(record: RunRecord) -> str:
    """Return the name of the run's model repository, without organisation."""
    size = {name: getattr(record, name) for name in _SIZE_FIELDS}
    return f"{record.sweep}-{size_name(**size)}"


def size_name(
    d_model: int,
    experts: int,
    n_blocks: int,
    n_heads: int,
    *,
    model_type: str | None = None,
    experts_per_token: int | None = None,
    d_expert: int | None = None,
    shared_experts: int | None = None,
    n_kv_heads: int | None = None,
) -> str:
    """Name a model size: d512-E8, or d1408-b21-h11-E8 where blocks and heads are not d_model / 64.

    Other model classes start with their model type and end with their feed-forward layer: qwen3_moe-d512-E64-k8-f256
    has 8 of 64 experts per token, each 256 wide, and -s1 adds a shared one. Key-value heads are named where
    they are fewer than heads: d512-kv2-E64.
    """
    name = f"d{d_model}"
    if not 64 * n_blocks == 64 * n_heads == d_model:
        name += f"-b{n_blocks}-h{n_heads}"
    if n_kv_heads not in (None, n_heads):
        name += f"-kv{n_kv_heads}"
    name += f"-E{experts}"
    if model_type is None:
        return name
    if experts > 1:
        name += f"-k{experts_per_token}"
    name += f"-f{d_expert}"
    if shared_experts:
        name += f"-s{shared_experts}"
    return f"{model_type}-{name}"


def index_name(sweep: str) -> str:
    """Return the name of the dataset repository with the index of a sweep."""
    return f"{sweep}-runs"


def branch_name(record: RunRecord) -> str:
    """Name the run's branch, a function of the record alone, in at most 120 characters.

    Token counts have as many decimals as tell them from others that differ by 0.1 % or more (`format_tokens`). A
    run that diverged or was stopped has its horizon at the end, as all branches of a trunk may end at one step. What
    departs from the recipe comes last: see `recipe_suffix`, and `-decay0.1` for the share of the horizon in which the
    learning rate decays, where it is not a fifth.
    """
    name = final_branch_name(record.tokens, record.seed)
    if record.status == "intermediate":
        name = f"step{record.steps:07d}-{name}"
    ended_early = record.tokens < record.schedule.horizon_tokens
    if ended_early and (record.status == "diverged" or record.stopped):
        name += f"-horizon{format_tokens(record.schedule.horizon_tokens)}"
    return shorten(name + recipe_suffix(record) + _decay_suffix(record), MAX_BRANCH_LENGTH)


def recipe_suffix(record: RunRecord) -> str:
    """Name the settings of a run that differ from the paper's recipe, e.g. `-lr0.004-wd0.2`; empty if none do.

    `-lr0.004`: the peak learning rate was set by hand instead of by a law (omitted if the sweep's name ends in it).
    `-lrscale2`: the law's peak learning rate times 2. Null fields count as the recipe's.
    """
    optimizer = record.optimizer
    schedule = record.schedule
    scale = _SCALED.search(schedule.learning_rate_law)
    rate = f"lrscale{scale[1]}" if scale else ""
    if schedule.learning_rate_law == GIVEN_RATE:
        rate = f"lr{_word(schedule.peak_learning_rate)}"
        rate = "" if record.sweep.endswith(f"-{rate}") else rate
    names = [rate]
    if optimizer.name == "muon":
        names += [
            "muon",
            _departure("muonlr{}", optimizer.muon_learning_rate, schedule.peak_learning_rate),
            _departure("momentum{}", optimizer.muon_momentum, 0.95),
            _departure("{}shape", optimizer.muon_adjust_lr, "match_rms_adamw"),
        ]
    are_usual_betas = math.isclose(optimizer.beta1, 0.9) and math.isclose(optimizer.beta2, 0.999)
    names += [
        _departure("wd{}", optimizer.weight_decay, 0.1),
        _departure("wd{}", optimizer.weight_decay_on, "all"),
        "" if are_usual_betas else f"beta{_word(optimizer.beta1)}-{_word(optimizer.beta2)}",
        _departure("eps{}", optimizer.epsilon, 1e-8),
        "noclip" if optimizer.gradient_clip_norm is None else _departure("clip{}", optimizer.gradient_clip_norm, 0.1),
        "finalnorm" if record.final_norm else "",
        _departure("{}init", record.initialization, "paper"),
    ]
    is_ours = record.model_type is None
    if record.experts > 1 and is_ours:
        names.append("dropless" if record.capacity_factor == 0 else _departure("cf{}", record.capacity_factor, 1.0))
    if record.balance_bias_rate is not None:
        names.append(f"bias{_word(record.balance_bias_rate)}")
    elif record.experts > 1:
        names.append(_departure("balance{}", record.balance_loss_coefficient, 0.01 if is_ours else 0.001))
    if record.experts > 1 and is_ours:
        names.append(_departure("z{}", record.z_loss_coefficient, 0.001))
    return "".join(f"-{name}" for name in names if name)


def _departure(name: str, value: float | str | None, recipe_value: float | str) -> str:
    """Name a value that departs from the recipe's, "" for one that does not and for null."""
    if value is None:
        return ""
    if isinstance(value, str) or isinstance(recipe_value, str):
        is_usual = value == recipe_value
    else:
        is_usual = math.isclose(value, recipe_value)
    return "" if is_usual else name.format(_word(value))


def _word(value: float | str) -> str:
    """Write a value in characters that a branch name may have: 0.004, 1e-06, 1e20."""
    return re.sub(r"[^A-Za-z0-9]+", "", value) if isinstance(value, str) else f"{value:g}".replace("+", "")


def _decay_suffix(record: RunRecord) -> str:
    """Name the decay's share of the horizon, unless it is a fifth but for whole steps; nothing for a checkpoint."""
    decay_tokens = record.schedule.decay_tokens
    horizon_tokens = record.schedule.horizon_tokens
    if record.status == "intermediate" or not decay_tokens:
        return ""
    sequences = max((stage.sequences for stage in record.schedule.batch_ramp), default=0)
    rounding = max(2 * sequences * record.sequence_length, 0.005 * horizon_tokens)
    if abs(decay_tokens - 0.2 * horizon_tokens) <= rounding:
        return ""
    return f"-decay{_word(round(decay_tokens / horizon_tokens, 2))}"


def shorten(name: str, length: int) -> str:
    """Cut a name to so many characters: a longer one keeps its beginning, and a hash tells it from others."""
    if len(name) <= length:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: length - 9].rstrip('-._')}-{digest}"


def final_branch_name(tokens: int, seed: int | None) -> str:
    """Name the branch of a final run of that many tokens, for a caller that has no record yet."""
    if seed is None:
        return f"tokens{format_tokens(tokens)}"
    if seed < 0:
        raise RecordError(f"seed is {seed}, allowed in a branch name is a number of at least 0")
    return f"tokens{format_tokens(tokens)}-seed{seed}"


def format_tokens(tokens: int) -> str:
    """Write a token count as branch names have it: 2_000_000_000 -> "002.0B", 1_500_000 -> "001.5M".

    In billions from 0.1B on, in millions from 0.1M on, with three digits before the point, so that names sort by size,
    and as many after it as keep the rounding below 0.1 %: 12_288 -> "012.288K".
    """
    letter, unit_tokens, _ = next(unit for unit in _UNITS if tokens >= unit[2])
    value = tokens / unit_tokens
    decimals = 1
    while tokens and decimals < 9 and abs(round(value, decimals) - value) >= _MAX_RELATIVE_ROUNDING * value:
        decimals += 1
    return f"{value:0{4 + decimals}.{decimals}f}{letter}"
