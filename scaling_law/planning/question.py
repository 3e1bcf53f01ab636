"""The fields of a question to a law: their types, what they mean, and how a text of theirs is read.

Python takes them as keywords, which editors and type checkers see; the shell makes its options of them, and the
explorer, its API and its MCP server their fields. Each is declared here and nowhere else.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict, TypeVar, get_args, get_type_hints

from hub.base.units import (
    parse_batch,
    parse_bytes,
    parse_context,
    parse_experts,
    parse_flops,
    parse_hours,
    parse_parameters,
    parse_tokens,
)
from scaling_law.machine.throughput import Throughput
from scaling_law.size.recipe import BatchRamp, RampStage, parse_stages

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
Quantity = float | str  # a number, or text such as "1e22", "80GB", "16k"


class Field(NamedTuple):
    """What a field means, with an example or its default; `parse` reads a text of it, given the field's name.

    `form` names what is typed in the help of the shell, which shows `is_rare` fields below the others. The defaults of
    the fields of `Limits` are there; `default_meaning` says what a default does.
    """

    help: str
    parse: Callable[[str, str], Any] | None = None
    form: str = ""
    default: Any = None
    default_meaning: str = ""
    is_rare: bool = False


def parse_names(text: str, field: str = "names") -> tuple[str, ...]:
    """Read names between commas."""
    names = (word.strip() for word in text.split(","))
    return tuple(name for name in names if name)


def parse_run_batch(text: str, field: str = "batch") -> float | tuple[RampStage, ...]:
    """Read the tokens of a batch, "4M", or the stages of a ramp, "0:128,0.5B:256"."""
    if ":" in text:
        return parse_stages(text.split(","), field)
    return parse_batch(text, field)


class ModelFields(TypedDict, total=False):
    """Design and use of models: the fields of `Limits` that limit no size.

    None means the default; for the vocabulary, the law's.
    """

    kv_tokens: Annotated[
        Quantity | None,
        Field("Tokens in the KV cache: 16k is 16,384.", parse_context, "TOKENS", default_meaning="no cache"),
    ]
    inference_tokens: Annotated[
        Quantity | None,
        Field(
            "Tokens served over the model's life: 100B.",
            parse_tokens,
            "COUNT",
            default_meaning="none, all FLOPs are of training",
        ),
    ]
    bytes_per_parameter: Annotated[float | None, Field("2 for bf16, 1 for fp8, 0.5 for 4 bits.", is_rare=True)]
    bytes_per_kv: Annotated[float | None, Field("Bytes of a KV cache element.", is_rare=True)]
    kv_heads_ratio: Annotated[float | None, Field("KV heads / heads (grouped queries).", is_rare=True)]
    granularity: Annotated[float | None, Field("Experts of 1/G of the width, G times as many active.", is_rare=True)]
    shared_ratio: Annotated[float | None, Field("Fraction of the active width in shared experts.", is_rare=True)]
    unique_tokens: Annotated[
        Quantity | None,
        Field("Unique tokens; more are repetitions, worth less: 100B.", parse_tokens, "COUNT", is_rare=True),
    ]
    vocab_size: Annotated[
        int | None,
        Field("Vocabulary size. [default: of the law's runs; if unknown GPT-2's 50257]", is_rare=True),
    ]


class LimitFields(ModelFields, total=False):
    """The fields of `Limits`."""

    memory: Annotated[
        Quantity | None,
        Field("Memory for weights and KV cache: 80GB (decimal) or 80GiB.", parse_bytes, "BYTES"),
    ]
    max_parameters: Annotated[Quantity | None, Field("Limit on total parameters: 7B.", parse_parameters, "COUNT")]


GPU_FORMS = "GPU model: h100; or any, as peak=148T,memory=96GB (and bandwidth=4TB, link=450GB, node=8)."


class RunFields(TypedDict, total=False):
    """The sequences and batches of a run, on which its step times, its learning rate and its plan depend."""

    sequence_length: Annotated[
        Quantity | None,
        Field(
            "Tokens of a sequence: 4k is 4,096.",
            parse_context,
            "TOKENS",
            default_meaning="512; of models larger than the paper's 2.7B 4,096",
            is_rare=True,
        ),
    ]
    batch: Annotated[
        Quantity | Sequence[RampStage] | BatchRamp | None,
        Field(
            "Tokens of a batch: 4M; or sequences from so many tokens on: 0:128,0.5B:256.",
            parse_run_batch,
            "TOKENS",
            default_meaning="the paper's, 66K to 262K; above the FLOPs of its largest run by Step Law",
            is_rare=True,
        ),
    ]


class ClusterFields(TypedDict, total=False):
    """GPUs that train, `gpus` of the model `gpu`, each at `price` per hour.

    `throughput`: measured step times or their throughput.json; else they are estimated from the GPU's data sheet and
    `mfu`, or the rates of public runs in this `precision`. Layouts are those of `engine`: "train.py", or "megatron",
    which also has tensor, pipeline and context parallelism and a distributed optimizer.
    """

    gpus: Annotated[int | None, Field("GPUs that train together.")]
    gpu: Annotated[
        str | None,
        Field(f"{GPU_FORMS} Step times follow its data sheet and rates of public runs unless --throughput is given."),
    ]
    throughput: Annotated[
        Throughput | str | Path | None,
        Field(
            "throughput.json of `python -m training.throughput`: step times measured on such a GPU.",
            is_rare=True,
        ),
    ]
    mfu: Annotated[
        float | tuple[float, float] | None,
        Field("MFU to assume instead of the rates of public runs: 0.4.", is_rare=True),
    ]
    engine: Annotated[
        str | None,
        Field(
            "Whose layouts to search: train.py, or megatron, with tensor and pipeline parallelism. "
            "[default: train.py]",
            is_rare=True,
        ),
    ]
    precision: Annotated[str | None, Field("With --gpu: bf16, fp8 or fp4. [default: bf16]", is_rare=True)]
    price: Annotated[Quantity | None, Field("Price of a GPU-hour: 2.5.")]


class BudgetFields(ClusterFields, RunFields, total=False):
    """A budget besides its FLOPs: `hours` or `money` of training on a cluster."""

    hours: Annotated[
        Quantity | None,
        Field("Budget of wall-clock training time, instead of --flops: 72, 3w, 21d.", parse_hours, "TIME"),
    ]
    money: Annotated[Quantity | None, Field("Budget of training, in the currency of --price.")]


class QuestionFields(BudgetFields, LimitFields, total=False):
    """What a question for the best model takes as further keywords: the fields of its budget and of `Limits`."""


class NamedFields(TypedDict, total=False):
    """What the questions name as parameters of their own."""

    flops: Annotated[Quantity | None, Field("Compute budget of training (and inference): 1e22.", parse_flops, "COUNT")]
    experts: Annotated[
        Any,
        Field(
            "To compare: 1,2,4,8, or doublings: 1-32 is 1,2,4,8,16,32. [default: doublings within the law's runs]",
            parse_experts,
            "EXPERTS",
        ),
    ]
    decode_batch: Annotated[
        float | None, Field("Sequences served at once on a --gpu: adds the cost of a million tokens.", is_rare=True)
    ]
    integral: Annotated[
        bool | None,
        Field(
            "Only architectures with d_model a multiple of 64, or any width. "
            "[default: those that exist where GPUs are named]",
        ),
    ]
    force: Annotated[bool, Field("Answer even far outside the fitted range.", default=False, is_rare=True)]
    accuracy: Annotated[
        Any,
        Field("Tasks whose accuracy to expect at the loss: arc_easy,hellaswag.", parse_names, "NAMES", default=""),
    ]


_HINTS = get_type_hints(NamedFields, include_extras=True) | get_type_hints(QuestionFields, include_extras=True)
FIELD_TYPES: Mapping[str, Any] = {name: get_args(hint)[0] for name, hint in _HINTS.items()}
FIELDS: Mapping[str, Field] = {name: get_args(hint)[1] for name, hint in _HINTS.items()}


def parse_field(name: str, text: str) -> Any:
    """Read a text of a field. ValueError names the field, the text and what is allowed."""
    parse = FIELDS[name].parse
    return text if parse is None else parse(text, name)


def pick(kind: Any, fields: Mapping[str, Any]) -> Any:
    """Pick the fields of a question that belong to this TypedDict."""
    return {name: fields[name] for name in kind.__annotations__ if name in fields}


def lists_keywords(function: FunctionT) -> FunctionT:
    """Decorate a function whose last parameter unpacks fields: help() and `?` list each of them with its meaning.

    A type checker reads the fields from `Unpack[...]`; `inspect`, and what is made of it, sees only that they exist.
    So the signature gets a keyword for each field, with None for its default, and the docstring a line for each.
    """
    signature = inspect.signature(function)
    *parameters, unpacked = signature.parameters.values()
    kind = globals()[str(unpacked.annotation).removeprefix("Unpack[").removesuffix("]")]
    lines = ["Further keywords:"]
    for name in kind.__annotations__:
        parameter = inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=FIELD_TYPES[name],
        )
        parameters.append(parameter)
        lines.append(f"    {name}: {describe_field(FIELDS[name])}")
    documentation = inspect.cleandoc(function.__doc__ or "")
    function.__doc__ = "\n".join([documentation, "", *lines])
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return function


def describe_field(field: Field) -> str:
    """Say what a field means, with the names of other fields as Python has them."""
    text = re.sub("--([a-z-]+)", lambda match: match[1].replace("-", "_"), field.help)
    return f"{text} [default: {field.default_meaning}]" if field.default_meaning else text
