"""The command of `scaling-law` that forecasts runs, and keeps forecasts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from hub.base.errors import InputError
from hub.base.fields import field
from scaling_law.commands.options import Printed, command, option
from scaling_law.commands.run_options import Mix, UniqueTokens, load
from scaling_law.figures import drawing
from scaling_law.forecasting import forecast as forecasting
from scaling_law.law import Law
from scaling_law.law.modules import read_kind
from scaling_law.planning.question import ExpertCounts, Level, SeveralSizes, SeveralTokens
from scaling_law.runs.loading import is_step_log

SAVE = "Write the forecast with its date to a new .json file, to compare with the loss once it is measured."
KIND = "Form of law: chinchilla, … or your own, my_law.json. [default: interaction; joint for several E]"


@command(
    "runs n_active tokens experts prior kind level accuracy figure save loss where "
    "best_of columns mapping status format final config trunks skip_invalid mix unique_tokens at_unique_tokens",
    Law.optimal,
    load,
)
def forecast(
    accuracy: Any,
    runs: Annotated[str, typer.Argument(help="Runs to forecast from: a folder, .jsonl, .csv, …")],
    n_active: Annotated[SeveralSizes | None, field("Active parameters with embeddings: 2B.")] = None,
    tokens: Annotated[SeveralTokens | None, field("Training tokens: 8T.")] = None,
    experts: Annotated[ExpertCounts | None, field("E of the model: 256. [default: that of the runs]")] = None,
    prior: Annotated[Literal["public", "none"], option("none: these runs alone.")] = "public",
    kind: Annotated[str | None, option(KIND)] = None,
    mix: Mix = "",
    unique_tokens: UniqueTokens = None,
    at_unique_tokens: Annotated[
        SeveralTokens | None, field("With --unique-tokens: those of the model: 5B. [default: all]", rare=True)
    ] = None,
    level: Level = 0.9,
    figure: Annotated[Path | None, option("Write a fan chart: .png, .svg or .pdf.")] = None,
    save: Annotated[Path | None, option(SAVE)] = None,
    **table_options: Any,
) -> Printed:
    """Forecast the loss of runs not yet trained, by one law under a prior from other labs.

        scaling-law forecast runs.csv --n-active 2B --tokens 8T --experts 256

    The exit status is 1 where a model is too far outside the runs for the forecast to be trusted, and where the runs
    differ in a setting besides N, D and E. For a law under this prior: scaling-law fit runs.csv --prior public.

    More examples:

        scaling-law forecast runs.csv --n-active 2B --tokens 8T --save forecasts/2B-8T.json

        scaling-law forecast runs.csv --unique-tokens unique_tokens --n-active 2B --tokens 80B --at-unique-tokens 5B
    """
    if Path(runs).is_file() and is_step_log(runs):
        raise InputError(f"{runs} is the log of one run; its final loss: scaling-law live {runs}")
    table = load(runs=runs, **table_options)
    if at_unique_tokens is not None and unique_tokens is None:
        raise InputError("--at-unique-tokens goes with --unique-tokens, the column of the runs")
    at = {"n_active": n_active, "tokens": tokens, "experts": experts, "unique_tokens": at_unique_tokens}
    models = {name: values for name, values in at.items() if values is not None}
    answer = forecasting.forecast(
        table,
        models,
        prior=None if prior == "none" else "public",
        kind=kind and read_kind(kind, "--kind").name,
        level=level,
        accuracy=accuracy,
        mix=mix,
        unique_tokens=unique_tokens,
    )
    lines = [f"wrote {drawing.save(answer.figure(), figure)}"] if figure else []
    lines += [f"wrote {answer.save(save)}"] if save else []
    return Printed(answer, lines=lines)
