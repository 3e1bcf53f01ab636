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

_UNITS = (("B", 10**9, 10**8), ("M", 10**6, 10**5), ("K", 10**3, 0))  # letter, tokens, used from this many tokens on
_MAX_RELATIVE_ROUNDING = 1e-3
MAX_BRANCH_LENGTH, MAX_ID_LENGTH = 120, 64
_SCALED = re.compile(r", times ([0-9][0-9.e-]*)$")  # the end of a learning-rate law that a run multiplies
_SIZE_FIELDS = (
    *("d_model", "experts", "n_blocks", "n_heads", "n_kv_heads"),
    *("model_type", "experts_per_token", "d_expert", "shared_experts"),
)
# The learning-rate law of a record whose rate was given.
GIVEN_RATE = "given"


def repo_name(record: RunRecord) -> str:
    """The name of the run's model repository, without organisation."""
    return f"{record.sweep}-{size_name(**{name: getattr(record, name) for name in _SIZE_FIELDS})}"


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
    """The name of a model size, d512-E8, or d1408-b21-h11-E8 where blocks and heads are not d_model / 64.

    Other model classes start with their model type and end with their feed-forward layer: qwen3_moe-d512-E64-k8-f256
    has 8 of 64 experts per token, each 256 wide, and -s1 adds a shared one. Key-value heads are named where
    they are fewer than heads: d512-kv2-E64.
    """
    on_rule = 64 * n_blocks == 64 * n_heads == d_model
    shape = "" if on_rule else f"-b{n_blocks}-h{n_heads}"
    grouped = "" if n_kv_heads in (None, n_heads) else f"-kv{n_kv_heads}"
    size = f"d{d_model}{shape}{grouped}-E{experts}"
    if model_type is None:
        return size
    routed = f"-k{experts_per_token}" if experts > 1 else ""
    return f"{model_type}-{size}{routed}-f{d_expert}{f'-s{shared_experts}' if shared_experts else ''}"


def index_name(sweep: str) -> str:
    """The name of the dataset repository with the index of a sweep."""
    return f"{sweep}-runs"


def branch_name(record: RunRecord) -> str:
    """The name of the run's branch, a function of the record alone, and at most 120 characters long.

    Token counts have as many decimals as tell them from others that differ by 0.1 % or more (`formatted_tokens`). A
    run that diverged or was stopped has its horizon at the end, as all branches of a trunk may end at one step. What
    departs from the recipe comes last: see `recipe_suffix`, and `-decay0.1` for the share of the horizon in which the
    learning rate decays, where it is not a fifth.
    """
    name = final_branch_name(record.tokens, record.seed)
    if record.status == "intermediate":
        name = f"step{record.steps:07d}-{name}"
    if (record.status == "diverged" or record.stopped) and record.tokens < record.schedule.horizon_tokens:
        name += f"-horizon{formatted_tokens(record.schedule.horizon_tokens)}"
    return shortened(name + recipe_suffix(record) + _decay_suffix(record), MAX_BRANCH_LENGTH)


def recipe_suffix(record: RunRecord) -> str:
    """The settings of a run that differ from the paper's recipe, e.g. `-lr0.004-wd0.2`; empty if none do.

    `-lr0.004`: the peak learning rate was set by hand instead of by a law (omitted if the sweep's name ends in it).
    `-lrscale2`: the law's peak learning rate times 2. Null fields count as the recipe's.
    """
    optimizer, law = record.optimizer, record.schedule.learning_rate_law
    moe, ours, balance = record.experts > 1, record.model_type is None, record.balance_loss_coefficient
    peak, muon = record.schedule.peak_learning_rate, optimizer.name == "muon"
    rate, scaled = f"lr{_number(peak)}", _SCALED.search(law)
    betas = (optimizer.beta1, optimizer.beta2)
    clip, factor = optimizer.gradient_clip_norm, record.capacity_factor
    departing = {
        rate: law == GIVEN_RATE and not record.sweep.endswith(f"-{rate}"),
        f"lrscale{scaled and scaled[1]}": scaled is not None and law != GIVEN_RATE,
        "muon": muon,
        f"muonlr{_number(optimizer.muon_learning_rate)}": muon and _departs(optimizer.muon_learning_rate, peak),
        f"momentum{_number(optimizer.muon_momentum)}": muon and _departs(optimizer.muon_momentum, 0.95),
        f"{optimizer.muon_adjust_lr}shape": muon and optimizer.muon_adjust_lr not in (None, "match_rms_adamw"),
        f"wd{_number(optimizer.weight_decay)}": _departs(optimizer.weight_decay, 0.1),
        f"wd{optimizer.weight_decay_on}": optimizer.weight_decay_on not in (None, "all"),
        "beta{}-{}".format(*map(_number, betas)): any(map(_departs, betas, (0.9, 0.999))),
        f"eps{_number(optimizer.epsilon)}": _departs(optimizer.epsilon, 1e-8),
        "noclip" if clip is None else f"clip{_number(clip)}": clip is None or _departs(clip, 0.1),
        "finalnorm": bool(record.final_norm),
        re.sub(r"[^A-Za-z0-9]+", "", f"{record.initialization}init"): record.initialization not in (None, "paper"),
        "dropless" if factor == 0 else f"cf{_number(factor)}": moe and ours and _departs(factor, 1.0),
        f"balance{_number(balance)}": moe
        and record.balance_bias_rate is None
        and _departs(balance, 0.01 if ours else 0.001),
        f"bias{_number(record.balance_bias_rate)}": record.balance_bias_rate is not None,
        f"z{_number(record.z_loss_coefficient)}": moe and ours and _departs(record.z_loss_coefficient, 0.001),
    }
    return "".join(f"-{part}" for part, departs in departing.items() if departs)


def _departs(value: float | None, usual: float) -> bool:
    return value is not None and not math.isclose(value, usual)


def _decay_suffix(record: RunRecord) -> str:
    """The decay's share of the horizon, unless it is a fifth but for whole steps; an intermediate model has none."""
    decay, horizon = record.schedule.decay_tokens, record.schedule.horizon_tokens
    sequences = max((stage.sequences for stage in record.schedule.batch_ramp), default=0)
    rounding = max(2 * sequences * record.sequence_length, 0.005 * horizon)
    if record.status == "intermediate" or not decay or abs(decay - 0.2 * horizon) <= rounding:
        return ""
    return f"-decay{_number(round(decay / horizon, 2))}"


def _number(value: float | None) -> str:
    """A number in characters that a branch name may have: 0.004, 1e-06, 1e20."""
    return "" if value is None else f"{value:g}".replace("+", "")


def shortened(name: str, length: int) -> str:
    """A name of at most so many characters: a longer one keeps its beginning, and a hash tells it from others."""
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return name if len(name) <= length else f"{name[: length - 9].rstrip('-._')}-{digest}"


def final_branch_name(tokens: int, seed: int | None) -> str:
    """The branch name of a final run of that many tokens, for a caller that has no record yet."""
    if seed is not None and seed < 0:
        raise RecordError(f"seed is {seed}, allowed in a branch name is a number of at least 0")
    return f"tokens{formatted_tokens(tokens)}{'' if seed is None else f'-seed{seed}'}"


def formatted_tokens(tokens: int) -> str:
    """A token count as in branch names: 2_000_000_000 -> "002.0B", 1_500_000 -> "001.5M", 12_288 -> "012.288K".

    In billions from 0.1B on, in millions from 0.1M on, with three digits before the point, so that names sort by size,
    and as many after it as keep the rounding below 0.1 %.
    """
    letter, size, _ = next(unit for unit in _UNITS if tokens >= unit[2])
    value = tokens / size
    decimals = 1
    while decimals < 9 and abs(round(value, decimals) - value) >= _MAX_RELATIVE_ROUNDING * value and tokens:
        decimals += 1
    return f"{value:0{4 + decimals}.{decimals}f}{letter}"
