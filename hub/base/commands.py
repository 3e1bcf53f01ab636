"""Shared parts of all commands: the mapping from errors to exit statuses, `--version`, and common options.

0 is done, 1 failed work or a result not to be trusted, 2 bad input, 3 a failed machine (disk, memory, a damaged
file), 4 not all pushed, 129, 130 and 143 interrupted. An error of ours is one line on standard error; a bug keeps its
traceback.
"""

from __future__ import annotations

import ast
import os
import re
import signal
from collections.abc import Callable, Mapping
from copy import copy
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from hub.base.disk import describe_full_disk, find_full_disk
from hub.base.errors import Given, InputError, redact, unknown
from hub.base.output import guard_output

NOT_TRUSTED = FAILED = 1
BAD_INPUT, MACHINE_FAILED = 2, 3
# Of a path that a user named, unlike an OSError of a disk.
_WRONG_PATH = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError)


def status_of(error: BaseException) -> int | None:
    """The exit status of a command that ended with this error; None for a bug.

    An error class of ours names its status in an attribute `exit_status`. A wrong path is bad input, a network that
    cannot be reached is failed work, and any other OSError, like a MemoryError or torch's OutOfMemoryError, is the
    machine.
    """
    status = getattr(error, "exit_status", None)
    if isinstance(status, int):
        return status
    if isinstance(error, KeyboardInterrupt):
        return 128 + signal.SIGINT
    if isinstance(error, (ConnectionError, TimeoutError)):
        return FAILED
    if isinstance(error, _WRONG_PATH):
        return BAD_INPUT
    if isinstance(error, (OSError, MemoryError)) or type(error).__name__ == "OutOfMemoryError":
        return MACHINE_FAILED
    return None


def report(error: BaseException, said: str | None = None) -> int:
    """Print what went wrong, or what is `said` of it, on standard error without tokens, and return the exit status.

    A bug is raised again.
    """
    status = status_of(error)
    if status is None:
        raise error
    message = message_of(error, said)
    text = "interrupted" if isinstance(error, KeyboardInterrupt) else f"error: {message}"
    typer.secho(text, err=True, fg="red")
    return status


def message_of(error: BaseException, text: str | None = None) -> str:
    """Return what went wrong, or the `text` on it, without tokens; of a file that cannot be used, its path."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        is_full = find_full_disk(error) is not None
        # Of a copy, the second file is the one that was written.
        path = Path(os.fsdecode((is_full and error.filename2) or error.filename))
        reason = error.strerror
        if is_full:
            reason = f"{describe_full_disk(error, path)}; remove what you do not need there"
        text = f"{path}: {reason}"
    return redact((str(error) if text is None else text) or type(error).__name__)


def flag(command: Any, name: str) -> str:
    """The parameter `name` of a command as it is typed: --kv-tokens, or RUNS for an argument."""
    parameter = next(parameter for parameter in command.params if parameter.name == name)
    long = [text for text in parameter.opts if text.startswith("--")]
    return long[0] if long else parameter.metavar or name.upper()


def worded(error: BaseException, command: Any) -> str:
    """Word an error with its parameters as the options of a command: `mfu=0` is `--mfu 0`."""
    flags = {parameter.name: flag(command, parameter.name) for parameter in command.params}
    flags = {name.removesuffix("s"): text for name, text in flags.items()} | flags  # `law=` is one of --laws

    def word(part: Given) -> str:
        option = part.in_shell or flags.get(part.name)
        if option is None:
            return part
        if part.in_shell or part.value in (..., None, True):
            return option
        if isinstance(part.value, float) and part.value.is_integer():
            return f"{option} {part.value:g}"
        return f"{option} {part.partition('=')[2]}"

    return error.message.worded(word) if isinstance(error, InputError) else str(error)


class _PlainFlags:
    """The help of a command whose flags show no type, since none is typed."""

    def get_params(self, ctx: Any) -> list[Any]:
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
        return parameters


class _Command(_PlainFlags, typer.core.TyperCommand):
    """A command that ends with the exit status of its error, whose message names options as they are typed."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse words in which `~` is the home folder, also where a shell leaves it: `--output=~/law`, quotes."""
        words = [_with_home(word) for word in args]
        # Typer would take the last of the values and drop the others in silence.
        _, _, parameters = self.make_parser(ctx).parse_args([*words])
        for parameter in {*parameters}:
            is_plain_flag = getattr(parameter, "is_flag", False) and not parameter.secondary_opts
            has_one_value = not (is_plain_flag or getattr(parameter, "multiple", True))
            if has_one_value and parameters.count(parameter) > 1:
                ctx.fail(f"{flag(self, parameter.name)} is given more than once; it takes one value")
        return super().parse_args(ctx, words)

    def invoke(self, ctx: Any) -> Any:
        with guard_output("stderr"):
            try:
                return super().invoke(ctx)
            except (Exception, KeyboardInterrupt) as error:
                of_typer = type(error).__module__.startswith(("click", "typer"))
                if of_typer or isinstance(error, BrokenPipeError):
                    raise  # typer prints usage errors, and ends quietly where the reader of a pipe has gone
                raise typer.Exit(report(error, worded(error, self))) from None


def join_filters(filters: list[str]) -> str:
    """Join the filters of a repeated --where, all of which must hold."""
    return " and ".join(text for text in filters if text.strip())


def _with_home(word: str) -> str:
    option, is_option, value = word.partition("=~")
    if is_option and option.startswith("--"):
        return f"{option}={os.path.expanduser(f'~{value}')}"
    return os.path.expanduser(word)


class _Commands(_PlainFlags, typer.core.TyperGroup):
    """Commands that are imported when they are called; --help reads what they do from their source."""

    places: Mapping[str, tuple[str, str]] = {}  # name → its panel, and module:function

    def list_commands(self, ctx: Any) -> list[str]:
        return list(dict.fromkeys([*self.places, *super().list_commands(ctx)]))

    def get_command(self, ctx: Any, name: str) -> Any:
        if name in self.places and name not in self.commands:
            panel, place = self.places[name]
            module, _, function = place.partition(":")
            app = App(single=True)
            callback = getattr(import_module(module), function)
            # Commands of `scaling-law` are built on first use.
            if isinstance(callback, partial):
                callback = callback()
            app.command(name, rich_help_panel=panel)(callback)
            self.add_command(typer.main.get_command(app), name)
        return super().get_command(ctx, name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        group = copy(self)
        group.commands = {**self.commands}
        for name, (panel, place) in self.places.items():
            group.add_command(typer.core.TyperCommand(name, help=_docstring(place), rich_help_panel=panel))
        super(_Commands, group).format_help(ctx, formatter)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        names = self.list_commands(ctx)
        if args[0] not in names and not args[0].startswith("-"):
            ctx.fail(unknown("command ", args[0], names))
        return super().resolve_command(ctx, args)


def _docstring(place: str) -> str | None:
    """The docstring of module:function, without importing the module."""
    module, _, function = place.partition(":")
    tree = ast.parse(Path(str(find_spec(module).origin)).read_bytes())  # type: ignore[union-attr]
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function)
    return ast.get_docstring(next(functions))


def version() -> str:
    """The version of the installed package, or of the source tree."""
    from importlib import metadata

    try:
        return metadata.version("joint-moe-scaling-laws")
    except metadata.PackageNotFoundError:
        return "unknown (not installed)"


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"joint-moe-scaling-laws {version()}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)]


class App(typer.Typer):
    """A command line whose commands end as `status_of` says; with `--version` and `-h`.

    A `single` command without subcommands declares `version: Version = False` itself. `places` are commands that are
    imported when they are called: panel of the help → name → module:function.
    """

    def __init__(
        self, *, single: bool = False, places: Mapping[str, Mapping[str, str]] | None = None, **options: Any
    ) -> None:
        settings: dict[str, Any] = {
            "add_completion": False,
            "no_args_is_help": not single,
            "pretty_exceptions_enable": False,
            "rich_markup_mode": "markdown",
            "context_settings": {"help_option_names": ["-h", "--help"]},
        }
        if not single:
            named = {name: (panel, place) for panel, own in (places or {}).items() for name, place in own.items()}
            settings["cls"] = type("Commands", (_Commands,), {"places": named})
        super().__init__(**(settings | options))
        if not single:
            self.callback()(_root)

    def command(  # type: ignore[override]
        self, *args: Any, **options: Any
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Register a command as typer does, with the exit statuses of `status_of`."""
        return super().command(*args, **{"cls": _Command} | options)


def _root(version: Version = False) -> None:
    pass


def parser(parse: Callable[[str], Any], name: str) -> Callable[[str], Any]:
    """A parser for `typer.Option`: a text that cannot be read is a usage error that names the option."""

    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise typer.BadParameter(re.sub(r"^\w+=", "", str(error))) from None  # typer names the option

    parsed.__name__ = name
    return parsed


Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Store = Annotated[str, typer.Argument(metavar="STORE", help="A folder, or hf://ORGANISATION.")]
Private = Annotated[bool, typer.Option("--private", help="Create private repositories.")]
License = Annotated[
    str | None, typer.Option(help="Licence of the release, e.g. apache-2.0. [default: the licence on each run's card]")
]
Tag = Annotated[str, typer.Option(help="Tag the index with this name on the Hub, e.g. v1.")]
Collection = Annotated[bool, typer.Option("--collection", help="Put the repositories into a collection.")]
Workers = Annotated[int, typer.Option(min=1, help="How many run at the same time.")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit.")]
