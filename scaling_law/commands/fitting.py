"""The commands of `scaling-law` that fit a law to runs, ask how far the fit holds, and report on runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Group

from hub.base.commands import Json
from hub.base.errors import InputError
from hub.base.tables import show
from scaling_law.commands import options, run_options
from scaling_law.commands.options import Mode, check_modes, choose_law, exit_untrusted, is_typed, option, quantity
from scaling_law.fitting import fitting, profiles, splits
from scaling_law.law import Law
from scaling_law.report.page import write_report
from scaling_law.runs.table import Runs

Extreme = Literal["loss", "n_active", "flops", "tokens"]
HELD_OUT = "Fit without the runs of lowest loss, or of most n_active, flops or tokens, and predict them."
PROFILED = "Profile intervals of these coefficients: gamma,e_max, or all."
PRIOR = "What runs leave open is as in other labs' laws (public), or as in a law: published, a folder, …"
MODES = {
    "coefficients": Mode(only=("level",)),
    "split": Mode(only=("validation", "test", "select"), never=("kind", "coefficients", "bootstrap", "output")),
}


def fit(
    context: typer.Context,
    runs: run_options.Source,
    kind: run_options.Kind = "joint",
    loss: run_options.LossColumn = None,
    where: run_options.Where = "",
    columns: run_options.Columns = [],  # noqa: B006  (typer's default of a repeatable option)
    bootstrap: Annotated[int, option("Resamples for intervals; 0 for none.")] = 0,
    coefficients: Annotated[Any, quantity(options.names, PROFILED, "--profile")] = None,
    split: Annotated[Extreme | None, option(HELD_OUT)] = None,
    prior: Annotated[str | None, option(PRIOR)] = None,
    output: Annotated[Path | None, option("Folder for scaling_law.json.", "--output", "-o")] = None,
    level: Annotated[float, option("Level of profile intervals.", rare=True)] = 0.95,
    validation: Annotated[int, option("With --split: runs of the validation part.", rare=True)] = 30,
    test: Annotated[int, option("With --split: runs of the test part, the most extreme ones.", rare=True)] = 0,
    select: Annotated[
        Literal["objective", "rmse"], option("With --split: rmse counts training and validation runs.", rare=True)
    ] = "objective",
    status: run_options.Status = "final",
    format: run_options.Format = None,
    trunks: run_options.Trunks = "auto",
    skip_invalid: run_options.SkipInvalid = False,
    fixed: run_options.Fix = [],  # noqa: B006
    bounds: run_options.Bound = [],  # noqa: B006
    outliers: run_options.Outliers = "keep",
    one_sided: run_options.OneSided = None,
    huber_delta: Annotated[float, option("Threshold of the Huber loss on ln L.", rare=True)] = 0.01,
    weights: Annotated[
        str, option("equal, inverse_loss (as the paper's, 1 / loss), or a column.", rare=True)
    ] = "equal",
    l2: Annotated[float, option("Weight decay on the summed objective (the paper states 1e-5).", rare=True)] = 0.0,
    starts: Annotated[
        Literal["scaled", "paper"], option("scaled: quick; paper: its 19,683 starts.", rare=True)
    ] = "scaled",
    release: Annotated[
        int | None, option("Best starts that go on to move E_start and E_max. [default: 64]", rare=True)
    ] = None,
    mix: run_options.Mix = "",
    allow_unidentifiable: run_options.Allow = False,
    as_json: Json = False,
) -> None:
    """Fit a law to a table of runs; report convergence and identifiability.

        scaling-law fit releases --bootstrap 1000 -o my-law

    --profile adds intervals that need no quadratic shape and are open where the runs set no limit, but treat runs as
    independent. --split holds out the extreme runs and predicts them, with the joint law and a Chinchilla law for
    each E. --prior makes do with few runs: with a law, the fit is of its kind and moves it to another corpus. The exit
    status is 1 if the fit did not converge.

    More examples:

        scaling-law fit runs.parquet --kind chinchilla --loss train_loss --json

        scaling-law fit runs.csv --bound e_max=64:1024 --fix c=1.6 --outliers set_aside --trunks run

        scaling-law fit runs.csv --column n_active=params --column experts=1 --kind chinchilla

        scaling-law fit runs.jsonl --profile gamma,e_max --level 0.9

        scaling-law fit runs.jsonl --split flops --validation 20 --test 20

        scaling-law fit runs.csv --prior published --one-sided untuned -o our-law
    """
    check_modes(context, MODES)
    if bootstrap < 0 or bootstrap == 1:
        raise InputError(f"bootstrap={bootstrap} must be 0, or at least 2 resamples")
    table = run_options.load(runs, loss, status, trunks, skip_invalid, where, columns, format)
    robust: dict[str, Any] = {"huber_delta": huber_delta, "one_sided": one_sided, "mix": mix}
    robust["weights"] = None if weights == "equal" else weights
    further: dict[str, Any] = {"outliers": outliers, "l2": l2, "starts": starts, "release": release}
    further["allow_unidentifiable"] = allow_unidentifiable
    law = choose_law(prior, flag="--prior") if prior not in (None, "public") else prior
    if isinstance(law, Law) and not is_typed(context, "kind"):
        kind = law.name
    limits: dict[str, Any] = {"fixed": dict(fixed), "bounds": dict(bounds), "prior": law}
    if split is not None:
        parts = splits.split(table, split, validation, test)
        converged = _show_split(splits.compare(parts, select, joint_options=limits, **robust, **further), as_json)
    else:
        result = fitting.fit(table, kind, **limits, **robust, **further, progress=not as_json)
        names = result.fitted if coefficients == ("all",) else coefficients or ()
        intervals = [profiles.profile_interval(result, name, level) for name in names]
        more = _profiles(intervals, level) if intervals else {}
        tables = [profiles.profile_table(intervals, level)] if intervals else []
        _show(result, bootstrap, output, {"skipped": list(table.skipped)} | more, tables, as_json)
        converged = result.status.converged
    _name_skipped(table)
    exit_untrusted(converged)


def _show(
    result: fitting.FitResult,
    resamples: int,
    output: Path | None,
    more: dict[str, Any],
    tables: list[Any],
    as_json: bool,
) -> None:
    """Print a fit with the intervals of its bootstrap and further tables, and save its law."""
    draws = result.bootstrap(resamples, progress=not as_json) if resamples else None
    law = draws.law if draws else result.law
    if output is not None:
        law.save_pretrained(output)
    intervals = {name: draws.interval(name) for name in law.coefficients} if draws else None
    value = result.to_dict() | {"intervals": intervals} | more
    show(value, as_json, Group(result.summary(), *([draws.summary()] if draws else []), *tables))


def _profiles(intervals: list[profiles.ProfileInterval], level: float) -> dict[str, Any]:
    names = ("coefficient", "value", "low", "high")
    return {"level": level, "profiles": [{name: getattr(p, name) for name in names} for p in intervals]}


def _show_split(compared: splits.Comparison, as_json: bool) -> bool:
    """Print a fit that held runs out, and return whether its joint law converged."""
    value = compared.to_dict() | {"joint": compared.joint.to_dict()} if as_json else None
    show(value, as_json, Group(compared.split.summary(), compared.summary()))
    return bool(compared.joint.status.converged)


def _name_skipped(table: Runs) -> None:
    for reason in table.skipped:
        typer.secho(f"skipped {reason}", err=True, fg="yellow")


def report(
    folder: Annotated[Path, typer.Argument(help="With runs.jsonl; learning-rates.jsonl optional.")],
    into: Annotated[Path, option("The Markdown file with the blocks to fill; figures go beside it.")],
    trunks: run_options.Trunks = "auto",
    outliers: run_options.Outliers = "keep",
    mix: run_options.Mix = "",
    as_json: Json = False,
) -> None:
    """Fill a report on runs: the fit, how it extrapolates, and the paper's findings asked of these runs.

        scaling-law report my-sweep --into my-report.md

    Each table replaces what stands between its two comments in the file, and each figure is written beside it.
    """
    options.show_written(write_report(folder, into, trunks=trunks, outliers=outliers, mix=mix), as_json)
