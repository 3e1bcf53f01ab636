"""What programs and assistants ask: the API's endpoints, which are also the MCP server's tools.

Their docstrings are what a caller reads. Every argument is a text, and an empty one sets nothing. A tool answers what
the command of its name prints with `--json`.
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

from pydantic_core import to_jsonable_python

from hub.base.errors import InputError, given, unknown
from hub.base.fields import Reader, arguments_of, field, meaning_of
from hub.base.types import Fields, Strings
from scaling_law.explorer.question import FITTED, LAW_FILE, PUBLISHED, RELEASED
from scaling_law.fitting.fitting import fit as fit_runs
from scaling_law.forecasting.diagnose import diagnose as diagnose_run
from scaling_law.law import Law
from scaling_law.law.describe import describe as describe_model
from scaling_law.planning.question import Count, Experts, LimitFields, Parameters, SeveralSizes, Tokens
from scaling_law.planning.speedup import ALLOWED_LIMITS
from scaling_law.runs.loading import load_runs

# Characters of a field, so that a list of numbers takes seconds at most.
LONGEST = 1000


def optimal(law: Law, **question: Any) -> Fields:
    """Find the best model for a training budget: how many experts, parameters and tokens, with the predicted loss."""
    return law.optimal(**question, integral=True).to_dict()


def plan(law: Law, **question: Any) -> Fields:
    """Plan a run to launch for a training budget: architecture, schedule, learning rate, cost, and its YAML."""
    run = law.plan(**question)
    answer = run.to_dict()
    answer["yaml"] = None
    if run.learning_rate is not None:
        answer["yaml"] = run.to_yaml()
    return answer


def loss(
    law: Law,
    n_active: Annotated[Parameters, field("Active parameters with embedding and head: 1.1B.")],
    tokens: Annotated[Tokens, field("Training tokens: 20B.")],
    experts: Annotated[
        Count | None, field("Number of experts, 1 for a dense model: 8. [default: the law's own]")
    ] = None,
) -> Fields:
    """Predict the loss of a model, in nats per token, and say how far that extrapolates."""
    variables: Fields = {"n_active": n_active, "tokens": tokens}
    if experts is not None:
        variables["experts"] = experts
    return {
        **variables,
        "loss": float(law.loss(**variables)),
        "trusted": bool(law.check(**variables).trusted),
        "warnings": law.warnings(**variables),
    }


def reach(law: Law, **question: Any) -> Fields:
    """Find the cheapest training budget that reaches a loss; or, given a budget, the least memory that does."""
    return law.reach(**question).to_dict()


def speedup(
    law: Law,
    experts: Annotated[
        Experts | None, field("E of the model, 8; with n_active several: 2,8. [default: 8; or the law's own]")
    ] = None,
    n_active: Annotated[
        SeveralSizes | None,
        field("Instead of flops, for the crossover tokens: active parameters, 1.1B or 1e8,1e9."),
    ] = None,
    **question: Any,
) -> Fields:
    """Say what experts are worth: the factor in compute that they save, or the tokens after which they pay off."""
    return law.speedup(experts, n_active=n_active, **question).to_dict()


def describe(
    law: Law, model: Annotated[str, field("org/model on the Hub, a folder, or a config.json.")], **question: Any
) -> Fields:
    """Describe a model in the terms of a law (parameters, effective E, FLOPs, memory), from its config.json."""
    return describe_model(model, law=law, **question).to_dict()


def fit(
    law: Law,
    runs: Annotated[
        str, field("Table of runs: runs.csv, a .jsonl or .parquet file, a folder, or org/name on the Hub.")
    ],
    kind: Annotated[str, field("joint, chinchilla, routed, …, or a law's file. [default: joint]")] = "joint",
    prior: Annotated[
        Any, field("What runs leave open is as in other labs' laws (public), or as in a law: published.")
    ] = None,
    where: Annotated[str | None, field("A filter on the columns: E in {1, 8}.")] = None,
) -> Fields:
    """Fit a law to a table of runs, and say how far it misses them and what they determine."""
    return fit_runs(load_runs(runs, where=where), kind, prior=prior).to_dict()


def diagnose(
    law: Law, model: Annotated[str, field("org/model on the Hub, a folder, or a config.json.")], **question: Any
) -> Fields:
    """Say whether a run is as fast as public runs lead to expect: normal, low with usual causes, or cannot say."""
    return diagnose_run(model, **question).to_dict()


class Tool(NamedTuple):
    """A tool: its answer, and the question whose arguments it takes besides, but for those that do not go with it.

    One that `reads_files` reads files and repositories of whoever runs the server.
    """

    answer: Callable[..., Fields]
    asks: Callable[..., Any] | None = None
    without: Strings = ()
    reads_files: bool = False


_NO_SPEEDUP = (
    "model",
    "tokens",
    "between",
    *(name for name in LimitFields.__annotations__ if name not in ALLOWED_LIMITS),
)
TOOLS = (
    Tool(optimal, Law.optimal, ("integral",)),
    Tool(plan, Law.plan),
    Tool(loss),
    Tool(reach, Law.reach, ("max_parameters",)),
    Tool(speedup, Law.speedup, _NO_SPEEDUP),
    Tool(describe, describe_model, ("source",), reads_files=True),
    Tool(fit, reads_files=True),
    Tool(diagnose, diagnose_run, ("law", "peers"), reads_files=True),
)
# Arguments of Python and the shell alone.
_NOT_OFFERED = ("law", "throughput", "force", "learning_rate", "learning_rate_law", "revision")


def pick_law(laws: Mapping[str, Law], name: str) -> Law:
    """Pick a law by its name. InputError lists the laws there are."""
    if name not in laws:
        raise InputError(unknown("law=", name[:100], laws))
    return laws[name]


def tools(laws: Mapping[str, Law], reads_files: bool = True) -> list[Callable[..., Fields]]:
    """Make the tools on these laws; those that read files and the Hub only if asked for."""
    return [_make(laws, tool, reads_files) for tool in TOOLS if reads_files or not tool.reads_files]


def _make(laws: Mapping[str, Law], tool: Tool, reads_files: bool) -> Callable[..., Fields]:
    """Make a tool a function: it takes texts, and the name of a law."""
    fields = arguments_of(tool.answer)
    if tool.asks is not None:
        fields = arguments_of(tool.asks) | fields
    types = {}
    required = []
    for name, argument in fields.items():
        if name in (*_NOT_OFFERED, *tool.without):
            continue
        types[name] = argument.annotation
        if argument.default is argument.empty:
            required.append(name)
    if "like" in types and not reads_files:
        types["like"] = RELEASED
    types["law"] = Annotated[str, field('Name of the scaling law: "published".')]

    readers = {name: Reader(kind, reads_text=True) for name, kind in types.items()}

    def ask(*arguments: Any, **keywords: Any) -> Fields:
        texts = {}
        for name, value in signature.bind(*arguments, **keywords).arguments.items():
            # Programs may send numbers, too.
            text = "" if value is None else str(value).strip()
            if len(text) > LONGEST:
                raise InputError(f"{name}={text[:20]!r}… has {len(text):,} characters; at most {LONGEST:,} are read")
            if text:
                texts[name] = text
        law_name = texts.pop("law", PUBLISHED)
        law = pick_law(laws, law_name)
        question = {}
        for name, text in texts.items():
            question[name] = readers[name](name, text)
        for name in required:
            if name not in question:
                raise InputError(given(name), " is needed")
        if question.get("prior", "public") != "public":
            question["prior"] = pick_law(laws, question["prior"])
        result = tool.answer(law, **question)
        if tool.answer is plan:
            result["command"] = plan_command(texts, law_name)
        return plain(result)

    parameters = []
    lines = [str(tool.answer.__doc__), "", "Args:"]
    for name in sorted(types, key=lambda name: name not in required):
        default = inspect.Parameter.empty if name in required else ""
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters.append(inspect.Parameter(name, kind, default=default, annotation=str))
        lines.append(f"    {name}: {meaning_of(types[name])}")
    signature = inspect.Signature(parameters, return_annotation=dict)
    ask.__signature__ = signature  # type: ignore[attr-defined]
    ask.__annotations__ = {**dict.fromkeys(types, str), "return": dict}
    ask.__name__ = tool.answer.__name__
    ask.__doc__ = "\n".join([*lines, ""])
    return ask


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
