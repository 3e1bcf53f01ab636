"""The commands of `scaling-law` that fit: a law and its status, profiles, held-out runs, which runs to train next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from hub.plain.tables import show
from hub.plain.units import parse_bytes, parse_context, parse_count, parse_counts, parse_experts
from scaling_law.commands import support as support
from scaling_law.commands.support import JsonOption, LawOption, VocabOption, clear_errors

RunsArgument = typer.Argument(
    ..., help="Folder, .jsonl, .parquet, .csv, release folder, or org/sweep-runs on the Hub."
)
KindOption = typer.Option("joint", "--kind", help="joint, chinchilla or routed.")
LossOption = typer.Option(None, help="The column to fit. [default: eval_loss, or the only column of a loss]")
StatusOption = typer.Option("final", help="Keep runs of this status; 'all' keeps every run.")
TrunksOption = typer.Option(
    "auto", help="Runs of one trunk: auto (parent_run_id, else one size and E), run (each its own), or a column."
)
FixOption = typer.Option([], help="Fix a coefficient: --fix e_max=256 (repeatable).")
BoundOption = typer.Option([], help="Bound a coefficient: --bound c=1:1.8, or c=:1.8 (repeatable).")
OutliersOption = typer.Option("keep", help="keep, or set_aside: fit without the runs far from the law of the others.")
HuberOption = typer.Option(0.01, help="Threshold of the Huber loss on ln L.")
WeightsOption = typer.Option("equal", help="equal, or inverse_loss: the paper's weights, 1 / loss.")
L2Option = typer.Option(0.0, help="Weight decay on the summed objective (the paper states 1e-5).")
AllowOption = typer.Option(
    False, "--allow-unidentifiable", help="Fit although the design cannot determine all coefficients."
)
SkipOption = typer.Option(False, "--skip-invalid", help="Leave out unusable rows instead of stopping.")
OutputOption = typer.Option(None, "--output", "-o", help="Folder for scaling_law.json.")


def fit(
    runs: str = RunsArgument,
    kind: str = KindOption,
    loss: str | None = LossOption,
    status: str = StatusOption,
    trunks: str = TrunksOption,
    fix: list[str] = FixOption,
    bound: list[str] = BoundOption,
    outliers: str = OutliersOption,
    huber_delta: float = HuberOption,
    weights: str = WeightsOption,
    l2: float = L2Option,
    starts: str = typer.Option("scaled", help="scaled (quick, any scale) or paper (19,683 starts)."),
    release: int | None = typer.Option(None, help="Best starts that go on to move E_start and E_max. [default: 64]"),
    allow_unidentifiable: bool = AllowOption,
    skip_invalid: bool = SkipOption,
    bootstrap: int = typer.Option(0, help="Resamples for intervals; 0 for none."),
    output: Path | None = OutputOption,
    as_json: bool = JsonOption,
) -> None:
    """Fit a law to a table of runs; report convergence and identifiability.

    The exit status is 1 if the fit did not converge.

    Examples:

        scaling-law fit releases --bootstrap 1000 -o my-law

        scaling-law fit runs.parquet --kind chinchilla --loss train_loss --json

        scaling-law fit runs.csv --bound e_max=64:1024 --fix c=1.6 --outliers set_aside --trunks run
    """
    from scaling_law.fitting.fitting import fit as fit_law

    with clear_errors():
        _check_resamples(bootstrap)
        table = _load(runs, loss, status, trunks, skip_invalid)
        result = fit_law(
            table,
            kind,
            fixed=_fixed(fix),
            bounds=_bounds(bound),
            outliers=outliers,  # type: ignore[arg-type]
            huber_delta=huber_delta,
            weights=None if weights == "equal" else weights,
            l2=l2,
            starts=starts,  # type: ignore[arg-type]
            release=release,
            allow_unidentifiable=allow_unidentifiable,
            progress=not as_json,
        )
        draws = result.bootstrap(bootstrap, progress=not as_json) if bootstrap else None
        law = draws.law if draws else result.law
        if output is not None:
            law.save_pretrained(output)
    if as_json:
        intervals = {name: draws.interval(name) for name in law.coefficients} if draws else None
        show(result.to_dict() | {"intervals": intervals, "skipped": list(table.skipped)}, True, None)
    else:
        from rich.console import Group

        show(None, False, Group(result.summary(), *([draws.summary()] if draws else [])))
        _tell_skipped(table)
    _trust(result)


def profile(
    runs: str = RunsArgument,
    coefficients: str | None = typer.Option(None, help="Comma-separated: gamma,e_max. [default: all fitted]"),
    level: float = typer.Option(0.95, help="Level of the intervals."),
    kind: str = KindOption,
    loss: str | None = LossOption,
    status: str = StatusOption,
    fix: list[str] = FixOption,
    bound: list[str] = BoundOption,
    outliers: str = OutliersOption,
    allow_unidentifiable: bool = AllowOption,
    as_json: bool = JsonOption,
) -> None:
    """How far each coefficient can be moved while the others follow: profile intervals of a fit.

    They need no quadratic shape and are open where the runs set no limit, but take runs for independent. The exit
    status is 1 if the fit did not converge.

    Examples:

        scaling-law profile runs.jsonl --coefficients gamma,e_max

        scaling-law profile org/sweep-runs --level 0.9 --json
    """
    from scaling_law.fitting.fitting import fit as fit_law
    from scaling_law.fitting.profiles import profile as profiles_of

    with clear_errors():
        result = fit_law(
            _load(runs, loss, status),
            kind,
            fixed=_fixed(fix),
            bounds=_bounds(bound),
            outliers=outliers,  # type: ignore[arg-type]
            allow_unidentifiable=allow_unidentifiable,
        )
        names = [name.strip() for name in coefficients.split(",")] if coefficients else None
        found = profiles_of(result, names, level)
    columns = ("coefficient", "value", "low", "high")
    rows = [{name: row[name] for name in columns} for row in found.to_rows()]
    show({"level": level, "profiles": rows, "status": result.status.verdict}, as_json, found)
    _trust(result)


def split(
    runs: str = RunsArgument,
    by: str = typer.Option("loss", help="Hold out the runs of lowest loss, or of most n_active, flops or tokens."),
    validation: int = typer.Option(30, help="Runs of the validation part."),
    test: int = typer.Option(0, help="Runs of the test part, the most extreme ones."),
    select: str = typer.Option("objective", help="objective, or rmse: the paper's, on training and validation runs."),
    loss: str | None = LossOption,
    status: str = StatusOption,
    fix: list[str] = FixOption,
    outliers: str = OutliersOption,
    allow_unidentifiable: bool = AllowOption,
    as_json: bool = JsonOption,
) -> None:
    """Fit without the extreme runs and predict them: the joint law beside a Chinchilla law for each E.

    --fix holds coefficients of the joint law. The exit status is 1 if the joint fit did not converge.

    Examples:

        scaling-law split runs.jsonl --by flops --validation 20 --test 20

        scaling-law split org/sweep-runs --by loss --select rmse --json
    """
    from rich.console import Group

    from scaling_law.fitting.splits import compare
    from scaling_law.fitting.splits import split as split_runs

    with clear_errors():
        parts = split_runs(_load(runs, loss, status), by, validation, test)  # type: ignore[arg-type]
        options: dict[str, Any] = {"outliers": outliers, "allow_unidentifiable": allow_unidentifiable}
        found = compare(parts, select, joint_options={"fixed": _fixed(fix)}, **options)  # type: ignore[arg-type]
    value = found.to_dict() | {"joint": found.joint.to_dict()} if as_json else None
    show(value, as_json, None if as_json else Group(parts.summary(), found.summary()))
    _trust(found.joint)


def next_runs(
    flops: str = typer.Option(..., help="Budget of all new runs together: 1e20."),
    ask: str = typer.Option(
        ..., help="What to make certain: optimum:FLOPS,E or loss:N,D,E or advantage:FLOPS,E1,E2 (which E is better)."
    ),
    max_runs: int = typer.Option(24, help="At most so many runs."),
    warmup: str | None = typer.Option(
        None, help="Tokens of warm-up, which each run must be past: 130M. [default: the fitted runs' own]"
    ),
    experts: str = typer.Option("1,2,4,8,16,32", help="Experts of the runs to choose from: 1,2,4 or 1-8."),
    widths: str | None = typer.Option(None, help="Their d_model: 256,512,768. [default: 256 to 3072]"),
    ratio: str = typer.Option("0.5:80", "--tokens-per-parameter", help="Their tokens per active parameter."),
    largest: str | None = typer.Option(None, "--max-run-flops", help="Budget of one run. [default: a quarter of all]"),
    vocab_size: int | None = VocabOption,
    noise: float | None = typer.Option(None, help="Standard deviation of ln L of one run. [default: from the fit]"),
    memory: str | None = typer.Option(None, help="For advantage: memory for weights and KV cache, 80GB."),
    max_parameters: str | None = typer.Option(None, help="For advantage: limit on total parameters, 7B."),
    kv_tokens: str = typer.Option("0", help="For advantage: tokens in the KV cache, 16k is 16,384."),
    law: str = LawOption,
    as_json: bool = JsonOption,
) -> None:
    """The runs that, for a FLOP budget, make the answer to one question most certain.

    The law needs draws: fit it with --bootstrap. No run is shorter than its warm-up, which the records of the fitted
    runs tell, or --warmup.

    Examples:

        scaling-law next-runs --law my-law --flops 1e20 --ask optimum:1e22,8 --max-runs 6

        scaling-law next-runs --law my-law --flops 1e19 --ask advantage:1e21,8,1 --memory 24GB --warmup 50M --json
    """
    from scaling_law.planning.design import candidate_grid
    from scaling_law.planning.design import next_runs as choose

    with clear_errors():
        chosen, budget = support.choose_joint_law(law), parse_count(flops, "--flops")
        limits = {
            "max_memory_bytes": support.optional(memory, parse_bytes, "--memory"),
            "max_parameters": support.optional(max_parameters, parse_count, "--max-parameters"),
            "kv_cache_tokens": parse_context(kv_tokens, "--kv-tokens"),
        }
        candidates = candidate_grid(
            budget / 4 if largest is None else parse_count(largest, "--max-run-flops"),
            parse_experts(experts, "--experts"),
            support.optional(widths, _widths, "--widths"),
            _pair(ratio, "--tokens-per-parameter"),
            chosen.vocab_size if vocab_size is None else vocab_size,
        )
        made = choose(
            chosen,
            _answer(ask, limits, vocab_size),
            budget,
            candidates,
            noise,
            max_runs,
            support.optional(warmup, parse_count, "--warmup"),
        )
    show({"ask": ask} | made.to_dict() if as_json else None, as_json, made)


def _load(runs: str, loss: str | None, status: str, trunks: str = "auto", skip_invalid: bool = False) -> Any:
    from scaling_law.runs.table import load_runs

    wanted, on_invalid = None if status == "all" else status, "skip" if skip_invalid else "raise"
    return load_runs(runs, loss, wanted, on_invalid, trunks=trunks)  # type: ignore[arg-type]


def _tell_skipped(table: Any) -> None:
    for reason in table.skipped:
        typer.secho(f"skipped {reason}", err=True, fg="yellow")


def _trust(result: Any) -> None:
    """End with the status for work that is not to be trusted if the fit did not converge."""
    if not result.status.converged:
        raise typer.Exit(support.NOT_TRUSTED)


def _check_resamples(bootstrap: int) -> None:
    if bootstrap < 0 or bootstrap == 1:
        raise ValueError(f"--bootstrap {bootstrap} must be 0, or at least 2 resamples")


def _fixed(texts: list[str]) -> dict[str, float]:
    """name=number."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            found[name.strip()] = float(value)
        except ValueError:
            equals = ""
        if not equals:
            raise ValueError(f"--fix {text!r} is not of the form name=number")
    return found


def _bounds(texts: list[str]) -> dict[str, Any]:
    """name=low:high, an end left out for none."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        ends = value.split(":")
        try:
            found[name.strip()] = tuple(float(end) if end.strip() else None for end in ends)
        except ValueError:
            equals = ""
        if not equals or len(ends) != 2:
            raise ValueError(f"--bound {text!r} is not of the form name=low:high (an end may be left out)")
    return found


def _pair(text: str, field: str) -> tuple[float, float]:
    low, colon, high = text.partition(":")
    if not colon:
        raise ValueError(f"{field} {text!r} is not of the form low:high")
    return parse_count(low, field), parse_count(high, field)


def _widths(text: str, field: str) -> list[int]:
    return [int(value) for value in parse_counts(text, field)]


def _answer(ask: str, limits: dict[str, Any], vocab_size: int | None) -> Any:
    """The question of --ask as a function of a law."""
    from scaling_law.planning import design

    kind, _, rest = ask.partition(":")
    forms = {
        "optimum": (design.log_optimal_parameters, 2),
        "loss": (design.predicted_loss, 3),
        "advantage": (design.advantage, 3),
    }
    values = parse_counts(rest, "--ask") if rest else []
    if kind not in forms or len(values) != forms[kind][1]:
        raise ValueError(f"--ask {ask!r} must be optimum:FLOPS,E or loss:N,D,E or advantage:FLOPS,E1,E2")
    given = {name: value for name, value in limits.items() if value}
    if given and kind != "advantage":
        raise ValueError(f"--ask {ask!r}: --memory, --max-parameters and --kv-tokens go with advantage only")
    make: Any = forms[kind][0]
    return make(*values, **given, **({"vocab_size": vocab_size} if kind == "advantage" else {}))
