"""What the commands of `scaling-law` have in common: their options, what goes with what, and how they answer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, get_origin

import typer
from pydantic.fields import FieldInfo

from hub.base.commands import NOT_TRUSTED, Json, flag
from hub.base.errors import InputError
from hub.base.fields import SWITCH, Reader, arguments_of, form_of
from hub.base.tables import Tables, join_words, show
from hub.base.types import Fields, Strings
from scaling_law.formulas.law import one_positive
from scaling_law.law.modules import read_law
from scaling_law.law_files import FILE_NAME
from scaling_law.size.architecture import HEAD_DIM
from scaling_law.size.family import Family
from scaling_law.size.ladder import PaperLadder


def option(help: str, *names: str, rare: bool = False, **settings: Any) -> Any:
    """An option; a `rare` one stands below the others in the help of its command."""
    return typer.Option(*names, help=help, rich_help_panel="Advanced" if rare else None, **settings)


rare = partial(option, rare=True)


def named(read: Callable[[str], Any], form: str) -> Callable[[str], tuple[str, Any]]:
    """A parser of "name=value", where `read` reads the value; a text of another `form` is refused."""

    def parse(text: str) -> tuple[str, Any]:
        name, _, value = (part.strip() for part in text.partition("="))
        try:
            if name and value:
                return name, read(value)
        except ValueError:
            pass
        raise typer.BadParameter(f"{text!r} is not of the form {form}")

    return parse


def by_name(pairs: list[tuple[str, Any]], flag: str) -> Fields:
    """Return the values of a repeated option by their names. InputError for a name with two values."""
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        repeated_name = max(names, key=names.count)
        raise InputError(f"{flag} {repeated_name}=… is given more than once; each name takes one value")
    return values


LAWS = "published (Ludziejewski et al. 2025), printed (its rounded table), "
LAWS += "a name that `scaling-law compare` lists, a folder or file of a law, or a Hub repo."
Overwrite = Annotated[bool, rare("Overwrite the file given by -o.", "--overwrite")]
Verbose = Annotated[bool, rare("Print all columns, and every warning in full.", "--verbose", "-v")]


def field_option(field: inspect.Parameter) -> inspect.Parameter:
    """Make the option of a field: a text that is read as its type says, or a flag."""
    info = FieldInfo.from_annotation(field.annotation)
    extra: Any = info.json_schema_extra or {}
    settings: Fields = {"help": info.description, "rich_help_panel": extra.get("panel")}
    flag = f"--{field.name.replace('_', '-')}"
    form = form_of(field.annotation)
    if form == SWITCH:
        flags = flag if field.default is False else f"{flag}/--no-{flag[2:]}"
        return field.replace(annotation=Annotated[bool | None, typer.Option(flags, **settings)])
    # Its meaning says what another default is.
    is_shown = field.default is field.empty or isinstance(field.default, (str, int, float))
    settings["show_default"] = "[default: " not in (info.description or "")
    annotation = Annotated[str | None, typer.Option(flag, metavar=form, **settings)]
    return field.replace(annotation=annotation, default=field.default if is_shown else None)


class Mode(NamedTuple):
    """Options that only go with an option of the command, and those that never do."""

    only: Strings = ()
    never: Strings = ()


class Printed(NamedTuple):
    """An answer, and what a command prints besides: further keys of its JSON, and lines and tables below its own.

    `trusted` decides the exit status; None for an answer that is, or was forced.
    """

    answer: Any
    more_json: Mapping[str, Any] = MappingProxyType({})
    lines: Sequence[str] = ()
    trusted: bool | None = None
    tables: Sequence[Any] = ()


def command(
    order: str = "",
    *questions: Callable[..., Any],
    modes: Mapping[str, Mode] | None = None,
    without: Strings = (),
) -> Callable[..., Any]:
    """Turn a function into a command, built on first use, with the options named in this `order`, and --json.

    An option is an `Annotated` parameter of the function, or an argument of the last of the `questions` that has it;
    without an order all of them are shown, but for those `without`, and --law. The function takes them all, for a
    shared --law the law itself, and `as_json` if it names it. Without --overwrite, -o must not name a file that
    exists. The answer that the function returns is printed; one that is not to be trusted sets the exit status, unless
    it was forced.
    """

    def made(function: Callable[..., Any]) -> Callable[..., None]:
        declared = inspect.signature(function, eval_str=True).parameters
        own_options = {name: p for name, p in declared.items() if get_origin(p.annotation) is Annotated}

        def run(
            ctx: typer.Context,
            law: Annotated[str, option(LAWS)] = "published",
            overwrite: Overwrite = False,
            verbose: Verbose = False,
            as_json: Json = False,
            **values: Any,
        ) -> None:
            if modes:
                check_modes(ctx, modes)
            for name, (reader, default) in readers.items():
                value = values[name]
                values[name] = default if value is None else reader(name, value)
            output = values.get("output")
            if output and not overwrite:
                for file in filter(Path.is_file, (output, output / FILE_NAME)):
                    raise InputError(f"-o {file}: the file exists; --overwrite replaces it")
            if "law" in own_options:
                values["law"] = law
            elif "law" in declared:
                values["law"] = read_law(law, declared["law"].annotation)
            if "as_json" in declared:
                values["as_json"] = as_json
            result = function(**values)
            if result is None:
                return
            answer, more_json, lines, trusted, tables = result if isinstance(result, Printed) else Printed(result)
            all_tables = Tables([answer.summary(), *tables]).for_shell(verbose)
            show({**answer.to_dict(), **more_json} if as_json else None, as_json, all_tables)
            if lines and not as_json:
                typer.echo("\n".join(lines))
            if trusted is None:
                trusted = answer.trusted or values.get("force", False)
            if not trusted:
                raise typer.Exit(NOT_TRUSTED)

        offered = {}
        for question in questions:
            offered.update(arguments_of(question))
        names = order.split()
        if not names:
            names = [name for name in {**own_options, **offered} if name not in ("law", *without)]
            names += ["law"] if "law" in declared else []
        if "output" in names:
            names.insert(names.index("output") + 1, "overwrite")
        names += ["verbose"] if "verbose" not in without else []
        offered.update(arguments_of(run))
        offered.update(own_options)
        readers = {}
        parameters = []
        for name in ["ctx", *names, "as_json"]:
            parameter = offered[name]
            if any(isinstance(metadata, FieldInfo) for metadata in getattr(parameter.annotation, "__metadata__", ())):
                readers[name] = (Reader(parameter.annotation, reads_text=True), parameter.default)
                parameter = field_option(parameter)
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        run.__name__, run.__doc__ = function.__name__, function.__doc__
        return run

    # Built on first use, so that running one command does not build the others in its module.
    return lambda function: partial(made, function)


def check_modes(context: typer.Context, modes: Mapping[str, Mode]) -> None:
    """ValueError for an option that would be ignored, because the one that it goes with was not typed.

    Options are named as parameters of the command's function.
    """
    sources = {name: context.get_parameter_source(name) for name in context.params}
    typed = {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
    for mode, (only, never) in modes.items():
        wrong = [name for name in (never if mode in typed else only) if name in typed]
        if wrong:
            flags = join_words([flag(context.command, name) for name in wrong])
            verbs = ("does not go", "do not go") if mode in typed else ("goes only", "go only")
            raise InputError(f"{flags} {verbs[len(wrong) > 1]} with {flag(context.command, mode)}")


def find_nearest_width(d_model: float, family: Family | None = None) -> int:
    """Return the width of a real model next to a `d_model` of `optimal`; stderr says so where they differ."""
    ladder = family or PaperLadder()
    width = ladder.nearest(one_positive("d_model", d_model))
    if width != d_model:
        reason = f"a width of {family}" if family else f"a multiple of {HEAD_DIM}"
        typer.secho(f"d_model {d_model:g} is not {reason}: using {width}", err=True, fg="yellow")
    return width
