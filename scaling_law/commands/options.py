"""What the commands of `scaling-law` have in common: their options, what goes with what, and how they answer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_origin, get_type_hints

import typer

from hub.base.commands import (
    BYTES,
    CONTEXT,
    EXPERTS,
    FLOPS,
    HOURS,
    NOT_TRUSTED,
    PARAMETERS,
    TOKENS,
    Json,
    flag,
)
from hub.base.errors import InputError
from hub.base.tables import enumerated, show
from scaling_law.formulas.law import one_positive
from scaling_law.formulas.learning_rate import DEFAULT_LAW
from scaling_law.law.shelf import choose_law
from scaling_law.law_files import FILE_NAME
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


def names(words: str) -> tuple[str, ...]:
    """A parser: names between commas."""
    return tuple(name for word in words.split(",") if (name := word.strip()))


GPUS = "GPU model: h100; or any, as peak=148T,memory=96GB (and bandwidth=4TB, link=450GB, node=8)."
GPU = f"{GPUS} Step times follow its data sheet and rates of public runs unless --throughput is given."
TIMES = "throughput.json of `python -m training.throughput`: step times measured on such a GPU."
ENGINE = "Whose layouts to search: train.py, or megatron, with tensor and pipeline parallelism. [default: train.py]"
EXPERTS_SHOWN = "To compare: 1,2,4,8, or doublings: 1-32 is 1,2,4,8,16,32. [default: doublings within the law's runs]"
SERVED = "Tokens served over the model's life: 100B."
VOCABULARY = "Vocabulary size. [default: of the law's runs; if unknown GPT-2's 50257]"
LAWS = "published (Ludziejewski et al. 2025), printed (its rounded table), "
LAWS += "a name that `scaling-law compare` lists, a folder, or a Hub repo."
ACCURACY = "Tasks whose accuracy to expect at the loss: arc_easy,hellaswag."
RATES = "public:ludziejewski (grids of labs, at the paper's level; public: any lab's), code (as the paper's runs), "
RATES += "paper (as its text says), or a fitted law's file."


class Shared:
    """Options of several commands, and all of a budget and of limits: named as in Python, with their defaults."""

    flops: Annotated[Any, quantity(FLOPS, "Compute budget of training (and inference): 1e22.")] = None
    hours: Annotated[Any, quantity(HOURS, "Budget of wall-clock training time, instead of --flops: 72, 3w, 21d.")] = (
        None
    )
    money: Annotated[float | None, option("Budget of training, in the currency of --price.")] = None
    gpus: Annotated[int | None, option("GPUs that train together.")] = None
    gpu: Annotated[str | None, option(GPU)] = None
    throughput: Annotated[Path | None, rare(TIMES)] = None
    mfu: Annotated[float | None, rare("MFU to assume instead of the rates of public runs: 0.4.")] = None
    engine: Annotated[str | None, rare(ENGINE)] = None
    precision: Annotated[str | None, rare("With --gpu: bf16, fp8 or fp4. [default: bf16]")] = None
    price: Annotated[float | None, option("Price of a GPU-hour: 2.5.")] = None
    decode_batch: Annotated[float | None, rare("Sequences served at once: adds the cost of a million tokens.")] = None
    memory: Annotated[Any, quantity(BYTES, "Memory for weights and KV cache: 80GB (decimal) or 80GiB.")] = None
    max_parameters: Annotated[Any, quantity(PARAMETERS, "Limit on total parameters: 7B.")] = None
    kv_tokens: Annotated[float, quantity(CONTEXT, "Tokens in the KV cache: 16k is 16,384.", default="no cache")] = 0.0
    inference_tokens: Annotated[float, quantity(TOKENS, SERVED, default="none, all FLOPs are of training")] = 0.0
    experts: Annotated[Any, quantity(EXPERTS, EXPERTS_SHOWN)] = None
    bytes_per_parameter: Annotated[float, rare("2 for bf16, 1 for fp8, 0.5 for 4 bits.")] = 2.0
    bytes_per_kv: Annotated[float, rare("Bytes of a KV cache element.")] = 2.0
    kv_heads_ratio: Annotated[float, rare("KV heads / heads (grouped queries).")] = 1.0
    granularity: Annotated[float, rare("Experts of 1/G of the width, G times as many active.")] = 1.0
    shared_ratio: Annotated[float, rare("Fraction of the active width in shared experts.")] = 0.0
    unique_tokens: Annotated[
        Any, quantity(TOKENS, "Unique tokens; more are repetitions, worth less: 100B.", rare=True)
    ] = None
    vocab_size: Annotated[int | None, rare(VOCABULARY)] = None
    integral: Annotated[bool, option("Only architectures with d_model a multiple of 64.", "--integral")] = False
    force: Annotated[bool, rare("Answer even far outside the fitted range.", "--force")] = False
    accuracy: Annotated[Any, quantity(names, ACCURACY)] = ""
    law: Annotated[str, option(LAWS)] = "published"
    overwrite: Annotated[bool, option("Overwrite the file given by -o.", "--overwrite")] = False
    learning_rate_law: Annotated[str, rare(RATES)] = DEFAULT_LAW
    as_json: Json = False


class Mode(NamedTuple):
    """What a command does when one of its options is typed: options that only go with it, and that never do."""

    only: tuple[str, ...] = ()
    never: tuple[str, ...] = ()


def command(shown: str, options: type = Shared, modes: Mapping[str, Mode] | None = None) -> Callable[..., Any]:
    """Make a command of a function, with the options `shown` in this order, and --json.

    An option that is no `Annotated` parameter of the function is one of `options`. The function takes all of them, for
    a shared --law the law itself; `as_json` only if it names it. With --overwrite, -o
    names no file that exists unless that is given. The answer that the function returns, alone or with further keys of
    its JSON, is printed; one that is not to be trusted sets the exit status, unless it was forced.
    """
    hints, keyword = get_type_hints(options, include_extras=True), inspect.Parameter.KEYWORD_ONLY
    ordered = (*shown.split(), "as_json")

    def made(function: Callable[..., Any]) -> Callable[..., None]:
        declared = inspect.signature(function, eval_str=True).parameters
        described = {name: p for name, p in declared.items() if get_origin(p.annotation) is Annotated}
        for name in {*ordered} - {*described}:
            default = getattr(options, name, inspect.Parameter.empty)
            described[name] = inspect.Parameter(name, keyword, default=default, annotation=hints[name])

        def run(ctx: typer.Context, **values: Any) -> None:
            check_modes(ctx, modes or {})
            as_json = values["as_json"] if "as_json" in declared else values.pop("as_json")
            if not values.pop("overwrite", True) and (output := values["output"]):
                for file in filter(Path.is_file, (output, output / FILE_NAME)):
                    raise InputError(f"-o {file}: the file exists; --overwrite replaces it")
            if described.get("law") is not declared.get("law"):
                values["law"] = choose_law(values["law"], declared["law"].annotation)
            if (result := function(**values)) is not None:
                answer, more = result if isinstance(result, tuple) else (result, {})
                show(answer.to_dict() | more if as_json else None, as_json, answer)
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
            flags = enumerated([flag(context.command, name) for name in wrong])
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


def show_written(paths: list[Path], as_json: bool) -> None:
    """Print the paths of the files that a command wrote."""
    show({"written": [str(path) for path in paths]}, as_json, "\n".join(f"wrote {path}" for path in paths))
