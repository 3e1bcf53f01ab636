"""The command of `scaling-law` that asks a learning-rate law, or fits one to a grid of runs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer

from hub.base.commands import COUNT, EXPERTS, Json
from hub.base.errors import InputError
from hub.base.tables import show
from hub.base.units import format_count
from scaling_law.commands import options, run_options
from scaling_law.commands.options import Mode, check_modes, exit_untrusted, option, quantity
from scaling_law.fitting.learning_rate import LearningRateGrid
from scaling_law.fitting.rate_surface import fit_learning_rate_grid
from scaling_law.formulas.law import positive
from scaling_law.formulas.learning_rate import LearningRateLaw
from scaling_law.size.architecture import Architecture, active_parameters, total_parameters

WITH = "Fit the whole grid, not the best rates alone, with tokens, batch, tokens,batch, or none of both: none."
EXPERTS_OF = "E of the architecture; to fit: the E to fit on, 1,8; the others are a check."
ASKED = ("d_model", "n_blocks", "n_heads", "vocab_size", "tokens", "batch_tokens", "law")
MODES = {
    "runs": Mode(
        only=("loss", "extras", "reading", "where", "columns", "format", "within", "mix", "output"), never=ASKED
    ),
    "extras": Mode(only=("where", "columns", "format", "within")),
}


def learning_rate(
    context: typer.Context,
    runs: Annotated[
        list[str] | None, typer.Argument(help="To fit a law: tables of runs, as for `scaling-law fit`.")
    ] = None,
    d_model: Annotated[float | None, option("Width; blocks and heads follow as d_model / 64 unless given.")] = None,
    experts: Annotated[Any, quantity(EXPERTS, EXPERTS_OF, default="1; to fit: all")] = None,
    law: Annotated[str, option(options.RATES)] = "code",
    extras: Annotated[str | None, option(WITH, "--with")] = None,
    loss: Annotated[
        str | None, option("The column to judge by. [default: eval_loss, or the only loss column]")
    ] = None,
    output: Annotated[Path | None, option("File for the fitted law (JSON).", "--output", "-o")] = None,
    n_blocks: Annotated[int | None, option("Number of blocks.", rare=True)] = None,
    n_heads: Annotated[int | None, option("Number of heads.", rare=True)] = None,
    vocab_size: options.VocabSize = None,
    tokens: Annotated[Any, quantity(COUNT, "Tokens of the run, for laws that have them: 20B.", rare=True)] = None,
    batch_tokens: Annotated[Any, quantity(COUNT, "Tokens of a batch, for laws that have it: 0.5M.", rare=True)] = None,
    reading: Annotated[
        Literal["code", "paper"], option("Fit with N as in the paper's runs, or as in its text.", rare=True)
    ] = "code",
    where: run_options.Where = "",
    columns: run_options.Columns = [],  # noqa: B006
    format: run_options.Format = None,
    within: Annotated[
        float, option("With --with: leave out runs this far above the best of their model, nats.", rare=True)
    ] = 0.03,
    mix: run_options.Mix = "",
    as_json: Json = False,
) -> None:
    """The peak learning rate of an architecture; given runs, a learning-rate law fitted to them.

        scaling-law learning-rate --d-model 1024 --experts 8

    Always answers; the exit status is 1 where the architecture is too far outside the fitted range. A fitted
    law is LR = exp(intercept + slope_n ln N + slope_e ln E), --with D and batch.

    More examples:

        scaling-law learning-rate --d-model 512 --law paper --json

        scaling-law learning-rate --d-model 192 --n-blocks 3 --law my-learning-rates.json --tokens 20B

        scaling-law learning-rate lr-runs.jsonl --experts 1,8 -o my-learning-rates.json

        scaling-law learning-rate dense_lr_bs_loss.csv moe_lr_bs_loss.csv --format step_law --with tokens,batch
    """
    check_modes(context, MODES)
    if runs:
        fitted, value, table = _fit(runs, experts, extras, reading, loss, where, columns, format, within, mix)
        if output is not None:
            fitted.save(output)
        show(value if as_json else None, as_json, table)
        if not as_json:
            typer.echo(fitted.formula if extras else repr(fitted))
        return
    if d_model is None:
        raise InputError("--d-model is needed; or RUNS, to fit a learning-rate law")
    if experts is not None and len(experts) > 1:
        raise InputError(f"--experts {','.join(map(str, experts))}: an architecture has one E; several go with RUNS")
    value = _answer(
        LearningRateLaw.named(law), d_model, experts or [1], n_blocks, n_heads, vocab_size, tokens, batch_tokens
    )
    text = "{learning_rate:.4g}  (reading {reading!r}: {source}; N_act {n})"
    text = text.format(**value, n=format_count(value["n_active"]))
    show(value, as_json, "\n".join([text, *(f"⚠ {warning}" for warning in value["warnings"])]))
    exit_untrusted(value["trusted"])


def _answer(
    law: LearningRateLaw,
    d_model: float,
    experts: list[int],
    n_blocks: int | None,
    n_heads: int | None,
    vocab_size: int | None,
    tokens: float | None,
    batch_tokens: float | None,
) -> dict[str, Any]:
    """What the law says of one architecture, with its sizes and the range check."""
    (e,) = experts
    vocabulary = law.vocab_size if vocab_size is None else vocab_size
    width: Any = int(d_model) if d_model.is_integer() else d_model  # `optimal` prints any
    if n_blocks is not None or n_heads is not None:
        Architecture(width, e, n_blocks, n_heads, vocabulary)  # which refuses one that cannot be
    positive("d_model", width)
    counted = float(law.counted_parameters(width, n_blocks, vocabulary))
    sizes = {"n_active": active_parameters(width, n_blocks, vocabulary)}
    sizes |= {"n_total": total_parameters(width, e, n_blocks, vocabulary)}
    run = (counted, e, tokens, batch_tokens)
    value: dict[str, Any] = {"learning_rate": float(law.at(*run)), "reading": law.reading, "source": law.source}
    value |= {"formula": law.formula, "tokens": tokens, "batch_tokens": batch_tokens, "regret": law.regret}
    value |= {"d_model": width, "experts": e} | {name: round(float(size)) for name, size in sizes.items()}
    return value | {"trusted": bool(law.check_at(*run).trusted), "warnings": law.warnings_at(*run)}


def _fit(
    runs: list[str],
    experts: list[int] | None,
    extras: str | None,
    reading: Literal["code", "paper"],
    loss: str | None,
    where: str,
    columns: Any,
    format: str | None,
    within: float,
    mix: Any,
) -> tuple[LearningRateLaw, dict[str, Any], Any]:
    """The law of a grid, its JSON and its table: of the best rates alone, or of all losses where `extras` is given."""
    if extras is None:
        if len(runs) > 1:
            raise InputError("several tables go with --with tokens,batch only")
        grid = LearningRateGrid.load(runs[0], loss or "eval_loss", mix)
        law = grid.fit(experts, reading)
        return law, {"law": asdict(law), "models": grid.to_dicts(law)}, grid.table(law)
    tables = [run_options.load(source, loss, where=where, columns=columns, format=format) for source in runs]
    tables = [table if experts is None else table.subset(np.isin(table.experts, experts)) for table in tables]
    terms: Any = () if extras == "none" else options.names(extras)
    fitted = fit_learning_rate_grid(tables, terms, reading=reading, within=within, mix=mix)
    return fitted.law, fitted.to_dict(), fitted.table()
