"""The command of `scaling-law` that asks a learning-rate law, or fits one to a grid of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer

from hub.base.errors import InputError
from hub.base.fields import field, parse_names
from hub.base.tables import Table, show
from hub.base.types import Fields
from hub.base.units import format_count
from scaling_law.commands.options import Mode, command, exit_untrusted, option, rare
from scaling_law.commands.run_options import OfRuns, load
from scaling_law.formulas.law import positive
from scaling_law.law import Law
from scaling_law.planning.question import RATES, ExpertCounts, Tokens
from scaling_law.rates.batch import GIVEN, cite, usual_batch
from scaling_law.rates.law import DEFAULT_LAW, LearningRateLaw
from scaling_law.rates.surface import LearningRateFit, fit_learning_rate
from scaling_law.size.architecture import Architecture, name_size
from scaling_law.size.widths import Sized, Widths

WITH = "To fit: what the law has besides N and E: tokens, batch, or tokens,batch. [default: neither]"
EXPERTS_OF = "E of the architecture; to fit: the E to fit on, 1,8. [default: 1; to fit: all]"
JUDGED_BY = "The column to judge by. [default: eval_loss, or the only loss column]"
BATCH_HELP = (
    "Tokens of a batch, for laws that have it: 0.5M. [default: the paper's, above its largest run by Step Law]"
)
MODES = {
    "runs": Mode(
        only=(
            "loss",
            "extras",
            "reading",
            "where",
            "columns",
            "mapping",
            "format",
            "within",
            "mix",
            "output",
            "overwrite",
        ),
        never=("d_model", "n_blocks", "n_heads", "vocab_size", "tokens", "batch_tokens", "law"),
    ),
}


class OfRates(OfRuns):
    """What a rate depends on besides width and E, and how a learning-rate law is fitted."""

    extras: Annotated[str | None, option(WITH, "--with")] = None
    loss: Annotated[str | None, option(JUDGED_BY)] = None
    n_blocks: Annotated[int | None, rare("Number of blocks.")] = None
    n_heads: Annotated[int | None, rare("Number of heads.")] = None
    tokens: Annotated[Tokens | None, field("Tokens of the run, for laws that have them: 20B.", rare=True)] = None
    batch_tokens: Annotated[Tokens | None, field(BATCH_HELP, rare=True)] = None
    reading: Annotated[Literal["code", "paper"], rare("Fit with N as in the paper's runs, or as in its text.")] = (
        "code"
    )
    within: Annotated[float, rare("To fit: leave out runs this far above the best of their model, nats.")] = 0.03


@command(
    "runs d_model experts law extras loss output overwrite n_blocks n_heads vocab_size tokens batch_tokens reading "
    "where columns mapping format within mix",
    OfRates,
    MODES,
    asks=Law.optimal,
)
def learning_rate(
    as_json: bool,
    verbose: bool,
    runs: Annotated[
        list[str] | None, typer.Argument(help="To fit a law: tables of runs, as for `scaling-law fit`.")
    ] = None,
    d_model: Annotated[float | None, option("Width; blocks and heads follow as d_model / 64 unless given.")] = None,
    experts: Annotated[ExpertCounts | None, field(EXPERTS_OF)] = None,
    law: Annotated[str, option(RATES)] = DEFAULT_LAW,
    output: Annotated[Path | None, option("File for the fitted law (JSON).", "--output", "-o")] = None,
    **question: Any,
) -> None:
    """Give the peak learning rate of an architecture; given runs, fit a learning-rate law to them.

        scaling-law learning-rate --d-model 1024 --experts 8 --tokens 20B

    No rate, and exit status 1, where N, D or the batch lie more than ten times outside the runs of the law, or where
    the interval of the best rate spans more than a factor of 30. A fitted law is
    LR = exp(intercept + slope_n ln N + slope_e ln E), --with D and batch. It is the centre of one paraboloid through
    the losses of all runs near the best of their model. A table has d_model and n_blocks, or N is taken as its
    n_active.

    More examples:

        scaling-law learning-rate --d-model 512 --law paper --json

        scaling-law learning-rate lr.csv --column learning_rate=lr --column n_active=params --column experts=1

        scaling-law learning-rate --d-model 192 --n-blocks 3 --law my-learning-rates.json --tokens 20B

        scaling-law learning-rate lr-runs.jsonl --experts 1,8 -o my-learning-rates.json

        scaling-law learning-rate dense_lr_bs_loss.csv moe_lr_bs_loss.csv --format step_law --with tokens,batch
    """
    if runs:
        result = _fit(runs, experts, question)
        if output is not None:
            result.law.save(output)
        show(result.to_dict() if as_json else None, as_json, result.summary().for_shell(verbose))
        if not as_json:
            typer.echo(result.law.formula)
            if output is not None:
                typer.echo(f"wrote {output}")
        return
    if d_model is None:
        raise InputError("--d-model is needed; or RUNS, to fit a learning-rate law")
    experts = experts or [1]
    if len(experts) > 1:
        raise InputError(f"--experts {','.join(map(str, experts))}: an architecture has one E; several go with RUNS")
    answer = _ask(LearningRateLaw.named(law), d_model, experts[0], question)
    show(answer, as_json, _describe(answer).for_shell(verbose))
    exit_untrusted(answer["trusted"])


def _ask(law: LearningRateLaw, d_model: float, experts: int, question: Fields) -> Fields:
    """Ask the law for the rate of one architecture, with its sizes and the range check."""
    vocabulary = law.vocab_size if question["vocab_size"] is None else question["vocab_size"]
    positive("d_model", d_model)
    # `optimal` prints widths that are no whole numbers, too.
    width: Any = int(d_model) if d_model.is_integer() else d_model
    model: Sized = Widths.of(width, experts, vocab_size=vocabulary)
    if question["n_blocks"] is not None or question["n_heads"] is not None:
        model = Architecture(width, experts, question["n_blocks"], question["n_heads"], vocabulary)
    tokens = question["tokens"]
    batch = question["batch_tokens"]
    source: str | None = GIVEN
    if law.slope_batch and batch is None and tokens is not None:
        batch, source = usual_batch(float(model.n_active), float(positive("tokens", tokens)))
    if not law.slope_batch or batch is None:
        batch = source = None
    peak = law.peak(float(law.counted(model)), experts, tokens, batch)
    return {
        "learning_rate": peak.learning_rate,
        "reading": law.reading,
        "source": law.source,
        "formula": law.formula,
        "tokens": tokens,
        "batch_tokens": batch,
        "batch_source": source,
        "regret": law.regret,
        "learning_rate_interval": peak.interval,
        "d_model": width,
        "experts": experts,
        "n_active": round(float(model.n_active)),
        "n_total": round(float(model.n_total)),
        "trusted": bool(peak.check.trusted) and peak.learning_rate is not None,
        "warnings": peak.warnings,
    }


def _describe(answer: Fields) -> Table:
    """Lay out the rate, its model, its law and its warnings."""
    size = name_size(answer["experts"], answer["n_active"], answer["n_total"])
    if answer["tokens"] is not None:
        size += f", {format_count(answer['tokens'])} tokens"
    headline = f"no peak learning rate for {size}"
    if answer["learning_rate"] is not None:
        headline = f"peak learning rate {answer['learning_rate']:.3g}"
        if answer["learning_rate_interval"] is not None:
            headline += " ({:.3g} to {:.3g})".format(*answer["learning_rate_interval"])
        headline += f" for {size}"
    count = "without embeddings" if answer["reading"] == "paper" else "as the code of the paper's runs"
    rows = [("law", answer["source"]), ("counts N", count)]
    if answer["batch_tokens"] is not None:
        batch = f"{format_count(answer['batch_tokens'])} tokens ({cite(answer['batch_source'])})"
        rows.append(("batch", batch))
    return Table((), rows, title=headline, warnings=answer["warnings"])


def _fit(runs: list[str], experts: list[int] | None, question: Fields) -> LearningRateFit:
    """Fit the law of the runs in these tables, of these E where they are given."""
    extras: Any = parse_names(question["extras"] or "none")
    if extras == ("none",):
        extras = ()
    options = {name: question[name] for name in ("loss", "where", "columns", "mapping", "format")}
    tables = [load(source, **options) for source in runs]
    if experts is not None:
        tables = [table.subset(np.isin(table.experts, experts)) for table in tables]
    return fit_learning_rate(
        tables, extras, reading=question["reading"], within=question["within"], mix=question["mix"]
    )
