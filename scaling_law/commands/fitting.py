"""The commands of `scaling-law` that fit: laws, calibrations, profiles, held-out runs, learning rates; and reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer

from hub.plain.commands import EXPERTS, Json
from hub.plain.tables import show
from scaling_law.commands import options
from scaling_law.commands.options import choose_law, exit_untrusted, option, quantity
from scaling_law.commands.questions import show_written
from scaling_law.fitting import calibration, fitting, profiles, splits
from scaling_law.fitting.learning_rate import LearningRateGrid
from scaling_law.fitting.rate_surface import fit_learning_rate_grid
from scaling_law.report.page import write_report
from scaling_law.runs.table import Runs, load_runs

Extreme = Literal["loss", "n_active", "flops", "tokens"]
WITH = "Fit the whole grid, not the best rates alone, with tokens, batch, tokens,batch, or none of both: none."


def fit(
    runs: options.Source,
    kind: options.Kind = "joint",
    loss: options.LossColumn = None,
    status: options.Status = "final",
    where: options.Where = "",
    columns: options.Columns = [],  # noqa: B006  (typer's default of a repeatable option)
    format: options.Format = None,
    trunks: options.Trunks = "auto",
    fix: options.Fix = [],  # noqa: B006
    bound: options.Bound = [],  # noqa: B006
    outliers: options.Outliers = "keep",
    one_sided: options.OneSided = None,
    huber_delta: Annotated[float, option("Threshold of the Huber loss on ln L.")] = 0.01,
    weights: Annotated[str, option("equal, inverse_loss (as the paper's, 1 / loss), or a column.")] = "equal",
    l2: Annotated[float, option("Weight decay on the summed objective (the paper states 1e-5).")] = 0.0,
    starts: Annotated[Literal["scaled", "paper"], option("scaled: quick; paper: its 19,683 starts.")] = "scaled",
    release: Annotated[int | None, option("Best starts that go on to move E_start and E_max. [default: 64]")] = None,
    mix: options.Mix = "",
    allow_unidentifiable: options.Allow = False,
    skip_invalid: Annotated[bool, option("Leave out unusable rows instead of stopping.", "--skip-invalid")] = False,
    bootstrap: Annotated[int, option("Resamples for intervals; 0 for none.")] = 0,
    output: Annotated[Path | None, option("Folder for scaling_law.json.", "--output", "-o")] = None,
    as_json: Json = False,
) -> None:
    """Fit a law to a table of runs; report convergence and identifiability.

    The exit status is 1 if the fit did not converge.

    Examples:

        scaling-law fit releases --bootstrap 1000 -o my-law

        scaling-law fit runs.parquet --kind chinchilla --loss train_loss --json

        scaling-law fit runs.csv --bound e_max=64:1024 --fix c=1.6 --outliers set_aside --trunks run

        scaling-law fit runs.csv --column n_active=params --column experts=1 --kind chinchilla
    """
    from rich.console import Group

    _refuse_resamples(bootstrap)
    table = _load(runs, loss, status, trunks, skip_invalid, where, columns, format)
    result = fitting.fit(
        table,
        kind,
        **_settings(fix, bound, outliers, mix, allow_unidentifiable),
        huber_delta=huber_delta,
        weights=None if weights == "equal" else weights,
        l2=l2,
        one_sided=one_sided,
        starts=starts,
        release=release,
        progress=not as_json,
    )
    draws = result.bootstrap(bootstrap, progress=not as_json) if bootstrap else None
    law = draws.law if draws else result.law
    if output is not None:
        law.save_pretrained(output)
    intervals = {name: draws.interval(name) for name in law.coefficients} if draws else None
    value = result.to_dict() | {"intervals": intervals, "skipped": list(table.skipped)}
    show(value, as_json, Group(result.summary(), *([draws.summary()] if draws else [])))
    for reason in table.skipped if not as_json else ():
        typer.secho(f"skipped {reason}", err=True, fg="yellow")
    exit_untrusted(result.status.converged)


def calibrate(
    runs: options.Source,
    law: options.LawName = "published",
    groups: Annotated[str, option("Runs left out together: auto (of one model), trunk, or of a column.")] = "auto",
    refit: Annotated[list[str], option("Choose among these only: --refit c --refit a,b,c.")] = [],  # noqa: B006
    loss: options.LossColumn = None,
    status: options.Status = "final",
    where: options.Where = "",
    columns: options.Columns = [],  # noqa: B006
    format: options.Format = None,
    trunks: options.Trunks = "auto",
    one_sided: options.OneSided = None,
    mix: options.Mix = "",
    bootstrap: Annotated[int, option("Resamples for intervals; 0 for none.")] = 0,
    output: Annotated[Path | None, option("Folder for scaling_law.json.", "--output", "-o")] = None,
    as_json: Json = False,
) -> None:
    """Move a law to another corpus with few runs: refit as few coefficients as predict models that were left out.

    The exit status is 1 if the fit did not converge.

    Examples:

        scaling-law calibrate runs.jsonl --bootstrap 1000 -o our-law

        scaling-law calibrate runs.csv --law chinchilla --one-sided untuned --json
    """
    from rich.console import Group

    _refuse_resamples(bootstrap)
    candidates = [[name.strip() for name in names.split(",")] for names in refit] or None
    table = _load(runs, loss, status, trunks, where=where, columns=columns, format=format)
    found = calibration.calibrate(
        choose_law(law), table, groups=groups, candidates=candidates, one_sided=one_sided, mix=mix
    )
    draws = found.bootstrap(bootstrap, progress=not as_json) if bootstrap else None
    made = draws.law if draws else found.law
    if output is not None:
        made.save_pretrained(output)
    intervals = {name: draws.interval(name) for name in made.coefficients} if draws else None
    value = found.to_dict() | {"intervals": intervals}
    show(value, as_json, Group(found.summary(), *([draws.summary()] if draws else [])))
    exit_untrusted(found.fit.status.converged)


def profile(
    runs: options.Source,
    coefficients: Annotated[str | None, option("Comma-separated: gamma,e_max. [default: all fitted]")] = None,
    level: Annotated[float, option("Level of the intervals.")] = 0.95,
    kind: options.Kind = "joint",
    loss: options.LossColumn = None,
    status: options.Status = "final",
    where: options.Where = "",
    columns: options.Columns = [],  # noqa: B006
    format: options.Format = None,
    fix: options.Fix = [],  # noqa: B006
    bound: options.Bound = [],  # noqa: B006
    outliers: options.Outliers = "keep",
    mix: options.Mix = "",
    allow_unidentifiable: options.Allow = False,
    as_json: Json = False,
) -> None:
    """Profile intervals of a fit: how far each coefficient can move while the others follow.

    They need no quadratic shape and are open where the runs set no limit, but take runs for independent. The exit
    status is 1 if the fit did not converge.

    Examples:

        scaling-law profile runs.jsonl --coefficients gamma,e_max

        scaling-law profile org/sweep-runs --level 0.9 --json
    """
    settings = _settings(fix, bound, outliers, mix, allow_unidentifiable)
    result = fitting.fit(_load(runs, loss, status, where=where, columns=columns, format=format), kind, **settings)
    names = [name.strip() for name in coefficients.split(",")] if coefficients else result.fitted
    found = [profiles.profile_interval(result, name, level) for name in names]
    rows = [{name: getattr(p, name) for name in ("coefficient", "value", "low", "high")} for p in found]
    value = {"level": level, "profiles": rows, "status": result.status.verdict}
    show(value, as_json, profiles.profile_table(found, level))
    exit_untrusted(result.status.converged)


def split(
    runs: options.Source,
    by: Annotated[Extreme, option("Hold out the runs of lowest loss, or of most n_active, flops or tokens.")] = "loss",
    validation: Annotated[int, option("Runs of the validation part.")] = 30,
    test: Annotated[int, option("Runs of the test part, the most extreme ones.")] = 0,
    select: Annotated[Literal["objective", "rmse"], option("rmse: on training and validation runs.")] = "objective",
    loss: options.LossColumn = None,
    status: options.Status = "final",
    where: options.Where = "",
    columns: options.Columns = [],  # noqa: B006
    format: options.Format = None,
    fix: options.Fix = [],  # noqa: B006
    outliers: options.Outliers = "keep",
    mix: options.Mix = "",
    allow_unidentifiable: options.Allow = False,
    as_json: Json = False,
) -> None:
    """Fit without the extreme runs and predict them: the joint law beside a Chinchilla law for each E.

    --fix holds coefficients of the joint law. The exit status is 1 if the joint fit did not converge.

    Examples:

        scaling-law split runs.jsonl --by flops --validation 20 --test 20

        scaling-law split org/sweep-runs --by loss --select rmse --json
    """
    from rich.console import Group

    parts = splits.split(_load(runs, loss, status, where=where, columns=columns, format=format), by, validation, test)
    robust: dict[str, Any] = {"outliers": outliers, "mix": mix, "allow_unidentifiable": allow_unidentifiable}
    found = splits.compare(parts, select, joint_options={"fixed": dict(fix)}, **robust)
    value = found.to_dict() | {"joint": found.joint.to_dict()} if as_json else None
    show(value, as_json, Group(parts.summary(), found.summary()))
    exit_untrusted(found.joint.status.converged)


def fit_learning_rate(
    runs: Annotated[list[str], typer.Argument(help="Tables of runs, as of `scaling-law fit`; with --with several.")],
    experts: Annotated[
        Any, quantity(EXPERTS, "Fit to models of these E only: 1,8; without --with the others check it.")
    ] = None,
    loss: Annotated[
        str | None, option("The column to judge by. [default: eval_loss, or the only one of a loss]")
    ] = None,
    reading: Annotated[Literal["code", "paper"], option("N as in the paper's runs, or as in its text.")] = "code",
    extras: Annotated[str | None, option(WITH, "--with")] = None,
    where: options.Where = "",
    columns: options.Columns = [],  # noqa: B006
    format: options.Format = None,
    within: Annotated[float, option("With --with: leave out runs this far above their model's best, nats.")] = 0.03,
    mix: options.Mix = "",
    output: Annotated[Path | None, option("File for the law (JSON).", "--output", "-o")] = None,
    as_json: Json = False,
) -> None:
    """Fit the peak learning rate to a grid: LR = exp(intercept + slope_n ln N + slope_e ln E), --with D and batch.

    Examples:

        scaling-law fit-learning-rate lr-runs.jsonl --experts 1,8 -o my-learning-rates.json

        accelerate launch train.py --optimizer.learning_rate_law my-learning-rates.json

        scaling-law fit-learning-rate dense_lr_bs_loss.csv moe_lr_bs_loss.csv --format step_law --with tokens,batch
    """
    if extras is None:
        if len(runs) > 1 or where or columns or format:
            raise ValueError("several tables, --where, --column and --format are of fits --with tokens,batch")
        grid = LearningRateGrid.load(runs[0], loss or "eval_loss", mix)
        law = grid.fit(experts, reading)
        value: Any = {"law": asdict(law), "models": grid.to_dicts(law)} if as_json else None
        shown = grid.table(law)
    else:
        tables = [_load(source, loss, where=where, columns=columns, format=format) for source in runs]
        tables = [table if experts is None else table.subset(np.isin(table.experts, experts)) for table in tables]
        chosen: Any = () if extras == "none" else [extra.strip() for extra in extras.split(",")]
        fitted = fit_learning_rate_grid(tables, chosen, reading=reading, within=within, mix=mix)
        law, value, shown = fitted.law, fitted.to_dict() if as_json else None, fitted.table()
    if output is not None:
        law.save(output)
    show(value, as_json, shown)
    if not as_json:
        typer.echo(law.formula if extras else repr(law))


def report(
    folder: Annotated[Path, typer.Argument(help="With runs.jsonl; learning-rates.jsonl optional.")],
    into: Annotated[Path, option("The Markdown file with the blocks to fill; figures go beside it.")],
    trunks: options.Trunks = "auto",
    outliers: options.Outliers = "keep",
    mix: options.Mix = "",
    as_json: Json = False,
) -> None:
    """Fill a report on runs: the fit, how it extrapolates, and the paper's findings asked of these runs.

    Examples:

        scaling-law report my-sweep --into my-report.md
    """
    show_written(write_report(folder, into, trunks=trunks, outliers=outliers, mix=mix), as_json)


def _refuse_resamples(bootstrap: int) -> None:
    if bootstrap < 0 or bootstrap == 1:
        raise ValueError(f"--bootstrap {bootstrap} must be 0, or at least 2 resamples")


def _settings(fix: Any, bound: Any, outliers: str, mix: Any, allow_unidentifiable: bool) -> dict[str, Any]:
    held = {"fixed": dict(fix), "bounds": dict(bound)}
    return held | {"outliers": outliers, "mix": mix, "allow_unidentifiable": allow_unidentifiable}


def _load(
    runs: str,
    loss: str | None = None,
    status: str = "final",
    trunks: str = "auto",
    skip_invalid: bool = False,
    where: str = "",
    columns: Sequence[tuple[str, str | float]] = (),
    format: str | None = None,
) -> Runs:
    wanted = None if status == "all" else status
    chosen: dict[str, Any] = {"trunks": trunks, "where": where, "columns": dict(columns), "format": format}
    return load_runs(runs, loss, wanted, "skip" if skip_invalid else "raise", **chosen)
