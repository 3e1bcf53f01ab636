"""Options of the commands of `scaling-law` that read runs and fit laws to them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hub.base.commands import join_filters
from hub.base.fields import Parser, field, parse_names
from scaling_law.commands.options import by_name, named, option, rare
from scaling_law.runs.loading import load_runs
from scaling_law.runs.logged import Final
from scaling_law.runs.readers import READERS
from scaling_law.runs.table import Runs
from scaling_law.runs.tuning import best_of as best_of_columns


def _parse_bounds(text: str) -> tuple[float | None, float | None]:
    low, high = (float(bound) if bound.strip() else None for bound in text.split(":"))
    return low, high


def _parse_number_or_text(text: str) -> float | str:
    """Read a number, or leave a text as it is: the name of a column or of another coefficient."""
    try:
        return float(text)
    except ValueError:
        return text


coefficient = named(_parse_number_or_text, "name=number or name=name")
bound = named(_parse_bounds, "name=low:high (an end may be left out)")
column = named(_parse_number_or_text, "name=column, name=expression or name=number")
RUNS = "Table (.csv, .jsonl, .json, .parquet, …), folder, release, TensorBoard folder, trainer_state.json, "
RUNS += "org/dataset on the Hub, trackio:PROJECT or wandb:ENTITY/PROJECT."
FINAL = "Loss of a run that logged many (tracker, logs, table of steps): last, minimum, or smoothed (last 5 %). "
FINAL += "[default: last]"
MIX = "Fit runs together that differ in these columns: optimizer,sequence_length."
BEST = "Keep the best run of each model and D over these tuned columns: learning_rate,batch."
COLUMN = "Define a column: --column n_active=Na --column 'density=topk / nume' (repeatable)."
MAPPING = "YAML file of columns, such as `tokens: step * 2**19`; --column overrides it."
REPEATED = "Column of unique tokens: tokens beyond them are repeated, and worth less."
FIXED = "Fix a coefficient, or tie it to another: --fix e_max=256, --fix alpha=beta (repeatable)."
BOUND = "Bound a coefficient: --bound c=1:1.8, or c=:1.8 (repeatable)."


SeveralNames = Annotated[Any, Parser(parse_names)]
Mix = Annotated[SeveralNames, field(MIX, rare=True)]
UniqueTokens = Annotated[str | None, rare(REPEATED)]


def load(
    runs: Annotated[str, typer.Argument(help=RUNS)],
    *,
    loss: Annotated[str | None, option("The column to fit. [default: eval_loss, or the only loss column]")] = None,
    where: Annotated[
        list[str], option('Keep runs that match a filter: "E in {1, 8}, D <= 2B" (repeated ones must all hold).')
    ] = [],  # noqa: B006
    best_of: Annotated[SeveralNames, field(BEST)] = "",
    columns: Annotated[list[Any], option(COLUMN, "--column", parser=column, metavar="NAME=EXPRESSION")] = [],  # noqa: B006
    mapping: Annotated[Path | None, option(MAPPING)] = None,
    status: Annotated[str, rare("Keep runs of this status; 'all' keeps every run.")] = "final",
    format: Annotated[str | None, rare(f"A public table as its authors publish it: {', '.join(READERS)}.")] = None,
    final: Annotated[Final | None, rare(FINAL)] = None,
    config: Annotated[str | None, rare("Config (subset) or file of a dataset on the Hub.")] = None,
    trunks: Annotated[str, rare("auto (parent_run_id, else one size and E), run (each its own), or a column.")] = (
        "auto"
    ),
    skip_invalid: Annotated[bool, rare("Leave out unusable rows instead of stopping.", "--skip-invalid")] = False,
) -> Runs:
    """Read the table that a command names as its options say."""
    table = load_runs(
        runs,
        loss,
        status=None if status == "all" else status,
        on_invalid="skip" if skip_invalid else "raise",
        trunks=trunks,
        where=join_filters(where),
        columns=by_name(columns, "--column"),
        format=format,
        final=final,
        config=config,
        mapping=mapping,
    )
    return best_of_columns(table, best_of) if best_of else table
