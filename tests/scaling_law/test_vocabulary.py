"""A thing has one name: in Python, in the shell, in the explorer, in its API and MCP tools, and in JSON."""

import inspect
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest
import typer

import scaling_law
from scaling_law import JointLaw, Law, Limits
from scaling_law.commands.cli import app
from scaling_law.explorer.programs import tools
from scaling_law.explorer.question import Question
from scaling_law.planning.question import QuestionFields
from tests.scaling_law.test_answers import ANSWERS

LAW = JointLaw.published().replace(draws=None)
SYNONYMS = {  # the name → others that say the same thing
    "memory": "max_memory_bytes max_memory memory_limit memory_budget vram",
    "kv_tokens": "kv_cache_tokens cache_tokens cached_tokens context_tokens",
    "gpu": "gpu_kind gpu_type gpu_name accelerator hardware",
    "gpus": "n_gpus num_gpus gpu_count world_size",
    "gpu_tflops": "gpu_flops peak_flops",
    "flops": "budget_flops flop_budget max_flops",
    "hours": "wall_hours time_hours time_budget",
    "money": "dollars cost budget_money",
    "price": "gpu_price price_per_hour",
    "max_parameters": "max_params parameter_limit max_total",
    "inference_tokens": "served_tokens tokens_served",
    "unique_tokens": "dataset_tokens unique_data",
    "experts": "n_experts num_experts expert_count",
    "granularity": "fineness",
    "shared_ratio": "shared_fraction shared_share",
    "vocab_size": "vocab vocabulary vocabulary_size",
    "accuracy": "accuracies tasks scores benchmarks downstream",
    "final": "final_loss reduction reduce",
    "limits": "constraints",
    "kind": "law_kind law_type",
    "law": "law_name",
}
SAME = {other: name for name, others in SYNONYMS.items() for other in others.split()}
SHELL: Any = typer.main.get_command(app)
COMMANDS = {name: SHELL.get_command(None, name) for name in SHELL.list_commands(None)}


def parameters(function: Any) -> set[str]:
    """Its own, and those of a question where it takes these."""
    names = {p.name for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD}
    takes = "QuestionFields" in str(inspect.signature(function))
    return names | ({*QuestionFields.__annotations__} if takes else set())


def keys(value: Any) -> Iterator[str]:
    """Of plain JSON values, all the way down, but for those that are data: names of coefficients and of E."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield str(name)
            yield from keys(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from keys(inner)


def in_json() -> set[str]:
    return {name for ask in ANSWERS.values() for name in keys(ask().to_dict())}


def in_python() -> set[str]:
    public = [getattr(scaling_law, name) for name in scaling_law.__all__]
    functions = [value for value in public if inspect.isfunction(value)]
    methods = [method for name, method in inspect.getmembers(Law, inspect.isfunction) if not name.startswith("_")]
    return {name for function in (*functions, *methods) for name in parameters(function)}


SURFACES = {
    "the shell": lambda: {param.name for command in COMMANDS.values() for param in command.params},
    "the explorer": lambda: {own.name for own in fields(Question)},
    "its tools": lambda: {name for tool in tools({"published": LAW}) for name in parameters(tool)},
    "Python": in_python,
    "JSON": in_json,
}


@pytest.mark.parametrize("surface", SURFACES)
def test_nothing_has_a_second_name(surface):
    names = SURFACES[surface]()
    assert len(names) > 8
    assert {name: SAME[name] for name in names if name in SAME} == {}


@pytest.mark.parametrize("question", ["optimal", "plan", "reach"])
def test_what_a_command_takes_python_takes_under_the_same_name(question):
    of_the_shell = {"law", "as_json", "verbose", "sweep", "output", "overwrite", "why"}
    words = {param.name for param in COMMANDS[question].params} - of_the_shell
    assert words - parameters(getattr(Law, question)) == set()


def test_the_fields_of_limits_are_those_of_a_question():
    assert {own.name for own in fields(Limits)} < {*QuestionFields.__annotations__}
    assert {own.name for own in fields(Question)} - {"unit", "view", "law"} <= parameters(Law.optimal)
