"""The optimum of each published law of the loss for one budget, side by side.

Every optimum is a model of the paper's family (d / 64 rule, SwiGLU, one vocabulary) that spends the budget as
6 N_act D, however its law counts. Losses belong to each law's corpus and tokenizer: they are shown, never ranked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Annotated, Any, ClassVar, cast

from hub.base.errors import InputError, reason_of
from hub.base.fields import Field, Names, field, reads
from hub.base.tables import Table
from hub.base.types import Fields, Strings
from hub.base.units import format_bytes, format_flops
from scaling_law.answer.answer import Answer, Row, columns_of, span
from scaling_law.formulas.conditions import ExtrapolationError
from scaling_law.law.shelf import SHELF, PublishedLaw, entry
from scaling_law.planning.limits import Limits
from scaling_law.planning.optimal_table import OptimalRow
from scaling_law.planning.question import OF_FAMILY, Flops, Force, Like, Memory

GRANULARITIES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
SHARED = (0.1, 0.2, 0.3, 0.4)
FINE = {"granularity", "experts_per_token", "active_experts"}  # variables of laws of fine-grained experts
COLUMNS = ("experts", "n_active", "n_total", "tokens", "tokens_per_parameter", "loss", "loss_interval", "trusted")
SHOWN = ("law", "experts", "granularity", "n_active", "n_total", "tokens", "tokens_per_parameter", "loss", "corpus")


class LawOptimum(Row):
    """The best model by one `law` in nats per token of its `corpus`; its values are None where there is no `optimum`.

    `refusal` says why there is none. `granularity` is that of laws of fine-grained experts.
    """

    _hidden = ("optimum",)

    @property
    def remark(self) -> str:
        """Say why there is no optimum, or how far to trust it; empty within the runs of the law."""
        if self.optimum is None:
            return str(self.refusal)
        if not self.optimum.trusted:
            return f"not trusted: {self.optimum.distrust}"
        return "outside its runs" if self.optimum.warnings else ""


@dataclass(frozen=True, eq=False, repr=False)
class LawComparison(Answer):
    """One row for each law, in the order of the shelf; each law has checked its own. Losses are not comparable."""

    _row: ClassVar[type[Row]] = LawOptimum
    _question = ("law", "experts")

    flops: float
    limits: Limits

    @property
    def trusted(self) -> bool:
        """True if the optimum of at least one law is trusted."""
        return any(row.trusted for row in self.rows)

    @property
    def warnings(self) -> Strings:
        return tuple(f"{row.law}: {warning}" for row in self.rows for warning in row.warnings)

    def __getitem__(self, law: str) -> LawOptimum:
        """Return the row of a law; KeyError if it was not asked."""
        return cast(LawOptimum, self.row(law=law))

    @property
    def verdict(self) -> str:
        n_optima = sum(row.optimum is not None for row in self.rows)
        trusted = [row.experts for row in self.rows if row.trusted]
        experts = f", E = {span(trusted, '{:.3g}'.format)}" if trusted else ""
        return f"{n_optima} of {len(self.rows)} published laws of the loss have an optimum{experts}"

    def _lines(self) -> str:
        memory = self.limits.memory
        limit = f", weights within {format_bytes(memory)}" if memory else ""
        return f"{self.verdict}\n{format_flops(self.flops)} FLOPs{limit}: the optima of published laws"

    def _cells(self) -> list[Fields]:
        cells = []
        for row in self.rows:
            cells.append({**{name: row[name] for name in SHOWN}, "": row.remark})
        return cells

    def summary(self) -> Table:
        """Tabulate the laws; remarks say what warnings do."""
        return replace(super().summary(), warnings=())

    def _footnotes(self) -> list[str]:
        shape = f"like {self.limits.like}" if self.limits.like else "the d / 64 rule"
        return [
            f"Every model: {shape} with a vocabulary of {self.limits.vocab_size:,}, and 6 N_act D FLOPs.",
            "Losses on different corpora and tokenizers are not comparable.",
        ]


LAWS = "Names, comma-separated; a single law is shown in full. [default: all; with a budget those with coefficients]"


@reads
def compare(
    flops: Annotated[Flops, field("Compute budget of training: 1e22.")],
    *,
    memory: Annotated[Memory | None, field("Memory for the weights: 80GB (decimal) or 80GiB.")] = None,
    laws: Annotated[Names | None, field(LAWS)] = None,
    like: Annotated[Like | None, field(OF_FAMILY)] = None,
    vocab_size: Annotated[int | None, Field(ge=1), field("Vocabulary of every model.", rare=True)] = None,
    force: Force = False,
) -> LawComparison:
    """Find the optimum of each published law of the loss for a training budget (`laws()` lists the laws).

    Args:
        flops: 6 N_act D; a number or text such as "1e22".
        memory: limit on the weights in bf16, bytes or "80GB".
        laws: names on the shelf; None asks every law of sizes and tokens that has coefficients.
        force: also show answers beyond the range guard of their law.

    ValueError for unknown names, for publications that give no loss, and for a budget or a limit that is not positive;
    ExtrapolationError where no law answers, and one because its optimum is beyond the range guard.
    """
    budget = cast(float, flops)
    limits = Limits.of(memory=memory, vocab_size=vocab_size, like=like)
    if laws is None:
        names = [name for name, law in SHELF.items() if law.has_optimum]
    else:
        names = list(laws)
        if not names:
            raise InputError(f"laws={laws!r} must name one law or several")
    rows = []
    beyond_guard = []
    for name in names:
        paper = entry(name)
        law = paper.law()
        try:
            row = _find_optimum(paper, law, budget, limits, force)
        except ValueError as error:
            row = _row_of(paper, refusal=reason_of(error))
            if isinstance(error, ExtrapolationError):
                beyond_guard.append(f"{name}: {reason_of(error)}")
        rows.append(row)
    if beyond_guard and all(row["optimum"] is None for row in rows):
        raise ExtrapolationError("; ".join(beyond_guard))
    return LawComparison(budget, limits, columns=columns_of(rows), check=None)


def _find_optimum(paper: PublishedLaw, law: Any, flops: float, limits: Limits, force: bool) -> Fields:
    """Ask the law, over granularities and shared experts where it depends on them."""
    is_fine = bool(FINE & {*law.variables}) and limits.like is None
    has_shares = "shared_ratio" in law.variables and limits.like is None
    designs = product(GRANULARITIES if is_fine else (1.0,), SHARED if has_shares else (0.0,))
    question: Fields = {"memory": limits.memory, "vocab_size": limits.vocab_size, "like": limits.like, "force": force}
    optima = []
    refusals = []
    for granularity, shared_ratio in designs:
        try:
            table = law.optimal(flops, granularity=granularity, shared_ratio=shared_ratio, **question)
        except ValueError as error:
            refusals.append(error)
        else:
            optima.append((table.best, granularity))
    if not optima:
        raise refusals[0]
    best, granularity = min(optima, key=lambda pair: (not pair[0].trusted, pair[0].loss))
    return _row_of(paper, best, granularity if is_fine else None)


def _row_of(
    paper: PublishedLaw, optimum: OptimalRow | None = None, granularity: float | None = None, refusal: str = ""
) -> Fields:
    """Return the row of a law and its optimum."""
    return {
        "law": paper.name,
        "citation": paper.citation,
        "corpus": paper.corpus,
        "tokenizer": paper.tokenizer,
        **{name: getattr(optimum, name, None) for name in COLUMNS},
        "warnings": () if optimum is None else optimum.warnings,
        "granularity": granularity,
        "refusal": refusal,
        "optimum": optimum,
    }
