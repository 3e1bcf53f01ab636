"""Options that several commands of `scaling-law` share, what goes with what, and the law that `--law` names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from hub.base.commands import BYTES, CONTEXT, COUNT, EXPERTS, NOT_TRUSTED, flag
from hub.base.errors import InputError, unknown
from hub.base.tables import enumerated, show
from hub.base.units import parse_count
from scaling_law.formulas.answers import OwnQuestion
from scaling_law.formulas.law import positive
from scaling_law.law import JointLaw, Law
from scaling_law.law.base import LawT, load_law
from scaling_law.law.shelf import SHELF, published
from scaling_law.machine.throughput import Throughput
from scaling_law.planning import budget as budgets
from scaling_law.size.architecture import HEAD_DIM


def option(help: str, *names: str, rare: bool = False, **settings: Any) -> Any:
    """An option; a `rare` one stands below the others in the help of its command."""
    return typer.Option(*names, help=help, rich_help_panel="Advanced" if rare else None, **settings)


def quantity(
    parser: Any, help: str, *names: str, metavar: str | None = None, default: bool | str = True, rare: bool = False
) -> Any:
    """An option whose text `parser` reads (COUNT, BYTES, …); a usage error names the option.

    `default` says in words what the default value means.
    """
    metavar = metavar or parser.__name__.upper()
    return option(help, *names, rare=rare, parser=parser, metavar=metavar, show_default=default)


def nearest_width(d_model: float) -> int:
    """The multiple of 64 next to a d_model that `optimal` prints; where it is another, stderr says so."""
    width = HEAD_DIM * max(1, round(float(positive("d_model", d_model)) / HEAD_DIM))
    if width != d_model:
        typer.secho(f"d_model {d_model:g} is not a multiple of {HEAD_DIM}: using {width}", err=True, fg="yellow")
    return width


def names(words: str) -> tuple[str, ...]:
    """A parser: names between commas."""
    return tuple(name for word in words.split(",") if (name := word.strip()))


class Mode(NamedTuple):
    """What a command does when one of its options is typed: options that only go with it, and that never do."""

    only: tuple[str, ...] = ()
    never: tuple[str, ...] = ()


def is_typed(context: typer.Context, name: str) -> bool:
    """Whether the option of this parameter was typed."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def check_modes(context: typer.Context, modes: Mapping[str, Mode]) -> None:
    """ValueError for an option that would be ignored, because the one that it goes with was not typed.

    Options are named as parameters of the command's function.
    """
    typed = {name for name in context.params if is_typed(context, name)}
    for mode, (only, never) in modes.items():
        wrong = [name for name in (never if mode in typed else only) if name in typed]
        if wrong:
            flags = enumerated([flag(context.command, name) for name in wrong])
            verbs = ("does not go", "do not go") if mode in typed else ("goes only", "go only")
            raise InputError(f"{flags} {verbs[len(wrong) > 1]} with {flag(context.command, mode)}")


PUBLISHED = "published (Ludziejewski et al. 2025), printed (its rounded table)"
WHICH = f"{PUBLISHED}, a name that `scaling-law compare` lists, a folder, or a Hub repo."
LawName = Annotated[str, option(WHICH, "--law")]
RATES = "code (as the paper's runs), paper (as its text says), or a fitted law's file."
RatesLaw = Annotated[str, option(RATES, "--learning-rate-law", rare=True)]
FORCED = "Answer even far outside the fitted range."
Force = Annotated[bool, option(FORCED, "--force", rare=True)]
Experts = Annotated[Any, quantity(EXPERTS, "To compare: 1,2,4,8 or 1-32. [default: the paper's, or the law's own]")]
VOCABULARY = "Vocabulary size. [default: of the law's runs; if unknown GPT-2's 50257]"
VocabSize = Annotated[int | None, option(VOCABULARY, rare=True)]
Flops = Annotated[Any, quantity(COUNT, "Compute budget of training (and inference): 1e22.")]
Hours = Annotated[float | None, option("Budget of wall-clock training time, instead of --flops.")]
Money = Annotated[float | None, option("Budget of training, in the currency of --price.")]
Gpus = Annotated[int | None, option("GPUs that train together.")]
GPU = "GPU model: h100. Step times follow its data sheet and published MFUs unless --throughput is given."
Gpu = Annotated[str | None, option(GPU)]
TIMES = "throughput.json of `python -m training.throughput`: step times measured on such a GPU."
Times = Annotated[Path | None, option(TIMES, "--throughput", rare=True)]
Mfu = Annotated[float | None, option("MFU to assume instead of published ones: 0.4.", rare=True)]
Price = Annotated[float | None, option("Price of a GPU-hour: 2.5.")]
Memory = Annotated[Any, quantity(BYTES, "Memory for weights and KV cache: 80GB (decimal) or 80GiB.", "--memory")]
MaxParameters = Annotated[Any, quantity(COUNT, "Limit on total parameters: 7B.")]
CACHED, SERVED = "Tokens in the KV cache: 16k is 16,384.", "Tokens served over the model's life: 100B."
KvTokens = Annotated[float, quantity(CONTEXT, CACHED, "--kv-tokens", default="no cache")]
InferenceTokens = Annotated[float, quantity(COUNT, SERVED, default="none, all FLOPs are of training")]
GRANULARITY = "Experts of 1/G of the width, G times as many active."
SHARED = "Fraction of the active width in shared experts."
BytesPerParameter = Annotated[float, option("2 for bf16, 1 for fp8, 0.5 for 4 bits.", rare=True)]


def _variable(text: str) -> tuple[str, float]:
    name, equals, value = text.partition("=")
    if not equals:
        raise typer.BadParameter(f"{text!r} is not of the form name=number")
    return name.strip(), parse_count(value, name.strip())


VARIABLE = "A further variable of the law: --variable density=0.25 (repeatable)."
Variable = Annotated[list[Any], quantity(_variable, VARIABLE, metavar="NAME=NUMBER")]


def choose_law(name: str, kind: type[LawT] = Law, flag: str = "--law") -> LawT:  # type: ignore[assignment]
    """The law that an option names; ValueError if it is of another kind."""
    if name in ("published", "recovered", "printed"):
        law: Any = JointLaw.published(rounded=name == "printed")
    elif name in SHELF:
        law = published(name)
    elif Path(name).exists() or "/" in name:
        law = load_law(name)
    else:
        raise InputError(f"{unknown(f'{flag} ', name, ['published', 'printed', *SHELF])}, a folder, or a Hub repo")
    if isinstance(law, OwnQuestion):
        raise InputError(f"{flag} {name}: it answers {law.answers} only, from {', '.join(law.variables)}")
    if not isinstance(law, kind):
        needed = "a joint law" if kind is JointLaw else "a joint or a Chinchilla law"
        raise InputError(f"{flag} {name}: a {law.name} law cannot answer this; {needed} is needed")
    return law


def step_times(
    gpu: str | None, file: Path | None, mfu: float | None, *, hours: float | None = None, money: float | None = None
) -> Throughput | None:
    """What --gpu, --throughput and --mfu name; None for nothing, unless --hours or --money need it.

    ValueError for a file of another device.
    """
    if gpu is None and file is None:
        if mfu is not None:
            raise InputError(f"--mfu {mfu:g} needs --gpu, whose peak it refers to")
        if hours is not None or money is not None:
            needing = "--hours" if money is None else "--money"
            raise InputError(f"--gpu is needed with {needing}: h100; or --throughput")
        return None
    return budgets.step_times(gpu, file, mfu)


def exit_untrusted(trusted: bool, force: bool = False) -> None:
    """End with the status of an answer that is not to be trusted, unless it is, or was wanted all the same."""
    if not (trusted or force):
        raise typer.Exit(NOT_TRUSTED)


def show_written(paths: list[Path], as_json: bool) -> None:
    """Print the paths of the files that a command wrote."""
    show({"written": [str(path) for path in paths]}, as_json, "\n".join(f"wrote {path}" for path in paths))


def without(arguments: dict[str, Any], *names: str) -> dict[str, Any]:
    """The arguments but for those of these names."""
    return {name: value for name, value in arguments.items() if name not in names}
