"""The reference of all options, written from the commands themselves.

python -m tests.option_reference  writes docs/reference/options.md again
"""

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import typer

from tests.guides import DOCS

PAGE = DOCS / "reference" / "options.md"
PROGRAMS = {
    "scaling-law": "scaling_law.commands.cli",
    "python -m hub": "hub.__main__",
    "python -m training.sweep": "training.sweep.__main__",
    "python -m training.prepare": "training.prepare",
    "python -m training.presets": "training.presets",
    "python -m training.throughput": "training.throughput",
}
INTRODUCTION = """# Options

<!-- Written by `make reference` from the commands; a test holds it current. -->

Every option of every command, as `--help` has them. A command's arguments stand first, rare options last. All take
`--help`; the options of `accelerate launch train.py` are the fields of its [configuration](../training.md).
"""


def commands() -> Iterator[tuple[str, Any]]:
    """Yield each command with the words that call it."""
    for program, module in PROGRAMS.items():
        application = typer.main.get_command(importlib.import_module(module).app)
        if not hasattr(application, "list_commands"):
            yield program, application
            continue
        for name in application.list_commands(None):
            yield f"{program} {name}", application.get_command(None, name)


KINDS = {"<str>": "TEXT", "<path>": "PATH", "<int>": "N", "<int range>": "N", "<float>": "X", "<float range>": "X"}


def row_of(parameter: Any, context: typer.Context) -> tuple[str, str, str]:
    """Return what to type, what it means, and its default."""
    name, text = parameter.get_help_record(context) or (parameter.metavar, parameter.help)
    flags = [flag for flag in name.split(", ") if not re.fullmatch("-[a-z]", flag)]
    name = " ".join(flags)
    if not name.startswith("-"):
        name = (parameter.metavar or parameter.name).upper()
    for kind, shown in KINDS.items():
        name = name.replace(kind, shown)
    text, _, default = " ".join(text.split()).partition("[default: ")
    default = default.partition("]")[0].partition("; x>=")[0].removeprefix("(").removesuffix(")")
    if "[required]" in text:
        default = "required"
    return f"`{name}`", text.replace("[required]", "").strip(), default


def section(words: str, command: Any) -> str:
    """Write the heading of a command, its first sentence and its options."""
    parameters = [parameter for parameter in command.params if parameter.name not in ("help", "version")]
    parameters.sort(key=lambda parameter: getattr(parameter, "rich_help_panel", None) == "Advanced")
    summary = inspect.cleandoc(command.help or "").partition("\n\n")[0]
    lines = [f"## {words}", "", " ".join(summary.split()), "", "| option | meaning | default |", "|---|---|---|"]
    context = typer.Context(command)
    for parameter in parameters:
        name, *texts = [cell.replace("|", "\\|") for cell in row_of(parameter, context)]
        # The name is code, in which nothing is HTML.
        cells = [name, *(text.replace("<", "&lt;") for text in texts)]
        lines.append(f"| {' | '.join(cells)} |".replace("|  |", "| |"))
    return "\n".join([*lines, ""])


def render() -> str:
    """Write the page."""
    return "\n".join([INTRODUCTION, *(section(words, command) for words, command in commands())])


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
