"""What the published laws say of one budget, side by side, and what they cannot say.

Every answer is turned into a model of the paper's family (d / 64 rule, SwiGLU, one vocabulary) that spends the budget
as 6 N_act D, however its law counts. Losses belong to each law's corpus and tokenizer: they are shown, never ranked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from hub.base.inputs import reads
from hub.base.tables import Table
from hub.base.units import format_bytes, format_count, format_flops
from scaling_law.formulas.answers import Allocation, Answer, EfficiencyLeverage, OwnQuestion, TrainingRates, span
from scaling_law.formulas.conditions import ExtrapolationError, RangeCheck
from scaling_law.formulas.law import one_positive
from scaling_law.law import Law
from scaling_law.law.shelf import SHELF, PublishedLaw, entry
from scaling_law.planning.limits import Limits
from scaling_law.planning.minimiser import first_below
from scaling_law.planning.optimal_table import OptimalRow
from scaling_law.size.architecture import EXPERT_VARIABLES, VOCAB_SIZE, affordable_tokens, variables_of_width

REFERENCE = "ludziejewski"  # whose optimum learning-rate laws and laws of leverage are asked about
GRANULARITIES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
SHARED = (0.1, 0.2, 0.3, 0.4)


@dataclass(frozen=True)
class Opinion:
    """What one law says of the budget; None for what it cannot say, `silent` says why.

    `experts` is E, total over active feed-forward width. `loss` is in nats per token of `corpus`. `trusted` and
    `beyond_guard` are those of a row of `law.optimal`; a refused answer is silent, and beyond the guard. `distrust`
    names what lies too far outside the runs of the law: "D ×62".
    """

    law: str
    citation: str
    experts: float | None = None
    granularity: float | None = None
    n_active: float | None = None
    n_total: float | None = None
    tokens: float | None = None
    loss: float | None = None
    loss_interval: tuple[float, float] | None = None
    corpus: str | None = None
    tokenizer: str | None = None
    says: str = ""
    silent: str = ""
    warnings: tuple[str, ...] = ()
    trusted: bool = True
    beyond_guard: bool = False
    distrust: str = ""

    @property
    def answers(self) -> bool:
        return bool(self.says) or self.n_active is not None

    @property
    def trust(self) -> str:
        """How far to trust the answer; empty within the runs of the law."""
        if self.trusted or not self.answers:
            return "outside its runs" if self.warnings else ""
        return f"not trusted: {self.distrust}"

    @property
    def tokens_per_parameter(self) -> float | None:
        return None if self.tokens is None or self.n_active is None else self.tokens / self.n_active


@dataclass(frozen=True)
class LawComparison(Answer):
    """One row for each law, in the order of the shelf; each law has checked its own. Losses are not comparable."""

    rows: tuple[Opinion, ...]
    flops: float
    limits: Limits

    @property
    def trusted(self) -> bool:
        """Whether the answer of at least one law is."""
        return any(o.trusted and o.answers for o in self.rows)

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(f"{o.law}: {warning}" for o in self.rows for warning in o.warnings)

    def __getitem__(self, law: str) -> Opinion:
        """What this law says; KeyError if it was not asked."""
        return {opinion.law: opinion for opinion in self.rows}[law]

    def to_rows(self) -> list[dict[str, Any]]:
        return [asdict(o) | {"tokens_per_parameter": o.tokens_per_parameter} for o in self.rows]

    @property
    def verdict(self) -> str:
        experts = [o.experts for o in self.rows if o.experts and o.trusted]
        which = f", E = {span(experts, '{:.3g}'.format)}" if experts else ""
        return f"{sum(o.answers for o in self.rows)} of {len(self.rows)} published laws answer{which}"

    def facts(self) -> dict[str, Any]:
        return {"flops": self.flops, "limits": asdict(self.limits)}

    def summary(self) -> Table:
        sizes = ("n_active", "n_total", "tokens", "tokens_per_parameter", "loss")
        rows = [
            {"law": o.law, "experts": o.experts, "G": o.granularity}
            | {name: getattr(o, name) for name in sizes}
            | {"of corpus": o.corpus, "": "; ".join(filter(None, (o.says, o.silent, o.trust)))}
            for o in self.rows
        ]
        memory = self.limits.memory
        limit = f", weights within {format_bytes(memory)}" if memory else ""
        notes = [
            f"Every model: the d / 64 rule with a vocabulary of {self.limits.vocab_size:,}, and 6 N_act D FLOPs.",
            "Losses on different corpora and tokenizers are not comparable.",
        ]
        title = f"{format_flops(self.flops)} FLOPs{limit}: what published laws say"
        return Table.of(
            rows, first=("law", "E", "N_act", "tokens", "loss"), title=f"{self.verdict}\n{title}", notes=notes
        )


@reads
def compare(
    flops: Any,
    *,
    memory: Any = None,
    laws: str | Sequence[str] | None = None,
    vocab_size: int = VOCAB_SIZE,
    force: bool = False,
) -> LawComparison:
    """What each published law says of a training budget, side by side (`laws()` lists them).

    Args:
        flops: 6 N_act D; a number or text such as "1e22".
        memory: limit on the weights in bf16, bytes or "80GB". Laws without a model of their own ignore it.
        laws: names on the shelf; None asks all that have coefficients.
        force: also show answers beyond the range guard of their law.

    ValueError for unknown names, and for a budget or a limit that is not positive; ExtrapolationError where no law
    answers, and one because the answer is beyond its range guard.
    """
    budget = one_positive("flops", flops)
    limits = Limits.of(memory=memory, vocab_size=vocab_size)
    named = [laws] if isinstance(laws, str) else laws
    papers = [entry(name) for name in (named or [name for name, law in SHELF.items() if law.published])]
    reference = entry(REFERENCE).law()
    assert isinstance(reference, Law)
    table = reference.optimal(budget, memory=memory, vocab_size=vocab_size, force=True)
    best = replace(table, forced=force).best
    opinions = tuple(_opinion(paper, budget, limits, best, force) for paper in papers)
    if not any(o.answers for o in opinions) and (refused := [o for o in opinions if o.beyond_guard]):
        raise ExtrapolationError("; ".join(f"{o.law}: {o.silent}" for o in refused))
    return LawComparison(opinions, budget, limits, check=None)  # each law has checked its own


def _opinion(paper: PublishedLaw, flops: float, limits: Limits, best: OptimalRow, force: bool) -> Opinion:
    law, opinion = paper.law(), partial(Opinion, paper.name, paper.citation)
    try:
        if isinstance(law, Allocation):
            return opinion(**_allocated(paper, law, flops, limits, force))
        if not isinstance(law, Law):
            return opinion(**_about(law, flops, limits, best, force))
        if "tokens" not in law.variables:
            return opinion(silent="does not depend on tokens")
        return opinion(**_trained(paper, law, flops, limits, force))
    except ExtrapolationError as error:
        return opinion(silent=str(error), trusted=False, beyond_guard=True)
    except ValueError as error:
        return opinion(silent=str(error))


def _trained(paper: PublishedLaw, law: Law, flops: float, limits: Limits, force: bool) -> dict[str, Any]:
    """The model that a law of the loss would train, of the best granularity and shared experts where it has them."""
    fine = {"granularity", "experts_per_token", "active_experts"} & {*law.variables}
    shared = SHARED if "shared_ratio" in law.variables else (0.0,)
    within: Any = {name: getattr(limits, name) for name in ("memory", "vocab_size")}
    rows, refused = [], []
    for g, s in product(GRANULARITIES if fine else (1.0,), shared):
        try:
            rows.append((law.optimal(flops, granularity=g, shared_ratio=s, force=force, **within).best, g))
        except ValueError as error:
            refused.append(error)
    if not rows:
        raise refused[0]
    row, granularity = min(rows, key=lambda pair: (not pair[0].trusted, pair[0].loss))
    names = ("experts", "n_active", "n_total", "tokens", "loss", "loss_interval", "trusted", "distrust")
    return {name: getattr(row, name) for name in names} | {
        "beyond_guard": row.beyond_guard,
        "granularity": granularity if fine else None,
        "corpus": paper.corpus,
        "tokenizer": paper.tokenizer,
        "warnings": row.warnings,
        "silent": "" if EXPERT_VARIABLES & {*law.variables} else "holds for dense models only",
    }


def _worth(check: RangeCheck) -> dict[str, Any]:
    worth: dict[str, Any] = {"trusted": bool(check.trusted), "beyond_guard": bool(check.beyond)}
    return worth | {"warnings": check.warnings, "distrust": check.distrust}


def _allocated(paper: PublishedLaw, law: Allocation, flops: float, limits: Limits, force: bool) -> dict[str, Any]:
    """The size that an allocation law names, as a model of the family; its tokens are those that the budget leaves."""
    optimum, worth = law.optimum(flops, force=force), _worth(law.check(flops=flops))
    if law.size_name not in variables_of_width(64.0, 1.0):
        size = format_count(float(optimum[law.size_name]))
        says = f"{law.size_name} {size}, {format_count(float(optimum['tokens']))} tokens by its own count of FLOPs"
        return {"says": says, "silent": "gives no parameter count", **worth}

    def missing(x: Any) -> Any:
        return optimum[law.size_name] - variables_of_width(np.exp(x), 1.0, vocab_size=limits.vocab_size)[law.size_name]

    width = np.exp(first_below(missing, np.array(-5.0), np.array(20.0)))
    n_active = float(variables_of_width(width, 1.0, vocab_size=limits.vocab_size)["n_active"])
    return worth | {
        "n_active": n_active,
        "tokens": float(affordable_tokens(flops, n_active)),
        "loss": float(optimum["loss"]) if law.loss else None,
        "corpus": paper.corpus,
        "tokenizer": paper.tokenizer,
        "says": f"its own tokens: {format_count(float(optimum['tokens']))}",
        "silent": "does not depend on experts",
    }


def _about(law: OwnQuestion, flops: float, limits: Limits, best: OptimalRow, force: bool) -> dict[str, Any]:
    """What a learning-rate law or one of leverage says of the model that the joint law chooses."""
    model = f"for the model of {REFERENCE} (E = {best.experts:g})"
    if best.beyond_guard and not force:
        raise ExtrapolationError(f"no model to ask about: the {REFERENCE} law is too far from its runs to choose one")
    variables = variables_of_width(best.d_model, best.experts, vocab_size=limits.vocab_size) | {
        "tokens": best.tokens,
        "flops": flops,
        "granularity": 2.0 / 3.0,  # of Tian et al., 2 d_model / d_expert
    }
    inputs = {name: float(variables[name]) for name in law.variables}
    opinion: dict[str, Any] = {"silent": "gives no size, tokens or loss", **_worth(law.check(**inputs))}
    if isinstance(law, TrainingRates):
        rates = law.rates(**inputs, force=force)
        batch = format_count(float(rates["batch_tokens"]))
        return opinion | {"says": f"peak LR {float(rates['learning_rate']):.2e}, batch of {batch} tokens {model}"}
    assert isinstance(law, EfficiencyLeverage)
    factor = float(law.leverage(**inputs, force=force))
    return opinion | {"says": f"dense needs {factor:.2f} times the compute, {model}"}
