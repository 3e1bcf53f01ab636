"""Options that several commands of `scaling-law` have, and the law that `--law` names."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from hub.plain.commands import BYTES, CONTEXT, COUNT, EXPERTS, NOT_TRUSTED
from hub.plain.units import parse_count
from scaling_law.formulas.answers import OwnQuestion
from scaling_law.formulas.law import positive
from scaling_law.law import JointLaw, Law
from scaling_law.law.base import LawT, load_law
from scaling_law.law.shelf import SHELF, published
from scaling_law.runs.readers import READERS
from scaling_law.size.architecture import HEAD_DIM
from scaling_law.size.gpus import find_gpu, named_gpu
from scaling_law.size.throughput import Throughput


def option(help: str, *names: str) -> Any:
    return typer.Option(*names, help=help)


def quantity(parser: Any, help: str, *names: str, metavar: str | None = None, default: bool | str = True) -> Any:
    """An option whose text `parser` reads (COUNT, BYTES, …); a usage error names the option.

    `default` says in words what the default value means.
    """
    metavar = metavar or parser.__name__.upper()
    return typer.Option(*names, parser=parser, metavar=metavar, help=help, show_default=default)


def nearest_width(d_model: float) -> int:
    """The multiple of 64 next to a d_model that `optimal` prints; where it is another, stderr says so."""
    width = HEAD_DIM * max(1, round(float(positive("d_model", d_model)) / HEAD_DIM))
    if width != d_model:
        typer.secho(f"d_model {d_model:g} is no multiple of {HEAD_DIM}: {width} is taken", err=True, fg="yellow")
    return width


def names(words: str) -> tuple[str, ...]:
    """A parser: names between commas."""
    return tuple(name for word in words.split(",") if (name := word.strip()))


# of questions to a law
WHICH = "published, printed (the paper's rounded table), a name of `scaling-law laws`, a folder, or a Hub repo."
LawName = Annotated[str, option(WHICH, "--law")]
RATES = "code (as the paper's runs), paper (as its text says), or a fitted law's file."
Force = Annotated[bool, option("Answer even where the law is far outside of its runs.", "--force")]
Experts = Annotated[Any, quantity(EXPERTS, "To compare: 1,2,4,8 or 1-32. [default: the paper's, or the law's own]")]
VocabSize = Annotated[int | None, option("Vocabulary size. [default: of the law's runs; if unknown GPT-2's 50257]")]
Flops = Annotated[Any, quantity(COUNT, "Compute budget of training (and inference): 1e22.")]
Hours = Annotated[float | None, option("Budget of wall-clock training time, in the place of --flops.")]
Money = Annotated[float | None, option("Budget of training, in the currency of --price.")]
Gpus = Annotated[int | None, option("GPUs that train together.")]
GPU = "Their kind: h100. Without --throughput its speed is assumed, from the data sheet and MFUs of others."
Gpu = Annotated[str | None, option(GPU)]
TIMES = "throughput.json of `python -m training.throughput`: step times measured on such a GPU."
Times = Annotated[Path | None, option(TIMES, "--throughput")]
Mfu = Annotated[float | None, option("MFU to assume in the place of others' (0.4).")]
Price = Annotated[float | None, option("Price of a GPU-hour: 2.5.")]
Memory = Annotated[Any, quantity(BYTES, "Memory for weights and KV cache: 80GB (decimal) or 80GiB.", "--memory")]
MaxParameters = Annotated[Any, quantity(COUNT, "Limit on total parameters: 7B.")]
CACHED, SERVED = "Tokens in the KV cache: 16k is 16,384.", "Tokens served over the model's life: 100B."
KvTokens = Annotated[float, quantity(CONTEXT, CACHED, "--kv-tokens", default="no cache")]
InferenceTokens = Annotated[float, quantity(COUNT, SERVED, default="none, all FLOPs are of training")]

# of fits
Source = Annotated[str, typer.Argument(help="Folder, .jsonl, .parquet, .csv, release, or org/sweep-runs on the Hub.")]
Kind = Annotated[str, option("joint, chinchilla or routed.")]
LossColumn = Annotated[str | None, option("The column to fit. [default: eval_loss, or the only one of a loss]")]
Status = Annotated[str, option("Keep runs of this status; 'all' keeps every run.")]
Where = Annotated[str, option('Keep runs that fulfil a filter: "E in {1, 8}, D <= 2B".')]
Trunks = Annotated[str, option("auto (parent_run_id, else one size and E), run (each its own), or a column.")]
Outliers = Annotated[Literal["keep", "set_aside"], option("set_aside: fit without runs far from the others' law.")]
OneSided = Annotated[str | None, option("Column that is 1 for untuned runs, which bound the law from above; else 0.")]
MIX = "Fit runs as one that differ in these columns of their recipe: optimizer,sequence_length."
Mix = Annotated[Any, quantity(names, MIX)]
Allow = Annotated[bool, option("Fit although the design cannot identify all coefficients.", "--allow-unidentifiable")]


def _fixed(text: str) -> tuple[str, float]:
    name, equals, value = text.partition("=")
    try:
        return name.strip(), float(value if equals else "")
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not of the form name=number") from None


def _variable(text: str) -> tuple[str, float]:
    name, equals, value = text.partition("=")
    if not equals:
        raise typer.BadParameter(f"{text!r} is not of the form name=number")
    return name.strip(), parse_count(value, name.strip())


def _bound(text: str) -> tuple[str, tuple[float | None, ...]]:
    name, _, value = text.partition("=")
    ends = value.split(":")
    try:
        low, high = (float(end) if end.strip() else None for end in ends)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not of the form name=low:high (an end may be left out)") from None
    return name.strip(), (low, high)


VARIABLE = "A further variable of the law: --variable density=0.25 (repeatable)."
FIX = "Fix a coefficient: --fix e_max=256 (repeatable)."
BOUND = "Bound a coefficient: --bound c=1:1.8, or c=:1.8 (repeatable)."
Variable = Annotated[list[Any], quantity(_variable, VARIABLE, metavar="NAME=NUMBER")]
Fix = Annotated[list[Any], quantity(_fixed, FIX, metavar="NAME=NUMBER")]
Bound = Annotated[list[Any], quantity(_bound, BOUND, metavar="NAME=LOW:HIGH")]


def _column(text: str) -> tuple[str, str | float]:
    name, equals, value = (part.strip() for part in text.partition("="))
    if not (name and equals and value):
        raise typer.BadParameter(f"{text!r} is not of the form name=column, name=expression or name=number")
    try:
        return name, float(value)
    except ValueError:
        return name, value


COLUMN = "A column from others: --column n_active=Na --column 'density=topk / nume' (repeatable)."
Columns = Annotated[list[Any], quantity(_column, COLUMN, "--column", metavar="NAME=EXPRESSION")]
Format = Annotated[str | None, option(f"A public table as its authors publish it: {', '.join(READERS)}.")]


def choose_law(name: str, kind: type[LawT] = Law) -> LawT:  # type: ignore[assignment]
    """The law that `--law` names; ValueError if it is of another kind."""
    if name in ("published", "recovered", "printed"):
        law: Any = JointLaw.published(rounded=name == "printed")
    else:
        law = published(name) if name in SHELF else load_law(name)
    if isinstance(law, OwnQuestion):
        raise ValueError(f"--law {name}: it answers {law.answers} only, from {', '.join(law.variables)}")
    if not isinstance(law, kind):
        needed = "a joint law" if kind is JointLaw else "a joint or a Chinchilla law"
        raise ValueError(f"--law {name}: a {law.name} law cannot answer this; {needed} is needed")
    return law


def step_times(gpu: str | None, file: Path | None, mfu: float | None) -> Throughput | None:
    """What --gpu, --throughput and --mfu name; None for nothing. ValueError for a file of another device."""
    if file is None:
        if gpu is None and mfu is not None:
            raise ValueError(f"--mfu {mfu:g} needs --gpu, the kind whose peak it is of")
        return None if gpu is None else Throughput.assumed(gpu, mfu=mfu)
    if mfu is not None:
        raise ValueError(f"--mfu {mfu:g}: {file} has measured step times; give one of the two")
    measured = Throughput.from_file(file)
    if gpu is not None and find_gpu(measured.device) != named_gpu(gpu):
        raise ValueError(f"--throughput {file} was measured on {measured.device!r}, not on --gpu {gpu}")
    return measured


def exit_untrusted(trusted: bool, force: bool = False) -> None:
    """End with the status of an answer that is not to be trusted, unless it is, or was wanted all the same."""
    if not (trusted or force):
        raise typer.Exit(NOT_TRUSTED)
