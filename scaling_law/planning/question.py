"""The fields of a question to a law: their types, what they mean, and how a text of theirs is read.

Python takes them as keywords, which editors and type checkers see; the shell makes its options of them, and the
explorer, its API and its MCP server their fields. Each is declared here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypedDict

import numpy as np
from numpy.typing import ArrayLike
from pydantic import WithJsonSchema

from hub.base import units
from hub.base.errors import InputError, given
from hub.base.fields import Field, Names, NotNegative, Parser, Positive, field, quantity
from hub.base.units import (
    parse_batch,
    parse_context,
    parse_count,
    parse_flops,
    parse_hours,
    parse_parameters,
    parse_tokens,
)
from scaling_law.formulas.law import one_positive, positive
from scaling_law.machine.efficiency import Engine
from scaling_law.machine.gpus import parse_memory
from scaling_law.machine.throughput import Throughput
from scaling_law.rates.law import LearningRateLaw
from scaling_law.size.arrays import FloatArray, Interval
from scaling_law.size.family import Family
from scaling_law.size.recipe import BatchRamp, RampStage, parse_stages


def several(parse: Callable[[Any, str], float]) -> Callable[[Any, str], list[float]]:
    """Make a parser of one value, of several, or of text with commas between them."""

    @wraps(parse)
    def parse_all(values: Any, field: str) -> list[float]:
        words = values.split(",") if isinstance(values, str) else values
        return [parse(word, field) for word in (words if isinstance(words, Iterable) else [words])]

    return parse_all


# A number, or text such as "1e22", "80GB", "16k".
Flops = Annotated[Positive | str, quantity(parse_flops)]
Hours = Annotated[Positive | str, quantity(parse_hours)]
Memory = Annotated[Positive | str, quantity(parse_memory)]
Tokens = Annotated[Positive | str, quantity(parse_tokens)]
Context = Annotated[Positive | str, quantity(parse_context)]
Parameters = Annotated[Positive | str, quantity(parse_parameters)]
Count = Annotated[Positive | str, quantity(parse_count)]
# They may be none.
ServedTokens = Annotated[NotNegative | str, quantity(parse_tokens)]
CachedTokens = Annotated[NotNegative | str, quantity(parse_context)]
ExpertCounts = Annotated[Any, Parser(units.parse_experts)]
SeveralSizes = Annotated[Any, Parser(several(parse_parameters))]
Counts = Annotated[Any, Parser(several(parse_count))]
SeveralTokens = Annotated[Any, Parser(several(parse_tokens))]

# More tokens in a sequence than any model reads.
LONGEST_SEQUENCE = 10**9


def parse_length(value: Any, field: str = "sequence_length") -> int:
    """Read the tokens of a sequence: a whole number, or text such as "4k"."""
    length = parse_context(value, field) if isinstance(value, str) else value
    is_number = isinstance(length, (int, float)) and not isinstance(length, bool)
    if not is_number or not 1 <= length <= LONGEST_SEQUENCE or not float(length).is_integer():
        advice = f"must be a whole number from 1 to {LONGEST_SEQUENCE:,}, or text such as 4k"
        raise InputError(given(field, value), f" {advice}")
    return int(length)


def parse_batches(batch: Any, field: str = "batch") -> float | tuple[RampStage, ...] | BatchRamp:
    """Read the tokens of a batch, "4M", or the stages of a ramp, "0:128,0.5B:256"."""
    if isinstance(batch, BatchRamp):
        return batch
    if isinstance(batch, str):
        batch = parse_stages(batch.split(","), field) if ":" in batch else parse_batch(batch, field)
    if not isinstance(batch, Sequence):
        return one_positive(field, batch)
    if not all(isinstance(stage, RampStage) for stage in batch):
        raise InputError(given(field, batch), " must be tokens, such as 4M, or stages such as 0:128,0.5B:256")
    return tuple(batch)


def parse_run_tokens(tokens: Any, field: str = "tokens") -> Any:
    """Read the tokens of a run. InputError also for a number without its unit, such as 36."""
    is_positive = isinstance(tokens, (int, float)) and tokens > 0
    return parse_tokens(tokens, field) if is_positive or isinstance(tokens, str) else tokens


def parse_experts(experts: Any, field: str = "experts") -> FloatArray:
    """Read one E or several: numbers, or text such as "1,2,4-8"."""
    return positive(field, experts, 1.0)


def parse_family(like: Any, field: str = "like") -> Family:
    """Read the family of released models: a name or path, several with commas or in a list, or configurations."""
    try:
        return Family.read(like)
    except FileNotFoundError as error:
        raise InputError(given(field, like), f": {error}") from None


Length = Annotated[float | str, Parser(parse_length)]
OF_FAMILY = "Family of the models: qwen3-30b-a3b, org/model, a folder or a config.json. Experts are its routed ones."
Like = Annotated[Any, WithJsonSchema({"type": "string"}), Parser(parse_family)]
Batch = Annotated[float | str | Sequence[RampStage] | BatchRamp, Parser(parse_batches)]
RunTokens = Annotated[Positive | str, Parser(parse_run_tokens)]
# One E or several, as an array.
Experts = Annotated[ArrayLike, WithJsonSchema({"type": ["number", "string", "array"]}), Parser(parse_experts)]
# More would be shorter than a step.
Branches = Annotated[int, Field(ge=1, le=20), field("Measurements from one trunk: the full run, half, a quarter, …")]


class ModelFields(TypedDict, total=False):
    """Design and use of models: the fields of `Limits` that limit no size. None means the default."""

    kv_tokens: Annotated[CachedTokens | None, field("Tokens in the KV cache: 16k is 16,384. [default: no cache]")]
    inference_tokens: Annotated[
        ServedTokens | None,
        field("Tokens served over the model's life: 100B. [default: none, all FLOPs are of training]"),
    ]
    bytes_per_parameter: Annotated[
        float | None, Field(gt=0), field("2 for bf16, 1 for fp8, 0.5 for 4 bits.", rare=True)
    ]
    bytes_per_kv: Annotated[float | None, Field(gt=0), field("Bytes of a KV cache element.", rare=True)]
    kv_heads_ratio: Annotated[float | None, Field(gt=0, le=1), field("KV heads / heads (grouped queries).", rare=True)]
    granularity: Annotated[
        float | None, Field(gt=0), field("Experts of 1/G of the width, G times as many active.", rare=True)
    ]
    shared_ratio: Annotated[
        float | None, Field(ge=0, lt=1), field("Fraction of the active width in shared experts.", rare=True)
    ]
    like: Annotated[
        Like | None,
        field(
            "Family whose shape the models have: qwen3-30b-a3b, org/model, a folder or a config.json, several with "
            "commas. Experts are then its routed ones. [default: the paper's shape]",
        ),
    ]
    unique_tokens: Annotated[
        Tokens | None, field("Unique tokens: 100B. Tokens beyond them are repeated, and worth less.", rare=True)
    ]
    vocab_size: Annotated[
        int | None,
        Field(ge=1),
        field("Vocabulary size. [default: of the law's runs; if unknown GPT-2's 50257]", rare=True),
    ]


class SizeFields(TypedDict, total=False):
    """The fields of `Limits` that limit a size."""

    memory: Annotated[
        Memory | None,
        field("Memory for weights and KV cache: 80GB (decimal), 80GiB, or 0.9 of GPUs that serve: rtx4090, 2xh100."),
    ]
    max_parameters: Annotated[Parameters | None, field("Limit on total parameters: 7B.")]


class LimitFields(SizeFields, ModelFields, total=False):
    """The fields of `Limits`."""


GPU_FORMS = "GPU model: h100; or any, as peak=148T,memory=96GB (and bandwidth=4TB, link=450GB, node=8)."


class RunFields(TypedDict, total=False):
    """The sequences and batches of a run, on which its step times, its learning rate and its plan depend."""

    sequence_length: Annotated[
        Length | None,
        field(
            "Tokens of a sequence: 4k is 4,096. [default: 512; of models larger than the paper's 2.7B 4,096]",
            rare=True,
        ),
    ]
    batch: Annotated[
        Batch | None,
        field(
            "Tokens of a batch: 4M; or sequences from so many tokens on: 0:128,0.5B:256. [default: the paper's, 66K "
            "to 262K; above the FLOPs of its largest run by Step Law]",
            rare=True,
        ),
    ]


Mfu = Annotated[
    float | Interval | None,
    field("MFU to assume instead of the rates of public runs: 0.4.", rare=True),
]
EngineName = Annotated[
    Engine | None,
    field(
        "Whose layouts to search: train.py, or megatron, with tensor and pipeline parallelism. [default: train.py]",
        rare=True,
    ),
]
Precision = Annotated[str | None, field("With --gpu: bf16, fp8 or fp4. [default: bf16]", rare=True)]
Level = Annotated[float, Field(gt=0, lt=1), field("Level of the intervals.")]
Price = Annotated[Count | None, field("Price of a GPU-hour: 2.5.")]


class ClusterFields(TypedDict, total=False):
    """GPUs that train, `gpus` of the model `gpu`, each at `price` per hour.

    `throughput`: measured step times or their throughput.json; else they are estimated from the GPU's data sheet and
    `mfu`, or the rates of public runs in this `precision`. Layouts are those of `engine`: "train.py", or "megatron",
    which also has tensor, pipeline and context parallelism and a distributed optimizer.
    """

    gpus: Annotated[int | None, Field(ge=1, le=10**7), field("GPUs that train together.")]
    gpu: Annotated[
        str | None,
        field(f"{GPU_FORMS} Step times follow its data sheet and rates of public runs unless --throughput is given."),
    ]
    throughput: Annotated[
        Throughput | str | Path | None,
        field("throughput.json of `python -m training.throughput`: step times measured on such a GPU.", rare=True),
    ]
    mfu: Mfu
    engine: EngineName
    precision: Precision
    price: Price


class TimeFields(TypedDict, total=False):
    """Budgets of training on a cluster."""

    hours: Annotated[Hours | None, field("Budget of wall-clock training time, instead of --flops: 72, 3w, 21d.")]
    money: Annotated[Count | None, field("Budget of training, in the currency of --price.")]


class BudgetFields(TimeFields, ClusterFields, RunFields, total=False):
    """A budget besides its FLOPs: `hours` or `money` of training on a cluster."""


class QuestionFields(BudgetFields, LimitFields, total=False):
    """Further keywords of a question for the best model: the fields of its budget and of `Limits`."""


def parse_budget(flops: Any, field: str = "flops") -> Any:
    """Read FLOPs. InputError says where several budgets can be asked for."""
    if isinstance(flops, str):
        return parse_flops(flops, field)
    if np.ndim(flops):
        advice = "optimal takes one budget; ask once for each, or compute_optimal for all"
        raise InputError(given(field, flops), f": {advice}")
    return flops


# What the questions name as parameters of their own.
BudgetFlops = Annotated[
    Annotated[Positive | str, Parser(parse_budget)] | None,
    field("Compute budget of training (and inference): 1e22."),
]
SeveralExperts = Annotated[
    Experts | None,
    field(
        "To compare: 1,2,4,8, or doublings: 1-32 is 1,2,4,8,16,32. [default: doublings within the law's runs]",
    ),
]
DecodeBatch = Annotated[
    float | None,
    Field(gt=0),
    field("Sequences served at once on a --gpu: adds the cost of a million tokens.", rare=True),
]
Integral = Annotated[
    bool | None,
    field(
        "Only architectures with d_model a multiple of 64, or any width. "
        "[default: those that exist where GPUs are named]",
    ),
]
RATES = "public:ludziejewski (grids of labs, at the paper's level; public: any lab's), code (as the paper's runs), "
RATES += "paper (as its text says), or a fitted law's file."
RateLaw = Annotated[LearningRateLaw | str | None, field(f"{RATES} [default: public:ludziejewski]", rare=True)]
Force = Annotated[bool, field("Answer even far outside the fitted range.", rare=True)]
Accuracy = Annotated[Names, field("Tasks whose accuracy to expect at the loss: arc_easy,hellaswag.", rare=True)]


def pick(kind: Any, fields: Mapping[str, Any]) -> Any:
    """Pick the fields of a question that belong to this TypedDict."""
    return {name: fields[name] for name in kind.__annotations__ if name in fields}


def refuse(fields: Mapping[str, Any], names: Iterable[str], *reason: Any) -> None:
    """Raise InputError for the first of these fields of a question that is given; `reason` follows its value."""
    for name in names:
        value = fields.get(name)
        if value is not None:
            raise InputError(given(name, value), *reason)
