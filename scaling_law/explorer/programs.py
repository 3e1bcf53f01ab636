"""What programs and assistants ask: the API's endpoints, which are also the MCP server's tools.

Their docstrings are what a caller reads. Every argument is a text, and an empty one sets nothing. A tool answers what
the command of its name prints with `--json`.
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Mapping
from typing import Any, get_args

from pydantic_core import to_jsonable_python

from hub.base.errors import InputError, given, unknown
from hub.base.types import Fields
from hub.base.units import parse_context, parse_count, parse_counts, parse_parameters, parse_tokens
from scaling_law.explorer.question import FITTED, LAW_FILE, PUBLISHED
from scaling_law.fitting.fitting import fit as fit_runs
from scaling_law.law import Law
from scaling_law.law.describe import describe as describe_model
from scaling_law.planning.question import FIELD_TYPES, FIELDS, Field, describe_field
from scaling_law.planning.speedup import MATCH_MEANING
from scaling_law.runs.loading import load_runs

Tool = Callable[..., Fields]

CLUSTER = "gpus gpu mfu engine precision price sequence_length batch"
MODELS = "memory max_parameters kv_tokens inference_tokens experts bytes_per_parameter bytes_per_kv kv_heads_ratio"
DESIGN = "granularity shared_ratio unique_tokens vocab_size"
BUDGET = f"flops hours money {CLUSTER} {MODELS} {DESIGN}"


def _parse_sizes(text: str, field: str) -> list[float]:
    """Read parameters between commas."""
    return [parse_parameters(word, field) for word in text.split(",")]


# Arguments that are no fields of a question, or mean something else in a tool.
LAW = Field('Name of the scaling law: "published".')
ONE_E = Field("Number of experts, 1 for a dense model: 8.", parse_count, default_meaning="the law's own")
ARGUMENTS = {
    "loss": {
        "n_active": Field(
            "Active parameters with embedding and head: 1.1B.",
            parse_parameters,
        ),
        "tokens": Field("Training tokens: 20B.", parse_tokens),
        "experts": ONE_E,
    },
    "reach": {
        "loss": Field("The loss to reach, nats per token: 2.2.", parse_count),
        "flops": FIELDS["flops"]._replace(help="With a budget: the least memory that reaches the loss within it."),
    },
    "speedup": {
        "experts": Field(
            "E of the model, 8; with n_active several: 2,8.",
            parse_counts,
            default_meaning="8; with n_active the law's own",
        ),
        "baseline": Field(
            "E of the baseline, which must reach its loss.",
            parse_count,
            default_meaning="1",
        ),
        "match": Field(MATCH_MEANING, default_meaning="flops"),
        "n_active": Field(
            "Instead of flops, for the crossover tokens: active parameters, 1.1B or 1e8,1e9.",
            _parse_sizes,
        ),
    },
    "plan": {
        "branches": Field(
            "Measurements from one trunk: the full run, half, a quarter, …",
            parse_count,
        ),
    },
    "describe": {
        "model": Field("org/model on the Hub, a folder, or a config.json."),
        "tokens": Field(
            "Training tokens, for the loss that the law predicts: 15T.",
            parse_tokens,
        ),
        "context": Field(
            "Length of a sequence, for attention and the KV cache: 4k.",
            parse_context,
        ),
    },
    "fit": {
        "runs": Field("Table of runs: runs.csv, a .jsonl or .parquet file, a folder, or org/name on the Hub."),
        "kind": Field("joint, chinchilla, routed, …, or a law's file.", default_meaning="joint"),
        "prior": Field("What runs leave open is as in other labs' laws (public), or as in a law: published."),
        "where": Field("A filter on the columns: E in {1, 8}."),
    },
}


def optimal(law: Law, **question: Any) -> Fields:
    """Find the best model for a training budget: how many experts, parameters and tokens, with the predicted loss."""
    return law.optimal(**question, integral=True).to_dict()


def plan(law: Law, branches: float = 1, **question: Any) -> Fields:
    """Plan a run to launch for a training budget: architecture, schedule, learning rate, cost, and its YAML."""
    run = law.plan(branches=_whole(branches), **question)
    answer = run.to_dict()
    answer["yaml"] = None
    if run.learning_rate is not None:
        answer["yaml"] = run.to_yaml()
    return answer


def loss(law: Law, **variables: float) -> Fields:
    """Predict the loss of a model, in nats per token, and say how far that extrapolates."""
    return {
        **variables,
        "loss": float(law.loss(**variables)),
        "trusted": bool(law.check(**variables).trusted),
        "warnings": law.warnings(**variables),
    }


def reach(law: Law, **question: Any) -> Fields:
    """Find the cheapest training budget that reaches a loss; or, given a budget, the least memory that does."""
    return law.reach(question.pop("loss"), **question).to_dict()


def speedup(law: Law, **question: Any) -> Fields:
    """Say what experts are worth: the factor in compute that they save, or the tokens after which they pay off."""
    return law.speedup(question.pop("experts", None), question.pop("baseline", 1.0), **question).to_dict()


def describe(law: Law, **question: Any) -> Fields:
    """Describe a model in the terms of a law (parameters, effective E, FLOPs, memory), from its config.json."""
    return describe_model(question.pop("model"), law=law, **question).to_dict()


def fit(
    law: Law,
    runs: str,
    kind: str = "joint",
    prior: Any = None,
    where: str | None = None,
) -> Fields:
    """Fit a law to a table of runs, and say how far it misses them and what they determine."""
    table = load_runs(runs, where=where)
    result = fit_runs(table, kind, prior=prior)
    return result.to_dict()


# Each tool with the fields that it takes; the first are required where it has no answer without them.
TOOLS: Mapping[Callable[..., Fields], str] = {
    optimal: f"{BUDGET} accuracy decode_batch",
    plan: f"{BUDGET} branches",
    loss: "n_active tokens experts",
    reach: f"loss {BUDGET.replace(' max_parameters', '')}",
    speedup: f"flops experts baseline match n_active {CLUSTER} {DESIGN}",
    describe: "model tokens context kv_tokens bytes_per_parameter bytes_per_kv",
    fit: "runs kind prior where",
}
NEEDED = {
    loss: ("n_active", "tokens"),
    reach: ("loss",),
    describe: ("model",),
    fit: ("runs",),
}
# They read files and repositories of whoever runs the server.
LOCAL = (describe, fit)


def pick_law(laws: Mapping[str, Law], name: str) -> Law:
    """Pick a law by its name. InputError lists the laws there are."""
    if name not in laws:
        raise InputError(unknown("law=", name[:100], laws))
    return laws[name]


def tools(laws: Mapping[str, Law], reads_files: bool = True) -> list[Tool]:
    """Make the tools on these laws; those that read files and the Hub only if asked for."""
    offered = []
    for answer in TOOLS:
        if reads_files or answer not in LOCAL:
            offered.append(_make(laws, answer))
    return offered


def _make(laws: Mapping[str, Law], answer: Callable[..., Fields]) -> Tool:
    """Make a tool of a function: it takes texts, and the name of a law."""
    fields = fields_of(answer)
    required = NEEDED.get(answer, ())

    def tool(*arguments: Any, **named: Any) -> Fields:
        texts = {}
        for name, value in signature.bind(*arguments, **named).arguments.items():
            # Programs may send numbers, too.
            text = "" if value is None else str(value).strip()
            if text:
                texts[name] = text
        law_name = texts.pop("law", PUBLISHED)
        law = pick_law(laws, law_name)
        question = {}
        for name, text in texts.items():
            question[name] = _read(name, fields[name], text)
        for name in required:
            if name not in question:
                raise InputError(given(name), " is needed")
        if question.get("prior", "public") != "public":
            question["prior"] = pick_law(laws, question["prior"])
        result = answer(law, **question)
        if answer is plan:
            result["command"] = plan_command(texts, law_name)
        return plain(result)

    parameters = []
    for name in fields:
        parameter = inspect.Parameter(
            name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=inspect.Parameter.empty if name in required else "",
            annotation=str,
        )
        parameters.append(parameter)
    signature = inspect.Signature(parameters, return_annotation=dict)
    tool.__signature__ = signature  # type: ignore[attr-defined]
    tool.__annotations__ = {**dict.fromkeys(fields, str), "return": dict}
    tool.__name__ = answer.__name__
    lines = [f"    {name}: {describe_field(field)}" for name, field in fields.items()]
    tool.__doc__ = "\n".join([str(answer.__doc__), "", "Args:", *lines, ""])
    return tool


def fields_of(answer: Callable[..., Fields]) -> dict[str, Field]:
    """List the fields that a tool takes, those that are required first, and the law."""
    arguments = ARGUMENTS.get(answer.__name__, {})
    fields = {}
    for name in TOOLS[answer].split():
        fields[name] = arguments[name] if name in arguments else FIELDS[name]
    fields["law"] = LAW
    return fields


def _read(name: str, field: Field, text: str) -> Any:
    """Read the text of a field. InputError names the field, the text and what is allowed."""
    if field.parse is not None:
        return field.parse(text, name)
    kind = FIELD_TYPES.get(name, str)
    kinds = get_args(kind) or (kind,)
    if str in kinds:
        return text
    number = parse_count(text, name)
    if int in kinds:
        return _whole(number)
    return number


def _whole(number: float) -> Any:
    """Return a whole number as an integer; any other is refused where it is used."""
    return int(number) if float(number).is_integer() else number


def plan_command(texts: Mapping[str, str], law: str) -> str:
    """Write a plan for the shell, with the file of a law that is not the published one."""
    words = ["scaling-law plan"]
    for name, text in texts.items():
        if text != "0":
            words.append(f"--{name.replace('_', '-')} {shlex.quote(text)}")
    if law != PUBLISHED:
        words.append(f"--law {shlex.quote(LAW_FILE if law == FITTED else law)}")
    return " ".join([*words, "-o run.yaml"])


def plain(value: Fields) -> Fields:
    """Turn values into plain JSON ones; what is not finite is None."""
    jsonable: Fields = to_jsonable_python(value, inf_nan_mode="null", fallback=lambda array: array.tolist())
    return jsonable
