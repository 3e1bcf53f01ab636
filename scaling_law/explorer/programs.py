"""What programs and assistants ask: the API's endpoints, which are also the MCP server's tools.

Their docstrings are what a caller reads. Every argument is a text, and an empty one sets nothing. A tool answers what
the command of its name prints with `--json`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple

from pydantic_core import to_jsonable_python

from hub.base.errors import InputError, given, unknown
from hub.base.fields import Parser, Reader, arguments_of, field, meaning_of
from hub.base.types import Fields, Strings
from scaling_law.explorer.question import PUBLISHED, RELEASED, check_released, write_command
from scaling_law.fitting.fitting import fit as fit_runs
from scaling_law.forecasting.diagnose import diagnose as diagnose_run
from scaling_law.forecasting.running import live as forecast_runs
from scaling_law.law import Law
from scaling_law.law.describe import describe as describe_model
from scaling_law.planning.question import Count, Experts, Parameters, SeveralSizes, Tokens
from scaling_law.planning.speedup import REFUSED_LIMITS
from scaling_law.runs.loading import load_runs, read_histories
from scaling_law.runs.run_logs import TRAINER_STATE

# Characters of a field, so that a list of numbers takes seconds at most; of the text of a log, and its runs and cells.
LONGEST = 1000
LONGEST_LOG = 2_000_000
MOST_RUNS = 50
MOST_CELLS = 1_000_000
Model = Annotated[str, field("A released model such as qwen3-30b-a3b, org/model, a folder or a config.json.")]
LOG_TEXT = "a table with a header, JSON lines, or trainer_state.json"


def optimal(law: Law, **question: Any) -> Any:
    """Find the best model for a training budget: how many experts, parameters and tokens, with the predicted loss."""
    return law.optimal(**question, integral=True)


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


def reach(law: Law, **question: Any) -> Any:
    """Find the cheapest training budget that reaches a loss; or, given a budget, the least memory that does."""
    return law.reach(**question)


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
) -> Any:
    """Say what experts are worth: the factor in compute that they save, or the tokens after which they pay off."""
    return law.speedup(experts, n_active=n_active, **question)


def describe(law: Law, model: Model, **question: Any) -> Any:
    """Describe a model in the terms of a law (parameters, effective E, FLOPs, memory), from its config.json."""
    return describe_model(model, law=law, **question)


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
) -> Any:
    """Fit a law to a table of runs, and say how far it misses them and what they determine."""
    return fit_runs(load_runs(runs, where=where), kind, prior=prior)


def diagnose(law: Law, model: Model, **question: Any) -> Any:
    """Say whether a run is as fast as public runs lead to expect: normal, low with usual causes, or cannot say."""
    return diagnose_run(model, law=law, **question)


def live(
    law: Law, log: Annotated[str, field(f"The text of the log ({LOG_TEXT}), or its path.")], **question: Any
) -> Any:
    """Forecast the final loss of a run while it trains, and say whether it is off its track."""
    if not _is_text(log):
        return forecast_runs(log, law=law, **question)
    if _count_cells(log) > MOST_CELLS:
        raise InputError(f"log has more than {MOST_CELLS:,} cells (lines × columns); leave out lines or columns")
    with TemporaryDirectory() as folder:
        # The run has the name of the folder or of the file.
        path = Path(folder, "log", "log.csv")
        if log.startswith(_JSON):
            path = path.with_name(TRAINER_STATE if '"log_history"' in log else "log.json")
        path.parent.mkdir()
        path.write_text(log, encoding="utf-8", errors="replace")
        try:
            n_runs = len(read_histories(path))
            if n_runs > MOST_RUNS:
                raise InputError(f"{path}: {n_runs:,} runs; at most {MOST_RUNS} are read from the text of a log")
            return forecast_runs(path, law=law, **question)
        except ValueError as error:
            raise InputError(str(error).replace(f"{path.parent}/", "")) from None


# What the text of a log in JSON begins with.
_JSON = ("{", "[")


def _is_text(log: str) -> bool:
    """Return whether this is the text of a log, not its path."""
    return "\n" in log or log.startswith(_JSON)


def _count_cells(log: str) -> int:
    """Count the cells of the table that a log fills, or some more: short texts may have many lines and columns."""
    if log.startswith(_JSON):
        return log.count("{") * len({*re.findall(r'"([^"]*)"\s*:', log)})
    lines = log.splitlines()
    return len(lines) * max(len(re.findall("[,;\t|]", line)) + 1 for line in lines)


def parse_log(log: str, field: str = "log") -> str:
    """Read the text of a log. InputError for anything else, such as its path."""
    if not _is_text(log):
        raise InputError(given(field, log[:100]), f" must be the text of a log: {LOG_TEXT}")
    return log


class Tool(NamedTuple):
    """A tool: its answer, and the question whose arguments it takes besides, but for those that do not go with it.

    One that `reads_files` reads files and repositories of whoever runs the server.
    """

    answer: Callable[..., Any]
    asks: Callable[..., Any] | None = None
    without: Strings = ()
    reads_files: bool = False


LAW_NAME = Annotated[str, field('Name of the scaling law: "published".')]
_NO_SPEEDUP = (
    "model",
    "tokens",
    "between",
    *REFUSED_LIMITS,
)
DIAGNOSE = Tool(diagnose, diagnose_run)
LIVE = Tool(live, forecast_runs, ("source",))
TOOLS = (
    Tool(optimal, Law.optimal, ("integral",)),
    Tool(plan, Law.plan),
    Tool(loss),
    Tool(reach, Law.reach, ("max_parameters",)),
    Tool(speedup, Law.speedup, _NO_SPEEDUP),
    Tool(describe, describe_model, ("source",)),
    Tool(fit, reads_files=True),
    DIAGNOSE,
    LIVE,
)
# Arguments of Python and the shell alone.
_NOT_OFFERED = ("law", "throughput", "force", "learning_rate", "learning_rate_law", "revision")
# What a server for others takes where its own reads files and repositories; None is not offered.
FOR_OTHERS = {
    "like": RELEASED,
    "model": Annotated[str, field("A released model such as qwen3-30b-a3b."), Parser(check_released)],
    "log": Annotated[str, field(f"The text of the log: {LOG_TEXT}."), Parser(parse_log)],
    "peers": None,
}


def pick_law(laws: Mapping[str, Law], name: str) -> Law:
    """Pick a law by its name. InputError lists the laws there are."""
    if name not in laws:
        raise InputError(unknown("law=", name[:100], laws))
    return laws[name]


def tools(laws: Mapping[str, Law], reads_files: bool = True) -> list[Callable[..., Fields]]:
    """Make the tools on these laws; what reads files and the Hub only if asked for."""
    return [_make(Form(laws, tool, reads_files)) for tool in TOOLS if reads_files or not tool.reads_files]


@dataclass(frozen=True)
class Form:
    """The fields of a tool on these laws, and the answers to their texts."""

    laws: Mapping[str, Law]
    tool: Tool
    reads_files: bool = True

    @cached_property
    def arguments(self) -> Mapping[str, inspect.Parameter]:
        """The arguments with their types: those that are needed, the others, and the name of a law."""
        arguments = arguments_of(self.tool.answer)
        if self.tool.asks is not None:
            arguments = arguments_of(self.tool.asks) | arguments
        offered = []
        for name, argument in arguments.items():
            kind = argument.annotation
            if not self.reads_files:
                kind = FOR_OTHERS.get(name, kind)
            if kind is not None and name not in (*_NOT_OFFERED, *self.tool.without):
                offered.append(argument.replace(annotation=kind))
        offered.sort(key=_has_default)
        law = inspect.Parameter("law", inspect.Parameter.KEYWORD_ONLY, default=PUBLISHED, annotation=LAW_NAME)
        return {argument.name: argument for argument in (*offered, law)}

    @cached_property
    def readers(self) -> Mapping[str, Reader]:
        return {name: Reader(argument.annotation, reads_text=True) for name, argument in self.arguments.items()}

    def read(self, values: Mapping[str, Any]) -> dict[str, str]:
        """Read values as texts, without the empty ones. InputError for one that is too long."""
        texts = {}
        for name, value in values.items():
            # Programs may send numbers, too.
            text = "" if value is None else str(value).strip()
            longest = LONGEST_LOG if name == "log" else LONGEST
            if len(text) > longest:
                raise InputError(f"{name}={text[:20]!r}… has {len(text):,} characters; at most {longest:,} are read")
            if text:
                texts[name] = text
        return texts

    def answer(self, texts: Mapping[str, str]) -> Any:
        """Answer the texts of some fields. InputError for a field that is missing, or cannot be read."""
        question = {name: self.readers[name](name, text) for name, text in texts.items()}
        law = pick_law(self.laws, question.pop("law", PUBLISHED))
        for name, argument in self.arguments.items():
            if name not in question and not _has_default(argument):
                raise InputError(given(name), " is needed")
        if question.get("prior", "public") != "public":
            question["prior"] = pick_law(self.laws, question["prior"])
        return self.tool.answer(law, **question)


def _has_default(argument: inspect.Parameter) -> bool:
    return argument.default is not argument.empty


def _make(form: Form) -> Callable[..., Fields]:
    """Make a function of a form: it takes texts, and the name of a law."""
    answer = form.tool.answer

    def ask(*arguments: Any, **keywords: Any) -> Fields:
        texts = form.read(signature.bind(*arguments, **keywords).arguments)
        result = form.answer(texts)
        if not isinstance(result, dict):
            result = result.to_dict()
        if answer is plan:
            law = texts.pop("law", PUBLISHED)
            result["command"] = write_command("plan", texts, law, "-o run.yaml")
        return plain(result)

    parameters = []
    lines = [str(answer.__doc__), "", "Args:"]
    for name, argument in form.arguments.items():
        default = "" if _has_default(argument) else argument.empty
        kind = argument.POSITIONAL_OR_KEYWORD
        parameters.append(argument.replace(default=default, kind=kind, annotation=str))
        lines.append(f"    {name}: {meaning_of(argument.annotation)}")
    signature = inspect.Signature(parameters, return_annotation=dict)
    ask.__signature__ = signature  # type: ignore[attr-defined]
    ask.__annotations__ = {**dict.fromkeys(form.arguments, str), "return": dict}
    ask.__name__ = answer.__name__
    ask.__doc__ = "\n".join([*lines, ""])
    return ask


def plain(value: Fields) -> Fields:
    """Turn values into plain JSON ones; what is not finite is None."""
    jsonable: Fields = to_jsonable_python(value, inf_nan_mode="null", fallback=lambda array: array.tolist())
    return jsonable
