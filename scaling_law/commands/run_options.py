"""Options of the commands of `scaling-law` that read runs and fit laws to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import typer

from scaling_law.commands.options import names, option, quantity
from scaling_law.runs.readers import READERS
from scaling_law.runs.table import Runs, load_runs

Source = Annotated[str, typer.Argument(help="Folder, .jsonl, .parquet, .csv, release, or org/sweep-runs on the Hub.")]
Kind = Annotated[str, option("Kind of law: joint, chinchilla, routed, or a registered one.")]
LossColumn = Annotated[str | None, option("The column to fit. [default: eval_loss, or the only loss column]")]
Status = Annotated[str, option("Keep runs of this status; 'all' keeps every run.", rare=True)]
Where = Annotated[str, option('Keep runs that match a filter: "E in {1, 8}, D <= 2B".')]
TRUNKS = "auto (parent_run_id, else one size and E), run (each its own), or a column."
Trunks = Annotated[str, option(TRUNKS, rare=True)]
SET_ASIDE = "set_aside: fit without runs far from the law of the others."
Outliers = Annotated[Literal["keep", "set_aside"], option(SET_ASIDE, rare=True)]
UNTUNED = "Column that is 1 for untuned runs, which bound the law from above; else 0."
OneSided = Annotated[str | None, option(UNTUNED, rare=True)]
MIX = "Fit runs together that differ in these columns of their recipe: optimizer,sequence_length."
Mix = Annotated[Any, quantity(names, MIX, rare=True)]
ALLOWED = "Fit although the design cannot identify all coefficients."
Allow = Annotated[bool, option(ALLOWED, "--allow-unidentifiable", rare=True)]
SkipInvalid = Annotated[bool, option("Leave out unusable rows instead of stopping.", "--skip-invalid", rare=True)]


def _fixed(text: str) -> tuple[str, float]:
    name, equals, value = text.partition("=")
    try:
        return name.strip(), float(value if equals else "")
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not of the form name=number") from None


def _bound(text: str) -> tuple[str, tuple[float | None, ...]]:
    name, _, value = text.partition("=")
    ends = value.split(":")
    try:
        low, high = (float(end) if end.strip() else None for end in ends)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not of the form name=low:high (an end may be left out)") from None
    return name.strip(), (low, high)


FIX = "Fix a coefficient: --fix e_max=256 (repeatable)."
BOUND = "Bound a coefficient: --bound c=1:1.8, or c=:1.8 (repeatable)."
Fix = Annotated[list[Any], quantity(_fixed, FIX, "--fix", metavar="NAME=NUMBER", rare=True)]
Bound = Annotated[list[Any], quantity(_bound, BOUND, "--bound", metavar="NAME=LOW:HIGH", rare=True)]


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
Format = Annotated[str | None, option(f"A public table as its authors publish it: {', '.join(READERS)}.", rare=True)]


def load(
    runs: str,
    loss: str | None = None,
    status: str = "final",
    trunks: str = "auto",
    skip_invalid: bool = False,
    where: str = "",
    columns: Sequence[tuple[str, str | float]] = (),
    format: str | None = None,
) -> Runs:
    """The table that a command names, with what it says of its columns and rows."""
    wanted = None if status == "all" else status
    settings: dict[str, Any] = {"trunks": trunks, "where": where, "columns": dict(columns), "format": format}
    return load_runs(runs, loss, wanted, "skip" if skip_invalid else "raise", **settings)
