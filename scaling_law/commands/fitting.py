"""The commands of `scaling-law` that fit a law to runs, ask how far the fit holds, and report on runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from hub.base.errors import InputError
from hub.base.tables import Tables, print_table, show
from hub.base.types import Fields
from scaling_law.commands.options import (
    Mode,
    by_name,
    command,
    exit_untrusted,
    option,
    rare,
)
from scaling_law.commands.run_options import OfRuns, load
from scaling_law.fitting import backtest, fitting, holdout
from scaling_law.fitting.repetition import UNIQUE, with_unique_tokens
from scaling_law.law import Law
from scaling_law.law.shelf import choose_law
from scaling_law.law_files import FILE_NAME

HELD_OUT = "Fit without the runs of lowest loss, or of most n_active, flops, tokens or a column, and predict them."
PRIOR = "What runs leave open is as in other labs' laws (public), or as in a law: published, a folder, …"
KIND = "Kind of law: joint, chinchilla, routed, …; all: ranked by forecasts. [default: joint, or that of --prior]"
MODES = {
    "split": Mode(only=("validation", "test", "select"), never=("kind", "bootstrap", "output")),
}


@command(
    "runs kind loss where best_of columns bootstrap split prior output overwrite validation test "
    "select status format final config trunks skip_invalid fixed bounds outliers one_sided huber_delta weights l2 "
    "starts release mix unique_tokens epochs allow_unidentifiable",
    OfRuns,
    MODES,
)
def fit(
    as_json: bool,
    verbose: bool,
    fixed: list[Any],
    bounds: list[Any],
    outliers: str,
    one_sided: str | None,
    mix: Any,
    unique_tokens: str | None,
    epochs: str | None,
    kind: Annotated[str | None, option(KIND)] = None,
    bootstrap: Annotated[int, option("Resamples for intervals; 0 for none.")] = 0,
    split: Annotated[str | None, option(HELD_OUT)] = None,
    prior: Annotated[str | None, option(PRIOR)] = None,
    output: Annotated[Path | None, option("Folder for scaling_law.json.", "--output", "-o")] = None,
    validation: Annotated[int, rare("With --split: runs of the validation part.")] = 30,
    test: Annotated[int, rare("With --split: runs of the test part, the most extreme ones.")] = 0,
    select: Annotated[
        Literal["objective", "rmse"], rare("With --split: rmse counts training and validation runs.")
    ] = "objective",
    huber_delta: Annotated[float, rare("Threshold of the Huber loss on ln L.")] = 0.01,
    weights: Annotated[str, rare("equal, inverse_loss (as the paper's, 1 / loss), or a column.")] = "equal",
    l2: Annotated[float, rare("Weight decay on the summed objective (the paper states 1e-5).")] = 0.0,
    starts: Annotated[Literal["scaled", "paper"], rare("scaled: quick; paper: its 19,683 starts.")] = "scaled",
    release: Annotated[int | None, rare("Best starts that go on to move E_start and E_max. [default: 64]")] = None,
    allow_unidentifiable: Annotated[
        bool, rare("Fit although the design cannot identify all coefficients.", "--allow-unidentifiable")
    ] = False,
    **read: Any,
) -> None:
    """Fit a law to a table of runs; report convergence and identifiability.

        scaling-law fit releases --bootstrap 1000 -o my-law

    --split holds out the extreme runs and predicts them, with the joint law and a Chinchilla law for
    each E. --kind all fits every kind below several cuts of compute, ranks them by the RMSE above, and takes the best.
    --prior makes do with few runs: with a law, the fit is of its kind and moves it to another corpus. The exit
    status is 1 if the fit did not converge, or blends runs of equal N, D and E that differ in another setting.

    More examples:

        scaling-law fit runs.parquet --kind chinchilla --loss train_loss --json

        scaling-law fit runs.csv --kind all -o our-law

        scaling-law fit runs.csv --bound e_max=64:1024 --fix c=1.6 --outliers set_aside --trunks run

        scaling-law fit grid.csv --kind chinchilla --best-of learning_rate

        scaling-law fit runs.csv --column n_active=params --column experts=1 --kind chinchilla

        scaling-law fit runs.jsonl --split flops --validation 20 --test 20

        scaling-law fit runs.csv --prior published --one-sided untuned -o our-law

        scaling-law fit runs.csv --kind chinchilla --unique-tokens unique_tokens -o our-law
    """
    if bootstrap < 0 or bootstrap == 1:
        raise InputError(f"bootstrap={bootstrap} must be 0, or at least 2 resamples")
    table = load(**read)
    robust: Fields = {"huber_delta": huber_delta, "one_sided": one_sided, "mix": mix}
    robust["weights"] = None if weights == "equal" else weights
    if unique_tokens is not None or epochs is not None:  # a split reads them from its parts
        table = with_unique_tokens(table, unique_tokens, epochs)
        robust["unique_tokens"] = UNIQUE
    further: Fields = {"outliers": outliers, "l2": l2, "starts": starts, "release": release}
    further["allow_unidentifiable"] = allow_unidentifiable
    law = choose_law(prior, flag="--prior") if prior not in (None, "public") else prior
    kind = kind or (law.name if isinstance(law, Law) else "joint")
    limits: Fields = {"fixed": by_name(fixed, "--fix"), "bounds": by_name(bounds, "--bound"), "prior": law}
    if split is not None:
        parts = holdout.split(table, split, validation, test)
        compared = backtest.compare_with_separate_laws(parts, select, joint_options=limits, **robust, **further)
        value = compared.to_dict() | {"joint": compared.joint.to_dict()} if as_json else None
        show(value, as_json, Tables((parts.summary(), compared.summary())).for_shell(verbose))
        trusted = compared.joint.status.trusted
    else:
        result = fitting.fit(table, kind, **limits, **robust, **further, progress=not as_json)
        _show(result, bootstrap, output, {"skipped": list(table.skipped)}, as_json, verbose)
        trusted = result.trusted
    for reason in table.skipped:
        typer.secho(f"skipped {reason}", err=True, fg="yellow")
    exit_untrusted(trusted)


def _show(
    result: fitting.FitResult,
    resamples: int,
    output: Path | None,
    more: Fields,
    as_json: bool,
    verbose: bool,
) -> None:
    """Print a fit with the intervals of its bootstrap, and save its law."""
    draws = result.bootstrap(resamples, progress=not as_json) if resamples else None
    law = draws.law if draws else result.law
    if output is not None:
        law.save_pretrained(output)
    intervals = {name: draws.interval(name) for name in law.coefficients} if draws else None
    value = result.to_dict() | {"intervals": intervals} | more
    summaries: list[Any] = [result.summary()]
    if draws:
        summaries.append(draws.summary())
    show(value, as_json, Tables(summaries).for_shell(verbose))
    if output is not None and not as_json:
        print_table(f"wrote {output / FILE_NAME}")
