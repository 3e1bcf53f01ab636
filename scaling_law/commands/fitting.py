"""The commands of `scaling-law` that fit a law to runs, ask how far the fit holds, and report on runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from hub.base.errors import InputError
from hub.base.types import Fields
from scaling_law.commands.options import (
    Mode,
    Printed,
    by_name,
    command,
    option,
    rare,
)
from scaling_law.commands.run_options import BOUND, FIXED, Mix, UniqueTokens, bound, coefficient, load
from scaling_law.fitting import fitting
from scaling_law.fitting.diagnostics import UNIQUE
from scaling_law.fitting.holdout import Split, backtest_splits, hold_out
from scaling_law.fitting.repetition import with_unique_tokens
from scaling_law.law import JointLaw, Law, choose_kind
from scaling_law.law.modules import read_kind, read_law
from scaling_law.law_files import FILE_NAME
from scaling_law.runs.table import Runs

HELD_OUT = "Hold out and predict: each run, each model, the --test runs of lowest loss, or of most n_active, flops, "
HELD_OUT += "tokens or a column."
PRIOR = "Prior for what the runs do not determine: public (other labs' laws), or a law: published, a folder, …"
KIND = "Form of law: joint, chinchilla, routed, …, or a file of your own, my_law.json. "
KIND += "[default: joint, or that of --prior]"
MODES = {
    "split": Mode(only=("test",), never=("bootstrap", "output")),
}


@command(
    "runs kind loss where best_of columns mapping bootstrap split prior output test status format final "
    "config trunks skip_invalid fixed bounds outliers huber_delta weights mix unique_tokens allow_unidentifiable",
    load,
    modes=MODES,
)
def fit(
    as_json: bool,
    kind: Annotated[str | None, option(KIND)] = None,
    bootstrap: Annotated[int, option("Resamples for intervals; 0 for none.")] = 0,
    split: Annotated[str | None, option(HELD_OUT)] = None,
    prior: Annotated[str | None, option(PRIOR)] = None,
    output: Annotated[Path | None, option("Folder for scaling_law.json.", "--output", "-o")] = None,
    test: Annotated[int, rare("With --split: how many extreme runs to hold out.")] = 30,
    fixed: Annotated[
        list[Any],
        option(FIXED, "--fix", parser=coefficient, metavar="NAME=VALUE", rare=True),
    ] = [],  # noqa: B006
    bounds: Annotated[list[Any], option(BOUND, "--bound", parser=bound, metavar="NAME=LOW:HIGH", rare=True)] = [],  # noqa: B006
    outliers: Annotated[
        Literal["keep", "set_aside"], rare("set_aside: fit without runs far from the law of the others.")
    ] = "keep",
    mix: Mix = "",
    unique_tokens: UniqueTokens = None,
    huber_delta: Annotated[float, rare("Threshold of the Huber loss on ln L.")] = 0.01,
    weights: Annotated[str, rare("equal, inverse_loss (as the paper's, 1 / loss), or a column.")] = "equal",
    allow_unidentifiable: Annotated[
        bool, rare("Fit although the design cannot identify all coefficients.", "--allow-unidentifiable")
    ] = False,
    **table_options: Any,
) -> Printed:
    """Fit a law to a table of runs; report convergence and identifiability.

        scaling-law fit releases --bootstrap 1000 -o my-law

    --split holds out runs and compares predictions with the published joint law, refitted by a constant. --prior makes
    few runs enough; with a law as prior, the fit has its form and adapts it to another corpus. The exit status is 1 if
    the fit did not converge, or if runs of equal N, D and E differ in another setting.

    More examples:

        scaling-law fit runs.parquet --kind chinchilla --loss train_loss --json

        scaling-law fit runs.csv --bound e_max=64:1024 --fix c=1.6 --outliers set_aside --trunks run

        scaling-law fit grid.csv --kind chinchilla --best-of learning_rate

        scaling-law fit runs.csv --column n_active=params --column experts=1 --kind chinchilla

        scaling-law fit runs.jsonl --split flops --test 20

        scaling-law fit runs.csv --prior published -o our-law

        scaling-law fit runs.csv --kind chinchilla --unique-tokens unique_tokens -o our-law
    """
    if bootstrap < 0 or bootstrap == 1:
        raise InputError(f"bootstrap={bootstrap} must be 0, or at least 2 resamples")
    table = load(**table_options)
    law = read_law(prior, flag="--prior") if prior not in (None, "public") else prior
    form: Any = law if isinstance(law, Law) else "joint"
    if kind is not None:
        form = read_kind(kind)
    options: Fields = {
        "huber_delta": huber_delta,
        "weights": None if weights == "equal" else weights,
        "fixed": by_name(fixed, "--fix"),
        "bounds": by_name(bounds, "--bound"),
        "outliers": outliers,
        "mix": mix,
        "allow_unidentifiable": allow_unidentifiable,
        "prior": law,
    }
    # A split reads them from its parts.
    if unique_tokens is not None:
        table = with_unique_tokens(table, unique_tokens)
        options["unique_tokens"] = UNIQUE
    if split is not None:
        printed = _backtest(table, choose_kind(form).name, hold_out(table, split, test), options)
    else:
        result = fitting.fit(table, form, **options, progress=not as_json)
        draws = result.bootstrap(bootstrap, progress=not as_json) if bootstrap else None
        fitted_law = draws.law if draws else result.law
        lines = []
        if output is not None:
            fitted_law.save_pretrained(output)
            lines.append(f"wrote {output / FILE_NAME}")
        intervals = {name: draws.interval(name) for name in fitted_law.coefficients} if draws else None
        more_json = {"intervals": intervals, "skipped": list(table.skipped)}
        printed = Printed(result, more_json, lines, tables=[draws.summary()] if draws else [])
    for reason in table.skipped:
        typer.secho(f"skipped {reason}", err=True, fg="yellow")
    return printed


def _backtest(runs: Runs, kind: str, splits: Sequence[Split], options: Fields) -> Printed:
    """Compare laws on held-out runs; trusted if all fits of this kind are."""
    fits: list[fitting.FitResult] = []

    def forecast(train: Runs, test: Runs) -> Any:
        fits.append(fitting.fit(train, kind, **options))
        return fits[-1].errors_on(test) + test.loss

    laws: dict[str, Any] = {f"{kind} law": forecast, "published joint law": JointLaw.published()}
    compared = backtest_splits(runs, splits, laws)
    for doubt in dict.fromkeys(text for result in fits for text in result.status.doubts):
        typer.secho(doubt, err=True, fg="yellow")
    return Printed(compared, trusted=not compared.left_out and all(result.trusted for result in fits))
