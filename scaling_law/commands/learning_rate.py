"""The command of `scaling-law` that asks a learning-rate law, or fits one to a grid of runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from hub.base.errors import InputError
from hub.base.fields import field, parse_names
from hub.base.tables import Summarised, Table
from hub.base.types import Fields
from hub.base.units import format_count
from scaling_law.commands.options import Mode, Printed, command, option, rare
from scaling_law.commands.run_options import Mix, load
from scaling_law.formulas.law import positive
from scaling_law.law import Law
from scaling_law.planning.question import RATES, ExpertCounts, Tokens
from scaling_law.rates.batch import GIVEN, cite, usual_batch
from scaling_law.rates.law import DEFAULT_LAW, LearningRateLaw, PeakRate, Reading
from scaling_law.rates.surface import fit_learning_rate
from scaling_law.size.architecture import Architecture, name_size
from scaling_law.size.ladder import PaperLadder
from scaling_law.size.widths import Sized

WITH = "To fit: what the law has besides N and E: tokens, batch, or tokens,batch. [default: neither]"
EXPERTS_OF = "E of the architecture; to fit: the E to fit on, 1,8. [default: 1; to fit: all]"
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


@command(
    "runs d_model experts law extras loss output n_blocks n_heads vocab_size tokens batch_tokens reading "
    "where columns mapping format within mix",
    Law.optimal,
    load,
    modes=MODES,
)
def learning_rate(
    vocab_size: int | None,
    runs: Annotated[
        list[str] | None, typer.Argument(help="To fit a law: tables of runs, as for `scaling-law fit`.")
    ] = None,
    d_model: Annotated[float | None, option("Width; blocks and heads follow as d_model / 64 unless given.")] = None,
    experts: Annotated[ExpertCounts | None, field(EXPERTS_OF)] = None,
    law: Annotated[str, option(RATES)] = DEFAULT_LAW,
    extras: Annotated[str | None, option(WITH, "--with")] = None,
    output: Annotated[Path | None, option("File for the fitted law (JSON).", "--output", "-o")] = None,
    n_blocks: Annotated[int | None, rare("Number of blocks.")] = None,
    n_heads: Annotated[int | None, rare("Number of heads.")] = None,
    tokens: Annotated[Tokens | None, field("Tokens of the run, for laws that have them: 20B.", rare=True)] = None,
    batch_tokens: Annotated[Tokens | None, field(BATCH_HELP, rare=True)] = None,
    reading: Annotated[Reading, rare("Fit with N as in the paper's runs, or as in its text.")] = "code",
    within: Annotated[float, rare("To fit: leave out runs this far above the best of their model, nats.")] = 0.03,
    mix: Mix = "",
    **table_options: Any,
) -> Printed:
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
        tables = [load(source, **table_options) for source in runs]
        if experts is not None:
            tables = [table.subset(np.isin(table.experts, experts)) for table in tables]
        variables: Any = parse_names("" if extras in (None, "none") else extras)
        result = fit_learning_rate(tables, variables, reading=reading, within=within, mix=mix)
        lines = [result.law.formula]
        if output is not None:
            result.law.save(output)
            lines.append(f"wrote {output}")
        return Printed(result, lines=lines, trusted=True)
    if d_model is None:
        raise InputError("--d-model is needed; or RUNS, to fit a learning-rate law")
    experts = experts or [1]
    if len(experts) > 1:
        raise InputError(f"--experts {','.join(map(str, experts))}: an architecture has one E; several go with RUNS")
    of_rates = LearningRateLaw.named(law)
    vocabulary = of_rates.vocab_size if vocab_size is None else vocab_size
    positive("d_model", d_model)
    # `optimal` prints widths that are no whole numbers, too.
    width: Any = int(d_model) if d_model.is_integer() else d_model
    e = experts[0]
    model: Sized = PaperLadder(vocab_size=vocabulary).widths(width, e)
    if n_blocks is not None or n_heads is not None:
        model = Architecture(width, e, n_blocks, n_heads, vocabulary)
    return Printed(RateOfModel.of(of_rates, model, width, e, tokens, batch_tokens))


@dataclass(frozen=True)
class RateOfModel(Summarised):
    """The peak learning rate of one model, for a batch that is given or usual, where the law depends on it."""

    peak: PeakRate
    model: Sized
    d_model: float
    experts: int
    tokens: float | None
    batch_tokens: float | None
    batch_source: str | None

    @classmethod
    def of(
        cls, law: LearningRateLaw, model: Sized, d_model: float, experts: int, tokens: Any, batch: Any
    ) -> RateOfModel:
        """Ask a law for the rate of a model."""
        source: str | None = GIVEN
        if law.slope_batch and batch is None and tokens is not None:
            batch, source = usual_batch(float(model.n_active), float(positive("tokens", tokens)))
        if not law.slope_batch or batch is None:
            batch = source = None
        peak = law.peak(float(law.counted(model)), experts, tokens, batch)
        return cls(peak, model, d_model, experts, tokens, batch, source)

    @property
    def trusted(self) -> bool:
        """True if there is a rate, within the range of the law."""
        return bool(self.peak.check.trusted) and self.peak.learning_rate is not None

    def to_dict(self) -> Fields:
        """Return plain JSON values."""
        law = self.peak.law
        return {
            "learning_rate": self.peak.learning_rate,
            "reading": law.reading,
            "source": law.source,
            "formula": law.formula,
            "tokens": self.tokens,
            "batch_tokens": self.batch_tokens,
            "batch_source": self.batch_source,
            "regret": law.regret,
            "learning_rate_interval": self.peak.interval,
            "d_model": self.d_model,
            "experts": self.experts,
            "n_active": round(float(self.model.n_active)),
            "n_total": round(float(self.model.n_total)),
            "trusted": self.trusted,
            "warnings": self.peak.warnings,
        }

    def summary(self) -> Table:
        """Lay out the rate, its model, its law and its warnings."""
        size = name_size(self.experts, float(self.model.n_active), float(self.model.n_total))
        if self.tokens is not None:
            size += f", {format_count(self.tokens)} tokens"
        headline = f"no peak learning rate for {size}"
        if self.peak.learning_rate is not None:
            interval = "" if self.peak.interval is None else " ({:.3g} to {:.3g})".format(*self.peak.interval)
            headline = f"peak learning rate {self.peak.learning_rate:.3g}{interval} for {size}"
        law = self.peak.law
        count = "without embeddings" if law.reading == "paper" else "as the code of the paper's runs"
        rows = [("law", law.source), ("counts N", count)]
        if self.batch_source is not None:
            rows.append(("batch", f"{format_count(self.batch_tokens)} tokens ({cite(self.batch_source)})"))
        return Table((), rows, title=headline, warnings=self.peak.warnings)
