"""Shared parts of all commands: the mapping from errors to exit statuses, `--version`, and common options.

0 is done, 1 failed work or a result not to be trusted, 2 bad input, 3 a failed machine (disk, memory, a damaged
file), 4 not all pushed, 130 and 143 interrupted. An error of ours is one line on standard error; a bug keeps its
traceback.
"""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable
from typing import Annotated, Any

import typer
import typer.core

from hub.plain import units
from hub.plain.errors import redacted

NOT_TRUSTED = FAILED = 1
BAD_INPUT, MACHINE_FAILED = 2, 3
_PACKAGES = ("hub", "scaling_law", "training", "modeling_switch_moe", "benchmarks", "__main__")
# Of a path that a user named, unlike an OSError of a disk.
_WRONG_PATH = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError)


def status_of(error: BaseException) -> int | None:
    """The exit status of a command that ended with this error; None for a bug.

    An error class of ours may name its status in an attribute `exit_status`. Without one, a ValueError that our own
    code raises is bad input, and one from inside a library is a bug; a wrong path is bad input, a network that cannot
    be reached is failed work, and any other OSError, as a MemoryError or an OutOfMemoryError of torch, is the machine.
    """
    named = getattr(error, "exit_status", None)
    if isinstance(named, int):
        return named
    if isinstance(error, KeyboardInterrupt):
        return 128 + signal.SIGINT
    if isinstance(error, (ConnectionError, TimeoutError)):
        return FAILED
    if isinstance(error, _WRONG_PATH):
        return BAD_INPUT
    if isinstance(error, (OSError, MemoryError)) or type(error).__name__ == "OutOfMemoryError":
        return MACHINE_FAILED
    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    raised_here = bool(modules) and modules[-1].partition(".")[0] in _PACKAGES
    return BAD_INPUT if isinstance(error, ValueError) and raised_here else None


def report(error: BaseException) -> int:
    """Print what went wrong on standard error, without tokens, and return the exit status. A bug is raised again."""
    status = status_of(error)
    if status is None:
        raise error
    text = "interrupted" if isinstance(error, KeyboardInterrupt) else f"error: {str(error) or type(error).__name__}"
    typer.secho(redacted(text), err=True, fg="red")
    return status


class _Command(typer.core.TyperCommand):
    """A command that ends with the exit status of its error."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (Exception, KeyboardInterrupt) as error:
            of_typer = type(error).__module__.startswith(("click", "typer"))
            if of_typer or isinstance(error, BrokenPipeError):
                raise  # typer prints usage errors, and ends quietly where the reader of a pipe has gone
            raise typer.Exit(report(error)) from None


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

    A `single` command without subcommands declares `version: Version = False` itself.
    """

    def __init__(self, *, single: bool = False, **options: Any) -> None:
        settings: dict[str, Any] = {
            "add_completion": False,
            "no_args_is_help": not single,
            "pretty_exceptions_enable": False,
            "rich_markup_mode": "markdown",
            "context_settings": {"help_option_names": ["-h", "--help"]},
        }
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


def _parser(parse: Callable[[str], Any], name: str) -> Callable[[str], Any]:
    """A parser for `typer.Option`: a quantity that cannot be read is a usage error that names the option."""

    def parser(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    parser.__name__ = name
    return parser


COUNT = _parser(units.parse_count, "count")
COUNTS = _parser(units.parse_counts, "counts")
BYTES = _parser(units.parse_bytes, "bytes")
CONTEXT = _parser(units.parse_context, "tokens")
EXPERTS = _parser(units.parse_experts, "experts")

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
