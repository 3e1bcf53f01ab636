"""What programs and assistants ask: the API's endpoints, which are also the MCP server's tools.

Their docstrings are what a caller reads.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic_core import to_jsonable_python

from hub.base.errors import InputError, given, unknown
from scaling_law.explorer.answer import best_models, plan_run
from scaling_law.explorer.question import FLOPS, HOURS, PUBLISHED, Question
from scaling_law.law import Law
from scaling_law.planning.question import FIELDS

Tool = Callable[..., dict[str, Any]]


def describe_arguments(names: Iterable[str]) -> str:
    """Write the arguments of a tool for its docstring: texts, of which an empty one sets nothing."""
    # The help of a field names other fields as options of the shell.
    meanings = {name: FIELDS[name].help.replace("--", "") for name in names if name in FIELDS}
    meanings["law"] = 'Name of the scaling law: "published".'
    return "\n\nArgs:\n" + "\n".join(f"    {name}: {meaning}" for name, meaning in meanings.items())


def pick_law(laws: Mapping[str, Law], name: str) -> Law:
    """Pick a law by its name. InputError lists the laws there are."""
    if name not in laws:
        raise InputError(unknown("law=", name[:100], laws))
    return laws[name]


def tools(laws: Mapping[str, Law]) -> list[Tool]:
    """Make the functions `optimal`, `plan` and `loss` on these laws."""

    def takes_fields(answer: Callable[[Question, Law], dict[str, Any]]) -> Tool:
        """Make a tool of the answer to a question: it takes the fields. ValueError unless it gets one budget."""

        def tool(
            flops: str = "",
            memory: str = "",
            kv_tokens: str = "0",
            inference_tokens: str = "0",
            experts: str = "",
            law: str = PUBLISHED,
            hours: str = "",
            gpus: str = "1",
            gpu: str = "h100",
            accuracy: str = "",
            sequence_length: str = "",
            batch: str = "",
        ) -> dict[str, Any]:
            if bool(flops) == bool(hours):
                raise InputError(given("flops", flops), ", ", given("hours", hours), ": give exactly one of them")
            question = Question(
                unit=HOURS if hours else FLOPS,
                flops=flops,
                hours=hours,
                gpus=gpus,
                gpu=gpu,
                memory=memory,
                kv_tokens=kv_tokens,
                inference_tokens=inference_tokens,
                experts=experts,
                accuracy=accuracy,
                sequence_length=sequence_length,
                batch=batch,
                law=law,
            )
            return plain(answer(question, pick_law(laws, law)))

        tool.__name__ = answer.__name__
        tool.__doc__ = f"{answer.__doc__}{describe_arguments(inspect.signature(tool).parameters)}\n"
        return tool

    @takes_fields
    def optimal(question: Question, law: Law) -> dict[str, Any]:
        """The best model for a training budget: how many experts, parameters and tokens, with the predicted loss."""
        return best_models(question, law).to_dict()

    @takes_fields
    def plan(question: Question, law: Law) -> dict[str, Any]:
        """A run to launch for a training budget: architecture, schedule, learning rate, cost, and its YAML."""
        run = plan_run(question, law)
        yaml = None if run.learning_rate is None else run.to_yaml()
        return {**run.to_dict(), "yaml": yaml, "command": question.command()}

    def loss(n_active: float, tokens: float, experts: float | None = None, law: str = PUBLISHED) -> dict[str, Any]:
        """The loss that a law predicts for a model, in nats per token, and how far it extrapolates.

        Args:
            n_active: active parameters with embedding and head: 1.1e9
            tokens: training tokens: 2e10
            experts: number of experts, 1 for a dense model; empty for the law's own
            law: name of the scaling law: "published"
        """
        formula = pick_law(laws, law)
        variables = {"n_active": n_active, "tokens": tokens}
        if experts is not None:
            variables["experts"] = experts
        answer = {
            "loss": float(formula.loss(**variables)),
            "trusted": bool(formula.check(**variables).trusted),
            "warnings": formula.warnings(**variables),
        }
        return plain({**variables, **answer})

    return [optimal, plan, loss]


def plain(value: dict[str, Any]) -> dict[str, Any]:
    """Turn values into plain JSON ones; what is not finite is None."""
    jsonable: dict[str, Any] = to_jsonable_python(value, inf_nan_mode="null", fallback=lambda array: array.tolist())
    return jsonable
