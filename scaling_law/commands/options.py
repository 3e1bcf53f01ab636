"""What the commands of `scaling-law` have in common: their options, what goes with what, and how they answer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_origin, get_type_hints

import typer

from hub.base.commands import NOT_TRUSTED, Json, flag, parser
from hub.base.errors import InputError
from hub.base.tables import join_words, show
from hub.base.types import Fields, Strings
from scaling_law.formulas.law import one_positive
from scaling_law.law.modules import read_law
from scaling_law.law_files import FILE_NAME
from scaling_law.planning.limits import Limits
from scaling_law.planning.question import FIELD_TYPES, FIELDS, parse_field, parse_names
from scaling_law.rates.law import DEFAULT_LAW
from scaling_law.size.architecture import HEAD_DIM


def option(help: str, *names: str, rare: bool = False, **settings: Any) -> Any:
    """An option; a `rare` one stands below the others in the help of its command."""
    return typer.Option(*names, help=help, rich_help_panel="Advanced" if rare else None, **settings)


def quantity(
    parser: Any, help: str, *names: str, metavar: str | None = None, default: bool | str = True, rare: bool = False
) -> Any:
    """An option whose text `parser` reads (FLOPS, BYTES, …); a usage error names the option.

    `default` says in words what the default value means.
    """
    metavar = metavar or parser.__name__.upper()
    return option(help, *names, rare=rare, parser=parser, metavar=metavar, show_default=default)


rare = partial(option, rare=True)
names = parser(parse_names, "names")


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
RATES = "public:ludziejewski (grids of labs, at the paper's level; public: any lab's), code (as the paper's runs), "
RATES += "paper (as its text says), or a fitted law's file."


class Shared:
    """Options of several commands that are no fields of a question."""

    law: Annotated[str, option(LAWS)] = "published"
    overwrite: Annotated[bool, option("Overwrite the file given by -o.", "--overwrite")] = False
    learning_rate_law: Annotated[str, rare(RATES)] = DEFAULT_LAW
    verbose: Annotated[bool, rare("Print every warning in full.", "--verbose", "-v")] = False
    as_json: Json = False


# Fields of a question whose values have several types: the one that is typed in a shell.
_TYPED = {"throughput": Path | None, "mfu": float | None, "money": float | None, "price": float | None}


def field_option(name: str) -> inspect.Parameter:
    """Make the option of a field of a question, with the default that it has in Python."""
    field = FIELDS[name]
    # Without a vocabulary a question takes that of its law; `Limits`, which may have no law, takes GPT-2's.
    default = None if name == "vocab_size" else getattr(Limits, name, field.default)
    if field.parse is None:
        flags = [f"--{name}"] if FIELD_TYPES[name] is bool else []
        if FIELD_TYPES[name] == bool | None:
            flags = [f"--{name}/--no-{name}"]
        kind = _TYPED.get(name, FIELD_TYPES[name])
        settings = option(field.help, *flags, rare=field.is_rare)
    else:
        kind = Any
        settings = quantity(
            parser(partial(parse_field, name), field.form.lower()),
            field.help,
            default=field.default_meaning or True,
            rare=field.is_rare,
        )
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, settings]
    )


class Mode(NamedTuple):
    """What a command does when one of its options is typed: options that only go with it, and that never do."""

    only: Strings = ()
    never: Strings = ()


def command(shown: str, options: type = Shared, modes: Mapping[str, Mode] | None = None) -> Callable[..., Any]:
    """Make a command of a function, with the options `shown` in this order, and --json.

    An option that is no `Annotated` parameter of the function is one of `options`, or a field of a question. The
    function takes all of them, for a shared --law the law itself; `as_json` only if it names it. Without --overwrite,
    -o must not name a file that exists. The answer that the function returns, alone or with further keys of its JSON,
    is printed; one that is not to be trusted sets the exit status, unless it was forced.
    """
    hints, keyword = get_type_hints(options, include_extras=True), inspect.Parameter.KEYWORD_ONLY

    def made(function: Callable[..., Any]) -> Callable[..., None]:
        declared = inspect.signature(function, eval_str=True).parameters
        ordered = [*shown.split(), "verbose", "as_json"]
        # A function that prints by itself takes the options of printing that it has a use for.
        if "as_json" in declared and "verbose" not in declared:
            ordered.remove("verbose")
        described = {name: p for name, p in declared.items() if get_origin(p.annotation) is Annotated}
        for name in {*ordered} - {*described}:
            if name in hints:
                default = getattr(options, name, inspect.Parameter.empty)
                described[name] = inspect.Parameter(name, keyword, default=default, annotation=hints[name])
            else:
                described[name] = field_option(name)

        def run(ctx: typer.Context, **values: Any) -> None:
            check_modes(ctx, modes or {})
            as_json = values["as_json"] if "as_json" in declared else values.pop("as_json")
            verbose = values.get("verbose", False)
            if "verbose" not in declared:
                values.pop("verbose", None)
            if not values.pop("overwrite", True) and (output := values["output"]):
                for file in filter(Path.is_file, (output, output / FILE_NAME)):
                    raise InputError(f"-o {file}: the file exists; --overwrite replaces it")
            if described.get("law") is not declared.get("law"):
                values["law"] = read_law(values["law"], declared["law"].annotation)
            if (result := function(**values)) is not None:
                answer, more = result if isinstance(result, tuple) else (result, {})
                table = answer.summary().for_shell(verbose)
                show(answer.to_dict() | more if as_json else None, as_json, table)
                exit_untrusted(answer.trusted, values.get("force", False))

        context = inspect.signature(run, eval_str=True).parameters["ctx"]
        parameters = [context, *(described[name].replace(kind=keyword) for name in ordered)]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        run.__name__, run.__doc__ = function.__name__, function.__doc__
        return run

    return made


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


def nearest_width(d_model: float) -> int:
    """The multiple of 64 next to a d_model that `optimal` prints; where it is another, stderr says so."""
    width = HEAD_DIM * max(1, round(one_positive("d_model", d_model) / HEAD_DIM))
    if width != d_model:
        typer.secho(f"d_model {d_model:g} is not a multiple of {HEAD_DIM}: using {width}", err=True, fg="yellow")
    return width


def exit_untrusted(trusted: bool, force: bool = False) -> None:
    """End with the status of an answer that is not to be trusted, unless it is, or was wanted all the same."""
    if not (trusted or force):
        raise typer.Exit(NOT_TRUSTED)
