"""The command of `scaling-law` that asks a learning-rate law, or fits one to a grid of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer
from rich.console import Group

from hub.base.commands import BATCH, EXPERTS, TOKENS
from hub.base.errors import InputError
from hub.base.tables import show
from hub.base.units import UNKNOWN, format_count
from scaling_law.commands.options import RATES, Mode, command, exit_untrusted, names, option, quantity, rare
from scaling_law.commands.run_options import OfRuns, load
from scaling_law.fitting.rate_surface import LearningRateFit, fit_learning_rate
from scaling_law.formulas.law import positive
from scaling_law.formulas.learning_rate import DEFAULT_LAW, LearningRateLaw, describe_check, source_of_rate
from scaling_law.size.architecture import Architecture, active_parameters, total_parameters
from scaling_law.size.recipe import PAPER, BatchRamp

WITH = "To fit: what the law has besides N and E: tokens, batch, or tokens,batch. [default: neither]"
EXPERTS_OF = "E of the architecture; to fit: the E to fit on, 1,8."
JUDGED_BY = "The column to judge by. [default: eval_loss, or the only loss column]"
BATCH_HELP = "Tokens of a batch, for laws that have it: 0.5M. [default: that with which the paper's ramp ends]"
ASKED = ("d_model", "n_blocks", "n_heads", "vocab_size", "tokens", "batch_tokens", "law")
READ = ("where", "columns", "format", "within")
MODES = {
    "runs": Mode(only=("loss", "extras", "reading", *READ, "mix", "output", "overwrite"), never=ASKED),
}


class OfRates(OfRuns):
    """What a rate depends on besides width and E, and how a learning-rate law is fitted."""

    extras: Annotated[str | None, option(WITH, "--with")] = None
    loss: Annotated[str | None, option(JUDGED_BY)] = None
    n_blocks: Annotated[int | None, rare("Number of blocks.")] = None
    n_heads: Annotated[int | None, rare("Number of heads.")] = None
    tokens: Annotated[Any, quantity(TOKENS, "Tokens of the run, for laws that have them: 20B.", rare=True)] = None
    batch_tokens: Annotated[Any, quantity(BATCH, BATCH_HELP, rare=True)] = None
    reading: Annotated[Literal["code", "paper"], rare("Fit with N as in the paper's runs, or as in its text.")] = (
        "code"
    )
    within: Annotated[float, rare("To fit: leave out runs this far above the best of their model, nats.")] = 0.03


@command(
    "runs d_model experts law extras loss output overwrite n_blocks n_heads vocab_size tokens batch_tokens reading "
    "where columns format within mix",
    OfRates,
    MODES,
)
def learning_rate(
    as_json: bool,
    runs: Annotated[
        list[str] | None, typer.Argument(help="To fit a law: tables of runs, as for `scaling-law fit`.")
    ] = None,
    d_model: Annotated[float | None, option("Width; blocks and heads follow as d_model / 64 unless given.")] = None,
    experts: Annotated[Any, quantity(EXPERTS, EXPERTS_OF, default="1; to fit: all")] = None,
    law: Annotated[str, option(RATES)] = DEFAULT_LAW,
    output: Annotated[Path | None, option("File for the fitted law (JSON).", "--output", "-o")] = None,
    **question: Any,
) -> None:
    """The peak learning rate of an architecture; given runs, a learning-rate law fitted to them.

        scaling-law learning-rate --d-model 1024 --experts 8 --tokens 20B

    No rate, and exit status 1, where N, D or the batch lie more than ten times outside the runs of the law. A fitted
    law is LR = exp(intercept + slope_n ln N + slope_e ln E), --with D and batch. It is the centre of one paraboloid
    through the losses of all runs near the best of their model. A table has d_model and n_blocks, or N is taken as
    its n_active.

    More examples:

        scaling-law learning-rate --d-model 512 --law paper --json

        scaling-law learning-rate lr.csv --column learning_rate=lr --column n_active=params --column experts=1

        scaling-law learning-rate --d-model 192 --n-blocks 3 --law my-learning-rates.json --tokens 20B

        scaling-law learning-rate lr-runs.jsonl --experts 1,8 -o my-learning-rates.json

        scaling-law learning-rate dense_lr_bs_loss.csv moe_lr_bs_loss.csv --format step_law --with tokens,batch
    """
    if runs:
        fitted = _fit(runs, experts, question)
        if output is not None:
            fitted.law.save(output)
        show(fitted.to_dict() if as_json else None, as_json, Group(fitted.models_table(), fitted.table()))
        if not as_json:
            typer.echo(fitted.law.formula)
        return
    if d_model is None:
        raise InputError("--d-model is needed; or RUNS, to fit a learning-rate law")
    if len(experts := experts or [1]) > 1:
        raise InputError(f"--experts {','.join(map(str, experts))}: an architecture has one E; several go with RUNS")
    value = _answer(LearningRateLaw.named(law), d_model, experts[0], question)
    rate = UNKNOWN if value["learning_rate"] is None else f"{value['learning_rate']:.4g}"
    named = source_of_rate(value["source"], [value["batch_tokens"]])
    text = f"{rate}  (reading {value['reading']!r}: {named}; N_act {format_count(value['n_active'])})"
    text += "" if (ends := value["learning_rate_interval"]) is None else "\n95 % interval {:.3g}…{:.3g}".format(*ends)
    show(value, as_json, "\n".join([text, *(f"⚠ {warning}" for warning in value["warnings"])]))
    exit_untrusted(value["trusted"])


def _answer(law: LearningRateLaw, d_model: float, experts: int, question: dict[str, Any]) -> dict[str, Any]:
    """What the law says of one architecture, with its sizes and the range check."""
    vocabulary = law.vocab_size if question["vocab_size"] is None else question["vocab_size"]
    width: Any = int(d_model) if d_model.is_integer() else d_model  # `optimal` prints any
    if (n_blocks := question["n_blocks"]) is not None or question["n_heads"] is not None:
        # An architecture that cannot be is refused.
        Architecture(width, experts, n_blocks, question["n_heads"], vocabulary)
    positive("d_model", width)
    counted = float(law.counted_parameters(width, n_blocks, vocabulary))
    sizes = {"n_active": active_parameters(width, n_blocks, vocabulary)}
    sizes |= {"n_total": total_parameters(width, experts, n_blocks, vocabulary)}
    tokens, batch = question["tokens"], question["batch_tokens"]
    if not law.slope_batch:
        batch = None
    elif batch is None and tokens is not None:
        batch = BatchRamp(PAPER.batch_ramp, PAPER.sequence_length).last_batch_tokens(float(positive("tokens", tokens)))
    at = (counted, experts, tokens, batch)
    check, rate, interval = law.check_at(*at), float(law.at(*at)), law.interval_at(*at)
    is_told = not check.beyond
    value: dict[str, Any] = {"learning_rate": rate if is_told else None, "reading": law.reading, "source": law.source}
    value |= {"formula": law.formula, "tokens": tokens, "batch_tokens": batch}
    value |= {"regret": law.regret, "learning_rate_interval": interval if is_told else None}
    value |= {"d_model": width, "experts": experts} | {name: round(float(size)) for name, size in sizes.items()}
    return value | {"trusted": bool(check.trusted), "warnings": describe_check(check)}


def _fit(runs: list[str], experts: list[int] | None, question: dict[str, Any]) -> LearningRateFit:
    """Fit the law of the runs in these tables, of these E where they are given."""
    names_of_extras: Any = names(question["extras"] or "none")
    extras = () if names_of_extras == ("none",) else names_of_extras
    options = {name: question[name] for name in ("loss", "where", "columns", "format")}
    tables = [load(source, **options) for source in runs]
    if experts is not None:
        tables = [table.subset(np.isin(table.experts, experts)) for table in tables]
    return fit_learning_rate(
        tables, extras, reading=question["reading"], within=question["within"], mix=question["mix"]
    )
